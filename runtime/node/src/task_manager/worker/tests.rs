//! A worker against a JobManager played by the test: runs, silence, refusals.

use super::*;
use crate::edge;
use crate::job::JobDescription;
use crate::job_manager::store::open_storage;
use crate::tests::collect::Collected;
use crate::tests::{aligned_program, job_id, options, program};
use sluice_engine::event_time::alignment::AlignmentGroups;
use sluice_protocol::message::{Barrier, GroupWatermark, Placement, TaskDeployment};
use sluice_protocol::{Attempt, Generation, ProcessId, SubtaskIndex, TaskManagerId, TimeSpan, Timestamp};
use tokio::task::JoinHandle;

const SHORT: TimeSpan = TimeSpan::from_millis(600);
const LONG: TimeSpan = TimeSpan::from_secs(60);

struct Played {
    to_worker: mpsc::Sender<ToTaskManager>,
    from_worker: mpsc::UnboundedReceiver<FromTaskManager>,
    outcome: JoinHandle<(SessionOutcome, Worker)>,
    sink: Collected,
    subtasks: Vec<SubtaskId>,
}

fn run(attempt: u32) -> Run {
    Run { generation: Generation(1), attempt: Attempt(attempt) }
}

fn description(sink: &Collected) -> JobDescription {
    JobDescription { job: job_id(), program: program(Some(10_000), sink), options: options(None), restore: None }
}

fn worker(sink: &Collected) -> Worker {
    worker_of(description(sink))
}

fn worker_of(job: JobDescription) -> Worker {
    let registration = Registration {
        task_manager: TaskManagerId::from("tm"),
        process: ProcessId(edge::random_id()),
        generation: Generation(1),
        slots: 2,
        data_address: String::new(),
        fingerprint: job.program.graph.fingerprint(),
    };
    let storage = open_storage(&job.options).unwrap();
    Worker::new(registration, Equipment::new(job, storage, crate::memory::MemoryLimit::find(None)).unwrap(), None)
}

async fn play(heartbeat_timeout: TimeSpan) -> Played {
    let sink = Collected::default();
    serve(worker(&sink), sink, heartbeat_timeout).await
}

async fn serve(mut worker: Worker, sink: Collected, heartbeat_timeout: TimeSpan) -> Played {
    let subtasks = worker.equipment.job.program.graph.vertices.iter().flat_map(|vertex| {
        (0..vertex.parallelism).map(|index| SubtaskId { vertex: vertex.id, index: SubtaskIndex(index) })
    });
    let subtasks = subtasks.collect();
    let (to_worker, incoming) = mpsc::channel(16);
    let (outgoing, from_worker) = mpsc::unbounded_channel();
    let outcome = tokio::spawn(async move {
        let outcome = worker.serve(Session { outgoing, incoming }).await;
        (outcome, worker)
    });
    let mut played = Played { to_worker, from_worker, outcome, sink, subtasks };
    assert!(matches!(played.next().await, FromTaskManager::Register(_)));
    played.say(ToTaskManager::Registered { heartbeat_timeout }).await;
    played
}

impl Played {
    /// The session ends, and the worker opens another.
    async fn reconnect(self) -> Self {
        let Self { to_worker, outcome, sink, .. } = self;
        drop(to_worker);
        let (outcome, worker) = outcome.await.unwrap();
        assert!(matches!(outcome, SessionOutcome::Lost { registered: true, .. }), "{outcome:?}");
        serve(worker, sink, LONG).await
    }

