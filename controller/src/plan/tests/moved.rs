//! A revision on trial in another storage, and back from there (C3, K7).

use super::upgrade::{SAVEPOINT, answer, checkpointing, edit};
use super::*;
use sluice_protocol::status::RequestState;

const NEW: &str = "s3://other/place";
const NEW_DIRECTORY: &str = "s3://other/place/ns/pv-u";

fn seconds(n: u64) -> Timestamp {
    NOW.plus(TimeSpan::from_secs(n))
}

/// Revision 2 runs on trial, in a ledger of its own that began from a savepoint.
fn on_trial_elsewhere() -> Facts {
    let facts = Facts { lifecycle: by_mode(UpgradeMode::Savepoint), ..running() };
    let facts = edit(facts, |job| checkpointing(job).storage = NEW.to_owned());
    let mut stopping = after(&facts, &plan(&facts));
    answer(&mut stopping, "upgrade-1-1", RequestState::Completed);
    exit(&mut stopping, ExitKind::Stopped);
    let next = plan(&stopping);
    assert_eq!((next.memory.revision, next.memory.ledger_entry), (2, 0));
    let mut facts = after(&stopping, &next);
    facts.pods.retain(|pod| pod.generation == Generation(2));
    facts
}

fn runs(mut facts: Facts) -> Facts {
    facts.report = Some(JobStatus {
        state: JobState::Running,
        generation: Generation(2),
        attempt: Attempt(1),
        since: NOW,
        ledger_entry: 4,
        last_checkpoint: Some(CheckpointInfo { path: format!("{NEW_DIRECTORY}/2/chk-9"), ..CheckpointInfo::default() }),
        ..JobStatus::default()
    });
    facts.connected = true;
    after(&facts, &plan(&facts))
}

fn path(from: &str) -> serde_json::Value {
    json!({"path": {"from": from, "allowNonRestoredState": false}})
}

/// What the revision that is given up wrote is the newest, and nothing but a takeover fences what may still write there.
#[test]
fn a_rollback_to_another_storage_takes_the_one_it_leaves_over() {
    let mut facts = runs(on_trial_elsewhere());
    facts.lifecycle.upgrade.allow_non_restored_state = true;
    exit(&mut facts, ExitKind::Failed);
    let back = plan(&facts);
    assert_eq!((back.spec.clone(), back.memory.revision), (facts.stable.clone(), 3));
    assert_eq!(directive(&back), json!({"id": "3-0", "seen": 0, "start": path(NEW_DIRECTORY)}));

    // K7: what the stable program cannot read leads to the snapshot before.
    let mut facts = after(&facts, &back);
    exit_with(&mut facts, ExitRecord::new(ExitKind::UserError, "SnapshotIncompatible", "no operator"));
    let earlier = plan(&facts);
    assert_eq!(directive(&earlier)["start"], path(SAVEPOINT));
    let mut facts = after(&facts, &earlier);
    exit_with(&mut facts, ExitRecord::new(ExitKind::UserError, "SnapshotNotFound", "there is nothing"));
    assert_eq!(plan(&facts).view.state, Some(StreamJobState::Invalid), "once");
}

#[test]
fn a_rollback_from_a_storage_that_was_never_reached_starts_from_the_snapshot_before() {
    let mut facts = on_trial_elsewhere();
    exit(&mut facts, ExitKind::UserError);
    assert_eq!(directive(&plan(&facts))["start"], path(SAVEPOINT));
}

/// It was never seen to run, but its ledger says that it may have.
#[test]
fn an_undone_move_takes_a_ledger_over_that_is_known_to_have_begun() {
    let mut facts = edit(on_trial_elsewhere(), |_| {});
    facts.lifecycle = by_mode(UpgradeMode::LastState);
    let record = ExitRecord { ledger_entry: Some(3), ..ExitRecord::new(ExitKind::Stopped, "Stopped", "") };
    exit_with(&mut facts, record);
    let undone = plan(&facts);
    assert_eq!((undone.memory.revision, &directive(&undone)["start"]), (3, &path(NEW_DIRECTORY)));
}

/// Should the stable program not take the new directory over, its terminal entry is all that fences it.
#[test]
fn a_rollback_waits_for_the_end_of_the_ledger_that_it_leaves() {
    let mut facts = runs(on_trial_elsewhere());
    report_of(&mut facts).state = JobState::Restarting;
    facts.now = seconds(330);
    let stop = plan(&facts);
    assert_eq!(stop.view.reason, "RollingBack");
    let mut facts = after(&facts, &stop);
    kill(&mut facts);
    let closes = plan(&facts);
    assert_eq!(directive(&closes)["start"], json!({"close": {"end": "stopped"}}));
    let mut facts = after(&facts, &closes);
    facts.now = seconds(900);
    assert_eq!(plan(&facts).memory.revision, 2, "however long it takes");
    exit(&mut facts, ExitKind::Stopped);
    let back = plan(&facts);
    assert_eq!((back.memory.revision, &directive(&back)["start"]), (3, &path(NEW_DIRECTORY)));
}

fn report_of(facts: &mut Facts) -> &mut JobStatus {
    facts.report.as_mut().expect("is there")
}
