//! `properties.*`: from the names and values of the Java client, which Flink's users write, to librdkafka's.
//!
//! What librdkafka knows by the same name is passed on; what it knows by another is renamed; what only Java has, and
//! what Sluice decides itself, is refused with the reason. Values never reach a log; `Debug` hides them.

use super::secure::Security;
use crate::options::{Options, is_secret, shown};
use crate::secrets::SecretSource;
use rdkafka::ClientConfig;
use rdkafka::error::KafkaError;
use sluice_engine::error::TaskError;
use sluice_engine::table::TableError;
use sluice_protocol::secrets::resolve;
use std::collections::BTreeMap;
use std::fmt;

/// What becomes of a property.
enum Rule {
    /// librdkafka's name for it.
    Rename(&'static str),
    /// librdkafka's name for it, and librdkafka counts in units of 1024 bytes.
    Kilobytes(&'static str),
    /// Not to be set, because.
    Refuse(&'static str),
    /// Only this value, because.
    Only(&'static str, &'static str),
}

const TRUSTSTORE: &str = "the client does not read Java key stores; export the certificates as PEM, and set \
                          'properties.ssl.truststore.type' = 'PEM' beside their file, or write them into \
                          'properties.ssl.truststore.certificates'";
const SERDE: &str = "keys and values are read and written by the table's format; remove it";
const JAVA_ONLY: &str = "only the Java client has it, and Sluice uses librdkafka; remove it";
const AT_CHECKPOINTS: &str = "offsets are committed at checkpoints, when 'properties.group.id' is set; remove it";

const RULES: &[(&str, Rule)] = &[
    ("key.deserializer", Rule::Refuse(SERDE)),
    ("value.deserializer", Rule::Refuse(SERDE)),
    ("key.serializer", Rule::Refuse(SERDE)),
    ("value.serializer", Rule::Refuse(SERDE)),
    (
        "partition.discovery.interval.ms",
        Rule::Refuse("the option 'scan.topic-partition-discovery.interval' says it; write it instead"),
    ),
    ("enable.auto.commit", Rule::Only("false", AT_CHECKPOINTS)),
    ("auto.commit.interval.ms", Rule::Refuse(AT_CHECKPOINTS)),
    ("enable.auto.offset.store", Rule::Refuse(AT_CHECKPOINTS)),
    ("enable.partition.eof", Rule::Refuse("'scan.bounded.mode' says whether the source ends; remove it")),
    (
        "transactional.id",
        Rule::Refuse(
            "the sink names its transactions itself; 'sink.transactional-id-prefix' says what the names begin with",
        ),
    ),
    (
        "enable.idempotence",
        Rule::Only("true", "without it a retry could change the order of a key's values; remove it"),
    ),
    ("max.poll.records", Rule::Refuse(JAVA_ONLY)),
    ("max.block.ms", Rule::Refuse(JAVA_ONLY)),
    ("default.api.timeout.ms", Rule::Refuse(JAVA_ONLY)),
    ("partitioner.class", Rule::Refuse("the client does not load Java classes; 'properties.partitioner' chooses one")),
    ("interceptor.classes", Rule::Refuse(JAVA_ONLY)),
    ("metric.reporters", Rule::Refuse(JAVA_ONLY)),
    ("metrics.num.samples", Rule::Refuse(JAVA_ONLY)),
    ("register.consumer.metrics", Rule::Refuse(JAVA_ONLY)),
    ("exclude.internal.topics", Rule::Refuse(JAVA_ONLY)),
    ("ssl.truststore.location", Rule::Refuse(TRUSTSTORE)),
    ("ssl.truststore.password", Rule::Refuse(TRUSTSTORE)),
    ("ssl.truststore.certificates", Rule::Rename("ssl.ca.pem")),
    ("ssl.keystore.key", Rule::Rename("ssl.key.pem")),
    ("ssl.keystore.certificate.chain", Rule::Rename("ssl.certificate.pem")),
    ("ssl.protocol", Rule::Refuse(JAVA_ONLY)),
    ("ssl.enabled.protocols", Rule::Refuse(JAVA_ONLY)),
    (
        "sasl.client.callback.handler.class",
        Rule::Refuse("the client does not load Java classes; see librdkafka's 'sasl.oauthbearer.*' properties"),
    ),
    (
        "sasl.login.callback.handler.class",
        Rule::Refuse("the client does not load Java classes; see librdkafka's 'sasl.oauthbearer.*' properties"),
    ),
    ("fetch.max.wait.ms", Rule::Rename("fetch.wait.max.ms")),
    ("client.id.prefix", Rule::Rename("client.id")),
    ("max.request.size", Rule::Rename("message.max.bytes")),
    ("buffer.memory", Rule::Kilobytes("queue.buffering.max.kbytes")),
    ("receive.buffer.bytes", Rule::Rename("socket.receive.buffer.bytes")),
    ("send.buffer.bytes", Rule::Rename("socket.send.buffer.bytes")),
];

/// What the source does when a partition has no committed offset (`properties.auto.offset.reset`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AutoOffsetReset {
    /// Begin with the oldest record.
    Earliest,
    /// Begin with the next record.
    Latest,
    /// Fail. The default.
    None,
}

/// The properties of one client, by librdkafka's names.
#[derive(Clone)]
pub(super) struct ClientProperties {
    values: BTreeMap<String, String>,
    /// `properties.group.id`.
    pub(super) group_id: Option<String>,
    /// `properties.auto.offset.reset`.
    pub(super) auto_offset_reset: AutoOffsetReset,
    /// `properties.commit.offsets.on.checkpoint`.
    pub(super) commit_on_checkpoint: bool,
    /// Values of `${secret:NAME/KEY}`, which stand in `values` as they are written.
    pub(super) secrets: Option<SecretSource>,
}

impl fmt::Debug for ClientProperties {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.values.keys()).finish()
    }
}

