//! The tables that a program declares, by name.
//!
//! Names are compared as written, as in Flink. Asks no connector: that is [`crate::connector`]'s.

use crate::error::{SourceText, SqlError, SqlErrorKind, nearest};
use crate::parse::CreateTable;
use arrow::datatypes::{Field, Schema, SchemaRef};
use datafusion_sql::sqlparser::ast::Ident;
use std::sync::Arc;

/// A declared table.
#[derive(Debug)]
pub(crate) struct Table {
    /// As declared.
    pub(crate) definition: CreateTable,
    /// Its columns.
    pub(crate) schema: SchemaRef,
}

impl Table {
    pub(crate) fn name(&self) -> &str {
        &self.definition.name.value
    }
}

/// All declared tables.
#[derive(Debug, Default)]
pub(crate) struct Tables {
    tables: Vec<Table>,
}

impl Tables {
    /// Takes the declarations; a name may be declared once, unless the second says IF NOT EXISTS.
    pub(crate) fn new(text: SourceText<'_>, definitions: Vec<CreateTable>) -> Result<Self, SqlError> {
        let mut tables = Self::default();
        for definition in definitions {
            if let Some(first) = tables.get(&definition.name.value) {
                if definition.if_not_exists {
                    continue;
                }
                let line = first.definition.name.span.start.line;
                let message = format!("table '{}' is already declared in line {line}", definition.name.value);
                return Err(text.error(SqlErrorKind::Duplicate, definition.name.span.start, message));
            }
            let fields = definition
                .columns
                .iter()
                .map(|column| Field::new(&column.name.value, column.data_type.clone(), column.nullable));
            let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
            tables.tables.push(Table { definition, schema });
        }
        Ok(tables)
    }

    /// In the order declared.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Table> {
        self.tables.iter()
    }

    /// A table by its name.
    pub(crate) fn get(&self, name: &str) -> Option<&Table> {
        self.tables.iter().find(|table| table.name() == name)
    }

    /// A table by its name in a statement.
    pub(crate) fn resolve(&self, text: SourceText<'_>, name: &Ident) -> Result<&Table, SqlError> {
        self.get(&name.value).ok_or_else(|| {
            let near = nearest(&name.value, self.tables.iter().map(Table::name));
            let message = if self.tables.is_empty() {
                format!("table '{}' does not exist: declare it with CREATE TABLE first", name.value)
            } else {
                format!("table '{}' does not exist{near}", name.value)
            };
            text.error(SqlErrorKind::UnknownTable, name.span.start, message)
        })
    }
}
