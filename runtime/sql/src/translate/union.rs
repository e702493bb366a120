//! UNION ALL: several edges into whatever comes next.
//!
//! All branches are brought to the same columns first. Rows of a branch with one subtask are exchanged by all their
//! columns, so that a row and its retraction stay in order; at any parallelism, so that the edge stays what it is.

use super::time::Times;
use super::{Lineage, Stream, Translator, Updates};
use crate::calc::{Calc, Output, Value};
use crate::error::SqlError;
use crate::graph::{Chain, Upstream};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion_expr::logical_plan::Union;
use datafusion_physical_expr::expressions::lit;
use sluice_protocol::graph::Partitioning;
use std::sync::Arc;

impl Translator<'_> {
    pub(super) fn union(&mut self, union: &Union, needs_before: bool) -> Result<Stream, SqlError> {
        let mut branches = Vec::new();
        for input in &union.inputs {
            branches.push(self.stream(input, needs_before)?);
        }
        let fields = union.schema.fields().iter().enumerate().map(|(index, field)| {
            let is_nullable = branches.iter().any(|branch| branch.schema.field(index).is_nullable());
            Field::new(field.name(), field.data_type().clone(), is_nullable || field.is_nullable())
        });
        let mut fields: Vec<Field> = fields.collect();
        let has_columns = !fields.is_empty();
        if !has_columns {
            // Rows need a column to be told by, and all branches the same.
            fields.push(Field::new("row", DataType::Boolean, false));
        }
        let schema: SchemaRef = Arc::new(Schema::new(fields));
        let updates = branches.iter().filter_map(|branch| branch.updates.clone()).reduce(|first, next| Updates {
            are_filtered: first.are_filtered || next.are_filtered,
            in_pairs: first.in_pairs || next.in_pairs,
            ..first
        });
        let times = (0..union.schema.fields().len()).map(|column| {
            let first = branches.first().and_then(|branch| branch.time_attribute(column));
            first.filter(|_| branches.iter().all(|branch| branch.time_attribute(column) == first))
        });
        let times = Times::of(times.collect());
        let mut inputs: Vec<(Vec<Upstream>, Partitioning)> = Vec::new();
        for branch in branches {
            let branch = if has_columns { self.reshaped(branch, &schema)? } else { self.marked(branch, &schema)? };
            let all = Partitioning::Hash { keys: (0..schema.fields().len()).collect() };
            let partitioning = if branch.chain.is_single() { all } else { Partitioning::Forward };
            inputs.push((self.close(branch.chain)?, partitioning));
        }
        Ok(Stream {
            chain: Chain::union(inputs, self.statement.options.parallelism, Arc::clone(&schema)),
            calc: Calc::identity(&schema),
            schema: Arc::clone(&union.schema),
            lineage: vec![Lineage::Other; schema.fields().len()],
            updates: updates.map(|updates| Updates { keys: None, ..updates }),
            times,
            windows: None,
        })
    }

    /// A stream whose chain ends with a constant as its only column.
    fn marked(&mut self, stream: Stream, schema: &SchemaRef) -> Result<Stream, SqlError> {
        let mark =
            |field: &Arc<Field>| Output { field: Arc::clone(field), value: Value::Computed(lit(true)), not_null: None };
        let stream = self.project(stream, schema.fields().iter().map(mark).collect())?;
        Ok(self.fuse(stream))
    }

    /// A stream whose chain ends with just these columns.
    fn reshaped(&mut self, stream: Stream, schema: &SchemaRef) -> Result<Stream, SqlError> {
        let types = |(made, wanted): (&Output, &Arc<Field>)| made.field.data_type() == wanted.data_type();
        let count = schema.fields().len();
        if stream.calc.outputs.len() < count || !stream.calc.outputs.iter().zip(schema.fields()).all(types) {
            return Err(self.statement.internal("the branches of UNION ALL have other columns than planned"));
        }
        let output = |(index, field): (usize, &Arc<Field>)| Output {
            field: Arc::clone(field),
            value: Value::Column(index),
            not_null: None,
        };
        let outputs = schema.fields().iter().enumerate().map(output).collect();
        let stream = self.project(stream, outputs)?;
        Ok(self.fuse(stream))
    }
}
