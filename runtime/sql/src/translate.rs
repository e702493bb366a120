//! From a logical plan to chains of operators.
//!
//! Walks the plan from its scans up. A [`Stream`] is the open chain at that point together with a filter and a
//! projection that are still to be fused ([`Calc`]). An aggregation or a join closes the chains below it with hash edges
//! and opens the next; everything else stays in the chain. What needs no operator of its own needs no vertex either.

mod aggregate;
mod aside;
mod bounds;
mod dead_letter;
mod join;
mod late_rows;
mod rank;
mod scan;
mod sink;
mod time;
mod union;
mod values;
mod window;
mod window_distinct;

pub(crate) use scan::Sources;
pub(crate) use sink::Target;
#[cfg(test)]
pub(crate) use values::evaluated;
pub(crate) use window::WindowColumns;

use crate::PlanOptions;
use crate::calc::{self, Calc, Output, Value};
use crate::catalog::{Table, Tables};
use crate::diagnose;
use crate::error::{SourceText, SqlError, SqlErrorKind};
use crate::event_time::{RowTime, is_time_option};
use crate::flatten::{self, Flatten};
use crate::graph::{Chain, GraphBuilder, UidClash, Upstream, calc_info};
use crate::operators::{self, FlattenFactory};
use crate::parse::Insert;
use crate::rank::{ROW_NUMBER, of_extension as rank_of};
use crate::types::is_injective;
use crate::uid::{Stateful, StatefulKind, Uids};
use crate::written;
use arrow::datatypes::Schema;
use datafusion_common::{DFSchema, DFSchemaRef, DataFusionError, ScalarValue};
use datafusion_expr::logical_plan::Distinct;
use datafusion_expr::{Expr, LogicalPlan};
use datafusion_physical_expr::expressions::{CastExpr, Column, Literal};
use datafusion_sql::sqlparser::ast::{self, Spanned, visit_expressions};
use sluice_engine::table::{ConnectorCatalog, TableDescriptor, TableError, TableOption};
use sluice_protocol::graph::{OperatorInfo, OperatorKind};
use std::collections::{BTreeMap, VecDeque};
use std::ops::ControlFlow;
use std::sync::Arc;
use time::Times;

/// A statement and what it refers to.
#[derive(Clone, Copy)]
pub(crate) struct Statement<'a> {
    /// The text that places point into.
    pub(crate) text: SourceText<'a>,
    /// The declared tables.
    pub(crate) tables: &'a Tables,
    /// What WATERMARK FOR says, by table.
    pub(crate) times: &'a BTreeMap<String, RowTime>,
    /// The connectors.
    pub(crate) connectors: &'a dyn ConnectorCatalog,
    /// Parallelism.
    pub(crate) options: &'a PlanOptions,
    /// The INSERT itself.
    pub(crate) insert: &'a Insert,
}

/// What the translation of one statement needs and adds to.
pub(crate) struct Translator<'a> {
    /// The statement.
    pub(crate) statement: Statement<'a>,
    /// Its ids.
    pub(crate) uids: &'a Uids,
    /// The program it becomes part of.
    pub(crate) graph: &'a mut GraphBuilder,
    /// The scans of all statements.
    pub(crate) sources: &'a mut Sources,
    /// Stateless operators so far.
    pub(crate) calcs: usize,
    /// How often each table was scanned by the statement alone.
    pub(crate) scans: BTreeMap<String, usize>,
    /// Stateful operators that are still to come, the next one first.
    pub(crate) stateful: VecDeque<Stateful>,
    /// The window table function right below is aggregated by slices: it makes no rows of its own.
    pub(crate) counts_by_slice: bool,
}

/// Where a column's values come from, as far as keys are concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lineage {
    /// The key at this position.
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
    /// The names of the columns that tell which row changes, whose changes come in order; `None`: there are none.
    pub(crate) keys: Option<Vec<String>>,
    /// Whether a filter stands behind it: of a change only the row before or the row after may be left.
    pub(crate) are_filtered: bool,
    /// Whether an update is `-U` and `+U`, or `+U` alone, and not `-D` and `+I`.
    pub(crate) in_pairs: bool,
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
    /// Times among the chain's columns.
    times: Times,
    /// Which columns say the window of a row.
    windows: Option<WindowColumns>,
}

