//! The rows of the partitions that a batch touches, before it and after it, in order.

use super::{RankBy, RankOrder};
use crate::batch::{Batch, RowKind};
use crate::error::TaskError;
use crate::state::TouchedKeys;
use crate::state::prefix::FoundRows;
use arrow::array::{ArrayRef, RecordBatch};
use arrow::compute::{SortOptions, concat};
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use arrow::row::{RowConverter, Rows, SortField};
use hashbrown::HashMap;
use std::cmp::Ordering;
use std::ops::Range;

/// A distinct row.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entry {
    /// The number of its partition.
    partition: u32,
    /// Where its columns stand.
    pub(super) row: u32,
    /// How often it was there.
    pub(super) before: i64,
    /// How often it is there now.
    pub(super) after: i64,
    /// Whether a row of the batch is like it.
    pub(super) in_batch: bool,
}

/// All rows of the partitions.
#[derive(Default)]
pub(super) struct Entries {
    /// Those that were found, in that order, then those that are new.
    all: Vec<Entry>,
    found: usize,
    /// The entry of each row of the batch.
    of_rows: Vec<u32>,
    columns: Vec<ArrayRef>,
    /// Entries by partition and order.
    sorted: Vec<u32>,
    /// Where each partition stands in `sorted`.
    ranges: Vec<Range<usize>>,
}

impl Entries {
    /// Adds a row that was found.
    pub(super) fn keep(&mut self, partition: u32, count: i64) {
        let row = self.all.len() as u32;
        self.all.push(Entry { partition, row, before: count, after: count, in_batch: false });
        self.found = self.all.len();
    }

    /// Counts the rows of a batch; `partition` gives the number of a row's partition.
    pub(super) fn change(
        &mut self,
        batch: &Batch,
        found: &FoundRows,
        touched: &TouchedKeys,
        mut partition: impl FnMut(u32) -> u32,
    ) {
        let mut by_key: HashMap<&[u8], u32> = (0..found.len()).map(|row| (found.key(row), row as u32)).collect();
        let kinds = batch.kinds.as_ref().map(|kinds| kinds.values());
        for row in 0..batch.len() {
            let entry = *by_key.entry(touched.key(row as u32)).or_insert_with(|| {
                let entry = self.all.len() as u32;
                // The batch's columns stand behind those that were found.
                let row = (self.found + row) as u32;
                let partition = partition(row - self.found as u32);
                self.all.push(Entry { partition, row, before: 0, after: 0, in_batch: true });
                entry
            });
            self.of_rows.push(entry);
            let entry = &mut self.all[entry as usize];
            entry.in_batch = true;
            let goes = kinds
                .is_some_and(|kinds| kinds[row] == RowKind::UpdateBefore as u8 || kinds[row] == RowKind::Delete as u8);
            entry.after = if goes { (entry.after - 1).max(0) } else { entry.after + 1 };
        }
    }

    /// The columns of all entries: of those that were found, then of the batch.
    pub(super) fn take_columns(&mut self, batch: &RecordBatch, found: Vec<ArrayRef>) -> Result<(), TaskError> {
        let both = found.into_iter().zip(batch.columns());
        let columns = both.map(|(found, own)| concat(&[found.as_ref(), own.as_ref()]));
        self.columns = columns.collect::<Result<_, _>>().map_err(|error| internal(&error))?;
        Ok(())
    }

    /// Puts all in order; with a limit, rows behind so many of a partition are no more.
    pub(super) fn sort(&mut self, sorter: &Sorter, partitions: usize, limit: Option<u64>) -> Result<(), TaskError> {
        let order = sorter.order(self)?;
        self.sorted = (0..self.all.len() as u32).collect();
        let all = &self.all;
        self.sorted.sort_unstable_by(|one, other| {
            let partition = |entry: &u32| all[*entry as usize].partition;
            partition(one).cmp(&partition(other)).then_with(|| order.compare(*one, *other))
        });
        self.ranges = vec![0..0; partitions];
        for (position, entry) in self.sorted.iter().enumerate() {
            let range = &mut self.ranges[self.all[*entry as usize].partition as usize];
            if range.start == range.end {
                *range = position..position;
            }
            range.end = position + 1;
        }
        let Some(limit) = limit else { return Ok(()) };
        for range in &self.ranges {
            let mut left = i64::try_from(limit).unwrap_or(i64::MAX);
            for entry in &self.sorted[range.clone()] {
                let entry = &mut self.all[*entry as usize];
                entry.after = entry.after.min(left);
                left -= entry.after;
            }
        }
        Ok(())
    }

