//! VALUES, and SELECT without FROM: a bounded source of constant rows.

use super::time::Times;
use super::{Lineage, Stream, Translator};
use crate::calc::Calc;
use crate::error::SqlError;
use crate::graph::Chain;
use crate::operators::ValuesFactory;
use arrow::array::{ArrayRef, BooleanArray, RecordBatch, RecordBatchOptions};
use arrow::compute::concat;
use arrow::datatypes::{DataType, Field, Schema};
use datafusion_common::{DFSchema, DFSchemaRef, Result};
use datafusion_expr::execution_props::ExecutionProps;
use datafusion_expr::logical_plan::{EmptyRelation, Values};
use datafusion_expr::physical_planning_context::PhysicalPlanningContext;
use datafusion_expr::{Expr, ExprSchemable};
use sluice_protocol::graph::{OperatorInfo, OperatorKind};
use std::sync::Arc;

impl Translator<'_> {
    /// VALUES.
    pub(super) fn values(&mut self, values: &Values) -> Result<Stream, SqlError> {
        let rows = evaluated(values).map_err(|error| self.statement.planning(&error))?;
        self.constant(rows, &values.schema)
    }

    /// SELECT without FROM: one row without columns.
    pub(super) fn one_row(&mut self, empty: &EmptyRelation) -> Result<Stream, SqlError> {
        let fields = vec![Field::new("row", DataType::Boolean, false)];
        let rows = i32::from(empty.produce_one_row);
        let row: ArrayRef = Arc::new((0..rows).map(|_| Some(true)).collect::<BooleanArray>());
        let rows = RecordBatch::try_new(Arc::new(Schema::new(fields)), vec![row]);
        let rows = rows.map_err(|error| self.statement.internal(&error.to_string()))?;
        self.constant(rows, &empty.schema)
    }

    fn constant(&mut self, rows: RecordBatch, schema: &DFSchemaRef) -> Result<Stream, SqlError> {
        let description =
            format!("Values(tuples={}, fields=[{}])", rows.num_rows(), super::scan::names(&rows.schema()));
        // No table has an empty name.
        let number = self.scans.entry(String::new()).or_default();
        *number += 1;
        let info = OperatorInfo { uid: self.uids.values(*number), kind: OperatorKind::Source, description };
        let (made, parallelism) = (rows.schema(), self.statement.options.parallelism);
        let factory = Arc::new(ValuesFactory { rows });
        let chain = Chain::from_source(info, "Values".to_owned(), factory, parallelism, Arc::clone(&made));
        let mut calc = Calc::identity(&made);
        calc.outputs.truncate(schema.fields().len());
        let lineage = vec![Lineage::Other; schema.fields().len()];
        let (schema, times) = (Arc::clone(schema), Times::default());
        Ok(Stream { chain, calc, schema, lineage, updates: None, times, windows: None })
    }
}

/// The rows of VALUES, whose expressions refer to no column.
pub(crate) fn evaluated(values: &Values) -> Result<RecordBatch> {
    let nothing = DFSchema::empty();
    let options = RecordBatchOptions::new().with_row_count(Some(1));
    let row = RecordBatch::try_new_with_options(Arc::new(Schema::empty()), Vec::new(), &options)?;
    let evaluate = |value: &Expr, data_type: &DataType| -> Result<ArrayRef> {
        let value = value.clone().cast_to(data_type, &nothing)?;
        let context = PhysicalPlanningContext::default();
        let value = datafusion_physical_expr::create_physical_expr(&value, &nothing, &ExecutionProps::new(), &context)?;
        value.evaluate(&row)?.into_array(1)
    };
    let (mut fields, mut columns) = (Vec::new(), Vec::new());
    for (position, field) in values.schema.fields().iter().enumerate() {
        let cells = values.values.iter().map(|row| evaluate(&row[position], field.data_type()));
        let cells = cells.collect::<Result<Vec<_>>>()?;
        let column = concat(&cells.iter().map(AsRef::as_ref).collect::<Vec<_>>())?;
        fields.push(Field::new(field.name(), column.data_type().clone(), true));
        columns.push(column);
    }
    Ok(RecordBatch::try_new(Arc::new(Schema::new(fields)), columns)?)
}
