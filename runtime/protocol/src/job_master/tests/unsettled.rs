//! Output that cannot be committed: an end that does not wait for ever (L6), and a start that gives it up by name (S5).

use super::bench::{Bench, with_sink};
use super::{kinds, restoring};
use crate::commit::{CommitOutcome, UnsettledOutput};
use crate::failure::ExitKind;
use crate::graph::{OperatorInfo, OperatorKind};
use crate::ids::{CheckpointId, Generation};
use crate::job_master::{
    CloseEnd, Command, Directive, JobMasterConfig, SNAPSHOT_UNSETTLED, SavepointRequest, StartFrom,
};
use crate::ledger::{Entry, EntryKind, SavepointKind};
use crate::options::Retention;
use crate::status::JobState;
use crate::time::TimeSpan;

const OWN: &str = "s3://bucket/root/default/pv-1";

fn job() -> JobMasterConfig {
    let mut config = with_sink(1);
    let checkpointing = config.options.checkpointing.as_mut().unwrap();
    checkpointing.interval = TimeSpan::from_secs(1000);
    checkpointing.retention = Retention::DeleteOnCancellation;
    config
}

/// The same job, whose program no longer has the sink.
fn without_sink() -> JobMasterConfig {
    let mut config = job();
    config.graph.vertices[1].operators.truncate(1);
    config
}

/// The brokers are gone with what checkpoint 1 holds.
fn cut_off() -> Bench {
    let mut bench = Bench::running(job());
    bench.outcome = CommitOutcome::Retry("no broker answers".to_owned());
    bench.fails_aborts = true;
    bench.expires_at = bench.in_seconds(900);
    bench.command(Command::TriggerCheckpoint { id: "t".into() });
    bench.acknowledge_all(1);
    bench
}

fn next(bench: &Bench, job: JobMasterConfig, generation: u64, start: StartFrom) -> Bench {
    let seen = bench.ledger().last().unwrap().number;
    let id = if start == StartFrom::Continue { job.directive.id.clone() } else { format!("d{generation}") };
    let directive = Directive { id, seen, start };
    let mut bench = bench.clone_store_for(JobMasterConfig { generation: Generation(generation), directive, ..job });
    bench.outcome = CommitOutcome::Retry("no broker answers".to_owned());
    bench.fails_aborts = true;
    bench
}

/// One that has been told nothing yet, whose brokers are gone too.
fn starting(dead: &Bench, job: JobMasterConfig, generation: u64, id: &str, start: StartFrom) -> Bench {
    let directive = Directive { id: id.to_owned(), seen: last(dead).number, start };
    let mut bench = Bench::paused(JobMasterConfig { generation: Generation(generation), directive, ..job });
    bench.store = dead.store.clone();
    bench.outcome = CommitOutcome::Retry("no broker answers".to_owned());
    bench.fails_aborts = true;
    bench.tick();
    bench
}

fn savepoint(kind: SavepointKind) -> Command {
    let directory = Some("s3://other/sp".to_owned());
    Command::Savepoint(SavepointRequest { id: "a".into(), kind, directory, timeout: TimeSpan::from_secs(30) })
}

fn last(bench: &Bench) -> Entry {
    bench.ledger().pop().unwrap()
}

fn abandoning(from: &str) -> StartFrom {
    StartFrom::Path { from: from.to_owned(), allow_non_restored_state: false, abandon_sinks: vec!["out".into()] }
}

fn is_abandoned(bench: &Bench) -> bool {
    bench.status().notices.iter().any(|notice| notice.reason == "OutputAbandoned")
}

fn assert_left(bench: &Bench, kind: &str) {
    let entry = last(bench);
    assert_eq!(kinds(bench).last().map(String::as_str), Some(kind));
    let [UnsettledOutput { sink, transactions: 1, until: Some(_), more_sinks: 0 }] = &entry.unsettled[..] else {
        panic!("{:?}", entry.unsettled)
    };
    assert_eq!(sink.as_str(), "out");
    let exit = bench.exit.as_ref().unwrap();
    assert_eq!((&exit.unsettled, &bench.status().unsettled), (&entry.unsettled, &entry.unsettled));
    assert!(exit.message.contains("1 staged transactions of sink 'out' (kept by its target for 1"), "{}", exit.message);
    assert_eq!(bench.handles_of(1, 1), [1], "a later start finds it");
}

