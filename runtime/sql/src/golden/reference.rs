//! What a statement must give, evaluated over the whole input at once.
//!
//! Takes the plan as DataFusion resolved and typed it, before any optimiser, and evaluates it node by node over
//! materialised rows: joins as nested loops, groups by the text of their keys, aggregates by DataFusion's arithmetic of
//! single values. Shares with the code under test how names and types are resolved, and DataFusion's expressions.

use super::memory::{Connectors, SinkContent, add};
use super::planned::{Planned, planned};
use crate::flatten;
use crate::translate::evaluated;
use crate::window::{self, WindowNode, Windows};
use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, Int32Array, Int64Array, RecordBatch, RecordBatchOptions, UInt32Array,
};
use arrow::compute::{SortOptions, cast, concat_batches, filter_record_batch, take};
use arrow::datatypes::{DataType, Int64Type, Schema, SchemaRef, TimeUnit};
use arrow::row::{RowConverter, SortField};
use arrow::util::display::{ArrayFormatter, FormatOptions};
use datafusion_common::{DFSchema, ScalarValue};
use datafusion_expr::execution_props::ExecutionProps;
use datafusion_expr::logical_plan::{Aggregate, Distinct, Join, Window};
use datafusion_expr::physical_planning_context::PhysicalPlanningContext;
use datafusion_expr::utils::split_conjunction;
use datafusion_expr::{Expr, JoinType, LogicalPlan};
use sluice_engine::window::WindowKind;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The rows that the sinks must hold.
pub(crate) fn content(sql: &str, connectors: &Connectors) -> SinkContent {
    let mut all = SinkContent::new();
    for Planned { sink, plan } in planned(sql, connectors) {
        let mut content = SinkContent::new();
        for row in texts(&evaluate(&plan, connectors)) {
            *content.entry(row.join(", ")).or_default() += 1;
        }
        add(&mut all, sink.as_ref(), content);
    }
    all
}

/// Every row as texts.
pub(super) fn texts(rows: &RecordBatch) -> Vec<Vec<String>> {
    let options = FormatOptions::default().with_null("NULL");
    let columns: Vec<ArrayFormatter<'_>> =
        rows.columns().iter().map(|column| ArrayFormatter::try_new(column, &options).unwrap()).collect();
    (0..rows.num_rows()).map(|row| columns.iter().map(|column| column.value(row).to_string()).collect()).collect()
}

fn evaluate(plan: &LogicalPlan, connectors: &Connectors) -> RecordBatch {
    let input = |plan: &LogicalPlan| evaluate(plan, connectors);
    match plan {
        LogicalPlan::TableScan(scan) => {
            let splits = connectors.table(scan.table_name.table());
            let all = concat_batches(splits[0].schema_ref(), splits.iter()).unwrap();
            let names = scan.projected_schema.fields().iter().map(|field| all.column_by_name(field.name()).unwrap());
            batch(&scan.projected_schema, names.cloned().collect(), all.num_rows())
        }
        LogicalPlan::SubqueryAlias(alias) => renamed(&alias.schema, &input(&alias.input)),
        LogicalPlan::Projection(projection) => {
            let rows = input(&projection.input);
            let made = projection.expr.iter().map(|expression| column(expression, projection.input.schema(), &rows));
            batch(&projection.schema, made.collect(), rows.num_rows())
        }
        LogicalPlan::Filter(filter) => {
            // What stands left of AND keeps rows from what stands right.
            split_conjunction(&filter.predicate).into_iter().fold(input(&filter.input), |rows, condition| {
                let passes = column(condition, filter.input.schema(), &rows);
                filter_record_batch(&rows, passes.as_boolean()).unwrap()
            })
        }
        LogicalPlan::Union(union) => {
            let all: Vec<RecordBatch> = union.inputs.iter().map(|plan| renamed(&union.schema, &input(plan))).collect();
            concat_batches(all[0].schema_ref(), all.iter()).unwrap()
        }
        LogicalPlan::Distinct(Distinct::All(below)) => {
            let rows = input(below);
            let mut seen = BTreeSet::new();
            let first: BooleanArray = texts(&rows).into_iter().map(|row| Some(seen.insert(row))).collect();
            filter_record_batch(&rows, &first).unwrap()
        }
        LogicalPlan::Join(join) => joined(join, &input(&join.left), &input(&join.right)),
        LogicalPlan::Window(window) => numbered(window, &input(&window.input)),
        LogicalPlan::Values(values) => renamed(&values.schema, &evaluated(values).unwrap()),
        LogicalPlan::EmptyRelation(empty) => batch(&empty.schema, Vec::new(), usize::from(empty.produce_one_row)),
        LogicalPlan::Aggregate(aggregate) => aggregated(aggregate, &input(&aggregate.input)),
        LogicalPlan::Extension(extension) => {
            if let Some(node) = window::of_extension(extension) {
                return windowed(plan.schema(), node, &input(&node.input));
            }
            let node = flatten::of_extension(extension).expect("UNNEST is the other extension");
            let below = node.input().unwrap();
            let rows = input(below);
            let lists = column(&node.list, below.schema(), &rows);
            flattened(plan.schema(), &rows, &lists, node.has_ordinality, node.is_outer)
        }
        other => panic!("the reference does not know {}", other.display()),
    }
}

