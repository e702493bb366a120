//! A JobManager's process: the real JobMaster over the object store, its TaskManagers, and whoever follows it.

use crate::kubelet::{self, Signal};
use crate::scenario::Program;
use crate::store::no_answer;
use crate::task_manager::{self, TaskManager};
use crate::world::World;
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt, stream};
use serde_json::Value;
use sluice_controller::connection::{Connection, Connector, Reports};
use sluice_crds::parse_manifest;
use sluice_protocol::failure::{ExitKind, ExitRecord};
use sluice_protocol::graph::{JobGraph, OperatorInfo, OperatorKind, Vertex};
use sluice_protocol::job_master::{Action, Command, Directive, Event, JobMaster, JobMasterConfig, Planted, SessionId};
use sluice_protocol::status::JobStatus;
use sluice_protocol::store::{OperationId, StoreOperation};
use sluice_protocol::{Generation, JobId, ProcessId, Timestamp, VertexId};
use sluice_rpc::control::ControlError;
use sluice_rpc::tls::Tls;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// One process.
pub(crate) struct JobManager {
    master: JobMaster,
    pub(crate) job: JobId,
    pub(crate) generation: Generation,
    pub(crate) address: String,
    pub(crate) graph: JobGraph,
    /// The root of its checkpoint storage.
    root: String,
    pub(crate) program: Program,
    pub(crate) is_reachable: bool,
    status: watch::Sender<JobStatus>,
    requests: BTreeSet<String>,
    wakes_at: Option<Timestamp>,
    /// TaskManagers by session.
    pub(crate) sessions: BTreeMap<SessionId, String>,
}

/// The time, as processes read it.
pub(crate) fn now() -> Timestamp {
    Timestamp(u64::try_from(k8s_openapi::jiff::Timestamp::now().as_millisecond()).unwrap_or_default())
}

/// What the command line of a pod says.
pub(crate) fn argument(pod: &Value, flag: &str) -> String {
    let args = pod["spec"]["containers"][0]["args"].as_array().cloned().unwrap_or_default();
    let at = args.iter().position(|arg| arg == flag);
    at.and_then(|at| args.get(at + 1)?.as_str().map(ToOwned::to_owned)).unwrap_or_default()
}

fn variable(pod: &Value, name: &str) -> String {
    let env = pod["spec"]["containers"][0]["env"].as_array().cloned().unwrap_or_default();
    let found = env.iter().find(|variable| variable["name"] == name);
    found.and_then(|variable| Some(variable["value"].as_str()?.replace("$$(", "$("))).unwrap_or_default()
}

/// A source and nothing else: what matters here is who runs, and from where.
fn graph(parallelism: u32, max_parallelism: u16) -> JobGraph {
    let operator = OperatorInfo { uid: "source".into(), kind: OperatorKind::Source, description: "source".to_owned() };
    let vertex = Vertex { id: VertexId(0), name: "source".to_owned(), parallelism, operators: vec![operator] };
    JobGraph { vertices: vec![vertex], edges: vec![], max_parallelism }
}

impl JobManager {
    /// Starts what a pod's container runs.
    pub(crate) fn start(world: &World, pod: &Value, uid: &str, address: &str) {
        let namespace = argument(pod, "--namespace");
        let volumes = pod["spec"]["volumes"].as_array().cloned().unwrap_or_default();
        let config_map =
            volumes.iter().find_map(|volume| volume["projected"]["sources"][0]["configMap"]["name"].as_str());
        let manifest = {
            let state = world.lock();
            let config_map = state.api.get("configmaps", &namespace, config_map.unwrap_or_default());
            config_map.and_then(|map| Some(map["data"]["job.yaml"].as_str()?.to_owned())).unwrap_or_default()
        };
        let spec = match parse_manifest(&manifest) {
            Ok(job) => job.spec,
            Err(error) => return world.violate(format!("a pod's manifest cannot be read: {error}")),
        };
        let options = spec.job_options();
        let directive: Directive = match serde_json::from_str(&variable(pod, "SLUICE_DIRECTIVE")) {
            Ok(directive) => directive,
            Err(error) => return world.violate(format!("a pod's directive cannot be read: {error}")),
        };
        let generation = Generation(argument(pod, "--generation").parse().unwrap_or_default());
        let job = JobId { namespace, name: argument(pod, "--name"), uid: argument(pod, "--uid") };
        world.trace(|| format!("JobManager {generation} of {} starts at {address}: {directive:?}", job.name));
        let graph = graph(options.parallelism, options.max_parallelism);
        let storage_uri = options.checkpointing.as_ref().map(|settings| settings.storage.clone());
        let root = storage_uri.clone().unwrap_or_default();
        let config = JobMasterConfig {
            job: job.clone(),
            generation,
            process: ProcessId(uid.to_owned()),
            revision: argument(pod, "--revision").parse().unwrap_or_default(),
            directive,
            graph: graph.clone(),
            options,
            storage_uri,
            probed: None,
            failures: serde_json::from_str(&variable(pod, "SLUICE_FAILURES")).unwrap_or_default(),
            planted: Planted::default(),
        };
        let mut rng = world.lock().rng.fork();
        let job_manager = Self {
            master: JobMaster::new(config, Box::new(move || rng.u64(..))),
            job,
            generation,
            address: address.to_owned(),
            graph,
            root,
            program: Program::read(spec.program.sql.as_deref().unwrap_or_default()),
            is_reachable: true,
            status: watch::Sender::new(JobStatus::default()),
            requests: BTreeSet::new(),
            wakes_at: None,
            sessions: BTreeMap::new(),
        };
        if job_manager.program == Program::Refused {
            let message = "the statement has no meaning";
            let record = ExitRecord::new(ExitKind::UserError, "SqlError", message);
            return kubelet::signal(world, uid, Signal::Exited(record));
        }
        world.lock().job_managers.insert(uid.to_owned(), job_manager);
        drive(world, uid, Event::Tick);
    }

