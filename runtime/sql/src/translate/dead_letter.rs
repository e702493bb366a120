//! `'dead-letter' = 'table'`: what a source cannot read is written to a table of its own.
//!
//! The source hands out both, as rows of which either the table's columns or those of dead letters are NULL ([`super::aside`]).

use super::aside::Aside;
use super::{Statement, Translator};
use crate::calc::{Output, Value};
use crate::catalog::Table;
use crate::error::SqlError;
use crate::graph::Chain;
use crate::types::sql_name;
use arrow::datatypes::{DataType, FieldRef, SchemaRef};
use datafusion_physical_expr::expressions::lit;
use sluice_engine::sink::SinkFactory;
use sluice_engine::table::{DEAD_LETTER, TableError, dead_letter};
use sluice_protocol::OperatorUid;
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
        let outputs = letters.iter().map(|field| letter(field, chain.schema(), table.name())).collect();
        let aside = Aside {
            marker: dead_letter::PLACE,
            outputs,
            of: format!("deadLettersOf=[{}]", table.name()),
            uid: OperatorUid(format!("{source}.dead-letter")),
            table: name.to_owned(),
            factory,
        };
        self.divide_by_marker(chain, schema, false, aside)
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
