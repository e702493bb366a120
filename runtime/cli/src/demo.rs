//! `sluice demo`, which is `cargo demo`: the page-view job on generated input, nothing else needed.
//!
//! The counts that it shows are read from the job's checkpoints while it runs, so what a person sees is what would be
//! restored. At the end every generated view must have been counted exactly once, whatever happened in between.

use crate::checkpoint::find::find;
use crate::checkpoint::place::{Place, address_of};
use crate::checkpoint::{read_metadata, rows::read_rows};
use crate::error::CommandError;
use crate::output;
use crate::plan::job_of;
use crate::progress::Gauge;
use crate::run::{self, End, Painter, Switches};
use clap::Args;
use sluice_crds::parse_manifest;
use sluice_node::{JobDescription, LocalStart, build_job};
use sluice_protocol::failure::{ExitKind, Failure, Fault};
use sluice_protocol::graph::JobGraph;
use sluice_protocol::status::CheckpointInfo;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{IsTerminal, Write as _};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use tokio::sync::watch;

const MANIFEST: &str = include_str!("demo/job.yaml");
/// Stands in [`MANIFEST`] for the address of checkpoint storage.
const STORAGE: &str = "CHECKPOINTS";
/// `number-of-rows` in [`MANIFEST`].
const VIEWS: u64 = 400_000;

/// Run the page-view job on generated input for about 20 seconds.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  sluice demo\n  kill -9 PID, in another terminal, and then: sluice demo --resume")]
pub(crate) struct DemoArguments {
    /// Go on where the last demo in this directory ended, however it ended
    #[arg(long)]
    resume: bool,
    /// Where manifest and checkpoints of the demo go
    #[arg(long, value_name = "DIRECTORY", default_value = "sluice-demo")]
    directory: PathBuf,
    /// Port of status and metrics; none when absent
    #[arg(long, value_name = "PORT")]
    rest_port: Option<u16>,
}

/// Views by app, as a checkpoint holds them.
type Counts = BTreeMap<String, u64>;

/// What the display follows.
#[derive(Debug, Clone, Default)]
struct Frame {
    line: String,
    last: Option<CheckpointInfo>,
}

/// Runs the demo to its end.
pub(crate) async fn run(arguments: DemoArguments) -> Result<u8, CommandError> {
    let Prepared { manifest, storage, job } = prepare(&arguments.directory)?;
    output::complain(&introduction(&manifest, &arguments));
    let rest_bind = arguments.rest_port.map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
    let (frames, painter) = frames_of(&job.program.graph);
    let display = tokio::spawn(show(frames, Place::open(&storage, None, None)?));
    let switches = Switches::default();
    let start = if arguments.resume { LocalStart::Resume } else { LocalStart::Empty };
    let end = run::drive(run::local_run(job, start, rest_bind, &switches, painter), &switches).await?;
    display.abort();
    // Its last frame is whole before anything else is written.
    let _ = display.await;
    match &end {
        End::Job(record) if record.kind == ExitKind::Finished => {
            finish(&Place::open(&storage, None, None)?, &manifest).await
        }
        _ => {
            run::conclude(&end, &resume_command(&arguments.directory));
            Ok(end.code())
        }
    }
}

/// What the demo begins with.
struct Prepared {
    manifest: PathBuf,
    storage: String,
    job: JobDescription,
}

/// The status as frames to be drawn, and what makes them.
fn frames_of(graph: &JobGraph) -> (watch::Receiver<Frame>, Painter) {
    let (sender, frames) = watch::channel(Frame::default());
    let mut gauge = Gauge::new(graph);
    let painter: Painter = Box::new(move |status, tasks| {
        let frame = Frame { line: gauge.line(status, tasks), last: status.last_checkpoint.clone() };
        sender.send_replace(frame);
    });
    (frames, painter)
}

/// Writes the manifest into the demo's directory, and builds the job from it.
fn prepare(directory: &Path) -> Result<Prepared, CommandError> {
    let failed = |source| CommandError::Io { what: format!("writing below '{}'", directory.display()), source };
    std::fs::create_dir_all(directory).map_err(failed)?;
    let storage = address_of(&directory.join("checkpoints").to_string_lossy())?;
    let text = MANIFEST.replace(STORAGE, &storage);
    let path = directory.join("job.yaml");
    std::fs::write(&path, &text).map_err(failed)?;
    let manifest = parse_manifest(&text).map_err(|error| Failure::user("BadManifest", error.to_string()))?;
    let job = build_job(&manifest, &job_of(&manifest))?;
    Ok(Prepared { manifest: path, storage, job })
}

fn resume_command(directory: &Path) -> String {
    match directory.to_str() {
        Some("sluice-demo") => "cargo demo --resume (or: sluice demo --resume)".to_owned(),
        _ => format!("sluice demo --resume --directory {}", directory.display()),
    }
}

fn introduction(manifest: &Path, arguments: &DemoArguments) -> String {
    let begins = if arguments.resume { "going on with" } else { "running" };
    format!(
        "{begins} {}: {} generated page views, counted by app, a checkpoint every second\nkill it at any moment (kill -9 \
         {}) and go on without losing or doubling a view: {}\n",
        manifest.display(),
        output::thousands(VIEWS),
        std::process::id(),
        resume_command(&arguments.directory),
    )
}

