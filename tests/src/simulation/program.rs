//! A job that counts and sums by key, with real operators, and what its counts must be at any cut.
//!
//! [`shape`]: which vertices it has. [`operators`]: those written for the simulation, with lists and broadcast state.
//! [`time`]: watermarks and late rows. [`windows`]: what fires by them. [`sink`]: what readers see. [`archive`]: what they see of
//! a sink that commits with checkpoints. [`cut`]: what a snapshot holds and must hold.

pub mod archive;
pub mod cut;
pub mod operators;
pub mod shape;
pub mod sink;
pub mod time;
pub mod windows;

use crate::simulation::scenario::Scenario;
use archive::{Archive, ArchiveSink, Row};
use arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch, TimestampMillisecondArray};
use arrow::datatypes::{DataType, Field, Int64Type, Schema, SchemaRef, TimeUnit};
use operators::{Order, PassOn, Rules, Tally};
use shape::{
    ARCHIVE, CONTROL_SPLIT, COUNTS, HISTOGRAM, Layout, RELAYED, RULES, Role, SOURCE_STEP, SOURCES, Shape, TALLY,
};
use sink::{Stalls, View, ViewSink};
use sluice_engine::aggregate::{AggregateCall, AggregateKind, GroupAggregateFactory, GroupAggregateSpec};
use sluice_engine::batch::Batch;
use sluice_engine::error::TaskError;
use sluice_engine::event_time::WatermarkStrategy;
use sluice_engine::operator::{Clock, OperatorFactory, RestoredState};
use sluice_engine::program::{Program, VertexProgram};
use sluice_engine::sink::SinkFactory;
use sluice_engine::source::{Source, SourceContext, SourceFactory, SourcePoll, SplitChange};
use sluice_protocol::state::SplitState;
use sluice_protocol::{OperatorUid, SubtaskIndex};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use time::{Foretold, LATENESS, Lateness};
use windows::{RESULTS, Results, ResultsSink, WINDOWS};

/// Count and sum by key.
pub type Counts = BTreeMap<i64, (i64, i64)>;

/// A control source has a row where a split of events has so many.
const CONTROL_GAP: u64 = 6;

/// The input: every row is a function of the seed, its split and its position.
#[derive(Debug, Clone, Copy)]
pub struct Events {
    seed: u64,
    /// The job's.
    pub shape: Shape,
    rows: u64,
    keys: u64,
    gap_millis: u64,
    foretold: Foretold,
}

impl Events {
    /// Those of a scenario.
    #[must_use]
    pub fn new(scenario: &Scenario) -> Self {
        let Scenario { seed, shape, rows, keys, gap_millis, .. } = *scenario;
        Self { seed, shape, rows, keys, gap_millis, foretold: Foretold::new(scenario) }
    }

    fn row(&self, split: u32, position: u64) -> (i64, i64) {
        let mut mixed = self.seed ^ (u64::from(split) << 40) ^ position.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed ^= mixed >> 31;
        mixed = mixed.wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed ^= mixed >> 29;
        ((mixed % self.keys) as i64, (mixed >> 32 & 0xff) as i64)
    }

    const fn rows_of(&self, split: u32) -> u64 {
        if split == CONTROL_SPLIT { self.rows / CONTROL_GAP } else { self.rows }
    }

    /// Rows of a split that exist at this time.
    const fn available(&self, split: u32, now: u64) -> u64 {
        let gap = if split == CONTROL_SPLIT { self.gap_millis * CONTROL_GAP } else { self.gap_millis };
        let (count, rows) = (now / gap, self.rows_of(split));
        if count < rows { count } else { rows }
    }

    /// The counts after these many rows of each split: computed row by row, without the engine.
    #[must_use]
    pub fn counts(&self, positions: &BTreeMap<u32, u64>) -> Counts {
        let mut counts = Counts::new();
        for (split, position) in positions.iter().filter(|(split, _)| **split != CONTROL_SPLIT) {
            for at in 0..*position {
                let (key, value) = self.row(*split, at);
                let entry = counts.entry(key).or_default();
                entry.0 += 1;
                entry.1 += value;
            }
        }
        counts
    }

    /// The events before these positions.
    pub fn rows(positions: &BTreeMap<u32, u64>) -> impl Iterator<Item = Row> {
        let of_events = positions.iter().filter(|(split, _)| **split != CONTROL_SPLIT);
        of_events.flat_map(|(split, position)| (0..*position).map(|at| (i64::from(*split), at as i64)))
    }

    /// What the control source has said by then.
    #[must_use]
    pub fn rules(&self, positions: &BTreeMap<u32, u64>) -> BTreeMap<i64, i64> {
        let said = positions.get(&CONTROL_SPLIT).copied().unwrap_or_default();
        (0..said).map(|at| self.row(CONTROL_SPLIT, at)).collect()
    }

