//! A pass that panics is a failure of its object: it is told of, and tried again with backoff; other objects go on.

use crate::apply::{ApplyError, write_status};
use crate::context::Context;
use crate::facts::Rejection;
use crate::metrics::STREAM_JOB;
use crate::passes::{Action, Panicked, by_itself};
use crate::plan::Occurrence;
use crate::status::{Due, due, shorten, with_degraded};
use crate::time::now;
use crate::watches::WatchedJob;
use kube::Resource;
use sluice_crds::StreamJob;
use std::sync::Arc;

/// The name of it: the reason of the event and of the condition, and the metric's label.
const PANICKED: &str = "Panicked";

/// A pass of this kind over an object, in a task of its own.
pub(crate) async fn guard<K>(
    kind: &'static str,
    object: Arc<K>,
    context: Arc<Context>,
    pass: impl Future<Output = Action> + Send + 'static,
) -> Action
where
    K: Resource<DynamicType = ()>,
{
    match by_itself(pass).await {
        Ok(action) => action,
        Err(panicked) => note(kind, &*object, &context, &panicked).0,
    }
}

/// The same over a StreamJob, whose status tells it as well.
pub(crate) async fn guard_job(
    job: Arc<WatchedJob>,
    context: Arc<Context>,
    pass: impl Future<Output = Action> + Send + 'static,
) -> Action {
    match by_itself(pass).await {
        Ok(action) => action,
        Err(panicked) => {
            let (action, wrong) = note(STREAM_JOB, &*job, &context, &panicked);
            // What panicked may do so here too.
            let told = by_itself(async move { tell(&job, &context, &wrong).await }).await;
            if let Ok(Err(error)) = &told {
                tracing::warn!("the status of a StreamJob whose pass panicked: {error}");
            }
            action
        }
    }
}

/// Logs and counts it, tells it by an event, and says when the next pass is due.
fn note<K>(kind: &'static str, object: &K, context: &Context, panicked: &Panicked) -> (Action, Rejection)
where
    K: Resource<DynamicType = ()>,
{
    let (meta, why) = (object.meta(), &panicked.0);
    tracing::error!(kind, namespace = meta.namespace, name = meta.name, "a pass panicked: {why}");
    context.metrics.count_pass(kind, PANICKED);
    let message = format!(
        "the operator has a defect that this object brings to light ({kind}): {}; everything is left as it is and tried \
         again: report it, with the operator's log",
        shorten(why)
    );
    context.events.tell_beside(object.object_ref(&()), vec![Occurrence::new(true, PANICKED, message.clone())]);
    let wrong = Rejection { reason: PANICKED.to_owned(), message };
    // A StreamJob and its periodic savepoints fail by themselves.
    let uid = meta.uid.clone().unwrap_or_default();
    let key = if kind == STREAM_JOB { uid } else { format!("{uid}/{kind}") };
    let wait = context.backoff.failed(&key, meta.generation.unwrap_or_default(), wrong.clone(), now());
    (Action::requeue(wait.as_duration()), wrong)
}

/// Degraded says it; what is remembered stays. The next pass that goes through writes all anew.
async fn tell(job: &WatchedJob, context: &Context, wrong: &Rejection) -> Result<(), ApplyError> {
    let Ok(job) = &job.0 else { return Ok(()) };
    let status = with_degraded(job, wrong, now());
    if due(job.status.as_ref(), &status, now()) == Due::Never {
        return Ok(());
    }
    let _: StreamJob = write_status(&context.client, job, &status).await?;
    context.metrics.count_status_write(STREAM_JOB);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::build::names;
    use crate::fake_api::{Calls, server};
    use crate::plan::tests::job;
    use crate::reconcile::make_pass;
    use serde_json::json;

    fn calls_of(calls: &Calls, path: &str) -> Vec<serde_json::Value> {
        let calls = calls.lock().expect("no panic");
        calls.iter().filter(|(_, called, _)| called.ends_with(path)).map(|(_, _, body)| body.clone()).collect()
    }

    /// A job whose pass asks for the program that runs, which breaks the one who asks.
    fn broken() -> (Calls, Arc<Context>, Arc<WatchedJob>) {
        let calls = Calls::default();
        let client = server(&calls, |_, path| {
            assert!(!path.ends_with("/configmaps/pv-program-1"), "no such thing was thought of");
            None
        });
        let mut job = job();
        job.metadata.finalizers = Some(vec![names::FINALIZER.to_owned()]);
        let status =
            json!({"state": "Running", "generation": 1, "revision": 1, "program": "pv-program-1", "ledgerEntry": 5});
        job.status = Some(serde_json::from_value(status).expect("is a status"));
        (calls, Arc::new(Context::on(client)), Arc::new(kube::core::DeserializeGuard(Ok(job))))
    }

    #[tokio::test]
    async fn a_pass_that_panics_is_told_counted_and_tried_again_later() {
        let (calls, context, job) = broken();
        let pass = || {
            let (job, context) = (Arc::clone(&job), Arc::clone(&context));
            guard_job(Arc::clone(&job), Arc::clone(&context), make_pass(job, context))
        };
        assert_eq!(pass().await, Action::requeue(std::time::Duration::from_secs(1)));
        let written = calls_of(&calls, "/streamjobs/pv/status");
        let status = &written.first().expect("a status is written")["status"];
        assert_eq!((&status["state"], &status["ledgerEntry"]), (&json!("Running"), &json!(5)), "the rest stays");
        let conditions = status["conditions"].as_array().expect("has conditions");
        let degraded = conditions.iter().find(|condition| condition["type"] == "Degraded").expect("is told");
        assert_eq!((&degraded["status"], &degraded["reason"]), (&json!("True"), &json!("Panicked")));
        assert!(degraded["message"].as_str().is_some_and(|text| text.contains("no such thing was thought of")));
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        assert!(calls_of(&calls, "/events").iter().any(|event| event["reason"] == "Panicked"));
        assert!(context.metrics.encode().contains(r#"reconciles_total{kind="StreamJob",outcome="Panicked"} 1"#));
        // Whatever wakes it meanwhile, it waits; and then longer.
        assert_ne!(pass().await, Action::requeue(std::time::Duration::from_secs(2)));
        assert_eq!(calls_of(&calls, "/configmaps/pv-program-1").len(), 0, "it does not come so far");
        assert_eq!(calls_of(&calls, "/streamjobs/pv/status").len(), 1);
    }

    #[tokio::test]
    async fn of_another_kind_it_is_told_and_tried_again_too() {
        let (_, context, job) = broken();
        let pass = || guard("Savepoint", Arc::clone(&job), Arc::clone(&context), async { panic!("{}", 7) });
        let waits = [pass().await, pass().await];
        assert_eq!(waits, [1, 2].map(|seconds| Action::requeue(std::time::Duration::from_secs(seconds))));
        assert_eq!(guard("Savepoint", job, context, async { Action::await_change() }).await, Action::await_change());
    }
}
