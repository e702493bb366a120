//! What the processes of a job log, changed while they run: the JobManager is told, changes its own and tells its
//! TaskManagers, also those that register later. Nothing is recorded: a new JobManager logs as it is started.

use std::fmt;
use std::sync::Arc;
use tokio::sync::watch;

type Set = dyn Fn(&str) -> Result<(), String> + Send + Sync;

/// Changes what this process logs.
#[derive(Clone, Default)]
pub struct LogSwitch(Option<Arc<Set>>);

impl fmt::Debug for LogSwitch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LogSwitch").field(&self.0.is_some()).finish()
    }
}

impl LogSwitch {
    /// A switch that calls this with a filter as in `RUST_LOG`.
    #[must_use]
    pub fn new(set: impl Fn(&str) -> Result<(), String> + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(set)))
    }

    /// Logs what the filter lets through from now on.
    ///
    /// # Errors
    /// When it is no filter, or this process's log cannot be changed.
    pub fn set(&self, filter: &str) -> Result<(), String> {
        match &self.0 {
            Some(set) => set(filter),
            None => Err("what this process logs cannot be changed".to_owned()),
        }
    }
}

/// The JobManager's: its own switch, and what it has to tell its TaskManagers.
#[derive(Debug, Clone)]
pub(crate) struct LogFilters {
    own: LogSwitch,
    told: watch::Sender<Option<String>>,
}

impl LogFilters {
    pub(crate) fn new(own: LogSwitch) -> Self {
        Self { own, told: watch::Sender::new(None) }
    }

    /// Logs what the filter lets through from now on, here and in all TaskManagers.
    pub(crate) fn set(&self, filter: &str) -> Result<(), String> {
        self.own.set(filter)?;
        self.told.send_replace(Some(filter.to_owned()));
        Ok(())
    }

    /// What a TaskManager is to log, now and whenever that changes.
    pub(crate) fn watch(&self) -> watch::Receiver<Option<String>> {
        self.told.subscribe()
    }
}
