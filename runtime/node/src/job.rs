//! From a manifest to a job: every process of a job builds the same program from the same text (design §2).

use sluice_crds::{ManifestError, StreamJob, parse_manifest, validate};
use sluice_engine::program::Program;
use sluice_engine::sink::DeliveryGuarantee;
use sluice_engine::table::ConnectorCatalog;
use sluice_protocol::JobId;
use sluice_protocol::failure::Failure;
use sluice_protocol::options::{CheckpointingMode, JobOptions, RestoreSpec};
use sluice_sql::PlanOptions;
use std::path::Path;

/// What a process needs to know of its job.
#[derive(Clone)]
pub struct JobDescription {
    /// The job.
    pub job: JobId,
    /// What it computes.
    pub program: Program,
    /// The options that the runtime obeys.
    pub options: JobOptions,
    /// What the manifest says to restore.
    pub restore: Option<RestoreSpec>,
}

/// Reads a manifest file.
///
/// # Errors
/// When it cannot be read, or is no StreamJob; the message names the place.
pub fn read_manifest(path: &Path) -> Result<StreamJob, Failure> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| Failure::user("BadManifest", format!("{}: {error}", path.display())))?;
    parse_manifest(&text).map_err(|error| {
        let place = match &error {
            ManifestError::UnknownField { path, line, .. } | ManifestError::Invalid { path, line, .. } => {
                excerpt(&text, *line, path.rsplit('.').next().unwrap_or_default())
            }
            ManifestError::Syntax { .. } | ManifestError::WrongKind { .. } => String::new(),
        };
        Failure::user("BadManifest", format!("{}: {error}{place}", path.display()))
    })
}

/// The line (from 1) of a text, and a caret under `key` in it, or under its first word; begins on a line of its own.
/// Nothing where there is no such line.
#[must_use]
pub fn excerpt(text: &str, line: usize, key: &str) -> String {
    let Some(shown) = line.checked_sub(1).and_then(|index| text.lines().nth(index)) else { return String::new() };
    let found = if key.is_empty() { None } else { shown.find(key) };
    let at = found.unwrap_or_else(|| shown.len() - shown.trim_start().len());
    // Tabs are kept so that the caret stands right whatever their width.
    let indent: String = shown[..at].chars().map(|c| if c == '\t' { '\t' } else { ' ' }).collect();
    let gutter = " ".repeat(line.to_string().len());
    format!("\n{gutter} |\n{line} | {shown}\n{gutter} | {indent}^")
}

/// Builds the job that a manifest describes. Contacts nobody.
///
/// # Errors
/// When an option is out of its limits or the program is wrong; all problems of the manifest in one message.
pub fn build_job(manifest: &StreamJob, job: &JobId) -> Result<JobDescription, Failure> {
    let (sql, options, catalog) = checked(manifest)?;
    let program = sluice_sql::plan(sql, &plan_options(&options), &catalog).map_err(|error| error.to_failure())?;
    check_guarantees(&program, &options)?;
    Ok(JobDescription { job: job.clone(), program, options, restore: manifest.spec.restore.clone() })
}

/// What the EXPLAIN statements of a manifest's SQL say, and whether anything else is there to run. Contacts nobody.
///
/// # Errors
/// As [`build_job`].
pub fn explain_job(manifest: &StreamJob) -> Result<(Vec<String>, bool), Failure> {
    let (sql, options, catalog) = checked(manifest)?;
    let explained = sluice_sql::explained(sql, &plan_options(&options), &catalog);
    let (explained, program) = explained.map_err(|error| error.to_failure())?;
    Ok((explained, program.is_some()))
}

const fn plan_options(options: &JobOptions) -> PlanOptions {
    PlanOptions { parallelism: options.parallelism, max_parallelism: options.max_parallelism }
}

/// The SQL of a manifest whose options are within their limits, with what it is planned with.
fn checked(manifest: &StreamJob) -> Result<(&str, JobOptions, impl ConnectorCatalog + use<>), Failure> {
    let problems = validate(&manifest.spec);
    if !problems.is_empty() {
        let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
        return Err(Failure::user("BadManifest", lines.join("\n")));
    }
    let options = manifest.spec.job_options();
    let sql = manifest.spec.program.sql.as_deref().ok_or_else(|| {
        let text = "spec.program.sqlFrom: the ConfigMap can only be read by the controller; write the text into \
                    spec.program.sql to run it here";
        Failure::user("BadManifest", text)
    })?;
    let storage = options.checkpointing.as_ref().and_then(|settings| settings.storage_options.clone());
    let catalog = sluice_connectors::catalog_with(storage, crate::secrets::secrets_of_process());
    Ok((sql, options, catalog))
}

/// A sink that commits with checkpoints needs checkpoints, a ledger that fences, and a cut that counts each row once
/// (S7, L7).
fn check_guarantees(program: &Program, options: &JobOptions) -> Result<(), Failure> {
    let sinks = program.vertices.iter().filter_map(|vertex| vertex.sink.as_ref());
    let mut transactional = sinks.filter(|(_, factory)| factory.guarantee() == DeliveryGuarantee::ExactlyOnce);
    let Some((sink, _)) = transactional.next() else { return Ok(()) };
    let problem = match &options.checkpointing {
        None => {
            "the job takes no checkpoints, so its output would never be committed: set spec.checkpointing with an interval \
             and a storage of s3:// or file:///"
        }
        Some(settings) if settings.is_in_memory() => {
            "with checkpoints in the JobManager's memory nothing would fence off a lost JobManager: set \
             spec.checkpointing.storage to s3:// or file:///"
        }
        Some(settings) if settings.mode == CheckpointingMode::AtLeastOnce => {
            "checkpoints of mode AtLeastOnce count rows twice after a restore: set spec.checkpointing.mode to ExactlyOnce"
        }
        Some(_) => return Ok(()),
    };
    let message = format!("sink '{sink}' commits its output with checkpoints (exactly once), but {problem}");
    Err(Failure::user("ExactlyOnceRefused", message))
}
