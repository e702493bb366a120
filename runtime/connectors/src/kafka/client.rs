//! Clients of librdkafka: their logs, and looking up the partitions of a topic with errors that say what to do.

use super::options::SourceOptions;
use super::properties::ClientProperties;
use super::topics::Topics;
use rdkafka::client::Client;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, Consumer as _, ConsumerContext};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};
use rdkafka::{ClientConfig, ClientContext, Statistics, TopicPartitionList};
use sluice_engine::error::TaskError;
use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long a source or sink waits for the brokers when it opens.
pub(super) const OPEN_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a topic may be unknown before it counts as missing: one that was just made may not be known everywhere.
const MISSING_GRACE: Duration = Duration::from_secs(2);

const RETRY: Duration = Duration::from_millis(100);

/// Routes what librdkafka says to the log, and remembers its last error for messages.
#[derive(Debug, Default)]
pub(super) struct ClientLog {
    last_error: Mutex<Option<(RDKafkaErrorCode, String)>>,
}

impl ClientLog {
    /// The last error and librdkafka's words for it.
    pub(super) fn last_error(&self) -> Option<(RDKafkaErrorCode, String)> {
        self.last_error.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Logs a line of librdkafka.
    pub(super) fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        match level {
            RDKafkaLogLevel::Emerg | RDKafkaLogLevel::Alert | RDKafkaLogLevel::Critical | RDKafkaLogLevel::Error => {
                tracing::warn!(target: "librdkafka", facility, "{message}");
            }
            RDKafkaLogLevel::Warning | RDKafkaLogLevel::Notice => {
                tracing::info!(target: "librdkafka", facility, "{message}");
            }
            RDKafkaLogLevel::Info | RDKafkaLogLevel::Debug => {
                tracing::debug!(target: "librdkafka", facility, "{message}");
            }
        }
    }

    /// Remembers an error of the whole client. librdkafka goes on by itself after all of them but fatal ones, which
    /// fail what is read or written too.
    pub(super) fn error(&self, error: &KafkaError, reason: &str) {
        tracing::info!(target: "librdkafka", %error, "{reason}");
        if let Some(code) = error.rdkafka_error_code() {
            let text = if reason.is_empty() { error.to_string() } else { reason.to_owned() };
            let mut last = self.last_error.lock().unwrap_or_else(PoisonError::into_inner);
            // "All brokers are down" follows the error that says why.
            if code != RDKafkaErrorCode::AllBrokersDown || last.is_none() {
                *last = Some((code, text));
            }
        }
    }
}

/// What a consumer calls back.
#[derive(Debug, Default)]
pub(super) struct ReaderContext {
    pub(super) log: ClientLog,
    ends: Mutex<HashMap<String, HashMap<i32, i64>>>,
}

impl ReaderContext {
    /// The end of a partition as the brokers last told it with records: the offset that the next one will have.
    pub(super) fn end_of(&self, topic: &str, partition: i32) -> Option<i64> {
        let ends = self.ends.lock().unwrap_or_else(PoisonError::into_inner);
        ends.get(topic)?.get(&partition).copied()
    }
}

impl ClientContext for ReaderContext {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        self.log.log(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.log.error(&error, reason);
    }

    fn stats(&self, statistics: Statistics) {
        let ends = statistics.topics.into_iter().map(|(topic, told)| {
            // What transactions that are still open have written cannot be read yet.
            let ends = told.partitions.into_iter().map(|(partition, told)| (partition, told.ls_offset));
            (topic, ends.filter(|(_, end)| *end >= 0).collect())
        });
        *self.ends.lock().unwrap_or_else(PoisonError::into_inner) = ends.collect();
    }
}

impl ConsumerContext for ReaderContext {
    fn commit_callback(&self, result: KafkaResult<()>, _: &TopicPartitionList) {
        if let Err(error) = result {
            tracing::warn!(%error, "offsets could not be committed to the consumer group; the job does not need them");
        }
    }
}

/// The consumer of a reader.
pub(super) type Consumer = BaseConsumer<ReaderContext>;

/// Makes a consumer that reads so many partitions as it is told to, and commits nothing by itself.
pub(super) fn build_consumer(
    properties: &ClientProperties,
    bounded: bool,
    partitions: usize,
) -> Result<Consumer, TaskError> {
    let share = PartitionShare::of(properties.fetch_budget(), partitions);
    let (queue, fetch) = (share.queue.div_ceil(1024).to_string(), share.fetch.to_string());
    let mut defaults = vec![
        // librdkafka's second of rest after a full queue starves a fast reader.
        ("fetch.queue.backoff.ms", "10"),
        ("fetch.error.backoff.ms", "100"),
        ("reconnect.backoff.max.ms", "2000"),
        ("log.connection.close", "false"),
        // How often it tells where partitions end.
        ("statistics.interval.ms", "2000"),
    ];
    if !FETCH.iter().any(|name| properties.has(name)) {
        defaults.push((FETCH[0], &fetch));
    }
    let fixed = [
        ("queued.max.messages.kbytes", queue.as_str()),
        // It wants a name even when nothing is committed under it.
        ("group.id", properties.group_id.as_deref().unwrap_or("sluice-without-group")),
        ("enable.auto.commit", "false"),
        ("enable.auto.offset.store", "false"),
        // A position that is gone is a failure, never a silent reset.
        ("auto.offset.reset", "error"),
        ("enable.partition.eof", if bounded { "true" } else { "false" }),
        ("allow.auto.create.topics", "false"),
    ];
    create(&properties.to_config(&defaults, &fixed)?, |config| config.create_with_context(ReaderContext::default()))
}

