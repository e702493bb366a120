//! The working directory of the `Disk` backend: one LSM for all tables of a process.
//!
//! Each process has a directory of its own, named `sluice-state-…` and locked while the process lives. It is removed at
//! the end; what a killed process left is removed by the next one that starts beside it, since its lock is free then.

#[cfg(test)]
mod tests;

use super::PERIOD_BYTES;
use crate::error::TaskError;
use fjall::config::{BloomConstructionPolicy, FilterPolicy, FilterPolicyEntry};
use fjall::{Database, Keyspace, KeyspaceCreateOptions, OwnedWriteBatch, PersistMode, Snapshot};
use std::fmt::{self, Display};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// What the directories of all processes begin with.
const PREFIX: &str = "sluice-state-";

/// The locked file in each.
const LOCK: &str = "lock";

/// Writes to a table that are kept in memory before they go to disk: few large files are merged less often than many
/// small ones.
const ROWS_BUFFER: u64 = 64 << 20;

/// The same where a process has many tables.
const LEAST_ROWS_BUFFER: u64 = 16 << 20;

/// What the first tables of a process share; many take [`LEAST_ROWS_BUFFER`] each.
const SHARED_BUFFER: u64 = 256 << 20;

/// As above, of its changes.
const CHANGES_BUFFER: u64 = 4 << 20;

/// Buffers of a table that wait to be written to disk, beside the one that is filled. The LSM itself takes four, and one
/// that grows without bounds while its threads are busy.
const MOST_SEALED: usize = 1;

/// What an entry of a buffer takes beside its key and value; the LSM counts the same.
const ENTRY_BYTES: usize = 64;

/// A buffer that is not on disk by then never will be.
const FLUSH_DEADLINE: Duration = Duration::from_secs(60);

/// How often it is looked whether a buffer is on disk.
const FLUSH_POLL: Duration = Duration::from_millis(5);

/// Of the filters that tell which files do not have a row.
const BITS_PER_KEY: f32 = 10.0;

/// Files of the journal are removed above this size: it is never read.
const JOURNAL_BYTES: u64 = 64 << 20;

/// Threads that flush and compact.
const WORKERS: usize = 2;

/// Changes that are removed at once.
const DISCARD_ROWS: usize = 4096;

/// The working directory of a process, with its LSM. Cheap to share.
pub struct DiskSpace {
    /// `None` only while it is being dropped.
    database: Option<Database>,
    directory: PathBuf,
    next: AtomicU64,
    /// Tables that are open.
    tables: AtomicU64,
    /// Held until the directory is removed.
    _lock: File,
}

impl fmt::Debug for DiskSpace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DiskSpace").field("directory", &self.directory).finish_non_exhaustive()
    }
}

impl DiskSpace {
    /// A new one below `parent`, named uniquely; removes what processes that have died left there. Up to `cache_bytes`
    /// of what is read stays in memory.
    ///
    /// # Errors
    /// When the directory cannot be made or written.
    pub fn create(parent: &Path, name: &str, cache_bytes: u64) -> Result<Arc<Self>, TaskError> {
        let unusable = |error: &dyn Display| {
            let place = parent.display();
            TaskError::Unavailable(format!(
                "stateBackend Disk cannot use the working directory {place}: {error}; give the process a writable directory \
                 there (TMPDIR names another)"
            ))
        };
        fs::create_dir_all(parent).map_err(|error| unusable(&error))?;
        remove_leftovers(parent);
        let directory = parent.join(format!("{PREFIX}{name}"));
        fs::create_dir(&directory).map_err(|error| unusable(&error))?;
        let lock = File::create(directory.join(LOCK)).map_err(|error| unusable(&error))?;
        lock.try_lock().map_err(|error| unusable(&error))?;
        let database = Database::builder(directory.join("lsm"))
            .cache_size(cache_bytes)
            .manual_journal_persist(true)
            .max_journaling_size(JOURNAL_BYTES)
            .worker_threads(WORKERS)
            .open()
            .map_err(|error| unusable(&error))?;
        Ok(Arc::new(Self {
            database: Some(database),
            directory,
            next: AtomicU64::new(0),
            tables: AtomicU64::new(0),
            _lock: lock,
        }))
    }

