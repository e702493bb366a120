//! What a start restores, remembers and refuses, told by what once went wrong elsewhere.

use super::bench::{Bench, config};
use super::{failure, kinds, restoring, stopped};
use crate::failure::ExitKind;
use crate::ids::{CheckpointId, Generation};
use crate::job_master::{Directive, JobMasterConfig, REPEATS_OUTPUT, STARTS_EMPTY, STATE_DAMAGED, StartFrom};
use crate::ledger::EntryKind;
use crate::status::JobState;

const CHECKPOINT: &str = "s3://bucket/root/default/pv-1/1/chk-2";

/// The same job with another id of its keyed operator.
fn renamed(allow_non_restored_state: bool) -> JobMasterConfig {
    let mut config = restoring("2", CHECKPOINT);
    config.graph.vertices[1].operators[0].uid = "sum".into();
    config.directive.start =
        StartFrom::Path { from: CHECKPOINT.to_owned(), allow_non_restored_state, abandon_sinks: Vec::new() };
    config
}

#[test]
fn state_without_an_operator_refuses_the_start_and_names_both_sides() {
    let refused = stopped().clone_store_for(renamed(false));
    let exit = refused.exit.clone().unwrap();
    assert_eq!((exit.kind, exit.reason.as_str()), (ExitKind::UserError, "SnapshotIncompatible"));
    assert!(exit.message.contains("'count'") && exit.message.contains("'sum'"), "{}", exit.message);
    assert!(refused.ledger_of("2").is_empty());
}

/// FLINK-39513: the choice held for the first start only, and the next JobManager refused the same snapshot.
#[test]
fn allow_non_restored_state_holds_for_each_later_start_until_an_own_checkpoint_stands() {
    let mut second = stopped().clone_store_for(renamed(true));
    second.register(1);
    assert_eq!(second.state(), JobState::Running);
    second.fail_task(failure());
    second.pass(1000);
    assert_eq!(second.state(), JobState::Running, "a restart in place restores it again: {:?}", second.exit);
    for start in [renamed(false).directive.start, StartFrom::Continue] {
        let mut third = renamed(false);
        third.generation = Generation(2);
        third.directive.seen = second.ledger_of("2").len() as u64;
        third.directive.start = start;
        let mut third = second.clone_store_for(third);
        third.register(1);
        assert_eq!(third.state(), JobState::Running, "{:?}", third.exit);
        assert_eq!(third.status().restored_from.as_ref().unwrap().path, CHECKPOINT);
    }
}

/// FLINK-22502: a recovery left out a checkpoint that it could not read and went on with an older one.
#[test]
fn a_latest_checkpoint_that_cannot_be_read_is_named_and_no_older_one_is_taken() {
    for (damage, reason) in [(None, "SnapshotNotFound"), (Some(b"no json"), "SnapshotUnreadable")] {
        let mut three = config(1);
        three.options.checkpointing.as_mut().unwrap().retained = 3;
        let mut first = Bench::running(three.clone());
        for id in 1..=3 {
            first.pass(1000);
            first.acknowledge_all(id);
        }
        let latest = "default/pv-1/1/chk-3/_metadata";
        assert!(first.store.holds(latest) && first.store.holds("default/pv-1/1/chk-2/_metadata"));
        first.store.remove(latest);
        if let Some(bytes) = damage {
            first.store.put(latest, bytes);
        }
        three.generation = Generation(2);
        three.directive.seen = first.ledger().len() as u64;
        let second = first.clone_store_for(three);
        let exit = second.exit.clone().unwrap();
        assert_eq!((exit.kind, exit.reason.as_str()), (ExitKind::UserError, reason), "{}", exit.message);
        assert!(exit.message.contains("s3://bucket/root/default/pv-1/1/chk-3"), "{}", exit.message);
        assert_eq!(second.ledger().len(), first.ledger().len(), "nothing was appended");
    }
}

/// As with a file of state (F2): it may be one bad read, and people can put it back. Nothing goes on without it.
#[test]
fn a_metadata_that_is_damaged_is_named_and_read_again_until_it_is_right() {
    const KEY: &str = "default/pv-1/1/chk-2/_metadata";
    let mut first = stopped();
    let whole = first.store.get(KEY);
    let mut damaged = whole.clone();
    damaged[whole.len() / 2] ^= 1;
    first.store.remove(KEY);
    first.store.put(KEY, &damaged);
    let mut second = first.clone_store_for(restoring("2", CHECKPOINT));
    second.register(1);
    second.pass(60_000);
    assert_eq!((second.state(), second.exit.as_ref()), (JobState::Starting, None));
    let notice = second.status().notices[0].clone();
    assert_eq!((notice.reason.as_str(), second.status().notices.len()), (STATE_DAMAGED, 1));
    assert!(notice.message.starts_with(&format!("{CHECKPOINT}/_metadata is damaged: its checksum is")), "{notice:?}");
    assert!(second.ledger_of("2").is_empty(), "nothing was appended");
    second.store.remove(KEY);
    second.store.put(KEY, &whole);
    second.pass(20_000);
    assert_eq!((second.state(), second.status().notices.len()), (JobState::Running, 0));
    assert_eq!(second.status().restored_from.as_ref().unwrap().path, CHECKPOINT);
}

