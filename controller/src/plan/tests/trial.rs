//! Until a revision is stable, and back to the last stable one.

use super::start::restoring;
use super::*;
use sluice_protocol::failure::{Failure, Fault};

const BROKEN: &str = "INSERT INTO a SELECT c FROM b;";

fn seconds(n: u64) -> Timestamp {
    NOW.plus(TimeSpan::from_secs(n))
}

/// Revision 2 of a job whose first one was stable: its tasks run since `at`, and it is on trial.
fn on_trial(at: Timestamp) -> Facts {
    let facts = changed(running());
    let mut stopping = after(&facts, &plan(&facts));
    exit(&mut stopping, ExitKind::Stopped);
    let next = plan(&stopping);
    let mut facts = after(&stopping, &next);
    facts.pods.retain(|pod| pod.generation == Generation(2));
    facts.report = Some(report(at));
    facts.connected = true;
    facts.now = at;
    after(&facts, &plan(&facts))
}

fn report(since: Timestamp) -> JobStatus {
    JobStatus {
        state: JobState::Running,
        generation: Generation(2),
        attempt: Attempt(1),
        since,
        ledger_entry: 20,
        ..JobStatus::default()
    }
}

fn report_of(facts: &mut Facts) -> &mut JobStatus {
    facts.report.as_mut().expect("is there")
}

#[test]
fn ready_and_stable_after_the_time_and_the_checkpoints() {
    let mut facts = on_trial(NOW);
    facts.lifecycle.stability.checkpoints = 2;
    let early = plan(&facts);
    assert_eq!((early.view.ready, early.view.progressing, early.view.reason.as_str()), (false, true, "Stabilizing"));
    assert_eq!(early.wake_at, Some(seconds(30)));
    facts.now = seconds(30);
    report_of(&mut facts).completed_checkpoints = 1;
    assert!(!plan(&facts).view.ready, "one checkpoint of two");
    report_of(&mut facts).completed_checkpoints = 2;
    facts.now = seconds(29);
    assert!(!plan(&facts).view.ready, "a second too early");
    facts.now = seconds(30);
    let stable = plan(&facts);
    assert!(stable.view.ready);
    assert_eq!(stable.memory.trial, None);
    assert_eq!(stable.memory.stable.as_ref().map(|stable| stable.revision), Some(2));
}

/// A restart begins the count anew: neither its time nor its checkpoints from before count.
#[test]
fn a_restart_begins_anew() {
    let mut facts = on_trial(NOW);
    facts.now = seconds(29);
    report_of(&mut facts).completed_checkpoints = 5;
    report_of(&mut facts).attempt = Attempt(2);
    report_of(&mut facts).since = seconds(29);
    let mut facts = after(&facts, &plan(&facts));
    facts.now = seconds(59);
    assert!(!plan(&facts).view.ready, "no checkpoint since the restart");
    report_of(&mut facts).completed_checkpoints = 6;
    assert!(plan(&facts).view.ready);
}

#[test]
fn a_job_without_checkpoints_waits_for_none_and_a_finished_one_is_stable() {
    let mut facts = on_trial(NOW);
    facts.now = seconds(30);
    facts.frozen.as_mut().expect("is there").checkpointing = None;
    facts.program = facts
        .frozen
        .clone()
        .map(|spec| Program { spec, config_map: facts.memory.program.clone() })
        .ok_or_else(|| unreachable!());
    assert!(plan(&facts).view.ready);

    let mut facts = on_trial(NOW);
    exit(&mut facts, ExitKind::Finished);
    let finished = plan(&facts);
    assert_eq!(finished.view.state, Some(StreamJobState::Finished));
    assert_eq!(finished.memory.stable.as_ref().map(|stable| stable.revision), Some(2));
}

