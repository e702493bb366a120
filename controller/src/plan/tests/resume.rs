//! What a job that was stopped starts from: by its storage, by who stopped it, and by what was restored before.

use super::upgrade::{SAVEPOINT, answer, asked, checkpointing, edit};
use super::*;
use sluice_protocol::options::RestoreSpec;
use sluice_protocol::status::RequestState;

fn seconds(n: u64) -> Timestamp {
    NOW.plus(TimeSpan::from_secs(n))
}

fn keep_in_memory(job: &mut StreamJob) {
    checkpointing(job).storage = "JobManager".to_owned();
    checkpointing(job).savepoint_storage = Some("s3://bucket/savepoints".to_owned());
}

/// A job that runs with its checkpoints in its JobManager's memory.
fn in_memory() -> Facts {
    let mut runs = edit(Facts { lifecycle: by_mode(UpgradeMode::Savepoint), ..running() }, keep_in_memory);
    let program = runs.program.clone().expect("is right");
    runs.frozen = Some(program.spec);
    (runs.memory.program, runs.memory.ledger_entry) = (program.config_map.clone(), 0);
    runs.memory.deployed_program.clone_from(&program.config_map);
    runs.memory.stable.as_mut().expect("is stable").program = program.config_map;
    runs.report.as_mut().expect("it runs").ledger_entry = 0;
    runs
}

fn from(path: &str) -> serde_json::Value {
    json!({"path": {"from": path, "allowNonRestoredState": false}})
}

fn suspend(facts: Facts) -> Facts {
    let facts = Facts { desired: DesiredState::Suspended, spec_generation: 3, ..facts };
    let mut stopping = after(&facts, &plan(&facts));
    answer(&mut stopping, "upgrade-1-1", RequestState::Completed);
    let mut stopped = after(&stopping, &plan(&stopping));
    exit(&mut stopped, ExitKind::Stopped);
    let end = plan(&stopped);
    assert_eq!(end.view.state, Some(StreamJobState::Suspended));
    after(&stopped, &end)
}

#[test]
fn a_suspended_job_without_a_ledger_resumes_from_its_savepoint() {
    let rests = suspend(in_memory());
    let again = plan(&rests);
    assert_eq!(again.memory.stopped_with.as_deref(), Some(SAVEPOINT), "for as long as it rests");
    let resumed = Facts { desired: DesiredState::Running, spec_generation: 4, ..after(&rests, &again) };
    let next = plan(&resumed);
    assert_eq!(directive(&next), json!({"id": "2-0", "seen": 0, "start": from(SAVEPOINT)}));
    assert_eq!(next.memory.trial.as_ref().and_then(|trial| trial.snapshot.as_deref()), Some(SAVEPOINT));
    assert_eq!(next.memory.stopped_with, None);

    // With a ledger it is the savepoint's checkpoint all the same, and the ledger knows what came after.
    let rests = suspend(Facts { lifecycle: by_mode(UpgradeMode::Savepoint), ..running() });
    let resumed = Facts { desired: DesiredState::Running, spec_generation: 4, ..rests };
    assert_eq!(directive(&plan(&resumed))["start"], "resumeLatest");
}

#[test]
fn a_savepoint_nobody_heard_of_ends_the_job_rather_than_starting_it_empty() {
    let facts = edit(in_memory(), |job| {
        keep_in_memory(job);
        job.spec.parallelism = 3;
    });
    let mut stopping = after(&facts, &plan(&facts));
    assert!(stopping.memory.stop.is_some());
    exit(&mut stopping, ExitKind::Stopped);
    let end = plan(&stopping);
    assert_eq!((end.view.state, end.view.reason.as_str()), (Some(StreamJobState::Failed), "StateLost"));
    assert!(end.view.message.contains("restore.from") && end.create.is_empty(), "{}", end.view.message);
}

/// Revision 2 of such a job, on trial, which was started from a savepoint.
fn on_trial_in_memory() -> Facts {
    let facts = edit(in_memory(), |job| {
        keep_in_memory(job);
        job.spec.program.sql = Some("INSERT INTO a SELECT c FROM b;".to_owned());
    });
    let mut stopping = after(&facts, &plan(&facts));
    answer(&mut stopping, "upgrade-1-1", RequestState::Completed);
    exit(&mut stopping, ExitKind::Stopped);
    let mut facts = after(&stopping, &plan(&stopping));
    facts.pods.retain(|pod| pod.generation == Generation(2));
    facts.report = Some(JobStatus {
        state: JobState::Restarting,
        generation: Generation(2),
        attempt: Attempt(9),
        last_checkpoint: Some(CheckpointInfo { path: "memory:chk-9".to_owned(), ..CheckpointInfo::default() }),
        ..JobStatus::default()
    });
    facts.connected = true;
    after(&facts, &plan(&facts))
}

