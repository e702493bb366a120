//! The controller's replicas: the real code, each with a client and connections of its own that die with it.

use crate::job_manager::Wires;
use crate::network::Network;
use crate::world::World;
use sluice_controller::{Arguments, Planted, run_over};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

/// All replicas.
#[derive(Clone)]
pub(crate) struct Replicas {
    world: World,
    planted: Planted,
    with_lease: bool,
    running: Arc<Mutex<Running>>,
}

#[derive(Default)]
struct Running {
    processes: u32,
    slots: Vec<Option<Replica>>,
}

struct Replica {
    process: u32,
    alive: Arc<AtomicBool>,
    tangled: Arc<AtomicBool>,
    frozen_until: Arc<AtomicU64>,
    stop: Option<oneshot::Sender<()>>,
    _work: AbortOnDropHandle<()>,
}

impl Drop for Replica {
    fn drop(&mut self) {
        self.alive.store(false, Ordering::Relaxed);
    }
}

impl Replicas {
    /// Starts `count` of them.
    pub(crate) fn start(world: &World, count: usize, planted: Planted) -> Self {
        let running = Running { processes: 0, slots: (0..count).map(|_| None).collect() };
        let replicas =
            Self { world: world.clone(), planted, with_lease: count > 1, running: Arc::new(Mutex::new(running)) };
        (0..count).for_each(|index| replicas.start_one(index));
        replicas
    }

    fn lock(&self) -> MutexGuard<'_, Running> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn start_one(&self, index: usize) {
        let mut running = self.lock();
        if running.slots[index].is_some() {
            return;
        }
        running.processes += 1;
        let process = running.processes;
        self.world.trace(|| format!("controller process {process} starts"));
        let (alive, tangled) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicBool::new(false)));
        let (stop, stopped) = oneshot::channel::<()>();
        let arguments = Arguments {
            runtime_image: "sluice/runtime:1".to_owned(),
            namespaces: vec![],
            lease: self.with_lease.then(|| "sluice-system".to_owned()),
            listen: ([127, 0, 0, 1], 0).into(),
            pod_name: Some(format!("p{process}")),
            log_json: false,
        };
        let network =
            Network { world: self.world.clone(), process, alive: Arc::clone(&alive), tangled: Arc::clone(&tangled) };
        let wires = Arc::new(Wires { world: self.world.clone(), alive: Arc::clone(&alive) });
        let (planted, frozen_until) = (self.planted, Arc::new(AtomicU64::new(0)));
        let (world, frozen) = (self.world.clone(), Arc::clone(&frozen_until));
        let work = tokio::spawn(async move {
            let stopped = async {
                if stopped.await.is_err() {
                    std::future::pending().await
                }
            };
            unless_frozen(&world, &frozen, run_over(&arguments, network, wires, planted, stopped)).await;
        });
        let work = AbortOnDropHandle::new(work);
        running.slots[index] = Some(Replica { process, alive, tangled, frozen_until, stop: Some(stop), _work: work });
    }

    fn restart(&self, index: usize, millis: u64) {
        let replicas = self.clone();
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(millis)).await;
            replicas.start_one(index);
        });
    }

    /// One dies, and another takes its place after a while.
    pub(crate) fn kill(&self, index: usize, millis: u64) {
        self.world.lock().check.coverage.replicas_killed += 1;
        let dead = self.lock().slots[index].take();
        drop(dead);
        self.restart(index, millis);
    }

    /// All die, and others take their places after a while.
    pub(crate) fn kill_all(&self, millis: u64) {
        let count = self.lock().slots.len();
        (0..count).for_each(|index| self.kill(index, millis));
    }

    /// One is asked to end, and another takes its place.
    pub(crate) fn stop(&self, index: usize) {
        let stop = self.lock().slots[index].as_mut().and_then(|replica| replica.stop.take());
        if let Some(stop) = stop {
            let _ = stop.send(());
        }
        let replicas = self.clone();
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_secs(5)).await;
            let ended = replicas.lock().slots[index].take();
            drop(ended);
            replicas.restart(index, 100);
        });
    }

    /// What one sends and hears takes very long for a while.
    pub(crate) fn tangle(&self, index: usize, millis: u64) {
        let Some(tangled) = self.lock().slots[index].as_ref().map(|replica| Arc::clone(&replica.tangled)) else {
            return;
        };
        tangled.store(true, Ordering::Relaxed);
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(millis)).await;
            tangled.store(false, Ordering::Relaxed);
        });
    }

    /// The one that leads neither renews its lease nor notices that it has not, while its passes go on slowly: of tasks that
    /// all are due nobody says which is run first.
    pub(crate) fn freeze_leader(&self, millis: u64) {
        let holder = self.world.lock().check.holder;
        let running = self.lock();
        let leader = running.slots.iter().position(|slot| slot.as_ref().map(|replica| replica.process) == holder);
        let Some((index, replica)) = leader.and_then(|index| Some((index, running.slots[index].as_ref()?))) else {
            return;
        };
        replica.frozen_until.store(self.world.now() + millis, Ordering::Relaxed);
        drop(running);
        self.world.lock().check.coverage.leaders_frozen += 1;
        self.tangle(index, millis / 2);
    }

    pub(crate) fn tangled(&self) -> Vec<Arc<AtomicBool>> {
        self.lock().slots.iter().flatten().map(|replica| Arc::clone(&replica.tangled)).collect()
    }
}

/// `work`, which is not run while it is frozen.
async fn unless_frozen(world: &World, frozen_until: &AtomicU64, work: impl Future<Output = ()>) {
    let (mut work, mut thaw) = (std::pin::pin!(work), std::pin::pin!(tokio::time::sleep(Duration::ZERO)));
    std::future::poll_fn(|context| {
        let left = frozen_until.load(Ordering::Relaxed).saturating_sub(world.now());
        thaw.as_mut().reset(Instant::now() + Duration::from_millis(left));
        if left > 0 && thaw.as_mut().poll(context).is_pending() {
            return std::task::Poll::Pending;
        }
        work.as_mut().poll(context)
    })
    .await;
}
