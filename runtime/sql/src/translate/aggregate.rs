//! GROUP BY: rows are exchanged by the key groups of their keys, then aggregated per key.
//!
//! Before the exchange the stream is cut down to keys and arguments. Without keys there is one group, so one subtask.

use super::{Lineage, Stream, Translator, Updates};
use crate::calc::{self, Calc, Output, Value};
use crate::error::SqlError;
use crate::graph::Chain;
use arrow::datatypes::FieldRef;
use datafusion_expr::Expr;
use datafusion_expr::logical_plan::Aggregate;
use sluice_engine::aggregate::{AggregateCall, AggregateKind, GroupAggregateFactory, GroupAggregateSpec};
use sluice_protocol::graph::{OperatorInfo, OperatorKind, Partitioning};
use std::sync::Arc;

/// The columns that cross the exchange, each once, with the name people know it by.
#[derive(Default)]
struct Inputs {
    outputs: Vec<Output>,
    texts: Vec<String>,
}

impl Inputs {
    /// The position of a value, which is added when it is new.
    fn add(&mut self, output: Output, text: String) -> usize {
        let same = |other: &Output| match (&other.value, &output.value) {
            (Value::Column(a), Value::Column(b)) => a == b,
            (Value::Computed(a), Value::Computed(b)) => a == b,
            _ => false,
        };
        if let Some(position) = self.outputs.iter().position(same) {
            return position;
        }
        self.outputs.push(output);
        self.texts.push(text);
        self.outputs.len() - 1
    }
}

impl Translator<'_> {
    pub(super) fn aggregate(&mut self, stream: Stream, node: &Aggregate) -> Result<Stream, SqlError> {
        let Some(uid) = self.aggregates.pop() else {
            return Err(self.internal("the plan has an aggregation that the statement does not have"));
        };
        let mut inputs = Inputs::default();
        let mut keys = Vec::new();
        for key in &node.group_expr {
            keys.push(self.input(&mut inputs, &stream, key)?);
        }
        let mut calls = Vec::new();
        for call in &node.aggr_expr {
            calls.push(self.call(&mut inputs, &stream, call)?);
        }
        let key_names: Vec<String> = keys.iter().map(|key| inputs.texts[*key].clone()).collect();
        let description = describe(&key_names, &calls);
        let stream = self.only(stream, inputs.outputs);
        let schema = Arc::clone(stream.chain.schema());
        let spec = GroupAggregateSpec {
            input: Arc::clone(&schema),
            keys: keys.clone(),
            key_names: key_names.clone(),
            calls,
            // Another aggregation above must take back what it has counted.
            emit_update_before: self.sends_update_before || !self.aggregates.is_empty(),
            changelog: stream.updates.is_some(),
            ttl: None,
        };
        let factory = GroupAggregateFactory::new(spec).map_err(|error| self.invalid(&error.to_string()))?;
        let parallelism = if keys.is_empty() { 1 } else { self.options.parallelism };
        let from = self.close(stream.chain)?;
        let mut chain = Chain::from_edge(from, Partitioning::Hash { keys }, parallelism, schema);
        let info = OperatorInfo { uid, kind: OperatorKind::Keyed, description: description.clone() };
        chain.push(info, &format!("GroupAggregate[{}]", key_names.join(", ")), Arc::new(factory));
        self.aggregated(chain, node, Updates { node: description, keys: key_names, are_filtered: false })
    }

    /// The stream behind an aggregation, whose columns the engine must type as the plan does.
    fn aggregated(&self, chain: Chain, node: &Aggregate, updates: Updates) -> Result<Stream, SqlError> {
        let (planned, made) = (node.schema.fields(), chain.schema().fields());
        let differs = |(planned, made): (&FieldRef, &FieldRef)| planned.data_type() != made.data_type();
        if planned.len() != made.len() || planned.iter().zip(made).any(differs) {
            return Err(self.internal(&format!("{} gives other columns than planned: {made:?}", updates.node)));
        }
        let mut lineage: Vec<Lineage> = (0..node.group_expr.len()).map(Lineage::Key).collect();
        lineage.resize(planned.len(), Lineage::Other);
        let calc = Calc::identity(chain.schema());
        Ok(Stream { chain, calc, schema: Arc::clone(&node.schema), lineage, updates: Some(updates) })
    }

    fn input(&self, inputs: &mut Inputs, stream: &Stream, expression: &Expr) -> Result<usize, SqlError> {
        let compiled = calc::compile(expression, "", &stream.schema, &stream.calc);
        let output = compiled.map_err(|error| self.planning(&error))?;
        let text = match &output.value {
            Value::Column(index) => stream.schema.field(*index).name().clone(),
            Value::Computed(expression) => calc::sql(expression),
        };
        let field = Arc::new(output.field.as_ref().clone().with_name(&text));
        let output = Output { field, ..output };
        Ok(inputs.add(output, text))
    }

    /// A call by its text without aliases, so that the state's columns do not depend on them.
    fn call(&self, inputs: &mut Inputs, stream: &Stream, call: &Expr) -> Result<AggregateCall, SqlError> {
        let Expr::AggregateFunction(function) = call.clone().unalias() else {
            return Err(self.internal(&format!("not an aggregate call: {call}")));
        };
        let parameters = &function.params;
        if parameters.distinct || parameters.filter.is_some() || !parameters.order_by.is_empty() {
            return Err(self.unsupported(&format!("{call}")));
        }
        let (kind, argument, name) = match (function.func.name(), parameters.args.as_slice()) {
            ("count", [Expr::Literal(value, _)]) if !value.is_null() => {
                (AggregateKind::Count, None, "COUNT(*)".to_owned())
            }
            ("count", [argument]) => {
                let input = self.input(inputs, stream, argument)?;
                (AggregateKind::Count, Some(input), format!("COUNT({})", inputs.texts[input]))
            }
            ("sum", [argument]) => {
                let input = self.input(inputs, stream, argument)?;
                (AggregateKind::Sum, Some(input), format!("SUM({})", inputs.texts[input]))
            }
            _ => return Err(self.unsupported(&call.to_string())),
        };
        Ok(AggregateCall::new(kind, argument, &name))
    }

    /// Cuts a stream down to these columns and makes what is pending an operator.
    fn only(&mut self, mut stream: Stream, outputs: Vec<Output>) -> Stream {
        if outputs.is_empty() && stream.calc.keeps_columns() {
            // COUNT(*) without keys needs no column, but rows need one to be counted by.
            stream.calc.outputs = Calc::identity(&stream.calc.input).outputs;
            stream.calc.outputs.truncate(1);
        }
        let stream = self.project(stream, outputs);
        self.fuse(stream)
    }
}

/// `GroupAggregate(groupBy=[a], select=[a, COUNT(*)])`, as Flink's EXPLAIN says it.
fn describe(keys: &[String], calls: &[AggregateCall]) -> String {
    let select: Vec<&str> = keys.iter().chain(calls.iter().map(|call| &call.name)).map(String::as_str).collect();
    let group_by = if keys.is_empty() { String::new() } else { format!("groupBy=[{}], ", keys.join(", ")) };
    format!("GroupAggregate({group_by}select=[{}])", select.join(", "))
}
