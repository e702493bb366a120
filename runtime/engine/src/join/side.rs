//! One side of a join: its rows by join key, with counts.

use crate::batch::{Batch, RowKind};
use crate::error::TaskError;
use crate::keys::can_be_key;
use crate::keys::decode::{decode, stored_type};
use crate::operator::{Clock, OperatorContext, RestoredState, SnapshotWriter};
use crate::state::file::{DELETED, KEY_GROUP, ROWS};
use crate::state::prefix::{FoundRows, Prefixes};
use crate::state::ttl::{self, Ttl};
use crate::state::{AccumulatorColumn, Fate, KeyedTable, TableLayout, TouchedKeys};
use arrow::array::ArrayRef;
use arrow::compute::cast;
use arrow::datatypes::{DataType, SchemaRef};
use sluice_protocol::{CheckpointId, TimeSpan};
use std::collections::BTreeSet;
use std::sync::Arc;

/// The column with the number of matches of a row.
const MATCHES: &str = "$matches";

/// The word of how often a row is there.
const COUNT: usize = 0;

/// The word of how many rows match it, where that is counted.
const MATCHED: usize = 1;

/// What all subtasks share of one side.
pub(super) struct SidePlan {
    /// The name of the state.
    pub(super) name: &'static str,
    /// Positions of the join keys.
    pub(super) keys: Vec<usize>,
    /// Where each column of the state stands among those of the side.
    columns: Vec<usize>,
    /// Where each column of the side stands among those of the state.
    positions: Vec<usize>,
    types: Vec<DataType>,
    layout: Arc<TableLayout>,
    ttl: Option<TimeSpan>,
}

impl SidePlan {
    pub(super) fn new(
        name: &'static str,
        schema: &SchemaRef,
        keys: &[usize],
        ttl: Option<TimeSpan>,
        counts_matches: bool,
    ) -> Result<Self, TaskError> {
        let others = (0..schema.fields().len()).filter(|column| !keys.contains(column));
        let columns: Vec<usize> = keys.iter().copied().chain(others).collect();
        let (mut fields, mut seen) = (Vec::new(), BTreeSet::from([KEY_GROUP, DELETED, ROWS, MATCHES, ttl::UPDATED]));
        for (position, column) in columns.iter().enumerate() {
            let field = schema.field(*column);
            let times = columns[..position].iter().filter(|other| *other == column).count() + 1;
            if times == 1 && !seen.insert(field.name()) {
                return Err(TaskError::BadProgram(format!(
                    "the {name} side of a join has two columns '{}', or one of a name that is taken; give it an alias",
                    field.name()
                )));
            }
            if !can_be_key(field.data_type()) {
                return Err(TaskError::BadProgram(format!(
                    "column '{}' of the {name} side of a join is of type {}, which a join cannot keep; cast it",
                    field.name(),
                    field.data_type()
                )));
            }
            let own = if times == 1 { field.name().clone() } else { format!("{}${times}", field.name()) };
            fields.push(field.clone().with_name(own));
        }
        let bigint = |name: &str, word| AccumulatorColumn {
            name: name.to_owned(),
            data_type: DataType::Int64,
            word,
            null_while_zero: None,
        };
        let mut accumulators = vec![bigint(ROWS, COUNT)];
        accumulators.extend(counts_matches.then(|| bigint(MATCHES, MATCHED)));
        let updated = ttl.map(|_| accumulators.len());
        accumulators.extend(updated.map(ttl::column));
        let (words, prefix) = (accumulators.len(), Some(keys.len()));
        let layout = Arc::new(TableLayout { keys: fields, accumulators, words, prefix, updated });
        let position = |column| columns.iter().position(|other| *other == column).unwrap_or(0);
        let positions = (0..schema.fields().len()).map(position).collect();
        let types = schema.fields().iter().map(|field| field.data_type().clone()).collect();
        Ok(Self { name, keys: keys.to_vec(), columns, positions, types, layout, ttl })
    }
}

