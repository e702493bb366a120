//! One subtask's reader of topics.
//!
//! Each split has a queue of its own in librdkafka, so that splits are read in turn and the end of one is known as
//! its own. A poll takes what is there and never waits; librdkafka calls the task's waker when a queue that was empty
//! has something. Brokers that go away while the source runs are no failure: librdkafka connects again by itself.

use super::beginning::Beginning;
use super::client::{Consumer, ReaderContext, build_consumer};
use super::discovery::{Discovery, DiscoveryTask};
use super::offsets::{out_of_range, place};
use super::options::SourceOptions;
use super::rows::{BadRecord, NoRows, ReadRows, RowReader, What};
use super::split::{NewSplit, SplitPosition};
use crate::format::{BadMessage, MAX_MESSAGES};
use rdkafka::consumer::base_consumer::PartitionQueue;
use rdkafka::consumer::{CommitMode, Consumer as _};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::{Message as _, Offset, TopicPartitionList};
use sluice_engine::error::TaskError;
use sluice_engine::operator::{RestoredState, Waker};
use sluice_engine::source::{Source, SourceContext, SourcePoll, SplitChange, SplitLag};
use sluice_protocol::CheckpointId;
use sluice_protocol::state::SplitState;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// Events of the client itself (logs, errors, answers to commits) that one poll serves.
const EVENTS_PER_POLL: usize = 8;

/// A subtask's reader.
pub(super) struct KafkaReader {
    options: Arc<SourceOptions>,
    rows: RowReader,
    /// Records that were passed over.
    malformed: u64,
    reading: Option<Reading>,
}

/// What an open reader has.
struct Reading {
    waker: Waker,
    splits: Vec<Split>,
    /// Whether a poll takes rows of one split only.
    by_split: bool,
    /// The split of the last poll.
    polled: Option<usize>,
    /// The split to begin the next poll with.
    turn: usize,
    /// Offsets of the last snapshot, to be committed for others to see.
    snapshot: Option<TopicPartitionList>,
    discovery: Option<Discovery>,
    consumer: Arc<Consumer>,
}

/// A partition that is read.
struct Split {
    position: SplitPosition,
    queue: PartitionQueue<ReaderContext>,
    /// The end of the partition, as asked for before the record or the end that is read next came.
    latest: i64,
    finished: bool,
    /// Nothing is taken of it: its queue fills, then librdkafka fetches no more of it.
    held: bool,
    name: String,
    /// What was told of it for its watermark: that it is read, that it is read to its end.
    told: (bool, bool),
}

impl KafkaReader {
    pub(super) const fn new(options: Arc<SourceOptions>, rows: RowReader) -> Self {
        Self { options, rows, malformed: 0, reading: None }
    }

    /// A consumer, and the splits that it begins with. How much it may hold of each is settled when it is made, so that of
    /// several a second one reads, with a share for each.
    fn begin(&self, context: &SourceContext, state: &RestoredState) -> Result<(Consumer, Vec<NewSplit>), TaskError> {
        let bounded = self.options.bounded.is_some();
        let consumer = build_consumer(&self.options.properties, bounded, 1)?;
        let beginning = Beginning { options: &self.options, consumer: &consumer, operator: &context.operator };
        let splits = beginning.splits(state)?;
        let consumer = match splits.len() {
            0 | 1 => consumer,
            partitions => build_consumer(&self.options.properties, bounded, partitions)?,
        };
        Ok((consumer, splits))
    }

    /// What a message that cannot be read says.
    fn bad_message(&self, splits: &[Split], BadRecord { message: bad, what }: &BadRecord) -> TaskError {
        let (split, offset) = bad.place;
        let (format, prefix) = match &self.options.key {
            Some(key) if matches!(what, What::Key | What::NoKey) => (&key.format, "key."),
            _ => (&self.options.value, self.options.value_prefix),
        };
        let whose = splits
            .get(split as usize)
            .map(|split| place(&split.position.topic, split.position.partition))
            .unwrap_or_default();
        let record = format!("the record at offset {offset} of {whose}");
        let (name, reason, excerpt) = (format.name().text(), &bad.reason, bad.excerpt());
        let said = match what {
            What::Value => format!("the value of {record} cannot be read as {name}: {reason}. It begins: {excerpt}"),
            What::Key => format!("the key of {record} cannot be read as {name}: {reason}. It begins: {excerpt}"),
            What::NoKey | What::NoMetadata => format!("{record} is no row: {reason}. Its value begins: {excerpt}"),
        };
        TaskError::BadData(format!("table '{}': {said}. {}", self.options.table, format.advice(prefix)))
    }
}

