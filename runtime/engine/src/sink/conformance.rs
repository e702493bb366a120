//! What every sink that commits with checkpoints has to stand, as a suite that its tests run: [`check`].
//!
//! The sink is tried through its [`SinkFactory`] alone, against the real thing outside; a [`Subject`] says what its readers
//! see. Attempts are played here: a checkpoint is a position of the input and the handles listed with it, a crash drops the
//! writer, a restore settles the handles of the last complete checkpoint and goes on from its position.

use super::{Committer, CommitterContext, Sink, SinkContext, SinkFactory};
use crate::batch::Batch;
use crate::error::TaskError;
use crate::operator::{OperatorContext, TaskIdentity, Waker};
use crate::sink::committer::{Commit, CommitError};
use crate::state::StateBackend;
use sluice_protocol::state::Committable;
use sluice_protocol::{
    Attempt, CheckpointId, Generation, JobId, KeyGroupRange, OperatorUid, Run, SubtaskIndex, Timestamp,
};
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// The sink that is tried.
pub trait Subject {
    /// Makes its writers and committers, all for one fresh place outside.
    fn factory(&self) -> &dyn SinkFactory;

    /// A batch of the rows with these numbers, as the sink takes it.
    fn rows(&self, numbers: Range<i64>) -> Batch;

    /// The numbers of all rows that a reader sees now, in any order.
    ///
    /// # Errors
    /// When a reader finds something that it cannot read.
    fn visible(&self) -> Result<Vec<i64>, String>;

    /// How many transactions lie outside that are neither committed nor aborted.
    ///
    /// # Errors
    /// When it cannot be asked.
    fn open_transactions(&self) -> Result<usize, String>;

    /// Destroys what is staged under a handle, as an accident outside would.
    ///
    /// # Errors
    /// When it cannot be destroyed.
    fn destroy(&self, committable: &Committable) -> Result<(), String>;
}

/// Tries everything, each in a fresh place, and names the first thing that is wrong.
///
/// # Errors
/// What did not hold, and where.
pub fn check<S: Subject>(fresh: impl Fn() -> Result<S, String>) -> Result<(), String> {
    let scenarios: [(&str, Scenario<S>); 10] = [
        ("rows are visible from their commit on, and not before", visible_from_commit),
        ("a crash before and after each call", crash_everywhere),
        ("a commit that is repeated", commit_twice),
        ("a commit by two at once", commit_at_once),
        ("many checkpoints by one writer", many_checkpoints),
        ("handles that failed checkpoints carry", carried_handles),
        ("an abort spares unsettled handles", abort_spares),
        ("an abort takes what a lost attempt left", abort_takes),
        ("a second generation beside a zombie", zombie),
        ("what is lost is not taken for committed", lost),
    ];
    for (name, scenario) in scenarios {
        scenario(&fresh()?).map_err(|what| format!("{name}: {what}"))?;
    }
    Ok(())
}

type Scenario<S> = fn(&S) -> Result<(), String>;

const SINK: &str = "out.sink";

fn job() -> JobId {
    JobId { namespace: "default".into(), name: "conformance".into(), uid: "0c0ffee0-1".into() }
}

const fn run(generation: u64, attempt: u32) -> Run {
    Run { generation: Generation(generation), attempt: Attempt(attempt) }
}

/// Lets a test wait until a sink calls, or a moment has passed.
struct Bell {
    rung: Mutex<bool>,
    changed: Condvar,
}

impl Bell {
    fn waker(bell: &Arc<Self>) -> Waker {
        let bell = Arc::clone(bell);
        Arc::new(move || {
            *bell.rung.lock().unwrap_or_else(PoisonError::into_inner) = true;
            bell.changed.notify_all();
        })
    }

    fn wait(&self) {
        let rung = self.rung.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_timeout_while(rung, Duration::from_millis(20), |rung| !*rung);
        *waited.unwrap_or_else(PoisonError::into_inner).0 = false;
    }
}

/// One attempt of one writer.
struct Writer {
    sink: Box<dyn Sink>,
    bell: Arc<Bell>,
}

/// As long as a sink may take for one call, in waits of 20 ms.
const PATIENCE: u32 = 1500;

impl Writer {
    fn open<S: Subject>(subject: &S, run: Run) -> Result<Self, String> {
        Self::open_as(subject, run, 0)
    }

