//! TaskManagers that are told to leave.

use super::bench::{Bench, config, no_checkpoints};
use crate::failure::{Failure, Fault};
use crate::ids::CheckpointId;
use crate::message::{FromTaskManager, ToTaskManager};
use crate::status::JobState;
use crate::time::TimeSpan;

fn leave(bench: &mut Bench, session: u64) {
    bench.message(session, FromTaskManager::Leaving { within: TimeSpan::from_secs(20) });
}

fn outcome(bench: &Bench) -> (JobState, u32, u64, Option<CheckpointId>) {
    let status = bench.status();
    let restored = status.restored_from.as_ref().map(|restored| restored.id);
    (bench.state(), status.attempt.0, status.failed_attempts, restored)
}

#[test]
fn its_tasks_move_after_a_checkpoint_as_soon_as_there_is_room_and_nothing_is_counted() {
    let mut config = config(1);
    config.options.checkpointing.as_mut().unwrap().interval = TimeSpan::from_secs(600);
    let mut bench = Bench::running(config);
    leave(&mut bench, 1);
    bench.pass(100);
    assert_eq!(bench.last_barrier().checkpoint, CheckpointId(1), "a checkpoint is taken at once");
    bench.acknowledge_all(1);
    assert_eq!(outcome(&bench), (JobState::Running, 1, 0, None), "there is no room yet");
    bench.register(2);
    bench.pass(100);
    assert_eq!(outcome(&bench), (JobState::Running, 2, 0, Some(CheckpointId(1))));
    assert!(matches!(bench.last_sent(1), ToTaskManager::CancelTasks { .. } | ToTaskManager::Heartbeat { .. }));
    let run = bench.deployments.values().map(|deployment| deployment.run).max().unwrap();
    assert_eq!(bench.deployments[&crate::job_master::SessionId(2)].run, run, "they run on the other");
}

#[test]
fn when_its_time_is_up_or_it_is_gone_earlier_nothing_is_counted_either() {
    let mut late = Bench::running(config(1));
    leave(&mut late, 1);
    late.pass(19_000);
    assert_eq!(late.status().attempt.0, 1);
    late.pass(1000);
    assert_eq!((late.state(), late.status().failed_attempts), (JobState::Restarting, 0));

    let mut gone = Bench::running(config(1));
    leave(&mut gone, 1);
    gone.event(crate::job_master::Event::SessionClosed { session: crate::job_master::SessionId(1) });
    assert_eq!(gone.status().failed_attempts, 0);
    gone.register(2);
    gone.pass(1000);
    assert_eq!((gone.state(), gone.status().attempt.0), (JobState::Running, 2));
}

/// Tasks that run again without a checkpoint would repeat all results.
#[test]
fn without_checkpoints_tasks_stay_until_the_process_goes_and_the_strategy_decides() {
    let mut bench = Bench::running(no_checkpoints(1));
    leave(&mut bench, 1);
    bench.register(2);
    bench.pass(21_000);
    assert_eq!(outcome(&bench), (JobState::Running, 1, 0, None));
    bench.event(crate::job_master::Event::SessionClosed { session: crate::job_master::SessionId(1) });
    bench.pass(1000);
    assert_eq!((bench.state(), bench.status().attempt.0), (JobState::Failed, 1));
}

/// Its peers may notice that its connections break before its session ends.
#[test]
fn what_breaks_at_its_peers_is_not_counted_either() {
    let mut bench = Bench::running(config(1));
    leave(&mut bench, 1);
    bench.fail_task(Failure::restart("ConnectionLost", Fault::External, "the peer is gone"));
    assert_eq!((bench.state(), bench.status().failed_attempts), (JobState::Restarting, 0));
}

#[test]
fn one_that_leaves_gets_no_tasks() {
    let mut bench = Bench::new(config(1));
    bench.register(1);
    bench.pass(100);
    let mut fresh = Bench::running(config(1));
    fresh.register(2);
    leave(&mut fresh, 2);
    fresh.fail_task(super::failure());
    fresh.pass(2000);
    assert!(!fresh.deployments.contains_key(&crate::job_master::SessionId(2)));
    assert_eq!(fresh.state(), JobState::Running);
}
