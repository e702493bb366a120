//! A job that counts and sums by key, with real operators, and what its counts must be at any cut.

use crate::simulation::scenario::Scenario;
use arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch};
use arrow::datatypes::{DataType, Field, Int64Type, Schema, SchemaRef};
use sluice_engine::aggregate::{AggregateCall, AggregateKind, GroupAggregateFactory, GroupAggregateSpec};
use sluice_engine::batch::Batch;
use sluice_engine::error::TaskError;
use sluice_engine::operator::{Clock, OperatorFactory, RestoredState};
use sluice_engine::program::{Program, VertexProgram};
use sluice_engine::sink::{AcceptedKinds, Sink, SinkContext, SinkFactory};
use sluice_engine::source::{Source, SourceContext, SourceFactory, SourcePoll};
use sluice_protocol::graph::{Edge, JobGraph, OperatorInfo, OperatorKind, Partitioning, Vertex};
use sluice_protocol::state::SplitState;
use sluice_protocol::{SubtaskIndex, VertexId};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Number of key groups.
pub const MAX_PARALLELISM: u16 = 12;

/// Count and sum by key.
pub type Counts = BTreeMap<i64, (i64, i64)>;

/// The input: every row is a function of the seed, its split and its position.
#[derive(Debug, Clone, Copy)]
pub struct Events {
    seed: u64,
    splits: u32,
    rows: u64,
    keys: u64,
    gap_millis: u64,
}

impl Events {
    /// Those of a scenario.
    #[must_use]
    pub const fn new(scenario: &Scenario) -> Self {
        let Scenario { seed, splits, rows, keys, gap_millis, .. } = *scenario;
        Self { seed, splits, rows, keys, gap_millis }
    }

    fn row(&self, split: u32, position: u64) -> (i64, i64) {
        let mut mixed = self.seed ^ (u64::from(split) << 40) ^ position.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed ^= mixed >> 31;
        mixed = mixed.wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed ^= mixed >> 29;
        ((mixed % self.keys) as i64, (mixed >> 32 & 0xff) as i64)
    }

    /// Rows of a split that exist at this time.
    const fn available(&self, now: u64) -> u64 {
        let count = now / self.gap_millis;
        if count < self.rows { count } else { self.rows }
    }

    /// The counts after these many rows of each split: computed row by row, without the engine.
    #[must_use]
    pub fn counts(&self, positions: &BTreeMap<u32, u64>) -> Counts {
        let mut counts = Counts::new();
        for (split, position) in positions {
            for at in 0..*position {
                let (key, value) = self.row(*split, at);
                let entry = counts.entry(key).or_default();
                entry.0 += 1;
                entry.1 += value;
            }
        }
        counts
    }

    /// The positions at the end of the input.
    #[must_use]
    pub fn end(&self) -> BTreeMap<u32, u64> {
        (0..self.splits).map(|split| (split, self.rows)).collect()
    }
}

/// What the sink's writers have written, the last value of each key.
pub type View = Arc<Mutex<Counts>>;

/// The program at a parallelism.
///
/// # Panics
/// Never: the GROUP BY is well formed.
#[must_use]
pub fn program(events: Events, parallelism: u32, view: &View) -> Program {
    let factory = GroupAggregateFactory::new(group_by()).expect("a well-formed GROUP BY");
    let output_schema = factory.output_schema();
    let source: Arc<dyn SourceFactory> = Arc::new(events);
    let sink: Arc<dyn SinkFactory> = Arc::new(ViewSink(Arc::clone(view)));
    let operator: Arc<dyn OperatorFactory> = Arc::new(factory);
    let vertices = vec![
        VertexProgram {
            source: Some(("events".into(), source)),
            operators: vec![],
            sink: None,
            output_schema: schema(),
        },
        VertexProgram {
            source: None,
            operators: vec![("counts".into(), operator)],
            sink: Some(("view".into(), sink)),
            output_schema,
        },
    ];
    Program { graph: graph(parallelism), vertices }
}

/// The graph at a parallelism.
#[must_use]
pub fn graph(parallelism: u32) -> JobGraph {
    let operator = |uid: &str, kind| OperatorInfo { uid: uid.into(), kind, description: uid.to_owned() };
    let vertex = |id, operators: Vec<OperatorInfo>| Vertex {
        id: VertexId(id),
        name: operators[0].description.clone(),
        parallelism,
        operators,
    };
    let source = vertex(0, vec![operator("events", OperatorKind::Source)]);
    let counts = vertex(1, vec![operator("counts", OperatorKind::Keyed), operator("view", OperatorKind::Sink)]);
    let edge = Edge { from: VertexId(0), to: VertexId(1), partitioning: Partitioning::Hash { keys: vec![0] } };
    JobGraph { vertices: vec![source, counts], edges: vec![edge], max_parallelism: MAX_PARALLELISM }
}

