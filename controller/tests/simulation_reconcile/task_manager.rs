//! A TaskManager's process: it finds its JobManager by the Service and does as it is told, as far as its program lets it.

use crate::job_manager::{argument, drive};
use crate::kubelet::{self, Signal};
use crate::scenario::Program;
use crate::world::World;
use serde_json::Value;
use sluice_protocol::failure::{ExitKind, ExitRecord, Failure, Fault};
use sluice_protocol::job_master::{Event, SessionId};
use sluice_protocol::message::{CheckpointMetrics, Deployment, FromTaskManager, Registration, ToTaskManager};
use sluice_protocol::state::SubtaskState;
use sluice_protocol::{Generation, ProcessId, SubtaskId, TaskManagerId};
use std::time::Duration;

/// How often it looks for its JobManager.
const LOOK: std::ops::Range<u64> = 200..1200;

/// One process.
pub(crate) struct TaskManager {
    name: String,
    namespace: String,
    job: String,
    job_uid: String,
    generation: Generation,
    slots: u32,
    session: Option<SessionId>,
    tasks: Vec<SubtaskId>,
}

impl TaskManager {
    /// Starts what a pod's container runs.
    pub(crate) fn start(world: &World, pod: &Value, uid: &str) {
        let task_manager = Self {
            name: argument(pod, "--id"),
            namespace: argument(pod, "--namespace"),
            job: argument(pod, "--name"),
            job_uid: argument(pod, "--uid"),
            generation: Generation(argument(pod, "--generation").parse().unwrap_or_default()),
            slots: argument(pod, "--slots").parse().unwrap_or(1),
            session: None,
            tasks: vec![],
        };
        world.lock().task_managers.insert(uid.to_owned(), task_manager);
        let (world, uid) = (world.clone(), uid.to_owned());
        tokio::spawn(async move {
            while world.lock().task_managers.contains_key(&uid) {
                register(&world, &uid);
                world.pause(LOOK).await;
            }
        });
    }

    /// The process is gone.
    pub(crate) fn kill(world: &World, uid: &str) {
        let Some(gone) = world.lock().task_managers.remove(uid) else { return };
        let Some(session) = gone.session else { return };
        let job_manager = {
            let mut state = world.lock();
            let mut all = state.job_managers.iter_mut();
            let found = all.find(|(_, one)| one.sessions.get(&session).is_some_and(|other| other == uid));
            found.map(|(job_manager, one)| {
                one.sessions.remove(&session);
                job_manager.clone()
            })
        };
        if let Some(job_manager) = job_manager {
            drive(world, &job_manager, Event::SessionClosed { session });
        }
    }

    /// Its connection is gone: its tasks are cancelled and it looks for another.
    pub(crate) fn lose_job_manager(world: &World, uid: &str) {
        if let Some(task_manager) = world.lock().task_managers.get_mut(uid) {
            task_manager.session = None;
            task_manager.tasks.clear();
        }
    }
}

fn register(world: &World, uid: &str) {
    let found = {
        let mut state = world.lock();
        let Some(own) = state.task_managers.get(uid).filter(|one| one.session.is_none()) else { return };
        let service = state.api.get("services", &own.namespace, &format!("{}-jm", own.job));
        let selected = service.and_then(|service| service["spec"]["selector"]["sluice.dev/generation"].as_str());
        let selected = selected.and_then(|text| text.parse().ok()).map(Generation);
        let mut there = state.job_managers.iter().filter(|(_, one)| {
            one.job.uid == own.job_uid
                && Some(one.generation) == selected
                && one.generation == own.generation
                && one.is_reachable
        });
        let Some((job_manager, one)) = there.next() else { return };
        let registration = Registration {
            task_manager: TaskManagerId(own.name.clone()),
            process: ProcessId(uid.to_owned()),
            generation: own.generation,
            slots: own.slots,
            data_address: format!("{}:6121", own.name),
            fingerprint: one.graph.fingerprint(),
        };
        let job_manager = job_manager.clone();
        state.sessions += 1;
        let session = SessionId(state.sessions);
        state.task_managers.entry(uid.to_owned()).and_modify(|own| own.session = Some(session));
        state.job_managers.entry(job_manager.clone()).and_modify(|one| {
            one.sessions.insert(session, uid.to_owned());
        });
        (job_manager, session, registration)
    };
    let (job_manager, session, registration) = found;
    drive(world, &job_manager, Event::Message { session, message: FromTaskManager::Register(registration) });
}

