//! The end of a statement: columns are written to the sink's columns, and the sink must be able to take the changes.
//!
//! Column checks and implicit casts follow Flink's; what a sink takes it declares itself (S7).

use super::scan::names;
use super::{Lineage, Statement, Stream, Translator, Updates};
use crate::catalog::Table;
use crate::error::{SqlError, SqlErrorKind, nearest};
use crate::operators::UpsertFactory;
use crate::parse::ColumnDefinition;
use crate::rank;
use crate::types::{is_implicit, sql_name};
use arrow::datatypes::{DataType, FieldRef, SchemaRef};
use datafusion_common::{Column, ScalarValue};
use datafusion_expr::{Expr, ExprSchemable, LogicalPlan, LogicalPlanBuilder};
use datafusion_sql::sqlparser::ast::{SelectItem, SetExpr, Spanned};
use datafusion_sql::sqlparser::tokenizer::Location;
use sluice_engine::sink::{AcceptedKinds, DeliveryGuarantee, SinkFactory};
use sluice_engine::table::TableDescriptor;
use sluice_protocol::graph::{OperatorInfo, OperatorKind};
use std::sync::Arc;

/// A sink that the statement writes to.
pub(crate) struct Target<'a> {
    table: &'a Table,
    factory: Arc<dyn SinkFactory>,
    /// For each column of the sink the query's column that fills it; none: null.
    columns: Vec<Option<usize>>,
    /// The table's columns without those that are only read.
    schema: SchemaRef,
    /// Positions in `schema`.
    primary_key: Vec<usize>,
}

impl Target<'_> {
    /// Whether updates must carry the row as it was before: the sink wants it, or a row that no longer passes a filter
    /// must be deleted.
    pub(crate) fn wants_update_before(&self, plan: &LogicalPlan) -> bool {
        self.factory.accepted_kinds() == AcceptedKinds::All || is_filtered(plan, false)
    }
}

impl<'a> Statement<'a> {
    /// Checks the query's columns against the sink's, and asks the connector for the sink.
    pub(crate) fn target(&self, plan: &LogicalPlan) -> Result<Target<'a>, SqlError> {
        let query = plan.schema().inner();
        let table = self.tables.resolve(self.text, &self.insert.table)?;
        let written = written_columns(table);
        let descriptor = self.descriptor(table, &written)?;
        let schema = Arc::clone(&descriptor.schema);
        let columns = self.target_columns(table, &schema, query)?;
        for (field, source) in schema.fields().iter().zip(&columns) {
            match source {
                Some(source) => self.check_type(table, field, *source, plan)?,
                None => self.check_absent(table, field)?,
            }
        }
        let descriptor = TableDescriptor { declared: Arc::clone(&schema), ..descriptor };
        let factory = self.connectors.sink(&descriptor).map_err(|error| self.refused(table, &error))?;
        Ok(Target { table, factory, columns, schema, primary_key: descriptor.primary_key })
    }

    fn target_columns(
        &self,
        table: &Table,
        schema: &SchemaRef,
        query: &SchemaRef,
    ) -> Result<Vec<Option<usize>>, SqlError> {
        let given = query.fields().len();
        let listed = &self.insert.columns;
        let wanted = if listed.is_empty() { schema.fields().len() } else { listed.len() };
        if given != wanted {
            let message = format!(
                "the query has {given} columns ({}), but table '{}' is given {wanted} ({})",
                columns_text(query),
                table.name(),
                if listed.is_empty() {
                    columns_text(schema)
                } else {
                    listed.iter().map(|column| column.value.as_str()).collect::<Vec<_>>().join(", ")
                },
            );
            return Err(self.text.error(SqlErrorKind::Type, self.insert.query_at, message));
        }
        if listed.is_empty() {
            return Ok((0..wanted).map(Some).collect());
        }
        let mut columns = vec![None; schema.fields().len()];
        for (source, column) in listed.iter().enumerate() {
            let Ok(position) = schema.index_of(&column.value) else {
                let known = schema.fields().iter().map(|field| field.name().as_str());
                let near = nearest(&column.value, known);
                let message = format!("table '{}' has no column '{}'{near}", table.name(), column.value);
                return Err(self.text.error(SqlErrorKind::UnknownColumn, column.span.start, message));
            };
            if columns[position].replace(source).is_some() {
                let message = format!("column '{}' is listed twice", column.value);
                return Err(self.text.error(SqlErrorKind::Duplicate, column.span.start, message));
            }
        }
        Ok(columns)
    }

    fn check_type(&self, table: &Table, field: &FieldRef, source: usize, plan: &LogicalPlan) -> Result<(), SqlError> {
        let given = plan.schema().field(source).data_type();
        let summed = summed_type(plan, source);
        // In Flink a sum has the type of what is added up; here it is wider, and is checked when it is written.
        if is_implicit(given, field.data_type())
            || summed.is_some_and(|summed| summed == *field.data_type() || is_implicit(&summed, field.data_type()))
        {
            return Ok(());
        }
        let (given, wanted) = (sql_name(given), sql_name(field.data_type()));
        let message = format!(
            "column '{}' of table '{}' is {wanted}, but the query's column {} is {given}: write CAST(… AS {wanted})",
            field.name(),
            table.name(),
            source + 1,
        );
        Err(self.text.error(SqlErrorKind::Type, self.item_at(source), message))
    }

    fn check_absent(&self, table: &Table, field: &FieldRef) -> Result<(), SqlError> {
        if field.is_nullable() {
            return Ok(());
        }
        let message = format!("column '{}' of table '{}' is NOT NULL and must be listed", field.name(), table.name());
        Err(self.text.error(SqlErrorKind::Type, self.insert.table.span.start, message))
    }

    /// Where the query's column is written.
    fn item_at(&self, source: usize) -> Location {
        let item = match self.insert.query.body.as_ref() {
            SetExpr::Select(select) => {
                let has_wildcard = select
                    .projection
                    .iter()
                    .any(|item| matches!(item, SelectItem::Wildcard(_) | SelectItem::QualifiedWildcard(..)));
                select.projection.get(source).filter(|_| !has_wildcard)
            }
            _ => None,
        };
        item.map(|item| item.span().start).filter(|at| at.line > 0).unwrap_or(self.insert.query_at)
    }

    /// Puts a projection over a plan that gives the sink's columns, with implicit casts and nulls where needed.
    pub(crate) fn shaped(&self, plan: LogicalPlan, target: &Target<'_>) -> Result<LogicalPlan, SqlError> {
        let expressions: datafusion_common::Result<Vec<Expr>> = target
            .schema
            .fields()
            .iter()
            .zip(&target.columns)
            .map(|(field, source)| {
                let value = match source {
                    Some(source) => Expr::Column(Column::from(plan.schema().qualified_field(*source))),
                    None => Expr::Literal(ScalarValue::Null, None),
                };
                Ok(value.cast_to(field.data_type(), plan.schema())?.alias(field.name()))
            })
            .collect();
        expressions
            .and_then(|expressions| LogicalPlanBuilder::from(plan.clone()).project(expressions)?.build())
            .map_err(|error| self.planning(&error))
    }
}

