//! Joins that time bounds: by windows, and by an interval between the times of both sides.
//!
//! A join by `window_start` and `window_end` of both sides keeps the rows of a window until the watermark has passed it. A
//! join whose conditions bound the difference of two time attributes keeps a row until no row that is to come can lie in
//! its interval; the conditions themselves are checked per pair as all others. Both are of new rows only, and so is what
//! they emit; over rows that change, a join is a regular one.

use super::join::Side;
use super::time::TimeAttribute;
use arrow::datatypes::DataType;
use datafusion_common::ScalarValue;
use datafusion_expr::{Between, BinaryExpr, Expr, Operator};
use sluice_engine::join::{JoinBounds, RowBound};

/// How exactly rows that are over are found, of what they are kept: an hour's interval to a minute.
const EXACTNESS: i64 = 60;

/// Which join it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Bounded {
    /// By windows.
    Window,
    /// By an interval.
    Interval,
}

/// The bounds of a join, if time bounds it: from its sides, ready to be exchanged, and the conditions that are left.
pub(super) fn bounds(left: &Side, right: &Side, rest: &[Expr]) -> Option<(Bounded, JoinBounds)> {
    if left.stream.updates.is_some() || right.stream.updates.is_some() {
        return None;
    }
    if let Some(sides) = of_windows(left, right) {
        return Some((Bounded::Window, JoinBounds { sides, drops_late: true, bucket: 1 }));
    }
    let sides = of_interval(left, right, rest)?;
    let longest = sides.iter().map(|side| side.keep).max().unwrap_or(0);
    let bucket = (longest / EXACTNESS).max(1);
    Some((Bounded::Interval, JoinBounds { sides, drops_late: false, bucket }))
}

/// Both sides have windows, and their starts and ends must be equal.
fn of_windows(left: &Side, right: &Side) -> Option<[RowBound; 2]> {
    let (of_left, of_right) = (left.stream.windows.as_ref()?, right.stream.windows.as_ref()?);
    if !of_left.are_made() || !of_right.are_made() {
        return None;
    }
    let are_equal = |one: usize, other: usize| {
        left.keys.iter().zip(&right.keys).any(|(left, right)| (*left, *right) == (one, other))
    };
    let by_windows = are_equal(of_left.start, of_right.start) && are_equal(of_left.end, of_right.end);
    by_windows.then(|| [of_left.end, of_right.end].map(|column| RowBound { column, keep: -1 }))
}

/// The conditions bound `right - left` of two time attributes from below and above.
fn of_interval(left: &Side, right: &Side, rest: &[Expr]) -> Option<[RowBound; 2]> {
    let both = Times { left, right };
    let (mut times, mut least, mut most) = (None, None::<i64>, None::<i64>);
    for condition in rest {
        for (one, op, other) in comparisons(condition) {
            let (Some((one, before)), Some((other, after))) = (both.shifted(&one), both.shifted(&other)) else {
                continue;
            };
            // one + before <= other + after
            let (columns, difference, is_least) = match (one, other, op) {
                (Time::Left(l), Time::Right(r), Operator::LtEq | Operator::Lt) => ((l, r), before - after, true),
                (Time::Left(l), Time::Right(r), Operator::GtEq | Operator::Gt) => ((l, r), before - after, false),
                (Time::Right(r), Time::Left(l), Operator::LtEq | Operator::Lt) => ((l, r), after - before, false),
                (Time::Right(r), Time::Left(l), Operator::GtEq | Operator::Gt) => ((l, r), after - before, true),
                _ => continue,
            };
            if *times.get_or_insert(columns) != columns {
                continue;
            }
            if is_least {
                least = Some(least.map_or(difference, |least| least.max(difference)));
            } else {
                most = Some(most.map_or(difference, |most| most.min(difference)));
            }
        }
    }
    let ((l, r), least, most) = (times?, least?, most?);
    Some([RowBound { column: l, keep: most }, RowBound { column: r, keep: -least }])
}

/// A time attribute of one side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Time {
    Left(usize),
    Right(usize),
}

struct Times<'a> {
    left: &'a Side,
    right: &'a Side,
}

impl Times<'_> {
    /// A time attribute, and how many milliseconds are added to it.
    fn shifted(&self, expression: &Expr) -> Option<(Time, i64)> {
        match expression {
            Expr::Column(column) => {
                let of = |side: &Side| {
                    let index = side.stream.schema.maybe_index_of_column(column)?;
                    let is_time = side.stream.time_attribute(index) == Some(TimeAttribute::Rowtime);
                    let is_timestamp = matches!(side.stream.schema.field(index).data_type(), DataType::Timestamp(..));
                    (is_time && is_timestamp).then_some(index)
                };
                of(self.left).map(Time::Left).or_else(|| of(self.right).map(Time::Right)).map(|time| (time, 0))
            }
            Expr::Cast(cast) => {
                let (time, shift) = self.shifted(&cast.expr)?;
                self.keeps(time, cast.field.data_type()).then_some((time, shift))
            }
            Expr::BinaryExpr(BinaryExpr { left, op: Operator::Plus, right }) => {
                let (time, shift) = self.shifted(left)?;
                Some((time, shift + milliseconds(right)?))
            }
            Expr::BinaryExpr(BinaryExpr { left, op: Operator::Minus, right }) => {
                let (time, shift) = self.shifted(left)?;
                Some((time, shift - milliseconds(right)?))
            }
            _ => None,
        }
    }
}

impl Times<'_> {
    /// Whether a cast to this type loses nothing of a time.
    fn keeps(&self, time: Time, to: &DataType) -> bool {
        let from = match time {
            Time::Left(column) => self.left.stream.schema.field(column).data_type(),
            Time::Right(column) => self.right.stream.schema.field(column).data_type(),
        };
        matches!((from, to), (DataType::Timestamp(from, _), DataType::Timestamp(to, _)) if from <= to)
    }
}

/// The comparisons that a condition consists of.
fn comparisons(condition: &Expr) -> Vec<(Expr, Operator, Expr)> {
    match condition {
        Expr::BinaryExpr(BinaryExpr { left, op, right }) => vec![(left.as_ref().clone(), *op, right.as_ref().clone())],
        Expr::Between(Between { expr, negated: false, low, high }) => {
            let value = || expr.as_ref().clone();
            vec![(value(), Operator::GtEq, low.as_ref().clone()), (value(), Operator::LtEq, high.as_ref().clone())]
        }
        _ => Vec::new(),
    }
}

/// A constant interval in milliseconds, which has no months and is a whole number of them.
fn milliseconds(expression: &Expr) -> Option<i64> {
    let Expr::Literal(value, _) = expression else { return None };
    match value {
        ScalarValue::IntervalDayTime(Some(interval)) => {
            Some(i64::from(interval.days) * 86_400_000 + i64::from(interval.milliseconds))
        }
        ScalarValue::IntervalMonthDayNano(Some(interval)) => {
            let is_whole = interval.months == 0 && interval.nanoseconds % 1_000_000 == 0;
            is_whole.then(|| i64::from(interval.days) * 86_400_000 + interval.nanoseconds / 1_000_000)
        }
        _ => None,
    }
}
