//! Kinds of windows, and the arithmetic of their slices. Times are milliseconds since 1970; ends are exclusive.

use crate::error::TaskError;
use arrow::array::{Array, AsArray, PrimitiveArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, TimeUnit, TimestampMillisecondType};
use std::fmt;

/// How rows come to windows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WindowKind {
    /// Windows of `size`, one after the other, that begin at `offset` and multiples of `size` from there.
    Tumble {
        /// Milliseconds.
        size: i64,
        /// Milliseconds.
        offset: i64,
    },
    /// Windows of `size` that begin every `slide`; `size` is a multiple of it.
    Hop {
        /// Milliseconds.
        slide: i64,
        /// Milliseconds.
        size: i64,
        /// Milliseconds.
        offset: i64,
    },
    /// Windows that begin every `size` and end after each `step`, up to `size`, which is a multiple of it.
    Cumulate {
        /// Milliseconds.
        step: i64,
        /// Milliseconds.
        size: i64,
        /// Milliseconds.
        offset: i64,
    },
    /// The rows say their window: columns with its start and its end.
    Attached {
        /// The position of `window_start`.
        start: usize,
        /// The position of `window_end`.
        end: usize,
    },
}

/// Where the time of a row comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowTime {
    /// A column of a TIMESTAMP type.
    Column(usize),
    /// The clock, when the row comes: windows fire by it.
    Processing,
}

/// A slice of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) start: i64,
    pub(super) end: i64,
}

impl Span {
    #[inline]
    pub(super) const fn contains(self, time: i64) -> bool {
        self.start <= time && time < self.end
    }
}

impl WindowKind {
    /// Checks the lengths.
    ///
    /// # Errors
    /// [`TaskError::BadProgram`] when one is not positive or not a multiple of the other.
    pub fn validate(&self) -> Result<(), TaskError> {
        let (name, parts): (_, &[(&str, i64)]) = match self {
            Self::Tumble { size, .. } => ("TUMBLE", &[("size", *size)]),
            Self::Hop { slide, size, .. } => ("HOP", &[("slide", *slide), ("size", *size)]),
            Self::Cumulate { step, size, .. } => ("CUMULATE", &[("step", *step), ("maximum size", *size)]),
            Self::Attached { .. } => return Ok(()),
        };
        if let Some((part, length)) = parts.iter().find(|(_, length)| *length <= 0) {
            return Err(TaskError::BadProgram(format!("the {part} of {name} is {length} ms: it must be positive")));
        }
        if let [(part, step), (whole, size)] = parts
            && size % step != 0
        {
            return Err(TaskError::BadProgram(format!(
                "the {whole} of {name} ({size} ms) must be a multiple of its {part} ({step} ms)"
            )));
        }
        Ok(())
    }

    /// Length of a slice, and where slices are counted from.
    const fn slices(&self) -> (i64, i64) {
        match self {
            Self::Tumble { size: width, offset }
            | Self::Hop { slide: width, offset, .. }
            | Self::Cumulate { step: width, offset, .. } => (*width, *offset),
            Self::Attached { .. } => (1, 0),
        }
    }

    /// The slice that a time lies in.
    #[inline]
    pub(super) const fn slice_of(&self, time: i64) -> Span {
        let (width, offset) = self.slices();
        let start = floor(time, width, offset);
        Span { start, end: start.saturating_add(width) }
    }

    /// The end of the last window that a slice belongs to.
    pub(super) const fn last_end(&self, slice: Span) -> i64 {
        match self {
            Self::Tumble { .. } | Self::Attached { .. } => slice.end,
            Self::Hop { slide, size, .. } => slice.end.saturating_add(*size - *slide),
            Self::Cumulate { size, offset, .. } => floor(slice.start, *size, *offset).saturating_add(*size),
        }
    }

    /// The end of the first window that a slice belongs to and that ends after `fired`.
    pub(super) const fn next_end(&self, slice: Span, fired: i64) -> Option<i64> {
        let (width, _) = self.slices();
        if self.last_end(slice) <= fired {
            return None;
        }
        if slice.end > fired {
            return Some(slice.end);
        }
        // Ends of windows stand a slice's length apart, from the slice's own end on.
        let passed = fired.saturating_sub(slice.end) / width;
        Some(slice.end.saturating_add(passed.saturating_add(1).saturating_mul(width)))
    }

