//! The exactly-once sink against brokers of its tests' own: of an older release, with the older protocol of transactions, of
//! another cluster, and with rights that are missing.
//!
//! They run where `SLUICE_TEST_KAFKA` names a broker, which says that services may be started.

use crate::broker::{bootstrap, unique};
use crate::exactly_once::{Topic, text_of};
use crate::raw;
use crate::secure::{IN_TEXT, SCRAM, Secure};
use crate::task::Writer;
use sluice_engine::error::TaskError;
use sluice_engine::sink::conformance::{self, Subject as _};
use sluice_engine::sink::{Commit, CommitError};
use sluice_protocol::commit::StagedLife;
use sluice_protocol::state::Committable;
use sluice_protocol::{CheckpointId, Timestamp};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

/// Who has no right of their own has all, as long as nobody has one.
/// And nobody asks the coordinator whether a transaction is open that is written to.
const RIGHTS: &str = "transaction.partition.verification.enable=false\n\
                      authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer\n\
                      allow.everyone.if.no.acl.found=true";

/// A broker that is gone when this is dropped.
struct OwnBroker {
    directory: PathBuf,
    port: u16,
    settings: Vec<(String, String)>,
}

impl OwnBroker {
    fn start(settings: &[(&str, &str)]) -> Self {
        let settings = settings.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let directory = std::env::temp_dir().join(unique("sluice-test-kafka"));
        let broker = Self { directory, port: free_ports(), settings };
        broker.script(&["start"]);
        raw::wait_for_transactions(&broker.address());
        broker
    }

    fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    fn script(&self, arguments: &[&str]) {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/services/kafka.sh");
        let output = Command::new("bash")
            .arg(script)
            .args(arguments)
            .env("SLUICE_KAFKA_DIR", &self.directory)
            .env("SLUICE_KAFKA_PORT", self.port.to_string())
            .envs(self.settings.iter().cloned())
            .output()
            .expect("bash");
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {text}{}", String::from_utf8_lossy(&output.stdout));
    }
}

impl Drop for OwnBroker {
    fn drop(&mut self) {
        self.script(&["clean"]);
    }
}

/// A port that is free, and so are the one behind it, which the broker takes for its controller, and that of the secure listener.
fn free_ports() -> u16 {
    let is_free = |port: u16| TcpListener::bind(("127.0.0.1", port)).is_ok();
    loop {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        if port < u16::MAX - 3 && is_free(port + 1) && is_free(port + 3) {
            return port;
        }
    }
}

/// The default, what is above it, and brokers that do not tell it.
#[test]
fn the_timeout_of_transactions_is_what_the_brokers_allow_and_more_is_refused() {
    if bootstrap().is_none() {
        return;
    }
    let extra = format!("{RIGHTS}\ntransaction.max.timeout.ms=120000");
    let broker = OwnBroker::start(&[("SLUICE_KAFKA_EXTRA", &extra)]);
    let with = |millis: &[(&str, &str)]| {
        Topic::reached(&broker.address(), &broker.address(), millis, sluice_connectors::no_secrets())
    };
    let timeout = |millis| [("properties.transaction.timeout.ms", millis)];
    let (unset, long, short) = (with(&[]), with(&timeout("120001")), with(&timeout("30000")));
    let refused = Writer::of(&*long.factory).map(drop);
    let Err(TaskError::BadProgram(message)) = &refused else { panic!("{refused:?}") };
    assert!(["120001", "at most 120000"].iter().all(|number| message.contains(number)), "{message}");
    for (topic, millis, by) in [
        (&unset, 120_000, "transaction.max.timeout.ms of the Kafka brokers"),
        (&short, 30_000, "the option 'properties.transaction.timeout.ms'"),
    ] {
        assert!(
            matches!(topic.life(), Ok(StagedLife::Limited { span, by: said }) if span.0 == millis && said.starts_with(by))
        );
        let mut writer = Writer::of(&*topic.factory).unwrap();
        writer.write(topic.rows(0..1));
        writer.flush();
        let handle = writer.sink.committables(CheckpointId(1)).unwrap().pop().unwrap();
        // The writer was opened in 1970.
        assert_eq!(handle.expires_at, Some(Timestamp(millis)));
    }

    raw::deny_on_cluster(&broker.address(), raw::ANONYMOUS, &[raw::DESCRIBE_CONFIGS]);
    let told = unset.life();
    assert!(
        matches!(&told, Ok(StagedLife::Unknown(why)) if why.contains("Grant the principal DESCRIBE_CONFIGS")),
        "{told:?}"
    );
    assert!(matches!(short.life(), Ok(StagedLife::Limited { .. })), "nobody needs to be asked");
    // Kafka's default is taken, which is more than these allow.
    let refused = Writer::of(&*unset.factory).map(drop);
    let Err(TaskError::BadProgram(message)) = &refused else { panic!("{refused:?}") };
    assert!(message.contains("must not be above the brokers' transaction.max.timeout.ms"), "{message}");
}

