//! The classic of issue "exactly once": `examples/exactly-once.yaml` as processes, on a broker of its own, with the input and
//! the check of `examples/ExactlyOnce.java`, which know nothing of Sluice; and what kills it at the steps of the protocol.
//!
//! Where a kill falls is chosen by what can be seen from outside: the status page tells of barriers under way, the
//! `_metadata` of a checkpoint is written after every pre-commit and before the ledger's entry, the entry before the commits.

use super::job::Job;
use super::kafka::{self, OwnKafka};
use super::process::Process;
use super::{unique, wait_for};
use nix::sys::signal::Signal;
use sluice_protocol::ledger::{Entry, EntryKind};
use sluice_protocol::status::{JobState, JobStatus};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples");
const PARTITIONS: i32 = 4;
const WAIT: Duration = Duration::from_secs(90);
/// How long after the first checkpoint behind a restart readers may be held up by what the kill left open: the abort of it is
/// not on the restart's path (S3).
const HELD_UP: Duration = Duration::from_secs(15);

/// How the job is to run.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// `'sink.delivery-guarantee'`.
    pub guarantee: &'static str,
    /// More options of the sink, with a comma in front.
    pub sink: &'static str,
    /// More fields of `checkpointing`, in YAML, with a comma in front.
    pub checkpointing: &'static str,
}

/// Step of a checkpoint at which something dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// No barrier is under way.
    BeforeTheBarrier,
    /// A barrier is: tasks align.
    Alignment,
    /// All have pre-committed and the checkpoint's `_metadata` is written; seldom the entry stands before the kill comes.
    PreCommitted,
    /// The entry stands, its commits begin.
    Appended,
    /// So long after the entry: amid the commits, or behind them.
    Committing(Duration),
    /// A JobManager has been killed behind an entry, and its successor has just appended `Started`: it settles what the
    /// first one left.
    Settling,
}

/// What dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Victims {
    /// The JobManager; its TaskManagers go with it when its successor starts, as pods of an older generation do.
    pub job_manager: bool,
    /// So many TaskManagers.
    pub task_managers: usize,
    /// The broker.
    pub broker: bool,
}

/// The job with all that it needs.
pub struct Classic {
    /// The broker; only this job uses it.
    pub broker: OwnKafka,
    /// The processes of the job.
    pub job: Job,
    settings: Settings,
    parallelism: u32,
    storage: PathBuf,
    input: String,
    output: String,
    kills: u32,
    /// Kills that came before the entry of a checkpoint whose pre-commits were done.
    before_entries: u32,
    /// The ledger's last entry at the last kill.
    killed_behind: u64,
}

impl Classic {
    /// Starts the broker and the job, and waits until it runs.
    ///
    /// # Panics
    /// When one of them does not.
    pub async fn start(settings: Settings, parallelism: u32) -> Self {
        let broker = OwnKafka::start();
        let (input, output) = (unique("page-views"), unique("views-per-window"));
        let topics = [(input.as_str(), PARTITIONS), (output.as_str(), 2)];
        kafka::create_topics(&broker.address(), &topics).await.expect("topics");
        let storage = std::env::temp_dir().join(unique("sluice-classic"));
        std::fs::create_dir_all(&storage).expect("a directory for checkpoints");
        let job = Job::new("exactly-once", "", None);
        let mut classic = Self {
            broker,
            job,
            settings,
            parallelism,
            storage,
            input,
            output,
            kills: 0,
            before_entries: 0,
            killed_behind: 0,
        };
        classic.start_generation(parallelism);
        classic
    }

    /// The example with this run's places, and faster: nothing else of it is changed.
    fn manifest(&self) -> String {
        let mut text = std::fs::read_to_string(format!("{EXAMPLES}/exactly-once.yaml")).expect("the example");
        let checkpointing =
            format!("interval: 300ms{}, storage: \"file://{}\"", self.settings.checkpointing, self.storage.display());
        let changes = [
            ("'topic'='page-views'", format!("'topic'='{}'", self.input)),
            ("'topic'='views-per-window'", format!("'topic'='{}'", self.output)),
            ("localhost:9092", self.broker.address()),
            ("'exactly-once'", format!("'{}'{}", self.settings.guarantee, self.settings.sink)),
            ("parallelism: 2", format!("parallelism: {}\n  taskManager: {{slots: 1}}", self.parallelism)),
            ("interval: 2s, storage: \"file:///tmp/sluice-exactly-once\"", checkpointing),
            ("delay: 1s", "delay: 100ms".to_owned()),
        ];
        for (from, to) in changes {
            assert!(text.contains(from), "the example has no {from}");
            text = text.replace(from, &to);
        }
        text
    }

