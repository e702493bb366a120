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
//! - [`aggregate`], [`join`], [`rank`], [`window`], [`operators`]: the operators we bring; [`state`]: keyed state,
//!   copy-on-write and its files.
//! - [`event_time`]: watermarks, from a source's rows to an operator's state.
//! - [`table`]: how SQL asks connectors for sources and sinks.
//! - [`in_flight`]: batches that an unaligned barrier overtook, as part of a snapshot.
//! - [`error`]: what a task can fail with.
//!
//! The flow of a batch:
//! 1. A source's [`poll`](source::Source::poll) or the gate's [`poll`](input_gate::InputGate::poll) hands it to the
//!    task, in [`Task::step`](task::Task::step), when no output is full (B4).
//! 2. Each operator's [`process`](operator::Operator::process) passes it on through a
//!    [`Collector`](operator::Collector).
//! 3. [`EdgeWriter::write`](partition::EdgeWriter::write) divides it by key group and gathers pieces per channel;
//!    [`OutputChannel::push`](channel::OutputChannel::push) queues them, or the sink takes it.
//! 4. To another process it goes through [`encode_frame`](channel::codec::encode_frame) and
//!    [`push_received`](channel::OutputChannel::push_received).
//!
//! The flow of a checkpoint:
//! 1. [`TaskHandle::trigger`](task::TaskHandle::trigger) reaches the sources' tasks; the barrier takes its place in
//!    every channel behind the rows before it (B1).
//! 2. [`GateEvent::Aligned`](input_gate::GateEvent::Aligned) says that it has come on all inputs of a task.
//! 3. The sink is flushed, [`Operator::snapshot`](operator::Operator::snapshot) freezes the state
//!    ([`KeyedTable::freeze`](state::KeyedTable::freeze)), the barrier goes on.
//! 4. [`TaskSnapshot::write`](task::TaskSnapshot::write) encodes the frozen state away from the task's thread.
//!
//! An unaligned one overtakes instead (B1-B3): [`Frame::Overtaking`](channel::Frame::Overtaking) comes out of a queue
//! first, [`GateEvent::Overtaking`](input_gate::GateEvent::Overtaking) freezes the state at once, the barrier overtakes
//! the task's own outputs, and [`GateEvent::Recorded`](input_gate::GateEvent::Recorded) completes the snapshot with what
//! was in flight.
//!
//! The flow of a restore: [`TaskDescription::state`](task::TaskDescription::state) carries the files to
//! [`Operator::open`](operator::Operator::open); [`KeyedTable`](state::KeyedTable) takes the key
//! groups that the subtask owns now, whatever the parallelism was. What was in flight goes to the receivers' gates as
//! [`RestoredChannel`](in_flight::RestoredChannel)s and is read before anything new.

pub mod aggregate;
pub mod batch;
pub mod channel;
pub mod error;
pub mod event_time;
pub mod in_flight;
pub mod input_gate;
pub mod join;
pub mod keys;
pub mod operator;
pub mod operators;
pub mod partition;
pub mod program;
pub mod rank;
pub mod runner;
pub mod sink;
pub mod source;
pub mod state;
pub mod table;
pub mod task;
pub mod window;

#[cfg(test)]
mod testing;
