//! The first N rows of each partition of a window: when the watermark has come to its end, they come out, once and for
//! all, and the window goes.
//!
//! Rows are new ones, and the partition columns hold the end of the window. A row is late when its window has come out;
//! late rows, and rows without a window, are dropped and counted.
//!
//! The state, version 1: as [`super::Rank`]'s of new rows, with `$over`, the last millisecond of the row's window, and
//! the watermark (W1).

use super::entries::{Entries, Sorter};
use super::{COUNT, RankFactory, RankSpec, STATE_NAME, changes::Changes, open_table};
use crate::batch::Batch;
use crate::error::TaskError;
use crate::event_time::KeyGroupWatermarks;
use crate::operator::{Collector, Operator, OperatorContext, OperatorFactory, Progress, RestoredState, SnapshotWriter};
use crate::state::due::{self, DueRows, Over};
use crate::state::frozen_tables::{FrozenTables, FrozenWithLists};
use crate::state::prefix::{FoundRows, Prefixes};
use crate::state::whole_rows::{RowsLayout, with_one_zero};
use crate::state::{Fate, KeyedTable, TouchedKeys};
use crate::window::kind::milliseconds;
use arrow::array::{Array, BooleanArray};
use arrow::compute::filter_record_batch;
use arrow::datatypes::SchemaRef;
use arrow::row::{RowConverter, SortField};
use sluice_protocol::CheckpointId;
use std::sync::Arc;

/// The word of when a row is over.
const OVER: usize = 1;

/// Makes ranks of windows.
pub struct WindowRankFactory {
    plan: Arc<Plan>,
}

struct Plan {
    spec: RankSpec,
    /// The partition column with the end of the window.
    window_end: usize,
    rows: RowsLayout,
    output: SchemaRef,
}

impl WindowRankFactory {
    /// Of rows whose column `window_end`, one of the partition columns, holds the end of their window.
    ///
    /// # Errors
    /// As [`RankFactory::new`], and when the rows are a changelog.
    pub fn new(spec: RankSpec, window_end: usize) -> Result<Self, TaskError> {
        let output = RankFactory::new(spec.clone())?.output_schema();
        if spec.changelog || !spec.keys.contains(&window_end) {
            let message = "a rank of windows takes new rows, and the end of the window is one of the partition columns";
            return Err(TaskError::BadProgram(message.to_owned()));
        }
        let rows = RowsLayout::new(("the input of", "a rank"), &spec.input, &spec.keys, &[due::OVER], false)?;
        Ok(Self { plan: Arc::new(Plan { spec, window_end, rows, output }) })
    }
}

impl OperatorFactory for WindowRankFactory {
    fn create(&self) -> Result<Box<dyn Operator>, TaskError> {
        let spec = &self.plan.spec;
        let key = |key: &usize| SortField::new(spec.input.field(*key).data_type().clone());
        let partitions = RowConverter::new(spec.keys.iter().map(key).collect());
        let partitions =
            partitions.map_err(|error| TaskError::BadProgram(format!("the partitions of a rank: {error}")))?;
        Ok(Box::new(WindowRank {
            plan: Arc::clone(&self.plan),
            sorter: Sorter::new(&spec.by, &spec.input)?,
            partitions,
            opened: None,
            touched: TouchedKeys::default(),
            prefixes: Prefixes::default(),
            found: FoundRows::default(),
            words: Vec::new(),
            fates: Vec::new(),
            dropped: 0,
        }))
    }

    fn output_schema(&self) -> SchemaRef {
        SchemaRef::clone(&self.plan.output)
    }
}

/// One subtask of a rank of windows.
struct WindowRank {
    plan: Arc<Plan>,
    sorter: Sorter,
    partitions: RowConverter,
    opened: Option<Opened>,
    touched: TouchedKeys,
    prefixes: Prefixes,
    found: FoundRows,
    words: Vec<u64>,
    fates: Vec<Fate>,
    dropped: u64,
}

struct Opened {
    table: Box<dyn KeyedTable>,
    due: DueRows,
    watermarks: KeyGroupWatermarks,
}

impl Operator for WindowRank {
    fn open(&mut self, context: &OperatorContext, state: RestoredState) -> Result<(), TaskError> {
        let table = open_table(STATE_NAME, "a rank", &self.plan.rows.layout, context, &state)?;
        let due = DueRows::open(table.as_ref(), OVER, 1)?;
        self.opened = Some(Opened { table, due, watermarks: KeyGroupWatermarks::open(context, &state)? });
        Ok(())
    }

    fn process(&mut self, batch: Batch, _: &mut dyn Collector) -> Result<(), TaskError> {
        let rows = with_one_zero(batch.rows)?;
        let Some(opened) = &mut self.opened else { return Err(not_opened()) };
        self.touched.hash(opened.table.layout(), &rows, &self.plan.rows.columns)?;
        let ends = milliseconds(rows.column(self.plan.window_end))?;
        let max_parallelism = opened.table.max_parallelism();
        let mut is_kept = |row: usize| {
            let over = ends.is_valid(row).then(|| ends.value(row).saturating_sub(1));
            let watermark = || opened.watermarks.of(self.touched.key_group(row as u32, max_parallelism));
            let kept = over.filter(|over| *over > opened.watermarks.uniform().unwrap_or_else(watermark));
            kept.into_iter().for_each(|over| opened.due.note(over));
            kept.is_some()
        };
        let kept: Vec<bool> = (0..rows.num_rows()).map(&mut is_kept).collect();
        let dropped = kept.iter().filter(|kept| !**kept).count();
        self.dropped += dropped as u64;
        let rows = match dropped {
            0 => rows,
            _ => filter_record_batch(&rows, &BooleanArray::from(kept))
                .map_err(|error| TaskError::Internal(format!("late rows of a rank: {error}")))?,
        };
        if rows.num_rows() == 0 { Ok(()) } else { self.keep(Batch::inserts(rows)) }
    }

