//! AND and OR that guard: what stands right of them is computed only for rows that the left side does not decide.
//!
//! DataFusion computes the right side over a whole batch unless the left side decides nearly all of its rows, so that
//! `d <> 0 AND n / d > 1` would fail for the rows that the left side keeps out. Where the right side cannot fail that
//! does no harm and is faster, so only the others are wrapped. CASE computes its branches for their rows already.

use crate::types::is_injective;
use arrow::array::{AsArray, BooleanArray, RecordBatch};
use arrow::compute::filter_record_batch;
use arrow::datatypes::{FieldRef, Schema};
use datafusion_common::{Result, ScalarValue, internal_err};
use datafusion_expr::{ColumnarValue, Operator};
use datafusion_physical_expr::PhysicalExpr;
use datafusion_physical_expr::expressions::{
    BinaryExpr, CastExpr, Column, InListExpr, IsNotNullExpr, IsNullExpr, LikeExpr, Literal, NotExpr,
};
use std::fmt;
use std::sync::Arc;

/// An AND or OR whose right side may fail.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Guarded(BinaryExpr);

/// Both conditions, the second for rows that the first does not keep out.
pub(crate) fn and(
    first: Arc<dyn PhysicalExpr>,
    second: Arc<dyn PhysicalExpr>,
    input: &Schema,
) -> Arc<dyn PhysicalExpr> {
    let both: Arc<dyn PhysicalExpr> = Arc::new(BinaryExpr::new(first, Operator::And, second));
    guarded(&both, input).unwrap_or(both)
}

/// The node in the place of an AND or OR that must guard; `None` for any other.
pub(crate) fn guarded(node: &Arc<dyn PhysicalExpr>, input: &Schema) -> Option<Arc<dyn PhysicalExpr>> {
    let binary = node.downcast_ref::<BinaryExpr>()?;
    let guards = matches!(binary.op(), Operator::And | Operator::Or) && may_fail(binary.right(), input);
    guards.then(|| Arc::new(Guarded(binary.clone())) as _)
}

/// The AND or OR behind a node that guards.
pub(crate) fn of_guarded(node: &Arc<dyn PhysicalExpr>) -> Option<&BinaryExpr> {
    node.downcast_ref::<Guarded>().map(|guarded| &guarded.0)
}

/// Whether computing it may fail for some row. What is not known to be safe may.
fn may_fail(expression: &Arc<dyn PhysicalExpr>, input: &Schema) -> bool {
    let is_safe = match (expression.downcast_ref::<BinaryExpr>(), expression.downcast_ref::<CastExpr>()) {
        (Some(binary), _) => match binary.op() {
            Operator::And | Operator::Or => true,
            // Whole numbers wrap.
            Operator::Plus | Operator::Minus | Operator::Multiply => {
                binary.data_type(input).is_ok_and(|made| made.is_integer() || made.is_floating())
            }
            Operator::Eq | Operator::NotEq | Operator::Lt | Operator::LtEq | Operator::Gt | Operator::GtEq => true,
            Operator::IsDistinctFrom | Operator::IsNotDistinctFrom => true,
            _ => false,
        },
        (_, Some(cast)) => cast.expr().data_type(input).is_ok_and(|from| is_injective(&from, cast.cast_type())),
        _ => {
            expression.is::<Column>()
                || expression.is::<Literal>()
                || expression.is::<IsNullExpr>()
                || expression.is::<IsNotNullExpr>()
                || expression.is::<NotExpr>()
                || expression.is::<InListExpr>()
                || expression.is::<LikeExpr>()
        }
    };
    !is_safe || expression.children().into_iter().any(|child| may_fail(child, input))
}

impl fmt::Display for Guarded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl PhysicalExpr for Guarded {
    fn return_field(&self, input: &Schema) -> Result<FieldRef> {
        self.0.return_field(input)
    }

    fn evaluate(&self, batch: &RecordBatch) -> Result<ColumnarValue> {
        let deciding = *self.0.op() == Operator::Or;
        let left = self.0.left().evaluate(batch)?.into_array(batch.num_rows())?;
        let left = left.as_boolean();
        let is_open = |value: Option<bool>| value != Some(deciding);
        let open: BooleanArray = left.iter().map(|value| Some(is_open(value))).collect();
        if !open.has_true() {
            return Ok(ColumnarValue::Scalar(ScalarValue::Boolean(Some(deciding))));
        }
        let rows = if open.has_false() { filter_record_batch(batch, &open)? } else { batch.clone() };
        let right = self.0.right().evaluate(&rows)?.into_array(rows.num_rows())?;
        let Some(right) = right.as_boolean_opt() else {
            return internal_err!("{} is no condition", self.0.right());
        };
        let mut rights = right.iter();
        let both = left.iter().map(|left| match left {
            Some(decided) if decided == deciding => Some(deciding),
            undecided => match rights.next().flatten() {
                Some(right) if right == deciding => Some(deciding),
                right => undecided.and(right),
            },
        });
        Ok(ColumnarValue::Array(Arc::new(both.collect::<BooleanArray>())))
    }

