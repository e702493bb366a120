//! ROW_NUMBER() with a bound on it: the first N rows of each partition.
//!
//! DataFusion plans ROW_NUMBER as a window function; [`bounded`] puts a [`Rank`] in the place of each whose number a
//! filter above it bounds (`WHERE rownum <= 3`, `< 4`, `= 1`), and drops that condition. What else is said of the number
//! stays a filter. An order by PROCTIME() is that in which rows arrive, and no column is left of it. What has no bound
//! stays a window, which the translation refuses. [`without_unused_numbers`] drops the
//! number where nothing above needs it, after columns were pruned.

use arrow::datatypes::{DataType, Field, FieldRef};
use datafusion_common::tree_node::{Transformed, TreeNode};
use datafusion_common::{DFSchema, DFSchemaRef, Result, ScalarValue, TableReference, internal_err};
use datafusion_expr::expr::Sort;
use datafusion_expr::logical_plan::{Extension, Filter, Projection, Window};
use datafusion_expr::utils::{conjunction, split_conjunction_owned};
use datafusion_expr::{
    Between, BinaryExpr, Cast, Expr, LogicalPlan, Operator, PartitionEvaluator, Signature, UserDefinedLogicalNodeCore,
    Volatility, WindowFunctionDefinition, WindowUDFImpl,
};
use datafusion_functions_window_common::field::WindowUDFFieldArgs;
use datafusion_functions_window_common::partition::PartitionEvaluatorArgs;
use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

/// The time at which a row is processed.
const PROCTIME: &str = "proctime";

/// The name that queries call.
pub(crate) const ROW_NUMBER: &str = "row_number";

/// ROW_NUMBER as Flink types it: BIGINT. It is planned and never evaluated.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct RowNumber {
    signature: Signature,
}

impl RowNumber {
    pub(crate) fn new() -> Self {
        Self { signature: Signature::nullary(Volatility::Immutable) }
    }
}

impl WindowUDFImpl for RowNumber {
    fn name(&self) -> &str {
        ROW_NUMBER
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn partition_evaluator(&self, _: PartitionEvaluatorArgs<'_>) -> Result<Box<dyn PartitionEvaluator>> {
        internal_err!("ROW_NUMBER is evaluated by an operator of the dataflow")
    }

    fn field(&self, arguments: WindowUDFFieldArgs<'_>) -> Result<FieldRef> {
        Ok(Arc::new(Field::new(arguments.name(), DataType::Int64, false)))
    }
}

/// The node of the plan.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Rank {
    pub(crate) input: LogicalPlan,
    /// PARTITION BY, over the input.
    pub(crate) partition: Vec<Expr>,
    /// ORDER BY, over the input; empty where rows are ordered by their arrival.
    pub(crate) order: Vec<Sort>,
    /// Whether of rows that are ordered by their arrival the last one is the first.
    pub(crate) last_first: bool,
    /// How many rows of a partition there are at most.
    pub(crate) limit: u64,
    /// Whether the number is the last column.
    pub(crate) has_number: bool,
    number: (Option<TableReference>, FieldRef),
    schema: DFSchemaRef,
}

impl Rank {
    fn new(input: LogicalPlan, partition: Vec<Expr>, order: Vec<Sort>, limit: u64, window: &Window) -> Result<Self> {
        let Some((qualifier, number)) = window.schema.iter().last() else {
            return internal_err!("a window has no columns");
        };
        let number = (qualifier.cloned(), Arc::clone(number));
        let schema = Arc::new(DFSchema::empty());
        let arrives = order.first().is_some_and(|sort| is_proctime(&sort.expr, &input));
        let last_first = arrives && order.first().is_some_and(|sort| !sort.asc);
        let order = if arrives { Vec::new() } else { order };
        let rank = Self { input, partition, order, last_first, limit, has_number: true, number, schema };
        rank.with_schema()
    }

    fn with_schema(self) -> Result<Self> {
        let kept = self.input.schema().iter().map(|(qualifier, field)| (qualifier.cloned(), Arc::clone(field)));
        let number = self.has_number.then(|| self.number.clone());
        let fields: Vec<(Option<TableReference>, FieldRef)> = kept.chain(number).collect();
        let schema = Arc::new(DFSchema::new_with_metadata(fields, Default::default())?);
        Ok(Self { schema, ..self })
    }
}

