//! The suites of `cargo verify`, in the order they run: what fails fast and often comes first.
//!
//! Every Cargo command selects the whole workspace: another selection would unite features of dependencies differently
//! and compile them again.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::requirements::{self, Requirement};
use super::{Run, charts, targets, workflows};
use crate::services::{self, Environment, Kafka, S3, Testbed};
use crate::{generate, process, workspace};

/// What tests may take in their long form.
const SOAK_DEADLINE: Duration = Duration::from_secs(6 * 60 * 60);

/// One step of `cargo verify`.
pub(crate) struct Suite {
    /// What `--suite` calls it.
    pub(crate) name: &'static str,
    /// What it checks.
    pub(crate) what: &'static str,
    /// How long it may take on two cores with warm caches, in seconds.
    budget_seconds: u64,
    /// What it can't run without, where it brings up everything itself.
    needs: &'static [Requirement],
    /// Runs it.
    pub(crate) run: fn(Run) -> Result<()>,
}

impl Suite {
    pub(crate) fn budget(&self) -> Duration {
        Duration::from_secs(self.budget_seconds)
    }

    /// Twice its budget, and what a compilation of everything takes on a machine of that size.
    pub(crate) fn deadline(&self) -> Duration {
        self.budget() * 2 + Duration::from_secs(20 * 60)
    }

    /// What it can't run without here.
    pub(crate) fn needs(&self) -> &'static [Requirement] {
        if self.name == "e2e" && is_cluster_named() { &[] } else { self.needs }
    }
}

/// Whether the environment names a cluster, with all that its tests need.
fn is_cluster_named() -> bool {
    std::env::var_os("SLUICE_TEST_RUNTIME_IMAGE").is_some()
}

/// All of them. The budgets add up to less than 35 minutes.
pub(crate) const SUITES: [Suite; 11] = [
    Suite { name: "format", what: "code is formatted", budget_seconds: 20, needs: &[], run: |_| format() },
    Suite {
        name: "generated",
        what: "generated files are up to date",
        budget_seconds: 20,
        needs: &[],
        run: |_| generated(),
    },
    Suite {
        name: "charts",
        what: "charts are well formed",
        budget_seconds: 20,
        needs: &[Requirement::Python],
        run: |_| charts::run(),
    },
    Suite {
        name: "workflows",
        what: "GitHub's workflows are well formed",
        budget_seconds: 20,
        needs: &[Requirement::Go],
        run: |_| workflows::run(),
    },
    Suite { name: "clippy", what: "no lint is broken", budget_seconds: 120, needs: &[], run: clippy },
    Suite { name: "unit", what: "tests of one crate, without services", budget_seconds: 420, needs: &[], run: unit },
    Suite {
        name: "simulation",
        what: "thousands of seeded runs with faults",
        budget_seconds: 240,
        needs: &[],
        run: simulation,
    },
    Suite {
        name: "services",
        what: "connectors and processes, with a real broker and S3 server",
        budget_seconds: 400,
        needs: &requirements::SERVICES,
        run: with_services,
    },
    Suite { name: "image", what: "images are built", budget_seconds: 60, needs: &[], run: |_| image() },
    Suite {
        name: "e2e",
        what: "promises to users, on a real cluster",
        budget_seconds: 720,
        needs: &requirements::CLUSTER,
        run: e2e,
    },
    Suite {
        name: "licences",
        what: "dependencies have permissive licences",
        budget_seconds: 20,
        needs: &[Requirement::CargoDeny],
        run: |_| licences(),
    },
];

fn format() -> Result<()> {
    process::run(workspace::cargo("fmt").args(["--all", "--check"])).context("run `cargo fmt --all`")
}

fn generated() -> Result<()> {
    generate::run(&generate::Arguments { check: true })
}

fn clippy(run: Run) -> Result<()> {
    let mut command = workspace::cargo("clippy");
    command.args(["--workspace", "--all-targets", "--profile", workspace::PROFILE, "--", "-D", "warnings"]);
    process::run_within(run.deadline, command)
}