/// Lets the client call back.
pub(super) fn serve_events(consumer: &Consumer) {
    for _ in 0..EVENTS_PER_POLL {
        // Records have queues of their own; here only events come, and their callbacks have run when it returns.
        let _ = consumer.poll(Duration::ZERO);
    }
}

impl Reading {
    /// `events-0@42`: topic, partition and offset of a record.
    fn place(&self, (split, offset): (u32, i64)) -> String {
        let split = self.splits.get(split as usize).map(|split| split.position.name());
        format!("{}@{offset}", split.unwrap_or_default())
    }

    /// Starts to read splits.
    fn assign(&mut self, table: &str, splits: Vec<NewSplit>) -> Result<(), TaskError> {
        let internal = |error: String| TaskError::External(format!("table '{table}': {error}"));
        let mut assignment = TopicPartitionList::with_capacity(splits.len());
        for NewSplit { position, latest } in splits {
            let finished = position.is_finished();
            // Before it is assigned, so that no record of it goes to the common queue.
            let queue = self.consumer.split_partition_queue(&position.topic, position.partition);
            let mut queue = queue
                .ok_or_else(|| internal(format!("no queue for {}", place(&position.topic, position.partition))))?;
            let waker = self.waker.clone();
            queue.set_nonempty_callback(move || waker());
            if !finished {
                assignment
                    .add_partition_offset(&position.topic, position.partition, Offset::Offset(position.offset))
                    .map_err(|error| internal(error.to_string()))?;
            }
            let name = position.name();
            self.splits.push(Split { position, queue, latest, finished, held: false, name, told: (false, false) });
        }
        if assignment.count() > 0 {
            self.consumer.incremental_assign(&assignment).map_err(|error| internal(error.to_string()))?;
        }
        Ok(())
    }

    fn assign_found(&mut self, table: &str) -> Result<(), TaskError> {
        while let Some(split) = self.discovery.as_ref().and_then(Discovery::next) {
            self.assign(table, vec![split])?;
        }
        Ok(())
    }

    /// Takes up to `max` messages, split by split; how many there were, with those that hold no row.
    fn take(&mut self, options: &SourceOptions, rows: &mut RowReader, max: usize) -> Result<usize, TaskError> {
        let mut taken = 0;
        let count = self.splits.len();
        self.polled = None;
        for step in 0..count {
            let index = (self.turn + step) % count;
            let number = u32::try_from(index).unwrap_or(u32::MAX);
            let before = taken;
            taken += self.splits[index].take(options, number, &self.consumer, rows, max - taken)?;
            if taken > before {
                self.polled = Some(index);
            }
            if taken >= max || (self.by_split && taken > 0) {
                // The others come first next time.
                self.turn = (index + 1) % count;
                break;
            }
        }
        Ok(taken)
    }
}

impl Split {
    fn take(
        &mut self,
        options: &SourceOptions,
        number: u32,
        consumer: &Consumer,
        rows: &mut RowReader,
        max: usize,
    ) -> Result<usize, TaskError> {
        let mut taken = 0;
        while taken < max && !self.finished && !self.held {
            match self.queue.poll(Duration::ZERO) {
                None => break,
                Some(Ok(message)) => {
                    let offset = message.offset();
                    if offset < self.position.offset {
                        continue;
                    }
                    if self.position.end.is_some_and(|end| offset >= end) {
                        self.finish();
                        break;
                    }
                    taken += 1;
                    rows.push((number, offset), &message);
                    self.position.offset = offset + 1;
                    self.finished = self.position.is_finished();
                }
                Some(Err(KafkaError::PartitionEOF(_))) => self.reached_latest(consumer),
                Some(Err(error)) => self.check(options, &error)?,
            }
        }
        Ok(taken)
    }

