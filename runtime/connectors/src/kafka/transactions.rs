//! What a transaction coordinator says of a transaction, and what may be told to it (S2, S3, S6).
//!
//! Every decision is made by what [`Transactions::describe`] finds, never by the answer of an `EndTxn` alone: some answers
//! mean several states. A commit is sent as `EndTxn` version 3, the protocol family of librdkafka: with version 5 a broker
//! raises the epoch, after which nobody can tell a commit from a loss.

use super::cluster::{Cluster, Trouble};
use super::properties::ClientProperties;
use kafka_protocol::messages::describe_configs_request::DescribeConfigsResource;
use kafka_protocol::messages::describe_producers_request::TopicRequest;
use kafka_protocol::messages::write_txn_markers_request::{WritableTxnMarker, WritableTxnMarkerTopic};
use kafka_protocol::messages::{
    DescribeConfigsRequest, DescribeProducersRequest, DescribeTransactionsRequest, EndTxnRequest,
    InitProducerIdRequest, ListTransactionsRequest, ProducerId, TopicName, TransactionalId, WriteTxnMarkersRequest,
};
use kafka_protocol::protocol::{Request, StrBytes};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// How long a question is repeated while coordinators move or do not answer.
const PATIENCE: Duration = Duration::from_secs(6);

const PAUSE: Duration = Duration::from_millis(20);

/// The brokers' option that bounds the timeout of transactions.
const LARGEST_TIMEOUT: &str = "transaction.max.timeout.ms";

/// A broker, as `DescribeConfigs` numbers what has options.
const BROKER: i8 = 4;

/// Kafka's numbers of errors.
mod code {
    pub(super) const UNKNOWN_SERVER: i16 = -1;
    pub(super) const NONE: i16 = 0;
    pub(super) const LOADING: i16 = 14;
    pub(super) const NOT_AVAILABLE: i16 = 15;
    pub(super) const NOT_COORDINATOR: i16 = 16;
    pub(super) const TOPIC_AUTHORIZATION: i16 = 29;
    pub(super) const CONCURRENT: i16 = 51;
    pub(super) const UNKNOWN_ID: i16 = 105;
}

/// One transaction, named for ever: the producer's epoch does not rise with each, so the time of its start belongs to it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Handle {
    /// What the cluster calls itself that has it; handles of 0.1 do not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) cluster: Option<String>,
    /// Names the producer to the cluster.
    pub(super) transactional_id: String,
    /// The cluster's number for it.
    pub(super) producer_id: i64,
    /// Raised whenever the id is initialised.
    pub(super) epoch: i16,
    /// By the coordinator's clock, in milliseconds.
    pub(super) started_at: i64,
    /// What it has written to: at its end the coordinator forgets it.
    pub(super) partitions: BTreeMap<String, Vec<i32>>,
}

/// How far a transaction is, as Kafka names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum State {
    /// The id is initialised, and nothing was sent.
    Empty,
    /// Something was sent.
    Ongoing,
    /// It is committed; markers are being written.
    PrepareCommit,
    /// It is aborted; markers are being written.
    PrepareAbort,
    /// Committed.
    CompleteCommit,
    /// Aborted.
    CompleteAbort,
    /// Something else.
    Other(String),
}

impl State {
    fn of(name: &str) -> Self {
        match name {
            "Empty" => Self::Empty,
            "Ongoing" => Self::Ongoing,
            "PrepareCommit" => Self::PrepareCommit,
            "PrepareAbort" => Self::PrepareAbort,
            "CompleteCommit" => Self::CompleteCommit,
            "CompleteAbort" => Self::CompleteAbort,
            other => Self::Other(other.to_owned()),
        }
    }
}

/// The last transaction of an id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Described {
    /// How far it is.
    pub(super) state: State,
    /// The cluster's number for the producer.
    pub(super) producer_id: i64,
    /// Of the producer.
    pub(super) epoch: i16,
    /// By the coordinator's clock; negative when nothing was sent.
    pub(super) started_at: i64,
    /// The coordinator aborts it after so long.
    pub(super) timeout: Duration,
    /// What it has written to, while it is not complete.
    pub(super) partitions: BTreeMap<String, Vec<i32>>,
}

