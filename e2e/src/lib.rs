//! What the tests on a cluster share: kubectl, the operator's installation, jobs and their pods.
//!
//! The same suite runs on any cluster; `cargo verify` brings one up (e2e/testbed) and names everything:
//!
//! | variable | meaning |
//! |---|---|
//! | `KUBECONFIG` | the cluster |
//! | `SLUICE_TEST_HELM` | the helm binary; `helm` when unset |
//! | `SLUICE_TEST_RUNTIME_IMAGE`, `SLUICE_TEST_CONTROLLER_IMAGE` | images that the cluster's nodes have |
//! | `SLUICE_TEST_OTHER_RUNTIME_IMAGE` | the runtime's image under another version |
//! | `SLUICE_TEST_KAFKA`, `SLUICE_TEST_KAFKA_PODS` | bootstrap address for the test, and for pods |
//! | `SLUICE_TEST_KUBELET` | a program that is called with `stop` or `start` and a node's name |
//! | `SLUICE_TEST_LOGS` | a program that prints what the cluster itself has logged last, for a test that failed |
//! | `SLUICE_TEST_S3`, `SLUICE_TEST_S3_PODS` | the S3 server's URL likewise; keys and bucket as for the other suites |
//!
//! Without them the tests skip and say so; with `CI=true` they fail instead.

#![expect(clippy::expect_used, clippy::print_stdout, reason = "helpers of tests")]

pub mod client;
pub mod counting;
pub mod external_metrics;
pub mod job;
pub mod process;
pub mod story;

use anyhow::{Context as _, bail};
use nix::sys::signal::{Signal, kill};
use sluice_tests::harness::Services;
use std::ffi::OsString;
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// The operator's namespace.
const OPERATOR: &str = "sluice-system";
const CHARTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../charts");

/// A cluster with the operator on it.
#[derive(Debug, Clone)]
pub struct Cluster {
    /// Broker and S3 server as the test reaches them.
    pub services: Services,
    /// Bootstrap address for pods.
    pub kafka_pods: String,
    /// URL of the S3 server for pods.
    pub s3_pods: String,
    runtime_image: String,
    controller_image: String,
    helm: String,
}

static INSTALLED: OnceLock<()> = OnceLock::new();

impl Cluster {
    /// The cluster that the environment names, with the operator installed; `None` where there is none.
    ///
    /// # Panics
    /// With `CI=true` and without a cluster, or when the operator cannot be installed.
    #[must_use]
    pub fn from_environment() -> Option<Self> {
        let services = Services::from_environment()?;
        let read = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let cluster = (|| {
            read("KUBECONFIG")?;
            Some(Self {
                services,
                kafka_pods: read("SLUICE_TEST_KAFKA_PODS")?,
                s3_pods: read("SLUICE_TEST_S3_PODS")?,
                runtime_image: read("SLUICE_TEST_RUNTIME_IMAGE")?,
                controller_image: read("SLUICE_TEST_CONTROLLER_IMAGE")?,
                helm: read("SLUICE_TEST_HELM").unwrap_or_else(|| "helm".to_owned()),
            })
        })();
        let Some(cluster) = cluster else {
            assert!(read("CI").is_none_or(|ci| ci != "true"), "CI=true, but no cluster is named (see e2e/src/lib.rs)");
            println!("skipped: no cluster named (KUBECONFIG, SLUICE_TEST_*); `cargo verify --suite e2e` brings one up");
            return None;
        };
        INSTALLED.get_or_init(|| cluster.install().expect("the operator"));
        Some(cluster)
    }

    /// The same with a namespace of the test's own.
    ///
    /// # Panics
    /// As [`Self::from_environment`], or when the namespace cannot be made.
    #[must_use]
    pub fn with_namespace(prefix: &str) -> Option<(Self, Namespace)> {
        let cluster = Self::from_environment()?;
        let namespace = cluster.namespace(prefix).expect("a namespace");
        Some((cluster, namespace))
    }

    /// Installs or upgrades both charts and waits for the controller.
    ///
    /// # Errors
    /// When Helm fails, with what it said.
    pub fn install(&self) -> anyhow::Result<()> {
        self.helm(&["upgrade", "--install", "sluice-crds", &format!("{CHARTS}/sluice-crds")])?;
        self.install_operator(&[])
    }

