//! Which expressions are supported: an allow list, so that nothing runs whose meaning was not considered.

use super::Validator;
use crate::error::{SqlError, SqlErrorKind};
use crate::functions::{FunctionKind, FunctionRefusal};
use crate::rewrite;
use datafusion_sql::sqlparser::ast::{
    Array, BinaryOperator, CastKind, CeilFloorKind, DuplicateTreatment, Expr, Function, FunctionArguments, Spanned,
    UnaryOperator, ValueWithSpan, WindowType, visit_expressions,
};
use datafusion_sql::sqlparser::tokenizer::Location;
use std::ops::ControlFlow;

impl Validator<'_> {
    /// An expression of the SELECT list: aggregate calls may stand in it.
    pub(super) fn expression(self, expression: &Expr) -> Result<(), SqlError> {
        self.every_node(expression, |node| match node {
            Expr::Function(function) if self.is_row_number(function) => {
                let message = "ROW_NUMBER may stand in SELECT only, with nothing around it";
                self.invalid(message, function.span().start)
            }
            Expr::Function(function) => self.call(function),
            _ => Ok(()),
        })
    }

    /// An item of SELECT: an expression, or ROW_NUMBER() OVER (…).
    pub(super) fn selected(self, expression: &Expr) -> Result<(), SqlError> {
        match expression {
            Expr::Function(function) if self.is_row_number(function) => self.row_number(function),
            _ => self.expression(expression),
        }
    }

    fn is_row_number(self, function: &Function) -> bool {
        self.functions.kind(&function.name.to_string()) == Ok(FunctionKind::Window)
    }

    fn row_number(self, function: &Function) -> Result<(), SqlError> {
        let at = function.span().start;
        let window = match &function.over {
            Some(WindowType::WindowSpec(window)) => window,
            Some(WindowType::NamedWindow(_)) => {
                return self.refuse("a named window", self.text.keyword_after(at, "OVER"));
            }
            None => return self.invalid("ROW_NUMBER needs OVER (PARTITION BY … ORDER BY …)", at),
        };
        let over = self.text.keyword_after(at, "OVER");
        let has_arguments = !matches!(&function.args, FunctionArguments::List(list) if list.args.is_empty());
        let others = [
            (window.window_name.is_some(), "a named window"),
            (window.window_frame.is_some(), "a frame (ROWS or RANGE) of ROW_NUMBER"),
            (function.filter.is_some(), "FILTER of ROW_NUMBER"),
            (function.null_treatment.is_some(), "IGNORE NULLS"),
            (!function.within_group.is_empty(), "WITHIN GROUP"),
        ];
        self.refuse_any(&others, over)?;
        if has_arguments {
            return self.invalid("ROW_NUMBER takes no arguments", at);
        }
        if window.order_by.is_empty() {
            return self.invalid("ROW_NUMBER needs an order: OVER (PARTITION BY … ORDER BY …)", over);
        }
        if let Some(fill) = window.order_by.iter().find(|by| by.with_fill.is_some()) {
            return self.refuse("WITH FILL", fill.expr.span().start);
        }
        window.partition_by.iter().try_for_each(|key| self.expression(key))?;
        window.order_by.iter().try_for_each(|by| self.expression(&by.expr))
    }

    /// An expression of one row: without aggregate calls.
    pub(super) fn scalar(self, expression: &Expr, clause: &str) -> Result<(), SqlError> {
        self.every_node(expression, |node| match node {
            Expr::Function(function) => match self.call_kind(function)? {
                FunctionKind::Scalar => self.call(function),
                FunctionKind::Aggregate | FunctionKind::Window => {
                    let message = format!("{} may not stand in {clause}", function.name.to_string().to_uppercase());
                    self.invalid(message, function.span().start)
                }
            },
            _ => Ok(()),
        })
    }

    fn every_node(self, expression: &Expr, check: impl Fn(&Expr) -> Result<(), SqlError>) -> Result<(), SqlError> {
        let result = visit_expressions(expression, |node: &Expr| {
            match self.node(node, expression.span().start).and_then(|()| check(node)) {
                Ok(()) => ControlFlow::Continue(()),
                Err(error) => ControlFlow::Break(error),
            }
        });
        match result {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(error) => Err(error),
        }
    }

    /// One node, without what is below it.
    fn node(self, node: &Expr, whole: Location) -> Result<(), SqlError> {
        let at = if node.span().start.line == 0 { whole } else { node.span().start };
        match node {
            Expr::Identifier(_)
            | Expr::IsNull(_)
            | Expr::IsNotNull(_)
            | Expr::IsTrue(_)
            | Expr::IsNotTrue(_)
            | Expr::IsFalse(_)
            | Expr::IsNotFalse(_)
            | Expr::IsDistinctFrom(..)
            | Expr::IsNotDistinctFrom(..)
            | Expr::InList { .. }
            | Expr::Between { .. }
            | Expr::Nested(_)
            | Expr::Value(_)
            | Expr::TypedString(_)
            | Expr::Case { .. }
            | Expr::Position { .. }
            | Expr::Substring { .. }
            | Expr::Trim { .. }
            | Expr::Function(_)
            | Expr::UnaryOp { op: UnaryOperator::Plus | UnaryOperator::Minus | UnaryOperator::Not, .. }
            | Expr::Like { any: false, escape_char: None, .. }
            | Expr::Cast { kind: CastKind::Cast | CastKind::TryCast, format: None, .. }
            | Expr::Extract { .. }
            | Expr::Overlay { .. }
            | Expr::Ceil { field: CeilFloorKind::DateTimeField(_), .. }
            | Expr::Floor { field: CeilFloorKind::DateTimeField(_), .. } => Ok(()),
            Expr::IsUnknown(_) | Expr::IsNotUnknown(_) => Ok(()),
            Expr::Interval(interval) if rewrite::interval::plain(interval).is_some() => Ok(()),
            Expr::Interval(_) => self.invalid(
                format!("{node} is no interval: its text does not fit its units, as '1 02:03' DAY TO MINUTE does"),
                at,
            ),
            Expr::Array(Array { named: true, elem }) if elem.is_empty() => {
                self.invalid("ARRAY[] has no type: give it an element", at)
            }
            Expr::CompoundIdentifier(parts) if parts.len() == 2 => Ok(()),
            Expr::CompoundFieldAccess { .. } if rewrite::element_access(node).is_some() => Ok(()),
            Expr::CompoundIdentifier(_) => self.refuse("a column name with more than a table before it", at),
            Expr::BinaryOp { op, .. } => self.operator(op, at),
            Expr::Like { any: false, pattern, escape_char: Some(escape), .. } => self.escape(pattern, escape, at),
            Expr::Array(Array { named: true, .. }) => Ok(()),
            other => {
                let name = name_of(other);
                let word = name.split(' ').next().unwrap_or_default();
                let at = if GROUPINGS.contains(&name) { self.text.keyword_before(at, word) } else { at };
                self.refuse(name, at)
            }
        }
    }

    /// LIKE … ESCAPE.
    fn escape(self, pattern: &Expr, escape: &ValueWithSpan, at: Location) -> Result<(), SqlError> {
        let Some(pattern) = rewrite::constant(pattern) else {
            return self.refuse("ESCAPE with a pattern that is no constant", at);
        };
        let Some(character) = rewrite::escape_character(escape) else {
            return self.invalid(format!("ESCAPE takes one character, not {}", escape.value), at);
        };
        if rewrite::like_pattern(pattern, Some(character)).is_none() {
            let message = format!("in a pattern of LIKE, '{character}' may stand before %, _ and itself only");
            return self.invalid(message, at);
        }
        Ok(())
    }

    fn operator(self, operator: &BinaryOperator, at: Location) -> Result<(), SqlError> {
        match operator {
            BinaryOperator::Plus
            | BinaryOperator::Minus
            | BinaryOperator::Multiply
            | BinaryOperator::Divide
            | BinaryOperator::Modulo
            | BinaryOperator::StringConcat
            | BinaryOperator::Gt
            | BinaryOperator::Lt
            | BinaryOperator::GtEq
            | BinaryOperator::LtEq
            | BinaryOperator::Eq
            | BinaryOperator::NotEq
            | BinaryOperator::And
            | BinaryOperator::Or => Ok(()),
            other => self.refuse(&format!("operator {other}"), at),
        }
    }

    fn call_kind(self, function: &Function) -> Result<FunctionKind, SqlError> {
        let at = function.span().start;
        self.functions.kind(&function.name.to_string()).map_err(|refusal| match refusal {
            FunctionRefusal::Unsupported(message) => self.text.error(SqlErrorKind::Unsupported, at, message),
            FunctionRefusal::Unknown(message) => self.text.error(SqlErrorKind::UnknownFunction, at, message),
        })
    }

    fn call(self, function: &Function) -> Result<(), SqlError> {
        let at = function.span().start;
        let name = function.name.to_string().to_uppercase();
        if function.over.is_some() {
            let over = self.text.keyword_after(at, "OVER");
            return self.refuse(&format!("{name} OVER (a window)"), over);
        }
        let kind = self.call_kind(function)?;
        if let Some(filter) = &function.filter {
            if kind == FunctionKind::Scalar {
                let at = self.text.keyword_before(filter.span().start, "FILTER");
                return self.invalid(format!("FILTER belongs to an aggregate call, which {name} is none"), at);
            }
            self.scalar(filter, "FILTER")?;
        }
        let others = [
            (!function.within_group.is_empty(), "WITHIN GROUP"),
            (function.null_treatment.is_some(), "IGNORE NULLS"),
            (function.uses_odbc_syntax, "{fn …}"),
            (!matches!(function.parameters, FunctionArguments::None), "a parametric function"),
            (matches!(function.args, FunctionArguments::Subquery(_)), "a subquery in an expression"),
        ];
        self.refuse_any(&others, at)?;
        let FunctionArguments::List(list) = &function.args else {
            return self.invalid(format!("{name} needs brackets: {name}(…)"), at);
        };
        self.refuse_any(&[(!list.clauses.is_empty(), "a clause inside a call")], at)?;
        if list.duplicate_treatment == Some(DuplicateTreatment::Distinct) && kind == FunctionKind::Scalar {
            return self.invalid(format!("DISTINCT belongs to an aggregate call, which {name} is none"), at);
        }
        match kind {
            FunctionKind::Scalar | FunctionKind::Window => Ok(()),
            FunctionKind::Aggregate => match visit_expressions(&list.args, |inner| self.aggregate_call(inner)) {
                ControlFlow::Continue(()) => Ok(()),
                ControlFlow::Break(()) => self.invalid(format!("an aggregate call inside {name}"), at),
            },
        }
    }
}

