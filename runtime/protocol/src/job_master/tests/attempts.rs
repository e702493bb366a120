//! Deploying, failing, restarting: slots, TaskManagers, policies (N2, N4, F1, F2).

use super::*;

#[test]
fn subtask_i_of_every_vertex_goes_into_slot_i() {
    let mut bench = Bench::new(config(2));
    bench.register(1);
    bench.register(2);
    let deployment = bench.deployments[&SessionId(2)].clone();
    assert!(deployment.tasks.iter().all(|task| task.subtask.index.0 == 1) && deployment.tasks.len() == 2);
    assert_eq!(deployment.placement.len(), 4);
    assert_eq!(deployment.state_directory.as_deref(), Some("default/pv-1/1"));
}

#[test]
fn strangers_are_refused() {
    let mut bench = Bench::new(config(1));
    let mut stranger = bench.registration(1);
    stranger.generation = Generation(7);
    bench.message(1, FromTaskManager::Register(stranger));
    assert!(matches!(&bench.last_sent(1), ToTaskManager::Refused(failure) if failure.reason == "WrongGeneration"));
    let mut stranger = bench.registration(2);
    stranger.fingerprint = "other".into();
    bench.message(2, FromTaskManager::Register(stranger));
    assert!(matches!(&bench.last_sent(2), ToTaskManager::Refused(failure) if failure.reason == "WrongProgram"));
}

#[test]
fn a_failed_task_restarts_all_in_place_from_the_latest_checkpoint() {
    let mut bench = Bench::running(config(1));
    bench.pass(1000);
    bench.acknowledge_all(1);
    bench.fail_task(failure());
    assert_eq!(bench.state(), JobState::Restarting);
    assert_eq!(bench.status().failed_attempts, 1);
    assert_eq!(bench.status().message, "restarting after: the operator broke");
    assert!(
        matches!(bench.ledger().last().unwrap().kind, EntryKind::Restarted { .. }),
        "recorded before tasks restart"
    );
    bench.pass(1000);
    assert_eq!(bench.state(), JobState::Running);
    assert_eq!(bench.status().attempt.0, 2);
    assert_eq!(bench.status().restored_from.as_ref().unwrap().id, CheckpointId(1));
    assert!(bench.deployments[&SessionId(1)].tasks.iter().all(|task| task.restore.is_some()));
}

#[test]
fn tasks_are_not_deployed_before_the_old_ones_have_ended() {
    let mut bench = Bench::running(config(1));
    bench.obeys_cancel = false;
    bench.fail_task(failure());
    bench.pass(3000);
    assert_eq!(bench.state(), JobState::Restarting);
    let run = bench.deployments[&SessionId(1)].run;
    bench.message(1, FromTaskManager::TasksEnded { run });
    assert_eq!(bench.state(), JobState::Running);
}

#[test]
fn a_task_manager_that_cannot_end_its_tasks_is_given_up() {
    let mut bench = Bench::running(config(1));
    bench.obeys_cancel = false;
    bench.fail_task(failure());
    for _ in 0..61 {
        bench.pass(1000);
        bench.message(1, FromTaskManager::Heartbeat);
    }
    assert!(bench.closed.contains(&SessionId(1)));
    assert!(bench.status().task_managers.is_empty());
}

#[test]
fn tasks_that_never_come_to_run_fail_the_attempt_by_name() {
    let mut config = config(1);
    config.options.checkpointing.as_mut().unwrap().tolerable_failures = TolerableFailures::Count(1000);
    let mut bench = Bench::new(config);
    bench.runs_tasks = false;
    bench.register(1);
    bench.pass(599_000);
    assert_eq!(bench.status().failed_attempts, 0);
    bench.pass(1000);
    let failure = &bench.status().failures[0].failure;
    assert_eq!((failure.reason.as_str(), bench.state()), ("DeploymentTimeout", JobState::Restarting));
    assert!(failure.message.starts_with("2 of 2 tasks have not begun to run within 10m"), "{failure:?}");
    bench.runs_tasks = true;
    bench.pass(1000);
    assert_eq!((bench.state(), bench.status().failed_attempts), (JobState::Running, 1));
    bench.pass(700_000);
    assert_eq!(bench.status().failed_attempts, 1, "a job that runs has no such deadline");
}

