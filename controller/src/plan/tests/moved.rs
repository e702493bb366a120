//! A revision on trial in another storage, and back from there (C3, K7).

use super::upgrade::{SAVEPOINT, answer, checkpointing, edit};
use super::*;
use sluice_protocol::commit::UnsettledOutput;
use sluice_protocol::job_master::NOTHING_BEGUN;
use sluice_protocol::options::RestoreSpec;
use sluice_protocol::status::RequestState;

const NEW: &str = "s3://other/place";
const OLD_DIRECTORY: &str = "s3://bucket/path/ns/pv-u";
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

/// Revision 2 was left for another spec before anything was heard of it, and its pod is gone.
fn undone_unheard() -> Facts {
    let mut facts = edit(on_trial_elsewhere(), |_| {});
    facts.now = seconds(2);
    facts = after(&facts, &plan(&facts));
    kill(&mut facts);
    facts
}

/// It may have begun all the same, and be anywhere on its way: a closer fences it, and finds out.
#[test]
fn an_undone_move_of_which_nothing_was_heard_is_closed_before_the_job_goes_back() {
    let facts = undone_unheard();
    let closes = plan(&facts);
    assert_eq!(directive(&closes)["start"], json!({"close": {"end": "stopped"}}));
    let closing = after(&facts, &closes);
    let ended = |reason: &str, entry| {
        let mut facts = closing.clone();
        let record = ExitRecord { ledger_entry: Some(entry), ..ExitRecord::new(ExitKind::Stopped, reason, "") };
        exit_with(&mut facts, record);
        let back = plan(&facts);
        assert_eq!((back.memory.revision, back.memory.helper.is_none()), (3, true));
        directive(&back)
    };
    let nothing = ended(NOTHING_BEGUN, 2);
    assert_eq!((&nothing["seen"], &nothing["start"]), (&json!(0), &path(SAVEPOINT)));
    assert_eq!(ended("Stopped", 4)["start"], path(NEW_DIRECTORY), "what was begun there is newer");

    // A storage that cannot be reached, which may be why the edit was undone, holds the job up for a minute.
    let mut late = closing;
    late.now = seconds(70);
    let back = plan(&late);
    assert_eq!((back.memory.revision, &directive(&back)["start"]), (3, &path(SAVEPOINT)));
    assert!(back.events.iter().any(|event| event.reason == "NotClosed"), "{:?}", back.events);
}

#[test]
fn an_undone_move_whose_pod_cannot_have_started_needs_no_closer() {
    let mut facts = edit(on_trial_elsewhere(), |_| {});
    job_manager(&mut facts).started = false;
    job_manager(&mut facts).problem = Some(rejection("ErrImagePull", "no such image".to_owned()));
    let back = plan(&facts);
    assert_eq!((back.memory.revision, &directive(&back)["start"]), (3, &path(SAVEPOINT)));
}

/// It was to be restored from elsewhere in the new storage: back in the old one, where the ledger has its end, a `continue`
/// would only say so, and in a third one it would start empty.
#[test]
fn an_undone_move_with_a_restore_goes_on_from_what_the_job_had() {
    let mut facts = Facts { lifecycle: by_mode(UpgradeMode::LastState), ..running() };
    let latest = "s3://bucket/path/ns/pv-u/1/chk-6".to_owned();
    report_of(&mut facts).last_checkpoint = Some(CheckpointInfo { path: latest, ..CheckpointInfo::default() });
    let facts = edit(facts, |job| {
        checkpointing(job).storage = NEW.to_owned();
        job.spec.restore = Some(RestoreSpec {
            from: "s3://x/y".to_owned(),
            nonce: 7,
            allow_non_restored_state: false,
            abandon_sinks: Vec::new(),
        });
    });
    let mut stopping = after(&facts, &plan(&facts));
    exit(&mut stopping, ExitKind::Stopped);
    let mut moved = after(&stopping, &plan(&stopping));
    moved.pods.retain(|pod| pod.generation == Generation(2));
    job_manager(&mut moved).problem = Some(rejection("ErrImagePull", "no such image".to_owned()));
    job_manager(&mut moved).started = false;
    let undone = plan(&edit(moved.clone(), |_| {}));
    assert_eq!((undone.memory.revision, &directive(&undone)["start"]), (3, &path(OLD_DIRECTORY)));
    let third = plan(&edit(moved.clone(), |job| checkpointing(job).storage = "s3://third/place".to_owned()));
    assert_eq!(directive(&third)["start"], path(OLD_DIRECTORY), "its ledger knows of more than was reported");
    // Only the restore is undone: in the new storage a `continue` would start empty.
    let stays = plan(&edit(moved.clone(), |job| {
        checkpointing(job).storage = NEW.to_owned();
        job.spec.program.sql = Some("INSERT INTO a SELECT c FROM b;".to_owned());
    }));
    assert_eq!((stays.memory.revision, &directive(&stays)["start"]), (3, &path(OLD_DIRECTORY)));
    // A storage whose name only begins like the old one's.
    let beside = plan(&edit(moved, |job| checkpointing(job).storage = "s3://bucket/pa".to_owned()));
    assert_eq!(directive(&beside)["start"], path(OLD_DIRECTORY));
}

