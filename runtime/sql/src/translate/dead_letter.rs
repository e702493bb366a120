//! `'dead-letter' = 'table'`: what a source cannot read is written to a table of its own.
//!
//! The source hands out both, as rows of which either the table's columns or those of dead letters are NULL. Its vertex has two
//! edges: behind one only the table's rows are kept, behind the other only dead letters, which go on into their sink. So the
//! graph carries them, and what a checkpoint holds of the source it holds of them.

use super::scan::names;
use super::{Statement, Translator};
use crate::calc::{Calc, Output, Value};
use crate::catalog::Table;
use crate::error::SqlError;
use crate::graph::{Chain, calc_info};
use crate::operators;
use crate::types::sql_name;
use arrow::datatypes::{DataType, FieldRef, SchemaRef};
use datafusion_physical_expr::expressions::{Column, is_not_null, is_null, lit};
use sluice_engine::sink::{DeliveryGuarantee, SinkFactory};
use sluice_engine::table::{DEAD_LETTER, TableError, dead_letter};
use sluice_protocol::OperatorUid;
use sluice_protocol::graph::{OperatorInfo, OperatorKind, Partitioning};
use std::sync::Arc;

/// What a table of dead letters is.
const COLUMNS: &str =
    "its columns are record (BYTES or STRING), place STRING, reason STRING and, if you like, source STRING";

impl Translator<'_> {
    /// The chain of the table's rows, behind a source that hands out dead letters too; those go on to their table.
    pub(super) fn divide(
        &mut self,
        table: &Table,
        source: &OperatorUid,
        chain: Chain,
        schema: &SchemaRef,
    ) -> Result<Chain, SqlError> {
        let Some(name) = dead_letter_table(table) else { return Ok(chain) };
        let (letters, factory) = self.statement.letters(table, name)?;
        let wide = Arc::clone(chain.schema());
        let parallelism = self.statement.options.parallelism;
        let upstreams = self.close(chain)?;
        let edge = || Chain::from_edge(upstreams.clone(), Partitioning::Forward, parallelism, Arc::clone(&wide));
        let place = wide.index_of(dead_letter::PLACE).map_err(|error| self.statement.planning(&error.into()))?;
        let place = || Arc::new(Column::new(dead_letter::PLACE, place));

        let mut rows = Calc::identity(&wide);
        rows.outputs.truncate(schema.fields().len());
        for (output, field) in rows.outputs.iter_mut().zip(schema.fields()) {
            output.field = Arc::clone(field);
        }
        rows.restrict(is_null(place()).map_err(|error| self.statement.planning(&error))?);
        let mut kept = edge();
        self.calcs += 1;
        kept.push(calc_info(self.uids, self.calcs, rows.describe()), "Calc", operators::filter_project(&rows));

        let mut bad = Calc::identity(&wide);
        bad.outputs = letters.iter().map(|field| letter(field, &wide, table.name())).collect();
        bad.restrict(is_not_null(place()).map_err(|error| self.statement.planning(&error))?);
        let mut sent = edge();
        self.calcs += 1;
        sent.push(calc_info(self.uids, self.calcs, bad.describe()), "Calc", operators::filter_project(&bad));
        let kind = match factory.guarantee() {
            DeliveryGuarantee::ExactlyOnce => OperatorKind::TransactionalSink,
            DeliveryGuarantee::AtLeastOnce | DeliveryGuarantee::None => OperatorKind::Sink,
        };
        let description =
            format!("Sink(table=[{name}], fields=[{}], deadLettersOf=[{}])", names(&bad.schema()), table.name());
        let info = OperatorInfo { uid: OperatorUid(format!("{source}.dead-letter")), kind, description };
        sent.end_with(info, format!("Sink: {name}"), factory);
        self.close(sent)?;
        Ok(kept)
    }
}

/// The table that dead letters go to.
fn dead_letter_table(table: &Table) -> Option<&str> {
    table.definition.options.iter().find(|option| option.key == DEAD_LETTER).map(|option| option.value.as_str())
}

impl Statement<'_> {
    /// The columns of a table of dead letters, and its sink.
    fn letters(&self, table: &Table, name: &str) -> Result<(Vec<FieldRef>, Arc<dyn SinkFactory>), SqlError> {
        let refuse = |message: String| {
            let option = Some(DEAD_LETTER.to_owned());
            self.refused(table, &TableError { table: table.name().to_owned(), option, message })
        };
        let Some(letters) = self.tables.get(name).filter(|_| name != table.name()) else {
            let message = format!("'dead-letter' names '{name}', which is no other table: declare it; {COLUMNS}");
            return Err(refuse(message));
        };
        let fields = letters.schema.fields();
        let is_known = |field: &&FieldRef| {
            let column = (field.name().as_str(), field.data_type());
            matches!(column, ("record", DataType::Binary) | ("record" | "place" | "reason" | "source", DataType::Utf8))
        };
        if let Some(other) = fields.iter().find(|field| !is_known(field)) {
            let (column, given) = (other.name(), sql_name(other.data_type()));
            let message = format!("table '{name}' of dead letters has a column {column} {given}; {COLUMNS}");
            return Err(refuse(message));
        }
        if let Some(missing) =
            ["record", "place", "reason"].iter().find(|column| letters.schema.index_of(column).is_err())
        {
            return Err(refuse(format!("table '{name}' of dead letters has no column '{missing}'; {COLUMNS}")));
        }
        let all: Vec<usize> = (0..fields.len()).collect();
        let descriptor = self.descriptor(letters, &all)?;
        let factory = self.connectors.sink(&descriptor).map_err(|error| self.refused(letters, &error))?;
        Ok((fields.iter().cloned().collect(), factory))
    }
}

/// A column of dead letters.
fn letter(field: &FieldRef, wide: &SchemaRef, source: &str) -> Output {
    let name = match (field.name().as_str(), field.data_type()) {
        ("record", DataType::Binary) => dead_letter::RECORD,
        ("record", _) => dead_letter::TEXT,
        ("place", _) => dead_letter::PLACE,
        ("reason", _) => dead_letter::REASON,
        _ => "",
    };
    let value = match wide.index_of(name) {
        Ok(index) => Value::Column(index),
        Err(_) => Value::Computed(lit(source)),
    };
    Output { field: Arc::clone(field), value, not_null: None }
}
