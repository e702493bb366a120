//! Watermarks of a source's rows: one per split, the least of the active splits' for the subtask (W1, W2).
//!
//! # When a watermark goes out
//! Behind a batch at most once per [`INTERVAL`], before an aligned barrier, and *before a row that is late by what the rows
//! before it say*: a batch is cut there. So what is late depends on the order of the rows of a split alone, never on how a
//! source divides them into batches.
//!
//! # Idleness (W2)
//! A split falls silent by the time in which it was read and gave nothing, which the task tells by its polls: time under
//! back-pressure, or while the source is held, is not counted ([`SourceWatermarks::pause`]), nor is most of the time between
//! a poll that gave rows and the next one: then the task works on them.
//!
//! # State
//! `watermark` and `idle` stand beside the source's own fields in the state of each split; older states lack them.

use super::alignment::{AlignmentMember, WatermarkAlignment};
use super::{WatermarkStatus, combine};
use crate::batch::Batch;
use crate::error::TaskError;
use crate::operator::{RestoredState, Waker};
use crate::operators::{ExpressionFactory, RowExpression};
use crate::source::{Source, SplitChange};
use arrow::array::{Array, AsArray, Int64Array};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Int64Type, TimeUnit};
use sluice_protocol::state::SplitState;
use sluice_protocol::{TimeSpan, Timestamp};
use std::collections::{BTreeMap, VecDeque};

/// Least time between two watermarks that nothing hurries.
pub const INTERVAL: TimeSpan = TimeSpan::from_millis(100);

/// The only split of a source that tells of none.
const WHOLE: &str = "";
const WATERMARK: &str = "watermark";
const IDLE: &str = "idle";

/// How the rows of a source give watermarks.
pub struct WatermarkStrategy {
    /// The time of a row: TIMESTAMP(3) or a number of milliseconds.
    pub time: ExpressionFactory,
    /// The watermark behind a row, alike; null says nothing.
    pub watermark: ExpressionFactory,
    /// A split that gave no row for so long is idle; `None`: never.
    pub idle_timeout: Option<TimeSpan>,
    /// Whom it waits for.
    pub alignment: Option<WatermarkAlignment>,
}

/// What a source is to send on, in order.
#[derive(Debug)]
pub enum Piece {
    /// Rows.
    Rows(Batch),
    /// What is known behind them.
    Status(WatermarkStatus),
}

struct Split {
    name: String,
    watermark: i64,
    idle: bool,
    finished: bool,
    may_idle: bool,
    /// For how long it was read and gave nothing.
    silent: TimeSpan,
    /// Polls since it gave a row.
    polls: usize,
    /// It is too far ahead of others, and not read.
    held: bool,
}

impl Split {
    const fn status(&self) -> WatermarkStatus {
        WatermarkStatus { watermark: self.watermark, idle: self.idle }
    }

    /// Whether it is read and may fall silent.
    const fn may_fall_silent(&self) -> bool {
        self.may_idle && !self.finished && !self.held
    }
}

/// The event time of one subtask of a source.
pub struct SourceWatermarks {
    time: Box<dyn RowExpression>,
    watermark: Box<dyn RowExpression>,
    idle_timeout: Option<TimeSpan>,
    splits: Vec<Split>,
    restored: BTreeMap<String, WatermarkStatus>,
    /// Never less than this, whatever becomes of the splits.
    floor: i64,
    emitted: WatermarkStatus,
    emitted_at: Option<Timestamp>,
    polled_at: Option<Timestamp>,
    /// Whether the last poll gave rows: what followed was work on them for the most part, not a wait.
    gave: bool,
    /// Its place among the sources that wait for each other.
    member: Option<AlignmentMember>,
    /// It waits for them: nothing of it is read.
    waits: bool,
    /// It had nothing to read since its last split has ended: it is not about to end itself.
    rests: bool,
}

/// Takes what the states of splits hold of event time, so that the source gets its own fields alone.
#[must_use]
pub fn take_restored(state: &mut RestoredState) -> BTreeMap<String, WatermarkStatus> {
    let mut restored = BTreeMap::new();
    for split in &mut state.splits {
        let Some(fields) = split.state.as_object_mut() else { continue };
        let idle = fields.remove(IDLE).and_then(|idle| idle.as_bool()).unwrap_or(false);
        if let Some(watermark) = fields.remove(WATERMARK).and_then(|watermark| watermark.as_i64()) {
            restored.insert(split.split.clone(), WatermarkStatus { watermark, idle });
        }
    }
    restored
}

