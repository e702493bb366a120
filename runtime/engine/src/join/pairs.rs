//! Pairs of a batch's rows and the rows that the other side holds, and the changes that they make.
//!
//! Pairs are positions; columns are taken for at most [`CHUNK`] of them at once, whatever a key's number of rows.

use super::side::{OverRows, Side, goes};
use crate::batch::{Batch, RowKind};
use crate::error::TaskError;
use crate::operator::Collector;
use crate::operators::RowExpression;
use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, UInt8Array, UInt32Array, new_null_array};
use arrow::compute::take;
use arrow::datatypes::{DataType, SchemaRef};
use arrow::error::ArrowError;

/// Pairs, or rows, that are made at once.
const CHUNK: usize = 4096;

/// A row of the batch, by its slot, and a found row.
#[derive(Clone, Copy)]
struct Pair {
    own: u32,
    other: u32,
}

/// Takes a chunk of pairs.
type TakePairs<'t, 'a> = &'t mut dyn FnMut(&Pairs<'a>, &[Pair]) -> Result<(), TaskError>;

/// All pairs of a batch.
pub(super) struct Pairs<'a> {
    output: &'a SchemaRef,
    condition: Option<&'a dyn RowExpression>,
    /// Whether the batch is of the left side.
    is_left: bool,
    own: &'a Side,
    own_columns: &'a [ArrayRef],
    other: &'a Side,
    other_columns: Vec<ArrayRef>,
    other_counts: Vec<i64>,
}

impl<'a> Pairs<'a> {
    pub(super) fn new(
        output: &'a SchemaRef,
        condition: Option<&'a dyn RowExpression>,
        is_left: bool,
        (rows, own): (&'a RecordBatch, &'a Side),
        other: &'a Side,
    ) -> Result<Self, TaskError> {
        let (other_columns, other_counts) = (other.found_columns()?, other.counts());
        Ok(Self { output, condition, is_left, own, own_columns: rows.columns(), other, other_columns, other_counts })
    }

    /// Hands out the pairs of rows that come, or go, for which the condition holds; a chunk at a time.
    fn each(&self, kind: RowKind, take: TakePairs<'_, 'a>) -> Result<(), TaskError> {
        let mut chunk = Vec::with_capacity(CHUNK.min(self.own.gains.len()));
        for (own, gain) in (0_u32..).zip(&self.own.gains) {
            if (*gain > 0) != (kind == RowKind::Insert) || *gain == 0 {
                continue;
            }
            let range = self.other.ranges[self.own.prefixes_of[own as usize] as usize].clone();
            for other in range.filter(|other| self.other_counts[*other] > 0) {
                chunk.push(Pair { own, other: other as u32 });
                if chunk.len() == CHUNK {
                    self.hand_out(&mut chunk, take)?;
                }
            }
        }
        self.hand_out(&mut chunk, take)
    }

    fn hand_out(&self, chunk: &mut Vec<Pair>, take: TakePairs<'_, 'a>) -> Result<(), TaskError> {
        if let Some(condition) = self.condition
            && !chunk.is_empty()
        {
            let (own, other): (Vec<u32>, Vec<u32>) = chunk.iter().map(|pair| (pair.own, pair.other)).unzip();
            let holds = condition.evaluate(&self.rows(&own, Some(other))?)?;
            if holds.data_type() != &DataType::Boolean || holds.len() != chunk.len() {
                let (found, rows) = (holds.data_type(), chunk.len());
                return Err(TaskError::Internal(format!("a join condition gave {found} values for {rows} pairs")));
            }
            let holds = holds.as_boolean();
            let mut row = 0;
            chunk.retain(|_| {
                row += 1;
                holds.is_valid(row - 1) && holds.value(row - 1)
            });
        }
        if !chunk.is_empty() {
            take(self, chunk)?;
        }
        chunk.clear();
        Ok(())
    }