/// Refused expressions whose place the parser gives as that of their first key.
const GROUPINGS: [&str; 3] = ["GROUPING SETS", "CUBE", "ROLLUP"];

/// What people call an expression that is refused.
fn name_of(expression: &Expr) -> &'static str {
    match expression {
        Expr::InSubquery { .. } | Expr::Subquery(_) | Expr::AnyOp { .. } | Expr::AllOp { .. } => {
            "a subquery in an expression"
        }
        Expr::Exists { .. } => "EXISTS",
        Expr::ILike { .. } => "ILIKE",
        Expr::SimilarTo { .. } => "SIMILAR TO",
        Expr::RLike { .. } => "RLIKE",
        Expr::Ceil { .. } | Expr::Floor { .. } => "CEIL or FLOOR to a number of digits",
        Expr::Cast { .. } | Expr::Convert { .. } => "this kind of cast",
        Expr::AtTimeZone { .. } => "AT TIME ZONE",
        Expr::GroupingSets(_) => "GROUPING SETS",
        Expr::Cube(_) => "CUBE",
        Expr::Rollup(_) => "ROLLUP",
        Expr::Tuple(_) | Expr::Struct { .. } => "a row value",
        Expr::Array(_) => "an array without the word ARRAY",
        Expr::Map(_) | Expr::Dictionary(_) => "a map",
        Expr::Lambda(_) => "a lambda",
        Expr::UnaryOp { .. } => "this operator",
        Expr::CompoundFieldAccess { .. } | Expr::JsonAccess { .. } => "access into a value",
        _ => "this expression",
    }
}