impl SourceWatermarks {
    /// Before the first split is known; `restored` as [`take_restored`] gave it.
    ///
    /// # Errors
    /// When the expressions cannot be made.
    pub fn new(strategy: &WatermarkStrategy, restored: BTreeMap<String, WatermarkStatus>) -> Result<Self, TaskError> {
        Ok(Self {
            time: (strategy.time)()?,
            watermark: (strategy.watermark)()?,
            idle_timeout: strategy.idle_timeout,
            splits: Vec::new(),
            restored,
            floor: i64::MIN,
            emitted: WatermarkStatus::UNKNOWN,
            emitted_at: None,
            polled_at: None,
            gave: false,
            member: None,
            waits: false,
            rests: false,
        })
    }

    /// It waits for others from now on, and they for it.
    pub fn align(&mut self, member: AlignmentMember) {
        self.member = Some(member);
    }

    /// It is at its end: nobody waits for it any more.
    pub fn leave(&mut self) {
        self.member = None;
        self.waits = false;
    }

    /// Lets the source hold back the splits that are too far ahead of the group, or says that nothing of it is to be read now;
    /// the waker is called when the others have come further.
    ///
    /// Only by reading is it known that an idle split has rows again, and the others would pass the time of these meanwhile. So
    /// an idle split is always read, and a source that cannot hold back single ones does not wait while it has one.
    pub fn waits(&mut self, source: &mut dyn Source, waker: &Waker) -> bool {
        let status = self.status();
        let Some(member) = &mut self.member else { return false };
        member.report(status);
        let active = self.splits.iter().filter(|split| !split.idle && !split.finished);
        let greatest = active.map(|split| split.watermark).max().unwrap_or(i64::MIN).max(status.watermark);
        let bound = member.bound(greatest, waker).unwrap_or(i64::MAX);
        self.waits = if self.hold_beyond(bound, source) {
            let mut read = self.splits.iter().filter(|split| !split.finished).peekable();
            read.peek().is_some() && read.all(|split| split.held)
        } else {
            let may_wake = self.splits.iter().any(|split| split.idle && !split.finished);
            let is_read = self.splits.iter().any(|split| !split.finished);
            is_read && !may_wake && !status.idle && status.watermark > bound
        };
        self.waits
    }

    /// Holds the splits back that are beyond; whether the source can do that.
    fn hold_beyond(&mut self, bound: i64, source: &mut dyn Source) -> bool {
        let is_beyond = |split: &Split| !split.idle && !split.finished && split.watermark > bound;
        if self.splits.iter().all(|split| split.held == is_beyond(split)) {
            return self.splits.iter().any(|split| split.held);
        }
        let held: Vec<&str> =
            self.splits.iter().filter(|split| is_beyond(split)).map(|split| split.name.as_str()).collect();
        let holds = source.hold_splits(&held);
        self.splits.iter_mut().for_each(|split| split.held = holds && is_beyond(split));
        holds
    }

    /// The source tells of no splits: all that it reads is one.
    pub fn be_whole(&mut self) {
        let status = combine(std::mem::take(&mut self.restored).into_values()).unwrap_or_default();
        self.add(WHOLE.to_owned(), true, status);
    }

    /// Splits that the source has begun to read.
    pub fn begin(&mut self, changes: &[SplitChange]) {
        for change in changes {
            if let SplitChange::Added { split, may_idle } = change
                && self.find(split).is_none()
            {
                let status = self.restored.remove(split).unwrap_or_default();
                self.add(split.clone(), *may_idle, status);
            }
        }
    }

    /// The splits that the source was opened with. Those that are at their end already, or that were restored and of which it
    /// tells nothing, give no bound; what they had said stands as far as it was surely said: in which order they had ended
    /// is not known.
    pub fn open(&mut self, changes: &[SplitChange]) {
        self.begin(changes);
        for change in changes {
            if let SplitChange::Finished { split } = change
                && let Some(index) = self.find(split)
            {
                self.splits[index].finished = true;
            }
        }
        let untold = std::mem::take(&mut self.restored);
        if !untold.is_empty() || self.splits.iter().any(|split| split.finished) {
            let known = self.splits.iter().map(|split| split.watermark);
            let least = known.chain(untold.into_values().map(|status| status.watermark)).min();
            self.floor = least.unwrap_or(i64::MIN);
        }
    }

