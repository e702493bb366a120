//! `cargo figures [NAME…]`: every figure of the project, a line each, `name value unit`.
//!
//! Sizes of images and CRDs are measured here; all that takes a running job by the program `figures` of `sluice-tests`, and
//! what takes a cluster by `cluster_figures` of `sluice-e2e`. This module gives them a broker, a store and a cluster where
//! the machine can run them.

use std::fs;

use anyhow::{Context, Result};

use crate::image::{self, IMAGES};
use crate::services::{Environment, Kafka, S3, Testbed};
use crate::verify::requirements::{self, Requirement};
use crate::{process, services, workspace};

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Only these figures
    names: Vec<String>,
}

const RUNTIME_IMAGE: &str = "runtime_image_mb";
const CONTROLLER_IMAGE: &str = "controller_image_mb";
const CRD: &str = "crd_kb";
const SIZES: [&str; 3] = [RUNTIME_IMAGE, CONTROLLER_IMAGE, CRD];
/// Figures that take a broker.
const WITH_KAFKA: [&str; 4] =
    ["kafka_json_rows_per_core", "exactly_once_ratio", "visible_after_interval_p99_ms", "kill_to_committed_seconds"];
/// Figures that take a cluster.
const ON_CLUSTER: [&str; 9] = [
    "controller_rss_mb",
    "failure_to_status_seconds",
    "taskmanager_kill_to_output_seconds",
    "jobmanager_kill_to_running_seconds",
    "controller_1000_rss_mb",
    "controller_1000_idle_cores",
    "spec_to_pods_p99_seconds",
    "status_writes_per_change",
    "list_calls_after_start",
];

impl Arguments {
    fn wants(&self, name: &str) -> bool {
        self.names.is_empty() || self.names.iter().any(|wanted| wanted == name)
    }

    fn wants_any(&self, names: &[&str]) -> bool {
        names.iter().any(|name| self.wants(name))
    }
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    workspace::build_programs()?;
    print_sizes(arguments)?;
    let _lock = services::lock()?;
    let (on_cluster, others): (Vec<&str>, Vec<&str>) = arguments
        .names
        .iter()
        .map(String::as_str)
        .filter(|name| !SIZES.contains(name))
        .partition(|name| ON_CLUSTER.contains(name));
    let all = arguments.names.is_empty();
    if all || !others.is_empty() {
        let (environment, _running) = start_services(arguments)?;
        run_program("sluice-tests", "figures", &others, environment)?;
    }
    if all || !on_cluster.is_empty() {
        measure_on_cluster(&on_cluster)?;
    }
    Ok(())
}

fn run_program(package: &str, program: &str, names: &[&str], environment: Environment) -> Result<()> {
    let mut command = workspace::cargo("run");
    command.args(["-q", "--profile", workspace::PROFILE, "-p", package, "--bin", program, "--"]);
    process::run(command.args(names).envs(environment))
}

/// Those that take a cluster, where this machine can run one.
fn measure_on_cluster(names: &[&str]) -> Result<()> {
    if !available(&requirements::CLUSTER) {
        return Ok(());
    }
    let testbed = Testbed::start(false)?;
    let (kafka, s3) = (Kafka::start(true)?, S3::start(true)?);
    let mut environment = services::programs()?;
    environment.extend(testbed.environment()?);
    environment.extend(kafka.environment());
    environment.extend(s3.environment());
    run_program("sluice-e2e", "cluster_figures", names, environment)
}

fn print_sizes(arguments: &Arguments) -> Result<()> {
    for (name, image) in [RUNTIME_IMAGE, CONTROLLER_IMAGE].into_iter().zip(&IMAGES) {
        if arguments.wants(name) {
            println!("{name} {:.1} MB", image::megabytes(image.build()?.size));
        }
    }
    if arguments.wants(CRD) {
        println!("{CRD} {:.1} kB", largest_crd()? / 1e3);
    }
    Ok(())
}

/// Bytes of the largest CRD.
#[expect(clippy::cast_precision_loss, reason = "sizes of CRDs are far below 2^53")]
fn largest_crd() -> Result<f64> {
    let directory = workspace::root().join("crds");
    let mut largest = 0;
    for entry in fs::read_dir(&directory).with_context(|| format!("cannot list {}", directory.display()))? {
        let entry = entry?;
        if entry.path().extension().is_some_and(|extension| extension == "yaml") {
            largest = largest.max(entry.metadata()?.len());
        }
    }
    Ok(largest as f64)
}

/// What is running for the figures; dropping it ends it.
type Running = Option<(Kafka, S3)>;

/// Starts what the wanted figures take and this machine can run.
fn start_services(arguments: &Arguments) -> Result<(Environment, Running)> {
    let mut environment = services::programs()?;
    if !arguments.wants_any(&WITH_KAFKA) || !available(&requirements::SERVICES) {
        return Ok((environment, None));
    }
    let (kafka, s3) = (Kafka::start(false)?, S3::start(false)?);
    environment.extend(kafka.environment());
    environment.extend(s3.environment());
    Ok((environment, Some((kafka, s3))))
}

fn available(needed: &[Requirement]) -> bool {
    let missing = requirements::missing(needed);
    if let Some(reason) = &missing {
        println!("# some figures are left out: {reason}");
    }
    missing.is_none()
}