    async fn outcome(self) -> SessionOutcome {
        self.outcome.await.unwrap().0
    }

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
        self.deploy_but(run, None).await;
    }

    /// Deploys all but one subtask, which runs elsewhere.
    async fn deploy_but(&self, run: Run, elsewhere: Option<SubtaskId>) {
        let here = self.subtasks.iter().filter(|subtask| Some(**subtask) != elsewhere);
        let tasks = here.map(|subtask| TaskDeployment { subtask: *subtask, restore: None });
        let placement = self.subtasks.iter().map(|subtask| Placement {
            subtask: *subtask,
            task_manager: TaskManagerId::from(if Some(*subtask) == elsewhere { "another" } else { "tm" }),
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

    async fn wait_for_output(&self) {
        while self.sink.last_values().is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
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
    let outcome = played.outcome().await;
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
    assert!(matches!(played.outcome().await, SessionOutcome::Shutdown));
}

/// A JobManager that was started again without a ledger numbers its attempts anew.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_job_manager_finds_no_tasks_and_may_deploy_the_same_run() {
    let mut played = play(LONG).await;
    played.deploy(run(2)).await;
    played.wait_running(run(2)).await;
    played.wait_for_output().await;
    let mut played = played.reconnect().await;
    played.assert_quiet().await;
    played.deploy(run(1)).await;
    played.wait_running(run(1)).await;
}

/// Whose clock shows 1970.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s4_sinks_are_given_the_job_managers_time() {
    let played = play(LONG).await;
    played.say(ToTaskManager::Heartbeat { at: Timestamp(5_000) }).await;
    let Played { to_worker, outcome, subtasks, .. } = played;
    drop(to_worker);
    let (_, worker) = outcome.await.unwrap();
    let own = TaskManagerId::from("tm");
    let tasks = subtasks.iter().map(|subtask| TaskDeployment { subtask: *subtask, restore: None }).collect();
    let placement = subtasks.iter().map(|subtask| Placement {
        subtask: *subtask,
        task_manager: own.clone(),
        data_address: String::new(),
    });
    let deployment = Deployment { run: run(1), tasks, placement: placement.collect(), state_directory: None };
    let plan = deploy::plan(&worker.equipment, (&own, &worker.job_clock), &deployment).unwrap();
    for task in plan.tasks {
        assert!((5_000..60_000).contains(&(task.job_clock)().0), "{:?}", (task.job_clock)());
        assert!((task.clock)() > Timestamp(1_700_000_000_000));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_is_ready_while_it_is_registered_or_looks_for_a_short_time() {
    let worker = worker(&Collected::default());
    let ready = worker.ready_check();
    assert!(ready().await);
    worker.set_readiness(|readiness| readiness.looking_since = Instant::now().checked_sub(LOOKING_LIMIT * 2));
    assert!(!ready().await, "it looks for too long");
    let played = serve(worker, Collected::default(), LONG).await;
    let mut ticks = ticks(Duration::from_millis(20));
    tokio::time::timeout(Duration::from_secs(10), async {
        while !ready().await {
            ticks.tick().await;
        }
    })
    .await
    .expect("it is ready once it is registered");
    drop(played);
}

#[test]
fn nothing_of_an_aborted_checkpoint_is_stored() {
    let mut active = ActiveRun::new(run(1), true, (Vec::new(), Arc::new(AlignmentGroups::new(false))), None);
    let subtask = SubtaskId { vertex: sluice_protocol::VertexId(0), index: SubtaskIndex(0) };
    let place = |active: &mut ActiveRun, id| {
        let (checkpoint, aborted) = (CheckpointId(id), active.abort_of(CheckpointId(id)));
        Place { run: run(1), subtask, checkpoint, has_store: true, aborted }
    };
    let [four, five] = [4, 5].map(|id| place(&mut active, id));
    active.checkpoint_aborted(CheckpointId(4));
    assert!(four.check_wanted().is_err_and(|failure| failure.reason == "CheckpointAborted"));
    assert!(place(&mut active, 4).check_wanted().is_err(), "what is frozen later is not stored either");
    assert!(five.check_wanted().is_ok(), "only 4 is aborted");
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

/// A source waits for those of its group on other TaskManagers, of which the JobManager tells.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sources_here_wait_for_those_elsewhere() {
    let sink = Collected::default();
    let job = JobDescription { program: aligned_program(&sink), ..description(&sink) };
    let mut played = serve(worker_of(job), sink, LONG).await;
    played.deploy_but(run(1), played.subtasks.get(1).copied()).await;
    let furthest = async |played: &mut Played, reports: u32| {
        let mut furthest = i64::MIN;
        for _ in 0..reports {
            let groups = loop {
                match played.next().await {
                    FromTaskManager::ReportWatermarks { run: of, groups } if of == run(1) => break groups,
                    FromTaskManager::TaskRunning { .. } => {}
                    other => panic!("{other:?}"),
                }
            };
            for GroupWatermark { group, watermark } in groups {
                assert_eq!(group, "numbers");
                furthest = furthest.max(watermark);
            }
        }
        furthest
    };
    let waiting = furthest(&mut played, 20).await;
    assert_eq!(furthest(&mut played, 10).await, waiting, "nothing is known of the other TaskManager");
    let groups = vec![GroupWatermark { group: "numbers".to_owned(), watermark: waiting + 3000 }];
    played.say(ToTaskManager::AlignWatermarks { run: run(1), groups }).await;
    let mut further = waiting;
    while further <= waiting + 3000 {
        further = furthest(&mut played, 5).await;
    }
    furthest(&mut played, 5).await;
    assert_eq!(furthest(&mut played, 10).await, furthest(&mut played, 10).await, "it waits again");
}
