//! The format `json`, as Flink's: options, decoding of messages into rows, encoding of rows into messages.
//!
//! - `options`: `json.*` under the prefixes that connectors give them. - `decode`: messages into batches, with
//!   `text_columns`. - `encode`: rows into messages. - `timestamp`: the two standards of timestamps.

pub(crate) mod decode;
pub(crate) mod encode;
pub(crate) mod options;
pub(crate) mod text_columns;
pub(crate) mod timestamp;

#[cfg(test)]
mod tests;