/// What is to be done about a handle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It is open: commit it.
    Commit,
    /// The coordinator is at it.
    Wait,
    /// Committed; what is left is to look for its markers.
    Committed,
    /// Its id has begun a later transaction, which happens only when this one is settled (S2).
    SettledBefore,
    /// It is gone, and was not committed.
    Lost(String),
}

impl Handle {
    /// What the state that a coordinator tells means for this transaction; `None`: it does not know the id (S6).
    pub(super) fn judge(&self, found: Option<&Described>) -> Verdict {
        let Self { transactional_id: id, producer_id, epoch, started_at, .. } = self;
        let Some(found) = found else {
            return Verdict::Lost(format!(
                "the Kafka brokers know nothing of transactional id '{id}' any more (transactional.id.expiration.ms)"
            ));
        };
        let is_earlier = found.epoch < *epoch || (found.epoch == *epoch && found.started_at < *started_at);
        if found.producer_id == *producer_id && is_earlier {
            // It was told of this transaction: a coordinator that does not know yet that it is none any more.
            return Verdict::Wait;
        }
        if (found.producer_id, found.epoch) != (*producer_id, *epoch) {
            return Verdict::Lost(format!(
                "transactional id '{id}' belongs to producer {} with epoch {} now ({:?}), the transaction was of producer \
                 {producer_id} with epoch {epoch}: it has timed out, or somebody else has used the id",
                found.producer_id, found.epoch, found.state
            ));
        }
        if found.started_at > *started_at {
            return Verdict::SettledBefore;
        }
        match &found.state {
            State::Ongoing => Verdict::Commit,
            State::PrepareCommit => Verdict::Wait,
            State::CompleteCommit => Verdict::Committed,
            state => Verdict::Lost(format!(
                "the transaction of transactional id '{id}' that began at {started_at} was aborted (its state is {state:?}); \
                 it may have been open longer than its timeout"
            )),
        }
    }
}

fn text(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}

fn id_of(id: &str) -> TransactionalId {
    TransactionalId(text(id))
}

/// Speaks with the coordinators.
pub(super) struct Transactions {
    cluster: Cluster,
}

impl Transactions {
    /// With the cluster of these properties.
    pub(super) fn new(properties: &ClientProperties) -> Self {
        Self { cluster: Cluster::new(properties) }
    }

