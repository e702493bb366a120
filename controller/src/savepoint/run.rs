//! Wiring: the watch of Savepoints and the loop that makes passes over them. A cluster without the Savepoint CRD keeps
//! this loop waiting, and no other.

use super::jobs;
use super::reconcile::{Shared, reconcile, retry};
use super::watches::{of_touched_jobs, touched_requests, watch_savepoints};
use crate::context::Context;
use crate::run::{flatten, forward};
use crate::watches::{Jobs, WatchedJob};
use futures::{FutureExt, StreamExt};
use kube::runtime::reflector::ObjectRef;
use kube::runtime::{applier, controller};
use std::sync::Arc;
use tokio::sync::{broadcast, mpsc};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tokio_util::task::AbortOnDropHandle;

/// Passes at once, over different Savepoints.
const CONCURRENCY: u16 = 4;

/// Tells to which StreamJob something has happened.
pub(crate) type Touched = broadcast::Sender<ObjectRef<WatchedJob>>;

/// Makes passes until the watches end.
pub(crate) async fn run(context: Arc<Context>, jobs: Jobs, touched: Touched, namespace: Option<String>) {
    let (owners, owned) = mpsc::unbounded_channel();
    let (savepoints, changed) = watch_savepoints(&context.client, namespace.as_deref(), owners);
    let concerned = of_touched_jobs(touched.subscribe(), savepoints.clone());
    let touched_jobs = touched_requests(touched.subscribe(), jobs.clone());
    let (queue, queued) = mpsc::unbounded_channel();
    let (job_queue, queued_jobs) = mpsc::unbounded_channel();
    let watches = [changed.boxed(), concerned.boxed()].map(|requests| tokio::spawn(forward(requests, queue.clone())));
    let _watches = watches.map(AbortOnDropHandle::new);
    let job_watches = [UnboundedReceiverStream::new(owned).boxed(), touched_jobs.boxed()];
    let job_watches = job_watches.map(|requests| tokio::spawn(forward(requests, job_queue.clone())));
    let _job_watches = job_watches.map(AbortOnDropHandle::new);
    drop((queue, job_queue));
    // An error means that the watch has ended, with the controller.
    let _ = tokio::join!(jobs.wait_until_ready(), savepoints.wait_until_ready());
    let periodic = jobs::Shared { context: Arc::clone(&context), savepoints: savepoints.clone() };
    let shared = Shared { context, jobs: jobs.clone() };
    let config = || controller::Config::default().concurrency(CONCURRENCY);
    let pass = |object, shared| AbortOnDropHandle::new(tokio::spawn(reconcile(object, shared))).map(flatten).boxed();
    let queued = UnboundedReceiverStream::new(queued);
    let passes = applier(pass, retry, Arc::new(shared), savepoints, queued, config());
    let job_pass =
        |object, shared| AbortOnDropHandle::new(tokio::spawn(jobs::reconcile(object, shared))).map(flatten).boxed();
    let queued_jobs = UnboundedReceiverStream::new(queued_jobs);
    let job_passes = applier(job_pass, jobs::retry, Arc::new(periodic), jobs, queued_jobs, config());
    tokio::join!(passes.for_each(|_| futures::future::ready(())), job_passes.for_each(|_| futures::future::ready(())));
}
