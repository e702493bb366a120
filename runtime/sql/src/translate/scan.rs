//! Scans: the source reads only the columns that the query needs.

use super::{Lineage, Stream, Translator};
use crate::calc::Calc;
use crate::catalog::Table;
use crate::error::SqlError;
use crate::graph::Chain;
use arrow::datatypes::{DataType, Schema, SchemaRef};
use datafusion_expr::logical_plan::TableScan;
use sluice_engine::source::SourceFactory;
use sluice_protocol::graph::{OperatorInfo, OperatorKind};
use std::sync::Arc;

impl Translator<'_> {
    pub(super) fn scan(&mut self, scan: &TableScan) -> Result<Stream, SqlError> {
        let tables = self.tables;
        let name = scan.table_name.table();
        let Some(table) = tables.get(name) else {
            return Err(self.internal(&format!("the plan scans table '{name}', which is not declared")));
        };
        let wanted: Vec<usize> = scan.projection.clone().unwrap_or_else(|| all_columns(table));
        let (factory, schema) = self.source(table, &wanted)?;
        if factory.schema().fields() != schema.fields() {
            return Err(self.internal(&format!("the connector of table '{name}' reads other columns than asked for")));
        }
        let info = OperatorInfo {
            uid: self.uids.source(name),
            kind: OperatorKind::Source,
            description: format!("TableSourceScan(table=[{name}], fields=[{}]{})", names(&schema), watermark(table)),
        };
        let mut calc = Calc::identity(&schema);
        calc.outputs.truncate(wanted.len());
        let parallelism = self.options.parallelism;
        Ok(Stream {
            chain: Chain::from_source(info, format!("Source: {name}"), factory, parallelism, schema),
            calc,
            schema: Arc::clone(&scan.projected_schema),
            lineage: vec![Lineage::Other; wanted.len()],
            updates: None,
        })
    }

    /// A source whose first columns are the wanted ones. The table is checked as declared; a connector that refuses
    /// to read a part of it, since its options speak of other columns, reads all.
    fn source(&self, table: &Table, wanted: &[usize]) -> Result<(Arc<dyn SourceFactory>, SchemaRef), SqlError> {
        let declared = self.descriptor(table, &all_columns(table))?;
        let factory = self.connectors.source(&declared).map_err(|error| self.refused(table, &error))?;
        let needed = columns_to_read(table, wanted);
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

/// `, watermark=[ts - INTERVAL '4' SECOND]`: declared, without effect yet.
fn watermark(table: &Table) -> String {
    let watermark = table.definition.watermark.as_ref();
    watermark.map_or_else(String::new, |watermark| format!(", watermark=[{}]", watermark.expression))
}

fn all_columns(table: &Table) -> Vec<usize> {
    (0..table.schema.fields().len()).collect()
}

/// The wanted columns, then those that the primary key still needs; the cheapest one when nothing is wanted, since
/// rows are to be counted.
fn columns_to_read(table: &Table, wanted: &[usize]) -> Vec<usize> {
    let mut columns = wanted.to_vec();
    columns.extend(table.definition.primary_key.iter().filter(|key| !wanted.contains(key)));
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
