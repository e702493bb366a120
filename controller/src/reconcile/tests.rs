//! What a pass tells, counts and waits for, and what it does when it is the last one.

use super::*;
use crate::plan::tests::{facts, job, running};

#[test]
fn what_the_api_server_refuses_is_told_in_the_conditions() {
    let refused = Rejection { reason: "QuotaExceeded".to_owned(), message: "cannot create Pod pv-1-tm-0".to_owned() };
    let starting = facts();
    let told = build_status(&job(), &starting, &with_problem(&plan(&starting), Some(refused.clone())));
    let condition = |kind: &str| told.conditions.iter().find(|condition| condition.type_ == kind).expect("is there");
    assert_eq!(
        (condition("Degraded").status.as_str(), condition("Degraded").reason.as_str()),
        ("True", "QuotaExceeded")
    );
    assert_eq!(told.message.as_deref(), Some("cannot create Pod pv-1-tm-0"));
    assert_eq!(with_problem(&plan(&starting), None), plan(&starting));
    // A job that runs is told to run, and to have something wrong.
    let running = running();
    let told = with_problem(&plan(&running), Some(refused.clone())).view;
    assert!(told.ready && told.degraded == Some(refused));
}

#[test]
fn what_becomes_wrong_with_a_job_that_runs_is_an_event_once() {
    let mut facts = running();
    facts.told.ready = true;
    facts.report.as_mut().expect("it runs").failed_checkpoints_in_a_row = 2;
    let told = |facts: &Facts| {
        let events = occurrences(facts, &plan(facts));
        events.into_iter().map(|event| (event.warning, event.reason)).collect::<Vec<_>>()
    };
    assert_eq!(told(&facts), [(true, "CheckpointsFail".to_owned())]);
    facts.told.degraded = plan(&facts).view.degraded;
    assert_eq!(told(&facts), []);
    // A word that this version does not know is read back as another.
    facts.report.as_mut().expect("it runs").failed_checkpoints_in_a_row = 0;
    let notice = sluice_protocol::status::Notice { reason: "OfALaterVersion".to_owned(), message: "what".to_owned() };
    facts.report.as_mut().expect("it runs").notices = vec![notice];
    assert_eq!(told(&facts), [(true, "OfALaterVersion".to_owned())]);
    facts.told.degraded = Some(Rejection { reason: "Unlisted".to_owned(), message: String::new() });
    assert_eq!(told(&facts), []);
}

/// A node is given up after 5 s, after 20 s where its pods answer, and a pod after 30 s: a second later each is looked at.
#[test]
fn nothing_that_is_to_be_given_up_waits_for_longer_than_it_must() {
    let mut silent = running();
    silent.pods[0].unready_since = Some(silent.now);
    let began = silent.now;
    let looks = [0, 6, 21].map(|seconds| {
        silent.now = began.plus(TimeSpan::from_secs(seconds));
        next_pass_of(&silent, &Plan { wake_at: None, ..plan(&running()) }, Due::Never, None)
    });
    assert_eq!(looks, [6, 15, 10].map(|seconds| Action::requeue(Duration::from_secs(seconds))));
}

#[test]
fn a_job_that_runs_is_not_looked_at_before_something_is_due() {
    let mut facts = running();
    facts.now = facts.now.plus(TimeSpan::from_secs(30));
    let report = facts.report.as_mut().expect("it runs");
    report.last_checkpoint.as_mut().expect("has one").completed_at = facts.now;
    let plan = plan(&facts);
    let looked = next_pass_of(&facts, &plan, Due::Never, None);
    // The longer of interval and timeout times (tolerableFailures + 2), at most the resync.
    assert_eq!(looked, Action::requeue(RESYNC), "{:?}", plan.wake_at);
}

