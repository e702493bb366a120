//! Scans: a table is read once, whoever reads it, and only the columns that are needed.
//!
//! A table that stands in one place of the program is the beginning of a chain there. One that stands in several is a
//! vertex of its own with the columns that all of them need; its id is that of the first statement that reads it.

use super::time::Times;
use super::{Lineage, Statement, Stream, Translator, Updates};
use crate::calc::{Calc, Output, Value};
use crate::catalog::{Table, Tables};
use crate::error::SqlError;
use crate::event_time::{RowTime, SourceTime, Watermarked};
use crate::graph::{Chain, Upstream};
use arrow::datatypes::{DataType, Schema, SchemaRef};
use datafusion_common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion_expr::LogicalPlan;
use datafusion_expr::logical_plan::TableScan;
use sluice_engine::source::{ProducedKinds, SourceFactory};
use sluice_engine::table::{DEAD_LETTER, with_dead_letters};
use sluice_protocol::graph::{OperatorInfo, OperatorKind, Partitioning};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What all statements read.
#[derive(Default)]
pub(crate) struct Sources {
    tables: BTreeMap<String, Scans>,
}

/// The scans of one table.
#[derive(Default)]
struct Scans {
    count: usize,
    columns: BTreeSet<usize>,
    /// Once it was opened, when there are several scans: where it is, and which columns it reads.
    shared: Option<(Upstream, Vec<usize>, SchemaRef, ProducedKinds)>,
}

impl Sources {
    /// Looks at the optimised plan of a statement.
    pub(crate) fn add(&mut self, tables: &Tables, plan: &LogicalPlan) {
        let _: datafusion_common::Result<TreeNodeRecursion> = plan.apply(|node| {
            if let LogicalPlan::TableScan(scan) = node
                && let Some(table) = tables.get(scan.table_name.table())
            {
                let scans = self.tables.entry(table.name().to_owned()).or_default();
                scans.count += 1;
                scans.columns.extend(scan.projection.clone().unwrap_or_else(|| all_columns(table)));
            }
            Ok(TreeNodeRecursion::Continue)
        });
    }
}

impl Translator<'_> {
    pub(super) fn scan(&mut self, scan: &TableScan) -> Result<Stream, SqlError> {
        let tables = self.statement.tables;
        let name = scan.table_name.table();
        let Some(table) = tables.get(name) else {
            let message = format!("the plan scans table '{name}', which is not declared");
            return Err(self.statement.internal(&message));
        };
        let wanted: Vec<usize> = scan.projection.clone().unwrap_or_else(|| all_columns(table));
        let is_shared = self.sources.tables.get(name).is_some_and(|scans| scans.count > 1);
        let rowtime = self.statement.times.get(name);
        let (chain, calc, kinds) = if is_shared {
            let (upstream, columns, schema, kinds) = self.shared(table)?;
            let mut calc = Calc::identity(&schema);
            let place = |wanted: &usize| columns.iter().position(|column| column == wanted);
            let output = |index: usize| Output {
                field: Arc::clone(&schema.fields()[index]),
                value: Value::Column(index),
                not_null: None,
            };
            calc.outputs = wanted.iter().filter_map(place).map(output).collect();
            let parallelism = self.statement.options.parallelism;
            (Chain::from_edge(vec![upstream], Partitioning::Forward, parallelism, schema), calc, kinds)
        } else {
            let (chain, schema, kinds) = self.source_chain(table, &wanted)?;
            let mut calc = Calc::identity(&schema);
            calc.outputs.truncate(wanted.len());
            (chain, calc, kinds)
        };
        if calc.outputs.len() != wanted.len() {
            return Err(self.statement.internal(&format!("table '{name}' is read without a column that is needed")));
        }
        let (lineage, updates) = changes(table, &wanted, kinds);
        let times = Times::of_source(rowtime.and_then(|time| time.value_over(chain.schema())));
        Ok(Stream { chain, calc, schema: Arc::clone(&scan.projected_schema), lineage, updates, times, windows: None })
    }

    /// The vertex of a table that is read in several places.
    fn shared(&mut self, table: &Table) -> Result<(Upstream, Vec<usize>, SchemaRef, ProducedKinds), SqlError> {
        let known = self.sources.tables.get(table.name());
        if let Some(shared) = known.and_then(|scans| scans.shared.clone()) {
            return Ok(shared);
        }
        let wanted: Vec<usize> = known.map(|scans| scans.columns.iter().copied().collect()).unwrap_or_default();
        let (chain, schema, kinds) = self.source_chain(table, &wanted)?;
        let upstreams = self.close(chain)?;
        let Some(upstream) = upstreams.into_iter().next() else {
            return Err(self.statement.internal("a source made no vertex"));
        };
        let shared = (upstream, wanted, schema, kinds);
        if let Some(scans) = self.sources.tables.get_mut(table.name()) {
            scans.shared = Some(shared.clone());
        }
        Ok(shared)
    }

    fn source_chain(&mut self, table: &Table, wanted: &[usize]) -> Result<(Chain, SchemaRef, ProducedKinds), SqlError> {
        let name = table.name();
        let (factory, schema) = self.statement.source(table, wanted)?;
        let has_dead_letters = table.definition.options.iter().any(|option| option.key == DEAD_LETTER);
        let handed_out = if has_dead_letters { with_dead_letters(&schema) } else { Arc::clone(&schema) };
        if factory.schema().fields() != handed_out.fields() {
            let message = format!("the connector of table '{name}' reads other columns than asked for");
            return Err(self.statement.internal(&message));
        }
        let kinds = factory.produced_kinds();
        let note = factory.note().map(|note| format!(", note=[{note}]")).unwrap_or_default();
        let number = self.scans.entry(name.to_owned()).or_default();
        *number += 1;
        let uid = self.uids.source(name, *number);
        let info = OperatorInfo {
            uid: uid.clone(),
            kind: OperatorKind::Source,
            description: format!(
                "TableSourceScan(table=[{name}], fields=[{}]{}{}{note})",
                names(&schema),
                if kinds == ProducedKinds::All { ", changelogMode=[I,UB,UA,D]" } else { "" },
                self.statement.times.get(name).map_or_else(String::new, watermark)
            ),
        };
        let factory = self.statement.with_watermarks(table, factory, &schema)?;
        let parallelism = self.statement.options.parallelism;
        let chain = Chain::from_source(info, format!("Source: {name}"), factory, parallelism, handed_out);
        let chain = self.divide(table, &uid, chain, &schema)?;
        Ok((chain, schema, kinds))
    }
}