    /// The entries of each partition in order.
    pub(super) fn partitions(&self) -> impl Iterator<Item = &[u32]> {
        self.ranges.iter().map(|range| &self.sorted[range.clone()])
    }

    pub(super) fn get(&self, entry: u32) -> &Entry {
        &self.all[entry as usize]
    }

    /// Those that were found, in that order.
    pub(super) fn found(&self) -> impl Iterator<Item = &Entry> {
        self.all[..self.found].iter()
    }

    /// That of a row of the batch.
    pub(super) fn of_row(&self, row: u32) -> &Entry {
        self.get(self.of_rows[row as usize])
    }

    pub(super) fn columns(&self) -> &[ArrayRef] {
        &self.columns
    }
}

/// Orders rows: by the columns that are given, then by all others.
pub(super) struct Sorter {
    /// Positions of the columns; empty: by arrival.
    columns: Vec<usize>,
    converter: Option<RowConverter>,
}

/// What entries compare by.
enum Order {
    Rows(Vec<u32>, Rows),
    /// Where the last row of the batch like an entry stands, from 1.
    Arrivals(Vec<u32>),
}

impl Sorter {
    pub(super) fn new(by: &RankBy, input: &SchemaRef) -> Result<Self, TaskError> {
        let RankBy::Columns(order) = by else { return Ok(Self { columns: Vec::new(), converter: None }) };
        let is_named = |column: &usize| order.iter().any(|order| order.column == *column);
        let others = (0..input.fields().len()).filter(|column| !is_named(column));
        let others = others.map(|column| RankOrder { column, descending: false, nulls_first: true });
        let all: Vec<RankOrder> = order.iter().copied().chain(others).collect();
        let field = |order: &RankOrder| {
            let options = SortOptions { descending: order.descending, nulls_first: order.nulls_first };
            SortField::new_with_options(input.field(order.column).data_type().clone(), options)
        };
        let converter = RowConverter::new(all.iter().map(field).collect());
        let converter = converter.map_err(|error| {
            TaskError::BadProgram(format!("rows of these columns cannot be ordered: {error}; cast them"))
        })?;
        Ok(Self { columns: all.iter().map(|order| order.column).collect(), converter: Some(converter) })
    }

    /// Rows of these columns, as they compare; for an order by columns.
    pub(super) fn rows(&self, columns: &[ArrayRef]) -> Result<Rows, TaskError> {
        match &self.converter {
            Some(converter) => self.converted(converter, columns),
            None => Err(TaskError::BadProgram("rows of a window cannot be ordered by their arrival".to_owned())),
        }
    }

    fn converted(&self, converter: &RowConverter, columns: &[ArrayRef]) -> Result<Rows, TaskError> {
        let columns: Vec<ArrayRef> = self.columns.iter().map(|column| columns[*column].clone()).collect();
        converter.convert_columns(&columns).map_err(|error| internal(&error))
    }

    fn order(&self, entries: &Entries) -> Result<Order, TaskError> {
        let Some(converter) = &self.converter else {
            let mut arrivals = vec![0; entries.all.len()];
            for (row, entry) in (1..).zip(&entries.of_rows) {
                arrivals[*entry as usize] = row;
            }
            return Ok(Order::Arrivals(arrivals));
        };
        let rows = self.converted(converter, &entries.columns)?;
        Ok(Order::Rows(entries.all.iter().map(|entry| entry.row).collect(), rows))
    }
}

impl Order {
    fn compare(&self, one: u32, other: u32) -> Ordering {
        match self {
            Self::Rows(places, rows) => {
                let row = |entry: u32| rows.row(places[entry as usize] as usize);
                row(one).cmp(&row(other))
            }
            Self::Arrivals(arrivals) => arrivals[other as usize].cmp(&arrivals[one as usize]),
        }
    }
}

fn internal(error: &ArrowError) -> TaskError {
    TaskError::Internal(format!("the rows of a rank cannot be put in order: {error}"))
}
