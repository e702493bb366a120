//! Window table functions and aggregations by window.
//!
//! Where rows are aggregated by the windows of a table function right below, that function makes no rows: its columns hold
//! the time of the row, and the aggregation puts it into its slice. Everywhere else it makes a row per window, whose columns
//! say the window, and an aggregation goes by them.

use super::aggregate::{Inputs, Readable, described};
use super::late_rows::Lateness;
use super::time::{TimeAttribute, Times};
use super::{Lineage, Stream, Translator, Updates};
use crate::calc::{self, Calc, Output, Value};
use crate::error::{SqlError, SqlErrorKind};
use crate::graph::Chain;
use crate::uid::StatefulKind;
use crate::window::{WindowNode, Windows};
use arrow::datatypes::{DataType, SchemaRef, TimeUnit};
use datafusion_common::ScalarValue;
use datafusion_expr::logical_plan::Aggregate;
use datafusion_expr::{Expr, LogicalPlan, UserDefinedLogicalNodeCore, cast};
use sluice_engine::aggregate::AggregateCall;
use sluice_engine::error::TaskError;
use sluice_engine::operator::OperatorFactory;
use sluice_engine::window::{
    LateRows, RowTime, SessionAggregateFactory, SessionAggregateSpec, WindowAggregateFactory, WindowAggregateSpec,
    WindowKind, WindowTableFunctionFactory,
};
use sluice_protocol::TimeSpan;
use sluice_protocol::graph::{OperatorInfo, OperatorKind};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Which columns of a stream say the window of a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WindowColumns {
    /// The position of `window_start`.
    pub(crate) start: usize,
    /// The position of `window_end`.
    pub(crate) end: usize,
    /// The position of `window_time`, where it is left.
    pub(crate) time: Option<usize>,
    /// Whether they are sessions: those of several keys may end together without being one window.
    of_sessions: bool,
    /// Whether the rows are results of an aggregation by these windows, so that none is late.
    of_results: bool,
    /// Windows that are still to be made by an aggregation: `start` holds the time of the row.
    slices: Option<Slices>,
}

/// Windows that an aggregation makes.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Slices {
    windows: Windows,
    /// By the clock, not by the time of the row.
    by_clock: bool,
    /// Of sessions: the columns that a session belongs to.
    partition: Vec<usize>,
}

impl Slices {
    /// The windows of an aggregation, and the time by which a row belongs to them: that in `start`, or the clock's.
    fn made(&self, start: usize) -> (Windows, RowTime) {
        (self.windows.clone(), if self.by_clock { RowTime::Processing } else { RowTime::Column(start) })
    }
}

impl WindowColumns {
    /// Whether the columns say the window, which is not still to be made by an aggregation.
    pub(super) const fn are_made(&self) -> bool {
        self.slices.is_none()
    }

    /// Behind so many other columns.
    pub(super) fn behind(&self, columns: usize) -> Self {
        let time = self.time.map(|time| time + columns);
        let (start, end) = (self.start + columns, self.end + columns);
        Self { start, end, time, slices: None, ..*self }
    }

    /// Behind a projection that keeps start and end.
    pub(super) fn through(&self, outputs: &[Output]) -> Option<Self> {
        let place = |wanted: usize| {
            outputs.iter().position(|output| matches!(output.value, Value::Column(column) if column == wanted))
        };
        let (start, end) = (place(self.start)?, place(self.end)?);
        let slices = self.slices.as_ref().map(|slices| {
            // A column that is gone is none of the keys, which is found out there.
            let partition = slices.partition.iter().map(|column| place(*column).unwrap_or(usize::MAX)).collect();
            Slices { partition, ..slices.clone() }
        });
        Some(Self { start, end, time: self.time.and_then(place), slices, ..*self })
    }
}

/// The windows of an aggregation, and which of its keys say them.
pub(super) struct GroupedWindows {
    columns: WindowColumns,
    /// Of each key the column of the stream that it is.
    keys: Vec<Option<usize>>,
    start: usize,
    end: usize,
    time: Option<usize>,
}

