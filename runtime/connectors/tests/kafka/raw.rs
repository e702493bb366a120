//! Transactions as the broker lists them, asked for in its own protocol: one connection for each question.

use bytes::{Bytes, BytesMut};
use kafka_protocol::messages::create_acls_request::AclCreation;
use kafka_protocol::messages::delete_acls_request::DeleteAclsFilter;
use kafka_protocol::messages::describe_producers_request::TopicRequest;
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::{
    CreateAclsRequest, DeleteAclsRequest, DescribeProducersRequest, EndTxnRequest, FindCoordinatorRequest,
    InitProducerIdRequest, ListTransactionsRequest, ProduceRequest, ProducerId, RequestHeader, ResponseHeader,
    TopicName, TransactionalId,
};
use kafka_protocol::protocol::{
    Decodable as _, HeaderVersion as _, Request, StrBytes, encode_request_header_into_buffer,
};
use kafka_protocol::records::{Compression, Record, RecordBatchEncoder, RecordEncodeOptions, TimestampType};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

fn ask<Q: Request>(address: &str, version: i16, request: &Q) -> Q::Response {
    let mut stream = TcpStream::connect(address).unwrap();
    let header = RequestHeader::default().with_request_api_key(Q::KEY).with_request_api_version(version);
    let mut frame = BytesMut::new();
    encode_request_header_into_buffer(&mut frame, &header).unwrap();
    request.encode(&mut frame, version).unwrap();
    stream.write_all(&u32::try_from(frame.len()).unwrap().to_be_bytes()).unwrap();
    stream.write_all(&frame).unwrap();
    let mut length = [0; 4];
    stream.read_exact(&mut length).unwrap();
    let mut answer = vec![0; u32::from_be_bytes(length) as usize];
    stream.read_exact(&mut answer).unwrap();
    let mut answer = Bytes::from(answer);
    ResponseHeader::decode(&mut answer, Q::Response::header_version(version)).unwrap();
    Q::Response::decode(&mut answer, version).unwrap()
}

fn text(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}