/// Shows state and counts until it is aborted: in place on a terminal, else a line for each checkpoint.
async fn show(mut frames: watch::Receiver<Frame>, place: Place) {
    let terminal = std::io::stderr().is_terminal();
    let (mut shown, mut counts, mut lines) = (None, Counts::new(), 0);
    while frames.changed().await.is_ok() {
        let Frame { line, last } = frames.borrow_and_update().clone();
        let id = last.as_ref().map(|last| last.id);
        let is_new = id != shown;
        if let Some(last) = last.filter(|_| is_new)
            // A checkpoint that was removed meanwhile is followed by a newer one.
            && let Ok(read) = read_counts(&place, &last.path).await
        {
            counts = read;
        }
        shown = id;
        if terminal {
            lines = redraw(&frame(&line, &counts), lines);
        } else if is_new {
            output::complain(&format!("{line}  {}", one_line(&counts)));
        }
    }
}

fn frame(line: &str, counts: &Counts) -> String {
    format!("{line}\n\n{}", bars(counts))
}

/// Draws over the `above` lines drawn before, and gives the number of lines drawn.
fn redraw(text: &str, above: usize) -> usize {
    let back = if above > 0 { format!("\x1b[{above}A") } else { String::new() };
    let cleared: String = text.lines().map(|line| format!("\x1b[2K{}\n", output::fitted(line))).collect();
    let mut out = std::io::stderr().lock();
    // A terminal that went away is no reason to end the job.
    let _ = out.write_all(format!("{back}{cleared}\x1b[J").as_bytes()).and_then(|()| out.flush());
    text.lines().count()
}

fn one_line(counts: &Counts) -> String {
    counts.iter().map(|(app, views)| format!("{app} {}", output::thousands(*views))).collect::<Vec<_>>().join("  ")
}

fn bars(counts: &Counts) -> String {
    let widest = counts.values().copied().max().unwrap_or(0).max(1);
    let mut text = String::new();
    for (app, views) in counts {
        let length = usize::try_from(views * 40 / widest).unwrap_or(0);
        let _ = writeln!(text, "  {app:<8} {:>9}  {}", output::thousands(*views), "█".repeat(length));
    }
    text
}

/// The counts in a checkpoint.
async fn read_counts(place: &Place, directory: &str) -> Result<Counts, CommandError> {
    let mut counts = Counts::new();
    let Some(metadata) = read_metadata(place, directory).await? else { return Ok(counts) };
    let handles = metadata.operators.iter().flat_map(|operator| &operator.keyed);
    let table = read_rows(place, directory, handles, usize::MAX).await?;
    for row in &table.rows {
        // Key group, key, count.
        if let [_, app, .., views] = row.as_slice() {
            let views: u64 = views.parse().map_err(|_| CommandError::State {
                place: directory.to_owned(),
                detail: format!("'{views}' is no count"),
            })?;
            *counts.entry(app.clone()).or_default() += views;
        }
    }
    Ok(counts)
}

/// Prints the final counts, and says whether they are right.
async fn finish(place: &Place, manifest: &Path) -> Result<u8, CommandError> {
    let found = find(place).await?;
    let last = found.into_iter().max_by_key(|found| found.at);
    let last = last.ok_or_else(|| CommandError::Usage(format!("there is no checkpoint below {}", place.uri)))?;
    let counts = read_counts(place, &last.uri).await?;
    let total: u64 = counts.values().sum();
    output::print(&format!("\nfinal counts, from checkpoint {}:\n\n{}", last.id, bars(&counts)));
    if total != VIEWS {
        let message = format!("{total} page views were counted, but {VIEWS} were generated");
        return Err(Failure::restart("WrongCount", Fault::Internal, message).into());
    }
    output::print(&format!(
        "\n{} page views were generated and {} counted: none lost, none doubled\nlook into it:  sluice checkpoint inspect \
         --manifest {} --rows 10\n",
        output::thousands(VIEWS),
        output::thousands(total),
        manifest.display(),
    ));
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::{Counts, MANIFEST, STORAGE, VIEWS, bars, build_job, job_of, parse_manifest};

    #[test]
    fn the_manifest_is_valid_and_ends_after_the_views_that_are_expected() {
        assert_eq!(MANIFEST.matches(STORAGE).count(), 1);
        assert!(MANIFEST.contains(&format!("'number-of-rows' = '{VIEWS}'")));
        let manifest = parse_manifest(&MANIFEST.replace(STORAGE, "file:///tmp/x")).unwrap();
        let job = build_job(&manifest, &job_of(&manifest)).unwrap();
        assert!(job.options.checkpointing.is_some());
    }

    #[test]
    fn bars_are_scaled_to_the_largest_count() {
        let counts = Counts::from([("a".to_owned(), 400), ("b".to_owned(), 1), ("c".to_owned(), 200)]);
        let text = bars(&counts);
        let lengths: Vec<usize> = text.lines().map(|line| line.matches('█').count()).collect();
        assert_eq!(lengths, [40, 0, 20]);
        assert_eq!(bars(&Counts::new()), "");
    }
}