    /// The start of the window that ends so; `slice` is one of its slices.
    pub(super) const fn start(&self, end: i64, slice: Span) -> i64 {
        match self {
            Self::Tumble { .. } | Self::Attached { .. } => slice.start,
            Self::Hop { size, .. } => end.saturating_sub(*size),
            Self::Cumulate { size, offset, .. } => floor(slice.start, *size, *offset),
        }
    }

    /// The end of the first slice of a window.
    pub(super) const fn first_slice_end(&self, window: Span) -> i64 {
        match self {
            Self::Attached { .. } => window.end,
            _ => window.start.saturating_add(self.slices().0),
        }
    }

    /// The end of the window that ends next and shares slices with this one.
    pub(super) const fn next_of(&self, window: Span) -> Option<i64> {
        let shares = match self {
            Self::Tumble { .. } | Self::Attached { .. } => false,
            Self::Hop { slide, size, .. } => *size > *slide,
            Self::Cumulate { size, .. } => window.end < window.start.saturating_add(*size),
        };
        if shares { Some(window.end.saturating_add(self.slices().0)) } else { None }
    }

    /// All windows of a time, the first to end first.
    pub fn windows_of(&self, time: i64) -> impl Iterator<Item = (i64, i64)> + '_ {
        let slice = self.slice_of(time);
        let first = self.next_end(slice, i64::MIN);
        let ends = std::iter::successors(first, move |end| self.next_end(slice, *end));
        ends.map(move |end| (self.start(end, slice), end))
    }
}

/// The largest of the points every `width`, counted from `offset`, that is not after `time`.
#[inline]
const fn floor(time: i64, width: i64, offset: i64) -> i64 {
    time.saturating_sub(time.saturating_sub(offset).rem_euclid(width))
}

/// `HOP(10000, 60000)`: as it stands in ids and plans.
impl fmt::Display for WindowKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let offset = match self {
            Self::Tumble { size, offset } => {
                write!(f, "TUMBLE({size} ms")?;
                *offset
            }
            Self::Hop { slide, size, offset } => {
                write!(f, "HOP({slide} ms, {size} ms")?;
                *offset
            }
            Self::Cumulate { step, size, offset } => {
                write!(f, "CUMULATE({step} ms, {size} ms")?;
                *offset
            }
            Self::Attached { .. } => return f.write_str("WINDOW(of the rows)"),
        };
        if offset != 0 {
            write!(f, ", offset {offset} ms")?;
        }
        f.write_str(")")
    }
}

/// A column of times in milliseconds, rounded down.
///
/// # Errors
/// When it holds no TIMESTAMP.
pub(crate) fn milliseconds(column: &dyn Array) -> Result<PrimitiveArray<TimestampMillisecondType>, TaskError> {
    let DataType::Timestamp(unit, _) = column.data_type() else {
        let found = column.data_type();
        return Err(TaskError::BadProgram(format!("the time of a window is a column of type {found}, not TIMESTAMP")));
    };
    let failed = |error| TaskError::BadData(format!("the times of rows: {error}"));
    match unit {
        TimeUnit::Millisecond => Ok(column.as_primitive::<TimestampMillisecondType>().clone()),
        TimeUnit::Second => {
            let made = cast(column, &DataType::Timestamp(TimeUnit::Millisecond, None)).map_err(failed)?;
            Ok(made.as_primitive::<TimestampMillisecondType>().clone())
        }
        // A cast would round towards zero.
        TimeUnit::Microsecond | TimeUnit::Nanosecond => {
            let numbers = cast(column, &DataType::Int64).map_err(failed)?;
            let per = if *unit == TimeUnit::Microsecond { 1_000 } else { 1_000_000 };
            let numbers = numbers.as_primitive::<arrow::datatypes::Int64Type>();
            Ok(numbers.unary(|time| time.div_euclid(per)))
        }
    }
}
