//! Frames as bytes: the wire format between TaskManagers of one job, which run the same program.
//!
//! ```text
//! u32 length of all that follows
//! u8 version = 1   u8 kind   u16 zero   u32 edge   u64 generation   u32 attempt
//! u32 from   u32 to   u32 zero   u64 sequence   u64 cost            (48 bytes of header)
//! payload: kind 0 batch       u32 message   u32 kinds   u64 body   message, kinds, body, each padded to 16 bytes
//!          kind 1 barrier     JSON of sluice_protocol::message::Barrier
//!          kind 2 end of input, empty
//!          kind 3 watermark   JSON of crate::event_time::WatermarkStatus
//!          kind 4 overtaking  JSON of `{"barrier": …, "first": n}`; the sequence is the barrier's own place
//! ```
//!
//! Numbers are little endian. `message` is an Arrow IPC RecordBatch message, `body` its buffers; the schema is not
//! sent, both sides know it from the program. `kinds` are the row kinds, one byte a row, or none. The body begins at
//! a multiple of 16 bytes after the length, so that a reader whose buffer is aligned decodes without copying.

use super::{ChannelId, Frame, NumberedFrame};
use crate::batch::{Batch, RowKind};
use arrow::array::{RecordBatch, UInt8Array};
use arrow::buffer::{Buffer, ScalarBuffer};
use arrow::datatypes::{DataType, SchemaRef};
use arrow::error::ArrowError;
use arrow::ipc::reader::read_record_batch;
use arrow::ipc::writer::{DictionaryTracker, IpcDataGenerator, IpcWriteContext, IpcWriteOptions};
use bytes::{Buf, Bytes};
use serde::{Deserialize, Serialize};
use sluice_protocol::message::Barrier;
use sluice_protocol::{Attempt, Generation, Run, SubtaskIndex};
use std::borrow::Cow;
use std::collections::HashMap;

const VERSION: u8 = 1;
const HEADER: usize = 48;
const BATCH: u8 = 0;
const BARRIER: u8 = 1;
const END_OF_INPUT: u8 = 2;
const WATERMARK: u8 = 3;
const OVERTAKING: u8 = 4;

/// Largest frame that a reader should accept; a longer length is a broken or foreign stream.
pub const MAX_FRAME: usize = 1 << 30;

/// Why bytes are no frame, or a frame no bytes.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// Of another run: an older attempt's or generation's sender (N2).
    #[error("{channel}: a frame of run {found} came to tasks of run {expected} and was refused")]
    WrongRun {
        /// Where.
        channel: ChannelId,
        /// The receiver's run.
        expected: Run,
        /// The frame's run.
        found: Run,
    },
    /// Of another version of the format.
    #[error("a frame of format version {0} came where {VERSION} was expected; do both processes run the same image?")]
    WrongVersion(u8),
    /// Cut off or garbled.
    #[error("a frame is malformed: {0}")]
    Malformed(&'static str),
    /// Arrow cannot write or read the rows.
    #[error("{channel}: the rows of a frame cannot be encoded or decoded: {source}")]
    Rows {
        /// Where.
        channel: ChannelId,
        /// Why.
        source: ArrowError,
    },
}

/// What stands before a frame's payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameHeader {
    /// The sender's run.
    pub run: Run,
    /// The channel.
    pub channel: ChannelId,
    /// The number in the channel.
    pub sequence: u64,
    /// Bytes of the window.
    pub cost: u64,
    kind: u8,
}

impl FrameHeader {
    /// Refuses a frame of another run (N2).
    ///
    /// # Errors
    /// [`FrameError::WrongRun`].
    pub fn check_run(&self, expected: Run) -> Result<(), FrameError> {
        if self.run == expected {
            return Ok(());
        }
        Err(FrameError::WrongRun { channel: self.channel, expected, found: self.run })
    }
}

