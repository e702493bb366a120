//! One subtask's writer to a topic: at-least-once or without a guarantee, and what the exactly-once one shares with it.
//!
//! The producer is idempotent, so that retries keep the order of a key. Rows that librdkafka has no room for wait in
//! a backlog, and while there is one the sink is not writable. A flush is done when every message was acknowledged;
//! the delivery callback counts them, for librdkafka's own count falls only after the callback, too late to wake the
//! task by.

use super::client::{ClientLog, Lookup, OPEN_TIMEOUT, create};
use super::options::SinkOptions;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::{BaseRecord, DeliveryResult, Producer as _, ProducerContext, ThreadedProducer};
use rdkafka::{ClientContext, Message as _};
use sluice_engine::batch::{Batch, RowKind};
use sluice_engine::error::TaskError;
use sluice_engine::operator::Waker;
use sluice_engine::sink::{AcceptedKinds, DeliveryGuarantee, Sink, SinkContext};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// With more messages than this on their way the sink takes no rows; librdkafka's own limit is above it.
pub(super) const HIGH_WATER: usize = 50_000;

/// So long a writer without a guarantee waits at its end for rows on their way.
const LAST_MOMENT: Duration = Duration::from_secs(2);

/// How often it hands on what waits in the meantime.
const LAST_PAUSE: Duration = Duration::from_millis(20);

/// The task is woken after this many deliveries while it waits for room.
const WAKE_EVERY: usize = 1024;

/// What the producer's thread tells the task.
pub(super) struct Deliveries {
    /// Messages handed to librdkafka and not yet acknowledged.
    pending: AtomicUsize,
    /// The first message that was given up: why, and whether a right is missing.
    failure: Mutex<Option<(String, bool)>>,
    waker: Waker,
}

impl Deliveries {
    pub(super) const fn new(waker: Waker) -> Self {
        Self { pending: AtomicUsize::new(0), failure: Mutex::new(None), waker }
    }

    fn failure(&self) -> Option<(String, bool)> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// What a producer calls back.
pub(super) struct WriterContext {
    pub(super) log: ClientLog,
    deliveries: Arc<Deliveries>,
}

impl WriterContext {
    pub(super) fn new(deliveries: Arc<Deliveries>) -> Self {
        Self { log: ClientLog::default(), deliveries }
    }
}

impl ClientContext for WriterContext {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        self.log.log(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.log.error(&error, reason);
    }

    fn stats_raw(&self, _: &[u8]) {}
}

impl ProducerContext for WriterContext {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, (): ()) {
        let failed = result.as_ref().err();
        if let Some((error, message)) = failed {
            let lacks_right = error.rdkafka_error_code() == Some(RDKafkaErrorCode::TopicAuthorizationFailed);
            let failure = (format!("partition {}: {error}", message.partition()), lacks_right);
            self.deliveries.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(failure);
        }
        // After the failure, so that who sees the count sees the failure.
        let left = self.deliveries.pending.fetch_sub(1, Ordering::AcqRel).saturating_sub(1);
        if left.is_multiple_of(WAKE_EVERY) || failed.is_some() {
            (self.deliveries.waker)();
        }
    }
}

pub(super) type KafkaProducer = ThreadedProducer<WriterContext>;

/// A subtask's writer.
pub(super) struct KafkaWriter {
    options: Arc<SinkOptions>,
    writing: Option<Writing>,
}

/// A producer and what is on its way to it.
pub(super) struct Writing {
    pub(super) producer: KafkaProducer,
    deliveries: Arc<Deliveries>,
    /// Batches that are not wholly handed to librdkafka, each with its next row.
    pub(super) backlog: VecDeque<(Batch, usize)>,
    has_sent: bool,
}

/// Makes the producer of a sink; `fixed` is the sink's own.
pub(super) fn build_producer(
    options: &SinkOptions,
    deliveries: Arc<Deliveries>,
    fixed: &[(&str, &str)],
) -> Result<KafkaProducer, TaskError> {
    let defaults = [
        // A key goes to the partition that the Java client would choose.
        ("partitioner", "murmur2_random"),
        ("queue.buffering.max.kbytes", "65536"),
        ("reconnect.backoff.max.ms", "2000"),
        ("log.connection.close", "false"),
    ];
    let always = [("enable.idempotence", "true"), ("allow.auto.create.topics", "false")];
    let context = WriterContext::new(deliveries);
    let fixed: Vec<_> = always.iter().chain(fixed).copied().collect();
    create(&options.properties.to_config(&defaults, &fixed)?, |config| config.create_with_context(context))
}

