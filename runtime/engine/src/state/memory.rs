//! How much memory the keyed state of a process may take: all tables of backend `Hash` together.
//!
//! Each table says after a batch how large it has become. Above the limit the batch fails by name, before the kernel kills
//! the process without a word. The sizes are those of what is allocated for rows, keys and the index; pieces that a running
//! snapshot shares and that were copied since are not in them, which is why a budget leaves room beside the state.

use crate::error::TaskError;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The part of a process's memory that is its keyed state's.
#[derive(Debug)]
pub struct StateMemory {
    limit: AtomicU64,
    used: AtomicU64,
}

impl StateMemory {
    /// A part of so many bytes.
    #[must_use]
    pub const fn new(limit: u64) -> Self {
        Self { limit: AtomicU64::new(limit), used: AtomicU64::new(0) }
    }

    /// Other tasks leave another part to their state.
    pub fn set_limit(&self, bytes: u64) {
        self.limit.store(bytes, Ordering::Relaxed);
    }

    /// Its size in bytes.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    /// Bytes that the tables take.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }
}

/// What one table takes of it; given back when the table goes.
#[derive(Debug)]
pub(crate) struct Share {
    memory: Arc<StateMemory>,
    bytes: u64,
}

impl Share {
    pub(crate) const fn new(memory: Arc<StateMemory>) -> Self {
        Self { memory, bytes: 0 }
    }

    /// The table takes so many bytes now.
    pub(crate) fn settle(&mut self, bytes: u64, state: &str) -> Result<(), TaskError> {
        let grows = bytes > self.bytes;
        let used = if grows {
            let more = bytes - self.bytes;
            self.memory.used.fetch_add(more, Ordering::Relaxed) + more
        } else {
            let less = self.bytes - bytes;
            self.memory.used.fetch_sub(less, Ordering::Relaxed) - less
        };
        self.bytes = bytes;
        let limit = self.memory.limit();
        if !grows || used <= limit {
            return Ok(());
        }
        Err(TaskError::MemoryExceeded(format!(
            "the keyed state of this process takes {} MiB, of which state '{state}' has {} MiB, but its part of the memory \
             is {} MiB: give TaskManagers more memory or the job more of them, use stateBackend: Disk, or let state \
             expire (table.exec.state.ttl)",
            used >> 20,
            bytes >> 20,
            limit >> 20
        )))
    }

    /// Whether less than a quarter of the memory is left.
    pub(crate) fn is_short(&self) -> bool {
        let limit = self.memory.limit();
        self.memory.used() > limit - limit / 4
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.memory.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
