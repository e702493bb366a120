//! The format `debezium-json`: an object per change of a row, with the row `before` and `after` it and what was done (`op`).
//!
//! `c` and `r` are inserts, `u` an update, of which both rows come out, `d` a deletion. Written are inserts (`c`) and deletions
//! (`d`), an update as both, as Flink does.

use super::messages::{Collected, MessageFormat, Rows};
use crate::json::decode::JsonMessages;
use crate::json::encode::{BoundEncoder, JsonEncoder};
use crate::json::options::JsonOptions;
use crate::json::text_columns;
use crate::json::timestamp::TimestampFormat;
use crate::options::Options;
use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, StringArray, StructArray, UInt8Array};
use arrow::compute::interleave;
use arrow::datatypes::{DataType, Field, Fields, Schema, SchemaRef};
use sluice_engine::batch::RowKind;
use sluice_engine::table::TableError;
use std::sync::Arc;

/// How messages are read and written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DebeziumOptions {
    /// The change stands in `payload`, beside a `schema`.
    schema_include: bool,
    pub(super) json: JsonOptions,
}

/// Reads what stands under a prefix such as `debezium-json` or `value.debezium-json`.
pub(super) fn read(options: &Options<'_>, prefix: &str) -> Result<DebeziumOptions, TableError> {
    let standard = [("SQL", TimestampFormat::Sql), ("ISO-8601", TimestampFormat::Iso8601)];
    let timestamp_format = options.choice(&format!("{prefix}.timestamp-format.standard"), &standard)?;
    Ok(DebeziumOptions {
        schema_include: options.boolean(&format!("{prefix}.schema-include"))?.unwrap_or(false),
        json: JsonOptions {
            ignore_parse_errors: options.boolean(&format!("{prefix}.ignore-parse-errors"))?.unwrap_or(false),
            fail_on_missing_field: false,
            timestamp_format: timestamp_format.unwrap_or(TimestampFormat::Sql),
        },
    })
}

/// Refuses what only a reader can have.
pub(super) fn check_written(options: DebeziumOptions) -> Result<(), String> {
    if options.schema_include {
        return Err("'debezium-json.schema-include' is for tables that are read: no schema is written".to_owned());
    }
    Ok(())
}

/// Decodes changes.
pub(crate) struct DebeziumMessages {
    schema: SchemaRef,
    options: DebeziumOptions,
    /// Of `before`, `after` and `op`.
    envelopes: JsonMessages,
}

impl DebeziumMessages {
    pub(super) fn new(schema: SchemaRef, options: DebeziumOptions) -> Result<Self, String> {
        // Of a row that is not there no field is.
        let column = |field: &Arc<Field>| text_columns::decoded_field(field).with_nullable(true);
        let row: Fields = schema.fields().iter().map(column).collect();
        let change: Fields = vec![
            Field::new("before", DataType::Struct(row.clone()), true),
            Field::new("after", DataType::Struct(row), true),
            Field::new("op", DataType::Utf8, true),
        ]
        .into();
        let envelope = if options.schema_include {
            Schema::new(vec![Field::new("payload", DataType::Struct(change), true)])
        } else {
            Schema::new(change)
        };
        let envelopes = JsonMessages::new(Arc::new(envelope), options.json).map_err(|error| error.to_string())?;
        Ok(Self { schema, options, envelopes })
    }

    /// The rows before and after, and what was done.
    fn parts(&self, rows: &RecordBatch) -> Result<(StructArray, StructArray, StringArray), String> {
        let columns = if self.options.schema_include {
            rows.column(0).as_struct().columns().to_vec()
        } else {
            rows.columns().to_vec()
        };
        let [before, after, op] = columns.as_slice() else { return Err("it holds no change".to_owned()) };
        Ok((before.as_struct().clone(), after.as_struct().clone(), op.as_string::<i32>().clone()))
    }
}

