//! Handles of sinks, from the checkpoint that holds them to their confirmation (K1, K3, S1, S3, S5, S6, L6).

use super::bench::{Bench, with_sink};
use super::{failure, kinds, restoring};
use crate::commit::CommitOutcome;
use crate::failure::{ExitKind, Failure, Fault};
use crate::ids::{Attempt, CheckpointId, Generation, SubtaskId, SubtaskIndex, VertexId};
use crate::job_master::{CloseEnd, Command, Directive, JobMasterConfig, SavepointRequest, StartFrom};
use crate::ledger::SavepointKind;
use crate::message::{Held, ToTaskManager};
use crate::options::TolerableFailures;
use crate::status::{JobState, RequestState};
use crate::time::TimeSpan;

fn job(parallelism: u32) -> JobMasterConfig {
    let mut config = with_sink(parallelism);
    let checkpointing = config.options.checkpointing.as_mut().unwrap();
    checkpointing.interval = TimeSpan::from_secs(1000);
    checkpointing.tolerable_failures = TolerableFailures::Count(100);
    config
}

fn next(bench: &Bench, job: JobMasterConfig, generation: u64, start: StartFrom) -> Bench {
    let seen = bench.ledger().last().unwrap().number;
    let directive = Directive { id: job.directive.id.clone(), seen, start };
    bench.clone_store_for(JobMasterConfig { generation: Generation(generation), directive, ..job })
}

fn checkpoint(bench: &mut Bench, id: u64) {
    bench.command(Command::TriggerCheckpoint { id: format!("t{id}") });
    bench.acknowledge_all(id);
}

fn committed_through(bench: &Bench) -> CheckpointId {
    bench.ledger().last().unwrap().folded().committed_through
}

#[test]
fn k1_a_sink_commits_when_the_entry_stands_and_not_before() {
    let mut bench = Bench::running(job(2));
    bench.store.loses_ledger_replies = true;
    bench.store.drops_ledger_puts = true;
    checkpoint(&mut bench, 1);
    assert_eq!(bench.commits.len(), 0, "the entry has no answer");
    bench.store.loses_ledger_replies = false;
    bench.store.drops_ledger_puts = false;
    bench.pass(5_000);
    assert_eq!(bench.last_commit(), [1, 1]);
    assert_eq!(bench.commits.len(), 1);
}

#[test]
fn s6_the_entry_after_the_confirmation_says_so_and_nothing_is_sent_again() {
    let mut bench = Bench::running(job(1));
    checkpoint(&mut bench, 1);
    assert_eq!(committed_through(&bench), CheckpointId(0));
    checkpoint(&mut bench, 2);
    assert_eq!(committed_through(&bench), CheckpointId(1));
    assert_eq!((bench.last_commit(), bench.commits.len()), (vec![2], 2));
    assert_eq!(bench.handles_of(1, 2), [2]);
}

#[test]
fn k3_a_failed_checkpoint_s_handles_are_committed_with_the_next() {
    let mut bench = Bench::running(job(1));
    bench.command(Command::TriggerCheckpoint { id: "t".into() });
    bench.decline(1, Failure::restart("Slow", Fault::External, "no"));
    // The writer had staged it and carries it on.
    bench.acknowledge_all(1);
    bench.pass(1_000);
    checkpoint(&mut bench, 2);
    assert_eq!(bench.handles_of(1, 2), [1, 2]);
    assert_eq!(bench.commits, [bench.commits[0].clone()]);
    assert_eq!(bench.last_commit(), [1, 2]);
}

#[test]
fn k3_what_cannot_be_committed_yet_is_carried_and_tried_again() {
    let mut bench = Bench::running(job(1));
    bench.outcome = CommitOutcome::Retry("the bucket does not answer".to_owned());
    checkpoint(&mut bench, 1);
    checkpoint(&mut bench, 2);
    assert_eq!(bench.handles_of(1, 2), [1, 2]);
    assert!(bench.status().notices.iter().any(|notice| notice.reason == "CommitRetried"));
    assert_eq!(committed_through(&bench), CheckpointId(0));
    bench.outcome = CommitOutcome::Settled;
    bench.pass(2_000);
    assert_eq!(bench.last_commit(), [1, 2]);
    assert!(bench.status().notices.iter().all(|notice| notice.reason != "CommitRetried"));
    checkpoint(&mut bench, 3);
    assert_eq!((bench.handles_of(1, 3), committed_through(&bench)), (vec![3], CheckpointId(2)));
}

