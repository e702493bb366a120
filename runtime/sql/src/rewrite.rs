//! Rewrites calls whose form or meaning in Flink is not DataFusion's into others that mean the same in both.
//!
//! Works on the syntax tree after it was validated, from the inside out; places are kept where the new node has one.

pub(crate) mod interval;

use crate::functions::{ARRAY, ELEMENT};
use datafusion_common::{Result, plan_err};
use datafusion_sql::sqlparser::ast::helpers::attached_token::AttachedToken;
use datafusion_sql::sqlparser::ast::{
    AccessExpr, BinaryOperator, CaseWhen, CastKind, CeilFloorKind, DataType, DateTimeField, ExactNumberInfo, Expr,
    Function, FunctionArg, FunctionArgExpr, FunctionArgumentList, FunctionArguments, Ident, ObjectName, ObjectNamePart,
    Query, Subscript, Value, ValueWithSpan, visit_expressions, visit_expressions_mut,
};
use datafusion_sql::sqlparser::tokenizer::Span;
use std::ops::ControlFlow;

/// Calls that are short for `EXTRACT(unit FROM …)`.
const PARTS: [(&str, &str); 10] = [
    ("year", "YEAR"),
    ("quarter", "QUARTER"),
    ("month", "MONTH"),
    ("week", "WEEK"),
    ("dayofyear", "DOY"),
    ("dayofmonth", "DAY"),
    ("dayofweek", "DOW"),
    ("hour", "HOUR"),
    ("minute", "MINUTE"),
    ("second", "SECOND"),
];

/// Other names of the same function.
const SYNONYMS: [(&str, &str); 2] = [("startswith", "starts_with"), ("endswith", "ends_with")];

/// Names that queries may call because this step replaces them.
pub(crate) fn replaced_names() -> impl Iterator<Item = &'static str> {
    let others = [
        "if",
        "coalesce",
        "ifnull",
        "nvl",
        "concat",
        "mod",
        "sign",
        "greatest",
        "least",
        "timestampdiff",
        "timestampadd",
        "log",
    ];
    PARTS.iter().chain(&SYNONYMS).map(|(name, _)| *name).chain(others)
}

/// How many nodes rewriting may add to a query: some calls stand for an expression that says its arguments twice, so
/// that calls within calls grow as powers of two.
const MOST_ADDED: usize = 20_000;