    /// The process is gone, without a word.
    pub(crate) fn kill(world: &World, uid: &str) {
        let gone = world.lock().job_managers.remove(uid);
        for task_manager in gone.into_iter().flat_map(|gone| gone.sessions.into_values()) {
            TaskManager::lose_job_manager(world, &task_manager);
        }
    }

    /// Its generation and attempt.
    pub(crate) fn run(&self) -> sluice_protocol::Run {
        sluice_protocol::Run { generation: self.generation, attempt: self.master.status().attempt }
    }

    /// Whether anybody reaches it.
    pub(crate) fn set_reachable(&mut self, reachable: bool) {
        self.is_reachable = reachable;
        // Who follows it sees at once that it is gone, or that it answers again.
        self.status.send_modify(|_| {});
    }
}

/// Feeds an event to a JobManager and does what it says.
pub(crate) fn drive(world: &World, uid: &str, event: Event) {
    let (actions, wakeup) = {
        let mut state = world.lock();
        let Some(job_manager) = state.job_managers.get_mut(uid) else { return };
        let at = now();
        let actions = job_manager.master.handle(at, event);
        let status = job_manager.master.status();
        job_manager.status.send_if_modified(|told| {
            let news = told != status;
            if news {
                told.clone_from(status);
            }
            news
        });
        let next = job_manager.master.next_wakeup().map(|next| next.max(Timestamp(at.0 + 1)));
        let wakeup = next.filter(|next| job_manager.wakes_at.is_none_or(|known| known > *next || known <= at));
        if wakeup.is_some() {
            job_manager.wakes_at = wakeup;
        }
        (actions, wakeup.map(|next| next.since(at)))
    };
    if let Some(wait) = wakeup {
        let (world, uid) = (world.clone(), uid.to_owned());
        tokio::spawn(async move {
            tokio::time::sleep(wait.as_duration()).await;
            drive(&world, &uid, Event::Tick);
        });
    }
    for action in actions {
        act(world, uid, action);
    }
}

fn act(world: &World, uid: &str, action: Action) {
    match action {
        Action::Store { id, operation } => {
            let (world, uid) = (world.clone(), uid.to_owned());
            tokio::spawn(async move { store(&world, &uid, id, operation).await });
        }
        Action::Send { session, message } => {
            let state = world.lock();
            let task_manager = state.job_managers.get(uid).and_then(|one| one.sessions.get(&session).cloned());
            drop(state);
            if let Some(task_manager) = task_manager {
                task_manager::hear(world, uid, session, &task_manager, message);
            }
        }
        Action::Close { session } => {
            let closed = {
                let mut state = world.lock();
                state.job_managers.get_mut(uid).and_then(|one| one.sessions.remove(&session))
            };
            if let Some(task_manager) = closed {
                TaskManager::lose_job_manager(world, &task_manager);
            }
        }
        // No sink of these jobs has transactions.
        Action::Commit { .. } | Action::AbortLeftovers { .. } => {}
        Action::Exit(record) => {
            JobManager::kill(world, uid);
            kubelet::signal(world, uid, Signal::Exited(record));
        }
    }
}

async fn store(world: &World, uid: &str, id: OperationId, operation: StoreOperation) {
    let writer = world.lock().job_managers.get(uid).map(|one| (one.job.clone(), one.root.clone()));
    let Some(writer) = writer else { return };
    world.pause(1..15).await;
    let (is_lost, takes_effect) = {
        let at = world.now();
        let mut state = world.lock();
        let percent = if at < state.store_away_until { 95 } else { state.scenario.store_failures };
        let is_lost = state.is_faulty && state.rng.u32(..100) < percent;
        (is_lost, !is_lost || state.rng.bool())
    };
    let reply = takes_effect.then(|| {
        let mut state = world.lock();
        let reply = state.store.apply(&writer.1, &operation);
        let checked = state.check.on_store((&writer.0, &writer.1), &operation, &reply);
        drop(state);
        if let Err(what) = checked {
            world.violate(what);
        }
        if let StoreOperation::PutIfAbsent { key, bytes } = &operation
            && key.contains("/ledger/")
        {
            world.trace(|| {
                let entry: Value = serde_json::from_slice(bytes).unwrap_or_default();
                format!("ledger {key}: generation {} {} {reply:?}", entry["generation"], entry["kind"])
            });
        }
        reply
    });
    world.pause(1..15).await;
    let reply = reply.filter(|_| !is_lost).unwrap_or_else(no_answer);
    if is_lost {
        world.pause(100..3000).await;
    }
    drive(world, uid, Event::StoreReply { id, reply });
}

