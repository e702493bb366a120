//! A task's part in checkpoints: from a trigger or an event of the gate to a snapshot (B1-B5, K4).
//!
//! 1. *Aligned or at least once*: flush, wait for the sink, freeze, pass the barrier on ([`Task::take_barrier`],
//!    [`Task::cut`]).
//! 2. *Overtaking*: flush, freeze and send the barrier ahead at once ([`Task::cut_ahead`]); then wait for the sink and
//!    for what is in flight in the inputs.
//! 3. *Aligned with a timeout*: as 1, but its barrier may be stuck in outputs to other processes: until it has left, or
//!    the time is up and it overtakes there, the snapshot stays open ([`Task::complete_open`]).

use super::snapshot::{FrozenOperators, OpenCut, SnapshotDraft};
use super::{Input, Running, Task, TaskEvent, Waiting};
use crate::error::TaskError;
use crate::input_gate::GateEvent;
use sluice_protocol::ledger::Ends;
use sluice_protocol::message::Barrier;
use sluice_protocol::{CheckpointId, TimeSpan, Timestamp};

impl Task {
    /// Does what barriers ask for; says whether something was done.
    pub(super) fn take_barriers(&mut self, running: &mut Running, now: Timestamp) -> Result<bool, TaskError> {
        if let Input::Gate(gate) = &mut running.input
            && running.stashed.is_none()
            && let Some(event) = gate.poll_barriers(now)
        {
            if running.waits_for_watermark(&event) {
                running.stashed = Some(event);
            } else {
                self.take_event(running, event, now)?;
            }
            return Ok(true);
        }
        if running.open.is_some() && self.complete_open(running, now)? {
            return Ok(true);
        }
        self.take_first_trigger(running, now)
    }

    /// The first of the triggered barriers, unless it waits for a watermark that is under way.
    fn take_first_trigger(&mut self, running: &mut Running, now: Timestamp) -> Result<bool, TaskError> {
        let Some(barrier) = self.triggers.front() else { return Ok(false) };
        if matches!(running.input, Input::Gate(_)) {
            self.triggers.pop_front();
            return Ok(true);
        }
        if barrier.overtakes_from().is_some_and(|at| at <= now) {
            self.finish_batch(running, now)?;
        } else if running.is_advancing() || !self.tell_before_barrier(running, now)? {
            return Ok(false);
        }
        if let Some(barrier) = self.triggers.pop_front() {
            self.take_trigger(running, barrier, now)?;
        }
        Ok(true)
    }

    /// A source emits a barrier. A later trigger says that an earlier stop did not come about.
    fn take_trigger(&mut self, running: &mut Running, barrier: Barrier, now: Timestamp) -> Result<(), TaskError> {
        running.held = None;
        if barrier.ends == Ends::Finish && !running.finished {
            self.triggers.push_front(barrier);
            return self.end(running, now);
        }
        if barrier.ends == Ends::Stop && !self.aborted.contains(&barrier.checkpoint) {
            running.held = Some(barrier.checkpoint);
        }
        if barrier.overtakes_from().is_some_and(|at| at <= now) {
            return self.cut_ahead(running, barrier, now, true, now);
        }
        self.take_barrier(running, barrier, TimeSpan(0), now, now)
    }

    /// Acts on what the gate says of barriers and the end of input.
    pub(super) fn take_event(
        &mut self,
        running: &mut Running,
        event: GateEvent,
        now: Timestamp,
    ) -> Result<(), TaskError> {
        match event {
            GateEvent::Batch { input, batch } => running.chain.process(input, batch),
            GateEvent::Watermark(status) => running.tell(status),
            GateEvent::Aligned { barrier, alignment, started_at } => {
                self.take_barrier(running, barrier, alignment, started_at, now)
            }
            GateEvent::Overtaking { barrier, started_at } => self.cut_ahead(running, barrier, started_at, false, now),
            GateEvent::Recorded { checkpoint, alignment, in_flight } => {
                if let Some(open) = running.open.as_mut().filter(|open| open.checkpoint() == checkpoint) {
                    open.in_flight.extend(in_flight);
                    open.draft.alignment = alignment;
                    open.inputs_known = true;
                }
                self.complete_open(running, now).map(drop)
            }
            GateEvent::Ended(checkpoint) => {
                running.open.take_if(|open| open.checkpoint() == checkpoint);
                self.decline_ended(checkpoint);
                Ok(())
            }
            GateEvent::TooMuchInFlight { checkpoint, bytes } => {
                running.open.take_if(|open| open.checkpoint() == checkpoint);
                let error = TaskError::InFlightExceeded(format!(
                    "{bytes} bytes were in flight at subtask {} while the barrier of checkpoint {checkpoint} did not come on \
                     every channel, and it may record {}; the checkpoint was given up here rather than fill the memory. Give \
                     the process more memory, or look why one input is far slower than the others",
                    self.subtask, self.options.in_flight_limit
                ));
                self.decline(checkpoint, error);
                Ok(())
            }
            GateEvent::Passed(barrier) => running.chain.send_barrier(&barrier),
            GateEvent::EndOfInput => self.end(running, now),
        }
    }