impl GroupedWindows {
    fn is_window(&self, key: usize) -> bool {
        key == self.start || key == self.end || Some(key) == self.time
    }

    /// Whether the keys beside the window are just these columns.
    fn are_keys(&self, columns: &[usize]) -> bool {
        let keys = self.keys.iter().enumerate().filter(|(key, _)| !self.is_window(*key));
        let keys: Option<BTreeSet<usize>> = keys.map(|(_, column)| *column).collect();
        keys == Some(columns.iter().copied().collect())
    }

    /// Where the operator gives each key: the window's columns from `first` on, the others before the calls.
    fn places(&self, first: usize) -> impl Iterator<Item = usize> {
        let mut before = 0;
        (0..self.keys.len()).map(move |key| match key {
            key if key == self.start => first,
            key if key == self.end => first + 1,
            key if Some(key) == self.time => first + 2,
            _ => {
                before += 1;
                before - 1
            }
        })
    }
}

impl Translator<'_> {
    /// A window table function.
    pub(super) fn window(&mut self, node: &WindowNode) -> Result<Stream, SqlError> {
        let by_slice = std::mem::take(&mut self.counts_by_slice);
        let stream = self.stream(&node.input, true)?;
        if let Some(updates) = &stream.updates {
            let message = format!(
                "a window table function takes new rows only, but those of {} change later: put the window below it",
                updates.node
            );
            return Err(self.statement.invalid(&message));
        }
        self.check_time(&stream, node)?;
        match &node.windows {
            _ if by_slice => self.window_by_slice(stream, node),
            Windows::Aligned(kind) => self.window_rows(stream, node, kind),
            Windows::Session { .. } => Err(self
                .statement
                .unsupported("SESSION without an aggregation by window_start, window_end and its keys")),
        }
    }

    /// Rows that a condition leaves out hold sessions together all the same, but would not be there to do so.
    pub(super) fn check_sessions(&self, input: &LogicalPlan) -> Result<(), SqlError> {
        if !crate::window::parts_sessions(input) {
            return Ok(());
        }
        let message = "WHERE over SESSION can only look at the columns of its PARTITION BY: rows that it leaves out hold \
                       sessions together all the same. For sessions of the other rows filter below it, SESSION(TABLE v, …) \
                       with CREATE VIEW v AS SELECT … WHERE …; to leave rows out of an aggregate, write FILTER (WHERE …)";
        Err(self.statement.text.error(SqlErrorKind::Unsupported, self.statement.insert.query_at, message))
    }

    /// DESCRIPTOR names a time of which watermarks speak, or the clock.
    fn check_time(&self, stream: &Stream, node: &WindowNode) -> Result<(), SqlError> {
        let Some(Expr::Column(time)) = &node.time else { return Ok(()) };
        let index = stream.schema.maybe_index_of_column(time);
        if index.and_then(|index| stream.time_attribute(index)).is_some() {
            return Ok(());
        }
        let name = time.name();
        let message = format!(
            "column '{name}' in DESCRIPTOR is no time attribute: it must be the column of a WATERMARK FOR {name} AS {name} - \
             INTERVAL '5' SECOND, handed on as it is, the window_time of a window, or PROCTIME()"
        );
        Err(self.statement.invalid(&message))
    }

    /// The columns of the window hold the time of the row.
    fn window_by_slice(&mut self, stream: Stream, node: &WindowNode) -> Result<Stream, SqlError> {
        let planning = |error| self.statement.planning(&error);
        let columns = stream.schema.fields().len();
        let schema = UserDefinedLogicalNodeCore::schema(node);
        let mut outputs: Vec<Output> = (0..columns)
            .map(|index| Output {
                field: Arc::clone(stream.schema.field(index)),
                value: Value::Column(index),
                not_null: None,
            })
            .collect();
        for field in schema.fields().iter().skip(columns) {
            let time = match &node.time {
                Some(time) => cast(time.clone(), field.data_type().clone()),
                None => Expr::Literal(ScalarValue::try_from(field.data_type()).map_err(planning)?, None),
            };
            let output = calc::compile(&time, field.name(), &stream.schema, &stream.calc).map_err(planning)?;
            outputs.push(output);
        }
        let place = |key: &Expr| match key {
            Expr::Column(column) => stream.schema.maybe_index_of_column(column).unwrap_or(usize::MAX),
            _ => usize::MAX,
        };
        let partition = node.partition.iter().map(place).collect();
        let slices = Some(Slices { windows: node.windows.clone(), by_clock: node.time.is_none(), partition });
        let mut stream = self.project(stream, outputs)?;
        stream.schema = Arc::clone(schema);
        stream.windows = Some(WindowColumns {
            start: columns,
            end: columns + 1,
            time: Some(columns + 2),
            of_sessions: false,
            of_results: false,
            slices,
        });
        Ok(stream)
    }

    /// A row for each window.
    fn window_rows(&mut self, mut stream: Stream, node: &WindowNode, kind: &WindowKind) -> Result<Stream, SqlError> {
        let Some(time) = &node.time else {
            return Err(self
                .statement
                .unsupported("a window by PROCTIME() without an aggregation by window_start and window_end"));
        };
        stream.calc.keep_one();
        let stream = self.fuse(stream);
        let time = calc::compile(time, "", &stream.schema, &stream.calc);
        let time = time.map_err(|error| self.statement.planning(&error))?;
        let Value::Column(time) = time.value else {
            return Err(self.statement.internal("the time of a window is no column"));
        };
        let schema = UserDefinedLogicalNodeCore::schema(node);
        let before = 0..stream.chain.schema().fields().len();
        let own = [None, None, Some(TimeAttribute::Rowtime)];
        let times = Times::of(before.map(|column| stream.time_attribute(column)).chain(own).collect());
        let mut chain = stream.chain;
        let factory = WindowTableFunctionFactory::new(chain.schema(), kind.clone(), time);
        let factory = factory.map_err(|error| self.statement.invalid(&error.to_string()))?;
        self.calcs += 1;
        let description = format!("WindowTableFunction(window=[{kind}])");
        let info = OperatorInfo { uid: self.uids.window(self.calcs), kind: OperatorKind::Stateless, description };
        chain.push(info, "WindowTableFunction", Arc::new(factory));
        let columns = schema.fields().len();
        let mut calc = Calc::identity(chain.schema());
        // The chain may carry a column more than the plan knows, where the plan needs none.
        let more = calc.outputs.len() - columns;
        calc.outputs.drain(columns - 3..columns - 3 + more);
        let windows = WindowColumns {
            start: columns - 3,
            end: columns - 2,
            time: Some(columns - 1),
            of_sessions: false,
            of_results: false,
            slices: None,
        };
        let (schema, lineage) = (Arc::clone(schema), vec![Lineage::Other; columns]);
        Ok(Stream { chain, calc, schema, lineage, updates: None, times, windows: Some(windows) })
    }

    /// The windows that an aggregation groups by: both their start and their end are among its keys.
    pub(super) fn grouped_windows(
        &self,
        stream: &Stream,
        node: &Aggregate,
    ) -> Result<Option<GroupedWindows>, SqlError> {
        let Some(columns) = stream.windows.as_ref().filter(|columns| !columns.of_sessions) else { return Ok(None) };
        let mut keys = Vec::new();
        for key in &node.group_expr {
            let output = calc::compile(key, "", &stream.schema, &stream.calc);
            let output = output.map_err(|error| self.statement.planning(&error))?;
            keys.push(match output.value {
                Value::Column(index) => Some(index),
                Value::Computed(_) => None,
            });
        }
        let place = |column: usize| keys.iter().position(|key| *key == Some(column));
        let (Some(start), Some(end)) = (place(columns.start), place(columns.end)) else { return Ok(None) };
        let time = columns.time.and_then(place);
        Ok(Some(GroupedWindows { columns: columns.clone(), keys, start, end, time }))
    }

    /// GROUP BY window_start, window_end and other keys.
    pub(super) fn window_aggregate(
        &mut self,
        stream: Stream,
        node: &Aggregate,
        windows: &GroupedWindows,
        needs_before: bool,
    ) -> Result<Stream, SqlError> {
        let stateful = self.next_stateful(StatefulKind::Aggregate)?;
        self.check_windows(&stream, windows)?;
        let (mut inputs, mut keys) = (Inputs::default(), Vec::new());
        for (_, key) in node.group_expr.iter().enumerate().filter(|(index, _)| !windows.is_window(*index)) {
            keys.push(self.input(&mut inputs, &stream, key)?);
        }
        let calls = self.calls(&mut inputs, &stream, &node.aggr_expr)?;
        let key_names: Vec<String> = keys.iter().map(|key| inputs.texts[*key].clone()).collect();
        let start = self.input(&mut inputs, &stream, &node.group_expr[windows.start])?;
        let (made, time) = match &windows.columns.slices {
            Some(slices) => slices.made(start),
            None => {
                let end = self.input(&mut inputs, &stream, &node.group_expr[windows.end])?;
                (Windows::Aligned(WindowKind::Attached { start, end }), RowTime::Column(start))
            }
        };
        let late = self.lateness(&made, time, (needs_before, windows.columns.of_results))?;
        if late.to.is_some() {
            self.inputs_of_late_rows(&mut inputs, &stream)?;
        }
        let at = DataType::Timestamp(TimeUnit::Millisecond, None);
        let window_time = windows.time.map_or(at, |index| node.schema.field(index).data_type().clone());
        let readable = std::mem::take(&mut inputs.readable);
        let description = describe(&made, &key_names, &calls, &readable);
        let stream = self.only(stream, inputs.outputs)?;
        let (input, call_count) = (Arc::clone(stream.chain.schema()), calls.len());
        let names = key_names.clone();
        let grouping = (Arc::clone(&input), keys.clone(), key_names, calls);
        if grouping.3.iter().any(|call| call.distinct) {
            let made = (made, time, window_time);
            let grouping = (grouping, &readable);
            let (chain, _) = self.distinct_by_window(stream, grouping, made, (&stateful.uid, start, &late))?;
            return self.window_output(chain, node, windows, (names.len(), call_count), None);
        }
        let factory = operator(made, grouping, (time, window_time), &late);
        let (factory, results) = factory.map_err(|error| self.statement.invalid(&error.to_string()))?;
        let updates = late.allowed.map(|_| updates_of(node, &description));
        let is_global = keys.is_empty();
        let info = OperatorInfo { uid: stateful.uid.clone(), kind: OperatorKind::Keyed, description };
        let name = format!("WindowAggregate[{}]", readable.list(&names));
        let mut chain = self.keyed(stream.chain, (keys, input), info, &name, factory)?;
        if late.to.is_some() {
            chain = self.send_late_rows(chain, &results, (&stateful.uid, start), is_global)?;
        }
        self.window_output(chain, node, windows, (names.len(), call_count), updates)
    }

    /// Refuses what windows cannot aggregate.
    fn check_windows(&self, stream: &Stream, windows: &GroupedWindows) -> Result<(), SqlError> {
        if let Some(updates) = &stream.updates {
            let message =
                format!("an aggregation by windows takes new rows only, but those of {} change later", updates.node);
            return Err(self.statement.invalid(&message));
        }
        if let Some(slices) = &windows.columns.slices
            && matches!(slices.windows, Windows::Session { .. })
            && !windows.are_keys(&slices.partition)
        {
            let message = "an aggregation over SESSION must group by window_start, window_end and just the columns of \
                           its PARTITION BY: SESSION(TABLE t PARTITION BY (k), …) … GROUP BY window_start, window_end, k";
            return Err(self.statement.invalid(message));
        }
        Ok(())
    }

    /// The columns in the order of the statement: the operator gives keys, calls and windows.
    fn window_output(
        &self,
        chain: Chain,
        node: &Aggregate,
        windows: &GroupedWindows,
        (keys, calls): (usize, usize),
        updates: Option<Updates>,
    ) -> Result<Stream, SqlError> {
        let slices = windows.columns.slices.as_ref();
        let by_clock = slices.is_some_and(|slices| slices.by_clock);
        let of_sessions = slices.is_some_and(|slices| matches!(slices.windows, Windows::Session { .. }));
        let first = keys + calls;
        let places = windows.places(first).chain(keys..first);
        let mut calc = Calc::identity(chain.schema());
        calc.outputs = places.map(|place| calc.outputs[place].clone()).collect();
        let made = calc.schema();
        let planned = node.schema.fields();
        if made.fields().len() != planned.len()
            || made.fields().iter().zip(planned).any(|(made, planned)| made.data_type() != planned.data_type())
        {
            return Err(self.statement.internal(&format!("an aggregation gives other columns than planned: {made:?}")));
        }
        let mut lineage: Vec<Lineage> = (0..node.group_expr.len()).map(Lineage::Key).collect();
        lineage.resize(planned.len(), Lineage::Other);
        let (start, end, time) = (windows.start, windows.end, windows.time);
        let windows = WindowColumns { start, end, time, of_sessions, of_results: true, slices: None };
        let mut times = vec![None; first + 2];
        // What changes behind the watermark has no time that others could go by, nor windows that are over.
        let is_settled = updates.is_none();
        times.push(Some(TimeAttribute::Rowtime).filter(|_| !by_clock && is_settled));
        let (times, schema) = (Times::of(times), Arc::clone(&node.schema));
        // What comes out by the clock no watermark speaks of: nothing above goes by such windows.
        let windows = Some(windows).filter(|_| !by_clock && is_settled);
        Ok(Stream { chain, calc, schema, lineage, updates, times, windows })
    }
}