/// What a change says: kinds, each with whether its row is the one after, and the number of the message.
fn changes(before: &StructArray, after: &StructArray, op: &StringArray) -> Result<Vec<(RowKind, bool, usize)>, String> {
    let mut changes = Vec::with_capacity(op.len());
    for (number, op) in op.iter().enumerate() {
        let (has_before, has_after) = (before.is_valid(number), after.is_valid(number));
        match op {
            Some("c" | "r") if has_after => changes.push((RowKind::Insert, true, number)),
            Some("u") if has_before && has_after => {
                changes.push((RowKind::UpdateBefore, false, number));
                changes.push((RowKind::UpdateAfter, true, number));
            }
            Some("d") if has_before => changes.push((RowKind::Delete, false, number)),
            Some(op @ ("u" | "d")) if !has_before => {
                return Err(format!(
                    "its 'before' is null, though its 'op' is '{op}': the database must log whole rows (of PostgreSQL: ALTER \
                     TABLE … REPLICA IDENTITY FULL)"
                ));
            }
            Some(op @ ("c" | "r" | "u")) => return Err(format!("its 'after' is null, though its 'op' is '{op}'")),
            Some(other) => return Err(format!("its 'op' is '{other}', which is none of 'c', 'r', 'u' and 'd'")),
            None => {
                return Err("it has no 'op': is it a change of Debezium's? With a schema beside the change set \
                            'debezium-json.schema-include' = 'true'"
                    .to_owned());
            }
        }
    }
    Ok(changes)
}

impl MessageFormat for DebeziumMessages {
    fn take(&mut self, payload: &[u8], number: usize) -> bool {
        self.envelopes.take(payload, number)
    }

    fn flush(&mut self, messages: &Collected) -> Option<RecordBatch> {
        self.envelopes.flush(messages)
    }

    fn alone(&self, payload: &[u8]) -> Result<RecordBatch, String> {
        self.envelopes.alone(payload)
    }

    fn convert(&self, rows: &RecordBatch) -> Result<Rows, String> {
        let (before, after, op) = self.parts(rows)?;
        let changes = changes(&before, &after, &op)?;
        let picks: Vec<(usize, usize)> =
            changes.iter().map(|(_, is_after, row)| (usize::from(*is_after), *row)).collect();
        let column = |(index, field): (usize, &Arc<Field>)| {
            let [before, after] =
                [&before, &after].map(|rows| text_columns::convert(field, rows.column(index), self.options.json));
            let (before, after): (ArrayRef, ArrayRef) = (before?, after?);
            interleave(&[before.as_ref(), after.as_ref()], &picks).map_err(|error| error.to_string())
        };
        let columns = self.schema.fields().iter().enumerate().map(column).collect::<Result<Vec<_>, _>>()?;
        let rows = RecordBatch::try_new(Arc::clone(&self.schema), columns).map_err(|error| error.to_string())?;
        let kinds = UInt8Array::from_iter_values(changes.iter().map(|(kind, _, _)| *kind as u8));
        let messages = changes.iter().map(|(_, _, message)| *message).collect();
        Ok(Rows { rows, kinds: Some(kinds), messages: Some(messages) })
    }

    fn clear(&mut self) {
        self.envelopes.clear();
    }
}

/// Appends a change.
pub(super) fn write(rows: &BoundEncoder<'_>, row: usize, kind: RowKind, out: &mut Vec<u8>) {
    let is_there = matches!(kind, RowKind::Insert | RowKind::UpdateAfter);
    out.extend_from_slice(if is_there { br#"{"before":null,"after":"# } else { br#"{"before":"# });
    rows.write(row, out);
    out.extend_from_slice(if is_there { br#","op":"c"}"# } else { br#","after":null,"op":"d"}"# });
}

/// Writes rows as JSON does.
pub(super) fn encoder(schema: &Schema, positions: &[usize], options: DebeziumOptions) -> Result<JsonEncoder, Field> {
    JsonEncoder::new(schema, positions, options.json.timestamp_format)
}