/// It reached Running, and crashes ever again (facts: operators that call the first Running stable never roll back).
#[test]
fn a_crash_loop_that_reached_running_is_rolled_back_at_the_deadline() {
    let mut facts = on_trial(NOW);
    let failure = Failure::restart("OperatorPanicked", Fault::Internal, "the operator broke");
    let run = sluice_protocol::ids::Run { generation: Generation(2), attempt: Attempt(9) };
    let record = sluice_protocol::failure::FailureRecord { at: NOW, run, task_manager: None, subtask: None, failure };
    report_of(&mut facts).failures.push(record);
    report_of(&mut facts).attempt = Attempt(9);
    report_of(&mut facts).since = seconds(320);
    facts.now = seconds(329);
    let waits = plan(&facts);
    assert_eq!((waits.memory.stop.clone(), waits.wake_at), (None, Some(seconds(330))), "5 minutes and the 30 s");
    facts = after(&facts, &waits);
    facts.now = seconds(330);
    let stop = plan(&facts);
    assert_eq!((stop.command.clone(), stop.view.reason.as_str()), (Some(Command::Stop), "RollingBack"));
    let mut facts = after(&facts, &stop);
    facts.now = seconds(360);
    let closes = plan(&facts);
    assert_eq!(directive(&closes)["start"], json!({"close": {"end": "stopped"}}), "it did not end in time");
    let mut facts = after(&facts, &closes);
    exit(&mut facts, ExitKind::Stopped);
    let back = plan(&facts);
    assert_eq!((created(&back)[0], back.memory.revision), ((4, JM), 3));
    assert_eq!(back.spec, facts.stable);
    assert_eq!(directive(&back), json!({"id": "3-0", "seen": 20, "start": "resumeLatest"}));
    let given_up = back.memory.rolled_back.expect("is told");
    assert_eq!((given_up.revision, given_up.reason.as_str()), (2, "NotStable"));
    assert!(given_up.message.contains("not stable within 5m30s"), "{}", given_up.message);
    assert!(given_up.message.contains("the operator broke"), "{}", given_up.message);
}

fn rolled_back() -> Facts {
    let mut facts = on_trial(NOW);
    exit(&mut facts, ExitKind::UserError);
    let back = plan(&facts);
    assert_eq!((created(&back)[0], back.memory.revision), ((3, JM), 3));
    let mut facts = after(&facts, &back);
    facts.pods.retain(|pod| pod.generation == Generation(3));
    facts.report = Some(JobStatus { generation: Generation(3), completed_checkpoints: 1, ..report(NOW) });
    facts.connected = true;
    facts.now = seconds(60);
    after(&facts, &plan(&facts))
}

#[test]
fn a_failed_revision_is_rolled_back_at_once_and_told_until_the_next_edit() {
    let facts = rolled_back();
    let told = plan(&facts);
    assert!(told.view.ready && !told.acts() && told.command.is_none(), "{told:?}");
    assert_eq!(told.view.degraded.as_ref().map(|wrong| wrong.reason.as_str()), Some("RolledBack"));
    assert_eq!(told.memory.stable.as_ref().map(|stable| stable.revision), Some(3));

    // A new version of the operator writes the same spec with more fields: another name, the same spec.
    let mut renamed = facts.clone();
    renamed.program.as_mut().expect("is right").config_map = "pv-program-renamed".to_owned();
    assert!(plan(&renamed).memory.stop.is_none());

    let mut job = job();
    job.spec.program.sql = Some("INSERT INTO a SELECT d FROM b;".to_owned());
    let edited = Facts { program: validate_program(&job, None), spec_generation: 3, ..facts.clone() };
    let again = plan(&edited);
    assert_eq!((again.command, again.memory.rolled_back), (Some(Command::Stop), None));

    // The edit that undoes the change: nothing is left to tell.
    let undone = Facts { program: super::facts().program, spec_generation: 3, ..facts };
    let undone = plan(&undone);
    assert_eq!((undone.command, undone.memory.rolled_back, undone.view.degraded), (None, None, None));
}

