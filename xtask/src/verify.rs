//! `cargo verify`: all tests and checks, in order of cost; the first failure ends the run.
//!
//! Suites (see [`suites`]) each have a budget that is printed with the time taken. Where this machine lacks what a
//! suite needs, the suite is skipped and says why. With `CI=true` nothing is skipped: missing packages are installed,
//! and what a killed run left is removed first. Services and cluster are started by the suite that needs them and end
//! with it, also on Ctrl-C. The variables by which tests find them are listed in `e2e/README.md`.

mod charts;
#[cfg(test)]
mod faults;
pub(crate) mod requirements;
pub(crate) mod suites;
pub(crate) mod targets;
mod workflows;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::{process, services};
use suites::{SUITES, Suite};

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Only these suites
    #[arg(long = "suite", value_name = "NAME")]
    suites: Vec<String>,
    /// Say which suites there are and which of them this machine would skip
    #[arg(long)]
    list: bool,
}

/// What suites may ask about the run.
#[derive(Clone, Copy)]
pub(crate) struct Run {
    /// The set is complete and the machine is ours.
    pub(crate) ci: bool,
    /// What each program of the suite may take at most: who hangs is ended and named.
    pub(crate) deadline: Duration,
}

#[derive(Default)]
struct Tally {
    passed: usize,
    failed: usize,
    skipped: usize,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let run = Run { ci: std::env::var("CI").is_ok_and(|value| value == "true"), deadline: Duration::ZERO };
    let chosen = choose(&arguments.suites)?;
    if arguments.list {
        chosen.iter().for_each(|suite| list(suite));
        return Ok(());
    }
    if run.ci {
        requirements::install(&chosen)?;
    }
    remove_services_when_interrupted(run)?;
    let begin = Instant::now();
    let mut tally = Tally::default();
    let result = chosen.iter().try_for_each(|suite| run_suite(run, suite, &mut tally));
    println!("verify took {}", minutes(begin.elapsed()));
    println!("{} passed, {} failed, {} skipped", tally.passed, tally.failed, tally.skipped);
    result
}

fn choose(names: &[String]) -> Result<Vec<&'static Suite>> {
    if names.is_empty() {
        return Ok(SUITES.iter().collect());
    }
    let find = |name: &String| {
        let known = || SUITES.iter().map(|suite| suite.name).collect::<Vec<_>>().join(", ");
        SUITES
            .iter()
            .find(|suite| suite.name == name)
            .with_context(|| format!("no suite '{name}'; there are: {}", known()))
    };
    names.iter().map(find).collect()
}

fn list(suite: &Suite) {
    let note =
        requirements::missing(suite.needs()).map_or(String::new(), |reason| format!(" (skipped here: {reason})"));
    println!("{:<11} {}, {} when warm{note}", suite.name, suite.what, minutes(suite.budget()));
}

fn run_suite(run: Run, suite: &Suite, tally: &mut Tally) -> Result<()> {
    if let Some(reason) = requirements::missing(suite.needs()) {
        if run.ci {
            tally.failed += 1;
            bail!("suite {} can't run: {reason}; with CI=true none may be skipped", suite.name);
        }
        tally.skipped += 1;
        println!("\n=== {}: skipped: {reason}", suite.name);
        return Ok(());
    }
    println!("\n=== {}: {} (budget {})", suite.name, suite.what, minutes(suite.budget()));
    let begin = Instant::now();
    let result = (suite.run)(Run { deadline: suite.deadline(), ..run });
    let taken = begin.elapsed();
    if let Err(error) = result {
        tally.failed += 1;
        let name = suite.name;
        return Err(error.context(format!("suite {name} failed; `cargo verify --suite {name}` runs it alone")));
    }
    tally.passed += 1;
    let over = if taken > suite.budget() { ", OVER ITS BUDGET (caches cold?)" } else { "" };
    println!("=== {}: passed in {} of {}{over}", suite.name, minutes(taken), minutes(suite.budget()));
    Ok(())
}

/// `2 min 05 s`.
fn minutes(duration: Duration) -> String {
    let seconds = duration.as_secs();
    format!("{} min {:02} s", seconds / 60, seconds % 60)
}

/// Guards don't run when a signal ends the process, so on one the services are removed by name.
fn remove_services_when_interrupted(run: Run) -> Result<()> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot wait for signals")?;
    std::thread::spawn(move || {
        let signalled = runtime.block_on(async {
            use tokio::signal::unix::{SignalKind, signal};
            let mut interrupt = signal(SignalKind::interrupt())?;
            let mut terminate = signal(SignalKind::terminate())?;
            tokio::select! { _ = interrupt.recv() => {}, _ = terminate.recv() => {} }
            std::io::Result::Ok(())
        });
        if signalled.is_ok() {
            eprintln!("interrupted: removing services");
            process::end_running();
            services::remove_all();
            if run.ci {
                services::remove_testbed();
            }
            std::process::exit(130);
        }
    });
    Ok(())
}
