//! Scans: the source reads only the columns that the query needs.

use super::{Lineage, Stream, Translator};
use crate::calc::Calc;
use crate::catalog::Table;
use crate::error::SqlError;
use crate::graph::Chain;
use arrow::datatypes::{DataType, Schema};
use datafusion_expr::logical_plan::TableScan;
use sluice_protocol::graph::{OperatorInfo, OperatorKind};
use std::sync::Arc;

impl Translator<'_> {
    pub(super) fn scan(&mut self, scan: &TableScan) -> Result<Stream, SqlError> {
        let tables = self.tables;
        let name = scan.table_name.table();
        let Some(table) = tables.get(name) else {
            return Err(self.internal(&format!("the plan scans table '{name}', which is not declared")));
        };
        let wanted: Vec<usize> = scan.projection.clone().unwrap_or_else(|| (0..table.schema.fields().len()).collect());
        let descriptor = self.descriptor(table, &columns_to_read(table, &wanted))?;
        let factory = self.connectors.source(&descriptor).map_err(|error| self.refused(table, &error))?;
        if factory.schema().fields() != descriptor.schema.fields() {
            return Err(self.internal(&format!("the connector of table '{name}' reads other columns than asked for")));
        }
        let info = OperatorInfo {
            uid: self.uids.source(name),
            kind: OperatorKind::Source,
            description: format!("TableSourceScan(table=[{name}], fields=[{}])", names(&descriptor.schema)),
        };
        let schema = descriptor.schema;
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