const PREFIX: &str = "properties.";

/// A login module that is a secret as a whole.
const JAAS: &str = "sasl.jaas.config";

impl ClientProperties {
    /// Reads and checks all `properties.*` of a table.
    pub(super) fn read(options: &Options<'_>) -> Result<Self, TableError> {
        options
            .required("properties.bootstrap.servers", "where the brokers are, such as 'broker-1:9092,broker-2:9092'")?;
        let reset = [
            ("earliest", AutoOffsetReset::Earliest),
            ("latest", AutoOffsetReset::Latest),
            ("none", AutoOffsetReset::None),
        ];
        let mut properties = Self {
            values: BTreeMap::new(),
            group_id: options.text("properties.group.id").map(str::to_owned),
            auto_offset_reset: options.choice("properties.auto.offset.reset", &reset)?.unwrap_or(AutoOffsetReset::None),
            commit_on_checkpoint: options.boolean("properties.commit.offsets.on.checkpoint")?.unwrap_or(true),
            secrets: None,
        };
        for option in &options.table().options {
            let Some(name) = option.key.strip_prefix(PREFIX) else { continue };
            match name {
                "group.id" | "auto.offset.reset" | "commit.offsets.on.checkpoint" => {}
                "ssl.truststore.type" | "ssl.keystore.type" => store_type(options, &option.key, &option.value)?,
                "ssl.truststore.location" if is_pem(options, "properties.ssl.truststore.type") => {
                    properties.values.insert("ssl.ca.location".to_owned(), option.value.clone());
                }
                // One file holds the key and the certificates.
                "ssl.keystore.location" if is_pem(options, "properties.ssl.keystore.type") => {
                    for name in ["ssl.key.location", "ssl.certificate.location"] {
                        properties.values.insert(name.to_owned(), option.value.clone());
                    }
                }
                "sasl.jaas.config" => properties.take_jaas(options, &option.key, &option.value)?,
                _ => properties.take(options, &option.key, name, &option.value)?,
            }
        }
        Ok(properties)
    }

