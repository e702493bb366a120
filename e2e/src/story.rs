//! A job that counts page views while a test does things to it: the same beginning and the same end of several stories.

use crate::job::{Job, condition};
use crate::{Cluster, Namespace, apply, kubectl};
use serde_json::Value;
use sluice_tests::harness::ledger::{Ledger, open_store};
use sluice_tests::harness::pageviews::{Load, PageViewJob, expected_counts, materialised_counts};
use sluice_tests::harness::{kafka, unique, wait_for};
use std::collections::BTreeMap;
use std::thread::JoinHandle;
use std::time::Duration;

/// Where checkpoints go, below the bucket.
pub const PREFIX: &str = "demo";

/// The job, its input under way.
pub struct Story {
    /// Where.
    pub cluster: Cluster,
    /// Of the test's own.
    pub namespace: Namespace,
    /// The StreamJob `pageviews`.
    pub job: Job,
    manifest: String,
    load: Load,
    input: String,
    output: String,
    producer: JoinHandle<()>,
}

impl Story {
    /// Applies the job, with `extra` lines of its spec, and begins to produce its input.
    ///
    /// # Panics
    /// When cluster or broker refuse.
    pub async fn begin(cluster: Cluster, load: Load, extra: &str) -> Self {
        Self::begin_as(cluster, load, |_, manifest| format!("{manifest}{extra}")).await
    }

    /// The same, with the manifest as `edit` makes it once the namespace is there.
    ///
    /// # Panics
    /// When cluster or broker refuse.
    pub async fn begin_as(cluster: Cluster, load: Load, edit: impl FnOnce(&Namespace, String) -> String) -> Self {
        let namespace = cluster.namespace("pageviews").expect("a namespace");
        let (input, output) = (unique("test"), unique("pv"));
        let bootstrap = &cluster.services.kafka;
        kafka::create_topics(bootstrap, &[(&input, load.partitions), (&output, 2)]).await.expect("topics");
        let producer = load.produce(bootstrap, &input);
        let manifest = PageViewJob {
            kafka: &cluster.kafka_pods,
            input: &input,
            output: &output,
            parallelism: 2,
            interval: "2s",
            storage: &format!("s3://{}/{PREFIX}", cluster.services.s3.bucket),
            storage_options: &cluster.storage_options(),
        }
        .manifest();
        let manifest = edit(&namespace, manifest);
        apply(&namespace.name, &manifest).expect("applied");
        let job = Job { namespace: namespace.name.clone(), name: "pageviews".to_owned() };
        Self { cluster, namespace, job, manifest, load, input, output, producer }
    }

    /// Applies the manifest with one text in place of another.
    ///
    /// # Panics
    /// When the text is not in the manifest, or the API server refuses.
    pub fn edit(&self, text: &str, by: &str) {
        assert!(self.manifest.contains(text), "no '{text}' in:\n{}", self.manifest);
        apply(&self.namespace.name, &self.manifest.replace(text, by)).expect("applied");
    }

    /// Applies the manifest in another namespace, with further lines of its spec.
    ///
    /// # Panics
    /// When the API server refuses.
    pub fn apply_in(&self, namespace: &Namespace, extra: &str) {
        apply(&namespace.name, &format!("{}{extra}", self.manifest)).expect("applied");
    }

    /// A JSON merge patch of the StreamJob.
    ///
    /// # Panics
    /// When the API server refuses.
    pub fn patch(&self, patch: &str) {
        let namespace = &self.namespace.name;
        kubectl(&["-n", namespace, "patch", "streamjob", "pageviews", "--type=merge", "-p", patch]).expect("patched");
    }

    /// Waits until this revision is ready, which it is when it is stable.
    ///
    /// # Panics
    /// After a while, with the last status.
    pub fn wait_ready(&self, revision: u64) -> Value {
        let what = format!("revision {revision} to be ready");
        self.job.wait_status(&what, Duration::from_secs(120), |status| {
            let ready = condition(status, "Ready").is_some_and(|(value, ..)| value == "True");
            ready && status["revision"] == revision && status["state"] == "Running"
        })
    }

    /// The job's ledger.
    ///
    /// # Panics
    /// When it cannot be read.
    pub async fn ledger(&self) -> Ledger {
        let store = open_store(&self.cluster.services.s3, PREFIX);
        Ledger::read(&store, &self.job.directory().expect("the job")).await
    }

    /// Produces the rest and waits until the materialised counts are those of the input.
    ///
    /// # Panics
    /// When they do not come to be.
    pub fn finish(&mut self) {
        let producer = std::mem::replace(&mut self.producer, std::thread::spawn(|| ()));
        producer.join().expect("the producer");
        let bootstrap = &self.cluster.services.kafka;
        let expected = expected_counts(bootstrap, &self.input).expect("the input");
        assert_eq!(expected.values().sum::<u64>(), self.load.events);
        wait_for("the counts", Duration::from_secs(90), || {
            (materialised_counts(bootstrap, &self.output).ok()? == expected).then_some(())
        });
    }

    /// No count that was written is lower than one of the same key before it: who had lost its state would count from 1.
    ///
    /// # Panics
    /// When one is.
    pub fn check_counts_never_fall(&self) {
        let mut last = BTreeMap::new();
        for record in kafka::read_all(&self.cluster.services.kafka, &self.output).expect("the output") {
            let value: Value = serde_json::from_slice(&record.value.unwrap_or_default()).expect("JSON");
            let (key, count) = (record.key.unwrap_or_default(), value["pv"].as_u64().expect("a count"));
            let before = last.insert(key.clone(), count).unwrap_or(0);
            assert!(count > before, "{}: {count} after {before}", String::from_utf8_lossy(&key));
        }
    }
}
