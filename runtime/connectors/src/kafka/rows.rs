//! Records into rows: columns of the value, of the key, and of what Kafka knows of a record.
//!
//! Value and key are decoded each as a whole, and put together by the numbers of their records, since either may have been
//! passed over.

use super::metadata::{Key, MetadataColumn};
use crate::format::messages::BadMessage;
use crate::format::{DeadLetters, Decoded, Decoder, Format, OnBad};
use arrow::array::{ArrayRef, BooleanArray, RecordBatch, UInt64Array};
use arrow::compute::{filter, take};
use arrow::datatypes::{Field, Schema, SchemaRef};
use rdkafka::message::Message;
use sluice_engine::batch::Batch;
use sluice_engine::table::TableDescriptor;
use std::sync::Arc;

/// The format of keys and the columns that stand in them.
#[derive(Debug, Clone)]
pub(super) struct KeyFormat {
    pub(super) format: Format,
    /// All of `key.fields`.
    pub(super) fields: Vec<String>,
    /// What column names have before the names in the key.
    pub(super) prefix: String,
    /// Whether the value holds these columns too.
    pub(super) in_value: bool,
}

/// How rows lie in records.
#[derive(Debug, Clone)]
pub(super) struct Layout {
    schema: SchemaRef,
    parts: Vec<Part>,
    /// What is read of a value, and all that stands in it.
    value: (SchemaRef, SchemaRef),
    value_format: Format,
    key: Option<(SchemaRef, SchemaRef, Format)>,
}

/// Where a column comes from.
#[derive(Debug, Clone)]
enum Part {
    /// The value's, at this position.
    Value(usize),
    /// The key's, at this position.
    Key(usize),
    Metadata(Key),
}

impl Layout {
    /// Divides a table's columns.
    ///
    /// # Errors
    /// When there is no such metadata, or a format cannot hold a column.
    pub(super) fn new(table: &TableDescriptor, value_format: &Format, key: Option<&KeyFormat>) -> Result<Self, String> {
        let is_metadata = |field: &Field| table.metadata.contains_key(field.name());
        let is_key = |field: &Field| key.is_some_and(|key| !key.in_value && key.fields.contains(field.name()));
        let physical = table.declared.fields().iter().filter(|field| !is_metadata(field));
        let declared: Vec<Arc<Field>> = physical.filter(|field| !is_key(field)).cloned().collect();
        let (mut values, mut keys, mut parts) = (Vec::new(), Vec::new(), Vec::new());
        for field in table.schema.fields() {
            if let Some(name) = table.metadata.get(field.name()) {
                let key = Key::new(name, field.data_type());
                parts.push(Part::Metadata(key.map_err(|what| format!("column '{}': {what}", field.name()))?));
            } else if is_key(field) {
                parts.push(Part::Key(keys.len()));
                keys.push(Arc::clone(field));
            } else {
                parts.push(Part::Value(values.len()));
                values.push(Arc::clone(field));
            }
        }
        if values.is_empty() {
            // Rows are told by the values: one column is read though nobody asked for it.
            values.extend(declared.first().cloned());
        }
        if values.is_empty() {
            return Err("the table has no column that stands in the value; declare one".to_owned());
        }
        let key = key.filter(|_| !keys.is_empty()).map(|key| {
            let named = |field: &Arc<Field>| {
                let name = field.name().strip_prefix(key.prefix.as_str()).unwrap_or(field.name()).to_owned();
                Arc::new(field.as_ref().clone().with_name(name).with_nullable(true))
            };
            let all = key.fields.iter().filter_map(|name| table.declared.field_with_name(name).ok());
            let all: Vec<_> = all.map(|field| named(&Arc::new(field.clone()))).collect();
            let read: Vec<_> = keys.iter().map(named).collect();
            (Arc::new(Schema::new(read)), Arc::new(Schema::new(all)), key.format.clone())
        });
        let value = (Arc::new(Schema::new(values)) as SchemaRef, Arc::new(Schema::new(declared)) as SchemaRef);
        Ok(Self { schema: Arc::clone(&table.schema), parts, value, value_format: value_format.clone(), key })
    }

    /// A reader of records.
    ///
    /// # Errors
    /// When a format cannot hold a column.
    pub(super) fn reader(&self, dead_letters: &DeadLetters) -> Result<RowReader, String> {
        let passes_over = |format: &Format| format.ignores_errors() || dead_letters.are_wanted();
        let on_bad = |format: &Format| if passes_over(format) { OnBad::PassOver } else { OnBad::Fail };
        let value = self.value_format.decoder(&self.value.0, &self.value.1, on_bad(&self.value_format))?;
        let key = self.key.as_ref().map(|(read, all, format)| format.decoder(read, all, on_bad(format)));
        let metadata = self.parts.iter().zip(self.schema.fields()).filter_map(|(part, field)| match part {
            Part::Metadata(key) => Some(MetadataColumn::new(key.clone(), field.data_type().clone())),
            _ => None,
        });
        let metadata: Vec<_> = metadata.collect();
        let is_plain = key.is_none() && metadata.is_empty() && self.value.0.fields().len() == self.parts.len();
        Ok(RowReader {
            layout: self.clone(),
            value,
            key: key.transpose()?,
            metadata,
            is_plain,
            keys: 0,
            key_of: Vec::new(),
        })
    }
}

/// Rows of records, and how many records were passed over.
pub(super) struct ReadRows {
    pub(super) batch: Option<Batch>,
    pub(super) bad: Vec<BadMessage>,
}

/// A record whose value, or whose key, cannot be read.
pub(super) struct BadRecord {
    pub(super) message: BadMessage,
    pub(super) is_key: bool,
}

