//! The ledger's rules one by one, against hand-written replies of a store.
use super::append::{AppendStep, Appender, backoff};
use super::decide::{StartDecision, Starter, decide_start};
use super::entry::{self, FOLD_LIMIT};
use super::read::{LedgerReader, ReadStep};
use super::*;
use crate::RandomSource;
use crate::failure::Failure;
use crate::ids::{AppendId, Attempt, CheckpointId, Generation, ProcessId};
use crate::job_master::{CloseEnd, Directive, Planted, StartFrom};
use crate::paths::JobPaths;
use crate::store::{StoreFailure, StoreFailureKind, StoreOperation, StoreReply};
use crate::time::{TimeSpan, Timestamp};

fn paths() -> JobPaths {
    JobPaths::of_directory("default/pv-1")
}

fn random() -> impl RandomSource {
    let mut state = 0_u64;
    move || {
        state += 1;
        state
    }
}

fn entry(number: u64, generation: u64, kind: EntryKind) -> Entry {
    Entry {
        version: entry::VERSION,
        number,
        append_id: AppendId(format!("append-{generation}-{number}")),
        process: ProcessId(format!("process-{generation}")),
        generation: Generation(generation),
        attempt: Attempt(1),
        revision: 1,
        directive: "1".to_owned(),
        time: Timestamp(5),
        kind,
        unsettled: Vec::new(),
        left_open: None,
        fold: Fold::default(),
    }
}

fn started(restored_from: Option<SnapshotReference>) -> EntryKind {
    EntryKind::Started { cause: StartCause::Start, restored_from, probed: None, taker: None }
}

fn checkpoint(generation: u64, id: u64, ends: Ends, drops: Vec<CheckpointKey>) -> EntryKind {
    let checkpoint = RetainedCheckpoint {
        key: CheckpointKey { generation: Generation(generation), id: CheckpointId(id) },
        triggered_at: Timestamp(1),
        completed_at: Timestamp(2),
        bytes: 3,
    };
    EntryKind::Checkpoint { checkpoint, savepoint: None, ends, drops, record: None }
}

fn snapshot(directory: &str) -> SnapshotReference {
    SnapshotReference {
        directory: directory.to_owned(),
        checkpoint: CheckpointId(1),
        allow_non_restored_state: false,
        is_foreign: false,
        abandon_sinks: Vec::new(),
    }
}

fn no_answer() -> StoreReply {
    StoreReply::Failed(StoreFailure { kind: StoreFailureKind::Unreachable, message: "timeout".to_owned() })
}

fn object(entry: &Entry) -> StoreReply {
    StoreReply::Object(entry.to_bytes().unwrap())
}

/// Folds entries on top of each other as their writers do.
fn chain(kinds: Vec<(u64, EntryKind)>) -> Entry {
    let mut last: Option<Entry> = None;
    for (number, (generation, kind)) in (1..).zip(kinds) {
        let fold = last.as_ref().map(Entry::folded).unwrap_or_default();
        last = Some(Entry { fold, ..entry(number, generation, kind) });
    }
    last.unwrap()
}

// --- The format ------------------------------------------------------------------------------------------------

#[test]
fn an_entry_reads_what_it_writes() {
    let written = chain(vec![(1, started(Some(snapshot("a")))), (1, checkpoint(1, 1, Ends::Stop, vec![]))]);
    assert_eq!(Entry::from_bytes(&written.to_bytes().unwrap(), "x"), Ok(written));
}

#[test]
fn unknown_kinds_and_newer_versions_are_refused_by_name() {
    let text = String::from_utf8(entry(1, 1, EntryKind::Stopped).to_bytes().unwrap()).unwrap();
    let unknown = text.replace("\"Stopped\"", "\"Rebalanced\"");
    assert_eq!(
        Entry::from_bytes(unknown.as_bytes(), "ledger/1"),
        Err(LedgerError::UnknownKind { place: "ledger/1".into(), found: "Rebalanced".into() })
    );
    let newer = text.replacen("\"version\":1", "\"version\":2", 1);
    assert_eq!(
        Entry::from_bytes(newer.as_bytes(), "ledger/1"),
        Err(LedgerError::NewerVersion { place: "ledger/1".into(), found: 2 })
    );
    assert_eq!(
        EntryHeader::from_bytes(unknown.as_bytes(), "x").unwrap().generation,
        Generation(1),
        "whose it is shows"
    );
    assert!(matches!(Entry::from_bytes(b"{}", "x"), Err(LedgerError::Unreadable { .. })));
}