    fn decline(&mut self, checkpoint: CheckpointId, error: TaskError) {
        self.events.push(TaskEvent::Declined { checkpoint, error });
    }

    fn decline_ended(&mut self, checkpoint: CheckpointId) {
        let text =
            format!("the barrier of checkpoint {checkpoint} was overtaken by a later one at subtask {}", self.subtask);
        self.decline(checkpoint, TaskError::Internal(text));
    }

    /// Flushes, and cuts the checkpoint as soon as the sink has let go of everything.
    fn take_barrier(
        &mut self,
        running: &mut Running,
        barrier: Barrier,
        alignment: TimeSpan,
        started_at: Timestamp,
        now: Timestamp,
    ) -> Result<(), TaskError> {
        running.chain.flush()?;
        self.lingers_since = None;
        running.waiting = Some(Waiting::Barrier(SnapshotDraft { barrier, alignment, started_at, flushed_from: now }));
        self.complete_waiting(running, now).map(drop)
    }

    /// Ends once the last watermark is through.
    pub(super) fn conclude(&mut self, running: &mut Running, now: Timestamp) -> Result<(), TaskError> {
        if !running.chain.advance()? {
            return Ok(());
        }
        running.ending = false;
        running.chain.finish()?;
        self.lingers_since = None;
        running.waiting = Some(Waiting::End);
        self.complete_waiting(running, now).map(drop)
    }

    /// Does what waits for the sink; says whether it could.
    pub(super) fn complete_waiting(&mut self, running: &mut Running, now: Timestamp) -> Result<bool, TaskError> {
        let is_through = match running.waiting {
            Some(Waiting::End) => running.chain.has_finished()?,
            _ => running.chain.is_flushed()?,
        };
        if !is_through {
            return Ok(false);
        }
        match running.waiting.take() {
            None => {}
            Some(Waiting::Barrier(draft)) => self.cut(running, draft, now)?,
            Some(Waiting::End) => {
                running.chain.send_end()?;
                self.events.push(TaskEvent::Finished);
            }
        }
        Ok(true)
    }

    /// Freezes the state and passes the barrier on. A barrier is passed on whatever becomes of the snapshot (B5).
    fn cut(&mut self, running: &mut Running, draft: SnapshotDraft, now: Timestamp) -> Result<(), TaskError> {
        let frozen = self.freeze(running, &draft);
        running.chain.send_barrier(&draft.barrier)?;
        let Some(operators) = frozen else { return Ok(()) };
        self.open_cut(running, draft, operators, now);
        if let Some(open) = &mut running.open {
            (open.inputs_known, open.sink_flushed) = (true, true);
        }
        self.complete_open(running, now).map(drop)
    }

    /// Freezes the state and sends the barrier ahead of everything; the sink and the inputs are waited for afterwards.
    fn cut_ahead(
        &mut self,
        running: &mut Running,
        barrier: Barrier,
        started_at: Timestamp,
        inputs_known: bool,
        now: Timestamp,
    ) -> Result<(), TaskError> {
        running.chain.flush()?;
        self.lingers_since = None;
        let draft = SnapshotDraft { barrier, alignment: TimeSpan(0), started_at, flushed_from: now };
        let frozen = self.freeze(running, &draft);
        let overtaken = running.chain.send_ahead(&draft.barrier)?;
        let Some(operators) = frozen else {
            running.checkpoint_aborted(draft.barrier.checkpoint);
            return Ok(());
        };
        self.open_cut(running, draft, operators, now);
        if let Some(open) = &mut running.open {
            (open.inputs_known, open.outputs_known) = (inputs_known, true);
            open.in_flight = overtaken;
        }
        self.complete_open(running, now).map(drop)
    }

