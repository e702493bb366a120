//! A JobMaster on a bench: a store in memory that answers at once, TaskManagers that do as they are told.

use crate::commit::{CommitHandle, CommitOutcome, Leftovers};
use crate::failure::{ExitRecord, Failure};
use crate::graph::{Edge, JobGraph, OperatorInfo, OperatorKind, Partitioning, Vertex};
use crate::history::CheckpointHistory;
use crate::ids::{CheckpointId, Generation, JobId, KeyGroupRange, ProcessId, Run, SubtaskId, TaskManagerId, VertexId};
use crate::job_master::{Action, Command, Directive, Event, JobMaster, JobMasterConfig, Planted, SessionId, StartFrom};
use crate::ledger::Entry;
use crate::message::{Barrier, CheckpointMetrics, Deployment, FromTaskManager, Registration, ToTaskManager};
use crate::metadata::Metadata;
use crate::options::JobOptions;
use crate::restart::FailureCounts;
use crate::state::{
    Committable, KeyedStateHandle, KeyedStateKind, OperatorSnapshot, SplitState, StateData, SubtaskState,
};
use crate::status::{JobState, JobStatus};
use crate::store::{StoreFailure, StoreFailureKind, StoreOperation, StoreReply, UnfinishedUpload};
use crate::time::{TimeSpan, Timestamp};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A job of a source and a keyed count at this parallelism, checkpoints every second.
pub(super) fn config(parallelism: u32) -> JobMasterConfig {
    let checkpointing = serde_json::json!({"interval": "1s", "timeout": "60s", "storage": "s3://bucket/root"});
    let options = JobOptions { checkpointing: serde_json::from_value(checkpointing).unwrap(), ..JobOptions::default() };
    let operator = |uid: &str, kind| OperatorInfo { uid: uid.into(), kind, description: uid.to_owned() };
    let vertex = |id, operator: OperatorInfo| Vertex {
        id: VertexId(id),
        name: operator.description.clone(),
        parallelism,
        operators: vec![operator],
    };
    let graph = JobGraph {
        vertices: vec![
            vertex(0, operator("source", OperatorKind::Source)),
            vertex(1, operator("count", OperatorKind::Keyed)),
        ],
        edges: vec![Edge {
            from: VertexId(0),
            to: VertexId(1),
            partitioning: Partitioning::Hash { keys: vec![0] },
            input: 0,
        }],
        max_parallelism: 128,
    };
    JobMasterConfig {
        job: JobId { namespace: "default".into(), name: "pv".into(), uid: "1".into() },
        generation: Generation(1),
        process: ProcessId("p".into()),
        revision: 1,
        directive: Directive { id: "1".into(), seen: 0, start: StartFrom::Continue },
        graph,
        options,
        storage_uri: Some("s3://bucket/root".into()),
        probed: None,
        failures: FailureCounts::default(),
        planted: Planted::default(),
    }
}

/// The same with a sink behind the count that stages a transaction with each checkpoint.
pub(super) fn with_sink(parallelism: u32) -> JobMasterConfig {
    let mut config = config(parallelism);
    let sink = OperatorInfo { uid: "out".into(), kind: OperatorKind::TransactionalSink, description: "out".to_owned() };
    config.graph.vertices[1].operators.push(sink);
    config
}

/// The same without checkpoints.
pub(super) fn no_checkpoints(parallelism: u32) -> JobMasterConfig {
    let mut config = config(parallelism);
    config.options.checkpointing = None;
    config.storage_uri = None;
    config
}

/// Objects in memory.
#[derive(Default, Clone)]
pub(super) struct Store {
    pub(super) uploads: Vec<UnfinishedUpload>,
    objects: BTreeMap<String, Vec<u8>>,
    operations: usize,
    pub(super) is_away: bool,
    /// Replies to puts of ledger entries are lost.
    pub(super) loses_ledger_replies: bool,
    /// And those puts have no effect.
    pub(super) drops_ledger_puts: bool,
    /// Entries beyond this number have no effect, and no answer.
    pub(super) keeps_entries: Option<u64>,
    /// Nothing can be read.
    pub(super) refuses_reads: bool,
    /// Deletes have no effect, and fail.
    pub(super) refuses_deletes: bool,
    /// What lies below this key may not be removed by anybody.
    pub(super) denied_below: Option<String>,
    /// Deletes have no effect, and no answer.
    pub(super) swallows_deletes: bool,
    /// Whether nothing may be put.
    pub(super) is_read_only: bool,
    /// Whether the credentials do not allow to list uploads.
    pub(super) hides_uploads: bool,
    /// Right before this key is read for the first time the objects become those of the other store.
    pub(super) meanwhile: Option<(String, Box<Self>)>,
}

