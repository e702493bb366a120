//! The Kafka source and sinks against a real broker, named by `SLUICE_TEST_KAFKA` (`127.0.0.1:9092`). Without it the
//! tests skip and say so; with `CI=true` they fail instead.
//!
//! - `broker`: topics, records in and out by a plain client. - `raw`: transactions as the brokers list them.
//! - `missing`: topics that come, go or have no leader, on brokers of librdkafka's own, which run always.
//! - `task`: what the task loop does with a source or sink. - `exactly_once`: the conformance suite, `versions`: on other brokers.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, reason = "the whole crate is tests")]

mod broker;
mod exactly_once;
mod formats;
mod missing;
mod raw;
mod secure;
mod sink;
mod source;
mod speed;
mod task;
mod versions;
