//! What becomes of a savepoint's files when its object is deleted. Pure.
//!
//! Only with `disposeOnDelete` has the object a finalizer, and only then are files removed: by the running JobManager,
//! which refuses while a start depends on them, or by a helper pod where the job has ended (L5), which passes over the
//! StreamJob make ([`wanted_disposals`]). A finalizer never blocks for ever: past the deadline, or when the job is gone,
//! the object goes and an event says which files stay.

use super::facts::{Facts, JobFacts};
use super::plan::Ask;
use super::reconcile::FINALIZER;
use super::watches::Savepoints;
use crate::facts::WantedDisposal;
use crate::plan::Occurrence;
use crate::time;
use kube::ResourceExt;
use sluice_crds::{HelperUnderWay, Savepoint, SavepointPhase, SnapshotKind, StreamJob, StreamJobState};
use sluice_protocol::job_master::{Command, DISPOSAL_INCOMPLETE, DISPOSED};
use sluice_protocol::status::{RequestKind, RequestState, RequestStatus};
use sluice_protocol::{TimeSpan, Timestamp};

/// A refused disposal is asked for again under another id after this time.
const ROUND: TimeSpan = TimeSpan::from_secs(30);
/// How often a JobManager is asked again until its report shows the request.
const ASK_AGAIN: TimeSpan = TimeSpan::from_secs(2);

/// What is to be done about an object that is being deleted.
#[derive(Debug, Clone, PartialEq)]
pub enum Disposal {
    /// It may go; what an event tells.
    Release(Option<Occurrence>),
    /// Its request is under way: the ordinary plan goes on, at most until this time.
    Settle(Timestamp),
    /// Its files are to be removed first.
    Wait {
        /// What to ask of the JobManager.
        ask: Option<Ask>,
        /// When to look again.
        wake_at: Timestamp,
    },
}

/// Whether the object needs a finalizer: from before its savepoint is asked for, and as long as there may be one.
#[must_use]
pub fn needs_finalizer(facts: &Facts) -> bool {
    let phase = facts.status.phase.unwrap_or_default();
    let may_exist = facts.status.path.is_some() || !phase.is_terminal();
    facts.spec.dispose_on_delete && facts.spec.kind == SnapshotKind::Savepoint && may_exist
}

/// Decides about an object that is being deleted since `since`.
#[must_use]
pub fn plan_disposal(facts: &Facts, since: Timestamp) -> Disposal {
    if !needs_finalizer(facts) {
        return Disposal::Release(None);
    }
    let deadline = since.plus(facts.spec.timeout);
    let Some(path) = &facts.status.path else {
        let settles = facts.status.phase == Some(SavepointPhase::InProgress) && facts.now < deadline;
        return if settles { Disposal::Settle(deadline) } else { Disposal::Release(None) };
    };
    let stays = |reason: &str, why: &str| {
        let message = format!("{why}; the files stay at {path}");
        Disposal::Release(Some(Occurrence::new(true, reason, message)))
    };
    let same = |job: &&JobFacts| facts.status.job_uid.as_ref() == Some(&job.uid);
    let Some(job) = facts.job.as_ref().filter(same) else {
        return stays("DisposalSkipped", "the StreamJob is gone, and with it the credentials of its storage");
    };
    if let Some((outcome, message)) = outcome(job, &facts.uid) {
        return match outcome {
            DISPOSED => Disposal::Release(Some(Occurrence::new(false, DISPOSED, message.to_owned()))),
            DISPOSAL_INCOMPLETE => stays(DISPOSAL_INCOMPLETE, message),
            _ => stays("DisposalSkipped", message),
        };
    }
    let has_ended = job.state.is_some_and(StreamJobState::is_terminal);
    let answer = last_answer(job, path);
    if answer.is_some_and(|answer| answer.state == RequestState::Completed) {
        return Disposal::Release(Some(Occurrence::new(false, "Disposed", format!("{path} was removed"))));
    }
    let failure = answer.and_then(|answer| answer.failure.as_ref());
    if failure.is_some_and(|failure| failure.reason == "NotASavepoint") {
        return stays(
            "DisposalSkipped",
            "the job does not know it as its savepoint any more: it was removed, or is too old",
        );
    }
    if facts.now >= deadline {
        let why = match failure {
            Some(failure) => format!("it was not removed within {}: {}", facts.spec.timeout, failure.message),
            None if has_ended => {
                format!(
                    "it was not removed within {}: the job has ended, and a pod that does it did not come to its end, or a \
                     start of the job may still need it",
                    facts.spec.timeout
                )
            }
            None => format!("it was not removed within {}: its JobManager did not answer", facts.spec.timeout),
        };
        return stays("DisposalTimedOut", &why);
    }
    let round = facts.now.since(since).0 / ROUND.0;
    let next_round = since.plus(TimeSpan((round + 1) * ROUND.0));
    let id = format!("dispose-{round}-{}", facts.uid);
    let is_asked = job.answer(&id).is_some();
    let command = Command::Dispose { id: id.clone(), path: path.clone() };
    let ask = (job.connected && !is_asked && !has_ended).then_some(Ask { generation: job.generation, id, command });
    let wake_at = if ask.is_some() { facts.now.plus(ASK_AGAIN) } else { next_round };
    Disposal::Wait { ask, wake_at: wake_at.min(deadline) }
}