#[test]
fn a_silent_task_manager_is_lost_after_the_timeout_and_replaced() {
    let mut bench = Bench::running(config(1));
    bench.is_silent = true;
    bench.pass(9_999);
    assert_eq!(bench.state(), JobState::Running);
    bench.pass(1);
    assert_eq!(bench.state(), JobState::Restarting);
    assert!(bench.status().failures[0].failure.message.contains("TaskManager tm-1 was lost: it was silent"));
    bench.is_silent = false;
    bench.register(2);
    bench.pass(1000);
    assert_eq!(bench.state(), JobState::Running);
}

#[test]
fn a_reconnected_task_manager_ends_its_old_tasks_first() {
    let mut bench = Bench::running(config(1));
    let run = bench.deployments[&SessionId(1)].run;
    bench.obeys_cancel = false;
    bench.event(Event::SessionClosed { session: SessionId(1) });
    let mut again = bench.registration(1);
    again.data_address = "again:1".into();
    bench.message(9, FromTaskManager::Register(again));
    bench.pass(2000);
    assert!(matches!(&bench.last_sent(9), ToTaskManager::CancelTasks { run: cancelled } if *cancelled == run), "N4");
    bench.message(9, FromTaskManager::TasksEnded { run });
    assert_eq!(bench.state(), JobState::Running);
}

#[test]
fn messages_of_an_older_run_are_refused() {
    let mut bench = Bench::running(config(1));
    let old = bench.deployments[&SessionId(1)].run;
    bench.fail_task(failure());
    bench.pass(1000);
    let subtask = bench.deployments[&SessionId(1)].tasks[0].subtask;
    bench.message(1, FromTaskManager::TaskFailed { run: old, subtask, failure: failure() });
    assert_eq!((bench.state(), bench.status().failed_attempts), (JobState::Running, 1));
}

#[test]
fn a_spent_policy_fails_the_job_with_the_root_cause_first() {
    let mut config = config(1);
    let fixed = FixedDelay { attempts: 1, delay: TimeSpan(10) };
    config.options.restart_strategy = Some(RestartStrategySpec { fixed_delay: Some(fixed), ..Default::default() });
    let mut bench = Bench::running(config);
    bench.fail_task(failure());
    bench.pass(10);
    bench.fail_task(failure());
    let exit = bench.exit.clone().unwrap();
    assert_eq!(exit.kind, ExitKind::Failed);
    assert!(
        exit.message.starts_with("the operator broke; not restarted: restartStrategy.fixedDelay allows 1"),
        "{exit:?}"
    );
    assert_eq!(kinds(&bench), ["Started", "Restarted", "Failed"]);
}

#[test]
fn the_failures_of_the_controller_and_of_the_ledger_feed_one_policy() {
    let mut config = config(1);
    let fixed = FixedDelay { attempts: 1, delay: TimeSpan(10) };
    config.options.restart_strategy = Some(RestartStrategySpec { fixed_delay: Some(fixed), ..Default::default() });
    let mut known = FailureCounts::new(1);
    known.record(CountedFailure::JobManager(Generation(1)), Timestamp(1));
    config.failures = known;
    config.generation = Generation(2);
    let mut bench = Bench::running(config);
    bench.fail_task(failure());
    assert_eq!(bench.exit.as_ref().unwrap().kind, ExitKind::Failed);
}

#[test]
fn a_users_error_is_not_restarted() {
    let mut bench = Bench::running(config(1));
    bench.fail_task(Failure::user("BadProgram", "column x is no number"));
    let exit = bench.exit.as_ref().unwrap();
    assert_eq!((exit.kind, exit.message.as_str()), (ExitKind::UserError, "column x is no number"));
    assert_eq!(bench.status().failed_attempts, 0);
}

