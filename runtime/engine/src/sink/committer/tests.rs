//! One sink whose service does not answer takes few tries of a pass; the others' handles are all committed.

use super::*;
use crate::program::VertexProgram;
use crate::sink::{AcceptedKinds, Sink, SinkFactory};
use crate::testing::connectors::{Kept, aggregate_program};
use sluice_protocol::graph::JobGraph;
use sluice_protocol::{CheckpointId, SubtaskIndex};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Refuses handles whose first byte is 0, and counts what it is asked.
struct Service {
    asked: Arc<AtomicU32>,
}

impl Committer for Service {
    fn commit(&mut self, committable: &Committable) -> Result<Commit, CommitError> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        match committable.bytes[0] {
            0 => Err(CommitError::Retriable("no answer".to_owned())),
            _ => Ok(Commit::Committed),
        }
    }

    fn abort(&mut self, _: Run, _: &[Committable]) -> Result<u64, CommitError> {
        Ok(0)
    }
}

struct Factory(Arc<AtomicU32>);

impl SinkFactory for Factory {
    fn create(&self) -> Result<Box<dyn Sink>, TaskError> {
        Err(TaskError::BadProgram("it only commits".to_owned()))
    }

    fn accepted_kinds(&self) -> AcceptedKinds {
        AcceptedKinds::All
    }

    fn committer(&self, _: CommitterContext) -> Result<Option<Box<dyn Committer>>, TaskError> {
        Ok(Some(Box::new(Service { asked: Arc::clone(&self.0) })))
    }
}

fn vertex(uid: &str, asked: &Arc<AtomicU32>) -> VertexProgram {
    let factory = Arc::new(Factory(Arc::clone(asked)));
    VertexProgram { sink: Some((uid.into(), factory)), ..aggregate_program(&Arc::new(Kept::default())) }
}

fn handle(sink: &str, number: u64, answers: u8) -> CommitHandle {
    let committable =
        Committable { version: 1, checkpoint: CheckpointId(number), expires_at: None, bytes: vec![answers] };
    CommitHandle { sink: sink.into(), subtask: SubtaskIndex(0), committable }
}

#[test]
fn a_sink_whose_service_is_silent_takes_three_tries_and_holds_up_no_other() {
    let (silent, well) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let vertices = vec![vertex("silent", &silent), vertex("well", &well)];
    let program = Program { graph: JobGraph::default(), vertices };
    let job = JobId { namespace: "n".into(), name: "j".into(), uid: "u".into() };
    let mut handles: Vec<_> = (0..50).map(|number| handle("silent", number, 0)).collect();
    handles.extend((0..50).map(|number| handle("well", number, 1)));
    let outcomes = commit_all(&program, &job, &handles);
    let retry = CommitOutcome::Retry("sink 'silent': no answer".to_owned());
    assert!(outcomes[..50].iter().all(|outcome| *outcome == retry), "{outcomes:?}");
    assert!(outcomes[50..].iter().all(|outcome| *outcome == CommitOutcome::Settled), "{outcomes:?}");
    assert_eq!((silent.load(Ordering::SeqCst), well.load(Ordering::SeqCst)), (3, 50));
}

/// Two handles of a release that is gone do not keep back what was staged after them.
#[test]
fn what_fails_now_and_then_does_not_stop_a_sink() {
    let asked = Arc::new(AtomicU32::new(0));
    let program = Program { graph: JobGraph::default(), vertices: vec![vertex("sink", &asked)] };
    let job = JobId { namespace: "n".into(), name: "j".into(), uid: "u".into() };
    let handles: Vec<_> =
        [0, 0, 1, 0, 0, 1].iter().zip(0..).map(|(answers, at)| handle("sink", at, *answers)).collect();
    let outcomes = commit_all(&program, &job, &handles);
    assert_eq!(outcomes.iter().filter(|outcome| **outcome == CommitOutcome::Settled).count(), 2);
    assert_eq!(asked.load(Ordering::SeqCst), 6);
}
