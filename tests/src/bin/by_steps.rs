//! `by_steps jobmanager|taskmanager --FLAG VALUE…`: the processes of `sluice`, with the same flags, that stop themselves as by
//! SIGSTOP at a step of the protocol where a test has put a file `<step>` into the directory `SLUICE_STEPS`.
//!
//! The first process that comes to the step takes the file, by renaming it to `<step>.<process id>`, and stops. What the test
//! does then, to this process or to others, happens at exactly that step.

#![expect(clippy::expect_used, reason = "a program of tests")]

use nix::sys::signal::{Signal, raise};
use sluice_node::logs::LogSwitch;
use sluice_node::steps::{Step, Steps};
use sluice_node::{JobManagerArgs, TaskManagerArgs};
use sluice_protocol::job_master::{Directive, StartFrom};
use sluice_protocol::restart::FailureCounts;
use sluice_protocol::{Generation, JobId, TaskManagerId};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

fn main() -> ExitCode {
    let filter = tracing_subscriber::EnvFilter::from_default_env();
    tracing_subscriber::fmt().with_env_filter(filter).with_ansi(false).with_writer(std::io::stderr).init();
    let mut arguments = std::env::args().skip(1);
    let role = arguments.next().expect("jobmanager or taskmanager");
    let flags = Flags::read(arguments);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("threads");
    let record = match role.as_str() {
        "jobmanager" => runtime.block_on(sluice_node::run_job_manager(job_manager(&flags))),
        "taskmanager" => {
            let (_never, leave) = tokio::sync::watch::channel(false);
            runtime.block_on(sluice_node::run_task_manager(task_manager(&flags), leave))
        }
        other => panic!("no role: {other}"),
    };
    runtime.shutdown_background();
    ExitCode::from(record.kind.code())
}

/// Stops this process where a test has asked for it.
fn steps() -> Steps {
    let directory = PathBuf::from(std::env::var_os("SLUICE_STEPS").expect("SLUICE_STEPS, a directory"));
    Steps::watched(move |step: Step| {
        let taken = directory.join(format!("{step:?}.{}", std::process::id()));
        if std::fs::rename(directory.join(format!("{step:?}")), taken).is_ok() {
            raise(Signal::SIGSTOP).expect("it stops");
        }
    })
}

fn job_manager(flags: &Flags) -> JobManagerArgs {
    let directive = std::env::var("SLUICE_DIRECTIVE").ok();
    let directive = directive.map(|text| serde_json::from_str(&text).expect("SLUICE_DIRECTIVE"));
    JobManagerArgs {
        manifest: flags.of("manifest").into(),
        job: flags.job(),
        generation: flags.generation(),
        revision: flags.number("revision"),
        directive: directive.unwrap_or(Directive { id: "r1".to_owned(), seen: 0, start: StartFrom::Continue }),
        failures: FailureCounts::default(),
        rpc_bind: flags.of("rpc-bind").parse().expect("--rpc-bind"),
        tls_directory: None,
        rest_bind: ([127, 0, 0, 1], flags.number("rest-port")).into(),
        termination_message: Some(flags.of("termination-message").into()),
        logs: LogSwitch::default(),
        steps: steps(),
    }
}

fn task_manager(flags: &Flags) -> TaskManagerArgs {
    TaskManagerArgs {
        manifest: flags.of("manifest").into(),
        job: flags.job(),
        generation: flags.generation(),
        id: TaskManagerId(flags.of("id")),
        slots: flags.number("slots"),
        job_manager: flags.of("job-manager"),
        data_bind: flags.of("data-bind"),
        data_advertise: None,
        tls_directory: None,
        rest_bind: ([127, 0, 0, 1], flags.number("rest-port")).into(),
        termination_message: None,
        memory: None,
        logs: LogSwitch::default(),
        steps: steps(),
    }
}

struct Flags(BTreeMap<String, String>);

impl Flags {
    fn read(mut arguments: impl Iterator<Item = String>) -> Self {
        let mut flags = BTreeMap::new();
        while let Some(flag) = arguments.next() {
            let name = flag.strip_prefix("--").unwrap_or_else(|| panic!("no flag: {flag}")).to_owned();
            flags.insert(name, arguments.next().unwrap_or_else(|| panic!("{flag} has no value")));
        }
        Self(flags)
    }

    fn of(&self, name: &str) -> String {
        self.0.get(name).unwrap_or_else(|| panic!("--{name} is missing")).clone()
    }

    fn number<N: std::str::FromStr>(&self, name: &str) -> N {
        self.of(name).parse().unwrap_or_else(|_| panic!("--{name} is no number"))
    }

    fn job(&self) -> JobId {
        JobId { namespace: self.of("namespace"), name: self.of("name"), uid: self.of("uid") }
    }

    fn generation(&self) -> Generation {
        Generation(self.number("generation"))
    }
}