#[test]
fn a_rollback_without_a_ledger_needs_no_savepoint_and_returns_to_the_one_before() {
    let mut facts = on_trial_in_memory();
    facts.now = seconds(330);
    let stop = plan(&facts);
    assert_eq!((stop.command.clone(), stop.view.reason.as_str()), (Some(Command::Stop), "RollingBack"));
    assert_eq!(stop.memory.savepoint_requests, 0, "none is asked for");
    let mut facts = after(&facts, &stop);
    facts.now = seconds(360);
    let back = plan(&facts);
    assert_eq!((created(&back)[0], back.memory.revision, &back.spec), ((3, JM), 3, &facts.stable));
    assert_eq!(directive(&back), json!({"id": "3-0", "seen": 0, "start": from(SAVEPOINT)}));

    // The one that is left for it has nothing that could be gone back to.
    let trial = back.memory.trial.expect("on trial");
    assert_eq!(trial.snapshot.as_deref(), Some(SAVEPOINT));
}

/// A stop with a savepoint that was given up at its deadline, and whose edit was undone since.
fn given_up_and_undone(facts: Facts) -> Facts {
    let (frozen, config_map) = (facts.frozen.clone().expect("runs"), facts.memory.program.clone());
    let mut spec = frozen.clone();
    spec.parallelism = 2;
    spec.program.sql = Some("INSERT INTO a SELECT c FROM b;".to_owned());
    let wanted = Ok(Program { spec, config_map: "pv-program-other".to_owned() });
    let facts = Facts { program: wanted, ..facts };
    let mut stopping = after(&facts, &plan(&facts));
    assert_eq!(asked(&plan(&stopping)).as_deref(), Some("upgrade-1-1"));
    stopping.now = seconds(630);
    let held = plan(&stopping);
    assert!(held.memory.held.is_some());
    let undone = Facts { program: Ok(Program { spec: frozen, config_map }), ..after(&stopping, &held) };
    after(&undone, &plan(&undone))
}

#[test]
fn a_stop_that_was_given_up_and_comes_late_does_not_end_the_job() {
    let undone = given_up_and_undone(Facts { lifecycle: by_mode(UpgradeMode::Savepoint), ..running() });
    assert_eq!((undone.memory.held.clone(), undone.memory.stop.clone()), (None, None));
    let mut late = undone.clone();
    exit(&mut late, ExitKind::Stopped);
    let goes_on = plan(&late);
    assert_eq!((created(&goes_on)[0], directive(&goes_on)["start"].clone()), ((2, JM), json!("resumeLatest")));

    // Where it has failed, it was a person who stopped the job.
    let mut by_person = undone;
    answer(&mut by_person, "upgrade-1-1", RequestState::Failed);
    exit(&mut by_person, ExitKind::Stopped);
    let stays = plan(&by_person);
    assert_eq!((stays.view.state, stays.view.reason.as_str()), (Some(StreamJobState::Suspended), "Stopped"));

    // Without a ledger the late savepoint is what it goes on from.
    let mut late = given_up_and_undone(in_memory());
    answer(&mut late, "upgrade-1-1", RequestState::Completed);
    exit(&mut late, ExitKind::Stopped);
    assert_eq!(directive(&plan(&late))["start"], from(SAVEPOINT));
}

