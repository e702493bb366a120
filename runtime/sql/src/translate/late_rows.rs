//! Rows that are too late for their window: how long they still count, and the table that they go to after that.
//!
//! An aggregation by windows emits both, results and late rows, of which either the one's columns or the other's are NULL
//! ([`super::aside`]). One over the results of others sends none: it gets them before the watermark.

use super::aggregate::Inputs;
use super::aside::Aside;
use super::sink::written_columns;
use super::{Statement, Stream, Translator};
use crate::calc::{Output, Value};
use crate::error::{SqlError, SqlErrorKind};
use crate::graph::Chain;
use crate::types::sql_name;
use crate::window::Windows;
use arrow::datatypes::{DataType, FieldRef, SchemaRef};
use datafusion_expr::Expr;
use datafusion_physical_expr::expressions::lit;
use sluice_engine::sink::SinkFactory;
use sluice_engine::table::TableDescriptor;
use sluice_engine::window::{LATE, RowTime};
use sluice_protocol::OperatorUid;
use std::sync::Arc;
use std::time::Duration;

/// The column of a table of late rows that says whose they are.
const OPERATOR: &str = "operator";
/// The one with the time by which they are late.
const ROW_TIME: &str = "row_time";

/// What becomes of rows behind the watermark.
#[derive(Debug, Default)]
pub(super) struct Lateness {
    /// For how long they still count.
    pub(super) allowed: Option<Duration>,
    /// Whether whoever reads the results wants them as they were, too.
    pub(super) needs_before: bool,
    /// The table for those that do not count.
    pub(super) to: Option<String>,
}

impl Translator<'_> {
    /// What is set for an aggregation by these windows; `of_results`: of the results of others by them, none of which is late.
    pub(super) fn lateness(
        &self,
        windows: &Windows,
        time: RowTime,
        (needs_before, of_results): (bool, bool),
    ) -> Result<Lateness, SqlError> {
        let settings = &self.statement.insert.settings;
        // By the clock nothing is late; results change no more, or this would be no aggregation by windows.
        if time == RowTime::Processing || of_results {
            return Ok(Lateness::default());
        }
        let allowed = settings.allowed_lateness;
        let to = settings.late_rows.as_ref().map(|(table, _)| table.clone());
        if matches!(windows, Windows::Session { .. }) && (allowed.is_some() || to.is_some()) {
            let text = "SESSION with 'table.exec.emit.allow-lateness' or 'table.exec.window-aggregate.late-rows': set both to \
                        '0' and '' before this statement; its late rows are dropped and counted, and";
            return Err(self.statement.unsupported(text));
        }
        Ok(Lateness { allowed, needs_before, to })
    }

    /// Columns that a table of late rows asks for, where the aggregation's input has them.
    pub(super) fn inputs_of_late_rows(&self, inputs: &mut Inputs, stream: &Stream) -> Result<(), SqlError> {
        let Some((name, at)) = &self.statement.insert.settings.late_rows else { return Ok(()) };
        let Some(table) = self.statement.tables.get(name) else { return Ok(()) };
        for wanted in written_columns(table).into_iter().map(|column| table.schema.field(column).name()) {
            let mut found = stream.schema.iter().filter(|(_, field)| field.name() == wanted);
            let Some((qualifier, field)) = found.next() else { continue };
            if found.next().is_some() && ![OPERATOR, ROW_TIME].contains(&wanted.as_str()) {
                let message = format!(
                    "table '{name}' of late rows has a column {wanted}, of which the aggregation's input has several: give each \
                     a name of its own by AS in a query below it, and name the one that is meant"
                );
                return Err(self.statement.text.error(SqlErrorKind::Invalid, *at, message));
            }
            let column = datafusion_common::Column::from((qualifier, field));
            self.input(inputs, stream, &Expr::Column(column))?;
        }
        Ok(())
    }

    /// The chain of the results; the late rows go on to their table.
    pub(super) fn send_late_rows(
        &mut self,
        chain: Chain,
        results: &SchemaRef,
        (uid, time): (&OperatorUid, usize),
        is_global: bool,
    ) -> Result<Chain, SqlError> {
        let Some((name, at)) = self.statement.insert.settings.late_rows.clone() else { return Ok(chain) };
        let refuse = |message: String| self.statement.text.error(SqlErrorKind::Invalid, at, message);
        let wide = Arc::clone(chain.schema());
        let row = results.fields().len()..wide.fields().len() - 1;
        let (fields, factory) = self.statement.table_of_late_rows(&name).map_err(&refuse)?;
        let outputs = fields.iter().map(|field| late_column(field, &wide, (row.clone(), time), uid));
        let outputs = outputs.collect::<Result<Vec<Output>, String>>();
        let outputs = outputs.map_err(|message| refuse(format!("table '{name}' of late rows {message}")))?;
        let of = format!("lateRowsOf=[{uid}]");
        let uid = OperatorUid(format!("{uid}.late-rows"));
        self.divide_by_marker(chain, results, is_global, Aside { marker: LATE, outputs, of, uid, table: name, factory })
    }
}

impl Statement<'_> {
    /// The columns of a table of late rows, and its sink.
    fn table_of_late_rows(&self, name: &str) -> Result<(Vec<FieldRef>, Arc<dyn SinkFactory>), String> {
        let Some(table) = self.tables.get(name) else {
            return Err(format!(
                "'table.exec.window-aggregate.late-rows' names '{name}', which is no table: declare it"
            ));
        };
        if !table.definition.primary_key.is_empty() {
            return Err(format!(
                "table '{name}' of late rows has a PRIMARY KEY: rows with one key would overwrite each other; declare it without"
            ));
        }
        let descriptor = self.descriptor(table, &written_columns(table)).map_err(|error| error.message)?;
        let fields = descriptor.schema.fields().iter().cloned().collect();
        let descriptor = TableDescriptor { declared: Arc::clone(&descriptor.schema), ..descriptor };
        let factory = self.connectors.sink(&descriptor).map_err(|error| error.to_string())?;
        Ok((fields, factory))
    }
}

/// A column of a table of late rows: one that the aggregation reads, the time of the row, or the operator.
fn late_column(
    field: &FieldRef,
    wide: &SchemaRef,
    (row, time): (std::ops::Range<usize>, usize),
    uid: &OperatorUid,
) -> Result<Output, String> {
    let of_row = |index: usize| wide.field(index).name().strip_prefix("$late.").unwrap_or_default();
    let found = match field.name().as_str() {
        OPERATOR if *field.data_type() == DataType::Utf8 => {
            return Ok(Output {
                field: Arc::clone(field),
                value: Value::Computed(lit(uid.0.as_str())),
                not_null: None,
            });
        }
        ROW_TIME => Some(row.start + time),
        name => row.clone().find(|index| of_row(*index) == name),
    };
    let found = found.filter(|index| wide.field(*index).data_type() == field.data_type() && field.is_nullable());
    let Some(index) = found else {
        let column = |index: usize| {
            let name = if index == row.start + time { ROW_TIME } else { of_row(index) };
            format!("{name} {}", sql_name(wide.field(index).data_type()))
        };
        let known: Vec<String> = row.clone().map(column).collect();
        let not_null = if field.is_nullable() { "" } else { " NOT NULL" };
        let (name, given) = (field.name(), sql_name(field.data_type()));
        return Err(format!(
            "has a column {name} {given}{not_null}; of '{uid}' it may have those that the aggregation reads, {}, and {OPERATOR} \
             STRING",
            known.join(", ")
        ));
    };
    Ok(Output { field: Arc::clone(field), value: Value::Column(index), not_null: None })
}