impl Store {
    pub(super) fn get(&self, key: &str) -> Vec<u8> {
        self.objects[key].clone()
    }

    /// A put of a ledger entry whose fate is planned.
    fn lose(&mut self, operation: &StoreOperation) -> bool {
        let StoreOperation::PutIfAbsent { key, bytes } = operation else { return false };
        let Some((_, number)) = key.split_once("/ledger/") else { return false };
        let number: u64 = number.trim_end_matches(".json").parse().unwrap();
        let is_beyond = self.keeps_entries.is_some_and(|last| number > last);
        if self.loses_ledger_replies && !self.drops_ledger_puts {
            self.objects.entry(key.clone()).or_insert_with(|| bytes.clone());
        }
        self.loses_ledger_replies || is_beyond
    }

    pub(super) fn put(&mut self, key: &str, bytes: &[u8]) {
        self.objects.insert(key.to_owned(), bytes.to_vec());
    }

    pub(super) fn remove(&mut self, key: &str) {
        self.objects.remove(key);
    }

    pub(super) fn copy(&mut self, from: &str, to: &str) {
        let bytes = self.objects[from].clone();
        self.objects.insert(to.to_owned(), bytes);
    }

    pub(super) fn holds(&self, key: &str) -> bool {
        self.objects.contains_key(key)
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &String> {
        self.objects.keys()
    }

    pub(super) fn is_untouched(&self) -> bool {
        self.operations == 0
    }

    /// All relative keys lie below this root.
    pub(super) fn rebase(&mut self, root: &str) {
        let rebased = |key: String| if key.contains("://") { key } else { format!("{root}{key}") };
        self.objects =
            std::mem::take(&mut self.objects).into_iter().map(|(key, bytes)| (rebased(key), bytes)).collect();
    }

    /// What lies below this root is relative to it.
    pub(super) fn home(&mut self, root: &str) {
        let home = |key: String| key.strip_prefix(root).map(ToOwned::to_owned).unwrap_or(key);
        self.objects = std::mem::take(&mut self.objects).into_iter().map(|(key, bytes)| (home(key), bytes)).collect();
    }

    pub(super) fn execute(&mut self, operation: StoreOperation) -> StoreReply {
        self.operations += 1;
        let removes = matches!(operation, StoreOperation::Delete { .. } | StoreOperation::AbortUploads { .. });
        let refused = self.refuses_deletes && removes;
        let unread = self.refuses_reads && matches!(operation, StoreOperation::Get { .. });
        if self.lose(&operation) || self.is_away || refused || unread {
            let message = "connection refused".to_owned();
            return StoreReply::Failed(StoreFailure { kind: StoreFailureKind::Unreachable, message });
        }
        match operation {
            StoreOperation::PutIfAbsent { .. } if self.is_read_only => {
                let message = "access denied".to_owned();
                StoreReply::Failed(StoreFailure { kind: StoreFailureKind::Denied, message })
            }
            StoreOperation::PutIfAbsent { key, .. } if self.holds(&key) => StoreReply::Exists,
            StoreOperation::PutIfAbsent { key, bytes } => {
                self.objects.insert(key, bytes);
                StoreReply::Put
            }
            StoreOperation::Get { key } => {
                if let Some((_, later)) = self.meanwhile.take_if(|(of, _)| *of == key) {
                    self.objects = later.objects;
                }
                self.objects.get(&key).cloned().map_or(StoreReply::Absent, StoreReply::Object)
            }
            StoreOperation::List { prefix, start_after } => {
                let after = |key: &&String| start_after.as_ref().is_none_or(|bound| *key > bound);
                let keys = self.objects.keys().filter(|key| key.starts_with(&prefix)).filter(after);
                StoreReply::Keys(keys.cloned().collect())
            }
            StoreOperation::Delete { mut keys } => {
                let asked = keys.len();
                keys.retain(|key| self.denied_below.as_ref().is_none_or(|denied| !key.starts_with(denied)));
                self.objects.retain(|key, _| !keys.contains(key));
                if keys.len() == asked {
                    return StoreReply::Deleted;
                }
                let message = "access denied".to_owned();
                StoreReply::Failed(StoreFailure { kind: StoreFailureKind::Denied, message })
            }
            StoreOperation::ListUploads { .. } if self.hides_uploads => {
                let message = "access denied".to_owned();
                StoreReply::Failed(StoreFailure { kind: StoreFailureKind::Denied, message })
            }
            StoreOperation::ListUploads { prefix } => {
                let below = self.uploads.iter().filter(|upload| upload.key.starts_with(&prefix));
                StoreReply::Uploads(below.cloned().collect())
            }
            StoreOperation::AbortUploads { uploads } => {
                self.uploads.retain(|upload| !uploads.contains(upload));
                StoreReply::Deleted
            }
        }
    }
}

/// The bench.
pub(super) struct Bench {
    master: JobMaster,
    config: JobMasterConfig,
    now: Timestamp,
    pub(super) store: Store,
    pub(super) exit: Option<ExitRecord>,
    pub(super) deployments: BTreeMap<SessionId, Deployment>,
    pub(super) closed: Vec<SessionId>,
    /// How many keys each delete had that was never answered.
    pub(super) swallowed: Vec<usize>,
    sent: Vec<(SessionId, ToTaskManager)>,
    /// Whether TaskManagers end tasks when told to.
    pub(super) obeys_cancel: bool,
    /// Whether deployed tasks come to run.
    pub(super) runs_tasks: bool,
    /// Whether TaskManagers answer heartbeats.
    pub(super) is_silent: bool,
    /// Size of each keyed state.
    pub(super) state_bytes: usize,
    /// Ids of checkpoints whose barrier took a savepoint along.
    with_savepoint: BTreeSet<u64>,
    /// Shared files that each keyed state refers to as well.
    pub(super) files: Vec<String>,
    /// What the sink's writers carry.
    carried: BTreeMap<SubtaskId, Vec<Committable>>,
    /// When what is staged from now on is gone.
    pub(super) expires_at: Option<Timestamp>,
    /// Handles that were to be committed, by request.
    pub(super) commits: Vec<Vec<CommitHandle>>,
    /// What was to be aborted.
    pub(super) aborts: Vec<Leftovers>,
    /// What becomes of commits.
    pub(super) outcome: CommitOutcome,
    /// Whether answers to commits wait for [`Bench::answer_commits`].
    pub(super) holds_commits: bool,
    /// Whether what is left open cannot be aborted.
    pub(super) fails_aborts: bool,
    held: Vec<Event>,
}

impl Bench {
    /// Not yet woken.
    pub(super) fn paused(config: JobMasterConfig) -> Self {
        let mut state = 7_u64;
        let random = move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            state
        };
        Self {
            master: JobMaster::new(config.clone(), Box::new(random)),
            config,
            now: Timestamp(1_000_000),
            store: Store::default(),
            exit: None,
            deployments: BTreeMap::new(),
            closed: vec![],
            swallowed: vec![],
            sent: vec![],
            obeys_cancel: true,
            runs_tasks: true,
            is_silent: false,
            state_bytes: 10,
            with_savepoint: BTreeSet::new(),
            files: vec![],
            carried: BTreeMap::new(),
            expires_at: None,
            commits: vec![],
            aborts: vec![],
            outcome: CommitOutcome::Settled,
            holds_commits: false,
            fails_aborts: false,
            held: vec![],
        }
    }