#[test]
fn a_fold_above_its_limit_is_refused() {
    let mut large = entry(7, 1, EntryKind::Stopped);
    large.fold.directive = "x".repeat(FOLD_LIMIT);
    assert!(matches!(large.to_bytes(), Err(LedgerError::FoldTooLarge { number: 7, .. })));
}

// --- The fold --------------------------------------------------------------------------------------------------

#[test]
fn the_fold_keeps_what_is_retained_and_first_entries() {
    let key = CheckpointKey { generation: Generation(1), id: CheckpointId(1) };
    let fold = chain(vec![
        (1, started(None)),
        (1, checkpoint(1, 1, Ends::None, vec![])),
        (2, started(Some(snapshot("default/pv-1/1/chk-1")))),
        (2, checkpoint(2, 2, Ends::None, vec![key])),
        (2, EntryKind::CheckpointFailed { id: CheckpointId(3), failure: Failure::external("X", "x"), record: None }),
    ])
    .folded();
    assert_eq!(fold.first_entries, [1, 3]);
    assert_eq!(fold.retained.iter().map(|one| one.key.id.0).collect::<Vec<_>>(), [2]);
    assert_eq!((fold.last_checkpoint, fold.state), (CheckpointId(3), LedgerState::Running));
    assert_eq!(fold.restore_point, RestorePoint::Latest);
}

#[test]
fn a_start_is_repeated_until_its_first_checkpoint() {
    let retained = checkpoint(1, 1, Ends::None, vec![]);
    let empty = chain(vec![(1, started(None)), (1, retained.clone()), (2, started(None))]).folded();
    assert_eq!(empty.restore_point, RestorePoint::Empty, "what is retained is not restored after an empty start");
    let placed = chain(vec![(1, started(None)), (1, retained), (2, started(Some(snapshot("s3://b/x"))))]).folded();
    assert_eq!(placed.restore_point, RestorePoint::Snapshot(snapshot("s3://b/x")));
}

#[test]
fn only_a_closing_start_keeps_an_end_that_was_reached() {
    let ended = vec![(1, started(None)), (1, checkpoint(1, 1, Ends::Finish, vec![]))];
    let close = EntryKind::Started { cause: StartCause::Close, restored_from: None, probed: None, taker: None };
    assert_eq!(chain([ended.clone(), vec![(2, close)]].concat()).folded().ending, Ends::Finish);
    assert_eq!(chain([ended, vec![(2, started(None))]].concat()).folded().ending, Ends::None);
}

/// A stop that was given up for a start without an end would stop what was started.
#[test]
fn a_new_directive_gives_up_the_ends_that_were_asked_of_the_one_before() {
    let request = |id: &str, kind| EntryKind::SavepointRequested {
        id: id.into(),
        kind,
        directory: "s3://b/savepoints".into(),
        deadline: Timestamp(9),
    };
    let asked = chain(vec![
        (1, started(None)),
        (1, request("a", SavepointKind::Drain)),
        (1, request("b", SavepointKind::Savepoint)),
        (2, started(None)),
    ]);
    assert_eq!(asked.folded().open_request().map(|open| open.id.as_str()), Some("a"), "it is the same directive");
    let anew = Entry { directive: "2".into(), ..entry(5, 3, started(None)) };
    let fold = Entry { fold: asked.folded(), ..anew }.folded();
    assert_eq!(fold.open_request().map(|open| open.id.as_str()), Some("b"), "nothing ends with that one");
    let Some(RequestResult::Failed(failure)) = &fold.requests[0].result else { panic!("{:?}", fold.requests) };
    assert_eq!(failure.reason, "StartedAnew");
}

/// Found by reading: after a move to another storage the sweep took the savepoints of the time before for unfinished ones.
#[test]
fn a_ledger_that_begins_late_spares_the_savepoints_of_generations_before_it() {
    let before = |generation, id| CheckpointKey { generation: Generation(generation), id: CheckpointId(id) };
    let late = chain(vec![(4, started(None))]).folded();
    let spared = late.forgotten_savepoints.expect("earlier ones may live");
    assert!(before(3, 900) <= spared && before(4, 0) > spared, "{spared:?}");
    assert_eq!(chain(vec![(1, started(None)), (4, started(None))]).folded().forgotten_savepoints, None);
}

