//! Stable ids of operators (design §9): from the statement as written, before any optimiser sees it (F3).
//!
//! `<sink table>.<kind>(<keys>)`, with the chain of stateful operators below it in between, innermost first: what feeds
//! an operator decides what its state means, so it keeps its id when another is put on top and loses it when another is
//! put below. Where two inputs meet, both chains stand in brackets: `pv.[group-aggregate(a)|].join(a=b)`. Projections,
//! filters and the order of columns do not take part. Where ids or the two sides of a join would be equal, the tables
//! that are read tell them apart, so that what changes places never finds the other's state:
//! `pv.[clicks.group-aggregate(k)|views.group-aggregate(k)].join(k=k)`. Of equal ids over the same tables the second
//! ends in `#2`.
//!
//! The hint `/*+ UID('name') */` after SELECT takes the place of the derived id of that SELECT's last stateful operator,
//! and, on the outermost SELECT, of the sink table in the ids of the statement. `STATE_TTL('table' = '1 d')` is read
//! here too, since it belongs to the same operators.

mod chain;
mod hint;
mod names;

use crate::error::SqlError;
use crate::validate::Validator;
use crate::window;
use chain::Chain;
use datafusion_sql::sqlparser::ast::{
    Distinct, JoinConstraint, JoinOperator, Query, Select, SetExpr, SetQuantifier, TableFactor, TableWithJoins,
};
use hint::Hints;
use sluice_protocol::OperatorUid;
use std::collections::VecDeque;
use std::time::Duration;

/// A stateful operator of a statement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stateful {
    /// What it does.
    pub(crate) kind: StatefulKind,
    /// Its id.
    pub(crate) uid: OperatorUid,
    /// How long its state is kept after it was last touched: of the left and of the right input, or of the only one.
    pub(crate) ttl: [Option<Duration>; 2],
}

/// What keeps state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StatefulKind {
    /// GROUP BY, or aggregate calls without one.
    Aggregate,
    /// DISTINCT, or UNION without ALL.
    Distinct,
    /// JOIN, or a comma in FROM.
    Join,
    /// ROW_NUMBER with a bound on it.
    Rank,
}

/// The ids of one statement.
#[derive(Debug)]
pub(crate) struct Uids {
    prefix: String,
    /// In the order in which a plan is built: what feeds an operator stands before it, the left side before the right.
    pub(crate) stateful: VecDeque<Stateful>,
}

impl Uids {
    /// Derives them from an INSERT's query.
    pub(crate) fn new(
        validator: Validator<'_>,
        sink: &str,
        query: &Query,
        ttl: Option<Duration>,
    ) -> Result<Self, SqlError> {
        let outermost = names::select_of(query).map(|select| Hints::read(validator.text, select)).transpose()?;
        let prefix = outermost.and_then(|hints| hints.uid).unwrap_or_else(|| sink.to_owned());
        let mut walk = Walk { validator, prefix, ttl, found: Vec::new(), windows: None };
        walk.query(query)?;
        let stateful = walk.stateful();
        Ok(Self { prefix: walk.prefix, stateful })
    }

    /// Of the scan of a table, the first or a later one of the statement.
    pub(crate) fn source(&self, table: &str, number: usize) -> OperatorUid {
        let more = if number > 1 { format!("#{number}") } else { String::new() };
        OperatorUid(format!("{}.source({table}){more}", self.prefix))
    }

    /// Of VALUES, by its place in the statement.
    pub(crate) fn values(&self, number: usize) -> OperatorUid {
        OperatorUid(format!("{}.values({number})", self.prefix))
    }

    /// Of the sink.
    pub(crate) fn sink(&self) -> OperatorUid {
        OperatorUid(format!("{}.sink", self.prefix))
    }

    /// Of what turns filtered updates into upserts.
    pub(crate) fn upsert(&self) -> OperatorUid {
        OperatorUid(format!("{}.upsert", self.prefix))
    }

