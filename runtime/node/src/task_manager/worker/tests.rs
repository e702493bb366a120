//! A worker against a JobManager played by the test: runs, silence, refusals.

use super::*;
use crate::edge;
use crate::job_manager::store::open_storage;
use crate::tests::collect::Collected;
use crate::tests::{job_id, options, program};
use sluice_protocol::message::{Barrier, Placement, TaskDeployment};
use sluice_protocol::{Attempt, Generation, ProcessId, SubtaskIndex, TaskManagerId, TimeSpan, Timestamp};
use tokio::task::JoinHandle;

const SHORT: TimeSpan = TimeSpan::from_millis(600);
const LONG: TimeSpan = TimeSpan::from_secs(60);

struct Played {
    to_worker: mpsc::Sender<ToTaskManager>,
    from_worker: mpsc::UnboundedReceiver<FromTaskManager>,
    outcome: JoinHandle<SessionOutcome>,
    sink: Collected,
    subtasks: Vec<SubtaskId>,
}

fn run(attempt: u32) -> Run {
    Run { generation: Generation(1), attempt: Attempt(attempt) }
}

async fn play(heartbeat_timeout: TimeSpan) -> Played {
    let sink = Collected::default();
    let program = program(Some(10_000), &sink);
    let subtasks = program.graph.vertices.iter().flat_map(|vertex| {
        (0..vertex.parallelism).map(|index| SubtaskId { vertex: vertex.id, index: SubtaskIndex(index) })
    });
    let subtasks = subtasks.collect();
    let job = JobDescription { job: job_id(), program, options: options(None), restore: None };
    let registration = Registration {
        task_manager: TaskManagerId::from("tm"),
        process: ProcessId(edge::random_id()),
        generation: Generation(1),
        slots: 2,
        data_address: String::new(),
        fingerprint: job.program.graph.fingerprint(),
    };
    let storage = open_storage(&job.options).unwrap();
    let mut worker = Worker::new(registration, job, storage, None);
    let (to_worker, incoming) = mpsc::channel(16);
    let (outgoing, from_worker) = mpsc::unbounded_channel();
    let outcome = tokio::spawn(async move { worker.serve(Session { outgoing, incoming }).await });
    let mut played = Played { to_worker, from_worker, outcome, sink, subtasks };
    assert!(matches!(played.next().await, FromTaskManager::Register(_)));
    played.say(ToTaskManager::Registered { heartbeat_timeout }).await;
    played
}

impl Played {
    async fn say(&self, message: ToTaskManager) {
        self.to_worker.send(message).await.unwrap();
    }

    /// What the worker says next, heartbeats left out.
    async fn next(&mut self) -> FromTaskManager {
        loop {
            let message = tokio::time::timeout(Duration::from_secs(20), self.from_worker.recv()).await;
            match message.expect("the worker says nothing").expect("the session ended") {
                FromTaskManager::Heartbeat => {}
                message => return message,
            }
        }
    }

    async fn deploy(&self, run: Run) {
        let tasks = self.subtasks.iter().map(|subtask| TaskDeployment { subtask: *subtask, restore: None });
        let placement = self.subtasks.iter().map(|subtask| Placement {
            subtask: *subtask,
            task_manager: TaskManagerId::from("tm"),
            data_address: String::new(),
        });
        let (tasks, placement) = (tasks.collect(), placement.collect());
        self.say(ToTaskManager::Deploy(Box::new(Deployment { run, tasks, placement, state_directory: None }))).await;
    }

    async fn wait_running(&mut self, of: Run) {
        for _ in 0..self.subtasks.len() {
            let message = self.next().await;
            assert!(matches!(message, FromTaskManager::TaskRunning { run, .. } if run == of), "{message:?}");
        }
    }

    /// Nothing comes out of the sink any more.
    async fn assert_quiet(&self) {
        let before = self.sink.last_values();
        assert!(!before.is_empty());
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert_eq!(self.sink.last_values(), before);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_the_timeout_of_silence_ends_the_tasks() {
    let mut played = play(SHORT).await;
    played.deploy(run(1)).await;
    played.wait_running(run(1)).await;
    let silent_since = Instant::now();
    assert_eq!(played.next().await, FromTaskManager::TasksEnded { run: run(1) });
    let waited = silent_since.elapsed();
    assert!(waited >= Duration::from_millis(200) && waited < SHORT.as_duration(), "{waited:?}");
    played.assert_quiet().await;
    let outcome = played.outcome.await.unwrap();
    assert!(matches!(outcome, SessionOutcome::Lost { registered: true, .. }), "{outcome:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_newer_run_begins_when_the_older_has_ended_and_older_ones_are_refused() {
    let mut played = play(LONG).await;
    played.deploy(run(2)).await;
    played.wait_running(run(2)).await;
    played.deploy(run(1)).await;
    played.deploy(run(3)).await;
    assert_eq!(played.next().await, FromTaskManager::TasksEnded { run: run(2) });
    played.wait_running(run(3)).await;
    played.say(ToTaskManager::Shutdown).await;
    assert_eq!(played.next().await, FromTaskManager::TasksEnded { run: run(3) });
    assert!(matches!(played.outcome.await.unwrap(), SessionOutcome::Shutdown));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_trigger_of_another_run_does_nothing() {
    let mut played = play(LONG).await;
    played.deploy(run(2)).await;
    played.wait_running(run(2)).await;
    let barrier = |id| Barrier::aligned(CheckpointId(id), Timestamp(0), None);
    played.say(ToTaskManager::TriggerCheckpoint { run: run(1), barrier: barrier(1) }).await;
    played.say(ToTaskManager::TriggerCheckpoint { run: run(2), barrier: barrier(2) }).await;
    for _ in 0..played.subtasks.len() {
        let message = played.next().await;
        let FromTaskManager::Acknowledge { run: of, checkpoint, .. } = message else { panic!("{message:?}") };
        assert_eq!((of, checkpoint), (run(2), CheckpointId(2)));
    }
    played.say(ToTaskManager::CancelTasks { run: run(1) }).await;
    assert_eq!(played.next().await, FromTaskManager::TasksEnded { run: run(1) });
    let before = played.sink.last_values();
    tokio::time::sleep(Duration::from_millis(150)).await;
    assert_ne!(played.sink.last_values(), before, "the run itself goes on");
}