    fn splits_of(&self, role: Role) -> std::ops::Range<u32> {
        match role {
            Role::Source(source) => {
                let first = source as u32 * SOURCE_STEP;
                first..first + self.shape.splits[source]
            }
            _ => CONTROL_SPLIT..CONTROL_SPLIT + u32::from(self.shape.control),
        }
    }

    /// The positions at the end of the input.
    #[must_use]
    pub fn end(&self) -> BTreeMap<u32, u64> {
        let sources = (0..SOURCES).map(Role::Source).chain([Role::Control]);
        sources.flat_map(|role| self.splits_of(role)).map(|split| (split, self.rows_of(split))).collect()
    }

    fn batch(&self, split: u32, positions: std::ops::Range<u64>) -> Result<Batch, TaskError> {
        let at: Vec<i64> = positions.clone().map(|position| position as i64).collect();
        let splits = vec![i64::from(split); at.len()];
        let times: Vec<i64> = positions.clone().map(|position| self.time(split, position)).collect();
        let (keys, values): (Vec<i64>, Vec<i64>) = positions.map(|position| self.row(split, position)).unzip();
        let shown = self.shown(&times);
        let mut columns =
            [keys, values, splits, at, times].map(|column| Arc::new(Int64Array::from(column)) as ArrayRef).to_vec();
        columns.push(Arc::new(TimestampMillisecondArray::from(shown)));
        let rows = RecordBatch::try_new(schema(), columns).map_err(|error| TaskError::Internal(error.to_string()))?;
        Ok(Batch::inserts(rows))
    }
}

/// The program of a revision.
///
/// # Panics
/// Never: the statements are well formed.
#[must_use]
pub fn program(
    events: Events,
    layout: &Layout,
    (view, archive, results): (&View, &Archive, &Results),
    stalls: Stalls,
) -> Program {
    let shape = events.shape;
    let counts = GroupAggregateFactory::new(group_by(shape.histogram)).expect("a well-formed GROUP BY");
    let histogram = GroupAggregateFactory::new(group_by_count(counts.output_schema())).expect("a well-formed GROUP BY");
    let (counted, counts, histogram) = (counts.output_schema(), Arc::new(counts), Arc::new(histogram));
    let sink = || -> Option<(OperatorUid, Arc<dyn SinkFactory>)> {
        Some(("view".into(), Arc::new(ViewSink { view: Arc::clone(view), stalls, events })))
    };
    let vertex = |role: Role| match role {
        Role::Source(_) | Role::Control => {
            let uid = if let Role::Source(source) = role { format!("events-{source}") } else { "control".to_owned() };
            let source: Arc<dyn SourceFactory> = Arc::new(Reading { events, role, watermarks: events.watermarks() });
            let source = Some((uid.as_str().into(), source));
            VertexProgram { source, operators: vec![], sink: None, output_schema: schema() }
        }
        Role::Relay => {
            let operators = vec![pass_on(RELAYED, || Box::new(Tally::default()))];
            VertexProgram { source: None, operators, sink: None, output_schema: schema() }
        }
        Role::Counts => {
            let rules = shape.control.then(|| pass_on(RULES, || Box::new(Rules::default())));
            let order = (!shape.has_relay()).then(|| pass_on("order", || Box::new(Order::default())));
            let lateness = pass_on(LATENESS, || Box::new(Lateness::default()));
            let tally = pass_on(TALLY, || Box::new(Tally::default()));
            let counts: (OperatorUid, Arc<dyn OperatorFactory>) = (COUNTS.into(), counts.clone());
            let operators = rules.into_iter().chain([lateness, tally]).chain(order).chain([counts]).collect();
            let sink = if shape.histogram { None } else { sink() };
            VertexProgram { source: None, operators, sink, output_schema: counted.clone() }
        }
        Role::Archive => {
            let sink: Arc<dyn SinkFactory> = Arc::new(ArchiveSink(Arc::clone(archive)));
            let sink = Some((ARCHIVE.into(), sink));
            VertexProgram { source: None, operators: vec![], sink, output_schema: schema() }
        }
        Role::Windows => {
            let factory = windows::aggregate(&events);
            let sink: Arc<dyn SinkFactory> = Arc::new(ResultsSink { results: Arc::clone(results), events });
            let output_schema = factory.output_schema();
            let operators: Vec<(OperatorUid, Arc<dyn OperatorFactory>)> = vec![(WINDOWS.into(), Arc::new(factory))];
            VertexProgram { source: None, operators, sink: Some((RESULTS.into(), sink)), output_schema }
        }
        Role::Histogram => {
            let operators: Vec<(OperatorUid, Arc<dyn OperatorFactory>)> = vec![(HISTOGRAM.into(), histogram.clone())];
            VertexProgram { source: None, operators, sink: sink(), output_schema: histogram.output_schema() }
        }
    };
    let vertices = shape.roles().into_iter().map(vertex).collect();
    Program { graph: shape.graph(layout), vertices }
}