/// FLINK-22483: with the store away, a recovery blocked the JobManager, and nothing else was answered.
#[test]
fn a_store_that_is_away_while_a_snapshot_is_read_leaves_the_job_manager_answering() {
    let mut first = stopped();
    first.store.is_away = true;
    let mut second = first.clone_store_for(restoring("2", CHECKPOINT));
    second.pass(60_000);
    second.register(1);
    assert_eq!((second.state(), second.exit.as_ref()), (JobState::Starting, None));
    assert_eq!(second.status().notices[0].reason, "StoreUnreachable");
    second.store.is_away = false;
    second.pass(40_000);
    assert_eq!((second.state(), second.status().failed_attempts), (JobState::Running, 0));
    assert_eq!(second.status().restored_from.as_ref().unwrap().path, CHECKPOINT);
}

/// FLINK-35857: a job that had failed was started from an older checkpoint than its last one.
#[test]
fn a_failed_job_and_a_lost_job_manager_go_on_from_the_latest_checkpoint() {
    let mut first = Bench::running(config(1));
    for id in 1..=2 {
        first.pass(1000);
        first.acknowledge_all(id);
    }
    first.fail_task(failure());
    first.pass(1000);
    assert_eq!(first.status().restored_from.as_ref().unwrap().id, CheckpointId(2));
    first.pass(1000);
    first.acknowledge_all(3);
    let mut next = config(1);
    next.generation = Generation(2);
    next.directive.seen = 1;
    let mut next = first.clone_store_for(next);
    next.register(1);
    assert_eq!(next.status().restored_from.as_ref().unwrap().id, CheckpointId(3));
    assert!(matches!(next.ledger().last().unwrap().kind, EntryKind::Started { .. }), "{:?}", kinds(&next));
}

#[test]
fn a_foreign_snapshot_is_shown_as_needed_until_the_first_own_checkpoint_stands() {
    let mut second = stopped().clone_store_for(restoring("2", CHECKPOINT));
    second.register(1);
    let needed = |bench: &Bench| {
        let foreign = bench.status().foreign_snapshot.clone().unwrap();
        assert_eq!(foreign.path, CHECKPOINT);
        assert_eq!(foreign.needed, foreign.released_at.is_none());
        foreign.released_by
    };
    assert_eq!(needed(&second), None);
    second.pass(1000);
    assert!(second.status().foreign_snapshot.as_ref().unwrap().needed, "triggered is not complete");
    second.decline(1, failure());
    second.fail_task(failure());
    second.pass(3000);
    assert!(second.status().foreign_snapshot.as_ref().unwrap().needed, "a restart has restored it again");
    let id = second.last_barrier().checkpoint.0;
    second.store.loses_ledger_replies = true;
    second.acknowledge_all(id);
    assert!(second.status().foreign_snapshot.as_ref().unwrap().needed, "its entry has no answer");
    second.store.loses_ledger_replies = false;
    second.pass(3000);
    assert_eq!(needed(&second), Some(CheckpointId(id)));
    let shown = serde_json::to_value(second.status()).unwrap();
    assert_eq!(shown["foreignSnapshot"]["needed"], false);

    let mut third = restoring("2", CHECKPOINT);
    third.generation = Generation(2);
    third.directive.start = StartFrom::Continue;
    let mut third = second.clone_store_for(third);
    third.register(1);
    assert_eq!(needed(&third), Some(CheckpointId(id)), "it outlives the JobManager");
    assert!(Bench::running(config(1)).status().foreign_snapshot.is_none());
}

#[test]
fn a_stateful_operator_that_starts_empty_is_told() {
    let mut grown = restoring("2", CHECKPOINT);
    let mut operator = grown.graph.vertices[1].operators[0].clone();
    operator.uid = "max".into();
    grown.graph.vertices[1].operators.push(operator);
    let mut second = stopped().clone_store_for(grown.clone());
    second.register(1);
    let notices = |bench: &Bench| bench.status().notices.clone();
    assert_eq!((notices(&second).len(), notices(&second)[0].reason.as_str()), (1, STARTS_EMPTY));
    assert!(notices(&second)[0].message.contains("start without state: 'max'"), "{:?}", notices(&second));
    second.pass(1000);
    second.acknowledge_all(1);
    grown.generation = Generation(2);
    grown.directive.start = StartFrom::Continue;
    let mut third = second.clone_store_for(grown);
    third.register(1);
    assert_eq!((third.state(), notices(&third).len()), (JobState::Running, 0), "the next one has its state");
}

