//! The classic: `examples/exactly-once.yaml` as processes, on a broker of its own, with the input and the check of
//! `examples/ExactlyOnce.java`, which know nothing of Sluice. What kills it is in [`strikes`].

mod strikes;

pub use strikes::{Moment, Victims};

use super::job::Job;
use super::kafka::{self, OwnKafka};
use super::process::Process;
use super::s3::OwnS3;
use super::steps::StepByStep;
use super::{unique, wait_for};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples");
const PARTITIONS: i32 = 4;
const WAIT: Duration = Duration::from_secs(90);

/// How the job is to run.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// `'sink.delivery-guarantee'`.
    pub guarantee: &'static str,
    /// More options of the sink, with a comma in front.
    pub sink: &'static str,
    /// More fields of `checkpointing`, in YAML, with a comma in front.
    pub checkpointing: &'static str,
    /// Whether checkpoints go to an S3 server of its own, instead of a directory.
    pub on_s3: bool,
}

/// The job with all that it needs.
pub struct Classic {
    /// The broker; only this job uses it.
    pub broker: OwnKafka,
    /// The processes of the job.
    pub job: Job,
    /// Where checkpoints go, unless it is a directory.
    s3: Option<OwnS3>,
    settings: Settings,
    /// What else of the example's text is replaced by what.
    changes: Vec<(String, String)>,
    parallelism: u32,
    storage: PathBuf,
    input: String,
    output: String,
    steps: StepByStep,
    kills: u32,
}

impl Classic {
    /// Starts the broker and the job, and waits until it runs.
    ///
    /// Its processes are those of the program `by_steps`, of which this is the path.
    ///
    /// # Panics
    /// When one of them does not.
    pub async fn start(by_steps: &str, settings: Settings, parallelism: u32) -> Self {
        let broker = OwnKafka::start();
        let (input, output) = (unique("page-views"), unique("views-per-window"));
        let topics = [(input.as_str(), PARTITIONS), (output.as_str(), 2)];
        kafka::create_topics(&broker.address(), &topics).await.expect("topics");
        let storage = std::env::temp_dir().join(unique("sluice-classic"));
        std::fs::create_dir_all(&storage).expect("a directory for checkpoints");
        let steps = StepByStep::new(Path::new(by_steps));
        let s3 = settings.on_s3.then(OwnS3::start);
        let mut job = Job::new("exactly-once", "", s3.as_ref().map(OwnS3::address).as_ref());
        job.run_by(steps.program(), steps.variable());
        let mut classic = Self {
            broker,
            job,
            s3,
            settings,
            changes: Vec::new(),
            parallelism,
            storage,
            input,
            output,
            steps,
            kills: 0,
        };
        classic.start_generation(parallelism);
        classic
    }

    /// The example with this run's places, and faster: nothing else of it is changed.
    fn manifest(&self) -> String {
        let mut text = std::fs::read_to_string(format!("{EXAMPLES}/exactly-once.yaml")).expect("the example");
        let storage = match &self.s3 {
            None => format!("\"file://{}\"", self.storage.display()),
            Some(s3) => {
                let endpoint = s3.address().endpoint;
                format!("\"s3://test/classic\", storageOptions: {{endpoint: \"{endpoint}\", pathStyle: true}}")
            }
        };
        let checkpointing = format!("interval: 300ms{}, storage: {storage}", self.settings.checkpointing);
        let changes = [
            ("'topic'='page-views'", format!("'topic'='{}'", self.input)),
            ("'topic'='views-per-window'", format!("'topic'='{}'", self.output)),
            ("localhost:9092", self.broker.address()),
            ("'exactly-once'", format!("'{}'{}", self.settings.guarantee, self.settings.sink)),
            ("parallelism: 2", format!("parallelism: {}\n  taskManager: {{slots: 1}}", self.parallelism)),
            ("interval: 2s, storage: \"file:///tmp/sluice-exactly-once\"", checkpointing),
            ("delay: 1s", "delay: 100ms".to_owned()),
        ];
        let more = self.changes.iter().map(|(from, to)| (from.as_str(), to.clone()));
        for (from, to) in changes.into_iter().chain(more) {
            assert!(text.contains(from), "the example has no {from}");
            text = text.replace(from, &to);
        }
        text
    }

    /// Replaces something of what the next generations run.
    pub fn change(&mut self, from: &str, to: &str) {
        self.changes.push((from.to_owned(), to.to_owned()));
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

    /// Starts a job that has ended from its latest checkpoint, once for each id.
    pub fn resume(&mut self, id: &str) {
        self.job.set_directive(serde_json::json!({"id": id, "seen": self.last_entry(), "start": "resumeLatest"}));
        self.job.set_manifest(&self.manifest());
        self.job.start_generation(self.parallelism);
    }

    /// Starts another job, which reads what is in the input now, writes to a topic of its own, and ends.
    ///
    /// # Panics
    /// When there can be no such topic.
    pub async fn start_bounded(&mut self) {
        self.output = unique("views-per-window");
        kafka::create_topics(&self.broker.address(), &[(&self.output, 2)]).await.expect("a topic");
        self.change("'earliest-offset'", "'earliest-offset', 'scan.bounded.mode'='latest-offset'");
        self.job = Job::new("exactly-once", &self.manifest(), None);
        self.job.run_by(self.steps.program(), self.steps.variable());
        self.job.start_generation(self.parallelism);
    }

    /// Waits for the end of the JobManager, and says why that was.
    ///
    /// # Panics
    /// When it does not end.
    pub fn wait_ended(&mut self) -> String {
        self.job.job_manager.as_mut().expect("it runs").wait(WAIT);
        let record = self.job.exit_record(self.job.generation());
        println!("ended: {record}");
        record["reason"].as_str().expect("a reason").to_owned()
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

    fn job_directory(&self) -> PathBuf {
        self.storage.join(self.job.job_directory())
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

/// Every file below a directory. What vanishes meanwhile is passed over.
fn files(directory: &Path, take: &mut dyn FnMut(&Path)) {
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() { files(&path, take) } else { take(&path) }
    }
}
