//! Phase 1 of a change: savepoint, last checkpoint, held, superseded; and what is started afterwards.

use super::start::restoring;
use super::*;
use sluice_crds::{StopCause, UpgradeFallback};
use sluice_protocol::failure::{Failure, Fault};
use sluice_protocol::options::{CheckpointingSpec, RestartStrategySpec, StorageOptions};
use sluice_protocol::status::{RequestKind, RequestState, RequestStatus};

pub(super) const SAVEPOINT: &str = "s3://bucket/path/savepoints/ns/pv-u/1-6";

fn seconds(n: u64) -> Timestamp {
    NOW.plus(TimeSpan::from_secs(n))
}

fn by_savepoint() -> Facts {
    changed(Facts { lifecycle: by_mode(UpgradeMode::Savepoint), ..running() })
}

pub(super) fn answer(facts: &mut Facts, id: &str, state: RequestState) {
    let path = (state == RequestState::Completed).then(|| SAVEPOINT.to_owned());
    let failure = (state == RequestState::Failed)
        .then(|| Failure::restart("SavepointExpired", Fault::External, "it took too long"));
    let request = RequestStatus { id: id.to_owned(), kind: RequestKind::Stop, state, path, failure, snapshot: None };
    facts.report.as_mut().expect("is there").requests = vec![request];
}

pub(super) fn asked(plan: &Plan) -> Option<String> {
    match &plan.command {
        Some(Command::Savepoint(request)) => Some(request.id.clone()),
        _ => None,
    }
}

pub(super) fn edit(facts: Facts, change: impl Fn(&mut StreamJob)) -> Facts {
    let mut job = job();
    change(&mut job);
    Facts { program: validate_program(&job, None), spec_generation: facts.spec_generation + 1, ..facts }
}

pub(super) fn checkpointing(job: &mut StreamJob) -> &mut CheckpointingSpec {
    job.spec.checkpointing.as_mut().expect("is there")
}

#[test]
fn a_savepoint_is_asked_for_under_one_id_until_it_is_there_then_the_new_spec_starts() {
    let facts = by_savepoint();
    let first = plan(&facts);
    assert_eq!(asked(&first).as_deref(), Some("upgrade-1-1"));
    assert_eq!((first.view.state, first.view.reason.as_str()), (Some(StreamJobState::Stopping), "Upgrading"));
    assert!(!first.memory.decides_like(&facts.memory), "intent is written before the JobManager is asked (C2)");
    let mut stopping = after(&facts, &first);
    assert_eq!(asked(&plan(&stopping)).as_deref(), Some("upgrade-1-1"), "asked again, it is the same request");
    answer(&mut stopping, "upgrade-1-1", RequestState::Pending);
    let waits = plan(&stopping);
    assert_eq!((waits.command, waits.memory.stop), (None, stopping.memory.stop.clone()));
    answer(&mut stopping, "upgrade-1-1", RequestState::Completed);
    let taken = plan(&stopping);
    assert_eq!(taken.memory.stop.as_ref().and_then(|stop| stop.savepoint.as_deref()), Some(SAVEPOINT));
    assert!(taken.create.is_empty());

    let mut stopped = after(&stopping, &taken);
    let record = ExitRecord { ledger_entry: Some(11), ..ExitRecord::new(ExitKind::Stopped, "Stopped", "stopped") };
    exit_with(&mut stopped, record);
    let next = plan(&stopped);
    assert_eq!(created(&next), [(2, JM), (2, TM(0)), (2, TM(1))]);
    assert_eq!(directive(&next), json!({"id": "2-0", "seen": 11, "start": "resumeLatest"}));
    let trial = next.memory.trial.clone().expect("on trial");
    assert_eq!((trial.since, trial.snapshot.as_deref()), (NOW, Some(SAVEPOINT)));
    assert_eq!((next.memory.stop.clone(), next.memory.savepoint_requests), (None, 0));
}

#[test]
fn the_savepoints_own_path_is_taken_where_state_may_be_dropped() {
    let mut facts = by_savepoint();
    facts.lifecycle.upgrade.allow_non_restored_state = true;
    let mut stopping = after(&facts, &plan(&facts));
    answer(&mut stopping, "upgrade-1-1", RequestState::Completed);
    exit(&mut stopping, ExitKind::Stopped);
    let start = directive(&plan(&stopping))["start"].clone();
    assert_eq!(start, json!({"path": {"from": SAVEPOINT, "allowNonRestoredState": true}}));
}