/// Whatever was edited: what no job is restarted for, too, since a longer deadline may be all that was needed.
#[test]
fn any_edit_after_a_rollback_tries_the_spec_again() {
    let facts = rolled_back();
    let given_up = facts.memory.rolled_back.as_ref().expect("is told");
    assert_eq!(given_up.spec_generation, facts.spec_generation);
    let waits = |facts: &Facts| plan(facts).memory.stop.is_none() && plan(facts).memory.rolled_back.is_some();
    assert!(waits(&facts));

    let mut deadline = Facts { spec_generation: 3, ..facts.clone() };
    deadline.lifecycle.stability.deadline = Some(TimeSpan::from_secs(1200));
    let mut in_place = job();
    in_place.spec.program.sql = Some(BROKEN.to_owned());
    in_place.spec.checkpointing.as_mut().expect("is there").interval = TimeSpan::from_secs(9);
    let in_place = Facts { program: validate_program(&in_place, None), spec_generation: 3, ..facts.clone() };
    for edited in [&deadline, &in_place] {
        let again = plan(edited);
        assert_eq!((again.command, again.memory.rolled_back), (Some(Command::Stop), None));
    }

    // Back to what was stable, and to the same again.
    let undone = Facts { program: super::facts().program, spec_generation: 3, ..facts.clone() };
    let undone = after(&undone, &plan(&undone));
    let redone = Facts { program: facts.program.clone(), spec_generation: 4, ..undone };
    assert_eq!(plan(&redone).command, Some(Command::Stop));

    // A status that an earlier version of the operator wrote knows the spec alone.
    let mut earlier = deadline;
    earlier.memory.rolled_back.as_mut().expect("is told").spec_generation = 0;
    assert!(waits(&earlier));
}

#[test]
fn a_rollback_goes_back_to_the_state_of_the_job_not_to_where_its_spec_once_came_from() {
    let mut facts = on_trial(NOW);
    facts.stable = restoring(1).ok().map(|program| program.spec);
    exit(&mut facts, ExitKind::UserError);
    let back = plan(&facts);
    assert_eq!((&back.spec, back.memory.revision), (&facts.stable, 3));
    assert_eq!(directive(&back), json!({"id": "3-1", "seen": 20, "start": "resumeLatest"}));
}

#[test]
fn a_nonce_tries_the_given_up_spec_again() {
    let facts = rolled_back();
    let mut job = job();
    job.spec.program.sql = Some(BROKEN.to_owned());
    job.spec.restart_nonce = Some(1);
    let edited = Facts { program: validate_program(&job, None), spec_generation: 3, ..facts };
    assert_eq!(plan(&edited).command, Some(Command::Stop));
}

#[test]
fn a_spent_strategy_is_rolled_back_and_a_rollback_that_fails_too_stays_failed() {
    for fails in [ExitKind::Failed, ExitKind::UserError] {
        let mut facts = on_trial(NOW);
        exit(&mut facts, fails);
        assert_eq!(plan(&facts).memory.revision, 3, "{fails:?}");
        facts.lifecycle.stability.rollback = false;
        let stays = plan(&facts);
        assert_eq!((stays.memory.revision, stays.view.progressing), (2, false), "{fails:?}");
    }
    let mut facts = rolled_back();
    exit(&mut facts, ExitKind::Failed);
    let failed = plan(&facts);
    assert_eq!((failed.view.state, failed.memory.revision), (Some(StreamJobState::Failed), 3));
    let rests = after(&facts, &failed);
    assert!(!plan(&rests).acts(), "the spec that was given up does not start by itself");
}

#[test]
fn a_first_revision_that_fails_has_nothing_to_go_back_to() {
    let first = facts();
    let mut facts = after(&first, &plan(&first));
    exit(&mut facts, ExitKind::UserError);
    assert_eq!(plan(&facts).view.state, Some(StreamJobState::Invalid));
    facts = after(&first, &plan(&first));
    facts.now = seconds(10_000);
    assert!(plan(&facts).memory.stop.is_none());
}

