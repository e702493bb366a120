//! Checks what CREATE TABLE declares beyond physical columns: computed columns and the watermark.
//!
//! Both are planned as queries over the table, so mistakes in them are those of queries.

use crate::catalog::Table;
use crate::diagnose::diagnose;
use crate::error::{SqlError, SqlErrorKind, nearest};
use crate::expand::declared_query;
use crate::parse::Watermark;
use crate::relational::Relational;
use crate::types::sql_name;
use crate::validate::Validator;
use arrow::datatypes::{DataType, SchemaRef, TimeUnit};
use datafusion_sql::sqlparser::ast::Expr;

/// Checks all tables.
pub(crate) fn check(validator: Validator<'_>, relational: &Relational<'_>) -> Result<(), SqlError> {
    validator.tables.all().try_for_each(|table| check_table(validator, relational, table))
}

fn check_table(validator: Validator<'_>, relational: &Relational<'_>, table: &Table) -> Result<(), SqlError> {
    let definition = &table.definition;
    if definition.computed.is_empty() && definition.watermark.is_none() {
        return Ok(());
    }
    let columns = columns(validator, relational, table, None)?;
    let Some(watermark) = &definition.watermark else { return Ok(()) };
    let (text, at) = (validator.text, watermark.column.span.start);
    let name = &watermark.column.value;
    let Ok(column) = columns.field_with_name(name) else {
        let near = nearest(name, columns.fields().iter().map(|field| field.name().as_str()));
        let message = format!("WATERMARK names no column: '{name}'{near}");
        return Err(text.error(SqlErrorKind::UnknownColumn, at, message));
    };
    if !is_time_of_rows(column.data_type()) {
        let message = format!(
            "column '{name}' is {}, but a WATERMARK needs TIMESTAMP(3) or TIMESTAMP_LTZ(3)",
            sql_name(column.data_type())
        );
        return Err(text.error(SqlErrorKind::Type, at, message));
    }
    check_watermark(validator, relational, table, watermark, column.data_type())
}

fn check_watermark(
    validator: Validator<'_>,
    relational: &Relational<'_>,
    table: &Table,
    watermark: &Watermark,
    wanted: &DataType,
) -> Result<(), SqlError> {
    let made = columns(validator, relational, table, Some(&watermark.expression))?;
    let given = made.field(0).data_type();
    if given == wanted {
        return Ok(());
    }
    let (name, given, wanted) = (&watermark.column.value, sql_name(given), sql_name(wanted));
    let message = format!("the WATERMARK is {given}, but its column '{name}' is {wanted}");
    Err(validator.text.error(SqlErrorKind::Type, watermark.column.span.start, message))
}

/// The columns of a table as a query sees them, or this one expression over them.
fn columns(
    validator: Validator<'_>,
    relational: &Relational<'_>,
    table: &Table,
    expression: Option<&Expr>,
) -> Result<SchemaRef, SqlError> {
    let query = declared_query(&table.definition, expression).map_err(|error| validator.text.syntax(&error))?;
    validator.query(&query)?;
    let plan = relational.plan(&query).map_err(|error| diagnose(validator.text, relational, &query, &error))?;
    Ok(plan.schema().inner().clone())
}

/// TIMESTAMP or TIMESTAMP_LTZ of at most three digits.
const fn is_time_of_rows(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Timestamp(TimeUnit::Second | TimeUnit::Millisecond, _))
}
