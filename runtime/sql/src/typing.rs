//! What DataFusion would cast by itself, or by CAST, and Flink refuses: checked on a typed plan before DataFusion's analyser
//! makes types fit.

use crate::types::{is_castable, sql_name};
use arrow::datatypes::DataType;
use datafusion_common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion_common::{DFSchema, Result, plan_err};
use datafusion_expr::{Cast, Expr, ExprSchemable, LogicalPlan, Operator, TryCast};

/// Refuses conditions that are none, and casts that do not exist.
pub(crate) fn check(plan: &LogicalPlan) -> Result<()> {
    plan.apply(|node| {
        let mut schema = DFSchema::empty();
        node.inputs().iter().for_each(|input| schema.merge(input.schema()));
        node.apply_expressions(|expression| expression.apply(|part| check_part(part, &schema)))
    })?;
    Ok(())
}

fn check_part(part: &Expr, schema: &DFSchema) -> Result<TreeNodeRecursion> {
    match part {
        Expr::Case(case) if case.expr.is_none() => {
            case.when_then_expr.iter().try_for_each(|(when, _)| check_condition(when, "CASE WHEN or IF", schema))?;
        }
        Expr::Not(operand) => check_condition(operand, "NOT", schema)?,
        Expr::IsTrue(operand) | Expr::IsNotTrue(operand) => check_condition(operand, "IS TRUE", schema)?,
        Expr::IsFalse(operand) | Expr::IsNotFalse(operand) => check_condition(operand, "IS FALSE", schema)?,
        Expr::IsUnknown(operand) | Expr::IsNotUnknown(operand) => check_condition(operand, "IS UNKNOWN", schema)?,
        Expr::BinaryExpr(both) if matches!(both.op, Operator::And | Operator::Or) => {
            let word = both.op.to_string();
            check_condition(&both.left, &word, schema)?;
            check_condition(&both.right, &word, schema)?;
        }
        Expr::AggregateFunction(call) => {
            call.params.filter.iter().try_for_each(|filter| check_condition(filter, "FILTER", schema))?;
        }
        Expr::Cast(Cast { expr, field }) | Expr::TryCast(TryCast { expr, field }) => {
            check_cast(expr, field.data_type(), schema)?;
        }
        _ => {}
    }
    Ok(TreeNodeRecursion::Continue)
}

/// What has no type of its own fails later, with better words.
fn check_condition(condition: &Expr, of: &str, schema: &DFSchema) -> Result<()> {
    if is_condition(condition) {
        return Ok(());
    }
    match condition.get_type(schema) {
        Ok(DataType::Boolean | DataType::Null) | Err(_) => Ok(()),
        Ok(other) => plan_err!("{of} takes a condition (BOOLEAN), not {}: compare it, as in a <> 0", sql_name(&other)),
    }
}

/// Whether it is one by its form: of a long chain of OR the type of each part would be asked for again and again.
fn is_condition(expression: &Expr) -> bool {
    match expression {
        Expr::BinaryExpr(both) => both.op.is_logic_operator() || both.op.supports_propagation(),
        other => matches!(
            other,
            Expr::Not(_) | Expr::IsNull(_) | Expr::IsNotNull(_) | Expr::Like(_) | Expr::Between(_) | Expr::InList(_)
        ),
    }
}

fn check_cast(value: &Expr, to: &DataType, schema: &DFSchema) -> Result<()> {
    match value.get_type(schema) {
        Ok(from) if !is_castable(&from, to) => {
            plan_err!("a CAST of {} to {} does not exist{}", sql_name(&from), sql_name(to), advice(&from, to))
        }
        _ => Ok(()),
    }
}

/// How to come from the one to the other.
fn advice(from: &DataType, to: &DataType) -> &'static str {
    match (from.is_numeric(), to.is_numeric()) {
        (true, _) if to.is_temporal() => ": TO_TIMESTAMP_LTZ(n, 3) is the time of n milliseconds since 1970",
        (_, true) if from.is_temporal() => ": EXTRACT and TIMESTAMPDIFF give numbers",
        _ => "",
    }
}