/// Whether an expression is PROCTIME(), perhaps by the name of a column below.
fn is_proctime(expression: &Expr, input: &LogicalPlan) -> bool {
    match (expression, input) {
        (Expr::Alias(alias), _) => is_proctime(&alias.expr, input),
        (Expr::ScalarFunction(call), _) => call.func.name() == PROCTIME,
        (Expr::Column(column), LogicalPlan::Projection(projection)) => {
            let below = projection.schema.maybe_index_of_column(column).map(|index| &projection.expr[index]);
            below.is_some_and(|below| is_proctime(below, &projection.input))
        }
        (Expr::Column(column), LogicalPlan::SubqueryAlias(_) | LogicalPlan::Filter(_)) => {
            let index = input.schema().maybe_index_of_column(column);
            let below = index.zip(input.inputs().first()).map(|(index, below)| {
                let name = datafusion_common::Column::from(below.schema().qualified_field(index));
                is_proctime(&Expr::Column(name), below)
            });
            below.unwrap_or(false)
        }
        _ => false,
    }
}

impl PartialOrd for Rank {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        self.limit.partial_cmp(&other.limit).filter(|order| *order != Ordering::Equal || self == other)
    }
}

impl UserDefinedLogicalNodeCore for Rank {
    fn name(&self) -> &str {
        "Rank"
    }

    fn inputs(&self) -> Vec<&LogicalPlan> {
        vec![&self.input]
    }

    fn schema(&self) -> &DFSchemaRef {
        &self.schema
    }

    fn expressions(&self) -> Vec<Expr> {
        self.partition.iter().cloned().chain(self.order.iter().map(|sort| sort.expr.clone())).collect()
    }

    fn fmt_for_explain(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "Rank: limit {}", self.limit)
    }

    fn with_exprs_and_inputs(&self, mut expressions: Vec<Expr>, inputs: Vec<LogicalPlan>) -> Result<Self> {
        let Some(input) = inputs.into_iter().next() else { return internal_err!("a rank lost its input") };
        let order = expressions.split_off(self.partition.len().min(expressions.len()));
        if order.len() != self.order.len() {
            return internal_err!("a rank lost its order");
        }
        let order = order.into_iter().zip(&self.order).map(|(expr, sort)| Sort { expr, ..sort.clone() }).collect();
        Self { input, partition: expressions, order, ..self.clone() }.with_schema()
    }

    fn necessary_children_exprs(&self, output_columns: &[usize]) -> Option<Vec<Vec<usize>>> {
        let columns = self.input.schema().fields().len();
        Some(vec![output_columns.iter().copied().filter(|column| *column < columns).collect()])
    }
}

/// Puts ranks in the place of windows whose number a filter bounds.
pub(crate) fn bounded(plan: LogicalPlan) -> Result<LogicalPlan> {
    let ranked = plan.transform_down(|node| {
        let LogicalPlan::Filter(filter) = &node else { return Ok(Transformed::no(node)) };
        let conditions = split_conjunction_owned(filter.predicate.clone());
        for (place, condition) in conditions.iter().enumerate() {
            let Some((column, limit, is_whole)) = upper_bound(condition, filter.input.schema()) else { continue };
            let Some(input) = limited(&filter.input, column, limit)? else { continue };
            let mut rest = conditions.clone();
            if is_whole {
                rest.remove(place);
            }
            return Ok(Transformed::yes(match conjunction(rest) {
                None => input,
                Some(rest) => LogicalPlan::Filter(Filter::try_new(rest, Arc::new(input))?),
            }));
        }
        Ok(Transformed::no(node))
    })?;
    Ok(ranked.data)
}

/// Whether a window is left that no filter bounds.
pub(crate) fn has_windows(plan: &LogicalPlan) -> bool {
    plan.exists(|node| Ok(matches!(node, LogicalPlan::Window(_)))).unwrap_or(true)
}

