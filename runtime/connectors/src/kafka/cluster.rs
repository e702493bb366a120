//! Connections for the few messages that librdkafka does not send, and where to send them.
//!
//! Everything blocks, each request at most [`REQUEST_TIMEOUT`]. A connection on which something went wrong is closed, and
//! what was looked up is forgotten: the next request begins anew. Versions of messages are those that Kafka 3.0 knows.

use super::properties::ClientProperties;
use super::secure::{Security, Stream};
use bytes::{Buf as _, Bytes, BytesMut};
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::metadata_response::MetadataResponseBroker;
use kafka_protocol::messages::{
    FindCoordinatorRequest, MetadataRequest, RequestHeader, ResponseHeader, SaslAuthenticateRequest,
    SaslHandshakeRequest, TopicName,
};
use kafka_protocol::protocol::{
    Decodable as _, HeaderVersion as _, Request, StrBytes, encode_request_header_into_buffer,
};
use std::collections::BTreeMap;
use std::io::{self, Read as _, Write as _};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::time::Duration;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// A broker that says nothing for so long is given up.
pub(super) const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// No answer of these messages comes near it.
const LARGEST_ANSWER: usize = 64 << 20;

/// A coordinator of transactions, as `FindCoordinator` numbers them.
const TRANSACTION: i8 = 1;

/// A request that did not succeed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Trouble {
    /// No answer: nothing is known of what became of it.
    #[error("the Kafka broker at {address} does not answer: {reason}")]
    Unreachable {
        /// Which.
        address: String,
        /// What the connection says.
        reason: String,
    },
    /// The brokers answer that another time may be better.
    #[error("the Kafka brokers cannot {what} now ({code}: {name})")]
    NotNow {
        /// What was asked for.
        what: String,
        /// Kafka's number of the error.
        code: i16,
        /// Its name.
        name: String,
    },
    /// They refuse.
    #[error("the Kafka brokers refuse to {what} ({code}: {name}){hint}")]
    Refused {
        /// What was asked for.
        what: String,
        /// Kafka's number of the error.
        code: i16,
        /// Its name.
        name: String,
        /// What to do.
        hint: &'static str,
    },
}

impl Trouble {
    /// Of an error code that is none of success.
    pub(super) fn of(what: impl Into<String>, code: i16) -> Self {
        use kafka_protocol::error::ResponseError;
        let known = ResponseError::try_from_code(code);
        let name = known.as_ref().map_or_else(|| "unknown".to_owned(), |error| format!("{error:?}"));
        let what = what.into();
        let hint = match code {
            29 => "; grant the principal of 'properties.*' WRITE, READ and DESCRIBE on the topic",
            31 => "; grant the principal of 'properties.*' CLUSTER_ACTION on the cluster",
            53 => {
                "; grant the principal of 'properties.*' WRITE and DESCRIBE on the transactional id (all of a sink's begin alike)"
            }
            50 => "; set 'properties.transaction.timeout.ms' to at most the brokers' transaction.max.timeout.ms",
            _ => "",
        };
        match known {
            Some(error) if error.is_retriable() => Self::NotNow { what, code, name },
            _ => Self::Refused { what, code, name, hint },
        }
    }

    /// Whether a right is missing, which may be granted while it is waited for.
    pub(super) const fn is_of_rights(&self) -> bool {
        matches!(self, Self::Refused { code: 29 | 31 | 53, .. })
    }
}

/// One connection.
struct Connection {
    stream: Stream,
    correlation: i32,
}

