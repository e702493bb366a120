//! Watermarks and timers of a task: what is due goes through the chain in slices, before any other input (B4).
//!
//! 1. A source's batch becomes pieces, rows and watermarks ([`SourceWatermarks::pieces`]); a gate hands both out in order.
//! 2. [`Chain::begin`] takes a watermark, [`Chain::advance`] lets operator by operator do what is due.
//! 3. While a watermark is on its way no row is taken, and an aligned barrier or the end of input waits; a barrier that
//!    overtakes does not.
//! 4. Right before an aligned barrier a source says what it knows (W1).
//! 5. Splits of a source that are ahead of its alignment group are not read, where all are the source is not
//!    ([`Task::waits_for_group`]); barriers and stops are taken.
//! 6. At the end of all input the watermark is `i64::MAX`; then the operators finish.

use super::{Input, Running, Task};
use crate::batch::Batch;
use crate::error::TaskError;
use crate::event_time::WatermarkStatus;
use crate::event_time::source::{Piece, SourceWatermarks};
use crate::input_gate::GateEvent;
use crate::source::Source;
use sluice_protocol::Timestamp;

impl Task {
    /// Goes on with what is due; says whether there was something. Only called with room in the outputs.
    pub(super) fn advance(&mut self, running: &mut Running, now: Timestamp) -> Result<bool, TaskError> {
        let worked = self.advance_one(running, now)?;
        if worked {
            self.note_written(running, now);
        }
        Ok(worked)
    }

    fn advance_one(&mut self, running: &mut Running, now: Timestamp) -> Result<bool, TaskError> {
        if running.chain.is_advancing() {
            running.chain.advance()?;
            return Ok(true);
        }
        if let Some(event) = running.stashed.take() {
            self.take_event(running, event, now)?;
            return Ok(true);
        }
        if let Some(piece) = running.pieces.pop_front() {
            running.take_piece(piece)?;
            return Ok(true);
        }
        if running.ending {
            self.conclude(running, now)?;
            return Ok(true);
        }
        Ok(!running.finished && running.chain.take_timer(now)?)
    }

    /// A started batch is finished before a barrier, whatever the room (B2).
    pub(super) fn finish_batch(&mut self, running: &mut Running, now: Timestamp) -> Result<(), TaskError> {
        while !running.pieces.is_empty() {
            while !running.chain.advance()? {}
            if let Some(piece) = running.pieces.pop_front() {
                running.take_piece(piece)?;
            }
        }
        self.note_written(running, now);
        Ok(())
    }

    pub(super) fn note_written(&mut self, running: &mut Running, now: Timestamp) {
        self.meter.wrote(running.chain.take_written());
        self.meter.at_watermark(running.chain.watermark());
        if self.lingers_since.is_none() && running.chain.lingers() {
            self.lingers_since = Some(now);
        }
    }

    /// Says what the source knows right before an aligned barrier (W1); whether all that is due by it is done.
    pub(super) fn tell_before_barrier(&mut self, running: &mut Running, now: Timestamp) -> Result<bool, TaskError> {
        if let Input::Source { watermarks: Some(watermarks), .. } = &mut running.input
            && !running.finished
            && let Some(status) = watermarks.take_status(now, true)
        {
            running.chain.begin(status);
        }
        running.chain.advance()
    }

    /// Whether all of the source is ahead of those that it waits for: then it is not read, and what it knows goes out in time;
    /// `Some(true)`: it did now.
    pub(super) fn waits_for_group(&mut self, running: &mut Running, now: Timestamp) -> Result<Option<bool>, TaskError> {
        let Input::Source { source, watermarks: Some(watermarks), .. } = &mut running.input else { return Ok(None) };
        if running.finished || running.held.is_some() || !watermarks.waits(source.as_mut(), &self.waker) {
            return Ok(None);
        }
        let status = watermarks.take_status(now, false);
        running.pause();
        let Some(status) = status else { return Ok(Some(false)) };
        running.tell(status)?;
        self.note_written(running, now);
        Ok(Some(true))
    }

    /// Everything was read: the last watermark, then the operators' ends.
    pub(super) fn end(&mut self, running: &mut Running, now: Timestamp) -> Result<(), TaskError> {
        running.finished = true;
        running.ending = true;
        if let Input::Source { watermarks: Some(watermarks), .. } = &mut running.input {
            watermarks.leave();
        }
        running.chain.begin(WatermarkStatus { watermark: i64::MAX, idle: false });
        self.conclude(running, now)
    }
}

impl Running {
    fn take_piece(&mut self, piece: Piece) -> Result<(), TaskError> {
        match piece {
            Piece::Rows(batch) => self.chain.process(0, batch),
            Piece::Status(status) => self.tell(status),
        }
    }

    /// A watermark goes through the chain.
    pub(super) fn tell(&mut self, status: WatermarkStatus) -> Result<(), TaskError> {
        self.chain.begin(status);
        self.chain.advance().map(drop)
    }

    /// Whether something is under way that an aligned barrier has to wait for.
    pub(super) fn is_advancing(&self) -> bool {
        self.chain.is_advancing() || self.ending || !self.pieces.is_empty() || self.stashed.is_some()
    }

    /// Whether an event of the gate has to wait until the watermark before it is through.
    pub(super) fn waits_for_watermark(&self, event: &GateEvent) -> bool {
        self.chain.is_advancing() && matches!(event, GateEvent::Aligned { .. } | GateEvent::EndOfInput)
    }

    /// The source is not read now: this is no silence of its splits (W2).
    pub(super) fn pause(&mut self) {
        if let Input::Source { watermarks: Some(watermarks), .. } = &mut self.input {
            watermarks.pause();
        }
    }

    /// When a timer, a watermark or a silent split asks for a step.
    pub(super) fn time_wakes_at(&self, now: Timestamp) -> Option<Timestamp> {
        let timer = if self.finished { None } else { self.chain.next_timer() };
        let source = match &self.input {
            Input::Source { watermarks: Some(watermarks), .. } if !self.finished => watermarks.wake_at(now),
            _ => None,
        };
        timer.into_iter().chain(source).min()
    }

    /// What a source has to tell of its splits, and the rows of a poll in pieces; `None`: it had no rows.
    pub(super) fn take_polled(&mut self, batch: Option<Batch>, now: Timestamp) -> Result<(), TaskError> {
        let Input::Source { source, watermarks: Some(watermarks), .. } = &mut self.input else {
            return batch.map_or(Ok(()), |batch| self.chain.process(0, batch));
        };
        let changes = source.take_split_changes();
        watermarks.begin(changes.as_deref().unwrap_or_default());
        let split = if changes.is_some() { source.polled_split().map(str::to_owned) } else { None };
        match batch {
            Some(batch) => {
                watermarks.polled(Some(split.as_deref().unwrap_or_default()), now);
                self.pieces = watermarks.pieces(batch, split.as_deref())?;
            }
            None => watermarks.polled(None, now),
        }
        watermarks.finish(changes.as_deref().unwrap_or_default());
        if let Some(status) = watermarks.take_status(now, false) {
            self.pieces.push_back(Piece::Status(status));
        }
        Ok(())
    }
}

/// Makes known what the source begins with.
pub(super) fn begin(source: &mut dyn Source, watermarks: &mut SourceWatermarks, now: Timestamp) -> Option<Piece> {
    match source.take_split_changes() {
        None => watermarks.be_whole(),
        Some(changes) => watermarks.open(&changes),
    }
    watermarks.take_status(now, true).map(Piece::Status)
}
