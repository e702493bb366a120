//! GROUP BY and DISTINCT: rows are exchanged by the key groups of their keys, then aggregated per key.
//!
//! Before the exchange the stream is cut down to keys and arguments. Without keys there is one group, so one subtask.

use super::time::Times;
use super::{Lineage, Stream, Translator, Updates};
use crate::calc::{self, Calc, Output, Value};
use crate::error::SqlError;
use crate::graph::Chain;
use crate::uid::{Stateful, StatefulKind};
use crate::written;
use arrow::datatypes::{FieldRef, SchemaRef};
use datafusion_expr::Expr;
use datafusion_expr::logical_plan::Aggregate;
use sluice_engine::aggregate::{AggregateCall, AggregateKind, GroupAggregateFactory, GroupAggregateSpec};
use sluice_engine::operator::OperatorFactory;
use sluice_protocol::TimeSpan;
use sluice_protocol::graph::{OperatorInfo, OperatorKind, Partitioning};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The columns that cross the exchange, each once, with the name people know it by; of different columns of one name,
/// as both sides of a join may have them, the second ends in `#2`.
#[derive(Default)]
pub(super) struct Inputs {
    pub(super) outputs: Vec<Output>,
    pub(super) texts: Vec<String>,
    pub(super) readable: Readable,
}

/// How people read a name that columns of state have: keys and calls as SQL.
#[derive(Default)]
pub(super) struct Readable(BTreeMap<String, String>);

impl Readable {
    pub(super) fn of<'a>(&'a self, name: &'a str) -> &'a str {
        self.0.get(name).map_or(name, String::as_str)
    }

    /// Of these names, in a row.
    pub(super) fn list<'a>(&'a self, names: impl IntoIterator<Item = &'a String>) -> String {
        names.into_iter().map(|name| self.of(name)).collect::<Vec<_>>().join(", ")
    }
}

impl Inputs {
    /// The position of a value, which is added when it is new.
    fn add(&mut self, output: Output) -> usize {
        let same = |other: &Output| match (&other.value, &output.value) {
            (Value::Column(a), Value::Column(b)) => a == b,
            (Value::Computed(a), Value::Computed(b)) => a == b,
            _ => false,
        };
        if let Some(position) = self.outputs.iter().position(same) {
            return position;
        }
        let text = unique_name(output.field.name(), |name| self.texts.iter().all(|other| other != name));
        let field = Arc::new(output.field.as_ref().clone().with_name(&text));
        self.outputs.push(Output { field, ..output });
        self.texts.push(text);
        self.outputs.len() - 1
    }
}

