//! Checks what CREATE TABLE declares beyond physical columns: computed columns and the watermark.
//!
//! Both are planned as queries over the table, so mistakes in them are those of queries.

use crate::catalog::Table;
use crate::diagnose::diagnose;
use crate::error::{SqlError, SqlErrorKind, nearest};
use crate::event_time::RowTime;
use crate::expand::{declared_query, quoted};
use crate::parse::Watermark;
use crate::relational::Relational;
use crate::types::sql_name;
use crate::validate::Validator;
use arrow::datatypes::{DataType, TimeUnit};
use datafusion_common::DataFusionError;
use datafusion_expr::LogicalPlan;
use datafusion_sql::sqlparser::ast::Expr;
use std::collections::BTreeMap;

/// Checks all tables; returns what they say of time, by table.
pub(crate) fn check(
    validator: Validator<'_>,
    relational: &Relational<'_>,
) -> Result<BTreeMap<String, RowTime>, SqlError> {
    let mut times = BTreeMap::new();
    for table in validator.tables.all() {
        if let Some(time) = check_table(validator, relational, table)? {
            times.insert(table.name().to_owned(), time);
        }
    }
    Ok(times)
}

fn check_table(
    validator: Validator<'_>,
    relational: &Relational<'_>,
    table: &Table,
) -> Result<Option<RowTime>, SqlError> {
    let definition = &table.definition;
    if definition.computed.is_empty() && definition.watermark.is_none() {
        return Ok(None);
    }
    let columns = plan_of(validator, relational, table, None)?.schema().inner().clone();
    let Some(watermark) = &definition.watermark else { return Ok(None) };
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
    check_watermark(validator, relational, table, watermark, column.data_type()).map(Some)
}

fn check_watermark(
    validator: Validator<'_>,
    relational: &Relational<'_>,
    table: &Table,
    watermark: &Watermark,
    wanted: &DataType,
) -> Result<RowTime, SqlError> {
    let at = watermark.column.span.start;
    let made = plan_of(validator, relational, table, Some(&watermark.expression))?;
    let given = made.schema().field(0).data_type();
    if given == wanted {
        let column = Expr::Identifier(quoted(&watermark.column));
        let time = plan_of(validator, relational, table, Some(&column))?;
        let internal = |error: &DataFusionError| validator.text.error(SqlErrorKind::Internal, at, error.to_string());
        let optimized = |plan| relational.optimize(plan).map_err(|error| internal(&error));
        let (time, made) = (optimized(time)?, optimized(made)?);
        return RowTime::new(&time, &made, watermark.expression.to_string()).map_err(|error| internal(&error));
    }
    let (name, given, wanted) = (&watermark.column.value, sql_name(given), sql_name(wanted));
    let message = format!("the WATERMARK is {given}, but its column '{name}' is {wanted}");
    Err(validator.text.error(SqlErrorKind::Type, at, message))
}

/// The columns of a table as a query sees them, or this one expression over them.
fn plan_of(
    validator: Validator<'_>,
    relational: &Relational<'_>,
    table: &Table,
    expression: Option<&Expr>,
) -> Result<LogicalPlan, SqlError> {
    let query = declared_query(&table.definition, expression).map_err(|error| validator.text.syntax(&error))?;
    validator.query(&query)?;
    relational.plan(&query).map_err(|error| diagnose(validator.text, relational, &query, &error))
}

/// TIMESTAMP or TIMESTAMP_LTZ of at most three digits.
const fn is_time_of_rows(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Timestamp(TimeUnit::Second | TimeUnit::Millisecond, _))
}