    /// The end of the partition was reached. Offsets without records (of transactions, of compaction) may lie before
    /// the split's own end, so that the position never gets there; but everything was passed that lay before the
    /// partition's end when that was asked for, if it was asked for before this event was made.
    fn reached_latest(&mut self, consumer: &Consumer) {
        let Some(end) = self.position.end else { return };
        if self.latest >= end {
            self.finish();
            return;
        }
        let SplitPosition { topic, partition, offset, .. } = &self.position;
        let asked = consumer.fetch_watermarks(topic, *partition, Duration::from_secs(1)).and_then(|(_, latest)| {
            self.latest = latest;
            if latest < end {
                return Ok(());
            }
            // Something came meanwhile. Seeking drops what is queued, so the next event is made after the question.
            consumer.seek(topic, *partition, Offset::Offset(*offset), Duration::ZERO)
        });
        if let Err(error) = asked {
            tracing::info!(%error, split = self.position.name(), "the end could not be asked for");
        }
    }

    fn finish(&mut self) {
        self.finished = true;
        if let Some(end) = self.position.end {
            self.position.offset = self.position.offset.max(end);
        }
    }

    /// Which errors end the task; all others librdkafka overcomes by itself.
    fn check(&self, options: &SourceOptions, error: &KafkaError) -> Result<(), TaskError> {
        use RDKafkaErrorCode::{
            AutoOffsetReset, BadCompression, BadMessage, Fatal, InvalidMessage, OffsetOutOfRange,
            TopicAuthorizationFailed, UnknownPartition, UnknownTopic, UnknownTopicOrPartition,
        };
        let whose = place(&self.position.topic, self.position.partition);
        let table = &options.table;
        match error.rdkafka_error_code() {
            Some(OffsetOutOfRange | AutoOffsetReset) => {
                Err(out_of_range(table, &self.position, "the brokers do not have that offset (any more)"))
            }
            Some(UnknownTopicOrPartition | UnknownTopic | UnknownPartition) if options.topics.is_pattern() => {
                Err(TaskError::Unavailable(format!(
                    "table '{table}': {whose} does not exist any more. If its topic was deleted, the source begins again \
                     without it"
                )))
            }
            Some(UnknownTopicOrPartition | UnknownTopic | UnknownPartition) => Err(TaskError::Unavailable(format!(
                "table '{table}': {whose} does not exist any more. Was the topic deleted? Create it, and mind that a \
                 new topic holds none of the old records"
            ))),
            Some(TopicAuthorizationFailed) => Err(TaskError::Unavailable(format!(
                "table '{table}': the Kafka brokers refuse to let {whose} be read: the principal lacks the right"
            ))),
            Some(BadMessage | BadCompression | InvalidMessage | Fatal) => Err(TaskError::External(format!(
                "table '{table}': {whose} cannot be read at offset {}: {error}",
                self.position.offset
            ))),
            _ if matches!(error, KafkaError::MessageConsumptionFatal(_)) => {
                Err(TaskError::External(format!("table '{table}': the Kafka client failed for good: {error}")))
            }
            _ => {
                tracing::info!(%error, split = self.position.name(), "reading is interrupted; the client goes on by itself");
                Ok(())
            }
        }
    }
}

impl Source for KafkaReader {
    fn open(&mut self, context: SourceContext, state: RestoredState) -> Result<(), TaskError> {
        let (mut consumer, splits) = self.begin(&context, &state)?;
        let waker = context.waker.clone();
        consumer.set_nonempty_callback(move || waker());
        let consumer = Arc::new(consumer);
        let discovery = self
            .options
            .discovery
            .map(|interval| {
                let known: BTreeSet<_> =
                    splits.iter().map(|split| (split.position.topic.clone(), split.position.partition)).collect();
                let task = DiscoveryTask {
                    consumer: consumer.clone(),
                    options: self.options.clone(),
                    subtask: context.operator.subtask,
                    parallelism: context.operator.parallelism,
                    known,
                    waker: context.waker.clone(),
                };
                Discovery::start(task, interval)
            })
            .transpose()
            .map_err(|error| {
                TaskError::External(format!("the thread that looks for partitions cannot start: {error}"))
            })?;
        let mut reading = Reading {
            waker: context.waker,
            splits: Vec::new(),
            by_split: context.by_split,
            polled: None,
            turn: 0,
            snapshot: None,
            discovery,
            consumer,
        };
        reading.assign(&self.options.table, splits)?;
        self.reading = Some(reading);
        Ok(())
    }

