//! From a query's syntax tree to a typed logical plan, by DataFusion's planner and analyser.
//!
//! DataFusion resolves names and types here and nothing else: what may run was checked before, how it runs is decided
//! after. Literals are typed as in Flink (whole numbers INT, decimals DECIMAL). Of the optimiser only two rules are
//! used, which hold for unbounded input too: constant folding, and pruning of columns down to the scan.

use crate::catalog::Tables;
use crate::flatten::{self, UnnestPlanner};
use crate::functions::{DecimalPlanner, Functions};
use crate::pushdown::push_down;
use crate::rank;
use crate::rewrite::rewrite;
use crate::types;
use crate::typing;
use crate::window::WindowPlanner;
use arrow::datatypes::{DataType, Field, FieldRef};
use datafusion_common::config::ConfigOptions;
use datafusion_common::tree_node::{Transformed, TreeNode};
use datafusion_common::{DFSchema, DataFusionError, Result, ScalarValue, TableReference, not_impl_err, plan_err};
use datafusion_expr::expr_rewriter::NamePreserver;
use datafusion_expr::logical_plan::builder::LogicalTableSource;
use datafusion_expr::planner::{ExprPlanner, RelationPlanner, TypePlanner};
use datafusion_expr::{
    Aggregate, AggregateUDF, Cast, Expr, ExprSchemable, HigherOrderUDF, LogicalPlan, LogicalPlanBuilder, ScalarUDF,
    TableSource, WindowUDF,
};
use datafusion_functions::unicode::planner::UnicodeFunctionPlanner;
use datafusion_functions_aggregate::planner::AggregateFunctionPlanner;
use datafusion_optimizer::optimize_projections::OptimizeProjections;
use datafusion_optimizer::simplify_expressions::SimplifyExpressions;
use datafusion_optimizer::{Analyzer, Optimizer, OptimizerContext, OptimizerRule};
use datafusion_sql::planner::{ContextProvider, NullOrdering, ParserOptions, SqlToRel};
use datafusion_sql::sqlparser::ast::{
    DataType as SqlType, Expr as SqlExpr, Ident, Query, SelectItem, SetExpr, Statement, VisitMut, VisitorMut,
};
use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;

/// Plans queries over the declared tables.
#[derive(Debug)]
pub(crate) struct Relational<'a> {
    tables: &'a Tables,
    functions: &'a Functions,
    options: ConfigOptions,
    expression_planners: Vec<Arc<dyn ExprPlanner>>,
    type_planner: Arc<dyn TypePlanner>,
    relation_planners: Vec<Arc<dyn RelationPlanner>>,
}

impl<'a> Relational<'a> {
    pub(crate) fn new(tables: &'a Tables, functions: &'a Functions) -> Self {
        Self {
            tables,
            functions,
            options: ConfigOptions::default(),
            expression_planners: vec![
                Arc::new(UnicodeFunctionPlanner),
                Arc::new(AggregateFunctionPlanner),
                Arc::new(DecimalPlanner::new()),
            ],
            type_planner: Arc::new(FlinkTypes),
            relation_planners: vec![Arc::new(UnnestPlanner), Arc::new(WindowPlanner)],
        }
    }

    /// The typed plan of a query, not optimised.
    pub(crate) fn plan(&self, query: &Query) -> Result<LogicalPlan> {
        let planner = SqlToRel::new_with_options(self, parser_options());
        let mut query = query.clone();
        let _: ControlFlow<()> = query.visit(&mut Names);
        rewrite(&mut query)?;
        let plan = planner.sql_statement_to_plan(Statement::Query(Box::new(query)))?;
        typing::check(&plan)?;
        let plan =
            plan.transform_up(flatten::merge)?.data.transform_up(type_literals)?.data.transform_up(order_calls)?.data;
        let plan = Analyzer::new().execute_and_check(plan, &self.options, |_, _| {})?;
        Ok(plan.transform_up(|plan| self.print_casts(plan))?.data)
    }

