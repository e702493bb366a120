//! A job as plain processes: one JobManager, some TaskManagers, and the part of the controller that numbers
//! generations and carries the directive (docs/protocol.md, N2, N3).

use super::process::{Process, free_port};
use super::{S3Address, http, sluice_binary, unique, wait_for};
use nix::sys::signal::Signal;
use sluice_protocol::status::{JobState, JobStatus};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// A job and its processes.
pub struct Job {
    directory: PathBuf,
    manifest: PathBuf,
    name: String,
    uid: String,
    environment: Vec<(String, String)>,
    program: PathBuf,
    slots: u32,
    generation: u64,
    ports: Ports,
    directive: serde_json::Value,
    next_task_manager: u32,
    /// The current JobManager.
    pub job_manager: Option<Process>,
    /// TaskManagers by index.
    pub task_managers: BTreeMap<u32, Process>,
}

#[derive(Debug, Clone, Copy)]
struct Ports {
    rpc: u16,
    rest: u16,
}

impl Job {
    /// Writes the manifest below a new temporary directory. Nothing runs yet.
    ///
    /// # Panics
    /// When the directory cannot be written.
    #[must_use]
    pub fn new(name: &str, manifest: &str, s3: Option<&S3Address>) -> Self {
        let directory = std::env::temp_dir().join(unique(&format!("sluice-test-{name}")));
        std::fs::create_dir_all(&directory).expect("a directory for the test");
        let path = directory.join("job.yaml");
        std::fs::write(&path, manifest).expect("the manifest");
        let environment = s3.map_or_else(Vec::new, |s3| {
            vec![
                ("AWS_ACCESS_KEY_ID".to_owned(), s3.access_key.clone()),
                ("AWS_SECRET_ACCESS_KEY".to_owned(), s3.secret_key.clone()),
            ]
        });
        Self {
            directory,
            manifest: path,
            name: name.to_owned(),
            uid: unique("uid"),
            environment,
            program: sluice_binary(),
            slots: 1,
            generation: 0,
            ports: Ports { rpc: 0, rest: 0 },
            directive: serde_json::json!({"id": "r1", "seen": 0, "start": "continue"}),
            next_task_manager: 0,
            job_manager: None,
            task_managers: BTreeMap::new(),
        }
    }

    /// Where logs and files of the test are.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The current generation.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// `<namespace>/<name>-<uid>`, the job's directory below checkpoint storage.
    #[must_use]
    pub fn job_directory(&self) -> String {
        format!("test/{}-{}", self.name, self.uid)
    }

    /// The processes are those of another program than `sluice`, which takes the same flags, with this variable.
    pub fn run_by(&mut self, program: &Path, variable: (String, String)) {
        program.clone_into(&mut self.program);
        self.environment.push(variable);
    }

    /// What the next JobManager starts from: the JSON of a directive.
    pub fn set_directive(&mut self, directive: serde_json::Value) {
        self.directive = directive;
    }

    /// What the next processes run.
    ///
    /// # Panics
    /// When it cannot be written.
    pub fn set_manifest(&mut self, manifest: &str) {
        std::fs::write(&self.manifest, manifest).expect("the manifest");
    }

    fn command(&self, role: &str) -> Command {
        let mut command = Command::new(&self.program);
        command.arg(role).arg("--manifest").arg(&self.manifest);
        command.args(["--namespace", "test", "--name", &self.name, "--uid", &self.uid]);
        command.envs(self.environment.iter().cloned());
        command.env("RUST_LOG", std::env::var("RUST_LOG").unwrap_or_else(|_| "info".to_owned()));
        command
    }

    /// Starts the JobManager of this generation (which must not be the number of one that ran).
    ///
    /// # Panics
    /// When it cannot be started.
    #[must_use]
    pub fn spawn_job_manager(&self, generation: u64, rpc: u16, rest: u16) -> Process {
        let mut command = self.command("jobmanager");
        command.args(["--generation", &generation.to_string(), "--revision", "1"]);
        command.args(["--rpc-bind", &format!("127.0.0.1:{rpc}"), "--rest-port", &rest.to_string()]);
        command.arg("--termination-message").arg(self.directory.join(format!("jm-{generation}.exit")));
        command.env("SLUICE_DIRECTIVE", self.directive.to_string());
        Process::start(&format!("jm-{generation}"), &self.directory, &mut command).expect("the JobManager")
    }

    /// Starts the next generation: a JobManager and `task_managers` TaskManagers. The old JobManager, if any, is
    /// handed back as it is; the old TaskManagers are killed, as the controller deletes their pods.
    pub fn start_generation(&mut self, task_managers: u32) -> Option<Process> {
        self.generation += 1;
        self.ports = Ports { rpc: free_port(), rest: free_port() };
        let new = self.spawn_job_manager(self.generation, self.ports.rpc, self.ports.rest);
        let old = self.job_manager.replace(new);
        self.task_managers.clear();
        for _ in 0..task_managers {
            self.start_task_manager();
        }
        old
    }