#[test]
fn results_of_the_last_requests_are_kept() {
    let request = |id: u64| EntryKind::SavepointRequested {
        id: id.to_string(),
        kind: SavepointKind::Savepoint,
        directory: "s3://b/savepoints".into(),
        deadline: Timestamp(9),
    };
    let mut kinds: Vec<_> = (0..60).map(|id| (1, request(id))).collect();
    kinds.push((1, EntryKind::Savepoint { id: "59".into(), path: "s3://b/sp".into() }));
    let fold = chain(kinds).folded();
    assert_eq!(fold.requests.len(), 50);
    assert_eq!(fold.requests[49].result, Some(fold::RequestResult::Path("s3://b/sp".into())));
}

// --- Appending: L2 ---------------------------------------------------------------------------------------------

fn appending(kind: EntryKind) -> (Appender, Entry) {
    let mut appender = Appender::new(paths(), Planted::default());
    let entry = entry(5, 1, kind);
    let operation = appender.begin(entry.clone(), None).unwrap();
    assert!(matches!(operation, StoreOperation::PutIfAbsent { key, .. } if key.ends_with("ledger/0000000005.json")));
    (appender, entry)
}

/// The reply is lost; the number is read after a pause.
fn lose_reply(appender: &mut Appender, now: u64) -> u64 {
    assert_eq!(appender.on_reply(no_answer(), Timestamp(now), &mut random()), AppendStep::Wait);
    let at = appender.next_wakeup().unwrap();
    assert!(matches!(appender.on_wakeup(at), Some(StoreOperation::Get { .. })));
    at.0
}

#[test]
fn a_clear_success_stands() {
    let (mut appender, entry) = appending(EntryKind::Stopped);
    let step = appender.on_reply(StoreReply::Put, Timestamp(1), &mut random());
    assert_eq!(step, AppendStep::Appended(Box::new(entry)));
    assert!(!appender.is_busy());
}

#[test]
fn an_unclear_put_that_took_effect_stands() {
    let (mut appender, entry) = appending(EntryKind::Stopped);
    let now = lose_reply(&mut appender, 1);
    let step = appender.on_reply(object(&entry), Timestamp(now), &mut random());
    assert_eq!(step, AppendStep::Appended(Box::new(entry)));
}

#[test]
fn a_412_for_the_own_entry_is_success() {
    let (mut appender, entry) = appending(EntryKind::Stopped);
    let step = appender.on_reply(StoreReply::Exists, Timestamp(1), &mut random());
    assert!(matches!(step, AppendStep::Store(StoreOperation::Get { .. })), "exists says nothing of whose it is");
    let step = appender.on_reply(object(&entry), Timestamp(1), &mut random());
    assert_eq!(step, AppendStep::Appended(Box::new(entry)));
}

#[test]
fn an_absent_entry_is_put_again_with_the_same_bytes() {
    let (mut appender, entry) = appending(EntryKind::Stopped);
    let now = lose_reply(&mut appender, 1);
    let AppendStep::Store(StoreOperation::PutIfAbsent { bytes, .. }) =
        appender.on_reply(StoreReply::Absent, Timestamp(now), &mut random())
    else {
        panic!("put again");
    };
    assert_eq!(bytes, entry.to_bytes().unwrap());
}

#[test]
fn anothers_entry_is_named() {
    let (mut appender, _) = appending(EntryKind::Stopped);
    appender.on_reply(StoreReply::Exists, Timestamp(1), &mut random());
    let step = appender.on_reply(object(&entry(5, 2, started(None))), Timestamp(1), &mut random());
    assert!(matches!(step, AppendStep::Taken { header, .. } if header.generation == Generation(2)));
}

#[test]
fn a_checkpoint_is_given_up_only_where_nothing_stands_and_what_stands_decides() {
    let (mut appender, sent) = appending(checkpoint(1, 8, Ends::None, vec![]));
    appender.give_up_checkpoint(CheckpointId(8));
    let now = lose_reply(&mut appender, 1);
    let AppendStep::Store(StoreOperation::PutIfAbsent { bytes, .. }) =
        appender.on_reply(StoreReply::Absent, Timestamp(now), &mut random())
    else {
        panic!("CheckpointFailed is put");
    };
    let failed = Entry::from_bytes(&bytes, "x").unwrap();
    assert!(matches!(failed.kind, EntryKind::CheckpointFailed { id: CheckpointId(8), .. }));
    assert_eq!(failed.number, 5);
    // The first put was only late: it stands after all, so the checkpoint is complete.
    appender.on_reply(StoreReply::Exists, Timestamp(now), &mut random());
    let step = appender.on_reply(object(&sent), Timestamp(now), &mut random());
    assert_eq!(step, AppendStep::Appended(Box::new(sent)));
}

