//! Which test targets belong to which suite, told by package and name.
//!
//! Targets named `kafka`, `real_s3` and `process_*` need services, wherever they are; `simulation*` is a suite of its own; those of
//! `sluice-e2e` need a cluster; every other target needs nothing.

use anyhow::{Context, Result};
use serde_json::Value;

use crate::{process, workspace};

/// Names of integration-test targets.
#[derive(Default)]
pub(crate) struct Targets {
    /// They need nothing.
    pub(crate) plain: Vec<String>,
    /// The seeded simulation.
    pub(crate) simulation: Vec<String>,
    /// They need a broker and an S3 server.
    pub(crate) services: Vec<String>,
    /// They need a cluster.
    pub(crate) cluster: Vec<String>,
}

/// Asks Cargo for the workspace's targets.
pub(crate) fn find() -> Result<Targets> {
    let text = process::output(workspace::cargo("metadata").args(["--no-deps", "--format-version", "1"]))?;
    let metadata: Value = serde_json::from_str(&text).context("cargo metadata printed something that is not JSON")?;
    let mut targets = Targets::default();
    for package in array(&metadata["packages"]) {
        let package_name = package["name"].as_str().unwrap_or_default();
        for target in array(&package["targets"]) {
            let is_test = array(&target["kind"]).iter().any(|kind| kind == "test");
            if let Some(name) = target["name"].as_str().filter(|_| is_test) {
                targets.of_suite(package_name, name).push(name.to_owned());
            }
        }
    }
    Ok(targets)
}

fn array(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

impl Targets {
    fn of_suite(&mut self, package: &str, target: &str) -> &mut Vec<String> {
        match target {
            _ if package == "sluice-e2e" => &mut self.cluster,
            "kafka" | "real_s3" => &mut self.services,
            _ if target.starts_with("process_") => &mut self.services,
            _ if target.starts_with("simulation") => &mut self.simulation,
            _ => &mut self.plain,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_go_to_the_suite_that_has_what_they_need() {
        let mut targets = Targets::default();
        for (package, target) in [
            ("sluice-e2e", "process_like_name"),
            ("sluice-connectors", "kafka"),
            ("sluice-storage", "real_s3"),
            ("sluice-tests", "process_outage"),
            ("sluice-tests", "simulation"),
            ("sluice-storage", "conformance"),
        ] {
            targets.of_suite(package, target).push(target.to_owned());
        }
        assert_eq!(targets.cluster, ["process_like_name"]);
        assert_eq!(targets.services, ["kafka", "real_s3", "process_outage"]);
        assert_eq!(targets.simulation, ["simulation"]);
        assert_eq!(targets.plain, ["conformance"]);
    }
}