    /// Where it is.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    fn database(&self) -> Result<&Database, TaskError> {
        self.database.as_ref().ok_or_else(|| TaskError::Internal("the LSM of keyed state is closed".to_owned()))
    }
}

impl Drop for DiskSpace {
    fn drop(&mut self) {
        // It closes its files first.
        self.database = None;
        // What remains is removed by the next process.
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// Removes the directories of processes that are gone.
fn remove_leftovers(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        if !entry.file_name().to_string_lossy().starts_with(PREFIX) {
            continue;
        }
        // One without a lock file is just being made, or being removed.
        let is_abandoned = File::open(entry.path().join(LOCK)).is_ok_and(|lock| lock.try_lock().is_ok());
        if is_abandoned {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// The keyspaces of one table; they go with the last one who uses them.
pub(super) struct Keyspaces {
    pub(super) rows: Keyspace,
    pub(super) changes: Keyspace,
    rows_buffer: Buffer,
    changes_buffer: Buffer,
    database: Database,
    /// Periods whose changes nobody needs.
    garbage: Mutex<Vec<u64>>,
    /// Dropped last.
    space: Arc<DiskSpace>,
}

impl fmt::Debug for Keyspaces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keyspaces").finish_non_exhaustive()
    }
}

impl Keyspaces {
    pub(super) fn create(space: &Arc<DiskSpace>) -> Result<Self, TaskError> {
        let tables = space.tables.load(Ordering::Relaxed) + 1;
        let rows = (SHARED_BUFFER / tables).clamp(LEAST_ROWS_BUFFER, ROWS_BUFFER);
        Self::with_buffers(space, rows, CHANGES_BUFFER)
    }

    /// With buffers of so many bytes.
    fn with_buffers(space: &Arc<DiskSpace>, rows: u64, changes: u64) -> Result<Self, TaskError> {
        let database = space.database()?.clone();
        let number = space.next.fetch_add(1, Ordering::Relaxed);
        // It gives no buffer to the disk by itself: `Buffer` does, before the LSM would.
        let make = |kind: &str, buffer: u64, filter: FilterPolicy| {
            let options = || {
                let options = KeyspaceCreateOptions::default().filter_policy(filter.clone());
                options.max_memtable_size(2 * buffer).manual_journal_persist(true)
            };
            database.keyspace(&format!("{kind}-{number}"), options).map_err(failed)
        };
        let (rows_buffer, changes_buffer) = (Buffer::new(rows), Buffer::new(changes));
        let bloom = FilterPolicy::all(FilterPolicyEntry::Bloom(BloomConstructionPolicy::BitsPerKey(BITS_PER_KEY)));
        let rows = make("rows", rows, bloom)?;
        // Changes are only ever listed.
        let changes = make("changes", changes, FilterPolicy::disabled())?;
        space.tables.fetch_add(1, Ordering::Relaxed);
        let (garbage, space) = (Mutex::default(), Arc::clone(space));
        Ok(Self { rows, changes, rows_buffer, changes_buffer, database, garbage, space })
    }

    pub(super) fn writes(&self) -> Writes<'_> {
        Writes { keyspaces: self, batch: self.database.batch(), rows: 0, changes: 0 }
    }

    pub(super) fn snapshot(&self) -> Snapshot {
        self.database.snapshot()
    }

    /// Changes of these periods will not be asked for any more.
    pub(super) fn discard(&self, periods: &[u64]) {
        self.garbage.lock().unwrap_or_else(PoisonError::into_inner).extend(periods);
    }

    /// Removes what was discarded. Slow: not for the task's thread.
    pub(super) fn collect_garbage(&self) -> Result<(), TaskError> {
        let garbage = std::mem::take(&mut *self.garbage.lock().unwrap_or_else(PoisonError::into_inner));
        for period in garbage {
            let mut writes = self.writes();
            for change in self.changes.prefix(period.to_be_bytes()) {
                let key = change.key().map_err(failed)?;
                debug_assert!(key.len() >= PERIOD_BYTES);
                writes.remove_change(&key);
                if writes.batch.len() >= DISCARD_ROWS {
                    std::mem::replace(&mut writes, self.writes()).commit()?;
                }
            }
            writes.commit()?;
        }
        Ok(())
    }
}

impl Drop for Keyspaces {
    fn drop(&mut self) {
        self.space.tables.fetch_sub(1, Ordering::Relaxed);
        // A keyspace that cannot be removed goes with the directory.
        let _ = self.database.delete_keyspace(self.rows.clone());
        let _ = self.database.delete_keyspace(self.changes.clone());
    }
}

/// Writes that become visible together.
pub(super) struct Writes<'a> {
    keyspaces: &'a Keyspaces,
    batch: OwnedWriteBatch,
    /// Bytes for each buffer.
    rows: u64,
    changes: u64,
}