    /// Of a stateless operator, by its place in the statement's plan.
    pub(crate) fn calc(&self, number: usize) -> OperatorUid {
        OperatorUid(format!("{}.calc({number})", self.prefix))
    }

    /// Of a window table function, by its place among the stateless operators.
    pub(crate) fn window(&self, number: usize) -> OperatorUid {
        OperatorUid(format!("{}.window({number})", self.prefix))
    }

    /// Of an UNNEST, by its place among the stateless operators.
    pub(crate) fn unnest(&self, number: usize) -> OperatorUid {
        OperatorUid(format!("{}.unnest({number})", self.prefix))
    }
}

/// The walk over a statement. Each step returns the chain of stateful operators so far.
struct Walk<'a> {
    validator: Validator<'a>,
    prefix: String,
    ttl: Option<Duration>,
    found: Vec<Found>,
    /// The window table function that was met last and not aggregated yet.
    windows: Option<String>,
}

/// A stateful operator, before all of the statement are known.
struct Found {
    kind: StatefulKind,
    chain: Chain,
    /// The id that the statement gives it.
    uid: Option<String>,
    ttl: [Option<Duration>; 2],
}

impl Walk<'_> {
    fn query(&mut self, query: &Query) -> Result<Chain, SqlError> {
        self.body(&query.body)
    }

    fn body(&mut self, body: &SetExpr) -> Result<Chain, SqlError> {
        match body {
            SetExpr::Select(select) => self.select(select),
            SetExpr::Query(query) => self.query(query),
            SetExpr::SetOperation { set_quantifier, left, right, .. } => {
                let chain = Chain::united(&self.body(left)?, &self.body(right)?);
                if *set_quantifier == SetQuantifier::All {
                    return Ok(chain);
                }
                Ok(self.add(StatefulKind::Distinct, chain.then("distinct()"), [self.ttl; 2]))
            }
            _ => Ok(Chain::default()),
        }
    }

    fn select(&mut self, select: &Select) -> Result<Chain, SqlError> {
        let hints = Hints::read(self.validator.text, select)?;
        hints.check_tables(self.validator.text, select)?;
        let before = self.found.len();
        let mut chain = Chain::default();
        for (index, from) in select.from.iter().enumerate() {
            let next = self.table_with_joins(from, &hints)?;
            if index == 0 {
                chain = next;
                continue;
            }
            let (before, condition) = (&select.from[..index], select.selection.as_ref());
            let keys = names::equal_columns(self.validator.tables, condition, before, &from.relation);
            let left = select.from.first().filter(|first| index == 1 && first.joins.is_empty());
            if matches!(from.relation, TableFactor::UNNEST { .. }) {
                continue;
            }
            chain = self.join(
                &Chain::joined(&chain, &next),
                &keys,
                left.map(|from| &from.relation),
                &from.relation,
                &hints,
            );
        }
        let only = match select.from.as_slice() {
            [from] if from.joins.is_empty() => hints.ttl_of(&from.relation),
            _ => None,
        };
        let ttl = [only.unwrap_or(self.ttl); 2];
        if self.validator.is_aggregating(select) {
            let keys = names::key_names(self.validator.tables, select);
            let operator = self.aggregation(keys);
            chain = self.add(StatefulKind::Aggregate, chain.then(&operator), ttl);
        }
        for (partition, order) in names::row_numbers(select) {
            let operator = format!("rank({};{})", partition.join(","), order.join(","));
            chain = self.add(StatefulKind::Rank, chain.then(&operator), ttl);
        }
        if matches!(select.distinct, Some(Distinct::Distinct)) {
            let columns = names::item_names(select).join(",");
            chain = self.add(StatefulKind::Distinct, chain.then(&format!("distinct({columns})")), ttl);
        }
        if let Some(uid) = hints.uid.filter(|_| self.found.len() > before)
            && let Some(last) = self.found.last_mut()
        {
            last.uid = Some(uid);
        }
        Ok(chain)
    }

    fn table_with_joins(&mut self, from: &TableWithJoins, hints: &Hints) -> Result<Chain, SqlError> {
        let mut chain = self.relation(&from.relation, hints)?;
        for (index, join) in from.joins.iter().enumerate() {
            if matches!(join.relation, TableFactor::UNNEST { .. }) {
                continue;
            }
            let right = self.relation(&join.relation, hints)?;
            let keys = match constraint(&join.join_operator) {
                Some(JoinConstraint::On(condition)) => names::equalities(condition),
                Some(JoinConstraint::Using(columns)) => columns.iter().map(ToString::to_string).collect(),
                _ => Vec::new(),
            };
            let left = (index == 0).then_some(&from.relation);
            chain = self.join(&Chain::joined(&chain, &right), &keys, left, &join.relation, hints);
        }
        Ok(chain)
    }

    /// Adds a join; its left input has a name only where it is a table and not another join.
    fn join(
        &mut self,
        inputs: &Chain,
        keys: &[String],
        left: Option<&TableFactor>,
        right: &TableFactor,
        hints: &Hints,
    ) -> Chain {
        let of =
            |relation: Option<&TableFactor>| relation.and_then(|relation| hints.ttl_of(relation)).unwrap_or(self.ttl);
        let ttl = [of(left), of(Some(right))];
        self.add(StatefulKind::Join, inputs.then(&format!("join({})", keys.join(","))), ttl)
    }

    fn relation(&mut self, relation: &TableFactor, hints: &Hints) -> Result<Chain, SqlError> {
        match relation {
            TableFactor::Derived { subquery, .. } => {
                let chain = self.query(subquery)?;
                if let Some(Ok(windows)) = window::of_query(subquery).map(window::WindowCall::kind) {
                    self.windows = Some(windows.to_string());
                }
                Ok(chain)
            }
            TableFactor::NestedJoin { table_with_joins, .. } => self.table_with_joins(table_with_joins, hints),
            TableFactor::Table { name, .. } => Ok(Chain::of_table(&names::table_name(name))),
            _ => Ok(Chain::default()),
        }
    }

    /// `group-aggregate(k)`, or `window-aggregate(TUMBLE(10000 ms),k)`, whose lengths decide what its state means.
    fn aggregation(&mut self, keys: Vec<String>) -> String {
        let is_window = |key: &String| key == "window_start" || key == "window_end";
        if keys.iter().filter(|key| is_window(key)).count() < 2 {
            return format!("group-aggregate({})", keys.join(","));
        }
        let others = keys.into_iter().filter(|key| !is_window(key) && key != "window_time");
        let parts: Vec<String> = self.windows.take().into_iter().chain(others).collect();
        format!("window-aggregate({})", parts.join(","))
    }

    /// Adds an operator; returns its chain.
    fn add(&mut self, kind: StatefulKind, chain: Chain, ttl: [Option<Duration>; 2]) -> Chain {
        self.found.push(Found { kind, chain: chain.clone(), uid: None, ttl });
        chain
    }

    /// All operators with their ids.
    fn stateful(&self) -> VecDeque<Stateful> {
        let chains: Vec<&Chain> = self.found.iter().map(|found| &found.chain).collect();
        let derived = chain::distinct_texts(&chains).into_iter().map(|text| format!("{}{text}", self.prefix));
        let with_ids = self.found.iter().zip(derived).map(|(found, derived)| Stateful {
            kind: found.kind,
            uid: OperatorUid(found.uid.clone().unwrap_or(derived)),
            ttl: found.ttl,
        });
        with_ids.collect()
    }
}

/// ON or USING of the joins that are supported.
pub(crate) const fn constraint(operator: &JoinOperator) -> Option<&JoinConstraint> {
    match operator {
        JoinOperator::Join(constraint)
        | JoinOperator::Inner(constraint)
        | JoinOperator::Left(constraint)
        | JoinOperator::LeftOuter(constraint)
        | JoinOperator::Right(constraint)
        | JoinOperator::RightOuter(constraint)
        | JoinOperator::FullOuter(constraint)
        | JoinOperator::CrossJoin(constraint) => Some(constraint),
        _ => None,
    }
}
