//! Makes the engine's operators out of planned ones: the seam between expressions of DataFusion's and the engine.

use crate::calc::Calc;
use arrow::datatypes::SchemaRef;
use sluice_engine::error::TaskError;
use sluice_engine::operator::{Operator, OperatorFactory};
use std::sync::Arc;

/// An aggregate call over the operator's input columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AggregateFunction {
    /// Counts rows.
    CountStar,
    /// Counts rows in which the column is not null.
    Count(usize),
    /// Adds up a column.
    Sum(usize),
}

/// A keyed aggregation as planned.
#[derive(Debug, Clone)]
pub(crate) struct GroupAggregate {
    /// Columns of the input.
    pub(crate) input: SchemaRef,
    /// Positions of the keys in the input.
    pub(crate) keys: Vec<usize>,
    /// The calls, in order.
    pub(crate) calls: Vec<AggregateFunction>,
    /// Keys, then results.
    pub(crate) output: SchemaRef,
    /// Whether updates carry the row as it was before.
    pub(crate) sends_update_before: bool,
}

struct Dummy(SchemaRef);
impl OperatorFactory for Dummy {
    fn create(&self) -> Result<Box<dyn Operator>, TaskError> {
        Err(TaskError::Internal(String::new()))
    }
    fn output_schema(&self) -> SchemaRef {
        Arc::clone(&self.0)
    }
}

/// The operator of a filter and projection.
pub(crate) fn calc(calc: &Calc) -> Arc<dyn OperatorFactory> {
    Arc::new(Dummy(calc.schema()))
}

/// The operator of an aggregation.
pub(crate) fn group_aggregate(aggregate: &GroupAggregate) -> Result<Arc<dyn OperatorFactory>, String> {
    Ok(Arc::new(Dummy(Arc::clone(&aggregate.output))))
}