#[test]
fn a_checkpoint_that_took_effect_is_not_given_up() {
    let (mut appender, sent) = appending(checkpoint(1, 8, Ends::None, vec![]));
    appender.give_up_checkpoint(CheckpointId(8));
    let now = lose_reply(&mut appender, 1);
    let step = appender.on_reply(object(&sent), Timestamp(now), &mut random());
    assert_eq!(step, AppendStep::Appended(Box::new(sent)));
}

#[test]
fn pauses_grow_to_a_bound_and_are_partly_random() {
    let pause = |failures| backoff(failures, TimeSpan(100), TimeSpan(5000), &mut random());
    assert!((50..=100).contains(&pause(0).0) && (200..=400).contains(&pause(2).0));
    assert!((2500..=5000).contains(&pause(40).0));
}

// --- Reading: L3, L4 -------------------------------------------------------------------------------------------

#[test]
fn the_reader_finds_the_end_and_reads_again_what_was_trimmed_meanwhile() {
    let mut reader = LedgerReader::new(paths(), 7);
    let StoreOperation::List { start_after, .. } = reader.start() else { panic!("a LIST") };
    assert_eq!(start_after, Some(paths().ledger_entry(6)), "from m on");
    let keys = |numbers: &[u64]| StoreReply::Keys(numbers.iter().map(|number| paths().ledger_entry(*number)).collect());
    let step = reader.on_reply(keys(&[7, 8]));
    assert_eq!(step, ReadStep::Store(StoreOperation::Get { key: paths().ledger_entry(8) }));
    assert!(matches!(reader.on_reply(StoreReply::Absent), ReadStep::Store(StoreOperation::List { .. })));
    reader.on_reply(keys(&[300]));
    let last = entry(300, 2, EntryKind::Stopped);
    assert_eq!(reader.on_reply(object(&last)), ReadStep::End(Some(Box::new(last))));
}

#[test]
fn an_empty_ledger_and_a_failing_store_are_different_things() {
    let mut reader = LedgerReader::new(paths(), 0);
    assert!(matches!(reader.start(), StoreOperation::List { start_after: None, .. }));
    assert_eq!(reader.on_reply(StoreReply::Keys(vec![])), ReadStep::End(None));
    reader.start();
    assert!(matches!(reader.on_reply(no_answer()), ReadStep::Failed(_)));
}

fn largest_record(most: u64, number: u64) -> crate::history::CheckpointRecord {
    use crate::history::{CheckpointRecord, RecordKind, RecordState};
    use crate::message::{Alignment, CheckpointMetrics};
    let mut record = CheckpointRecord {
        id: CheckpointId(most + number),
        kind: RecordKind::StopWithSavepoint,
        alignment: Alignment::Unaligned { after: crate::TimeSpan(most) },
        triggered_at: Timestamp(most),
        acknowledged: u32::MAX,
        subtasks: u32::MAX,
        metrics: CheckpointMetrics {
            start_delay_ms: most,
            alignment_ms: most,
            sync_ms: most,
            async_ms: most,
            bytes: most,
            full_bytes: most,
            in_flight_bytes: most,
        },
        ..CheckpointRecord::default()
    };
    record.end(RecordState::Failed, Some(&Failure::external("X", "\"".repeat(1000))), Timestamp(most));
    record
}