/// Results that late rows change.
fn updates_of(node: &Aggregate, description: &str) -> Updates {
    let keys = node.schema.fields().iter().take(node.group_expr.len()).map(|key| key.name().clone());
    Updates { node: description.to_owned(), keys: Some(keys.collect()), are_filtered: false, in_pairs: true }
}

/// The input, the positions and names of the keys, and the calls.
pub(super) type Grouping = (SchemaRef, Vec<usize>, Vec<String>, Vec<AggregateCall>);

/// The operator of an aggregation by windows, and the columns of its results.
pub(super) fn operator(
    windows: Windows,
    (input, keys, key_names, calls): Grouping,
    (time, window_time): (RowTime, DataType),
    late: &Lateness,
) -> Result<(Arc<dyn OperatorFactory>, SchemaRef), TaskError> {
    Ok(match windows {
        Windows::Aligned(kind) => {
            let spec = WindowAggregateSpec {
                input,
                keys,
                key_names,
                calls,
                kind,
                time,
                window_time,
                late: LateRows {
                    allowed_lateness: late.allowed.map_or(TimeSpan(0), TimeSpan::from),
                    emit_update_before: late.needs_before,
                    emit: late.to.is_some(),
                },
            };
            let factory = WindowAggregateFactory::new(spec)?;
            let results = Arc::clone(factory.results());
            (Arc::new(factory), results)
        }
        Windows::Session { gap } => {
            let spec = SessionAggregateSpec { input, keys, key_names, calls, gap, time, window_time };
            let factory = SessionAggregateFactory::new(spec)?;
            let results = factory.output_schema();
            (Arc::new(factory), results)
        }
    })
}

/// `WindowAggregate(window=[TUMBLE(10000 ms)], groupBy=[a], select=[a, COUNT(*)])`.
pub(super) fn describe(windows: &Windows, keys: &[String], calls: &[AggregateCall], readable: &Readable) -> String {
    format!("WindowAggregate(window=[{windows}], {})", described(keys, calls, readable))
}
