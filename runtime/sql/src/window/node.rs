//! A window table function in the logical plan, and what may be counted by slices.

use super::{Windows, of_query, stripped};
use arrow::datatypes::{DataType, Field, FieldRef, TimeUnit};
use datafusion_common::{Column, DFSchema, DFSchemaRef, Result, TableReference, internal_err, plan_err};
use datafusion_expr::logical_plan::{Aggregate, Extension};
use datafusion_expr::planner::{PlannedRelation, RelationPlanner, RelationPlannerContext, RelationPlanning};
use datafusion_expr::{Expr, LogicalPlan, UserDefinedLogicalNodeCore};
use datafusion_sql::sqlparser::ast::TableFactor;
use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// The columns of a window, in their order behind the input's.
const COLUMNS: [&str; 3] = ["window_start", "window_end", "window_time"];

/// The node of the plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WindowNode {
    pub(crate) input: LogicalPlan,
    /// The time of a row, a column of the input; none: the clock.
    pub(crate) time: Option<Expr>,
    pub(crate) windows: Windows,
    /// Of sessions: the columns that a session belongs to.
    pub(crate) partition: Vec<Expr>,
    schema: DFSchemaRef,
}

impl WindowNode {
    fn new(input: LogicalPlan, time: Option<Expr>, windows: Windows, partition: Vec<Expr>) -> Result<Self> {
        let at = DataType::Timestamp(TimeUnit::Millisecond, None);
        let last = match &time {
            Some(Expr::Column(column)) => input.schema().qualified_field_from_column(column)?.1.data_type().clone(),
            _ => processing_type(),
        };
        if let Some(taken) = COLUMNS.iter().find(|name| input.schema().has_column_with_unqualified_name(name)) {
            return plan_err!(
                "the rows of a window table function have a column '{taken}' already: give it another name"
            );
        }
        let own = COLUMNS.iter().zip([at.clone(), at, last]);
        // Where rows are counted by slice these hold the time of the row, which may be NULL.
        let own = own.map(|(name, data_type)| Arc::new(Field::new(*name, data_type, true)));
        let schema = with_columns(input.schema(), own)?;
        Ok(Self { input, time, windows, partition, schema })
    }
}

/// The type of PROCTIME().
pub(crate) fn processing_type() -> DataType {
    DataType::Timestamp(TimeUnit::Millisecond, Some(Arc::from("UTC")))
}

fn with_columns(input: &DFSchema, own: impl Iterator<Item = FieldRef>) -> Result<DFSchemaRef> {
    let mut fields: Vec<(Option<TableReference>, FieldRef)> =
        input.iter().map(|(qualifier, field)| (qualifier.cloned(), Arc::clone(field))).collect();
    fields.extend(own.map(|field| (None, field)));
    Ok(Arc::new(DFSchema::new_with_metadata(fields, Default::default())?))
}

impl PartialOrd for WindowNode {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        self.time.partial_cmp(&other.time)
    }
}

impl Hash for WindowNode {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.input, &self.time, self.windows.to_string(), &self.partition).hash(state);
    }
}

impl UserDefinedLogicalNodeCore for WindowNode {
    fn name(&self) -> &str {
        "WindowTableFunction"
    }

    fn inputs(&self) -> Vec<&LogicalPlan> {
        vec![&self.input]
    }

    fn schema(&self) -> &DFSchemaRef {
        &self.schema
    }

    fn expressions(&self) -> Vec<Expr> {
        self.time.iter().chain(&self.partition).cloned().collect()
    }

