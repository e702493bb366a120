//! Memory survives a status, and a status is written when something has changed and not otherwise.

use super::*;
use crate::facts::{Disposal, GivenUp, Held, Helper, HelperTask, Rejection, Stable, Stop, Trial};
use crate::plan::plan;
use crate::plan::tests::{facts, job};
use sluice_crds::{StopCause, UsedRestore};
use sluice_protocol::{Attempt, CheckpointId, Generation};

#[test]
fn what_is_remembered_is_read_again() {
    let facts = facts();
    let plan = plan(&facts);
    let mut job = job();
    let status = build_status(&job, &facts, &plan);
    job.status = Some(status);
    assert_eq!(read_memory(&job), plan.memory);
}

/// Every part of a transition: what a killed controller goes on with (C2).
#[test]
fn a_transition_is_remembered_whole() {
    let facts = facts();
    let mut plan = plan(&facts);
    let at = Timestamp(facts.now.0 + 123);
    plan.memory.stop = Some(Stop {
        since: at,
        cause: StopCause::Suspend,
        savepoint_request: Some("upgrade-1-1".to_owned()),
        savepoint: Some("s3://bucket/savepoint".to_owned()),
    });
    plan.memory.held = Some(Held {
        program: "pv-program-new".to_owned(),
        reason: "SavepointExpired".to_owned(),
        message: "too long".to_owned(),
        retry_at: at,
        tries: 3,
    });
    plan.memory.trial = Some(Trial {
        since: at,
        snapshot: Some("s3://bucket/chk-5".to_owned()),
        generation: Generation(2),
        attempt: Attempt(3),
        checkpoints_before: 7,
    });
    plan.memory.stable = Some(Stable { revision: 1, program: "pv-program-old".to_owned() });
    plan.memory.rolled_back = Some(GivenUp {
        revision: 2,
        program: "pv-program-bad".to_owned(),
        reason: "NotStable".to_owned(),
        message: "it crashed".to_owned(),
        at: facts.now,
        spec_generation: 4,
    });
    let outcome = Some(Rejection { reason: "NotASavepoint".to_owned(), message: "is none".to_owned() });
    let disposal = Disposal { savepoint: "uid".to_owned(), path: "s3://bucket/savepoint".to_owned(), outcome };
    plan.memory.helper = Some(Helper { since: at, tries: 2, task: HelperTask::Dispose(disposal) });
    plan.memory.savepoint_requests = 4;
    plan.memory.stopped_with = Some("s3://bucket/savepoint".to_owned());
    plan.memory.used_restores = vec![UsedRestore { from: "s3://bucket/chk-50".to_owned(), nonce: 2 }];
    plan.memory.deployed_program = "pv-program-older".to_owned();
    let mut job = job();
    let written = serde_json::to_value(build_status(&job, &facts, &plan)).expect("is JSON");
    job.status = Some(serde_json::from_value(written).expect("is a status"));
    assert_eq!(read_memory(&job), plan.memory);
    plan.memory.helper = Some(Helper { since: at, tries: 1, task: HelperTask::Close });
    let written = serde_json::to_value(build_status(&job, &facts, &plan)).expect("is JSON");
    assert_eq!(written["helper"]["task"], "Close");
    job.status = Some(serde_json::from_value(written).expect("is a status"));
    assert_eq!(read_memory(&job), plan.memory);
}

#[test]
fn a_foreign_snapshot_is_shown_with_the_moment_from_which_it_is_not_needed() {
    let facts = facts();
    let mut plan = plan(&facts);
    let shown = |plan: &crate::plan::Plan| {
        let mut job = job();
        let status = build_status(&job, &facts, plan);
        job.status = Some(serde_json::from_value(serde_json::to_value(status).expect("is JSON")).expect("is a status"));
        assert_eq!(read_memory(&job).foreign_snapshot, plan.memory.foreign_snapshot);
        serde_json::to_value(job.status).expect("is JSON")["foreignSnapshot"].clone()
    };
    let path = "s3://archive/sp/1-5".to_owned();
    let needed = ForeignSnapshotStatus { path, needed: true, ..ForeignSnapshotStatus::default() };
    plan.memory.foreign_snapshot = Some(needed.clone());
    assert_eq!(shown(&plan), serde_json::json!({"path": "s3://archive/sp/1-5", "needed": true}));
    let released_at = Some(Timestamp(1_700_000_000_000));
    let released_by = Some(CheckpointId(7));
    plan.memory.foreign_snapshot = Some(ForeignSnapshotStatus { needed: false, released_at, released_by, ..needed });
    let expected = serde_json::json!({
        "path": "s3://archive/sp/1-5", "needed": false, "releasedAt": "2023-11-14T22:13:20Z", "releasedBy": 7
    });
    assert_eq!(shown(&plan), expected);
}

