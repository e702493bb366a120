//! A job that counts and sums by key, with real operators, and what its counts must be at any cut.

use crate::simulation::scenario::Scenario;
use arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch};
use arrow::datatypes::{DataType, Field, Int64Type, Schema, SchemaRef};
use sluice_engine::aggregate::{AggregateCall, AggregateKind, GroupAggregateFactory, GroupAggregateSpec};
use sluice_engine::batch::Batch;
use sluice_engine::error::TaskError;
use sluice_engine::in_flight::{self, Share};
use sluice_engine::operator::{Clock, Collector, Operator, OperatorContext, OperatorFactory, RestoredState};
use sluice_engine::program::{Program, VertexProgram};
use sluice_engine::sink::{AcceptedKinds, Sink, SinkContext, SinkFactory};
use sluice_engine::source::{Source, SourceContext, SourceFactory, SourcePoll};
use sluice_engine::state::merged::MergedState;
use sluice_protocol::graph::{Edge, JobGraph, OperatorInfo, OperatorKind, Partitioning, Vertex};
use sluice_protocol::state::{InFlightHandle, KeyedStateKind, SplitState, StateData};
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
pub fn program(events: Events, parallelism: u32, view: &View, stalls: Stalls) -> Program {
    let factory = GroupAggregateFactory::new(group_by()).expect("a well-formed GROUP BY");
    let output_schema = factory.output_schema();
    let source: Arc<dyn SourceFactory> = Arc::new(events);
    let sink: Arc<dyn SinkFactory> = Arc::new(ViewSink { view: Arc::clone(view), stalls, events });
    let operator: Arc<dyn OperatorFactory> = Arc::new(factory);
    let order: Arc<dyn OperatorFactory> = Arc::new(OrderFactory);
    let vertices = vec![
        VertexProgram {
            source: Some(("events".into(), source)),
            operators: vec![],
            sink: None,
            output_schema: schema(),
        },
        VertexProgram {
            source: None,
            operators: vec![("order".into(), order), ("counts".into(), operator)],
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
    let order = operator("order", OperatorKind::Stateless);
    let counts = vertex(1, vec![order, operator("counts", OperatorKind::Keyed), operator("view", OperatorKind::Sink)]);
    let edge =
        Edge { from: VertexId(0), to: VertexId(1), partitioning: Partitioning::Hash { keys: vec![0] }, input: 0 };
    JobGraph { vertices: vec![source, counts], edges: vec![edge], max_parallelism: MAX_PARALLELISM }
}

fn group_by() -> GroupAggregateSpec {
    GroupAggregateSpec {
        input: schema(),
        keys: vec![0],
        key_names: vec!["k".to_owned()],
        calls: vec![
            AggregateCall::new(AggregateKind::Count, None, "n"),
            AggregateCall::new(AggregateKind::Sum, Some(1), "s"),
        ],
        emit_update_before: false,
        changelog: true,
        ttl: None,
    }
}

fn schema() -> SchemaRef {
    let columns = ["k", "v", "split", "position"];
    Arc::new(Schema::new(columns.map(|name| Field::new(name, DataType::Int64, true)).to_vec()))
}

/// Adds the rows of the next older file of keyed state that no newer one has overwritten.
///
/// # Errors
/// When it is none, or a key is there already.
pub fn read_counts(
    merged: &mut MergedState,
    kind: KeyedStateKind,
    bytes: &[u8],
    into: &mut Counts,
) -> Result<(), String> {
    let batches = merged.read(&bytes.to_vec().into(), kind == KeyedStateKind::Delta, usize::MAX);
    for batch in batches.map_err(|error| error.to_string())? {
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
        let at: Vec<i64> = positions.clone().map(|position| position as i64).collect();
        let splits = vec![i64::from(split); at.len()];
        let (keys, values): (Vec<i64>, Vec<i64>) = positions.map(|position| self.row(split, position)).unzip();
        let columns = [keys, values, splits, at].map(|column| Arc::new(Int64Array::from(column)) as ArrayRef).to_vec();
        let rows = RecordBatch::try_new(schema(), columns).map_err(|error| TaskError::Internal(error.to_string()))?;
        Ok(Batch::inserts(rows))
    }
}

/// How a broken order begins.
pub const ORDER: &str = "B3: order";

/// Checks that the rows of a split with one key come in order, whatever they were in between.
#[derive(Default)]
struct Order(BTreeMap<(i64, i64), i64>);

struct OrderFactory;

impl OperatorFactory for OrderFactory {
    fn create(&self) -> Result<Box<dyn Operator>, TaskError> {
        Ok(Box::new(Order::default()))
    }

    fn output_schema(&self) -> SchemaRef {
        schema()
    }
}

impl Operator for Order {
    fn open(&mut self, _: &OperatorContext, _: RestoredState) -> Result<(), TaskError> {
        Ok(())
    }

    fn process(&mut self, batch: Batch, out: &mut dyn Collector) -> Result<(), TaskError> {
        let column = |index: usize| batch.rows.column(index).as_primitive::<Int64Type>().values().to_vec();
        for ((key, split), position) in column(0).into_iter().zip(column(2)).zip(column(3)) {
            let last = self.0.insert((split, key), position);
            if last.is_some_and(|last| last >= position) {
                let text = format!("{ORDER}: row {position} of split {split}, key {key}, came after {last:?}");
                return Err(TaskError::Internal(text));
            }
        }
        out.collect(batch);
        Ok(())
    }
}

/// Adds the rows of batches that were in flight.
///
/// # Errors
/// When they cannot be read.
pub fn read_in_flight(handle: &InFlightHandle, into: &mut Counts) -> Result<(), String> {
    let StateData::Inline { bytes } = &handle.data else { return Err("batches in flight are not inline".to_owned()) };
    let share = Share {
        partitioning: &Partitioning::Rebalance,
        subtask: handle.to,
        parallelism: 1,
        max_parallelism: MAX_PARALLELISM,
    };
    let batches = in_flight::decode(&bytes.clone().into(), &schema(), share, &handle.edge);
    for batch in batches.map_err(|error| error.to_string())? {
        let column = |index: usize| batch.rows.column(index).as_primitive::<Int64Type>().values().to_vec();
        for (key, value) in column(0).into_iter().zip(column(1)) {
            let entry = into.entry(key).or_default();
            *entry = (entry.0 + 1, entry.1 + value);
        }
    }
    Ok(())
}

/// How slow a sink is.
#[derive(Debug, Clone, Copy)]
pub struct Stalls {
    /// Of a hundred times that it is asked for room, how often it has none.
    pub percent: u32,
    /// Until when.
    pub until: u64,
}

impl Stalls {
    /// Those of a scenario.
    #[must_use]
    pub const fn new(scenario: &Scenario) -> Self {
        let Scenario { stalls, rows, gap_millis, stalls_on_millis, .. } = *scenario;
        Self { percent: stalls, until: rows * gap_millis + stalls_on_millis }
    }
}

struct ViewSink {
    view: View,
    stalls: Stalls,
    events: Events,
}

struct ViewWriter {
    view: View,
    stalls: Stalls,
    clock: Clock,
    random: fastrand::Rng,
}

impl SinkFactory for ViewSink {
    fn create(&self) -> Result<Box<dyn Sink>, TaskError> {
        let Self { view, stalls, events } = self;
        let random = fastrand::Rng::with_seed(events.seed);
        let clock: Clock = Arc::new(sluice_protocol::Timestamp::default);
        Ok(Box::new(ViewWriter { view: Arc::clone(view), stalls: *stalls, clock, random }))
    }

    fn accepted_kinds(&self) -> AcceptedKinds {
        AcceptedKinds::Upsert
    }
}

impl Sink for ViewWriter {
    fn open(&mut self, context: SinkContext) -> Result<(), TaskError> {
        self.random = fastrand::Rng::with_seed(self.random.u64(..) ^ u64::from(context.operator.subtask.0));
        self.clock = context.clock;
        Ok(())
    }

    fn is_writable(&mut self) -> Result<bool, TaskError> {
        let Stalls { percent, until } = self.stalls;
        Ok(percent == 0 || (self.clock)().0 > until || self.random.u32(..100) >= percent)
    }

    fn write(&mut self, batch: Batch) -> Result<(), TaskError> {
        let column = |index: usize| batch.rows.column(index).as_primitive::<Int64Type>();
        let mut view = self.view.lock().unwrap_or_else(PoisonError::into_inner);
        for row in 0..batch.rows.num_rows() {
            view.insert(column(0).value(row), (column(1).value(row), column(2).value(row)));
        }
        Ok(())
    }
}