/// The column that a condition bounds from above, the greatest value that passes, and whether it says nothing more of a
/// number that counts from 1.
fn upper_bound(condition: &Expr, schema: &DFSchema) -> Option<(usize, u64, bool)> {
    if let Expr::Between(Between { expr, negated: false, low, high }) = condition {
        let limit = u64::try_from(whole(high)?).ok().filter(|limit| *limit > 0)?;
        return Some((column_of(expr, schema)?, limit, whole(low).is_some_and(|low| low <= 1)));
    }
    let Expr::BinaryExpr(BinaryExpr { left, op, right }) = condition else { return None };
    let (column, op, value) = match (column_of(left, schema), column_of(right, schema)) {
        (Some(column), None) => (column, *op, whole(right)?),
        (None, Some(column)) => (column, op.swap()?, whole(left)?),
        _ => return None,
    };
    let (limit, is_whole) = match op {
        Operator::LtEq => (value, true),
        Operator::Lt => (value.checked_sub(1)?, true),
        Operator::Eq => (value, value == 1),
        _ => return None,
    };
    Some((column, u64::try_from(limit).ok().filter(|limit| *limit > 0)?, is_whole))
}

fn column_of(expression: &Expr, schema: &DFSchema) -> Option<usize> {
    let Expr::Column(column) = expression else { return None };
    schema.maybe_index_of_column(column)
}

/// A constant whole number.
fn whole(expression: &Expr) -> Option<i64> {
    match expression {
        Expr::Literal(value, _) => match value.cast_to(&DataType::Int64).ok()? {
            ScalarValue::Int64(whole) if value.data_type().is_integer() => whole,
            _ => None,
        },
        Expr::Cast(Cast { expr, .. }) => whole(expr),
        _ => None,
    }
}

/// The plan with a rank in the place of the window that this column numbers; `None` when it is none.
fn limited(plan: &LogicalPlan, column: usize, limit: u64) -> Result<Option<LogicalPlan>> {
    let below = match plan {
        LogicalPlan::Window(window) => return ranked(window, column, limit),
        LogicalPlan::SubqueryAlias(_) | LogicalPlan::Filter(_) => Some(column),
        LogicalPlan::Projection(projection) => {
            column_of(&projection.expr[column].clone().unalias(), projection.input.schema())
        }
        _ => None,
    };
    let (Some(below), Some(input)) = (below, plan.inputs().into_iter().next()) else { return Ok(None) };
    let Some(input) = limited(input, below, limit)? else { return Ok(None) };
    plan.with_new_exprs(plan.expressions(), vec![input]).map(Some)
}

fn ranked(window: &Window, column: usize, limit: u64) -> Result<Option<LogicalPlan>> {
    let [function] = window.window_expr.as_slice() else { return Ok(None) };
    // Where literals in it were typed, it keeps its name by an alias.
    let Expr::WindowFunction(function) = function.clone().unalias() else { return Ok(None) };
    let is_row_number = matches!(&function.fun, WindowFunctionDefinition::WindowUDF(udf) if udf.name() == ROW_NUMBER);
    if !is_row_number || column + 1 != window.schema.fields().len() {
        return Ok(None);
    }
    let (partition, order) = (function.params.partition_by.clone(), function.params.order_by.clone());
    let rank = Rank::new(window.input.as_ref().clone(), partition, order, limit, window)?;
    Ok(Some(LogicalPlan::Extension(Extension { node: Arc::new(rank) })))
}

/// Drops numbers that the projection above does not use.
pub(crate) fn without_unused_numbers(plan: LogicalPlan) -> Result<LogicalPlan> {
    let dropped = plan.transform_up(|node| {
        let LogicalPlan::Projection(projection) = &node else { return Ok(Transformed::no(node)) };
        let LogicalPlan::Extension(extension) = projection.input.as_ref() else { return Ok(Transformed::no(node)) };
        let Some(rank) = of_extension(extension).filter(|rank| rank.has_number) else {
            return Ok(Transformed::no(node));
        };
        let number = rank.schema.fields().len() - 1;
        let is_number = |column: &&datafusion_common::Column| rank.schema.maybe_index_of_column(column) == Some(number);
        if projection.expr.iter().any(|expression| expression.column_refs().iter().any(is_number)) {
            return Ok(Transformed::no(node));
        }
        let rank = Rank { has_number: false, ..rank.clone() }.with_schema()?;
        let input = Arc::new(LogicalPlan::Extension(Extension { node: Arc::new(rank) }));
        let schema = Arc::clone(&projection.schema);
        let made = Projection::try_new_with_schema(projection.expr.clone(), input, schema)?;
        Ok(Transformed::yes(LogicalPlan::Projection(made)))
    })?;
    Ok(dropped.data)
}

/// The node as ours.
pub(crate) fn of_extension(extension: &Extension) -> Option<&Rank> {
    extension.node.as_any().downcast_ref::<Rank>()
}