#[test]
fn l6_an_end_goes_on_after_its_deadline_and_says_what_it_leaves_uncommitted() {
    let mut bench = cut_off();
    bench.command(Command::Cancel);
    bench.pass(29_000);
    assert_eq!((bench.exit.clone(), bench.state()), (None, JobState::Stopping));
    assert!(bench.status().message.starts_with("waiting for 1 staged transactions of sink 'out'"));
    bench.pass(2_000);
    assert_left(&bench, "Cancelled");
    assert_eq!(last(&bench).fold.committed_through, CheckpointId(0));
}

/// All is committed, and what is open behind the last checkpoint cannot be aborted: readers wait for it without knowing why.
#[test]
fn l6_an_end_whose_last_abort_fails_says_so() {
    for (end, kind, has_checkpoint) in [(Command::Cancel, "Cancelled", false), (Command::Stop, "Stopped", true)] {
        let mut bench = Bench::running(job());
        bench.fails_aborts = true;
        bench.command(end);
        if has_checkpoint {
            bench.acknowledge_all(1);
        }
        assert_eq!(bench.exit, None, "it is tried again");
        bench.pass(30_000);
        assert_eq!(kinds(&bench).last().map(String::as_str), Some(kind));
        let exit = bench.exit.clone().unwrap();
        let why = Some("no broker answers".to_owned());
        assert_eq!((&last(&bench).left_open, &exit.left_open, exit.unsettled.len()), (&why, &why, 0));
        assert!(
            exit.message.contains("could not be aborted (no broker answers): until their target"),
            "{}",
            exit.message
        );
    }
    let mut bench = Bench::running(job());
    bench.command(Command::Cancel);
    assert_eq!((last(&bench).left_open, bench.exit.unwrap().left_open), (None, None));
}

/// Of a closer, whose commit has no answer at all.
#[test]
fn l6_a_closer_goes_on_after_its_deadline_too() {
    for (end, kind) in
        [(CloseEnd::Cancelled, "Cancelled"), (CloseEnd::Stopped, "Stopped"), (CloseEnd::Failed, "Failed")]
    {
        let dead = cut_off();
        let seen = last(&dead).number;
        let directive = Directive { id: job().directive.id, seen, start: StartFrom::Close { end } };
        let mut closer = Bench::paused(JobMasterConfig { generation: Generation(2), directive, ..job() });
        closer.store = dead.store.clone();
        (closer.holds_commits, closer.fails_aborts) = (true, true);
        closer.tick();
        assert_eq!(closer.exit, None);
        closer.pass(31_000);
        assert_left(&closer, kind);
        assert_eq!(closer.aborts.last().unwrap().spared.len(), 1, "what is uncommitted is aborted by no end");
        let start = StartFrom::Close { end: CloseEnd::Cancelled };
        let second = starting(&closer, job(), 3, &job().directive.id, start).exit.unwrap();
        let left = (last(&closer).unsettled, last(&closer).left_open);
        assert_eq!((second.unsettled, second.left_open), left, "a second one says so too");
        assert!(left.1.is_some() && second.message.contains("could not be aborted"), "{}", second.message);
    }
}

#[test]
fn l6_what_an_end_left_is_committed_by_the_next_start() {
    let mut bench = cut_off();
    bench.command(Command::Stop);
    bench.pass(700_000);
    assert_left(&bench, "Stopped");
    let directive = Directive { id: "2".into(), seen: last(&bench).number, start: StartFrom::ResumeLatest };
    let mut after = bench.clone_store_for(JobMasterConfig { generation: Generation(2), directive, ..job() });
    assert_eq!(after.last_commit(), [1]);
    assert_eq!(after.status().unsettled, []);
    after.register(1);
    after.command(Command::TriggerCheckpoint { id: "t".into() });
    after.acknowledge_all(after.last_barrier().checkpoint.0);
    let folded = last(&after).folded();
    assert_eq!((folded.unsettled, folded.committed_through), (vec![], CheckpointId(1)));
}

/// Nobody wants it to end without its results, until somebody says so.
#[test]
fn l6_the_end_of_all_input_waits_for_its_commits_until_an_end_is_asked_for() {
    let savepoints = [SavepointKind::Stop, SavepointKind::Drain].map(savepoint);
    for asked in [Command::Cancel, Command::Stop].into_iter().chain(savepoints) {
        let mut bench = cut_off();
        bench.finish_all();
        bench.acknowledge_all(2);
        bench.pass(300_000);
        assert_eq!((bench.exit.clone(), bench.state()), (None, JobState::Finishing));
        bench.command(asked);
        bench.pass(31_000);
        assert_eq!(kinds(&bench).last().map(String::as_str), Some("Finished"));
        assert_eq!(last(&bench).unsettled[0].transactions, 2);
        assert_eq!(bench.handles_of(1, 2), [1, 2]);
        let message = &bench.exit.as_ref().unwrap().message;
        assert!(message.starts_with("all input was read; it left uncommitted"), "{message}");
    }
}

