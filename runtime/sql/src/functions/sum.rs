//! SUM with the types of our aggregation: whole numbers give BIGINT, floats DOUBLE, DECIMAL(p, s) DECIMAL(38, s).
//!
//! DataFusion only types it; the engine adds up.

use arrow::datatypes::{DECIMAL128_MAX_PRECISION, DataType};
use datafusion_common::{Result, not_impl_err, plan_err};
use datafusion_expr::function::AccumulatorArgs;
use datafusion_expr::{Accumulator, AggregateUDFImpl, Signature, Volatility};

/// SUM, for the planner.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct Sum {
    signature: Signature,
}

impl Sum {
    pub(super) fn new() -> Self {
        Self { signature: Signature::user_defined(Volatility::Immutable) }
    }
}

impl AggregateUDFImpl for Sum {
    fn name(&self) -> &str {
        "sum"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, arguments: &[DataType]) -> Result<Vec<DataType>> {
        match arguments {
            [DataType::Null] => Ok(vec![DataType::Int64]),
            [number] if is_summed(number) => Ok(vec![number.clone()]),
            [other] => plan_err!("SUM takes a number, not {}", crate::types::sql_name(other)),
            _ => plan_err!("SUM takes one argument, not {}", arguments.len()),
        }
    }

    fn return_type(&self, arguments: &[DataType]) -> Result<DataType> {
        match arguments {
            [DataType::Float32 | DataType::Float64] => Ok(DataType::Float64),
            [DataType::Decimal128(_, scale)] => Ok(DataType::Decimal128(DECIMAL128_MAX_PRECISION, *scale)),
            _ => Ok(DataType::Int64),
        }
    }

    fn accumulator(&self, _arguments: AccumulatorArgs<'_>) -> Result<Box<dyn Accumulator>> {
        not_impl_err!("SUM is the engine's to run")
    }
}

const fn is_summed(data_type: &DataType) -> bool {
    matches!(
        data_type,
        DataType::Int8
            | DataType::Int16
            | DataType::Int32
            | DataType::Int64
            | DataType::Float32
            | DataType::Float64
            | DataType::Decimal128(..)
    )
}
