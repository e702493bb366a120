//! Which expressions are supported: an allow list, so that nothing runs whose meaning was not considered.

use super::{Validator, clauses};
use crate::error::{SqlError, SqlErrorKind};
use crate::functions::{FunctionKind, FunctionRefusal};
use crate::rewrite;
use datafusion_sql::sqlparser::ast::{
    Array, BinaryOperator, CastKind, CeilFloorKind, DataType, DuplicateTreatment, Expr, ExtractSyntax, Function,
    FunctionArg, FunctionArgExpr, FunctionArgumentList, FunctionArguments, Interval, OrderByExpr, Spanned,
    TimezoneInfo, TypedString, UnaryOperator, Value, ValueWithSpan, WindowType, visit_expressions,
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
        let FunctionArgumentList { duplicate_treatment, args, clauses: inner } = self.arguments(function)?;
        let has_arguments = duplicate_treatment.is_some() || !args.is_empty() || !inner.is_empty();
        let over = self.text.keyword_after(at, "OVER");
        self.refuse_some(clauses::of_window(window), over)?;
        self.refuse_any(&[(function.filter.is_some(), "FILTER of ROW_NUMBER")], over)?;
        if has_arguments {
            return self.invalid("ROW_NUMBER takes no arguments", at);
        }
        if window.order_by.is_empty() {
            return self.invalid("ROW_NUMBER needs an order: OVER (PARTITION BY … ORDER BY …)", over);
        }
        window.partition_by.iter().try_for_each(|key| self.expression(key))?;
        window.order_by.iter().try_for_each(|OrderByExpr { expr, options: _, with_fill }| {
            self.refuse_any(&[(with_fill.is_some(), "WITH FILL")], expr.span().start)?;
            self.expression(expr)
        })
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

    /// One node, without what is below it. All that it may have is named, so that nothing goes by unseen.
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
            | Expr::IsUnknown(_)
            | Expr::IsNotUnknown(_)
            | Expr::IsDistinctFrom(..)
            | Expr::IsNotDistinctFrom(..)
            | Expr::InList { expr: _, list: _, negated: _ }
            | Expr::Between { expr: _, negated: _, low: _, high: _ }
            | Expr::Nested(_)
            | Expr::Case { case_token: _, end_token: _, operand: _, conditions: _, else_result: _ }
            | Expr::Position { expr: _, r#in: _ }
            | Expr::Substring { expr: _, substring_from: _, substring_for: _, special: _, shorthand: _ }
            | Expr::Trim { trim_where: _, trim_what: _, expr: _, trim_characters: None }
            | Expr::Function(_)
            | Expr::UnaryOp { op: UnaryOperator::Plus | UnaryOperator::Minus | UnaryOperator::Not, expr: _ }
            | Expr::Like { negated: _, any: false, expr: _, pattern: _, escape_char: None }
            | Expr::Cast {
                kind: CastKind::Cast | CastKind::TryCast,
                expr: _,
                data_type: _,
                array: false,
                format: None,
            }
            | Expr::Extract { field: _, syntax: ExtractSyntax::From, expr: _ }
            | Expr::Overlay { expr: _, overlay_what: _, overlay_from: _, overlay_for: _ }
            | Expr::Ceil { field: CeilFloorKind::DateTimeField(_), expr: _ }
            | Expr::Floor { field: CeilFloorKind::DateTimeField(_), expr: _ } => Ok(()),
            Expr::Value(literal) => self.literal(literal, at),
            Expr::TypedString(literal) => self.typed_literal(literal, at),
            Expr::Interval(interval) => self.interval(interval, at),
            Expr::Array(Array { named: true, elem }) if elem.is_empty() => {
                let at = self.text.place_of(&["ARRAY", "[", "]"]).unwrap_or(at);
                self.invalid("ARRAY[] has no type: give it an element", at)
            }
            Expr::Array(Array { named: true, elem: _ }) => Ok(()),
            Expr::CompoundIdentifier(parts) if parts.len() == 2 => Ok(()),
            Expr::CompoundFieldAccess { .. } if rewrite::element_access(node).is_some() => Ok(()),
            Expr::CompoundIdentifier(_) => self.refuse("a column name with more than a table before it", at),
            Expr::BinaryOp { left: _, op, right: _ } => self.operator(op, at),
            Expr::Like { negated: _, any: false, expr: _, pattern, escape_char: Some(escape) } => {
                self.escape(pattern, escape, at)
            }
            other => {
                let name = name_of(other);
                let word = name.split(' ').next().unwrap_or_default();
                let at = if GROUPINGS.contains(&name) { self.text.keyword_before(at, word) } else { at };
                self.refuse(name, at)
            }
        }
    }

    fn literal(self, ValueWithSpan { value, span: _ }: &ValueWithSpan, at: Location) -> Result<(), SqlError> {
        match value {
            Value::Number(_, false)
            | Value::SingleQuotedString(_)
            | Value::HexStringLiteral(_)
            | Value::Boolean(_)
            | Value::Null => Ok(()),
            Value::Number(_, true) => self.refuse("a number with an L behind it", at),
            Value::Placeholder(name) => self.refuse(&format!("a placeholder ({name})"), at),
            other => self.refuse(&format!("a literal as {other}"), at),
        }
    }

    /// `DATE '…'`, `TIME '…'` and `TIMESTAMP '…'`.
    fn typed_literal(self, literal: &TypedString, at: Location) -> Result<(), SqlError> {
        let TypedString { data_type, value: ValueWithSpan { value, span: _ }, uses_odbc_syntax } = literal;
        let is_time = matches!(
            data_type,
            DataType::Date
                | DataType::Time(_, TimezoneInfo::None | TimezoneInfo::WithoutTimeZone)
                | DataType::Timestamp(_, TimezoneInfo::None | TimezoneInfo::WithoutTimeZone)
        );
        match value {
            Value::SingleQuotedString(_) if is_time && !uses_odbc_syntax => Ok(()),
            other => self.refuse(&format!("{data_type} before a literal (write CAST({other} AS {data_type}))"), at),
        }
    }

    fn interval(self, interval: &Interval, at: Location) -> Result<(), SqlError> {
        if rewrite::interval::plain(interval).is_some() {
            return Ok(());
        }
        let message = match (rewrite::constant(&interval.value), &interval.leading_field) {
            (_, None) => format!("{interval} has no unit of time: write it as INTERVAL '1' DAY"),
            (None, _) => {
                format!("{interval} is no interval: its length is a number in single quotes, as in INTERVAL '1' DAY")
            }
            _ => format!(
                "{interval} is no interval: its text does not fit its units, as '1' DAY and '1 02:03' DAY TO MINUTE do"
            ),
        };
        self.invalid(message, at)
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
        let FunctionArgumentList { duplicate_treatment, args, clauses: inner } = self.arguments(function)?;
        self.refuse_any(&[(!inner.is_empty(), "a clause inside a call")], at)?;
        if let (Some(word), FunctionKind::Scalar) = (duplicate_treatment, kind) {
            return self.invalid(format!("{word} belongs to an aggregate call, which {name} is none"), at);
        }
        let is_count = kind == FunctionKind::Aggregate && name == "COUNT";
        let is_distinct = *duplicate_treatment == Some(DuplicateTreatment::Distinct);
        match args.as_slice() {
            [FunctionArg::Unnamed(FunctionArgExpr::Wildcard)] if is_count && !is_distinct => return Ok(()),
            [FunctionArg::Unnamed(FunctionArgExpr::Wildcard)] if is_count => {
                return self.invalid("COUNT(DISTINCT *) names no value: write COUNT(DISTINCT a)", at);
            }
            [] if is_count => return self.invalid("COUNT needs an argument: COUNT(*) or COUNT(a)", at),
            [_, _, ..] if is_count => return self.refuse("COUNT of several values", at),
            _ => args.iter().try_for_each(|argument| self.argument(&name, argument, at))?,
        }
        if kind == FunctionKind::Aggregate
            && visit_expressions(args, |inner| self.aggregate_call(inner)) == ControlFlow::Break(())
        {
            return self.invalid(format!("an aggregate call inside {name}"), at);
        }
        Ok(())
    }

    /// What stands in the brackets of a call that has nothing but FILTER and OVER beside them.
    fn arguments(self, function: &Function) -> Result<&FunctionArgumentList, SqlError> {
        let Function { name, uses_odbc_syntax, parameters, args, filter: _, null_treatment, over: _, within_group } =
            function;
        let at = function.span().start;
        let others = [
            (!within_group.is_empty(), "WITHIN GROUP"),
            (null_treatment.is_some(), "IGNORE NULLS"),
            (*uses_odbc_syntax, "{fn …}"),
            (!matches!(parameters, FunctionArguments::None), "a parametric function"),
            (matches!(args, FunctionArguments::Subquery(_)), "a subquery in an expression"),
        ];
        self.refuse_any(&others, at)?;
        match args {
            FunctionArguments::List(list) => Ok(list),
            _ => {
                let name = name.to_string().to_uppercase();
                self.invalid(format!("{name} needs brackets: {name}(…)"), at)
            }
        }
    }

    /// One argument of a call other than COUNT(*).
    fn argument(self, name: &str, argument: &FunctionArg, at: Location) -> Result<(), SqlError> {
        match argument {
            FunctionArg::Unnamed(FunctionArgExpr::Expr(_)) => Ok(()),
            FunctionArg::Unnamed(
                FunctionArgExpr::Wildcard
                | FunctionArgExpr::QualifiedWildcard(_)
                | FunctionArgExpr::WildcardWithOptions(_),
            ) => self.invalid(format!("{name} takes no {argument}: only COUNT(*) counts whole rows"), at),
            FunctionArg::Named { .. } | FunctionArg::ExprNamed { .. } => self.refuse("a named argument", at),
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
        Expr::Trim { .. } => "TRIM with a comma (write TRIM(BOTH 'x' FROM a))",
        Expr::Extract { .. } => "EXTRACT with a comma (write EXTRACT(DAY FROM a))",
        Expr::UnaryOp { .. } => "this operator",
        Expr::CompoundFieldAccess { .. } | Expr::JsonAccess { .. } => "access into a value",
        _ => "this expression",
    }
}
