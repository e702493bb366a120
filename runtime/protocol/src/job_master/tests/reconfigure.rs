//! Options that a running job takes over.

use super::bench::{Bench, config, with_sink};
use super::failure;
use crate::commit::{SinkLife, StagedLife};
use crate::ids::CheckpointId;
use crate::job_master::{Command, Event, Reconfiguration};
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

/// The brokers' own limit, for one: said with its numbers, by the options that are obeyed.
#[test]
fn s4_a_life_that_a_slow_checkpoint_outlasts_is_a_notice_until_the_options_fit() {
    let told = |bench: &Bench| -> Vec<String> {
        bench.status().notices.iter().map(|notice| format!("{}: {}", notice.reason, notice.message)).collect()
    };
    let mut bench = Bench::running(with_sink(1));
    let minute = StagedLife::Limited { span: TimeSpan::from_secs(60), by: "as the brokers say".to_owned() };
    let silent = StagedLife::Unknown("grant a right".to_owned());
    let lives = [("out", minute), ("other", silent), ("file", StagedLife::Unlimited)];
    let lives = lives.map(|(sink, life)| SinkLife { sink: sink.into(), life });
    bench.event(Event::Lives(lives.into()));
    let [short, unknown] = &told(&bench)[..] else { panic!("{:?}", told(&bench)) };
    assert!(short.starts_with("TransactionTimeoutShort: sink 'out': its transactions time out after 1m"), "{short}");
    assert_eq!(unknown, "TransactionTimeoutUnknown: sink 'other': grant a right");
    let mut options = wanted("short");
    options.checkpointing.as_mut().unwrap().timeout = TimeSpan::from_secs(30);
    bench.command(Command::Reconfigure(Box::new(options)));
    assert_eq!(told(&bench), std::slice::from_ref(unknown));
}
