//! Plans and mistakes: statements in, graphs or messages out.
//!
//! The connectors here declare what real ones do (columns, accepted kinds, options) and are never started.

mod errors;
mod functions;
mod meanings;
mod plans;
mod refused;
mod times;
mod windows;

use crate::{PlanOptions, SqlError};
use arrow::datatypes::SchemaRef;
use sluice_engine::error::TaskError;
use sluice_engine::program::Program;
use sluice_engine::sink::{AcceptedKinds, Sink, SinkFactory};
use sluice_engine::source::{ProducedKinds, Source, SourceFactory};
use sluice_engine::table::{ConnectorCatalog, DEAD_LETTER, TableDescriptor, TableError, with_dead_letters};
use sluice_protocol::SubtaskIndex;
use std::sync::{Arc, Mutex};

/// The tables of most tests.
const TABLES: &str = "\
CREATE TABLE page_views (
  app_id STRING, url STRING, ms INT, cost DECIMAL(10, 2), ts TIMESTAMP(3)
) WITH ('connector' = 'source', 'topic' = 'test');
CREATE TABLE pv (app_id STRING, pv BIGINT, PRIMARY KEY (app_id) NOT ENFORCED) WITH ('connector' = 'upsert');
CREATE TABLE log (app_id STRING, n BIGINT) WITH ('connector' = 'insert-only');
CREATE TABLE changes (app_id STRING, n BIGINT) WITH ('connector' = 'all');
CREATE TABLE two (a STRING, b STRING) WITH ('connector' = 'insert-only'); \
CREATE TABLE accounts (id BIGINT, owner STRING, balance BIGINT, PRIMARY KEY (id) NOT ENFORCED) WITH ('connector' = 'changelog');
";

/// Remembers what it was asked for.
#[derive(Default)]
struct TestConnectors {
    asked: Mutex<Vec<TableDescriptor>>,
}

struct TestSource(SchemaRef, ProducedKinds);
struct TestSink(AcceptedKinds);

fn never_started<T>() -> Result<T, TaskError> {
    Err(TaskError::Internal("these tests only plan".to_owned()))
}

impl SourceFactory for TestSource {
    fn create(&self) -> Result<Box<dyn Source>, TaskError> {
        never_started()
    }

    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.0)
    }

    fn produced_kinds(&self) -> ProducedKinds {
        self.1
    }

    fn owner(&self, _split: &str, _parallelism: u32) -> SubtaskIndex {
        SubtaskIndex(0)
    }
}

impl SinkFactory for TestSink {
    fn create(&self) -> Result<Box<dyn Sink>, TaskError> {
        never_started()
    }

    fn accepted_kinds(&self) -> AcceptedKinds {
        self.0
    }
}

impl TestConnectors {
    fn refuse<T>(table: &TableDescriptor, option: Option<&str>, message: &str) -> Result<T, TableError> {
        Err(TableError { table: table.name.clone(), option: option.map(str::to_owned), message: message.to_owned() })
    }

    fn check(&self, table: &TableDescriptor) -> Result<(), TableError> {
        self.asked.lock().unwrap().push(table.clone());
        match table.options.iter().find(|option| !["connector", "topic", DEAD_LETTER].contains(&option.key.as_str())) {
            Some(unknown) => {
                Self::refuse(table, Some(&unknown.key), &format!("option '{}' does not exist", unknown.key))
            }
            None => Ok(()),
        }
    }
}

impl ConnectorCatalog for TestConnectors {
    fn source(&self, table: &TableDescriptor) -> Result<Arc<dyn SourceFactory>, TableError> {
        self.check(table)?;
        let handed_out = match table.option(DEAD_LETTER) {
            Some(_) => with_dead_letters(&table.schema),
            None => Arc::clone(&table.schema),
        };
        match table.option("connector") {
            Some("source") if lacks_needed_column(table) => Self::refuse(table, Some("topic"), "it needs the column"),
            Some("source") => Ok(Arc::new(TestSource(handed_out, ProducedKinds::InsertOnly))),
            Some("changelog") => Ok(Arc::new(TestSource(handed_out, ProducedKinds::All))),
            Some(_) => Self::refuse(table, Some("connector"), "it cannot be read"),
            None => Self::refuse(table, None, "it has no 'connector'"),
        }
    }

    fn sink(&self, table: &TableDescriptor) -> Result<Arc<dyn SinkFactory>, TableError> {
        self.check(table)?;
        let kinds = match table.option("connector") {
            Some("insert-only") => AcceptedKinds::InsertOnly,
            Some("upsert") => AcceptedKinds::Upsert,
            Some("all") => AcceptedKinds::All,
            _ => return Self::refuse(table, Some("connector"), "it cannot be written"),
        };
        Ok(Arc::new(TestSink(kinds)))
    }
}

/// `'topic' = 'needs x'`: the source cannot do without its column x.
fn lacks_needed_column(table: &TableDescriptor) -> bool {
    let needed = table.option("topic").and_then(|topic| topic.strip_prefix("needs "));
    needed.is_some_and(|column| table.schema.index_of(column).is_err())
}

fn options() -> PlanOptions {
    PlanOptions { parallelism: 4, max_parallelism: 128 }
}

/// Plans the text as it is.
fn plan_text(sql: &str) -> Result<Program, SqlError> {
    crate::plan(sql, &options(), &TestConnectors::default())
}

/// Plans a statement over [`TABLES`].
fn plan(statement: &str) -> Program {
    plan_text(&format!("{TABLES}{statement}")).unwrap_or_else(|error| panic!("{error}"))
}

/// The mistake in a statement over [`TABLES`].
fn mistake(statement: &str) -> SqlError {
    match plan_text(&format!("{TABLES}{statement}")) {
        Ok(program) => panic!("planned:\n{}", crate::explain(&program)),
        Err(error) => error,
    }
}