    fn take(&mut self, options: &Options<'_>, key: &str, name: &str, value: &str) -> Result<(), TableError> {
        let (name, value) = match RULES.iter().find(|(java, _)| *java == name).map(|(_, rule)| rule) {
            None => (name, value.to_owned()),
            Some(Rule::Rename(other)) => (*other, value.to_owned()),
            Some(Rule::Kilobytes(other)) => {
                let bytes: u64 = value.trim().parse().map_err(|_| options.wrong(key, value, "a number of bytes"))?;
                (*other, bytes.div_ceil(1024).to_string())
            }
            Some(Rule::Only(allowed, _)) if value.trim().eq_ignore_ascii_case(allowed) => return Ok(()),
            Some(Rule::Only(allowed, reason)) => {
                return Err(options.error(key, format!("the option '{key}' can only be '{allowed}': {reason}")));
            }
            Some(Rule::Refuse(reason)) => {
                return Err(options.error(key, format!("the option '{key}' cannot be set: {reason}")));
            }
        };
        // Java switches the check off with an empty value.
        let value =
            if name == "ssl.endpoint.identification.algorithm" && value.is_empty() { "none".to_owned() } else { value };
        if !value.contains("${secret:") {
            check(options, key, name, &value)?;
        }
        self.values.insert(name.to_owned(), value);
        Ok(())
    }

    /// `org.apache.kafka…PlainLoginModule required username="u" password="p";` as user name and password.
    fn take_jaas(&mut self, options: &Options<'_>, key: &str, value: &str) -> Result<(), TableError> {
        match credentials(value) {
            Some((username, password)) => {
                self.values.insert("sasl.username".to_owned(), username);
                self.values.insert("sasl.password".to_owned(), password);
                Ok(())
            }
            // A secret as a whole is understood once its value is there.
            None if value.trim().starts_with("${secret:") => {
                self.values.insert(JAAS.to_owned(), value.trim().to_owned());
                Ok(())
            }
            None => Err(options.error(
                key,
                format!(
                    "the option '{key}' (its value is not shown) is only understood with PlainLoginModule or \
                     ScramLoginModule and username=\"…\" password=\"…\"; for the rest set librdkafka's own properties, \
                     such as 'properties.sasl.username' and 'properties.sasl.password'"
                ),
            )),
        }
    }

    /// For librdkafka: `defaults` unless the user said otherwise, then the user's with the values of secrets, then `fixed`.
    pub(super) fn to_config(
        &self,
        defaults: &[(&str, &str)],
        fixed: &[(&str, &str)],
    ) -> Result<ClientConfig, TaskError> {
        let mut config = ClientConfig::new();
        for (name, value) in defaults {
            config.set(*name, *value);
        }
        for (name, value) in self.with_secrets()? {
            config.set(name, value);
        }
        for (name, value) in fixed {
            config.set(*name, *value);
        }
        Ok(config)
    }

    /// The properties with the values of secrets.
    fn with_secrets(&self) -> Result<BTreeMap<String, String>, TaskError> {
        let mut values = BTreeMap::new();
        for (name, value) in &self.values {
            let value = resolve(value, |reference| match &self.secrets {
                Some(secrets) => secrets(reference).map_err(TaskError::Unavailable),
                None => Err(TaskError::Internal(format!("{reference} is asked for where there are no secrets"))),
            })?;
            values.insert(name.clone(), value);
        }
        if let Some(jaas) = values.remove(JAAS) {
            let Some((username, password)) = credentials(&jaas) else {
                return Err(TaskError::Unavailable(
                    "the secret in 'properties.sasl.jaas.config' (its value is not shown) holds no PlainLoginModule or \
                     ScramLoginModule with username=\"…\" password=\"…\""
                        .to_owned(),
                ));
            };
            values.insert("sasl.username".to_owned(), username);
            values.insert("sasl.password".to_owned(), password);
        }
        Ok(values)
    }