#[test]
fn a_failed_savepoint_leaves_the_job_running_and_the_change_waits_longer_each_time() {
    let facts = by_savepoint();
    let mut facts = after(&facts, &plan(&facts));
    for (n, wait) in [60, 120, 240, 480, 600, 600].into_iter().enumerate() {
        let id = format!("upgrade-1-{}", n + 1);
        answer(&mut facts, &id, RequestState::Failed);
        let held = plan(&facts);
        assert_eq!((held.view.state, held.acts()), (Some(StreamJobState::Running), false), "{n}");
        let wrong = held.view.degraded.clone().expect("is told");
        assert_eq!(wrong.reason, "SavepointExpired");
        assert!(wrong.message.contains("it took too long"), "{}", wrong.message);
        assert_eq!(
            held.memory.held.as_ref().map(|held| held.retry_at),
            Some(facts.now.plus(TimeSpan::from_secs(wait)))
        );
        facts = after(&facts, &held);
        let waits = plan(&facts);
        assert_eq!((waits.command.clone(), waits.view.degraded.clone()), (None, Some(wrong)), "{n}");
        assert!(waits.memory.decides_like(&facts.memory), "nothing is written while it waits");
        facts.now = facts.memory.held.as_ref().expect("is held").retry_at;
        assert!(waits.wake_at.is_some_and(|at| at <= facts.now));
        let again = plan(&facts);
        assert_eq!(asked(&again), Some(format!("upgrade-1-{}", n + 2)));
        facts = after(&facts, &again);
    }
}

#[test]
fn another_edit_does_not_wait_for_the_held_one_and_none_ends_it() {
    let facts = by_savepoint();
    let mut facts = after(&facts, &plan(&facts));
    answer(&mut facts, "upgrade-1-1", RequestState::Failed);
    let facts = after(&facts, &plan(&facts));
    let other = edit(facts.clone(), |job| job.spec.program.sql = Some("INSERT INTO a SELECT d FROM b;".to_owned()));
    assert_eq!(asked(&plan(&other)).as_deref(), Some("upgrade-1-2"));
    let reverted = edit(facts.clone(), |_| ());
    let reverted = plan(&reverted);
    assert_eq!((reverted.command, reverted.memory.held, reverted.view.degraded), (None, None, None));

    // Another mode lets the same spec through at once.
    let last_state = Facts { lifecycle: by_mode(UpgradeMode::LastState), ..facts };
    assert_eq!(plan(&last_state).command, Some(Command::Stop));
}

#[test]
fn the_fallback_takes_the_latest_checkpoint_when_it_is_young_enough() {
    let mut facts = by_savepoint();
    facts.lifecycle.upgrade.fallback = UpgradeFallback::LastState;
    facts.lifecycle.upgrade.max_checkpoint_age = Some(TimeSpan::from_secs(20));
    let mut facts = after(&facts, &plan(&facts));
    assert!(
        facts.memory.stop.as_ref().is_some_and(|stop| stop.savepoint_request.is_some()),
        "a savepoint is tried first"
    );
    answer(&mut facts, "upgrade-1-1", RequestState::Failed);
    facts.now = seconds(20);
    let falls_back = plan(&facts);
    assert_eq!(falls_back.command, Some(Command::Stop));
    assert_eq!(falls_back.memory.stop.as_ref().and_then(|stop| stop.savepoint_request.clone()), None);
    facts.now = seconds(21);
    let too_old = plan(&facts);
    let wrong = too_old.view.degraded.expect("is told");
    assert_eq!((wrong.reason.as_str(), too_old.command), ("CheckpointTooOld", None));
    assert!(wrong.message.contains("it was completed 21s ago"), "{}", wrong.message);
}

#[test]
fn with_the_fallback_nobody_waits_for_a_savepoint_of_a_job_in_trouble() {
    let mut facts = by_savepoint();
    facts.report.as_mut().expect("is there").state = JobState::Restarting;
    assert!(asked(&plan(&facts)).is_some(), "without it, the savepoint may come when the tasks run again");
    facts.lifecycle.upgrade.fallback = UpgradeFallback::LastState;
    assert_eq!(plan(&facts).command, Some(Command::Stop));
}

#[test]
fn a_job_manager_that_does_not_answer_holds_the_change_at_the_deadline() {
    let facts = Facts { connected: false, unreachable_since: Some(seconds(620)), ..by_savepoint() };
    let mut facts = after(&facts, &plan(&facts));
    facts.now = seconds(629);
    assert_eq!(plan(&facts).view.state, Some(StreamJobState::Stopping), "10 minutes and a grace of 30 s");
    facts.now = seconds(630);
    let held = plan(&facts);
    assert_eq!(held.view.degraded.clone().map(|wrong| wrong.reason).as_deref(), Some("JobManagerUnreachable"));
    assert!(held.create.is_empty() && held.memory.revision == 1);
}