    /// The frozen state, unless the checkpoint was given up or cannot be taken.
    fn freeze(&mut self, running: &mut Running, draft: &SnapshotDraft) -> Option<FrozenOperators> {
        let checkpoint = draft.barrier.checkpoint;
        if self.aborted.contains(&checkpoint) {
            return None;
        }
        match running.freeze(draft.barrier.checkpoint) {
            Ok(operators) => {
                self.meter.cut(checkpoint);
                Some(operators)
            }
            Err(error) => {
                self.decline(checkpoint, error);
                None
            }
        }
    }

    fn open_cut(&mut self, running: &mut Running, draft: SnapshotDraft, operators: FrozenOperators, now: Timestamp) {
        if let Some(earlier) = running.open.take() {
            self.decline_ended(earlier.checkpoint());
        }
        let frozen_at = now.max((self.clock)());
        let in_flight = Vec::new();
        let (inputs_known, sink_flushed, outputs_known) = (false, false, false);
        running.open = Some(OpenCut {
            draft,
            operators,
            frozen_at,
            in_flight,
            inputs_known,
            sink_flushed,
            has_committables: false,
            outputs_known,
        });
    }

    /// Hands the snapshot out if all that belongs to it is known; says whether it did.
    fn complete_open(&mut self, running: &mut Running, now: Timestamp) -> Result<bool, TaskError> {
        let Some(open) = &mut running.open else { return Ok(false) };
        if !open.sink_flushed {
            open.sink_flushed = running.chain.is_flushed()?;
        }
        if open.sink_flushed && !open.has_committables {
            open.has_committables = true;
            running.chain.committables(open.draft.barrier.checkpoint, &mut open.operators)?;
        }
        if !open.outputs_known {
            let checkpoint = open.checkpoint();
            let is_due = open.draft.barrier.overtakes_from().is_some_and(|at| at <= now);
            if is_due {
                open.in_flight.extend(running.chain.turn(checkpoint));
            }
            open.outputs_known =
                is_due || open.draft.barrier.overtakes_from().is_none() || !running.chain.holds(checkpoint);
        }
        let Some(complete) = running.open.take_if(|open| open.is_complete()) else { return Ok(false) };
        self.events.push(TaskEvent::Snapshot(complete.complete(self.subtask)));
        Ok(true)
    }
}

impl Running {
    /// A checkpoint was given up (B5): nothing is recorded for it any more, and what stopped behind it goes on.
    pub(super) fn checkpoint_aborted(&mut self, checkpoint: CheckpointId) {
        self.held.take_if(|held| *held == checkpoint);
        self.open.take_if(|open| open.checkpoint() == checkpoint);
        if let Input::Gate(gate) = &mut self.input {
            gate.abandon(checkpoint);
        }
    }

    /// Whether a checkpoint that has overtaken waits for what was written before it.
    pub(super) fn waits_for_sink(&self) -> bool {
        self.open.as_ref().is_some_and(|open| !open.sink_flushed)
    }

    /// When a barrier in an input or an output comes to overtake.
    pub(super) fn wake_at(&self) -> Option<Timestamp> {
        let outputs = self.open.as_ref().filter(|open| !open.outputs_known);
        let outputs = outputs.and_then(|open| open.draft.barrier.overtakes_from());
        let inputs = if let Input::Gate(gate) = &self.input { gate.wake_at() } else { None };
        outputs.into_iter().chain(inputs).min()
    }

    fn freeze(&mut self, checkpoint: CheckpointId) -> Result<FrozenOperators, TaskError> {
        let mut frozen = FrozenOperators::new();
        if let Input::Source { uid, source, watermarks } = &mut self.input {
            let mut splits = source.snapshot()?;
            if let Some(watermarks) = watermarks {
                watermarks.store(&mut splits)?;
            }
            let state = crate::operator::OperatorState { splits, ..Default::default() };
            frozen.push((uid.clone(), Box::new(state)));
        }
        self.chain.freeze(checkpoint, &mut frozen)?;
        Ok(frozen)
    }
}