/// Rows with all columns nullable, so that no node has to care.
fn batch(schema: &DFSchema, columns: Vec<ArrayRef>, rows: usize) -> RecordBatch {
    let fields = schema.fields().iter().zip(&columns).map(|(field, column)| {
        assert_eq!(field.data_type(), column.data_type(), "column {}", field.name());
        field.as_ref().clone().with_nullable(true)
    });
    let schema: SchemaRef = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    RecordBatch::try_new_with_options(schema, columns, &options).unwrap()
}

fn renamed(schema: &DFSchema, rows: &RecordBatch) -> RecordBatch {
    batch(schema, rows.columns().to_vec(), rows.num_rows())
}

fn column(expression: &Expr, schema: &DFSchema, rows: &RecordBatch) -> ArrayRef {
    let context = PhysicalPlanningContext::default();
    let made = datafusion_physical_expr::create_physical_expr(expression, schema, &ExecutionProps::new(), &context);
    let value = made.and_then(|made| made.evaluate(rows)).and_then(|value| value.into_array(rows.num_rows()));
    value.unwrap_or_else(|error| panic!("{expression}: {error}"))
}

fn picked(rows: &RecordBatch, picks: &[Option<u32>]) -> Vec<ArrayRef> {
    let picks = UInt32Array::from(picks.to_vec());
    rows.columns().iter().map(|column| take(column, &picks, None).unwrap()).collect()
}

/// Every pair of rows, of which those stay for which all conditions hold.
fn joined(join: &Join, left: &RecordBatch, right: &RecordBatch) -> RecordBatch {
    let (left_is_outer, right_is_outer) = match join.join_type {
        JoinType::Inner => (false, false),
        JoinType::Left => (true, false),
        JoinType::Right => (false, true),
        JoinType::Full => (true, true),
        other => panic!("the reference does not know {other} JOIN"),
    };
    let both = DFSchema::join(join.left.schema(), join.right.schema()).unwrap();
    let keys = join.on.iter().map(|(one, other)| one.clone().eq(other.clone()));
    let condition = keys.chain(join.filter.clone()).reduce(Expr::and);
    let (mut lefts, mut rights) = (Vec::new(), Vec::new());
    for row in 0..u32::try_from(left.num_rows()).unwrap() {
        let count = u32::try_from(right.num_rows()).unwrap();
        let all: Vec<Option<u32>> = (0..count).map(Some).collect();
        let mut columns = picked(left, &vec![Some(row); right.num_rows()]);
        columns.extend(picked(right, &all));
        let pairs = batch(&both, columns, right.num_rows());
        let passes = condition.as_ref().map(|condition| column(condition, &both, &pairs));
        let passes = |other: &u32| {
            let other = *other as usize;
            passes.as_ref().is_none_or(|passes| passes.is_valid(other) && passes.as_boolean().value(other))
        };
        let before = rights.len();
        rights.extend((0..count).filter(passes).map(Some));
        if rights.len() == before && left_is_outer {
            rights.push(None);
        }
        lefts.resize(rights.len(), Some(row));
    }
    if right_is_outer {
        let lonely = (0..u32::try_from(right.num_rows()).unwrap()).map(Some).filter(|row| !rights.contains(row));
        rights.extend(lonely.collect::<Vec<_>>());
        lefts.resize(rights.len(), None);
    }
    let mut columns = picked(left, &lefts);
    columns.extend(picked(right, &rights));
    batch(&join.schema, columns, lefts.len())
}