/// One side in one subtask.
pub(super) struct Side {
    columns: Vec<usize>,
    positions: Vec<usize>,
    types: Vec<DataType>,
    width: usize,
    table: Box<dyn KeyedTable>,
    ttl: Option<Ttl>,
    /// The distinct rows of the batch.
    pub(super) touched: TouchedKeys,
    /// How much more often each of them is there after the batch.
    pub(super) gains: Vec<i64>,
    /// The number of the join key of each of them, where it gains.
    pub(super) prefixes_of: Vec<u32>,
    prefixes: Prefixes,
    words: Vec<u64>,
    fates: Vec<Fate>,
    /// The rows that have the join keys of the other side's batch.
    pub(super) found: FoundRows,
    /// Which of them have each of these keys.
    pub(super) ranges: Vec<std::ops::Range<usize>>,
}

impl Side {
    pub(super) fn open(
        plan: &SidePlan,
        context: &OperatorContext,
        state: &RestoredState,
        clock: &Clock,
    ) -> Result<Self, TaskError> {
        let mut table = context.keyed_table(plan.name, Arc::clone(&plan.layout))?;
        let own: Vec<_> = state.keyed.iter().filter(|file| file.name == plan.name).cloned().collect();
        table.restore(&context.uid, &own)?;
        let ttl = plan.ttl.zip(plan.layout.updated);
        Ok(Self {
            columns: plan.columns.clone(),
            positions: plan.positions.clone(),
            types: plan.types.clone(),
            width: plan.layout.words,
            table,
            ttl: ttl.map(|(ttl, word)| Ttl::new(ttl, word, Clock::clone(clock))),
            touched: TouchedKeys::default(),
            gains: Vec::new(),
            prefixes_of: Vec::new(),
            prefixes: Prefixes::default(),
            words: Vec::new(),
            fates: Vec::new(),
            found: FoundRows::default(),
            ranges: Vec::new(),
        })
    }

    /// Counts the rows of a batch, whose keys have no NULL; [`Side::store`] must follow.
    pub(super) fn count(&mut self, batch: &Batch) -> Result<(), TaskError> {
        if let Some(ttl) = &mut self.ttl {
            ttl.begin_batch();
        }
        self.table.touch(&batch.rows, &self.columns, &mut self.touched)?;
        self.table.load(&self.touched, &mut self.words);
        if let Some(ttl) = &mut self.ttl {
            ttl.hide_expired(&mut self.words, self.width);
        }
        let before = self.words.chunks_exact(self.width).map(|row| row[COUNT] as i64);
        self.gains.clear();
        self.gains.extend(before.map(|count| -count));
        let kinds = batch.kinds.as_ref().map(|kinds| kinds.values());
        for (row, slot) in self.touched.slots.iter().enumerate() {
            let count = &mut self.words[*slot as usize * self.width + COUNT];
            *count = match kinds.is_some_and(|kinds| goes(kinds[row])) {
                true => count.saturating_sub(1),
                false => *count + 1,
            };
        }
        self.prefixes.clear();
        self.prefixes_of.clear();
        for (slot, row) in self.words.chunks_exact(self.width).enumerate() {
            self.gains[slot] += row[COUNT] as i64;
            let number = match self.gains[slot] {
                0 => 0,
                _ => self.prefixes.number(&self.touched, self.touched.keys[slot].first),
            };
            self.prefixes_of.push(number);
        }
        Ok(())
    }

    /// Finds the rows that have the join keys of rows that gain on the other side.
    pub(super) fn find(&mut self, other: &Self) -> Result<(), TaskError> {
        if let Some(ttl) = &mut self.ttl {
            ttl.begin_batch();
        }
        self.table.find_by_prefix(&other.prefixes, &mut self.found)?;
        self.table.load(&self.found.touched, &mut self.words);
        self.ranges = self.found.ranges(other.prefixes.len());
        Ok(())
    }

