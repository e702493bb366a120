//! What DataFusion's own batch execution gives for a statement: its optimiser, its physical planner and its operators, over
//! the whole input at once.
//!
//! The plan is the one that is also translated to a job, so names, types and Flink's functions are the same; everything
//! behind it shares nothing with the job and with [`super::reference`]. A statement with a node of our own, which
//! DataFusion cannot execute, has no batch execution.

use super::memory::{Connectors, SinkContent, add};
use super::planned::{Planned, planned};
use super::reference::texts;
use arrow::array::RecordBatch;
use arrow::datatypes::DataType;
use datafusion::catalog::MemTable;
use datafusion::datasource::provider_as_source;
use datafusion::functions_window::row_number::row_number_udwf;
use datafusion::prelude::SessionContext;
use datafusion_common::tree_node::{Transformed, TreeNode};
use datafusion_common::{DFSchema, Result};
use datafusion_expr::logical_plan::{Aggregate, Projection, TableScan, Window};
use datafusion_expr::{Expr, ExprSchemable, LogicalPlan, WindowFunctionDefinition, cast};
use datafusion_functions_aggregate::average::avg_udaf;
use datafusion_functions_aggregate::sum::sum_udaf;
use std::sync::Arc;

/// The rows that the sinks must hold; none where DataFusion cannot execute the statement.
pub(crate) fn content(sql: &str, connectors: &Connectors) -> Option<SinkContent> {
    let mut all = SinkContent::new();
    for Planned { sink, plan } in planned(sql, connectors) {
        if plan.exists(|node| Ok(matches!(node, LogicalPlan::Extension(_)))).unwrap() {
            return None;
        }
        let mut content = SinkContent::new();
        for batch in execute(plan, connectors) {
            for row in texts(&batch) {
                *content.entry(row.join(", ")).or_default() += 1;
            }
        }
        add(&mut all, sink.as_ref(), content);
    }
    Some(all)
}

fn execute(plan: LogicalPlan, connectors: &Connectors) -> Vec<RecordBatch> {
    let plan = plan.transform_up(|node| {
        Ok(match node {
            LogicalPlan::TableScan(scan) => Transformed::yes(LogicalPlan::TableScan(over_rows(scan, connectors))),
            LogicalPlan::Aggregate(aggregate) => Transformed::yes(with_functions(aggregate)?),
            LogicalPlan::Window(window) => Transformed::yes(with_row_number(window)?),
            other => Transformed::no(other),
        })
    });
    let plan = plan.unwrap().data;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let rows = SessionContext::new().execute_logical_plan(plan).await.unwrap_or_else(|error| panic!("{error}"));
        rows.collect().await.unwrap_or_else(|error| panic!("{error}"))
    })
}

/// The aggregation with DataFusion's SUM and AVG for those that only the engine runs; their results are cast to the types
/// that these have in Flink.
fn with_functions(aggregate: Aggregate) -> Result<LogicalPlan> {
    let own = |expression: Expr| {
        let replaced = expression.transform_up(|node| {
            let Expr::AggregateFunction(mut call) = node else { return Ok(Transformed::no(node)) };
            let is_sum = match call.func.name() {
                "sum" => true,
                "avg" => false,
                _ => return Ok(Transformed::no(Expr::AggregateFunction(call))),
            };
            call.func = if is_sum { sum_udaf() } else { avg_udaf() };
            for argument in &mut call.params.args {
                let wide = match argument.get_type(aggregate.input.schema())? {
                    kind if kind.is_integer() && is_sum => DataType::Int64,
                    kind if kind.is_integer() || kind.is_floating() => DataType::Float64,
                    // Theirs cuts off, ours rounds: with more digits the cast to our type rounds.
                    DataType::Decimal128(_, scale) if !is_sum => DataType::Decimal128(30, scale + 4),
                    _ => continue,
                };
                *argument = cast(argument.clone(), wide);
            }
            Ok(Transformed::yes(Expr::AggregateFunction(call)))
        });
        replaced.map(|replaced| replaced.data)
    };
    let calls = aggregate.aggr_expr.iter().cloned().map(own).collect::<Result<Vec<_>>>()?;
    let made = Aggregate::try_new(aggregate.input.clone(), aggregate.group_expr.clone(), calls)?;
    of_types(LogicalPlan::Aggregate(made), &aggregate.schema)
}

/// The same columns with these types and names.
fn of_types(plan: LogicalPlan, wanted: &DFSchema) -> Result<LogicalPlan> {
    let columns = wanted.iter().zip(plan.schema().columns()).map(|((qualifier, field), column)| {
        cast(Expr::Column(column), field.data_type().clone()).alias_qualified(qualifier.cloned(), field.name())
    });
    let columns = columns.collect();
    Ok(LogicalPlan::Projection(Projection::try_new(columns, Arc::new(plan))?))
}

/// DataFusion's ROW_NUMBER for ours. Rows that tie are ordered by all their columns. The time of arrival, which is not known
/// here, is nothing to order by: such statements ask for what is the same of all.
fn with_row_number(window: Window) -> Result<LogicalPlan> {
    let own = |expression: &Expr| {
        let replaced = expression.clone().transform_up(|node| {
            let Expr::WindowFunction(mut call) = node else { return Ok(Transformed::no(node)) };
            call.fun = WindowFunctionDefinition::WindowUDF(row_number_udwf());
            call.params.order_by.retain(|sort| !sort.expr.to_string().starts_with("proctime("));
            let columns = window.input.schema().columns().into_iter();
            call.params.order_by.extend(columns.map(|column| Expr::Column(column).sort(true, true)));
            Ok(Transformed::yes(Expr::WindowFunction(call)))
        });
        replaced.map(|replaced| replaced.data)
    };
    let calls = window.window_expr.iter().map(own).collect::<Result<Vec<_>>>()?;
    let made = LogicalPlan::Window(Window::try_new(calls, Arc::clone(&window.input))?);
    of_types(made, &window.schema)
}

/// The scan, over the rows of the table, which may be declared with fewer columns than they have.
fn over_rows(scan: TableScan, connectors: &Connectors) -> TableScan {
    let schema = scan.source.schema();
    let splits = connectors.table(scan.table_name.table()).iter().map(|split| {
        let columns = schema.fields().iter().map(|field| Arc::clone(split.column_by_name(field.name()).unwrap()));
        RecordBatch::try_new(Arc::clone(&schema), columns.collect()).unwrap()
    });
    let table = MemTable::try_new(Arc::clone(&schema), splits.map(|split| vec![split]).collect()).unwrap();
    TableScan { source: provider_as_source(Arc::new(table)), ..scan }
}
