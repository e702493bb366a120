//! Messages into batches: a batch is decoded as a whole; only when that fails its messages are looked at one by
//! one, to pass over the bad ones or to say which one is bad and why.

use arrow::array::{RecordBatch, UInt8Array};
use arrow::compute::concat_batches;
use sluice_engine::batch::Batch;

/// Most messages of a batch.
pub(crate) const MAX_MESSAGES: usize = 16_384;

/// How much of a bad message is shown, in bytes.
const EXCERPT: usize = 200;

/// A message that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BadMessage {
    /// What the caller called the message.
    pub(crate) place: (u32, i64),
    /// What is wrong with it.
    pub(crate) reason: String,
    /// All of it.
    pub(crate) payload: Vec<u8>,
}

impl BadMessage {
    /// Its beginning.
    pub(crate) fn excerpt(&self) -> String {
        excerpt(&self.payload)
    }
}

/// What becomes of a message that cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnBad {
    /// The job fails.
    Fail,
    /// It is passed over and told of in [`Decoded::bad`].
    PassOver,
}

/// What messages made.
#[derive(Debug)]
pub(crate) struct Decoded {
    /// The rows; `None` when there are none.
    pub(crate) batch: Option<Batch>,
    /// For each row the number of its message since the last time; `None`: every message made one row, in order.
    pub(crate) messages: Option<Vec<usize>>,
    /// Those that were passed over.
    pub(crate) bad: Vec<BadMessage>,
}

/// Rows that a format made of messages.
pub(crate) struct Rows {
    pub(crate) rows: RecordBatch,
    pub(crate) kinds: Option<UInt8Array>,
    /// For each row the number of its message; `None`: one row of each.
    pub(crate) messages: Option<Vec<usize>>,
}

/// What a format does with messages.
pub(crate) trait MessageFormat {
    /// Takes a message into what is decoded as a whole; `number` counts from 1. Whether it looked right.
    fn take(&mut self, payload: &[u8], number: usize) -> bool;

    /// All that was taken, when all of it can be decoded; a row per message, as [`MessageFormat::alone`] makes them.
    fn flush(&mut self, messages: &Collected) -> Option<RecordBatch>;

    /// One message by itself: one row. The text says what is wrong with it.
    fn alone(&self, payload: &[u8]) -> Result<RecordBatch, String>;

    /// These rows as the table's.
    fn convert(&self, rows: &RecordBatch) -> Result<Rows, String>;

    /// Forgets what was taken.
    fn clear(&mut self);
}

/// The messages of a batch, end to end.
#[derive(Default)]
pub(crate) struct Collected {
    bytes: Vec<u8>,
    ends: Vec<usize>,
    places: Vec<(u32, i64)>,
}

impl Collected {
    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    /// All of them, in order.
    pub(crate) fn payloads(&self) -> impl Iterator<Item = &[u8]> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, end)| &self.bytes[start..*end])
    }

    /// One of them, counted from 0; nothing where there is none.
    fn payload(&self, number: usize) -> &[u8] {
        let start = number.checked_sub(1).map_or(Some(0), |before| self.ends.get(before).copied());
        let range = start.zip(self.ends.get(number)).map(|(start, end)| start..*end);
        range.and_then(|range| self.bytes.get(range)).unwrap_or_default()
    }

    fn push(&mut self, place: (u32, i64), payload: &[u8]) {
        self.bytes.extend_from_slice(payload);
        self.ends.push(self.bytes.len());
        self.places.push(place);
    }

    fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
        self.places.clear();
    }
}

/// Collects messages and makes them a batch.
pub(crate) struct Messages<F> {
    format: F,
    on_bad: OnBad,
    collected: Collected,
    /// A message of this batch did not look right.
    suspicious: bool,
}

impl<F: MessageFormat> Messages<F> {
    pub(super) fn new(format: F, on_bad: OnBad) -> Self {
        Self { format, on_bad, collected: Collected::default(), suspicious: false }
    }

    pub(super) fn push(&mut self, place: (u32, i64), payload: &[u8]) {
        self.collected.push(place, payload);
        // A message may hold two values or half of one; together with the next it could look right.
        self.suspicious |= !self.format.take(payload, self.collected.len());
    }

    pub(super) fn payload(&self, number: usize) -> &[u8] {
        self.collected.payload(number)
    }

    pub(super) fn finish(&mut self) -> Result<Decoded, BadMessage> {
        if self.collected.len() == 0 {
            return Ok(Decoded { batch: None, messages: None, bad: Vec::new() });
        }
        let together = if self.suspicious {
            None
        } else {
            let flushed = self.format.flush(&self.collected);
            flushed.and_then(|rows| self.format.convert(&rows).ok()).map(|rows| decoded(rows, Vec::new()))
        };
        let made = match together {
            Some(made) => Ok(made),
            None => {
                let made = self.one_by_one();
                // What was taken of this batch is of no use any more.
                self.format.clear();
                made
            }
        };
        self.collected.clear();
        self.suspicious = false;
        made
    }

    fn one_by_one(&self) -> Result<Decoded, BadMessage> {
        let (mut made, mut numbers, mut bad) = (Vec::new(), Vec::new(), Vec::new());
        for (number, (payload, place)) in self.collected.payloads().zip(&self.collected.places).enumerate() {
            let row = self.format.alone(payload).and_then(|row| self.format.convert(&row).map(|_| row));
            match row {
                Ok(row) => {
                    made.push(row);
                    numbers.push(number);
                }
                Err(reason) => {
                    let message = BadMessage { place: *place, reason, payload: payload.to_vec() };
                    if self.on_bad == OnBad::Fail {
                        return Err(message);
                    }
                    bad.push(message);
                }
            }
        }
        let Some(first) = made.first() else { return Ok(Decoded { batch: None, messages: None, bad }) };
        let together = concat_batches(&first.schema(), &made).map_err(|error| error.to_string());
        let rows = together.and_then(|rows| self.format.convert(&rows));
        let mut rows = rows.map_err(|reason| BadMessage {
            place: self.collected.places[numbers[0]],
            reason: format!("it and those after it together: {reason}"),
            payload: Vec::new(),
        })?;
        rows.messages = Some(match rows.messages {
            None => numbers,
            Some(of_rows) => of_rows.into_iter().map(|message| numbers[message]).collect(),
        });
        Ok(decoded(rows, bad))
    }
}

fn decoded(Rows { rows, kinds, messages }: Rows, bad: Vec<BadMessage>) -> Decoded {
    let batch = (rows.num_rows() > 0).then_some(Batch { rows, kinds });
    Decoded { batch, messages, bad }
}

/// At most [`EXCERPT`] bytes of a message, as text.
pub(crate) fn excerpt(payload: &[u8]) -> String {
    if payload.len() <= EXCERPT {
        return String::from_utf8_lossy(payload).into_owned();
    }
    let text = String::from_utf8_lossy(&payload[..EXCERPT]);
    format!("{}…", text.trim_end_matches('\u{fffd}'))
}
