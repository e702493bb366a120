//! The operators of a chain and what stands at its end: a sink, or the output edges.
//!
//! Rows pass from operator to operator by a call each per batch. What the sink has no room for is kept here; the
//! task takes no input while something is kept (B4).

use super::metrics::Written;
use super::snapshot::FrozenOperators;
use crate::batch::Batch;
use crate::channel::Frame;
use crate::error::TaskError;
use crate::event_time::WatermarkStatus;
use crate::in_flight::InFlight;
use crate::operator::{
    Clock, Collector, Operator, OperatorContext, OperatorState, Progress, RestoredState, TaskIdentity, Waker,
};
use crate::partition::{EdgeOutput, EdgeWriter};
use crate::program::VertexProgram;
use crate::sink::{Sink, SinkContext};
use sluice_protocol::message::Barrier;
use sluice_protocol::{CheckpointId, OperatorUid, Timestamp};
use std::collections::VecDeque;

pub(super) struct Chain {
    uids: Vec<OperatorUid>,
    operators: Vec<Box<dyn Operator>>,
    end: End,
    /// What was last passed on of time.
    said: WatermarkStatus,
    /// A watermark on its way, and the operator whose turn it is.
    advance: Option<(usize, WatermarkStatus)>,
    /// The operator that has more to do for a timer.
    timer: Option<usize>,
}

/// What stands at the end.
struct End {
    sink: Option<SinkEnd>,
    edges: Vec<EdgeWriter>,
    written: Written,
}

struct SinkEnd {
    uid: OperatorUid,
    sink: Box<dyn Sink>,
    kept: VecDeque<Batch>,
}

impl Chain {
    pub(super) fn new(
        program: &VertexProgram,
        outputs: Vec<EdgeOutput>,
        max_parallelism: u16,
    ) -> Result<Self, TaskError> {
        let sink = program.sink.as_ref().map(|(uid, factory)| -> Result<SinkEnd, TaskError> {
            Ok(SinkEnd { uid: uid.clone(), sink: factory.create()?, kept: VecDeque::new() })
        });
        let edges = outputs.into_iter().map(|output| EdgeWriter::new(output, max_parallelism)).collect();
        Ok(Self {
            uids: program.operators.iter().map(|(uid, _)| uid.clone()).collect(),
            operators: program.operators.iter().map(|(_, factory)| factory.create()).collect::<Result<_, _>>()?,
            end: End { sink: sink.transpose()?, edges, written: Written::default() },
            said: WatermarkStatus::UNKNOWN,
            // What a snapshot between two slices left due comes first of all (B4).
            advance: Some((0, WatermarkStatus::UNKNOWN)),
            timer: None,
        })
    }

    pub(super) fn set_waker(&self, waker: &Waker) {
        for edge in &self.end.edges {
            edge.set_waker(waker);
        }
    }

    pub(super) fn open(
        &mut self,
        context: &dyn Fn(&OperatorUid) -> OperatorContext,
        restore: &mut dyn FnMut(&OperatorUid) -> RestoredState,
        (waker, (clock, job_clock), identity): (&Waker, (&Clock, &Clock), &TaskIdentity),
    ) -> Result<(), TaskError> {
        for (uid, operator) in self.uids.iter().zip(&mut self.operators) {
            operator.set_clock(clock);
            operator.open(&context(uid), restore(uid))?;
        }
        if let Some(end) = &mut self.end.sink {
            let (waker, clock) = (Waker::clone(waker), Clock::clone(job_clock));
            end.sink.open(SinkContext { operator: context(&end.uid), identity: identity.clone(), waker, clock })?;
        }
        Ok(())
    }

    /// Whether the end takes more rows. Gives the sink what was kept for it first.
    pub(super) fn has_room(&mut self) -> Result<bool, TaskError> {
        if let Some(end) = &mut self.end.sink
            && !(end.write_kept()? && end.sink.is_writable()?)
        {
            return Ok(false);
        }
        Ok(self.end.edges.iter().all(EdgeWriter::has_room))
    }

    /// Lets rows through that came at this input of the first operator.
    pub(super) fn process(&mut self, input: u8, batch: Batch) -> Result<(), TaskError> {
        if input == 0 {
            return through(&mut self.operators, &mut self.end, |first| first.collect(batch));
        }
        let Some((first, rest)) = self.operators.split_first_mut() else {
            return Err(TaskError::BadProgram(format!("a sink without operators has no input {input}")));
        };
        let mut processed = Ok(());
        through(rest, &mut self.end, |out| processed = first.process_input(input, batch, out))?;
        processed
    }

    /// A watermark is to go through the operators; only when none is on its way.
    pub(super) fn begin(&mut self, status: WatermarkStatus) {
        let WatermarkStatus { watermark, .. } = status;
        // Where only the idleness changed, the operators have nothing to do.
        let first = if watermark > self.said.watermark { 0 } else { self.operators.len() };
        let watermark = watermark.max(self.said.watermark);
        self.advance = Some((first, WatermarkStatus { watermark, ..status }));
    }