#[test]
fn a_quota_is_told_from_a_right_that_is_missing() {
    let error = |code: u16, message: &str| {
        let text = serde_json::json!({"status": "Failure", "reason": "Forbidden", "code": code, "message": message});
        let status = serde_json::from_value(text).expect("is a status");
        ApplyError::Api { action: "create Pod".to_owned(), source: kube::Error::Api(Box::new(status)) }
    };
    assert_eq!(error(403, "pods \"a\" is forbidden: exceeded quota: q, used: pods=2").name(), "QuotaExceeded");
    assert_eq!(error(403, "cannot create resource \"pods\"").name(), "Forbidden");
    assert_eq!(error(500, "").name(), "ApiError");
    assert_eq!(error(403, "not allowed").to_string(), "cannot create Pod: not allowed (403)");
}

/// What no status holds is seen again, by the next pass or by the next controller.
#[tokio::test]
async fn a_restart_counts_when_it_is_remembered() {
    let mut job = job();
    let status = serde_json::json!({
        "state": "Running", "generation": 1, "revision": 1, "startedRevision": 1, "ledgerEntry": 5,
        "program": "pv-program-1", "jobManagerPod": "gone",
    });
    job.metadata.finalizers = Some(vec![names::FINALIZER.to_owned()]);
    job.status = Some(serde_json::from_value(status).expect("is a status"));
    let manifest = crate::validate::frozen_manifest("pv", "ns", &job.spec).expect("is written");
    let written = serde_json::to_value(&job).expect("is JSON");
    let job = Arc::new(kube::core::DeserializeGuard(Ok(job)));
    for (code, counted) in [(500, false), (200, true)] {
        let (manifest, written) = (manifest.clone(), written.clone());
        let calls = crate::fake_api::Calls::default();
        let client = crate::fake_api::server(&calls, move |_, path| match path.rsplit('/').next() {
            Some("pv-program-1") => {
                let data = serde_json::json!({"job.yaml": manifest});
                Some((200, serde_json::json!({"metadata": {"name": "pv-program-1"}, "data": data})))
            }
            Some("status") if code == 200 => Some((200, written.clone())),
            Some("status") => Some((code, crate::fake_api::refusal(code, "InternalError", "not now"))),
            _ => None,
        });
        let context = Arc::new(Context::on(client));
        make_pass(Arc::clone(&job), Arc::clone(&context)).await;
        let metrics = context.metrics.encode();
        assert_eq!(metrics.contains(r#"restarts_total{cause="JobManagerGone"} 1"#), counted, "{code}: {metrics}");
    }
}

/// The pass that lets a StreamJob go is the last one that could tell why.
#[tokio::test]
async fn a_ledger_that_is_left_open_by_a_deletion_is_told_of() {
    let mut job = job();
    job.metadata.deletion_timestamp = Some(crate::time::to_time(crate::time::now()));
    job.metadata.finalizers = Some(vec![names::FINALIZER.to_owned()]);
    let status = serde_json::json!({
        "state": "Running", "generation": 1, "revision": 1, "startedRevision": 1, "ledgerEntry": 5,
        "program": "pv-program-1", "jobManagerPod": "p", "stop": {"cause": "Delete", "since": "2026-01-01T00:00:00Z"},
    });
    job.status = Some(serde_json::from_value(status).expect("is a status"));
    let calls = crate::fake_api::Calls::default();
    let manifest = crate::validate::frozen_manifest("pv", "ns", &job.spec).expect("is written");
    let client = crate::fake_api::server(&calls, move |_, path| {
        let program = serde_json::json!({"metadata": {"name": "pv-program-1"}, "data": {"job.yaml": manifest}});
        path.ends_with("/configmaps/pv-program-1").then_some((200, program))
    });
    let pass = make_pass(Arc::new(kube::core::DeserializeGuard(Ok(job))), Arc::new(Context::on(client)));
    assert_eq!(pass.await, Action::await_change());
    let told = || {
        let calls = calls.lock().expect("no panic");
        calls.iter().any(|(_, path, event)| path.ends_with("/events") && event["reason"] == "NotClosed")
    };
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert!(told(), "{:?}", calls.lock().expect("no panic"));
}
