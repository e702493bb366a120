//! SQL text → a program: the same statements give the same job graph in every process of a job (design §2).
//!
//! DataFusion resolves names and types and evaluates expressions; the dataflow, its state and its changelogs are ours.
//! No I/O, no clock, no randomness; connectors are asked through [`ConnectorCatalog`], which contacts nobody.
//!
//! The flow, by [`plan`]:
//! 1. `parse`: text → statements, by a front end for Flink's DDL around sqlparser with the `dialect` of ours. All that follows runs on a thread with a
//!    large stack, since it calls itself for every term of a statement.
//! 2. `catalog`: the declared tables; `settings`: what SET says; `functions`: what may be called. `expand` puts views,
//!    WITH and computed columns in the place of their names, `declarations` checks them, and `event_time` has
//!    what WATERMARK FOR says.
//! 3. `validate`: what does not run yet is refused by name and place, on the syntax tree.
//! 4. `rewrite`: calls that DataFusion means otherwise. `relational`: a query → a typed logical plan; `flatten` is its node
//!    for UNNEST, `rank` the one for ROW_NUMBER, `window` that for window table functions, `pushdown` moves conditions down.
//!    `typing` checks the types that DataFusion would make fit; `diagnose` turns DataFusion's complaints into ours.
//! 5. `uid`: ids of operators and how long their state lives, from the statement as written (design §9).
//! 6. `translate`: the plans of all statements → chains of operators, with `calc` fusing filters and projections;
//!    `operators` makes the engine's operators; `graph` puts the vertices together, `written` says expressions in SQL.
//!
//! Tests: `tests` for plans, mistakes and functions; `golden` runs statements (`golden/*.sql`) through the engine.
//!
//! Differences from Flink that callers should know: SUM over whole numbers is BIGINT, over FLOAT DOUBLE; lengths of CHAR
//! and VARCHAR are not enforced; the session's time zone is UTC.

mod calc;
mod catalog;
mod declarations;
mod diagnose;
mod dialect;
mod error;
mod event_time;
mod expand;
mod explain;
mod flatten;
mod functions;
#[cfg(test)]
mod golden;
mod graph;
mod guard;
mod operators;
mod parse;
mod pushdown;
mod rank;
mod relational;
mod rewrite;
mod settings;
#[cfg(test)]
mod tests;
mod translate;
mod types;
mod typing;
mod uid;
mod validate;
mod window;
mod written;

pub use error::{SqlError, SqlErrorKind};
pub use explain::explain;

use crate::catalog::Tables;
use crate::error::SourceText;
use crate::event_time::RowTime;
use crate::expand::Expander;
use crate::functions::Functions;
use crate::graph::GraphBuilder;
use crate::parse::{Insert, Script};
use crate::relational::Relational;
use crate::translate::{Sources, Statement, Target, Translator};
use crate::uid::Uids;
use crate::validate::Validator;
use datafusion_expr::LogicalPlan;
use datafusion_sql::sqlparser::tokenizer::Location;
use sluice_engine::program::Program;
use sluice_engine::table::ConnectorCatalog;
use std::collections::BTreeMap;

/// What a plan depends on besides the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlanOptions {
    /// Subtasks per vertex.
    pub parallelism: u32,
    /// Number of key groups.
    pub max_parallelism: u16,
}

/// Plans all statements of a program: every INSERT INTO becomes a pipeline of one graph. What stands behind EXPLAIN is
/// checked and does not run.
///
/// # Errors
/// With the first mistake in the text and its place.
pub fn plan(sql: &str, options: &PlanOptions, catalog: &dyn ConnectorCatalog) -> Result<Program, SqlError> {
    let Programs { job, explained } = on_large_stack(sql, options, catalog)?;
    job.ok_or_else(|| {
        let message = match explained.is_empty() {
            true => "the program has no INSERT INTO statement, so there is nothing to run",
            false => {
                "the program only explains: EXPLAIN starts nothing, `sluice plan job.yaml` prints what it says; add an \
                 INSERT INTO statement to run"
            }
        };
        SourceText(sql).error(SqlErrorKind::Invalid, Location::empty(), message)
    })
}

/// What the EXPLAIN statements of a program say, in the order written, each as [`explain`] prints it; and the program
/// that runs, unless it only explains.
///
/// # Errors
/// As [`plan`].
pub fn explained(
    sql: &str,
    options: &PlanOptions,
    catalog: &dyn ConnectorCatalog,
) -> Result<(Vec<String>, Option<Program>), SqlError> {
    let Programs { job, explained } = on_large_stack(sql, options, catalog)?;
    Ok((explained.iter().map(explain).collect(), job))
}

/// All that a text plans.
struct Programs {
    /// The INSERT statements together.
    job: Option<Program>,
    /// Of each EXPLAIN.
    explained: Vec<Program>,
}

fn on_large_stack(sql: &str, options: &PlanOptions, catalog: &dyn ConnectorCatalog) -> Result<Programs, SqlError> {
    // Parser and planner call themselves for every term of `a OR b OR c …`.
    let thread = std::thread::Builder::new().name("sql-plan".to_owned()).stack_size(PLAN_STACK);
    std::thread::scope(|scope| match thread.spawn_scoped(scope, || plan_all(sql, options, catalog)) {
        Ok(planning) => planning.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
        Err(error) => {
            let message = format!("no thread could be started to plan the program: {error}");
            Err(SourceText(sql).error(SqlErrorKind::Internal, Location::empty(), message))
        }
    })
}

