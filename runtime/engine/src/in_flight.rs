//! Batches that an unaligned barrier overtook: as part of a snapshot, and as read back (B2, B3).
//!
//! The bytes of one channel's batches: the schema, then a frame per batch in the channel's own codec.
//!
//! ```text
//! "SLUICE-F" u32 version = 2, or 1 without watermarks   u64 XXH3 of what follows   u32 length   schema as Arrow IPC writes it   { u32 length   frame } …
//! ```
//!
//! Numbers are little endian. Callers rely on: what [`InFlight::encode`] wrote, [`decode`] reads whatever program runs
//! now, bytes that are not those that were stored are found by [`check`], which tells them from those of a newer version,
//! and a schema that is not the edge's is refused by name. [`read`] needs no program.

#[cfg(test)]
mod tests;

use crate::batch::Batch;
use crate::channel::codec::{FrameError, decode_frame, encode_frame};
use crate::channel::{ChannelId, Frame, NumberedFrame};
use crate::error::TaskError;
use crate::partition::rows_of_subtask;
use crate::program::Program;
use arrow::datatypes::{Schema, SchemaRef};
use arrow::ipc::convert::IpcSchemaEncoder;
use bytes::{Buf, Bytes};
use sluice_protocol::graph::{JobGraph, Partitioning};
use sluice_protocol::state::{Checksum, InFlightHandle, StateData};
use sluice_protocol::{Run, SubtaskId, SubtaskIndex};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

/// Stored batches that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// Other bytes than were stored: reading again may help.
    #[error("{0}")]
    Damaged(String),
    /// Written by a newer release: reading again does not help.
    #[error(
        "they have format version {0}; this release reads versions up to {VERSION}: restore the snapshot with the release \
         that wrote it or a newer one, or choose an older snapshot"
    )]
    NewerVersion(u32),
}

const MAGIC: &[u8; 8] = b"SLUICE-F";
const VERSION: u32 = 2;
/// What releases before event time read.
const WITHOUT_WATERMARKS: u32 = 1;
/// What stands before the part that the checksum covers.
const HEADER: usize = 20;

/// Batches of one channel that belong to a snapshot.
#[derive(Debug)]
pub struct InFlight {
    /// The channel; of those that were restored, the consumer is this task.
    pub channel: ChannelId,
    /// How many restores they have waited through already: older ones go first (B3).
    pub age: u32,
    /// Orders what several subtasks saved of one channel: what stood earlier has the lower number.
    pub first: u64,
    /// The batches and watermarks, in order. Where watermarks are known, what is first of a channel begins with the
    /// channel's own at the cut (W1).
    pub frames: Vec<Frame>,
}

impl InFlight {
    /// The batches, in order.
    pub fn batches(&self) -> impl Iterator<Item = &Batch> {
        self.frames.iter().filter_map(Frame::batch)
    }

    /// Rows in all batches.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.batches().map(|batch| batch.len() as u64).sum()
    }

    /// The handle of these batches once they are stored at `offset` of `data`; `None` for an edge that the graph does not
    /// have.
    #[must_use]
    pub fn handle(&self, graph: &JobGraph, offset: u64, length: u64, data: StateData) -> Option<InFlightHandle> {
        let number = self.channel.edge as usize;
        let edge = graph.edges.get(number)?;
        Some(InFlightHandle {
            edge: graph.edge_name(number)?,
            partitioning: edge.partitioning.clone(),
            from: self.channel.from,
            to: self.channel.to,
            receivers: graph.vertices.get(edge.to.0 as usize)?.parallelism,
            // What was restored tells of each channel by itself, of another graph perhaps.
            producers: if self.age == 0 { graph.vertices.get(edge.from.0 as usize)?.parallelism } else { 0 },
            age: self.age,
            first: self.first,
            batches: self.batches().count() as u64,
            rows: self.rows(),
            offset,
            length,
            data,
        })
    }

    /// The bytes to store. Slow: not for the task's thread.
    ///
    /// # Errors
    /// When Arrow cannot write the rows.
    pub fn encode(&self) -> Result<Vec<u8>, TaskError> {
        let mut out = Vec::from(*MAGIC);
        let has_watermarks = self.frames.iter().any(|frame| matches!(frame, Frame::Watermark(_)));
        out.extend_from_slice(&if has_watermarks { VERSION } else { WITHOUT_WATERMARKS }.to_le_bytes());
        out.extend_from_slice(&[0; 8]);
        let schema = self.batches().next().map_or_else(|| Arc::new(Schema::empty()), |batch| batch.rows.schema());
        let message = IpcSchemaEncoder::new().schema_to_fb(&schema);
        let message = message.finished_data();
        out.extend_from_slice(&(message.len() as u32).to_le_bytes());
        out.extend_from_slice(message);
        for (sequence, frame) in (self.first..).zip(&self.frames) {
            let cost = if let Frame::Batch(batch) = frame { batch.bytes() as u64 } else { 0 };
            let frame = NumberedFrame { sequence, cost, frame: frame.clone() };
            out.extend(encode_frame(Run::default(), self.channel, &frame).map_err(|error| unwritable(&error))?);
        }
        let checksum = Checksum::of(&out[HEADER..]);
        out[HEADER - 8..HEADER].copy_from_slice(&checksum.0.to_le_bytes());
        Ok(out)
    }
}

