//! Passwords, TLS with an authority of one's own and certificates of clients, against the broker's secure listener, named by
//! `SLUICE_TEST_KAFKA_SECURE` with its files in `SLUICE_TEST_KAFKA_TLS` (`tests/services/kafka.sh`, `SLUICE_KAFKA_SECURE=1`).

use crate::broker::{bootstrap, create_topic, read_all, read_committed, unique};
use crate::task::{Reader, Writer, table};
use arrow::array::{ArrayRef, Int64Array, RecordBatch};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use sluice_connectors::SecretSource;
use sluice_engine::batch::Batch;
use sluice_engine::error::TaskError;
use sluice_engine::operator::TaskIdentity;
use sluice_engine::sink::{Commit, CommitterContext};
use sluice_engine::table::{ConnectorCatalog as _, TableDescriptor};
use sluice_protocol::CheckpointId;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

const PLAIN: &str = r#"org.apache.kafka.common.security.plain.PlainLoginModule required username="alice" password="${secret:kafka/password}";"#;
pub(crate) const SCRAM: &str = r#"org.apache.kafka.common.security.scram.ScramLoginModule required username="carol" password="${secret:kafka/scram}";"#;

/// The secure listener and the directory of its certificates.
pub(crate) struct Secure {
    pub(crate) address: String,
    tls: PathBuf,
    secrets: BTreeMap<String, String>,
}

impl Secure {
    pub(crate) fn find() -> Option<Self> {
        let read = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let Some(address) = read("SLUICE_TEST_KAFKA_SECURE") else {
            assert!(read("CI").is_none_or(|ci| ci != "true"), "CI=true, but SLUICE_TEST_KAFKA_SECURE is not set");
            println!("skipped: no secure listener named (SLUICE_TEST_KAFKA_SECURE); `cargo verify` starts one");
            return None;
        };
        let tls = read("SLUICE_TEST_KAFKA_TLS").expect("it goes with SLUICE_TEST_KAFKA_SECURE");
        Some(Self::at(address, tls.into()))
    }

    /// One that listens here, with its certificates in a directory.
    pub(crate) fn at(address: String, tls: PathBuf) -> Self {
        let file = |name: &str| std::fs::read_to_string(tls.join(name)).unwrap();
        let secrets = [
            ("kafka/password", "alice secret".to_owned()),
            ("kafka/scram", "carol secret".to_owned()),
            ("kafka/wrong", "another secret".to_owned()),
            ("kafka/jaas", PLAIN.replace("${secret:kafka/password}", "alice secret")),
            ("kafka/ca.crt", file("ca.pem")),
            ("kafka/tls.crt", file("client.pem")),
            ("kafka/tls.key", file("client.key")),
        ];
        let secrets = secrets.map(|(name, value)| (name.to_owned(), value)).into();
        Self { address, tls, secrets }
    }

    pub(crate) fn source_of_secrets(&self) -> SecretSource {
        let secrets = self.secrets.clone();
        Arc::new(move |reference| {
            let name = format!("{}/{}", reference.name, reference.key);
            secrets.get(&name).cloned().ok_or_else(|| format!("{reference} has no value"))
        })
    }

    /// What reaches it beside its address.
    #[expect(clippy::unused_self, reason = "there is a way only where there is a listener")]
    pub(crate) fn options<'a>(
        &self,
        mechanism: &'a str,
        jaas: &'a str,
        tls: &[(&'a str, &'a str)],
    ) -> Vec<(&'a str, &'a str)> {
        let own = [
            ("properties.security.protocol", "SASL_SSL"),
            ("properties.sasl.mechanism", mechanism),
            ("properties.sasl.jaas.config", jaas),
        ];
        [&own[..], tls].concat()
    }

    fn table(&self, topic: &str, mechanism: &str, jaas: &str, tls: &[(&str, &str)]) -> TableDescriptor {
        let mut options = vec![
            ("connector", "kafka"),
            ("topic", topic),
            ("format", "json"),
            ("scan.startup.mode", "earliest-offset"),
            ("scan.bounded.mode", "latest-offset"),
            ("properties.bootstrap.servers", &self.address),
        ];
        options.extend(self.options(mechanism, jaas, tls));
        table(&schema(), &[], &options)
    }

    /// Writes three rows and reads them.
    fn check(&self, table: &TableDescriptor) {
        let catalog = sluice_connectors::catalog_with(None, self.source_of_secrets());
        let mut writer = Writer::of(&*catalog.sink(table).unwrap()).unwrap();
        let column: ArrayRef = Arc::new(Int64Array::from(vec![1, 2, 3]));
        writer.write(Batch::inserts(RecordBatch::try_new(schema(), vec![column]).unwrap()));
        writer.flush();
        let mut reader = Reader::open(&catalog.source(table).unwrap(), 0, 1, None).unwrap();
        let mut rows = 0;
        while let Some(batch) = reader.next(100).unwrap() {
            rows += batch.len();
        }
        assert_eq!(rows, 3);
    }

    /// What the source says that cannot be opened; no secret is part of it.
    fn refusal(&self, table: &TableDescriptor) -> TaskError {
        let catalog = sluice_connectors::catalog_with(None, self.source_of_secrets());
        let refused = Reader::open(&catalog.source(table).unwrap(), 0, 1, None).err().expect("refused");
        let said = format!("{refused} {refused:?}");
        assert!(self.secrets.values().all(|secret| !said.contains(secret.as_str())), "{said}");
        refused
    }
}

