//! `cargo figures [NAME…]`: every figure of the project, a line each, `name value unit`.
//!
//! Sizes of images and CRDs are measured here; all that takes a running job is measured by the program `figures` of
//! `sluice-tests`, which this module gives a broker and a cluster where the machine can run them.

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
const WITH_KAFKA: [&str; 1] = ["kafka_json_rows_per_core"];
/// Figures that take a cluster.
const ON_CLUSTER: [&str; 1] = ["controller_rss_mb"];

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
    let others: Vec<_> = arguments.names.iter().filter(|name| !SIZES.contains(&name.as_str())).collect();
    if others.is_empty() && !arguments.names.is_empty() {
        return Ok(());
    }
    let _lock = services::lock()?;
    let (environment, _running) = start_services(arguments)?;
    let mut command = workspace::cargo("run");
    command.args(["-q", "--profile", workspace::PROFILE, "-p", "sluice-tests", "--bin", "figures", "--"]);
    process::run(command.args(others).envs(environment))
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
type Running = (Option<Kafka>, Option<S3>, Option<Testbed>);

/// Starts what the wanted figures take and this machine can run.
fn start_services(arguments: &Arguments) -> Result<(Environment, Running)> {
    let mut environment = services::programs()?;
    let mut running: Running = (None, None, None);
    if arguments.wants_any(&WITH_KAFKA) && available(&requirements::SERVICES) {
        let (kafka, s3) = (Kafka::start(false)?, S3::start(false)?);
        environment.extend(kafka.environment());
        environment.extend(s3.environment());
        (running.0, running.1) = (Some(kafka), Some(s3));
    }
    if arguments.wants_any(&ON_CLUSTER) && available(&requirements::CLUSTER) {
        let testbed = Testbed::start(false)?;
        environment.extend(testbed.environment()?);
        running.2 = Some(testbed);
    }
    Ok((environment, running))
}

fn available(needed: &[Requirement]) -> bool {
    let missing = requirements::missing(needed);
    if let Some(reason) = &missing {
        println!("# some figures are left out: {reason}");
    }
    missing.is_none()
}