/// What the closer says is heard after its deadline, and what it wrote itself is no sign that anything had begun.
#[test]
fn a_closer_that_is_heard_late_is_heard() {
    let facts = undone_unheard();
    let closes = plan(&facts);
    let mut closing = after(&facts, &closes);
    closing.report = Some(JobStatus {
        generation: closing.memory.generation,
        attempt: Attempt(1),
        ledger_entry: 1,
        ..JobStatus::default()
    });
    let under_way = plan(&closing);
    assert_eq!((under_way.memory.ledger_entry, under_way.memory.started_revision), (0, 1));
    for (reason, from) in [(NOTHING_BEGUN, SAVEPOINT), ("Stopped", NEW_DIRECTORY)] {
        let mut late = closing.clone();
        late.now = seconds(70);
        let record = ExitRecord { ledger_entry: Some(2), ..ExitRecord::new(ExitKind::Stopped, reason, "") };
        exit_with(&mut late, record);
        let back = plan(&late);
        assert_eq!((back.memory.revision, &directive(&back)["start"]), (3, &path(from)), "{reason}");
    }
    // One that ended without a word has found nothing: what it may have written is not known.
    closing.now = seconds(70);
    kill(&mut closing);
    assert_eq!(directive(&plan(&closing))["start"], path(SAVEPOINT));
}

/// A sidecar in trouble keeps nobody from writing to the ledger.
#[test]
fn an_undone_move_whose_pod_runs_is_closed_whatever_is_wrong_with_it() {
    let mut facts = undone_unheard();
    job_manager(&mut facts).problem = Some(rejection("ErrImagePull", "no such image".to_owned()));
    assert_eq!(directive(&plan(&facts))["start"], json!({"close": {"end": "stopped"}}));
}

/// Where the spec goes while the job is suspended is not known when it stops.
#[test]
fn a_move_of_which_nothing_was_heard_is_closed_before_the_job_is_suspended() {
    let mut facts = on_trial_elsewhere();
    facts.desired = DesiredState::Suspended;
    facts = after(&facts, &plan(&facts));
    kill(&mut facts);
    let closes = plan(&facts);
    assert_eq!(directive(&closes)["start"], json!({"close": {"end": "stopped"}}));
    let mut closing = after(&facts, &closes);
    for (reason, from) in [(NOTHING_BEGUN, SAVEPOINT), ("Stopped", NEW_DIRECTORY)] {
        let mut facts = closing.clone();
        let record = ExitRecord { ledger_entry: Some(2), ..ExitRecord::new(ExitKind::Stopped, reason, "") };
        exit_with(&mut facts, record);
        let rests = plan(&facts);
        assert_eq!(rests.view.state, Some(StreamJobState::Suspended));
        let resumed = Facts { desired: DesiredState::Running, ..edit(after(&facts, &rests), |_| {}) };
        assert_eq!(directive(&plan(&resumed))["start"], path(from), "{reason}");
    }
    // Resumed where it is: behind the closer's entries a `continue` would only report the end.
    exit_with(&mut closing, ExitRecord::new(ExitKind::Stopped, NOTHING_BEGUN, ""));
    let rests = plan(&closing);
    let resumed = Facts { desired: DesiredState::Running, ..after(&closing, &rests) };
    assert_eq!(directive(&plan(&resumed))["start"], path(SAVEPOINT));
}