fn group_by() -> GroupAggregateSpec {
    let call = |kind, name: &str| AggregateCall { kind, name: name.to_owned() };
    GroupAggregateSpec {
        input: schema(),
        keys: vec![0],
        key_names: vec!["k".to_owned()],
        calls: vec![call(AggregateKind::Count, "n"), call(AggregateKind::Sum(1), "s")],
        emit_update_before: false,
    }
}

fn schema() -> SchemaRef {
    Arc::new(Schema::new(vec![Field::new("k", DataType::Int64, true), Field::new("v", DataType::Int64, true)]))
}

/// Adds the rows of a file of keyed state.
///
/// # Errors
/// When it is none, or a key is there already.
pub fn read_counts(bytes: &[u8], into: &mut Counts) -> Result<(), String> {
    let batches = sluice_engine::state::file::read_keyed_state(&bytes.to_vec().into(), usize::MAX)
        .map_err(|error| error.to_string())?;
    for batch in batches {
        let column = |index: usize| batch.column(index).as_primitive::<Int64Type>().values().to_vec();
        let (keys, counts, sums) = (column(1), column(2), column(3));
        for ((key, count), sum) in keys.into_iter().zip(counts).zip(sums) {
            if into.insert(key, (count, sum)).is_some() {
                return Err(format!("key {key} is in the state twice"));
            }
        }
    }
    Ok(())
}

struct Reader {
    events: Events,
    clock: Clock,
    /// Split and position.
    splits: Vec<(u32, u64)>,
    next: usize,
}

impl SourceFactory for Events {
    fn create(&self) -> Result<Box<dyn Source>, TaskError> {
        let clock: Clock = Arc::new(sluice_protocol::Timestamp::default);
        Ok(Box::new(Reader { events: *self, clock, splits: vec![], next: 0 }))
    }

    fn schema(&self) -> SchemaRef {
        schema()
    }

    fn owner(&self, split: &str, parallelism: u32) -> SubtaskIndex {
        SubtaskIndex(split.parse::<u32>().unwrap_or(0) % parallelism)
    }
}

impl Source for Reader {
    fn open(&mut self, context: SourceContext, state: RestoredState) -> Result<(), TaskError> {
        self.clock = context.clock;
        for split in 0..self.events.splits {
            let name = split.to_string();
            if self.events.owner(&name, context.operator.parallelism) != context.operator.subtask {
                continue;
            }
            let position = match state.splits.iter().find(|restored| restored.split == name) {
                Some(restored) => restored.state["position"].as_u64().unwrap_or(0),
                None if state.restored => return Err(TaskError::IncompatibleState(format!("split {name} is missing"))),
                None => 0,
            };
            self.splits.push((split, position));
        }
        Ok(())
    }

    fn poll(&mut self, max_rows: usize) -> Result<SourcePoll, TaskError> {
        let available = self.events.available((self.clock)().0);
        let count = self.splits.len();
        for offset in 0..count {
            let at = (self.next + offset) % count;
            let (split, position) = self.splits[at];
            let end = available.min(position + max_rows as u64);
            if position < end {
                self.next = at + 1;
                self.splits[at].1 = end;
                return Ok(SourcePoll::Batch(self.events.batch(split, position..end)?));
            }
        }
        let finished = self.splits.iter().all(|(_, position)| *position == self.events.rows);
        Ok(if finished { SourcePoll::Finished } else { SourcePoll::Pending })
    }

    fn snapshot(&mut self) -> Result<Vec<SplitState>, TaskError> {
        let state = |(split, position): &(u32, u64)| SplitState {
            split: split.to_string(),
            state: serde_json::json!({ "position": position }),
        };
        Ok(self.splits.iter().map(state).collect())
    }
}

impl Events {
    fn batch(&self, split: u32, positions: std::ops::Range<u64>) -> Result<Batch, TaskError> {
        let (keys, values): (Vec<i64>, Vec<i64>) = positions.map(|position| self.row(split, position)).unzip();
        let columns: Vec<ArrayRef> = vec![Arc::new(Int64Array::from(keys)), Arc::new(Int64Array::from(values))];
        let rows = RecordBatch::try_new(schema(), columns).map_err(|error| TaskError::Internal(error.to_string()))?;
        Ok(Batch::inserts(rows))
    }
}

struct ViewSink(View);
struct ViewWriter(View);

impl SinkFactory for ViewSink {
    fn create(&self) -> Result<Box<dyn Sink>, TaskError> {
        Ok(Box::new(ViewWriter(Arc::clone(&self.0))))
    }

    fn accepted_kinds(&self) -> AcceptedKinds {
        AcceptedKinds::Upsert
    }
}

impl Sink for ViewWriter {
    fn open(&mut self, _: SinkContext) -> Result<(), TaskError> {
        Ok(())
    }

    fn write(&mut self, batch: Batch) -> Result<(), TaskError> {
        let column = |index: usize| batch.rows.column(index).as_primitive::<Int64Type>();
        let mut view = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for row in 0..batch.rows.num_rows() {
            view.insert(column(0).value(row), (column(1).value(row), column(2).value(row)));
        }
        Ok(())
    }
}