#[test]
fn a_start_from_an_older_snapshot_of_the_job_tells_that_output_is_written_again() {
    let told = |bench: &Bench| bench.status().notices.iter().any(|notice| notice.reason == REPEATS_OUTPUT);
    let keeps_three = || {
        let mut config = config(1);
        config.options.checkpointing.as_mut().unwrap().retained = 3;
        config
    };
    let from_first = |before: &Bench, number: u64| {
        let mut next = keeps_three();
        let from = "s3://bucket/root/default/pv-1/1/chk-1".to_owned();
        let start = StartFrom::Path { from, allow_non_restored_state: false, abandon_sinks: Vec::new() };
        next.generation = Generation(number);
        next.directive = Directive { id: number.to_string(), seen: before.ledger().len() as u64, start };
        let mut next = before.clone_store_for(next);
        next.register(1);
        assert_eq!(next.state(), JobState::Running, "{:?}", next.exit);
        assert_eq!(next.status().restored_from.as_ref().unwrap().id.0, 1);
        next
    };
    let mut first = Bench::running(keeps_three());
    first.pass(1000);
    first.acknowledge_all(1);
    let mut second = from_first(&first, 2);
    assert!(!told(&second), "nothing came after it");
    second.pass(1000);
    second.acknowledge_all(second.last_barrier().checkpoint.0);
    let third = from_first(&second, 3);
    assert!(told(&third), "the second start has written what comes after it: {:?}", third.status().notices);
    let mut lost = keeps_three();
    (lost.generation, lost.directive.seen) = (Generation(4), third.ledger().len() as u64);
    lost.directive.id = "3".into();
    let mut fourth = third.clone_store_for(lost);
    fourth.register(1);
    assert!(told(&fourth), "the next JobManager restores it again, before a checkpoint of its own stands");
}

#[test]
fn an_end_of_the_older_revision_is_concluded_and_then_the_new_one_starts() {
    let mut first = Bench::running(config(1));
    first.pass(1000);
    first.acknowledge_all(1);
    first.command(crate::job_master::Command::Stop);
    first.store.keeps_entries = Some(3);
    first.acknowledge_all(2);
    assert_eq!(kinds(&first), ["Started", "Checkpoint", "Checkpoint"], "lost before its Stopped stood");
    first.store.keeps_entries = None;
    let mut next = config(1);
    (next.generation, next.revision) = (Generation(2), 2);
    next.directive = crate::job_master::Directive { id: "2".into(), seen: 1, start: StartFrom::ResumeLatest };
    let closer = first.clone_store_for(next.clone());
    let exit = closer.exit.clone().unwrap();
    assert_eq!((exit.kind, exit.ledger_entry), (ExitKind::StateMoved, Some(5)), "{exit:?}");
    assert_eq!(kinds(&closer)[3..], ["Started", "Stopped"]);
    (next.generation, next.directive.seen) = (Generation(3), 5);
    let mut third = closer.clone_store_for(next);
    third.register(1);
    assert_eq!((third.state(), third.status().restored_from.as_ref().unwrap().id.0), (JobState::Running, 2));
}

/// What the older revision finished with is what the new one goes on from, also where the job takes its checkpoints along.
#[test]
fn an_end_that_is_concluded_for_another_start_keeps_what_that_starts_from() {
    let deletes = || {
        let mut config = config(1);
        config.options.checkpointing.as_mut().unwrap().retention = crate::options::Retention::DeleteOnCancellation;
        config
    };
    let mut first = Bench::running(deletes());
    first.store.keeps_entries = Some(2);
    first.finish_all();
    first.acknowledge_all(1);
    assert_eq!(kinds(&first), ["Started", "Checkpoint"], "lost before its Finished stood");
    first.store.keeps_entries = None;
    let latest = StartFrom::Path {
        from: "s3://bucket/root/default/pv-1/1/chk-1".into(),
        allow_non_restored_state: false,
        abandon_sinks: Vec::new(),
    };
    for start in [StartFrom::ResumeLatest, latest] {
        let mut next = deletes();
        (next.generation, next.revision) = (Generation(2), 2);
        next.directive = crate::job_master::Directive { id: "2".into(), seen: 1, start };
        let closer = first.clone_store_for(next.clone());
        assert_eq!(kinds(&closer)[2..], ["Started", "Finished"]);
        (next.generation, next.directive.seen) = (Generation(3), 4);
        let mut third = closer.clone_store_for(next);
        third.register(1);
        assert_eq!(third.state(), JobState::Running, "{:?}", third.exit);
        assert_eq!(third.status().restored_from.as_ref().unwrap().id.0, 1);
    }
}
