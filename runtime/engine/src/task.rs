//! A task: one subtask of a chain, as a state machine that is stepped (design §3; protocol.md B1, B4, B5).
//!
//! It owns its source or input gate, its operators, its sink or output edges, and the order of things between them.
//! It reads no clock, knows no thread and no socket: [`crate::runner`] steps it on a thread of its own, the
//! simulation by hand. Nothing in it blocks, except what a source or sink does when it is opened.
//!
//! # How it is used
//! ```text
//! let mut task = Task::new(TaskDescription { … }, waker);   // creates and opens nothing yet, cannot fail
//! let handle = task.handle();                               // commands, from any thread: trigger, cancel, …
//! let metrics = task.metrics();                             // counters, from any thread
//! loop {
//!     let step = task.step(now);
//!     for event in task.take_events() { … }                 // Running, Snapshot, Finished, Failed, …
//!     match step {
//!         Step::Worked => {}                                // step again
//!         Step::Idle { until } | Step::Blocked { until } => { /* wait for the waker, or until then */ }
//!         Step::Ended => break,                             // failed or cancelled; drop it
//!     }
//! }
//! ```
//!
//! # The order within a step ([`Task::step`])
//! 1. Commands are taken from the mailbox.
//! 2. The first step opens operators, sink and source with the restored state → [`TaskEvent::Running`].
//! 3. A barrier or an end that waits for the sink to be flushed is tried again; meanwhile no input is taken.
//! 4. Barriers that overtake are looked for, also under back-pressure (B1), and a snapshot that waits for its last parts
//!    is tried again.
//! 5. A triggered barrier is taken, between two batches, also under back-pressure.
//! 6. Rows that lingered for the buffer timeout are sent on.
//! 7. While an output is full, no input is taken (B4).
//! 8. What a watermark or a timer makes due is done, a slice at a time (`event_time.rs`).
//! 9. One batch, or one event of the gate, is processed.
//!
//! # A barrier (`checkpoint.rs`)
//! Operators and edges flush what lingers (B1); the sink flushes until all has arrived; each operator freezes its
//! state; the barrier goes to all outputs; [`TaskEvent::Snapshot`] carries the frozen state to whoever writes it
//! ([`TaskSnapshot::write`], off the task's thread). One that overtakes freezes first and waits for the sink and for
//! what is in flight afterwards. A task that has finished goes on taking barriers.

mod chain;
mod checkpoint;
mod event_time;
mod mailbox;
mod metrics;
mod snapshot;
#[cfg(test)]
mod tests;

use crate::channel::{InputChannel, OutputChannel};
use crate::error::TaskError;
use crate::event_time::alignment::AlignmentMember;
use crate::event_time::source::{Piece, SourceWatermarks, take_restored};
use crate::in_flight::RestoredChannel;
use crate::input_gate::{GateEvent, InputGate};
use crate::operator::{Clock, OperatorContext, RestoredState, TaskIdentity, Waker};
use crate::partition::EdgeOutput;
use crate::program::VertexProgram;
use crate::source::{Source, SourceContext, SourcePoll};
use crate::state::StateBackend;
use chain::Chain;
use mailbox::Command;
pub use mailbox::TaskHandle;
pub use metrics::TaskMetrics;
use metrics::{Activity, Meter};
use sluice_protocol::message::Barrier;
use sluice_protocol::{CheckpointId, KeyGroupRange, OperatorUid, SubtaskId, TimeSpan, Timestamp};
pub use snapshot::TaskSnapshot;
use snapshot::{OpenCut, SnapshotDraft};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Settings of a task.
#[derive(Debug, Clone, Copy)]
pub struct TaskOptions {
    /// Rows asked of a source at once.
    pub batch_rows: usize,
    /// Rows that linger are sent after this time.
    pub buffer_timeout: TimeSpan,
    /// Most bytes of input that an unaligned checkpoint may record; beyond, it is declined.
    pub in_flight_limit: usize,
}

/// Enough for some hundred full channels: the most that is worth its memory.
pub const IN_FLIGHT_LIMIT: usize = 512 << 20;

impl Default for TaskOptions {
    fn default() -> Self {
        Self { batch_rows: 4096, buffer_timeout: TimeSpan::from_millis(100), in_flight_limit: IN_FLIGHT_LIMIT }
    }
}