impl Translator<'_> {
    /// A plan and everything below it. `needs_before`: whether what is above wants the row as it was before an update.
    pub(crate) fn stream(&mut self, plan: &LogicalPlan, needs_before: bool) -> Result<Stream, SqlError> {
        match plan {
            LogicalPlan::TableScan(scan) => self.scan(scan),
            LogicalPlan::SubqueryAlias(alias) => {
                let stream = self.stream(&alias.input, needs_before)?;
                Ok(Stream { schema: Arc::clone(&alias.schema), ..stream })
            }
            LogicalPlan::Filter(filter) => {
                let stream = self.stream(&filter.input, needs_before)?;
                self.filter(stream, &filter.predicate)
            }
            LogicalPlan::Projection(projection) => {
                let stream = self.stream(&projection.input, needs_before)?;
                self.projection(stream, &projection.expr, &projection.schema)
            }
            LogicalPlan::Aggregate(aggregate) => {
                self.check_sessions(&aggregate.input)?;
                self.counts_by_slice = crate::window::sliced(aggregate);
                let stream = self.stream(&aggregate.input, true)?;
                self.aggregate(stream, aggregate, needs_before)
            }
            LogicalPlan::Distinct(Distinct::All(input)) => {
                let stream = self.stream(input, true)?;
                self.distinct(stream)
            }
            LogicalPlan::Union(union) => self.union(union, needs_before),
            LogicalPlan::Join(join) => self.join(join),
            LogicalPlan::Values(values) => self.values(values),
            LogicalPlan::EmptyRelation(empty) => self.one_row(empty),
            LogicalPlan::Extension(extension) => {
                if let Some(node) = flatten::of_extension(extension) {
                    return self.unnest(node, needs_before);
                }
                match (rank_of(extension), crate::window::of_extension(extension)) {
                    (Some(node), _) => self.rank(node, needs_before),
                    (_, Some(node)) => self.window(node),
                    _ => Err(self.statement.unsupported(extension.node.name())),
                }
            }
            LogicalPlan::Window(_) => Err(self.statement.unbounded_row_number()),
            other => Err(self.statement.unsupported(&other.display().to_string())),
        }
    }

    /// The next stateful operator of the statement as written.
    fn next_stateful(&mut self, kind: StatefulKind) -> Result<Stateful, SqlError> {
        match self.stateful.pop_front() {
            Some(next) if next.kind == kind => Ok(next),
            other => {
                let message = format!("the plan has {kind:?} where the statement has {other:?}");
                Err(self.statement.internal(&message))
            }
        }
    }

    fn filter(&mut self, stream: Stream, predicate: &Expr) -> Result<Stream, SqlError> {
        if matches!(predicate, Expr::Literal(ScalarValue::Boolean(Some(true)), _)) {
            return Ok(stream);
        }
        let planning = |error| self.statement.planning(&error);
        let condition = calc::physical(predicate, &stream.schema, &stream.calc).map_err(planning)?;
        let (mut stream, condition) = match stream.calc.over_input(&condition).map_err(planning)? {
            Some(condition) => (stream, condition),
            None => (self.fuse(stream), condition),
        };
        stream.calc.restrict(condition);
        if let Some(updates) = &mut stream.updates {
            updates.are_filtered |= updates.in_pairs;
        }
        Ok(stream)
    }

    fn projection(&mut self, stream: Stream, expressions: &[Expr], schema: &DFSchemaRef) -> Result<Stream, SqlError> {
        let outputs = expressions
            .iter()
            .zip(schema.fields())
            .map(|(expression, field)| calc::compile(expression, field.name(), &stream.schema, &stream.calc))
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| self.statement.planning(&error))?;
        let mut stream = self.project(stream, outputs)?;
        stream.schema = Arc::clone(schema);
        Ok(stream)
    }

    /// Puts outputs over a stream; an empty list leaves the stream's columns, since a batch needs one to have rows.
    fn project(&mut self, mut stream: Stream, outputs: Vec<Output>) -> Result<Stream, SqlError> {
        if outputs.is_empty() {
            return Ok(stream);
        }
        let trace = |output: &Output| lineage(&stream.lineage, &stream.schema, &output.value);
        stream.lineage = outputs.iter().map(trace).collect();
        stream.windows = stream.windows.and_then(|windows| windows.through(&outputs));
        let outputs = stream.calc.project(outputs).map_err(|error| self.statement.planning(&error))?;
        let Some(outputs) = outputs else { return Ok(stream) };
        let mut stream = self.fuse(stream);
        stream.calc.outputs = outputs;
        Ok(stream)
    }

    /// Makes the filter and projection an operator, unless they change nothing.
    fn fuse(&mut self, mut stream: Stream) -> Stream {
        if !stream.calc.is_identity() {
            self.calcs += 1;
            let info = calc_info(self.uids, self.calcs, stream.calc.describe());
            stream.chain.push(info, "Calc", operators::filter_project(&stream.calc));
        }
        stream.times = stream.times_behind_calc();
        stream.calc = Calc::identity(stream.chain.schema());
        stream
    }

    /// UNNEST: each row once per element.
    fn unnest(&mut self, node: &Flatten, needs_before: bool) -> Result<Stream, SqlError> {
        let planning = |error| self.statement.planning(&error);
        let input = node.input().map_err(planning)?;
        let mut stream = self.stream(input, needs_before)?;
        stream.calc.keep_one();
        let mut stream = self.fuse(stream);
        let list = calc::physical(&node.list, &stream.schema, &stream.calc);
        let list = list.map_err(|error| self.statement.planning(&error))?;
        let schema = datafusion_expr::UserDefinedLogicalNodeCore::schema(node);
        let own = 1 + usize::from(node.has_ordinality);
        let made = schema.fields().iter().skip(schema.fields().len() - own);
        let fields = stream.chain.schema().fields().iter().chain(made).cloned();
        let output = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
        self.calcs += 1;
        let description =
            format!("Unnest(array=[{}]{})", written::sql(&list), if node.is_outer { ", outer" } else { "" });
        let info = OperatorInfo { uid: self.uids.unnest(self.calcs), kind: OperatorKind::Stateless, description };
        let factory = FlattenFactory {
            list: operators::computed(list),
            has_ordinality: node.has_ordinality,
            is_outer: node.is_outer,
            output: Arc::clone(&output),
        };
        stream.chain.push(info, "Unnest", Arc::new(factory));
        // The chain may carry a column more than the plan knows, where the plan needs none.
        let kept = schema.fields().len() - own;
        let mut calc = Calc::identity(&output);
        if output.fields().len() > schema.fields().len() {
            calc.outputs.drain(kept..output.fields().len() - own);
        }
        let updates = stream.updates.map(|updates| Updates { keys: None, ..updates });
        let lineage = vec![Lineage::Other; schema.fields().len()];
        Ok(Stream {
            chain: stream.chain,
            calc,
            schema: Arc::clone(schema),
            lineage,
            updates,
            times: stream.times,
            windows: stream.windows,
        })
    }

    fn close(&mut self, mut chain: Chain) -> Result<Vec<Upstream>, SqlError> {
        if chain.lacks_operator() {
            self.calcs += 1;
            let calc = Calc::identity(chain.schema());
            let info = calc_info(self.uids, self.calcs, calc.describe());
            chain.push(info, "Calc", operators::filter_project(&calc));
        }
        self.graph.close(chain).map_err(|UidClash(uid)| {
            let message = format!(
                "two operators would have the id '{uid}': give one of the statements another name with \
                 SELECT /*+ UID('name') */ …"
            );
            self.statement.text.error(SqlErrorKind::Duplicate, self.statement.insert.query_at, message)
        })
    }
}

