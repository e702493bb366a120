//! One subtask's reader: a thread finds files, takes the splits that this subtask owns, and reads ahead by some batches.
//!
//! A split's position moves when a batch is handed out, not when it is read, so a snapshot never names rows that were not
//! handed out.

use super::options::FileOptions;
use super::patience::patiently_read;
use super::rows::{Files, Piece};
use super::splits::{self, Progress, Split};
use super::{owner, runtime, store_error};
use sluice_engine::error::TaskError;
use sluice_engine::operator::{RestoredState, Waker};
use sluice_engine::source::{Source, SourceContext, SourcePoll, SplitChange};
use sluice_protocol::SubtaskIndex;
use sluice_protocol::state::SplitState;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, TryRecvError, channel, sync_channel};

/// Batches that are read ahead.
const AHEAD: usize = 8;

/// A split that says that the directory was listed, also where nothing was found: the first subtask stores it.
const LISTED: &str = "listed";

enum Said {
    /// Splits that were found.
    Found(Vec<Split>),
    Rows {
        split: String,
        piece: Piece,
        progress: Progress,
    },
    /// All that was found is read, and nothing more is looked for.
    Finished,
    Failed(TaskError),
}

/// The reader.
pub(super) struct FileReader {
    options: Arc<FileOptions>,
    splits: BTreeMap<String, Split>,
    said: Option<Receiver<Said>>,
    /// Dropped with the reader, which ends a thread that waits for new files.
    _alive: Option<Sender<()>>,
    finished: bool,
    /// Lines that were passed over.
    malformed: u64,
    /// The split of the last poll.
    polled: String,
    /// News of splits that were not told yet.
    changes: Vec<SplitChange>,
    /// Whether this subtask stores [`LISTED`].
    is_first: bool,
}

impl FileReader {
    pub(super) const fn new(options: Arc<FileOptions>) -> Self {
        Self {
            options,
            splits: BTreeMap::new(),
            said: None,
            _alive: None,
            finished: false,
            malformed: 0,
            polled: String::new(),
            changes: Vec::new(),
            is_first: false,
        }
    }

    /// A file that waits for its turn has nothing for a while, and yet others have to wait for it.
    fn add(&mut self, split: Split) {
        let name = split.name();
        self.changes.push(SplitChange::Added { split: name.clone(), may_idle: false });
        if split.progress.finished {
            self.changes.push(SplitChange::Finished { split: name.clone() });
        }
        self.splits.insert(name, split);
    }
}

impl Source for FileReader {
    fn open(&mut self, context: SourceContext, state: RestoredState) -> Result<(), TaskError> {
        self.is_first = context.operator.subtask == SubtaskIndex(0);
        for state in state.splits.iter().filter(|state| state.split != LISTED) {
            let split = Split::restored(state).ok_or_else(|| {
                let text = format!("split '{}' of table '{}' is no split of files", state.split, self.options.table);
                TaskError::IncompatibleState(text)
            })?;
            self.add(split);
        }
        let (sender, said) = sync_channel(AHEAD);
        let (alive, ended) = channel();
        let store = sluice_storage::open_store(&self.options.uri, self.options.storage.as_ref());
        let store = store.map_err(|failure| store_error(&failure))?;
        let runtime = Arc::new(runtime()?);
        let mut thread = Thread {
            files: Files { store, runtime, options: Arc::clone(&self.options) },
            subtask: (context.operator.subtask, context.operator.parallelism),
            known: self.splits.clone(),
            // A bounded table is what its directory held when the source first started.
            looks: self.options.monitor.is_some() || !state.restored,
            sender,
            waker: context.waker,
        };
        if !state.restored {
            thread.check_there()?;
        }
        if thread.looks {
            thread.find()?.into_iter().for_each(|split| self.add(split));
        }
        let started = std::thread::Builder::new().name("file-source".to_owned()).spawn(move || thread.run(&ended));
        started.map_err(|error| TaskError::External(format!("no thread for a file source: {error}")))?;
        (self.said, self._alive) = (Some(said), Some(alive));
        Ok(())
    }