    fn open_as<S: Subject>(subject: &S, run: Run, subtask: u32) -> Result<Self, String> {
        let bell = Arc::new(Bell { rung: Mutex::new(false), changed: Condvar::new() });
        let mut sink = subject.factory().create().map_err(failed)?;
        let subtask = SubtaskIndex(subtask);
        let operator = OperatorContext {
            uid: SINK.into(),
            subtask,
            parallelism: 2,
            key_groups: KeyGroupRange::of_subtask(subtask, 2, 128),
            max_parallelism: 128,
            state_backend: StateBackend::default(),
        };
        let (identity, waker) = (TaskIdentity { job: job(), run }, Bell::waker(&bell));
        sink.open(SinkContext { operator, identity, waker, clock: Arc::new(Timestamp::default) }).map_err(failed)?;
        Ok(Self { sink, bell })
    }

    fn until(
        &mut self,
        what: &str,
        mut is_so: impl FnMut(&mut dyn Sink) -> Result<bool, TaskError>,
    ) -> Result<(), String> {
        for _ in 0..PATIENCE {
            if is_so(self.sink.as_mut()).map_err(failed)? {
                return Ok(());
            }
            self.bell.wait();
        }
        Err(format!("{what} takes too long"))
    }

    fn write(&mut self, batch: Batch) -> Result<(), String> {
        self.until("room for a batch", |sink| sink.is_writable())?;
        self.sink.write(batch).map_err(failed)
    }

    /// The checkpoint with these handles is complete.
    fn completed(&mut self, checkpoint: u64, handles: &[Committable]) {
        let held: Vec<_> = handles.iter().map(|handle| handle.checkpoint).collect();
        self.sink.checkpoint_completed(CheckpointId(checkpoint), Some(&held));
    }

    fn stage(&mut self, checkpoint: u64) -> Result<Vec<Committable>, String> {
        self.until("the pre-commit", |sink| sink.flush())?;
        self.sink.committables(CheckpointId(checkpoint)).map_err(failed)
    }
}

fn failed(error: TaskError) -> String {
    error.to_string()
}

fn committer<S: Subject>(subject: &S) -> Result<Box<dyn Committer>, String> {
    let context = CommitterContext { job: job(), sink: OperatorUid::from(SINK) };
    subject.factory().committer(context).map_err(failed)?.ok_or_else(|| "the sink has no committer".to_owned())
}

/// Commits, as often as it takes.
fn commit<S: Subject>(subject: &S, handles: &[Committable]) -> Result<Vec<Commit>, String> {
    let mut committer = committer(subject)?;
    handles.iter().map(|handle| commit_one(committer.as_mut(), handle)).collect()
}

fn commit_one(committer: &mut dyn Committer, handle: &Committable) -> Result<Commit, String> {
    let mut last = String::new();
    for _ in 0..100 {
        match committer.commit(handle) {
            Ok(done) => return Ok(done),
            Err(CommitError::Retriable(message)) => last = message,
            Err(CommitError::Lost(message) | CommitError::GivenUp(message)) => {
                return Err(format!("a commit was lost: {message}"));
            }
        }
    }
    Err(format!("a commit does not come about: {last}"))
}

fn abort<S: Subject>(subject: &S, older_than: Run, spared: &[Committable]) -> Result<u64, String> {
    committer(subject)?.abort(older_than, spared).map_err(|error| format!("the abort failed: {error}"))
}

fn expect<S: Subject>(subject: &S, rows: Range<i64>, when: &str) -> Result<(), String> {
    let mut found = subject.visible()?;
    found.sort_unstable();
    if found.iter().copied().eq(rows.clone()) {
        return Ok(());
    }
    Err(format!("{when}, readers should see rows {rows:?}, but see {} rows: {found:?}", found.len()))
}

fn expect_nothing_open<S: Subject>(subject: &S) -> Result<(), String> {
    match subject.open_transactions()? {
        0 => Ok(()),
        open => Err(format!("{open} transactions are left open")),
    }
}

fn visible_from_commit<S: Subject>(subject: &S) -> Result<(), String> {
    let mut writer = Writer::open(subject, run(1, 1))?;
    writer.write(subject.rows(0..10))?;
    expect(subject, 0..0, "while rows are written")?;
    let handles = writer.stage(1)?;
    expect(subject, 0..0, "before the commit")?;
    writer.write(subject.rows(10..20))?;
    commit(subject, &handles)?;
    expect(subject, 0..10, "after the commit")?;
    writer.completed(1, &handles);
    let handles = writer.stage(2)?;
    commit(subject, &handles)?;
    expect(subject, 0..20, "after the second commit")?;
    writer.completed(2, &handles);
    let empty = writer.stage(3)?;
    if !empty.is_empty() {
        return Err("a checkpoint without rows has handles".to_owned());
    }
    drop(writer);
    expect_nothing_open(subject)
}

/// What survives a crash: the last complete checkpoint.
#[derive(Debug, Default, Clone)]
struct Complete {
    id: u64,
    position: i64,
    handles: Vec<Committable>,
}

/// Rows per checkpoint, and rows of the whole input.
const STEP: i64 = 4;
const ALL: i64 = 12;