/// Its JobManagers were lost before anything was heard of them: one of them may have begun, and write still.
#[test]
fn a_rollback_closes_a_ledger_of_which_nothing_was_heard() {
    let mut facts = on_trial_elsewhere();
    let mut closes = None;
    for second in (5..60).step_by(5) {
        facts.now = seconds(second);
        kill(&mut facts);
        let step = plan(&facts);
        facts = after(&facts, &step);
        if step.memory.helper.is_some() {
            closes = Some(step);
            break;
        }
    }
    let closes = closes.expect("its restarts are spent");
    assert_eq!(directive(&closes)["start"], json!({"close": {"end": "stopped"}}));
    assert_eq!(closes.events.iter().filter(|event| event.reason == "RolledBack").count(), 1);
    exit_with(&mut facts, ExitRecord::new(ExitKind::Stopped, NOTHING_BEGUN, ""));
    let back = plan(&facts);
    assert_eq!((back.spec.clone(), back.memory.revision), (facts.stable.clone(), 3));
    assert_eq!(directive(&back)["start"], path(SAVEPOINT));
    assert_eq!(back.events.iter().filter(|event| event.reason == "RolledBack").count(), 0, "said before");
    assert_ne!(back.memory.rolled_back.expect("is given up").reason, "NotStable");
}

/// The first revision's JobManagers were lost before anything was heard of them, and its restarts are spent.
fn failed_unheard() -> Facts {
    let first = facts();
    let mut facts = after(&first, &plan(&first));
    for second in (5..60).step_by(5) {
        facts.now = seconds(second);
        kill(&mut facts);
        let step = plan(&facts);
        facts = after(&facts, &step);
        if step.view.state == Some(StreamJobState::Failed) {
            assert!(step.memory.helper.is_none(), "there is nothing that is known to be ended");
            return facts;
        }
    }
    panic!("its restarts are spent");
}

