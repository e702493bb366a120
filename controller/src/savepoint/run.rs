//! Wiring: the watch of Savepoints and the loop that makes passes over them. A cluster without the Savepoint CRD keeps
//! this loop waiting, and no other.

use super::jobs;
use super::reconcile::{Shared, make_pass};
use super::watches::{JobRequest, Request, Savepoints, of_touched_jobs, touched_requests, watch_savepoints};
use crate::context::Context;
use crate::metrics::{Metrics, SAVEPOINT, SCHEDULE};
use crate::panics::guard;
use crate::passes::make_passes;
use crate::queue::Queue;
use crate::watches::{self, Jobs, Source, WatchedJob};
use futures::StreamExt;
use kube::runtime::reflector::ObjectRef;
use std::sync::Arc;
use tokio::sync::{broadcast, mpsc};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tokio_util::task::AbortOnDropHandle;

/// Passes at once, over different Savepoints.
const CONCURRENCY: usize = 4;

/// Tells to which StreamJob something has happened.
pub(crate) type Touched = broadcast::Sender<ObjectRef<WatchedJob>>;

/// The watch of Savepoints, which goes on whether or not this replica leads.
pub(crate) struct Watched {
    jobs: Jobs,
    savepoints: Savepoints,
    queue: Arc<Queue<Request>>,
    job_queue: Arc<Queue<JobRequest>>,
    _watches: [AbortOnDropHandle<()>; 4],
}

/// Begins to watch.
///
/// StreamJobs with a Savepoint that is being deleted are told to `disposals`: one that has ended makes a pod for it.
pub(crate) fn watch(
    source: &Source,
    jobs: Jobs,
    touched: &Touched,
    disposals: mpsc::UnboundedSender<JobRequest>,
    metrics: &Arc<Metrics>,
) -> Watched {
    let (owners, owned) = mpsc::unbounded_channel();
    let (savepoints, changed) = watch_savepoints(source, owners, disposals);
    let concerned = of_touched_jobs(touched.subscribe(), savepoints.clone());
    let touched_jobs = touched_requests(touched.subscribe(), jobs.clone());
    let (queue, job_queue) = (Queue::new(SAVEPOINT, metrics), Queue::new(SCHEDULE, metrics));
    let watches = [
        tokio::spawn(Arc::clone(&queue).forward(changed.boxed())),
        tokio::spawn(Arc::clone(&queue).forward(concerned.boxed())),
        tokio::spawn(Arc::clone(&job_queue).forward(UnboundedReceiverStream::new(owned).boxed())),
        tokio::spawn(Arc::clone(&job_queue).forward(touched_jobs.boxed())),
    ];
    Watched { jobs, savepoints, queue, job_queue, _watches: watches.map(AbortOnDropHandle::new) }
}

impl Watched {
    /// The cache of all Savepoints.
    pub(crate) fn savepoints(&self) -> Savepoints {
        self.savepoints.clone()
    }

    /// Makes passes until [`Watched::close`].
    pub(crate) async fn make_passes(&self, context: Arc<Context>) {
        let Self { jobs, savepoints, queue, job_queue, .. } = self;
        // An error means that the watch has ended, with the controller.
        let _ = tokio::join!(jobs.wait_until_ready(), savepoints.wait_until_ready());
        let (queued, queued_jobs) = (queue.open(), job_queue.open());
        let all = savepoints.state();
        all.iter().for_each(|savepoint| queue.push(watches::reference(&**savepoint)));
        watches::all(jobs).into_iter().for_each(|request| job_queue.push(request));
        let periodic = Arc::new(jobs::Shared { context: Arc::clone(&context), savepoints: savepoints.clone() });
        let shared = Arc::new(Shared { context, jobs: jobs.clone() });
        let pass = |savepoint: Arc<_>| {
            let pass = make_pass(Arc::clone(&savepoint), Arc::clone(&shared));
            guard(SAVEPOINT, savepoint, Arc::clone(&shared.context), pass)
        };
        let job_pass = |job: Arc<_>| {
            let pass = jobs::make_pass(Arc::clone(&job), Arc::clone(&periodic));
            guard(SCHEDULE, job, Arc::clone(&periodic.context), pass)
        };
        tokio::join!(
            make_passes(queued, savepoints, CONCURRENCY, |waiting| queue.tell_waiting(waiting), pass),
            make_passes(queued_jobs, jobs, CONCURRENCY, |waiting| job_queue.tell_waiting(waiting), job_pass)
        );
    }

    /// Begins no more passes.
    pub(crate) fn close(&self) {
        self.queue.close();
        self.job_queue.close();
    }
}
