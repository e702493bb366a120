//! The splits that a subtask begins with: where its state stands, and what there is beside it. Only looks; the source reads.
//!
//! A topic that is named must exist. One that a pattern matched may be deleted, and its positions go with it: whatever
//! they are, its records are gone.

use super::client::{Consumer, Lookup, OPEN_TIMEOUT, ReaderContext};
use super::offset_options::Startup;
use super::offsets::{Offsets, out_of_range};
use super::options::SourceOptions;
use super::source::serve_events;
use super::split::{NewSplit, SplitPosition, owner};
use sluice_engine::error::TaskError;
use sluice_engine::operator::{OperatorContext, RestoredState};
use std::time::Duration;

/// A look at the brokers when a source opens.
pub(super) struct Beginning<'a> {
    pub(super) options: &'a SourceOptions,
    pub(super) consumer: &'a Consumer,
    pub(super) operator: &'a OperatorContext,
}

impl<'a> Beginning<'a> {
    fn lookup(&self) -> Lookup<'a, ReaderContext> {
        Lookup::of_source(self.consumer, self.options, OPEN_TIMEOUT)
    }

    /// All splits of this subtask with their positions.
    pub(super) fn splits(&self, state: &RestoredState) -> Result<Vec<NewSplit>, TaskError> {
        let lookup = self.lookup();
        let mut restored = state.splits.iter().map(SplitPosition::from_state).collect::<Result<Vec<_>, _>>()?;
        self.check_topics(&restored)?;
        let stored = restored.iter().map(|split| split.topic.clone()).collect();
        let topics = lookup.topics(&self.options.topics, stored, || serve_events(self.consumer))?;
        let mut splits = Vec::new();
        let mut found = 0;
        for topic in &topics {
            if let Some(partitions) = self.partitions(&lookup, topic, &restored)? {
                self.check_partitions(topic, &partitions, &restored)?;
                self.add_splits(&lookup, (topic, partitions), state.restored, &mut restored, &mut splits)?;
                found += 1;
            }
        }
        match self.options.discovery {
            None if found == 0 => Err(lookup.no_match(&self.options.topics)),
            Some(interval) if found == 0 => {
                self.warn_of_nothing(interval);
                Ok(splits)
            }
            _ => Ok(splits),
        }
    }

    /// None of a topic of a pattern that is deleted.
    fn partitions(
        &self,
        lookup: &Lookup<'_, ReaderContext>,
        topic: &str,
        restored: &[SplitPosition],
    ) -> Result<Option<Vec<i32>>, TaskError> {
        let serve = || serve_events(self.consumer);
        if !self.options.topics.is_pattern() {
            return lookup.partitions(topic, serve).map(Some);
        }
        // With a deadline of its own: several may be gone, and each is asked for until that is sure.
        let partitions = self.lookup().find_partitions(topic, serve)?;
        if partitions.is_none() {
            for SplitPosition { topic, partition, offset, .. } in restored.iter().filter(|split| split.topic == topic) {
                tracing::warn!(
                    table = self.options.table,
                    topic,
                    partition,
                    offset,
                    "the topic does not exist any more: its position is dropped, and the source goes on without it"
                );
            }
        }
        Ok(partitions)
    }

    fn add_splits(
        &self,
        lookup: &Lookup<'_, ReaderContext>,
        (topic, partitions): (&str, Vec<i32>),
        is_restore: bool,
        restored: &mut Vec<SplitPosition>,
        splits: &mut Vec<NewSplit>,
    ) -> Result<(), TaskError> {
        let offsets = Offsets { consumer: self.consumer, options: self.options, lookup };
        for partition in partitions {
            if owner(topic, partition, self.operator.parallelism) != self.operator.subtask {
                continue;
            }
            let known = restored.iter().position(|split| split.topic == topic && split.partition == partition);
            if let Some(known) = known {
                splits.push(offsets.restored(restored.swap_remove(known))?);
            } else if !is_restore {
                splits.push(offsets.start(topic, partition, &self.options.startup)?);
            } else if self.options.bounded.is_none() {
                // Made since the checkpoint. A bounded source ends with the partitions that it began with.
                splits.push(offsets.start(topic, partition, &Startup::Earliest)?);
            }
        }
        Ok(())
    }

    /// A pattern that is mistyped looks like one whose topics have not come yet.
    fn warn_of_nothing(&self, interval: Duration) {
        tracing::warn!(
            table = self.options.table,
            "no topic matches (the option {}): nothing is read. It is looked for again every {interval:?}, and what comes \
             is read from its beginning",
            self.options.topics
        );
    }

    fn check_topics(&self, restored: &[SplitPosition]) -> Result<(), TaskError> {
        match restored.iter().find(|split| !self.options.topics.contain(&split.topic)) {
            None => Ok(()),
            Some(split) => Err(TaskError::IncompatibleState(format!(
                "the state holds a position in topic '{}', which table '{}' does not read any more (its option {}). \
                 Give the source another uid to start anew, or restore without its state",
                split.topic, self.options.table, self.options.topics
            ))),
        }
    }

    fn check_partitions(&self, topic: &str, found: &[i32], restored: &[SplitPosition]) -> Result<(), TaskError> {
        match restored.iter().find(|split| split.topic == topic && !found.contains(&split.partition)) {
            None => Ok(()),
            Some(split) => Err(out_of_range(&self.options.table, split, &format!("it does not exist: {found:?} do"))),
        }
    }
}