/// The largest fold that a job can come to, with every number and list as long as it may get and long names: it can be
/// written, so no job fails for having taken another checkpoint.
#[test]
fn the_largest_fold_can_be_written() {
    use super::fold::{Pin, Request, RequestResult, SAVEPOINTS_LIMIT, SinkSlots};
    use crate::history::KEPT_RECORDS;
    use crate::restart::{CountedFailure, FailureCounts};
    const MOST: u64 = u64::MAX - 1000;
    let uri = |number: u64| format!("s3://{}/{MOST}-{}", "b".repeat(180), MOST + number);
    let mut failures = FailureCounts::new(MOST);
    for number in 0..100 {
        failures.record(CountedFailure::Attempt(Generation(MOST + number), Attempt(u32::MAX)), Timestamp(MOST));
        failures.record(CountedFailure::JobManager(Generation(MOST + number)), Timestamp(MOST));
    }
    let pin = |number| Pin { snapshot: uri(number), holder: "h".repeat(60) };
    let sink = || SinkSlots { uid: "s".repeat(60).into(), parallelism: u32::MAX, slots: u32::MAX };
    let kept = |number: u64| RetainedCheckpoint {
        key: CheckpointKey { generation: Generation(MOST), id: CheckpointId(MOST + number) },
        triggered_at: Timestamp(MOST),
        completed_at: Timestamp(MOST),
        bytes: MOST,
    };
    let record = |number| largest_record(MOST, number);
    let taken = |last: Entry, number: u64| {
        let savepoint = Some(TakenSavepoint { request: "none".into(), path: uri(number) });
        let kind =
            EntryKind::Checkpoint { checkpoint: kept(0), savepoint, ends: Ends::None, drops: vec![], record: None };
        Entry { fold: last.folded(), kind, ..last }
    };
    let savepoints = (0..2 * SAVEPOINTS_LIMIT as u64).fold(entry(MOST, MOST, started(None)), taken).folded().savepoints;
    let mut last = entry(MOST, MOST, started(None));
    last.fold = Fold {
        retained: (1..=u64::from(MAX_RETAINED)).map(kept).collect(),
        requests: vec![],
        pins: (0..8).map(pin).collect(),
        savepoints,
        forgotten_savepoints: Some(kept(0).key),
        history: (0..KEPT_RECORDS as u64).map(record).collect(),
        failures,
        sinks: (0..16).map(|_| sink()).collect(),
        first_entries: (0..200).map(|number| MOST + number).collect(),
        trimmed_below: MOST,
        probed: Some("e".repeat(100)),
        directive: "d".repeat(60),
        ..Fold::default()
    };
    let long = Failure::external("SomethingWithALongNameFailed", "\"".repeat(100_000));
    for number in 0..60 {
        let id = format!("{}{number}", "r".repeat(40));
        let requested = EntryKind::SavepointRequested {
            id: id.clone(),
            kind: SavepointKind::Savepoint,
            directory: format!("s3://b/{}{number}", "d".repeat(200)),
            deadline: Timestamp(MOST),
        };
        let answered = EntryKind::SavepointFailed { id, failure: long.clone() };
        for kind in [requested, answered] {
            last = Entry { fold: last.folded(), kind, ..last };
        }
    }
    last = Entry { fold: last.folded(), kind: EntryKind::Failed { failure: long }, ..last };
    let fold = last.folded();
    assert_eq!((fold.requests.len(), fold.retained.len()), (50, MAX_RETAINED as usize));
    assert_eq!(fold.savepoint_roots.len(), 1000 / 209, "the last places, as many as fit");
    assert!(matches!(&fold.requests[49], Request { result: Some(RequestResult::Failed(_)), .. }));
    assert!(fold.failure.as_ref().is_some_and(|failure| failure.message.ends_with('…')));
    let bytes = serde_json::to_vec(&fold).unwrap().len();
    assert!(bytes <= FOLD_LIMIT, "{bytes}");
    let again = Entry { fold, ..entry(MOST, MOST, started(None)) };
    assert!(again.to_bytes().is_ok());
}

// --- Deciding: N3, L3 ------------------------------------------------------------------------------------------

fn decide(generation: u64, id: &str, seen: u64, start: StartFrom, last: Option<&Entry>) -> StartDecision {
    let directive = Directive { id: id.to_owned(), seen, start };
    let process = ProcessId(format!("process-{generation}"));
    let starter = Starter {
        generation: Generation(generation),
        revision: id.parse().unwrap(),
        process: &process,
        directive: &directive,
        insists_on_m: false,
        ignore_directive: false,
        ignore_fence: false,
    };
    decide_start(&starter, last)
}

fn running() -> Entry {
    chain(vec![(1, started(None)), (1, checkpoint(1, 1, Ends::None, vec![]))])
}

fn path() -> StartFrom {
    StartFrom::Path { from: "s3://b/x".into(), allow_non_restored_state: true, abandon_sinks: Vec::new() }
}

