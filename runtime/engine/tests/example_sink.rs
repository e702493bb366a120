//! A small sink that commits with checkpoints, as docs/sinks.md explains it, and the conformance suite on it.
#![expect(clippy::unwrap_used, reason = "a poisoned lock or a batch that is none fails the test")]

use arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch};
use arrow::datatypes::Int64Type;
use sluice_engine::batch::Batch;
use sluice_engine::error::TaskError;
use sluice_engine::sink::conformance::{self, Subject};
use sluice_engine::sink::{
    AcceptedKinds, Commit, CommitError, Committer, CommitterContext, DeliveryGuarantee, PreCommit, Sink, SinkContext,
    SinkFactory, Staged, TransactionId, Transactional, TwoPhaseCommitSink,
};
use sluice_protocol::Run;
use sluice_protocol::state::Committable;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex};

// [example: the outside]
/// The outside: a table service that takes rows under a name, and shows them once the name is committed.
#[derive(Default)]
struct Service {
    staged: BTreeMap<String, Vec<i64>>,
    committed: BTreeMap<String, Vec<i64>>,
}

type Shared = Arc<Mutex<Service>>;
// [example: the writer]
/// A subtask's writer.
struct Writer {
    service: Shared,
    name: String,
}

impl TwoPhaseCommitSink for Writer {
    fn open(&mut self, _: SinkContext) -> Result<(), TaskError> {
        Ok(())
    }

    fn begin(&mut self, transaction: &TransactionId) -> Result<(), TaskError> {
        // The name says whose it is: a later attempt finds by it what this one may leave behind.
        self.name = transaction.to_string();
        Ok(())
    }

    fn write(&mut self, batch: Batch) -> Result<(), TaskError> {
        let rows = batch.rows.column(0).as_primitive::<Int64Type>().values().iter();
        self.service.lock().unwrap().staged.entry(self.name.clone()).or_default().extend(rows);
        Ok(())
    }

    fn pre_commit(&mut self) -> Result<PreCommit, TaskError> {
        // The service has all of it already. The handle is what a committer in another process needs.
        Ok(PreCommit::Staged(vec![Staged { version: 1, expires_at: None, bytes: self.name.clone().into_bytes() }]))
    }
}
// [example: the committer]
/// Runs in the JobManager's process.
struct TableCommitter {
    service: Shared,
    context: CommitterContext,
}

fn name_in(committable: &Committable) -> Result<String, CommitError> {
    if committable.version != 1 {
        return Err(CommitError::unknown_version(committable.version, 1));
    }
    Ok(String::from_utf8_lossy(&committable.bytes).into_owned())
}

impl Committer for TableCommitter {
    fn commit(&mut self, committable: &Committable) -> Result<Commit, CommitError> {
        let name = name_in(committable)?;
        let mut service = self.service.lock().unwrap();
        if service.committed.contains_key(&name) {
            return Ok(Commit::AlreadyCommitted);
        }
        let Some(rows) = service.staged.remove(&name) else {
            return Err(CommitError::Lost(format!("the service knows nothing of {name}")));
        };
        service.committed.insert(name, rows);
        Ok(Commit::Committed)
    }

    fn abort(&mut self, older_than: Run, spared: &[Committable]) -> Result<u64, CommitError> {
        let spared = spared.iter().map(name_in).collect::<Result<Vec<_>, _>>()?;
        let CommitterContext { job, sink } = &self.context;
        let mut service = self.service.lock().unwrap();
        let before = service.staged.len();
        service.staged.retain(|name, _| spared.contains(name) || !TransactionId::is_older(name, job, sink, older_than));
        Ok((before - service.staged.len()) as u64)
    }
}
// [example: the factory]
/// What the program holds.
struct Table {
    service: Shared,
}

impl SinkFactory for Table {
    fn create(&self) -> Result<Box<dyn Sink>, TaskError> {
        Ok(Box::new(Transactional::new(Writer { service: Arc::clone(&self.service), name: String::new() })))
    }

    fn accepted_kinds(&self) -> AcceptedKinds {
        AcceptedKinds::InsertOnly
    }

    fn guarantee(&self) -> DeliveryGuarantee {
        DeliveryGuarantee::ExactlyOnce
    }