/// Has the cluster keep transactions, which it does from the first question for a coordinator on.
pub(crate) fn wait_for_transactions(address: &str) {
    let request = FindCoordinatorRequest::default().with_key_type(1).with_coordinator_keys(vec![text("any")]);
    while ask(address, 4, &request).coordinators[0].error_code != 0 {
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// The transactional ids with open transactions.
pub(crate) fn open_transactions(address: &str) -> Vec<String> {
    let request = ListTransactionsRequest::default().with_state_filters(vec![text("Ongoing")]);
    let answer = ask(address, 0, &request);
    assert_eq!(answer.error_code, 0);
    answer.transaction_states.iter().map(|state| state.transactional_id.0.to_string()).collect()
}

/// Denies everybody to write with transactional ids that begin like this.
pub(crate) fn deny_transactions(address: &str, prefix: &str) {
    // Kafka's numbers: a transactional id, by prefix; WRITE, DENY.
    let denied =
        rule(ANONYMOUS, 4, 2).with_resource_type(5).with_resource_name(text(prefix)).with_resource_pattern_type(4);
    add_rules(address, vec![denied]);
}

/// Kafka's number of the right to tell the cluster's options.
pub(crate) const DESCRIBE_CONFIGS: i8 = 10;

/// Kafka's number of the right to do what brokers do among themselves.
pub(crate) const CLUSTER_ACTION: i8 = 9;

/// Whoever comes without a password: the brokers themselves, too.
pub(crate) const ANONYMOUS: &str = "User:ANONYMOUS";

/// Kafka's number of the right to change the cluster, with which markers may be written too.
pub(crate) const ALTER: i8 = 7;

/// Gives everybody all rights on the cluster, and one user all but these.
pub(crate) fn deny_on_cluster(address: &str, user: &str, rights: &[i8]) {
    // All operations, ALLOW; DENY goes first.
    let denied = rights.iter().map(|right| on_cluster(user, *right, 2));
    add_rules(address, [on_cluster("User:*", 2, 3)].into_iter().chain(denied).collect());
}

/// Takes the denial back.
pub(crate) fn grant_on_cluster(address: &str, user: &str, right: i8) {
    let denied = DeleteAclsFilter::default()
        .with_resource_type_filter(4)
        .with_resource_name_filter(Some(text("kafka-cluster")))
        .with_pattern_type_filter(3)
        .with_principal_filter(Some(text(user)))
        .with_host_filter(Some(text("*")))
        .with_operation(right)
        .with_permission_type(2);
    remove_rules(address, denied);
}

fn on_cluster(user: &str, operation: i8, permission: i8) -> AclCreation {
    let on = rule(user, operation, permission).with_resource_type(4).with_resource_name(text("kafka-cluster"));
    on.with_resource_pattern_type(3)
}

fn rule(user: &str, operation: i8, permission: i8) -> AclCreation {
    AclCreation::default()
        .with_principal(text(user))
        .with_host(text("*"))
        .with_operation(operation)
        .with_permission_type(permission)
}

fn add_rules(address: &str, rules: Vec<AclCreation>) {
    let answer = ask(address, 2, &CreateAclsRequest::default().with_creations(rules));
    assert!(answer.results.iter().all(|result| result.error_code == 0), "{answer:?}");
}

/// Takes that back.
pub(crate) fn grant_transactions(address: &str, prefix: &str) {
    let denied = DeleteAclsFilter::default()
        .with_resource_type_filter(5)
        .with_resource_name_filter(Some(text(prefix)))
        .with_pattern_type_filter(4)
        .with_principal_filter(Some(text(ANONYMOUS)))
        .with_host_filter(Some(text("*")))
        .with_operation(4)
        .with_permission_type(2);
    remove_rules(address, denied);
}

fn remove_rules(address: &str, which: DeleteAclsFilter) {
    let answer = ask(address, 2, &DeleteAclsRequest::default().with_filters(vec![which]));
    let removed = answer.filter_results.iter().map(|result| result.matching_acls.len()).sum::<usize>();
    assert!(removed > 0, "{answer:?}");
}

/// Initialises an id, which aborts what it has open.
pub(crate) fn initialise(address: &str, id: &str) {
    let request = InitProducerIdRequest::default()
        .with_transactional_id(Some(TransactionalId(text(id))))
        .with_transaction_timeout_ms(10_000)
        .with_producer_id(ProducerId(-1))
        .with_producer_epoch(-1);
    loop {
        match ask(address, 4, &request).error_code {
            0 => return,
            // It is at it, or has just started.
            14 | 16 | 51 => std::thread::sleep(Duration::from_millis(10)),
            other => panic!("{id} cannot be initialised: {other}"),
        }
    }
}

/// Ends a transaction as librdkafka does.
pub(crate) fn end(address: &str, id: &str, producer_id: i64, epoch: i16, commits: bool) -> i16 {
    let request = EndTxnRequest::default()
        .with_transactional_id(TransactionalId(text(id)))
        .with_producer_id(ProducerId(producer_id))
        .with_producer_epoch(epoch)
        .with_committed(commits);
    ask(address, 3, &request).error_code
}

/// Writes one more record in a transaction that is over, as if its marker had never been written: to a broker that does not
/// verify transactions.
pub(crate) fn reopen(address: &str, topic: &str, partition: i32, (producer_id, epoch): (i64, i16)) {
    let asked = TopicRequest::default().with_name(TopicName(text(topic))).with_partition_indexes(vec![partition]);
    let answer = ask(address, 0, &DescribeProducersRequest::default().with_topics(vec![asked]));
    let mut producers = answer.topics[0].partitions[0].active_producers.iter();
    let known = producers.find(|one| one.producer_id.0 == producer_id).expect("it has written there");
    let record = Record {
        transactional: true,
        control: false,
        delete_horizon: false,
        partition_leader_epoch: -1,
        producer_id,
        producer_epoch: epoch,
        timestamp_type: TimestampType::Creation,
        offset: 0,
        sequence: known.last_sequence + 1,
        timestamp: known.last_timestamp,
        key: None,
        value: Some(Bytes::from_static(br#"{"n":99}"#)),
        headers: <_>::default(),
    };
    let mut batch = BytesMut::new();
    let options = RecordEncodeOptions { version: 2, compression: Compression::None };
    RecordBatchEncoder::encode(&mut batch, [&record], &options).unwrap();
    let data = PartitionProduceData::default().with_index(partition).with_records(Some(batch.freeze()));
    let data = TopicProduceData::default().with_name(TopicName(text(topic))).with_partition_data(vec![data]);
    let request = ProduceRequest::default()
        .with_transactional_id(Some(TransactionalId(text("nobody-s"))))
        .with_acks(-1)
        .with_timeout_ms(5_000)
        .with_topic_data(vec![data]);
    let answer = ask(address, 9, &request);
    let written = &answer.responses[0].partition_responses[0];
    assert_eq!(written.error_code, 0, "{written:?}");
}
