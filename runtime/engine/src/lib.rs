//! The dataflow: batches, operators, the task loop, exchange queues, barriers, keyed state.
//!
//! No sockets, no tokio, no clock: a task is a synchronous state machine that is stepped by a thread in a
//! TaskManager and by the simulation in tests; bytes enter and leave through queues.
//!
//! The map:
//! - [`batch`]: the unit of the data path, rows with their kinds.
//! - [`channel`]: bounded queues between tasks, and frames as bytes.
//! - [`operator`], [`source`], [`sink`]: what a program is made of; [`program`]: how it is put together.
//! - [`input_gate`], [`partition`]: the reading and the writing side of a task's edges; [`keys`]: hashes of keys.
//! - [`task`]: the state machine that moves rows, barriers and snapshots; [`runner`]: a thread that steps one.
//! - [`aggregate`], [`operators`]: the operators we bring; [`state`]: keyed state, copy-on-write and its files.
//! - [`table`]: how SQL asks connectors for sources and sinks.
//! - [`error`]: what a task can fail with.

pub mod aggregate;
pub mod batch;
pub mod channel;
pub mod error;
pub mod input_gate;
pub mod keys;
pub mod operator;
pub mod operators;
pub mod partition;
pub mod program;
pub mod runner;
pub mod sink;
pub mod source;
pub mod state;
pub mod table;
pub mod task;

#[cfg(test)]
mod testing;