impl KafkaWriter {
    pub(super) const fn new(options: Arc<SinkOptions>) -> Self {
        Self { options, writing: None }
    }

    fn writing(&mut self) -> Result<&mut Writing, TaskError> {
        self.writing
            .as_mut()
            .ok_or_else(|| TaskError::Internal("a Kafka sink was used before it was opened".to_owned()))
    }
}

impl Writing {
    pub(super) const fn new(producer: KafkaProducer, deliveries: Arc<Deliveries>) -> Self {
        Self { producer, deliveries, backlog: VecDeque::new(), has_sent: false }
    }

    /// As if nothing had been sent.
    pub(super) fn anew(self) -> Self {
        Self { has_sent: false, ..self }
    }

    /// Messages on their way.
    pub(super) fn pending(&self) -> usize {
        self.deliveries.pending.load(Ordering::Acquire)
    }

    /// Whether any message was handed to the producer.
    pub(super) const fn has_sent(&self) -> bool {
        self.has_sent
    }

    /// Hands on what waits and fails when a message was given up.
    pub(super) fn advance(&mut self, options: &SinkOptions) -> Result<(), TaskError> {
        // Why the first message was given up says more than what its producer, which that may have ended, says of the next.
        let pushed = self.push_on(options);
        self.check_deliveries(options)?;
        pushed
    }

    fn check_deliveries(&self, options: &SinkOptions) -> Result<(), TaskError> {
        let Some((failure, lacks_right)) = self.deliveries.failure() else { return Ok(()) };
        let SinkOptions { table, topic, .. } = options;
        let message = format!(
            "table '{table}': rows could not be written to topic '{topic}': {failure}. The job restarts from its last \
             checkpoint and writes them again"
        );
        if lacks_right {
            return Err(TaskError::Unavailable(format!("{message}. Grant the principal WRITE on topic '{topic}'")));
        }
        Err(TaskError::External(message))
    }

    /// Hands on what waits, and waits for what is on its way, until a deadline. Says how many rows have not arrived by then.
    fn let_arrive(&mut self, options: &SinkOptions, within: Duration) -> usize {
        let deadline = Instant::now() + within;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let has_failed = self.push_on(options).is_err();
            // Sends at once what lingers; that it is not through yet is seen by the count.
            let _ = self.producer.flush(left.min(LAST_PAUSE));
            let missing = self.pending() + self.backlog.iter().map(|(batch, next)| batch.len() - next).sum::<usize>();
            if missing == 0 || has_failed || left.is_zero() {
                return missing;
            }
        }
    }

    /// Whether all that was written has arrived.
    pub(super) fn has_arrived(&mut self, options: &SinkOptions) -> Result<bool, TaskError> {
        self.advance(options)?;
        let arrived = self.backlog.is_empty() && self.pending() == 0;
        if arrived {
            // A failure may have come between the look at it and the look at the count.
            self.advance(options)?;
        }
        Ok(arrived)
    }

    fn push_on(&mut self, options: &SinkOptions) -> Result<(), TaskError> {
        while let Some((batch, row)) = self.backlog.front_mut() {
            if !send_rows(&self.producer, &self.deliveries, options, batch, row, &mut self.has_sent)? {
                // librdkafka gives room back only after the callback of the last message, which has woken the task
                // already; no other delivery will.
                if self.deliveries.pending.load(Ordering::Acquire) == 0 {
                    (self.deliveries.waker)();
                }
                break;
            }
            self.backlog.pop_front();
        }
        Ok(())
    }
}