#[test]
fn l6_an_end_that_is_asked_for_while_all_input_ends_has_its_deadline_too() {
    for (kind, has_ended) in [(SavepointKind::Stop, true), (SavepointKind::Savepoint, false)] {
        let mut bench = cut_off();
        bench.finish_all();
        bench.command(savepoint(kind));
        bench.acknowledge_all(2);
        bench.pass(31_000);
        assert_eq!(bench.exit.is_some(), has_ended, "{kind:?}: {:?} {:?}", kinds(&bench), bench.status());
    }
}

/// Its handle is lost, which is told, when the entry is on its way: that says how the job ended.
#[test]
fn l6_an_answer_that_comes_after_the_terminal_entry_does_not_change_the_end() {
    let mut bench = cut_off();
    bench.holds_commits = true;
    bench.outcome = CommitOutcome::Lost("it was aborted".to_owned());
    bench.pass(30_000);
    bench.command(Command::Cancel);
    bench.pass(29_000);
    (bench.store.loses_ledger_replies, bench.store.drops_ledger_puts) = (true, true);
    bench.pass(12_000);
    assert_eq!(bench.exit.clone(), None);
    bench.answer_commits();
    (bench.store.loses_ledger_replies, bench.store.drops_ledger_puts) = (false, false);
    bench.pass(60_000);
    let exit = bench.exit.clone().unwrap();
    assert_eq!((exit.kind, bench.state()), (ExitKind::Stopped, JobState::Cancelled), "{}", exit.message);
    assert_eq!(bench.status().lost_commits, 1);
    assert!(bench.status().notices.iter().any(|notice| notice.reason == "CommitLost"));
}

/// The end of all input, which nobody asked for, had its checkpoint when its JobManager died.
#[test]
fn l6_who_concludes_an_end_before_another_start_has_its_deadline() {
    let mut dead = cut_off();
    dead.finish_all();
    dead.acknowledge_all(2);
    let mut elsewhere = job();
    elsewhere.graph.vertices[1].operators[1].uid = "elsewhere".into();
    for job in [job(), elsewhere] {
        let mut next = starting(&dead, job, 2, "d2", StartFrom::ResumeLatest);
        assert_eq!(next.exit, None, "it waits for the commits");
        next.pass(41_000);
        let exit = next.exit.clone().unwrap();
        assert_eq!((exit.kind, exit.reason.as_str()), (ExitKind::StateMoved, "StateMoved"), "{}", exit.message);
        assert_eq!(kinds(&next).last().map(String::as_str), Some("Finished"));
        assert_eq!((last(&next).unsettled[0].transactions, exit.unsettled), (2, last(&next).unsettled));
    }
    let mut next = starting(&dead, job(), 2, "d2", abandoning(OWN));
    next.pass(20_000);
    assert_eq!((next.exit.clone().unwrap().reason.as_str(), next.commits.len()), ("StateMoved", 0));
    assert!(is_abandoned(&next), "what its start gives up is not waited for");
}

/// The description of the last checkpoint is damaged: what is staged is not known, and so nothing is aborted.
#[test]
fn l6_an_end_goes_on_where_its_handles_cannot_be_read_and_says_so() {
    let mut dead = cut_off();
    let key = "default/pv-1/1/chk-1/_metadata";
    let whole = dead.store.get(key);
    dead.store.put(key, &whole[..whole.len() / 2]);
    let mut many = job();
    let sink = |number| OperatorInfo {
        uid: format!("sink-{number}").as_str().into(),
        kind: OperatorKind::TransactionalSink,
        description: String::new(),
    };
    many.graph.vertices[1].operators.extend((0..9).map(sink));
    let start = StartFrom::Close { end: CloseEnd::Cancelled };
    let mut closer = starting(&dead, many, 2, &job().directive.id, start);
    closer.pass(29_000);
    assert_eq!(closer.exit, None);
    assert!(closer.status().message.contains("is damaged"), "{:?}", closer.status());
    closer.pass(3_000);
    let exit = closer.exit.clone().unwrap();
    assert_eq!((exit.reason.as_str(), exit.unsettled.len(), exit.unsettled[7].more_sinks), ("Cancelled", 8, 2));
    let said = ["an unknown number of staged transactions of sink 'out'", "and those of 2 more sinks"];
    assert!(said.iter().all(|said| exit.message.contains(said)), "{}", exit.message);
    assert!(closer.aborts.is_empty() && closer.holds_below("default/pv-1/1/chk-1/"));
}