/// Plays an attempt from a complete checkpoint on, and stops before the call numbered `crash`. Says what is complete then,
/// and whether the attempt came to its end.
fn attempt<S: Subject>(subject: &S, run: Run, from: &Complete, crash: u32) -> Result<(Complete, bool), String> {
    let mut calls = 0;
    let mut goes_on = || {
        calls += 1;
        calls <= crash
    };
    let mut complete = from.clone();
    // What a JobManager does at a start.
    if !goes_on() {
        return Ok((complete, false));
    }
    commit(subject, &complete.handles)?;
    if !goes_on() {
        return Ok((complete, false));
    }
    abort(subject, run, &complete.handles)?;
    let mut writer = Writer::open(subject, run)?;
    while complete.position < ALL {
        let (id, position) = (complete.id + 1, complete.position);
        for row in position..position + STEP {
            if !goes_on() {
                return Ok((complete, false));
            }
            writer.write(subject.rows(row..row + 1))?;
        }
        if !goes_on() {
            return Ok((complete, false));
        }
        let handles = writer.stage(id)?;
        if !goes_on() {
            return Ok((complete, false));
        }
        complete = Complete { id, position: position + STEP, handles };
        for handle in complete.handles.clone() {
            if !goes_on() {
                return Ok((complete, false));
            }
            commit(subject, &[handle])?;
        }
        writer.completed(id, &complete.handles);
    }
    Ok((complete, true))
}

fn crash_everywhere<S: Subject>(subject: &S) -> Result<(), String> {
    let mut complete = Complete::default();
    let mut generation = 0;
    // Each attempt gets one call further than the one before, from wherever that has come.
    for crash in 0.. {
        generation += 1;
        let place = |what| format!("attempt {generation}, which ends before call {}: {what}", crash + 1);
        let (reached, is_over) = attempt(subject, run(generation, 1), &complete, crash).map_err(place)?;
        complete = reached;
        let mut seen = subject.visible()?;
        seen.sort_unstable();
        let is_prefix = seen.iter().copied().eq(0..seen.len() as i64) && seen.len() as i64 <= complete.position;
        if !is_prefix {
            return Err(place(format!("readers see {seen:?}, of which {} are complete", complete.position)));
        }
        if is_over {
            break;
        }
    }
    expect(subject, 0..ALL, "at the end")?;
    abort(subject, run(generation + 1, 1), &[])?;
    expect(subject, 0..ALL, "after the last abort")?;
    expect_nothing_open(subject)
}

fn commit_twice<S: Subject>(subject: &S) -> Result<(), String> {
    let mut writer = Writer::open(subject, run(1, 1))?;
    writer.write(subject.rows(0..5))?;
    let handles = writer.stage(1)?;
    commit(subject, &handles)?;
    let again = commit(subject, &handles)?;
    if again.contains(&Commit::Committed) {
        return Err("a second commit claims to have committed".to_owned());
    }
    writer.write(subject.rows(5..9))?;
    writer.completed(1, &handles);
    let later = writer.stage(2)?;
    // A late repetition by a process that has been asleep, while the next transaction is staged, and after its commit.
    commit(subject, &handles)?;
    expect(subject, 0..5, "after a late repetition")?;
    commit(subject, &later)?;
    commit(subject, &handles)?;
    expect(subject, 0..9, "after the repetition of an older commit")
}

fn commit_at_once<S: Subject>(subject: &S) -> Result<(), String> {
    let mut writer = Writer::open(subject, run(1, 1))?;
    writer.write(subject.rows(0..8))?;
    let handles = writer.stage(1)?;
    let committers = [committer(subject)?, committer(subject)?];
    let results: Vec<Result<(), String>> = std::thread::scope(|scope| {
        let threads = committers.map(|mut committer| {
            let handles = &handles;
            scope.spawn(move || handles.iter().try_for_each(|one| commit_one(committer.as_mut(), one).map(drop)))
        });
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err("a committer panicked".into()))).collect()
    });
    results.into_iter().collect::<Result<Vec<()>, String>>()?;
    expect(subject, 0..8, "after two commits at once")
}

/// What a writer uses again, it uses when its handle is settled, and not before. Commits come late, and in the wrong order.
fn many_checkpoints<S: Subject>(subject: &S) -> Result<(), String> {
    let mut writer = Writer::open(subject, run(1, 1))?;
    let mut unsettled: Vec<Committable> = Vec::new();
    for checkpoint in 1..=12 {
        let from = (checkpoint as i64 - 1) * 2;
        writer.write(subject.rows(from..from + 2))?;
        for handle in writer.stage(checkpoint)? {
            if !unsettled.contains(&handle) {
                unsettled.push(handle);
            }
        }
        writer.completed(checkpoint, &unsettled);
        if checkpoint % 3 == 0 {
            unsettled.reverse();
            commit(subject, &unsettled)?;
            unsettled.clear();
            expect(subject, 0..from + 2, "after the commits of three checkpoints")?;
        }
    }
    drop(writer);
    abort(subject, run(1, 2), &[])?;
    expect(subject, 0..24, "at the end")?;
    expect_nothing_open(subject)
}

