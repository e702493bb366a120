//! Refuses, by name and place, what queries may say in SQL but Sluice does not run yet.
//!
//! Works on the syntax tree alone, before DataFusion plans it, since only here every clause still has its place. What
//! passes is a chain: one table, or derived tables down to one, with projections, filters and aggregations.

pub(crate) mod clauses;
mod expression;

use crate::catalog::Tables;
use crate::error::{SourceText, SqlError, SqlErrorKind};
use crate::functions::{FunctionKind, Functions};
use crate::window::{self, WindowCall};
use datafusion_sql::sqlparser::ast::{
    Distinct, Expr, GroupByExpr, Join, JoinConstraint, JoinOperator, LimitClause, OrderByKind, Query, Select,
    SelectItem, SetExpr, SetOperator, SetQuantifier, Spanned, TableFactor, Value, ValueWithSpan, visit_expressions,
};
use datafusion_sql::sqlparser::tokenizer::Location;
use std::ops::ControlFlow;

/// Checks queries against what is supported.
#[derive(Clone, Copy)]
pub(crate) struct Validator<'a> {
    /// The text that places point into.
    pub(crate) text: SourceText<'a>,
    /// The declared tables.
    pub(crate) tables: &'a Tables,
    /// The functions that may be called.
    pub(crate) functions: &'a Functions,
}