#[test]
fn a_job_manager_lost_during_its_savepoint_is_followed_by_one_that_carries_it_out() {
    let facts = by_savepoint();
    let mut facts = after(&facts, &plan(&facts));
    kill(&mut facts);
    let lost = plan(&facts);
    assert_eq!((lost.view.state, lost.memory.failures.total()), (Some(StreamJobState::Restarting), 1));
    let mut facts = after(&facts, &lost);
    facts.now = seconds(1);
    let next = plan(&facts);
    assert_eq!((created(&next)[0], next.memory.revision), ((2, JM), 1), "of the old revision");
    assert_eq!(directive(&next)["start"], "continue");
    assert_eq!(next.memory.stop.as_ref().and_then(|stop| stop.savepoint_request.as_deref()), Some("upgrade-1-1"));

    // While its pod starts, it is waited for.
    let mut starting = after(&facts, &next);
    job_manager(&mut starting).started = false;
    starting.report = None;
    let waits = plan(&starting);
    assert_eq!((created(&waits), waits.memory.revision), (vec![], 1), "nothing is skipped");
    assert!(waits.delete.is_empty() && waits.wake_at.is_some());

    // By the fallback the new revision starts as soon as a closer has ended the old one.
    facts.lifecycle.upgrade.fallback = UpgradeFallback::LastState;
    let closes = plan(&facts);
    assert_eq!(directive(&closes)["start"], json!({"close": {"end": "stopped"}}));
    let mut facts = after(&facts, &closes);
    exit(&mut facts, ExitKind::Stopped);
    assert_eq!(plan(&facts).memory.revision, 2);
}

#[test]
fn a_task_manager_lost_during_a_savepoint_is_replaced() {
    let facts = by_savepoint();
    let mut facts = after(&facts, &plan(&facts));
    facts.pods.retain(|pod| pod.role != TM(0));
    let replaced = plan(&facts);
    assert_eq!(created(&replaced), [(1, TM(2))]);
    assert_eq!(replaced.memory.stop, facts.memory.stop);
}

#[test]
fn a_newer_edit_during_a_savepoint_is_what_starts_after_it() {
    let facts = by_savepoint();
    let facts = after(&facts, &plan(&facts));
    let newer = "INSERT INTO a SELECT d FROM b;";
    let mut facts = edit(facts, |job| job.spec.program.sql = Some(newer.to_owned()));
    let waits = plan(&facts);
    assert_eq!(waits.memory.stop, facts.memory.stop, "one stop serves any spec");
    exit(&mut facts, ExitKind::Stopped);
    let next = plan(&facts);
    assert_eq!(next.spec.as_ref().and_then(|spec| spec.program.sql.as_deref()), Some(newer));
    assert_eq!(next.memory.revision, 2);

    // A spec that cannot run, or none at all any more: what ran goes on.
    let broken = Rejection { reason: "InvalidSpec".to_owned(), message: "no".to_owned() };
    let goes_on = plan(&Facts { program: Err(broken), ..facts.clone() });
    assert_eq!(goes_on.spec, facts.frozen);
    assert_eq!((created(&goes_on)[0], directive(&goes_on)["start"].clone()), ((2, JM), json!("resumeLatest")));
}

#[test]
fn a_savepoint_that_comes_after_it_was_given_up_starts_the_new_spec_all_the_same() {
    let facts = by_savepoint();
    let mut facts = after(&facts, &plan(&facts));
    facts.now = seconds(630);
    let mut held = after(&facts, &plan(&facts));
    assert!(held.memory.held.is_some());
    exit(&mut held, ExitKind::Stopped);
    let next = plan(&held);
    assert_eq!((created(&next)[0], next.memory.revision), ((2, JM), 2));
}

#[test]
fn stateless_starts_empty_and_a_rescale_never_does() {
    let facts = changed(Facts { lifecycle: by_mode(UpgradeMode::Stateless), ..running() });
    let mut facts = after(&facts, &plan(&facts));
    exit(&mut facts, ExitKind::Stopped);
    assert_eq!(directive(&plan(&facts))["start"], "empty");

    for mode in [UpgradeMode::Stateless, UpgradeMode::Savepoint, UpgradeMode::LastState] {
        let facts = edit(Facts { lifecycle: by_mode(mode), ..running() }, |job| job.spec.parallelism = 3);
        let stop = plan(&facts);
        assert_eq!((stop.command.clone(), stop.view.reason.as_str()), (Some(Command::Stop), "Rescaling"), "{mode:?}");
        let mut facts = after(&facts, &stop);
        exit(&mut facts, ExitKind::Stopped);
        let next = plan(&facts);
        assert_eq!(created(&next).len(), 4, "{mode:?}");
        assert_eq!(directive(&next)["start"], "resumeLatest", "{mode:?}");
    }
}

