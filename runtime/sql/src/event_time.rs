//! WATERMARK FOR: the time and the watermark of a row, computed from the columns that a source reads.
//!
//! Both are planned as queries over the table as declared, so that computed columns and functions mean the same as
//! elsewhere. What [`RowTime`] holds names columns of the table; [`Watermarked`] evaluates it over a source's.

mod options;

pub(crate) use options::{SourceTime, is_time_option};

use crate::calc::{self, Calc, Output, Value};
use crate::operators;
use arrow::array::{ArrayRef, RecordBatch, RecordBatchOptions};
use arrow::compute::is_not_null;
use arrow::compute::kernels::nullif::nullif;
use arrow::datatypes::{Field, Schema, SchemaRef};
use datafusion_common::tree_node::{Transformed, TreeNode};
use datafusion_common::{Result, internal_err};
use datafusion_expr::LogicalPlan;
use datafusion_physical_expr::PhysicalExpr;
use datafusion_physical_expr::expressions::Column;
use sluice_engine::error::TaskError;
use sluice_engine::event_time::WatermarkStrategy;
use sluice_engine::operators::{ExpressionFactory, RowExpression};
use sluice_engine::source::{ProducedKinds, Source, SourceFactory};
use sluice_engine::table::dead_letter::PLACE;
use sluice_protocol::SubtaskIndex;
use std::collections::BTreeSet;
use std::sync::Arc;

/// A value of a row, as projections one over the other; the lowest is over the table's own columns.
#[derive(Debug, Clone)]
struct Computation {
    /// Each over the one before; the last has one output.
    levels: Vec<Calc>,
}

/// What a table declares of time.
#[derive(Debug, Clone)]
pub(crate) struct RowTime {
    time: Computation,
    watermark: Computation,
    /// The column and the watermark as people wrote them.
    description: String,
}

impl RowTime {
    /// From optimised plans of one column each.
    pub(crate) fn new(time: &LogicalPlan, watermark: &LogicalPlan, description: String) -> Result<Self> {
        Ok(Self { time: Computation::of(time)?, watermark: Computation::of(watermark)?, description })
    }

    /// The names of the table's columns that it is computed from.
    pub(crate) fn columns(&self) -> BTreeSet<String> {
        let lowest = [&self.time, &self.watermark].into_iter().filter_map(|one| one.levels.first());
        lowest.flat_map(|calc| &calc.input.fields).map(|field| field.name().clone()).collect()
    }

    /// `ts - INTERVAL '4' SECOND`.
    pub(crate) fn description(&self) -> &str {
        &self.description
    }

    /// The time of a row as a plan over these columns has it: a column, or what computes it; `None` when it takes more
    /// than one projection.
    pub(crate) fn value_over(&self, schema: &SchemaRef) -> Option<Value> {
        let [only] = self.time.levels.as_slice() else { return None };
        match &only.outputs.first()?.value {
            Value::Column(index) => schema.index_of(only.input.field(*index).name()).ok().map(Value::Column),
            Value::Computed(expression) => over(expression, schema).ok().map(Value::Computed),
        }
    }

    /// How a source with these columns makes watermarks.
    pub(crate) fn strategy(&self, schema: &SchemaRef, options: SourceTime) -> Result<WatermarkStrategy> {
        Ok(WatermarkStrategy {
            time: self.time.factory(schema)?,
            watermark: self.watermark.factory(schema)?,
            idle_timeout: options.idle_timeout,
            alignment: options.alignment,
        })
    }
}

impl Computation {
    fn of(plan: &LogicalPlan) -> Result<Self> {
        let mut levels = Vec::new();
        let mut below = plan;
        loop {
            match below {
                LogicalPlan::Projection(projection) => {
                    levels.push(projection);
                    below = &projection.input;
                }
                LogicalPlan::SubqueryAlias(alias) => below = &alias.input,
                LogicalPlan::TableScan(_) => break,
                other => return internal_err!("WATERMARK became {}", other.display()),
            }
        }
        let mut calcs: Vec<Calc> = Vec::new();
        let mut schema: SchemaRef = below.schema().inner().clone();
        for projection in levels.into_iter().rev() {
            let mut calc = Calc::identity(&schema);
            let outputs = projection.expr.iter().zip(projection.schema.fields());
            let outputs = outputs
                .map(|(expression, field)| calc::compile(expression, field.name(), projection.input.schema(), &calc));
            calc.outputs = outputs.collect::<Result<Vec<Output>>>()?;
            schema = calc.schema();
            calcs.push(calc);
        }
        if calcs.is_empty() {
            calcs.push(Calc::identity(&schema));
        }
        Ok(Self { levels: calcs })
    }