    pub(super) const fn is_advancing(&self) -> bool {
        self.advance.is_some()
    }

    /// Does what a watermark makes due, up to a slice; says whether nothing is on its way any more. An operator's rows that
    /// linger go before the watermark.
    pub(super) fn advance(&mut self) -> Result<bool, TaskError> {
        while let Some((index, status)) = self.advance {
            if index == self.operators.len() {
                self.advance = None;
                self.pass_on(status)?;
                continue;
            }
            let act = |operator: &mut dyn Operator, out: &mut dyn Collector| {
                let progress = operator.watermark(status.watermark, out)?;
                if progress == Progress::Done && operator.lingers() {
                    operator.flush(out)?;
                }
                Ok(progress)
            };
            if self.act_at(index, act)? == Progress::More {
                return Ok(false);
            }
            self.advance = Some((index + 1, status));
        }
        Ok(true)
    }

    /// Behind the last watermark the end of input follows, which says the same.
    fn pass_on(&mut self, status: WatermarkStatus) -> Result<(), TaskError> {
        if status == std::mem::replace(&mut self.said, status) || status.watermark == i64::MAX {
            return Ok(());
        }
        self.end.edges.iter_mut().try_for_each(|edge| edge.control(&Frame::Watermark(status)))
    }

    /// What was last passed on.
    pub(super) const fn watermark(&self) -> i64 {
        self.said.watermark
    }

    /// When the next timer is due.
    pub(super) fn next_timer(&self) -> Option<Timestamp> {
        if self.timer.is_some() {
            return Some(Timestamp(0));
        }
        self.operators.iter().filter_map(|operator| operator.next_timer()).min()
    }

    /// Does what a timer makes due, up to a slice; says whether there was one.
    pub(super) fn take_timer(&mut self, now: Timestamp) -> Result<bool, TaskError> {
        let due = || self.operators.iter().position(|operator| operator.next_timer().is_some_and(|at| at <= now));
        let Some(index) = self.timer.or_else(due) else { return Ok(false) };
        let progress = self.act_at(index, |operator, out| operator.on_timer(now, out))?;
        self.timer = (progress == Progress::More).then_some(index);
        Ok(true)
    }

    pub(super) fn lingers(&self) -> bool {
        self.end.edges.iter().any(EdgeWriter::lingers) || self.operators.iter().any(|operator| operator.lingers())
    }

    /// Sends on what lingers, as far as there is room.
    pub(super) fn flush_where_room(&mut self) -> Result<(), TaskError> {
        if self.has_room()? {
            return self.flush();
        }
        self.end.edges.iter_mut().try_for_each(EdgeWriter::flush_where_room)
    }

    /// Sends on what lingers, from the first operator to the edges.
    pub(super) fn flush(&mut self) -> Result<(), TaskError> {
        self.each_operator(|operator, out| operator.flush(out))?;
        self.end.edges.iter_mut().try_for_each(EdgeWriter::flush)
    }

    /// All input was read: a last flush, and what the operators add at the end.
    pub(super) fn finish(&mut self) -> Result<(), TaskError> {
        self.flush()?;
        self.each_operator(|operator, out| operator.finish(out))?;
        self.end.edges.iter_mut().try_for_each(EdgeWriter::flush)
    }

    fn each_operator(
        &mut self,
        act: impl Fn(&mut dyn Operator, &mut dyn Collector) -> Result<(), TaskError>,
    ) -> Result<(), TaskError> {
        (0..self.operators.len()).try_for_each(|index| self.act_at(index, &act))
    }

    fn act_at<T>(
        &mut self,
        index: usize,
        act: impl FnOnce(&mut dyn Operator, &mut dyn Collector) -> Result<T, TaskError>,
    ) -> Result<T, TaskError> {
        let (before, rest) = self.operators.split_at_mut(index + 1);
        let operator = &mut before[index];
        let mut acted = None;
        through(rest, &mut self.end, |out| acted = Some(act(operator.as_mut(), out)))?;
        acted.unwrap_or_else(|| Err(TaskError::Internal("an operator was not called".to_owned())))
    }

    /// Whether nothing written is on its way any more.
    pub(super) fn is_flushed(&mut self) -> Result<bool, TaskError> {
        match &mut self.end.sink {
            Some(end) => Ok(end.write_kept()? && end.sink.flush()?),
            None => Ok(true),
        }
    }

    /// The same at the end of all input.
    pub(super) fn has_finished(&mut self) -> Result<bool, TaskError> {
        match &mut self.end.sink {
            Some(end) => Ok(end.write_kept()? && end.sink.finish()?),
            None => Ok(true),
        }
    }

    pub(super) fn send_barrier(&mut self, barrier: &Barrier) -> Result<(), TaskError> {
        self.end.edges.iter_mut().try_for_each(|edge| edge.control(&Frame::Barrier(barrier.clone())))
    }

