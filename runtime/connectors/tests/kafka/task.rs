//! What the task loop does: opens, polls, sleeps until it is woken.

use arrow::datatypes::SchemaRef;
use sluice_engine::batch::Batch;
use sluice_engine::error::TaskError;
use sluice_engine::operator::{OperatorContext, RestoredState, Waker};
use sluice_engine::sink::{Sink, SinkContext, SinkFactory};
use sluice_engine::source::{Source, SourceContext, SourceFactory, SourcePoll};
use sluice_engine::table::{ConnectorCatalog as _, TableDescriptor, TableOption};
use sluice_protocol::state::SplitState;
use sluice_protocol::{KeyGroupRange, OperatorUid, SubtaskIndex, Timestamp};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(20);

/// Sleeps until it is woken; being woken while awake counts.
#[derive(Default)]
pub(crate) struct Bell {
    rung: Mutex<bool>,
    changed: Condvar,
}

impl Bell {
    fn waker(self: &Arc<Self>) -> Waker {
        let bell = self.clone();
        Arc::new(move || {
            *bell.rung.lock().unwrap() = true;
            bell.changed.notify_all();
        })
    }

    /// Whether it was woken within the time.
    fn sleep(&self, most: Duration) -> bool {
        let guard = self.rung.lock().unwrap();
        let (mut rung, _) = self.changed.wait_timeout_while(guard, most, |rung| !*rung).unwrap();
        std::mem::take(&mut *rung)
    }
}

/// A table of a connector.
pub(crate) fn table(schema: &SchemaRef, primary_key: &[usize], options: &[(&str, &str)]) -> TableDescriptor {
    let option = |(key, value): &(&str, &str)| TableOption { key: (*key).to_owned(), value: (*value).to_owned() };
    TableDescriptor::new("t", schema.clone(), primary_key.to_vec(), options.iter().map(option).collect())
}

fn context(subtask: u32, parallelism: u32) -> OperatorContext {
    OperatorContext {
        uid: OperatorUid::from("t"),
        subtask: SubtaskIndex(subtask),
        parallelism,
        key_groups: KeyGroupRange { start: 0, end: 128 },
        max_parallelism: 128,
        state_backend: sluice_engine::state::StateBackend::default(),
    }
}

/// The source of a table.
pub(crate) fn source(table: &TableDescriptor) -> Arc<dyn SourceFactory> {
    sluice_connectors::catalog().source(table).unwrap_or_else(|error| panic!("{error}"))
}

/// A subtask that reads.
pub(crate) struct Reader {
    pub(crate) source: Box<dyn Source>,
    bell: Arc<Bell>,
}

impl Reader {
    /// Opens a subtask with the splits of a checkpoint that it owns, or without a restore.
    pub(crate) fn open(
        factory: &Arc<dyn SourceFactory>,
        subtask: u32,
        parallelism: u32,
        restored: Option<&[SplitState]>,
    ) -> Result<Self, TaskError> {
        let owned = |split: &&SplitState| factory.owner(&split.split, parallelism).0 == subtask;
        let state = RestoredState {
            restored: restored.is_some(),
            operator: Vec::new(),
            keyed: vec![],
            splits: restored.unwrap_or_default().iter().filter(owned).cloned().collect(),
        };
        let bell = Arc::new(Bell::default());
        let mut source = factory.create()?;
        let context = SourceContext {
            operator: context(subtask, parallelism),
            waker: bell.waker(),
            clock: Arc::new(|| Timestamp(0)),
            by_split: true,
        };
        source.open(context, state)?;
        Ok(Self { source, bell })
    }

    /// Reads at most `max` rows more; `None` at the end.
    pub(crate) fn next(&mut self, max: usize) -> Result<Option<Batch>, TaskError> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.source.poll(max)? {
                SourcePoll::Batch(batch) => return Ok(Some(batch)),
                SourcePoll::Finished => return Ok(None),
                SourcePoll::Pending => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    assert!(self.bell.sleep(left), "not woken within {PATIENCE:?}");
                }
            }
        }
    }

    /// Whether nothing comes for a while.
    pub(crate) fn is_quiet(&mut self, span: Duration) -> bool {
        let deadline = Instant::now() + span;
        while Instant::now() < deadline {
            match self.source.poll(1000).unwrap() {
                SourcePoll::Pending => {
                    self.bell.sleep(deadline.saturating_duration_since(Instant::now()));
                }
                _ => return false,
            }
        }
        true
    }
}

/// A subtask that writes.
pub(crate) struct Writer {
    pub(crate) sink: Box<dyn Sink>,
    bell: Arc<Bell>,
}

impl Writer {
    /// Opens the only subtask of a table's sink.
    pub(crate) fn open(table: &TableDescriptor) -> Result<Self, TaskError> {
        let factory = sluice_connectors::catalog().sink(table).unwrap_or_else(|error| panic!("{error}"));
        Self::of(&*factory)
    }

    /// Opens the only subtask of a sink.
    pub(crate) fn of(factory: &dyn SinkFactory) -> Result<Self, TaskError> {
        let bell = Arc::new(Bell::default());
        let mut sink = factory.create()?;
        let context = SinkContext {
            operator: context(0, 1),
            identity: sluice_engine::operator::TaskIdentity::default(),
            waker: bell.waker(),
            clock: Arc::new(|| Timestamp(0)),
        };
        sink.open(context)?;
        Ok(Self { sink, bell })
    }

    /// Writes when there is room.
    pub(crate) fn write(&mut self, batch: Batch) {
        while !self.sink.is_writable().unwrap() {
            assert!(self.bell.sleep(PATIENCE), "not woken for room within {PATIENCE:?}");
        }
        self.sink.write(batch).unwrap();
    }

    /// Waits until all has arrived.
    pub(crate) fn flush(&mut self) {
        while !self.sink.flush().unwrap() {
            assert!(self.bell.sleep(PATIENCE), "not woken for the flush within {PATIENCE:?}");
        }
    }
}