    /// Asks the coordinator of an id, which may move meanwhile, or not be there for a while. `code_of` says what went wrong;
    /// codes that only time mends are asked again.
    fn ask<Q: Request>(
        &mut self,
        id: &str,
        version: i16,
        request: &Q,
        code_of: impl Fn(&Q::Response) -> i16,
    ) -> Result<Q::Response, Trouble> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let at = self.cluster.coordinator(id);
            let answer = at.and_then(|address| self.cluster.ask(&address, version, request));
            let trouble = match answer.map(|answer| (code_of(&answer), answer)) {
                Ok((number @ (code::LOADING | code::NOT_AVAILABLE | code::NOT_COORDINATOR), _)) => {
                    Trouble::of(format!("answer for transactional id '{id}'"), number)
                }
                Ok((_, answer)) => return Ok(answer),
                Err(trouble @ Trouble::Refused { .. }) => return Err(trouble),
                Err(trouble) => trouble,
            };
            self.cluster.forget_coordinator(id);
            if Instant::now() >= deadline {
                return Err(trouble);
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// What the cluster calls itself.
    pub(super) fn cluster_id(&mut self) -> Result<Option<String>, Trouble> {
        self.cluster.id()
    }

    /// The last transaction of an id; `None`: nothing is known of the id.
    pub(super) fn describe(&mut self, id: &str) -> Result<Option<Described>, Trouble> {
        let request = DescribeTransactionsRequest::default().with_transactional_ids(vec![id_of(id)]);
        let answer = self.ask(id, 0, &request, |answer| {
            answer.transaction_states.first().map_or(code::NOT_AVAILABLE, |state| state.error_code)
        })?;
        let Some(found) = answer.transaction_states.into_iter().next() else { return Ok(None) };
        match found.error_code {
            code::NONE => {}
            code::UNKNOWN_ID => return Ok(None),
            other => return Err(Trouble::of(format!("describe transactional id '{id}'"), other)),
        }
        let partitions = found.topics.into_iter().map(|topic| {
            let mut partitions = topic.partitions;
            partitions.sort_unstable();
            (topic.topic.0.to_string(), partitions)
        });
        Ok(Some(Described {
            state: State::of(found.transaction_state.as_str()),
            producer_id: found.producer_id.0,
            epoch: found.producer_epoch,
            started_at: found.transaction_start_time_ms,
            timeout: Duration::from_millis(u64::try_from(found.transaction_timeout_ms).unwrap_or_default()),
            partitions: partitions.collect(),
        }))
    }

    /// Has the coordinator commit. Whether it did is to be seen by [`Self::describe`].
    pub(super) fn end(&mut self, handle: &Handle) -> Result<(), Trouble> {
        let Handle { transactional_id: id, producer_id, epoch, .. } = handle;
        let request = EndTxnRequest::default()
            .with_transactional_id(id_of(id))
            .with_producer_id(ProducerId(*producer_id))
            .with_producer_epoch(*epoch)
            .with_committed(true);
        let answer = self.ask(id, 3, &request, |answer| answer.error_code)?;
        match Trouble::of(format!("commit the transaction of '{id}'"), answer.error_code) {
            refused @ Trouble::Refused { code: 53, .. } => Err(refused),
            _ => Ok(()),
        }
    }

    /// Initialises an id, which aborts its open transaction and fences its producer. Never before its handle is settled.
    pub(super) fn fence(&mut self, id: &str) -> Result<(), Trouble> {
        // The timeout counts for the next transaction, which nobody begins.
        let request = InitProducerIdRequest::default()
            .with_transactional_id(Some(id_of(id)))
            .with_transaction_timeout_ms(10_000)
            .with_producer_id(ProducerId(-1))
            .with_producer_epoch(-1);
        let deadline = Instant::now() + PATIENCE;
        loop {
            let answer = self.ask(id, 4, &request, |answer| answer.error_code)?;
            let trouble = match answer.error_code {
                code::NONE => return Ok(()),
                number => Trouble::of(format!("abort the transaction of '{id}'"), number),
            };
            if answer.error_code != code::CONCURRENT || Instant::now() >= deadline {
                return Err(trouble);
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// How long the brokers let a transaction be open at most; refused where the principal may not know.
    pub(super) fn largest_timeout(&mut self) -> Result<Duration, Trouble> {
        const WHAT: &str = "tell transaction.max.timeout.ms";
        let first = self.cluster.brokers()?.into_iter().next();
        let (number, address) = first.ok_or_else(|| Trouble::of(WHAT, code::NOT_AVAILABLE))?;
        let broker = DescribeConfigsResource::default()
            .with_resource_type(BROKER)
            .with_resource_name(StrBytes::from_string(number.to_string()))
            .with_configuration_keys(Some(vec![text(LARGEST_TIMEOUT)]));
        let request = DescribeConfigsRequest::default().with_resources(vec![broker]);
        let answer = self.cluster.ask(&address, 4, &request)?;
        if let Some(refused) = answer.results.iter().find(|result| result.error_code != code::NONE) {
            return Err(Trouble::of(WHAT, refused.error_code));
        }
        let mut configs = answer.results.iter().flat_map(|result| &result.configs);
        let found = configs.find(|config| config.name.as_str() == LARGEST_TIMEOUT);
        let millis = found.and_then(|config| config.value.as_ref()?.as_str().parse().ok());
        millis.map(Duration::from_millis).ok_or_else(|| Trouble::of(WHAT, code::UNKNOWN_SERVER))
    }

    /// The ids of all transactions of the cluster that are open, and which broker could not be asked.
    pub(super) fn open(&mut self) -> Result<(Vec<String>, Option<Trouble>), Trouble> {
        let request = ListTransactionsRequest::default().with_state_filters(vec![text("Ongoing")]);
        let (mut found, mut trouble) = (Vec::new(), None);
        for (_, address) in self.cluster.brokers()? {
            match self.cluster.ask(&address, 0, &request) {
                Err(silent) => drop(trouble.get_or_insert(silent)),
                Ok(answer) if answer.error_code != code::NONE => {
                    trouble.get_or_insert(Trouble::of("list transactions", answer.error_code));
                }
                Ok(answer) => {
                    found.extend(answer.transaction_states.iter().map(|state| state.transactional_id.0.to_string()));
                }
            }
        }
        Ok((found, trouble))
    }

    /// Looks whether all markers of a committed transaction were written, and writes those that were not.
    ///
    /// A coordinator of Kafka 4.3 and 4.4 that dies right after a commit can come back with the transaction complete and
    /// its markers unwritten (KAFKA-20734): its records stay invisible, and hold up all readers of the partition. Says how
    /// many were missing.
    pub(super) fn mend_markers(&mut self, handle: &Handle) -> Result<usize, Trouble> {
        let mut mended = 0;
        for (topic, partitions) in &handle.partitions {
            let leaders = self.cluster.leaders(topic, partitions)?;
            let mut by_leader: BTreeMap<&String, Vec<i32>> = BTreeMap::new();
            for partition in partitions {
                if let Some(leader) = leaders.get(partition) {
                    by_leader.entry(leader).or_default().push(*partition);
                }
            }
            for (leader, partitions) in by_leader {
                for (partition, coordinator_epoch) in self.unmarked(handle, topic, partitions, leader)? {
                    self.write_marker(handle, topic, partition, coordinator_epoch, leader)?;
                    mended += 1;
                }
            }
        }
        Ok(mended)
    }

    /// The partitions where the transaction is still open, with the epoch of the coordinator.
    fn unmarked(
        &mut self,
        handle: &Handle,
        topic: &str,
        partitions: Vec<i32>,
        leader: &str,
    ) -> Result<Vec<(i32, i32)>, Trouble> {
        let asked = TopicRequest::default().with_name(TopicName(text(topic))).with_partition_indexes(partitions);
        let answer = self.cluster.ask(leader, 0, &DescribeProducersRequest::default().with_topics(vec![asked]))?;
        let mut unmarked = Vec::new();
        for partition in answer.topics.iter().flat_map(|topic| &topic.partitions) {
            match partition.error_code {
                code::NONE => {}
                code::TOPIC_AUTHORIZATION => {
                    tracing::warn!(
                        topic,
                        "whether the commit of a transaction has reached topic '{topic}' cannot be looked up, since the \
                         principal may not read the topic: grant READ on it, so that a marker lost by the brokers \
                         (KAFKA-20734) is found"
                    );
                    return Ok(Vec::new());
                }
                other => return Err(Trouble::of(format!("describe the producers of topic '{topic}'"), other)),
            }
            let is_open = |producer: &&kafka_protocol::messages::describe_producers_response::ProducerState| {
                producer.producer_id.0 == handle.producer_id
                    && producer.producer_epoch == i32::from(handle.epoch)
                    && producer.current_txn_start_offset >= 0
            };
            let open = partition.active_producers.iter().find(is_open);
            unmarked.extend(open.map(|producer| (partition.partition_index, producer.coordinator_epoch.max(0))));
        }
        Ok(unmarked)
    }

    fn write_marker(
        &mut self,
        handle: &Handle,
        topic: &str,
        partition: i32,
        coordinator_epoch: i32,
        leader: &str,
    ) -> Result<(), Trouble> {
        tracing::warn!(
            topic,
            partition,
            transactional_id = handle.transactional_id,
            "a committed transaction has no marker in a partition (KAFKA-20734); it is written now"
        );
        let place =
            WritableTxnMarkerTopic::default().with_name(TopicName(text(topic))).with_partition_indexes(vec![partition]);
        let marker = WritableTxnMarker::default()
            .with_producer_id(ProducerId(handle.producer_id))
            .with_producer_epoch(handle.epoch)
            .with_transaction_result(true)
            .with_topics(vec![place])
            .with_coordinator_epoch(coordinator_epoch);
        let answer = self.cluster.ask(leader, 1, &WriteTxnMarkersRequest::default().with_markers(vec![marker]))?;
        let results = answer.markers.iter().flat_map(|marker| &marker.topics).flat_map(|topic| &topic.partitions);
        match results.map(|result| result.error_code).find(|number| *number != code::NONE) {
            None => Ok(()),
            Some(number) => Err(Trouble::of(
                format!(
                    "write the commit marker that is missing in partition {partition} of topic '{topic}' for the transaction of \
                     '{}', which is committed (KAFKA-20734): until it is there its records are invisible and readers of the \
                     partition are held up. Grant the principal CLUSTER_ACTION on the cluster until it is written; do not \
                     abort the transaction, which would lose its records",
                    handle.transactional_id
                ),
                number,
            )),
        }
    }
}
