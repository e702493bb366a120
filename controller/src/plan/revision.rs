//! New revisions, generations and their directives (N2, N3, C3), and the pods they are made of.

use super::trial::is_checkpoint;
use super::{Planner, PodPlan, View};
use crate::facts::{Program, Role, Stop, Trial};
use sluice_crds::{StopCause, StreamJobSpec, StreamJobState, UpgradeMode};
use sluice_protocol::job_master::{Directive, StartFrom};
use sluice_protocol::options::{CheckpointingSpec, RestoreSpec};
use sluice_protocol::restart::FailureCounts;

impl Planner<'_> {
    /// The spec that the current generation runs; of one that is about to start, the new one.
    pub(super) fn spec(&self) -> Option<&StreamJobSpec> {
        let program = self.facts.program.as_ref().ok();
        self.plan.spec.as_ref().or(self.facts.frozen.as_ref()).or(program.map(|program| &program.spec))
    }

    pub(super) fn checkpointing(&self) -> Option<&CheckpointingSpec> {
        self.spec()?.checkpointing.as_ref()
    }

    /// Starts `program` as the next revision, after `stop` where something ran.
    pub(super) fn begin_revision(&mut self, program: &Program, stop: Option<&Stop>) {
        let savepoint = stop.map_or_else(|| self.plan.memory.stopped_with.clone(), |stop| stop.savepoint.clone());
        let directive = self.new_directive(program, stop.map(|stop| stop.cause), savepoint.as_ref());
        let leaves_nothing = self.leaves_nothing();
        let memory = &mut self.plan.memory;
        memory.stopped_with = None;
        if directive.seen == 0 && directive.start != StartFrom::Continue {
            memory.ledger_entry = 0;
        }
        let checkpoint = memory.last_checkpoint.as_ref().filter(|_| !leaves_nothing);
        let latest = || checkpoint.map(|checkpoint| checkpoint.path.clone());
        // A directory's newest checkpoint is another by the time that somebody goes back to it.
        let snapshot = savepoint.filter(|place| !is_directory_of(place, &self.facts.directory)).or_else(latest);
        memory.trial = Some(Trial { since: self.facts.now, snapshot, ..Trial::default() });
        memory.revision += 1;
        memory.directive = Some(directive);
        memory.program.clone_from(&program.config_map);
        memory.failures = FailureCounts::new(memory.revision);
        memory.stop = None;
        memory.held = None;
        memory.savepoint_requests = 0;
        self.plan.program = Some(program.clone());
        self.plan.spec = Some(program.spec.clone());
        self.next_generation("Starting", "the JobManager's pod starts");
        // Each once per revision: the spec says it until it changes.
        for (reason, message) in spec_warnings(&program.spec) {
            self.tell(true, reason, message);
        }
    }

    /// What a new revision starts from: `restore` when it is new or has not been used, else the job's own state. A rollback
    /// goes back to that state, not to where its spec once came from.
    fn new_directive(&self, program: &Program, cause: Option<StopCause>, savepoint: Option<&String>) -> Directive {
        let memory = &self.plan.memory;
        let rolls_back = cause == Some(StopCause::RollBack);
        let restore =
            program.spec.restore.as_ref().filter(|restore| !rolls_back && self.is_due(&program.spec, restore));
        let nonce = program.spec.restore.as_ref().map_or(0, |restore| restore.nonce);
        let state_missing = self.facts.told.reason == "StateMissing";
        let moved = self.moves_to(&program.spec);
        let start = match restore {
            Some(RestoreSpec { from, allow_non_restored_state, abandon_sinks, .. }) => StartFrom::Path {
                from: from.clone(),
                allow_non_restored_state: *allow_non_restored_state,
                abandon_sinks: abandon_sinks.clone(),
            },
            None => self.own_state(program, cause, savepoint.cloned()),
        };
        let seen = if moved || (state_missing && restore.is_some()) { 0 } else { memory.ledger_entry };
        Directive { id: format!("{}-{nonce}", memory.revision + 1), seen, start }
    }

    /// Where the job's own state is. A savepoint that it was stopped with is the state of its latest checkpoint too, which
    /// stays right when the ledger has moved on unseen; so the savepoint's path is taken only where it is needed.
    fn own_state(&self, program: &Program, cause: Option<StopCause>, savepoint: Option<String>) -> StartFrom {
        let memory = &self.plan.memory;
        let upgrade = &self.facts.lifecycle.upgrade;
        let allow_non_restored_state = upgrade.allow_non_restored_state;
        let path = |from: String| StartFrom::Path { from, allow_non_restored_state, abandon_sinks: Vec::new() };
        if self.leaves_nothing() && cause == Some(StopCause::RollBack) {
            return savepoint.map_or(StartFrom::Empty, |before| path(self.newest_since(program, before)));
        }
        if upgrade.mode == UpgradeMode::Stateless && memory.revision > 0 && cause != Some(StopCause::Rescale) {
            // Back to what was before, as long as nothing has taken its place.
            let latest = memory.last_checkpoint.as_ref().map(|latest| &latest.path);
            let back = savepoint.filter(|before| cause == Some(StopCause::RollBack) && latest == Some(before));
            return back.map_or(StartFrom::Empty, path);
        }
        let moves = self.moves_to(&program.spec);
        // Taken over, and so fenced: what the revision that is given up wrote in the other storage is the newest that there
        // is. Where the program cannot read it, what the upgrade had started from follows.
        if cause == Some(StopCause::RollBack) && moves && memory.ledger_entry > 0 && !is_in_memory(&program.spec) {
            return StartFrom::Path {
                from: self.job_directory(),
                allow_non_restored_state: false,
                abandon_sinks: Vec::new(),
            };
        }
        let allows = allow_non_restored_state && cause != Some(StopCause::RollBack);
        let has_no_ledger = is_in_memory(&program.spec) || self.leaves_nothing();
        let unused = || memory.directive.as_ref().filter(|_| memory.revision > 0 && !self.has_run());
        let restore = self.facts.frozen.as_ref().and_then(|frozen| frozen.restore.as_ref());
        let was_asked = |from: &String| restore.is_some_and(|restore| restore.from == *from);
        match (savepoint, unused()) {
            (Some(before), Some(_)) if moves && !has_no_ledger && memory.ledger_entry == 0 => {
                path(self.newest_since(program, before))
            }
            (Some(savepoint), _) if allows || moves || has_no_ledger => path(savepoint),
            // What was never seen to run has a ledger all the same, which is newer than what it was to start from.
            (_, Some(_)) if moves && memory.ledger_entry > 0 => path(self.job_directory()),
            // What the last revision was to be started from and never was; but not what the spec asked for then.
            (_, Some(Directive { start: StartFrom::Path { from, .. }, .. })) if !was_asked(from) => path(from.clone()),
            _ if moves && memory.ledger_entry > 0 => path(self.job_directory()),
            // It was to start empty, or from where the spec asked, and never did.
            (_, Some(_)) if memory.ledger_entry == 0 => {
                // A `continue` behind a closer's entries would only report the end.
                let anew = || if is_in_memory(&program.spec) { StartFrom::Continue } else { StartFrom::ResumeLatest };
                self.before_unused(program, has_no_ledger).map_or_else(anew, path)
            }
            _ if memory.ledger_entry == 0 => StartFrom::Continue,
            _ => StartFrom::ResumeLatest,
        }
    }

    /// What the job had before a revision that was never carried out. There is none only where it never had a checkpoint.
    fn before_unused(&self, program: &Program, has_no_ledger: bool) -> Option<String> {
        let memory = &self.plan.memory;
        let snapshot = memory.trial.as_ref().and_then(|trial| trial.snapshot.clone());
        let latest = || memory.last_checkpoint.as_ref().map(|latest| latest.path.clone());
        match snapshot {
            Some(snapshot) if has_no_ledger => Some(snapshot),
            None if has_no_ledger => None,
            snapshot => snapshot.or_else(latest).map(|snapshot| self.newest_since(program, snapshot)),
        }
    }

    /// The job's directory, where a checkpoint lies in it: its ledger, in the wanted storage or in one of before,
    /// knows best what is the newest there, and taking it over fences it. A savepoint is what it is.
    fn newest_since(&self, program: &Program, snapshot: String) -> String {
        let specs = [Some(&program.spec), self.facts.stable.as_ref(), self.facts.frozen.as_ref()];
        let mut directories = specs.into_iter().flatten().map(|spec| self.directory_of(spec));
        let holds = |directory: &String| snapshot.starts_with(&format!("{directory}/"));
        let found = directories.find(holds).filter(|_| is_checkpoint(&snapshot));
        found.unwrap_or(snapshot)
    }

    /// The job's directory in the storage of the revision that ran (N1).
    pub(super) fn job_directory(&self) -> String {
        self.facts.frozen.as_ref().map(|spec| self.directory_of(spec)).unwrap_or_default()
    }

    fn directory_of(&self, spec: &StreamJobSpec) -> String {
        let checkpointing = spec.checkpointing.as_ref();
        let root = checkpointing.map(|checkpointing| checkpointing.storage.trim_end_matches('/')).unwrap_or_default();
        format!("{root}/{}", self.facts.directory)
    }

    /// Whether what ran kept its checkpoints in its JobManager's memory: they are gone with it.
    pub(super) fn leaves_nothing(&self) -> bool {
        self.facts.frozen.as_ref().is_some_and(is_in_memory)
    }

    /// Whether the job has started from what this spec's `restore` says.
    pub(super) fn is_restore_used(&self, spec: &StreamJobSpec) -> bool {
        let is = |restore: &RestoreSpec| {
            let mut used = self.plan.memory.used_restores.iter();
            used.any(|used| used.from == restore.from && used.nonce == restore.nonce)
        };
        spec.restore.as_ref().is_some_and(is)
    }

    pub(super) fn is_due(&self, program: &StreamJobSpec, restore: &RestoreSpec) -> bool {
        let memory = &self.plan.memory;
        let first = memory.revision == 0;
        let place = |restore: &RestoreSpec| (restore.from.clone(), restore.nonce);
        let changed =
            self.facts.frozen.as_ref().is_some_and(|frozen| frozen.restore.as_ref().map(place) != Some(place(restore)));
        let unused = !self.has_run()
            && matches!(&memory.directive, Some(Directive { start: StartFrom::Path { from, .. }, .. }) if *from == restore.from);
        first || (changed && !self.is_restore_used(program)) || unused
    }

    /// Starts the next generation of the revision: max(status, reported) + 1 (C2).
    pub(super) fn next_generation(&mut self, reason: &str, message: &str) {
        let reported = self.facts.report.as_ref().map(|report| report.generation).unwrap_or_default();
        let memory = &mut self.plan.memory;
        memory.helper = None;
        memory.generation = memory.generation.max(reported).next();
        memory.job_manager_pod = None;
        memory.next_task_manager = 0;
        memory.next_restart_at = None;
        memory.deployed_program.clone_from(&memory.program);
        let generation = memory.generation;
        self.delete_pods(|_| true);
        self.create_pods();
        let restarting = self.facts.memory.generation.0 > 0 && self.plan.program.is_none();
        let state = if restarting { self.starting_again() } else { StreamJobState::Starting };
        self.plan.view = View::progressing(state, reason, message);
        let words = match &self.directive().start {
            StartFrom::Continue if self.plan.memory.ledger_entry == 0 => "starts".to_owned(),
            StartFrom::ResumeLatest if self.plan.memory.ledger_entry == 0 => "starts".to_owned(),
            StartFrom::Continue => "continues from the latest retained checkpoint".to_owned(),
            StartFrom::ResumeLatest => "resumes from the latest checkpoint".to_owned(),
            StartFrom::Path { from, .. } => format!("restores {from}"),
            StartFrom::Empty => "starts empty".to_owned(),
            StartFrom::Close { .. } => "ends the job".to_owned(),
            StartFrom::Dispose { path } => format!("removes {path}"),
        };
        let revision = self.plan.memory.revision;
        let event = format!("generation {generation} (revision {revision}) {words}");
        self.tell(false, "GenerationStarted", event);
    }

    /// Creates the pods of the current generation, with its Service and, where it is missing, its program.
    pub(super) fn create_pods(&mut self) {
        let generation = self.plan.memory.generation;
        if self.facts.frozen.is_none() && self.plan.program.is_none() {
            let program = self.facts.program.as_ref().ok();
            self.plan.program = program.filter(|program| program.config_map == self.plan.memory.program).cloned();
        }
        self.plan.service = Some(generation);
        let job_manager = self.pod(Role::JobManager);
        self.plan.create.push(job_manager);
        let count = self.spec().map_or(0, StreamJobSpec::task_manager_count);
        self.create_task_managers(count);
        self.plan.view = View::progressing(StreamJobState::Starting, "Starting", "the JobManager's pod starts");
    }

    /// Creates `count` TaskManagers of the current generation.
    pub(super) fn create_task_managers(&mut self, count: u32) {
        let first = self.plan.memory.next_task_manager;
        let pods: Vec<_> = (first..first + count).map(|index| self.pod(Role::TaskManager(index))).collect();
        self.plan.memory.next_task_manager = first + count;
        self.plan.create.extend(pods);
        if first > 0 {
            let words = match count {
                1 => format!("a lost TaskManager is replaced by that of index {first}"),
                _ => format!("{count} lost TaskManagers are replaced by those from index {first} on"),
            };
            self.tell(true, "TaskManagerReplaced", words);
        }
        if self.plan.spec.is_none() {
            self.plan.spec = self.spec().cloned();
        }
    }

    pub(super) fn pod(&self, role: Role) -> PodPlan {
        let memory = &self.plan.memory;
        let configured = self.spec().and_then(|spec| spec.image.clone());
        // All pods of a generation run one image, also when the operator's default changes meanwhile.
        let of_job_manager = || {
            let mut pods = self.facts.pods.iter();
            let pod = pods.find(|pod| pod.role == Role::JobManager && pod.generation == memory.generation)?;
            Some(pod.image.clone()).filter(|image| !image.is_empty())
        };
        // A helper has the image of the generation that ran.
        let of_predecessor = || {
            let is_helper = memory.helper.is_some();
            let pods = self.facts.pods.iter().filter(|pod| is_helper && !pod.image.is_empty());
            pods.max_by_key(|pod| pod.generation).map(|pod| pod.image.clone())
        };
        PodPlan {
            role,
            generation: memory.generation,
            revision: memory.revision,
            config_map: memory.program.clone(),
            directive: serde_json::to_string(&self.directive()).unwrap_or_default(),
            failures: serde_json::to_string(&memory.failures).unwrap_or_default(),
            image: configured
                .or_else(of_job_manager)
                .or_else(of_predecessor)
                .unwrap_or_else(|| self.facts.default_image.clone()),
        }
    }

    /// What the current generation is told: the revision's own directive until it was seen to be used, then to
    /// continue from what the controller knows of the ledger (N3).
    fn directive(&self) -> Directive {
        let memory = &self.plan.memory;
        let used = memory.started_revision == memory.revision;
        let helper = self.helper_start();
        match &memory.directive {
            directive if helper.is_some() => Directive {
                id: directive.as_ref().map(|directive| directive.id.clone()).unwrap_or_default(),
                seen: memory.ledger_entry,
                start: helper.unwrap_or(StartFrom::Continue),
            },
            Some(directive) if !used => directive.clone(),
            directive => Directive {
                id: directive.as_ref().map(|directive| directive.id.clone()).unwrap_or_default(),
                seen: memory.ledger_entry,
                start: StartFrom::Continue,
            },
        }
    }
}

/// Whether a place is the job's directory in some storage, and no snapshot.
pub(super) fn is_directory_of(place: &str, directory: &str) -> bool {
    place.ends_with(&format!("/{directory}"))
}

fn is_in_memory(spec: &StreamJobSpec) -> bool {
    spec.checkpointing.as_ref().is_some_and(CheckpointingSpec::is_in_memory)
}

/// What a spec that can run says in vain.
pub(super) fn spec_warnings(spec: &StreamJobSpec) -> Vec<(&'static str, String)> {
    spec.checkpointing.iter().flat_map(CheckpointingSpec::warnings).collect()
}