/// The bytes of a frame, its length first.
///
/// # Errors
/// When Arrow cannot write the rows.
pub fn encode_frame(run: Run, channel: ChannelId, numbered: &NumberedFrame) -> Result<Vec<u8>, FrameError> {
    let mut out = Vec::with_capacity(HEADER + 4 + numbered.cost as usize + 1024);
    out.extend_from_slice(&[0; 4]);
    let kind = match &numbered.frame {
        Frame::Batch(_) => BATCH,
        Frame::Barrier(_) => BARRIER,
        Frame::Watermark(_) => WATERMARK,
        Frame::EndOfInput => END_OF_INPUT,
        Frame::Overtaking { .. } => OVERTAKING,
    };
    out.extend_from_slice(&[VERSION, kind, 0, 0]);
    out.extend_from_slice(&channel.edge.to_le_bytes());
    out.extend_from_slice(&run.generation.0.to_le_bytes());
    out.extend_from_slice(&run.attempt.0.to_le_bytes());
    out.extend_from_slice(&channel.from.0.to_le_bytes());
    out.extend_from_slice(&channel.to.0.to_le_bytes());
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&numbered.sequence.to_le_bytes());
    out.extend_from_slice(&numbered.cost.to_le_bytes());
    match &numbered.frame {
        Frame::Batch(batch) => encode_batch(batch, &mut out).map_err(|source| FrameError::Rows { channel, source })?,
        Frame::Barrier(barrier) => write_json(barrier, &mut out)?,
        Frame::Watermark(status) => write_json(status, &mut out)?,
        Frame::Overtaking { barrier, first } => {
            write_json(&Overtaking { barrier: Cow::Borrowed(barrier), first: *first }, &mut out)?;
        }
        Frame::EndOfInput => {}
    }
    let length = u32::try_from(out.len() - 4).map_err(|_| FrameError::Malformed("a frame is longer than 4 GB"))?;
    out[..4].copy_from_slice(&length.to_le_bytes());
    Ok(out)
}

#[derive(Serialize, Deserialize)]
struct Overtaking<'a> {
    barrier: Cow<'a, Barrier>,
    first: u64,
}

fn write_json(value: &impl Serialize, out: &mut Vec<u8>) -> Result<(), FrameError> {
    serde_json::to_writer(out, value).map_err(|_| FrameError::Malformed("its barrier or watermark cannot be written"))
}

fn encode_batch(batch: &Batch, out: &mut Vec<u8>) -> Result<(), ArrowError> {
    let schema = batch.rows.schema_ref();
    if let Some(field) = schema.fields().iter().find(|field| matches!(field.data_type(), DataType::Dictionary(..))) {
        let text = format!("column '{}' is a dictionary; only plain columns cross an edge", field.name());
        return Err(ArrowError::NotYetImplemented(text));
    }
    let options = IpcWriteOptions::default();
    let mut tracker = DictionaryTracker::new(false);
    let mut context = IpcWriteContext::default();
    let (_, encoded) = IpcDataGenerator {}.encode(&batch.rows, &mut tracker, &options, &mut context)?;
    let kinds: &[u8] = batch.kinds.as_ref().map_or(&[], |kinds| kinds.values());
    out.extend_from_slice(&(encoded.ipc_message.len() as u32).to_le_bytes());
    out.extend_from_slice(&(kinds.len() as u32).to_le_bytes());
    out.extend_from_slice(&(encoded.arrow_data.len() as u64).to_le_bytes());
    for part in [encoded.ipc_message.as_slice(), kinds, &encoded.arrow_data] {
        out.extend_from_slice(part);
        out.resize(4 + padded(out.len() - 4), 0);
    }
    Ok(())
}

const fn padded(length: usize) -> usize {
    (length + 15) & !15
}