    /// Has taken its ledger.
    pub(super) fn new(config: JobMasterConfig) -> Self {
        let mut bench = Self::paused(config);
        bench.tick();
        bench
    }

    /// Runs on as many TaskManagers as it needs.
    pub(super) fn running(config: JobMasterConfig) -> Self {
        let parallelism = u64::from(config.graph.slots_needed());
        let mut bench = Self::new(config);
        (1..=parallelism).for_each(|number| bench.register(number));
        assert_eq!(bench.state(), JobState::Running, "{:?}", bench.exit);
        bench
    }

    /// Another process on what this one left in the store.
    pub(super) fn succeeded_by(self, config: JobMasterConfig) -> Self {
        self.clone_store_for(config)
    }

    /// Another process on a copy of the store as it is now.
    pub(super) fn clone_store_for(&self, mut config: JobMasterConfig) -> Self {
        config.process = ProcessId(format!("p-{}-{}", config.job.uid, config.generation));
        let mut bench = Self::paused(config);
        bench.store = self.store.clone();
        bench.now = self.now;
        bench.tick();
        bench
    }

    /// So many seconds from now.
    pub(super) fn in_seconds(&self, seconds: u64) -> Option<Timestamp> {
        Some(self.now.plus(TimeSpan::from_secs(seconds)))
    }

