//! `sluice` on a workstation against a job on the cluster: named through the kubeconfig, or through a port forward.

use crate::kubectl;
use anyhow::{Context as _, bail};
use sluice_tests::harness::{sluice_binary, unique};
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

/// A way to a pod's port 6123; it ends with this.
pub struct Forward {
    process: Child,
    /// kubectl ends when it can say nothing more.
    _output: BufReader<ChildStdout>,
    address: String,
}

impl Forward {
    /// To the JobManager's pod.
    ///
    /// # Errors
    /// kubectl says no.
    pub fn to(namespace: &str, pod: &str) -> anyhow::Result<Self> {
        let mut process = Command::new("kubectl")
            .args(["-n", namespace, "port-forward", &format!("pod/{pod}"), ":6123"])
            .stdout(Stdio::piped())
            .spawn()
            .context("kubectl port-forward")?;
        let mut line = String::new();
        let mut output = BufReader::new(process.stdout.take().context("no output")?);
        output.read_line(&mut line)?;
        let address = line.split_whitespace().find(|word| word.starts_with("127.0.0.1:")).map(ToOwned::to_owned);
        let Some(address) = address else { bail!("kubectl port-forward said '{line}'") };
        Ok(Self { process, _output: output, address })
    }

    /// Runs a command of `sluice` against it: what it printed, or what it complained of.
    ///
    /// # Errors
    /// It failed.
    pub fn run(&self, command: &[&str], certificate: Option<&Path>) -> anyhow::Result<String> {
        let mut sluice = Command::new(sluice_binary());
        sluice.args(command).args(["--jobmanager", &self.address]);
        if let Some(directory) = certificate {
            sluice.arg("--tls-directory").arg(directory);
        }
        printed_by(sluice)
    }
}

/// Runs a command of `sluice` that finds the cluster by itself: what it printed, or what it complained of.
///
/// # Errors
/// It failed.
pub fn sluice(arguments: &[&str]) -> anyhow::Result<String> {
    let mut sluice = Command::new(sluice_binary());
    sluice.args(arguments);
    printed_by(sluice)
}

fn printed_by(mut sluice: Command) -> anyhow::Result<String> {
    let output = sluice.output()?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    bail!("{}", String::from_utf8_lossy(&output.stderr))
}

impl Drop for Forward {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// What `--tls-directory` wants, from the Secret of a job: the pair of `role`, or the client's.
///
/// # Errors
/// There is no such Secret.
pub fn certificate(namespace: &str, job: &str, role: Option<&str>) -> anyhow::Result<PathBuf> {
    let directory = std::env::temp_dir().join(unique("sluice-certificate"));
    std::fs::DirBuilder::new().mode(0o700).create(&directory)?;
    let (certificate, key) = match role {
        None => ("tls.crt".to_owned(), "tls.key".to_owned()),
        Some(role) => (format!("{role}.crt"), format!("{role}.key")),
    };
    for (from, to) in [("ca.crt", "ca.crt"), (certificate.as_str(), "tls.crt"), (key.as_str(), "tls.key")] {
        let template = format!("go-template={{{{index .data \"{from}\" | base64decode}}}}");
        let text = kubectl(&["-n", namespace, "get", "secret", &format!("{job}-tls"), "-o", &template])?;
        std::fs::write(directory.join(to), text)?;
    }
    Ok(directory)
}
