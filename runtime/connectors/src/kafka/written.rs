//! What columns of a row say of its record beside key and value: the timestamp, and headers.

use super::metadata::Key;
use arrow::array::{Array, ArrayRef, AsArray, Int64Array};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Int64Type, TimeUnit};
use arrow::error::ArrowError;
use arrow::record_batch::RecordBatch;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::BaseRecord;
use sluice_engine::table::TableDescriptor;

/// The columns, by their positions.
#[derive(Debug, Clone, Default)]
pub(super) struct WrittenMetadata {
    timestamp: Option<usize>,
    headers: Vec<(String, usize)>,
}

impl WrittenMetadata {
    /// Finds them.
    ///
    /// # Errors
    /// One stands for what the brokers decide.
    pub(super) fn new(table: &TableDescriptor) -> Result<Self, String> {
        let mut written = Self::default();
        for (position, field) in table.schema.fields().iter().enumerate() {
            let Some(name) = table.metadata.get(field.name()) else { continue };
            let key = Key::new(name, field.data_type()).map_err(|what| format!("column '{}': {what}", field.name()))?;
            match key {
                Key::Timestamp => written.timestamp = Some(position),
                Key::Header(name) => written.headers.push((name, position)),
                _ => {
                    return Err(format!(
                        "column '{}' stands for the metadata '{name}', which can only be read: declare it METADATA VIRTUAL",
                        field.name()
                    ));
                }
            }
        }
        Ok(written)
    }

    /// Binds them to a batch.
    pub(super) fn bind(&self, rows: &RecordBatch) -> Result<BoundMetadata<'_>, ArrowError> {
        let timestamp = self.timestamp.map(|position| millis(rows.column(position))).transpose()?;
        let header = |(_, position): &'_ (String, usize)| cast(rows.column(*position), &DataType::Binary);
        let headers: Result<Vec<ArrayRef>, _> = self.headers.iter().map(header).collect();
        let names = self.headers.iter().map(|(name, _)| name.as_str());
        Ok(BoundMetadata { timestamp, headers: names.zip(headers?).collect() })
    }
}

fn millis(times: &ArrayRef) -> Result<Int64Array, ArrowError> {
    let millis = match times.data_type() {
        DataType::Timestamp(_, zone) => cast(times, &DataType::Timestamp(TimeUnit::Millisecond, zone.clone()))?,
        _ => ArrayRef::clone(times),
    };
    Ok(cast(&millis, &DataType::Int64)?.as_primitive::<Int64Type>().clone())
}

/// The values of one batch.
pub(super) struct BoundMetadata<'a> {
    timestamp: Option<Int64Array>,
    headers: Vec<(&'a str, ArrayRef)>,
}

impl BoundMetadata<'_> {
    /// The record with what its row says. NULL is no timestamp, which the client then gives, and no header.
    pub(super) fn add<'r>(&self, row: usize, record: BaseRecord<'r, [u8], [u8]>) -> BaseRecord<'r, [u8], [u8]> {
        let mut record = record;
        if let Some(times) = self.timestamp.as_ref().filter(|times| times.is_valid(row)) {
            record = record.timestamp(times.value(row));
        }
        let mut there = self.headers.iter().filter(|(_, values)| values.is_valid(row)).peekable();
        if there.peek().is_none() {
            return record;
        }
        let insert = |all: OwnedHeaders, (key, values): &(&str, ArrayRef)| {
            all.insert(Header { key, value: Some(values.as_binary::<i32>().value(row)) })
        };
        record.headers(there.fold(OwnedHeaders::new(), insert))
    }
}