/// Stopped with a savepoint while the brokers are away.
fn stopped_with_savepoint() -> Bench {
    let mut bench = cut_off();
    bench.command(savepoint(SavepointKind::Stop));
    bench.acknowledge_all(2);
    bench.pass(31_000);
    assert_eq!((last(&bench).unsettled[0].transactions, bench.exit.is_some()), (2, true));
    bench
}

/// C3, G5: a savepoint would leave it behind; the job's directory brings the ledger that has it.
#[test]
fn l6_what_a_stop_left_goes_along_to_another_storage_and_is_committed_before_the_old_ledger_ends() {
    let dead = stopped_with_savepoint();
    let mut moved = job();
    moved.storage_uri = Some("s3://bucket/new".into());
    let start = StartFrom::Path { from: OWN.to_owned(), allow_non_restored_state: false, abandon_sinks: Vec::new() };
    let directive = Directive { id: "d2".into(), seen: 0, start };
    let mut next = Bench::paused(JobMasterConfig { generation: Generation(2), revision: 2, directive, ..moved });
    next.store = dead.store;
    next.store.rebase("s3://bucket/root/");
    next.outcome = CommitOutcome::Retry("no broker answers".to_owned());
    next.tick();
    next.pass(120_000);
    next.register(1);
    assert_eq!((next.exit.clone(), next.state() == JobState::Running), (None, false), "however long it takes");
    assert_eq!(next.last_commit(), [1, 2]);
    next.outcome = CommitOutcome::Settled;
    next.pass(60_000);
    assert_eq!(next.state(), JobState::Running, "{:?}", next.exit);
    assert_eq!(next.status().restored_from.as_ref().unwrap().id, CheckpointId(2));
    let ledger = |key: &&String| key.starts_with(&format!("{OWN}/ledger"));
    let end = next.store.keys().filter(ledger).max().cloned().unwrap();
    let end = Entry::from_bytes(next.text_of(&end).as_bytes(), &end).unwrap();
    assert!(matches!(end.kind, EntryKind::MovedTo { .. }), "{end:?}");
    next.command(Command::TriggerCheckpoint { id: "t".into() });
    next.acknowledge_all(3);
    assert_eq!(next.handles_of(2, 3), [3], "and is not carried on");
}

fn unsettled_notice(bench: &Bench) -> Option<String> {
    let mut notices = bench.status().notices.iter();
    notices.find(|notice| notice.reason == SNAPSHOT_UNSETTLED).map(|notice| notice.message.clone())
}

/// K4: it holds no handles, and its job may never come to commit them.
#[test]
fn l6_a_start_from_a_snapshot_whose_job_left_output_uncommitted_says_so() {
    let dead = stopped_with_savepoint();
    for from in ["s3://other/sp/default/pv-1/1-2".to_owned(), format!("{OWN}/1/chk-2")] {
        let mut other = dead.clone_store_for(restoring("2", &from));
        other.register(1);
        assert_eq!(other.state(), JobState::Running, "{:?}", other.exit);
        let told = unsettled_notice(&other).expect("it says so");
        assert!(told.contains("2 staged transactions of sink 'out'") && told.contains(OWN), "{told}");
    }
    let savepoint = "s3://other/sp/default/pv-1/1-2";
    // Once its job has committed it, or where nothing can be known, there is nothing to say.
    let settled = next(&dead, job(), 2, StartFrom::ResumeLatest);
    let mut settled = settled;
    settled.outcome = CommitOutcome::Settled;
    settled.pass(60_000);
    let mut gone = stopped_with_savepoint();
    let ledger: Vec<_> = gone.store.keys().filter(|key| key.contains("/ledger/")).cloned().collect();
    ledger.iter().for_each(|key| gone.store.remove(key));
    for store in [&settled, &gone] {
        let mut other = store.clone_store_for(restoring("2", savepoint));
        other.register(1);
        assert_eq!((other.state(), unsettled_notice(&other)), (JobState::Running, None), "{:?}", other.exit);
    }
}