fn unwritable(error: &FrameError) -> TaskError {
    TaskError::Internal(format!("batches that were in flight cannot be stored: {error}"))
}

/// Batches of one old channel, to be processed before anything of the edge's new channels.
#[derive(Debug)]
pub struct RestoredChannel {
    /// The edge and the producer, both as they were numbered when the batches were saved, and the subtask that reads
    /// them now.
    pub channel: ChannelId,
    /// The subtask for which they were meant when they were saved: its channels have watermarks of their own.
    pub consumer: SubtaskIndex,
    /// The producers that this consumer heard, by their numbers; none: an older snapshot does not say it.
    pub producers: Range<u32>,
    /// The input of the first operator to which the edge leads.
    pub input: u8,
    /// As [`InFlight::age`].
    pub age: u32,
    /// As [`InFlight::first`].
    pub first: u64,
    /// Batches, of which none is empty, and watermarks, in order.
    pub frames: VecDeque<Frame>,
}

impl RestoredChannel {
    /// What orders them: older ones first, then channel by channel, in each by place.
    #[must_use]
    pub fn order(&self) -> impl Ord + use<> {
        (std::cmp::Reverse(self.age), self.channel, self.consumer, self.first)
    }
}

/// Reads what a handle describes, as the subtask that is to process it: `bytes` are those from the handle's offset on.
///
/// # Errors
/// As [`decode`]; also when the program has no such edge.
pub fn restore(
    handle: &InFlightHandle,
    bytes: &Bytes,
    program: &Program,
    subtask: SubtaskId,
) -> Result<RestoredChannel, TaskError> {
    let graph = &program.graph;
    let number = (0..graph.edges.len()).find(|edge| graph.edge_name(*edge).as_ref() == Some(&handle.edge));
    let edge = number.and_then(|number| Some((u32::try_from(number).ok()?, graph.edges.get(number)?)));
    let unknown = || TaskError::IncompatibleState(format!("the program has no edge '{}'", handle.edge));
    let (number, edge) = edge.ok_or_else(unknown)?;
    let schema = program.vertices.get(edge.from.0 as usize).map(|vertex| vertex.output_schema.clone());
    let share = Share {
        partitioning: &edge.partitioning,
        subtask: subtask.index,
        parallelism: graph.vertices.get(edge.to.0 as usize).map_or(1, |vertex| vertex.parallelism),
        max_parallelism: graph.max_parallelism,
    };
    let mut frames = decode(bytes, &schema.ok_or_else(unknown)?, share, &handle.edge)?;
    // On a forward edge a subtask hears one producer, which may read other splits once the job is rescaled: what the old one
    // said is no bound for these (W1).
    if matches!(edge.partitioning, Partitioning::Forward) && handle.receivers != share.parallelism {
        frames.retain(|frame| matches!(frame, Frame::Batch(_)));
    }
    let channel = ChannelId { edge: number, from: handle.from, to: subtask.index };
    let producers = match edge.partitioning {
        Partitioning::Forward => handle.from.0..handle.from.0 + 1,
        _ => 0..handle.producers,
    };
    let (consumer, input, age, first) = (handle.to, edge.input, handle.age, handle.first);
    Ok(RestoredChannel { channel, consumer, producers, input, age, first, frames })
}

/// Which rows of an old channel a subtask takes.
#[derive(Debug, Clone, Copy)]
pub struct Share<'a> {
    /// How the edge spreads rows.
    pub partitioning: &'a Partitioning,
    /// The subtask.
    pub subtask: SubtaskIndex,
    /// Of how many.
    pub parallelism: u32,
    /// Number of key groups.
    pub max_parallelism: u16,
}

/// Reads what [`InFlight::encode`] wrote, and leaves the rows that belong to this subtask: of a hash edge by their
/// key groups, of others all.
///
/// # Errors
/// When the bytes are damaged, or their schema is not the edge's.
pub fn decode(bytes: &Bytes, expected: &SchemaRef, share: Share<'_>, edge: &str) -> Result<VecDeque<Frame>, TaskError> {
    let (schema, frames) = parts(bytes).map_err(|error| unreadable(edge, &error))?;
    check_schema(&schema, expected, edge)?;
    let mut own = VecDeque::new();
    for frame in frames_of(frames, expected) {
        match frame.map_err(|what| damaged(edge, &what))? {
            Frame::Batch(batch) => own.extend(own_rows(batch, share)?.map(Frame::Batch)),
            other => own.push_back(other),
        }
    }
    Ok(own)
}