#[test]
fn k3_a_sink_that_is_far_behind_holds_triggers() {
    let mut bench = Bench::running(job(1));
    bench.outcome = CommitOutcome::Retry("no".to_owned());
    (1..=16).for_each(|id| checkpoint(&mut bench, id));
    let before = bench.last_barrier().checkpoint;
    bench.command(Command::TriggerCheckpoint { id: "one more".into() });
    assert_eq!(bench.last_barrier().checkpoint, before);
    bench.outcome = CommitOutcome::Settled;
    bench.pass(31_000);
    assert_eq!(bench.last_barrier().checkpoint, CheckpointId(17));
}

#[test]
fn k3_a_confirmed_handle_that_a_task_lists_again_is_not_sent_again() {
    let mut bench = Bench::running(job(1));
    bench.holds_commits = true;
    checkpoint(&mut bench, 1);
    bench.command(Command::TriggerCheckpoint { id: "t2".into() });
    bench.answer_commits();
    bench.acknowledge_all(2);
    assert_eq!((bench.handles_of(1, 2), bench.last_commit()), (vec![2], vec![2]));
}

#[test]
fn s5_a_restart_in_place_goes_on_with_what_is_unsettled() {
    let mut bench = Bench::running(job(1));
    bench.holds_commits = true;
    checkpoint(&mut bench, 1);
    bench.fail_task(failure());
    bench.pass(2_000);
    assert_eq!(bench.state(), JobState::Running);
    // Not confirmed when the first checkpoint of the new attempt is taken: it rides along.
    bench.command(Command::TriggerCheckpoint { id: "t".into() });
    bench.acknowledge_all(2);
    assert_eq!(bench.handles_of(1, 2), [1, 2]);
    bench.answer_commits();
    assert_eq!(bench.last_commit(), [2]);
    let last = bench.aborts.last().unwrap();
    assert_eq!((last.older_than.attempt, last.spared.len()), (Attempt(2), 1));
}

#[test]
fn s5_the_next_generation_settles_what_the_lost_one_had_not() {
    let mut bench = Bench::running(job(2));
    bench.holds_commits = true;
    checkpoint(&mut bench, 1);
    let after = next(&bench, job(2), 2, StartFrom::Continue);
    assert_eq!(after.last_commit(), [1, 1]);
    let abort = after.aborts.last().unwrap();
    assert_eq!((abort.older_than.generation, abort.spared.len()), (Generation(2), 2));
    assert!(after.deployments.is_empty(), "before its tasks run");
}

#[test]
fn s5_it_settles_the_last_checkpoint_whatever_it_restores() {
    for start in
        [StartFrom::Empty, StartFrom::Path { from: chk(1), allow_non_restored_state: false, abandon_sinks: Vec::new() }]
    {
        let mut bench = Bench::running({
            let mut job = job(1);
            job.options.checkpointing.as_mut().unwrap().retained = 2;
            job
        });
        checkpoint(&mut bench, 1);
        bench.holds_commits = true;
        checkpoint(&mut bench, 2);
        let mut job = job(1);
        job.directive.id = "2".into();
        let after = next(&bench, job, 2, start.clone());
        assert_eq!(after.last_commit(), [2], "{start:?}, {:?}", after.exit);
    }
}

fn chk(id: u64) -> String {
    format!("s3://bucket/root/default/pv-1/1/chk-{id}")
}

#[test]
fn s5_the_parallelism_may_differ() {
    let mut bench = Bench::running(job(2));
    bench.holds_commits = true;
    checkpoint(&mut bench, 1);
    let mut after = next(&bench, job(1), 2, StartFrom::Continue);
    assert_eq!(after.last_commit(), [1, 1]);
    after.register(1);
    checkpoint(&mut after, 2);
    assert_eq!((after.handles_of(2, 2), after.last_commit()), (vec![2], vec![2]));
}

#[test]
fn s5_a_program_without_the_sink_is_refused_by_name() {
    let mut bench = Bench::running(job(1));
    bench.holds_commits = true;
    checkpoint(&mut bench, 1);
    let mut other = job(1);
    other.graph.vertices[1].operators[1].uid = "elsewhere".into();
    let after = next(&bench, other, 2, StartFrom::Continue);
    let exit = after.exit.unwrap();
    assert_eq!((exit.kind, exit.reason.as_str()), (ExitKind::UserError, "SinkMissing"));
    assert!(exit.message.contains("'out'"), "{}", exit.message);
    assert_eq!(after.commits.len(), 0);
}

