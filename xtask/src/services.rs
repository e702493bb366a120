//! The real services that tests and figures run against, as guards: what `start` brought up, dropping takes down.
//!
//! Each guard knows the environment variables by which tests find its service; their names are listed in
//! `e2e/README.md`. Directories and ports are fixed and apart from the scripts' own defaults, so that a service a
//! developer runs by hand is left alone, and what a killed run left behind is removed by the next one.

use std::env;
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use crate::{image, process, workspace};

/// Names of environment variables with their values.
pub(crate) type Environment = Vec<(&'static str, String)>;

const KAFKA: &str = "tests/services/kafka.sh";
const KAFKA_PORT: u16 = 29092;
/// The second listener's port; the one between is the controller's.
const KAFKA_PORT_FOR_PODS: u16 = KAFKA_PORT + 2;
const S3: &str = "tests/services/s3.sh";
const S3_PORT: u16 = 28333;
const S3_BUCKET: &str = "checkpoints";
const S3_ACCESS_KEY: &str = "sluiceverifyaccess";
const S3_SECRET_KEY: &str = "sluiceverifysecret01";
const LOOPBACK: &str = "127.0.0.1";
const TESTBED_UP: &str = "e2e/testbed/up.sh";
const TESTBED_DOWN: &str = "e2e/testbed/down.sh";
const TESTBED_LOGS: &str = "e2e/testbed/logs.sh";

/// The testbed's bridge, where services listen for pods. `e2e/testbed/common.sh` says the same.
pub(crate) const BRIDGE: &str = "10.244.0.1";

fn state(name: &str) -> PathBuf {
    env::temp_dir().join("sluice-verify").join(name)
}

/// Held while services run: their ports and directories exist once on a machine. Waits for another run to end.
pub(crate) fn lock() -> Result<File> {
    let directory = state("");
    fs::create_dir_all(&directory).with_context(|| format!("cannot make {}", directory.display()))?;
    let path = directory.join("lock");
    let file = File::create(&path).with_context(|| format!("cannot make {}", path.display()))?;
    if file.try_lock().is_err() {
        println!("waiting for another run on this machine, which holds {}", path.display());
        file.lock().with_context(|| format!("cannot lock {}", path.display()))?;
    }
    Ok(file)
}

/// A running broker.
pub(crate) struct Kafka {
    for_pods: bool,
}

impl Kafka {
    /// Starts a broker with empty data; `for_pods` adds the listener on the testbed's bridge.
    pub(crate) fn start(for_pods: bool) -> Result<Self> {
        process::run(kafka_script("clean", for_pods))?;
        process::run(kafka_script("start", for_pods))?;
        Ok(Self { for_pods })
    }

    /// How tests and pods reach it.
    pub(crate) fn environment(&self) -> Environment {
        let mut variables = vec![
            ("SLUICE_TEST_KAFKA", format!("{LOOPBACK}:{KAFKA_PORT}")),
            ("SLUICE_TEST_KAFKA_SECURE", format!("{LOOPBACK}:{}", KAFKA_PORT + 3)),
            ("SLUICE_TEST_KAFKA_TLS", state("kafka").join("tls").display().to_string()),
        ];
        if self.for_pods {
            variables.push(("SLUICE_TEST_KAFKA_PODS", format!("{BRIDGE}:{KAFKA_PORT_FOR_PODS}")));
        }
        variables
    }
}

impl Drop for Kafka {
    fn drop(&mut self) {
        process::run_and_report(kafka_script("clean", self.for_pods));
    }
}

fn kafka_script(verb: &str, for_pods: bool) -> Command {
    let mut command = workspace::script(KAFKA);
    command.arg(verb).env("SLUICE_KAFKA_DIR", state("kafka")).env("SLUICE_KAFKA_PORT", KAFKA_PORT.to_string());
    command.env("SLUICE_KAFKA_BRIDGE", if for_pods { BRIDGE } else { "" });
    command.env("SLUICE_KAFKA_SECURE", "1");
    // Tests produce hundreds of thousands of records, for which the fast-starting compiler alone is too slow.
    command.env("SLUICE_KAFKA_COMPILER", "4");
    command
}

/// A running S3 server with one empty bucket.
pub(crate) struct S3 {
    address: &'static str,
}

impl S3 {
    /// Starts it on loopback, or on the testbed's bridge, where this machine's processes reach it as well as pods.
    pub(crate) fn start(for_pods: bool) -> Result<Self> {
        let server = Self { address: if for_pods { BRIDGE } else { LOOPBACK } };
        process::run(server.script("clean"))?;
        process::run(server.script("start"))?;
        Ok(server)
    }

    /// How tests and pods reach it.
    pub(crate) fn environment(&self) -> Environment {
        let url = format!("http://{}:{S3_PORT}", self.address);
        vec![
            ("SLUICE_TEST_S3", url.clone()),
            ("SLUICE_TEST_S3_PODS", url),
            ("SLUICE_TEST_S3_BUCKET", S3_BUCKET.to_owned()),
            ("SLUICE_TEST_S3_ACCESS_KEY", S3_ACCESS_KEY.to_owned()),
            ("SLUICE_TEST_S3_SECRET_KEY", S3_SECRET_KEY.to_owned()),
        ]
    }

    fn script(&self, verb: &str) -> Command {
        let mut command = workspace::script(S3);
        command.arg(verb).env("SLUICE_S3_DIR", state("s3")).env("SLUICE_S3_PORT", S3_PORT.to_string());
        command.env("SLUICE_S3_ADDRESS", self.address).env("SLUICE_S3_BUCKET", S3_BUCKET);
        command.env("SLUICE_S3_ACCESS_KEY", S3_ACCESS_KEY).env("SLUICE_S3_SECRET_KEY", S3_SECRET_KEY);
        command
    }
}

impl Drop for S3 {
    fn drop(&mut self) {
        process::run_and_report(self.script("clean"));
    }
}

/// A Kubernetes cluster whose nodes have the project's images.
pub(crate) struct Testbed {
    /// It was up before, so it stays up.
    keep: bool,
}

impl Testbed {
    /// Brings it up, unless it is, and gives it the images of the programs as they were last built.
    ///
    /// `fresh` takes down first what is there: objects that a killed run left would disturb the next one.
    pub(crate) fn start(fresh: bool) -> Result<Self> {
        if fresh {
            process::run(workspace::script(TESTBED_DOWN))?;
        }
        let testbed = Self { keep: testbed_state().join("run/testbed.sock").exists() };
        process::run(workspace::script(TESTBED_UP))?;
        let mut import = workspace::script("e2e/testbed/import.sh");
        for image in image::IMAGES.iter().chain([&image::OTHER_RUNTIME]) {
            import.arg(image.build()?.archive);
        }
        process::run(import)?;
        Ok(testbed)
    }

    /// Prints the end of its components' logs, which go with it.
    pub(crate) fn print_logs() {
        process::run_and_report(workspace::script(TESTBED_LOGS));
    }

    /// How tests reach it. Its own kubectl comes first in the path.
    pub(crate) fn environment(&self) -> Result<Environment> {
        let mut path = vec![workspace::cache().join("testbed")];
        path.extend(env::split_paths(&env::var_os("PATH").unwrap_or_default()));
        let [runtime, controller] = &image::IMAGES;
        let helm = process::output(workspace::script("e2e/testbed/helm.sh"))?;
        Ok(vec![
            ("KUBECONFIG", testbed_state().join("kubeconfig").display().to_string()),
            ("PATH", env::join_paths(path).context("a directory in PATH has a colon")?.to_string_lossy().into_owned()),
            ("SLUICE_TEST_KUBELET", workspace::root().join("e2e/testbed/kubelet.sh").display().to_string()),
            ("SLUICE_TEST_LOGS", workspace::root().join(TESTBED_LOGS).display().to_string()),
            ("SLUICE_TEST_HELM", helm.trim().to_owned()),
            ("SLUICE_TEST_RUNTIME_IMAGE", runtime.reference()),
            ("SLUICE_TEST_CONTROLLER_IMAGE", controller.reference()),
            ("SLUICE_TEST_OTHER_RUNTIME_IMAGE", image::OTHER_RUNTIME.reference()),
        ])
    }
}

impl Drop for Testbed {
    fn drop(&mut self) {
        if !self.keep {
            process::run_and_report(workspace::script(TESTBED_DOWN));
        }
    }
}

/// Where the testbed's scripts keep their state, by the same rule.
fn testbed_state() -> PathBuf {
    env::var_os("SLUICE_TESTBED").map_or_else(|| PathBuf::from("/var/lib/sluice-testbed"), PathBuf::from)
}

/// The programs, for tests that start processes of their own.
pub(crate) fn programs() -> Result<Environment> {
    let directory = workspace::programs()?;
    Ok(vec![
        ("SLUICE_BIN", directory.join("sluice").display().to_string()),
        ("SLUICE_CONTROLLER_BIN", directory.join("sluice-controller").display().to_string()),
    ])
}

/// Removes what any run of this module may have left on this machine, for a run that is cut short.
pub(crate) fn remove_all() {
    process::run_and_report(kafka_script("clean", false));
    process::run_and_report(S3 { address: LOOPBACK }.script("clean"));
}

/// Takes the testbed down.
pub(crate) fn remove_testbed() {
    process::run_and_report(workspace::script(TESTBED_DOWN));
}
