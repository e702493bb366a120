//! The controller's memory with 10 jobs, on a real API server: a controller process of our own beside the cluster.

use crate::measure::scratch;
use anyhow::{Context as _, Result};
use sluice_tests::harness::process::{Process, free_port};
use sluice_tests::harness::unique;
use std::process::Command;
use std::time::Duration;

const JOBS: usize = 10;

fn kubectl(arguments: &[&str]) -> Result<()> {
    let output = Command::new("kubectl").args(arguments).output().context("kubectl")?;
    anyhow::ensure!(output.status.success(), "kubectl {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

pub(crate) fn print() -> Result<()> {
    let (Ok(_), Ok(controller)) = (std::env::var("KUBECONFIG"), std::env::var("SLUICE_CONTROLLER_BIN")) else {
        println!("# controller_rss_mb skipped: no cluster named (KUBECONFIG, SLUICE_CONTROLLER_BIN)");
        return Ok(());
    };
    let image = std::env::var("SLUICE_TEST_RUNTIME_IMAGE").unwrap_or_else(|_| "sluice/runtime:0.1.0".to_owned());
    let directory = scratch()?;
    let namespace = unique("figures");
    kubectl(&["create", "namespace", &namespace])?;
    let mut command = Command::new(controller);
    command.args(["--namespace", &namespace, "--runtime-image", &image]);
    command.args(["--http-bind", &format!("127.0.0.1:{}", free_port())]);
    let process = Process::start("controller", &directory, &mut command)?;
    for number in 0..JOBS {
        let path = directory.join(format!("job-{number}.yaml"));
        std::fs::write(
            &path,
            format!(
                "apiVersion: sluice.dev/v1alpha1\nkind: StreamJob\nmetadata: {{name: job-{number}}}\nspec:\n  program:\n    sql: |\n      CREATE TABLE s (k BIGINT) WITH ('connector'='datagen', 'rows-per-second'='10'); CREATE TABLE t (k BIGINT) WITH ('connector'='blackhole'); INSERT INTO t SELECT k FROM s;\n"
            ),
        )?;
        kubectl(&["-n", &namespace, "apply", "-f", &path.display().to_string()])?;
    }
    kubectl(&["-n", &namespace, "wait", "--for=condition=Ready", "streamjobs", "--all", "--timeout=180s"])?;
    std::thread::sleep(Duration::from_secs(20));
    println!("controller_rss_mb {:.1} MB", process.rss_mb());
    kubectl(&["delete", "namespace", &namespace, "--wait=false"])?;
    drop(process);
    std::fs::remove_dir_all(&directory)?;
    Ok(())
}
