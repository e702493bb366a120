//! Tasks on threads.

use super::*;
use crate::batch::Batch;
use crate::channel::{ChannelId, channel};
use crate::operator::{Collector, Operator, OperatorContext, OperatorFactory, RestoredState};
use crate::partition::EdgeOutput;
use crate::program::VertexProgram;
use crate::task::TaskOptions;
use crate::testing::View;
use crate::testing::connectors::{Kept, Numbers, aggregate_program, schema, source_program};
use arrow::datatypes::SchemaRef;
use sluice_protocol::graph::Partitioning;
use sluice_protocol::message::Barrier;
use sluice_protocol::{CheckpointId, SubtaskId, SubtaskIndex, VertexId};
use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, channel as messages};
use std::time::Duration;

fn start(
    vertex: u32,
    program: VertexProgram,
    inputs: Vec<crate::channel::InputChannel>,
    outputs: Vec<EdgeOutput>,
) -> (RunningTask, Receiver<TaskEvent>) {
    let description = TaskDescription {
        subtask: SubtaskId { vertex: VertexId(vertex), index: SubtaskIndex(0) },
        identity: crate::operator::TaskIdentity::default(),
        parallelism: 1,
        max_parallelism: 128,
        program,
        inputs,
        outputs,
        state: BTreeMap::new(),
        in_flight: Vec::new(),
        options: TaskOptions::default(),
        state_backend: crate::state::StateBackend::default(),
        clock: Arc::new(|| Timestamp(0)),
        job_clock: Arc::new(|| Timestamp(0)),
        alignment: None,
    };
    let (sender, receiver) = messages();
    (spawn(description, move |event| drop(sender.send(event))).unwrap(), receiver)
}

fn next(events: &Receiver<TaskEvent>) -> TaskEvent {
    events.recv_timeout(Duration::from_secs(20)).unwrap()
}

#[test]
fn two_threads_move_rows_and_barriers_and_end() {
    let kept: Arc<Kept> = Arc::default();
    let id = ChannelId { edge: 0, from: SubtaskIndex(0), to: SubtaskIndex(0) };
    let (output, input) = channel(id, 100_000);
    let outputs = vec![EdgeOutput { partitioning: Partitioning::Forward, channels: vec![output] }];
    let (source, source_events) =
        start(0, source_program(Numbers { splits: 1, rows: 200_000, keys: 50 }), Vec::new(), outputs);
    let (sink, sink_events) = start(1, aggregate_program(&kept), vec![input], Vec::new());
    for events in [&source_events, &sink_events] {
        assert!(matches!(next(events), TaskEvent::Running));
    }
    assert!(matches!(next(&source_events), TaskEvent::Finished));
    assert!(matches!(next(&sink_events), TaskEvent::Finished));
    let barrier = Barrier::aligned(CheckpointId(1), Timestamp(0), None);
    source.handle().trigger(barrier);
    for events in [&source_events, &sink_events] {
        assert!(matches!(next(events), TaskEvent::Snapshot(_)));
    }
    let mut view = View::default();
    view.apply_all(&kept.take());
    assert!(view.0.values().all(|row| row[0] == "4000"));
    for task in [source, sink] {
        task.handle().cancel();
        task.join();
    }
    assert!(source_events.recv().is_err(), "the callback is dropped with the thread");
}

/// Panics at its first row.
struct Panicking;

impl Operator for Panicking {
    fn open(&mut self, _: &OperatorContext, _: RestoredState) -> Result<(), TaskError> {
        Ok(())
    }

    fn process(&mut self, _: Batch, _: &mut dyn Collector) -> Result<(), TaskError> {
        panic!("at the first row");
    }
}

struct PanickingFactory;

impl OperatorFactory for PanickingFactory {
    fn create(&self) -> Result<Box<dyn Operator>, TaskError> {
        Ok(Box::new(Panicking))
    }

    fn output_schema(&self) -> SchemaRef {
        schema()
    }
}

#[test]
fn a_panic_is_a_failure_of_its_task() {
    let factory: Arc<dyn OperatorFactory> = Arc::new(PanickingFactory);
    let program = VertexProgram {
        operators: vec![("panicking".into(), factory)],
        ..source_program(Numbers { splits: 1, rows: 10, keys: 1 })
    };
    let (task, events) = start(0, program, Vec::new(), Vec::new());
    assert!(matches!(next(&events), TaskEvent::Running));
    match next(&events) {
        TaskEvent::Failed(TaskError::Internal(message)) => assert!(message.contains("at the first row"), "{message}"),
        other => panic!("{other:?}"),
    }
    task.join();
}
