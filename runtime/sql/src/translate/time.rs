//! Which columns of a stream are times that its watermarks speak of, or the time of processing.
//!
//! A column keeps it through projections that hand it on as it is. The column that WATERMARK FOR names may be computed:
//! then it is told by how it is computed from the source's columns.

use super::Stream;
use crate::calc::Value;
use datafusion_physical_expr::PhysicalExpr;
use std::sync::Arc;

/// What kind of time a column is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TimeAttribute {
    /// The time of the row, of which watermarks speak.
    Rowtime,
}

/// The time attributes among the columns that come out of a chain.
#[derive(Debug, Clone, Default)]
pub(crate) struct Times {
    columns: Vec<Option<TimeAttribute>>,
    /// What computes the time of a row from the chain's columns.
    computed: Option<Arc<dyn PhysicalExpr>>,
}

impl Times {
    /// By column of the chain; those that are left out are none.
    pub(crate) const fn of(columns: Vec<Option<TimeAttribute>>) -> Self {
        Self { columns, computed: None }
    }

    /// Of a source whose rows have this time.
    pub(super) fn of_source(rowtime: Option<Value>) -> Self {
        match rowtime {
            None => Self::default(),
            Some(Value::Column(index)) => {
                let mut columns = vec![None; index];
                columns.push(Some(TimeAttribute::Rowtime));
                Self::of(columns)
            }
            Some(Value::Computed(expression)) => Self { columns: Vec::new(), computed: Some(expression) },
        }
    }

    /// What a value over the chain's columns is.
    fn of_value(&self, value: &Value) -> Option<TimeAttribute> {
        match value {
            Value::Column(index) => self.columns.get(*index).copied().flatten(),
            Value::Computed(expression) => {
                (self.computed.as_ref() == Some(expression)).then_some(TimeAttribute::Rowtime)
            }
        }
    }
}

impl Stream {
    /// Whether this column of the stream is a time attribute, and which.
    pub(crate) fn time_attribute(&self, column: usize) -> Option<TimeAttribute> {
        self.calc.outputs.get(column).and_then(|output| self.times.of_value(&output.value))
    }

    /// The attributes once filter and projection are an operator.
    pub(super) fn times_behind_calc(&self) -> Times {
        Times::of(self.calc.outputs.iter().map(|output| self.times.of_value(&output.value)).collect())
    }
}