fn pass_on(
    uid: &str,
    make: fn() -> Box<dyn sluice_engine::operator::Operator>,
) -> (OperatorUid, Arc<dyn OperatorFactory>) {
    (uid.into(), Arc::new(PassOn(make)))
}

fn group_by(emit_update_before: bool) -> GroupAggregateSpec {
    GroupAggregateSpec {
        input: schema(),
        keys: vec![0],
        key_names: vec!["k".to_owned()],
        calls: vec![
            AggregateCall::new(AggregateKind::Count, None, "n"),
            AggregateCall::new(AggregateKind::Sum, Some(1), "s"),
        ],
        emit_update_before,
        changelog: false,
        ttl: None,
    }
}

/// How many keys have the same count.
fn group_by_count(input: SchemaRef) -> GroupAggregateSpec {
    GroupAggregateSpec {
        input,
        keys: vec![1],
        key_names: vec!["n".to_owned()],
        calls: vec![
            AggregateCall::new(AggregateKind::Count, None, "keys"),
            AggregateCall::new(AggregateKind::Sum, Some(2), "s"),
        ],
        emit_update_before: false,
        changelog: true,
        ttl: None,
    }
}

fn schema() -> SchemaRef {
    let columns = ["k", "v", "split", "position", "time"];
    let shown = Field::new("shown", DataType::Timestamp(TimeUnit::Millisecond, None), true);
    let fields = columns.map(|name| Field::new(name, DataType::Int64, true)).into_iter().chain([shown]);
    Arc::new(Schema::new(fields.collect::<Vec<_>>()))
}

/// A column of numbers.
fn column(batch: &Batch, index: usize) -> Vec<i64> {
    batch.rows.column(index).as_primitive::<Int64Type>().values().to_vec()
}

/// One source.
struct Reading {
    events: Events,
    role: Role,
    watermarks: WatermarkStrategy,
}

struct Reader {
    events: Events,
    role: Role,
    clock: Clock,
    /// Split and position.
    splits: Vec<(u32, u64)>,
    next: usize,
    /// The split of the last poll.
    polled: String,
    /// Splits of which was told that they are read, and that they are read to their end.
    told: [BTreeSet<u32>; 2],
}

fn owner(split: u32, parallelism: u32) -> SubtaskIndex {
    SubtaskIndex(split % SOURCE_STEP % parallelism)
}

impl SourceFactory for Reading {
    fn create(&self) -> Result<Box<dyn Source>, TaskError> {
        let clock: Clock = Arc::new(sluice_protocol::Timestamp::default);
        Ok(Box::new(Reader {
            events: self.events,
            role: self.role,
            clock,
            splits: vec![],
            next: 0,
            polled: String::new(),
            told: Default::default(),
        }))
    }

    fn schema(&self) -> SchemaRef {
        schema()
    }

    fn watermarks(&self) -> Option<&WatermarkStrategy> {
        Some(&self.watermarks)
    }

    fn owner(&self, split: &str, parallelism: u32) -> SubtaskIndex {
        owner(split.parse().unwrap_or(0), parallelism)
    }
}

impl Source for Reader {
    fn open(&mut self, context: SourceContext, state: RestoredState) -> Result<(), TaskError> {
        self.clock = context.clock;
        for split in self.events.splits_of(self.role) {
            let name = split.to_string();
            if owner(split, context.operator.parallelism) != context.operator.subtask {
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
        let (now, count) = ((self.clock)().0, self.splits.len());
        for offset in 0..count {
            let at = (self.next + offset) % count;
            let (split, position) = self.splits[at];
            let end = self.events.available(split, now).min(position + max_rows as u64);
            if position < end {
                self.next = at + 1;
                self.splits[at].1 = end;
                self.polled = split.to_string();
                return Ok(SourcePoll::Batch(self.events.batch(split, position..end)?));
            }
        }
        let finished = self.splits.iter().all(|(split, position)| *position == self.events.rows_of(*split));
        Ok(if finished { SourcePoll::Finished } else { SourcePoll::Pending })
    }

    fn take_split_changes(&mut self) -> Option<Vec<SplitChange>> {
        let mut changes = Vec::new();
        for (number, position) in &self.splits {
            let split = number.to_string();
            if self.told[0].insert(*number) {
                changes.push(SplitChange::Added { split: split.clone(), may_idle: true });
            }
            if *position == self.events.rows_of(*number) && self.told[1].insert(*number) {
                changes.push(SplitChange::Finished { split });
            }
        }
        Some(changes)
    }

    fn polled_split(&self) -> Option<&str> {
        Some(&self.polled)
    }

    fn snapshot(&mut self) -> Result<Vec<SplitState>, TaskError> {
        let state = |(split, position): &(u32, u64)| SplitState {
            split: split.to_string(),
            state: serde_json::json!({ "position": position }),
        };
        Ok(self.splits.iter().map(state).collect())
    }
}