    /// Emits the pairs of rows that come or go.
    pub(super) fn emit(&self, kind: RowKind, out: &mut dyn Collector) -> Result<(), TaskError> {
        self.each(kind, &mut |pairs, chunk| pairs.emit_chunk(kind, chunk, out))
    }

    /// As often as both rows are there.
    fn emit_chunk(&self, kind: RowKind, chunk: &[Pair], out: &mut dyn Collector) -> Result<(), TaskError> {
        let (mut own, mut other) = (Vec::with_capacity(chunk.len()), Vec::with_capacity(chunk.len()));
        for pair in chunk {
            let times = self.own.gains[pair.own as usize].abs() * self.other_counts[pair.other as usize];
            for _ in 0..times {
                own.push(pair.own);
                other.push(pair.other);
                if own.len() == 2 * CHUNK {
                    let (own, other) = (std::mem::take(&mut own), std::mem::take(&mut other));
                    out.collect(all(kind, self.rows(&own, Some(other))?));
                }
            }
        }
        out.collect(all(kind, self.rows(&own, Some(other))?));
        Ok(())
    }

    /// Of an outer side: emits the pairs of rows that come or go, and those without a match padded, where `pads` says so.
    /// Returns how many matches each row of the batch has.
    pub(super) fn emit_or_pad(
        &self,
        kind: RowKind,
        pads: impl Fn(usize) -> bool,
        out: &mut dyn Collector,
    ) -> Result<Vec<i64>, TaskError> {
        let mut matches = vec![0; self.own.gains.len()];
        self.each(kind, &mut |pairs, chunk| {
            for pair in chunk {
                matches[pair.own as usize] += pairs.other_counts[pair.other as usize];
            }
            pairs.emit_chunk(kind, chunk, out)
        })?;
        let mut lonely = Vec::new();
        for (own, (gain, matches)) in (0_u32..).zip(self.own.gains.iter().zip(&matches)) {
            let comes_or_goes = *gain != 0 && (*gain > 0) == (kind == RowKind::Insert);
            if comes_or_goes && *matches == 0 && pads(own as usize) {
                lonely.extend((0..gain.abs()).map(|_| own));
            }
        }
        for lonely in lonely.chunks(CHUNK) {
            out.collect(all(kind, self.rows(lonely, None)?));
        }
        Ok(matches)
    }

    /// Where the other side is outer: how many matches each found row gains.
    pub(super) fn gained(&self) -> Result<Vec<i64>, TaskError> {
        let mut gained = vec![0; self.other_counts.len()];
        for kind in [RowKind::Delete, RowKind::Insert] {
            self.each(kind, &mut |pairs, chunk| {
                for pair in chunk {
                    gained[pair.other as usize] += pairs.own.gains[pair.own as usize];
                }
                Ok(())
            })?;
        }
        Ok(gained)
    }

    /// Where the other side is outer: its padded rows that go because they have a match now, or come because they have
    /// none any more.
    pub(super) fn emit_padded(&self, gained: &[i64], kind: RowKind, out: &mut dyn Collector) -> Result<(), TaskError> {
        let mut padded = Vec::new();
        for (other, (matches, gained)) in (0_u32..).zip(self.other.matches().iter().zip(gained)) {
            let after = matches + gained;
            let changes = match kind {
                RowKind::Delete => *matches <= 0 && after > 0,
                _ => *matches > 0 && after <= 0,
            };
            if changes {
                padded.extend((0..self.other_counts[other as usize]).map(|_| other));
            }
        }
        for padded in padded.chunks(CHUNK) {
            out.collect(all(kind, self.padded_found(padded)?));
        }
        Ok(())
    }

    /// Output rows of rows of the batch, by slot, with found rows or padded.
    fn rows(&self, own: &[u32], other: Option<Vec<u32>>) -> Result<RecordBatch, TaskError> {
        let firsts = own.iter().map(|slot| self.own.touched.keys[*slot as usize].first);
        let count = own.len();
        let own = taken(self.own_columns, &UInt32Array::from_iter_values(firsts))?;
        let Some(other) = other else { return padded(self.output, self.is_left, own, count) };
        let other = taken(&self.other_columns, &UInt32Array::from(other))?;
        let (left, right) = if self.is_left { (own, other) } else { (other, own) };
        output(self.output, left, right)
    }

