//! Stable ids of operators (design §9): from the statement as written, before any optimiser sees it (F3).
//!
//! `<sink table>.<kind>(<keys>)`, with the chain of stateful operators below it in between, innermost first: what feeds
//! an operator decides what its state means, so it keeps its id when another is put on top and loses it when another is
//! put below. Projections, filters and the order of columns do not take part. The hint `/*+ UID('name') */` after SELECT takes the place of the derived id
//! of that SELECT's aggregation, and, on the outermost SELECT, of the sink table in the ids of the statement.

use crate::catalog::Tables;
use crate::error::{SourceText, SqlError, SqlErrorKind, nearest};
use crate::validate::Validator;
use datafusion_sql::sqlparser::ast::{
    Expr, GroupByExpr, Query, Select, SelectItem, SetExpr, TableFactor, Value, ValueWithSpan,
};
use sluice_protocol::OperatorUid;

/// Hints of Flink that are known but not supported yet.
const LATER: [&str; 7] = ["OPTIONS", "STATE_TTL", "LOOKUP", "BROADCAST", "SHUFFLE_HASH", "SHUFFLE_MERGE", "NEST_LOOP"];

/// The ids of one statement.
#[derive(Debug)]
pub(crate) struct Uids {
    prefix: String,
    /// Of the aggregations, outermost first.
    pub(crate) aggregates: Vec<OperatorUid>,
}

impl Uids {
    /// Derives them from an INSERT's query.
    pub(crate) fn new(validator: Validator<'_>, sink: &str, query: &Query) -> Result<Self, SqlError> {
        let mut uids = Self { prefix: sink.to_owned(), aggregates: Vec::new() };
        let mut found = Vec::new();
        let mut is_outermost = true;
        let mut next = select_of(query);
        while let Some(select) = next {
            let hint = hint(validator.text, select)?;
            if let Some(hint) = hint.as_ref().filter(|_| is_outermost) {
                uids.prefix.clone_from(hint);
            }
            if validator.is_aggregating(select) {
                found.push((format!(".group-aggregate({})", key_names(validator.tables, select).join(",")), hint));
            }
            is_outermost = false;
            next = select.from.first().and_then(|from| match &from.relation {
                TableFactor::Derived { subquery, .. } => select_of(subquery),
                _ => None,
            });
        }
        uids.name(found);
        Ok(uids)
    }

    /// Names aggregations, which are given outermost first, each with its hint.
    fn name(&mut self, aggregations: Vec<(String, Option<String>)>) {
        let mut chain = self.prefix.clone();
        for (step, hint) in aggregations.into_iter().rev() {
            chain.push_str(&step);
            self.aggregates.push(OperatorUid(hint.unwrap_or_else(|| chain.clone())));
        }
        self.aggregates.reverse();
    }

    /// Of the scan of a table.
    pub(crate) fn source(&self, table: &str) -> OperatorUid {
        OperatorUid(format!("{}.source({table})", self.prefix))
    }

    /// Of the sink.
    pub(crate) fn sink(&self) -> OperatorUid {
        OperatorUid(format!("{}.sink", self.prefix))
    }

    /// Of a stateless operator, by its place in the statement's plan.
    pub(crate) fn calc(&self, number: usize) -> OperatorUid {
        OperatorUid(format!("{}.calc({number})", self.prefix))
    }
}

fn select_of(query: &Query) -> Option<&Select> {
    match query.body.as_ref() {
        SetExpr::Select(select) => Some(select),
        SetExpr::Query(query) => select_of(query),
        _ => None,
    }
}

/// The keys of GROUP BY as written; positions and aliases are replaced by what they stand for.
fn key_names(tables: &Tables, select: &Select) -> Vec<String> {
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

/// Whether FROM has a column of this name, which then goes before an alias.
fn is_input_column(tables: &Tables, select: &Select, name: &str) -> bool {
    select.from.iter().any(|from| match &from.relation {
        TableFactor::Table { name: table, .. } => tables
            .get(&table.to_string().replace(['`', '"'], ""))
            .is_some_and(|table| table.schema.index_of(name).is_ok()),
        TableFactor::Derived { subquery, .. } => select_of(subquery).is_some_and(|inner| {
            inner.projection.iter().any(|item| match item {
                SelectItem::ExprWithAlias { alias, .. } => alias.value == name,
                SelectItem::UnnamedExpr(expression) => column_name(expression) == name,
                _ => false,
            })
        }),
        _ => false,
    })
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

/// The name in a SELECT's `/*+ UID('name') */`.
fn hint(text: SourceText<'_>, select: &Select) -> Result<Option<String>, SqlError> {
    let at = select.select_token.0.span.start;
    let mut found = None;
    for hint in &select.optimizer_hints {
        let written = hint.text.trim();
        let name = written.split('(').next().unwrap_or_default().trim().to_uppercase();
        if LATER.contains(&name.as_str()) {
            return Err(text.unsupported(&format!("the hint {name}"), at));
        }
        if name != "UID" {
            let message = format!("the hint {name} does not exist{}", nearest(&name, ["UID"]));
            return Err(text.error(SqlErrorKind::Hint, at, message));
        }
        let argument = written.split_once('(').and_then(|(_, rest)| rest.strip_suffix(')')).map(str::trim);
        let uid = argument.and_then(|argument| argument.strip_prefix('\'')?.strip_suffix('\''));
        let is_good = |uid: &&str| !uid.is_empty() && !uid.contains(['\'', '/']) && !uid.chars().any(char::is_control);
        let Some(uid) = uid.filter(is_good) else {
            let message = "the hint UID takes one name in single quotes, as in /*+ UID('page views') */";
            return Err(text.error(SqlErrorKind::Hint, at, message));
        };
        if found.replace(uid.to_owned()).is_some() {
            return Err(text.error(SqlErrorKind::Hint, at, "a second UID hint"));
        }
    }
    Ok(found)
}
