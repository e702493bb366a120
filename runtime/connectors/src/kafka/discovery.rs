//! A thread that looks for new partitions, and new topics of a pattern, now and then. What it finds begins with its oldest record, since it was
//! made while the job ran.

use super::client::{Consumer, Lookup, OPEN_TIMEOUT};
use super::offset_options::Startup;
use super::offsets::Offsets;
use super::options::SourceOptions;
use super::split::{NewSplit, owner};
use rdkafka::consumer::Consumer as _;
use sluice_engine::error::TaskError;
use sluice_engine::operator::Waker;
use sluice_protocol::SubtaskIndex;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

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
                task.look(&sender);
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
    fn look(&mut self, found: &Sender<NewSplit>) {
        match self.find() {
            Ok(splits) => {
                for split in splits {
                    let position = &split.position;
                    tracing::info!(split = position.name(), "a new partition is read from its beginning");
                    self.known.insert((position.topic.clone(), position.partition));
                    if found.send(split).is_ok() {
                        (self.waker)();
                    }
                }
            }
            Err(error) => tracing::info!(%error, "the look for new partitions failed; it will be repeated"),
        }
    }

    fn find(&self) -> Result<Vec<NewSplit>, TaskError> {
        let lookup = Lookup {
            client: self.consumer.client(),
            log: &self.consumer.context().log,
            table: &self.options.table,
            bootstrap_servers: self.options.properties.bootstrap_servers(),
            deadline: Instant::now() + OPEN_TIMEOUT,
        };
        let offsets = Offsets { consumer: &self.consumer, options: &self.options, lookup: &lookup };
        let mut splits = Vec::new();
        let topics = lookup.topics(&self.options.topics, BTreeSet::new(), || ())?;
        for topic in &topics {
            for partition in lookup.partitions(topic, || ())? {
                let owned = owner(topic, partition, self.parallelism) == self.subtask;
                if owned && !self.known.contains(&(topic.clone(), partition)) {
                    splits.push(offsets.start(topic, partition, &Startup::Earliest)?);
                }
            }
        }
        Ok(splits)
    }
}
