//! Wiring: the watch of Savepoints and the loop that makes passes over them. A cluster without the Savepoint CRD keeps
//! this loop waiting, and no other.

use super::reconcile::{Shared, reconcile, retry};
use super::watches::{of_touched_jobs, watch_savepoints};
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
    let (savepoints, changed) = watch_savepoints(&context.client, namespace.as_deref());
    let concerned = of_touched_jobs(touched.subscribe(), savepoints.clone());
    let (queue, queued) = mpsc::unbounded_channel();
    let watches = [changed.boxed(), concerned.boxed()].map(|requests| tokio::spawn(forward(requests, queue.clone())));
    let _watches = watches.map(AbortOnDropHandle::new);
    drop(queue);
    // An error means that the watch has ended, with the controller.
    let _ = tokio::join!(jobs.wait_until_ready(), savepoints.wait_until_ready());
    let shared = Arc::new(Shared { context, jobs });
    let config = controller::Config::default().concurrency(CONCURRENCY);
    let pass =
        |savepoint, shared| AbortOnDropHandle::new(tokio::spawn(reconcile(savepoint, shared))).map(flatten).boxed();
    applier(pass, retry, shared, savepoints, UnboundedReceiverStream::new(queued), config)
        .for_each(|_| futures::future::ready(()))
        .await;
}