    /// Starts the next generation at a parallelism, which may be another one: a rescale. What of the last one still runs is
    /// killed.
    pub fn start_generation(&mut self, parallelism: u32) {
        self.parallelism = parallelism;
        self.job.set_manifest(&self.manifest());
        self.job.start_generation(parallelism);
        self.job.wait_checkpoint(0);
    }

    /// Starts the page views, so many of them and then as many as come until they are ended, and waits for the
    /// first results.
    ///
    /// # Panics
    /// When none come.
    #[must_use]
    pub fn produce(&self, first: u64, events: u64, rate: u64) -> PageViews {
        let until = self.job.directory().join(unique("until"));
        let numbers = [("--first", first), ("--events", events), ("--rate", rate)];
        let mut command = self.java("produce");
        command.args(numbers.iter().flat_map(|(name, number)| [(*name).to_owned(), number.to_string()]));
        command.arg("--until").arg(&until);
        let before = self.written();
        let process = Process::start(&unique("produce"), self.job.directory(), &mut command).expect("Java");
        wait_for("results", WAIT, || (self.written() > before).then_some(()));
        PageViews { process, until }
    }

    /// How far the output is written, committed or not.
    fn written(&self) -> i64 {
        kafka::end_offsets(&self.broker.address(), &self.output).expect("the output's ends")
    }