/// Rewrites all expressions of a query.
///
/// # Errors
/// When it would grow too large.
pub(crate) fn rewrite(query: &mut Query) -> Result<()> {
    let mut added = 0;
    let grown = visit_expressions_mut(query, |expression| {
        if let Some(other) = replacement(expression) {
            added += size(&other).saturating_sub(size(expression));
            *expression = other;
        }
        if added > MOST_ADDED { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    match grown {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => plan_err!(
            "COALESCE, IFNULL, NVL, GREATEST, LEAST or SIGN are nested too deeply: give the inner ones names in a query \
             in FROM"
        ),
    }
}

/// How many nodes an expression has.
fn size(expression: &Expr) -> usize {
    let mut size = 0;
    let _: ControlFlow<()> = visit_expressions(expression, |_: &Expr| {
        size += 1;
        ControlFlow::Continue(())
    });
    size
}

fn replacement(expression: &Expr) -> Option<Expr> {
    match expression {
        Expr::Extract { field, expr, .. } => Some(call("extract", vec![unit(field), (**expr).clone()])),
        Expr::Floor { field: CeilFloorKind::DateTimeField(field), expr } if is_unit(field) => {
            Some(call("floor_to", vec![unit(field), (**expr).clone()]))
        }
        Expr::Ceil { field: CeilFloorKind::DateTimeField(field), expr } if is_unit(field) => {
            Some(call("ceil_to", vec![unit(field), (**expr).clone()]))
        }
        Expr::Substring { expr, substring_from, substring_for, .. } => {
            let from = substring_from.as_deref().cloned().unwrap_or_else(|| number("1"));
            let mut arguments = vec![(**expr).clone(), from];
            arguments.extend(substring_for.as_deref().cloned());
            Some(call("substring", arguments))
        }
        Expr::Overlay { expr, overlay_what, overlay_from, overlay_for } => {
            let mut arguments = vec![(**expr).clone(), (**overlay_what).clone(), (**overlay_from).clone()];
            arguments.extend(overlay_for.as_deref().cloned());
            Some(call("overlay", arguments))
        }
        Expr::Like { negated, any, expr, pattern, escape_char } => {
            let pattern = with_backslashes(pattern, escape_char.as_ref())?;
            let (negated, any, expr) = (*negated, *any, expr.clone());
            Some(Expr::Like { negated, any, expr, pattern: Box::new(pattern), escape_char: None })
        }
        Expr::Function(function) => of_call(function),
        Expr::CompoundFieldAccess { .. } => element_access(expression),
        Expr::Value(ValueWithSpan { value: Value::Number(number, _), span }) => double(number, *span),
        Expr::Interval(interval) => interval::plain(interval).map(Expr::Interval),
        Expr::Array(array) => Some(call(ARRAY, array.elem.clone())),
        _ => None,
    }
}

/// A number with an exponent, which is DOUBLE; without one it is DECIMAL.
fn double(number: &str, span: Span) -> Option<Expr> {
    number.contains(['e', 'E']).then(|| Expr::Cast {
        kind: CastKind::Cast,
        expr: Box::new(Expr::Value(ValueWithSpan { value: Value::SingleQuotedString(number.to_owned()), span })),
        data_type: DataType::Double(ExactNumberInfo::None),
        array: false,
        format: None,
    })
}

/// The calls behind `a[1]`, `t.a[1]` and `a[1][2]`; `None` for any other access into a value.
pub(crate) fn element_access(expression: &Expr) -> Option<Expr> {
    let Expr::CompoundFieldAccess { root, access_chain } = expression else { return None };
    let (array, positions) = match (&**root, access_chain.as_slice()) {
        (Expr::Identifier(table), [AccessExpr::Dot(Expr::Identifier(column)), rest @ ..]) => {
            (Expr::CompoundIdentifier(vec![table.clone(), column.clone()]), rest)
        }
        (root, positions) => (root.clone(), positions),
    };
    positions.iter().try_fold(array, |array, position| match position {
        AccessExpr::Subscript(Subscript::Index { index }) => Some(call(ELEMENT, vec![array, index.clone()])),
        _ => None,
    })
}

/// A pattern of LIKE in which a backslash escapes, as DataFusion takes it; in Flink only what ESCAPE names does.
fn with_backslashes(pattern: &Expr, escape: Option<&ValueWithSpan>) -> Option<Expr> {
    match (constant(pattern), escape) {
        (Some(pattern), None) => Some(text(&like_pattern(pattern, None)?)),
        (Some(pattern), Some(escape)) => Some(text(&like_pattern(pattern, Some(escape_character(escape)?))?)),
        (None, None) => Some(call("replace", vec![pattern.clone(), text("\\"), text("\\\\")])),
        (None, Some(_)) => None,
    }
}

/// A string that stands in the statement itself.
pub(crate) fn constant(expression: &Expr) -> Option<&str> {
    match expression {
        Expr::Value(ValueWithSpan { value: Value::SingleQuotedString(text), .. }) => Some(text),
        Expr::Nested(inner) => constant(inner),
        _ => None,
    }
}

/// What ESCAPE names; `None` when it is not one character.
pub(crate) fn escape_character(escape: &ValueWithSpan) -> Option<char> {
    let Value::SingleQuotedString(text) = &escape.value else { return None };
    let mut characters = text.chars();
    characters.next().filter(|_| characters.next().is_none())
}

/// A pattern with backslashes in the place of its escape character; `None` when that stands before anything but `%`,
/// `_` and itself.
pub(crate) fn like_pattern(pattern: &str, escape: Option<char>) -> Option<String> {
    let mut made = String::new();
    let mut characters = pattern.chars();
    while let Some(character) = characters.next() {
        let is_escaped = Some(character) == escape;
        let meant = if is_escaped { characters.next()? } else { character };
        match meant {
            '%' | '_' if is_escaped => made.extend(['\\', meant]),
            _ if is_escaped && Some(meant) != escape => return None,
            '\\' => made.push_str("\\\\"),
            other => made.push(other),
        }
    }
    Some(made)
}

const fn is_unit(field: &DateTimeField) -> bool {
    !matches!(field, DateTimeField::NoDateTime)
}

fn of_call(function: &Function) -> Option<Expr> {
    let name = function.name.to_string().to_lowercase();
    let arguments = arguments(function)?;
    if let Some((_, part)) = PARTS.iter().find(|(known, _)| *known == name) {
        let [value] = arguments.as_slice() else { return None };
        return Some(call("extract", vec![text(part), value.clone()]));
    }
    if let Some((_, other)) = SYNONYMS.iter().find(|(known, _)| *known == name) {
        return Some(call(other, arguments));
    }
    match (name.as_str(), arguments.as_slice()) {
        ("if", [condition, yes, no]) => Some(case(vec![(condition.clone(), yes.clone())], Some(no.clone()))),
        ("coalesce" | "ifnull" | "nvl", [first @ .., last]) => {
            let is_given = |value: &Expr| (Expr::IsNotNull(Box::new(nested(value.clone()))), value.clone());
            let branches: Vec<(Expr, Expr)> = first.iter().map(is_given).collect();
            if branches.is_empty() { Some(last.clone()) } else { Some(case(branches, Some(last.clone()))) }
        }
        ("concat", [first, rest @ ..]) => Some(joined(first, rest)),
        ("mod", [a, b]) => Some(nested(binary(nested(a.clone()), BinaryOperator::Modulo, nested(b.clone())))),
        ("log", [value]) => Some(call("ln", vec![value.clone()])),
        ("sign", [value]) => {
            let against = |operator, result| (binary(nested(value.clone()), operator, number("0")), number(result));
            let minus = Expr::Nested(Box::new(binary(number("0"), BinaryOperator::Minus, number("1"))));
            let less = binary(nested(value.clone()), BinaryOperator::Lt, number("0"));
            Some(case(vec![against(BinaryOperator::Gt, "1"), against(BinaryOperator::Eq, "0"), (less, minus)], None))
        }
        ("greatest" | "least", [_, _, ..]) => {
            let is_null = |value: &Expr| Expr::IsNull(Box::new(nested(value.clone())));
            let any = arguments.iter().map(is_null).reduce(|a, b| binary(a, BinaryOperator::Or, b))?;
            let call = call(if name == "least" { "least_value" } else { "greatest_value" }, arguments.clone());
            Some(case(vec![(any, Expr::Value(Value::Null.with_empty_span()))], Some(call)))
        }
        ("timestampdiff" | "timestampadd", [Expr::Identifier(unit), rest @ ..]) => {
            let mut others = vec![text(&unit.value.to_uppercase())];
            others.extend(rest.iter().cloned());
            Some(call(if name == "timestampdiff" { "timestamp_diff" } else { "timestamp_add" }, others))
        }
        _ => None,
    }
}

/// `a || b || c`.
fn joined(first: &Expr, rest: &[Expr]) -> Expr {
    let empty = Expr::Value(Value::SingleQuotedString(String::new()).with_empty_span());
    let begin = binary(empty, BinaryOperator::StringConcat, nested(first.clone()));
    let all = rest.iter().fold(begin, |all, next| binary(all, BinaryOperator::StringConcat, nested(next.clone())));
    nested(all)
}

/// The arguments when all are plain expressions.
fn arguments(function: &Function) -> Option<Vec<Expr>> {
    let FunctionArguments::List(list) = &function.args else { return None };
    let plain = |argument: &FunctionArg| match argument {
        FunctionArg::Unnamed(FunctionArgExpr::Expr(expression)) => Some(expression.clone()),
        _ => None,
    };
    list.args.iter().map(plain).collect()
}

fn call(name: &str, arguments: Vec<Expr>) -> Expr {
    let argument = |expression| FunctionArg::Unnamed(FunctionArgExpr::Expr(expression));
    let args = arguments.into_iter().map(argument).collect();
    Expr::Function(Function {
        name: ObjectName(vec![ObjectNamePart::Identifier(Ident::new(name))]),
        uses_odbc_syntax: false,
        parameters: FunctionArguments::None,
        args: FunctionArguments::List(FunctionArgumentList { duplicate_treatment: None, args, clauses: Vec::new() }),
        filter: None,
        null_treatment: None,
        over: None,
        within_group: Vec::new(),
    })
}

fn case(branches: Vec<(Expr, Expr)>, other: Option<Expr>) -> Expr {
    let branch = |(condition, result)| CaseWhen { condition, result };
    Expr::Case {
        case_token: AttachedToken::empty(),
        end_token: AttachedToken::empty(),
        operand: None,
        conditions: branches.into_iter().map(branch).collect(),
        else_result: other.map(Box::new),
    }
}

fn binary(left: Expr, op: BinaryOperator, right: Expr) -> Expr {
    Expr::BinaryOp { left: Box::new(left), op, right: Box::new(right) }
}

fn nested(expression: Expr) -> Expr {
    Expr::Nested(Box::new(expression))
}

fn unit(field: &DateTimeField) -> Expr {
    text(&field.to_string().to_uppercase())
}

fn text(value: &str) -> Expr {
    Expr::Value(ValueWithSpan { value: Value::SingleQuotedString(value.to_owned()), span: Span::empty() })
}

fn number(value: &str) -> Expr {
    Expr::Value(ValueWithSpan { value: Value::Number(value.to_owned(), false), span: Span::empty() })
}
