//! GROUP BY: rows are exchanged by the key groups of their keys, then aggregated per key.
//!
//! Before the exchange the stream is cut down to keys and arguments. Without keys there is one group, so one subtask.

use super::{Lineage, Stream, Translator, Updates};
use crate::calc::{self, Output, Value};
use crate::error::SqlError;
use crate::graph::Chain;
use crate::operators::{self, AggregateFunction, GroupAggregate};
use datafusion_expr::Expr;
use datafusion_expr::logical_plan::Aggregate;
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
        if stream.updates.is_some() {
            return Err(self.unsupported("an aggregation over an aggregation"));
        }
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
        let key_texts: Vec<String> = keys.iter().map(|key| inputs.texts[*key].clone()).collect();
        let node_text = describe(&key_texts, &calls, &inputs.texts);
        let stream = self.only(stream, inputs.outputs);
        let output_schema = Arc::new(node.schema.as_arrow().clone());
        let group_aggregate = GroupAggregate {
            input: Arc::clone(stream.chain.schema()),
            keys: keys.clone(),
            calls,
            output: output_schema,
            sends_update_before: self.sends_update_before,
        };
        let factory = operators::group_aggregate(&group_aggregate).map_err(|message| self.unsupported(&message))?;
        let parallelism = if keys.is_empty() { 1 } else { self.options.parallelism };
        let schema = Arc::clone(stream.chain.schema());
        let from = self.close(stream.chain)?;
        let mut chain = Chain::from_edge(from, Partitioning::Hash { keys: keys.clone() }, parallelism, schema);
        let info = OperatorInfo { uid, kind: OperatorKind::Keyed, description: node_text.clone() };
        chain.push(info, &format!("GroupAggregate[{}]", key_texts.join(", ")), factory);
        let calc = calc::Calc::identity(chain.schema());
        let mut lineage: Vec<Lineage> = (0..keys.len()).map(Lineage::Key).collect();
        lineage.resize(node.schema.fields().len(), Lineage::Other);
        let updates = Some(Updates { node: node_text, keys: key_texts });
        Ok(Stream { chain, calc, schema: Arc::clone(&node.schema), lineage, updates })
    }

    fn input(&self, inputs: &mut Inputs, stream: &Stream, expression: &Expr) -> Result<usize, SqlError> {
        let (_, name) = expression.qualified_name();
        let output = calc::compile(expression, &name, &stream.schema).map_err(|error| self.planning(&error))?;
        let text = match &output.value {
            Value::Column(index) => stream.schema.field(*index).name().clone(),
            Value::Computed(expression) => calc::sql(expression),
        };
        Ok(inputs.add(output, text))
    }

    fn call(&self, inputs: &mut Inputs, stream: &Stream, call: &Expr) -> Result<AggregateFunction, SqlError> {
        let Expr::AggregateFunction(function) = call.clone().unalias() else {
            return Err(self.internal(&format!("not an aggregate call: {call}")));
        };
        let parameters = &function.params;
        if parameters.distinct || parameters.filter.is_some() || !parameters.order_by.is_empty() {
            return Err(self.unsupported(&format!("{call}")));
        }
        match (function.func.name(), parameters.args.as_slice()) {
            ("count", [Expr::Literal(value, _)]) if !value.is_null() => Ok(AggregateFunction::CountStar),
            ("count", [argument]) => Ok(AggregateFunction::Count(self.input(inputs, stream, argument)?)),
            ("sum", [argument]) => Ok(AggregateFunction::Sum(self.input(inputs, stream, argument)?)),
            _ => Err(self.unsupported(&format!("{call}"))),
        }
    }

    /// Cuts a stream down to these columns and makes what is pending an operator.
    fn only(&mut self, mut stream: Stream, outputs: Vec<Output>) -> Stream {
        if outputs.is_empty() && stream.calc.keeps_columns() {
            // COUNT(*) without keys needs no column, but rows need one to be counted by.
            stream.calc.outputs = calc::Calc::identity(&stream.calc.input).outputs;
            stream.calc.outputs.truncate(1);
        }
        let stream = self.project(stream, outputs);
        self.fuse(stream)
    }
}

/// `GroupAggregate(groupBy=[a], select=[a, COUNT(*)])`, as Flink's EXPLAIN says it.
fn describe(keys: &[String], calls: &[AggregateFunction], inputs: &[String]) -> String {
    let calls = calls.iter().map(|call| match call {
        AggregateFunction::CountStar => "COUNT(*)".to_owned(),
        AggregateFunction::Count(input) => format!("COUNT({})", inputs[*input]),
        AggregateFunction::Sum(input) => format!("SUM({})", inputs[*input]),
    });
    let select: Vec<String> = keys.iter().cloned().chain(calls).collect();
    let group_by = if keys.is_empty() { String::new() } else { format!("groupBy=[{}], ", keys.join(", ")) };
    format!("GroupAggregate({group_by}select=[{}])", select.join(", "))
}