    fn poll(&mut self, max_rows: usize) -> Result<SourcePoll, TaskError> {
        let _ = max_rows;
        while !self.finished {
            let Some(said) = &self.said else { return Ok(SourcePoll::Pending) };
            match said.try_recv() {
                Err(TryRecvError::Empty) => return Ok(SourcePoll::Pending),
                Err(TryRecvError::Disconnected) => {
                    return Err(TaskError::External("the thread of a file source has ended".to_owned()));
                }
                Ok(Said::Failed(error)) => return Err(error),
                Ok(Said::Finished) => self.finished = true,
                Ok(Said::Found(found)) => {
                    found.into_iter().for_each(|split| self.add(split));
                }
                Ok(Said::Rows { split, piece, progress }) => {
                    if let Some(split) = self.splits.get_mut(&split) {
                        split.progress = progress;
                    }
                    if progress.finished {
                        self.changes.push(SplitChange::Finished { split: split.clone() });
                    }
                    self.polled = split;
                    self.malformed += piece.malformed;
                    if let Some(batch) = piece.batch.filter(|batch| !batch.is_empty()) {
                        return Ok(SourcePoll::Batch(batch));
                    }
                }
            }
        }
        Ok(SourcePoll::Finished)
    }

    fn take_split_changes(&mut self) -> Option<Vec<SplitChange>> {
        Some(std::mem::take(&mut self.changes))
    }

    fn polled_split(&self) -> Option<&str> {
        Some(&self.polled)
    }

    fn snapshot(&mut self) -> Result<Vec<SplitState>, TaskError> {
        let listed = || SplitState { split: LISTED.to_owned(), state: serde_json::Value::Null };
        Ok(self.splits.values().map(Split::state).chain(self.is_first.then(listed)).collect())
    }

    fn malformed_records(&self) -> u64 {
        self.malformed
    }
}

struct Thread {
    files: Files,
    subtask: (SubtaskIndex, u32),
    known: BTreeMap<String, Split>,
    looks: bool,
    sender: SyncSender<Said>,
    waker: Waker,
}

impl Thread {
    fn run(mut self, ended: &Receiver<()>) {
        if let Err(error) = self.work(ended) {
            self.say(Said::Failed(error));
        }
    }

    /// Says it; whether anybody listens.
    fn say(&self, what: Said) -> bool {
        let is_heard = self.sender.send(what).is_ok();
        (self.waker)();
        is_heard
    }

    fn work(&mut self, ended: &Receiver<()>) -> Result<(), TaskError> {
        let mut queue: VecDeque<Split> =
            self.known.values().filter(|split| !split.progress.finished).cloned().collect();
        loop {
            while let Some(split) = queue.pop_front() {
                if !self.read(&split)? {
                    return Ok(());
                }
            }
            let Some(interval) = self.files.options.monitor else {
                self.say(Said::Finished);
                return Ok(());
            };
            // The reader holds the other end: nothing ever comes, until it is gone.
            if ended.recv_timeout(interval) != Err(RecvTimeoutError::Timeout) {
                return Ok(());
            }
            let found = self.find()?;
            queue.extend(found.iter().cloned());
            if !found.is_empty() && !self.say(Said::Found(found)) {
                return Ok(());
            }
        }
    }

    /// A directory that is not there reads like an empty one; where nothing else is looked for, it is a mistake.
    fn check_there(&self) -> Result<(), TaskError> {
        let options = &self.files.options;
        let path = options.uri.strip_prefix("file://").filter(|_| options.monitor.is_none());
        match path.filter(|path| !std::path::Path::new(path).is_dir()) {
            None => Ok(()),
            Some(path) => Err(TaskError::Unavailable(format!(
                "table '{}': {path} is no directory; make it, or mount its volume, or give 'source.monitor-interval' to wait \
                 for files",
                options.table
            ))),
        }
    }

    /// New splits of this subtask. Where new files are looked for, one that is known has no new splits: it has grown, and
    /// bytes before them were not read.
    fn find(&mut self) -> Result<Vec<Split>, TaskError> {
        let Files { store, runtime, options } = &self.files;
        let found = runtime.block_on(patiently_read(async || splits::find(store.as_ref(), options).await));
        let found = found.map_err(|failure| store_error(&failure))?;
        let had: BTreeSet<&str> = self.known.values().map(|split| split.file.as_str()).collect();
        let (subtask, parallelism) = self.subtask;
        let is_new =
            |split: &Split| !had.contains(split.file.as_str()) && owner(options, &split.name(), parallelism) == subtask;
        let new: Vec<Split> = found.into_iter().filter(is_new).collect();
        self.known.extend(new.iter().map(|split| (split.name(), split.clone())));
        Ok(new)
    }

    fn read(&self, split: &Split) -> Result<bool, TaskError> {
        let name = split.name();
        let mut is_heard = true;
        self.files.read(split, &mut |piece, progress| {
            is_heard = self.say(Said::Rows { split: name.clone(), piece, progress });
            is_heard
        })?;
        Ok(is_heard)
    }
}
