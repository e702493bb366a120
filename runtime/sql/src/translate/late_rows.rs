//! Rows that are too late for their window: how long they still count, and the table that they go to after that.
//!
//! An aggregation by windows emits both, results and late rows, of which either the one's columns or the other's are NULL. Its
//! vertex has two edges: behind one only results are kept, behind the other only late rows, which go on into their sink. So
//! the graph carries them, and what a checkpoint holds of the aggregation it holds of them.

use super::aggregate::Inputs;
use super::scan::names;
use super::{Statement, Stream, Translator};
use crate::calc::{Calc, Output, Value};
use crate::error::{SqlError, SqlErrorKind};
use crate::graph::{Chain, calc_info};
use crate::operators;
use crate::types::sql_name;
use crate::window::Windows;
use arrow::datatypes::{DataType, FieldRef, SchemaRef};
use datafusion_expr::Expr;
use datafusion_physical_expr::expressions::{Column, is_not_null, is_null, lit};
use sluice_engine::sink::{DeliveryGuarantee, SinkFactory};
use sluice_engine::window::{LATE, RowTime};
use sluice_protocol::OperatorUid;
use sluice_protocol::graph::{OperatorInfo, OperatorKind, Partitioning};
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
    /// What is set for an aggregation by these windows.
    pub(super) fn lateness(&self, windows: &Windows, time: RowTime, needs_before: bool) -> Result<Lateness, SqlError> {
        let settings = &self.statement.insert.settings;
        // By the clock nothing is late.
        if time == RowTime::Processing {
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
        let late = self.statement.insert.settings.late_rows.as_ref();
        let Some(table) = late.and_then(|(name, _)| self.statement.tables.get(name)) else { return Ok(()) };
        for wanted in table.schema.fields() {
            if let Some((qualifier, field)) = stream.schema.iter().find(|(_, field)| field.name() == wanted.name()) {
                let column = datafusion_common::Column::from((qualifier, field));
                self.input(inputs, stream, &Expr::Column(column))?;
            }
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
        let sent = fields.iter().map(|field| late_column(field, &wide, (row.clone(), time), uid));
        let sent = sent.collect::<Result<Vec<Output>, String>>();
        let sent = sent.map_err(|message| refuse(format!("table '{name}' of late rows {message}")))?;
        let parallelism = self.statement.options.parallelism;
        let upstreams = self.close(chain)?;
        let edge = || {
            let edge = Chain::from_edge(upstreams.clone(), Partitioning::Forward, parallelism, Arc::clone(&wide));
            if is_global { edge.single() } else { edge }
        };
        let marker = wide.index_of(LATE).map_err(|error| self.statement.planning(&error.into()))?;
        let marker = || Arc::new(Column::new(LATE, marker));

        let mut of_results = Calc::identity(&wide);
        of_results.outputs.truncate(results.fields().len());
        for (output, field) in of_results.outputs.iter_mut().zip(results.fields()) {
            output.field = Arc::clone(field);
        }
        of_results.restrict(is_null(marker()).map_err(|error| self.statement.planning(&error))?);
        let mut kept = edge();
        self.calcs += 1;
        let info = calc_info(self.uids, self.calcs, of_results.describe());
        kept.push(info, "Calc", operators::filter_project(&of_results));

        let mut of_rows = Calc::identity(&wide);
        of_rows.outputs = sent;
        of_rows.restrict(is_not_null(marker()).map_err(|error| self.statement.planning(&error))?);
        let mut late = edge();
        self.calcs += 1;
        let info = calc_info(self.uids, self.calcs, of_rows.describe());
        late.push(info, "Calc", operators::filter_project(&of_rows));
        let kind = match factory.guarantee() {
            DeliveryGuarantee::ExactlyOnce => OperatorKind::TransactionalSink,
            DeliveryGuarantee::AtLeastOnce | DeliveryGuarantee::None => OperatorKind::Sink,
        };
        let description = format!("Sink(table=[{name}], fields=[{}], lateRowsOf=[{uid}])", names(&of_rows.schema()));
        let info = OperatorInfo { uid: OperatorUid(format!("{uid}.late-rows")), kind, description };
        late.end_with(info, format!("Sink: {name}"), factory);
        self.close(late)?;
        Ok(kept)
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
        let all: Vec<usize> = (0..table.schema.fields().len()).collect();
        let descriptor = self.descriptor(table, &all).map_err(|error| error.message)?;
        let factory = self.connectors.sink(&descriptor).map_err(|error| error.to_string())?;
        Ok((table.schema.fields().iter().cloned().collect(), factory))
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