impl Statement<'_> {
    /// A ROW_NUMBER that no condition above it bounds.
    pub(crate) fn unbounded_row_number(&self) -> SqlError {
        let insert = self.insert;
        let found = visit_expressions(&insert.query, |expression: &ast::Expr| match expression {
            ast::Expr::Function(call) if call.name.to_string().eq_ignore_ascii_case(ROW_NUMBER) => {
                ControlFlow::Break(expression.span().start)
            }
            _ => ControlFlow::Continue(()),
        });
        let at = match found {
            ControlFlow::Break(at) => at,
            ControlFlow::Continue(()) => insert.query_at,
        };
        let message = "ROW_NUMBER needs an upper bound in the query around it, as in SELECT … FROM (SELECT …, \
                       ROW_NUMBER() OVER (…) AS rownum FROM …) WHERE rownum <= 10; one per SELECT";
        self.text.error(SqlErrorKind::Unsupported, at, message)
    }

    /// A table as connectors see it, with these columns.
    fn descriptor(&self, table: &Table, columns: &[usize]) -> Result<TableDescriptor, SqlError> {
        let schema = table.schema.project(columns).map_err(|error| self.planning(&error.into()))?;
        let place = |key: &usize| columns.iter().position(|column| column == key);
        let metadata = table.definition.columns.iter().filter_map(|column| {
            column.metadata.as_ref().map(|metadata| (column.name.value.clone(), metadata.key.clone()))
        });
        Ok(TableDescriptor {
            name: table.name().to_owned(),
            schema: Arc::new(schema),
            declared: Arc::clone(&table.schema),
            metadata: metadata.collect(),
            primary_key: table.definition.primary_key.iter().filter_map(place).collect(),
            partition_keys: table.definition.partition_keys.iter().map(|key| key.value.clone()).collect(),
            options: table
                .definition
                .options
                .iter()
                .filter(|option| !is_time_option(&option.key))
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