#[test]
fn the_exactly_once_sink_stands_the_suite_on_kafka_4_2() {
    if bootstrap().is_none() {
        return;
    }
    let broker = OwnBroker::start(&[("SLUICE_KAFKA_VERSION", "4.2.0")]);
    conformance::check(|| Ok(Topic::fresh(&broker.address()))).unwrap();
}

/// With the older protocol too, in which a coordinator tells less.
#[test]
fn the_exactly_once_sink_stands_the_suite_with_transaction_version_1_and_tells_of_another_cluster_and_missing_rights() {
    let Some(shared) = bootstrap() else { return };
    let settings = [
        ("SLUICE_KAFKA_FEATURES", "transaction.version=1"),
        ("SLUICE_KAFKA_CLUSTER", "sluice-test-cluster-02"),
        ("SLUICE_KAFKA_EXTRA", RIGHTS),
        ("SLUICE_KAFKA_SECURE", "1"),
    ];
    let broker = OwnBroker::start(&settings);
    conformance::check(|| Ok(Topic::fresh(&broker.address()))).unwrap();
    another_cluster_is_told_of(&broker, &shared);
    a_marker_that_is_missing_is_written_by_the_next_commit(&broker);
    a_marker_that_may_not_be_written_is_told_of_until_the_right_is_there(&broker);
    missing_rights_are_named_and_waited_for(&broker);
    a_producer_that_is_refused_while_the_job_runs_is_waited_for(&broker);
    a_commit_without_the_right_is_tried_again(&broker);
}

/// A handle of one cluster where the options lead to another: nothing is lost there, and it is not taken for that.
fn another_cluster_is_told_of(broker: &OwnBroker, shared: &str) {
    let meant = Topic::fresh(&broker.address());
    let mut writer = Writer::of(&*meant.factory).unwrap();
    writer.write(meant.rows(0..3));
    writer.flush();
    let handle = writer.sink.committables(CheckpointId(1)).unwrap().pop().unwrap();
    for more in [&[][..], &[("sink.commit-failure", "skip")]] {
        let elsewhere = Topic::reached(shared, shared, more, sluice_connectors::no_secrets());
        let told = elsewhere.commit(&handle);
        let Err(CommitError::Retriable(message)) = &told else { panic!("{told:?}") };
        let both = ["'sluice-test-cluster-02'", "'sluice-test-cluster-01'", "restore.abandonSinks: [out.sink]"];
        assert!(both.iter().all(|part| message.contains(part)), "{message}");
    }
    assert_eq!(meant.commit(&handle), Ok(Commit::Committed));
    assert_eq!(meant.visible().unwrap().len(), 3);
}

/// KAFKA-20734: the coordinator says that the transaction is complete, and in one of its partitions it is open. Of 20 rows
/// that are committed, and one behind them.
fn committed_without_a_marker(broker: &OwnBroker, topic: &Topic) -> Committable {
    let mut writer = Writer::of(&*topic.factory).unwrap();
    writer.write(topic.rows(0..20));
    writer.flush();
    let handle = writer.sink.committables(CheckpointId(1)).unwrap().pop().unwrap();
    assert_eq!(topic.commit(&handle), Ok(Commit::Committed));
    let number = |field: &str| text_of(&handle, field).parse::<i64>().unwrap();
    let producer = (number("producerId"), i16::try_from(number("epoch")).unwrap());
    let partitions: serde_json::Value = serde_json::from_str(&text_of(&handle, "partitions")).unwrap();
    let partition = i32::try_from(partitions[&topic.topic][0].as_i64().unwrap()).unwrap();
    raw::reopen(&broker.address(), &topic.topic, partition, producer);
    assert_eq!(topic.visible().unwrap().len(), 20, "readers are held up behind it");
    handle
}

fn a_marker_that_is_missing_is_written_by_the_next_commit(broker: &OwnBroker) {
    let topic = Topic::fresh(&broker.address());
    let handle = committed_without_a_marker(broker, &topic);
    assert_eq!(topic.commit(&handle), Ok(Commit::AlreadyCommitted));
    until("the marker lets readers pass", || topic.visible().unwrap().len() == 21);
}