#[test]
fn without_a_ledger() {
    assert_eq!(decide(1, "1", 0, StartFrom::Continue, None), StartDecision::Empty);
    let expected =
        StartDecision::Path { from: "s3://b/x".into(), allow_non_restored_state: true, abandon_sinks: Vec::new() };
    assert_eq!(decide(1, "1", 0, path(), None), expected);
    assert_eq!(decide(2, "1", 3, StartFrom::Continue, None), StartDecision::StateMissing { last: None });
    assert_eq!(decide(2, "1", 3, StartFrom::Empty, None), StartDecision::StateMissing { last: None });
}

#[test]
fn continue_goes_on_and_must_reach_m() {
    let last = running();
    assert_eq!(decide(2, "1", 0, StartFrom::Continue, Some(&last)), StartDecision::Continue(RestorePoint::Latest));
    assert_eq!(decide(2, "1", 2, StartFrom::Continue, Some(&last)), StartDecision::Continue(RestorePoint::Latest));
    assert_eq!(decide(2, "1", 3, StartFrom::Continue, Some(&last)), StartDecision::StateMissing { last: Some(2) });
}

#[test]
fn the_others_hold_only_while_the_ledger_ends_at_m() {
    let last = running();
    let other =
        Entry { directive: "1-1".into(), fold: Fold { directive: "1-1".into(), ..last.fold.clone() }, ..last.clone() };
    for start in [StartFrom::ResumeLatest, path(), StartFrom::Empty] {
        assert_eq!(decide(2, "1", 1, start.clone(), Some(&other)), StartDecision::StateMoved { last: 2 });
        assert_ne!(decide(2, "1", 2, start.clone(), Some(&other)), StartDecision::StateMoved { last: 2 });
        let decision = decide(2, "1", 1, start, Some(&last));
        assert_eq!(decision, StartDecision::Continue(RestorePoint::Latest), "the same directive is a continue");
    }
    assert_eq!(decide(2, "2", 2, StartFrom::Empty, Some(&last)), StartDecision::Empty);
    assert_eq!(decide(2, "2", 2, StartFrom::ResumeLatest, Some(&last)), StartDecision::Continue(RestorePoint::Latest));
}

#[test]
fn entries_of_an_older_revision_beyond_m_stop_no_start() {
    let last = running();
    assert_eq!(decide(2, "2", 1, StartFrom::Empty, Some(&last)), StartDecision::Empty);
    assert_eq!(decide(2, "2", 1, StartFrom::ResumeLatest, Some(&last)), StartDecision::Continue(RestorePoint::Latest));
    assert!(matches!(decide(2, "2", 1, path(), Some(&last)), StartDecision::Path { .. }));
    assert_eq!(decide(2, "2", 3, StartFrom::Empty, Some(&last)), StartDecision::StateMissing { last: Some(2) });
    let newer = Entry { revision: 3, ..last };
    assert_eq!(decide(2, "2", 1, StartFrom::Empty, Some(&newer)), StartDecision::StateMoved { last: 2 });
}

#[test]
fn an_end_that_nobody_has_seen_and_that_left_nothing_is_reported_and_not_started_anew() {
    let key = CheckpointKey { generation: Generation(1), id: CheckpointId(1) };
    let kinds = |drops| {
        vec![(1, started(None)), (1, checkpoint(1, 1, Ends::Finish, vec![])), (1, EntryKind::Finished { drops })]
    };
    let last = chain(kinds(vec![key]));
    assert_eq!(decide(2, "2", 1, StartFrom::ResumeLatest, Some(&last)), StartDecision::Report(LedgerState::Finished));
    assert_eq!(decide(2, "2", 1, StartFrom::Empty, Some(&last)), StartDecision::Empty, "as it was asked for");
    let helper = EntryKind::Started { cause: StartCause::Dispose, restored_from: None, probed: None, taker: None };
    let mut hidden = kinds(vec![key]);
    hidden.extend([(2, helper), (2, EntryKind::Disposed { path: "p".into() })]);
    let hidden = decide(3, "2", 1, StartFrom::ResumeLatest, Some(&chain(hidden)));
    assert_eq!(hidden, StartDecision::Report(LedgerState::Finished), "a helper's entries hide no end");
    let latest = StartDecision::Continue(RestorePoint::Latest);
    assert_eq!(decide(2, "2", 3, StartFrom::ResumeLatest, Some(&last)), latest, "whoever asks knows");
    assert_eq!(
        decide(2, "2", 1, StartFrom::ResumeLatest, Some(&chain(kinds(vec![])))),
        latest,
        "its checkpoint is kept"
    );
}