/// (state before, reason before, the spec is changed in) → whether it starts.
#[test]
fn what_rests_starts_by_what_ended_it() {
    let sql = |job: &mut StreamJob| job.spec.program.sql = Some("INSERT INTO a SELECT c FROM b;".to_owned());
    let options = |job: &mut StreamJob| checkpointing(job).interval = TimeSpan::from_secs(9);
    let nothing = |_: &mut StreamJob| ();
    type Case = (StreamJobState, &'static str, fn(&mut StreamJob), bool);
    let cases: [Case; 9] = [
        (StreamJobState::Suspended, "Suspended", nothing, true),
        (StreamJobState::Suspended, "Stopped", nothing, false),
        (StreamJobState::Suspended, "Stopped", sql, true),
        (StreamJobState::Finished, "Finished", nothing, false),
        (StreamJobState::Finished, "Finished", options, true),
        (StreamJobState::Cancelled, "Cancelled", nothing, false),
        (StreamJobState::Failed, "StateMoved", nothing, false),
        (StreamJobState::Failed, "StateMoved", sql, true),
        (StreamJobState::Invalid, "SnapshotIncompatible", nothing, false),
    ];
    for (state, reason, change, starts) in cases {
        // An edit that touches nothing but a label, or how upgrades are made, raises the generation too.
        let mut facts = edit(running(), change);
        facts.told = Told { state: Some(state), reason: reason.to_owned(), ..facts.told };
        let next = plan(&facts);
        assert_eq!(!next.create.is_empty(), starts, "{state:?} {reason}");
    }
}

#[test]
fn a_job_that_a_person_stopped_is_resumed_by_way_of_suspended() {
    let mut stopped = running();
    exit(&mut stopped, ExitKind::Stopped);
    let mut stopped = after(&stopped, &plan(&stopped));
    stopped.desired = DesiredState::Suspended;
    let suspended = after(&stopped, &plan(&stopped));
    let resumed = Facts { desired: DesiredState::Running, ..suspended };
    assert_eq!(directive(&plan(&resumed))["start"], "resumeLatest");
}

fn restore(nonce: u64) -> RestoreSpec {
    RestoreSpec {
        from: "s3://bucket/chk-50".to_owned(),
        allow_non_restored_state: false,
        nonce,
        abandon_sinks: Vec::new(),
    }
}

#[test]
fn a_restore_that_was_used_is_not_used_again_by_undoing_an_edit() {
    // It was restored, once.
    let with = |nonce: u64, sql: &'static str| {
        move |job: &mut StreamJob| {
            job.spec.restore = Some(restore(nonce));
            job.spec.program.sql = Some(sql.to_owned());
        }
    };
    let first = edit(facts(), with(1, "INSERT INTO a SELECT * FROM b;"));
    let mut runs = after(&first, &plan(&first));
    assert!(runs.memory.used_restores.is_empty(), "not before it has run");
    let report = running().report;
    (runs.report, runs.connected) = (report, true);
    let runs = after(&runs, &plan(&runs));
    assert_eq!(runs.memory.used_restores.len(), 1);

    // It is removed together with another change, which redeploys the job; then that commit is reverted.
    let without = edit(runs, |job| job.spec.program.sql = Some("INSERT INTO a SELECT c FROM b;".to_owned()));
    let mut stopping = after(&without, &plan(&without));
    exit(&mut stopping, ExitKind::Stopped);
    let next = plan(&stopping);
    assert_eq!(directive(&next)["start"], "resumeLatest");
    let mut second = after(&stopping, &next);
    second.pods.retain(|pod| pod.generation == Generation(2));
    second.report = running().report.map(|report| JobStatus { generation: Generation(2), ..report });
    second.connected = true;
    let second = after(&second, &plan(&second));
    let reverted = edit(second.clone(), with(1, "INSERT INTO a SELECT * FROM b;"));
    let stop = plan(&reverted);
    assert_eq!(stop.view.reason, "Upgrading", "a change of the program, not a jump back");
    let mut stopping = after(&reverted, &stop);
    exit(&mut stopping, ExitKind::Stopped);
    assert_eq!(directive(&plan(&stopping))["start"], "resumeLatest");

    // The block alone comes back: nothing at all. Another nonce asks for it.
    let same = "INSERT INTO a SELECT c FROM b;";
    let alone = plan(&edit(second.clone(), with(1, same)));
    assert_eq!((alone.command, alone.memory.stop), (None, None));
    assert_eq!(plan(&edit(second, with(2, same))).view.reason, "Restoring");
}

/// Another replica has heard its last report, or nobody has; and it was once asked for a savepoint that was given up.
#[test]
fn a_cancelled_job_stays_so_although_its_last_report_was_not_heard() {
    let mut facts = Facts { report: None, connected: false, ..running() };
    facts.memory.savepoint_requests = 1;
    exit_with(&mut facts, ExitRecord::new(ExitKind::Stopped, "Cancelled", "the job was cancelled"));
    let end = plan(&facts);
    assert_eq!((end.view.state, end.create.len()), (Some(StreamJobState::Cancelled), 0));
}
