//! What DataFusion's own batch execution gives for a statement: its optimiser, its physical planner and its operators, over
//! the whole input at once.
//!
//! The plan is the one that is also translated to a job, so names, types and Flink's functions are the same; everything
//! behind it shares nothing with the job and with [`super::reference`]. A statement with a node of our own, which
//! DataFusion cannot execute, has no batch execution.

use super::memory::{Connectors, SinkContent, add};
use super::reference::texts;
use crate::PlanOptions;
use crate::catalog::Tables;
use crate::error::SourceText;
use crate::expand::Expander;
use crate::functions::Functions;
use crate::parse;
use crate::relational::Relational;
use crate::translate::Statement;
use arrow::array::RecordBatch;
use datafusion::catalog::MemTable;
use datafusion::datasource::provider_as_source;
use datafusion::prelude::SessionContext;
use datafusion_common::tree_node::{Transformed, TreeNode};
use datafusion_expr::LogicalPlan;
use datafusion_expr::logical_plan::TableScan;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The rows that the sinks must hold; none where DataFusion cannot execute the statement.
pub(crate) fn content(sql: &str, connectors: &Connectors) -> Option<SinkContent> {
    let text = SourceText(sql);
    let script = parse::parse(text).unwrap_or_else(|error| panic!("{error}"));
    let tables = Tables::new(text, script.tables).unwrap();
    let functions = Functions::new();
    let relational = Relational::new(&tables, &functions);
    let mut inserts = script.inserts;
    let mut expander = Expander::new(text, &tables, script.views).unwrap();
    inserts.iter_mut().for_each(|insert| expander.query(&mut insert.query).unwrap());
    let options = PlanOptions { parallelism: 1, max_parallelism: 1 };
    let mut all = SinkContent::new();
    let times = BTreeMap::new();
    for insert in &inserts {
        let statement = Statement { text, tables: &tables, times: &times, connectors, options: &options, insert };
        let plan = relational.plan(&insert.query).unwrap();
        let target = statement.target(&plan).unwrap_or_else(|error| panic!("{error}"));
        let shaped = statement.shaped(plan, &target).unwrap();
        if shaped.exists(|node| Ok(matches!(node, LogicalPlan::Extension(_)))).unwrap() {
            return None;
        }
        let mut content = SinkContent::new();
        for batch in execute(shaped, connectors) {
            for row in texts(&batch) {
                *content.entry(row.join(", ")).or_default() += 1;
            }
        }
        add(&mut all, (inserts.len() > 1).then_some(&insert.table.value), content);
    }
    Some(all)
}

fn execute(plan: LogicalPlan, connectors: &Connectors) -> Vec<RecordBatch> {
    let plan = plan.transform_up(|node| {
        Ok(match node {
            LogicalPlan::TableScan(scan) => Transformed::yes(LogicalPlan::TableScan(over_rows(scan, connectors))),
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