/// One of them may have begun a ledger, and write to it still, when the spec goes to another storage.
#[test]
fn a_job_that_failed_unheard_is_closed_before_it_goes_elsewhere() {
    let failed = failed_unheard();
    let moved = edit(failed.clone(), |job| checkpointing(job).storage = NEW.to_owned());
    let closes = plan(&moved);
    assert_eq!(
        (directive(&closes)["start"].clone(), closes.memory.revision),
        (json!({"close": {"end": "stopped"}}), 1)
    );
    let closing = after(&moved, &closes);
    for (reason, start) in [(NOTHING_BEGUN, json!("resumeLatest")), ("Stopped", path(OLD_DIRECTORY))] {
        let mut facts = closing.clone();
        let record = ExitRecord { ledger_entry: Some(2), ..ExitRecord::new(ExitKind::Stopped, reason, "") };
        exit_with(&mut facts, record);
        let next = plan(&facts);
        assert_eq!((next.memory.revision, &directive(&next)["start"]), (2, &start), "{reason}");
    }
    let mut late = closing;
    late.now = late.now.plus(TimeSpan::from_secs(70));
    assert_eq!(plan(&late).memory.revision, 2, "a storage that is away holds it up for a minute");

    // In the same storage the next generation fences; one that said why it ended writes no more.
    let same = edit(failed.clone(), |job| job.spec.program.sql = Some("INSERT INTO a SELECT c FROM b;".to_owned()));
    assert_eq!(plan(&same).memory.revision, 2);
    let mut said_why = failed;
    exit(&mut said_why, ExitKind::Failed);
    let moved = edit(said_why, |job| checkpointing(job).storage = NEW.to_owned());
    assert_eq!(plan(&moved).memory.revision, 2);
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

/// What a JobManager says whose brokers were away when the job ended.
fn left_uncommitted() -> ExitRecord {
    let left = UnsettledOutput { sink: "out.sink".into(), transactions: 3, until: Some(seconds(900)), more_sinks: 0 };
    let ended = ExitRecord::new(ExitKind::Stopped, "Stopped", "3 staged transactions of sink 'out.sink'");
    ExitRecord { unsettled: vec![left], ledger_entry: Some(11), ..ended }
}

/// Stopped with a savepoint for a change to another storage, with output uncommitted.
fn stopped_unsettled(desired: DesiredState) -> Facts {
    let mut facts = Facts { lifecycle: by_mode(UpgradeMode::Savepoint), ..running() };
    let latest = format!("{OLD_DIRECTORY}/1/chk-6");
    report_of(&mut facts).last_checkpoint = Some(CheckpointInfo { path: latest, ..CheckpointInfo::default() });
    let mut facts = edit(facts, |job| checkpointing(job).storage = NEW.to_owned());
    facts.desired = desired;
    let mut stopping = after(&facts, &plan(&facts));
    answer(&mut stopping, "upgrade-1-1", RequestState::Completed);
    exit_with(&mut stopping, left_uncommitted());
    stopping
}

/// K4, L6: the savepoint holds no handles, and the new storage knows of none. The ledger that has them goes along.
#[test]
fn what_a_stop_left_uncommitted_goes_along_to_another_storage() {
    let stopping = stopped_unsettled(DesiredState::Running);
    let next = plan(&stopping);
    assert_eq!(directive(&next), json!({"id": "2-0", "seen": 0, "start": path(OLD_DIRECTORY)}));
    let snapshot = next.memory.trial.clone().expect("on trial").snapshot;
    assert_eq!(snapshot, Some(format!("{OLD_DIRECTORY}/1/chk-6")), "a directory is no snapshot to return to");
    assert_eq!(next.events.iter().filter(|event| event.reason == "OutputUnsettled").count(), 1);

    // Its brokers stay away, and it is not stable in time: back it goes, to the ledger that still has them.
    let mut facts = after(&stopping, &next);
    facts.pods.retain(|pod| pod.generation == Generation(2));
    exit(&mut facts, ExitKind::UserError);
    assert_eq!(directive(&plan(&facts))["start"], path(OLD_DIRECTORY));
}

/// Nobody knows yet where it will go, when it is suspended.
#[test]
fn what_a_suspended_job_left_uncommitted_goes_along_too_and_state_may_be_dropped_all_the_same() {
    let stopping = stopped_unsettled(DesiredState::Suspended);
    let rests = plan(&stopping);
    assert_eq!(rests.view.reason, "OutputUnsettled");
    let rests = Facts { desired: DesiredState::Running, ..after(&stopping, &rests) };
    assert_eq!(directive(&plan(&rests))["start"], path(OLD_DIRECTORY));

    let mut stays = edit(rests, |job| job.spec.program.sql = Some("INSERT INTO a SELECT c FROM b;".to_owned()));
    stays.lifecycle.upgrade.allow_non_restored_state = true;
    let start = json!({"path": {"from": OLD_DIRECTORY, "allowNonRestoredState": true}});
    assert_eq!(directive(&plan(&stays))["start"], start, "the own ledger settles what it holds");
}

/// A job without a ledger cannot commit it: its start refuses the directory by name, where a savepoint would lose it.
#[test]
fn what_a_stop_left_uncommitted_is_not_lost_to_a_job_without_a_ledger() {
    let mut stopping = stopped_unsettled(DesiredState::Running);
    stopping = edit(stopping, |job| checkpointing(job).storage = "JobManager".to_owned());
    let next = plan(&stopping);
    assert_eq!(directive(&next)["start"], path(OLD_DIRECTORY));
    let mut facts = after(&stopping, &next);
    facts.pods.retain(|pod| pod.generation == Generation(2));
    exit_with(&mut facts, ExitRecord::new(ExitKind::UserError, "OutputUnsettled", "run it where it was"));
    let back = plan(&facts);
    assert_eq!((back.memory.revision, &directive(&back)["start"]), (3, &path(OLD_DIRECTORY)));
}

fn report_of(facts: &mut Facts) -> &mut JobStatus {
    facts.report.as_mut().expect("is there")
}