/// Reads all batches that [`InFlight::encode`] wrote, with the schema that is stored with it: for people.
///
/// # Errors
/// When the bytes are damaged.
pub fn read(bytes: &Bytes, edge: &str) -> Result<Vec<Batch>, TaskError> {
    let (schema, frames) = parts(bytes).map_err(|error| unreadable(edge, &error))?;
    let schema = stored_schema(&schema).ok_or_else(|| damaged(edge, "their schema is garbled"))?;
    let batch = |frame: Result<Frame, String>| match frame {
        Ok(Frame::Batch(batch)) => Some(Ok(batch)),
        Ok(_) => None,
        Err(what) => Some(Err(damaged(edge, &what))),
    };
    frames_of(frames, &Arc::new(schema)).filter_map(batch).collect()
}

/// Whether these are the bytes that were stored.
///
/// # Errors
/// What is wrong with them.
pub fn check(bytes: &Bytes) -> Result<(), Unreadable> {
    parts(bytes).map(|_| ())
}

fn unreadable(edge: &str, error: &Unreadable) -> TaskError {
    match error {
        Unreadable::Damaged(what) => damaged(edge, what),
        Unreadable::NewerVersion(_) => {
            TaskError::IncompatibleState(format!("stored batches of edge '{edge}' cannot be read: {error}"))
        }
    }
}

fn damaged(edge: &str, what: &str) -> TaskError {
    TaskError::IncompatibleState(format!(
        "stored batches of edge '{edge}' cannot be read: {what}; the file is damaged or another program's: choose another \
         snapshot"
    ))
}

/// The schema and the frames, once the checksum was found right.
fn parts(bytes: &Bytes) -> Result<(Bytes, Bytes), Unreadable> {
    let mut rest = bytes.clone();
    if rest.len() < HEADER + 4 || rest[..8] != MAGIC[..] {
        return Err(Unreadable::Damaged("they do not begin as they should".to_owned()));
    }
    rest.advance(8);
    let version = rest.get_u32_le();
    if version > VERSION {
        return Err(Unreadable::NewerVersion(version));
    }
    let (expected, found) = (Checksum(rest.get_u64_le()), Checksum::of(&rest));
    if found != expected {
        return Err(Unreadable::Damaged(format!("their checksum is {found}, but {expected} was stored with them")));
    }
    let schema = take(&mut rest).map_err(Unreadable::Damaged)?;
    Ok((schema, rest))
}

/// What stands next, after its length.
fn take(rest: &mut Bytes) -> Result<Bytes, String> {
    let length = if rest.len() < 4 { usize::MAX } else { rest.get_u32_le() as usize };
    if rest.len() < length {
        return Err("they are cut off".to_owned());
    }
    Ok(rest.split_to(length))
}

/// The frames; the first error is the last item.
fn frames_of(mut frames: Bytes, schema: &SchemaRef) -> impl Iterator<Item = Result<Frame, String>> {
    std::iter::from_fn(move || {
        if frames.is_empty() {
            return None;
        }
        let decoded = take(&mut frames).and_then(|frame| decode_content(&frame, schema));
        if decoded.is_err() {
            frames.clear();
        }
        Some(decoded)
    })
}

fn decode_content(frame: &Bytes, schema: &SchemaRef) -> Result<Frame, String> {
    let (_, frame) = decode_frame(frame, schema).map_err(|error| error.to_string())?;
    match frame.frame {
        content @ (Frame::Batch(_) | Frame::Watermark(_)) => Ok(content),
        _ => Err("a frame holds neither rows nor a watermark".to_owned()),
    }
}

fn own_rows(batch: Batch, share: Share<'_>) -> Result<Option<Batch>, TaskError> {
    let own = match share.partitioning {
        Partitioning::Hash { keys } if share.parallelism > 1 => {
            rows_of_subtask(batch, keys, share.subtask, share.parallelism, share.max_parallelism)?
        }
        _ => Some(batch),
    };
    Ok(own.filter(|batch| !batch.is_empty()))
}

fn stored_schema(message: &[u8]) -> Option<Schema> {
    arrow::ipc::root_as_schema(message).ok().map(arrow::ipc::convert::fb_to_schema)
}

fn check_schema(message: &[u8], expected: &SchemaRef, edge: &str) -> Result<(), TaskError> {
    let found = stored_schema(message).ok_or_else(|| damaged(edge, "their schema is garbled"))?;
    // Where nothing but watermarks was in flight, no columns are stored.
    if found.fields() == expected.fields() || found.fields().is_empty() {
        return Ok(());
    }
    let describe = |schema: &Schema| {
        let columns = schema.fields().iter().map(|field| format!("{} {}", field.name(), field.data_type()));
        columns.collect::<Vec<_>>().join(", ")
    };
    Err(TaskError::IncompatibleState(format!(
        "the snapshot holds batches in flight on edge '{edge}' with columns ({}), the program's edge has ({}); a changed \
         program starts from a savepoint, which holds none, or from an aligned checkpoint",
        describe(&found),
        describe(expected)
    )))
}