    /// Removes both charts, and waits until the controllers are gone.
    ///
    /// # Errors
    /// When Helm fails, with what it said.
    pub fn uninstall(&self) -> anyhow::Result<()> {
        self.helm(&["uninstall", "sluice", "--namespace", OPERATOR, "--wait", "--timeout", "60s"])?;
        self.helm(&["uninstall", "sluice-crds"])?;
        wait_for_no_controllers()
    }

    /// Both charts as they are handed to users, the one of the CRDs first.
    ///
    /// # Errors
    /// When Helm fails, with what it said.
    pub fn package_charts(&self) -> anyhow::Result<[String; 2]> {
        let directory = std::env::temp_dir().join(sluice_tests::harness::unique("sluice-charts"));
        let directory = directory.to_str().context("a directory")?;
        let mut packages = ["sluice-crds", "sluice"].map(|chart| format!("{CHARTS}/{chart}"));
        for package in &mut packages {
            let said = self.helm(&["package", package, "--destination", directory])?;
            let path = said.trim().rsplit(": ").next().context("no path")?;
            *package = path.to_owned();
        }
        Ok(packages)
    }

    /// Installs these, as the README says.
    ///
    /// # Errors
    /// When Helm fails, with what it said.
    pub fn install_packages(&self, [resources, operator]: &[String; 2]) -> anyhow::Result<()> {
        self.helm(&["install", "sluice-crds", resources])?;
        let images = self.images();
        let place = ["--namespace", OPERATOR, "--create-namespace", "--wait", "--timeout", "120s"];
        self.helm(&[&["install", "sluice", operator] as &[&str], &place, &["--set", &images]].concat())?;
        Ok(())
    }

    /// The values that name the images.
    fn images(&self) -> String {
        let (repository, tag) = split_image(&self.controller_image);
        let (runtime_repository, runtime_tag) = split_image(&self.runtime_image);
        format!(
            "image.repository={repository},image.tag={tag},\
             runtimeImage.repository={runtime_repository},runtimeImage.tag={runtime_tag}"
        )
    }

    /// What job pods run whose spec names no image.
    #[must_use]
    pub fn runtime_image(&self) -> &str {
        &self.runtime_image
    }

    /// The runtime's image of another version; `None` where the environment names none.
    ///
    /// # Panics
    /// With `CI=true` and without one.
    #[must_use]
    pub fn other_runtime_image(&self) -> Option<String> {
        let image = std::env::var("SLUICE_TEST_OTHER_RUNTIME_IMAGE").ok().filter(|image| !image.is_empty());
        if image.is_none() {
            let is_ci = std::env::var("CI").is_ok_and(|ci| ci == "true");
            assert!(!is_ci, "CI=true, but SLUICE_TEST_OTHER_RUNTIME_IMAGE names no image (see e2e/README.md)");
            println!("skipped: SLUICE_TEST_OTHER_RUNTIME_IMAGE names no image of another version");
        }
        image
    }

    /// Installs or upgrades the operator with these values (`name=value`) and waits for the controller.
    ///
    /// # Errors
    /// When Helm fails, with what it said.
    pub fn install_operator(&self, values: &[&str]) -> anyhow::Result<()> {
        let images = self.images();
        let chart = format!("{CHARTS}/sluice");
        let mut arguments = vec!["upgrade", "--install", "sluice", &chart, "--namespace", OPERATOR];
        arguments.extend(["--create-namespace", "--wait", "--timeout", "120s", "--set", &images]);
        arguments.extend(values.iter().flat_map(|value| ["--set", value]));
        self.helm(&arguments)?;
        Ok(())
    }

    /// The controller that leads: its pod's name and what tells it from an earlier one in that pod, joined by `_`.
    ///
    /// # Errors
    /// When the cluster does not answer.
    pub fn leader(&self) -> anyhow::Result<String> {
        let holder = ["get", "lease", "sluice", "-n", OPERATOR, "-o", "jsonpath={.spec.holderIdentity}"];
        kubectl(&holder)
    }