impl Validator<'_> {
    /// Checks a whole query.
    pub(crate) fn query(self, query: &Query) -> Result<(), SqlError> {
        let Query {
            with,
            body,
            order_by,
            limit_clause,
            fetch,
            locks,
            for_clause,
            settings,
            format_clause,
            pipe_operators,
        } = query;
        if let Some(with) = with {
            return self.refuse("WITH (a common table expression)", with.with_token.0.span.start);
        }
        self.body(body)?;
        let start = query.span().start;
        if let Some(order_by) = order_by {
            let at = match &order_by.kind {
                OrderByKind::Expressions(expressions) => expressions.first().map(|first| first.span().start),
                OrderByKind::All(_) => None,
            };
            return self.refuse("ORDER BY", self.text.keyword_before(at.unwrap_or(start), "ORDER"));
        }
        if let Some(limit) = limit_clause {
            return self.limit(limit, start);
        }
        if fetch.is_some() {
            return self.refuse("FETCH", self.text.keyword_after(start, "FETCH"));
        }
        let others = [
            (!locks.is_empty(), "FOR UPDATE"),
            (for_clause.is_some(), "FOR"),
            (settings.is_some(), "SETTINGS"),
            (format_clause.is_some(), "FORMAT"),
            (!pipe_operators.is_empty(), "the pipe operator |>"),
        ];
        self.refuse_any(&others, start)
    }

    fn limit(self, limit: &LimitClause, start: Location) -> Result<(), SqlError> {
        let (word, at) = match limit {
            LimitClause::LimitOffset { limit: Some(limit), .. } | LimitClause::OffsetCommaLimit { limit, .. } => {
                ("LIMIT", limit.span().start)
            }
            LimitClause::LimitOffset { offset: Some(offset), .. } => ("OFFSET", offset.value.span().start),
            LimitClause::LimitOffset { .. } => ("LIMIT", start),
        };
        self.refuse(word, self.text.keyword_before(at, word))
    }

    fn body(self, body: &SetExpr) -> Result<(), SqlError> {
        match body {
            SetExpr::Select(select) => self.select(select),
            SetExpr::Query(query) => self.query(query),
            SetExpr::SetOperation {
                op: SetOperator::Union,
                set_quantifier: SetQuantifier::All | SetQuantifier::Distinct | SetQuantifier::None,
                left,
                right,
            } => {
                self.body(left)?;
                self.body(right)
            }
            SetExpr::SetOperation { op, right, .. } => {
                let word = op.to_string();
                self.refuse(&word, self.text.keyword_before(right.span().start, &word))
            }
            SetExpr::Values(values) => {
                let mut cells = values.rows.iter().flat_map(|row| &row.content);
                cells.try_for_each(|value| self.scalar(value, "VALUES"))
            }
            other => self.refuse("this statement inside a query", other.span().start),
        }
    }

    fn select(self, select: &Select) -> Result<(), SqlError> {
        let start = select.select_token.0.span.start;
        if matches!(select.distinct, Some(Distinct::On(_))) {
            return self.refuse("DISTINCT ON", self.text.keyword_after(start, "DISTINCT"));
        }
        self.rare_clauses(select, start)?;
        self.from(select)?;
        for item in &select.projection {
            self.item(item)?;
        }
        if let Some(selection) = &select.selection {
            self.scalar(selection, "WHERE")?;
        }
        self.group_by(&select.group_by)?;
        select.having.as_ref().map_or(Ok(()), |having| self.expression(having))
    }

    fn rare_clauses(self, select: &Select, start: Location) -> Result<(), SqlError> {
        if let Some(qualify) = &select.qualify {
            return self.refuse("QUALIFY", self.text.keyword_before(qualify.span().start, "QUALIFY"));
        }
        if select.projection.is_empty() {
            let at = self.text.keyword_after(start, "FROM");
            return self.invalid("SELECT needs a column before FROM: SELECT * FROM …", at);
        }
        self.refuse_some(clauses::of_select(select), start)
    }

    fn from(self, select: &Select) -> Result<(), SqlError> {
        let Some(first) = select.from.first() else { return Ok(()) };
        if let TableFactor::UNNEST { .. } = first.relation {
            let at = self.text.keyword_before(first.relation.span().start, "UNNEST");
            return self.refuse("UNNEST without a table before it", at);
        }
        for from in &select.from {
            self.relation(&from.relation)?;
            from.joins.iter().try_for_each(|join| self.joined(join))?;
        }
        Ok(())
    }

    fn joined(self, join: &Join) -> Result<(), SqlError> {
        let Join { relation, global, join_operator } = join;
        let at = self.text.keyword_before(relation.span().start, "JOIN");
        self.refuse_any(&[(*global, "GLOBAL JOIN")], at)?;
        self.relation(relation)?;
        if matches!(relation, TableFactor::UNNEST { .. }) {
            return self.unnested(join_operator, at);
        }
        match join_operator {
            JoinOperator::CrossJoin(JoinConstraint::None) => Ok(()),
            JoinOperator::Join(constraint)
            | JoinOperator::Inner(constraint)
            | JoinOperator::Left(constraint)
            | JoinOperator::LeftOuter(constraint) => self.join_constraint(constraint, at),
            JoinOperator::Right(JoinConstraint::Using(_)) | JoinOperator::RightOuter(JoinConstraint::Using(_)) => {
                self.refuse("RIGHT JOIN … USING (write ON a.key = b.key, and say whose key is meant)", at)
            }
            JoinOperator::FullOuter(JoinConstraint::Using(_)) => {
                self.refuse("FULL JOIN … USING (write ON a.key = b.key, and COALESCE(a.key, b.key))", at)
            }
            JoinOperator::Right(constraint)
            | JoinOperator::RightOuter(constraint)
            | JoinOperator::FullOuter(constraint) => self.join_constraint(constraint, at),
            _ => self.refuse("this kind of JOIN", at),
        }
    }

    fn join_constraint(self, constraint: &JoinConstraint, at: Location) -> Result<(), SqlError> {
        match constraint {
            JoinConstraint::On(condition) => self.scalar(condition, "ON"),
            JoinConstraint::Using(_) => Ok(()),
            JoinConstraint::Natural => self.refuse("NATURAL JOIN", at),
            JoinConstraint::None => self.invalid("JOIN needs a condition: JOIN … ON a.key = b.key", at),
        }
    }

    fn unnested(self, join_operator: &JoinOperator, at: Location) -> Result<(), SqlError> {
        match join_operator {
            JoinOperator::CrossJoin(JoinConstraint::None) => Ok(()),
            JoinOperator::Left(JoinConstraint::On(condition))
            | JoinOperator::LeftOuter(JoinConstraint::On(condition))
                if matches!(condition, Expr::Value(ValueWithSpan { value: Value::Boolean(true), .. })) =>
            {
                Ok(())
            }
            _ => self.refuse("UNNEST other than by CROSS JOIN or LEFT JOIN … ON TRUE", at),
        }
    }

    fn relation(self, relation: &TableFactor) -> Result<(), SqlError> {
        let at = relation.span().start;
        self.refuse_some(clauses::of_relation(relation), at)?;
        match relation {
            TableFactor::Table { name, .. } => match name.0.as_slice() {
                [part] if part.as_ident().is_some() => {
                    part.as_ident().map_or(Ok(()), |ident| self.tables.resolve(self.text, ident).map(|_| ()))
                }
                _ => self.refuse("a table name with a catalog or database", at),
            },
            TableFactor::Derived { subquery, .. } => match window::of_query(subquery) {
                Some(call) => self.window(subquery, call),
                None => self.query(subquery),
            },
            TableFactor::UNNEST { array_exprs, .. } => {
                array_exprs.iter().try_for_each(|array| self.scalar(array, "UNNEST"))
            }
            TableFactor::NestedJoin { table_with_joins, .. } => {
                self.relation(&table_with_joins.relation)?;
                table_with_joins.joins.iter().try_for_each(|join| self.joined(join))
            }
            _ => self.refuse("this kind of table", at),
        }
    }

    /// A window table function.
    fn window(self, subquery: &Query, call: WindowCall<'_>) -> Result<(), SqlError> {
        if let Err((message, at)) = call.kind() {
            return self.invalid(message, at);
        }
        self.query(&window::stripped(subquery))
    }

    fn item(self, item: &SelectItem) -> Result<(), SqlError> {
        match item {
            SelectItem::UnnamedExpr(expression) => self.selected(expression),
            SelectItem::ExprWithAlias { expr, alias } => {
                self.refuse_some(clauses::of_name(alias), expr.span().start)?;
                self.selected(expr)
            }
            SelectItem::Wildcard(options) => self.refuse_some(clauses::of_wildcard(options), item.span().start),
            SelectItem::QualifiedWildcard(kind, options) => {
                let refused = clauses::of_wildcard_of(kind).or_else(|| clauses::of_wildcard(options));
                self.refuse_some(refused, item.span().start)
            }
            SelectItem::ExprWithAliases { .. } => self.refuse("several aliases", item.span().start),
        }
    }

    fn group_by(self, group_by: &GroupByExpr) -> Result<(), SqlError> {
        match group_by {
            GroupByExpr::All(_) => self.refuse("GROUP BY ALL", group_by.span().start),
            GroupByExpr::Expressions(expressions, modifiers) => {
                for expression in expressions {
                    self.scalar(expression, "GROUP BY")?;
                }
                let at = group_by.span().start;
                self.refuse_any(&[(!modifiers.is_empty(), "a GROUP BY modifier")], at)
            }
        }
    }

    /// Whether this SELECT itself aggregates.
    pub(crate) fn is_aggregating(self, select: &Select) -> bool {
        let groups = matches!(&select.group_by, GroupByExpr::Expressions(keys, _) if !keys.is_empty());
        groups
            || visit_expressions(&select.projection, |expr| self.aggregate_call(expr)).is_break()
            || visit_expressions(&select.having, |expr| self.aggregate_call(expr)).is_break()
    }

    fn aggregate_call(self, expression: &Expr) -> ControlFlow<()> {
        match expression {
            Expr::Function(function)
                if self.functions.kind(&function.name.to_string()) == Ok(FunctionKind::Aggregate) =>
            {
                ControlFlow::Break(())
            }
            _ => ControlFlow::Continue(()),
        }
    }

    fn refuse<T>(self, what: &str, at: Location) -> Result<T, SqlError> {
        Err(self.text.unsupported(what, at))
    }

    fn refuse_any(self, clauses: &[(bool, &str)], at: Location) -> Result<(), SqlError> {
        self.refuse_some(clauses::first(clauses), at)
    }

    fn refuse_some(self, what: Option<&str>, at: Location) -> Result<(), SqlError> {
        what.map_or(Ok(()), |what| self.refuse(what, at))
    }

    fn invalid<T>(self, message: impl Into<String>, at: Location) -> Result<T, SqlError> {
        Err(self.text.error(SqlErrorKind::Invalid, at, message))
    }
}