/// Where the columns of a table come from, and how its rows change. The key that is declared tells which row changes; that
/// its changes come in order is what a source of changes promises by that.
fn changes(table: &Table, wanted: &[usize], kinds: ProducedKinds) -> (Vec<Lineage>, Option<Updates>) {
    let keys = &table.definition.primary_key;
    if kinds == ProducedKinds::InsertOnly {
        return (vec![Lineage::Other; wanted.len()], None);
    }
    let place = |column: &usize| keys.iter().position(|key| key == column).map_or(Lineage::Other, Lineage::Key);
    let names: Vec<String> = keys.iter().map(|key| table.schema.field(*key).name().clone()).collect();
    let updates = Updates {
        node: format!("TableSourceScan(table=[{}])", table.name()),
        keys: (!names.is_empty()).then_some(names),
        // A change may move a row to another key, whose old row is to be deleted.
        are_filtered: true,
        in_pairs: true,
    };
    (wanted.iter().map(place).collect(), Some(updates))
}

impl Statement<'_> {
    /// The source with the watermarks that its table declares.
    fn with_watermarks(
        &self,
        table: &Table,
        source: Arc<dyn SourceFactory>,
        schema: &SchemaRef,
    ) -> Result<Arc<dyn SourceFactory>, SqlError> {
        let source_time = SourceTime::of(self, table)?;
        let Some(time) = self.times.get(table.name()) else { return Ok(source) };
        let strategy = time.strategy(schema, source_time).map_err(|error| self.planning(&error))?;
        Ok(Arc::new(Watermarked { source, strategy }))
    }

    /// A source whose first columns are the wanted ones. The table is checked as declared; a connector that refuses
    /// to read a part of it, since its options speak of other columns, reads all.
    fn source(&self, table: &Table, wanted: &[usize]) -> Result<(Arc<dyn SourceFactory>, SchemaRef), SqlError> {
        let declared = self.descriptor(table, &all_columns(table))?;
        let factory = self.connectors.source(&declared).map_err(|error| self.refused(table, &error))?;
        let time = self.times.get(table.name()).map(RowTime::columns).unwrap_or_default();
        let needed = columns_to_read(table, wanted, &time);
        if needed == all_columns(table) {
            return Ok((factory, declared.schema));
        }
        let part = self.descriptor(table, &needed)?;
        if let Ok(factory) = self.connectors.source(&part) {
            return Ok((factory, part.schema));
        }
        let rest = all_columns(table).into_iter().filter(|column| !needed.contains(column));
        let reordered = self.descriptor(table, &needed.iter().copied().chain(rest).collect::<Vec<_>>())?;
        let factory = self.connectors.source(&reordered).map_err(|error| self.refused(table, &error))?;
        Ok((factory, reordered.schema))
    }
}

/// `, watermark=[ts - INTERVAL '4' SECOND]`.
fn watermark(time: &RowTime) -> String {
    format!(", watermark=[{}]", time.description())
}

fn all_columns(table: &Table) -> Vec<usize> {
    (0..table.schema.fields().len()).collect()
}

/// The wanted columns, then those that the primary key and the time of rows still need; the cheapest one when nothing is
/// wanted, since rows are to be counted.
fn columns_to_read(table: &Table, wanted: &[usize], time: &BTreeSet<String>) -> Vec<usize> {
    let mut columns = wanted.to_vec();
    columns.extend(table.definition.primary_key.iter().filter(|key| !wanted.contains(key)));
    let of_time = (0..table.schema.fields().len()).filter(|index| time.contains(table.schema.field(*index).name()));
    columns.extend(of_time.filter(|index| !columns.contains(index)).collect::<Vec<_>>());
    if columns.is_empty() {
        let cost = |index: &usize| width(table.schema.field(*index).data_type());
        columns.extend((0..table.schema.fields().len()).min_by_key(cost));
    }
    columns
}

fn width(data_type: &DataType) -> usize {
    data_type.primitive_width().unwrap_or(if *data_type == DataType::Boolean { 1 } else { usize::MAX })
}

/// `a, b`.
pub(super) fn names(schema: &Schema) -> String {
    schema.fields().iter().map(|field| field.name().as_str()).collect::<Vec<_>>().join(", ")
}