/// Reads the header of a frame, whose length was read and is not part of `frame`.
///
/// # Errors
/// When it is none.
pub fn decode_header(frame: &[u8]) -> Result<FrameHeader, FrameError> {
    if frame.first().is_some_and(|version| *version != VERSION) {
        return Err(FrameError::WrongVersion(frame[0]));
    }
    let mut header = frame.get(1..HEADER).ok_or(FrameError::Malformed("its header is cut off"))?;
    let kind = header.get_u8();
    header.advance(2);
    let edge = header.get_u32_le();
    let run = Run { generation: Generation(header.get_u64_le()), attempt: Attempt(header.get_u32_le()) };
    let (from, to) = (SubtaskIndex(header.get_u32_le()), SubtaskIndex(header.get_u32_le()));
    header.advance(4);
    let (sequence, cost) = (header.get_u64_le(), header.get_u64_le());
    Ok(FrameHeader { run, channel: ChannelId { edge, from, to }, sequence, cost, kind })
}

/// Reads a frame, whose length was read and is not part of `frame`. Rows share its memory where it is aligned.
///
/// # Errors
/// When it is none, or its rows do not have this schema.
pub fn decode_frame(frame: &Bytes, schema: &SchemaRef) -> Result<(FrameHeader, NumberedFrame), FrameError> {
    let header = decode_header(frame)?;
    let payload = frame.slice(HEADER..);
    let decoded = match header.kind {
        BATCH => Frame::Batch(decode_batch(&payload, schema, header.channel)?),
        BARRIER => Frame::Barrier(read_json(&payload)?),
        WATERMARK => Frame::Watermark(read_json(&payload)?),
        OVERTAKING => {
            let Overtaking { barrier, first } = read_json(&payload)?;
            Frame::Overtaking { barrier: barrier.into_owned(), first }
        }
        END_OF_INPUT => Frame::EndOfInput,
        _ => return Err(FrameError::Malformed("its kind is unknown")),
    };
    Ok((header, NumberedFrame { sequence: header.sequence, cost: header.cost, frame: decoded }))
}

fn read_json<'a, T: Deserialize<'a>>(payload: &'a [u8]) -> Result<T, FrameError> {
    serde_json::from_slice(payload).map_err(|_| FrameError::Malformed("its barrier or watermark is cut off or garbled"))
}

fn decode_batch(payload: &Bytes, schema: &SchemaRef, channel: ChannelId) -> Result<Batch, FrameError> {
    let cut_off = || FrameError::Malformed("its rows are cut off");
    let mut lengths = payload.get(..16).ok_or_else(cut_off)?;
    let message = lengths.get_u32_le() as usize;
    let kinds = lengths.get_u32_le() as usize;
    let body = usize::try_from(lengths.get_u64_le()).map_err(|_| cut_off())?;
    let kinds_at = 16 + padded(message);
    let body_at = kinds_at + padded(kinds);
    if body_at.checked_add(body).is_none_or(|end| end > payload.len()) {
        return Err(cut_off());
    }
    let rows = decode_rows(&payload[16..16 + message], payload.slice(body_at..body_at + body), schema)
        .map_err(|source| FrameError::Rows { channel, source })?;
    if kinds == 0 {
        return Ok(Batch::inserts(rows));
    }
    let kinds = &payload[kinds_at..kinds_at + kinds];
    if kinds.len() != rows.num_rows() || kinds.iter().any(|kind| RowKind::from_number(*kind).is_none()) {
        return Err(FrameError::Malformed("its row kinds do not fit its rows"));
    }
    let kinds = UInt8Array::new(ScalarBuffer::from(kinds.to_vec()), None);
    Ok(Batch { rows, kinds: Some(kinds) })
}

fn decode_rows(message: &[u8], body: Bytes, schema: &SchemaRef) -> Result<RecordBatch, ArrowError> {
    let message = arrow::ipc::root_as_message(message)
        .map_err(|error| ArrowError::IpcError(format!("the message is malformed: {error}")))?;
    let batch = message
        .header_as_record_batch()
        .ok_or_else(|| ArrowError::IpcError("the message is not a record batch".to_owned()))?;
    let schema = SchemaRef::clone(schema);
    read_record_batch(&Buffer::from(body), batch, schema, &HashMap::new(), None, &message.version())
}
