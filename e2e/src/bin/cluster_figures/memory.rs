//! The controller's memory with 10 jobs whose pods really run.

use crate::setting::Controller;
use anyhow::{Context as _, Result};
use sluice_e2e::kubectl;
use std::time::Duration;

const JOBS: usize = 10;
/// How long all jobs run before the memory is read.
const STEADY: Duration = Duration::from_secs(20);

pub(crate) fn print() -> Result<()> {
    let Some(mut controller) = Controller::from_environment("controller_rss_mb")? else { return Ok(()) };
    for number in 0..JOBS {
        apply_job(&controller, number)?;
    }
    let namespace = controller.namespace();
    kubectl(&["-n", namespace, "wait", "--for=condition=Ready", "streamjobs", "--all", "--timeout=180s"])
        .with_context(|| controller.process.log())?;
    std::thread::sleep(STEADY);
    controller.check()?;
    println!("controller_rss_mb {:.1} MB", controller.process.rss_mb());
    Ok(())
}

fn apply_job(controller: &Controller, number: usize) -> Result<()> {
    let path = controller.directory().join(format!("job-{number}.yaml"));
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
    kubectl(&["-n", controller.namespace(), "apply", "-f", &path.display().to_string()])?;
    Ok(())
}