#[test]
fn a_status_is_written_once() {
    let facts = facts();
    let plan = plan(&facts);
    let mut job = job();
    let first = build_status(&job, &facts, &plan);
    assert_eq!(due(None, &first, facts.now), Due::Now);
    let stored = serde_json::from_value(serde_json::to_value(&first).expect("is JSON")).expect("is a status");
    job.status = Some(stored);
    let later = Facts { now: facts.now.plus(TimeSpan::from_millis(61_234)), ..facts };
    let second = build_status(&job, &later, &plan);
    assert_eq!(due(job.status.as_ref(), &second, later.now), Due::Never);
}

#[test]
fn progress_alone_is_written_at_intervals() {
    let checkpoint =
        |id: u64, at: u64| LastCheckpoint { id: Some(id), path: None, completed_at: Some(to_time(Timestamp(at))) };
    let old = StreamJobStatus { last_checkpoint: Some(checkpoint(1, 10_000)), ..StreamJobStatus::default() };
    let new = StreamJobStatus { last_checkpoint: Some(checkpoint(2, 12_000)), ..StreamJobStatus::default() };
    assert_eq!(due(Some(&old), &new, Timestamp(12_000)), Due::At(Timestamp(15_000)));
    assert_eq!(due(Some(&old), &new, Timestamp(15_000)), Due::Now);
    assert_eq!(due(Some(&old), &new, Timestamp(3_000)), Due::Now, "the JobManager's clock is ahead");
    let failed = StreamJobStatus { state: Some(StreamJobState::Failed), ..new };
    assert_eq!(due(Some(&old), &failed, Timestamp(12_000)), Due::Now);
}

#[test]
fn transition_times_change_with_the_status_only() {
    let facts = facts();
    let view = View { reason: "Running".to_owned(), ready: true, ..View::default() };
    let first = build_conditions(&view, &facts, &[]);
    let later = Facts { now: facts.now.plus(TimeSpan::from_secs(60)), ..facts };
    let not_ready = View { ready: false, progressing: true, ..view };
    let second = build_conditions(&not_ready, &later, &first);
    let time = |conditions: &[Condition], kind: &str| {
        conditions.iter().find(|condition| condition.type_ == kind).expect("is there").last_transition_time.clone()
    };
    assert_eq!(time(&second, READY), to_time(later.now));
    assert_eq!(time(&second, DEGRADED), time(&first, DEGRADED));
}

#[test]
fn messages_end() {
    assert_eq!(shorten(&"ä".repeat(3_000)).chars().count(), MESSAGE + 1);
}

/// A reason of a newer runtime: told once, and the same when it is read back from the status by the next pass.
#[test]
fn a_reason_that_is_not_documented_cannot_be_written() {
    let facts = facts();
    let told = |reason: &str, message: &str| {
        let view = View::ended(StreamJobState::Failed, reason, message);
        build_status(&job(), &facts, &Plan { view, ..plan(&facts) })
    };
    let first = told("OfALaterVersion", "what");
    let reasons: Vec<_> = first.conditions.iter().map(|condition| condition.reason.as_str()).collect();
    assert_eq!(reasons, ["Unlisted", "Unlisted", "Unlisted"]);
    assert_eq!(first.message.as_deref(), Some("OfALaterVersion: what"));
    let again = told(&first.conditions[1].reason, first.message.as_deref().expect("says why"));
    assert_eq!((again.message, again.conditions), (first.message, first.conditions));
}
