//! Connectors: what stands between a job and the outside (design §3).
//!
//! Owns the options of `CREATE TABLE … WITH (…)`, the formats, and the readers and writers behind
//! [`Source`](sluice_engine::source::Source) and [`Sink`](sluice_engine::sink::Sink). Knows nothing of SQL text,
//! checkpoints or the JobManager. Callers rely on [`catalog`] alone: it checks every option without contacting
//! anybody, and a client is made only when a task opens its source or sink.
//!
//! The map:
//! - [`catalog`](mod@catalog): from `'connector' = '…'` to a factory.
//! - `options`: reads and refuses options; every connector and format goes through it.
//! - `secrets`: values of `${secret:NAME/KEY}`, looked up when a client is made.
//! - `datagen`: generated rows, a pure function of seed and row number.
//! - `print`, `blackhole`: sinks for trying out and for measuring.
//! - `format`: json, csv, raw and debezium-json, for all connectors; `json`: the first of them.
//! - `filesystem`: directories of files, locally and on S3; the sink commits them with checkpoints.
//! - `socket`: lines that a TCP server sends, for trying things out.
//! - `kafka`: the `kafka` source and sink and the `upsert-kafka` sink.

mod blackhole;
pub mod catalog;
pub mod datagen;
mod filesystem;
mod format;
mod json;
mod kafka;
mod options;
mod print;
mod secrets;
mod socket;
mod throttle;

pub use catalog::{catalog, catalog_with};
pub use secrets::{SecretSource, no_secrets};