/// Everything a task is made of.
pub struct TaskDescription {
    /// Which subtask.
    pub subtask: SubtaskId,
    /// Of which job and attempt.
    pub identity: TaskIdentity,
    /// Number of subtasks of its vertex.
    pub parallelism: u32,
    /// Number of key groups of the job.
    pub max_parallelism: u16,
    /// What runs: `program.vertices[subtask.vertex]`.
    pub program: VertexProgram,
    /// All channels of all input edges; empty for a chain that begins with a source.
    pub inputs: Vec<InputChannel>,
    /// The output edges in the order of the graph; empty for a chain that ends with a sink.
    pub outputs: Vec<EdgeOutput>,
    /// What each operator restores; operators that are not named start as new ones.
    pub state: BTreeMap<OperatorUid, RestoredState>,
    /// What was in flight on the input edges, to be read before anything new (B3).
    pub in_flight: Vec<RestoredChannel>,
    /// Settings.
    pub options: TaskOptions,
    /// Where keyed state lives.
    pub state_backend: StateBackend,
    /// The time, for sources and operators.
    pub clock: Clock,
    /// The JobManager's time as far as it is known, and never ahead of it: for sinks (S4).
    pub job_clock: Clock,
    /// Whom its source waits for ([`WatermarkStrategy::alignment`](crate::event_time::WatermarkStrategy)).
    pub alignment: Option<AlignmentMember>,
}

/// What a task has to tell.
#[derive(Debug)]
pub enum TaskEvent {
    /// State is restored; input is read from now on.
    Running,
    /// All input was read and all results are out. The task lives on for checkpoints.
    Finished,
    /// Its part of a checkpoint is frozen.
    Snapshot(TaskSnapshot),
    /// It cannot take part in this checkpoint.
    Declined {
        /// The checkpoint.
        checkpoint: CheckpointId,
        /// Why.
        error: TaskError,
    },
    /// It has failed and will do nothing more.
    Failed(TaskError),
}

/// What a step came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Something was done; there may be more.
    Worked,
    /// There is no input. Step again when the waker is called, or at this time.
    Idle {
        /// When rows that linger are due.
        until: Option<Timestamp>,
    },
    /// An output or the sink has no room. Step again when the waker is called, or at this time.
    Blocked {
        /// When rows that linger are due.
        until: Option<Timestamp>,
    },
    /// Failed or cancelled: there is nothing more to do.
    Ended,
}

/// Where the rows come from.
enum Input {
    Source { uid: OperatorUid, source: Box<dyn Source>, watermarks: Option<Box<SourceWatermarks>> },
    Gate(Box<InputGate>),
}

/// What waits for the sink to be flushed.
enum Waiting {
    Barrier(SnapshotDraft),
    End,
}

/// Created and opened in the first step.
struct Running {
    input: Input,
    chain: Chain,
    waiting: Option<Waiting>,
    /// A checkpoint that is cut, but not all that belongs to it is known.
    open: Option<OpenCut>,
    /// The source emits nothing behind this checkpoint, with which the job stops, until it is given up (K4).
    held: Option<CheckpointId>,
    finished: bool,
    /// Of the batch that was read last, what was not processed yet.
    pieces: VecDeque<Piece>,
    /// What the gate said while a watermark was on its way.
    stashed: Option<GateEvent>,
    /// All input was read, and what the last watermark makes due is under way.
    ending: bool,
}

enum Phase {
    New(Box<TaskDescription>),
    Running(Box<Running>),
    Ended,
}

/// One subtask of a chain.
pub struct Task {
    subtask: SubtaskId,
    options: TaskOptions,
    clock: Clock,
    waker: Waker,
    mailbox: TaskHandle,
    meter: Meter,
    events: Vec<TaskEvent>,
    triggers: VecDeque<Barrier>,
    /// Checkpoints that were given up: their barriers are forwarded, but no state is frozen for them.
    aborted: VecDeque<CheckpointId>,
    /// When rows first lingered.
    lingers_since: Option<Timestamp>,
    phase: Phase,
}

