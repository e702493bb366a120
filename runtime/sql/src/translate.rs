//! From a logical plan to chains of operators.
//!
//! Walks the plan from its scans up. A [`Stream`] is the open chain at that point together with a filter and a
//! projection that are still to be fused ([`Calc`]). An aggregation closes the chain with a hash edge and opens the
//! next; everything else stays in the chain.

mod aggregate;
mod scan;
mod sink;

use crate::PlanOptions;
use crate::calc::{self, Calc, Output, Value};
use crate::catalog::{Table, Tables};
use crate::diagnose;
use crate::error::{SourceText, SqlError, SqlErrorKind};
use crate::graph::{Chain, GraphBuilder, UidClash, calc_info};
use crate::operators;
use crate::parse::Insert;
use crate::types::is_injective;
use crate::uid::Uids;
use datafusion_common::{DFSchema, DFSchemaRef, DataFusionError, ScalarValue};
use datafusion_expr::{Expr, LogicalPlan};
use datafusion_physical_expr::expressions::{CastExpr, Column, Literal};
use sluice_engine::table::{ConnectorCatalog, TableDescriptor, TableError, TableOption};
use sluice_protocol::OperatorUid;
use std::sync::Arc;

/// What the translation of one statement needs and adds to.
pub(crate) struct Translator<'a> {
    /// The text that places point into.
    pub(crate) text: SourceText<'a>,
    /// The declared tables.
    pub(crate) tables: &'a Tables,
    /// The connectors.
    pub(crate) connectors: &'a dyn ConnectorCatalog,
    /// Parallelism.
    pub(crate) options: &'a PlanOptions,
    /// The statement.
    pub(crate) insert: &'a Insert,
    /// Its ids.
    pub(crate) uids: &'a Uids,
    /// The program it becomes part of.
    pub(crate) graph: &'a mut GraphBuilder,
    /// Stateless operators so far.
    pub(crate) calcs: usize,
    /// Ids of aggregations that are still to come, the next one last.
    pub(crate) aggregates: Vec<OperatorUid>,
    /// Whether updates are sent with the row as it was before.
    pub(crate) sends_update_before: bool,
}

/// Where a column's values come from, as far as keys are concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lineage {
    /// The grouping key at this position.
    Key(usize),
    /// The same value in every row.
    Constant,
    /// Anything else.
    Other,
}

/// Why the rows of a stream change later.
#[derive(Debug, Clone)]
pub(crate) struct Updates {
    /// The operator that updates them, in words.
    pub(crate) node: String,
    /// The names of its keys.
    pub(crate) keys: Vec<String>,
    /// Whether a filter stands behind it: of a change only the row before or the row after may be left.
    pub(crate) are_filtered: bool,
}

/// A chain that still grows, with what is to be fused at its end.
pub(crate) struct Stream {
    chain: Chain,
    calc: Calc,
    /// The columns as the logical plan knows them; `calc` has them in this order, perhaps with more behind them in
    /// its input.
    schema: DFSchemaRef,
    lineage: Vec<Lineage>,
    updates: Option<Updates>,
}

