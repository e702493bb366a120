//! The unit of the data path: an Arrow record batch, and for changelogs a kind per row (design §3).

use arrow::array::{Array, RecordBatch, UInt8Array};

/// What a row of a changelog says. The numbers are the wire's and Flink's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum RowKind {
    /// `+I`: a new row.
    Insert = 0,
    /// `-U`: the row as it was before an update.
    UpdateBefore = 1,
    /// `+U`: the row as it is after an update.
    UpdateAfter = 2,
    /// `-D`: a row that is no more.
    Delete = 3,
}

impl RowKind {
    /// `+I`, `-U`, `+U` or `-D`.
    #[must_use]
    pub const fn short(self) -> &'static str {
        match self {
            Self::Insert => "+I",
            Self::UpdateBefore => "-U",
            Self::UpdateAfter => "+U",
            Self::Delete => "-D",
        }
    }

    /// From its number.
    #[must_use]
    pub const fn from_number(number: u8) -> Option<Self> {
        match number {
            0 => Some(Self::Insert),
            1 => Some(Self::UpdateBefore),
            2 => Some(Self::UpdateAfter),
            3 => Some(Self::Delete),
            _ => None,
        }
    }
}

/// Rows on their way.
#[derive(Debug, Clone)]
pub struct Batch {
    /// The rows.
    pub rows: RecordBatch,
    /// A [`RowKind`] number per row, never null; `None` says that all are inserts.
    pub kinds: Option<UInt8Array>,
}

impl Batch {
    /// Rows that are all inserts.
    #[must_use]
    pub const fn inserts(rows: RecordBatch) -> Self {
        Self { rows, kinds: None }
    }

    /// Number of rows.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rows.num_rows()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.num_rows() == 0
    }

    /// Some of its rows, one after the other.
    #[must_use]
    pub fn slice(&self, start: usize, rows: usize) -> Self {
        let kinds = self.kinds.as_ref().map(|kinds| kinds.slice(start, rows));
        Self { rows: self.rows.slice(start, rows), kinds }
    }

    /// Bytes in memory, for credits.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.rows.get_array_memory_size() + self.kinds.as_ref().map_or(0, |kinds| kinds.get_array_memory_size())
    }
}