    fn children(&self) -> Vec<&Arc<dyn PhysicalExpr>> {
        self.0.children()
    }

    fn with_new_children(self: Arc<Self>, children: Vec<Arc<dyn PhysicalExpr>>) -> Result<Arc<dyn PhysicalExpr>> {
        let [left, right] = children.as_slice() else {
            return internal_err!("{} has two sides, not {}", self.0, children.len());
        };
        Ok(Arc::new(Self(BinaryExpr::new(Arc::clone(left), *self.0.op(), Arc::clone(right)))))
    }

    fn fmt_sql(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt_sql(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::Int32Array;
    use arrow::datatypes::{DataType, Field};
    use datafusion_physical_expr::expressions::{binary, lit};

    /// `n / d > 1`, or its opposite where a row is left out by OR.
    fn quotient_is_large(schema: &Schema) -> Arc<dyn PhysicalExpr> {
        let column = |name: &str| Arc::new(Column::new_with_schema(name, schema).unwrap()) as Arc<dyn PhysicalExpr>;
        let quotient = binary(column("n"), Operator::Divide, column("d"), schema).unwrap();
        binary(quotient, Operator::Gt, lit(1), schema).unwrap()
    }

    fn values(op: Operator, against_zero: Operator) -> Vec<Option<bool>> {
        let field = |name| Field::new(name, DataType::Int32, true);
        let schema = Arc::new(Schema::new(vec![field("n"), field("d")]));
        let n = Int32Array::from(vec![Some(6), Some(1), Some(1), Some(3), None]);
        let d = Int32Array::from(vec![Some(2), Some(0), Some(1), None, Some(5)]);
        let batch = RecordBatch::try_new(Arc::clone(&schema), vec![Arc::new(n), Arc::new(d)]).unwrap();
        let d = Arc::new(Column::new("d", 1)) as Arc<dyn PhysicalExpr>;
        let guard = binary(d, against_zero, lit(0), &schema).unwrap();
        let both: Arc<dyn PhysicalExpr> = Arc::new(BinaryExpr::new(guard, op, quotient_is_large(&schema)));
        let guarded = guarded(&both, &schema).expect("a division may fail");
        assert_eq!(guarded.to_string(), both.to_string());
        let value = guarded.evaluate(&batch).unwrap().into_array(5).unwrap();
        value.as_boolean().iter().collect()
    }

    #[test]
    fn the_right_side_is_computed_for_the_rows_that_are_left() {
        assert_eq!(values(Operator::And, Operator::NotEq), [Some(true), Some(false), Some(false), None, None]);
        assert_eq!(values(Operator::Or, Operator::Eq), [Some(true), Some(true), Some(false), None, None]);
    }

    #[test]
    fn what_cannot_fail_is_left_as_it_is() {
        let schema = Schema::new(vec![Field::new("d", DataType::Int32, true)]);
        let column = Arc::new(Column::new("d", 0)) as Arc<dyn PhysicalExpr>;
        let is_null = Arc::new(IsNullExpr::new(Arc::clone(&column))) as Arc<dyn PhysicalExpr>;
        let wide = Arc::new(CastExpr::new(Arc::clone(&column), DataType::Int64, None)) as Arc<dyn PhysicalExpr>;
        let sum = binary(wide, Operator::Plus, lit(1_i64), &schema).unwrap();
        let is_more = binary(sum, Operator::Gt, lit(3_i64), &schema).unwrap();
        let safe = Arc::new(BinaryExpr::new(Arc::clone(&is_null), Operator::And, is_more)) as Arc<dyn PhysicalExpr>;
        assert!(guarded(&safe, &schema).is_none());
        let narrow = Arc::new(CastExpr::new(column, DataType::Int8, None)) as Arc<dyn PhysicalExpr>;
        let is_three = binary(narrow, Operator::Eq, lit(3_i8), &schema).unwrap();
        let unsafe_one = Arc::new(BinaryExpr::new(is_null, Operator::And, is_three)) as Arc<dyn PhysicalExpr>;
        assert!(guarded(&unsafe_one, &schema).is_some());
    }
}
