//! The controller's memory with 10 jobs, on a real API server: a controller process of our own beside the cluster.

use crate::measure::scratch;
use anyhow::{Context as _, Result};
use sluice_tests::harness::process::{Process, free_port};
use sluice_tests::harness::unique;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const JOBS: usize = 10;
/// How long all jobs run before the memory is read.
const STEADY: Duration = Duration::from_secs(20);

fn kubectl(arguments: &[&str]) -> Result<()> {
    run("kubectl", arguments)
}

fn run(program: &str, arguments: &[&str]) -> Result<()> {
    let output = Command::new(program).args(arguments).output().with_context(|| program.to_owned())?;
    let said = String::from_utf8_lossy(&output.stderr);
    anyhow::ensure!(output.status.success(), "{program} {arguments:?}: {said}");
    Ok(())
}

pub(crate) fn print() -> Result<()> {
    let (Ok(_), Ok(controller)) = (std::env::var("KUBECONFIG"), std::env::var("SLUICE_CONTROLLER_BIN")) else {
        println!("# controller_rss_mb skipped: no cluster named (KUBECONFIG, SLUICE_CONTROLLER_BIN)");
        return Ok(());
    };
    let helm = std::env::var("SLUICE_TEST_HELM").unwrap_or_else(|_| "helm".to_owned());
    // By the chart, which owns the CRD where the operator was installed before.
    run(
        &helm,
        &["upgrade", "--install", "sluice-crds", concat!(env!("CARGO_MANIFEST_DIR"), "/../charts/sluice-crds")],
    )?;
    let (directory, namespace) = (scratch()?, unique("figures"));
    kubectl(&["create", "namespace", &namespace])?;
    let measured = measure(&controller, &namespace, &directory);
    kubectl(&["delete", "namespace", &namespace, "--wait=false"])?;
    println!("controller_rss_mb {:.1} MB", measured?);
    std::fs::remove_dir_all(&directory)?;
    Ok(())
}

/// Memory of a controller whose jobs all run.
fn measure(controller: &str, namespace: &str, directory: &Path) -> Result<f64> {
    let image = std::env::var("SLUICE_TEST_RUNTIME_IMAGE").unwrap_or_else(|_| "sluice/runtime:0.1.0".to_owned());
    let mut command = Command::new(controller);
    command.args(["--namespaces", namespace, "--runtime-image", &image]);
    command.args(["--listen", &format!("127.0.0.1:{}", free_port())]);
    let mut process = Process::start("controller", directory, &mut command)?;
    for number in 0..JOBS {
        apply_job(namespace, directory, number)?;
    }
    kubectl(&["-n", namespace, "wait", "--for=condition=Ready", "streamjobs", "--all", "--timeout=180s"])
        .with_context(|| process.log())?;
    std::thread::sleep(STEADY);
    anyhow::ensure!(process.ended().is_none(), "the controller has ended:\n{}", process.log());
    Ok(process.rss_mb())
}

fn apply_job(namespace: &str, directory: &Path, number: usize) -> Result<()> {
    let path = directory.join(format!("job-{number}.yaml"));
    let manifest = format!(
        "apiVersion: sluice.dev/v1alpha1
kind: StreamJob
metadata: {{name: job-{number}}}
spec:
  program:
    sql: |
      CREATE TABLE s (k BIGINT) WITH ('connector'='datagen', 'rows-per-second'='10');
      CREATE TABLE t (k BIGINT) WITH ('connector'='blackhole');
      INSERT INTO t SELECT k FROM s;
"
    );
    std::fs::write(&path, manifest)?;
    kubectl(&["-n", namespace, "apply", "-f", &path.display().to_string()])
}
