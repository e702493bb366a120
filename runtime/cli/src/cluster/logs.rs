//! `sluice logs`: what the pods of a job have written.

use super::{Cluster, ClusterError, JOB_LABEL, api_error};
use crate::error::CommandError;
use crate::output;
use clap::Args;
use futures::{AsyncBufReadExt as _, StreamExt as _};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use kube::api::{ListParams, LogParams};

const EXAMPLES: &str = "\
Examples:
  sluice logs -n streams pageviews                          of the JobManager and all TaskManagers, the last 100 lines each
  sluice logs -n streams pageviews --follow
  sluice logs -n streams pageviews --pod pageviews-3-tm-0 --tail 1000
  sluice logs -n streams pageviews --previous               of containers that were restarted

`sluice run` writes its log to standard error: RUST_LOG=info sluice run job.yaml";

/// Show the logs of a job's pods.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct LogsArguments {
    /// The StreamJob
    #[arg(value_name = "JOB")]
    job: String,
    /// Its namespace; the kubeconfig's when absent
    #[arg(short = 'n', long)]
    namespace: Option<String>,
    /// The kubeconfig's context; its current one when absent
    #[arg(long)]
    context: Option<String>,
    /// Only of this pod
    #[arg(long)]
    pod: Option<String>,
    /// Go on with what comes
    #[arg(short, long)]
    follow: bool,
    /// Of the container before the last restart
    #[arg(long, conflicts_with = "follow")]
    previous: bool,
    /// How many lines of each
    #[arg(long, value_name = "LINES", default_value_t = 100)]
    tail: i64,
}

/// Prints them, each line behind its pod's name where there are several.
pub(crate) async fn logs(arguments: LogsArguments) -> Result<u8, CommandError> {
    let cluster = Cluster::open(arguments.namespace.as_deref(), arguments.context.as_deref()).await?;
    let pods = pods_of(&cluster, &arguments).await?;
    let name_width = pods.iter().map(String::len).max().unwrap_or_default();
    let prefix = |pod: &str| if pods.len() > 1 { format!("{pod:<name_width$} | ") } else { String::new() };
    if arguments.follow {
        let all = pods.iter().map(|pod| show(&cluster, &arguments, pod, prefix(pod)));
        futures::future::try_join_all(all).await?;
    } else {
        for pod in &pods {
            show(&cluster, &arguments, pod, prefix(pod)).await?;
        }
    }
    Ok(0)
}

async fn pods_of(cluster: &Cluster, arguments: &LogsArguments) -> Result<Vec<String>, ClusterError> {
    let job = &arguments.job;
    // A job that does not exist is told from one without pods.
    let status = cluster.job(job).await?.status.unwrap_or_default();
    let selector = ListParams::default().labels(&format!("{JOB_LABEL}={job}"));
    let found = cluster.pods().list(&selector).await.map_err(|error| api_error("listing the job's pods", error))?;
    let mut names: Vec<String> = found.items.iter().map(Pod::name_any).collect();
    names.retain(|name| arguments.pod.as_ref().is_none_or(|wanted| wanted == name));
    names.sort();
    if !names.is_empty() {
        return Ok(names);
    }
    let why = match &arguments.pod {
        Some(pod) => format!("pod '{pod}' is none of its pods"),
        None => format!("it has no pods; {}", status.message.unwrap_or_else(|| "it has no status yet".to_owned())),
    };
    Err(ClusterError::NotRunning { namespace: cluster.namespace.clone(), job: job.clone(), why })
}

async fn show(cluster: &Cluster, arguments: &LogsArguments, pod: &str, prefix: String) -> Result<(), CommandError> {
    let parameters = LogParams {
        follow: arguments.follow,
        previous: arguments.previous,
        tail_lines: Some(arguments.tail),
        ..LogParams::default()
    };
    let stream = cluster.pods().log_stream(pod, &parameters).await;
    let mut lines = stream.map_err(|error| api_error(&format!("reading the log of pod '{pod}'"), error))?.lines();
    while let Some(line) = lines.next().await {
        let line =
            line.map_err(|source| CommandError::Io { what: format!("reading the log of pod '{pod}'"), source })?;
        output::print(&format!("{prefix}{line}\n"));
    }
    Ok(())
}