#[test]
fn s6_a_loss_fails_the_job_loudly() {
    let mut bench = Bench::running(job(1));
    bench.outcome = CommitOutcome::Lost("the upload is gone".to_owned());
    checkpoint(&mut bench, 1);
    bench.pass(1_000);
    let exit = bench.exit.clone().unwrap();
    assert_eq!((exit.kind, exit.reason.as_str()), (ExitKind::Failed, "CommitLost"));
    assert!(exit.message.contains("the upload is gone") && exit.message.contains("checkpoint 1"), "{}", exit.message);
}

#[test]
fn k4_a_savepoint_holds_no_handles_and_is_answered_when_all_before_it_is_committed() {
    let mut bench = Bench::running(job(1));
    bench.holds_commits = true;
    let request = |kind| SavepointRequest {
        id: "a".into(),
        kind,
        directory: Some("s3://other/sp".to_owned()),
        timeout: TimeSpan::from_secs(30),
    };
    bench.command(Command::Savepoint(request(SavepointKind::Savepoint)));
    bench.acknowledge_all(1);
    let state = |bench: &Bench| bench.status().requests[0].state;
    assert_eq!(state(&bench), RequestState::Pending);
    bench.answer_commits();
    assert_eq!(state(&bench), RequestState::Completed);
    let savepoint = bench.store.keys().find(|key| key.starts_with("s3://other/sp")).unwrap().clone();
    assert!(!bench.text_of(&savepoint).contains("committables"));
    assert!(bench.text_of("default/pv-1/1/chk-1/_metadata").contains("committables"));
}

#[test]
fn k4_a_savepoint_whose_commits_do_not_come_about_by_its_deadline_has_failed() {
    let mut bench = Bench::running(job(1));
    bench.outcome = CommitOutcome::Retry("no".to_owned());
    let (kind, timeout) = (SavepointKind::Savepoint, TimeSpan::from_secs(30));
    let directory = Some("s3://other/sp".to_owned());
    bench.command(Command::Savepoint(SavepointRequest { id: "a".into(), kind, directory, timeout }));
    bench.acknowledge_all(1);
    bench.pass(31_000);
    assert_eq!(bench.status().requests[0].state, RequestState::Failed);
    assert_eq!(bench.state(), JobState::Running);
    checkpoint(&mut bench, 2);
    assert_eq!(bench.handles_of(1, 2), [1, 2], "they are carried on");
}

#[test]
fn l6_every_end_waits_for_the_commits_and_aborts_what_is_open() {
    for command in [Command::Cancel, Command::Stop] {
        let mut bench = Bench::running(job(1));
        bench.holds_commits = true;
        checkpoint(&mut bench, 1);
        bench.command(command.clone());
        bench.acknowledge_all(2);
        bench.pass(20_000);
        assert!(!kinds(&bench).iter().any(|kind| kind == "Cancelled" || kind == "Stopped"), "{command:?}");
        while bench.exit.is_none() {
            bench.answer_commits();
            bench.pass(100);
        }
        let abort = bench.aborts.last().unwrap();
        assert_eq!((abort.older_than.attempt, abort.spared.len()), (Attempt(2), 0), "{command:?}");
        assert_eq!(committed_through(&bench), bench.ledger().last().unwrap().folded().latest().unwrap().key.id);
    }
}

#[test]
fn l6_the_end_of_the_input_commits_everything() {
    let mut bench = Bench::running(job(1));
    bench.finish_all();
    bench.acknowledge_all(1);
    bench.pass(1_000);
    assert_eq!(bench.exit.as_ref().unwrap().kind, ExitKind::Finished);
    assert_eq!(bench.last_commit(), [1]);
    assert_eq!(committed_through(&bench), CheckpointId(1));
}

#[test]
fn l6_a_closer_settles_before_its_terminal_entry() {
    let mut bench = Bench::running(job(1));
    bench.holds_commits = true;
    checkpoint(&mut bench, 1);
    let mut closer = next(&bench, job(1), 2, StartFrom::Close { end: CloseEnd::Cancelled });
    closer.pass(1_000);
    assert_eq!(closer.last_commit(), [1]);
    assert_eq!(kinds(&closer).last().unwrap(), "Cancelled");
    assert_eq!(committed_through(&closer), CheckpointId(1));
}

