//! 1,000 StreamJobs on the real API server: the controller's memory and idle time, how fast a change becomes pods, and
//! what it asks of the API server for it.
//!
//! The controller is a process of our own beside the cluster; pods and JobManagers are played ([`fleet`]).

mod counts;
mod fleet;
mod job_manager;

use crate::setting::{Controller, percentile};
use anyhow::{Context as _, Result, ensure};
use counts::{Statuses, api_server, sum};
use fleet::{Fleet, SCHEDULER};
use futures::StreamExt as _;
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt as _};
use serde_json::json;
use sluice_crds::StreamJob;
use std::time::{Duration, Instant};

const JOBS: usize = 1000;
/// How many are made at the same time.
const AT_ONCE: usize = 8;
const READY_TIMEOUT: Duration = Duration::from_secs(600);
/// Before the idle time is measured, and for how long it is.
const SETTLE: Duration = Duration::from_secs(40);
const IDLE: Duration = Duration::from_secs(60);
const CHANGES: usize = 300;
const BETWEEN_CHANGES: Duration = Duration::from_millis(200);
/// A change that has no pods by then is lost.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) fn print() -> Result<()> {
    let Some(controller) = Controller::from_environment("controller_1000_…")? else { return Ok(()) };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(measure(controller))
}

struct Setting {
    client: Client,
    controller: Controller,
    fleet: Fleet,
    statuses: Statuses,
}

async fn measure(controller: Controller) -> Result<()> {
    let client = Client::try_default().await?;
    let fleet = Fleet::start(client.clone(), controller.namespace());
    let statuses = Statuses::follow(client.clone(), controller.namespace());
    let mut setting = Setting { client, controller, fleet, statuses };
    setting.make_jobs().await?;
    setting.measure_idle().await?;
    setting.measure_changes().await?;
    setting.fleet.check()
}

impl Setting {
    fn jobs(&self) -> Api<StreamJob> {
        Api::namespaced(self.client.clone(), self.controller.namespace())
    }

