//! From DataFusion's errors to ours: gives them a place and the words of our messages.
//!
//! DataFusion knows the place of some mistakes only. For the others the smallest expression of the query that fails
//! on its own over the same FROM is found, by planning each of them.

use crate::error::{SourceText, SqlError, SqlErrorKind, nearest};
use crate::relational::Relational;
use crate::uid::constraint;
use datafusion_common::{Column, DataFusionError, SchemaError};
use datafusion_sql::sqlparser::ast::{
    Expr, GroupByExpr, Ident, JoinConstraint, Query, Select, SelectItem, SetExpr, Spanned, TableFactor,
    visit_expressions,
};
use datafusion_sql::sqlparser::tokenizer::Location;
use std::ops::ControlFlow;

/// The mistake behind a query that DataFusion could not plan.
pub(crate) fn diagnose(
    text: SourceText<'_>,
    relational: &Relational<'_>,
    query: &Query,
    error: &DataFusionError,
) -> SqlError {
    let start = query.span().start;
    if let DataFusionError::SchemaError(schema_error, _) = error.find_root() {
        return schema_mistake(text, query, schema_error);
    }
    let at = spot(error).or_else(|| culprit(relational, query)).unwrap_or(start);
    let kind = match error.find_root() {
        DataFusionError::NotImplemented(_) => SqlErrorKind::Unsupported,
        DataFusionError::Internal(_) => SqlErrorKind::Internal,
        _ => SqlErrorKind::Type,
    };
    text.error(kind, at, message(error))
}

/// DataFusion's message without its prefixes and backtraces.
pub(crate) fn message(error: &DataFusionError) -> String {
    let root = error.find_root().strip_backtrace();
    let prefixes = [
        "Error during planning: ",
        "This feature is not implemented: ",
        "Schema error: ",
        "Execution error: ",
        "Arrow error: ",
        "Optimizer rule 'simplify_expressions' failed\ncaused by\n",
    ];
    let mut message = root.as_str();
    while let Some(rest) = prefixes.iter().find_map(|prefix| message.strip_prefix(prefix)) {
        message = rest;
    }
    // A function of ours says itself what it takes.
    if let Some((_, own)) = message.split_once("user-defined coercion failed with: Error during planning: ") {
        message = own.split(" No function matches").next().unwrap_or(own);
    }
    message.lines().next().unwrap_or_default().trim_end_matches('.').to_owned()
}

/// The place that DataFusion names.
fn spot(error: &DataFusionError) -> Option<Location> {
    let span = error.diagnostic()?.span?;
    Some(Location::new(span.start.line, span.start.column))
}

fn schema_mistake(text: SourceText<'_>, query: &Query, error: &SchemaError) -> SqlError {
    match error {
        SchemaError::FieldNotFound { field, valid_fields } => {
            let at = place_of(query, field);
            let is_meant = |column: &&Column| field.relation.is_none() || column.relation == field.relation;
            let meant: Vec<&Column> = valid_fields.iter().filter(is_meant).collect();
            if let (Some(relation), true) = (&field.relation, meant.is_empty()) {
                let known = valid_fields.iter().filter_map(|column| column.relation.as_ref()).map(ToString::to_string);
                let near = nearest(&relation.to_string(), known);
                let message = format!(
                    "column '{relation}.{}' does not exist: there is no '{relation}' in FROM{near}",
                    field.name
                );
                return text.error(SqlErrorKind::UnknownColumn, at, message);
            }
            let columns = meant.iter().map(|column| column.name.as_str());
            let near = nearest(&field.name, columns.clone());
            let list = if near.is_empty() && !meant.is_empty() {
                format!("; there are {}", columns.collect::<Vec<_>>().join(", "))
            } else {
                near
            };
            let qualifier = field.relation.as_ref().map_or_else(String::new, |relation| format!("{relation}."));
            let message = format!("column '{qualifier}{}' does not exist{list}", field.name);
            text.error(SqlErrorKind::UnknownColumn, at, message)
        }
        SchemaError::AmbiguousReference { field } => {
            let message = format!("column '{}' is ambiguous", field.name);
            text.error(SqlErrorKind::Invalid, place_of(query, field), message)
        }
        SchemaError::DuplicateQualifiedField { name, .. } | SchemaError::DuplicateUnqualifiedField { name } => {
            let message = format!("two columns are called '{name}'");
            text.error(SqlErrorKind::Duplicate, query.span().start, message)
        }
    }
}

/// Where a column is named first.
fn place_of(query: &Query, column: &Column) -> Location {
    if let Some(span) = column.spans.first() {
        return Location::new(span.start.line, span.start.column);
    }
    let found = visit_expressions(query, |expression: &Expr| {
        let name: Option<&Ident> = match expression {
            Expr::Identifier(name) => Some(name),
            Expr::CompoundIdentifier(names) => names.last(),
            _ => None,
        };
        match name.filter(|name| name.value == column.name) {
            Some(_) => ControlFlow::Break(expression.span().start),
            None => ControlFlow::Continue(()),
        }
    });
    match found {
        ControlFlow::Break(at) => at,
        ControlFlow::Continue(()) => query.span().start,
    }
}

/// The smallest expression that fails on its own.
fn culprit(relational: &Relational<'_>, query: &Query) -> Option<Location> {
    let SetExpr::Select(select) = query.body.as_ref() else { return None };
    for from in &select.from {
        if let TableFactor::Derived { subquery, .. } = &from.relation
            && relational.plan(subquery).is_err()
        {
            return culprit(relational, subquery).or_else(|| Some(subquery.span().start));
        }
    }
    let mut smallest: Option<(usize, Location)> = None;
    for whole in expressions(select) {
        let _: ControlFlow<()> = visit_expressions(whole, |part: &Expr| {
            let size = part.to_string().len();
            let is_smaller = smallest.is_none_or(|(least, _)| size < least);
            if is_smaller && part.span().start.line > 0 && fails_alone(relational, query, select, part) {
                smallest = Some((size, part.span().start));
            }
            ControlFlow::Continue(())
        });
    }
    smallest.map(|(_, at)| at)
}

fn expressions(select: &Select) -> Vec<&Expr> {
    let items = select.projection.iter().filter_map(|item| match item {
        SelectItem::UnnamedExpr(expression) | SelectItem::ExprWithAlias { expr: expression, .. } => Some(expression),
        _ => None,
    });
    let keys: &[Expr] = match &select.group_by {
        GroupByExpr::Expressions(keys, _) => keys,
        GroupByExpr::All(_) => &[],
    };
    let joins = select.from.iter().flat_map(|from| &from.joins);
    let conditions = joins.filter_map(|join| match constraint(&join.join_operator) {
        Some(JoinConstraint::On(condition)) => Some(condition),
        _ => None,
    });
    items.chain(&select.selection).chain(keys).chain(&select.having).chain(conditions).collect()
}

fn fails_alone(relational: &Relational<'_>, query: &Query, select: &Select, part: &Expr) -> bool {
    let mut alone = select.clone();
    alone.projection = vec![SelectItem::UnnamedExpr(part.clone())];
    alone.selection = None;
    alone.having = None;
    alone.group_by = GroupByExpr::Expressions(Vec::new(), Vec::new());
    let mut query = query.clone();
    *query.body = SetExpr::Select(Box::new(alone));
    relational.plan(&query).is_err()
}