    fn watermark(&mut self, watermark: i64, out: &mut dyn Collector) -> Result<Progress, TaskError> {
        let Some(opened) = &mut self.opened else { return Err(not_opened()) };
        opened.watermarks.advance(watermark);
        match opened.due.next(opened.table.as_mut(), &opened.watermarks)? {
            Some(over) => self.emit(&over, out).map(|()| Progress::More),
            None => Ok(Progress::Done),
        }
    }

    fn late_rows(&self) -> u64 {
        self.dropped
    }

    fn snapshot(&mut self, checkpoint: CheckpointId) -> Result<Option<Box<dyn SnapshotWriter>>, TaskError> {
        let Some(opened) = &mut self.opened else { return Ok(None) };
        let tables = FrozenTables(vec![opened.table.freeze(checkpoint)?]);
        Ok(Some(Box::new(FrozenWithLists { tables, lists: vec![opened.watermarks.snapshot()?] })))
    }
}

impl WindowRank {
    /// Adds rows to their windows, of which the first N of each partition are kept.
    fn keep(&mut self, batch: Batch) -> Result<(), TaskError> {
        let Some(Opened { table, .. }) = &mut self.opened else { return Err(not_opened()) };
        let (plan, width) = (&self.plan, self.plan.rows.layout.words);
        self.touched.hash(table.layout(), &batch.rows, &plan.rows.columns)?;
        self.prefixes.clear();
        for row in 0..batch.len() as u32 {
            self.prefixes.number(&self.touched, row);
        }
        table.find_by_prefix(&self.prefixes, &mut self.found)?;
        table.load(&self.found.touched, &mut self.words);
        let mut entries = Entries::default();
        for (row, words) in self.words.chunks_exact(width).enumerate() {
            entries.keep(self.found.touched.keys[row].first, words[COUNT] as i64);
        }
        let (touched, prefixes) = (&self.touched, &mut self.prefixes);
        entries.change(&batch, &self.found, touched, |row| prefixes.number(touched, row));
        entries.take_columns(&batch.rows, plan.rows.found(&self.found)?)?;
        entries.sort(&self.sorter, self.prefixes.len(), Some(plan.spec.limit))?;
        self.fates.clear();
        for (entry, words) in entries.found().zip(self.words.chunks_exact_mut(width)) {
            words[COUNT] = entry.after as u64;
            self.fates.push(match entry.after {
                0 => Fate::Remove,
                after if after == entry.before => Fate::Keep,
                _ => Fate::Write,
            });
        }
        table.store(&self.found.touched, &self.words, &self.fates)?;
        table.find(None, &mut self.touched)?;
        table.load(&self.touched, &mut self.words);
        self.fates.clear();
        let ends = milliseconds(batch.rows.column(plan.window_end))?;
        for (key, words) in self.touched.keys.iter().zip(self.words.chunks_exact_mut(width)) {
            words[COUNT] = entries.of_row(key.first).after as u64;
            words[OVER] = ends.value(key.first as usize).saturating_sub(1) as u64;
            self.fates.push(if words[COUNT] == 0 { Fate::Remove } else { Fate::Write });
        }
        table.store(&self.touched, &self.words, &self.fates)
    }

    /// Emits the rows of windows that are over.
    fn emit(&self, over: &Over, out: &mut dyn Collector) -> Result<(), TaskError> {
        let columns = self.plan.rows.in_order(&over.columns)?;
        let spec = &self.plan.spec;
        let keys: Vec<_> = spec.keys.iter().map(|key| Arc::clone(&columns[*key])).collect();
        let internal = |error| TaskError::Internal(format!("the rows of a window cannot be put in order: {error}"));
        let partitions = self.partitions.convert_columns(&keys).map_err(internal)?;
        let order = self.sorter.rows(&columns)?;
        let mut sorted: Vec<usize> = (0..partitions.num_rows()).collect();
        sorted.sort_unstable_by(|one, other| {
            let by_partition = partitions.row(*one).cmp(&partitions.row(*other));
            by_partition.then_with(|| order.row(*one).cmp(&order.row(*other)))
        });
        let mut changes = Changes::new(spec.number.is_some(), spec.limit, false);
        let (mut place, mut before) = (0, None);
        for row in sorted {
            if before.is_none_or(|before| partitions.row(before) != partitions.row(row)) {
                place = 0;
            }
            before = Some(row);
            for _ in 0..over.words[row * self.plan.rows.layout.words + COUNT] {
                place += 1;
                changes.insert(row as u32, place);
            }
        }
        changes.emit(&columns, &self.plan.output, out)
    }
}

fn not_opened() -> TaskError {
    TaskError::Internal("a rank of windows got rows before it was opened".to_owned())
}