    fn fmt_for_explain(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "WindowTableFunction: {}", self.windows)
    }

    fn with_exprs_and_inputs(&self, expressions: Vec<Expr>, inputs: Vec<LogicalPlan>) -> Result<Self> {
        let Some(input) = inputs.into_iter().next() else { return internal_err!("a window lost its input") };
        let mut expressions = expressions.into_iter();
        let time = self.time.as_ref().and_then(|_| expressions.next());
        let first = self.schema.fields().len() - COLUMNS.len();
        let own = self.schema.fields().iter().skip(first).cloned();
        let schema = with_columns(input.schema(), own)?;
        Ok(Self { input, time, windows: self.windows.clone(), partition: expressions.collect(), schema })
    }

    fn necessary_children_exprs(&self, output_columns: &[usize]) -> Option<Vec<Vec<usize>>> {
        let columns = self.input.schema().fields().len();
        Some(vec![output_columns.iter().copied().filter(|column| *column < columns).collect()])
    }
}

/// Plans window table functions.
#[derive(Debug)]
pub(crate) struct WindowPlanner;

impl RelationPlanner for WindowPlanner {
    fn plan_relation(
        &self,
        relation: TableFactor,
        context: &mut dyn RelationPlannerContext,
    ) -> Result<RelationPlanning> {
        let TableFactor::Derived { lateral, subquery, alias, sample } = relation else {
            return Ok(RelationPlanning::Original(Box::new(relation)));
        };
        let Some(call) = of_query(&subquery) else {
            return Ok(RelationPlanning::Original(Box::new(TableFactor::Derived { lateral, subquery, alias, sample })));
        };
        let windows = match call.kind() {
            Ok(windows) => windows,
            Err((message, _)) => return plan_err!("{message}"),
        };
        let read = TableFactor::Derived { lateral, subquery: Box::new(stripped(&subquery)), alias: None, sample };
        let input = context.plan(read)?;
        let mut column = |expression| match context.sql_to_expr(expression, input.schema())? {
            Expr::Column(column) => Ok(column),
            other => plan_err!("{other} is no column"),
        };
        let Some(time) = call.time() else { return internal_err!("a window table function without a time") };
        let time = column(time.clone())?;
        let partition = call.partition().into_iter().map(|key| Ok(Expr::Column(column(key.clone())?)));
        let partition = partition.collect::<Result<_>>()?;
        let time = if is_proctime(&input, &time)? { None } else { Some(Expr::Column(time)) };
        let node = WindowNode::new(input, time, windows, partition)?;
        let plan = LogicalPlan::Extension(Extension { node: Arc::new(node) });
        Ok(RelationPlanning::Planned(Box::new(PlannedRelation::new(plan, alias))))
    }
}

/// The node as ours.
pub(crate) fn of_extension(extension: &Extension) -> Option<&WindowNode> {
    extension.node.as_any().downcast_ref::<WindowNode>()
}

/// Whether a column of a plan is PROCTIME().
fn is_proctime(plan: &LogicalPlan, column: &Column) -> Result<bool> {
    let index = plan.schema().index_of_column(column)?;
    match plan {
        LogicalPlan::Projection(projection) => match projection.expr.get(index).cloned().map(Expr::unalias) {
            Some(Expr::Column(below)) => is_proctime(&projection.input, &below),
            Some(Expr::ScalarFunction(call)) => Ok(call.func.name() == crate::functions::PROCTIME),
            _ => Ok(false),
        },
        LogicalPlan::SubqueryAlias(alias) => {
            is_proctime(&alias.input, &Column::from(alias.input.schema().qualified_field(index)))
        }
        LogicalPlan::Filter(filter) => is_proctime(&filter.input, column),
        _ => Ok(false),
    }
}

/// Whether an aggregation groups by the start and the end of the windows of a table function right below it, and nothing else
/// looks at the columns of the window: then it needs no row of its own for each window.
pub(crate) fn sliced(aggregate: &Aggregate) -> bool {
    let Some(columns) = window_columns(&aggregate.input) else { return false };
    let schema = aggregate.input.schema();
    let mut found = [false; 3];
    for key in &aggregate.group_expr {
        match key.clone().unalias() {
            Expr::Column(column) => {
                if let Some(part) = schema.maybe_index_of_column(&column).and_then(|index| columns[index]) {
                    // A second name of it would be a key of its own.
                    if std::mem::replace(&mut found[part], true) {
                        return false;
                    }
                }
            }
            other if looks_at(&other, schema, &columns) => return false,
            _ => {}
        }
    }
    found[0] && found[1] && !aggregate.aggr_expr.iter().any(|call| looks_at(call, schema, &columns))
}

