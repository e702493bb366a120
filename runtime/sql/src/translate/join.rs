//! JOIN: both sides are exchanged by the keys that must be equal, then joined per key; other conditions are checked there.
//!
//! Conditions of one side alone are below the join already ([`crate::pushdown`]). Equality that is not of plain columns
//! is computed before the exchange, in columns that end at the join.

use super::aggregate::make_names_unique;
use super::bounds::{Bounded, bounds};
use super::time::Times;
use super::window::WindowColumns;
use super::{Lineage, Stream, Translator, Updates};
use crate::calc::{self, Calc, Output, Value};
use crate::error::SqlError;
use crate::graph::Chain;
use crate::operators;
use crate::pushdown::is_over;
use crate::uid::StatefulKind;
use crate::written;
use arrow::datatypes::{Field, Schema, SchemaRef};
use datafusion_common::tree_node::{Transformed, TreeNode};
use datafusion_common::{DFSchema, NullEquality, ScalarValue};
use datafusion_expr::logical_plan::Join;
use datafusion_expr::utils::{conjunction, split_conjunction_owned};
use datafusion_expr::{BinaryExpr, Expr, JoinType, Operator};
use datafusion_physical_expr::PhysicalExpr;
use datafusion_physical_expr::expressions::Column;
use sluice_engine::join::{JoinFactory, JoinKind, JoinSpec};
use sluice_protocol::TimeSpan;
use sluice_protocol::graph::{OperatorInfo, OperatorKind, Partitioning};
use std::sync::Arc;

/// An expression of the left side and one of the right side that must be equal.
type Pair = (Expr, Expr);

/// A side, ready to be exchanged.
pub(super) struct Side {
    pub(super) stream: Stream,
    /// How many of the chain's columns the plan knows; keys that are computed follow.
    pub(super) columns: usize,
    pub(super) keys: Vec<usize>,
    pub(super) key_names: Vec<String>,
}