/// What a reader's partitions may hold each, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct PartitionShare {
    /// Of records that wait to be taken: with so much librdkafka asks for no more.
    queue: u64,
    /// Of what a broker answers at once, which comes on top. A record that is larger comes alone.
    fetch: u64,
}

/// How one answer for a partition is bounded, by both names that librdkafka has for it.
const FETCH: [&str; 2] = ["fetch.message.max.bytes", "max.partition.fetch.bytes"];

/// librdkafka's own bound on an answer for one partition.
const LARGEST_FETCH: u64 = 1 << 20;

/// Less would be a request for a handful of records.
const LEAST_SHARE: u64 = 8 << 10;

impl PartitionShare {
    /// Of a budget for all of them.
    fn of(budget: u64, partitions: usize) -> Self {
        let share = budget / u64::try_from(partitions).unwrap_or(u64::MAX).max(1);
        let fetch = (share / 2).clamp(LEAST_SHARE, LARGEST_FETCH);
        Self { queue: share.saturating_sub(fetch).max(LEAST_SHARE), fetch }
    }
}

/// Makes a client; librdkafka says here what it does not like about the properties together.
pub(super) fn create<T>(
    config: &ClientConfig,
    make: impl FnOnce(&ClientConfig) -> KafkaResult<T>,
) -> Result<T, TaskError> {
    make(config).map_err(|error| {
        let reason = match error {
            KafkaError::ClientConfig(_, description, name, _) if !crate::options::is_secret(&name) => {
                format!("property '{name}': {description}")
            }
            KafkaError::ClientConfig(_, _, name, _) => format!("property '{name}' is refused"),
            other => other.to_string(),
        };
        TaskError::BadProgram(format!("the Kafka client cannot be made from the 'properties.*' options: {reason}"))
    })
}

/// Looks things up at the brokers until a deadline.
pub(super) struct Lookup<'a, C: ClientContext> {
    /// The client.
    pub(super) client: &'a Client<C>,
    /// Where it logs.
    pub(super) log: &'a ClientLog,
    /// Whose table.
    pub(super) table: &'a str,
    /// Where the brokers are said to be.
    pub(super) bootstrap_servers: &'a str,
    /// Until when.
    pub(super) deadline: Instant,
}

impl<'a> Lookup<'a, ReaderContext> {
    /// By a source's consumer, for so long from now on.
    pub(super) fn of_source(consumer: &'a Consumer, options: &'a SourceOptions, patience: Duration) -> Self {
        Self {
            client: consumer.client(),
            log: &consumer.context().log,
            table: &options.table,
            bootstrap_servers: options.properties.bootstrap_servers(),
            deadline: Instant::now() + patience,
        }
    }
}

