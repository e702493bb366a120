//! Records into rows: columns of the value, of the key, and of what Kafka knows of a record.
//!
//! Value and key are decoded each as a whole, and put together by the numbers of their records, since either may have been
//! passed over. Which records have a bad key, or nothing for a column that cannot be NULL, is known before rows are made.

#[cfg(test)]
mod tests;

use super::metadata::{Key, MetadataColumn};
use crate::format::messages::BadMessage;
use crate::format::{DeadLetters, Decoder, Format, OnBad};
use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, RecordBatch, UInt64Array, new_null_array};
use arrow::compute::{filter, filter_record_batch, take};
use arrow::datatypes::{Field, Schema, SchemaRef, UInt8Type};
use arrow::error::ArrowError;
use rdkafka::message::Message;
use sluice_engine::batch::Batch;
use sluice_engine::table::TableDescriptor;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
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

impl KeyFormat {
    /// Columns under the names that they have in the key. What cannot be NULL is for the record to say.
    fn schema<'a>(&self, columns: impl Iterator<Item = &'a Field>) -> SchemaRef {
        let named = columns.map(|field| {
            let name = field.name().strip_prefix(self.prefix.as_str()).unwrap_or(field.name()).to_owned();
            field.clone().with_name(name).with_nullable(true)
        });
        Arc::new(Schema::new(named.collect::<Vec<_>>()))
    }
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
    /// The metadata's, at this position.
    Metadata(usize, Key),
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
        let mut metadata = 0;
        for field in table.schema.fields() {
            if let Some(name) = table.metadata.get(field.name()) {
                let key = Key::new(name, field.data_type());
                let key = key.map_err(|what| format!("column '{}': {what}", field.name()))?;
                parts.push(Part::Metadata(metadata, key));
                metadata += 1;
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
            let all = key.fields.iter().filter_map(|name| table.declared.field_with_name(name).ok());
            (key.schema(keys.iter().map(AsRef::as_ref)), key.schema(all), key.format.clone())
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
        let on_bad_value = on_bad(&self.value_format);
        let on_bad_key = self.key.as_ref().map_or(on_bad_value, |(.., format)| on_bad(format));
        let value = self.value_format.decoder(&self.value.0, &self.value.1, on_bad_value)?;
        let key = self.key.as_ref().map(|(read, all, format)| format.decoder(read, all, on_bad_key));
        let metadata = self.parts.iter().zip(self.schema.fields()).filter_map(|(part, field)| match part {
            Part::Metadata(_, key) => Some(MetadataColumn::new(key.clone(), field.data_type().clone())),
            _ => None,
        });
        Ok(RowReader {
            layout: self.clone(),
            value,
            key: key.transpose()?,
            metadata: metadata.collect(),
            on_bad: (on_bad_value, on_bad_key),
            places: Vec::new(),
            with_key: Vec::new(),
        })
    }
}

/// Rows of records, and those that were passed over: each once, with its value, whatever is wrong with it.
pub(super) struct ReadRows {
    pub(super) batch: Option<Batch>,
    pub(super) bad: Vec<BadMessage>,
}

/// Why records make no rows.
#[derive(Debug)]
pub(super) enum NoRows {
    /// One of them cannot be read.
    Bad(BadRecord),
    /// None of them is at fault.
    Internal(ArrowError),
}

impl From<ArrowError> for NoRows {
    fn from(error: ArrowError) -> Self {
        Self::Internal(error)
    }
}

/// A record that cannot be read.
#[derive(Debug)]
pub(super) struct BadRecord {
    pub(super) message: BadMessage,
    pub(super) what: What,
}

/// What is wrong with a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum What {
    Value,
    Key,
    /// The key gives no value for a column that cannot be NULL.
    NoKey,
    /// Nor does what Kafka knows of it.
    NoMetadata,
}