    /// Waits until all replicas of the controller are ready.
    ///
    /// # Errors
    /// When they are not in five minutes.
    pub fn wait_for_controllers(&self) -> anyhow::Result<()> {
        let rollout = ["rollout", "status", "deployment/sluice", "-n", OPERATOR, "--timeout=300s"];
        run(Command::new("kubectl").args(rollout), None)?;
        Ok(())
    }

    /// Takes all controllers away until the guard is dropped.
    ///
    /// # Errors
    /// When they do not go.
    pub fn without_controllers(&self) -> anyhow::Result<WithoutControllers<'_>> {
        let replicas = kubectl(&["get", "deployment", "sluice", "-n", OPERATOR, "-o", "jsonpath={.spec.replicas}"])?;
        let away = WithoutControllers { cluster: self, replicas };
        scale_controllers("0")?;
        wait_for_no_controllers()?;
        Ok(away)
    }

    /// Names of the nodes.
    ///
    /// # Errors
    /// When the cluster does not answer.
    pub fn nodes(&self) -> anyhow::Result<Vec<String>> {
        let names = kubectl(&["get", "nodes", "-o", "jsonpath={.items[*].metadata.name}"])?;
        Ok(names.split_whitespace().map(ToOwned::to_owned).collect())
    }

    /// Stops the kubelet of a node until the guard is dropped; `None` where the environment names no way to.
    ///
    /// # Errors
    /// When it cannot be stopped.
    pub fn stop_kubelet(&self, node: &str) -> anyhow::Result<Option<StoppedKubelet>> {
        let Some(program) = std::env::var_os("SLUICE_TEST_KUBELET") else { return Ok(None) };
        let stopped = StoppedKubelet { program, node: node.to_owned() };
        stopped.call("stop")?;
        Ok(Some(stopped))
    }

    /// SIGKILL to the controller that leads where the node is this machine, else its pod's forced deletion. Says which
    /// it was.
    ///
    /// # Errors
    /// When it may not be done.
    pub fn kill_leader(&self) -> anyhow::Result<String> {
        let leader = self.leader()?;
        let pod = leader.split('_').next().unwrap_or(&leader);
        match process::of_pod(pod) {
            Some(pid) => kill(pid, Signal::SIGKILL).context("SIGKILL")?,
            None => {
                kubectl(&["delete", "pod", pod, "-n", OPERATOR, "--grace-period=0", "--force"])?;
            }
        }
        Ok(leader)
    }

    /// `storageOptions` with which pods reach the S3 server, given the Secret `s3`.
    #[must_use]
    pub fn storage_options(&self) -> String {
        format!(r#"{{endpoint: "{}", pathStyle: true, credentialsSecret: s3}}"#, self.s3_pods)
    }

    fn helm(&self, arguments: &[&str]) -> anyhow::Result<String> {
        run(Command::new(&self.helm).args(arguments), None)
    }

    /// Makes a namespace with the Secret `s3`, deleted again when the guard is dropped.
    ///
    /// # Errors
    /// When the cluster refuses.
    pub fn namespace(&self, prefix: &str) -> anyhow::Result<Namespace> {
        let name = sluice_tests::harness::unique(prefix);
        kubectl(&["create", "namespace", &name])?;
        kubectl(&["label", "namespace", &name, "pod-security.kubernetes.io/enforce=restricted"])?;
        let namespace = Namespace { name };
        namespace.create_secret("s3", &self.services.s3.access_key, &self.services.s3.secret_key)?;
        Ok(namespace)
    }
}

/// An operator whose replicas were all taken away.
pub struct WithoutControllers<'a> {
    cluster: &'a Cluster,
    replicas: String,
}

impl Drop for WithoutControllers<'_> {
    fn drop(&mut self) {
        if scale_controllers(&self.replicas).and_then(|()| self.cluster.wait_for_controllers()).is_err() {
            println!("the controllers did not come back");
        }
    }
}

fn wait_for_no_controllers() -> anyhow::Result<()> {
    let label = "app.kubernetes.io/name=sluice-controller";
    kubectl(&["wait", "--for=delete", "pod", "-l", label, "-n", OPERATOR, "--timeout=25s"])?;
    Ok(())
}

