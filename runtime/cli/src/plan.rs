//! `sluice validate` and `sluice plan`: what can be said of a job without running it. They contact nobody.

use crate::error::CommandError;
use crate::output;
use clap::Args;
use sluice_crds::StreamJob;
use sluice_node::{JobDescription, build_job, read_manifest};
use sluice_protocol::JobId;
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
                  plan job.yaml"
)]
pub(crate) struct PlanArguments {
    /// A StreamJob manifest
    #[arg(value_name = "MANIFEST")]
    manifest: PathBuf,
}

/// Checks all manifests and complains about each that is wrong.
pub(crate) fn validate(arguments: &ValidateArguments) -> Result<u8, CommandError> {
    let mut code = 0;
    for path in &arguments.manifests {
        match describe(path) {
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

/// Prints the plan.
pub(crate) fn plan(arguments: &PlanArguments) -> Result<u8, CommandError> {
    let job = describe(&arguments.manifest)?;
    output::print(&sluice_sql::explain(&job.program));
    Ok(0)
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