/// Every row with its number, by sorting all; rows that tie by their columns.
fn numbered(window: &Window, rows: &RecordBatch) -> RecordBatch {
    let [call] = window.window_expr.as_slice() else { panic!("one function at a time") };
    let Expr::WindowFunction(call) = call.clone().unalias() else { panic!("{call} is no window function") };
    assert_eq!(call.fun.name(), "row_number");
    let schema = window.input.schema();
    let keys = call.params.partition_by.iter().map(|key| (column(key, schema, rows), SortOptions::default()));
    // Which row came first is not known here: such statements ask for what is the same of all.
    let by_columns = call.params.order_by.iter().filter(|sort| !sort.expr.to_string().starts_with("proctime("));
    let order = by_columns.map(|sort| {
        let options = SortOptions { descending: !sort.asc, nulls_first: sort.nulls_first };
        (column(&sort.expr, schema, rows), options)
    });
    let others = rows.columns().iter().map(|column| (Arc::clone(column), SortOptions::default()));
    let all: Vec<(ArrayRef, SortOptions)> = keys.chain(order).chain(others).collect();
    let field =
        |(column, options): &(ArrayRef, SortOptions)| SortField::new_with_options(column.data_type().clone(), *options);
    let converted = |columns: &[(ArrayRef, SortOptions)]| {
        let converter = RowConverter::new(columns.iter().map(field).collect()).unwrap();
        converter.convert_columns(&columns.iter().map(|(column, _)| Arc::clone(column)).collect::<Vec<_>>()).unwrap()
    };
    let sorted = converted(&all);
    let mut places: Vec<usize> = (0..rows.num_rows()).collect();
    places.sort_by(|one, other| sorted.row(*one).cmp(&sorted.row(*other)));
    let partition = &all[..call.params.partition_by.len()];
    let partitions = (!partition.is_empty()).then(|| converted(partition));
    let mut numbers = vec![0_i64; rows.num_rows()];
    for (index, row) in places.iter().enumerate() {
        let before = index.checked_sub(1).map(|before| places[before]);
        let same = |before: &usize| partitions.as_ref().is_none_or(|all| all.row(*before) == all.row(*row));
        numbers[*row] = before.filter(same).map_or(1, |before| numbers[before] + 1);
    }
    let mut columns = rows.columns().to_vec();
    columns.push(Arc::new(Int64Array::from(numbers)));
    batch(&window.schema, columns, rows.num_rows())
}

fn aggregated(aggregate: &Aggregate, rows: &RecordBatch) -> RecordBatch {
    let schema = aggregate.input.schema();
    let keys: Vec<ArrayRef> = aggregate.group_expr.iter().map(|key| column(key, schema, rows)).collect();
    let fields = keys.iter().enumerate().map(|(index, key)| (index.to_string(), Arc::clone(key)));
    let mut groups: BTreeMap<Vec<String>, Vec<u32>> = BTreeMap::new();
    if keys.is_empty() {
        // As in a stream, there is no row before the first one.
        let all = (0..u32::try_from(rows.num_rows()).unwrap()).collect::<Vec<_>>();
        groups.extend((!all.is_empty()).then(|| (Vec::new(), all)));
    } else {
        let of_rows =
            texts(&RecordBatch::try_from_iter_with_nullable(fields.map(|(name, key)| (name, key, true))).unwrap());
        for (row, key) in of_rows.into_iter().enumerate() {
            groups.entry(key).or_default().push(u32::try_from(row).unwrap());
        }
    }
    let first = UInt32Array::from_iter_values(groups.values().map(|members| members[0]));
    let mut columns: Vec<ArrayRef> = keys.iter().map(|key| take(key, &first, None).unwrap()).collect();
    for (call, field) in aggregate.aggr_expr.iter().zip(aggregate.schema.fields().iter().skip(keys.len())) {
        let values = groups.values().map(|members| value(call, schema, rows, members, field.data_type()));
        let values: Vec<ScalarValue> = values.collect();
        columns.push(match values.is_empty() {
            true => arrow::array::new_empty_array(field.data_type()),
            false => ScalarValue::iter_to_array(values).unwrap(),
        });
    }
    batch(&aggregate.schema, columns, groups.len())
}

