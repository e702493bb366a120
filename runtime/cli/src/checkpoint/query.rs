//! `sluice checkpoint query`: SQL over the keyed state of a checkpoint, answered by DataFusion in this process.
//!
//! Each keyed state is a table of the rows that a restore would see: full files with the deltas laid over them. A table is
//! read when a query names it, whole and into memory. Reads only; statements that would write anything are refused.

use super::inspect::{Format, choose, keyed, operators_of};
use super::place::Place;
use super::rows::{Rows, add_rows, read_batches, read_columns};
use crate::error::CommandError;
use crate::output;
use arrow::array::{ArrayRef, RecordBatch, StringArray, UInt32Array};
use arrow::datatypes::{Field, FieldRef, Schema, SchemaRef};
use arrow::error::ArrowError;
use arrow::json::WriterBuilder;
use arrow::json::writer::JsonArray;
use datafusion::catalog::{MemTable, SchemaProvider, TableProvider};
use datafusion::error::DataFusionError;
use datafusion::execution::SessionStateDefaults;
use datafusion::execution::session_state::{SessionState, SessionStateBuilder};
use datafusion::physical_plan;
use datafusion::prelude::{SQLOptions, SessionConfig};
use sluice_protocol::OperatorUid;
use sluice_protocol::graph::OperatorKind;
use sluice_protocol::metadata::Metadata;
use sluice_protocol::state::{KeyedStateHandle, KeyedStateKind};
use sluice_sql::{SqlError, SqlErrorKind};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// The table with the positions of sources.
const SPLITS: &str = "splits";

/// Where tables without a schema before their name are found.
const DEFAULT_SCHEMA: &str = "public";

/// One keyed state of one operator, by all its names.
#[derive(Debug, Clone, PartialEq, Eq)]
struct StateTable {
    uid: OperatorUid,
    state: String,
    /// `state1`.
    short: String,
    /// The operator has no other, so that its uid names it.
    is_only: bool,
    /// In all files together.
    rows: u64,
    /// Whether deltas may have overwritten some of them.
    has_deltas: bool,
}

/// A checkpoint whose state is asked for.
struct Snapshot {
    place: Place,
    directory: String,
    metadata: Metadata,
}

/// Prints what the statement selects; without one, what tables there are.
pub(super) async fn query(place: Place, sql: Option<&str>, format: Format) -> Result<(), CommandError> {
    let (directory, metadata) = choose(&place).await?;
    let tables = tables_of(&metadata);
    let snapshot = Arc::new(Snapshot { place, directory, metadata });
    let Some(sql) = sql else {
        output::print(&list(&snapshot, &tables).await?);
        return Ok(());
    };
    let session = session(&snapshot, &tables);
    let failed = |error: DataFusionError| explain(sql, error, &tables, &snapshot.metadata);
    let (schema, batches) = execute(&session, sql).await.map_err(failed)?;
    let text = match format {
        Format::Text => as_table(&schema, &batches),
        Format::Json => as_json(&batches),
    };
    output::print(&text.map_err(|error| failed(DataFusionError::from(error)))?);
    Ok(())
}

/// The rows that the statement selects.
async fn execute(session: &SessionState, sql: &str) -> Result<(SchemaRef, Vec<RecordBatch>), DataFusionError> {
    let plan = session.create_logical_plan(sql).await?;
    let allowed = SQLOptions::new().with_allow_ddl(false).with_allow_dml(false).with_allow_statements(false);
    allowed.verify_plan(&plan)?;
    let schema = Arc::clone(plan.schema().inner());
    let plan = session.create_physical_plan(&plan).await?;
    Ok((schema, physical_plan::collect(plan, session.task_ctx()).await?))
}

/// The keyed states that have rows, in the order of the graph and of their names.
fn tables_of(metadata: &Metadata) -> Vec<StateTable> {
    let mut tables = Vec::new();
    for (info, snapshots) in operators_of(metadata) {
        let mut states: BTreeMap<&str, (u64, bool)> = BTreeMap::new();
        for (_, handle) in keyed(&snapshots) {
            let (rows, has_deltas) = states.entry(&handle.name).or_default();
            *rows += handle.rows;
            *has_deltas |= handle.kind == KeyedStateKind::Delta;
        }
        let is_only = states.len() == 1;
        for (state, (rows, has_deltas)) in states {
            let (uid, state) = (info.uid.clone(), state.to_owned());
            let short = format!("state{}", tables.len() + 1);
            tables.push(StateTable { uid, state, short, is_only, rows, has_deltas });
        }
    }
    tables
}

