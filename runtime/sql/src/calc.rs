//! A filter and a projection over one input, fused: what becomes one operator, or none when it changes nothing.
//!
//! Outputs that are plain columns stay column positions, so that they are never evaluated nor copied.

use crate::functions::PROCTIME;
use crate::guard;
use crate::written;
use arrow::datatypes::{Field, FieldRef, Schema, SchemaRef};
use datafusion_common::tree_node::{Transformed, TreeNode};
use datafusion_common::{DFSchema, Result, plan_err};
use datafusion_expr::Expr;
use datafusion_expr::execution_props::ExecutionProps;
use datafusion_expr::physical_planning_context::PhysicalPlanningContext;
use datafusion_physical_expr::expressions::Column;
use datafusion_physical_expr::{PhysicalExpr, ScalarFunctionExpr};
use datafusion_physical_expr_common::physical_expr::fmt_sql;
use std::sync::Arc;

/// How an output column is made.
#[derive(Debug, Clone)]
pub(crate) enum Value {
    /// A column of the input as it is.
    Column(usize),
    /// Evaluated over the input.
    Computed(Arc<dyn PhysicalExpr>),
}

/// An output column.
#[derive(Debug, Clone)]
pub(crate) struct Output {
    /// Its name, type and nullability.
    pub(crate) field: FieldRef,
    /// How it is made.
    pub(crate) value: Value,
    /// The table and column that it is written to, when that is NOT NULL but the value may be null.
    pub(crate) not_null: Option<String>,
}

/// A filter, then a projection.
#[derive(Debug, Clone)]
pub(crate) struct Calc {
    /// The input's columns.
    pub(crate) input: SchemaRef,
    /// Rows for which it is not true are dropped; over the input.
    pub(crate) condition: Option<Arc<dyn PhysicalExpr>>,
    /// The outputs, over the input.
    pub(crate) outputs: Vec<Output>,
}

impl Calc {
    /// What lets everything through.
    pub(crate) fn identity(input: &SchemaRef) -> Self {
        let outputs = input
            .fields()
            .iter()
            .enumerate()
            .map(|(index, field)| Output { field: Arc::clone(field), value: Value::Column(index), not_null: None })
            .collect();
        Self { input: Arc::clone(input), condition: None, outputs }
    }

    /// Whether it changes nothing, names included.
    pub(crate) fn is_identity(&self) -> bool {
        self.condition.is_none() && self.keeps_columns() && self.schema().fields() == self.input.fields()
    }

    /// Whether the outputs are the first inputs in place, whatever their names: what is valid over the outputs is then
    /// valid over the input.
    pub(crate) fn keeps_columns(&self) -> bool {
        self.outputs.iter().enumerate().all(|(index, output)| {
            matches!(output.value, Value::Column(column) if column == index) && output.not_null.is_none()
        })
    }

    /// Keeps a column where none is wanted, since a batch needs one to have rows.
    pub(crate) fn keep_one(&mut self) {
        if self.outputs.is_empty() {
            self.outputs = Self::identity(&self.input).outputs;
            self.outputs.truncate(1);
        }
    }

    /// The columns that come out.
    pub(crate) fn schema(&self) -> SchemaRef {
        Arc::new(Schema::new(self.outputs.iter().map(|output| Arc::clone(&output.field)).collect::<Vec<_>>()))
    }

    /// What is over the outputs, over the input instead; `None` where it needs an output that is computed.
    pub(crate) fn over_input(&self, expression: &Arc<dyn PhysicalExpr>) -> Result<Option<Arc<dyn PhysicalExpr>>> {
        let mut is_plain = true;
        let moved = Arc::clone(expression).transform_up(|node| {
            let Some(column) = node.downcast_ref::<Column>() else { return Ok(Transformed::no(node)) };
            match self.outputs.get(column.index()) {
                Some(Output { value: Value::Column(index), not_null: None, .. }) => {
                    Ok(Transformed::yes(Arc::new(Column::new(column.name(), *index)) as _))
                }
                _ => {
                    is_plain = false;
                    Ok(Transformed::no(node))
                }
            }
        })?;
        Ok(is_plain.then_some(moved.data))
    }

    /// Adds a condition over the input.
    pub(crate) fn restrict(&mut self, condition: Arc<dyn PhysicalExpr>) {
        self.condition = Some(match self.condition.take() {
            Some(first) => guard::and(first, condition, &self.input),
            None => condition,
        });
    }