#[test]
fn an_end_that_has_its_checkpoint_is_concluded_before_another_directive_is_carried_out() {
    let mut kinds = vec![(1, started(None)), (1, checkpoint(1, 1, Ends::Stop, vec![]))];
    for start in [StartFrom::ResumeLatest, path(), StartFrom::Empty] {
        let last = chain(kinds.clone());
        assert_eq!(decide(2, "2", 2, start, Some(&last)), StartDecision::Conclude(Ends::Stop));
    }
    let close = EntryKind::Started { cause: StartCause::Close, restored_from: None, probed: None, taker: None };
    kinds.extend([(2, close), (2, EntryKind::Stopped)]);
    let mut last = chain(kinds);
    assert_eq!(last.folded().directive, "1", "nobody has carried the directive out");
    last.directive = "2".into();
    assert_eq!(decide(3, "2", 2, StartFrom::Empty, Some(&last)), StartDecision::Empty);
}

#[test]
fn a_foreign_snapshot_is_needed_until_an_own_checkpoint_stands_or_a_start_from_something_else() {
    let foreign = SnapshotReference { is_foreign: true, ..snapshot("s3://other/chk-5") };
    let fold = |kinds| chain(kinds).folded();
    let begun = fold(vec![(1, started(Some(foreign.clone()))), (2, started(Some(foreign.clone())))]);
    let needed = ForeignSnapshot { directory: "s3://other/chk-5".into(), released_at: None, released_by: None };
    assert_eq!(begun.foreign, Some(needed.clone()), "also by the generation that repeats the start");
    let stands = fold(vec![
        (1, started(Some(foreign.clone()))),
        (1, checkpoint(1, 1, Ends::None, vec![])),
        (1, checkpoint(1, 2, Ends::None, vec![])),
    ]);
    let released = Some(Timestamp(5));
    let by_checkpoint = ForeignSnapshot { released_at: released, released_by: Some(CheckpointId(1)), ..needed.clone() };
    assert_eq!(stands.foreign, Some(by_checkpoint), "the first one decides, and it is remembered");
    let elsewhere = fold(vec![(1, started(Some(foreign.clone()))), (2, started(None))]);
    assert_eq!(elsewhere.foreign, Some(ForeignSnapshot { released_at: released, ..needed.clone() }));
    let again = fold(vec![(1, started(None)), (1, checkpoint(1, 1, Ends::None, vec![])), (2, started(Some(foreign)))]);
    assert_eq!(again.foreign, Some(needed));
}

#[test]
fn a_directive_is_not_carried_out_twice_although_the_ledger_ends_at_m() {
    let last = running();
    assert_eq!(decide(2, "1", 2, StartFrom::Empty, Some(&last)), StartDecision::Continue(RestorePoint::Latest));
}

#[test]
fn after_a_terminal_entry_continue_only_reports_and_a_new_directive_resumes() {
    let last = chain(vec![(1, started(None)), (1, checkpoint(1, 1, Ends::Stop, vec![])), (1, EntryKind::Stopped)]);
    assert_eq!(decide(2, "1", 3, StartFrom::Continue, Some(&last)), StartDecision::Report(LedgerState::Stopped));
    assert_eq!(decide(2, "2", 3, StartFrom::ResumeLatest, Some(&last)), StartDecision::Continue(RestorePoint::Latest));
}

