//! `sluice validate` and `sluice plan`: what can be said of a job without running it. They contact nobody, but the
//! storage of the snapshot that a plan is compared with.

mod against;
mod problems;

use crate::checkpoint::choose;
use crate::checkpoint::place::{Place, address_of};
use crate::error::CommandError;
use crate::output;
use clap::Args;
use sluice_crds::StreamJob;
use sluice_node::{JobDescription, build_job, explain_job, read_manifest};
use sluice_protocol::JobId;
use sluice_protocol::metadata::assign_state;
use std::path::{Path, PathBuf};

/// Check a manifest and its SQL without running anything.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  sluice validate job.yaml\n  sluice validate jobs/*.yaml")]
pub(crate) struct ValidateArguments {
    /// StreamJob manifests
    #[arg(required = true, value_name = "MANIFEST")]
    manifests: Vec<PathBuf>,
}

/// Show what a job's SQL becomes: vertices, operators and their ids, edges.
#[derive(Debug, Args)]
#[command(
    after_help = "The ids (uid) tie state in a checkpoint to the operators of a changed program.\n\nExamples:\n  sluice \
                  plan job.yaml\n  sluice plan job.yaml --against s3://savepoints/default/pageviews-6f1c/3-17"
)]
pub(crate) struct PlanArguments {
    /// A StreamJob manifest
    #[arg(value_name = "MANIFEST")]
    manifest: PathBuf,
    /// Say what of this checkpoint or savepoint the job would keep, and fail when it would lose state: a path, file:///…
    /// or s3://…, reached as the manifest says
    #[arg(long, value_name = "SNAPSHOT")]
    against: Option<String>,
    /// State that no operator takes may be lost, as with allowNonRestoredState in the manifest
    #[arg(long, requires = "against")]
    allow_non_restored_state: bool,
}

/// Checks all manifests and complains about each that is wrong.
pub(crate) fn validate(arguments: &ValidateArguments) -> Result<u8, CommandError> {
    let mut code = 0;
    for path in &arguments.manifests {
        match describe_all(path) {
            Ok(job) => {
                let graph = &job.program.graph;
                let (vertices, tasks) = (graph.vertices.len(), graph.subtasks());
                output::print(&format!("{}: ok, {vertices} vertices, {tasks} tasks\n", path.display()));
            }
            Err(error) => {
                output::complain(&format!("error: {error}"));
                code = error.exit_code();
            }
        }
    }
    Ok(code)
}

/// Prints the plan, and what becomes of a snapshot's state.
pub(crate) async fn plan(arguments: &PlanArguments) -> Result<u8, CommandError> {
    let (explained, runs) = explain_job(&read_manifest(&arguments.manifest)?)?;
    explained.iter().for_each(|plan| output::print(&format!("EXPLAIN\n{plan}\n")));
    if !runs && !explained.is_empty() && arguments.against.is_none() {
        return Ok(0);
    }
    let job = describe(&arguments.manifest)?;
    output::print(&sluice_sql::explain(&job.program));
    let Some(snapshot) = &arguments.against else { return Ok(0) };
    let spec = read_manifest(&arguments.manifest)?.spec;
    let options = spec.checkpointing.as_ref().and_then(|checkpointing| checkpointing.storage_options.clone());
    let place = Place::open(&address_of(snapshot)?, options, None)?;
    let (directory, metadata) = choose(&place).await?;
    let comparison = against::compare(&metadata, &job.program.graph);
    output::print(&format!("\nagainst {directory}:\n{comparison}"));
    let may_lose = arguments.allow_non_restored_state || spec.upgrade.allow_non_restored_state;
    match assign_state(&metadata, &job.program.graph, &directory, may_lose) {
        Ok(_) => Ok(0),
        Err(error) => Err(CommandError::Usage(format!("the job would not start from {directory}: {error}"))),
    }
}

/// As [`describe`], but of what is wrong all at once.
fn describe_all(path: &Path) -> Result<JobDescription, CommandError> {
    let manifest = read_manifest(path)?;
    let text = std::fs::read_to_string(path)
        .map_err(|source| CommandError::Io { what: format!("reading {}", path.display()), source })?;
    let problems = problems::find(&text, &manifest);
    if !problems.is_empty() {
        return Err(CommandError::Usage(format!("{}: {}", path.display(), problems.join("\nerror: "))));
    }
    describe(path)
}

fn describe(path: &Path) -> Result<JobDescription, CommandError> {
    let manifest = read_manifest(path)?;
    warn(&manifest);
    Ok(build_job(&manifest, &job_of(&manifest))?)
}

/// Complains about what the manifest says in vain.
pub(crate) fn warn(manifest: &StreamJob) {
    for problem in sluice_crds::warnings(&manifest.spec) {
        output::complain(&format!("warning: {problem}"));
    }
}

/// The job that a manifest names; its uid is not known here.
pub(crate) fn job_of(manifest: &StreamJob) -> JobId {
    let namespace = manifest.metadata.namespace.clone().unwrap_or_else(|| "default".to_owned());
    JobId { namespace, name: manifest.metadata.name.clone().unwrap_or_default(), uid: String::new() }
}
