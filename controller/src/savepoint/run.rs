//! Wiring: the watch of Savepoints and the loop that makes passes over them. A cluster without the Savepoint CRD keeps
//! this loop waiting, and no other.

use super::jobs;
use super::reconcile::{Shared, reconcile, retry};
use super::watches::{JobRequest, Request, Savepoints, of_touched_jobs, touched_requests, watch_savepoints};
use crate::context::Context;
use crate::metrics::{Metrics, SAVEPOINT, SCHEDULE};
use crate::queue::Queue;
use crate::run::flatten;
use crate::watches::{self, Jobs, Source, WatchedJob};
use futures::{FutureExt, StreamExt};
use kube::runtime::controller::ReconcileRequest;
use kube::runtime::reflector::ObjectRef;
use kube::runtime::{applier, controller};
use std::convert::Infallible;
use std::sync::Arc;
use tokio::sync::{broadcast, mpsc};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tokio_util::task::AbortOnDropHandle;

/// Passes at once, over different Savepoints.
const CONCURRENCY: u16 = 4;

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
        let queued = queue.open().map(Ok::<_, Infallible>);
        let queued_jobs = job_queue.open().map(Ok::<_, Infallible>);
        let all = savepoints.state();
        all.iter().for_each(|savepoint| queue.push(ReconcileRequest::from(ObjectRef::from_obj(&**savepoint))));
        watches::all(jobs).into_iter().for_each(|request| job_queue.push(request));
        let periodic = jobs::Shared { context: Arc::clone(&context), savepoints: savepoints.clone() };
        let shared = Shared { context, jobs: jobs.clone() };
        let config = || controller::Config::default().concurrency(CONCURRENCY);
        let pass =
            |object, shared| AbortOnDropHandle::new(tokio::spawn(reconcile(object, shared))).map(flatten).boxed();
        let passes = applier(pass, retry, Arc::new(shared), savepoints.clone(), queued, config());
        let job_pass =
            |object, shared| AbortOnDropHandle::new(tokio::spawn(jobs::reconcile(object, shared))).map(flatten).boxed();
        let job_passes = applier(job_pass, jobs::retry, Arc::new(periodic), jobs.clone(), queued_jobs, config());
        let ended = futures::future::ready;
        tokio::join!(passes.for_each(|_| ended(())), job_passes.for_each(|_| ended(())));
    }

    /// Begins no more passes.
    pub(crate) fn close(&self) {
        self.queue.close();
        self.job_queue.close();
    }
}