    /// Splits that are read to their end: they give no bound any more.
    pub fn finish(&mut self, changes: &[SplitChange]) {
        for change in changes {
            if let SplitChange::Finished { split } = change
                && let Some(index) = self.find(split)
            {
                self.floor = self.floor.max(self.status().watermark);
                self.splits[index].finished = true;
                self.rests = false;
            }
        }
    }

    fn add(&mut self, name: String, may_idle: bool, status: WatermarkStatus) {
        let WatermarkStatus { watermark, idle } = status;
        let (silent, polls) = (TimeSpan(0), 0);
        self.splits.push(Split { name, watermark, idle, finished: false, may_idle, silent, polls, held: false });
    }

    fn find(&self, name: &str) -> Option<usize> {
        self.splits.iter().position(|split| split.name == name)
    }

    /// What the subtask says now: it is idle when it has no split that is read and not idle. When its splits have just ended it
    /// says nothing of that before it was asked for more: mostly it ends itself, and whoever went by its last watermark as the
    /// greatest of silent ones would go further than others, who have heard of the end first.
    fn status(&self) -> WatermarkStatus {
        let active = self.splits.iter().filter(|split| !split.finished).map(Split::status);
        let combined = combine(active).unwrap_or_else(|| {
            let idle = self.splits.is_empty() || self.rests;
            WatermarkStatus { watermark: self.floor, idle }
        });
        WatermarkStatus { watermark: combined.watermark.max(self.floor).max(self.emitted.watermark), ..combined }
    }

    /// What is to be said now: what is new, unless the last word was a moment ago; `at_once`: whatever is new.
    pub fn take_status(&mut self, now: Timestamp, at_once: bool) -> Option<WatermarkStatus> {
        let status = self.status();
        if status == self.emitted {
            return None;
        }
        let is_early = self.emitted_at.is_some_and(|at| now < at.plus(INTERVAL));
        if is_early && !at_once && status.idle == self.emitted.idle {
            return None;
        }
        self.emitted_at = Some(now);
        self.emitted = status;
        Some(status)
    }

    /// When there is something to do without a row: a watermark that waits for its time, a split that falls silent.
    #[must_use]
    pub fn wake_at(&self, now: Timestamp) -> Option<Timestamp> {
        let waits = (self.status() != self.emitted).then_some(self.emitted_at).flatten();
        let timeout = self.idle_timeout;
        let silent = self.splits.iter().filter(|split| split.may_fall_silent() && !split.idle);
        // A source that waits for others is not read: nothing falls silent meanwhile (W2).
        let silent = silent.filter(|_| !self.waits);
        let idle_at = silent.filter_map(|split| Some(now.plus(TimeSpan(timeout?.0.saturating_sub(split.silent.0)))));
        let aligned_at = self.member.as_ref().filter(|_| self.waits).map(|member| now.plus(member.update_interval()));
        waits.map(|at| at.plus(INTERVAL)).into_iter().chain(idle_at.min()).chain(aligned_at).min()
    }

    /// Time that passes from here to the next poll does not count as silence.
    pub const fn pause(&mut self) {
        self.polled_at = None;
    }

    /// The source was polled: it gave rows of this split, or nothing at all.
    pub fn polled(&mut self, gave: Option<&str>, now: Timestamp) {
        let elapsed = self.polled_at.map_or(TimeSpan(0), |at| now.since(at));
        let elapsed = if std::mem::replace(&mut self.gave, gave.is_some()) { elapsed.min(INTERVAL) } else { elapsed };
        self.polled_at = Some(now);
        self.rests = gave.is_none();
        let Some(timeout) = self.idle_timeout else { return };
        let is_idler = |split: &&mut Split| split.may_fall_silent();
        let others = self.splits.iter_mut().filter(is_idler).count();
        for split in self.splits.iter_mut().filter(is_idler) {
            if gave == Some(split.name.as_str()) {
                (split.silent, split.polls) = (TimeSpan(0), 0);
                continue;
            }
            split.polls += 1;
            // A source takes its splits in turn: only behind a whole round is it known that this one had nothing.
            if gave.is_none() || split.polls >= others {
                split.silent = TimeSpan(split.silent.0.saturating_add(elapsed.0));
            }
            split.idle |= split.silent >= timeout;
        }
    }

