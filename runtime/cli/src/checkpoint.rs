//! `sluice checkpoint`: what lies in checkpoint storage, without the job's help, and read-only but for [`gc`].
//!
//! [`place`] says where to look, [`find`] finds snapshots there, [`list`] and [`inspect`] show them, [`query`] answers
//! SQL over them, [`rows`] decodes keyed state, [`gc`] removes what a job that has ended left.

pub(crate) mod find;
mod gc;
mod inspect;
mod list;
pub(crate) mod place;
mod query;
pub(crate) mod rows;

use crate::control::{TriggerArguments, trigger};
use crate::error::CommandError;
use clap::{Args, Subcommand};
use inspect::Format;
pub(crate) use inspect::{choose, read_metadata};
use place::PlaceArguments;

const LIST_EXAMPLES: &str = "\
Examples:
  sluice checkpoint list ./sluice-checkpoints
  sluice checkpoint list s3://checkpoints/demo --endpoint http://localhost:9000 --path-style
  sluice checkpoint list --manifest job.yaml";

const INSPECT_EXAMPLES: &str = "\
Examples:
  sluice checkpoint inspect ./sluice-checkpoints/default/pageviews-6f1c --rows 20
  sluice checkpoint inspect s3://checkpoints/demo/default/pageviews-6f1c/3/chk-50
  sluice checkpoint inspect --manifest job.yaml --output json";

const QUERY_EXAMPLES: &str = "\
Examples:
  sluice checkpoint query ./sluice-checkpoints                  what tables there are
  sluice checkpoint query ./sluice-checkpoints 'SELECT * FROM state1 ORDER BY key_group LIMIT 20'
  sluice checkpoint query s3://checkpoints/demo/default/pageviews-6f1c/3/chk-50 \\
      'SELECT COUNT(*) FROM `counts.group-aggregate(app_id)`' --output json
  sluice checkpoint query --manifest job.yaml 'SELECT * FROM splits'

Each keyed state of an operator is a table: `uid`.`state`, or `uid` where the operator has one, or state1, state2, …
as the list numbers them. A state without rows is no table: the numbers and a bare uid hold for one checkpoint, `uid`.`state`
for all. `splits` holds the positions of sources. Names are written as they are, case included.";

const GC_EXAMPLES: &str = "\
Examples:
  sluice checkpoint gc ./sluice-checkpoints/default/pageviews-6f1c --dry-run
  sluice checkpoint gc s3://checkpoints/demo/default/pageviews-6f1c
  sluice checkpoint gc s3://checkpoints/demo/default/pageviews-6f1c --force 'the cluster that ran it was deleted'

Removed is what the job's ledger does not reach: checkpoints that are not retained, files that no retained one refers to,
unfinished uploads, savepoints that were begun and never completed, probes of the store. What a start would restore and
completed savepoints stay. A job that may still run does this itself: it is refused here.";

const TRIGGER_EXAMPLES: &str = "\
Examples:
  sluice checkpoint trigger
  sluice checkpoint trigger --jobmanager localhost:41233";

/// List checkpoints and look into them.
#[derive(Debug, Subcommand)]
pub(crate) enum CheckpointCommand {
    /// List the checkpoints that can be restored, with id, age and size
    #[command(after_help = LIST_EXAMPLES)]
    List(ListArguments),
    /// Take a checkpoint of a running job now
    #[command(after_help = TRIGGER_EXAMPLES)]
    Trigger(TriggerArguments),
    /// Show what a checkpoint holds: offsets, operators, state, what was in flight
    #[command(after_help = INSPECT_EXAMPLES)]
    Inspect(InspectArguments),
    /// Answer SQL over the state in a checkpoint, or list the tables there are
    #[command(after_help = QUERY_EXAMPLES)]
    Query(QueryArguments),
    /// Remove what a job that has ended left and nobody needs
    #[command(after_help = GC_EXAMPLES)]
    Gc(GcArguments),
}

/// Arguments of `list`.
#[derive(Debug, Args)]
pub(crate) struct ListArguments {
    #[command(flatten)]
    place: PlaceArguments,
}

/// Arguments of `inspect`.
#[derive(Debug, Args)]
pub(crate) struct InspectArguments {
    #[command(flatten)]
    place: PlaceArguments,
    /// Show this many rows of each keyed state, and of what was in flight on each edge
    #[arg(long, value_name = "N", default_value_t = 0)]
    rows: usize,
    /// How it is shown
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    output: Format,
}

/// Arguments of `query`.
#[derive(Debug, Args)]
pub(crate) struct QueryArguments {
    #[command(flatten)]
    place: PlaceArguments,
    /// One SELECT, as DataFusion understands it; beside --manifest the only argument
    #[arg(value_name = "SQL")]
    sql: Option<String>,
    /// How rows are shown: as a table, or as a JSON array of objects
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    output: Format,
}

/// Arguments of `gc`.
#[derive(Debug, Args)]
pub(crate) struct GcArguments {
    #[command(flatten)]
    place: PlaceArguments,
    /// Only show what would be removed
    #[arg(long)]
    dry_run: bool,
    /// Look for unfinished savepoints below this address too; those that the ledger names are looked through in any case
    #[arg(long = "savepoints", value_name = "ADDRESS")]
    savepoints: Vec<String>,
    /// Remove it although the ledger does not say that the job has ended, because of this: nothing runs the job any more
    #[arg(long, value_name = "REASON")]
    force: Option<String>,
}

/// Does what the command says.
pub(crate) async fn run(command: CheckpointCommand) -> Result<u8, CommandError> {
    match command {
        CheckpointCommand::Trigger(arguments) => return trigger(arguments).await,
        CheckpointCommand::List(arguments) => list::list(&arguments.place.open()?).await?,
        CheckpointCommand::Inspect(arguments) => {
            inspect::inspect(&arguments.place.open()?, arguments.rows, arguments.output).await?;
        }
        CheckpointCommand::Query(QueryArguments { mut place, sql, output }) => {
            let sql = if sql.is_none() && place.manifest.is_some() { place.place.take() } else { sql };
            query::query(place.open()?, sql.as_deref(), output).await?;
        }
        CheckpointCommand::Gc(GcArguments { place, dry_run, savepoints, force }) => {
            let roots = savepoints.iter().map(|root| place::address_of(root)).collect::<Result<_, _>>()?;
            return gc::gc(&place.open()?, &gc::Options { is_dry: dry_run, roots, force }).await;
        }
    }
    Ok(0)
}

#[cfg(test)]
mod tests;
