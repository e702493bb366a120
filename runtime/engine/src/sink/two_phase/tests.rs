//! Names, carrying, and a task with a transactional sink at its end (S1, S3, K3).

use super::*;
use crate::batch::Batch;
use crate::testing::connectors::numbers;
use crate::testing::context;
use sluice_protocol::Timestamp;
use std::sync::{Arc, Mutex};

fn job(uid: &str) -> JobId {
    JobId { namespace: "n".into(), name: "j".into(), uid: uid.into() }
}

fn id(uid: &str, sink: &str, generation: u64, attempt: u32) -> TransactionId {
    let run = Run { generation: Generation(generation), attempt: Attempt(attempt) };
    TransactionId { job: job(uid), sink: sink.into(), run, subtask: SubtaskIndex(3), slot: 7 }
}

#[test]
fn s3_a_name_says_whose_it_is() {
    let name = id("ab-1", "pv.sink", 2, 1).to_string();
    assert_eq!(name, "ab-1-pv.sink-2-1-3-7");
    let older = |uid: &str, sink: &str, generation, attempt| {
        let run = Run { generation: Generation(generation), attempt: Attempt(attempt) };
        TransactionId::is_older(&name, &job(uid), &sink.into(), run)
    };
    assert!(older("ab-1", "pv.sink", 2, 2) && older("ab-1", "pv.sink", 3, 1));
    assert!(!older("ab-1", "pv.sink", 2, 1), "the attempt's own");
    assert!(!older("ab-1", "pv.sink", 1, 9), "of a later generation: a zombie must not touch it");
    assert!(!older("ab", "pv.sink", 9, 1) && !older("ab-1", "pv", 9, 1) && !older("ab-1", "pv.sink-2", 9, 1));
}

#[test]
fn s3_two_sinks_never_share_a_name() {
    let names: std::collections::BTreeSet<_> =
        ["a/b", "a_b", "a:b"].iter().map(|sink| id("u", sink, 1, 1).to_string()).collect();
    assert_eq!(names.len(), 3, "{names:?}");
    assert!(names.iter().all(|name| name.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))));
}

type Calls = Arc<Mutex<Vec<String>>>;

struct Recording {
    calls: Calls,
    pending: bool,
}

impl TwoPhaseCommitSink for Recording {
    fn open(&mut self, _: SinkContext) -> Result<(), TaskError> {
        Ok(())
    }

    fn begin(&mut self, transaction: &TransactionId) -> Result<(), TaskError> {
        self.calls.lock().unwrap().push(format!("begin {}", transaction.slot));
        Ok(())
    }

    fn write(&mut self, batch: Batch) -> Result<(), TaskError> {
        self.calls.lock().unwrap().push(format!("write {}", batch.len()));
        Ok(())
    }

    fn pre_commit(&mut self) -> Result<PreCommit, TaskError> {
        self.pending = !self.pending;
        if self.pending {
            return Ok(PreCommit::Pending);
        }
        self.calls.lock().unwrap().push("staged".to_owned());
        Ok(PreCommit::Staged(vec![Staged { version: 1, expires_at: None, bytes: vec![1] }]))
    }

    fn settled(&mut self, handle: &Committable) {
        self.calls.lock().unwrap().push(format!("settled {}", handle.checkpoint));
    }
}

fn sink(calls: &Calls) -> Transactional<Recording> {
    let mut sink = Transactional::new(Recording { calls: Arc::clone(calls), pending: false });
    let context = SinkContext {
        operator: context(0, 1),
        identity: TaskIdentity::default(),
        waker: Arc::new(|| {}),
        clock: Arc::new(Timestamp::default),
    };
    sink.open(context).unwrap();
    sink
}

fn batch() -> Batch {
    Batch::inserts(numbers(0..2, 1))
}

fn checkpoints(sink: &mut Transactional<Recording>, checkpoint: u64) -> Vec<u64> {
    while !sink.flush().unwrap() {}
    let handles = sink.committables(CheckpointId(checkpoint)).unwrap();
    handles.iter().map(|handle| handle.checkpoint.0).collect()
}

#[test]
fn a_transaction_begins_with_its_first_row_and_ends_with_the_barrier() {
    let calls = Calls::default();
    let mut sink = sink(&calls);
    assert_eq!(checkpoints(&mut sink, 1), [0_u64; 0], "nothing was written");
    sink.write(batch()).unwrap();
    sink.write(batch()).unwrap();
    assert_eq!(checkpoints(&mut sink, 2), [2]);
    sink.write(batch()).unwrap();
    assert_eq!(*calls.lock().unwrap(), ["begin 0", "write 2", "write 2", "staged", "begin 1", "write 2"]);
}

#[test]
fn k3_handles_are_carried_until_a_checkpoint_with_them_is_complete() {
    let mut sink = sink(&Calls::default());
    for (checkpoint, carried) in [(1, vec![1]), (2, vec![1, 2]), (3, vec![1, 2, 3])] {
        sink.write(batch()).unwrap();
        assert_eq!(checkpoints(&mut sink, checkpoint), carried);
    }
    sink.checkpoint_completed(CheckpointId(2), None);
    assert_eq!(checkpoints(&mut sink, 4), [3]);
    sink.checkpoint_completed(CheckpointId(4), None);
    assert_eq!(checkpoints(&mut sink, 5), [0_u64; 0]);
}

#[test]
fn s2_a_writer_hears_of_a_handle_when_a_complete_checkpoint_is_without_it() {
    let calls = Calls::default();
    let mut sink = sink(&calls);
    let settled = |calls: &Calls| -> Vec<String> {
        let calls = std::mem::take(&mut *calls.lock().unwrap());
        calls.iter().filter_map(|call| call.strip_prefix("settled ").map(str::to_owned)).collect()
    };
    for checkpoint in 1..=3 {
        sink.write(batch()).unwrap();
        checkpoints(&mut sink, checkpoint);
    }
    assert_eq!(settled(&calls), [""; 0]);
    let holding = |ids: &[u64]| ids.iter().copied().map(CheckpointId).collect::<Vec<_>>();
    sink.checkpoint_completed(CheckpointId(2), Some(&holding(&[1, 2])));
    assert_eq!(settled(&calls), [""; 0], "the checkpoint holds both");
    sink.checkpoint_completed(CheckpointId(3), None);
    assert_eq!(settled(&calls), [""; 0], "nothing is known");
    sink.checkpoint_completed(CheckpointId(4), Some(&holding(&[1, 3])));
    assert_eq!(settled(&calls), ["2"], "an older one that is stuck holds up no other");
    sink.checkpoint_completed(CheckpointId(5), Some(&[]));
    assert_eq!(settled(&calls), ["1", "3"]);
}

#[test]
fn k3_too_many_failed_checkpoints_fail_the_task() {
    let mut sink = sink(&Calls::default());
    for checkpoint in 1..=16 {
        sink.write(batch()).unwrap();
        assert_eq!(checkpoints(&mut sink, checkpoint).len() as u64, checkpoint);
    }
    sink.write(batch()).unwrap();
    while !sink.flush().unwrap() {}
    assert!(matches!(sink.committables(CheckpointId(17)), Err(TaskError::External(_))));
}