    /// How often each found row is there; 0 when it has expired.
    pub(super) fn counts(&self) -> Vec<i64> {
        let expired = |row: &[u64]| self.ttl.as_ref().is_some_and(|ttl| ttl.has_expired(row));
        self.words.chunks_exact(self.width).map(|row| if expired(row) { 0 } else { row[COUNT] as i64 }).collect()
    }

    /// How many rows match each found row.
    pub(super) fn matches(&self) -> Vec<i64> {
        if self.width <= MATCHED {
            return Vec::new();
        }
        self.words.chunks_exact(self.width).map(|row| row[MATCHED] as i64).collect()
    }

    /// The columns of the found rows.
    pub(super) fn found_columns(&self) -> Result<Vec<ArrayRef>, TaskError> {
        let keys: Vec<&[u8]> = (0..self.found.len()).map(|row| self.found.key(row)).collect();
        let types: Vec<DataType> = self.columns.iter().map(|column| stored_type(&self.types[*column])).collect();
        let stored = decode(&keys, &types)?;
        let column = |(position, data_type): (&usize, &DataType)| {
            let column = &stored[*position];
            if column.data_type() == data_type {
                return Ok(Arc::clone(column));
            }
            cast(column, data_type).map_err(|error| TaskError::Internal(format!("a row of a join: {error}")))
        };
        self.positions.iter().zip(&self.types).map(column).collect()
    }

    /// The rows of the batch that come have so many matches.
    pub(super) fn set_matches(&mut self, matches: &[i64]) {
        let rows = self.words.chunks_exact_mut(self.width).zip(matches).zip(&self.gains);
        rows.filter(|(_, gain)| **gain > 0).for_each(|((row, matches), _)| row[MATCHED] = *matches as u64);
    }

    /// Found rows have so many more matches, or fewer.
    pub(super) fn add_matches(&mut self, gained: &[i64]) -> Result<(), TaskError> {
        self.fates.clear();
        for (row, gained) in self.words.chunks_exact_mut(self.width).zip(gained) {
            if *gained != 0 {
                row[MATCHED] = (row[MATCHED] as i64 + gained).max(0) as u64;
                if let Some(ttl) = &self.ttl {
                    ttl.note(row);
                }
            }
            self.fates.push(if *gained == 0 { Fate::Keep } else { Fate::Write });
        }
        self.table.store(&self.found.touched, &self.words, &self.fates)
    }

    /// Takes the counts of the batch's rows over.
    pub(super) fn store(&mut self) -> Result<(), TaskError> {
        self.fates.clear();
        for (row, gain) in self.words.chunks_exact_mut(self.width).zip(&self.gains) {
            self.fates.push(match (row[COUNT], gain, &self.ttl) {
                (0, _, _) => Fate::Remove,
                (_, 0, None) => Fate::Keep,
                (_, _, None) => Fate::Write,
                (_, _, Some(ttl)) => {
                    ttl.note(row);
                    Fate::Write
                }
            });
        }
        self.table.store(&self.touched, &self.words, &self.fates)
    }

    /// Looks for rows that have expired.
    pub(super) fn sweep(&mut self) -> Result<(), TaskError> {
        self.ttl.as_ref().map_or(Ok(()), |ttl| ttl.sweep(self.table.as_mut()))
    }

    pub(super) fn freeze(&mut self, checkpoint: CheckpointId) -> Result<Box<dyn SnapshotWriter>, TaskError> {
        if let Some(ttl) = &mut self.ttl {
            ttl.begin_batch();
            ttl.sweep_before_freeze(self.table.as_mut())?;
        }
        self.table.freeze(checkpoint)
    }
}

/// Whether a row of this kind takes one back.
pub(super) const fn goes(kind: u8) -> bool {
    kind == RowKind::UpdateBefore as u8 || kind == RowKind::Delete as u8
}