impl Connection {
    fn open(address: &str, security: &Security) -> io::Result<Self> {
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host).trim_matches(['[', ']']);
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        for socket in address.to_socket_addrs()? {
            match TcpStream::connect_timeout(&socket, CONNECT_TIMEOUT) {
                Ok(stream) => {
                    stream.set_nodelay(true)?;
                    // What is not sent when a connection is given up never is: a commit that arrives late could meet a later
                    // transaction of the same producer.
                    socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO))?;
                    stream.set_read_timeout(Some(REQUEST_TIMEOUT))?;
                    stream.set_write_timeout(Some(REQUEST_TIMEOUT))?;
                    let mut connection = Self { stream: security.wrap(host, stream)?, correlation: 0 };
                    connection.authenticate(security)?;
                    return Ok(connection);
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Says who we are, where brokers want to know.
    fn authenticate(&mut self, security: &Security) -> io::Result<()> {
        let Some((mechanism, mut conversation)) = security.conversation() else { return Ok(()) };
        let request = SaslHandshakeRequest::default().with_mechanism(StrBytes::from_static_str(mechanism));
        let answer = self.ask(1, &request)?;
        if answer.error_code != 0 {
            let known: Vec<&str> = answer.mechanisms.iter().map(|one| one.as_str()).collect();
            return Err(refused(&format!("it takes no {mechanism}, but {}", known.join(", "))));
        }
        let mut words = conversation.first();
        loop {
            let answer = self.ask(1, &SaslAuthenticateRequest::default().with_auth_bytes(words.into()))?;
            if answer.error_code != 0 {
                return Err(refused(
                    answer.error_message.as_ref().map_or("it gives no reason", |reason| reason.as_str()),
                ));
            }
            match conversation.next(&answer.auth_bytes)? {
                Some(more) => words = more,
                None => return Ok(()),
            }
        }
    }

    fn ask<Q: Request>(&mut self, version: i16, request: &Q) -> io::Result<Q::Response> {
        self.correlation += 1;
        let header = RequestHeader::default()
            .with_request_api_key(Q::KEY)
            .with_request_api_version(version)
            .with_correlation_id(self.correlation)
            .with_client_id(Some(StrBytes::from_static_str("sluice")));
        let mut body = BytesMut::new();
        encode_request_header_into_buffer(&mut body, &header).map_err(invalid)?;
        request.encode(&mut body, version).map_err(invalid)?;
        let length = u32::try_from(body.len()).map_err(invalid)?;
        let mut frame = BytesMut::with_capacity(body.len() + 4);
        frame.extend_from_slice(&length.to_be_bytes());
        frame.extend_from_slice(&body);
        self.stream.write_all(&frame)?;
        let mut answer = self.receive()?;
        let header = ResponseHeader::decode(&mut answer, Q::Response::header_version(version)).map_err(invalid)?;
        if header.correlation_id != self.correlation {
            return Err(invalid("the answer belongs to another request"));
        }
        Q::Response::decode(&mut answer, version).map_err(invalid)
    }

    fn receive(&mut self) -> io::Result<Bytes> {
        let mut length = [0; 4];
        self.stream.read_exact(&mut length)?;
        let length = u32::from_be_bytes(length) as usize;
        if length > LARGEST_ANSWER {
            return Err(invalid(
                "the answer is no Kafka message; does the port want TLS ('properties.security.protocol')?",
            ));
        }
        let mut answer = BytesMut::zeroed(length);
        self.stream.read_exact(&mut answer)?;
        Ok(answer.copy_to_bytes(length))
    }
}

fn refused(reason: &str) -> io::Error {
    io::Error::new(
        io::ErrorKind::PermissionDenied,
        format!("it does not accept the credentials ({reason}): check 'properties.sasl.*'"),
    )
}

fn invalid(reason: impl ToString) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason.to_string())
}

/// The brokers, as one client sees them.
pub(super) struct Cluster {
    bootstrap: Vec<String>,
    /// Secrets are looked up for each connection, so that one that was changed counts.
    properties: ClientProperties,
    connections: BTreeMap<String, Connection>,
    coordinators: BTreeMap<String, String>,
    /// What the cluster calls itself, once it was asked; forgotten with a connection, which may lead elsewhere then.
    id: Option<String>,
}

