//! How the memory of a process is divided: the limit, what each thing that holds rows may take of it, and what is left to
//! keyed state.
//!
//! Buffers come first, because they are bounded in any case: those of connectors, the queues between tasks, what is
//! being uploaded. State gets half of the rest: pieces that are written while a snapshot reads them exist twice.
//! Pure, but for [`MemoryLimit::find`]. Callers rely on: what is handed out is never more than the limit.

mod cgroup;

use sluice_engine::channel::DEFAULT_WINDOW;
use sluice_engine::task::IN_FLIGHT_LIMIT;
use sluice_protocol::failure::{Failure, Fault};
use std::fmt;
use std::path::Path;

const MIB: u64 = 1 << 20;

/// What a process takes before any row: code, threads, connections, what the allocator keeps.
const BASE: u64 = 48 * MIB;

/// A subtask that stores its state holds about three files of state at once, of at most 32 MiB each.
pub(crate) const WRITER: u64 = 96 * MIB;

/// The smallest window of a channel.
const LEAST_WINDOW: u64 = 32 << 10;

/// With less left to keyed state a job is not begun.
const LEAST_STATE: u64 = 8 * MIB;

/// No process has more memory.
const MOST_MIB: u64 = 1 << 24;

/// How much memory the process may use, and who says so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryLimit {
    bytes: u64,
    origin: Origin,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Origin {
    Given,
    Cgroup,
    Machine,
}

impl MemoryLimit {
    /// What was given, else the limit of the process's cgroup, else the machine's memory.
    #[must_use]
    pub fn find(given: Option<u64>) -> Self {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let of_cgroup = || cgroup::limit(Path::new("/sys/fs/cgroup"), &read("/proc/self/cgroup"));
        let kilobytes = read("/proc/meminfo").split_whitespace().nth(1).and_then(|number| number.parse::<u64>().ok());
        let machine = kilobytes.map_or(u64::MAX, |kilobytes| kilobytes << 10);
        match (given, of_cgroup()) {
            (Some(bytes), _) => Self { bytes, origin: Origin::Given },
            // Version 1 says "no limit" by a number beyond any memory.
            (None, Some(bytes)) if bytes < machine => Self { bytes, origin: Origin::Cgroup },
            _ => Self { bytes: machine, origin: Origin::Machine },
        }
    }

    /// The bytes.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        self.bytes
    }
}

impl fmt::Display for MemoryLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let origin = match self.origin {
            Origin::Given => "--memory",
            Origin::Cgroup => "the limit of the cgroup",
            Origin::Machine => "the machine's",
        };
        write!(f, "{} MiB ({origin})", self.bytes / MIB)
    }
}

/// What the tasks of a deployment hold apart from state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Demand {
    /// Tasks.
    pub(crate) tasks: u64,
    /// Channels that end or begin here.
    pub(crate) channels: u64,
    /// Bytes that sources and sinks buffer at most.
    pub(crate) connectors: u64,
    /// Tasks with input, which an unaligned checkpoint may record.
    pub(crate) recorders: u64,
    /// Whether checkpoints are unaligned; a running job may be told to take such ones later.
    pub(crate) is_unaligned: bool,
}

/// Who gets what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MemorySplit {
    limit: MemoryLimit,
    connectors: u64,
    queues: u64,
    uploads: u64,
    recorded: u64,
    /// Bytes of keyed state in memory.
    pub(crate) state: u64,
    /// Bytes of one channel.
    pub(crate) window: usize,
    /// Subtasks that store their state at once.
    pub(crate) writers: usize,
    /// Bytes of input that a task may record for an unaligned checkpoint.
    pub(crate) in_flight: usize,
}

impl MemorySplit {
    /// Divides the limit.
    ///
    /// # Errors
    /// When nothing worth a start is left to keyed state.
    pub(crate) fn new(limit: MemoryLimit, demand: Demand) -> Result<Self, Failure> {
        let split = Self::divided(limit, demand);
        if split.state >= LEAST_STATE {
            return Ok(split);
        }
        let message = format!(
            "{split}; keyed state needs at least {} MiB, so this process needs {} MiB for its {} tasks: raise \
             resources.limits.memory of its pods (spec.taskManager.resources) or --memory; or run fewer tasks in it \
             (spec.taskManager.slots, spec.parallelism); or lower 'properties.buffer.memory' and \
             'properties.queued.max.messages.kbytes' of its Kafka tables",
            LEAST_STATE / MIB,
            Self::least(demand),
            demand.tasks
        );
        Err(Failure::restart("MemoryTooSmall", Fault::User, message))
    }

    fn divided(limit: MemoryLimit, demand: Demand) -> Self {
        let rest = limit.bytes.saturating_sub(BASE + limit.bytes / 16);
        let channels = demand.channels.max(1);
        let window = (rest / 8 / channels).clamp(LEAST_WINDOW, DEFAULT_WINDOW as u64);
        let queues = window * demand.channels;
        let uploads = (demand.tasks * WRITER).min(rest / 8);
        let writers = usize::try_from(uploads / WRITER).unwrap_or(usize::MAX).max(1);
        let in_flight = (rest / 8 / demand.recorders.max(1)).min(IN_FLIGHT_LIMIT as u64);
        let recorded = if demand.is_unaligned { in_flight * demand.recorders } else { 0 };
        let left = rest.saturating_sub(demand.connectors + queues + uploads + recorded);
        let window = usize::try_from(window).unwrap_or(DEFAULT_WINDOW);
        let in_flight = usize::try_from(in_flight).unwrap_or(IN_FLIGHT_LIMIT);
        let (connectors, state) = (demand.connectors, left / 2);
        Self { limit, connectors, queues, uploads, recorded, state, window, writers, in_flight }
    }