fn unit(run: Run) -> Result<()> {
    let mut command = workspace::cargo("test");
    command.args(["--workspace", "--profile", workspace::PROFILE, "--lib", "--bins"]);
    for target in targets::find()?.plain {
        command.args(["--test", &target]);
    }
    process::run_within(run.deadline, command)?;
    let mut examples = workspace::cargo("test");
    process::run_within(run.deadline, examples.args(["--workspace", "--profile", workspace::PROFILE, "--doc"]))
}

fn simulation(run: Run) -> Result<()> {
    process::run_within(run.deadline, test(&targets::find()?.simulation)?.args(["--", "--nocapture"]))
}

fn with_services(run: Run) -> Result<()> {
    on_services(run.deadline, &targets::find()?.services, Vec::new())
}

/// The tests that kill processes between Kafka and Kafka, in their long form.
pub(crate) fn soak_kills() -> Result<()> {
    let targets = ["process_exactly_once".to_owned(), "process_classic".to_owned()];
    on_services(SOAK_DEADLINE, &targets, vec![("SLUICE_SOAK", "1".to_owned())])
}

fn on_services(deadline: Duration, targets: &[String], mut environment: Environment) -> Result<()> {
    workspace::build_programs()?;
    let _lock = services::lock()?;
    let (kafka, s3) = (Kafka::start(false)?, S3::start(false)?);
    environment.extend(services::programs()?);
    environment.extend(kafka.environment());
    environment.extend(s3.environment());
    environment.push(("SLUICE_TEST_DUCKDB", requirements::python_with_duckdb().display().to_string()));
    process::run_within(deadline, one_at_a_time(targets, environment)?)
}

fn image() -> Result<()> {
    crate::image::run(&crate::image::Arguments::default())
}

fn e2e(run: Run) -> Result<()> {
    on_cluster(run.ci, run.deadline, Vec::new())
}

/// All tests on a cluster, those of which CI runs a part in whole.
pub(crate) fn soak_on_cluster() -> Result<()> {
    on_cluster(false, SOAK_DEADLINE, vec![("SLUICE_SOAK", "1".to_owned())])
}

/// On the cluster that the environment names, with all else that it names, or on a testbed of our own.
fn on_cluster(fresh: bool, deadline: Duration, mut environment: Environment) -> Result<()> {
    let targets = targets::find()?.cluster;
    workspace::build_programs()?;
    environment.extend(services::programs()?);
    if is_cluster_named() {
        return process::run_within(deadline, one_at_a_time(&targets, environment)?);
    }
    let _lock = services::lock()?;
    let testbed = Testbed::start(fresh)?;
    let (kafka, s3) = (Kafka::start(true)?, S3::start(true)?);
    environment.extend(testbed.environment()?);
    environment.extend(kafka.environment());
    environment.extend(s3.environment());
    process::run_within(deadline, one_at_a_time(&targets, environment)?).inspect_err(|_| Testbed::print_logs())
}

/// Advisories are left out: their database is a repository that CI can't reach.
fn licences() -> Result<()> {
    let program = requirements::cargo_deny().context("cargo-deny is gone")?;
    let mut command = Command::new(program);
    command.current_dir(workspace::root()).args(["--workspace", "check", "licenses", "bans", "sources"]);
    process::run(command)
}

/// `cargo test` for these integration tests of the workspace. None at all would mean all to Cargo.
fn test(targets: &[String]) -> Result<Command> {
    ensure!(
        !targets.is_empty(),
        "no test of this suite was found; xtask/src/verify/targets.rs tells them by their names"
    );
    let mut command = workspace::cargo("test");
    command.args(["--workspace", "--profile", workspace::PROFILE]);
    for target in targets {
        command.args(["--test", target]);
    }
    Ok(command)
}

/// Tests that start jobs and measure time would disturb each other on two cores. A target that fails does not hide what
/// the others find.
fn one_at_a_time(targets: &[String], environment: Environment) -> Result<Command> {
    let mut command = test(targets)?;
    command.envs(environment).args(["--no-fail-fast", "--", "--test-threads=1", "--nocapture"]);
    Ok(command)
}