/// What tables there are, by what `_metadata` and the end of one file of each say.
async fn list(snapshot: &Snapshot, tables: &[StateTable]) -> Result<String, CommandError> {
    let mut rows = Vec::new();
    for table in tables {
        let named = format!("`{}`.`{}`", table.uid, table.state);
        let columns = snapshot.columns(table).await?;
        let columns: Vec<String> =
            columns.iter().map(|field| format!("{} {}", field.name(), field.data_type())).collect();
        let count = output::thousands(table.rows);
        let count = if table.has_deltas { format!("up to {count}") } else { count };
        rows.push(vec![table.short.clone(), named, count, columns.join(", ")]);
    }
    let splits = snapshot.splits().map_err(|error| snapshot.unreadable(&error))?;
    let columns = "uid Utf8, subtask UInt32, split Utf8, state Utf8".to_owned();
    rows.push(vec![SPLITS.to_owned(), String::new(), splits.num_rows().to_string(), columns]);
    let table = output::table(&["TABLE", "OPERATOR AND STATE", "ROWS", "COLUMNS"], &rows, "  ");
    Ok(format!("tables of {}:\n{table}", snapshot.directory))
}

/// Names stay as they are written, as in Sluice's SQL. There is nothing but functions and the tables: no formats of files,
/// nothing that makes tables.
fn session(snapshot: &Arc<Snapshot>, tables: &[StateTable]) -> SessionState {
    let mut config = SessionConfig::new().with_default_catalog_and_schema("checkpoint", DEFAULT_SCHEMA);
    let parser = &mut config.options_mut().sql_parser;
    parser.enable_ident_normalization = false;
    parser.collect_spans = true;
    let session = SessionStateBuilder::new()
        .with_config(config)
        .with_expr_planners(SessionStateDefaults::default_expr_planners())
        .with_scalar_functions(SessionStateDefaults::default_scalar_functions())
        .with_aggregate_functions(SessionStateDefaults::default_aggregate_functions())
        .with_window_functions(SessionStateDefaults::default_window_functions())
        .build();
    let mut schemas: BTreeMap<String, BTreeMap<String, Named>> = BTreeMap::new();
    for table in tables {
        let mut name = |schema: &str, name: &str| {
            let named = Named::State(table.clone());
            schemas.entry(schema.to_owned()).or_default().entry(name.to_owned()).or_insert(named);
        };
        name(&table.uid.0, &table.state);
        name(DEFAULT_SCHEMA, &table.short);
        if table.is_only {
            name(DEFAULT_SCHEMA, &table.uid.0);
        }
    }
    schemas.entry(DEFAULT_SCHEMA.to_owned()).or_default().insert(SPLITS.to_owned(), Named::Splits);
    if let Some(catalog) = session.catalog_list().catalog("checkpoint") {
        for (name, tables) in schemas {
            let schema = StateSchema { snapshot: Arc::clone(snapshot), tables };
            // A catalog in memory takes any schema.
            let _ = catalog.register_schema(&name, Arc::new(schema));
        }
    }
    session
}

#[derive(Debug, Clone)]
enum Named {
    State(StateTable),
    Splits,
}

/// Tables that are read when they are named.
struct StateSchema {
    snapshot: Arc<Snapshot>,
    tables: BTreeMap<String, Named>,
}

impl fmt::Debug for StateSchema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StateSchema").field("tables", &self.tables).finish_non_exhaustive()
    }
}

#[async_trait::async_trait]
impl SchemaProvider for StateSchema {
    fn table_names(&self) -> Vec<String> {
        self.tables.keys().cloned().collect()
    }

    async fn table(&self, name: &str) -> Result<Option<Arc<dyn TableProvider>>, DataFusionError> {
        let batches = match self.tables.get(name) {
            None => return Ok(None),
            Some(Named::Splits) => vec![self.snapshot.splits()?],
            Some(Named::State(table)) => {
                self.snapshot.read(table).await.map_err(|error| DataFusionError::External(Box::new(error)))?
            }
        };
        Ok(Some(Arc::new(MemTable::try_new(schema_of(&batches), vec![batches])?)))
    }

    fn table_exist(&self, name: &str) -> bool {
        self.tables.contains_key(name)
    }
}

impl Snapshot {
    /// The pieces of a state, over all subtasks.
    fn handles(&self, table: &StateTable) -> Vec<&KeyedStateHandle> {
        let of_operator: Vec<_> = self.metadata.operators.iter().filter(|snapshot| snapshot.uid == table.uid).collect();
        keyed(&of_operator).map(|(_, handle)| handle).filter(|handle| handle.name == table.state).collect()
    }

    async fn columns(&self, table: &StateTable) -> Result<Vec<FieldRef>, CommandError> {
        match self.handles(table).first() {
            Some(handle) => read_columns(&self.place, &self.directory, handle).await,
            None => Ok(Vec::new()),
        }
    }

    /// All rows of a state, under one schema: its files are of one attempt of one program, which all have the same columns.
    async fn read(&self, table: &StateTable) -> Result<Vec<RecordBatch>, CommandError> {
        let batches = read_batches(&self.place, &self.directory, self.handles(table).into_iter()).await?;
        let schema = schema_of(&batches);
        let same = |batch: &RecordBatch| RecordBatch::try_new(Arc::clone(&schema), batch.columns().to_vec());
        batches.iter().map(same).collect::<Result<_, _>>().map_err(|error| self.unreadable(&error))
    }