    async fn make_jobs(&mut self) -> Result<()> {
        let started = Instant::now();
        let jobs = self.jobs();
        let mut made = futures::stream::iter(0..JOBS)
            .map(|number| {
                let jobs = jobs.clone();
                async move { jobs.create(&PostParams::default(), &job(number)?).await.context("creating a StreamJob") }
            })
            .buffer_unordered(AT_ONCE);
        while let Some(result) = made.next().await {
            result?;
        }
        while self.statuses.with_condition("Ready") < JOBS {
            self.check()?;
            let ready = self.statuses.with_condition("Ready");
            ensure!(started.elapsed() < READY_TIMEOUT, "{ready} of {JOBS} are ready after {READY_TIMEOUT:?}");
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        println!("# {JOBS} StreamJobs made and ready after {:.0} s", started.elapsed().as_secs_f64());
        Ok(())
    }

    fn check(&mut self) -> Result<()> {
        self.fleet.check()?;
        self.controller.check()
    }

    async fn measure_idle(&mut self) -> Result<()> {
        tokio::time::sleep(SETTLE).await;
        let (before, at) = (self.controller.process.cpu_seconds(), Instant::now());
        tokio::time::sleep(IDLE).await;
        let cores = (self.controller.process.cpu_seconds() - before) / at.elapsed().as_secs_f64();
        self.check()?;
        println!("controller_1000_rss_mb {:.1} MB", self.controller.process.rss_mb());
        println!("controller_1000_idle_cores {cores:.4} cores");
        Ok(())
    }

    /// Changes one job after another, by turns: each is stopped, and started anew without state.
    async fn measure_changes(&mut self) -> Result<()> {
        let (lists, writes) = (self.lists().await?, self.status_writes().await?);
        let distinct = self.statuses.distinct();
        let mut waits = Vec::with_capacity(CHANGES);
        let mut ticks = tokio::time::interval(BETWEEN_CHANGES);
        for number in 0..CHANGES {
            ticks.tick().await;
            waits.push(self.change(number * 7 % JOBS).await?);
        }
        let mut seconds = Vec::with_capacity(CHANGES);
        for wait in waits {
            seconds.push(wait.await??.as_secs_f64());
        }
        // The last statuses are written, and seen.
        tokio::time::sleep(SETTLE).await;
        self.check()?;
        println!("spec_to_pods_p99_seconds {:.3} s", percentile(&mut seconds, 0.99));
        println!(
            "# spec_to_pods: median {:.3} s, largest {:.3} s",
            percentile(&mut seconds, 0.5),
            percentile(&mut seconds, 1.0)
        );
        let written = self.status_writes().await? - writes;
        let distinct = self.statuses.distinct() - distinct;
        println!("status_writes_per_change {:.4}", written / distinct as f64);
        println!("# {written:.0} writes of a StreamJob's status at the API server for {distinct} distinct contents");
        println!("list_calls_after_start {:.0}", self.lists().await? - lists);
        Ok(())
    }

    /// Changes a job's spec; the answer is how long its new pods took.
    async fn change(&self, number: usize) -> Result<tokio::task::JoinHandle<Result<Duration>>> {
        let name = name(number);
        let before = self.statuses.of(&name)?["generation"].as_u64().unwrap_or_default();
        let patch = json!({"spec": {"program": {"sql": program(usize::MAX - number)}}});
        let changed = Instant::now();
        self.jobs().patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await?;
        let fleet = self.fleet.clone();
        Ok(tokio::spawn(async move {
            loop {
                if let Some((_, at)) = fleet.complete(&name, before) {
                    return Ok(at.saturating_duration_since(changed));
                }
                ensure!(changed.elapsed() < CHANGE_TIMEOUT, "{name} has no new pods after {CHANGE_TIMEOUT:?}");
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }))
    }

    /// List calls of the controller, by its own count, and of StreamJobs and Savepoints, by the API server's.
    async fn lists(&self) -> Result<f64> {
        let own = sum(&self.controller.metrics().await?, "sluice_controller_api_requests_total", &[("verb", "list")]);
        let text = api_server(&self.client).await?;
        let served = ["streamjobs", "savepoints"]
            .map(|resource| sum(&text, "apiserver_request_total", &[("verb", "LIST"), ("resource", resource)]));
        Ok(own + served.iter().sum::<f64>())
    }

    async fn status_writes(&self) -> Result<f64> {
        let text = api_server(&self.client).await?;
        let labels = [("resource", "streamjobs"), ("subresource", "status")];
        let reads = sum(&text, "apiserver_request_total", &[labels[0], labels[1], ("verb", "GET")]);
        Ok(sum(&text, "apiserver_request_total", &labels) - reads)
    }
}

fn name(number: usize) -> String {
    format!("job-{number:04}")
}

fn program(number: usize) -> String {
    format!(
        "CREATE TABLE s (k BIGINT) WITH ('connector'='datagen', 'rows-per-second'='10');\n\
         CREATE TABLE t (k BIGINT) WITH ('connector'='blackhole');\n\
         INSERT INTO t SELECT k + {number} FROM s;\n"
    )
}

fn job(number: usize) -> Result<StreamJob> {
    let template = json!({"spec": {"schedulerName": SCHEDULER}});
    let job = json!({
        "apiVersion": "sluice.dev/v1alpha1", "kind": "StreamJob", "metadata": {"name": name(number)},
        "spec": {
            "program": {"sql": program(number)},
            "upgrade": {"mode": "Stateless"},
            "stability": {"duration": "1s"},
            "jobManager": {"podTemplate": template}, "taskManager": {"podTemplate": template},
        },
    });
    let job: StreamJob = serde_json::from_value(job)?;
    ensure!(job.name_any() == name(number));
    Ok(job)
}