/// K7: the newest checkpoint that the old program can read, else the snapshot before the upgrade, and what that costs.
#[test]
fn a_checkpoint_that_the_stable_program_cannot_read_leads_to_the_snapshot_before() {
    let mut facts = on_trial(NOW);
    facts.memory.trial.as_mut().expect("on trial").snapshot = Some("s3://bucket/savepoint".to_owned());
    exit(&mut facts, ExitKind::UserError);
    let back = plan(&facts);
    assert_eq!(directive(&back)["start"], "resumeLatest");
    let mut facts = after(&facts, &back);
    let record = ExitRecord::new(ExitKind::UserError, "SnapshotIncompatible", "state of 'sum' has no operator");
    exit_with(&mut facts, record);
    let earlier = plan(&facts);
    assert_eq!((created(&earlier)[0], earlier.memory.revision), ((4, JM), 3));
    let directive_of = directive(&earlier);
    assert_eq!(
        (&directive_of["id"], &directive_of["start"]["path"]["from"]),
        (&json!("3-rollback"), &json!("s3://bucket/savepoint"))
    );
    let message = earlier.memory.rolled_back.clone().expect("is told").message;
    assert!(message.contains("output since the snapshot s3://bucket/savepoint is written again"), "{message}");

    // Once: when that does not help either, the job has failed.
    let mut facts = after(&facts, &earlier);
    let record = ExitRecord::new(ExitKind::UserError, "SnapshotNotFound", "there is nothing");
    exit_with(&mut facts, record);
    assert_eq!(plan(&facts).view.state, Some(StreamJobState::Invalid));
}

#[test]
fn a_newer_edit_during_the_trial_is_one_more_upgrade_and_the_stable_one_stays() {
    let facts = on_trial(NOW);
    let mut job = job();
    job.spec.program.sql = Some("INSERT INTO a SELECT d FROM b;".to_owned());
    let facts = Facts { program: validate_program(&job, None), spec_generation: 3, ..facts };
    let mut stopping = after(&facts, &plan(&facts));
    exit(&mut stopping, ExitKind::Stopped);
    let next = plan(&stopping);
    assert_eq!((next.memory.revision, next.memory.stable.as_ref().map(|stable| stable.revision)), (3, Some(1)));
    let mut facts = after(&stopping, &next);
    exit(&mut facts, ExitKind::UserError);
    let back = plan(&facts);
    assert_eq!((back.memory.revision, back.spec), (4, facts.stable));
}

#[test]
fn a_checkpoint_that_its_interval_makes_rare_is_asked_for() {
    let mut facts = on_trial(NOW);
    facts.now = seconds(30);
    assert_eq!(plan(&facts).command, None, "the next one comes in 2 s");
    let rare = TimeSpan::from_secs(3600);
    for spec in
        [facts.frozen.as_mut(), facts.program.as_mut().ok().map(|program| &mut program.spec)].into_iter().flatten()
    {
        spec.checkpointing.as_mut().expect("is there").interval = rare;
    }
    let asks = plan(&facts);
    assert_eq!(asks.command, Some(Command::TriggerCheckpoint { id: "stability-2-1-0-0".to_owned() }));
    facts.now = seconds(29);
    assert_eq!(plan(&facts).command, None);
}

/// A revision that crashes on trial, or that has never completed a checkpoint, is not asked for a savepoint that it cannot
/// take: the spec that mends it is not kept waiting.
#[test]
fn what_crashes_on_trial_is_mended_by_the_next_edit_at_once() {
    let mut job = job();
    job.spec.program.sql = Some("INSERT INTO a SELECT d FROM b;".to_owned());
    let mended = validate_program(&job, None);
    let mut facts = Facts { program: mended.clone(), lifecycle: by_mode(UpgradeMode::Savepoint), ..on_trial(NOW) };
    assert!(matches!(plan(&facts).command, Some(Command::Savepoint(_))), "as long as it runs");
    report_of(&mut facts).state = JobState::Restarting;
    assert_eq!(plan(&facts).command, Some(Command::Stop));

    let mut first = Facts { program: mended, lifecycle: by_mode(UpgradeMode::Savepoint), ..running() };
    first.memory.last_checkpoint = None;
    first.report.as_mut().expect("is there").last_checkpoint = None;
    assert_eq!(plan(&first).command, Some(Command::Stop));
}

