//! UNNEST in FROM: every row of the left side once per element of an array that is computed from it.
//!
//! DataFusion's planner asks [`UnnestPlanner`] for the relation, which gives a [`Flatten`] without an input whose array
//! refers to the left side as to an outer query; [`merge`] then puts the left side below it.

use crate::relational::narrow;
use arrow::datatypes::{DataType, Field, FieldRef};
use datafusion_common::tree_node::{Transformed, TreeNode};
use datafusion_common::{DFSchema, DFSchemaRef, Result, ScalarValue, TableReference, internal_err, plan_err};
use datafusion_expr::logical_plan::{Extension, Join};
use datafusion_expr::planner::{PlannedRelation, RelationPlanner, RelationPlannerContext, RelationPlanning};
use datafusion_expr::{Expr, ExprSchemable, JoinType, LogicalPlan, UserDefinedLogicalNodeCore};
use datafusion_sql::sqlparser::ast::TableFactor;
use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

/// The node of the plan.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Flatten {
    /// None until [`merge`].
    input: Option<LogicalPlan>,
    /// The array, over the input.
    pub(crate) list: Expr,
    /// Whether the number of the element, from 1, follows it.
    pub(crate) has_ordinality: bool,
    /// Whether a row without elements stays, with NULLs.
    pub(crate) is_outer: bool,
    schema: DFSchemaRef,
}

impl Flatten {
    /// What it flattens.
    pub(crate) fn input(&self) -> Result<&LogicalPlan> {
        match &self.input {
            Some(input) => Ok(input),
            None => internal_err!("UNNEST has no left side"),
        }
    }
}

impl PartialOrd for Flatten {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        self.list.partial_cmp(&other.list)
    }
}

impl UserDefinedLogicalNodeCore for Flatten {
    fn name(&self) -> &str {
        "Unnest"
    }

    fn inputs(&self) -> Vec<&LogicalPlan> {
        self.input.iter().collect()
    }

    fn schema(&self) -> &DFSchemaRef {
        &self.schema
    }

    fn expressions(&self) -> Vec<Expr> {
        vec![self.list.clone()]
    }

    fn fmt_for_explain(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "Unnest: {}", self.list)
    }

    fn with_exprs_and_inputs(&self, expressions: Vec<Expr>, inputs: Vec<LogicalPlan>) -> Result<Self> {
        let Some(list) = expressions.into_iter().next() else { return internal_err!("UNNEST lost its array") };
        let input = inputs.into_iter().next();
        let own = 1 + usize::from(self.has_ordinality);
        let first = self.schema.fields().len().saturating_sub(own);
        let mut fields: Vec<(Option<TableReference>, FieldRef)> = Vec::new();
        if let Some(input) = &input {
            fields.extend(input.schema().iter().map(|(qualifier, field)| (qualifier.cloned(), Arc::clone(field))));
        }
        let made = self.schema.iter().skip(first);
        fields.extend(made.map(|(qualifier, field)| (qualifier.cloned(), Arc::clone(field))));
        let schema = Arc::new(DFSchema::new_with_metadata(fields, Default::default())?);
        Ok(Self { input, list, schema, ..self.clone() })
    }

    fn necessary_children_exprs(&self, output_columns: &[usize]) -> Option<Vec<Vec<usize>>> {
        let columns = self.input.as_ref()?.schema().fields().len();
        Some(vec![output_columns.iter().copied().filter(|column| *column < columns).collect()])
    }
}

/// Plans UNNEST.
#[derive(Debug)]
pub(crate) struct UnnestPlanner;

impl RelationPlanner for UnnestPlanner {
    fn plan_relation(
        &self,
        relation: TableFactor,
        context: &mut dyn RelationPlannerContext,
    ) -> Result<RelationPlanning> {
        let TableFactor::UNNEST { alias, array_exprs, with_ordinality, .. } = relation else {
            return Ok(RelationPlanning::Original(Box::new(relation)));
        };
        let [array] = array_exprs.as_slice() else { return plan_err!("UNNEST takes one array") };
        let list = context.sql_to_expr(array.clone(), &DFSchema::empty())?;
        let list = list.transform_up(|node| Ok(narrow(node)))?.data;
        let element = match list.get_type(&DFSchema::empty())? {
            DataType::List(element) | DataType::LargeList(element) => element.data_type().clone(),
            other => return plan_err!("UNNEST takes an array, not {}", crate::types::sql_name(&other)),
        };
        let mut fields = vec![Field::new("f0", element, true)];
        if with_ordinality {
            fields.push(Field::new("ORDINALITY", DataType::Int32, true));
        }
        let schema = Arc::new(DFSchema::from_unqualified_fields(fields.into(), Default::default())?);
        let node = Flatten { input: None, list, has_ordinality: with_ordinality, is_outer: false, schema };
        let plan = LogicalPlan::Extension(Extension { node: Arc::new(node) });
        Ok(RelationPlanning::Planned(Box::new(PlannedRelation::new(plan, alias))))
    }
}

/// Puts the left side of a join with UNNEST below it.
pub(crate) fn merge(plan: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    let LogicalPlan::Join(join) = &plan else { return Ok(Transformed::no(plan)) };
    let Some(unnest) = unnest_of(&join.right) else { return Ok(Transformed::no(plan)) };
    let is_true = |filter: &Expr| matches!(filter, Expr::Literal(ScalarValue::Boolean(Some(true)), _));
    let is_plain = join.on.is_empty() && join.filter.as_ref().is_none_or(is_true);
    let is_outer = match join.join_type {
        JoinType::Inner if is_plain => false,
        JoinType::Left if is_plain => true,
        _ => return plan_err!("UNNEST is joined by CROSS JOIN, or by LEFT JOIN … ON TRUE; filter with WHERE"),
    };
    let list = unnest.list.clone().transform_up(|node| {
        Ok(match node {
            Expr::OuterReferenceColumn(_, column) => Transformed::yes(Expr::Column(column)),
            other => Transformed::no(other),
        })
    })?;
    let Join { left, schema, .. } = join;
    let node = Flatten {
        input: Some(left.as_ref().clone()),
        list: list.data,
        has_ordinality: unnest.has_ordinality,
        is_outer,
        schema: Arc::clone(schema),
    };
    Ok(Transformed::yes(LogicalPlan::Extension(Extension { node: Arc::new(node) })))
}

/// The UNNEST behind an alias.
fn unnest_of(plan: &LogicalPlan) -> Option<&Flatten> {
    match plan {
        LogicalPlan::SubqueryAlias(alias) => unnest_of(&alias.input),
        LogicalPlan::Subquery(subquery) => unnest_of(&subquery.subquery),
        LogicalPlan::Projection(projection) => unnest_of(&projection.input),
        LogicalPlan::Extension(extension) => of_extension(extension).filter(|node| node.input.is_none()),
        _ => None,
    }
}

/// The node as ours.
pub(crate) fn of_extension(extension: &Extension) -> Option<&Flatten> {
    extension.node.as_any().downcast_ref::<Flatten>()
}
