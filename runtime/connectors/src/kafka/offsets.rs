//! Where splits start and stop: from options, from committed offsets, from restored positions. Asked once, when the
//! source opens, so that a checkpoint before the first record already holds exact offsets.

use super::client::{Consumer, Lookup, ReaderContext};
use super::offset_options::{Startup, Stop};
use super::options::SourceOptions;
use super::properties::AutoOffsetReset;
use super::split::{NewSplit, SplitPosition};
use rdkafka::consumer::Consumer as _;
use rdkafka::{Offset, TopicPartitionList};
use sluice_engine::error::TaskError;

/// Asks for offsets.
pub(super) struct Offsets<'a> {
    pub(super) consumer: &'a Consumer,
    pub(super) options: &'a SourceOptions,
    pub(super) lookup: &'a Lookup<'a, ReaderContext>,
}

impl Offsets<'_> {
    /// The position of a partition that has no state.
    pub(super) fn start(&self, topic: &str, partition: i32, startup: &Startup) -> Result<NewSplit, TaskError> {
        let (earliest, latest) = self.bounds(topic, partition)?;
        let offset = match startup {
            Startup::Earliest => earliest,
            Startup::Latest => latest,
            Startup::Timestamp(millis) => self.at_time(topic, partition, *millis)?.unwrap_or(latest),
            Startup::GroupOffsets => match self.committed(topic, partition)? {
                Some(committed) => committed,
                None => self.reset(topic, partition, earliest, latest)?,
            },
            Startup::SpecificOffsets(offsets) => match offsets.get(&partition) {
                Some(offset) => *offset,
                None if self.options.properties.group_id.is_some() => {
                    self.committed(topic, partition)?.unwrap_or(earliest)
                }
                None => earliest,
            },
        };
        if offset < earliest || offset > latest {
            return Err(TaskError::BadProgram(format!(
                "table '{}': {} is to be read from offset {offset}, but it holds offsets {earliest} to {latest}. \
                 Choose an offset within, or another 'scan.startup.mode'",
                self.options.table,
                place(topic, partition)
            )));
        }
        let end = self.stop(topic, partition, latest)?;
        Ok(NewSplit { position: SplitPosition { topic: topic.to_owned(), partition, offset, end }, latest })
    }

    /// A restored position, if it can still be read from.
    pub(super) fn restored(&self, position: SplitPosition) -> Result<NewSplit, TaskError> {
        if position.is_finished() {
            return Ok(NewSplit { latest: position.offset, position });
        }
        let (earliest, latest) = self.bounds(&position.topic, position.partition)?;
        if (earliest..=latest).contains(&position.offset) {
            return Ok(NewSplit { position, latest });
        }
        Err(out_of_range(&self.options.table, &position, &format!("it holds offsets {earliest} to {latest}")))
    }

    /// The oldest offset and the one after the newest.
    fn bounds(&self, topic: &str, partition: i32) -> Result<(i64, i64), TaskError> {
        self.consumer
            .fetch_watermarks(topic, partition, self.lookup.remaining())
            .map_err(|error| self.lookup.failed(&format!("the offsets of {}", place(topic, partition)), &error))
    }

    fn stop(&self, topic: &str, partition: i32, latest: i64) -> Result<Option<i64>, TaskError> {
        Ok(match &self.options.bounded {
            None => None,
            Some(Stop::Latest) => Some(latest),
            Some(Stop::Timestamp(millis)) => Some(self.at_time(topic, partition, *millis)?.unwrap_or(latest)),
            Some(Stop::SpecificOffsets(offsets)) => offsets.get(&partition).copied(),
            Some(Stop::GroupOffsets) => match self.committed(topic, partition)? {
                Some(committed) => Some(committed),
                None => {
                    return Err(TaskError::BadProgram(format!(
                        "table '{}': 'scan.bounded.mode' is 'group-offsets', but group '{}' has committed no offset \
                         for {}. Choose another mode such as 'latest-offset'",
                        self.options.table,
                        self.group(),
                        place(topic, partition)
                    )));
                }
            },
        })
    }

    fn group(&self) -> &str {
        self.options.properties.group_id.as_deref().unwrap_or_default()
    }

    fn committed(&self, topic: &str, partition: i32) -> Result<Option<i64>, TaskError> {
        let mut question = TopicPartitionList::new();
        question.add_partition(topic, partition);
        let what = || format!("the offset of group '{}' in {}", self.group(), place(topic, partition));
        let answer = self
            .consumer
            .committed_offsets(question, self.lookup.remaining())
            .and_then(|answer| first_offset(&answer))
            .map_err(|error| self.lookup.failed(&what(), &error))?;
        Ok(match answer {
            Some(Offset::Offset(offset)) => Some(offset),
            _ => None,
        })
    }

    fn reset(&self, topic: &str, partition: i32, earliest: i64, latest: i64) -> Result<i64, TaskError> {
        match self.options.properties.auto_offset_reset {
            AutoOffsetReset::Earliest => Ok(earliest),
            AutoOffsetReset::Latest => Ok(latest),
            AutoOffsetReset::None => Err(TaskError::BadProgram(format!(
                "table '{}': group '{}' has committed no offset for {}, and 'scan.startup.mode' is 'group-offsets'. \
                 Set 'properties.auto.offset.reset' to 'earliest' or 'latest', or choose another mode such as \
                 'scan.startup.mode' = 'earliest-offset'",
                self.options.table,
                self.group(),
                place(topic, partition)
            ))),
        }
    }

    /// The first offset with this timestamp or a later one.
    fn at_time(&self, topic: &str, partition: i32, millis: i64) -> Result<Option<i64>, TaskError> {
        let mut question = TopicPartitionList::new();
        let answer = question
            .add_partition_offset(topic, partition, Offset::Offset(millis))
            .and_then(|()| self.consumer.offsets_for_times(question, self.lookup.remaining()))
            .and_then(|answer| first_offset(&answer))
            .map_err(|error| {
                self.lookup.failed(&format!("the offset at time {millis} of {}", place(topic, partition)), &error)
            })?;
        Ok(match answer {
            Some(Offset::Offset(offset)) => Some(offset),
            _ => None,
        })
    }
}

/// The offset of the only element, or its error.
fn first_offset(list: &TopicPartitionList) -> rdkafka::error::KafkaResult<Option<Offset>> {
    list.elements().first().map(|element| element.error().map(|()| element.offset())).transpose()
}

/// A partition in messages.
pub(super) fn place(topic: &str, partition: i32) -> String {
    format!("partition {partition} of topic '{topic}'")
}

/// A position that the brokers no longer have, or do not have yet.
pub(super) fn out_of_range(table: &str, position: &SplitPosition, held: &str) -> TaskError {
    TaskError::IncompatibleState(format!(
        "table '{table}': {} is to be read on from offset {}, but {held}. Records were deleted (retention) or the \
         topic was made anew, so going on would lose or repeat rows. Restore an older or newer checkpoint whose \
         offsets are still there, or start without state and choose 'scan.startup.mode'",
        place(&position.topic, position.partition),
        position.offset
    ))
}
