//! One subtask's generator: the splits that it owns, visited block by block in the order of row numbers.

use super::generator::Columns;
use super::options::DatagenOptions;
use super::{BLOCK, SPLITS, split_name, split_number};
use crate::throttle::Throttle;
use arrow::datatypes::SchemaRef;
use serde::{Deserialize, Serialize};
use sluice_engine::batch::Batch;
use sluice_engine::error::TaskError;
use sluice_engine::operator::RestoredState;
use sluice_engine::source::{Source, SourceContext, SourcePoll};
use sluice_protocol::state::SplitState;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

/// What a split remembers.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Position {
    /// Rows of the split that were handed out.
    offset: u64,
}

/// A split that this subtask owns.
#[derive(Debug, Clone, Copy)]
struct Split {
    number: u32,
    offset: u64,
}

impl Split {
    /// The number of its next row among all rows.
    const fn next_row(self) -> u64 {
        let block = self.offset / BLOCK;
        (block * SPLITS as u64 + self.number as u64) * BLOCK + self.offset % BLOCK
    }
}

/// A subtask's reader.
pub(super) struct DatagenReader {
    schema: SchemaRef,
    options: Arc<DatagenOptions>,
    columns: Arc<Columns>,
    context: Option<SourceContext>,
    /// In ascending order of their next row.
    splits: VecDeque<Split>,
    throttle: Option<Throttle>,
    runs: Vec<Range<u64>>,
}

impl DatagenReader {
    pub(super) const fn new(schema: SchemaRef, options: Arc<DatagenOptions>, columns: Arc<Columns>) -> Self {
        Self { schema, options, columns, context: None, splits: VecDeque::new(), throttle: None, runs: Vec::new() }
    }

    /// Takes up to `limit` rows from the splits, in order; how many there were.
    fn take_runs(&mut self, limit: usize) -> usize {
        self.runs.clear();
        let end = self.options.number_of_rows.unwrap_or(u64::MAX);
        let mut taken = 0;
        while taken < limit {
            let Some(split) = self.splits.front_mut() else { break };
            let start = split.next_row();
            if start >= end {
                break;
            }
            let block_end = (start / BLOCK + 1) * BLOCK;
            let stop = block_end.min(end).min(start + (limit - taken) as u64);
            split.offset += stop - start;
            taken += usize::try_from(stop - start).unwrap_or(0);
            match self.runs.last_mut() {
                Some(last) if last.end == start => last.end = stop,
                _ => self.runs.push(start..stop),
            }
            if stop == block_end {
                self.requeue_first();
            }
        }
        taken
    }

    /// Puts the first split, whose block is done, where its next row belongs: at the end, unless a restore under
    /// another parallelism brought together splits that had come unequally far.
    fn requeue_first(&mut self) {
        let Some(split) = self.splits.pop_front() else { return };
        let next = split.next_row();
        let place = match self.splits.back() {
            Some(last) if last.next_row() > next => self.splits.partition_point(|other| other.next_row() < next),
            _ => self.splits.len(),
        };
        self.splits.insert(place, split);
    }

    /// Whether every row of the splits was handed out.
    fn is_finished(&self) -> bool {
        let end = self.options.number_of_rows.unwrap_or(u64::MAX);
        self.splits.front().is_none_or(|split| split.next_row() >= end)
    }
}

impl Source for DatagenReader {
    fn open(&mut self, context: SourceContext, state: RestoredState) -> Result<(), TaskError> {
        let operator = &context.operator;
        let parallelism = operator.parallelism.max(1);
        self.splits = (0..SPLITS)
            .filter(|number| number % parallelism == operator.subtask.0)
            .map(|number| Split { number, offset: 0 })
            .collect();
        for stored in state.splits {
            let position: Position = serde_json::from_value(stored.state.clone()).map_err(|error| {
                TaskError::IncompatibleState(format!(
                    "the state of split '{}' is {}, which is no position of datagen: {error}. Expected {{\"offset\": n}}",
                    stored.split, stored.state
                ))
            })?;
            let number = split_number(&stored.split).ok_or_else(|| {
                TaskError::IncompatibleState(format!(
                    "the state speaks of a split '{}', but the splits of datagen are 'datagen-0' to 'datagen-{}'. \
                     Was the table's connector changed? Give the source another uid, or restore without it",
                    stored.split,
                    SPLITS - 1
                ))
            })?;
            if let Some(split) = self.splits.iter_mut().find(|split| split.number == number) {
                split.offset = position.offset;
            }
        }
        self.splits.make_contiguous().sort_by_key(|split| split.next_row());
        if let (Some(rate), false) = (self.options.rows_per_second, self.splits.is_empty()) {
            #[expect(clippy::cast_precision_loss, reason = "a rate")]
            let share = rate as f64 * self.splits.len() as f64 / f64::from(SPLITS);
            let throttle = Throttle::new(share, (context.clock)(), context.waker.clone())
                .map_err(|error| TaskError::External(format!("datagen cannot start its timer thread: {error}")))?;
            self.throttle = Some(throttle);
        }
        self.context = Some(context);
        Ok(())
    }

    fn poll(&mut self, max_rows: usize) -> Result<SourcePoll, TaskError> {
        if self.is_finished() {
            return Ok(SourcePoll::Finished);
        }
        let Some(context) = &self.context else {
            return Err(TaskError::Internal("a datagen source was polled before it was opened".to_owned()));
        };
        let now = (context.clock)();
        let allowed = self.throttle.as_mut().map_or(usize::MAX, |throttle| throttle.available(now));
        let taken = self.take_runs(max_rows.max(1).min(allowed));
        if let Some(throttle) = &mut self.throttle {
            throttle.take(taken);
            if taken == 0 {
                throttle.wake_when_due();
                return Ok(SourcePoll::Pending);
            }
        }
        self.columns.generate(&self.schema, &self.runs, now.0).map(|rows| SourcePoll::Batch(Batch::inserts(rows)))
    }

    fn snapshot(&mut self) -> Result<Vec<SplitState>, TaskError> {
        let states = self.splits.iter().map(|split| {
            let state = serde_json::to_value(Position { offset: split.offset })
                .map_err(|error| TaskError::Internal(format!("a datagen position cannot be written: {error}")))?;
            Ok(SplitState { split: split_name(split.number), state })
        });
        states.collect()
    }
}