impl Translator<'_> {
    /// Ends a stream of the sink's columns at the sink.
    pub(crate) fn write(&mut self, mut stream: Stream, target: Target<'_>) -> Result<(), SqlError> {
        if let Some(updates) = &stream.updates {
            self.check_changes(&stream, updates, &target)?;
        }
        let name = target.table.name();
        if stream.calc.outputs.len() != target.schema.fields().len() {
            return Err(self.statement.internal(&format!("the plan does not give the columns of table '{name}'")));
        }
        for (output, field) in stream.calc.outputs.iter_mut().zip(target.schema.fields()) {
            if !field.is_nullable() && output.field.is_nullable() {
                output.not_null = Some(format!("column '{}' of table '{name}'", field.name()));
            }
            output.field = Arc::clone(field);
        }
        let are_filtered = stream.updates.as_ref().is_some_and(|updates| updates.are_filtered);
        let mut chain = self.fuse(stream).chain;
        if are_filtered && target.factory.accepted_kinds() == AcceptedKinds::Upsert {
            let keys = target.primary_key.clone();
            let key_names: Vec<&str> = keys.iter().map(|key| target.schema.field(*key).name().as_str()).collect();
            let description = format!("Upsert(key=[{}])", key_names.join(", "));
            let info = OperatorInfo { uid: self.uids.upsert(), kind: OperatorKind::Stateless, description };
            chain.push(info, "Upsert", Arc::new(UpsertFactory { keys, schema: Arc::clone(&target.schema) }));
        }
        let (kind, delivery) = delivery(target.factory.as_ref());
        let description = format!("Sink(table=[{name}], fields=[{}]{delivery})", names(&target.schema));
        let info = OperatorInfo { uid: self.uids.sink(), kind, description };
        chain.end_with(info, format!("Sink: {name}"), target.factory);
        self.close(chain).map(|_| ())
    }

    /// Ends a stream without a sink: what EXPLAIN shows of a query.
    pub(crate) fn end(&mut self, stream: Stream) -> Result<(), SqlError> {
        let chain = self.fuse(stream).chain;
        self.close(chain).map(|_| ())
    }

    fn check_changes(&self, stream: &Stream, updates: &Updates, target: &Target<'_>) -> Result<(), SqlError> {
        match target.factory.accepted_kinds() {
            AcceptedKinds::All => Ok(()),
            AcceptedKinds::InsertOnly => {
                let message = format!(
                    "table sink '{}' doesn't support consuming update changes which is produced by node {}",
                    target.table.name(),
                    updates.node,
                );
                Err(self.statement.text.error(SqlErrorKind::Changelog, self.statement.insert.table.span.start, message))
            }
            AcceptedKinds::Upsert => self.check_upsert(stream, updates, target),
        }
    }

    /// An upsert sink holds one row per primary key: it must be the grouping key, neither less (two groups would
    /// overwrite each other) nor more (a changed value would leave the old row behind).
    fn check_upsert(&self, stream: &Stream, updates: &Updates, target: &Target<'_>) -> Result<(), SqlError> {
        let table = target.table;
        let at = self.statement.insert.table.span.start;
        if table.definition.primary_key.is_empty() {
            let message = format!("table sink '{}' takes updates by key: declare a PRIMARY KEY", table.name());
            return Err(self.statement.text.error(SqlErrorKind::Changelog, at, message));
        }
        let Some(keys) = &updates.keys else {
            let message = format!(
                "the upsert sink '{}' takes updates by key, but the rows of {} have no key whose changes come in order: \
                 write to a sink that takes all changes",
                table.name(),
                updates.node,
            );
            return Err(self.statement.text.error(SqlErrorKind::Changelog, at, message));
        };
        let mut covered = vec![false; keys.len()];
        for position in &target.primary_key {
            let column = target.schema.field(*position);
            match stream.lineage.get(*position).copied().unwrap_or(Lineage::Other) {
                Lineage::Key(key) => covered[key] = true,
                Lineage::Constant => {}
                Lineage::Other => {
                    let message = format!(
                        "the PRIMARY KEY of table sink '{}' must be the query's grouping key ({}), but its column \
                         '{}' is not part of that and changes",
                        table.name(),
                        keys.join(", "),
                        column.name(),
                    );
                    return Err(self.statement.text.error(SqlErrorKind::Changelog, at, message));
                }
            }
        }
        match covered.iter().position(|is_covered| !is_covered) {
            None => Ok(()),
            Some(missing) => {
                let message = format!(
                    "the PRIMARY KEY of table sink '{}' must be the query's grouping key ({}), but lacks '{}': rows \
                     of different groups would overwrite each other",
                    table.name(),
                    keys.join(", "),
                    keys[missing],
                );
                Err(self.statement.text.error(SqlErrorKind::Changelog, at, message))
            }
        }
    }
}

