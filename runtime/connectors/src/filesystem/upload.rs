//! A writer's thread: takes the bytes of files, each known by a number, and stages them, so that the task never waits.

use super::patience::patiently;
use super::{runtime, store_error};
use bytes::Bytes;
use sluice_engine::error::TaskError;
use sluice_engine::operator::Waker;
use sluice_storage::StoreFailure;
use sluice_storage::staging::{StagedFile, Staging, StagingFile};
use std::collections::{BTreeMap, VecDeque};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::Notify;

/// With more bytes than this on their way a writer takes no rows.
pub(super) const HIGH_WATER: usize = 32 << 20;

/// When the writer has gone, the request under way has this long; a task that is cancelled must end within a minute.
const GRACE: Duration = Duration::from_millis(if cfg!(test) { 500 } else { 10_000 });

enum Order {
    Begin(u32, String),
    Bytes(u32, Bytes),
    Stage(u32),
}

#[derive(Default)]
struct Shared {
    queued: usize,
    /// Files that are not staged yet.
    open: usize,
    staged: VecDeque<StagedFile>,
    failure: Option<TaskError>,
    /// The writer is gone: what is queued is of no use.
    stopped: bool,
}

/// The writer's side.
pub(super) struct Upload {
    orders: Option<Sender<Order>>,
    thread: Option<JoinHandle<()>>,
    shared: Arc<Mutex<Shared>>,
    gone: Arc<Notify>,
}

impl Upload {
    /// Starts the thread.
    pub(super) fn start(staging: Staging, waker: Waker) -> Result<Self, TaskError> {
        let (orders, received) = channel();
        let shared = Arc::new(Mutex::new(Shared::default()));
        let runtime = runtime()?;
        let gone = Arc::new(Notify::new());
        let (of_thread, is_gone) = (Arc::clone(&shared), Arc::clone(&gone));
        let work = move || {
            let ended = runtime.block_on(async {
                tokio::select! {
                    ended = run(&staging, &received, &of_thread, &waker) => ended,
                    () = grace(&is_gone) => Ok(()),
                }
            });
            if let Err(failure) = ended {
                lock(&of_thread).failure.get_or_insert(store_error(&failure));
                waker();
            }
        };
        let started = std::thread::Builder::new().name("file-sink".to_owned()).spawn(work);
        let thread = started.map_err(|error| TaskError::External(format!("no thread for a file sink: {error}")))?;
        Ok(Self { orders: Some(orders), thread: Some(thread), shared, gone })
    }

    pub(super) fn begin(&self, file: u32, key: String) -> Result<(), TaskError> {
        lock(&self.shared).open += 1;
        self.order(Order::Begin(file, key))
    }

    pub(super) fn append(&self, file: u32, bytes: Vec<u8>) -> Result<(), TaskError> {
        if bytes.is_empty() {
            return Ok(());
        }
        lock(&self.shared).queued += bytes.len();
        self.order(Order::Bytes(file, bytes.into()))
    }

    pub(super) fn stage(&self, file: u32) -> Result<(), TaskError> {
        self.order(Order::Stage(file))
    }

    fn order(&self, order: Order) -> Result<(), TaskError> {
        let is_taken = self.orders.as_ref().is_some_and(|orders| orders.send(order).is_ok());
        self.check()?;
        is_taken.then_some(()).ok_or_else(|| TaskError::External("the thread of a file sink has ended".to_owned()))
    }

    fn check(&self) -> Result<(), TaskError> {
        lock(&self.shared).failure.clone().map_or(Ok(()), Err)
    }

    pub(super) fn has_room(&self) -> Result<bool, TaskError> {
        self.check()?;
        Ok(lock(&self.shared).queued < HIGH_WATER)
    }

    /// All files that were staged, once none is open.
    pub(super) fn take_staged(&self) -> Result<Option<Vec<StagedFile>>, TaskError> {
        self.check()?;
        let mut shared = lock(&self.shared);
        Ok((shared.open == 0).then(|| shared.staged.drain(..).collect()))
    }
}

/// Waits for the request under way, no longer than [`GRACE`], and leaves what is staged where it is: when a task has ended,
/// it begins nothing more.
impl Drop for Upload {
    fn drop(&mut self) {
        lock(&self.shared).stopped = true;
        self.orders = None;
        self.gone.notify_one();
        if let Some(thread) = self.thread.take() {
            // One that has panicked has begun nothing more either.
            let _ = thread.join();
        }
    }
}

fn lock(shared: &Mutex<Shared>) -> std::sync::MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn grace(gone: &Notify) {
    gone.notified().await;
    tokio::time::sleep(GRACE).await;
}

async fn run(
    staging: &Staging,
    orders: &Receiver<Order>,
    shared: &Mutex<Shared>,
    waker: &Waker,
) -> Result<(), StoreFailure> {
    let mut files: BTreeMap<u32, StagingFile> = BTreeMap::new();
    let is_stopped = || lock(shared).stopped;
    while let Ok(order) = orders.recv() {
        if is_stopped() {
            return Ok(());
        }
        match order {
            Order::Begin(number, key) => {
                files.insert(number, patiently(is_stopped, async || staging.begin(&key).await).await?);
            }
            Order::Bytes(number, bytes) => {
                let count = bytes.len();
                if let Some(file) = files.get_mut(&number) {
                    let ends_with_it = !file.may_repeat();
                    let append = async || staging.append(file, bytes.clone()).await;
                    patiently(|| ends_with_it || is_stopped(), append).await?;
                }
                lock(shared).queued -= count;
            }
            Order::Stage(number) => {
                let staged = match files.remove(&number) {
                    Some(file) => Some(staging.stage(file).await?),
                    None => None,
                };
                let mut shared = lock(shared);
                shared.open -= 1;
                shared.staged.extend(staged);
            }
        }
        waker();
    }
    Ok(())
}