impl Writes<'_> {
    pub(super) fn insert_row(&mut self, key: &[u8], value: Vec<u8>) {
        self.rows += (ENTRY_BYTES + key.len() + value.len()) as u64;
        self.batch.insert(&self.keyspaces.rows, key, value);
    }

    pub(super) fn remove_row(&mut self, key: &[u8]) {
        self.rows += (ENTRY_BYTES + key.len()) as u64;
        self.batch.remove(&self.keyspaces.rows, key);
    }

    pub(super) fn insert_change(&mut self, key: Vec<u8>) {
        self.changes += (ENTRY_BYTES + key.len()) as u64;
        self.batch.insert(&self.keyspaces.changes, key, []);
    }

    fn remove_change(&mut self, key: &[u8]) {
        self.changes += (ENTRY_BYTES + key.len()) as u64;
        self.batch.remove(&self.keyspaces.changes, key);
    }

    /// Waits for the disk where it is behind.
    pub(super) fn commit(self) -> Result<(), TaskError> {
        self.batch.commit().map_err(failed)?;
        let Keyspaces { rows, changes, rows_buffer, changes_buffer, database, .. } = self.keyspaces;
        rows_buffer.grown(database, rows, self.rows)?;
        changes_buffer.grown(database, changes, self.changes)
    }
}

/// What is written to a keyspace and is not on its way to the disk.
struct Buffer {
    bytes: AtomicU64,
    most: u64,
}

impl Buffer {
    fn new(most: u64) -> Self {
        Self { bytes: AtomicU64::new(0), most }
    }

    /// Gives a full buffer to the disk, and waits until not too many are on their way.
    fn grown(&self, database: &Database, keyspace: &Keyspace, bytes: u64) -> Result<(), TaskError> {
        if self.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes < self.most {
            return Ok(());
        }
        self.bytes.store(0, Ordering::Relaxed);
        keyspace.rotate_memtable().map_err(failed)?;
        let deadline = Instant::now() + FLUSH_DEADLINE;
        while keyspace.sealed_memtable_count() > MOST_SEALED {
            // It tells at once when a thread that flushes has failed.
            database.persist(PersistMode::Buffer).map_err(failed)?;
            if Instant::now() > deadline {
                let waited = FLUSH_DEADLINE.as_secs();
                return Err(failed(format_args!("{} MB were not written within {waited} s", self.most >> 20)));
            }
            std::thread::sleep(FLUSH_POLL);
        }
        Ok(())
    }
}

pub(super) fn failed(error: impl Display) -> TaskError {
    TaskError::External(format!(
        "keyed state on the local disk (stateBackend Disk) cannot be read or written: {error}; is the disk full?"
    ))
}