impl Translator<'_> {
    pub(super) fn join(&mut self, join: &Join) -> Result<Stream, SqlError> {
        let kind = match join.join_type {
            JoinType::Inner => JoinKind::Inner,
            JoinType::Left => JoinKind::LeftOuter,
            JoinType::Right => JoinKind::RightOuter,
            JoinType::Full => JoinKind::FullOuter,
            other => return Err(self.statement.unsupported(&format!("{other} JOIN"))),
        };
        let (keys, rest) = self.conditions(join)?;
        let left = self.stream(&join.left, true)?;
        let right = self.stream(&join.right, true)?;
        let stateful = self.next_stateful(StatefulKind::Join)?;
        if keys.is_empty() {
            let what = "JOIN without an equality between a column of the one side and one of the other";
            return Err(self.statement.unsupported(what));
        }
        let (left_keys, right_keys): (Vec<Expr>, Vec<Expr>) = keys.into_iter().unzip();
        let left = self.side(left, &left_keys)?;
        let right = self.side(right, &right_keys)?;
        let bounded = bounds(&left, &right, &rest);
        let rest = conjunction(rest);
        let condition = rest.map(|rest| self.condition(join, &rest, &left, &right)).transpose()?;
        let description = describe(kind, bounded.map(|(how, _)| how), &left, &right, condition.as_ref());
        let output = output_schema(left.stream.chain.schema(), right.stream.chain.schema(), kind);
        let spec = JoinSpec {
            kind,
            left: Arc::clone(left.stream.chain.schema()),
            right: Arc::clone(right.stream.chain.schema()),
            left_keys: left.keys.clone(),
            right_keys: right.keys.clone(),
            condition: condition.map(operators::computed),
            output: Arc::clone(&output),
            // What time bounds lives as long as that says.
            left_ttl: stateful.ttl[0].map(TimeSpan::from).filter(|_| bounded.is_none()),
            right_ttl: stateful.ttl[1].map(TimeSpan::from).filter(|_| bounded.is_none()),
            bounds: bounded.map(|(_, bounds)| bounds),
        };
        let factory = JoinFactory::new(spec).map_err(|error| self.statement.invalid(&error.to_string()))?;
        let windows = joined_windows(&left, &right, kind).filter(|_| matches!(bounded, Some((Bounded::Window, _))));
        let (lineage, updates) = match kind {
            _ if bounded.is_some() => (vec![Lineage::Other; left.columns + right.columns], None),
            JoinKind::RightOuter => {
                let (mut lineage, updates) = traced(&right, &left, JoinKind::LeftOuter, &description);
                lineage.rotate_left(right.columns);
                (lineage, updates)
            }
            _ => traced(&left, &right, kind, &description),
        };
        let calc = joined_calc(&output, &left, &right);
        let inputs = [left, right].map(|side| (side.stream.chain, Partitioning::Hash { keys: side.keys }));
        let [left, right] = inputs;
        let inputs = [(self.close(left.0)?, left.1), (self.close(right.0)?, right.1)];
        let mut chain = Chain::from_two(inputs, self.statement.options.parallelism, output);
        let info = OperatorInfo { uid: stateful.uid, kind: OperatorKind::Keyed, description };
        chain.push(info, "Join", Arc::new(factory));
        Ok(Stream { chain, calc, schema: Arc::clone(&join.schema), lineage, updates, times: Times::default(), windows })
    }

    /// The pairs that must be equal, and what else must hold.
    fn conditions(&self, join: &Join) -> Result<(Vec<Pair>, Vec<Expr>), SqlError> {
        if join.null_equality != NullEquality::NullEqualsNothing {
            return Err(self.statement.unsupported("a JOIN by IS NOT DISTINCT FROM"));
        }
        let (mut keys, mut rest) = (join.on.clone(), Vec::new());
        for condition in join.filter.clone().map(split_conjunction_owned).unwrap_or_default() {
            match equality(&condition, join.left.schema(), join.right.schema()) {
                Some(pair) => keys.push(pair),
                None if is_true(&condition) => {}
                None => rest.push(condition),
            }
        }
        Ok((keys, rest))
    }

    /// Makes the keys of a side columns of its chain.
    pub(super) fn side(&mut self, stream: Stream, keys: &[Expr]) -> Result<Side, SqlError> {
        let columns = stream.schema.fields().len();
        let column = |(index, output): (usize, &Output)| {
            let field = Arc::clone(&output.field);
            Output { field, value: Value::Column(index), not_null: None }
        };
        let mut outputs: Vec<Output> = stream.calc.outputs.iter().take(columns).enumerate().map(column).collect();
        let mut positions = Vec::new();
        for key in keys {
            let made = calc::compile(key, "", &stream.schema, &stream.calc);
            let made = made.map_err(|error| self.statement.planning(&error))?;
            positions.push(match &made.value {
                Value::Column(index) => *index,
                Value::Computed(expression) => {
                    let field = Arc::new(made.field.as_ref().clone().with_name(calc::column_name(expression)));
                    outputs.push(Output { field, ..made });
                    outputs.len() - 1
                }
            });
        }
        make_names_unique(&mut outputs);
        let key_names = positions.iter().map(|key| outputs[*key].field.name().clone()).collect();
        let stream = self.project(stream, outputs)?;
        Ok(Side { stream: self.fuse(stream), columns, keys: positions, key_names })
    }

    /// A condition over the rows of both sides as the join has them.
    fn condition(
        &self,
        join: &Join,
        condition: &Expr,
        left: &Side,
        right: &Side,
    ) -> Result<Arc<dyn PhysicalExpr>, SqlError> {
        let planning = |error| self.statement.planning(&error);
        let both = DFSchema::join(join.left.schema(), join.right.schema()).map_err(planning)?;
        let calc = joined_calc(
            &output_schema(left.stream.chain.schema(), right.stream.chain.schema(), JoinKind::Inner),
            left,
            right,
        );
        let compiled = calc::physical(condition, &both, &calc).map_err(planning)?;
        let moved = calc.over_input(&compiled).map_err(planning)?;
        moved.ok_or_else(|| self.statement.internal("a condition of a JOIN needs a column that it does not have"))
    }
}