#[test]
fn g5_a_taker_commits_what_the_other_job_staged_before_that_job_s_ledger_ends() {
    let mut first = Bench::running(job(1));
    first.holds_commits = true;
    checkpoint(&mut first, 1);
    let mut taker = restoring("2", "s3://bucket/root/default/pv-1");
    taker.graph = job(1).graph;
    let mut second = Bench::paused(taker);
    second.store = first.store.clone();
    second.holds_commits = true;
    second.tick();
    let last = |bench: &Bench| format!("{:?}", bench.ledger_of("1").last().unwrap().kind);
    assert_eq!(second.last_commit(), [1], "{:?}", second.exit);
    assert!(last(&second).starts_with("Started"), "{}", last(&second));
    second.answer_commits();
    assert!(last(&second).starts_with("MovedTo"), "{}", last(&second));
    let abort = &second.aborts[0];
    assert_eq!((abort.job.uid.as_str(), abort.spared.len()), ("1", 0));
    second.register(1);
    assert_eq!(second.state(), JobState::Running);
}

#[test]
fn s5_a_copy_with_handles_and_no_ledger_is_refused_by_name() {
    let mut first = Bench::running(job(1));
    checkpoint(&mut first, 1);
    for copy in ["s3://bucket/root/copies/chk-1", "s3://bucket/root/default/other-7/1/chk-1"] {
        let key = copy.strip_prefix("s3://bucket/root/").unwrap();
        first.store.copy("default/pv-1/1/chk-1/_metadata", &format!("{key}/_metadata"));
        let mut other = restoring("2", copy);
        other.graph = job(1).graph;
        let exit = first.clone_store_for(other).exit.unwrap();
        assert_eq!(
            (exit.kind, exit.reason.as_str()),
            (ExitKind::UserError, "HandlesWithoutLedger"),
            "{}",
            exit.message
        );
    }
}

#[test]
fn l3_a_superseded_process_commits_nothing_more() {
    let mut bench = Bench::running(job(1));
    let after = next(&bench, job(1), 2, StartFrom::Continue);
    assert_eq!(after.exit, None);
    bench.store = after.store;
    checkpoint(&mut bench, 1);
    assert_eq!(bench.exit.as_ref().unwrap().kind, ExitKind::Superseded);
    assert_eq!(bench.commits.len(), 0);
}

/// L2: its entry was put and has no answer, and its attempt has failed. It may be complete: what it staged is not left over.
#[test]
fn s3_nothing_of_a_checkpoint_whose_entry_has_no_answer_is_aborted() {
    let mut bench = Bench::running(job(1));
    bench.store.loses_ledger_replies = true;
    bench.store.refuses_reads = true;
    checkpoint(&mut bench, 1);
    bench.fail_task(failure());
    let before = bench.aborts.len();
    bench.pass(3_700_000);
    let youngest = bench.aborts.iter().map(|abort| abort.older_than.attempt).max().unwrap();
    assert!(bench.aborts.len() > before, "the hourly sweep");
    assert_eq!(youngest, Attempt(1));
    bench.store.loses_ledger_replies = false;
    bench.store.refuses_reads = false;
    bench.pass(60_000);
    assert_eq!(bench.last_commit(), [1], "{:?}", kinds(&bench));
    assert_eq!(bench.aborts.last().unwrap().older_than.attempt, Attempt(2));
}

/// Checkpoint 2 was described while the commit of checkpoint 1 was under way; its entry says that it came about.
fn confirmed_meanwhile() -> Bench {
    let mut bench = Bench::running(job(1));
    bench.holds_commits = true;
    checkpoint(&mut bench, 1);
    bench.store.keeps_entries = Some(2);
    let directory = Some("s3://other/sp".to_owned());
    let (kind, timeout) = (SavepointKind::Savepoint, TimeSpan::from_secs(900));
    bench.command(Command::TriggerCheckpoint { id: "t2".into() });
    bench.command(Command::Savepoint(SavepointRequest { id: "a".into(), kind, directory, timeout }));
    bench.acknowledge_all(2);
    bench.answer_commits();
    bench.holds_commits = true;
    bench.store.keeps_entries = Some(4);
    bench.pass(10_000);
    assert_eq!((bench.handles_of(1, 2), committed_through(&bench)), (vec![1, 2], CheckpointId(1)));
    assert!(kinds(&bench).last().unwrap().starts_with("Checkpoint"), "{:?}", kinds(&bench));
    bench.store.keeps_entries = None;
    bench
}