    /// Found rows, padded.
    fn padded_found(&self, found: &[u32]) -> Result<RecordBatch, TaskError> {
        let other = taken(&self.other_columns, &UInt32Array::from(found.to_vec()))?;
        padded(self.output, !self.is_left, other, found.len())
    }
}

/// Emits rows of an outer side that are over and have matched nothing.
pub(super) fn emit_over(
    schema: &SchemaRef,
    is_left: bool,
    over: &OverRows,
    out: &mut dyn Collector,
) -> Result<(), TaskError> {
    let rows: Vec<u32> = (0..).zip(&over.lonely).flat_map(|(row, count)| (0..*count).map(move |_| row)).collect();
    for rows in rows.chunks(CHUNK) {
        let own = taken(&over.columns, &UInt32Array::from(rows.to_vec()))?;
        out.collect(all(RowKind::Insert, padded(schema, is_left, own, rows.len())?));
    }
    Ok(())
}

/// Emits rows of an outer side that match nothing, as they come and go.
pub(super) fn emit_padded_rows(
    schema: &SchemaRef,
    is_left: bool,
    batch: &Batch,
    out: &mut dyn Collector,
) -> Result<(), TaskError> {
    if batch.is_empty() {
        return Ok(());
    }
    let rows = padded(schema, is_left, batch.rows.columns().to_vec(), batch.len())?;
    let kind = |kind: &u8| if goes(*kind) { RowKind::Delete as u8 } else { RowKind::Insert as u8 };
    let kinds = batch.kinds.as_ref().map(|kinds| UInt8Array::from_iter_values(kinds.values().iter().map(kind)));
    out.collect(Batch { rows, kinds });
    Ok(())
}

fn all(kind: RowKind, rows: RecordBatch) -> Batch {
    let kinds = (kind != RowKind::Insert).then(|| UInt8Array::from(vec![kind as u8; rows.num_rows()]));
    Batch { rows, kinds }
}

fn internal(error: &ArrowError) -> TaskError {
    TaskError::Internal(format!("the rows of a join cannot be made: {error}"))
}

/// Views are copied together, since otherwise every batch would keep, and send, the text of all.
fn taken(columns: &[ArrayRef], rows: &UInt32Array) -> Result<Vec<ArrayRef>, TaskError> {
    let column = |column: &ArrayRef| -> Result<ArrayRef, ArrowError> {
        let taken = take(column, rows, None)?;
        Ok(match taken.data_type() {
            DataType::Utf8View => std::sync::Arc::new(taken.as_string_view().gc()),
            DataType::BinaryView => std::sync::Arc::new(taken.as_binary_view().gc()),
            _ => taken,
        })
    };
    columns.iter().map(column).collect::<Result<_, _>>().map_err(|error| internal(&error))
}

/// Columns of one side, with NULLs in those of the other.
fn padded(schema: &SchemaRef, is_left: bool, own: Vec<ArrayRef>, rows: usize) -> Result<RecordBatch, TaskError> {
    let fields = schema.fields();
    let others = if is_left { &fields[own.len()..] } else { &fields[..fields.len() - own.len()] };
    let others = others.iter().map(|field| new_null_array(field.data_type(), rows)).collect();
    if is_left { output(schema, own, others) } else { output(schema, others, own) }
}

fn output(schema: &SchemaRef, left: Vec<ArrayRef>, right: Vec<ArrayRef>) -> Result<RecordBatch, TaskError> {
    let columns = left.into_iter().chain(right).collect();
    RecordBatch::try_new(SchemaRef::clone(schema), columns).map_err(|error| internal(&error))
}
