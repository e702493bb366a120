//! Conditions go as far down as they mean the same: into joins, and below them.
//!
//! A WHERE over an inner join becomes the join's own condition, which is how a list of tables with commas gets its keys;
//! a condition of one side alone filters that side, before its rows are kept. Of a left join's own conditions only those
//! of the right side go down: a left row that fails its own is still there; of a WHERE over it only those of the left side:
//! the others see the NULLs; of a right join the other way round, of a full join none. Joins are never reordered, so the state of each
//! is what the statement says. Filters keep or drop a row and its retraction alike, so this holds for changelogs.

use datafusion_common::tree_node::{Transformed, TreeNode};
use datafusion_common::{DFSchema, Result};
use datafusion_expr::logical_plan::{Filter, Join};
use datafusion_expr::utils::{conjunction, split_conjunction_owned};
use datafusion_expr::{Expr, JoinType, LogicalPlan};
use std::sync::Arc;

/// Moves all conditions of a plan.
pub(crate) fn push_down(plan: LogicalPlan) -> Result<LogicalPlan> {
    let moved = plan.transform_down(|node| match into_join(below_outer_join(node)?) {
        LogicalPlan::Join(join) => below_join(join).map(Transformed::yes),
        other => Ok(Transformed::yes(other)),
    })?;
    Ok(moved.data)
}

/// A filter over an inner join becomes part of it.
fn into_join(plan: LogicalPlan) -> LogicalPlan {
    let LogicalPlan::Filter(filter) = plan else { return plan };
    match filter.input.as_ref() {
        LogicalPlan::Join(join) if join.join_type == JoinType::Inner => {
            let both = conjunction(join.filter.clone().into_iter().chain([filter.predicate]));
            LogicalPlan::Join(Join { filter: both, ..join.clone() })
        }
        _ => LogicalPlan::Filter(filter),
    }
}

/// What a filter over a left join says of left rows alone goes below it, and likewise right of a right join.
fn below_outer_join(plan: LogicalPlan) -> Result<LogicalPlan> {
    let LogicalPlan::Filter(filter) = &plan else { return Ok(plan) };
    let LogicalPlan::Join(join) = filter.input.as_ref() else { return Ok(plan) };
    let outer = match join.join_type {
        JoinType::Left => &join.left,
        JoinType::Right => &join.right,
        _ => return Ok(plan),
    };
    let is_outer = |condition: &Expr| is_over(condition, outer.schema());
    let (down, rest): (Vec<Expr>, Vec<Expr>) =
        split_conjunction_owned(filter.predicate.clone()).into_iter().partition(is_outer);
    if down.is_empty() {
        return Ok(plan);
    }
    let outer = filtered(outer, down)?;
    let join = match join.join_type {
        JoinType::Left => Join { left: outer, ..join.clone() },
        _ => Join { right: outer, ..join.clone() },
    };
    let join = LogicalPlan::Join(join);
    match conjunction(rest) {
        Some(predicate) => Filter::try_new(predicate, Arc::new(join)).map(LogicalPlan::Filter),
        None => Ok(join),
    }
}

fn below_join(join: Join) -> Result<LogicalPlan> {
    let (to_left, to_right) = match join.join_type {
        JoinType::Inner => (true, true),
        JoinType::Left => (false, true),
        JoinType::Right => (true, false),
        _ => return Ok(LogicalPlan::Join(join)),
    };
    let (mut left, mut right, mut rest) = (Vec::new(), Vec::new(), Vec::new());
    for condition in join.filter.clone().map(split_conjunction_owned).unwrap_or_default() {
        let (of_left, of_right) = (is_over(&condition, join.left.schema()), is_over(&condition, join.right.schema()));
        if of_left && to_left {
            left.push(condition);
        } else if of_right && !of_left && to_right {
            right.push(condition);
        } else {
            rest.push(condition);
        }
    }
    let (left, right) = (filtered(&join.left, left)?, filtered(&join.right, right)?);
    Ok(LogicalPlan::Join(Join { left, right, filter: conjunction(rest), ..join }))
}

fn filtered(plan: &Arc<LogicalPlan>, conditions: Vec<Expr>) -> Result<Arc<LogicalPlan>> {
    match conjunction(conditions) {
        Some(predicate) => Ok(Arc::new(LogicalPlan::Filter(Filter::try_new(predicate, Arc::clone(plan))?))),
        None => Ok(Arc::clone(plan)),
    }
}

/// Whether an expression needs columns of this side only.
pub(crate) fn is_over(expression: &Expr, schema: &DFSchema) -> bool {
    expression.column_refs().iter().all(|column| schema.is_column_from_schema(column))
}