/// A login module, options of TLS, and what the refusal says.
type Case<'a> = (&'a str, &'a [(&'a str, &'a str)], &'a str);

fn schema() -> SchemaRef {
    Arc::new(Schema::new(vec![Field::new("n", DataType::Int64, true)]))
}

pub(crate) const IN_TEXT: [(&str, &str); 3] = [
    ("properties.ssl.truststore.certificates", "${secret:kafka/ca.crt}"),
    ("properties.ssl.keystore.certificate.chain", "${secret:kafka/tls.crt}"),
    ("properties.ssl.keystore.key", "${secret:kafka/tls.key}"),
];

#[test]
fn passwords_and_certificates_come_from_secrets() {
    let (Some(bootstrap), Some(secure)) = (bootstrap(), Secure::find()) else { return };
    for (mechanism, jaas) in [("PLAIN", PLAIN), ("SCRAM-SHA-512", SCRAM), ("PLAIN", "${secret:kafka/jaas}")] {
        let topic = create_topic(&bootstrap, "secure", 1);
        secure.check(&secure.table(&topic, mechanism, jaas, &IN_TEXT));
        assert_eq!(read_all(&bootstrap, &topic).len(), 3, "{mechanism}");
    }
    let topic = create_topic(&bootstrap, "secure-files", 1);
    let (ca, client) = (secure.tls.join("ca.pem"), secure.tls.join("client.store.pem"));
    let files = [
        ("properties.ssl.truststore.type", "PEM"),
        ("properties.ssl.truststore.location", ca.to_str().unwrap()),
        ("properties.ssl.keystore.type", "pem"),
        ("properties.ssl.keystore.location", client.to_str().unwrap()),
    ];
    secure.check(&secure.table(&topic, "PLAIN", PLAIN, &files));
}

#[test]
fn what_the_broker_does_not_take_is_named_without_the_secret() {
    let (Some(_), Some(secure)) = (bootstrap(), Secure::find()) else { return };
    let topic = unique("refused");
    let wrong = PLAIN.replace("kafka/password", "kafka/wrong");
    let missing = PLAIN.replace("kafka/password", "kafka/missing");
    let cases: [Case<'_>; 4] = [
        (&wrong, &IN_TEXT, "properties.sasl"),
        (&missing, &IN_TEXT, "${secret:kafka/missing}"),
        (PLAIN, &IN_TEXT[1..], "certificate"),
        (PLAIN, &IN_TEXT[..1], "certificate"),
    ];
    for (jaas, tls, says) in cases {
        let refused = secure.refusal(&secure.table(&topic, "PLAIN", jaas, tls));
        assert!(matches!(refused, TaskError::Unavailable(_)), "{refused:?}");
        assert!(refused.to_string().contains(says), "'{says}' is not in: {refused}");
    }
}

#[test]
fn a_secret_stands_only_where_it_is_never_shown() {
    let there =
        [("properties.bootstrap.servers", "b:9092"), ("connector", "kafka"), ("format", "json"), ("topic", "t")];
    for (key, value, says) in [
        ("topic", "${secret:kafka/topic}", "cannot hold a secret"),
        ("properties.client.id", "${secret:kafka/id}", "cannot hold a secret"),
        ("properties.sasl.password", "${secret:kafka}", "${secret:NAME/KEY}"),
        ("properties.ssl.truststore.type", "JKS", "'PEM'"),
    ] {
        let mut options: Vec<_> = there.iter().copied().filter(|(name, _)| *name != key).collect();
        options.push((key, value));
        let refused = sluice_connectors::catalog().sink(&table(&schema(), &[], &options)).err().unwrap();
        assert_eq!(refused.option.as_deref(), Some(key));
        assert!(refused.message.contains(says), "'{says}' is not in: {refused}");
    }
}

/// By the sink's own client, which commits and aborts beside librdkafka.
#[test]
fn a_transaction_is_committed_through_the_secure_listener() {
    let (Some(bootstrap), Some(secure)) = (bootstrap(), Secure::find()) else { return };
    let catalog = sluice_connectors::catalog_with(None, secure.source_of_secrets());
    for (mechanism, jaas) in [("PLAIN", PLAIN), ("SCRAM-SHA-512", SCRAM)] {
        let topic = create_topic(&bootstrap, "secure-exactly-once", 1);
        let prefix = unique("secure");
        let mut options = IN_TEXT.to_vec();
        options
            .extend([("sink.delivery-guarantee", "exactly-once"), ("sink.transactional-id-prefix", prefix.as_str())]);
        let factory = catalog.sink(&secure.table(&topic, mechanism, jaas, &options)).unwrap();
        let mut writer = Writer::of(&*factory).unwrap();
        let column: ArrayRef = Arc::new(Int64Array::from(vec![1, 2, 3]));
        writer.write(Batch::inserts(RecordBatch::try_new(schema(), vec![column]).unwrap()));
        writer.flush();
        let handles = writer.sink.committables(CheckpointId(1)).unwrap();
        assert_eq!(read_committed(&bootstrap, &topic).len(), 0, "{mechanism}");
        let context = CommitterContext { job: TaskIdentity::default().job, sink: "t".into() };
        let committed = factory.committer(context).unwrap().unwrap().commit(&handles[0]);
        assert_eq!(committed, Ok(Commit::Committed), "{mechanism}");
        assert_eq!(read_committed(&bootstrap, &topic).len(), 3, "{mechanism}");
    }
}
