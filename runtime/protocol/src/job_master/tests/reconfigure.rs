//! Options that a running job takes over.

use super::bench::{Bench, config};
use super::failure;
use crate::ids::CheckpointId;
use crate::job_master::{Command, Reconfiguration};
use crate::options::{CheckpointingMode, NoRestart, RestartStrategySpec};
use crate::status::JobState;
use crate::time::TimeSpan;

fn wanted(id: &str) -> Reconfiguration {
    let checkpointing = config(1).options.checkpointing;
    Reconfiguration { id: id.to_owned(), checkpointing, restart_strategy: None }
}

#[test]
fn another_interval_is_obeyed_at_once_and_where_checkpoints_are_stays() {
    let mut bench = Bench::running(config(1));
    let mut options = wanted("slow");
    let checkpointing = options.checkpointing.as_mut().unwrap();
    checkpointing.interval = TimeSpan::from_secs(10);
    checkpointing.storage = "s3://elsewhere/root".to_owned();
    checkpointing.mode = CheckpointingMode::AtLeastOnce;
    assert_eq!(bench.status().options_id, None);
    bench.command(Command::Reconfigure(Box::new(options)));
    assert_eq!(bench.status().options_id.as_deref(), Some("slow"));
    bench.pass(1000);
    bench.acknowledge_all(1);
    let path = bench.status().last_checkpoint.clone().unwrap().path;
    assert!(path.starts_with("s3://bucket/root/"), "{path}");
    bench.pass(9000);
    assert_eq!(bench.status().pending_checkpoints, [], "the next one is due 10 s after the first");
    bench.pass(1000);
    assert_eq!(bench.status().pending_checkpoints, [CheckpointId(2)]);

    let mut options = wanted("fast");
    options.checkpointing.as_mut().unwrap().interval = TimeSpan::from_millis(100);
    bench.command(Command::Reconfigure(Box::new(options)));
    bench.acknowledge_all(2);
    bench.pass(100);
    assert_eq!(bench.status().pending_checkpoints, [CheckpointId(3)], "it does not wait for the old interval");
}

#[test]
fn another_restart_strategy_decides_on_the_next_failure() {
    let mut bench = Bench::running(config(1));
    let none = RestartStrategySpec { none: Some(NoRestart {}), ..RestartStrategySpec::default() };
    bench.command(Command::Reconfigure(Box::new(Reconfiguration { restart_strategy: Some(none), ..wanted("none") })));
    assert_eq!(bench.state(), JobState::Running);
    bench.fail_task(failure());
    assert_eq!(bench.state(), JobState::Failed);
}

#[test]
fn a_strategy_that_is_none_is_told_and_changes_nothing() {
    let mut bench = Bench::running(config(1));
    let empty = Some(RestartStrategySpec::default());
    bench.command(Command::Reconfigure(Box::new(Reconfiguration { restart_strategy: empty, ..wanted("empty") })));
    assert_eq!(bench.status().options_id, None);
    assert!(bench.status().notices.iter().any(|notice| notice.reason == "InvalidRestartStrategy"));
    bench.fail_task(failure());
    assert_eq!(bench.state(), JobState::Restarting);
}
