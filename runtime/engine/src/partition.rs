//! The writing side of an edge: which rows go to which subtask, and when.
//!
//! It owns the partitioning rule and the rows that linger: small pieces are gathered per channel until they make a
//! batch worth sending, and leave earlier by [`EdgeWriter::flush`] (buffer timeout, barrier, end; B1). It never
//! waits; the task asks [`EdgeWriter::has_room`] before it takes input (B4). Rows of one key keep their order.

mod hash;
#[cfg(test)]
mod tests;

use crate::batch::Batch;
use crate::channel::{Frame, Kept, OutputChannel};
use crate::error::TaskError;
use crate::in_flight::InFlight;
use crate::operator::Waker;
use arrow::array::UInt8Array;
use arrow::buffer::ScalarBuffer;
use arrow::compute::concat_batches;
use hash::HashPartitioner;
use sluice_protocol::graph::Partitioning;
use sluice_protocol::message::Barrier;
use sluice_protocol::{CheckpointId, SubtaskIndex};

/// Pieces that reach this many rows together are sent at once.
pub const TARGET_ROWS: usize = 1024;

/// One edge as a producing subtask sees it.
pub struct EdgeOutput {
    /// The rule.
    pub partitioning: Partitioning,
    /// The channels to the consumer's subtasks, in their order; for [`Partitioning::Forward`] only the one.
    pub channels: Vec<OutputChannel>,
}

/// Writes the rows of one subtask to one edge.
pub struct EdgeWriter {
    rule: Rule,
    /// Broadcast: every barrier keeps its place (B3).
    stays_aligned: bool,
    channels: Vec<OutputChannel>,
    lingering: Vec<Lingering>,
}

enum Rule {
    One,
    Hash(Box<HashPartitioner>),
    Rebalance { next: usize },
    Broadcast,
}

/// Pieces that wait for company.
#[derive(Default)]
struct Lingering {
    pieces: Vec<Batch>,
    rows: usize,
}

impl EdgeWriter {
    /// A writer; `max_parallelism` is the number of key groups.
    #[must_use]
    pub fn new(edge: EdgeOutput, max_parallelism: u16) -> Self {
        let EdgeOutput { partitioning, channels } = edge;
        let stays_aligned = partitioning == Partitioning::Broadcast;
        let rule = match partitioning {
            _ if channels.len() == 1 => Rule::One,
            Partitioning::Forward => Rule::One,
            Partitioning::Hash { keys } => {
                Rule::Hash(Box::new(HashPartitioner::new(keys, channels.len(), max_parallelism)))
            }
            Partitioning::Rebalance => Rule::Rebalance { next: 0 },
            Partitioning::Broadcast => Rule::Broadcast,
        };
        let lingering = channels.iter().map(|_| Lingering::default()).collect();
        Self { rule, stays_aligned, channels, lingering }
    }

    /// Who is woken when there is room again.
    pub fn set_waker(&self, waker: &Waker) {
        for channel in &self.channels {
            channel.set_waker(Waker::clone(waker));
        }
    }

    /// Whether every channel has room.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.channels.iter().all(OutputChannel::has_room)
    }

    /// Whether rows wait for company.
    #[must_use]
    pub fn lingers(&self) -> bool {
        self.lingering.iter().any(|lingering| lingering.rows > 0)
    }

    /// Sends rows on, or keeps them until there are enough.
    ///
    /// # Errors
    /// When the rows do not fit the rule: a column that cannot be a key.
    pub fn write(&mut self, batch: Batch) -> Result<(), TaskError> {
        match &mut self.rule {
            Rule::One => self.gather(0, batch),
            Rule::Broadcast => (0..self.channels.len()).try_for_each(|channel| self.gather(channel, batch.clone())),
            Rule::Rebalance { next } => {
                let channel = *next;
                *next = (channel + 1) % self.channels.len();
                self.gather(channel, batch)
            }
            Rule::Hash(partitioner) => {
                let pieces = partitioner.split(batch)?;
                pieces.into_iter().try_for_each(|(channel, piece)| self.gather(channel, piece))
            }
        }
    }

    fn gather(&mut self, channel: usize, batch: Batch) -> Result<(), TaskError> {
        if batch.is_empty() {
            return Ok(());
        }
        let lingering = &mut self.lingering[channel];
        if lingering.rows == 0 && batch.len() >= TARGET_ROWS {
            self.channels[channel].push(Frame::Batch(batch));
            return Ok(());
        }
        lingering.rows += batch.len();
        lingering.pieces.push(batch);
        if lingering.rows >= TARGET_ROWS { self.send(channel) } else { Ok(()) }
    }

    fn send(&mut self, channel: usize) -> Result<(), TaskError> {
        let lingering = std::mem::take(&mut self.lingering[channel]);
        if lingering.rows > 0 {
            self.channels[channel].push(Frame::Batch(join(lingering.pieces)?));
        }
        Ok(())
    }

    /// Sends what lingers.
    ///
    /// # Errors
    /// When pieces do not fit together, which would be our fault.
    pub fn flush(&mut self) -> Result<(), TaskError> {
        (0..self.channels.len()).try_for_each(|channel| self.send(channel))
    }

    /// Sends what lingers for channels that have room.
    ///
    /// # Errors
    /// As [`EdgeWriter::flush`].
    pub fn flush_where_room(&mut self) -> Result<(), TaskError> {
        (0..self.channels.len())
            .filter(|channel| self.channels[*channel].has_room())
            .collect::<Vec<_>>()
            .into_iter()
            .try_for_each(|channel| self.send(channel))
    }

    /// Sends a control frame to every channel, behind everything written so far.
    ///
    /// # Errors
    /// As [`EdgeWriter::flush`].
    pub fn control(&mut self, frame: &Frame) -> Result<(), TaskError> {
        self.flush()?;
        for channel in &self.channels {
            channel.push(frame.clone());
        }
        Ok(())
    }
}