impl Task {
    /// A task that begins with its first step. The waker is called from any thread when there is input, room or a
    /// command.
    #[must_use]
    pub fn new(description: TaskDescription, waker: Waker) -> Self {
        Self {
            subtask: description.subtask,
            options: description.options,
            clock: Clock::clone(&description.clock),
            mailbox: TaskHandle::new(Waker::clone(&waker)),
            waker,
            meter: Meter::new(
                description.inputs.iter().map(InputChannel::gauge).collect(),
                description.outputs.iter().flat_map(|edge| &edge.channels).map(OutputChannel::gauge).collect(),
            ),
            events: Vec::new(),
            triggers: VecDeque::new(),
            aborted: VecDeque::new(),
            lingers_since: None,
            phase: Phase::New(Box::new(description)),
        }
    }

    /// Which subtask it is.
    #[must_use]
    pub const fn subtask(&self) -> SubtaskId {
        self.subtask
    }

    /// Takes commands for it.
    #[must_use]
    pub fn handle(&self) -> TaskHandle {
        self.mailbox.clone()
    }

    /// Its counters.
    #[must_use]
    pub fn metrics(&self) -> Arc<TaskMetrics> {
        Arc::clone(&self.meter.metrics)
    }

    /// What it has to tell since the last call.
    pub fn take_events(&mut self) -> Vec<TaskEvent> {
        std::mem::take(&mut self.events)
    }

    /// Does the next piece of work.
    pub fn step(&mut self, now: Timestamp) -> Step {
        self.meter.pass(now);
        let step = self.try_step(now).unwrap_or_else(|error| {
            self.fail(error);
            Step::Ended
        });
        self.meter.now_doing(match step {
            Step::Worked => Activity::Busy,
            Step::Idle { .. } | Step::Ended => Activity::Idle,
            Step::Blocked { .. } => Activity::BackPressured,
        });
        step
    }

    /// Ends it with this failure, as when its code has panicked.
    pub fn fail(&mut self, error: TaskError) {
        self.phase = Phase::Ended;
        self.events.push(TaskEvent::Failed(error));
    }

    fn try_step(&mut self, now: Timestamp) -> Result<Step, TaskError> {
        self.take_commands();
        let mut running = match std::mem::replace(&mut self.phase, Phase::Ended) {
            Phase::Ended => return Ok(Step::Ended),
            Phase::New(description) => {
                self.phase = Phase::Running(Box::new(self.open(*description)?));
                self.events.push(TaskEvent::Running);
                return Ok(Step::Worked);
            }
            Phase::Running(running) => running,
        };
        let step = self.step_running(&mut running, now)?;
        self.phase = Phase::Running(running);
        Ok(step)
    }

    fn take_commands(&mut self) {
        while let Some(command) = self.mailbox.take() {
            match command {
                Command::Trigger(barrier) => self.triggers.push_back(barrier),
                Command::Completed { checkpoint, held } => {
                    self.aborted.retain(|aborted| *aborted > checkpoint);
                    if let Phase::Running(running) = &mut self.phase {
                        running.checkpoint_completed(checkpoint, held.as_deref());
                    }
                }
                Command::Aborted(checkpoint) => {
                    self.aborted.truncate(63);
                    self.aborted.push_front(checkpoint);
                    if let Phase::Running(running) = &mut self.phase {
                        running.checkpoint_aborted(checkpoint);
                    }
                }
                Command::Cancel => self.phase = Phase::Ended,
            }
        }
    }

    fn open(&mut self, description: TaskDescription) -> Result<Running, TaskError> {
        let TaskDescription { subtask, parallelism, max_parallelism, program, mut state, clock, job_clock, .. } =
            description;
        let context = |uid: &OperatorUid| OperatorContext {
            uid: uid.clone(),
            subtask: subtask.index,
            parallelism,
            key_groups: KeyGroupRange::of_subtask(subtask.index, parallelism, max_parallelism),
            max_parallelism,
            state_backend: description.state_backend.clone(),
        };
        let mut restore = |uid: &OperatorUid| match state.remove(uid) {
            Some(state) => RestoredState { restored: true, ..state },
            None => RestoredState::default(),
        };
        let mut chain = Chain::new(&program, description.outputs, max_parallelism)?;
        chain.set_waker(&self.waker);
        chain.open(&context, &mut restore, (&self.waker, (&clock, &job_clock), &description.identity))?;
        let mut pieces = VecDeque::new();
        let input = match program.source {
            Some((uid, factory)) => {
                let mut source = factory.create()?;
                let mut restored = restore(&uid);
                let known = take_restored(&mut restored);
                let strategy = factory.watermarks();
                let (waker, by_split, now) = (Waker::clone(&self.waker), strategy.is_some(), clock());
                source.open(SourceContext { operator: context(&uid), waker, clock, by_split }, restored)?;
                let watermarks = strategy.map(|strategy| SourceWatermarks::new(strategy, known)).transpose()?;
                let mut watermarks = watermarks.map(Box::new);
                if let Some(watermarks) = &mut watermarks {
                    description.alignment.into_iter().for_each(|member| watermarks.align(member));
                    pieces.extend(event_time::begin(source.as_mut(), watermarks, now));
                }
                Input::Source { uid, source, watermarks }
            }
            None => {
                let limit = description.options.in_flight_limit;
                let gate = InputGate::new(description.inputs, description.in_flight, limit);
                gate.set_waker(&self.waker);
                Input::Gate(Box::new(gate))
            }
        };
        chain.advance()?;
        let (waiting, open, held, stashed) = (None, None, None, None);
        Ok(Running { input, chain, waiting, open, held, finished: false, pieces, stashed, ending: false })
    }