/// One aggregate of one group.
fn value(call: &Expr, schema: &DFSchema, rows: &RecordBatch, members: &[u32], result: &DataType) -> ScalarValue {
    let Expr::AggregateFunction(function) = call.clone().unalias() else { panic!("{call} is no aggregate") };
    let picks: Vec<Option<u32>> = members.iter().copied().map(Some).collect();
    let group = RecordBatch::try_new(rows.schema(), picked(rows, &picks)).unwrap();
    let passes = function.params.filter.as_ref().map(|filter| column(filter, schema, &group));
    let passes =
        |row: &usize| passes.as_ref().is_none_or(|passes| passes.is_valid(*row) && passes.as_boolean().value(*row));
    let argument = column(&function.params.args[0], schema, &group);
    let values = (0..group.num_rows()).filter(passes).map(|row| ScalarValue::try_from_array(&argument, row).unwrap());
    let mut values: Vec<ScalarValue> = values.filter(|value| !value.is_null()).collect();
    if function.params.distinct {
        let mut seen = BTreeSet::new();
        values.retain(|value| seen.insert(value.to_string()));
    }
    let count = i64::try_from(values.len()).unwrap();
    let null = || ScalarValue::try_from(result).unwrap();
    let sum = |of: &DataType| {
        let cast = values.iter().map(|value| value.cast_to(of).unwrap());
        cast.reduce(|sum, value| sum.add(value).unwrap())
    };
    let extreme = |wanted: Ordering| {
        values.iter().cloned().reduce(|best, next| if next.partial_cmp(&best) == Some(wanted) { next } else { best })
    };
    match function.func.name() {
        "count" => ScalarValue::Int64(Some(count)),
        "sum" => sum(result).map_or_else(null, |sum| sum.cast_to(result).unwrap()),
        "min" => extreme(Ordering::Less).unwrap_or_else(null),
        "max" => extreme(Ordering::Greater).unwrap_or_else(null),
        "avg" => average(sum, count, result).unwrap_or_else(null),
        other => panic!("the reference does not know {other}"),
    }
}

/// Whole numbers give a whole number, without its fraction.
fn average(sum: impl Fn(&DataType) -> Option<ScalarValue>, count: i64, result: &DataType) -> Option<ScalarValue> {
    Some(match result {
        DataType::Float32 | DataType::Float64 => {
            let ScalarValue::Float64(Some(sum)) = sum(&DataType::Float64)? else { return None };
            ScalarValue::Float64(Some(sum / count as f64)).cast_to(result).unwrap()
        }
        DataType::Decimal128(_, scale) => {
            let ScalarValue::Decimal128(Some(sum), ..) = sum(&DataType::Decimal128(38, *scale))? else { return None };
            let (count, half) = (i128::from(count), i128::from(count) / 2);
            let rounded = if sum < 0 { (sum - half) / count } else { (sum + half) / count };
            ScalarValue::Decimal128(Some(rounded), 38, *scale).cast_to(result).unwrap()
        }
        _ => {
            let ScalarValue::Int64(Some(sum)) = sum(&DataType::Int64)? else { return None };
            ScalarValue::Int64(Some(sum / count)).cast_to(result).unwrap()
        }
    })
}