    /// What commits a transaction after a crash is a client of its own, which does not understand all that librdkafka does.
    pub(super) fn check_transactional(&self, options: &Options<'_>) -> Result<(), TableError> {
        let Err((name, allowed)) = Security::read(&self.values) else { return Ok(()) };
        let key = format!("{PREFIX}{name}");
        let value = options.text(&key).or_else(|| self.values.get(name).map(String::as_str)).unwrap_or("not set");
        Err(options.wrong(&key, value, &format!("{allowed} with 'sink.delivery-guarantee' = 'exactly-once'")))
    }

    /// How connections beside librdkafka's are made safe.
    pub(super) fn security(&self) -> Result<Security, TaskError> {
        // Checked when the table was read.
        Ok(Security::read(&self.with_secrets()?).unwrap_or_default())
    }

    /// A number of kilobytes in bytes: the user's, else `default`, which is in kilobytes too.
    pub(super) fn kilobytes(&self, name: &str, default: u64) -> u64 {
        self.values.get(name).and_then(|value| value.trim().parse().ok()).unwrap_or(default) * 1024
    }

    /// Bytes that a reader may hold of what it has fetched, of all its partitions together.
    pub(super) fn fetch_budget(&self) -> u64 {
        self.kilobytes("queued.max.messages.kbytes", 16_384)
    }

    /// Whether the user has set it.
    pub(super) fn has(&self, name: &str) -> bool {
        self.values.contains_key(name)
    }

    /// Where the brokers are, for messages.
    pub(super) fn bootstrap_servers(&self) -> &str {
        self.values.get("bootstrap.servers").map_or("", String::as_str)
    }
}

/// Kinds of stores that can be read.
fn store_type(options: &Options<'_>, key: &str, value: &str) -> Result<(), TableError> {
    let allowed: &[&str] = if key.contains("truststore") { &["PEM"] } else { &["PEM", "PKCS12"] };
    match allowed.iter().any(|allowed| allowed.eq_ignore_ascii_case(value.trim())) {
        true => Ok(()),
        false => Err(options.wrong(key, value, &format!("one of {}: {TRUSTSTORE}", crate::options::list(allowed)))),
    }
}

fn is_pem(options: &Options<'_>, key: &str) -> bool {
    options.text(key).is_some_and(|value| value.trim().eq_ignore_ascii_case("PEM"))
}

/// User name and password of a login module that is understood.
fn credentials(jaas: &str) -> Option<(String, String)> {
    let is_known = jaas.contains("PlainLoginModule") || jaas.contains("ScramLoginModule");
    quoted(jaas, "username").zip(quoted(jaas, "password")).filter(|_| is_known)
}

/// The value of `name="…"`.
fn quoted(text: &str, name: &str) -> Option<String> {
    let start = text.find(&format!("{name}="))? + name.len() + 1;
    let quote = text[start..].chars().next().filter(|quote| matches!(quote, '"' | '\''))?;
    let rest = &text[start + 1..];
    Some(rest[..rest.find(quote)?].to_owned())
}

/// Asks librdkafka whether it knows the property and takes the value.
fn check(options: &Options<'_>, key: &str, name: &str, value: &str) -> Result<(), TableError> {
    let Err(error) = ClientConfig::new().set(name, value).create_native_config() else { return Ok(()) };
    let reason = match error {
        // librdkafka's own words may hold the value.
        KafkaError::ClientConfig(..) if is_secret(name) => "librdkafka does not take it".to_owned(),
        KafkaError::ClientConfig(_, description, ..) => description,
        _ => "it holds a NUL character".to_owned(),
    };
    Err(options.error(
        key,
        format!(
            "the option '{key}' is {}, which the Kafka client refuses: {reason}. The properties are librdkafka's; its \
             CONFIGURATION.md lists them",
            shown(key, value)
        ),
    ))
}