/// What became of a savepoint whose removal was left to a helper.
fn outcome<'a>(job: &'a JobFacts, savepoint: &str) -> Option<(&'a str, &'a str)> {
    let is_its = |helper: &&HelperUnderWay| helper.savepoint.as_deref() == Some(savepoint);
    let helper = job.helper.as_ref().filter(is_its)?;
    Some((helper.outcome.as_deref()?, helper.message.as_deref().unwrap_or_default()))
}

/// The Savepoints of a StreamJob that are being deleted with their files, while their time lasts; the oldest wish first.
pub(crate) fn wanted_disposals(savepoints: &Savepoints, job: &StreamJob, now: Timestamp) -> Vec<WantedDisposal> {
    let objects = savepoints.state_filter(|savepoint| savepoint.0.as_ref().is_ok_and(|one| is_wanted(one, job)));
    let wanted = objects.iter().filter_map(|object| wanted_of(object.0.as_ref().ok()?));
    let mut wanted: Vec<_> = wanted.filter(|wanted| now < wanted.deadline).collect();
    wanted.sort_by(|one, other| (one.deadline, &one.savepoint).cmp(&(other.deadline, &other.savepoint)));
    wanted
}

fn is_wanted(savepoint: &Savepoint, job: &StreamJob) -> bool {
    let held = savepoint.finalizers().iter().any(|finalizer| finalizer == FINALIZER);
    let of = savepoint.status.as_ref().and_then(|status| status.job_uid.as_ref());
    let is_its = savepoint.namespace() == job.namespace() && of == job.metadata.uid.as_ref() && of.is_some();
    held && is_its && savepoint.metadata.deletion_timestamp.is_some() && savepoint.spec.dispose_on_delete
}

fn wanted_of(savepoint: &Savepoint) -> Option<WantedDisposal> {
    let since = savepoint.metadata.deletion_timestamp.as_ref().map(time::from_time)?;
    let path = savepoint.status.as_ref()?.path.clone()?;
    Some(WantedDisposal { savepoint: savepoint.uid()?, path, deadline: since.plus(savepoint.spec.timeout) })
}