    /// Makes CAST to STRING write booleans and times as Flink does.
    fn print_casts(&self, plan: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
        let Some(printed) = self.functions.printed() else { return Ok(Transformed::no(plan)) };
        let names = NamePreserver::new(&plan);
        let mut schema = DFSchema::empty();
        plan.inputs().iter().for_each(|input| schema.merge(input.schema()));
        plan.map_expressions(|expression| {
            let name = names.save(&expression);
            let made = expression.transform_up(|node| {
                let is_printed = |cast: &Cast| {
                    let from = cast.expr.get_type(&schema);
                    *cast.field.data_type() == DataType::Utf8 && from.is_ok_and(|from| is_printed(&from))
                };
                Ok(match node {
                    Expr::Cast(cast) if is_printed(&cast) => Transformed::yes(printed.call(vec![*cast.expr])),
                    other => Transformed::no(other),
                })
            })?;
            Ok(made.update_data(|made| name.restore(made)))
        })
    }

    /// The plan with constants folded, conditions moved down, and ranks in the place of windows that are bounded; its
    /// output is the same.
    pub(crate) fn fold(&self, plan: LogicalPlan) -> Result<LogicalPlan> {
        let folded = Optimizer::with_rules(vec![Arc::new(SimplifyExpressions::new())]);
        rank::bounded(folded.optimize(push_down(plan)?, &self.context(), |_, _| {})?)
    }

    /// A folded plan with columns pruned; its output is the same.
    pub(crate) fn prune(&self, plan: LogicalPlan) -> Result<LogicalPlan> {
        let rules: Vec<Arc<dyn OptimizerRule + Send + Sync>> =
            vec![Arc::new(SimplifyExpressions::new()), Arc::new(OptimizeProjections::new())];
        rank::without_unused_numbers(Optimizer::with_rules(rules).optimize(plan, &self.context(), |_, _| {})?)
    }

    /// Both.
    pub(crate) fn optimize(&self, plan: LogicalPlan) -> Result<LogicalPlan> {
        self.prune(self.fold(plan)?)
    }

    fn context(&self) -> OptimizerContext {
        OptimizerContext::new_with_config_options(Arc::new(self.options.clone()))
            .without_query_execution_start_time()
            .with_skip_failing_rules(false)
    }
}

const fn parser_options() -> ParserOptions {
    ParserOptions {
        parse_float_as_decimal: true,
        enable_ident_normalization: false,
        support_varchar_with_length: true,
        enable_options_value_normalization: false,
        collect_spans: true,
        map_string_types_to_utf8view: false,
        // As in Flink: NULL is less than all values.
        default_null_ordering: NullOrdering::NullsMin,
    }
}

/// Gives the items of every SELECT that are no columns and have no name the one that they have in Flink: `EXPR$0`, `EXPR$1`, by
/// their place. A column that stands there twice gets one too: columns go by position here, but DataFusion wants their names to
/// differ.
struct Names;

impl VisitorMut for Names {
    type Break = ();

    fn pre_visit_query(&mut self, query: &mut Query) -> ControlFlow<()> {
        name_items(&mut query.body);
        ControlFlow::Continue(())
    }
}

fn name_items(body: &mut SetExpr) {
    let select = match body {
        SetExpr::Select(select) => select,
        SetExpr::SetOperation { left, right, .. } => {
            name_items(left);
            return name_items(right);
        }
        _ => return,
    };
    let mut seen = BTreeSet::new();
    for (position, item) in select.projection.iter_mut().enumerate() {
        if let SelectItem::UnnamedExpr(expression) = item
            && (!has_name(expression) || !seen.insert(expression.to_string()))
        {
            *item = SelectItem::ExprWithAlias {
                expr: expression.clone(),
                alias: Ident::with_quote('`', format!("EXPR${position}")),
            };
        }
    }
}

/// Whether it is a column.
fn has_name(expression: &SqlExpr) -> bool {
    match expression {
        SqlExpr::Identifier(_) | SqlExpr::CompoundIdentifier(_) => true,
        SqlExpr::Nested(inner) => has_name(inner),
        _ => false,
    }
}

/// Makes whole-number literals INT where they fit, and outputs of string views plain strings; names stay.
fn type_literals(plan: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    if let LogicalPlan::Values(values) = &plan {
        let typed = |value: &Expr| Ok(value.clone().transform_up(|node| Ok(narrow(node)))?.data);
        let rows = values.values.iter().map(|row| row.iter().map(typed).collect::<Result<Vec<_>>>());
        return LogicalPlanBuilder::values(rows.collect::<Result<_>>()?)?.build().map(Transformed::yes);
    }
    let names = NamePreserver::new(&plan);
    let inputs = plan.inputs();
    let schema = match inputs.first() {
        Some(input) => Arc::clone(input.schema()),
        None => return Ok(Transformed::no(plan)),
    };
    let makes_columns = matches!(plan, LogicalPlan::Projection(_));
    let plan = plan.map_expressions(|expression| {
        let name = names.save(&expression);
        let narrowed = expression.transform_up(|node| Ok(narrow(node)))?;
        let plain = if makes_columns { plain_string(narrowed.data, &schema)? } else { narrowed.data };
        Ok(Transformed::yes(name.restore(plain)))
    })?;
    plan.map_data(LogicalPlan::recompute_schema)
}