/// Collects records and makes them rows.
pub(super) struct RowReader {
    layout: Layout,
    value: Decoder,
    key: Option<Decoder>,
    metadata: Vec<MetadataColumn>,
    /// Rows are values and nothing else.
    is_plain: bool,
    /// Keys so far.
    keys: usize,
    /// For each record the number of its key.
    key_of: Vec<Option<usize>>,
}

impl RowReader {
    /// Takes a record. One without a value says that a key was deleted, which is no row.
    pub(super) fn push(&mut self, place: (u32, i64), message: &impl Message) {
        let Some(payload) = message.payload() else { return };
        self.value.push(place, payload);
        if let Some(decoder) = &mut self.key {
            let number = message.key().map(|key| {
                decoder.push(place, key);
                self.keys += 1;
                self.keys - 1
            });
            self.key_of.push(number);
        }
        self.metadata.iter_mut().for_each(|column| column.push(message));
    }

    /// The rows of the records since the last call.
    pub(super) fn finish(&mut self) -> Result<ReadRows, BadRecord> {
        let value = self.value.finish().map_err(|message| BadRecord { message, is_key: false })?;
        if self.is_plain {
            return Ok(ReadRows { batch: value.batch, bad: value.bad });
        }
        let key = self.key.as_mut().map(Decoder::finish).transpose();
        let key = key.map_err(|message| BadRecord { message, is_key: true })?;
        let key_of = std::mem::take(&mut self.key_of);
        self.keys = 0;
        let mut bad = value.bad;
        let metadata: Result<Vec<ArrayRef>, _> = self.metadata.iter_mut().map(MetadataColumn::finish).collect();
        let Some(values) = value.batch else {
            bad.extend(key.map(|key| of_keys(key.bad)).unwrap_or_default());
            return Ok(ReadRows { batch: None, bad });
        };
        let records = value.messages.unwrap_or_else(|| (0..values.len()).collect());
        let (keys, kept) = key_rows(key, &key_of, &records, &mut bad);
        let batch = metadata.and_then(|metadata| {
            let records = UInt64Array::from_iter_values(records.iter().map(|record| *record as u64));
            self.compose(values, keys.as_ref(), &metadata, &records)
        });
        let batch = batch.and_then(|batch| match &kept {
            None => Ok(batch),
            Some(kept) => only(&batch, kept),
        });
        match batch {
            Ok(batch) => Ok(ReadRows { batch: (!batch.is_empty()).then_some(batch), bad }),
            Err(error) => Err(BadRecord {
                message: BadMessage { place: (u32::MAX, -1), reason: error.to_string(), payload: Vec::new() },
                is_key: true,
            }),
        }
    }

    fn compose(
        &self,
        values: Batch,
        keys: Option<&(RecordBatch, UInt64Array)>,
        metadata: &[ArrayRef],
        records: &UInt64Array,
    ) -> Result<Batch, arrow::error::ArrowError> {
        let mut metadata = metadata.iter();
        let mut columns = Vec::with_capacity(self.layout.parts.len());
        for (part, field) in self.layout.parts.iter().zip(self.layout.schema.fields()) {
            columns.push(match (part, keys) {
                (Part::Value(index), _) => Arc::clone(values.rows.column(*index)),
                (Part::Key(index), Some((keys, rows))) => take(keys.column(*index), rows, None)?,
                (Part::Key(_), None) => arrow::array::new_null_array(field.data_type(), records.len()),
                (Part::Metadata(_), _) => match metadata.next() {
                    Some(column) => take(column, records, None)?,
                    None => arrow::array::new_null_array(field.data_type(), records.len()),
                },
            });
        }
        let rows = RecordBatch::try_new(Arc::clone(&self.layout.schema), columns)?;
        Ok(Batch { rows, kinds: values.kinds })
    }
}

/// The keys' rows with the number of that of each row, none where a record has no key; and which rows stay, when some have
/// a key that was passed over.
fn key_rows(
    key: Option<Decoded>,
    key_of: &[Option<usize>],
    records: &[usize],
    bad: &mut Vec<BadMessage>,
) -> (Option<(RecordBatch, UInt64Array)>, Option<BooleanArray>) {
    let Some(key) = key else { return (None, None) };
    let number = |record: &usize| key_of.get(*record).copied().flatten();
    let rows_of = key.messages.map(|messages| {
        let mut rows = vec![None; key_of.len()];
        messages.iter().enumerate().for_each(|(row, number)| rows[*number] = Some(row as u64));
        rows
    });
    let row = |number: usize| match &rows_of {
        None => Some(number as u64),
        Some(rows) => rows.get(number).copied().flatten(),
    };
    let rows = records.iter().map(|record| number(record).and_then(row)).collect::<UInt64Array>();
    let is_kept = |record: &usize| Some(number(record).is_none_or(|number| row(number).is_some()));
    let kept = (!key.bad.is_empty()).then(|| records.iter().map(is_kept).collect());
    bad.extend(of_keys(key.bad));
    (key.batch.map(|batch| (batch.rows, rows)), kept)
}

fn only(batch: &Batch, kept: &BooleanArray) -> Result<Batch, arrow::error::ArrowError> {
    let rows = arrow::compute::filter_record_batch(&batch.rows, kept)?;
    let kinds = batch.kinds.as_ref().map(|kinds| filter(kinds, kept)).transpose()?;
    let kinds = kinds.map(|kinds| arrow::array::AsArray::as_primitive::<arrow::datatypes::UInt8Type>(&kinds).clone());
    Ok(Batch { rows, kinds })
}

/// The reasons say that it is the key that is wrong.
fn of_keys(bad: Vec<BadMessage>) -> Vec<BadMessage> {
    bad.into_iter().map(|message| BadMessage { reason: format!("its key: {}", message.reason), ..message }).collect()
}
