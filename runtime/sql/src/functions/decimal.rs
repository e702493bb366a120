//! `*` and `/` of decimals with Flink's types: a result that would have more than 38 digits gives up digits after the
//! point, down to six, and is rounded half up; what still does not fit is NULL. DataFusion's own keep no digits for a
//! quotient and fail for a large product.

use arrow::array::{Array, ArrayRef, AsArray, Decimal128Array};
use arrow::datatypes::{ArrowNativeTypeOp, DECIMAL128_MAX_PRECISION, DataType, Decimal128Type, i256};
use datafusion_common::{DFSchema, Result, ScalarValue, exec_datafusion_err, exec_err, plan_err};
use datafusion_expr::expr::ScalarFunction;
use datafusion_expr::planner::{ExprPlanner, PlannerResult, RawBinaryExpr};
use datafusion_expr::{
    ColumnarValue, Expr, ExprSchemable, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};
use datafusion_sql::sqlparser::ast::BinaryOperator;
use std::sync::Arc;

/// Digits after the point that a type keeps where it has them.
const KEPT_SCALE: i16 = 6;

/// Which of the two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Operation {
    Multiply,
    Divide,
}

/// The operator as a function, for the planner.
#[derive(Debug, PartialEq, Eq, Hash)]
struct DecimalOperator {
    operation: Operation,
    signature: Signature,
}

/// Puts the functions in the place of the operators.
#[derive(Debug)]
pub(crate) struct DecimalPlanner {
    multiply: Arc<ScalarUDF>,
    divide: Arc<ScalarUDF>,
}

impl DecimalPlanner {
    pub(crate) fn new() -> Self {
        let of = |operation| {
            let signature = Signature::user_defined(Volatility::Immutable);
            Arc::new(ScalarUDF::new_from_impl(DecimalOperator { operation, signature }))
        };
        Self { multiply: of(Operation::Multiply), divide: of(Operation::Divide) }
    }
}

impl ExprPlanner for DecimalPlanner {
    fn plan_binary_op(&self, raw: RawBinaryExpr, schema: &DFSchema) -> Result<PlannerResult<RawBinaryExpr>> {
        let function = match raw.op {
            BinaryOperator::Multiply => &self.multiply,
            BinaryOperator::Divide => &self.divide,
            _ => return Ok(PlannerResult::Original(raw)),
        };
        let (Ok(left), Ok(right)) = (raw.left.get_type(schema), raw.right.get_type(schema)) else {
            return Ok(PlannerResult::Original(raw));
        };
        let is_decimal = |data_type: &DataType| matches!(data_type, DataType::Decimal128(..));
        let is_exact = digits(&left).is_some() && digits(&right).is_some();
        if !is_exact || !(is_decimal(&left) || is_decimal(&right)) {
            return Ok(PlannerResult::Original(raw));
        }
        let call = ScalarFunction::new_udf(Arc::clone(function), vec![raw.left, raw.right]);
        Ok(PlannerResult::Planned(Expr::ScalarFunction(call)))
    }
}

/// Precision and scale of a decimal or of a whole number.
const fn digits(data_type: &DataType) -> Option<(u8, i8)> {
    match data_type {
        DataType::Decimal128(precision, scale) => Some((*precision, *scale)),
        DataType::Int8 => Some((3, 0)),
        DataType::Int16 => Some((5, 0)),
        DataType::Int32 => Some((10, 0)),
        DataType::Int64 => Some((19, 0)),
        _ => None,
    }
}

fn operands(types: &[DataType]) -> Result<[(u8, i8); 2]> {
    match types {
        [left, right] => match (digits(left), digits(right)) {
            (Some(left), Some(right)) => Ok([left, right]),
            _ => plan_err!("{left} and {right} are no decimals"),
        },
        _ => plan_err!("an operator has two sides, not {}", types.len()),
    }
}

impl Operation {
    /// Flink's type of the result.
    fn result(self, [left, right]: [(u8, i8); 2]) -> (u8, i8) {
        let [(precision, scale), (other_precision, other_scale)] =
            [left, right].map(|(precision, scale)| (i16::from(precision), i16::from(scale)));
        let (all, after) = match self {
            Self::Multiply => (precision + other_precision + 1, scale + other_scale),
            Self::Divide => {
                let after = KEPT_SCALE.max(scale + other_precision + 1);
                (precision - scale + other_scale + after, after)
            }
        };
        let most = i16::from(DECIMAL128_MAX_PRECISION);
        let (all, after) =
            if all <= most { (all, after) } else { (most, (most - (all - after)).max(after.min(KEPT_SCALE))) };
        (u8::try_from(all).unwrap_or(DECIMAL128_MAX_PRECISION), i8::try_from(after).unwrap_or(0))
    }

    /// A value of the result's scale; `None` where it has too many digits.
    fn compute(self, left: (i128, i8), right: (i128, i8), (precision, scale): (u8, i8)) -> Result<Option<i128>> {
        let (a, b) = (i256::from_i128(left.0), i256::from_i128(right.0));
        let value = match self {
            Self::Multiply => {
                let dropped = left.1 + right.1 - scale;
                a.checked_mul(b).and_then(|product| Some(half_up(product, power_of_ten(dropped)?)))
            }
            Self::Divide if right.0 == 0 => return exec_err!("Divide by zero"),
            Self::Divide => {
                let shift = scale + right.1 - left.1;
                if shift >= 0 {
                    // What does not fit here has far more than 38 digits once divided.
                    power_of_ten(shift).and_then(|shift| a.checked_mul(shift)).map(|a| half_up(a, b))
                } else {
                    power_of_ten(-shift).and_then(|shift| b.checked_mul(shift)).map(|b| half_up(a, b))
                }
            }
        };
        let fits = |value: &i128| value.unsigned_abs() < 10_u128.pow(u32::from(precision));
        Ok(value.and_then(i256::to_i128).filter(fits))
    }
}