impl Cluster {
    /// Nothing is connected yet.
    pub(super) fn new(properties: &ClientProperties) -> Self {
        let addresses = properties.bootstrap_servers().split(',').map(str::trim).filter(|one| !one.is_empty());
        // librdkafka takes addresses with a protocol before them, and without a port.
        let plain = |one: &str| {
            let one = one.rsplit_once("://").map_or(one, |(_, rest)| rest);
            if one.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok()) {
                one.to_owned()
            } else {
                format!("{one}:9092")
            }
        };
        Self {
            bootstrap: addresses.map(plain).collect(),
            properties: properties.clone(),
            connections: BTreeMap::new(),
            coordinators: BTreeMap::new(),
            id: None,
        }
    }

    /// Asks the broker at this address.
    pub(super) fn ask<Q: Request>(&mut self, address: &str, version: i16, request: &Q) -> Result<Q::Response, Trouble> {
        let asked = match self.connections.get_mut(address) {
            Some(connection) => connection.ask(version, request),
            None => self
                .properties
                .security()
                .map_err(io::Error::other)
                .and_then(|security| Connection::open(address, &security))
                .and_then(|connection| {
                    self.connections.entry(address.to_owned()).or_insert(connection).ask(version, request)
                }),
        };
        asked.map_err(|error| {
            self.forget_broker(address);
            Trouble::Unreachable { address: address.to_owned(), reason: error.to_string() }
        })
    }

    fn forget_broker(&mut self, address: &str) {
        self.connections.remove(address);
        self.id = None;
        self.coordinators.retain(|_, at| at != address);
    }

    /// The coordinator of this id moved, or may have.
    pub(super) fn forget_coordinator(&mut self, transactional_id: &str) {
        self.coordinators.remove(transactional_id);
    }

    /// Asks any broker that answers, those that are connected first.
    fn ask_any<Q: Request>(&mut self, version: i16, request: &Q) -> Result<Q::Response, Trouble> {
        let connected = self.connections.keys().cloned();
        let addresses: Vec<String> = connected.chain(self.bootstrap.iter().cloned()).collect();
        let reason = "'properties.bootstrap.servers' names no broker".to_owned();
        let mut last = Trouble::Unreachable { address: String::new(), reason };
        for address in addresses {
            match self.ask(&address, version, request) {
                Ok(answer) => return Ok(answer),
                Err(trouble) => last = trouble,
            }
        }
        Err(last)
    }

    /// Where the coordinator of a transactional id is. Asking also makes the cluster keep transactions, if it never did.
    pub(super) fn coordinator(&mut self, transactional_id: &str) -> Result<String, Trouble> {
        if let Some(known) = self.coordinators.get(transactional_id) {
            return Ok(known.clone());
        }
        let request = FindCoordinatorRequest::default()
            .with_key_type(TRANSACTION)
            .with_coordinator_keys(vec![StrBytes::from_string(transactional_id.to_owned())]);
        let answer = self.ask_any(4, &request)?;
        let what = || format!("name the coordinator of transactional id '{transactional_id}'");
        // Kafka's "the coordinator is not available".
        let Some(found) = answer.coordinators.first() else { return Err(Trouble::of(what(), 15)) };
        if found.error_code != 0 {
            return Err(Trouble::of(what(), found.error_code));
        }
        let address = format!("{}:{}", found.host.as_str(), found.port);
        self.coordinators.insert(transactional_id.to_owned(), address.clone());
        Ok(address)
    }

    /// What the cluster calls itself; `None`: it does not say.
    pub(super) fn id(&mut self) -> Result<Option<String>, Trouble> {
        if self.id.is_none() {
            let request = MetadataRequest::default().with_topics(Some(Vec::new()));
            let answer = self.ask_any(9, &request)?;
            self.id = answer.cluster_id.map(|id| id.as_str().to_owned());
        }
        Ok(self.id.clone())
    }

    /// All brokers, by number and address.
    pub(super) fn brokers(&mut self) -> Result<Vec<(i32, String)>, Trouble> {
        let request = MetadataRequest::default().with_topics(Some(Vec::new()));
        let answer = self.ask_any(9, &request)?;
        let place =
            |broker: &MetadataResponseBroker| (broker.node_id.0, format!("{}:{}", broker.host.as_str(), broker.port));
        Ok(answer.brokers.iter().map(place).collect())
    }

    /// The leader of each of these partitions of a topic, by address. A topic that is gone has none.
    pub(super) fn leaders(&mut self, topic: &str, wanted: &[i32]) -> Result<BTreeMap<i32, String>, Trouble> {
        let name = TopicName(StrBytes::from_string(topic.to_owned()));
        let asked = MetadataRequestTopic::default().with_name(Some(name));
        let request = MetadataRequest::default().with_topics(Some(vec![asked])).with_allow_auto_topic_creation(false);
        let answer = self.ask_any(9, &request)?;
        let places: BTreeMap<i32, String> = answer
            .brokers
            .iter()
            .map(|broker| (broker.node_id.0, format!("{}:{}", broker.host.as_str(), broker.port)))
            .collect();
        let Some(found) = answer.topics.first() else { return Ok(BTreeMap::new()) };
        match found.error_code {
            0 => {}
            // It does not exist.
            3 => return Ok(BTreeMap::new()),
            code => return Err(Trouble::of(format!("describe topic '{topic}'"), code)),
        }
        let leader = |partition: &kafka_protocol::messages::metadata_response::MetadataResponsePartition| {
            let what = || format!("name the leader of partition {} of topic '{topic}'", partition.partition_index);
            match places.get(&partition.leader_id.0) {
                Some(address) => Ok((partition.partition_index, address.clone())),
                // Kafka's "there is no leader".
                None => Err(Trouble::of(what(), if partition.error_code == 0 { 5 } else { partition.error_code })),
            }
        };
        found.partitions.iter().filter(|one| wanted.contains(&one.partition_index)).map(leader).collect()
    }
}
