//! Every phase against every event, each row a fact changed and what must follow.

use super::*;
use sluice_crds::SavepointSpec;
use sluice_protocol::CheckpointId;
use sluice_protocol::status::{JobStatus, RequestKind};

pub(crate) const NOW: Timestamp = Timestamp(1_767_225_600_000);
const UID: &str = "12345678-aaaa-bbbb-cccc-0123456789ab";

fn spec() -> SavepointSpec {
    serde_json::from_value(serde_json::json!({"job": "pv", "backoffLimit": 1})).expect("is a spec")
}

fn job() -> JobFacts {
    JobFacts {
        uid: "job".to_owned(),
        state: Some(StreamJobState::Running),
        message: String::new(),
        generation: Generation(3),
        report: Some(JobStatus::default()),
        connected: true,
        helper: None,
    }
}

/// A Savepoint that was just made, of a job that runs.
pub(crate) fn fresh() -> Facts {
    Facts {
        now: NOW,
        uid: UID.to_owned(),
        created_at: NOW,
        generation: 1,
        spec: spec(),
        status: SavepointStatus::default(),
        job: Some(job()),
    }
}

/// What the API server would hold after `plan`.
fn after(facts: &Facts, plan: &Plan) -> Facts {
    Facts { status: plan.status.clone(), ..facts.clone() }
}

/// One that the JobManager was asked for.
pub(crate) fn asked() -> Facts {
    let facts = fresh();
    after(&facts, &plan(&facts))
}

fn id(facts: &Facts) -> String {
    facts.status.request_id.clone().expect("was asked")
}

fn answer(facts: &mut Facts, state: RequestState, path: Option<&str>, failure: Option<Failure>) {
    let snapshot = path.map(|path| CheckpointInfo {
        id: CheckpointId(7),
        path: path.to_owned(),
        triggered_at: Timestamp(NOW.0 + 100),
        completed_at: Timestamp(NOW.0 + 1_350),
        bytes: 1_572_864,
    });
    let path = path.map(ToOwned::to_owned);
    let request = RequestStatus { id: id(facts), kind: RequestKind::Savepoint, state, path, snapshot, failure };
    let job = facts.job.as_mut().expect("there is one");
    job.report = Some(JobStatus { requests: vec![request], ..JobStatus::default() });
}

fn later(facts: &Facts, span: TimeSpan) -> Facts {
    Facts { now: facts.now.plus(span), ..facts.clone() }
}

fn outcome(plan: &Plan) -> (Option<SavepointPhase>, Option<Reason>, bool) {
    (plan.status.phase, plan.reason, plan.ask.is_some())
}

const HOUR: TimeSpan = TimeSpan::from_secs(3600);

type Change = fn(&mut Facts);

/// Changes of facts, by name.
fn events() -> Vec<(&'static str, Change)> {
    fn state(facts: &mut Facts, state: StreamJobState) {
        facts.job.as_mut().expect("there is one").state = Some(state);
    }
    vec![
        ("nothing", |_| {}),
        ("no job", |facts| facts.job = None),
        ("another job", |facts| facts.job.as_mut().expect("there is one").uid = "other".to_owned()),
        ("restarting", |facts| state(facts, StreamJobState::Restarting)),
        ("finished", |facts| state(facts, StreamJobState::Finished)),
        ("suspended", |facts| state(facts, StreamJobState::Suspended)),
        ("disconnected", |facts| facts.job.as_mut().expect("there is one").connected = false),
        ("too late", |facts| facts.now = facts.now.plus(HOUR)),
        ("too late without a job", |facts| (facts.now, facts.job) = (facts.now.plus(HOUR), None)),
        ("known", |facts| {
            if facts.status.request_id.is_some() {
                answer(facts, RequestState::Pending, None, None);
            }
        }),
    ]
}

#[test]
fn every_phase_against_every_event() {
    use Reason as R;
    use SavepointPhase::{Abandoned, Completed, Failed, InProgress, Pending};
    let pending = || {
        let mut facts = fresh();
        facts.job.as_mut().expect("there is one").state = Some(StreamJobState::Starting);
        let mut facts = after(&facts, &plan(&facts));
        facts.job = Some(job());
        facts
    };
    let ended = |phase| Facts { status: SavepointStatus { phase: Some(phase), ..asked().status }, ..fresh() };
    // In the order of `events`: phase, reason, whether the JobManager is asked.
    let ask = (InProgress, Some(R::Requested), true);
    let waits = (InProgress, Some(R::Requested), false);
    let gone = (Abandoned, Some(R::JobGone), false);
    let over = (Abandoned, Some(R::JobEnded), false);
    let late = (Failed, Some(R::DeadlineExceeded), false);
    let not_running = (Pending, Some(R::JobNotRunning), false);
    let unreachable = (Pending, Some(R::JobManagerUnreachable), false);
    let missing = (Pending, Some(R::JobNotFound), false);
    let stays = |phase| [(phase, None, false); 10];
    let table = [
        (
            "fresh",
            fresh(),
            [
                ask,
                missing,
                ask,
                not_running,
                over,
                over,
                unreachable,
                late,
                (Abandoned, Some(R::JobNotFound), false),
                ask,
            ],
        ),
        ("pending", pending(), [ask, gone, gone, not_running, over, over, unreachable, late, gone, ask]),
        ("asked", asked(), [ask, gone, gone, ask, over, over, waits, late, gone, waits]),
        ("completed", ended(Completed), stays(Completed)),
        ("failed", ended(Failed), stays(Failed)),
        ("abandoned", ended(Abandoned), stays(Abandoned)),
    ];
    for (name, facts, expected) in table {
        for ((event, change), (phase, reason, asks)) in events().into_iter().zip(expected) {
            let mut facts = facts.clone();
            change(&mut facts);
            let plan = plan(&facts);
            assert_eq!(outcome(&plan), (Some(phase), reason, asks), "{name} × {event}: {plan:#?}");
            let waits = !phase.is_terminal();
            assert_eq!(plan.wake_at.is_some(), waits, "{name} × {event}: every wait has an end");
            assert!(plan.wake_at.is_none_or(|at| at > facts.now), "{name} × {event}: looks again at once for ever");
        }
    }
}