/// 10 to a power that fits 256 bits.
fn power_of_ten(power: i8) -> Option<i256> {
    i256::from_i128(10).pow_checked(u32::try_from(power).ok()?).ok()
}

/// A quotient, rounded to the nearest; halves away from zero.
fn half_up(value: i256, by: i256) -> i256 {
    let (quotient, rest) = (value.wrapping_div(by), value.wrapping_rem(by));
    let (rest, by_size) = (rest.wrapping_abs(), by.wrapping_abs());
    if rest < by_size.wrapping_sub(rest) {
        return quotient;
    }
    let one = if value.is_negative() == by.is_negative() { i256::ONE } else { i256::MINUS_ONE };
    quotient.wrapping_add(one)
}

impl ScalarUDFImpl for DecimalOperator {
    fn name(&self) -> &str {
        match self.operation {
            Operation::Multiply => "decimal_multiply",
            Operation::Divide => "decimal_divide",
        }
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, arguments: &[DataType]) -> Result<Vec<DataType>> {
        let operands = operands(arguments)?;
        Ok(operands.iter().map(|(precision, scale)| DataType::Decimal128(*precision, *scale)).collect())
    }

    fn return_type(&self, arguments: &[DataType]) -> Result<DataType> {
        let (precision, scale) = self.operation.result(operands(arguments)?);
        Ok(DataType::Decimal128(precision, scale))
    }

    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let are_constant = arguments.args.iter().all(|argument| matches!(argument, ColumnarValue::Scalar(_)));
        let columns = ColumnarValue::values_to_arrays(&arguments.args)?;
        let types: Vec<DataType> = columns.iter().map(|column| column.data_type().clone()).collect();
        let [left, right] = operands(&types)?;
        let result = self.operation.result([left, right]);
        let [a, b] = [decimals(&columns[0])?, decimals(&columns[1])?];
        let values = a.iter().zip(b.iter()).map(|pair| match pair {
            (Some(a), Some(b)) => self.operation.compute((a, left.1), (b, right.1), result),
            _ => Ok(None),
        });
        let made: Decimal128Array = values.collect::<Result<_>>()?;
        let made: ArrayRef = Arc::new(made.with_precision_and_scale(result.0, result.1)?);
        if are_constant {
            return ScalarValue::try_from_array(&made, 0).map(ColumnarValue::Scalar);
        }
        Ok(ColumnarValue::Array(made))
    }
}

fn decimals(column: &ArrayRef) -> Result<&Decimal128Array> {
    let decimals = column.as_primitive_opt::<Decimal128Type>();
    decimals.ok_or_else(|| exec_datafusion_err!("{} is no decimal", column.data_type()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_those_of_flink() {
        for (operation, left, right, expected) in [
            (Operation::Multiply, (10, 2), (10, 2), (21, 4)),
            (Operation::Multiply, (38, 2), (10, 2), (38, 4)),
            (Operation::Multiply, (38, 18), (38, 18), (38, 6)),
            (Operation::Multiply, (20, 18), (20, 18), (38, 33)),
            (Operation::Divide, (10, 2), (10, 2), (23, 13)),
            (Operation::Divide, (38, 18), (38, 18), (38, 6)),
            (Operation::Divide, (3, 0), (1, 0), (9, 6)),
        ] {
            assert_eq!(operation.result([left, right]), expected, "{operation:?} {left:?} {right:?}");
        }
    }

    #[test]
    fn values_are_rounded_half_up_or_null() {
        let multiply = |a, b, result| Operation::Multiply.compute(a, b, result).unwrap();
        let divide = |a, b, result| Operation::Divide.compute(a, b, result).unwrap();
        assert_eq!(multiply((150, 2), (200, 2), (21, 4)), Some(30_000));
        assert_eq!(multiply((15, 1), (5, 1), (38, 1)), Some(8));
        assert_eq!(multiply((-15, 1), (5, 1), (38, 1)), Some(-8));
        let large = 10_i128.pow(37);
        assert_eq!(multiply((large, 18), (large, 18), (38, 6)), None);
        assert_eq!(multiply((2 * 10_i128.pow(20), 18), (3 * 10_i128.pow(20), 18), (38, 6)), Some(60_000 * 1_000_000));
        assert_eq!(divide((100, 2), (300, 2), (9, 6)), Some(333_333));
        assert_eq!(divide((200, 2), (300, 2), (9, 6)), Some(666_667));
        assert_eq!(divide((-200, 2), (300, 2), (9, 6)), Some(-666_667));
        assert_eq!(divide((large, 0), (1, 18), (38, 6)), None);
        assert_eq!(divide((5, 10), (1, 0), (38, 6)), Some(0));
        assert!(Operation::Divide.compute((1, 0), (0, 0), (9, 6)).is_err());
    }
}
