//! What figures on a cluster share: a controller of our own beside it, with a namespace of its own.

use anyhow::{Context as _, Result, ensure};
use sluice_e2e::{kubectl, run};
use sluice_tests::harness::measure::scratch;
use sluice_tests::harness::process::{Process, free_port};
use sluice_tests::harness::unique;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// A controller that looks after one namespace, which goes with it.
pub(crate) struct Controller {
    /// Its process.
    pub(crate) process: Process,
    namespace: String,
    directory: PathBuf,
    address: String,
}

impl Controller {
    /// One beside the cluster that the environment names; `None`, said for `figure`, where there is none.
    pub(crate) fn from_environment(figure: &str) -> Result<Option<Self>> {
        let (Ok(_), Ok(program)) = (std::env::var("KUBECONFIG"), std::env::var("SLUICE_CONTROLLER_BIN")) else {
            println!("# {figure} skipped: no cluster named (KUBECONFIG, SLUICE_CONTROLLER_BIN)");
            return Ok(None);
        };
        // By the chart, which owns the CRD where the operator was installed before.
        let helm = std::env::var("SLUICE_TEST_HELM").unwrap_or_else(|_| "helm".to_owned());
        let chart = concat!(env!("CARGO_MANIFEST_DIR"), "/../charts/sluice-crds");
        run(Command::new(helm).args(["upgrade", "--install", "sluice-crds", chart]), None)?;
        let (directory, namespace) = (scratch()?, unique("figures"));
        kubectl(&["create", "namespace", &namespace])?;
        let image = std::env::var("SLUICE_TEST_RUNTIME_IMAGE").unwrap_or_else(|_| "sluice/runtime:0.1.0".to_owned());
        let address = format!("127.0.0.1:{}", free_port());
        let mut command = Command::new(program);
        command.args(["--namespaces", &namespace, "--runtime-image", &image, "--listen", &address]);
        let process = Process::start("controller", &directory, &mut command)?;
        Ok(Some(Self { process, namespace, directory, address }))
    }

    /// Its namespace.
    pub(crate) fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Files of this figure.
    pub(crate) fn directory(&self) -> &PathBuf {
        &self.directory
    }

    /// Fails when it has ended.
    pub(crate) fn check(&mut self) -> Result<()> {
        ensure!(self.process.ended().is_none(), "the controller has ended:\n{}", self.process.log());
        Ok(())
    }

    /// What it counts.
    pub(crate) async fn metrics(&self) -> Result<String> {
        let mut stream = TcpStream::connect(&self.address).await.context("the controller's metrics")?;
        let request = format!("GET /metrics HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", self.address);
        stream.write_all(request.as_bytes()).await?;
        let mut text = String::new();
        tokio::time::timeout(Duration::from_secs(10), stream.read_to_string(&mut text)).await??;
        Ok(text)
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        self.process.kill();
        let _ = kubectl(&["delete", "namespace", &self.namespace, "--wait=false"]);
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// The value below which this part of the values lies.
pub(crate) fn percentile(values: &mut [f64], part: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let last = values.len().saturating_sub(1);
    values.get((last as f64 * part).ceil() as usize).copied().unwrap_or(f64::NAN)
}
