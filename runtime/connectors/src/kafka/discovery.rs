//! A thread that looks for new partitions, and new topics of a pattern, now and then. What it finds begins with its oldest
//! record, since it was made while the job ran.

use super::client::{Consumer, Lookup, OPEN_TIMEOUT, ReaderContext};
use super::offset_options::Startup;
use super::offsets::Offsets;
use super::options::SourceOptions;
use super::split::{NewSplit, owner};
use sluice_engine::operator::Waker;
use sluice_protocol::SubtaskIndex;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::time::Duration;

/// How long a topic or a partition is asked for in one round: others come after it.
const TOPIC_TIMEOUT: Duration = Duration::from_secs(3);

/// The running thread; it ends when this is dropped, after the question it is at.
pub(super) struct Discovery {
    /// Never sent to: its end is the signal.
    _alive: Sender<()>,
    found: Receiver<NewSplit>,
}

/// What the thread works with.
pub(super) struct DiscoveryTask {
    pub(super) consumer: Arc<Consumer>,
    pub(super) options: Arc<SourceOptions>,
    pub(super) subtask: SubtaskIndex,
    pub(super) parallelism: u32,
    /// Topics and partitions that are read already.
    pub(super) known: BTreeSet<(String, i32)>,
    pub(super) waker: Waker,
}

impl Discovery {
    /// Starts the thread.
    pub(super) fn start(mut task: DiscoveryTask, interval: Duration) -> Result<Self, std::io::Error> {
        let (alive, ended) = channel::<()>();
        let (sender, found) = channel();
        std::thread::Builder::new().name("kafka-discovery".to_owned()).spawn(move || {
            while let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(interval) {
                task.look(&sender, &ended);
            }
        })?;
        Ok(Self { _alive: alive, found })
    }

    /// A new split, when one was found.
    pub(super) fn next(&self) -> Option<NewSplit> {
        self.found.try_recv().ok()
    }
}

impl DiscoveryTask {
    /// A topic or a partition that cannot be looked at keeps none of the others back.
    fn look(&mut self, found: &Sender<NewSplit>, ended: &Receiver<()>) {
        let topics = match self.lookup(OPEN_TIMEOUT).topics(&self.options.topics, BTreeSet::new(), || ()) {
            Ok(topics) => topics,
            Err(error) => {
                tracing::warn!(%error, "the look for new partitions failed; it will be repeated");
                return;
            }
        };
        for topic in &topics {
            let partitions = match self.lookup(TOPIC_TIMEOUT).partitions(topic, || ()) {
                Ok(partitions) => partitions,
                Err(error) => {
                    tracing::warn!(%error, topic, "the look for new partitions of a topic failed; it will be repeated");
                    continue;
                }
            };
            for partition in partitions {
                if ended.try_recv() == Err(TryRecvError::Disconnected) {
                    return;
                }
                self.look_at(topic, partition, found);
            }
        }
    }

    fn look_at(&mut self, topic: &str, partition: i32, found: &Sender<NewSplit>) {
        let place = (topic.to_owned(), partition);
        if owner(topic, partition, self.parallelism) != self.subtask || self.known.contains(&place) {
            return;
        }
        let lookup = self.lookup(TOPIC_TIMEOUT);
        let offsets = Offsets { consumer: &self.consumer, options: &self.options, lookup: &lookup };
        match offsets.start(topic, partition, &Startup::Earliest) {
            Ok(split) => {
                tracing::info!(split = split.position.name(), "a new partition is read from its beginning");
                self.known.insert(place);
                if found.send(split).is_ok() {
                    (self.waker)();
                }
            }
            Err(error) => {
                tracing::warn!(%error, topic, partition, "a new partition cannot be read yet; it will be tried again");
            }
        }
    }

    fn lookup(&self, patience: Duration) -> Lookup<'_, ReaderContext> {
        Lookup::of_source(&self.consumer, &self.options, patience)
    }
}