/// Each row once per window, which are tried one by one.
fn windowed(schema: &DFSchema, node: &WindowNode, rows: &RecordBatch) -> RecordBatch {
    let time = node.time.as_ref().expect("the reference has no clock");
    let times = cast(&column(time, node.input.schema(), rows), &DataType::Int64).unwrap();
    let times = times.as_primitive::<Int64Type>();
    let partition: Vec<(String, ArrayRef)> = node
        .partition
        .iter()
        .enumerate()
        .map(|(index, key)| (index.to_string(), column(key, node.input.schema(), rows)))
        .collect();
    let keys = match partition.is_empty() {
        true => vec![Vec::new(); rows.num_rows()],
        false => {
            texts(&RecordBatch::try_from_iter_with_nullable(partition.into_iter().map(|(n, c)| (n, c, true))).unwrap())
        }
    };
    let (mut picks, mut starts, mut ends) = (Vec::new(), Vec::new(), Vec::new());
    for row in (0..rows.num_rows()).filter(|row| times.is_valid(*row)) {
        let windows = match &node.windows {
            Windows::Aligned(kind) => windows_of(kind, times.value(row)),
            Windows::Session { gap } => {
                let others = (0..rows.num_rows()).filter(|other| times.is_valid(*other) && keys[*other] == keys[row]);
                vec![session_of(times.value(row), *gap, others.map(|other| times.value(other)).collect())]
            }
        };
        for (start, end) in windows {
            picks.push(Some(u32::try_from(row).unwrap()));
            starts.push(start);
            ends.push(end);
        }
    }
    let mut columns = picked(rows, &picks);
    let last: Vec<i64> = ends.iter().map(|end| end - 1).collect();
    for times in [starts, ends, last] {
        let at = cast(&Int64Array::from(times), &DataType::Timestamp(TimeUnit::Millisecond, None)).unwrap();
        columns.push(cast(&at, schema.field(columns.len()).data_type()).unwrap());
    }
    batch(schema, columns, picks.len())
}

fn windows_of(kind: &WindowKind, time: i64) -> Vec<(i64, i64)> {
    let (every, offset, lengths) = match kind {
        WindowKind::Tumble { size, offset } => (*size, *offset, vec![*size]),
        WindowKind::Hop { slide, size, offset } => (*slide, *offset, vec![*size]),
        WindowKind::Cumulate { step, size, offset } => {
            (*size, *offset, (1..=size / step).map(|steps| steps * step).collect())
        }
        WindowKind::Attached { .. } => panic!("no table function makes these"),
    };
    let longest = lengths.iter().copied().max().unwrap();
    let begins = (time - longest..=time).filter(|begin| (begin - offset) % every == 0);
    begins
        .flat_map(|begin| lengths.iter().map(move |length| (begin, begin + length)))
        .filter(|(begin, end)| *begin <= time && time < *end)
        .collect()
}

/// The session of a time among all times of its key.
fn session_of(time: i64, gap: i64, mut all: Vec<i64>) -> (i64, i64) {
    all.sort_unstable();
    let pieces: Vec<&[i64]> = all.chunk_by(|one, next| next - one <= gap).collect();
    let own = pieces.into_iter().find(|piece| piece.contains(&time)).unwrap();
    (own[0], own[own.len() - 1] + gap)
}

fn flattened(schema: &DFSchema, rows: &RecordBatch, lists: &ArrayRef, ordinality: bool, is_outer: bool) -> RecordBatch {
    let lists = lists.as_list::<i32>();
    let (mut picks, mut elements, mut numbers) = (Vec::new(), Vec::new(), Vec::new());
    for row in 0..rows.num_rows() {
        let list = lists.is_valid(row).then(|| lists.value(row)).filter(|list| !list.is_empty());
        for element in 0..list.as_ref().map_or(usize::from(is_outer), |list| list.len()) {
            picks.push(Some(u32::try_from(row).unwrap()));
            let value = list.as_ref().map(|list| ScalarValue::try_from_array(list, element).unwrap());
            numbers.push(value.as_ref().map(|_| i32::try_from(element).unwrap() + 1));
            elements.push(value.unwrap_or_else(|| ScalarValue::try_from(&lists.value_type()).unwrap()));
        }
    }
    let mut columns = picked(rows, &picks);
    columns.push(match elements.is_empty() {
        true => arrow::array::new_empty_array(&lists.value_type()),
        false => ScalarValue::iter_to_array(elements).unwrap(),
    });
    if ordinality {
        columns.push(Arc::new(Int32Array::from(numbers)));
    }
    batch(schema, columns, picks.len())
}