/// What a sink is in the graph, and how the plan shows what it promises.
pub(super) fn delivery(factory: &dyn SinkFactory) -> (OperatorKind, &'static str) {
    match factory.guarantee() {
        DeliveryGuarantee::ExactlyOnce => (OperatorKind::TransactionalSink, ", delivery=[exactly-once]"),
        DeliveryGuarantee::AtLeastOnce => (OperatorKind::Sink, ", delivery=[at-least-once]"),
        DeliveryGuarantee::None => (OperatorKind::Sink, ", delivery=[none]"),
    }
}

/// All columns but those that are declared `METADATA VIRTUAL`.
pub(super) fn written_columns(table: &Table) -> Vec<usize> {
    let is_written = |column: &ColumnDefinition| !column.metadata.as_ref().is_some_and(|metadata| metadata.is_virtual);
    let columns = table.definition.columns.iter().enumerate().filter(|(_, column)| is_written(column));
    columns.map(|(position, _)| position).collect()
}

/// Whether a filter stands over an aggregation or a rank, with nothing in between that keeps state.
fn is_filtered(plan: &LogicalPlan, by_filter: bool) -> bool {
    match plan {
        LogicalPlan::Projection(projection) => is_filtered(&projection.input, by_filter),
        LogicalPlan::SubqueryAlias(alias) => is_filtered(&alias.input, by_filter),
        LogicalPlan::Filter(filter) => is_filtered(&filter.input, true),
        LogicalPlan::Aggregate(_) | LogicalPlan::Distinct(_) => by_filter,
        LogicalPlan::Extension(extension) => by_filter && rank::of_extension(extension).is_some(),
        _ => false,
    }
}

/// The type of what a column adds up, when it is a SUM of whole numbers as it is.
fn summed_type(plan: &LogicalPlan, column: usize) -> Option<DataType> {
    match plan {
        LogicalPlan::SubqueryAlias(alias) => summed_type(&alias.input, column),
        LogicalPlan::Filter(filter) => summed_type(&filter.input, column),
        LogicalPlan::Projection(projection) => match projection.expr.get(column)?.clone().unalias() {
            Expr::Column(below) => {
                summed_type(&projection.input, projection.input.schema().maybe_index_of_column(&below)?)
            }
            _ => None,
        },
        LogicalPlan::Aggregate(aggregate) => {
            let call = aggregate.aggr_expr.get(column.checked_sub(aggregate.group_expr.len())?)?;
            let Expr::AggregateFunction(function) = call.clone().unalias() else { return None };
            let argument = function.params.args.first().filter(|_| function.func.name() == "sum")?;
            argument.get_type(aggregate.input.schema()).ok().filter(DataType::is_integer)
        }
        _ => None,
    }
}

/// `a BIGINT, b STRING`.
fn columns_text(schema: &SchemaRef) -> String {
    let columns = schema.fields().iter().map(|field| format!("{} {}", field.name(), sql_name(field.data_type())));
    columns.collect::<Vec<_>>().join(", ")
}