/// Bytes of stack for planning; only what is used becomes memory.
const PLAN_STACK: usize = 512 << 20;

fn plan_all(sql: &str, options: &PlanOptions, catalog: &dyn ConnectorCatalog) -> Result<Programs, SqlError> {
    let text = SourceText(sql);
    let Script { tables, views, mut inserts, mut explains, settings: _ } = parse::parse(text)?;
    let tables = Tables::new(text, tables)?;
    let functions = Functions::new();
    let relational = Relational::new(&tables, &functions);
    let validator = Validator { text, tables: &tables, functions: &functions };
    let mut expander = Expander::new(text, &tables, views)?;
    let times = declarations::check(validator, &relational)?;
    for insert in inserts.iter_mut().chain(explains.iter_mut().flatten()) {
        if expander.is_view(&tables, &insert.table.value) && !insert.is_query {
            let message = format!("'{}' is a view: only a table can be written", insert.table.value);
            return Err(text.error(SqlErrorKind::Invalid, insert.table.span.start, message));
        }
        expander.query(&mut insert.query)?;
    }
    let planner = Planner { validator, relational: &relational, times: &times, connectors: catalog };
    let job = (!inserts.is_empty()).then(|| planner.program(options, &inserts)).transpose()?;
    let explained = explains.iter().map(|inserts| planner.program(options, inserts));
    Ok(Programs { job, explained: explained.collect::<Result<_, _>>()? })
}

/// Plans statements whose names are resolved.
struct Planner<'a> {
    validator: Validator<'a>,
    relational: &'a Relational<'a>,
    times: &'a BTreeMap<String, RowTime>,
    connectors: &'a dyn ConnectorCatalog,
}

impl Planner<'_> {
    /// The statements as one graph.
    fn program(&self, options: &PlanOptions, inserts: &[Insert]) -> Result<Program, SqlError> {
        let Validator { text, tables, .. } = self.validator;
        let options = effective(text, options, inserts)?;
        let mut graph = GraphBuilder::default();
        let mut planned = Vec::new();
        for insert in inserts {
            let (times, connectors) = (self.times, self.connectors);
            let statement = Statement { text, tables, times, connectors, options: &options, insert };
            planned.push(plan_insert(self.validator, self.relational, statement)?);
        }
        let mut sources = Sources::default();
        let shared = planned.iter().filter(|planned| !planned.statement.insert.settings.scans_alone);
        shared.for_each(|planned| sources.add(tables, &planned.plan));
        for Planned { statement, uids, plan, target } in planned {
            let mut translator = Translator {
                statement,
                uids: &uids,
                graph: &mut graph,
                sources: &mut sources,
                calcs: 0,
                scans: BTreeMap::new(),
                stateful: uids.stateful.clone(),
                counts_by_slice: false,
            };
            let needs_before = target.as_ref().is_none_or(|target| target.wants_update_before(&plan));
            let stream = translator.stream(&plan, needs_before)?;
            match target {
                Some(target) => translator.write(stream, target)?,
                None => translator.end(stream)?,
            }
        }
        Ok(graph.finish(options.max_parallelism))
    }
}

/// A statement that is ready to be translated.
struct Planned<'a> {
    statement: Statement<'a>,
    uids: Uids,
    plan: LogicalPlan,
    /// None: it is a query that is explained.
    target: Option<Target<'a>>,
}

/// The options with what SET said: fewer subtasks than the job has room for, never more.
fn effective(text: SourceText<'_>, options: &PlanOptions, inserts: &[Insert]) -> Result<PlanOptions, SqlError> {
    match inserts.first().and_then(|insert| insert.settings.parallelism) {
        Some((parallelism, at)) if parallelism > options.parallelism => {
            let message = format!(
                "'parallelism.default' is {parallelism}, more than the {} of the StreamJob's spec, which decides how \
                 many TaskManagers run: raise it there",
                options.parallelism
            );
            Err(text.error(SqlErrorKind::Invalid, at, message))
        }
        Some((parallelism, _)) => Ok(PlanOptions { parallelism, ..*options }),
        None => Ok(*options),
    }
}

fn plan_insert<'a>(
    validator: Validator<'_>,
    relational: &Relational<'_>,
    statement: Statement<'a>,
) -> Result<Planned<'a>, SqlError> {
    let Statement { text, tables, insert, .. } = statement;
    if !insert.is_query {
        tables.resolve(text, &insert.table)?;
    }
    validator.query(&insert.query).map_err(|error| text.placed(error, insert.query_at))?;
    let uids = Uids::new(validator, &insert.table.value, &insert.query, insert.settings.state_ttl)?;
    let diagnose = |error| text.placed(diagnose::diagnose(text, relational, &insert.query, &error), insert.query_at);
    let plan = relational.plan(&insert.query).map_err(diagnose)?;
    let target = if insert.is_query { None } else { Some(statement.target(&plan)?) };
    let shaped = match &target {
        Some(target) => statement.shaped(plan, target)?,
        None => plan,
    };
    let folded = relational.fold(shaped).map_err(diagnose)?;
    if rank::has_windows(&folded) {
        return Err(statement.unbounded_row_number());
    }
    let plan = relational.prune(folded).map_err(diagnose)?;
    Ok(Planned { statement, uids, plan, target })
}