impl Translator<'_> {
    /// GROUP BY. `needs_before`: whether updates are sent with the row as it was before.
    pub(super) fn aggregate(
        &mut self,
        stream: Stream,
        node: &Aggregate,
        needs_before: bool,
    ) -> Result<Stream, SqlError> {
        if let Some(windows) = self.grouped_windows(&stream, node)? {
            return self.window_aggregate(stream, node, &windows, needs_before);
        }
        let stateful = self.next_stateful(StatefulKind::Aggregate)?;
        let mut inputs = Inputs::default();
        let mut keys = Vec::new();
        for key in &node.group_expr {
            keys.push(self.input(&mut inputs, &stream, key)?);
        }
        let calls = self.calls(&mut inputs, &stream, &node.aggr_expr)?;
        let key_names: Vec<String> = keys.iter().map(|key| inputs.texts[*key].clone()).collect();
        let description = describe(&key_names, &calls, &inputs.readable);
        let name = format!("GroupAggregate[{}]", inputs.readable.list(&key_names));
        // With a TTL a group that is touched is told again.
        let changes = stream.updates.is_some() || !calls.is_empty() || stateful.ttl[0].is_some();
        let stream = self.only(stream, inputs.outputs)?;
        let spec = GroupAggregateSpec {
            input: Arc::clone(stream.chain.schema()),
            keys,
            key_names: key_names.clone(),
            calls,
            emit_update_before: needs_before,
            changelog: stream.updates.is_some(),
            ttl: stateful.ttl[0].map(TimeSpan::from),
        };
        let chain = self.grouped(stream.chain, spec, stateful, &name, description.clone())?;
        let updates = Updates { node: description, keys: Some(key_names), are_filtered: false, in_pairs: true };
        self.aggregated(chain, node, Some(updates).filter(|_| changes))
    }

    /// DISTINCT: a group of no aggregates.
    pub(super) fn distinct(&mut self, stream: Stream) -> Result<Stream, SqlError> {
        let stateful = self.next_stateful(StatefulKind::Distinct)?;
        // With a TTL a row that comes again is told again.
        let told_again = stateful.ttl[0].is_some();
        let mut stream = self.fuse(stream);
        let columns = stream.schema.fields().len();
        stream.calc.outputs.truncate(columns);
        make_names_unique(&mut stream.calc.outputs);
        let names: Vec<String> = stream.calc.outputs.iter().map(|output| output.field.name().clone()).collect();
        let stream = self.fuse(stream);
        let spec = GroupAggregateSpec {
            input: Arc::clone(stream.chain.schema()),
            keys: (0..columns).collect(),
            key_names: names.clone(),
            calls: Vec::new(),
            emit_update_before: true,
            changelog: stream.updates.is_some(),
            ttl: stateful.ttl[0].map(TimeSpan::from),
        };
        let description = format!("Distinct(columns=[{}])", names.join(", "));
        let chain = self.grouped(stream.chain, spec, stateful, "Distinct", description.clone())?;
        let updates = Updates { node: description, keys: Some(names), are_filtered: false, in_pairs: told_again };
        let updates = Some(updates).filter(|_| stream.updates.is_some() || told_again);
        let calc = Calc::identity(chain.schema());
        Ok(Stream {
            chain,
            calc,
            schema: stream.schema,
            lineage: (0..columns).map(Lineage::Key).collect(),
            updates,
            times: Times::default(),
            windows: None,
        })
    }

    /// A chain that begins with the operator, behind an exchange by its keys.
    fn grouped(
        &mut self,
        below: Chain,
        spec: GroupAggregateSpec,
        stateful: Stateful,
        name: &str,
        description: String,
    ) -> Result<Chain, SqlError> {
        let (keys, schema) = (spec.keys.clone(), Arc::clone(&spec.input));
        let factory = GroupAggregateFactory::new(spec).map_err(|error| self.statement.invalid(&error.to_string()))?;
        let info = OperatorInfo { uid: stateful.uid, kind: OperatorKind::Keyed, description };
        self.keyed(below, (keys, schema), info, name, Arc::new(factory))
    }

    /// A chain that begins with a keyed operator.
    pub(super) fn keyed(
        &mut self,
        below: Chain,
        (keys, schema): (Vec<usize>, SchemaRef),
        info: OperatorInfo,
        name: &str,
        factory: Arc<dyn OperatorFactory>,
    ) -> Result<Chain, SqlError> {
        let from = self.close(below)?;
        let (is_global, parallelism) = (keys.is_empty(), self.statement.options.parallelism);
        let chain = Chain::from_edge(from, Partitioning::Hash { keys }, parallelism, schema);
        // Without keys there is one group.
        let mut chain = if is_global { chain.single() } else { chain };
        chain.push(info, name, factory);
        Ok(chain)
    }

    /// The stream behind an aggregation, whose columns the engine must type as the plan does.
    fn aggregated(&self, chain: Chain, node: &Aggregate, updates: Option<Updates>) -> Result<Stream, SqlError> {
        let (planned, made) = (node.schema.fields(), chain.schema().fields());
        let differs = |(planned, made): (&FieldRef, &FieldRef)| planned.data_type() != made.data_type();
        if planned.len() != made.len() || planned.iter().zip(made).any(differs) {
            return Err(self.statement.internal(&format!("an aggregation gives other columns than planned: {made:?}")));
        }
        let mut lineage: Vec<Lineage> = (0..node.group_expr.len()).map(Lineage::Key).collect();
        lineage.resize(planned.len(), Lineage::Other);
        let calc = Calc::identity(chain.schema());
        Ok(Stream {
            chain,
            calc,
            schema: Arc::clone(&node.schema),
            lineage,
            updates,
            times: Times::default(),
            windows: None,
        })
    }

    pub(super) fn input(&self, inputs: &mut Inputs, stream: &Stream, expression: &Expr) -> Result<usize, SqlError> {
        let compiled = calc::compile(expression, "", &stream.schema, &stream.calc);
        let output = compiled.map_err(|error| self.statement.planning(&error))?;
        let (text, readable) = match &output.value {
            Value::Column(index) => (stream.schema.field(*index).name().clone(), None),
            Value::Computed(expression) => (calc::column_name(expression), Some(written::sql(expression))),
        };
        let field = Arc::new(output.field.as_ref().clone().with_name(&text));
        let position = inputs.add(Output { field, ..output });
        if let Some(readable) = readable {
            inputs.readable.0.insert(inputs.texts[position].clone(), readable);
        }
        Ok(position)
    }

    /// The calls of an aggregation. Of calls that mean the same, as `COUNT(*)` and `COUNT(1)` do, the second ends in `#2`.
    pub(super) fn calls(
        &self,
        inputs: &mut Inputs,
        stream: &Stream,
        expressions: &[Expr],
    ) -> Result<Vec<AggregateCall>, SqlError> {
        let mut calls: Vec<AggregateCall> = Vec::new();
        for expression in expressions {
            let call = self.call(inputs, stream, expression)?;
            let name = unique_name(&call.name, |name| calls.iter().all(|other| other.name != name));
            let readable = inputs.readable.of(&call.name).to_owned();
            inputs.readable.0.insert(name.clone(), readable);
            calls.push(AggregateCall { name, ..call });
        }
        Ok(calls)
    }

    /// A call by its text without aliases, so that the state's columns do not depend on them.
    fn call(&self, inputs: &mut Inputs, stream: &Stream, call: &Expr) -> Result<AggregateCall, SqlError> {
        let Expr::AggregateFunction(function) = call.clone().unalias() else {
            return Err(self.statement.internal(&format!("not an aggregate call: {call}")));
        };
        let parameters = &function.params;
        let (kind, word) = match function.func.name() {
            "count" => (AggregateKind::Count, "COUNT"),
            "sum" => (AggregateKind::Sum, "SUM"),
            "avg" => (AggregateKind::Avg, "AVG"),
            "min" => (AggregateKind::Min, "MIN"),
            "max" => (AggregateKind::Max, "MAX"),
            _ => return Err(self.statement.unsupported(&call.to_string())),
        };
        let [argument] = parameters.args.as_slice() else {
            return Err(self.statement.unsupported(&call.to_string()));
        };
        if !parameters.order_by.is_empty() {
            return Err(self.statement.unsupported(&call.to_string()));
        }
        // The smallest of distinct values is the smallest value.
        let distinct = parameters.distinct && !matches!(kind, AggregateKind::Min | AggregateKind::Max);
        let counts_rows = kind == AggregateKind::Count
            && !distinct
            && matches!(argument, Expr::Literal(value, _) if !value.is_null());
        let argument = if counts_rows { None } else { Some(self.input(inputs, stream, argument)?) };
        let filter = parameters.filter.as_ref();
        let filter = filter.map(|filter| self.input(inputs, stream, filter)).transpose()?;
        let said = |text: &dyn Fn(usize) -> String| {
            let distinct = if distinct { "DISTINCT " } else { "" };
            let argument = argument.map_or_else(|| "*".to_owned(), text);
            let filter = filter.map_or_else(String::new, |filter| format!(" FILTER (WHERE {})", text(filter)));
            format!("{word}({distinct}{argument}){filter}")
        };
        let name = said(&|input| inputs.texts[input].clone());
        let readable = said(&|input| inputs.readable.of(&inputs.texts[input]).to_owned());
        inputs.readable.0.insert(name.clone(), readable);
        Ok(AggregateCall { kind, argument, distinct, filter, name })
    }

    /// Cuts a stream down to these columns and makes what is pending an operator.
    pub(super) fn only(&mut self, mut stream: Stream, outputs: Vec<Output>) -> Result<Stream, SqlError> {
        if outputs.is_empty() && stream.calc.keeps_columns() {
            // COUNT(*) without keys needs no column, but rows need one to be counted by.
            stream.calc.outputs.clear();
            stream.calc.keep_one();
        }
        let stream = self.project(stream, outputs)?;
        Ok(self.fuse(stream))
    }
}