/// Readers may have moved them away by then, which would look like a loss.
#[test]
fn s6_what_the_ledger_knows_to_be_committed_is_not_sent_again() {
    let bench = confirmed_meanwhile();
    assert_eq!(next(&bench, job(1), 2, StartFrom::Continue).last_commit(), [2]);
    let mut elsewhere = job(1);
    elsewhere.directive.id = "2".into();
    assert_eq!(next(&bench, elsewhere, 2, StartFrom::Empty).last_commit(), [2]);
    let mut taker = restoring("2", "s3://bucket/root/default/pv-1");
    taker.graph = job(1).graph;
    assert_eq!(bench.clone_store_for(taker).commits[0].len(), 1);
}

#[test]
fn s5_a_program_without_any_sink_that_starts_elsewhere_is_refused_too() {
    let mut bench = Bench::running(job(1));
    bench.holds_commits = true;
    checkpoint(&mut bench, 1);
    let without = || {
        let mut without = job(1);
        without.graph.vertices[1].operators.pop();
        without.directive.id = "2".into();
        without
    };
    let exit = next(&bench, without(), 2, StartFrom::Empty).exit.unwrap();
    assert_eq!((exit.kind, exit.reason.as_str()), (ExitKind::UserError, "SinkMissing"));
    // Its people can end the job all the same.
    let mut closer = next(&bench, without(), 2, StartFrom::Close { end: CloseEnd::Cancelled });
    closer.pass(1_000);
    assert_eq!(kinds(&closer).last().unwrap(), "Cancelled");
    // And go on where nobody can tell any more.
    bench.store.remove("default/pv-1/1/chk-1/_metadata");
    let mut after = next(&bench, without(), 2, StartFrom::Empty);
    after.register(1);
    assert_eq!(after.state(), JobState::Running, "{:?}", after.exit);
    assert!(after.status().notices.iter().any(|notice| notice.reason == "StagedOutputUnknown"));
}

/// Which has begun anew from an older checkpoint, and has taken none since.
#[test]
fn g5_a_taker_settles_the_last_complete_checkpoint_whatever_it_restores() {
    let mut job = job(1);
    job.options.checkpointing.as_mut().unwrap().retained = 2;
    let mut bench = Bench::running(job.clone());
    checkpoint(&mut bench, 1);
    bench.holds_commits = true;
    checkpoint(&mut bench, 2);
    job.directive.id = "2".into();
    let begun = next(
        &bench,
        job.clone(),
        2,
        StartFrom::Path { from: chk(1), allow_non_restored_state: false, abandon_sinks: Vec::new() },
    );
    assert_eq!(begun.exit, None);
    let mut taker = restoring("2", "s3://bucket/root/default/pv-1");
    taker.graph = job.graph.clone();
    let mut second = begun.clone_store_for(taker);
    second.register(1);
    assert_eq!(second.status().restored_from.as_ref().unwrap().path, chk(1), "{:?}", second.exit);
    assert_eq!(second.last_commit(), [2]);

    let mut without = restoring("3", "s3://bucket/root/default/pv-1");
    without.graph.vertices[1].operators[0].uid = "count".into();
    let refused = begun.clone_store_for(without);
    assert_eq!(refused.exit.as_ref().unwrap().reason, "SinkMissing");
    assert_eq!(refused.ledger_of("1").len(), begun.ledger_of("1").len(), "the other job is as it was");
}

/// The job that is taken over began with a savepoint of a third one, which runs.
#[test]
fn g5_a_taker_aborts_nothing_of_the_job_whose_snapshot_the_other_began_with() {
    let mut first = Bench::running(job(1));
    let directory = Some("s3://other/sp".to_owned());
    let (kind, timeout) = (SavepointKind::Savepoint, TimeSpan::from_secs(30));
    first.command(Command::Savepoint(SavepointRequest { id: "a".into(), kind, directory, timeout }));
    first.acknowledge_all(1);
    let key = first.store.keys().find(|key| key.starts_with("s3://other/sp")).unwrap().clone();
    let with_sink = |uid, from| JobMasterConfig { graph: job(1).graph, ..restoring(uid, from) };
    let second = first.clone_store_for(with_sink("2", key.strip_suffix("/_metadata").unwrap()));
    assert_eq!(second.exit, None);
    let mut third = second.clone_store_for(with_sink("3", "s3://bucket/root/default/pv-2"));
    third.register(1);
    assert_eq!(third.state(), JobState::Running, "{:?}", third.exit);
    assert!(third.aborts.iter().all(|abort| abort.job.uid != "1"), "{:?}", third.aborts);
}