    fn poll(&mut self, max_rows: usize) -> Result<SourcePoll, TaskError> {
        let Some(reading) = &mut self.reading else {
            return Err(TaskError::Internal("a Kafka source was polled before it was opened".to_owned()));
        };
        serve_events(&reading.consumer);
        reading.assign_found(&self.options.table)?;
        let taken = reading.take(&self.options, &mut self.rows, max_rows.clamp(1, MAX_MESSAGES))?;
        match self.rows.finish() {
            Ok(ReadRows { batch, bad }) => {
                self.malformed += bad.len() as u64;
                let named = |bad: BadMessage| (reading.place(bad.place), bad);
                let bad: Vec<_> = bad.into_iter().map(named).collect();
                let joined = self.options.dead_letters.join(batch, &bad);
                let joined = joined.map_err(|error| TaskError::Internal(format!("dead letters: {error}")))?;
                if let Some(batch) = joined {
                    return Ok(SourcePoll::Batch(batch));
                }
            }
            Err(NoRows::Internal(error)) => {
                return Err(TaskError::Internal(format!("rows of table '{}': {error}", self.options.table)));
            }
            Err(NoRows::Bad(bad)) => {
                let splits = self.reading.as_ref().map(|reading| reading.splits.as_slice()).unwrap_or_default();
                return Err(self.bad_message(splits, &bad));
            }
        }
        if self.options.bounded.is_some() && reading.splits.iter().all(|split| split.finished) {
            return Ok(SourcePoll::Finished);
        }
        if taken > 0 {
            // Messages without rows were passed over; there may be more.
            (reading.waker)();
        }
        Ok(SourcePoll::Pending)
    }

    fn hold_splits(&mut self, held: &[&str]) -> bool {
        for split in self.reading.iter_mut().flat_map(|reading| &mut reading.splits) {
            split.held = held.contains(&split.name.as_str());
        }
        true
    }

    fn snapshot(&mut self) -> Result<Vec<SplitState>, TaskError> {
        let Some(reading) = &mut self.reading else { return Ok(Vec::new()) };
        let mut offsets = TopicPartitionList::with_capacity(reading.splits.len());
        let mut states = Vec::with_capacity(reading.splits.len());
        for Split { position, .. } in &reading.splits {
            states.push(position.to_state()?);
            offsets
                .add_partition_offset(&position.topic, position.partition, Offset::Offset(position.offset))
                .map_err(|error| TaskError::Internal(format!("an offset cannot be noted: {error}")))?;
        }
        let properties = &self.options.properties;
        let shown = properties.group_id.is_some() && properties.commit_on_checkpoint && !states.is_empty();
        reading.snapshot = shown.then_some(offsets);
        Ok(states)
    }

    fn malformed_records(&self) -> u64 {
        self.malformed
    }

    fn take_split_changes(&mut self) -> Option<Vec<SplitChange>> {
        let mut changes = Vec::new();
        for split in self.reading.iter_mut().flat_map(|reading| &mut reading.splits) {
            if !std::mem::replace(&mut split.told.0, true) {
                changes.push(SplitChange::Added { split: split.name.clone(), may_idle: true });
            }
            if split.finished && !std::mem::replace(&mut split.told.1, true) {
                changes.push(SplitChange::Finished { split: split.name.clone() });
            }
        }
        Some(changes)
    }

    fn polled_split(&self) -> Option<&str> {
        let reading = self.reading.as_ref()?;
        reading.splits.get(reading.polled?).map(|split| split.name.as_str())
    }

    fn lag(&self) -> Vec<SplitLag> {
        let Some(reading) = &self.reading else { return Vec::new() };
        let context = reading.consumer.context();
        let splits = reading.splits.iter().filter_map(|Split { name, position, .. }| {
            let end = context.end_of(&position.topic, position.partition)?;
            let records = u64::try_from(end.saturating_sub(position.offset)).unwrap_or(0);
            Some(SplitLag { split: name.clone(), records })
        });
        splits.collect()
    }

    fn checkpoint_completed(&mut self, _: CheckpointId) {
        let Some(reading) = &mut self.reading else { return };
        let Some(offsets) = reading.snapshot.take() else { return };
        if let Err(error) = reading.consumer.commit(&offsets, CommitMode::Async) {
            tracing::warn!(%error, "offsets could not be committed to the consumer group; the job does not need them");
        }
    }
}