    fn committer(&self, context: CommitterContext) -> Result<Option<Box<dyn Committer>>, TaskError> {
        Ok(Some(Box::new(TableCommitter { service: Arc::clone(&self.service), context })))
    }
}
// [example: the suite]
impl Subject for Table {
    fn factory(&self) -> &dyn SinkFactory {
        self
    }

    fn rows(&self, numbers: Range<i64>) -> Batch {
        let column: ArrayRef = Arc::new(Int64Array::from_iter_values(numbers));
        Batch::inserts(RecordBatch::try_from_iter([("n", column)]).unwrap())
    }

    fn visible(&self) -> Result<Vec<i64>, String> {
        Ok(self.service.lock().unwrap().committed.values().flatten().copied().collect())
    }

    fn open_transactions(&self) -> Result<usize, String> {
        Ok(self.service.lock().unwrap().staged.len())
    }

    fn destroy(&self, committable: &Committable) -> Result<(), String> {
        let name = name_in(committable).map_err(|error| error.to_string())?;
        self.service.lock().unwrap().staged.remove(&name);
        Ok(())
    }
}

#[test]
fn the_example_stands_the_suite() {
    conformance::check(|| Ok(Table { service: Shared::default() })).unwrap();
}
// [example: end]

/// What a broken sink would be caught at: each flag breaks one duty.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    CommitsAtStage,
    CommitsTwice,
    AbortsAll,
    AbortsNothing,
    LostIsCommitted,
}

struct Broken {
    table: Table,
    fault: Fault,
}

struct BrokenCommitter(TableCommitter, Fault);

impl Committer for BrokenCommitter {
    fn commit(&mut self, committable: &Committable) -> Result<Commit, CommitError> {
        let name = name_in(committable)?;
        if self.1 == Fault::CommitsTwice {
            let mut service = self.0.service.lock().unwrap();
            let again = service.committed.get(&name).cloned();
            if let Some(rows) = again {
                let number = service.committed.len();
                service.committed.insert(format!("{name}/{number}"), rows);
            }
        }
        match self.0.commit(committable) {
            Err(CommitError::Lost(_)) if self.1 == Fault::LostIsCommitted => Ok(Commit::AlreadyCommitted),
            other => other,
        }
    }

    fn abort(&mut self, older_than: Run, spared: &[Committable]) -> Result<u64, CommitError> {
        match self.1 {
            Fault::AbortsAll => self.0.abort(older_than, &[]),
            Fault::AbortsNothing => Ok(0),
            _ => self.0.abort(older_than, spared),
        }
    }
}

impl SinkFactory for Broken {
    fn create(&self) -> Result<Box<dyn Sink>, TaskError> {
        self.table.create()
    }

    fn accepted_kinds(&self) -> AcceptedKinds {
        AcceptedKinds::InsertOnly
    }

    fn committer(&self, context: CommitterContext) -> Result<Option<Box<dyn Committer>>, TaskError> {
        let committer = TableCommitter { service: Arc::clone(&self.table.service), context };
        Ok(Some(Box::new(BrokenCommitter(committer, self.fault))))
    }
}

impl Subject for Broken {
    fn factory(&self) -> &dyn SinkFactory {
        self
    }

    fn rows(&self, numbers: Range<i64>) -> Batch {
        self.table.rows(numbers)
    }

    fn visible(&self) -> Result<Vec<i64>, String> {
        let mut rows = self.table.visible()?;
        if self.fault == Fault::CommitsAtStage {
            rows.extend(self.table.service.lock().unwrap().staged.values().flatten());
        }
        Ok(rows)
    }

    fn open_transactions(&self) -> Result<usize, String> {
        self.table.open_transactions()
    }

    fn destroy(&self, committable: &Committable) -> Result<(), String> {
        self.table.destroy(committable)
    }
}

#[test]
fn the_suite_finds_what_is_broken() {
    let expected = [
        (Fault::CommitsAtStage, "rows are visible from their commit on"),
        (Fault::CommitsTwice, "a crash before and after each call"),
        (Fault::AbortsAll, "handles that failed checkpoints carry"),
        (Fault::AbortsNothing, "a crash before and after each call"),
        (Fault::LostIsCommitted, "an abort takes what a lost attempt left"),
    ];
    for (fault, scenario) in expected {
        let found = conformance::check(|| Ok(Broken { table: Table { service: Shared::default() }, fault }));
        let found = found.expect_err("it should be found");
        assert!(found.starts_with(scenario), "{fault:?} was found as: {found}");
    }
}