    /// Where a restore reads on.
    fn splits(&self) -> Result<RecordBatch, ArrowError> {
        let operators = self.metadata.operators.iter();
        let all = operators.flat_map(|operator| operator.splits.iter().map(move |split| (operator, split)));
        // Arrays are made of what says how long it is.
        let all: Vec<_> = all.collect();
        let columns: [(&str, ArrayRef); 4] = [
            ("uid", Arc::new(StringArray::from_iter_values(all.iter().map(|(operator, _)| &operator.uid.0)))),
            ("subtask", Arc::new(UInt32Array::from_iter_values(all.iter().map(|(operator, _)| operator.subtask.0)))),
            ("split", Arc::new(StringArray::from_iter_values(all.iter().map(|(_, split)| &split.split)))),
            ("state", Arc::new(StringArray::from_iter_values(all.iter().map(|(_, split)| split.state.to_string())))),
        ];
        RecordBatch::try_from_iter(columns)
    }

    fn unreadable(&self, error: &ArrowError) -> CommandError {
        CommandError::State { place: self.directory.clone(), detail: error.to_string() }
    }
}

/// As in the files, all of them nullable.
fn schema_of(batches: &[RecordBatch]) -> SchemaRef {
    let Some(first) = batches.first() else { return Arc::new(Schema::empty()) };
    let nullable = |field: &FieldRef| Field::new(field.name(), field.data_type().clone(), true);
    Arc::new(Schema::new(first.schema_ref().fields().iter().map(nullable).collect::<Vec<_>>()))
}

fn as_table(schema: &SchemaRef, batches: &[RecordBatch]) -> Result<String, ArrowError> {
    let mut rows = Rows::default();
    batches.iter().try_for_each(|batch| add_rows(batch, &mut rows))?;
    let header: Vec<&str> = schema.fields().iter().map(|field| field.name().as_str()).collect();
    Ok(output::table(&header, &rows.rows, ""))
}

fn as_json(batches: &[RecordBatch]) -> Result<String, ArrowError> {
    let mut writer = WriterBuilder::new().with_explicit_nulls(true).build::<_, JsonArray>(Vec::new());
    writer.write_batches(&batches.iter().collect::<Vec<_>>())?;
    writer.finish()?;
    let mut text = String::from_utf8(writer.into_inner()).map_err(|error| ArrowError::JsonError(error.to_string()))?;
    text.push('\n');
    Ok(text)
}

/// Says what is wrong with the query, and where; a table that cannot be read says so itself.
fn explain(sql: &str, error: DataFusionError, tables: &[StateTable], metadata: &Metadata) -> CommandError {
    let error = match error {
        DataFusionError::External(cause) => match cause.downcast::<CommandError>() {
            Ok(cause) => return *cause,
            Err(cause) => DataFusionError::External(cause),
        },
        other => other,
    };
    let diagnosed =
        error.diagnostic().and_then(|diagnostic| Some((diagnostic.message.clone(), diagnostic.span?.start)));
    let said = error.strip_backtrace();
    let (message, line, column) = match diagnosed {
        Some((message, at)) => (message, at.line, at.column),
        None => split_place(&said),
    };
    let hint = if message.contains("not found") && message.contains("table") {
        no_such_table(&message, tables, metadata)
    } else {
        String::new()
    };
    let source_line = line.checked_sub(1).and_then(|index| sql.lines().nth(usize::try_from(index).ok()?));
    CommandError::Query(SqlError {
        kind: SqlErrorKind::Invalid,
        message: format!("{message}{hint}"),
        line,
        column,
        source_line: source_line.unwrap_or_default().to_owned(),
    })
}

/// Tells an operator that has no rows from a name that is none.
fn no_such_table(message: &str, tables: &[StateTable], metadata: &Metadata) -> String {
    let name = message.split_once('\'').and_then(|(_, behind)| behind.rsplit_once('\'')).map_or("", |(name, _)| name);
    let is_named = |uid: &OperatorUid| format!(".{name}.").contains(&format!(".{uid}."));
    let has_rows = |uid: &OperatorUid| tables.iter().any(|table| table.uid == *uid);
    let mut operators = metadata.vertices.iter().flat_map(|vertex| &vertex.operators);
    match operators.find(|info| is_named(&info.uid) && !has_rows(&info.uid)) {
        Some(info) if info.kind == OperatorKind::Keyed => format!("; '{}' has no rows in this checkpoint", info.uid),
        Some(info) => format!("; '{}' keeps no state by key", info.uid),
        None => {
            let names = tables.iter().map(|table| table.short.as_str()).chain([SPLITS]);
            format!("; there are {}", names.collect::<Vec<_>>().join(", "))
        }
    }
}

/// The place that the SQL parser puts behind its words.
fn split_place(message: &str) -> (String, u64, u64) {
    let place = message.rsplit_once(" at Line: ").and_then(|(before, place)| {
        let (line, column) = place.split_once(", Column: ")?;
        let digits: String = column.chars().take_while(char::is_ascii_digit).collect();
        Some((before.to_owned(), line.parse().ok()?, digits.parse().ok()?))
    });
    place.unwrap_or_else(|| (message.to_owned(), 0, 0))
}