    /// Starts one more TaskManager of this generation; its index is never used again.
    ///
    /// # Panics
    /// When it cannot be started.
    pub fn start_task_manager(&mut self) -> u32 {
        let index = self.next_task_manager;
        self.next_task_manager += 1;
        let id = format!("{}-{}-tm-{index}", self.name, self.generation);
        let mut command = self.command("taskmanager");
        command.args(["--generation", &self.generation.to_string(), "--id", &id]);
        command.args(["--job-manager", &format!("127.0.0.1:{}", self.ports.rpc), "--slots", &self.slots.to_string()]);
        // Nobody but the job asks it: what is free is found when it listens.
        command.args(["--data-bind", "127.0.0.1:0", "--rest-port", "0"]);
        let process = Process::start(&id, &self.directory, &mut command).expect("a TaskManager");
        self.task_managers.insert(index, process);
        index
    }

    /// SIGKILL to one TaskManager.
    pub fn kill_task_manager(&mut self, index: u32) {
        if let Some(mut process) = self.task_managers.remove(&index) {
            process.kill();
        }
    }

    /// SIGKILL to the JobManager.
    pub fn kill_job_manager(&mut self) {
        if let Some(mut process) = self.job_manager.take() {
            process.kill();
        }
    }

    /// Cancels the job by the command line and waits for the end of its JobManager.
    ///
    /// # Panics
    /// When it is refused, or does not end.
    pub fn cancel(&mut self) {
        self.ask(&["cancel"]);
        if let Some(mut process) = self.job_manager.take() {
            wait_for("the end of the job", Duration::from_secs(20), || process.ended());
        }
    }

    /// What a command of the command line for the running job prints.
    ///
    /// # Panics
    /// When it is refused.
    pub fn ask(&self, arguments: &[&str]) -> String {
        let endpoint = format!("127.0.0.1:{}", self.ports.rpc);
        let mut command = Command::new(sluice_binary());
        let output = command.args(arguments).args(["--jobmanager", &endpoint]).output().expect("sluice");
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// Runs a command of the command line for the running job, which may have to wait for what the test does next.
    ///
    /// # Panics
    /// When it cannot be started.
    #[must_use]
    pub fn ask_beside(&self, arguments: &[&str]) -> Process {
        let mut command = Command::new(sluice_binary());
        command.args(arguments).args(["--jobmanager", &format!("127.0.0.1:{}", self.ports.rpc)]);
        Process::start(&unique("ask"), &self.directory, &mut command).expect("sluice")
    }

    /// The current JobManager's status; `None` while it does not answer.
    #[must_use]
    pub fn status(&self) -> Option<JobStatus> {
        let body = http::get(&format!("127.0.0.1:{}", self.ports.rest), "/status")?;
        serde_json::from_str(&body).ok()
    }

    /// Waits until the status is as wanted.
    ///
    /// # Panics
    /// After `timeout`, with the last status.
    pub fn wait_status(&self, what: &str, timeout: Duration, wanted: impl Fn(&JobStatus) -> bool) -> JobStatus {
        let mut last = None;
        let deadline = std::time::Instant::now() + timeout;
        while std::time::Instant::now() < deadline {
            if let Some(status) = self.status() {
                if wanted(&status) {
                    return status;
                }
                last = Some(status);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        panic!("waited {timeout:?} for {what}; last status: {last:#?}");
    }

    /// Waits for RUNNING and for a checkpoint of this generation.
    pub fn wait_checkpoint(&self, more_than: u64) -> JobStatus {
        self.wait_status("a completed checkpoint", Duration::from_secs(60), |status| {
            status.state == JobState::Running && status.completed_checkpoints > more_than
        })
    }

    /// The exit record of a generation's JobManager.
    #[must_use]
    pub fn exit_record(&self, generation: u64) -> serde_json::Value {
        let path = self.directory.join(format!("jm-{generation}.exit"));
        wait_for("the exit record", Duration::from_secs(10), || {
            serde_json::from_str(&std::fs::read_to_string(&path).ok()?).ok()
        })
    }

    /// Runs a command of the command line against the S3 server, and gives what it printed.
    ///
    /// # Panics
    /// When it fails.
    #[must_use]
    pub fn run_cli(&self, arguments: &[&str], services: &super::Services) -> String {
        let output = Command::new(sluice_binary())
            .args(arguments)
            .args(["--endpoint", &services.s3.endpoint, "--path-style"])
            .envs(self.environment.iter().cloned())
            .output()
            .expect("the command line");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{arguments:?}: {text}{}", String::from_utf8_lossy(&output.stderr));
        text
    }

    /// Stops the JobManager in its tracks.
    ///
    /// # Panics
    /// When there is none.
    pub fn suspend_job_manager(&self) {
        self.job_manager.as_ref().expect("a JobManager").signal(Signal::SIGSTOP);
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        self.job_manager = None;
        self.task_managers.clear();
        if !std::thread::panicking() {
            let _ = std::fs::remove_dir_all(&self.directory);
        }
    }
}