/// `left = right`, whichever way it is written.
fn equality(condition: &Expr, left: &DFSchema, right: &DFSchema) -> Option<Pair> {
    let Expr::BinaryExpr(BinaryExpr { left: one, op: Operator::Eq, right: other }) = condition else { return None };
    let refers =
        |expression: &Expr, schema: &DFSchema| !expression.column_refs().is_empty() && is_over(expression, schema);
    if refers(one, left) && refers(other, right) {
        Some((one.as_ref().clone(), other.as_ref().clone()))
    } else if refers(other, left) && refers(one, right) {
        Some((other.as_ref().clone(), one.as_ref().clone()))
    } else {
        None
    }
}

const fn is_true(condition: &Expr) -> bool {
    matches!(condition, Expr::Literal(ScalarValue::Boolean(Some(true)), _))
}

/// The columns of both sides, computed keys included; those of a side may be missing where the other is outer.
fn output_schema(left: &SchemaRef, right: &SchemaRef, kind: JoinKind) -> SchemaRef {
    let field = |field: &Arc<Field>, may_lack: bool| {
        Arc::new(field.as_ref().clone().with_nullable(field.is_nullable() || may_lack))
    };
    let left = left.fields().iter().map(|own| field(own, kind.is_outer(1)));
    let right = right.fields().iter().map(|own| field(own, kind.is_outer(0)));
    Arc::new(Schema::new(left.chain(right).collect::<Vec<_>>()))
}

/// The columns that the plan knows, out of those that the join gives.
fn joined_calc(output: &SchemaRef, left: &Side, right: &Side) -> Calc {
    let mut calc = Calc::identity(output);
    let first = left.stream.chain.schema().fields().len();
    let kept = (0..left.columns).chain(first..first + right.columns);
    calc.outputs = kept.map(|index| calc.outputs[index].clone()).collect();
    calc
}

/// Where the columns of a join come from, and how its rows change.
///
/// Its rows have a key whose changes come in order when both sides have one, or the right side at most one row per key
/// of the join; and when the columns that decide where a row is joined are part of that key, since changes that are
/// joined in different places overtake each other. Of a full join neither side's key is always there.
fn traced(left: &Side, right: &Side, kind: JoinKind, node: &str) -> (Vec<Lineage>, Option<Updates>) {
    let columns = left.columns + right.columns;
    let nothing = vec![Lineage::Other; columns];
    let inputs = [&left.stream.updates, &right.stream.updates];
    let changes = inputs.iter().any(|updates| updates.is_some()) || kind != JoinKind::Inner;
    if !changes {
        return (nothing, None);
    }
    let unkeyed = Updates { node: node.to_owned(), keys: None, are_filtered: false, in_pairs: false };
    let keys = |side: &Side| side.stream.updates.as_ref().and_then(|updates| updates.keys.clone());
    let (Some(left_keys), Some(right_keys)) = (keys(left), keys(right)) else { return (nothing, Some(unkeyed)) };
    let of = |side: &Side, column: usize| side.stream.lineage.get(column).copied().unwrap_or(Lineage::Other);
    let joined_by_key = |side: &Side| side.keys.iter().all(|key| of(side, *key) != Lineage::Other);
    // Which left key each right key is equal to.
    let same = |right_key: usize| {
        left.keys.iter().zip(&right.keys).find_map(|(one, other)| match (of(left, *one), of(right, *other)) {
            (Lineage::Key(key), Lineage::Key(other)) if other == right_key => Some(key),
            _ => None,
        })
    };
    if !joined_by_key(left) || !joined_by_key(right) || kind == JoinKind::FullOuter {
        return (nothing, Some(unkeyed));
    }
    let (mut names, mut places) = (left_keys, Vec::new());
    for (index, name) in right_keys.into_iter().enumerate() {
        places.push(same(index).unwrap_or(names.len()));
        if same(index).is_none() {
            names.push(name);
        }
    }
    let is_outer = kind == JoinKind::LeftOuter;
    let right_lineage = |column: usize| match of(right, column) {
        // Where nothing matches, the right side's columns are NULL: they tell rows apart, but are no constants.
        Lineage::Key(key) if !is_outer || places[key] >= names.len() => Lineage::Key(places[key]),
        Lineage::Constant if !is_outer => Lineage::Constant,
        _ => Lineage::Other,
    };
    let lineage = (0..left.columns).map(|column| of(left, column));
    let lineage = lineage.chain((0..right.columns).map(right_lineage)).collect();
    (lineage, Some(Updates { keys: Some(names), ..unkeyed }))
}