    fn factory(&self, schema: &SchemaRef) -> Result<ExpressionFactory> {
        let mut levels: Vec<(Vec<Output>, SchemaRef)> = Vec::new();
        for (number, calc) in self.levels.iter().enumerate() {
            let mut outputs = calc.outputs.clone();
            if number == 0 {
                for output in &mut outputs {
                    output.value = match &output.value {
                        Value::Column(index) => Value::Column(schema.index_of(calc.input.field(*index).name())?),
                        Value::Computed(expression) => Value::Computed(over(expression, schema)?),
                    };
                }
            }
            // What a source could not read has NULL everywhere.
            let below = calc.schema();
            let fields = below.fields().iter().map(|field| field.as_ref().clone().with_nullable(true));
            levels.push((outputs, Arc::new(Schema::new(fields.collect::<Vec<Field>>()))));
        }
        Ok(Box::new(move || {
            let make = |(outputs, schema): &(Vec<Output>, SchemaRef)| -> std::result::Result<_, TaskError> {
                let made = outputs.iter().cloned().map(|output| operators::output(output)());
                Ok((made.collect::<std::result::Result<Vec<_>, _>>()?, Arc::clone(schema)))
            };
            Ok(Box::new(Levels(levels.iter().map(make).collect::<std::result::Result<_, _>>()?)))
        }))
    }
}

/// An expression over columns of these names, whatever their places were.
fn over(expression: &Arc<dyn PhysicalExpr>, schema: &SchemaRef) -> Result<Arc<dyn PhysicalExpr>> {
    let moved = Arc::clone(expression).transform_up(|node| {
        let Some(column) = node.downcast_ref::<Column>() else { return Ok(Transformed::no(node)) };
        let moved = Column::new(column.name(), schema.index_of(column.name())?);
        Ok(Transformed::yes(Arc::new(moved) as _))
    })?;
    Ok(moved.data)
}

/// Projections one over the other; the value is the first column of the last.
struct Levels(Vec<(Vec<Box<dyn RowExpression>>, SchemaRef)>);

impl RowExpression for Levels {
    fn evaluate(&self, batch: &RecordBatch) -> std::result::Result<ArrayRef, TaskError> {
        let mut rows = batch.clone();
        for (outputs, schema) in &self.0 {
            let columns = outputs.iter().map(|output| output.evaluate(&rows)).collect::<std::result::Result<_, _>>()?;
            let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
            rows = RecordBatch::try_new_with_options(Arc::clone(schema), columns, &options)
                .map_err(|error| TaskError::Internal(format!("the time of rows is no column: {error}")))?;
        }
        // Nor has it a time, whatever the expression says of NULL.
        let Some(place) = batch.column_by_name(PLACE) else { return Ok(Arc::clone(rows.column(0))) };
        let masked = is_not_null(place).and_then(|is_letter| nullif(rows.column(0), &is_letter));
        masked.map_err(|error| TaskError::Internal(format!("the time of rows cannot be masked: {error}")))
    }
}

/// A source whose rows have watermarks.
pub(crate) struct Watermarked {
    pub(crate) source: Arc<dyn SourceFactory>,
    pub(crate) strategy: WatermarkStrategy,
}

impl SourceFactory for Watermarked {
    fn create(&self) -> std::result::Result<Box<dyn Source>, TaskError> {
        self.source.create()
    }

    fn schema(&self) -> SchemaRef {
        self.source.schema()
    }

    fn owner(&self, split: &str, parallelism: u32) -> SubtaskIndex {
        self.source.owner(split, parallelism)
    }

    fn watermarks(&self) -> Option<&WatermarkStrategy> {
        Some(&self.strategy)
    }

    fn produced_kinds(&self) -> ProducedKinds {
        self.source.produced_kinds()
    }

    fn buffered_bytes(&self) -> u64 {
        self.source.buffered_bytes()
    }

    fn note(&self) -> Option<&'static str> {
        self.source.note()
    }
}
