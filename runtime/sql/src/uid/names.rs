//! The names in ids: keys of GROUP BY and of joins, as the statement writes them.

use crate::catalog::Tables;
use datafusion_sql::sqlparser::ast::{
    BinaryOperator, Expr, GroupByExpr, ObjectName, OrderByExpr, Query, Select, SelectItem, SetExpr, TableFactor,
    TableWithJoins, Value, ValueWithSpan, WindowType,
};

/// The SELECT that gives a query its columns.
pub(super) fn select_of(query: &Query) -> Option<&Select> {
    select_of_body(&query.body)
}

fn select_of_body(body: &SetExpr) -> Option<&Select> {
    match body {
        SetExpr::Select(select) => Some(select),
        SetExpr::Query(query) => select_of(query),
        SetExpr::SetOperation { left, .. } => select_of_body(left),
        _ => None,
    }
}

/// The keys of GROUP BY as written; positions and aliases are replaced by what they stand for.
pub(super) fn key_names(tables: &Tables, select: &Select) -> Vec<String> {
    match &select.group_by {
        GroupByExpr::Expressions(keys, _) => keys.iter().map(|key| key_name(tables, select, key)).collect(),
        GroupByExpr::All(_) => Vec::new(),
    }
}

fn key_name(tables: &Tables, select: &Select, key: &Expr) -> String {
    let meant = match key {
        Expr::Value(ValueWithSpan { value: Value::Number(number, _), .. }) => {
            number.parse::<usize>().ok().and_then(|number| select.projection.get(number.checked_sub(1)?))
        }
        Expr::Identifier(name) if !is_input_column(tables, select, &name.value) => select
            .projection
            .iter()
            .find(|item| matches!(item, SelectItem::ExprWithAlias { alias, .. } if alias.value == name.value)),
        _ => None,
    };
    match meant {
        Some(SelectItem::UnnamedExpr(meant) | SelectItem::ExprWithAlias { expr: meant, .. }) => column_name(meant),
        _ => column_name(key),
    }
}

/// The columns of SELECT by what they are computed from.
pub(super) fn item_names(select: &Select) -> Vec<String> {
    let name = |item: &SelectItem| match item {
        SelectItem::UnnamedExpr(expression) | SelectItem::ExprWithAlias { expr: expression, .. } => {
            column_name(expression)
        }
        other => other.to_string(),
    };
    select.projection.iter().map(name).collect()
}

/// PARTITION BY and ORDER BY of each ROW_NUMBER of a SELECT.
pub(super) fn row_numbers(select: &Select) -> Vec<(Vec<String>, Vec<String>)> {
    let of_item = |item: &SelectItem| {
        let (SelectItem::UnnamedExpr(expression) | SelectItem::ExprWithAlias { expr: expression, .. }) = item else {
            return None;
        };
        let Expr::Function(call) = expression else { return None };
        let Some(WindowType::WindowSpec(window)) = &call.over else { return None };
        let order = |by: &OrderByExpr| {
            let direction = if by.options.asc == Some(false) { " DESC" } else { "" };
            format!("{}{direction}", column_name(&by.expr))
        };
        let partition = window.partition_by.iter().map(column_name).collect();
        Some((partition, window.order_by.iter().map(order).collect()))
    };
    select.projection.iter().filter_map(of_item).collect()
}

/// Whether FROM has a column of this name, which then goes before an alias.
fn is_input_column(tables: &Tables, select: &Select, name: &str) -> bool {
    select.from.iter().any(|from| from_has(tables, from, name))
}

fn from_has(tables: &Tables, from: &TableWithJoins, name: &str) -> bool {
    has_column(tables, &from.relation, name) || from.joins.iter().any(|join| has_column(tables, &join.relation, name))
}