/// The windows of the rows of a join by windows: those of a side that is always there.
fn joined_windows(left: &Side, right: &Side, kind: JoinKind) -> Option<WindowColumns> {
    match kind {
        JoinKind::Inner | JoinKind::LeftOuter => left.stream.windows.clone(),
        JoinKind::RightOuter => right.stream.windows.as_ref().map(|windows| windows.behind(left.columns)),
        JoinKind::FullOuter => None,
    }
}

/// The name of a column of both sides, those of the left one first; with its side where the other has one of that name.
fn column_of(left: &Side, right: &Side, column: usize) -> String {
    let [own, other] = [left, right].map(|side| side.stream.chain.schema());
    let (name, word, other) = match column.checked_sub(own.fields().len()) {
        None => (own.field(column).name(), "left", other),
        Some(column) => (other.field(column).name(), "right", own),
    };
    if other.index_of(name).is_ok() { format!("{word}.{name}") } else { name.clone() }
}

/// `Join(joinType=[InnerJoin], where=[a = b], …)`, as Flink's EXPLAIN says it.
fn describe(
    kind: JoinKind,
    bounded: Option<Bounded>,
    left: &Side,
    right: &Side,
    condition: Option<&Arc<dyn PhysicalExpr>>,
) -> String {
    let kind = match kind {
        JoinKind::Inner => "InnerJoin",
        JoinKind::LeftOuter => "LeftOuterJoin",
        JoinKind::RightOuter => "RightOuterJoin",
        JoinKind::FullOuter => "FullOuterJoin",
    };
    let pairs = left.keys.iter().zip(&right.keys).map(|(one, other)| {
        let first = left.stream.chain.schema().fields().len();
        format!("{} = {}", column_of(left, right, *one), column_of(left, right, first + other))
    });
    let said = condition.map(|condition| {
        let named = Arc::clone(condition).transform_up(|node| {
            Ok(match node.downcast_ref::<Column>().map(Column::index) {
                Some(index) => Transformed::yes(Arc::new(Column::new(&column_of(left, right, index), index)) as _),
                None => Transformed::no(node),
            })
        });
        named.map_or_else(|_| written::sql(condition), |named| written::sql(&named.data))
    });
    let all: Vec<String> = pairs.chain(said).collect();
    let names = |side: &Side| {
        let fields = side.stream.chain.schema().fields().iter().take(side.columns);
        fields.map(|field| field.name().clone()).collect::<Vec<_>>().join(", ")
    };
    let join = match bounded {
        None => "Join",
        Some(Bounded::Window) => "WindowJoin",
        Some(Bounded::Interval) => "IntervalJoin",
    };
    format!(
        "{join}(joinType=[{kind}], where=[{}], left=[{}], right=[{}])",
        all.join(" AND "),
        names(left),
        names(right)
    )
}
