//! A filter and a projection over one input, fused: what becomes one operator, or none when it changes nothing.
//!
//! Outputs that are plain columns stay column positions, so that they are never evaluated nor copied.

use arrow::datatypes::{Field, FieldRef, Schema, SchemaRef};
use datafusion_common::tree_node::{Transformed, TreeNode};
use datafusion_common::{DFSchema, Result};
use datafusion_expr::execution_props::ExecutionProps;
use datafusion_expr::physical_planning_context::PhysicalPlanningContext;
use datafusion_expr::{Expr, Operator};
use datafusion_physical_expr::PhysicalExpr;
use datafusion_physical_expr::expressions::{BinaryExpr, Column};
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

    /// Adds a condition over the input; only where [`Calc::keeps_columns`] holds.
    pub(crate) fn restrict(&mut self, condition: Arc<dyn PhysicalExpr>) {
        self.condition = Some(match self.condition.take() {
            Some(first) => Arc::new(BinaryExpr::new(first, Operator::And, condition)),
            None => condition,
        });
    }

    /// Puts outputs that are given over this one's outputs in their place, if all are plain columns or this keeps
    /// columns; else gives them back.
    pub(crate) fn project(&mut self, outputs: Vec<Output>) -> Option<Vec<Output>> {
        let are_plain = outputs.iter().all(|output| matches!(output.value, Value::Column(_)));
        if self.keeps_columns() {
            self.outputs = outputs;
        } else if are_plain {
            self.outputs = outputs.into_iter().map(|output| self.through(output)).collect();
        } else {
            return Some(outputs);
        }
        None
    }

    fn through(&self, output: Output) -> Output {
        let Value::Column(index) = output.value else { return output };
        let below = &self.outputs[index];
        Output { value: below.value.clone(), not_null: output.not_null.or_else(|| below.not_null.clone()), ..output }
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
        let condition = self.condition.as_ref().map(|condition| format!(", where=[{}]", sql(condition)));
        format!("select=[{}]{}", outputs.join(", "), condition.unwrap_or_default())
    }

    fn text_of(&self, value: &Value) -> String {
        match value {
            Value::Column(index) => self.input.field(*index).name().clone(),
            Value::Computed(expression) => sql(expression),
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

/// A logical expression, ready to be evaluated over the outputs of a calc, whose names its columns take for people.
pub(crate) fn physical(expression: &Expr, input: &DFSchema, below: &Calc) -> Result<Arc<dyn PhysicalExpr>> {
    let context = PhysicalPlanningContext::default();
    let made = datafusion_physical_expr::create_physical_expr(expression, input, &ExecutionProps::new(), &context)?;
    let named = made.transform_up(|node| {
        let index = node.downcast_ref::<Column>().map(Column::index);
        Ok(match index.and_then(|index| Some((index, below.outputs.get(index)?))) {
            Some((index, output)) => Transformed::yes(Arc::new(Column::new(output.field.name(), index)) as _),
            None => Transformed::no(node),
        })
    })?;
    Ok(named.data)
}

/// An expression as SQL.
pub(crate) fn sql(expression: &Arc<dyn PhysicalExpr>) -> String {
    fmt_sql(expression.as_ref()).to_string()
}