fn carried_handles<S: Subject>(subject: &S) -> Result<(), String> {
    let mut writer = Writer::open(subject, run(1, 1))?;
    let mut handles = Vec::new();
    for checkpoint in 1..=4 {
        let from = (checkpoint as i64 - 1) * 3;
        writer.write(subject.rows(from..from + 3))?;
        handles = writer.stage(checkpoint)?;
    }
    // The first three failed; the fourth holds the handles of all.
    expect(subject, 0..0, "after three failed checkpoints")?;
    drop(writer);
    abort(subject, run(1, 2), &handles)?;
    commit(subject, &handles)?;
    expect(subject, 0..12, "after the checkpoint that carries them")?;
    expect_nothing_open(subject)
}

fn abort_spares<S: Subject>(subject: &S) -> Result<(), String> {
    let mut writers = [Writer::open_as(subject, run(1, 1), 0)?, Writer::open_as(subject, run(1, 1), 1)?];
    writers[0].write(subject.rows(0..3))?;
    writers[1].write(subject.rows(3..6))?;
    let mut handles = writers[0].stage(1)?;
    handles.extend(writers[1].stage(1)?);
    // Behind the checkpoint more is written, and lost with the attempt.
    writers[0].write(subject.rows(100..103))?;
    drop(writers);
    abort(subject, run(2, 1), &handles)?;
    commit(subject, &handles)?;
    expect(subject, 0..6, "after an abort that spares them and their commit")?;
    abort(subject, run(2, 1), &[])?;
    expect(subject, 0..6, "after an abort that need not spare them any more")?;
    expect_nothing_open(subject)
}

fn abort_takes<S: Subject>(subject: &S) -> Result<(), String> {
    let mut writer = Writer::open(subject, run(1, 1))?;
    writer.write(subject.rows(0..3))?;
    let staged = writer.stage(1)?;
    writer.write(subject.rows(3..6))?;
    drop(writer);
    if staged.is_empty() {
        return Err("rows were staged without a handle".to_owned());
    }
    // Its checkpoint did not complete.
    abort(subject, run(1, 2), &[])?;
    expect(subject, 0..0, "after the abort")?;
    expect_nothing_open(subject)?;
    let mut committer = committer(subject)?;
    match committer.commit(&staged[0]) {
        Err(CommitError::Lost(_)) => Ok(()),
        other => Err(format!("what was aborted should be lost, but its commit says {other:?}")),
    }
}

fn zombie<S: Subject>(subject: &S) -> Result<(), String> {
    let mut zombie = Writer::open(subject, run(1, 1))?;
    zombie.write(subject.rows(0..4))?;
    let handles = zombie.stage(1)?;
    zombie.completed(1, &handles);
    zombie.write(subject.rows(100..104))?;
    // Everybody believes it dead; the checkpoint is the last complete one.
    commit(subject, &handles)?;
    abort(subject, run(2, 1), &handles)?;
    let mut writer = Writer::open(subject, run(2, 1))?;
    writer.write(subject.rows(4..8))?;
    // It goes on, and its own JobManager aborts what it believes to be older, and repeats its commit.
    let _staged = zombie.write(subject.rows(104..108)).and_then(|()| zombie.stage(2));
    commit(subject, &handles)?;
    abort(subject, run(1, 1), &[])?;
    let later = writer.stage(2)?;
    abort(subject, run(1, 2), &handles)?;
    commit(subject, &later)?;
    expect(subject, 0..8, "with a zombie beside it")?;
    drop(zombie);
    abort(subject, run(2, 2), &[])?;
    expect(subject, 0..8, "after what the zombie left is aborted")?;
    expect_nothing_open(subject)
}

fn lost<S: Subject>(subject: &S) -> Result<(), String> {
    let mut writer = Writer::open(subject, run(1, 1))?;
    writer.write(subject.rows(0..3))?;
    let handles = writer.stage(1)?;
    drop(writer);
    for handle in &handles {
        subject.destroy(handle)?;
    }
    let mut committer = committer(subject)?;
    for handle in &handles {
        match committer.commit(handle) {
            Err(CommitError::Lost(_)) => {}
            other => return Err(format!("its commit says {other:?}")),
        }
    }
    expect(subject, 0..0, "after the commit of what is lost")
}