fn has_column(tables: &Tables, relation: &TableFactor, name: &str) -> bool {
    let renamed = alias_columns(relation);
    if !renamed.is_empty() {
        return renamed.contains(&name);
    }
    match relation {
        TableFactor::Table { name: table, .. } => {
            tables.get(&table_name(table)).is_some_and(|table| table.schema.index_of(name).is_ok())
        }
        TableFactor::Derived { subquery, .. } => select_of(subquery).is_some_and(|inner| {
            inner.projection.iter().any(|item| match item {
                SelectItem::ExprWithAlias { alias, .. } => alias.value == name,
                SelectItem::UnnamedExpr(expression) => column_name(expression) == name,
                _ => is_input_column(tables, inner, name),
            })
        }),
        TableFactor::NestedJoin { table_with_joins, .. } => from_has(tables, table_with_joins, name),
        _ => false,
    }
}

/// The columns of `AS t (a, b)`.
fn alias_columns(relation: &TableFactor) -> Vec<&str> {
    let alias = match relation {
        TableFactor::Table { alias, .. }
        | TableFactor::Derived { alias, .. }
        | TableFactor::UNNEST { alias, .. }
        | TableFactor::NestedJoin { alias, .. } => alias.as_ref(),
        _ => None,
    };
    alias.map_or_else(Vec::new, |alias| alias.columns.iter().map(|column| column.name.value.as_str()).collect())
}

/// What a relation is called in its SELECT.
pub(super) fn relation_name(relation: &TableFactor) -> Option<String> {
    match relation {
        TableFactor::Table { alias: Some(alias), .. } | TableFactor::Derived { alias: Some(alias), .. } => {
            Some(alias.name.value.clone())
        }
        TableFactor::Table { name, alias: None, .. } => Some(table_name(name)),
        _ => None,
    }
}

/// A table's name without quotes.
pub(super) fn table_name(name: &ObjectName) -> String {
    name.to_string().replace(['`', '"'], "")
}

/// The equalities that a condition consists of: `a=b`.
pub(super) fn equalities(condition: &Expr) -> Vec<String> {
    let name = |(left, right): (&Expr, &Expr)| format!("{}={}", column_name(left), column_name(right));
    pairs(condition).into_iter().map(name).collect()
}

/// The equalities in WHERE between a column of this relation and one of those before it.
pub(super) fn equal_columns(
    tables: &Tables,
    condition: Option<&Expr>,
    before: &[TableWithJoins],
    relation: &TableFactor,
) -> Vec<String> {
    let is_before = |expression: &Expr| {
        let joined = before.iter().flat_map(|from| from.joins.iter().map(|join| &join.relation));
        before.iter().map(|from| &from.relation).chain(joined).any(|relation| is_of(tables, relation, expression))
    };
    let crosses = |(left, right): &(&Expr, &Expr)| {
        (is_of(tables, relation, left) && is_before(right)) || (is_of(tables, relation, right) && is_before(left))
    };
    let name = |(left, right): (&Expr, &Expr)| format!("{}={}", column_name(left), column_name(right));
    condition.map_or_else(Vec::new, |condition| pairs(condition).into_iter().filter(crosses).map(name).collect())
}

/// Whether an expression is a column of a relation.
fn is_of(tables: &Tables, relation: &TableFactor, expression: &Expr) -> bool {
    match expression {
        Expr::Identifier(name) => has_column(tables, relation, &name.value),
        Expr::CompoundIdentifier(names) => {
            names.first().is_some_and(|first| Some(&first.value) == relation_name(relation).as_ref())
        }
        _ => false,
    }
}

fn pairs(condition: &Expr) -> Vec<(&Expr, &Expr)> {
    match condition {
        Expr::BinaryOp { left, op: BinaryOperator::And, right } => {
            pairs(left).into_iter().chain(pairs(right)).collect()
        }
        Expr::BinaryOp { left, op: BinaryOperator::Eq, right } => vec![(left, right)],
        Expr::Nested(inner) => pairs(inner),
        _ => Vec::new(),
    }
}

/// A column by its last name, anything else as its text.
fn column_name(expression: &Expr) -> String {
    match expression {
        Expr::Identifier(name) => name.value.clone(),
        Expr::CompoundIdentifier(names) => names.last().map_or_else(String::new, |name| name.value.clone()),
        Expr::Nested(inner) => column_name(inner),
        other => other.to_string(),
    }
}
