//! `sluice list`: the jobs of a namespace as their StreamJobs tell, or the one job of a JobManager.

use super::Cluster;
use super::error::Request;
use crate::control::endpoint::{EndpointArguments, Reached};
use crate::error::CommandError;
use crate::output;
use clap::Args;
use futures::StreamExt as _;
use kube::api::ListParams;
use kube::{Api, ResourceExt as _};
use sluice_crds::{StreamJob, StreamJobStatus};
use sluice_node::edge::now;
use sluice_protocol::Timestamp;
use sluice_protocol::status::JobStatus;

const EXAMPLES: &str = "\
Examples:
  sluice list                             of the kubeconfig's namespace
  sluice list -n streams
  sluice list --all-namespaces
  sluice list --jobmanager localhost:6123 the job of that JobManager";

/// List jobs.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ListArguments {
    /// Of all namespaces
    #[arg(short = 'A', long, conflicts_with_all = ["namespace", "jobmanager", "tls_directory"])]
    all_namespaces: bool,
    #[command(flatten)]
    endpoint: EndpointArguments,
}

/// Prints a line per job.
pub(crate) async fn list(arguments: ListArguments) -> Result<u8, CommandError> {
    if !arguments.all_namespaces && arguments.endpoint.names_job_manager() {
        let reached = arguments.endpoint.reach().await?;
        output::print(&of_job_manager(&reached).await?);
        return Ok(0);
    }
    let cluster = arguments.endpoint.cluster().await?;
    let jobs: Api<StreamJob> = if arguments.all_namespaces {
        Api::all(cluster.client.clone())
    } else {
        Api::namespaced(cluster.client.clone(), &cluster.namespace)
    };
    let request = Request::new("listing StreamJobs".to_owned(), "list", "streamjobs.sluice.dev");
    let found = cluster.within(request, jobs.list(&ListParams::default())).await?;
    if found.items.is_empty() {
        let place = if arguments.all_namespaces { "the cluster".to_owned() } else { namespace(&cluster) };
        output::print(&format!("no jobs in {place}\n"));
        return Ok(0);
    }
    let now = now();
    let rows: Vec<Vec<String>> = found.items.iter().map(|job| cells(job, now)).collect();
    let header = ["NAMESPACE", "NAME", "STATE", "GENERATION", "RESTARTS", "CHECKPOINT", "AGE", "MESSAGE"];
    output::print(&output::table(&header, &rows, ""));
    Ok(0)
}

fn namespace(cluster: &Cluster) -> String {
    format!("namespace '{}'", cluster.namespace)
}

fn cells(job: &StreamJob, now: Timestamp) -> Vec<String> {
    let absent = StreamJobStatus::default();
    let status = job.status.as_ref().unwrap_or(&absent);
    let number = |number: Option<u64>| number.map_or("-".to_owned(), |number| number.to_string());
    let checkpoint = status.last_checkpoint.as_ref().and_then(|checkpoint| checkpoint.id);
    let created = job.metadata.creation_timestamp.as_ref().map(|created| created.0.as_millisecond());
    let created = created.and_then(|millis| u64::try_from(millis).ok());
    vec![
        job.namespace().unwrap_or_default(),
        job.name_any(),
        status.state.as_ref().map_or("-".to_owned(), |state| format!("{state:?}")),
        number(status.generation),
        number(status.restarts),
        number(checkpoint),
        created.map_or("-".to_owned(), |created| output::age(now, Timestamp(created))),
        status.message.clone().unwrap_or_default(),
    ]
}

async fn of_job_manager(reached: &Reached) -> Result<String, CommandError> {
    let (client, job, generation) = reached.connect().await?;
    let explained = |error| reached.explained(error);
    let mut statuses = client.watch(&job, generation).await.map_err(explained)?;
    let status = statuses.next().await.transpose().map_err(explained)?.ok_or_else(|| reached.ended())?;
    let JobStatus { state, failed_attempts, last_checkpoint, message, since, .. } = status;
    let row = vec![
        job.namespace,
        job.name,
        format!("{state:?}"),
        generation.to_string(),
        failed_attempts.to_string(),
        last_checkpoint.map_or("-".to_owned(), |checkpoint| checkpoint.id.to_string()),
        output::age(now(), since),
        message,
    ];
    let header = ["NAMESPACE", "NAME", "STATE", "GENERATION", "RESTARTS", "CHECKPOINT", "SINCE", "MESSAGE"];
    Ok(output::table(&header, &[row], ""))
}