#[test]
fn a_restart_nonce_is_an_upgrade_and_restore_goes_where_it_says() {
    let facts = Facts { lifecycle: by_mode(UpgradeMode::Savepoint), ..running() };
    let restart = plan(&edit(facts.clone(), |job| job.spec.restart_nonce = Some(1)));
    assert_eq!(asked(&restart).as_deref(), Some("upgrade-1-1"));

    let mut facts = Facts { program: restoring(1), ..facts };
    let stop = plan(&facts);
    assert_eq!(stop.command, Some(Command::Stop), "no savepoint of what is left behind");
    facts = after(&facts, &stop);
    exit(&mut facts, ExitKind::Stopped);
    let next = plan(&facts);
    assert_eq!(directive(&next)["start"]["path"]["from"], "s3://bucket/chk-50");
}

#[test]
fn options_are_taken_over_without_a_restart_until_the_job_manager_says_so() {
    let facts = edit(running(), |job| {
        checkpointing(job).interval = TimeSpan::from_secs(9);
        job.spec.restart_strategy = Some(RestartStrategySpec { none: Some(Default::default()), ..Default::default() });
    });
    let first = plan(&facts);
    let program = facts.program.clone().expect("is right").config_map;
    assert!(first.create.is_empty() && first.delete.is_empty(), "{first:?}");
    assert_eq!((first.memory.revision, &first.memory.program), (1, &program));
    assert_eq!(first.program.as_ref().map(|program| &program.config_map), Some(&program));
    assert_eq!(first.memory.stable.as_ref().map(|stable| &stable.program), Some(&program));
    let Some(Command::Reconfigure(options)) = &first.command else { panic!("{:?}", first.command) };
    assert_eq!((&options.id, options.checkpointing.as_ref().map(|one| one.interval.0)), (&program, Some(9000)));
    assert!(first.view.ready);

    let mut facts = after(&facts, &first);
    let identity = |name: &str| ObjectIdentity { name: name.to_owned(), uid: format!("uid of {name}"), version: None };
    facts.programs = vec![identity(&program), identity(&facts.memory.deployed_program), identity("pv-program-old")];
    let again = plan(&facts);
    assert!(again.command.is_some(), "until it says so");
    assert_eq!(again.delete_programs, [identity("pv-program-old")], "what its pod has mounted stays");
    facts.report.as_mut().expect("is there").options_id = Some(program);
    facts.programs.clear();
    let done = plan(&facts);
    assert!(done.command.is_none() && !done.acts());

    // A later generation reads them from its manifest.
    kill(&mut facts);
    let facts = after(&facts, &plan(&facts));
    assert_eq!(facts.view_state(), Some(StreamJobState::Failed), "restartStrategy is none now");
}

impl Facts {
    fn view_state(&self) -> Option<StreamJobState> {
        self.told.state
    }
}

#[test]
fn checkpoints_in_the_job_managers_memory_are_never_lost_by_a_change() {
    let in_memory = |job: &mut StreamJob| checkpointing(job).storage = "JobManager".to_owned();
    let mut runs = Facts { lifecycle: by_mode(UpgradeMode::LastState), ..running() };
    let mut frozen = job();
    in_memory(&mut frozen);
    runs.frozen = Some(frozen.spec);
    let wanted = edit(runs.clone(), |job| {
        in_memory(job);
        job.spec.parallelism = 3;
    });
    let held = plan(&wanted);
    assert_eq!((held.command.clone(), held.memory.stop.clone()), (None, None));
    assert_eq!(held.view.degraded.expect("is told").reason, "NoSavepointStorage");
    assert!(held.view.ready);
    let stateless = edit(Facts { lifecycle: by_mode(UpgradeMode::Stateless), ..runs.clone() }, |job| {
        in_memory(job);
        job.spec.program.sql = Some("INSERT INTO a SELECT c FROM b;".to_owned());
    });
    assert_eq!(plan(&stateless).command, Some(Command::Stop));

    let place = Some("s3://bucket/savepoints".to_owned());
    runs.frozen
        .as_mut()
        .expect("is there")
        .checkpointing
        .as_mut()
        .expect("is there")
        .savepoint_storage
        .clone_from(&place);
    let saved = edit(runs, |job| {
        in_memory(job);
        checkpointing(job).savepoint_storage.clone_from(&place);
        job.spec.parallelism = 3;
    });
    assert_eq!(asked(&plan(&saved)).as_deref(), Some("upgrade-1-1"), "also for a rescale");
    let mut stopping = after(&saved, &plan(&saved));
    answer(&mut stopping, "upgrade-1-1", RequestState::Completed);
    exit(&mut stopping, ExitKind::Stopped);
    assert_eq!(directive(&plan(&stopping))["start"]["path"]["from"], SAVEPOINT);
}