/// Whoever may write and commit may not do what brokers do among themselves: the commit is not called done.
fn a_marker_that_may_not_be_written_is_told_of_until_the_right_is_there(broker: &OwnBroker) {
    let secure = Secure::at(format!("127.0.0.1:{}", broker.port + 3), broker.directory.join("tls"));
    let options = secure.options("SCRAM-SHA-512", SCRAM, &IN_TEXT);
    // The topic is known later than what was written before it.
    raw::deny_on_cluster(&broker.address(), "User:carol", &[raw::CLUSTER_ACTION, raw::ALTER]);
    let topic = Topic::reached(&broker.address(), &secure.address, &options, secure.source_of_secrets());
    let handle = committed_without_a_marker(broker, &topic);
    let told = topic.commit(&handle);
    let Err(CommitError::Retriable(message)) = &told else { panic!("{told:?}") };
    let all = ["KAFKA-20734", &*topic.topic, "Grant the principal CLUSTER_ACTION on the cluster", "do not abort"];
    assert!(all.iter().all(|part| message.contains(part)), "{message}");
    assert_eq!(topic.visible().unwrap().len(), 20);
    raw::grant_on_cluster(&broker.address(), "User:carol", raw::CLUSTER_ACTION);
    until("it is written", || topic.commit(&handle) == Ok(Commit::AlreadyCommitted));
    until("the marker lets readers pass", || topic.visible().unwrap().len() == 21);
}

/// No right on the transactional ids: which one of what is said, and the start is for later.
fn missing_rights_are_named_and_waited_for(broker: &OwnBroker) {
    let topic = Topic::fresh(&broker.address());
    raw::deny_transactions(&broker.address(), &topic.prefix);
    let refused = Writer::of(&*topic.factory).map(drop);
    let Err(TaskError::Unavailable(message)) = &refused else { panic!("{refused:?}") };
    assert!(
        message.contains("WRITE and DESCRIBE on the transactional ids") && message.contains(&topic.prefix),
        "{message}"
    );
    raw::grant_transactions(&broker.address(), &topic.prefix);
    until("the right counts", || Writer::of(&*topic.factory).is_ok());
}

/// The pool grows while commits wait: the third producer has no right until it is granted, and the rows wait for it.
fn a_producer_that_is_refused_while_the_job_runs_is_waited_for(broker: &OwnBroker) {
    let topic = Topic::fresh(&broker.address());
    let mut writer = Writer::of(&*topic.factory).unwrap();
    let mut third = None;
    for checkpoint in 1..=2 {
        writer.write(topic.rows(0..3));
        writer.flush();
        let handles = writer.sink.committables(CheckpointId(checkpoint)).unwrap();
        let first = text_of(&handles[0], "transactionalId");
        third.get_or_insert_with(|| {
            let third = format!("{}2", first.strip_suffix('0').unwrap());
            raw::deny_transactions(&broker.address(), &third);
            third
        });
    }
    let refused_for = Instant::now() + Duration::from_secs(3);
    while Instant::now() < refused_for {
        assert!(!writer.sink.is_writable().unwrap(), "it has no producer, and rows have waited for seconds only");
        std::thread::sleep(Duration::from_millis(20));
    }
    raw::grant_transactions(&broker.address(), &third.unwrap());
    until("the rows go on", || writer.sink.is_writable().unwrap());
}

/// What is staged stays staged, and its commit says what is missing.
fn a_commit_without_the_right_is_tried_again(broker: &OwnBroker) {
    let topic = Topic::fresh(&broker.address());
    let mut writer = Writer::of(&*topic.factory).unwrap();
    writer.write(topic.rows(0..3));
    writer.flush();
    let handle = writer.sink.committables(CheckpointId(1)).unwrap().pop().unwrap();
    let id = text_of(&handle, "transactionalId");
    raw::deny_transactions(&broker.address(), &id);
    until("the right is gone", || topic.commit(&handle).is_err());
    let told = topic.commit(&handle);
    let Err(CommitError::Retriable(message)) = &told else { panic!("{told:?}") };
    let all = [&*id, "grant the principal of 'properties.*' WRITE and DESCRIBE on the transactional id"];
    assert!(all.iter().all(|part| message.contains(part)), "{message}");
    raw::grant_transactions(&broker.address(), &id);
    until("it is committed", || topic.commit(&handle).is_ok());
    assert_eq!(topic.visible().unwrap().len(), 3);
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !holds() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}
