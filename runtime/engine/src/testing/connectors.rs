//! A source of numbers with a position, and a sink that keeps what it gets and can be made to refuse or to wait.

use crate::aggregate::{AggregateCall, AggregateKind, GroupAggregateFactory, GroupAggregateSpec};
use crate::batch::Batch;
use crate::error::TaskError;
use crate::operator::{OperatorFactory, RestoredState, Waker};
use crate::program::VertexProgram;
use crate::sink::{AcceptedKinds, Sink, SinkContext, SinkFactory};
use crate::source::{Source, SourceContext, SourceFactory, SourcePoll};
use arrow::array::{ArrayRef, Int64Array, RecordBatch};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use sluice_protocol::SubtaskIndex;
use sluice_protocol::state::SplitState;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

pub(crate) fn schema() -> SchemaRef {
    Arc::new(Schema::new(vec![Field::new("k", DataType::Int64, true), Field::new("v", DataType::Int64, true)]))
}

/// Rows `(n * 7919 % keys, n)` for n in the range.
pub(crate) fn numbers(range: std::ops::Range<i64>, keys: i64) -> RecordBatch {
    let key: ArrayRef = Arc::new(Int64Array::from_iter_values(range.clone().map(|n| n * 7919 % keys)));
    let value: ArrayRef = Arc::new(Int64Array::from_iter_values(range));
    RecordBatch::try_new(schema(), vec![key, value]).unwrap()
}

/// Splits `0..splits`, of which split i holds the numbers `i * rows .. (i + 1) * rows`.
#[derive(Clone)]
pub(crate) struct Numbers {
    pub(crate) splits: i64,
    pub(crate) rows: i64,
    pub(crate) keys: i64,
}

struct NumbersReader {
    config: Numbers,
    /// Split and the next number of it.
    splits: Vec<(i64, i64)>,
}

impl Source for NumbersReader {
    fn open(&mut self, context: SourceContext, state: RestoredState) -> Result<(), TaskError> {
        for split in 0..self.config.splits {
            if split % i64::from(context.operator.parallelism) != i64::from(context.operator.subtask.0) {
                continue;
            }
            let restored = state.splits.iter().find(|state| state.split == split.to_string());
            assert_eq!(restored.is_some(), state.restored);
            self.splits.push((split, restored.map_or(0, |state| state.state.as_i64().unwrap())));
        }
        Ok(())
    }

    fn poll(&mut self, max_rows: usize) -> Result<SourcePoll, TaskError> {
        let rows = self.config.rows;
        let Some((split, position)) = self.splits.iter_mut().find(|(_, position)| *position < rows) else {
            return Ok(SourcePoll::Finished);
        };
        let end = rows.min(*position + max_rows as i64);
        let base = *split * rows;
        let batch = numbers(base + *position..base + end, self.config.keys);
        *position = end;
        Ok(SourcePoll::Batch(Batch::inserts(batch)))
    }

    fn snapshot(&mut self) -> Result<Vec<SplitState>, TaskError> {
        let state = |(split, position): &(i64, i64)| SplitState { split: split.to_string(), state: (*position).into() };
        Ok(self.splits.iter().map(state).collect())
    }
}

impl SourceFactory for Numbers {
    fn create(&self) -> Result<Box<dyn Source>, TaskError> {
        Ok(Box::new(NumbersReader { config: self.clone(), splits: Vec::new() }))
    }

    fn schema(&self) -> SchemaRef {
        schema()
    }

    fn owner(&self, split: &str, parallelism: u32) -> SubtaskIndex {
        SubtaskIndex(split.parse::<u32>().unwrap() % parallelism)
    }
}

/// What the writers of a sink share with the test.
#[derive(Default)]
pub(crate) struct Kept {
    pub(crate) batches: Mutex<Vec<Batch>>,
    pub(crate) full: AtomicBool,
    pub(crate) in_flight: AtomicBool,
    pub(crate) waker: Mutex<Option<Waker>>,
}

impl Kept {
    pub(crate) fn take(&self) -> super::Collected {
        super::Collected(std::mem::take(&mut self.batches.lock().unwrap()))
    }
}

pub(crate) struct Keep(pub(crate) Arc<Kept>);

struct KeepWriter(Arc<Kept>);

impl Sink for KeepWriter {
    fn open(&mut self, context: SinkContext) -> Result<(), TaskError> {
        *self.0.waker.lock().unwrap() = Some(context.waker);
        Ok(())
    }

    fn write(&mut self, batch: Batch) -> Result<(), TaskError> {
        assert!(!self.0.full.load(Ordering::SeqCst), "write without room");
        self.0.batches.lock().unwrap().push(batch);
        Ok(())
    }

    fn is_writable(&mut self) -> Result<bool, TaskError> {
        Ok(!self.0.full.load(Ordering::SeqCst))
    }

    fn flush(&mut self) -> Result<bool, TaskError> {
        Ok(!self.0.in_flight.load(Ordering::SeqCst))
    }
}

impl SinkFactory for Keep {
    fn create(&self) -> Result<Box<dyn Sink>, TaskError> {
        Ok(Box::new(KeepWriter(Arc::clone(&self.0))))
    }

    fn accepted_kinds(&self) -> AcceptedKinds {
        AcceptedKinds::All
    }
}

/// `SELECT k, COUNT(*) AS n, SUM(v) AS s … GROUP BY k`.
pub(crate) fn count_and_sum() -> GroupAggregateFactory {
    let calls =
        vec![AggregateCall::new(AggregateKind::Count, None, "n"), AggregateCall::new(AggregateKind::Sum, Some(1), "s")];
    let (input, key_names) = (schema(), vec!["k".to_owned()]);
    let spec = GroupAggregateSpec {
        input,
        keys: vec![0],
        key_names,
        calls,
        emit_update_before: true,
        changelog: true,
        ttl: None,
    };
    GroupAggregateFactory::new(spec).unwrap()
}

/// The chain of a source.
pub(crate) fn source_program(source: Numbers) -> VertexProgram {
    let source: Option<(_, Arc<dyn SourceFactory>)> = Some(("numbers".into(), Arc::new(source)));
    VertexProgram { source, operators: Vec::new(), sink: None, output_schema: schema() }
}

/// The chain of an aggregate and a sink.
pub(crate) fn aggregate_program(kept: &Arc<Kept>) -> VertexProgram {
    let factory = count_and_sum();
    let output_schema = factory.output_schema();
    let factory: Arc<dyn OperatorFactory> = Arc::new(factory);
    let sink: Option<(_, Arc<dyn SinkFactory>)> = Some(("kept".into(), Arc::new(Keep(Arc::clone(kept)))));
    VertexProgram { source: None, operators: vec![("groups".into(), factory)], sink, output_schema }
}