    fn step_running(&mut self, running: &mut Running, now: Timestamp) -> Result<Step, TaskError> {
        if running.waiting.is_some() && !self.complete_waiting(running, now)? {
            running.pause();
            return Ok(Step::Blocked { until: None });
        }
        if self.take_barriers(running, now)? {
            return Ok(Step::Worked);
        }
        let due = self.send_lingering(running, now)?;
        let trigger = self.triggers.front().and_then(Barrier::overtakes_from);
        let until = due.into_iter().chain(running.wake_at()).chain(trigger).min();
        if running.waits_for_sink() || !running.chain.has_room()? {
            running.pause();
            return Ok(Step::Blocked { until });
        }
        if self.advance(running, now)? {
            return Ok(Step::Worked);
        }
        if !self.take_input(running, now)? {
            let due = self.lingers_since.map(|since| since.plus(self.options.buffer_timeout));
            let times = due.into_iter().chain(running.wake_at()).chain(running.time_wakes_at(now));
            return Ok(Step::Idle { until: times.min() });
        }
        Ok(Step::Worked)
    }

    /// Sends rows that have lingered long enough; returns when the next are due.
    fn send_lingering(&mut self, running: &mut Running, now: Timestamp) -> Result<Option<Timestamp>, TaskError> {
        let Some(since) = self.lingers_since else { return Ok(None) };
        let due = since.plus(self.options.buffer_timeout);
        if now < due {
            return Ok(Some(due));
        }
        running.chain.flush_where_room()?;
        self.lingers_since = if running.chain.lingers() { Some(now) } else { None };
        Ok(self.lingers_since.map(|since| since.plus(self.options.buffer_timeout)))
    }

    /// Processes one piece of input; says whether there was one.
    fn take_input(&mut self, running: &mut Running, now: Timestamp) -> Result<bool, TaskError> {
        if let Input::Source { source, .. } = &running.input {
            self.meter.ask_lag(source.as_ref(), now);
        }
        if let Some(told) = self.waits_for_group(running, now)? {
            return Ok(told);
        }
        match &mut running.input {
            Input::Source { .. } if running.finished || running.held.is_some() => {
                running.pause();
                return Ok(false);
            }
            Input::Source { source, .. } => match source.poll(self.options.batch_rows)? {
                SourcePoll::Batch(batch) => {
                    self.meter.read(&batch);
                    self.meter.passed_over(source.malformed_records());
                    running.take_polled(Some(batch), now)?;
                }
                SourcePoll::Pending => {
                    self.meter.passed_over(source.malformed_records());
                    running.take_polled(None, now)?;
                    return Ok(!running.pieces.is_empty());
                }
                SourcePoll::Finished => self.end(running, now)?,
            },
            Input::Gate(gate) => match gate.poll(now) {
                None => return Ok(false),
                Some(GateEvent::Batch { input, batch }) => {
                    self.meter.read(&batch);
                    running.chain.process(input, batch)?;
                }
                Some(event) => self.take_event(running, event, now)?,
            },
        }
        self.note_written(running, now);
        Ok(true)
    }
}

impl Running {
    fn checkpoint_completed(&mut self, checkpoint: CheckpointId, held: Option<&[CheckpointId]>) {
        if let Input::Source { source, .. } = &mut self.input {
            source.checkpoint_completed(checkpoint);
        }
        self.chain.checkpoint_completed(checkpoint, held);
    }
}