#[test]
fn what_is_out_of_reach_while_restoring_spends_no_attempt() {
    let mut bench = Bench::new(config(1));
    bench.runs_tasks = false;
    bench.register(1);
    for _ in 0..3 {
        bench.fail_task(Failure::external("StoreUnreachable", "the store is away"));
        assert_eq!(bench.state(), JobState::Restarting);
        bench.pass(40_000);
    }
    assert_eq!(bench.status().failed_attempts, 0);
    bench.runs_tasks = true;
    bench.fail_task(Failure::external("StoreUnreachable", "the store is away"));
    bench.pass(40_000);
    assert_eq!(bench.state(), JobState::Running);
}

#[test]
fn memory_storage_survives_a_failed_task_but_not_its_job_manager() {
    let mut config = config(1);
    config.storage_uri = None;
    let mut bench = Bench::running(config.clone());
    bench.pass(1000);
    bench.acknowledge_all(1);
    assert!(bench.store.is_untouched());
    bench.fail_task(failure());
    bench.pass(1000);
    assert_eq!(bench.state(), JobState::Running);
    assert_eq!(bench.status().restored_from.as_ref().unwrap().id, CheckpointId(1));
    config.generation = Generation(2);
    assert!(Bench::new(config.clone()).exit.is_none(), "a new revision of the spec starts empty");
    config.failures.record(CountedFailure::JobManager(Generation(1)), Timestamp(1));
    assert_eq!(Bench::new(config).exit.unwrap().kind, ExitKind::StateLost);
}

/// Watermark alignment: a TaskManager hears of the others, and of none before all have spoken.
#[test]
fn task_managers_are_told_how_far_the_sources_of_the_others_are() {
    let mut bench = Bench::new(config(3));
    [1, 2, 3].into_iter().for_each(|number| bench.register(number));
    let run = bench.deployments[&SessionId(1)].run;
    let said = |groups: &[(&str, i64)]| -> Vec<GroupWatermark> {
        let one =
            |(group, watermark): &(&str, i64)| GroupWatermark { group: (*group).to_owned(), watermark: *watermark };
        groups.iter().map(one).collect()
    };
    let report = |bench: &mut Bench, session, groups: &[(&str, i64)]| {
        bench.message(session, FromTaskManager::ReportWatermarks { run, groups: said(groups) });
    };
    report(&mut bench, 1, &[("a", 5), ("b", 7)]);
    report(&mut bench, 2, &[("a", 3)]);
    let is_answer = |message: ToTaskManager| matches!(message, ToTaskManager::AlignWatermarks { .. });
    assert!(!is_answer(bench.last_sent(1)) && !is_answer(bench.last_sent(2)), "the third may be anywhere");
    report(&mut bench, 3, &[("b", 9)]);
    assert_eq!(bench.last_sent(3), ToTaskManager::AlignWatermarks { run, groups: said(&[("a", 3), ("b", 7)]) });
    report(&mut bench, 2, &[("a", 8)]);
    assert_eq!(bench.last_sent(2), ToTaskManager::AlignWatermarks { run, groups: said(&[("a", 5), ("b", 7)]) });
    report(&mut bench, 1, &[]);
    assert_eq!(bench.last_sent(1), ToTaskManager::AlignWatermarks { run, groups: said(&[("a", 8), ("b", 9)]) });
    let stale = Run { attempt: Attempt(run.attempt.0 + 1), ..run };
    bench.message(2, FromTaskManager::ReportWatermarks { run: stale, groups: said(&[("a", 0)]) });
    report(&mut bench, 1, &[]);
    assert_eq!(bench.last_sent(1), ToTaskManager::AlignWatermarks { run, groups: said(&[("a", 8), ("b", 9)]) });
}