#[test]
fn helpers_end_what_has_not_ended_and_dispose_behind_an_end() {
    let close = || StartFrom::Close { end: CloseEnd::Cancelled };
    let dispose = || StartFrom::Dispose { path: "s3://b/sp".to_owned() };
    assert_eq!(decide(2, "1", 0, close(), None), StartDecision::Close(CloseEnd::Cancelled));
    assert_eq!(decide(2, "1", 0, dispose(), None), StartDecision::NotEnded { last: None });
    assert_eq!(decide(2, "1", 3, close(), None), StartDecision::StateMissing { last: None });
    let last = running();
    assert_eq!(decide(2, "1", 1, close(), Some(&last)), StartDecision::Close(CloseEnd::Cancelled), "also beyond m");
    assert_eq!(decide(2, "1", 2, dispose(), Some(&last)), StartDecision::NotEnded { last: Some(2) });
    let ended = chain(vec![(1, started(None)), (1, EntryKind::Stopped)]);
    assert_eq!(decide(2, "1", 1, close(), Some(&ended)), StartDecision::Report(LedgerState::Stopped));
    assert_eq!(
        decide(2, "2", 1, close(), Some(&ended)),
        StartDecision::Close(CloseEnd::Cancelled),
        "an earlier stay's end"
    );
    assert_eq!(decide(2, "1", 1, dispose(), Some(&ended)), StartDecision::Dispose { path: "s3://b/sp".to_owned() });
    let cause = StartCause::Dispose;
    let taken = EntryKind::Started { cause, restored_from: None, probed: None, taker: None };
    let disposed = chain(vec![(1, started(None)), (1, EntryKind::Stopped), (2, taken)]);
    assert_eq!(decide(3, "1", 2, StartFrom::Continue, Some(&disposed)), StartDecision::Report(LedgerState::Stopped));
    assert_eq!(decide(2, "1", 0, close(), Some(&disposed)), StartDecision::Report(LedgerState::Stopped), "its own");
    assert_eq!(decide(1, "1", 0, close(), Some(&disposed)), StartDecision::Superseded(Generation(2)));
    let closing = EntryKind::Started { cause: StartCause::Close, restored_from: None, probed: None, taker: None };
    let closed = chain(vec![(1, started(Some(snapshot("s3://b/x")))), (2, closing)]).folded();
    assert_eq!(closed.restore_point, RestorePoint::Snapshot(snapshot("s3://b/x")), "a later start restores the same");
}

#[test]
fn a_checkpoint_that_ends_the_job_is_concluded() {
    let last = chain(vec![(1, started(None)), (1, checkpoint(1, 1, Ends::Finish, vec![]))]);
    assert_eq!(decide(2, "1", 2, StartFrom::Continue, Some(&last)), StartDecision::Conclude(Ends::Finish));
}

#[test]
fn an_equal_or_later_generation_of_another_process_supersedes() {
    let last = running();
    let twin = Entry { process: ProcessId("another".into()), ..last.clone() };
    assert_eq!(decide(1, "1", 0, StartFrom::Continue, Some(&twin)), StartDecision::Superseded(Generation(1)));
    let later = chain(vec![(3, started(None))]);
    assert_eq!(decide(2, "1", 9, StartFrom::Continue, Some(&later)), StartDecision::Superseded(Generation(3)));
    assert_eq!(decide(1, "1", 0, StartFrom::Continue, Some(&last)), StartDecision::Continue(RestorePoint::Latest));
}

// --- Trimming: L4 ----------------------------------------------------------------------------------------------

#[test]
fn trimming_keeps_the_last_hundred_and_first_entries() {
    assert_eq!((trim::bound_at(100), trim::bound_at(200), trim::bound_at(250)), (None, Some(101), None));
    let keys = trim::keys_to_remove(&paths(), 1..101, &[1, 40]);
    assert_eq!(keys.len(), 98);
    assert!(!keys.contains(&paths().ledger_entry(1)) && !keys.contains(&paths().ledger_entry(40)));
    assert!(keys.contains(&paths().ledger_entry(100)) && !keys.contains(&paths().ledger_entry(101)));
    let fold = Fold { first_entries: vec![1, 40, 150], ..Fold::default() };
    let raised = trim::raise_bound(fold, 101);
    assert_eq!((raised.trimmed_below, raised.first_entries), (101, vec![150]));
}

/// What version 1 looks like for ever: read, and written back as it was.
#[test]
fn the_golden_entry_of_version_1() {
    let golden = include_str!("../../golden/ledger-entry-v1.json");
    let entry = Entry::from_bytes(golden.as_bytes(), "golden").unwrap();
    let fold = entry.folded();
    assert_eq!(fold.retained.iter().map(|one| one.key.id.0).collect::<Vec<_>>(), [50]);
    assert_eq!((fold.restore_point, fold.failures.total()), (RestorePoint::Latest, 1));
    let written: serde_json::Value = serde_json::from_slice(&entry.to_bytes().unwrap()).unwrap();
    assert_eq!(written, serde_json::from_str::<serde_json::Value>(golden).unwrap());
}