#[test]
fn the_request_has_an_id_that_the_ledger_can_sort_and_that_stays() {
    let facts = fresh();
    let first = plan(&facts);
    let Some(Ask { generation: Generation(3), id, command: Command::Savepoint(request) }) = &first.ask else {
        panic!("{first:?}");
    };
    assert_eq!(*id, format!("{}-{UID}", NOW.0));
    assert!(id.len() <= 63);
    assert_eq!((&request.id, request.timeout), (id, TimeSpan::from_secs(600)));
    // Another controller, another generation, later: the same request.
    let mut later = later(&after(&facts, &first), TimeSpan::from_secs(90));
    later.job.as_mut().expect("there is one").generation = Generation(4);
    let again = plan(&later);
    let ask = again.ask.expect("is asked again");
    assert_eq!((&ask.id, ask.generation), (id, Generation(4)));
    assert_eq!(again.status.request_id.as_ref(), Some(id));
}

#[test]
fn it_goes_where_it_says() {
    let facts = Facts { spec: SavepointSpec { directory: Some("s3://a/b".to_owned()), ..spec() }, ..fresh() };
    let Some(Ask { command: Command::Savepoint(request), .. }) = plan(&facts).ask else { panic!("asks for none") };
    assert_eq!(request.directory.as_deref(), Some("s3://a/b"));
}

#[test]
fn a_checkpoint_is_triggered() {
    let facts = Facts { spec: SavepointSpec { kind: SnapshotKind::Checkpoint, ..spec() }, ..fresh() };
    let ask = plan(&facts).ask.expect("asks");
    assert!(matches!(ask.command, Command::TriggerCheckpoint { id } if id == ask.id));
}

#[test]
fn a_completed_one_tells_where_how_large_and_how_long() {
    let mut facts = asked();
    answer(&mut facts, RequestState::Completed, Some("s3://b/sp/1-7"), None);
    // Also when the job has ended meanwhile.
    facts.job.as_mut().expect("there is one").state = Some(StreamJobState::Finished);
    let plan = plan(&facts);
    let status = &plan.status;
    assert_eq!((status.phase, status.path.as_deref()), (Some(SavepointPhase::Completed), Some("s3://b/sp/1-7")));
    assert_eq!((status.bytes, status.size.as_deref()), (Some(1_572_864), Some("1.5MiB")));
    assert_eq!(status.duration.as_deref(), Some("1s250ms"));
    assert_eq!(status.completed_at.as_ref().map(from_micro_time), Some(Timestamp(NOW.0 + 1_350)));
    assert_eq!(status.error, None);
    assert!(plan.occurrence(&facts.status).is_some_and(|event| !event.warning && event.reason == "Succeeded"));
}

#[test]
fn failures_are_repeated_up_to_the_limit_under_new_ids() {
    let broken = Failure::external("CheckpointDeclined", "a task declined it");
    let mut facts = asked();
    let first = id(&facts);
    answer(&mut facts, RequestState::Failed, None, Some(broken.clone()));
    let retried = plan(&facts);
    assert_eq!(outcome(&retried), (Some(SavepointPhase::Pending), Some(Reason::Retrying), false));
    assert_eq!((retried.status.failures, retried.wake_at), (Some(1), Some(NOW.plus(FIRST_BACKOFF))));
    assert!(retried.occurrence(&facts.status).is_some_and(|event| event.warning));
    facts = after(&facts, &retried);
    facts.job = Some(job());
    assert!(plan(&facts).ask.is_none(), "the backoff is kept");
    facts = later(&facts, FIRST_BACKOFF);
    facts = after(&facts, &plan(&facts));
    assert_ne!(id(&facts), first);
    answer(&mut facts, RequestState::Failed, None, Some(broken));
    let ended = plan(&facts);
    assert_eq!(outcome(&ended), (Some(SavepointPhase::Failed), Some(Reason::BackoffLimitExceeded), false));
    assert!(ended.status.message.expect("says why").contains("2 tries have failed, the last with CheckpointDeclined"));
}

#[test]
fn what_no_repetition_mends_ends_it() {
    let cases = [
        (Failure::user("NoSavepointStorage", "name a directory"), SavepointPhase::Failed, Reason::Refused),
        (
            Failure::restart("SavepointExpired", Fault::External, "not there by its deadline"),
            SavepointPhase::Failed,
            Reason::DeadlineExceeded,
        ),
        (Failure::user("JobEnding", "the job is ending"), SavepointPhase::Pending, Reason::Retrying),
    ];
    for (failure, phase, reason) in cases {
        let mut facts = asked();
        let counts = failure.reason != "JobEnding";
        answer(&mut facts, RequestState::Failed, None, Some(failure));
        let plan = plan(&facts);
        assert_eq!(outcome(&plan), (Some(phase), Some(reason), false));
        assert_eq!(plan.status.failures.is_some(), counts);
        assert!(plan.status.error.is_some());
    }
}

#[test]
fn sizes_for_people() {
    let sizes = [(0, "0B"), (1023, "1023B"), (1024, "1KiB"), (1536, "1.5KiB"), (u64::MAX, "16383.9PiB")];
    for (bytes, text) in sizes {
        assert_eq!(human_size(bytes), text);
    }
}
