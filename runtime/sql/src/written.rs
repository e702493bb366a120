//! Expressions as people write them, for plans and messages: literals in quotes, types and functions by their names in
//! SQL, brackets only where the text would mean something else without them.
//!
//! The names of computed columns do not come from here ([`crate::calc::column_name`]): state knows them.

mod literal;

use crate::functions::{ARRAY, ELEMENT};
use crate::guard;
use crate::types::sql_name;
use datafusion_expr::Operator;
use datafusion_physical_expr::expressions::{
    BinaryExpr, CaseExpr, CastExpr, InListExpr, IsNotNullExpr, IsNullExpr, LikeExpr, Literal, NegativeExpr, NotExpr,
    TryCastExpr,
};
use datafusion_physical_expr::{PhysicalExpr, ScalarFunctionExpr};
use datafusion_physical_expr_common::physical_expr::fmt_sql;
use std::sync::Arc;

/// How tightly the outermost operator of a text binds, loosest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Binding {
    Or,
    And,
    Not,
    Comparison,
    Concatenation,
    Sum,
    Product,
    Sign,
    Whole,
}

/// An expression as SQL.
pub(crate) fn sql(expression: &Arc<dyn PhysicalExpr>) -> String {
    write(expression).0
}

/// The text, in brackets where it binds less tightly than what stands around it.
fn within(expression: &Arc<dyn PhysicalExpr>, least: Binding) -> String {
    match write(expression) {
        (text, binding) if binding < least => format!("({text})"),
        (text, _) => text,
    }
}

fn write(expression: &Arc<dyn PhysicalExpr>) -> (String, Binding) {
    let binary = expression.downcast_ref::<BinaryExpr>().or_else(|| guard::of_guarded(expression));
    if let Some(binary) = binary {
        return write_binary(binary);
    }
    if let Some(literal) = expression.downcast_ref::<Literal>() {
        let text = literal::sql(literal.value());
        let binding = if text.starts_with('-') { Binding::Sign } else { Binding::Whole };
        return (text, binding);
    }
    if let Some(written) = write_condition(expression) {
        return written;
    }
    if let Some(negative) = expression.downcast_ref::<NegativeExpr>() {
        return (format!("-{}", within(negative.arg(), Binding::Whole)), Binding::Sign);
    }
    let text = if let Some(cast) = expression.downcast_ref::<CastExpr>() {
        format!("CAST({} AS {})", sql(cast.expr()), sql_name(cast.cast_type()))
    } else if let Some(cast) = expression.downcast_ref::<TryCastExpr>() {
        format!("TRY_CAST({} AS {})", sql(cast.expr()), sql_name(cast.cast_type()))
    } else if let Some(case) = expression.downcast_ref::<CaseExpr>() {
        write_case(case)
    } else if let Some(call) = expression.downcast_ref::<ScalarFunctionExpr>() {
        return write_call(call);
    } else {
        fmt_sql(expression.as_ref()).to_string()
    };
    (text, Binding::Whole)
}

fn write_binary(binary: &BinaryExpr) -> (String, Binding) {
    let binding = match binary.op() {
        Operator::Or => Binding::Or,
        Operator::And => Binding::And,
        Operator::StringConcat => Binding::Concatenation,
        Operator::Plus | Operator::Minus => Binding::Sum,
        Operator::Multiply | Operator::Divide | Operator::Modulo => Binding::Product,
        _ => Binding::Comparison,
    };
    // `a - (b - c)` is not `a - b - c`, and a comparison is nothing to compare.
    let (left, right) = match binding {
        Binding::Or | Binding::And | Binding::Concatenation => (binding, binding),
        Binding::Comparison => (Binding::Concatenation, Binding::Concatenation),
        Binding::Sum => (Binding::Sum, Binding::Product),
        _ => (Binding::Product, Binding::Sign),
    };
    let operator = match binary.op() {
        Operator::NotEq => "<>".to_owned(),
        other => other.to_string(),
    };
    (format!("{} {operator} {}", within(binary.left(), left), within(binary.right(), right)), binding)
}

/// What is true or false and no operator between two.
fn write_condition(expression: &Arc<dyn PhysicalExpr>) -> Option<(String, Binding)> {
    let operand = |operand| within(operand, Binding::Concatenation);
    if let Some(not) = expression.downcast_ref::<NotExpr>() {
        return Some((format!("NOT {}", within(not.arg(), Binding::Not)), Binding::Not));
    }
    let text = if let Some(test) = expression.downcast_ref::<IsNullExpr>() {
        format!("{} IS NULL", operand(test.arg()))
    } else if let Some(test) = expression.downcast_ref::<IsNotNullExpr>() {
        format!("{} IS NOT NULL", operand(test.arg()))
    } else if let Some(like) = expression.downcast_ref::<LikeExpr>() {
        let not = if like.negated() { "NOT " } else { "" };
        format!("{} {not}LIKE {}", operand(like.expr()), operand(like.pattern()))
    } else {
        let list = expression.downcast_ref::<InListExpr>()?;
        let not = if list.negated() { "NOT " } else { "" };
        format!("{} {not}IN ({})", operand(list.expr()), separated(list.list()))
    };
    Some((text, Binding::Comparison))
}

fn write_case(case: &CaseExpr) -> String {
    let operand = case.expr().map_or_else(String::new, |operand| format!(" {}", sql(operand)));
    let branches = case.when_then_expr().iter();
    let branches: String = branches.map(|(when, then)| format!(" WHEN {} THEN {}", sql(when), sql(then))).collect();
    let other = case.else_expr().map_or_else(String::new, |other| format!(" ELSE {}", sql(other)));
    format!("CASE{operand}{branches}{other} END")
}

/// A call; what is no call in Flink as it is written there.
fn write_call(call: &ScalarFunctionExpr) -> (String, Binding) {
    let arguments = call.args();
    let unit = || arguments.first().map_or_else(String::new, |unit| sql(unit).trim_matches('\'').to_owned());
    let text = match (call.fun().name(), arguments) {
        ("printed", [value]) => format!("CAST({} AS STRING)", sql(value)),
        ("extract", [_, value]) => format!("EXTRACT({} FROM {})", unit(), sql(value)),
        ("floor_to", [_, value]) => format!("FLOOR({} TO {})", sql(value), unit()),
        ("ceil_to", [_, value]) => format!("CEIL({} TO {})", sql(value), unit()),
        ("timestamp_add", [_, rest @ ..]) => format!("TIMESTAMPADD({}, {})", unit(), separated(rest)),
        ("timestamp_diff", [_, rest @ ..]) => format!("TIMESTAMPDIFF({}, {})", unit(), separated(rest)),
        ("starts_with", _) => format!("STARTSWITH({})", separated(arguments)),
        ("ends_with", _) => format!("ENDSWITH({})", separated(arguments)),
        (ELEMENT, [array, position]) => format!("{}[{}]", within(array, Binding::Whole), sql(position)),
        (ARRAY, _) => format!("ARRAY[{}]", separated(arguments)),
        (name @ ("decimal_multiply" | "decimal_divide"), [left, right]) => {
            let operator = if name == "decimal_multiply" { "*" } else { "/" };
            let (left, right) = (within(left, Binding::Product), within(right, Binding::Sign));
            return (format!("{left} {operator} {right}"), Binding::Product);
        }
        (name, _) => format!("{}({})", name.to_uppercase(), separated(arguments)),
    };
    (text, Binding::Whole)
}

fn separated(expressions: &[Arc<dyn PhysicalExpr>]) -> String {
    expressions.iter().map(sql).collect::<Vec<_>>().join(", ")
}