/// Columns of state go by their names.
pub(super) fn make_names_unique(outputs: &mut [Output]) {
    let mut names: BTreeSet<String> = BTreeSet::new();
    for output in outputs {
        let name = unique_name(output.field.name(), |name| !names.contains(name));
        if name != *output.field.name() {
            output.field = Arc::new(output.field.as_ref().clone().with_name(&name));
        }
        names.insert(name);
    }
}

/// The name, or `name#2`, `name#3` and so on: the first that is free.
fn unique_name(name: &str, is_free: impl Fn(&str) -> bool) -> String {
    let mut unique = name.to_owned();
    let mut number = 2;
    while !is_free(&unique) {
        unique = format!("{name}#{number}");
        number += 1;
    }
    unique
}

/// `GroupAggregate(groupBy=[a], select=[a, COUNT(*)])`, as Flink's EXPLAIN says it.
fn describe(keys: &[String], calls: &[AggregateCall], readable: &Readable) -> String {
    format!("GroupAggregate({})", described(keys, calls, readable))
}

/// `groupBy=[a], select=[a, COUNT(*)]`.
pub(super) fn described(keys: &[String], calls: &[AggregateCall], readable: &Readable) -> String {
    let select = readable.list(keys.iter().chain(calls.iter().map(|call| &call.name)));
    let group_by = if keys.is_empty() { String::new() } else { format!("groupBy=[{}], ", readable.list(keys)) };
    format!("{group_by}select=[{select}]")
}