/// Orders the calls of an aggregation by their text, so that its state does not depend on the order in SELECT.
fn order_calls(plan: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    match plan {
        LogicalPlan::Aggregate(Aggregate { input, group_expr, mut aggr_expr, .. }) => {
            aggr_expr.sort_by_cached_key(ToString::to_string);
            Aggregate::try_new(input, group_expr, aggr_expr).map(LogicalPlan::Aggregate).map(Transformed::yes)
        }
        other => Ok(Transformed::no(other.recompute_schema()?)),
    }
}

/// What Flink writes otherwise than DataFusion when it is cast to a string.
const fn is_printed(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Boolean | DataType::Timestamp(..))
}

/// A whole number of a query as INT where it fits.
pub(crate) fn narrow(expression: Expr) -> Transformed<Expr> {
    match &expression {
        Expr::Literal(ScalarValue::Int64(Some(value)), metadata) => match i32::try_from(*value) {
            Ok(value) => Transformed::yes(Expr::Literal(ScalarValue::Int32(Some(value)), metadata.clone())),
            Err(_) => Transformed::no(expression),
        },
        _ => Transformed::no(expression),
    }
}

fn plain_string(expression: Expr, schema: &DFSchema) -> Result<Expr> {
    Ok(match expression.get_type(schema) {
        Ok(DataType::Utf8View | DataType::LargeUtf8) => Expr::Cast(Cast::new(Box::new(expression), DataType::Utf8)),
        _ => expression,
    })
}

/// SQL types as Flink names them, in CAST.
#[derive(Debug)]
struct FlinkTypes;

impl TypePlanner for FlinkTypes {
    fn plan_type_field(&self, sql_type: &SqlType) -> Result<Option<FieldRef>> {
        match types::arrow_type(sql_type) {
            Ok(data_type) => Ok(Some(Arc::new(Field::new("", data_type, true)))),
            Err(types::TypeRefusal::Unsupported(what)) => not_impl_err!("{what} is not supported yet"),
            Err(types::TypeRefusal::Unknown(message)) => plan_err!("{message}"),
        }
    }
}

impl ContextProvider for Relational<'_> {
    fn get_table_source(&self, name: TableReference) -> Result<Arc<dyn TableSource>> {
        match self.tables.get(name.table()) {
            Some(table) => Ok(Arc::new(LogicalTableSource::new(Arc::clone(&table.schema)))),
            None => Err(DataFusionError::Plan(format!("table '{name}' does not exist"))),
        }
    }

    fn get_expr_planners(&self) -> &[Arc<dyn ExprPlanner>] {
        &self.expression_planners
    }

    fn get_relation_planners(&self) -> &[Arc<dyn RelationPlanner>] {
        &self.relation_planners
    }

    fn get_type_planner(&self) -> Option<Arc<dyn TypePlanner>> {
        Some(Arc::clone(&self.type_planner))
    }

    fn get_function_meta(&self, name: &str) -> Option<Arc<ScalarUDF>> {
        self.functions.scalar(name)
    }

    fn get_higher_order_meta(&self, _name: &str) -> Option<Arc<HigherOrderUDF>> {
        None
    }

    fn get_aggregate_meta(&self, name: &str) -> Option<Arc<AggregateUDF>> {
        self.functions.aggregate(name)
    }

    fn get_window_meta(&self, name: &str) -> Option<Arc<WindowUDF>> {
        self.functions.window(name)
    }

    fn get_variable_type(&self, _variable_names: &[String]) -> Option<DataType> {
        None
    }

    fn options(&self) -> &ConfigOptions {
        &self.options
    }

    fn udf_names(&self) -> Vec<String> {
        self.functions.scalar_names()
    }

    fn higher_order_function_names(&self) -> Vec<String> {
        Vec::new()
    }

    fn udaf_names(&self) -> Vec<String> {
        self.functions.aggregate_names()
    }

    fn udwf_names(&self) -> Vec<String> {
        vec![rank::ROW_NUMBER.to_owned()]
    }
}
