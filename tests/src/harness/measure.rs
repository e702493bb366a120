//! What figures share: the machine's description, one measured run of `sluice run`, the median.

use super::{sluice_binary, unique};
use anyhow::{Context as _, Result, bail};
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

/// Processor, cores, memory and kernel in one line.
pub fn machine() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let cpu = read("/proc/cpuinfo");
    let field = |name: &str| {
        cpu.lines()
            .find(|line| line.starts_with(name))
            .and_then(|line| line.split(": ").nth(1))
            .unwrap_or("?")
            .to_owned()
    };
    let memory = read("/proc/meminfo");
    let kilobytes: u64 = memory.split_whitespace().nth(1).and_then(|word| word.parse().ok()).unwrap_or(0);
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    let kernel = read("/proc/sys/kernel/osrelease");
    format!("{}, {cores} cores, {} GiB, Linux {}", field("model name"), kilobytes >> 20, kernel.trim())
}

/// CPU seconds and wall time of one run.
#[derive(Debug, Clone, Copy)]
pub struct Usage {
    /// User and system time, in seconds.
    pub cpu: f64,
    /// Elapsed, in seconds.
    pub wall: f64,
}

/// Runs `sluice run` on a manifest to its end.
pub fn run_local(manifest: &str) -> Result<Usage> {
    let directory = scratch()?;
    let path = directory.join("job.yaml");
    std::fs::write(&path, manifest)?;
    let before = children_cpu();
    let started = Instant::now();
    let output = Command::new(sluice_binary())
        .args(["run", "job.yaml", "--rest-port", "0"])
        .current_dir(&directory)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .output()
        .context("sluice run")?;
    let usage = Usage { cpu: children_cpu() - before, wall: started.elapsed().as_secs_f64() };
    std::fs::remove_dir_all(&directory)?;
    if !output.status.success() {
        bail!("sluice run failed: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(usage)
}

/// A directory of our own.
pub fn scratch() -> Result<PathBuf> {
    let directory = std::env::temp_dir().join(unique("sluice-figures"));
    std::fs::create_dir_all(&directory)?;
    Ok(directory)
}

/// User and system seconds of all children that have ended.
fn children_cpu() -> f64 {
    cpu_of(nix::sys::resource::UsageWho::RUSAGE_CHILDREN)
}

/// User and system seconds of this process.
pub fn own_cpu() -> f64 {
    cpu_of(nix::sys::resource::UsageWho::RUSAGE_SELF)
}

fn cpu_of(who: nix::sys::resource::UsageWho) -> f64 {
    let usage = nix::sys::resource::getrusage(who).expect("getrusage");
    let seconds = |time: nix::sys::time::TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6;
    seconds(usage.user_time()) + seconds(usage.system_time())
}

/// The median.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Sleeps a little between two looks.
pub fn pause() {
    std::thread::sleep(Duration::from_millis(5));
}

/// Names of figures, and what prints them.
pub type Figure = (&'static [&'static str], fn() -> Result<()>);

/// Prints those that the command line names, or all; fails when one could not be measured.
#[must_use]
pub fn print_wanted(figures: &[Figure]) -> ExitCode {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    let names: Vec<&str> = figures.iter().flat_map(|(names, _)| names.iter().copied()).collect();
    let mut code = ExitCode::SUCCESS;
    for unknown in wanted.iter().filter(|name| !names.contains(&name.as_str())) {
        eprintln!("no figure '{unknown}' here; there are: {}", names.join(", "));
        code = ExitCode::FAILURE;
    }
    println!("# {}", machine());
    for (names, print) in figures {
        if (wanted.is_empty() || names.iter().any(|name| wanted.iter().any(|other| other == name)))
            && let Err(error) = print()
        {
            eprintln!("{}: {error:#}", names.join(", "));
            code = ExitCode::FAILURE;
        }
    }
    code
}
