//! `sluice logs`: what the pods of a job have written.

use super::error::Request;
use super::{Cluster, ClusterError};
use crate::error::CommandError;
use crate::output;
use clap::Args;
use futures::{AsyncBufRead, AsyncBufReadExt as _, StreamExt as _};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use kube::api::{ListParams, LogParams};
use sluice_crds::names::{COMPONENT_LABEL, JOB_LABEL};
use std::ops::ControlFlow;
use std::pin::pin;
use std::time::Duration;
use tokio::time::error::Elapsed;
use tokio::time::timeout;

const EXAMPLES: &str = "\
Examples:
  sluice logs -n streams pageviews                          of the JobManager and all TaskManagers, the last 100 lines each
  sluice logs -n streams pageviews --follow
  sluice logs -n streams pageviews --pod pageviews-3-tm-0 --tail 1000

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
    /// How many lines of each
    #[arg(long, value_name = "LINES", default_value_t = 100)]
    tail: i64,
}

/// A pod and its container that a job's process runs in: there may be others beside it.
struct Source {
    pod: String,
    container: Option<String>,
}

/// Prints them, each line behind its pod's name where there are several. A pod whose log cannot be read is complained of;
/// the others are shown.
pub(crate) async fn logs(arguments: LogsArguments) -> Result<u8, CommandError> {
    let cluster = Cluster::open(arguments.namespace.as_deref(), arguments.context.as_deref()).await?;
    let sources = sources_of(&cluster, &arguments).await?;
    let name_width = sources.iter().map(|source| source.pod.len()).max().unwrap_or_default();
    let prefix = |pod: &str| if sources.len() > 1 { format!("{pod:<name_width$} | ") } else { String::new() };
    let shown = sources.iter().map(|source| show(&cluster, &arguments, source, prefix(&source.pod)));
    let at_once = if arguments.follow { sources.len() } else { 1 };
    let mut shown = futures::stream::iter(shown).buffer_unordered(at_once);
    let mut code = 0;
    while let Some(shown) = shown.next().await {
        match shown {
            Ok(ControlFlow::Continue(())) => {}
            Ok(ControlFlow::Break(())) => break,
            Err(error) => {
                output::complain(&format!("error: {error}"));
                code = error.exit_code();
            }
        }
    }
    Ok(code)
}

async fn sources_of(cluster: &Cluster, arguments: &LogsArguments) -> Result<Vec<Source>, ClusterError> {
    let job = &arguments.job;
    // A job that does not exist is told from one without pods.
    let status = cluster.job(job).await?.status.unwrap_or_default();
    let selector = ListParams::default().labels(&format!("{JOB_LABEL}={job}"));
    let request = Request::new("listing the job's pods".to_owned(), "list", "pods");
    let found = cluster.within(request, cluster.pods().list(&selector)).await?;
    let source =
        |pod: &Pod| Source { pod: pod.name_any(), container: pod.labels().get(COMPONENT_LABEL).map(ToOwned::to_owned) };
    let mut sources: Vec<Source> = found.items.iter().map(source).collect();
    sources.retain(|source| arguments.pod.as_ref().is_none_or(|wanted| *wanted == source.pod));
    sources.sort_by(|one, other| one.pod.cmp(&other.pod));
    if !sources.is_empty() {
        return Ok(sources);
    }
    let why = match &arguments.pod {
        Some(pod) => format!("pod '{pod}' is none of its pods"),
        None => format!("it has no pods; {}", status.message.unwrap_or_else(|| "it has no status yet".to_owned())),
    };
    Err(ClusterError::NotRunning { namespace: cluster.namespace.clone(), job: job.clone(), why })
}

/// Breaks where nobody reads any more.
async fn show(
    cluster: &Cluster,
    arguments: &LogsArguments,
    source: &Source,
    prefix: String,
) -> Result<ControlFlow<()>, CommandError> {
    let parameters = LogParams {
        container: source.container.clone(),
        follow: arguments.follow,
        tail_lines: Some(arguments.tail),
        ..LogParams::default()
    };
    let what = format!("reading the log of pod '{}'", source.pod);
    let pods = cluster.pods();
    let request = || Request::new(what.clone(), "get", "pods/log");
    let mut log = pin!(cluster.within(request(), pods.log_stream(&source.pod, &parameters)).await?);
    // With --follow silence is as good as any log.
    let patience = (!arguments.follow).then_some(cluster.patience);
    loop {
        let line = match next_line(&mut log, patience).await {
            Ok(line) => line.map_err(|source| CommandError::Io { what: what.clone(), source })?,
            Err(_) => return Err(request().unanswered(cluster).into()),
        };
        let Some(line) = line else { return Ok(ControlFlow::Continue(())) };
        if output::write(&format!("{prefix}{line}\n")).is_err() {
            return Ok(ControlFlow::Break(()));
        }
    }
}

/// The next line, if it comes in time; `None` at the end. What is not UTF-8 in it is shown as `\u{fffd}`.
async fn next_line(
    log: &mut (impl AsyncBufRead + Unpin),
    patience: Option<Duration>,
) -> Result<std::io::Result<Option<String>>, Elapsed> {
    let mut line = Vec::new();
    let read = log.read_until(b'\n', &mut line);
    let read = match patience {
        Some(patience) => timeout(patience, read).await?,
        None => read.await,
    };
    Ok(read.map(|length| {
        let text = line.strip_suffix(b"\n").unwrap_or(&line);
        let text = text.strip_suffix(b"\r").unwrap_or(text);
        (length > 0).then(|| String::from_utf8_lossy(text).into_owned())
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::AsyncReadExt as _;
    use futures::io::{BufReader, Cursor};

    /// A reader that never has anything.
    struct Silent;

    impl futures::AsyncRead for Silent {
        fn poll_read(
            self: std::pin::Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
            _: &mut [u8],
        ) -> std::task::Poll<std::io::Result<usize>> {
            std::task::Poll::Pending
        }
    }

    #[tokio::test]
    async fn what_is_no_text_is_shown_all_the_same_and_silence_ends() {
        let patience = Some(Duration::from_millis(20));
        let mut log = BufReader::new(Cursor::new(b"one\r\n\xff two\n\nlast".to_vec()).chain(Silent));
        for expected in ["one", "\u{fffd} two", ""] {
            assert_eq!(next_line(&mut log, patience).await.unwrap().unwrap().as_deref(), Some(expected));
        }
        assert!(next_line(&mut log, patience).await.is_err(), "it is silent");
        let mut log = BufReader::new(Cursor::new(b"last".to_vec()));
        assert_eq!(next_line(&mut log, None).await.unwrap().unwrap().as_deref(), Some("last"));
        assert_eq!(next_line(&mut log, None).await.unwrap().unwrap(), None);
    }
}