/// Its directory brings what it left along, also where it has ended for good.
#[test]
fn s5_who_is_pointed_at_a_job_that_was_cancelled_commits_what_its_end_left() {
    let mut dead = cut_off();
    dead.command(Command::Cancel);
    dead.pass(31_000);
    let mut other = restoring("2", OWN);
    other.graph = job().graph;
    let other = dead.clone_store_for(other);
    assert_eq!(other.last_commit(), [1]);
    let mut in_memory = restoring("2", OWN);
    in_memory.storage_uri = None;
    let mut refused = Bench::paused(in_memory);
    refused.store = dead.store.clone();
    refused.store.rebase("s3://bucket/root/");
    refused.tick();
    assert_eq!(refused.exit.unwrap().reason, "OutputUnsettled");
}

#[test]
fn s5_a_start_goes_on_without_the_output_of_a_sink_that_it_gives_up_by_name() {
    for from in [OWN.to_owned(), format!("{OWN}/1/chk-1")] {
        let dead = cut_off();
        let start = StartFrom::Path { from: from.clone(), allow_non_restored_state: false, abandon_sinks: vec![] };
        let refused = next(&dead, without_sink(), 2, start);
        let exit = refused.exit.as_ref().unwrap();
        assert_eq!(exit.reason, "SinkMissing");
        assert!(exit.message.contains("restore.abandonSinks"), "{}", exit.message);

        for job in [job(), without_sink()] {
            let mut after = next(&dead, job, 2, abandoning(&from));
            after.register(1);
            assert_eq!(after.state(), JobState::Running, "{:?}", after.exit);
            assert!(is_abandoned(&after));
            after.pass(60_000);
            assert!(after.commits.is_empty(), "it is never sent");
            after.command(Command::TriggerCheckpoint { id: "t".into() });
            after.acknowledge_all(2);
            assert!(!after.handles_of(2, 2).contains(&1), "and not carried on");
        }
    }
}

#[test]
fn s5_a_start_that_is_repeated_before_its_first_checkpoint_gives_up_the_same_and_later_ones_nothing() {
    let dead = cut_off();
    let first = next(&dead, without_sink(), 2, abandoning(OWN));
    assert_eq!(first.exit, None);
    let mut again = without_sink();
    again.directive.id = "d2".into();
    let mut again = next(&first, again, 3, StartFrom::Continue);
    again.register(1);
    assert_eq!(again.state(), JobState::Running, "{:?}", again.exit);
    assert!(is_abandoned(&again));

    let mut with = job();
    with.directive.id = "d2".into();
    let mut with = next(&first, with, 3, StartFrom::Continue);
    with.register(1);
    with.command(Command::TriggerCheckpoint { id: "t".into() });
    with.acknowledge_all(2);
    let mut later = job();
    later.directive.id = "d2".into();
    let later = next(&with, later, 4, StartFrom::Continue);
    assert_eq!((later.last_commit(), is_abandoned(&later)), (vec![2], false));
}

#[test]
fn s5_a_copy_without_its_ledger_and_a_job_that_is_taken_over_are_given_up_likewise() {
    let mut dead = cut_off();
    dead.store.copy("default/pv-1/1/chk-1/_metadata", "copies/chk-1/_metadata");
    for from in ["s3://bucket/root/copies/chk-1", OWN] {
        let mut config = restoring("2", from);
        config.graph = without_sink().graph;
        let refused = dead.clone_store_for(config.clone()).exit.unwrap();
        assert_eq!(refused.kind, ExitKind::UserError, "{}", refused.reason);
        config.directive.start = abandoning(from);
        let mut after = dead.clone_store_for(config);
        after.register(1);
        assert_eq!(after.state(), JobState::Running, "{:?}", after.exit);
        assert!(is_abandoned(&after) && after.commits.is_empty());
    }
}

#[test]
fn s6_lost_commits_are_counted() {
    let mut bench = Bench::running(job());
    bench.outcome = CommitOutcome::GivenUp("it was aborted".to_owned());
    bench.command(Command::TriggerCheckpoint { id: "t".into() });
    bench.acknowledge_all(1);
    assert_eq!(bench.status().lost_commits, 1);
    bench.outcome = CommitOutcome::Lost("it was aborted".to_owned());
    bench.command(Command::TriggerCheckpoint { id: "u".into() });
    bench.acknowledge_all(2);
    assert_eq!((bench.status().lost_commits, bench.state()), (2, JobState::Failed));
}