    /// Rows of a split, cut where a row is late by those before it.
    ///
    /// # Errors
    /// When a time or a watermark cannot be computed.
    pub fn pieces(&mut self, batch: Batch, split: Option<&str>) -> Result<VecDeque<Piece>, TaskError> {
        let index = split.map_or(Some(0), |name| self.find(name)).filter(|index| *index < self.splits.len());
        let Some(index) = index else {
            return Err(TaskError::Internal(format!(
                "a source gave rows of a split {split:?} that it had not told of"
            )));
        };
        let times = milliseconds(self.time.as_ref(), &batch)?;
        let watermarks = milliseconds(self.watermark.as_ref(), &batch)?;
        let mut pieces = VecDeque::new();
        self.splits[index].idle = false;
        if self.emitted.idle {
            self.emitted.idle = false;
            pieces.push_back(Piece::Status(self.emitted));
        }
        let active = |(other, split): &(usize, &Split)| *other != index && !split.finished && !split.idle;
        let others = self.splits.iter().enumerate().filter(active).map(|(_, split)| split.watermark).min();
        let others = others.unwrap_or(i64::MAX);
        let mut own = self.splits[index].watermark;
        let mut start = 0;
        for row in 0..batch.len() {
            let bound = own.min(others).max(self.floor);
            if times.is_valid(row) && times.value(row) <= bound && bound > self.emitted.watermark {
                if row > start {
                    pieces.push_back(Piece::Rows(batch.slice(start, row - start)));
                }
                start = row;
                self.emitted.watermark = bound;
                pieces.push_back(Piece::Status(self.emitted));
            }
            if watermarks.is_valid(row) {
                own = own.max(watermarks.value(row));
            }
        }
        self.splits[index].watermark = own;
        pieces.push_back(Piece::Rows(if start == 0 { batch } else { batch.slice(start, batch.len() - start) }));
        Ok(pieces)
    }

    /// Puts what is known of each split into its state.
    ///
    /// # Errors
    /// When a source keeps something else than an object as the state of a split.
    pub fn store(&self, states: &mut [SplitState]) -> Result<(), TaskError> {
        let whole = self.splits.first().filter(|split| split.name == WHOLE);
        for state in states {
            let found = whole.or_else(|| self.splits.iter().find(|split| split.name == state.split));
            let Some(split) = found.filter(|split| split.status() != WatermarkStatus::UNKNOWN) else { continue };
            let Some(fields) = state.state.as_object_mut() else {
                let text = format!("the state of split '{}' is no object, so it can hold no watermark", state.split);
                return Err(TaskError::Internal(text));
            };
            fields.insert(WATERMARK.to_owned(), split.watermark.into());
            if split.idle {
                fields.insert(IDLE.to_owned(), true.into());
            }
        }
        Ok(())
    }
}

fn milliseconds(expression: &dyn RowExpression, batch: &Batch) -> Result<Int64Array, TaskError> {
    let values = expression.evaluate(&batch.rows)?;
    let wrong = |what: &str| TaskError::Internal(format!("the time of a row is {}: {what}", values.data_type()));
    if values.len() != batch.len() {
        return Err(wrong("not one value per row"));
    }
    let cast = |array: &dyn Array, to| cast(array, to).map_err(|error| wrong(&error.to_string()));
    let numbers = match values.data_type() {
        DataType::Int64 => return Ok(values.as_primitive::<Int64Type>().clone()),
        DataType::Timestamp(TimeUnit::Millisecond, _) => cast(&values, &DataType::Int64)?,
        DataType::Timestamp(_, zone) => {
            let milliseconds = DataType::Timestamp(TimeUnit::Millisecond, zone.clone());
            cast(&cast(&values, &milliseconds)?, &DataType::Int64)?
        }
        _ => return Err(wrong("no time")),
    };
    Ok(numbers.as_primitive::<Int64Type>().clone())
}