/// A leader that takes over after the trial's deadline knows nothing of it yet: what ran well meanwhile is not given up.
#[test]
fn a_new_leader_hears_the_job_before_it_gives_a_revision_up() {
    let late =
        Facts { now: seconds(1010), leading_since: seconds(999), report: None, connected: false, ..on_trial(NOW) };
    let waits = plan(&late);
    assert_eq!((waits.memory.stop.clone(), waits.command.clone()), (None, None));
    assert_eq!(waits.wake_at, Some(seconds(1039)), "what a run takes that has no trouble, and some time to be heard");

    // It is heard: it was stable all the time.
    let since = seconds(5);
    let healthy = Facts {
        report: Some(JobStatus { completed_checkpoints: 9, ..report(since) }),
        connected: true,
        ..after(&late, &waits)
    };
    let stable = plan(&healthy);
    assert!(stable.view.ready && stable.memory.trial.is_none());

    // Of an attempt that it has not seen before it does not know the checkpoints: the next one is waited for.
    let report = JobStatus { completed_checkpoints: 9, attempt: Attempt(2), ..report(since) };
    let restarted = Facts { report: Some(report.clone()), connected: true, ..after(&late, &waits) };
    let watches = plan(&restarted);
    assert_eq!((watches.memory.stop.clone(), watches.view.ready), (None, false));
    let report = JobStatus { completed_checkpoints: 10, ..report };
    let stable = plan(&Facts { report: Some(report), now: seconds(1012), ..after(&restarted, &watches) });
    assert!(stable.view.ready);
}

#[test]
fn what_is_not_known_is_waited_for_but_not_for_ever() {
    let since = seconds(999);
    let unheard =
        Facts { leading_since: since, tried_since: Some(since), report: None, connected: false, ..on_trial(NOW) };
    let at = |now: u64, facts: &Facts| plan(&Facts { now: seconds(now), ..facts.clone() });
    let waits = at(1039, &unheard);
    assert_eq!((waits.memory.stop, waits.wake_at), (None, Some(seconds(1059))));
    assert_eq!(at(1119, &unheard).view.reason, "RollingBack", "it was never heard");
    let broken = Facts { unreachable_since: Some(seconds(1118)), ..unheard.clone() };
    assert_eq!(at(1119, &broken).memory.stop, None, "it is lost soon, or comes back");
    // The report of before its stream broke says nothing of now.
    let old = Facts { report: Some(report(NOW)), ..broken };
    assert_eq!(at(1040, &old).memory.stop, None);
    // Where no JobManager runs there is nothing to hear.
    let mut pending = unheard;
    job_manager(&mut pending).started = false;
    assert!(at(1039, &pending).memory.helper.is_some(), "a closer ends what it has left");
    assert_eq!(at(1038, &pending).memory.helper, None);
}

/// K7: a rollback finds what the upgrade went on from, however many checkpoints came since; afterwards it is let go.
#[test]
fn what_an_upgrade_went_on_from_is_where_a_rollback_ends_and_is_released_when_the_revision_is_stable() {
    const PINNED: &str = "s3://bucket/root/ns/job-uid/1/chk-11";
    let mut facts = on_trial(NOW);
    facts.memory.trial.as_mut().expect("on trial").snapshot = Some("s3://bucket/root/ns/job-uid/1/chk-9".to_owned());
    report_of(&mut facts).pinned = vec![PINNED.to_owned(), "s3://bucket/root/ns/job-uid/2/chk-30".to_owned()];
    let tried = plan(&facts);
    assert_eq!(tried.memory.trial.as_ref().and_then(|trial| trial.snapshot.as_deref()), Some(PINNED));
    assert_eq!(tried.command, None, "not before it is stable");
    // The release of what the upgrade before it held comes late: that is older than what the stable revision left.
    report_of(&mut facts).pinned_by = vec!["revision 1".to_owned(), "revision 2".to_owned()];
    let tried = plan(&facts).memory.trial.and_then(|trial| trial.snapshot);
    assert_eq!(tried.as_deref(), Some("s3://bucket/root/ns/job-uid/2/chk-30"));
    report_of(&mut facts).pinned_by = vec!["revision 2".to_owned(), "revision 3".to_owned()];
    let tried = plan(&facts).memory.trial.and_then(|trial| trial.snapshot);
    assert_eq!(tried.as_deref(), Some(PINNED));
    facts.now = seconds(30);
    report_of(&mut facts).completed_checkpoints = 9;
    let stable = plan(&facts);
    assert_eq!(stable.command, Some(Command::Release));
    let mut settled = after(&facts, &stable);
    settled.report.clone_from(&facts.report);
    assert_eq!(plan(&settled).command, Some(Command::Release), "until the report shows it");
    report_of(&mut settled).pinned.clear();
    assert_eq!(plan(&settled).command, None);
}