#[test]
fn k3_a_commit_without_an_answer_is_told_of() {
    let mut bench = Bench::running(job(1));
    let is_told = |bench: &Bench| bench.status().notices.iter().any(|notice| notice.reason == "CommitUnanswered");
    bench.holds_commits = true;
    checkpoint(&mut bench, 1);
    bench.pass(59_000);
    assert!(!is_told(&bench));
    bench.pass(1_000);
    assert!(is_told(&bench));
    bench.answer_commits();
    assert!(!is_told(&bench));
}

#[test]
fn s4_what_may_be_gone_before_its_commit_is_not_completed_and_the_tasks_begin_again_before_it() {
    let mut bench = Bench::running(job(1));
    checkpoint(&mut bench, 1);
    bench.expires_at = bench.in_seconds(14);
    checkpoint(&mut bench, 2);
    assert_eq!(kinds(&bench), ["Started", "Checkpoint", "Restarted"]);
    assert_eq!(bench.last_commit(), [1]);
    bench.expires_at = bench.in_seconds(16);
    bench.pass(1_000);
    checkpoint(&mut bench, 3);
    assert_eq!(kinds(&bench).last().map(String::as_str), Some("Checkpoint"));
    assert_eq!(bench.last_commit(), [3]);
}

#[test]
fn s4_an_entry_without_an_answer_is_given_up_before_its_handles_expire() {
    let mut bench = Bench::running(job(1));
    bench.expires_at = bench.in_seconds(20);
    bench.store.loses_ledger_replies = true;
    bench.store.drops_ledger_puts = true;
    checkpoint(&mut bench, 1);
    bench.pass(6_000);
    bench.store.loses_ledger_replies = false;
    bench.store.drops_ledger_puts = false;
    bench.pass(6_000);
    assert_eq!(kinds(&bench), ["Started", "CheckpointFailed"]);
    assert_eq!(bench.commits.len(), 0);
}

#[test]
fn s4_what_is_complete_and_not_committed_holds_up_no_later_checkpoint() {
    let mut bench = Bench::running(job(1));
    bench.outcome = CommitOutcome::Retry("the brokers do not answer".to_owned());
    bench.expires_at = bench.in_seconds(30);
    checkpoint(&mut bench, 1);
    bench.pass(40_000);
    bench.expires_at = None;
    checkpoint(&mut bench, 2);
    assert_eq!(bench.handles_of(1, 2), [1, 2]);
    assert_eq!(kinds(&bench), ["Started", "Checkpoint", "Checkpoint"]);
}

#[test]
fn s6_what_is_lost_is_given_up_where_the_table_says_so_and_counted() {
    let mut bench = Bench::running(job(2));
    bench.outcome = CommitOutcome::GivenUp("it was aborted".to_owned());
    checkpoint(&mut bench, 1);
    assert_eq!(bench.state(), JobState::Running);
    let notice = bench.status().notices.iter().find(|notice| notice.reason == "CommitGivenUp").unwrap();
    assert!(notice.message.starts_with("2 staged transactions are lost"), "{}", notice.message);
    bench.outcome = CommitOutcome::Settled;
    checkpoint(&mut bench, 2);
    assert_eq!((bench.handles_of(1, 2), committed_through(&bench)), (vec![2, 2], CheckpointId(1)));
}

#[test]
fn s2_each_writer_is_told_which_of_its_handles_a_checkpoint_holds() {
    let held = |bench: &Bench, index: u32, with: &[u64]| {
        let subtask = SubtaskId { vertex: VertexId(1), index: SubtaskIndex(index) };
        let own = Held { subtask, checkpoints: with.iter().copied().map(CheckpointId).collect() };
        bench.sent_to_all(|message| match message {
            ToTaskManager::CheckpointCompleted { held: Some(held), .. } => held.contains(&own),
            _ => false,
        })
    };
    let mut bench = Bench::running(job(2));
    checkpoint(&mut bench, 1);
    assert!(held(&bench, 0, &[1]) && held(&bench, 1, &[1]));
    bench.outcome = CommitOutcome::Retry("no".to_owned());
    checkpoint(&mut bench, 2);
    assert!(held(&bench, 0, &[2]) && held(&bench, 1, &[2]), "the first is settled");
    checkpoint(&mut bench, 3);
    assert!(held(&bench, 0, &[2, 3]) && held(&bench, 1, &[2, 3]));
}