/// A message for a TaskManager is under way; so are its answers.
pub(crate) fn hear(world: &World, job_manager: &str, session: SessionId, uid: &str, message: ToTaskManager) {
    let (world, job_manager, uid) = (world.clone(), job_manager.to_owned(), uid.to_owned());
    tokio::spawn(async move {
        world.pause(1..6).await;
        let is_open = world.lock().task_managers.get(&uid).is_some_and(|one| one.session == Some(session));
        if is_open {
            obey(&world, &job_manager, session, &uid, message).await;
        }
    });
}

async fn obey(world: &World, job_manager: &str, session: SessionId, uid: &str, message: ToTaskManager) {
    let say = |message| drive(world, job_manager, Event::Message { session, message });
    match message {
        ToTaskManager::Registered { .. }
        | ToTaskManager::CheckpointCompleted { .. }
        | ToTaskManager::CheckpointAborted { .. }
        | ToTaskManager::AlignWatermarks { .. } => {}
        ToTaskManager::Heartbeat { .. } => say(FromTaskManager::Heartbeat),
        ToTaskManager::Refused(failure) => {
            exit(world, uid, ExitRecord::new(ExitKind::Internal, failure.reason, failure.message));
        }
        ToTaskManager::Shutdown => {
            exit(world, uid, ExitRecord::new(ExitKind::Stopped, "Shutdown", "the job has ended"));
        }
        ToTaskManager::Deploy(deployment) => deploy(world, job_manager, session, uid, *deployment).await,
        ToTaskManager::CancelTasks { run } => {
            world.pause(1..200).await;
            if let Some(own) = world.lock().task_managers.get_mut(uid) {
                own.tasks.clear();
            }
            say(FromTaskManager::TasksEnded { run });
        }
        ToTaskManager::TriggerCheckpoint { run, barrier } => {
            world.pause(5..150).await;
            let tasks = world.lock().task_managers.get(uid).map(|own| own.tasks.clone()).unwrap_or_default();
            for subtask in tasks {
                say(FromTaskManager::Acknowledge {
                    run,
                    subtask,
                    checkpoint: barrier.checkpoint,
                    state: SubtaskState::default(),
                    savepoint: barrier.savepoint.is_some().then(SubtaskState::default),
                    metrics: CheckpointMetrics::default(),
                });
            }
        }
    }
}

async fn deploy(world: &World, job_manager: &str, session: SessionId, uid: &str, deployment: Deployment) {
    let run = deployment.run;
    let tasks: Vec<_> = deployment.tasks.iter().map(|task| task.subtask).collect();
    world.pause(20..300).await;
    let program = {
        let mut state = world.lock();
        let program = state.job_managers.get(job_manager).map(|one| one.program);
        if let Some(own) = state.task_managers.get_mut(uid) {
            own.tasks.clone_from(&tasks);
        }
        program
    };
    let say = |message| drive(world, job_manager, Event::Message { session, message });
    for subtask in &tasks {
        say(FromTaskManager::TaskRunning { run, subtask: *subtask });
    }
    if let (Some(Program::Crashing), Some(subtask)) = (program, tasks.first()) {
        world.pause(300..3000).await;
        let failure = Failure::restart("DivisionByZero", Fault::User, "a row cannot be divided");
        say(FromTaskManager::TaskFailed { run, subtask: *subtask, failure });
    }
}

fn exit(world: &World, uid: &str, record: ExitRecord) {
    TaskManager::kill(world, uid);
    kubelet::signal(world, uid, Signal::Exited(record));
}

/// A task of some TaskManager fails.
pub(crate) async fn fail_a_task(world: &World) {
    let found = {
        let mut state = world.lock();
        let with_tasks: Vec<_> = state.task_managers.iter().filter(|(_, one)| !one.tasks.is_empty()).collect();
        let Some((uid, one)) = with_tasks.first() else { return };
        let (uid, subtask, session) = ((*uid).clone(), one.tasks[0], one.session);
        let index = state.rng.usize(..1000);
        (uid, subtask, session, index)
    };
    let (_, _, Some(session), _) = found else { return };
    let job_manager = {
        let state = world.lock();
        let mut all = state.job_managers.iter();
        all.find(|(_, one)| one.sessions.contains_key(&session)).map(|(uid, one)| (uid.clone(), one.run()))
    };
    let Some((job_manager, run)) = job_manager else { return };
    tokio::time::sleep(Duration::from_millis(1)).await;
    let failure = Failure::restart("ConnectionReset", Fault::External, "the broker closed the connection");
    let message = FromTaskManager::TaskFailed { run, subtask: found.1, failure };
    drive(world, &job_manager, Event::Message { session, message });
}