impl EdgeWriter {
    /// Sends a barrier to every channel that overtakes all that is queued; what it overtook here is this task's to
    /// save. Rows that lingered go before it.
    ///
    /// # Errors
    /// As [`EdgeWriter::flush`].
    pub fn send_ahead(&mut self, barrier: &Barrier) -> Result<Vec<InFlight>, TaskError> {
        if self.stays_aligned {
            self.control(&Frame::Barrier(barrier.clone()))?;
            return Ok(Vec::new());
        }
        self.flush()?;
        let kept = self.channels.iter().map(|channel| in_flight(channel, channel.push_ahead(barrier.clone())));
        Ok(kept.filter(|kept| !kept.frames.is_empty()).collect())
    }

    /// Whether a barrier still waits to leave for another process, and could overtake what it is queued behind.
    #[must_use]
    pub fn holds(&self, checkpoint: CheckpointId) -> bool {
        !self.stays_aligned && self.channels.iter().any(|channel| channel.holds(checkpoint))
    }

    /// Lets a barrier that has not left for another process overtake what it is queued behind, which is this task's
    /// to save.
    pub fn turn(&mut self, checkpoint: CheckpointId) -> Vec<InFlight> {
        if self.stays_aligned {
            return Vec::new();
        }
        let turned = self.channels.iter().filter_map(|channel| Some(in_flight(channel, channel.turn(checkpoint)?)));
        turned.filter(|kept| !kept.frames.is_empty()).collect()
    }
}

fn in_flight(channel: &OutputChannel, kept: Kept) -> InFlight {
    let Kept { first, frames } = kept;
    // Behind the receiver's share, which has 0.
    InFlight { channel: channel.id(), age: 0, first: first + 1, frames }
}

/// The rows of a batch that a hash edge would send to this subtask, if any.
///
/// # Errors
/// When a column cannot be a key.
pub(crate) fn rows_of_subtask(
    batch: Batch,
    keys: &[usize],
    subtask: SubtaskIndex,
    parallelism: u32,
    max_parallelism: u16,
) -> Result<Option<Batch>, TaskError> {
    let mut partitioner = HashPartitioner::new(keys.to_vec(), parallelism as usize, max_parallelism);
    let pieces = partitioner.split(batch)?;
    Ok(pieces.into_iter().find(|(channel, _)| *channel == subtask.0 as usize).map(|(_, piece)| piece))
}

/// One batch of several.
fn join(mut pieces: Vec<Batch>) -> Result<Batch, TaskError> {
    if pieces.len() == 1
        && let Some(only) = pieces.pop()
    {
        return Ok(only);
    }
    let internal = |error| TaskError::Internal(format!("pieces of batches do not fit together: {error}"));
    let kinds = pieces.iter().any(|piece| piece.kinds.is_some()).then(|| {
        let mut joined = Vec::with_capacity(pieces.iter().map(Batch::len).sum());
        for piece in &pieces {
            match &piece.kinds {
                Some(kinds) => joined.extend_from_slice(kinds.values()),
                None => joined.resize(joined.len() + piece.len(), 0),
            }
        }
        UInt8Array::new(ScalarBuffer::from(joined), None)
    });
    let schema = pieces[0].rows.schema();
    let rows = concat_batches(&schema, pieces.iter().map(|piece| &piece.rows)).map_err(internal)?;
    debug_assert!(kinds.as_ref().is_none_or(|kinds| kinds.len() == rows.num_rows()));
    Ok(Batch { rows, kinds })
}