/// Collects records and makes them rows.
pub(super) struct RowReader {
    layout: Layout,
    value: Decoder,
    key: Option<Decoder>,
    metadata: Vec<MetadataColumn>,
    /// What becomes of records with a bad value, and of those with a bad key.
    on_bad: (OnBad, OnBad),
    /// Of each record. The decoders know records by their numbers.
    places: Vec<(u32, i64)>,
    /// The record of each key.
    with_key: Vec<usize>,
}

/// The columns that do not stand in values, with an entry for each record.
struct Beside {
    keys: Vec<ArrayRef>,
    metadata: Vec<ArrayRef>,
}

impl Beside {
    fn column(&self, part: &Part) -> Option<&ArrayRef> {
        match part {
            Part::Value(_) => None,
            Part::Key(index) => self.keys.get(*index),
            Part::Metadata(index, _) => self.metadata.get(*index),
        }
    }
}

/// Records that make no rows, by their numbers.
type BadRecords = BTreeMap<usize, BadMessage>;

impl RowReader {
    /// Takes a record. One without a value says that a key was deleted, which is no row.
    pub(super) fn push(&mut self, place: (u32, i64), message: &impl Message) {
        let Some(payload) = message.payload() else { return };
        let record = self.places.len();
        self.places.push(place);
        self.value.push(numbered(record), payload);
        if let (Some(decoder), Some(key)) = (&mut self.key, message.key()) {
            decoder.push(numbered(record), key);
            self.with_key.push(record);
        }
        self.metadata.iter_mut().for_each(|column| column.push(message));
    }

    /// The rows of the records since the last call.
    pub(super) fn finish(&mut self) -> Result<ReadRows, NoRows> {
        let read = self.read();
        let places = std::mem::take(&mut self.places);
        self.with_key.clear();
        let named = |message: BadMessage| {
            let place = places.get(number(&message)).copied().unwrap_or(message.place);
            BadMessage { place, ..message }
        };
        match read {
            Ok((batch, bad)) => Ok(ReadRows { batch, bad: bad.into_values().map(named).collect() }),
            Err(NoRows::Bad(bad)) => Err(NoRows::Bad(BadRecord { message: named(bad.message), ..bad })),
            Err(internal) => Err(internal),
        }
    }

    fn read(&mut self) -> Result<(Option<Batch>, BadRecords), NoRows> {
        let mut bad = BadRecords::new();
        let beside = self.beside(&mut bad)?;
        self.find_missing(&beside, &mut bad)?;
        let value = self.value.finish();
        let value = value.map_err(|message| NoRows::Bad(BadRecord { message, what: What::Value }))?;
        let mut records = value.messages;
        let mut values = value.batch;
        if let Some(all) = values.as_ref().filter(|_| !bad.is_empty()) {
            let of_rows = records.unwrap_or_else(|| (0..all.len()).collect());
            let is_kept = |record: &usize| !bad.contains_key(record);
            let kept = of_rows.iter().map(|record| Some(is_kept(record))).collect();
            values = Some(only(all, &kept)?);
            records = Some(of_rows.into_iter().filter(is_kept).collect());
        }
        for message in value.bad {
            add(&mut bad, message);
        }
        let batch = values.map(|values| self.compose(values, &beside, records)).transpose()?;
        Ok((batch.filter(|batch| !batch.is_empty()), bad))
    }

    /// Columns of keys and metadata, and the records whose key is bad.
    fn beside(&mut self, bad: &mut BadRecords) -> Result<Beside, NoRows> {
        let metadata = self.metadata.iter_mut().map(MetadataColumn::finish).collect::<Result<_, _>>()?;
        let Some(decoder) = &mut self.key else { return Ok(Beside { keys: Vec::new(), metadata }) };
        let key = decoder.finish();
        let key = key.map_err(|message| NoRows::Bad(BadRecord { message, what: What::Key }))?;
        for message in key.bad {
            let record = number(&message);
            let reason = format!("its key cannot be read: {}. The key begins: {}", message.reason, message.excerpt());
            bad.insert(record, BadMessage { reason, payload: self.value.payload(record).to_vec(), ..message });
        }
        let fields = self.layout.key.as_ref().map(|(read, ..)| read.fields().iter()).into_iter().flatten();
        let keys: Vec<ArrayRef> = match key.batch {
            None => fields.map(|field| new_null_array(field.data_type(), self.places.len())).collect(),
            Some(batch) => {
                let mut rows = vec![None; self.places.len()];
                let with_row = (0..batch.len()).map(|row| key.messages.as_ref().map_or(row, |keys| keys[row]));
                with_row.enumerate().for_each(|(row, key)| rows[self.with_key[key]] = Some(row as u64));
                let rows = UInt64Array::from(rows);
                batch.rows.columns().iter().map(|column| take(column, &rows, None)).collect::<Result<_, _>>()?
            }
        };
        Ok(Beside { keys, metadata })
    }