fn scale_controllers(replicas: &str) -> anyhow::Result<()> {
    kubectl(&["scale", "deployment", "sluice", "-n", OPERATOR, &format!("--replicas={replicas}")])?;
    Ok(())
}

/// A node that the cluster hears nothing of, while its pods run on.
pub struct StoppedKubelet {
    program: OsString,
    node: String,
}

impl StoppedKubelet {
    fn call(&self, verb: &str) -> anyhow::Result<()> {
        run(Command::new(&self.program).args([verb, &self.node]), None)?;
        Ok(())
    }
}

impl Drop for StoppedKubelet {
    fn drop(&mut self) {
        let _ = self.call("start");
    }
}

/// A namespace of a test's own.
pub struct Namespace {
    /// Its name.
    pub name: String,
}

impl Namespace {
    /// Makes a Secret with an access key, as `storageOptions.credentialsSecret` wants it.
    ///
    /// # Errors
    /// When the cluster refuses.
    pub fn create_secret(&self, name: &str, access_key: &str, secret_key: &str) -> anyhow::Result<()> {
        let literals = [("AWS_ACCESS_KEY_ID", access_key), ("AWS_SECRET_ACCESS_KEY", secret_key)]
            .map(|(key, value)| format!("--from-literal={key}={value}"));
        let [access_key, secret_key] = &literals;
        kubectl(&["-n", &self.name, "create", "secret", "generic", name, access_key, secret_key])?;
        Ok(())
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        if std::thread::panicking() {
            print_story(&self.name);
        }
        let _ = kubectl(&["delete", "namespace", &self.name, "--wait=false"]);
    }
}

/// What a person would look at after a failure.
fn print_story(namespace: &str) {
    for arguments in [
        &["-n", namespace, "get", "streamjobs,pods,services,configmaps", "-o", "wide"] as &[&str],
        &["-n", namespace, "get", "streamjobs", "-o", "yaml"],
        &["-n", namespace, "get", "events"],
        &["-n", namespace, "logs", "-l", "app.kubernetes.io/managed-by=sluice-controller", "--tail=40", "--prefix"],
        &["-n", "sluice-system", "logs", "-l", "app.kubernetes.io/name=sluice-controller", "--tail=60"],
    ] {
        println!("$ kubectl {}\n{}", arguments.join(" "), kubectl(arguments).unwrap_or_else(|error| error.to_string()));
    }
    if let Some(program) = std::env::var_os("SLUICE_TEST_LOGS") {
        println!("{}", run(&mut Command::new(program), None).unwrap_or_else(|error| error.to_string()));
    }
}

/// Runs kubectl and gives what it printed.
///
/// # Errors
/// When it fails, with what it said.
pub fn kubectl(arguments: &[&str]) -> anyhow::Result<String> {
    run(Command::new("kubectl").args(["--request-timeout=30s"]).args(arguments), None)
}

/// `kubectl apply -f -`.
///
/// # Errors
/// When the API server refuses, with what it said.
pub fn apply(namespace: &str, manifest: &str) -> anyhow::Result<String> {
    run(Command::new("kubectl").args(["-n", namespace, "apply", "-f", "-"]), Some(manifest))
}

/// POST of a JSON body to a path of the API server.
///
/// # Errors
/// When the API server refuses, with what it said.
pub fn create_raw(path: &str, body: &str) -> anyhow::Result<String> {
    run(Command::new("kubectl").args(["create", "--raw", path, "-f", "-"]), Some(body))
}

/// Runs a program with this on its standard input, and gives what it printed.
///
/// # Errors
/// When it fails, with what it said.
pub fn run(command: &mut Command, input: Option<&str>) -> anyhow::Result<String> {
    let stdin = if input.is_some() { Stdio::piped() } else { Stdio::null() };
    let mut child = command
        .stdin(stdin)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("starting {command:?}"))?;
    if let (Some(mut pipe), Some(text)) = (child.stdin.take(), input) {
        pipe.write_all(text.as_bytes())?;
    }
    let output = child.wait_with_output()?;
    if !output.status.success() {
        bail!("{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn split_image(image: &str) -> (&str, &str) {
    image.rsplit_once(':').filter(|(_, tag)| !tag.contains('/')).unwrap_or((image, "latest"))
}