    pub(super) fn status(&self) -> &JobStatus {
        self.master.status()
    }

    /// Store operations under way or waiting.
    pub(super) fn store_operations(&self) -> usize {
        self.master.operations.len()
    }

    pub(super) fn state(&self) -> JobState {
        self.status().state
    }

    pub(super) fn ledger(&self) -> Vec<Entry> {
        self.ledger_of(&self.config.job.uid)
    }

    pub(super) fn ledger_of(&self, uid: &str) -> Vec<Entry> {
        let prefix = format!("default/pv-{uid}/ledger/");
        let entries = self.store.objects.iter().filter(|(key, _)| key.starts_with(&prefix));
        entries.map(|(key, bytes)| Entry::from_bytes(bytes, key).unwrap()).collect()
    }

    pub(super) fn tick(&mut self) {
        self.event(Event::Tick);
    }

    /// Feeds an event and whatever follows from it at the same moment.
    pub(super) fn event(&mut self, event: Event) {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            for action in self.master.handle(self.now, event) {
                assert!(self.exit.is_none(), "nothing follows an exit");
                events.extend(self.act(action));
            }
        }
    }

    fn act(&mut self, action: Action) -> Vec<Event> {
        match action {
            Action::Store { operation: StoreOperation::Delete { keys }, .. } if self.store.swallows_deletes => {
                self.swallowed.push(keys.len());
                vec![]
            }
            Action::Store { id, operation } => vec![Event::StoreReply { id, reply: self.store.execute(operation) }],
            Action::Close { session } => {
                self.closed.push(session);
                vec![]
            }
            Action::Commit { id, handles } => {
                self.commits.push(handles.clone());
                let outcomes = handles.iter().map(|_| self.outcome.clone()).collect();
                let event = Event::Committed { id, outcomes };
                if self.holds_commits {
                    self.held.push(event);
                    return vec![];
                }
                vec![event]
            }
            Action::AbortLeftovers { id, leftovers } => {
                self.aborts.push(leftovers);
                let failure = self.fails_aborts.then(|| "no broker answers".to_owned());
                vec![Event::LeftoversAborted { id, failure }]
            }
            Action::Exit(record) => {
                self.exit = Some(record);
                vec![]
            }
            Action::Send { session, message } => {
                self.sent.push((session, message.clone()));
                let messages = self.obey(session, message);
                messages.into_iter().map(|message| Event::Message { session, message }).collect()
            }
        }
    }

    fn obey(&mut self, session: SessionId, message: ToTaskManager) -> Vec<FromTaskManager> {
        match message {
            ToTaskManager::TriggerCheckpoint { barrier, .. } if barrier.savepoint.is_some() => {
                self.with_savepoint.insert(barrier.checkpoint.0);
                vec![]
            }
            ToTaskManager::CheckpointCompleted { checkpoint, .. } => {
                self.carried.values_mut().for_each(|carried| carried.retain(|one| one.checkpoint > checkpoint));
                vec![]
            }
            ToTaskManager::Heartbeat { .. } if !self.is_silent => vec![FromTaskManager::Heartbeat],
            ToTaskManager::CancelTasks { run } if self.obeys_cancel => vec![FromTaskManager::TasksEnded { run }],
            ToTaskManager::Deploy(deployment) => {
                let run = deployment.run;
                self.carried.clear();
                let tasks: Vec<_> = deployment.tasks.iter().map(|task| task.subtask).collect();
                self.deployments.insert(session, *deployment);
                let running = tasks.into_iter().filter(|_| self.runs_tasks);
                running.map(|subtask| FromTaskManager::TaskRunning { run, subtask }).collect()
            }
            _ => vec![],
        }
    }

    /// Lets time pass, waking the JobMaster whenever it wants to be.
    pub(super) fn pass(&mut self, millis: u64) {
        let end = Timestamp(self.now.0 + millis);
        while let Some(at) = self.master.next_wakeup().filter(|at| *at <= end) {
            assert!(at > self.now || self.now.0 == 0, "woken for {at:?} at {:?} without effect", self.now);
            self.now = at;
            self.tick();
        }
        self.now = end;
        self.tick();
    }

    /// The notice of this reason, while it stands.
    pub(super) fn notice(&self, reason: &str) -> Option<&str> {
        let notices = &self.status().notices;
        notices.iter().find(|notice| notice.reason == reason).map(|notice| notice.message.as_str())
    }

    pub(super) fn registration(&self, number: u64) -> Registration {
        Registration {
            task_manager: TaskManagerId(format!("tm-{number}")),
            process: ProcessId(format!("tm-{number}-process")),
            generation: self.config.generation,
            slots: 1,
            data_address: format!("tm-{number}:1"),
            fingerprint: self.config.graph.fingerprint(),
        }
    }

    pub(super) fn register(&mut self, number: u64) {
        let registration = self.registration(number);
        self.message(number, FromTaskManager::Register(registration));
    }

    pub(super) fn message(&mut self, session: u64, message: FromTaskManager) {
        self.event(Event::Message { session: SessionId(session), message });
    }

    pub(super) fn last_sent(&self, session: u64) -> ToTaskManager {
        let mine = self.sent.iter().rev().filter(|(to, _)| *to == SessionId(session));
        let mut said =
            mine.map(|(_, message)| message).filter(|message| !matches!(message, ToTaskManager::Heartbeat { .. }));
        said.next().unwrap().clone()
    }

    /// The last barrier that was sent.
    pub(super) fn last_barrier(&self) -> Barrier {
        let barrier = |(_, message): &(SessionId, ToTaskManager)| match message {
            ToTaskManager::TriggerCheckpoint { barrier, .. } => Some(barrier.clone()),
            _ => None,
        };
        self.sent.iter().rev().find_map(barrier).unwrap()
    }

    pub(super) fn command(&mut self, command: Command) {
        self.event(Event::Command(command));
    }

    /// Whether anything lies below this.
    pub(super) fn holds_below(&self, prefix: &str) -> bool {
        self.store.objects.keys().any(|key| key.starts_with(prefix))
    }

    pub(super) fn history(&self) -> &CheckpointHistory {
        self.master.history()
    }

    pub(super) fn sent_to_all(&self, is_it: impl Fn(&ToTaskManager) -> bool) -> bool {
        let got = |session| self.sent.iter().any(|(to, message)| to == session && is_it(message));
        self.deployments.keys().all(got)
    }

    fn tasks(&self) -> Vec<(u64, SubtaskId)> {
        let of = |(session, deployment): (&SessionId, &Deployment)| {
            let session = session.0;
            deployment.tasks.iter().map(move |task| (session, task.subtask)).collect::<Vec<_>>()
        };
        self.deployments.iter().flat_map(of).collect()
    }

    pub(super) fn acknowledge_all(&mut self, id: u64) {
        for (session, subtask) in self.tasks() {
            let run = self.deployments[&SessionId(session)].run;
            let (checkpoint, mut state) = (CheckpointId(id), self.stored(subtask));
            self.stage(run, subtask, checkpoint, &mut state);
            let savepoint = self.with_savepoint.contains(&id).then(|| self.stored(subtask));
            let metrics = CheckpointMetrics { bytes: 10, full_bytes: 10, ..CheckpointMetrics::default() };
            self.message(session, FromTaskManager::Acknowledge { run, subtask, checkpoint, state, savepoint, metrics });
        }
    }

    /// As a writer does: a transaction, and those of checkpoints that are not known to be complete.
    fn stage(&mut self, run: Run, subtask: SubtaskId, checkpoint: CheckpointId, state: &mut SubtaskState) {
        if subtask.vertex != VertexId(1) || !self.has_sink() {
            return;
        }
        let carried = self.carried.entry(subtask).or_default();
        let bytes = format!("{run}/{subtask}/{checkpoint}").into_bytes();
        carried.push(Committable { version: 1, checkpoint, expires_at: self.expires_at, bytes });
        state.operators.push(OperatorSnapshot {
            uid: "out".into(),
            subtask: subtask.index,
            keyed: vec![],
            operator: vec![],
            splits: vec![],
            committables: carried.clone(),
        });
    }

    fn has_sink(&self) -> bool {
        self.config.graph.transactional_sinks().next().is_some()
    }

    /// Checkpoints whose handles were to be committed by the last request.
    pub(super) fn last_commit(&self) -> Vec<u64> {
        self.commits.last().into_iter().flatten().map(|handle| handle.committable.checkpoint.0).collect()
    }

    /// Feeds the answers that were held back.
    pub(super) fn answer_commits(&mut self) {
        self.holds_commits = false;
        std::mem::take(&mut self.held).into_iter().for_each(|event| self.event(event));
    }

    /// The handles in a checkpoint's description, by the checkpoint that staged them.
    pub(super) fn handles_of(&self, generation: u64, id: u64) -> Vec<u64> {
        let bytes = &self.store.objects[&format!("default/pv-1/{generation}/chk-{id}/_metadata")];
        let metadata = Metadata::from_bytes(bytes, "").unwrap();
        let mut found: Vec<_> = metadata.handles().map(|handle| handle.committable.checkpoint.0).collect();
        found.sort_unstable();
        found
    }

    pub(super) fn text_of(&self, key: &str) -> String {
        String::from_utf8_lossy(&self.store.objects[key]).into_owned()
    }

    fn stored(&self, subtask: SubtaskId) -> SubtaskState {
        let mut operator = OperatorSnapshot {
            uid: "source".into(),
            subtask: subtask.index,
            keyed: vec![],
            operator: vec![],
            splits: vec![],
            committables: vec![],
        };
        if subtask.vertex == VertexId(0) {
            let split = format!("test-{}", subtask.index);
            operator.splits.push(SplitState { split, state: serde_json::json!({"position": 1000}) });
        } else {
            operator.uid = "count".into();
            let parallelism = self.config.graph.slots_needed();
            operator.keyed.push(KeyedStateHandle {
                name: "counts".into(),
                key_groups: KeyGroupRange::of_subtask(subtask.index, parallelism, 128),
                rows: 1,
                kind: KeyedStateKind::Full,
                data: StateData::Inline { bytes: vec![0; self.state_bytes] },
            });
        }
        let files = self.files.iter().filter(|_| subtask.vertex != VertexId(0));
        operator.keyed.extend(files.map(|file| KeyedStateHandle {
            name: "counts".into(),
            key_groups: KeyGroupRange { start: 0, end: 128 },
            rows: 1,
            kind: KeyedStateKind::Full,
            data: StateData::File { path: format!("../shared/{file}"), size: 1, checksum: None },
        }));
        SubtaskState { operators: vec![operator], ..SubtaskState::default() }
    }

    pub(super) fn decline(&mut self, id: u64, failure: Failure) {
        let (session, subtask) = self.tasks()[0];
        let run = self.deployments[&SessionId(session)].run;
        self.message(session, FromTaskManager::Decline { run, subtask, checkpoint: CheckpointId(id), failure });
    }

    pub(super) fn fail_task(&mut self, failure: Failure) {
        let (session, subtask) = self.tasks()[0];
        let run = self.deployments[&SessionId(session)].run;
        self.message(session, FromTaskManager::TaskFailed { run, subtask, failure });
    }

    pub(super) fn finish_sources(&mut self) {
        self.finish(|subtask| subtask.vertex == VertexId(0));
    }

    pub(super) fn finish_all(&mut self) {
        self.finish(|_| true);
    }

    fn finish(&mut self, is_meant: impl Fn(SubtaskId) -> bool) {
        for (session, subtask) in self.tasks().into_iter().filter(|(_, subtask)| is_meant(*subtask)) {
            let run = self.deployments[&SessionId(session)].run;
            self.message(session, FromTaskManager::TaskFinished { run, subtask });
        }
    }
}