/// Sends the rows of a batch from `next` on; whether all found room.
fn send_rows(
    producer: &KafkaProducer,
    deliveries: &Deliveries,
    options: &SinkOptions,
    batch: &Batch,
    next: &mut usize,
    has_sent: &mut bool,
) -> Result<bool, TaskError> {
    let unsupported = |data_type: arrow::datatypes::DataType| {
        TaskError::Internal(format!("table '{}': a column of type {data_type} cannot be written", options.table))
    };
    let keys = options.key.as_ref().map(|key| key.bind(&batch.rows).map_err(unsupported)).transpose()?;
    let values = options.value.bind(&batch.rows).map_err(unsupported)?;
    let metadata = options.metadata.bind(&batch.rows);
    let metadata = metadata.map_err(|error| TaskError::Internal(format!("table '{}': {error}", options.table)))?;
    let (mut key, mut value) = (Vec::new(), Vec::new());
    while *next < batch.len() {
        let row = *next;
        let kind = batch.kinds.as_ref().and_then(|kinds| RowKind::from_number(kinds.value(row)));
        key.clear();
        value.clear();
        let mut record = BaseRecord::<[u8], [u8]>::to(&options.topic);
        let kind = kind.unwrap_or(RowKind::Insert);
        match (kind, options.kinds) {
            // The new value of the key follows and takes the old one's place.
            (RowKind::UpdateBefore, AcceptedKinds::Upsert) => {
                *next += 1;
                continue;
            }
            (RowKind::Delete, AcceptedKinds::Upsert) => {}
            (RowKind::Insert, _) | (RowKind::UpdateAfter, AcceptedKinds::Upsert) | (_, AcceptedKinds::All) => {
                if values.write(row, kind, &mut value) {
                    record = record.payload(&value);
                }
            }
            (other, AcceptedKinds::InsertOnly) => return Err(not_appended(options, other)),
        }
        if let Some(keys) = &keys
            && keys.write(row, RowKind::Insert, &mut key)
        {
            record = record.key(&key);
        }
        let record = metadata.add(row, record);
        deliveries.pending.fetch_add(1, Ordering::AcqRel);
        if let Err((error, _)) = producer.send(record) {
            deliveries.pending.fetch_sub(1, Ordering::AcqRel);
            if error.rdkafka_error_code() == Some(RDKafkaErrorCode::QueueFull) {
                return Ok(false);
            }
            return Err(TaskError::External(format!(
                "table '{}': a row could not be written to topic '{}': {error}",
                options.table, options.topic
            )));
        }
        *has_sent = true;
        *next += 1;
    }
    Ok(true)
}

fn not_appended(options: &SinkOptions, kind: RowKind) -> TaskError {
    TaskError::Internal(format!(
        "table '{}': a row of kind {} came to a sink that only appends",
        options.table,
        kind.short()
    ))
}

impl Sink for KafkaWriter {
    fn open(&mut self, context: SinkContext) -> Result<(), TaskError> {
        let deliveries = Arc::new(Deliveries::new(context.waker));
        let producer = build_producer(&self.options, Arc::clone(&deliveries), &[])?;
        let lookup = Lookup {
            client: producer.client(),
            log: &producer.context().log,
            table: &self.options.table,
            bootstrap_servers: self.options.properties.bootstrap_servers(),
            deadline: Instant::now() + OPEN_TIMEOUT,
        };
        // The producer's own thread serves its callbacks.
        lookup.partitions(&self.options.topic, || ())?;
        self.writing = Some(Writing::new(producer, deliveries));
        Ok(())
    }

    fn write(&mut self, batch: Batch) -> Result<(), TaskError> {
        let options = Arc::clone(&self.options);
        let writing = self.writing()?;
        writing.backlog.push_back((batch, 0));
        writing.advance(&options)
    }

    fn is_writable(&mut self) -> Result<bool, TaskError> {
        let options = Arc::clone(&self.options);
        let writing = self.writing()?;
        writing.advance(&options)?;
        Ok(writing.backlog.is_empty() && writing.pending() < HIGH_WATER)
    }

    /// Without a guarantee no checkpoint waits for the brokers; that a row was given up is told all the same.
    fn flush(&mut self) -> Result<bool, TaskError> {
        if self.options.guarantee != DeliveryGuarantee::None {
            return self.finish();
        }
        let options = Arc::clone(&self.options);
        self.writing()?.advance(&options).map(|()| true)
    }

    fn finish(&mut self) -> Result<bool, TaskError> {
        let options = Arc::clone(&self.options);
        self.writing()?.has_arrived(&options)
    }
}

impl Drop for KafkaWriter {
    /// A job that is stopped has taken its last checkpoint without waiting: what is on its way gets a moment, and what has
    /// not arrived then is counted.
    fn drop(&mut self) {
        let Self { options, writing } = self;
        let is_unsure = options.guarantee == DeliveryGuarantee::None;
        let Some(writing) = writing.as_mut().filter(|_| is_unsure) else { return };
        let missing = writing.let_arrive(options, LAST_MOMENT);
        if missing > 0 {
            let SinkOptions { table, topic, .. } = &**options;
            tracing::warn!(
                table,
                topic,
                rows = missing,
                "table '{table}' is written without a delivery guarantee, and {missing} rows had not arrived in topic '{topic}' \
                 {LAST_MOMENT:?} after the end of their task: they may be lost"
            );
        }
    }
}
