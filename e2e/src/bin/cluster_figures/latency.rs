//! How long people wait on a cluster after a process died: until the status says so, until the job runs again, until its
//! results come again. What the restart strategy waits by itself is subtracted from the last two.

use anyhow::{Context as _, Result, ensure};
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams, LogParams};
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Client, ResourceExt as _};
use serde_json::Value;
use sluice_crds::StreamJob;
use sluice_e2e::job::{Job, checkpoint};
use sluice_e2e::{Cluster, Namespace, apply, counting};
use sluice_tests::harness::measure::median;
use std::time::{Duration, Instant};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

const ROUNDS: usize = 5;
/// The strategy's delay.
const DELAY: Duration = Duration::from_secs(1);
const DEADLINE: Duration = Duration::from_secs(60);
const NAME: &str = "latency";

pub(crate) fn print() -> Result<()> {
    let Some(cluster) = Cluster::from_environment() else {
        println!("# failure_to_status_seconds and its like skipped: no cluster named");
        return Ok(());
    };
    let namespace = cluster.namespace("figures")?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(measure(&cluster, &namespace))
}

async fn measure(cluster: &Cluster, namespace: &Namespace) -> Result<()> {
    let client = Client::try_default().await?;
    let extra = format!("  restartStrategy: {{fixedDelay: {{attempts: 100, delay: {}s}}}}\n", DELAY.as_secs());
    let manifest = counting::manifest(cluster, NAME, "latency", &extra).replace("'blackhole'", "'print'");
    let mut watched = Watched {
        pods: Api::namespaced(client.clone(), &namespace.name),
        statuses: follow(client, &namespace.name),
        job: Job { namespace: namespace.name.clone(), name: NAME.to_owned() },
    };
    apply(&namespace.name, &manifest)?;
    let (mut told, mut output, mut running) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let (seconds_told, seconds_output) = watched.kill_task_manager().await?;
        told.push(seconds_told);
        output.push(seconds_output);
        running.push(watched.kill_job_manager().await?);
    }
    println!("failure_to_status_seconds {:.2} s", median(told.clone()));
    println!("taskmanager_kill_to_output_seconds {:.2} s", median(output.clone()));
    println!("jobmanager_kill_to_running_seconds {:.2} s", median(running.clone()));
    println!("# each: {told:.2?}, {output:.2?}, {running:.2?}");
    Ok(())
}

/// Statuses with the moment in which a watcher saw them.
fn follow(client: Client, namespace: &str) -> UnboundedReceiver<(Instant, Value)> {
    let (sender, receiver) = unbounded_channel();
    let jobs: Api<StreamJob> = Api::namespaced(client, namespace);
    tokio::spawn(async move {
        let mut events = std::pin::pin!(watcher(jobs, watcher::Config::default()));
        while let Some(event) = events.next().await {
            if let Ok(Event::Apply(job) | Event::InitApply(job)) = event {
                let status = serde_json::to_value(&job.status).unwrap_or_default();
                if sender.send((Instant::now(), status)).is_err() {
                    return;
                }
            }
        }
    });
    receiver
}

struct Watched {
    pods: Api<Pod>,
    statuses: UnboundedReceiver<(Instant, Value)>,
    job: Job,
}

impl Watched {
    /// The next status that is as wanted, and when it came.
    async fn wait(&mut self, what: &str, wanted: impl Fn(&Value) -> bool) -> Result<(Instant, Value)> {
        let deadline = tokio::time::Instant::now() + DEADLINE;
        let mut last = Value::Null;
        loop {
            let next = tokio::time::timeout_at(deadline, self.statuses.recv()).await;
            let Ok(next) = next else { anyhow::bail!("{what}: not within {DEADLINE:?}; last status: {last:#}") };
            let (at, status) = next.context("the watch has ended")?;
            if wanted(&status) {
                return Ok((at, status));
            }
            last = status;
        }
    }

    /// A job that runs and has a checkpoint of its own.
    async fn steady(&mut self) -> Result<Value> {
        let own = |status: &Value| checkpoint(status) > status["restoredFrom"]["id"].as_u64().unwrap_or(0);
        Ok(self.wait("a job that runs", |status| status["state"] == "Running" && own(status)).await?.1)
    }

    /// Seconds until the status tells, and until there is output again.
    async fn kill_task_manager(&mut self) -> Result<(f64, f64)> {
        let before = self.steady().await?;
        let busy = self.job.pods("taskmanager")?;
        // Those of earlier rounds too, whose logs are still there.
        let old = self.pods.list(&task_managers()).await?.iter().map(|pod| pod.name_any()).collect();
        let killed = Instant::now();
        self.job.kill_pods(&busy.iter().map(String::as_str).collect::<Vec<_>>())?;
        let output = tokio::spawn(wait_for_output(self.pods.clone(), old, killed));
        let (told, _) = self.wait("the failure", |status| status["failures"] != before["failures"]).await?;
        let output = output.await??;
        Ok((since(killed, told), since(killed, output) - DELAY.as_secs_f64()))
    }

    /// Seconds until the job runs again.
    async fn kill_job_manager(&mut self) -> Result<f64> {
        let before = self.steady().await?["generation"].as_u64().unwrap_or_default();
        let pods = self.job.pods("jobmanager")?;
        let killed = Instant::now();
        self.job.kill_pods(&pods.iter().map(String::as_str).collect::<Vec<_>>())?;
        let runs = |status: &Value| status["state"] == "Running" && status["generation"].as_u64() > Some(before);
        let (running, _) = self.wait("the next generation", runs).await?;
        Ok(since(killed, running) - DELAY.as_secs_f64())
    }
}

fn task_managers() -> ListParams {
    ListParams::default().labels("app.kubernetes.io/component=taskmanager")
}

fn since(from: Instant, to: Instant) -> f64 {
    to.saturating_duration_since(from).as_secs_f64()
}

/// When a TaskManager that is none of the old ones has printed a row.
async fn wait_for_output(pods: Api<Pod>, old: Vec<String>, killed: Instant) -> Result<Instant> {
    let labels = task_managers();
    loop {
        ensure!(killed.elapsed() < DEADLINE, "no output within {DEADLINE:?}");
        for pod in pods.list(&labels).await?.iter().filter(|pod| !old.contains(&pod.name_any())) {
            // One that has no container yet has no log.
            let last = LogParams { tail_lines: Some(1), ..LogParams::default() };
            let log = pods.logs(&pod.name_any(), &last).await.unwrap_or_default();
            if log.contains("+U[") || log.contains("+I[") {
                return Ok(Instant::now());
            }
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