impl<C: ClientContext> Lookup<'_, C> {
    /// The topics to read, with those that a state names: of a pattern those that there are. `serve` as for
    /// [`Lookup::partitions`].
    pub(super) fn topics(
        &self,
        topics: &Topics,
        stored: BTreeSet<String>,
        serve: impl Fn(),
    ) -> Result<BTreeSet<String>, TaskError> {
        if let Topics::Named(named) = topics {
            return Ok(named.iter().cloned().collect());
        }
        loop {
            let answer = self.client.fetch_metadata(None, self.remaining().min(Duration::from_secs(2)));
            serve();
            let problem = match answer {
                Ok(metadata) => {
                    let names = metadata.topics().iter().map(rdkafka::metadata::MetadataTopic::name);
                    return Ok(names.filter(|name| topics.contain(name)).map(str::to_owned).chain(stored).collect());
                }
                Err(error) => error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Unknown),
            };
            self.check_access("the list of topics", problem)?;
            if Instant::now() >= self.deadline {
                return Err(self.unreachable(problem));
            }
            std::thread::sleep(RETRY);
        }
    }

    /// There is nothing to read, and nothing is looked for later.
    pub(super) fn no_match(&self, topics: &Topics) -> TaskError {
        TaskError::Unavailable(format!(
            "table '{}': the Kafka brokers at {} have no such topic (the option {topics}). Create one, correct the pattern, or \
             let new topics be looked for by 'scan.topic-partition-discovery.interval'",
            self.table, self.bootstrap_servers
        ))
    }

    /// The partitions of a topic. `serve` lets the client call back, for only then its errors are known.
    pub(super) fn partitions(&self, topic: &str, serve: impl Fn()) -> Result<Vec<i32>, TaskError> {
        self.find_partitions(topic, serve)?.ok_or_else(|| self.missing(topic))
    }

    /// As [`Lookup::partitions`]; `None` when the brokers said for [`MISSING_GRACE`] that there is no such topic.
    pub(super) fn find_partitions(&self, topic: &str, serve: impl Fn()) -> Result<Option<Vec<i32>>, TaskError> {
        let started = Instant::now();
        loop {
            let answer = self.client.fetch_metadata(Some(topic), self.remaining().min(Duration::from_secs(2)));
            serve();
            let problem = match answer {
                Ok(metadata) => {
                    let found = metadata.topics().iter().find(|found| found.name() == topic);
                    match found.map(|found| (found.error(), found.partitions())) {
                        Some((None, partitions)) if !partitions.is_empty() => {
                            let numbers = partitions.iter().map(rdkafka::metadata::MetadataPartition::id);
                            return Ok(Some(numbers.collect()));
                        }
                        Some((Some(error), _)) => RDKafkaErrorCode::from(error),
                        _ => RDKafkaErrorCode::UnknownTopicOrPartition,
                    }
                }
                Err(error) => error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Unknown),
            };
            self.check_access(&format!("topic '{topic}'"), problem)?;
            let missing = matches!(problem, RDKafkaErrorCode::UnknownTopicOrPartition | RDKafkaErrorCode::UnknownTopic);
            if missing && started.elapsed() >= MISSING_GRACE {
                return Ok(None);
            }
            if Instant::now() >= self.deadline {
                return Err(if missing { self.missing(topic) } else { self.unreachable(problem) });
            }
            std::thread::sleep(RETRY);
        }
    }

    /// The time until the deadline, at least a little.
    pub(super) fn remaining(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now()).max(RETRY)
    }

    /// A request failed for good.
    pub(super) fn failed(&self, what: &str, error: &KafkaError) -> TaskError {
        let code = error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Unknown);
        match self.check_access(what, code) {
            Err(refused) => refused,
            Ok(()) => TaskError::Unavailable(format!(
                "table '{}': the Kafka brokers at {} did not answer the question for {what}: {error}",
                self.table, self.bootstrap_servers
            )),
        }
    }

    fn missing(&self, topic: &str) -> TaskError {
        TaskError::Unavailable(format!(
            "table '{}': topic '{topic}' does not exist on the Kafka brokers at {}. Create it (topics are not created \
             by themselves), or correct the option 'topic'",
            self.table, self.bootstrap_servers
        ))
    }

    fn unreachable(&self, problem: RDKafkaErrorCode) -> TaskError {
        let said = self.log.last_error().map(|(_, text)| format!(" The client says: {text}.")).unwrap_or_default();
        TaskError::Unavailable(format!(
            "table '{}': no Kafka broker could be reached at {} in time ({problem}).{said} Check \
             'properties.bootstrap.servers', the network, and that the brokers run",
            self.table, self.bootstrap_servers,
        ))
    }

    /// Wrong credentials and missing rights do not mend themselves by waiting a little.
    fn check_access(&self, what: &str, problem: RDKafkaErrorCode) -> Result<(), TaskError> {
        use RDKafkaErrorCode::{Authentication, SSL, SaslAuthenticationFailed, TopicAuthorizationFailed};
        if problem == TopicAuthorizationFailed {
            return Err(TaskError::Unavailable(format!(
                "table '{}': the Kafka brokers at {} refuse access to {what}: the principal lacks the right. Grant it, \
                 or use other credentials in 'properties.*'",
                self.table, self.bootstrap_servers
            )));
        }
        match self.log.last_error() {
            Some((Authentication | SaslAuthenticationFailed | SSL, text)) => Err(TaskError::Unavailable(format!(
                "table '{}': the Kafka brokers at {} do not accept the credentials or the certificate: {text}. Check \
                 'properties.security.protocol', 'properties.sasl.*' and 'properties.ssl.*'",
                self.table, self.bootstrap_servers
            ))),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::PartitionShare;

    #[test]
    fn partitions_share_what_a_reader_may_hold() {
        let budget = 16 << 20;
        for partitions in [1, 2, 7, 64, 1000] {
            let PartitionShare { queue, fetch } = PartitionShare::of(budget, partitions);
            let all = (queue + fetch) * partitions as u64;
            assert!(all <= budget && all > budget - budget / 8, "{partitions}: {queue} and {fetch}");
        }
        assert_eq!(PartitionShare::of(budget, 1), PartitionShare { queue: 15 << 20, fetch: 1 << 20 });
        assert_eq!(PartitionShare::of(budget, 0), PartitionShare::of(budget, 1));
        // What is too little to read with is not divided further.
        assert_eq!(PartitionShare::of(budget, 1_000_000), PartitionShare { queue: 8 << 10, fetch: 8 << 10 });
    }
}
