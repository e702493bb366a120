//! A job without a broker: it counts generated rows by key and throws the counts away, with a checkpoint a second.

use crate::job::Job;
use crate::{Cluster, Namespace, apply};
use sluice_tests::harness::ledger::{Ledger, open_store};

const SQL: &str = "CREATE TABLE s (k BIGINT) WITH ('connector'='datagen', 'rows-per-second'='1000', 'fields.k.min'='1', 'fields.k.max'='9'); CREATE TABLE t (k BIGINT, c BIGINT, PRIMARY KEY (k) NOT ENFORCED) WITH ('connector'='blackhole'); INSERT INTO t SELECT k, COUNT(*) AS c FROM s GROUP BY k;";

/// Its manifest. `extra` are further lines of the spec.
#[must_use]
pub fn manifest(cluster: &Cluster, name: &str, prefix: &str, extra: &str) -> String {
    let (bucket, options) = (&cluster.services.s3.bucket, cluster.storage_options());
    format!(
        "apiVersion: sluice.dev/v1alpha1\nkind: StreamJob\nmetadata: {{name: {name}}}\nspec:\n  program:\n    sql: |\n      {SQL}\n  checkpointing: {{interval: 1s, storage: \"s3://{bucket}/{prefix}\", storageOptions: {options}}}\n{extra}"
    )
}

/// Applies it.
///
/// # Panics
/// When the API server refuses.
#[must_use]
pub fn start(cluster: &Cluster, namespace: &Namespace, name: &str, prefix: &str, extra: &str) -> Job {
    apply(&namespace.name, &manifest(cluster, name, prefix, extra)).expect("applied");
    Job { namespace: namespace.name.clone(), name: name.to_owned() }
}

/// Its ledger.
///
/// # Panics
/// When it cannot be read.
pub async fn ledger(cluster: &Cluster, job: &Job, prefix: &str) -> Ledger {
    Ledger::read(&open_store(&cluster.services.s3, prefix), &job.directory().expect("the job")).await
}