    /// The smallest limit that is enough, in MiB.
    fn least(demand: Demand) -> u64 {
        let is_enough = |mib: &u64| {
            let limit = MemoryLimit { bytes: mib * MIB, origin: Origin::Given };
            Self::divided(limit, demand).state >= LEAST_STATE
        };
        (1..MOST_MIB).find(is_enough).unwrap_or(MOST_MIB)
    }
}

impl fmt::Display for MemorySplit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { limit, connectors, queues, uploads, recorded, state, .. } = self;
        let mib = |bytes: &u64| bytes / MIB;
        write!(
            f,
            "memory {limit}: keyed state {} MiB, queues {}, sources and sinks {}, uploads {}, input in unaligned \
             checkpoints {}, the rest for the process itself and for pieces of state that a running checkpoint holds",
            mib(state),
            mib(queues),
            mib(connectors),
            mib(uploads),
            mib(recorded)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(mib: u64) -> MemoryLimit {
        MemoryLimit { bytes: mib * MIB, origin: Origin::Given }
    }

    #[test]
    fn what_is_handed_out_is_never_more_than_the_limit() {
        for mib in [80, 128, 256, 512, 1024, 4096, 65_536] {
            for (tasks, channels, connectors) in [(1, 0, 0), (4, 16, 64 * MIB), (40, 1600, 640 * MIB)] {
                let demand = Demand { tasks, channels, connectors, recorders: tasks, is_unaligned: true };
                let Ok(split) = MemorySplit::new(limit(mib), demand) else { continue };
                let total = split.state + split.queues + split.connectors + split.uploads + split.recorded;
                assert!(total + BASE <= mib * MIB, "{split}");
                assert!(split.in_flight as u64 * tasks <= split.recorded, "{split}");
                assert!(split.window as u64 * channels <= split.queues, "{split}");
                assert!(split.state >= LEAST_STATE && split.writers >= 1);
            }
        }
    }

    #[test]
    fn a_large_process_has_windows_of_full_size_and_most_of_it_for_state() {
        let demand = Demand { tasks: 8, channels: 16, recorders: 8, ..Demand::default() };
        let split = MemorySplit::new(limit(8192), demand).unwrap();
        assert_eq!(split.recorded, 0, "where no checkpoint is unaligned state has all of it");
        assert_eq!((split.window, split.writers), (DEFAULT_WINDOW, 8));
        assert!(split.state > 2048 * MIB, "{split}");
    }

    #[test]
    fn what_an_unaligned_checkpoint_may_record_is_a_share_of_the_memory() {
        let of = |mib, recorders| {
            let demand = Demand { tasks: 8, channels: 16, recorders, is_unaligned: true, ..Demand::default() };
            MemorySplit::new(limit(mib), demand).unwrap().in_flight
        };
        assert!(of(1024, 4) < 30 << 20 && of(1024, 4) > 25 << 20, "{}", of(1024, 4));
        assert_eq!(of(1024, 4) / 2, of(1024, 8));
        assert_eq!(of(1 << 20, 4), IN_FLIGHT_LIMIT, "never more than is worth it");
    }

    #[test]
    fn a_small_one_has_smaller_windows_and_one_writer() {
        let demand = Demand { tasks: 4, channels: 100, ..Demand::default() };
        let split = MemorySplit::new(limit(160), demand).unwrap();
        assert!(split.window < DEFAULT_WINDOW && split.writers == 1, "{split:?}");
    }

    #[test]
    fn buffers_that_leave_nothing_are_refused_by_name() {
        let failure =
            MemorySplit::new(limit(128), Demand { tasks: 2, connectors: 128 * MIB, ..Demand::default() }).unwrap_err();
        assert_eq!(failure.reason, "MemoryTooSmall");
        assert!(failure.message.contains("sources and sinks 128"), "{}", failure.message);
    }

    #[test]
    fn what_is_said_to_be_needed_is_enough_and_no_less_is() {
        for (tasks, channels, connectors) in [(1, 0, 0), (2, 4, 128 * MIB), (40, 1600, 640 * MIB)] {
            let demand = Demand { tasks, channels, connectors, ..Demand::default() };
            let failure = MemorySplit::new(limit(60), demand).unwrap_err();
            let (_, rest) = failure.message.split_once("so this process needs ").unwrap();
            let needed: u64 = rest.split(' ').next().unwrap().parse().unwrap();
            assert!(MemorySplit::new(limit(needed), demand).is_ok(), "{needed} MiB");
            assert!(MemorySplit::new(limit(needed - 1), demand).is_err(), "{needed} MiB");
        }
    }
}