    /// Puts outputs that are given over this one's outputs in their place, unless they compute with what is computed
    /// here; then gives them back.
    pub(crate) fn project(&mut self, outputs: Vec<Output>) -> Result<Option<Vec<Output>>> {
        let mut moved = Vec::new();
        for output in &outputs {
            match self.through(output)? {
                Some(output) => moved.push(output),
                None => return Ok(Some(outputs)),
            }
        }
        self.outputs = moved;
        Ok(None)
    }

    fn through(&self, output: &Output) -> Result<Option<Output>> {
        Ok(match &output.value {
            Value::Column(index) => self.outputs.get(*index).map(|below| {
                let not_null = output.not_null.clone().or_else(|| below.not_null.clone());
                Output { value: below.value.clone(), not_null, ..output.clone() }
            }),
            Value::Computed(expression) => self
                .over_input(expression)?
                .map(|expression| Output { value: Value::Computed(expression), ..output.clone() }),
        })
    }

    /// `select=[…], where=[…]`, as Flink's EXPLAIN says it.
    pub(crate) fn describe(&self) -> String {
        let outputs: Vec<String> = self
            .outputs
            .iter()
            .map(|output| {
                let value = self.text_of(&output.value);
                let name = output.field.name();
                if value == *name { value } else { format!("{value} AS {name}") }
            })
            .collect();
        let condition = self.condition.as_ref().map(|condition| format!(", where=[{}]", written::sql(condition)));
        format!("select=[{}]{}", outputs.join(", "), condition.unwrap_or_default())
    }

    fn text_of(&self, value: &Value) -> String {
        match value {
            Value::Column(index) => self.input.field(*index).name().clone(),
            Value::Computed(expression) => written::sql(expression),
        }
    }
}

/// A logical expression over the outputs of a calc, as an output of that name.
pub(crate) fn compile(expression: &Expr, name: &str, input: &DFSchema, below: &Calc) -> Result<Output> {
    let expression = physical(expression, input, below)?;
    let data_type = expression.data_type(input.as_arrow())?;
    let nullable = expression.nullable(input.as_arrow())?;
    let value = match expression.downcast_ref::<Column>() {
        Some(column) => Value::Column(column.index()),
        None => Value::Computed(expression),
    };
    Ok(Output { field: Arc::new(Field::new(name, data_type, nullable)), value, not_null: None })
}

/// A logical expression, ready to be evaluated over the outputs of a calc, whose names its columns take for people. AND and OR
/// guard what stands right of them.
pub(crate) fn physical(expression: &Expr, input: &DFSchema, below: &Calc) -> Result<Arc<dyn PhysicalExpr>> {
    let context = PhysicalPlanningContext::default();
    let made = datafusion_physical_expr::create_physical_expr(expression, input, &ExecutionProps::new(), &context)?;
    if has_proctime(&made) {
        return plan_err!(
            "PROCTIME() has no value that could be read, since a restart would compute another one for the same row: it can \
             only be the time of a window, or the order in which rows come"
        );
    }
    if depth(&made) > DEEPEST {
        return plan_err!(
            "an expression is nested more than {DEEPEST} deep, as a chain of OR or || is: write IN (…), or divide it"
        );
    }
    let named = made.transform_up(|node| {
        let index = node.downcast_ref::<Column>().map(Column::index);
        Ok(match index.and_then(|index| Some((index, below.outputs.get(index)?))) {
            Some((index, output)) => Transformed::yes(Arc::new(Column::new(output.field.name(), index)) as _),
            None => guard::guarded(&node, input.as_arrow()).map_or_else(|| Transformed::no(node), Transformed::yes),
        })
    })?;
    Ok(named.data)
}

/// How deep an expression may be: tasks evaluate it on the stack of their threads.
const DEEPEST: usize = 500;

fn has_proctime(expression: &Arc<dyn PhysicalExpr>) -> bool {
    let is_it = |call: &ScalarFunctionExpr| call.fun().name() == PROCTIME;
    expression.downcast_ref::<ScalarFunctionExpr>().is_some_and(is_it)
        || expression.children().into_iter().any(has_proctime)
}

fn depth(expression: &Arc<dyn PhysicalExpr>) -> usize {
    1 + expression.children().into_iter().map(depth).max().unwrap_or(0)
}

/// What a computed column is called. Columns of state go by it, so snapshots depend on every letter; people read
/// [`written::sql`].
pub(crate) fn column_name(expression: &Arc<dyn PhysicalExpr>) -> String {
    fmt_sql(expression.as_ref()).to_string()
}
