//! SUM and AVG with the types of our aggregation. SUM: whole numbers give BIGINT, floats DOUBLE, DECIMAL(p, s)
//! DECIMAL(38, s). AVG: the type of its argument, of DECIMAL(p, s) DECIMAL(38, max(6, s)), as in Flink.
//!
//! DataFusion only types them; the engine adds up.

use arrow::datatypes::{DECIMAL128_MAX_PRECISION, DataType};
use datafusion_common::{Result, not_impl_err, plan_err};
use datafusion_expr::function::AccumulatorArgs;
use datafusion_expr::{Accumulator, AggregateUDFImpl, Signature, Volatility};

/// Digits after the point that an average of decimals has at least.
const AVERAGE_SCALE: i8 = 6;

/// Which of the two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    Sum,
    Average,
}

/// SUM or AVG, for the planner.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct Typed {
    kind: Kind,
    signature: Signature,
}

impl Typed {
    pub(super) fn new(kind: Kind) -> Self {
        Self { kind, signature: Signature::user_defined(Volatility::Immutable) }
    }
}

impl AggregateUDFImpl for Typed {
    fn name(&self) -> &str {
        match self.kind {
            Kind::Sum => "sum",
            Kind::Average => "avg",
        }
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, arguments: &[DataType]) -> Result<Vec<DataType>> {
        let name = self.name().to_uppercase();
        match arguments {
            [DataType::Null] => Ok(vec![DataType::Int64]),
            [number] if is_summed(number) => Ok(vec![number.clone()]),
            [other] => plan_err!("{name} takes a number, not {}", crate::types::sql_name(other)),
            _ => plan_err!("{name} takes one argument, not {}", arguments.len()),
        }
    }

    fn return_type(&self, arguments: &[DataType]) -> Result<DataType> {
        Ok(match (self.kind, arguments) {
            (Kind::Sum, [DataType::Float32 | DataType::Float64]) => DataType::Float64,
            (Kind::Sum, [DataType::Decimal128(_, scale)]) => DataType::Decimal128(DECIMAL128_MAX_PRECISION, *scale),
            (Kind::Average, [DataType::Decimal128(_, scale)]) => {
                DataType::Decimal128(DECIMAL128_MAX_PRECISION, (*scale).max(AVERAGE_SCALE))
            }
            (Kind::Average, [number]) => number.clone(),
            _ => DataType::Int64,
        })
    }

    fn accumulator(&self, _arguments: AccumulatorArgs<'_>) -> Result<Box<dyn Accumulator>> {
        not_impl_err!("{} is the engine's to run", self.name())
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
