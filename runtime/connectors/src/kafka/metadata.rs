//! What Kafka knows of a record, as columns: `METADATA FROM 'timestamp'` and the like.

use arrow::array::{ArrayRef, BinaryBuilder, Int32Builder, Int64Builder, StringBuilder, TimestampMillisecondBuilder};
use arrow::compute::{can_cast_types, cast};
use arrow::datatypes::{DataType, TimeUnit};
use arrow::error::ArrowError;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rdkafka::Timestamp;
use rdkafka::message::{Headers as _, Message};
use std::sync::Arc;

/// What can be asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Key {
    Topic,
    Partition,
    Offset,
    Timestamp,
    TimestampType,
    /// All headers, as a JSON array of objects.
    Headers,
    /// The last header of this name.
    Header(String),
}

/// The keys, for messages.
const KEYS: &str = "'topic', 'partition', 'offset', 'timestamp', 'timestamp-type', 'headers' and 'headers.NAME'";

impl Key {
    /// By its name, with the type that the column is declared with.
    pub(super) fn new(name: &str, declared: &DataType) -> Result<Self, String> {
        let key = match name {
            "topic" => Self::Topic,
            "partition" => Self::Partition,
            "offset" => Self::Offset,
            "timestamp" => Self::Timestamp,
            "timestamp-type" => Self::TimestampType,
            "headers" => Self::Headers,
            "leader-epoch" => {
                return Err("the metadata 'leader-epoch' is not offered: the Kafka client does not give it".to_owned());
            }
            _ => match name.strip_prefix("headers.").filter(|name| !name.is_empty()) {
                Some(header) => Self::Header(header.to_owned()),
                None => return Err(format!("connector 'kafka' has no metadata '{name}'; it has {KEYS}")),
            },
        };
        let is_header = matches!(key, Self::Header(_)) && matches!(declared, DataType::Utf8 | DataType::Binary);
        let own = key.data_type();
        if is_header || own == *declared || (is_readable(&own, declared) && can_cast_types(&own, declared)) {
            Ok(key)
        } else {
            Err(format!("the metadata '{name}' is {own}, which cannot be read as {declared}"))
        }
    }

    fn data_type(&self) -> DataType {
        match self {
            Self::Topic | Self::TimestampType | Self::Headers => DataType::Utf8,
            Self::Partition => DataType::Int32,
            Self::Offset => DataType::Int64,
            Self::Timestamp => DataType::Timestamp(TimeUnit::Millisecond, Some("UTC".into())),
            Self::Header(_) => DataType::Binary,
        }
    }

    fn builder(&self) -> Builder {
        match self {
            Self::Topic | Self::TimestampType | Self::Headers => Builder::Text(StringBuilder::new()),
            Self::Partition => Builder::Int(Int32Builder::new()),
            Self::Offset => Builder::Long(Int64Builder::new()),
            Self::Timestamp => Builder::Time(TimestampMillisecondBuilder::new().with_timezone("UTC")),
            Self::Header(_) => Builder::Bytes(BinaryBuilder::new()),
        }
    }
}

/// Numbers as wider ones or text, never as narrower ones; instants as other times or milliseconds.
const fn is_readable(own: &DataType, declared: &DataType) -> bool {
    match own {
        DataType::Int32 | DataType::Int64 => matches!(declared, DataType::Int64 | DataType::Utf8),
        DataType::Timestamp(..) => matches!(declared, DataType::Timestamp(..) | DataType::Int64),
        _ => false,
    }
}

enum Builder {
    Text(StringBuilder),
    Int(Int32Builder),
    Long(Int64Builder),
    Time(TimestampMillisecondBuilder),
    Bytes(BinaryBuilder),
}

/// A column that grows by a value per record.
pub(super) struct MetadataColumn {
    key: Key,
    data_type: DataType,
    builder: Builder,
}

impl MetadataColumn {
    pub(super) fn new(key: Key, data_type: DataType) -> Self {
        let builder = key.builder();
        Self { key, data_type, builder }
    }

    pub(super) fn push(&mut self, message: &impl Message) {
        match (&self.key, &mut self.builder) {
            (Key::Topic, Builder::Text(texts)) => texts.append_value(message.topic()),
            (Key::TimestampType, Builder::Text(texts)) => texts.append_value(match message.timestamp() {
                Timestamp::NotAvailable => "NoTimestampType",
                Timestamp::CreateTime(_) => "CreateTime",
                Timestamp::LogAppendTime(_) => "LogAppendTime",
            }),
            (Key::Headers, Builder::Text(texts)) => texts.append_option(headers(message)),
            (Key::Partition, Builder::Int(numbers)) => numbers.append_value(message.partition()),
            (Key::Offset, Builder::Long(numbers)) => numbers.append_value(message.offset()),
            (Key::Timestamp, Builder::Time(times)) => times.append_option(message.timestamp().to_millis()),
            (Key::Header(name), Builder::Bytes(values)) => {
                let all = message.headers();
                let of_name = |all| rdkafka::message::Headers::iter(all).filter(|header| header.key == name).last();
                values.append_option(all.and_then(of_name).and_then(|header| header.value));
            }
            // Made by `Key::builder`.
            _ => {}
        }
    }

    /// The column so far, which begins anew.
    pub(super) fn finish(&mut self) -> Result<ArrayRef, ArrowError> {
        let made: ArrayRef = match &mut self.builder {
            Builder::Text(builder) => Arc::new(builder.finish()),
            Builder::Int(builder) => Arc::new(builder.finish()),
            Builder::Long(builder) => Arc::new(builder.finish()),
            Builder::Time(builder) => Arc::new(builder.finish()),
            Builder::Bytes(builder) => Arc::new(builder.finish()),
        };
        if *made.data_type() == self.data_type { Ok(made) } else { cast(&made, &self.data_type) }
    }
}

/// `[{"key":"trace","value":"a1"}]`, a value that is no UTF-8 as `"base64"`; `None` without headers.
fn headers(message: &impl Message) -> Option<String> {
    let headers = message.headers()?;
    let one = |header: rdkafka::message::Header<'_, &[u8]>| match header.value.map(std::str::from_utf8) {
        None => serde_json::json!({ "key": header.key, "value": null }),
        Some(Ok(text)) => serde_json::json!({ "key": header.key, "value": text }),
        Some(Err(_)) => {
            let bytes = header.value.unwrap_or_default();
            serde_json::json!({ "key": header.key, "base64": STANDARD.encode(bytes) })
        }
    };
    Some(serde_json::Value::Array(headers.iter().map(one).collect()).to_string())
}