/// The way from a replica to the JobManagers.
pub(crate) struct Wires {
    pub(crate) world: World,
    /// The replica's own.
    pub(crate) alive: Arc<std::sync::atomic::AtomicBool>,
}

struct Wire {
    world: World,
    uid: String,
    address: String,
    alive: Arc<std::sync::atomic::AtomicBool>,
}

fn unreachable(address: &str) -> ControlError {
    ControlError::Unreachable { address: address.to_owned(), message: "connection refused".to_owned() }
}

impl Connector for Wires {
    fn connect<'a>(
        &'a self,
        _job: &'a JobId,
        address: &'a str,
        tls: Option<Arc<Tls>>,
    ) -> BoxFuture<'a, Result<Arc<dyn Connection>, ControlError>> {
        async move {
            self.world.pause(1..20).await;
            if tls.is_none() {
                self.world.violate(format!("the JobManager at {address} is spoken to without a certificate"));
            }
            let host = address.split(':').next().unwrap_or_default();
            let state = self.world.lock();
            let mut there = state.job_managers.iter().filter(|(_, one)| one.address == host && one.is_reachable);
            let (uid, _) = there.next().ok_or_else(|| unreachable(address))?;
            let (world, alive) = (self.world.clone(), Arc::clone(&self.alive));
            let wire = Wire { world, uid: uid.clone(), address: address.to_owned(), alive };
            Ok(Arc::new(wire) as Arc<dyn Connection>)
        }
        .boxed()
    }
}

impl Connection for Wire {
    fn watch<'a>(&'a self, job: &'a JobId, generation: Generation) -> BoxFuture<'a, Result<Reports, ControlError>> {
        async move {
            self.world.pause(1..20).await;
            let state = self.world.lock();
            let there = state.job_managers.get(&self.uid).ok_or_else(|| unreachable(&self.address))?;
            if there.job != *job || there.generation != generation {
                let message = format!("it runs generation {} of {}", there.generation, there.job);
                return Err(ControlError::AnotherJobManager { address: self.address.clone(), message });
            }
            let mut reports = there.status.subscribe();
            reports.mark_changed();
            let follower = (self.world.clone(), self.uid.clone(), self.address.clone(), reports);
            let late = stream::unfold(follower, |(world, uid, address, mut reports)| async move {
                reports.changed().await.ok()?;
                world.pause(1..8).await;
                let report = reports.borrow_and_update().clone();
                let is_reachable = world.lock().job_managers.get(&uid).is_some_and(|one| one.is_reachable);
                let report = if is_reachable { Ok(report) } else { Err(unreachable(&address)) };
                Some((report, (world, uid, address, reports)))
            });
            Ok(late.boxed())
        }
        .boxed()
    }

    fn execute<'a>(
        &'a self,
        generation: Generation,
        request_id: &'a str,
        command: &'a Command,
    ) -> BoxFuture<'a, Result<bool, ControlError>> {
        async move {
            if !self.alive.load(std::sync::atomic::Ordering::Relaxed) {
                return std::future::pending().await;
            }
            let (before, is_lost) = {
                let mut state = self.world.lock();
                let is_lost = state.is_faulty && state.rng.u32(..100) < state.scenario.lost_commands;
                (state.rng.u64(1..20), is_lost)
            };
            tokio::time::sleep(Duration::from_millis(before)).await;
            if is_lost {
                self.world.pause(100..9000).await;
                return Err(unreachable(&self.address));
            }
            let is_new = {
                let mut state = self.world.lock();
                let there = state.job_managers.get_mut(&self.uid).filter(|one| one.is_reachable);
                let there = there.ok_or_else(|| unreachable(&self.address))?;
                if there.generation != generation {
                    let message = format!("it runs generation {}", there.generation);
                    return Err(ControlError::AnotherJobManager { address: self.address.clone(), message });
                }
                there.requests.insert(request_id.to_owned())
            };
            if is_new {
                self.world.trace(|| format!("JobManager {generation} hears {request_id}: {command:?}"));
                drive(&self.world, &self.uid, Event::Command(command.clone()));
            }
            self.world.pause(1..20).await;
            Ok(is_new)
        }
        .boxed()
    }
}