impl Translator<'_> {
    /// A plan and everything below it.
    pub(crate) fn stream(&mut self, plan: &LogicalPlan) -> Result<Stream, SqlError> {
        match plan {
            LogicalPlan::TableScan(scan) => self.scan(scan),
            LogicalPlan::SubqueryAlias(alias) => {
                let stream = self.stream(&alias.input)?;
                Ok(Stream { schema: Arc::clone(&alias.schema), ..stream })
            }
            LogicalPlan::Filter(filter) => {
                let stream = self.stream(&filter.input)?;
                self.filter(stream, &filter.predicate)
            }
            LogicalPlan::Projection(projection) => {
                let stream = self.stream(&projection.input)?;
                self.projection(stream, &projection.expr, &projection.schema)
            }
            LogicalPlan::Aggregate(aggregate) => {
                let stream = self.stream(&aggregate.input)?;
                self.aggregate(stream, aggregate)
            }
            LogicalPlan::Window(_) => Err(self.unsupported("a window")),
            LogicalPlan::Join(_) => Err(self.unsupported("JOIN")),
            other => Err(self.unsupported(&other.display().to_string())),
        }
    }

    fn filter(&mut self, stream: Stream, predicate: &Expr) -> Result<Stream, SqlError> {
        if matches!(predicate, Expr::Literal(ScalarValue::Boolean(Some(true)), _)) {
            return Ok(stream);
        }
        let mut stream = if stream.calc.keeps_columns() { stream } else { self.fuse(stream) };
        let condition =
            calc::physical(predicate, &stream.schema, &stream.calc).map_err(|error| self.planning(&error))?;
        stream.calc.restrict(condition);
        if let Some(updates) = &mut stream.updates {
            updates.are_filtered = true;
        }
        Ok(stream)
    }

    fn projection(&mut self, stream: Stream, expressions: &[Expr], schema: &DFSchemaRef) -> Result<Stream, SqlError> {
        let outputs = expressions
            .iter()
            .zip(schema.fields())
            .map(|(expression, field)| calc::compile(expression, field.name(), &stream.schema, &stream.calc))
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| self.planning(&error))?;
        let mut stream = self.project(stream, outputs);
        stream.schema = Arc::clone(schema);
        Ok(stream)
    }

    /// Puts outputs over a stream; an empty list leaves the stream's columns, since a batch needs one to have rows.
    fn project(&mut self, mut stream: Stream, outputs: Vec<Output>) -> Stream {
        if outputs.is_empty() {
            return stream;
        }
        let trace = |output: &Output| lineage(&stream.lineage, &stream.schema, &output.value);
        stream.lineage = outputs.iter().map(trace).collect();
        let Some(outputs) = stream.calc.project(outputs) else { return stream };
        let mut stream = self.fuse(stream);
        stream.calc.outputs = outputs;
        stream
    }

    /// Makes the filter and projection an operator, unless they change nothing.
    fn fuse(&mut self, mut stream: Stream) -> Stream {
        if !stream.calc.is_identity() {
            self.calcs += 1;
            let info = calc_info(self.uids, self.calcs, stream.calc.describe());
            stream.chain.push(info, "Calc", operators::filter_project(&stream.calc));
        }
        stream.calc = Calc::identity(stream.chain.schema());
        stream
    }

    /// A table as connectors see it, with these columns.
    fn descriptor(&self, table: &Table, columns: &[usize]) -> Result<TableDescriptor, SqlError> {
        let schema = table.schema.project(columns).map_err(|error| self.planning(&error.into()))?;
        let place = |key: &usize| columns.iter().position(|column| column == key);
        Ok(TableDescriptor {
            name: table.name().to_owned(),
            schema: Arc::new(schema),
            primary_key: table.definition.primary_key.iter().filter_map(place).collect(),
            options: table
                .definition
                .options
                .iter()
                .map(|option| TableOption { key: option.key.clone(), value: option.value.clone() })
                .collect(),
        })
    }

    /// A table that a connector refuses: the place is the option's, else the table's.
    fn refused(&self, table: &Table, error: &TableError) -> SqlError {
        let option = table.definition.options.iter().find(|option| Some(&option.key) == error.option.as_ref());
        let at = option.map_or(table.definition.name.span.start, |option| option.key_at);
        self.text.error(SqlErrorKind::Connector, at, error.to_string())
    }

    fn close(&mut self, chain: Chain) -> Result<sluice_protocol::VertexId, SqlError> {
        self.graph.close(chain).map_err(|UidClash(uid)| {
            let message = format!(
                "two operators would have the id '{uid}': give one of the statements another name with \
                 SELECT /*+ UID('name') */ …"
            );
            self.text.error(SqlErrorKind::Duplicate, self.insert.query_at, message)
        })
    }

    fn unsupported(&self, what: &str) -> SqlError {
        self.text.unsupported(what, self.insert.query_at)
    }

    fn planning(&self, error: &DataFusionError) -> SqlError {
        self.text.error(SqlErrorKind::Type, self.insert.query_at, diagnose::message(error))
    }

    fn invalid(&self, message: &str) -> SqlError {
        self.text.error(SqlErrorKind::Invalid, self.insert.query_at, message)
    }

    fn internal(&self, message: &str) -> SqlError {
        self.text.error(SqlErrorKind::Internal, self.insert.query_at, message)
    }
}

/// Where an output comes from; a cast that keeps different values different is looked through.
fn lineage(below: &[Lineage], schema: &DFSchema, value: &Value) -> Lineage {
    let of_column = |index: usize| below.get(index).copied().unwrap_or(Lineage::Other);
    let expression = match value {
        Value::Column(index) => return of_column(*index),
        Value::Computed(expression) => expression,
    };
    if expression.downcast_ref::<Literal>().is_some() {
        return Lineage::Constant;
    }
    let cast = expression.downcast_ref::<CastExpr>();
    match cast.and_then(|cast| Some((cast, cast.expr().downcast_ref::<Column>()?))) {
        Some((cast, column)) if is_injective(schema.field(column.index()).data_type(), cast.cast_type()) => {
            of_column(column.index())
        }
        _ => Lineage::Other,
    }
}