    /// Sends a barrier that overtakes what is queued in the outputs; returns what it overtook that is this task's to
    /// save.
    pub(super) fn send_ahead(&mut self, barrier: &Barrier) -> Result<Vec<InFlight>, TaskError> {
        let mut overtaken = Vec::new();
        for edge in &mut self.end.edges {
            overtaken.extend(edge.send_ahead(barrier)?);
        }
        Ok(overtaken)
    }

    /// Whether a barrier still waits in an output to leave the process.
    pub(super) fn holds(&self, checkpoint: CheckpointId) -> bool {
        self.end.edges.iter().any(|edge| edge.holds(checkpoint))
    }

    /// Lets a barrier that waits in outputs overtake what is queued before it there.
    pub(super) fn turn(&mut self, checkpoint: CheckpointId) -> Vec<InFlight> {
        self.end.edges.iter_mut().flat_map(|edge| edge.turn(checkpoint)).collect()
    }

    pub(super) fn send_end(&mut self) -> Result<(), TaskError> {
        self.end.edges.iter_mut().try_for_each(|edge| edge.control(&Frame::EndOfInput))
    }

    pub(super) fn freeze(&mut self, checkpoint: CheckpointId, frozen: &mut FrozenOperators) -> Result<(), TaskError> {
        for (uid, operator) in self.uids.iter().zip(&mut self.operators) {
            if let Some(writer) = operator.snapshot(checkpoint)? {
                frozen.push((uid.clone(), writer));
            }
        }
        Ok(())
    }

    /// The handles of what the sink has staged for this checkpoint and before; only called when all is flushed.
    pub(super) fn committables(
        &mut self,
        checkpoint: CheckpointId,
        frozen: &mut FrozenOperators,
    ) -> Result<(), TaskError> {
        if let Some(end) = &mut self.end.sink {
            let committables = end.sink.committables(checkpoint)?;
            if !committables.is_empty() {
                let state = OperatorState { committables, ..OperatorState::default() };
                frozen.push((end.uid.clone(), Box::new(state)));
            }
        }
        Ok(())
    }

    pub(super) fn checkpoint_completed(&mut self, checkpoint: CheckpointId, held: Option<&[CheckpointId]>) {
        if let Some(end) = &mut self.end.sink {
            end.sink.checkpoint_completed(checkpoint, held);
        }
    }

    /// What reached the end since the last call.
    pub(super) fn take_written(&mut self) -> Written {
        let late = self.operators.iter().map(|operator| operator.late_rows()).sum();
        Written { late, ..std::mem::take(&mut self.end.written) }
    }
}

impl End {
    fn take(&mut self, batch: Batch) -> Result<(), TaskError> {
        self.written.rows += batch.len() as u64;
        self.written.bytes += batch.bytes() as u64;
        if let Some(end) = &mut self.sink {
            return end.take(batch);
        }
        let Some((last, others)) = self.edges.split_last_mut() else { return Ok(()) };
        others.iter_mut().try_for_each(|edge| edge.write(batch.clone()))?;
        last.write(batch)
    }
}

impl SinkEnd {
    fn take(&mut self, batch: Batch) -> Result<(), TaskError> {
        if self.kept.is_empty() && self.sink.is_writable()? {
            return self.sink.write(batch);
        }
        self.kept.push_back(batch);
        Ok(())
    }

    /// Writes what was kept; says whether nothing is left.
    fn write_kept(&mut self) -> Result<bool, TaskError> {
        while let Some(batch) = self.kept.pop_front() {
            if !self.sink.is_writable()? {
                self.kept.push_front(batch);
                return Ok(false);
            }
            self.sink.write(batch)?;
        }
        Ok(true)
    }
}

/// The rest of a chain, as the operator before it sees it.
struct Rest<'a> {
    operators: &'a mut [Box<dyn Operator>],
    end: &'a mut End,
    failure: &'a mut Option<TaskError>,
}

impl Collector for Rest<'_> {
    fn collect(&mut self, batch: Batch) {
        if batch.is_empty() || self.failure.is_some() {
            return;
        }
        let result = match self.operators.split_first_mut() {
            None => self.end.take(batch),
            Some((first, rest)) => {
                let mut rest = Rest { operators: rest, end: self.end, failure: self.failure };
                first.process(batch, &mut rest)
            }
        };
        if let Err(error) = result {
            self.failure.get_or_insert(error);
        }
    }
}

/// Lets `emit` send rows into these operators; the first failure of any of them comes back.
fn through(
    operators: &mut [Box<dyn Operator>],
    end: &mut End,
    emit: impl FnOnce(&mut dyn Collector),
) -> Result<(), TaskError> {
    let mut failure = None;
    emit(&mut Rest { operators, end, failure: &mut failure });
    failure.map_or(Ok(()), Err)
}
