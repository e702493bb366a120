//! What suites need of the machine, whether it is there, and, for CI, how to install it.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::suites::Suite;
use crate::{process, workspace};

/// Something that a suite can't run without.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Requirement {
    /// The broker and its tools run on it.
    Java,
    /// It brings the broker.
    Maven,
    /// It builds Kubernetes, the S3 server and what checks workflows.
    Go,
    /// The S3 server's script asks by it whether the server is ready.
    Curl,
    /// It brings Helm.
    Python,
    /// The testbed makes a bridge, mounts and iptables rules.
    Root,
    /// The testbed runs pods by it.
    Containerd,
    /// It checks licences.
    CargoDeny,
    /// It reads state files, to show that others can.
    DuckDb,
}

use Requirement::{CargoDeny, Containerd, Curl, DuckDb, Go, Java, Maven, Python, Root};

/// For a real broker, a real S3 server and a reader of state files.
pub(crate) const SERVICES: [Requirement; 6] = [Java, Maven, Go, Curl, Python, DuckDb];
/// For the testbed, with those services and Helm.
pub(crate) const CLUSTER: [Requirement; 7] = [Java, Maven, Go, Curl, Python, Root, Containerd];

const CARGO_DENY_VERSION: &str = "0.20.2";

const DUCKDB_VERSION: &str = "2.0.1";

impl Requirement {
    fn is_met(self) -> bool {
        match self {
            Java => process::find("java").is_some(),
            Maven => process::find("mvn").is_some(),
            Go => process::find("go").is_some(),
            Curl => process::find("curl").is_some(),
            Python => process::find("python3").is_some(),
            Root => is_root(),
            Containerd => {
                ["containerd", "runc", "iptables", "conntrack", "socat"].iter().all(|it| process::find(it).is_some())
            }
            CargoDeny => cargo_deny().is_some(),
            DuckDb => python_with_duckdb().is_file(),
        }
    }

    /// What to say when it is missing.
    fn name(self) -> &'static str {
        match self {
            Java => "Java",
            Maven => "Maven (mvn)",
            Go => "Go",
            Curl => "curl",
            Python => "Python 3",
            Root => "root",
            Containerd => "containerd with runc, iptables, conntrack and socat",
            CargoDeny => "cargo-deny (`cargo install cargo-deny --locked`)",
            DuckDb => "DuckDB's Python package in the cache (`CI=true cargo verify --suite services` puts it there)",
        }
    }

    /// Debian's packages that bring it; the testbed's script installs its own.
    fn packages(self) -> &'static [&'static str] {
        match self {
            Java => &["default-jdk-headless"],
            Maven => &["maven"],
            Curl => &["curl"],
            Python => &["python3", "python3-pip", "python3-venv"],
            Containerd => &[
                "containerd",
                "runc",
                "containernetworking-plugins",
                "iptables",
                "iproute2",
                "conntrack",
                "ethtool",
                "socat",
            ],
            Go | Root | CargoDeny | DuckDb => &[],
        }
    }
}

/// The effective user of this process, as the kernel tells it.
fn is_root() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let uids = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    uids.is_some_and(|uids| uids.split_whitespace().nth(1) == Some("0"))
}

/// Why a suite with these needs can't run here, if it can't.
pub(crate) fn missing(needs: &[Requirement]) -> Option<String> {
    let names: Vec<_> = needs.iter().filter(|need| !need.is_met()).map(|need| need.name()).collect();
    (!names.is_empty()).then(|| format!("this machine has no {}", names.join(", no ")))
}

/// Where cargo-deny is: in PATH, or where [`install`] puts it.
pub(crate) fn cargo_deny() -> Option<std::path::PathBuf> {
    let own = workspace::cache().join("cargo-deny").join(CARGO_DENY_VERSION).join("bin/cargo-deny");
    process::find("cargo-deny").or_else(|| own.is_file().then_some(own))
}

/// Installs what the suites need and this machine lacks.
pub(super) fn install(suites: &[&Suite]) -> Result<()> {
    let mut absent: Vec<_> = suites.iter().flat_map(|suite| suite.needs()).filter(|need| !need.is_met()).collect();
    absent.dedup();
    let packages: Vec<_> = absent.iter().flat_map(|need| need.packages()).collect();
    if !packages.is_empty() {
        println!("installing Debian packages: {packages:?}");
        process::run(Command::new("apt-get").args(["update", "-qq"]))?;
        let mut command = Command::new("apt-get");
        command.args(["install", "-y", "-qq", "--no-install-recommends"]).args(packages);
        process::run(command.env("DEBIAN_FRONTEND", "noninteractive").stdout(std::process::Stdio::null()))?;
    }
    if absent.contains(&&CargoDeny) {
        install_cargo_deny()?;
    }
    if absent.contains(&&DuckDb) {
        install_duckdb()?;
    }
    if absent.contains(&&Go) {
        bail!("Go is missing and Debian's is too old to build Kubernetes; install Go 1.26 or later");
    }
    Ok(())
}

/// The Python that has DuckDB, where [`install`] puts it.
pub(crate) fn python_with_duckdb() -> std::path::PathBuf {
    workspace::cache().join("duckdb").join(DUCKDB_VERSION).join("bin/python")
}

/// Into an environment of its own, which takes its name when it is complete.
fn install_duckdb() -> Result<()> {
    let directory = workspace::cache().join("duckdb");
    fs::create_dir_all(&directory).with_context(|| format!("cannot make {}", directory.display()))?;
    let place = directory.join(DUCKDB_VERSION);
    if place.exists() {
        fs::remove_dir_all(&place).with_context(|| format!("cannot remove {}", place.display()))?;
    }
    let made = process::run(Command::new("python3").args(["-m", "venv"]).arg(&place)).and_then(|()| {
        let mut pip = Command::new(place.join("bin/python"));
        pip.args(["-m", "pip", "install", "-q", "--disable-pip-version-check"]);
        process::run(pip.arg(format!("duckdb=={DUCKDB_VERSION}")))
    });
    if made.is_err() {
        // What is half there would count as met.
        let _ = fs::remove_dir_all(&place);
    }
    made.context("cannot install DuckDB")
}

fn install_cargo_deny() -> Result<()> {
    let root = workspace::cache().join("cargo-deny").join(CARGO_DENY_VERSION);
    let mut command = workspace::cargo("install");
    // Its dependencies are not ours: they would only fill the target directory that CI keeps.
    command.env_remove("CARGO_TARGET_DIR");
    command.args(["cargo-deny", "--locked", "--version", CARGO_DENY_VERSION, "--root"]).arg(root);
    process::run(command).context("cannot install cargo-deny")
}
