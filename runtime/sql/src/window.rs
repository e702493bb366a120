//! Window table functions between the syntax tree and the translation.
//!
//! `parse` makes each a derived table with a call of [`MARKER`]; [`of_query`] knows it again, [`WindowCall::kind`] reads
//! its lengths. [`WindowPlanner`] plans it as a [`WindowNode`]: the columns of its input, then `window_start`, `window_end`
//! and `window_time`. [`sliced`] says which aggregations over one can count every row once, in its slice.

mod node;

pub(crate) use node::{WindowNode, WindowPlanner, of_extension, parts_sessions, processing_type, sliced};

use datafusion_sql::sqlparser::ast::{
    DateTimeField, Expr, Function, FunctionArg, FunctionArgExpr, FunctionArguments, Interval, Query, Select,
    SelectItem, SetExpr, Spanned, UnaryOperator, Value, ValueWithSpan,
};
use datafusion_sql::sqlparser::tokenizer::Location;
use sluice_engine::window::WindowKind;
use std::fmt;

/// The name in the call by which a window table function is known.
pub(crate) const MARKER: &str = "$window";

/// What a window table function makes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Windows {
    /// Windows that are the same for all rows.
    Aligned(WindowKind),
    /// Windows of each key, that end when no row came for `gap` milliseconds.
    Session {
        /// Milliseconds.
        gap: i64,
    },
}

/// As in ids and plans.
impl fmt::Display for Windows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Aligned(kind) => kind.fmt(f),
            Self::Session { gap } => write!(f, "SESSION({gap} ms)"),
        }
    }
}

/// A call of a window table function, in the syntax tree.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WindowCall<'a> {
    function: &'a Function,
}

/// The window table function that a derived table stands for.
pub(crate) fn of_query(query: &Query) -> Option<WindowCall<'_>> {
    let SetExpr::Select(select) = query.body.as_ref() else { return None };
    select.projection.iter().find_map(|item| match item {
        SelectItem::ExprWithAlias { expr: Expr::Function(function), .. }
            if function.name.0.first().and_then(|part| part.as_ident()).is_some_and(|name| name.value == MARKER) =>
        {
            Some(WindowCall { function })
        }
        _ => None,
    })
}

/// The derived table without the call: what the function reads.
pub(crate) fn stripped(query: &Query) -> Query {
    let mut query = query.clone();
    if let SetExpr::Select(select) = query.body.as_mut() {
        let Select { projection, .. } = select.as_mut();
        projection.truncate(1);
    }
    query
}

impl<'a> WindowCall<'a> {
    /// `TUMBLE`, `HOP`, `CUMULATE` or `SESSION`.
    pub(crate) fn name(self) -> &'a str {
        match self.arguments().first() {
            Some(Expr::Value(ValueWithSpan { value: Value::SingleQuotedString(name), .. })) => name,
            _ => "a window table function",
        }
    }

    /// The column in DESCRIPTOR.
    pub(crate) fn time(self) -> Option<&'a Expr> {
        self.arguments().into_iter().nth(1)
    }

    /// The columns of PARTITION BY.
    pub(crate) fn partition(self) -> Vec<&'a Expr> {
        if self.name() == "SESSION" { self.arguments().into_iter().skip(3).collect() } else { Vec::new() }
    }

    /// Where it stands.
    pub(crate) fn at(self) -> Location {
        self.function.span().start
    }

    fn arguments(self) -> Vec<&'a Expr> {
        let FunctionArguments::List(list) = &self.function.args else { return Vec::new() };
        let plain = |argument: &'a FunctionArg| match argument {
            FunctionArg::Unnamed(FunctionArgExpr::Expr(expression)) => Some(expression),
            _ => None,
        };
        list.args.iter().filter_map(plain).collect()
    }

    /// Its windows.
    ///
    /// # Errors
    /// With what is wrong and its place, when a length is none.
    pub(crate) fn kind(self) -> Result<Windows, (String, Location)> {
        let lengths = self.arguments().into_iter().skip(2);
        let count = if self.name() == "SESSION" { 1 } else { usize::MAX };
        let lengths: Vec<i64> = lengths.take(count).map(|length| self.length(length)).collect::<Result<_, _>>()?;
        let kind = match (self.name(), lengths.as_slice()) {
            ("TUMBLE", [size, rest @ ..]) => WindowKind::Tumble { size: *size, offset: offset(rest) },
            ("HOP", [slide, size, rest @ ..]) => WindowKind::Hop { slide: *slide, size: *size, offset: offset(rest) },
            ("CUMULATE", [step, size, rest @ ..]) => {
                WindowKind::Cumulate { step: *step, size: *size, offset: offset(rest) }
            }
            ("SESSION", [gap]) if *gap > 0 => return Ok(Windows::Session { gap: *gap }),
            ("SESSION", [gap]) => {
                return Err((format!("the gap of SESSION is {gap} ms: it must be positive"), self.at()));
            }
            (name, _) => return Err((format!("{name} lacks an argument"), self.at())),
        };
        kind.validate().map_err(|error| (error.to_string(), self.at()))?;
        Ok(Windows::Aligned(kind))
    }

    /// A constant interval in milliseconds.
    fn length(self, expression: &Expr) -> Result<i64, (String, Location)> {
        let at = Some(expression.span().start).filter(|at| at.line > 0).unwrap_or_else(|| self.at());
        milliseconds(expression).ok_or_else(|| {
            let message = format!(
                "{} takes constant intervals in whole milliseconds, such as INTERVAL '10' SECOND, INTERVAL '0.5' SECOND or \
                 INTERVAL '1' DAY; this is {expression}",
                self.name()
            );
            (message, at)
        })
    }
}

const fn offset(rest: &[i64]) -> i64 {
    match rest {
        [offset, ..] => *offset,
        [] => 0,
    }
}

/// `INTERVAL '10' SECOND` in milliseconds.
fn milliseconds(expression: &Expr) -> Option<i64> {
    match expression {
        Expr::Nested(inner) => milliseconds(inner),
        Expr::UnaryOp { op: UnaryOperator::Minus, expr } => milliseconds(expr)?.checked_neg(),
        Expr::Interval(Interval {
            value,
            leading_field: Some(unit),
            leading_precision: _,
            last_field: None,
            fractional_seconds_precision: None,
        }) => {
            let unit: i64 = match unit {
                DateTimeField::Millisecond | DateTimeField::Milliseconds => 1,
                DateTimeField::Second | DateTimeField::Seconds => 1_000,
                DateTimeField::Minute | DateTimeField::Minutes => 60_000,
                DateTimeField::Hour | DateTimeField::Hours => 3_600_000,
                DateTimeField::Day | DateTimeField::Days => 86_400_000,
                DateTimeField::Week(None) | DateTimeField::Weeks => 604_800_000,
                _ => return None,
            };
            scaled(crate::rewrite::constant(value)?, unit)
        }
        _ => None,
    }
}

/// A decimal number times a unit, when that is whole.
fn scaled(number: &str, unit: i64) -> Option<i64> {
    let number = number.trim();
    let (is_negative, digits) = number.strip_prefix('-').map_or((false, number), |digits| (true, digits));
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let are_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !are_digits(whole) || !are_digits(fraction) {
        return None;
    }
    let power = 10_i64.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    let part: i64 = if fraction.is_empty() { 0 } else { fraction.parse().ok()? };
    let product = part.checked_mul(unit)?;
    if product % power != 0 {
        return None;
    }
    let all = whole.parse::<i64>().ok()?.checked_mul(unit)?.checked_add(product / power)?;
    Some(if is_negative { -all } else { all })
}
