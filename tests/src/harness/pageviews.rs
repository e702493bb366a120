//! Page views: the job that counts them, the load that tests produce, and the counts computed without Sluice.

use super::kafka::{self, Producer};
use std::collections::BTreeMap;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const EXAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/pageviews.yaml");

/// The job that counts page views of one topic into another: `examples/pageviews.yaml`.
#[derive(Debug, Clone, Copy)]
pub struct PageViewJob<'a> {
    /// Bootstrap address for the job's processes.
    pub kafka: &'a str,
    /// The topic that it reads from its beginning.
    pub input: &'a str,
    /// The topic that it writes.
    pub output: &'a str,
    /// Subtasks per vertex.
    pub parallelism: u32,
    /// Between two checkpoints, such as `2s`.
    pub interval: &'a str,
    /// Where checkpoints go, such as `s3://checkpoints/demo`.
    pub storage: &'a str,
    /// `storageOptions` as YAML in one line.
    pub storage_options: &'a str,
}

impl PageViewJob<'_> {
    /// The StreamJob `pageviews`: the example with these places, and nothing else of it changed.
    ///
    /// # Panics
    /// When the example is not there, or lacks one of the places.
    #[must_use]
    pub fn manifest(&self) -> String {
        let Self { kafka, input, output, parallelism, interval, storage, storage_options } = self;
        let mut text = std::fs::read_to_string(EXAMPLE).expect("the example");
        let changes = [
            ("'topic'='test'", format!("'topic'='{input}'")),
            ("'topic'='pv'", format!("'topic'='{output}'")),
            ("kafka:9092", (*kafka).to_owned()),
            ("parallelism: 2", format!("parallelism: {parallelism}")),
            ("interval: 2s", format!("interval: {interval}")),
            ("storage: s3://checkpoints/demo", format!("storage: \"{storage}\"")),
            (r#"{endpoint: "http://s3:9000", pathStyle: true, credentialsSecret: s3}"#, (*storage_options).to_owned()),
        ];
        for (from, to) in changes {
            assert!(text.contains(from), "{EXAMPLE} has no {from}");
            text = text.replace(from, &to);
        }
        text
    }
}

/// Page views that a test produces while its job runs.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    /// Another seed, other events.
    pub seed: u64,
    /// How many.
    pub events: u64,
    /// Of how many applications.
    pub apps: u64,
    /// Partitions of the topic; they take turns.
    pub partitions: i32,
    /// Over which time they are spread; zero = as fast as the broker takes them.
    pub duration: Duration,
}

impl Load {
    /// Produces it all, on a thread of its own, whose end says that the broker has everything.
    ///
    /// # Panics
    /// On that thread, when the broker stays away.
    #[must_use]
    pub fn produce(self, bootstrap: &str, topic: &str) -> JoinHandle<()> {
        let (bootstrap, topic) = (bootstrap.to_owned(), topic.to_owned());
        std::thread::spawn(move || {
            let producer = Producer::new(&bootstrap).expect("a producer");
            let started = Instant::now();
            for number in 0..self.events {
                let partition = i32::try_from(number % u64::from(self.partitions.unsigned_abs())).expect("small");
                producer.send(&topic, partition, &event(self.seed, number, self.apps).1).expect("room in the queue");
                if number.is_multiple_of(1000) {
                    let due = self.duration.mul_f64(number as f64 / self.events as f64);
                    std::thread::sleep(due.saturating_sub(started.elapsed()));
                }
            }
            producer.flush().expect("all delivered");
        })
    }
}

/// One event as JSON; a pure function of its number and seed.
#[must_use]
pub fn event(seed: u64, number: u64, apps: u64) -> (String, String) {
    let mixed = mix(seed ^ mix(number));
    let app = format!("app{}", mixed % apps + 1);
    let second = number / 1000 % 86_400;
    let json = format!(
        r#"{{"app_id":"{app}","url":"https://example.org/{}","ts":"2026-01-01 {:02}:{:02}:{:02}.{:03}"}}"#,
        mixed >> 32 & 0xfff,
        second / 3600,
        second / 60 % 60,
        second % 60,
        number % 1000
    );
    (app, json)
}

fn mix(mut value: u64) -> u64 {
    value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// Counts per app, by reading the input topic from its beginning to its end and counting lines.
///
/// # Errors
/// When the broker does not answer.
pub fn expected_counts(bootstrap: &str, topic: &str) -> anyhow::Result<BTreeMap<String, u64>> {
    let mut counts = BTreeMap::new();
    for record in kafka::read_all(bootstrap, topic)? {
        let value: serde_json::Value = serde_json::from_slice(&record.value.unwrap_or_default())?;
        let app = value["app_id"].as_str().unwrap_or_default().to_owned();
        *counts.entry(app).or_insert(0) += 1;
    }
    Ok(counts)
}

/// The `pv` topic materialised: the last value of each key, tombstones removed.
///
/// # Errors
/// When the broker does not answer or a record is not what the sink should write.
pub fn materialised_counts(bootstrap: &str, topic: &str) -> anyhow::Result<BTreeMap<String, u64>> {
    let mut counts = BTreeMap::new();
    for record in kafka::read_all(bootstrap, topic)? {
        let key: serde_json::Value = serde_json::from_slice(&record.key.unwrap_or_default())?;
        let app = key["app_id"].as_str().ok_or_else(|| anyhow::anyhow!("key without app_id: {key}"))?.to_owned();
        match record.value {
            None => drop(counts.remove(&app)),
            Some(value) => {
                let value: serde_json::Value = serde_json::from_slice(&value)?;
                let count = value["pv"].as_u64().ok_or_else(|| anyhow::anyhow!("value without pv: {value}"))?;
                counts.insert(app, count);
            }
        }
    }
    Ok(counts)
}