/// Which columns of a plan are those of a window table function, by their positions in [`COLUMNS`]; `None` when there is no
/// function, or something between looks at them.
fn window_columns(plan: &LogicalPlan) -> Option<Vec<Option<usize>>> {
    match plan {
        LogicalPlan::Extension(extension) => {
            let node = of_extension(extension)?;
            let first = node.schema.fields().len() - COLUMNS.len();
            Some((0..node.schema.fields().len()).map(|index| index.checked_sub(first)).collect())
        }
        LogicalPlan::SubqueryAlias(alias) => window_columns(&alias.input),
        LogicalPlan::Filter(filter) => {
            let columns = window_columns(&filter.input)?;
            (!looks_at(&filter.predicate, filter.input.schema(), &columns)).then_some(columns)
        }
        LogicalPlan::Projection(projection) => {
            let (columns, schema) = (window_columns(&projection.input)?, projection.input.schema());
            let of = |expression: &Expr| match expression.clone().unalias() {
                Expr::Column(column) => Some(columns[schema.maybe_index_of_column(&column)?]),
                other if looks_at(&other, schema, &columns) => None,
                _ => Some(None),
            };
            projection.expr.iter().map(of).collect()
        }
        _ => None,
    }
}

/// Whether a condition stands between sessions and what is made of them that looks at more than the columns that a session
/// belongs to: the rows that it leaves out hold sessions together all the same.
pub(crate) fn parts_sessions(plan: &LogicalPlan) -> bool {
    match plan {
        LogicalPlan::SubqueryAlias(alias) => parts_sessions(&alias.input),
        LogicalPlan::Projection(projection) => parts_sessions(&projection.input),
        LogicalPlan::Filter(filter) => {
            let Some(keys) = session_keys(&filter.input) else { return false };
            let schema = filter.input.schema();
            let is_key = |column: &Column| schema.maybe_index_of_column(column).is_some_and(|index| keys[index]);
            parts_sessions(&filter.input) || !filter.predicate.column_refs().into_iter().all(is_key)
        }
        _ => false,
    }
}

/// Which columns of a plan are those that a session below it belongs to; `None`: there is none.
fn session_keys(plan: &LogicalPlan) -> Option<Vec<bool>> {
    match plan {
        LogicalPlan::Extension(extension) => {
            let node = of_extension(extension).filter(|node| matches!(node.windows, Windows::Session { .. }))?;
            let keys = node.partition.iter().filter_map(|key| key.try_as_col());
            let keys: Vec<usize> = keys.filter_map(|key| node.input.schema().maybe_index_of_column(key)).collect();
            Some((0..node.schema.fields().len()).map(|column| keys.contains(&column)).collect())
        }
        LogicalPlan::SubqueryAlias(alias) => session_keys(&alias.input),
        LogicalPlan::Filter(filter) => session_keys(&filter.input),
        LogicalPlan::Projection(projection) => {
            let (keys, schema) = (session_keys(&projection.input)?, projection.input.schema());
            let is_key = |expression: &Expr| match expression.clone().unalias() {
                Expr::Column(column) => schema.maybe_index_of_column(&column).is_some_and(|index| keys[index]),
                _ => false,
            };
            Some(projection.expr.iter().map(is_key).collect())
        }
        _ => None,
    }
}

/// Whether an expression needs a column of the window.
fn looks_at(expression: &Expr, schema: &DFSchema, columns: &[Option<usize>]) -> bool {
    expression.column_refs().into_iter().any(|column| {
        schema.maybe_index_of_column(column).is_none_or(|index| columns.get(index).copied().flatten().is_some())
    })
}