#[test]
fn another_storage_starts_by_path_in_a_ledger_of_its_own_once_the_old_one_has_ended() {
    let moves = |facts: Facts| edit(facts, |job| checkpointing(job).storage = "s3://other/place".to_owned());
    let facts = moves(Facts { lifecycle: by_mode(UpgradeMode::Savepoint), ..running() });
    let mut stopping = after(&facts, &plan(&facts));
    answer(&mut stopping, "upgrade-1-1", RequestState::Completed);
    exit(&mut stopping, ExitKind::Stopped);
    let next = plan(&stopping);
    let path = json!({"path": {"from": SAVEPOINT, "allowNonRestoredState": false}});
    assert_eq!(directive(&next), json!({"id": "2-0", "seen": 0, "start": path}));
    assert_eq!(next.memory.ledger_entry, 0, "the new ledger begins");

    // By LastState from the job's old directory, and never beside a ledger that has not ended.
    let facts = moves(Facts { lifecycle: by_mode(UpgradeMode::LastState), ..running() });
    let mut stopping = after(&facts, &plan(&facts));
    assert_eq!(plan(&stopping).command, Some(Command::Stop));
    kill(&mut stopping);
    let lost = plan(&stopping);
    assert_eq!((lost.view.state, lost.memory.revision), (Some(StreamJobState::Stopping), 1));
    assert_eq!(directive(&lost)["start"], json!({"close": {"end": "stopped"}}));
    let mut stopping = after(&facts, &plan(&facts));
    exit(&mut stopping, ExitKind::Stopped);
    assert_eq!(directive(&plan(&stopping))["start"]["path"]["from"], "s3://bucket/path/ns/pv-u");

    let elsewhere = edit(running(), |job| {
        let options = StorageOptions { endpoint: Some("http://other:9000".to_owned()), ..StorageOptions::default() };
        checkpointing(job).storage = "s3://other/place".to_owned();
        checkpointing(job).storage_options = Some(options);
    });
    let refused = plan(&elsewhere);
    assert_eq!(
        (refused.command, refused.view.degraded.expect("is told").reason.as_str()),
        (None, "StorageUnreachable")
    );
}

#[test]
fn a_revision_that_never_ran_is_replaced_at_once() {
    let first = facts();
    let mut facts = changed(after(&first, &plan(&first)));
    facts.lifecycle = by_mode(UpgradeMode::Savepoint);
    facts.connected = true;
    facts.report = Some(JobStatus { generation: Generation(1), ..JobStatus::default() });
    let stop = plan(&facts);
    assert_eq!(stop.command, Some(Command::Stop), "nothing of it could be saved");
    let mut stopping = after(&facts, &stop);
    stopping.now = seconds(30);
    assert_eq!(created(&plan(&stopping))[0], (2, JM));
}

#[test]
fn suspend_by_savepoint_keeps_its_reason_and_resumes_from_there() {
    let facts = Facts { desired: DesiredState::Suspended, lifecycle: by_mode(UpgradeMode::Savepoint), ..running() };
    let stop = plan(&facts);
    assert_eq!((asked(&stop).as_deref(), stop.view.reason.as_str()), (Some("upgrade-1-1"), "Suspending"));
    assert_eq!(stop.memory.stop.as_ref().map(|stop| stop.cause), Some(StopCause::Suspend));
    let mut stopping = after(&facts, &stop);
    answer(&mut stopping, "upgrade-1-1", RequestState::Completed);
    exit(&mut stopping, ExitKind::Stopped);
    let end = plan(&stopping);
    assert_eq!((end.view.state, end.memory.stop.clone()), (Some(StreamJobState::Suspended), None));
    let resumed = Facts { desired: DesiredState::Running, spec_generation: 3, ..after(&stopping, &end) };
    assert_eq!(directive(&plan(&resumed))["start"], "resumeLatest");
}