    /// Adds the records that have nothing for a column that cannot be NULL.
    fn find_missing(&self, beside: &Beside, bad: &mut BadRecords) -> Result<(), NoRows> {
        for (part, field) in self.layout.parts.iter().zip(self.layout.schema.fields()) {
            let Some(column) = beside.column(part).filter(|column| !field.is_nullable() && column.null_count() > 0)
            else {
                continue;
            };
            let (what, whose, on_bad) = match part {
                Part::Key(_) => (What::NoKey, "key", self.on_bad.1),
                _ => (What::NoMetadata, "metadata", self.on_bad.0),
            };
            for record in (0..column.len()).filter(|record| column.is_null(*record)) {
                if bad.contains_key(&record) {
                    continue;
                }
                let reason = format!("its {whose} holds nothing for column '{}', which cannot be NULL", field.name());
                let payload = self.value.payload(record).to_vec();
                let message = BadMessage { place: numbered(record), reason, payload };
                if on_bad == OnBad::Fail {
                    return Err(NoRows::Bad(BadRecord { message, what }));
                }
                bad.insert(record, message);
            }
        }
        Ok(())
    }

    /// The table's columns; `records` has the record of each row, none where each made one.
    fn compose(&self, values: Batch, beside: &Beside, records: Option<Vec<usize>>) -> Result<Batch, ArrowError> {
        let records =
            records.map(|records| UInt64Array::from_iter_values(records.into_iter().map(|record| record as u64)));
        let column = |part: &Part| match (part, beside.column(part), &records) {
            (Part::Value(index), ..) => Ok(Arc::clone(values.rows.column(*index))),
            (_, Some(column), None) => Ok(Arc::clone(column)),
            (_, Some(column), Some(records)) => take(column, records, None),
            (_, None, _) => Err(ArrowError::SchemaError("a column stands nowhere in the record".to_owned())),
        };
        let columns = self.layout.parts.iter().map(column).collect::<Result<_, _>>()?;
        let rows = RecordBatch::try_new(Arc::clone(&self.layout.schema), columns)?;
        Ok(Batch { rows, kinds: values.kinds })
    }
}

/// A record's number as the decoders hand it back.
fn numbered(record: usize) -> (u32, i64) {
    (u32::try_from(record).unwrap_or(u32::MAX), 0)
}

fn number(message: &BadMessage) -> usize {
    message.place.0 as usize
}

/// Adds a record whose value is bad; its key may be too.
fn add(bad: &mut BadRecords, message: BadMessage) {
    match bad.entry(number(&message)) {
        Entry::Vacant(entry) => _ = entry.insert(message),
        Entry::Occupied(mut entry) => {
            entry.get_mut().reason = format!("{}; and {}", message.reason, entry.get().reason)
        }
    }
}

fn only(batch: &Batch, kept: &BooleanArray) -> Result<Batch, ArrowError> {
    let rows = filter_record_batch(&batch.rows, kept)?;
    let kinds = batch.kinds.as_ref().map(|kinds| filter(kinds, kept)).transpose()?;
    let kinds = kinds.map(|kinds| kinds.as_primitive::<UInt8Type>().clone());
    Ok(Batch { rows, kinds })
}
