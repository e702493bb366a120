//! The dataflow: batches, operators, the task loop, exchange queues, barriers, keyed state.
//!
//! No sockets, no tokio, no clock: a task is a synchronous state machine that is stepped by a thread in a
//! TaskManager and by the simulation in tests; bytes enter and leave through queues.
//!
//! The map:
//! - [`batch`]: the unit of the data path, rows with their kinds.
//! - [`channel`]: bounded queues between tasks, and frames as bytes.
//! - [`operator`], [`source`], [`sink`]: what a program is made of; [`program`]: how it is put together.
//! - [`table`]: how SQL asks connectors for sources and sinks.
//! - [`error`]: what a task can fail with.

pub mod batch;
pub mod channel;
pub mod error;
pub mod operator;
pub mod program;
pub mod sink;
pub mod source;
pub mod table;