    /// Writes so many more page views and no row that closes their windows.
    ///
    /// # Panics
    /// When not all are delivered.
    pub fn produce_open(&self, first: u64, events: u64) {
        let mut command = self.java("produce");
        let numbers = [("--first", first), ("--events", events), ("--rate", 100_000)];
        command.args(numbers.iter().flat_map(|(name, number)| [(*name).to_owned(), number.to_string()])).arg("--open");
        let output = command.output().expect("Java");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    fn java(&self, verb: &str) -> Command {
        let mut command = Command::new("bash");
        command.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/services/kafka.sh"));
        command.arg("tool").arg(format!("{EXAMPLES}/ExactlyOnce.java")).arg(verb);
        command.args(["--bootstrap", &self.broker.address(), "--input", &self.input, "--output", &self.output]);
        command
    }

    /// What the verifier says of the output, and whether all of it is right.
    ///
    /// # Panics
    /// When it cannot tell.
    #[must_use]
    pub fn verify(&self, arguments: &[&str]) -> (bool, String) {
        let output = self.java("verify").args(arguments).output().expect("Java");
        let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        println!("{text}");
        match output.status.code() {
            Some(0) => {
                assert!(!text.contains("; 0 results are due"), "nothing was verified: {text}");
                (true, text)
            }
            Some(1) => (false, text),
            _ => panic!("the verifier cannot tell: {text}"),
        }
    }

    /// Kills at a moment, brings back what died, and waits until the job has completed a checkpoint again and no reader waits
    /// for what the kill left.
    pub fn strike(&mut self, moment: Moment, victims: Victims) {
        let attempt = self.attempt();
        let known = self.last_entry();
        self.await_moment(moment);
        let seen = self.last_entry();
        self.kill_and_recover(&format!("{moment:?}, between entries {known} and {seen}"), victims, attempt, || ());
        let is_in_time = moment == Moment::PreCommitted && victims.job_manager && self.killed_behind == known;
        self.before_entries += u32::from(is_in_time);
    }

    /// How many kills came between the pre-commits of a checkpoint and its entry: none is there.
    #[must_use]
    pub fn kills_before_entries(&self) -> u32 {
        self.before_entries
    }

    /// The number of the attempt that runs now.
    fn attempt(&self) -> u32 {
        self.job.status().map_or(0, |status| status.attempt.0)
    }

    fn kill_and_recover(&mut self, when: &str, victims: Victims, attempt: u32, then: impl FnOnce()) {
        if victims.broker {
            self.broker.kill();
        }
        if victims.job_manager {
            self.job.kill_job_manager();
        }
        let doomed: Vec<u32> = self.job.task_managers.keys().copied().take(victims.task_managers).collect();
        doomed.iter().for_each(|index| self.job.kill_task_manager(*index));
        self.kills += 1;
        let killed = Instant::now();
        self.killed_behind = self.last_entry();
        then();
        if victims.broker {
            self.broker.restart();
        }
        let ends = || kafka::ends(&self.broker.address(), &self.output).ok();
        let written = wait_for("the output's ends", WAIT, ends).all;
        if victims.job_manager {
            self.job.start_generation(self.parallelism);
            self.wait_running_again(1);
        } else {
            for _ in &doomed {
                self.job.start_task_manager();
            }
            self.wait_running_again(attempt + u32::from(!doomed.is_empty()));
        }
        self.expect_nobody_waits(&written);
        let Self { kills, killed_behind, .. } = self;
        println!("kill {kills}, behind entry {killed_behind}: {when}: {victims:?}: well after {:?}", killed.elapsed());
    }

    /// Until the attempt runs and has completed a checkpoint that was triggered by now.
    fn wait_running_again(&self, attempt: u32) {
        let running = self.job.wait_status("it runs again", WAIT, |status| {
            status.state == JobState::Running && status.attempt.0 >= attempt
        });
        self.job.wait_checkpoint(running.completed_checkpoints + 1);
    }

    /// Until readers of committed results are past what was written before the kill.
    fn expect_nobody_waits(&self, written: &[i64]) {
        wait_for("readers to pass what the kill left open", HELD_UP, || {
            let now = kafka::ends(&self.broker.address(), &self.output).ok()?.committed;
            assert_eq!(now.len(), written.len(), "partitions of the output");
            now.iter().zip(written).all(|(committed, written)| committed >= written).then_some(())
        });
    }

    fn await_moment(&mut self, moment: Moment) {
        let is_checkpoint = |kind: &EntryKind| matches!(kind, EntryKind::Checkpoint { .. });
        match moment {
            Moment::BeforeTheBarrier => self.wait_status_quickly(|status| status.pending_checkpoints.is_empty()),
            Moment::Alignment => self.wait_status_quickly(|status| !status.pending_checkpoints.is_empty()),
            Moment::PreCommitted => wait_for_new_file(&self.job_directory(), |file| file.ends_with("/_metadata")),
            Moment::Appended => self.wait_for_entry(self.last_entry(), is_checkpoint),
            Moment::Committing(after) => {
                self.wait_for_entry(self.last_entry(), is_checkpoint);
                std::thread::sleep(after);
            }
            Moment::Settling => {
                self.wait_for_entry(self.last_entry(), is_checkpoint);
                self.job.kill_job_manager();
                self.kills += 1;
                let known = self.last_entry();
                self.job.start_generation(self.parallelism);
                self.wait_for_entry(known, |kind| matches!(kind, EntryKind::Started { .. }));
            }
        }
    }

    /// Waits until the ledger has such an entry behind this one.
    fn wait_for_entry(&self, known: u64, is_it: impl Fn(&EntryKind) -> bool) {
        let deadline = Instant::now() + WAIT;
        let mut next = known + 1;
        loop {
            let path = self.job_directory().join(format!("ledger/{next:010}.json"));
            if let Ok(bytes) = std::fs::read(&path) {
                let entry = Entry::from_bytes(&bytes, &path.to_string_lossy()).expect("an entry");
                if is_it(&entry.kind) {
                    return;
                }
                next += 1;
            }
            assert!(Instant::now() < deadline, "no such entry behind {known} within {WAIT:?}");
            std::thread::yield_now();
        }
    }

    fn job_directory(&self) -> PathBuf {
        self.storage.join(self.job.job_directory())
    }

    fn wait_status_quickly(&self, wanted: impl Fn(&JobStatus) -> bool) {
        let deadline = Instant::now() + WAIT;
        while !self.job.status().is_some_and(|status| wanted(&status)) {
            assert!(Instant::now() < deadline, "no such moment within {WAIT:?}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Makes the next checkpoints fail, until so many more have failed. Their handles are carried by the next that completes (K3),
    /// which is waited for.
    pub fn fail_checkpoints(&self, how_many: u64) {
        self.obstruct(how_many).into_iter().for_each(remove);
        let completed = self.job.status().map_or(0, |status| status.completed_checkpoints);
        self.job.wait_checkpoint(completed);
    }

    /// The same, but something dies while the handles are carried.
    pub fn fail_checkpoints_and_kill(&mut self, how_many: u64, victims: Victims) {
        let attempt = self.attempt();
        let placed = self.obstruct(how_many);
        self.kill_and_recover("behind failed checkpoints", victims, attempt, || placed.into_iter().for_each(remove));
    }

    /// Lets nothing be stored of checkpoints for so long.
    pub fn close_store_for(&self, duration: Duration) {
        let placed = self.obstruct(1);
        std::thread::sleep(duration);
        placed.into_iter().for_each(remove);
        let completed = self.job.status().map_or(0, |status| status.completed_checkpoints);
        self.job.wait_checkpoint(completed);
    }

    /// Suspends the broker at a moment and for so long; the JobManager may be killed meanwhile.
    pub fn suspend_broker_at(&mut self, moment: Moment, duration: Duration, kills_job_manager: bool) {
        self.await_moment(moment);
        self.broker.signal(Signal::SIGSTOP);
        std::thread::sleep(duration);
        if kills_job_manager {
            self.job.kill_job_manager();
            self.kills += 1;
            self.job.start_generation(self.parallelism);
            std::thread::sleep(duration);
        }
        self.broker.signal(Signal::SIGCONT);
        let completed = self.job.status().map_or(0, |status| status.completed_checkpoints);
        self.job.wait_checkpoint(completed + 1);
    }

    /// Puts in the way of the next checkpoints what they want to write, and waits until so many have failed. Says what it put.
    fn obstruct(&self, how_many: u64) -> Vec<PathBuf> {
        let before = self.job.status().expect("a status");
        let generation = self.job_directory().join(before.generation.0.to_string());
        let next = before.last_checkpoint.map_or(0, |checkpoint| checkpoint.id.0) + 1;
        let mut obstacles: Vec<PathBuf> = (next..next + 200).map(|id| generation.join(format!("chk-{id}"))).collect();
        obstacles.retain(|path| std::fs::File::create_new(path).is_ok());
        let failed = self.job.wait_status("failed checkpoints", WAIT, |status| {
            status.failed_checkpoints >= before.failed_checkpoints + how_many
        });
        assert_eq!(failed.attempt, before.attempt, "failed checkpoints restart nothing (K3)");
        obstacles
    }

    /// Stops with a savepoint, and says where it is.
    pub fn stop(&mut self) -> String {
        let place = self.storage.join("savepoints");
        let path = self.job.ask(&["stop", "--savepoint-to", &place.display().to_string()]);
        if let Some(mut process) = self.job.job_manager.take() {
            process.wait(Duration::from_secs(30));
        }
        path
    }

    /// Starts the next generation from a snapshot, once for each id.
    pub fn start_from(&mut self, id: &str, snapshot: &str, parallelism: u32) {
        self.job.set_directive(directive(id, self.last_entry(), snapshot));
        self.start_generation(parallelism);
    }

    /// Another job with the same program, started from a snapshot while the first one runs.
    #[must_use]
    pub fn start_another_from(&self, snapshot: &str) -> Job {
        let mut other = Job::new("exactly-once", &self.manifest(), None);
        other.set_directive(directive("another", 0, snapshot));
        other.start_generation(self.parallelism);
        other.wait_checkpoint(0);
        other
    }

    /// A savepoint while the job runs on.
    #[must_use]
    pub fn savepoint(&self) -> String {
        self.job.ask(&["savepoint", "--to", &self.storage.join("savepoints").display().to_string()])
    }

    /// How many results are committed.
    ///
    /// # Panics
    /// When the broker does not answer.
    #[must_use]
    pub fn committed(&self) -> usize {
        kafka::read_committed(&self.broker.address(), &self.output).expect("the output").values.len()
    }

    /// The number of the ledger's last entry.
    fn last_entry(&self) -> u64 {
        let mut last = 0;
        files(&self.job_directory().join("ledger"), &mut |file| {
            let number = file.file_stem().and_then(|name| name.to_str()).and_then(|name| name.parse().ok());
            last = last.max(number.unwrap_or(0));
        });
        last
    }

    /// How many times something was killed.
    #[must_use]
    pub fn kills(&self) -> u32 {
        self.kills
    }
}

impl Drop for Classic {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            // It lies below the temporary directory in any case.
            let _ = std::fs::remove_dir_all(&self.storage);
        }
    }
}

/// Page views on their way.
pub struct PageViews {
    process: Process,
    until: PathBuf,
}

impl PageViews {
    /// Ends them, and says the number that would be next.
    ///
    /// # Panics
    /// When not all were delivered.
    pub fn end(mut self) -> u64 {
        std::fs::write(&self.until, "").expect("a file");
        let ended = self.process.wait(Duration::from_secs(180));
        let log = self.process.log();
        assert!(ended.success(), "{log}");
        let next = log.split("next: ").nth(1).and_then(|rest| rest.trim().parse().ok());
        next.unwrap_or_else(|| panic!("no number: {log}"))
    }
}

fn directive(id: &str, seen: u64, snapshot: &str) -> serde_json::Value {
    let start = serde_json::json!({"path": {"from": snapshot, "allowNonRestoredState": false}});
    serde_json::json!({"id": id, "seen": seen, "start": start})
}

/// Removes what stood in the way.
fn remove(path: PathBuf) {
    std::fs::remove_file(path).expect("what stood in the way");
}

/// Every file below a directory. What vanishes meanwhile is passed over.
fn files(directory: &Path, take: &mut dyn FnMut(&Path)) {
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() { files(&path, take) } else { take(&path) }
    }
}

fn wait_for_new_file(directory: &Path, is_it: fn(&str) -> bool) {
    let mut known = BTreeSet::new();
    files(directory, &mut |file| known.extend([file.to_owned()]));
    let deadline = Instant::now() + WAIT;
    let mut found = false;
    while !found {
        files(directory, &mut |file| found |= is_it(&file.to_string_lossy()) && !known.contains(file));
        assert!(Instant::now() < deadline, "no such file within {WAIT:?}");
        std::thread::yield_now();
    }
}