/// What the JobManager said last of the disposal of a savepoint.
fn last_answer<'a>(job: &'a JobFacts, path: &str) -> Option<&'a RequestStatus> {
    let is_meant = |request: &&RequestStatus| {
        request.kind == RequestKind::Dispose
            && request.path.as_deref() == Some(path)
            && request.state != RequestState::Pending
    };
    job.report.as_ref()?.requests.iter().rev().find(is_meant)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::savepoint::plan::tests::{NOW, asked, fresh};
    use sluice_protocol::failure::Failure;
    use sluice_protocol::status::JobStatus;

    const PATH: &str = "s3://b/sp/1-7";

    /// A completed savepoint whose files go with it, being deleted.
    fn taken() -> Facts {
        let mut facts = asked();
        facts.spec.dispose_on_delete = true;
        facts.status.phase = Some(SavepointPhase::Completed);
        facts.status.path = Some(PATH.to_owned());
        facts
    }

    fn answered(facts: &mut Facts, id: &str, state: RequestState, failure: Option<Failure>) {
        let path = Some(PATH.to_owned());
        let request =
            RequestStatus { id: id.to_owned(), kind: RequestKind::Dispose, state, path, snapshot: None, failure };
        let job = facts.job.as_mut().expect("there is one");
        job.report.get_or_insert_with(JobStatus::default).requests.push(request);
    }

    fn told(disposal: &Disposal) -> &str {
        match disposal {
            Disposal::Release(Some(occurrence)) => &occurrence.reason,
            _ => panic!("not told: {disposal:?}"),
        }
    }

    fn asks(facts: &Facts) -> Option<String> {
        match plan_disposal(facts, NOW) {
            Disposal::Wait { ask, wake_at } => {
                assert!(wake_at > facts.now);
                ask.map(|ask| ask.id)
            }
            other => panic!("does not wait: {other:?}"),
        }
    }

    #[test]
    fn only_what_is_asked_to_go_gets_a_finalizer() {
        assert!(!needs_finalizer(&fresh()));
        assert!(needs_finalizer(&taken()));
        let mut kept = taken();
        kept.spec.dispose_on_delete = false;
        assert_eq!(plan_disposal(&kept, NOW), Disposal::Release(None));
        let mut failed = taken();
        (failed.status.phase, failed.status.path) = (Some(SavepointPhase::Failed), None);
        assert_eq!(plan_disposal(&failed, NOW), Disposal::Release(None));
    }

    #[test]
    fn the_running_job_removes_it() {
        let mut facts = taken();
        let id = asks(&facts).expect("asks");
        assert!(id.len() <= 63 && id.starts_with("dispose-0-"), "{id}");
        answered(&mut facts, &id, RequestState::Pending, None);
        assert_eq!(asks(&facts), None, "is asked once");
        facts.job.as_mut().expect("there is one").report = None;
        answered(&mut facts, &id, RequestState::Completed, None);
        assert_eq!(told(&plan_disposal(&facts, NOW)), "Disposed");
    }

    #[test]
    fn a_refusal_is_asked_for_again_later_and_not_for_ever() {
        let mut facts = taken();
        let id = asks(&facts).expect("asks");
        answered(
            &mut facts,
            &id,
            RequestState::Failed,
            Some(Failure::user("SavepointInUse", "the job was started from it")),
        );
        assert_eq!(asks(&facts), None);
        facts.now = NOW.plus(ROUND);
        assert!(asks(&facts).is_some_and(|again| again.starts_with("dispose-1-")));
        facts.now = NOW.plus(facts.spec.timeout);
        let Disposal::Release(Some(occurrence)) = plan_disposal(&facts, NOW) else { panic!("blocks") };
        assert_eq!(occurrence.reason, "DisposalTimedOut");
        assert!(
            occurrence.warning && occurrence.message.contains("was started from it; the files stay at s3://b/sp/1-7")
        );
    }

    #[test]
    fn a_finalizer_never_blocks_for_ever() {
        type Change = fn(&mut Facts);
        let changes: [(&str, Change); 5] = [
            ("no JobManager", |facts| facts.job.as_mut().expect("there is one").connected = false),
            ("ended", |facts| facts.job.as_mut().expect("there is one").state = Some(StreamJobState::Suspended)),
            ("gone", |facts| facts.job = None),
            ("another job", |facts| facts.job.as_mut().expect("there is one").uid = "other".to_owned()),
            ("under way", |facts| {
                (facts.status.phase, facts.status.path) = (Some(SavepointPhase::InProgress), None);
            }),
        ];
        for (name, change) in changes {
            let mut facts = taken();
            change(&mut facts);
            facts.now = NOW.plus(facts.spec.timeout);
            assert!(matches!(plan_disposal(&facts, NOW), Disposal::Release(_)), "{name}");
        }
        let mut gone = taken();
        gone.job = None;
        assert_eq!(told(&plan_disposal(&gone, NOW)), "DisposalSkipped");
    }

    #[test]
    fn of_a_job_that_has_ended_the_helper_is_waited_for_and_what_it_said_is_told() {
        let helped = |outcome: Option<&str>| {
            let mut facts = taken();
            let job = facts.job.as_mut().expect("there is one");
            job.state = Some(StreamJobState::Finished);
            job.helper = Some(HelperUnderWay {
                savepoint: Some(facts.uid.clone()),
                outcome: outcome.map(ToOwned::to_owned),
                message: Some("said why".to_owned()),
                ..HelperUnderWay::default()
            });
            facts
        };
        assert_eq!(asks(&helped(None)), None, "nobody is asked, although the helper can be reached");
        let mut of_another = helped(Some(DISPOSED));
        of_another.job.as_mut().expect("there is one").helper.as_mut().expect("there is one").savepoint = None;
        assert_eq!(asks(&of_another), None);
        for (outcome, reason, warning) in [
            (DISPOSED, "Disposed", false),
            (DISPOSAL_INCOMPLETE, "DisposalIncomplete", true),
            ("SavepointInUse", "DisposalSkipped", true),
        ] {
            let Disposal::Release(Some(told)) = plan_disposal(&helped(Some(outcome)), NOW) else { panic!("waits") };
            assert_eq!((told.reason.as_str(), told.warning), (reason, warning));
            assert!(told.message.starts_with("said why") && told.message.contains(PATH) == warning, "{}", told.message);
        }
    }

    #[test]
    fn a_job_hears_of_its_savepoints_that_are_to_go() {
        let (reader, mut writer) = kube::runtime::reflector::store();
        let savepoint = |name: &str, uid: &str, deleted: bool, held: bool| {
            let finalizers: Vec<&str> = if held { vec![FINALIZER] } else { vec![] };
            let at = deleted.then(|| time::to_time(NOW));
            let object: Savepoint = serde_json::from_value(serde_json::json!({
                "apiVersion": "sluice.dev/v1alpha1", "kind": "Savepoint",
                "metadata": {"name": name, "namespace": "ns", "uid": name, "finalizers": finalizers, "deletionTimestamp": at},
                "spec": {"job": "pv", "disposeOnDelete": true},
                "status": {"phase": "Completed", "path": PATH, "jobUid": uid},
            }))
            .expect("is a Savepoint");
            kube::core::DeserializeGuard(Ok(object))
        };
        let objects = [
            savepoint("wanted", "u", true, true),
            savepoint("stays", "u", false, true),
            savepoint("released", "u", true, false),
            savepoint("of-an-older-job", "v", true, true),
        ];
        for object in objects {
            writer.apply_watcher_event(&kube::runtime::watcher::Event::Apply(object));
        }
        let job = crate::plan::tests::job();
        let wanted = |now: Timestamp| wanted_disposals(&reader, &job, now);
        let deadline = NOW.plus(TimeSpan::from_secs(600));
        let expected = WantedDisposal { savepoint: "wanted".to_owned(), path: PATH.to_owned(), deadline };
        assert_eq!(wanted(NOW), [expected]);
        assert_eq!(wanted(deadline), []);
    }

    #[test]
    fn one_that_is_under_way_is_settled_first() {
        let mut facts = asked();
        facts.spec.dispose_on_delete = true;
        assert_eq!(plan_disposal(&facts, NOW), Disposal::Settle(NOW.plus(facts.spec.timeout)));
    }
}
