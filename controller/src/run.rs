//! Wiring: client, watches, streams, the HTTP server, and the loop that makes passes.

use crate::arguments::Arguments;
use crate::backoff::Backoff;
use crate::context::Context;
use crate::events::Events;
use crate::http;
use crate::metrics::Metrics;
use crate::reconcile::{reconcile, retry};
use crate::savepoint;
use crate::streams::Streams;
use crate::watches::{self, Request, trim_config_map, trim_pod, trim_service};
use anyhow::Context as _;
use futures::stream::BoxStream;
use futures::{FutureExt, StreamExt};
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Service};
use kube::Client;
use kube::runtime::{applier, controller};
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{broadcast, mpsc};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tokio_util::task::AbortOnDropHandle;

/// Passes at once, over different StreamJobs.
const CONCURRENCY: u16 = 16;

/// StreamJobs with news that passes over other kinds may lag behind; past that they look at all.
const TOUCHED: usize = 1024;

/// Runs the controller until SIGTERM or SIGINT; job pods go on without it.
///
/// # Errors
/// No configuration for a cluster, or the address of `--listen` cannot be taken.
pub async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let client =
        Client::try_default().await.context("no cluster: set KUBECONFIG, or run in a pod with a ServiceAccount")?;
    let listen = TcpListener::bind(arguments.listen).await;
    let listener = listen.with_context(|| format!("--listen {}: the address cannot be taken", arguments.listen))?;
    let namespace = arguments.namespace.as_deref();
    let (trigger, news) = mpsc::unbounded_channel();
    let streams = Arc::new(Streams::new(trigger));
    let (touched, _) = broadcast::channel(TOUCHED);
    let forget = watches::forget(&streams, touched.clone());
    let (jobs, job_requests) = watches::watch_jobs(&client, namespace, forget);
    let (pods, pod_requests) = watches::watch_owned::<Pod>(&client, namespace, trim_pod);
    let (services, service_requests) = watches::watch_owned::<Service>(&client, namespace, trim_service);
    let (config_maps, program_requests) = watches::watch_owned::<ConfigMap>(&client, namespace, trim_config_map);
    let requests: Vec<BoxStream<'static, Request>> = vec![
        job_requests.inspect(watches::touch(touched.clone())).boxed(),
        pod_requests.boxed(),
        service_requests.boxed(),
        program_requests.boxed(),
        watches::watch_programs(&client, namespace, jobs.clone()).boxed(),
        UnboundedReceiverStream::new(news).map(watches::request).inspect(watches::touch(touched.clone())).boxed(),
    ];
    let context = Arc::new(Context {
        events: Events::new(client.clone(), arguments.pod_name.clone()),
        metrics: Metrics::default(),
        backoff: Backoff::default(),
        runtime_image: arguments.runtime_image.clone(),
        client,
        pods,
        services,
        config_maps,
        streams,
    });
    tracing::info!(listen = %arguments.listen, namespace = namespace.unwrap_or("(all)"), "watching StreamJobs");
    let server = http::serve(listener, Arc::clone(&context), jobs.clone());
    let savepoints = savepoint::run(Arc::clone(&context), jobs.clone(), touched, arguments.namespace.clone());
    let _savepoints = AbortOnDropHandle::new(tokio::spawn(savepoints));
    let passes = make_passes(context, jobs, requests);
    tokio::select! {
        () = passes => anyhow::bail!("the watches ended"),
        served = server => served.context("the HTTP server ended"),
        stopped = until_stopped() => stopped,
    }
}

/// Makes passes until the watches end.
async fn make_passes(context: Arc<Context>, jobs: watches::Jobs, requests: Vec<BoxStream<'static, Request>>) {
    let (queue, queued) = mpsc::unbounded_channel();
    // Watches run by themselves: caches fill and streams are heard also while all passes are busy.
    let watches = requests.into_iter().map(|requests| tokio::spawn(forward(requests, queue.clone())));
    let watches: Vec<_> = watches.map(AbortOnDropHandle::new).collect();
    drop(queue);
    wait_for_caches(&context).await;
    let config = controller::Config::default().concurrency(CONCURRENCY);
    let pass = |job, context| AbortOnDropHandle::new(tokio::spawn(reconcile(job, context))).map(flatten).boxed();
    applier(pass, retry, context, jobs, UnboundedReceiverStream::new(queued), config)
        .for_each(|_| futures::future::ready(()))
        .await;
    drop(watches);
}

/// Hands requests on until nobody takes them any more.
pub(crate) async fn forward<R>(mut requests: BoxStream<'static, R>, queue: mpsc::UnboundedSender<R>) {
    while let Some(request) = requests.next().await {
        if queue.send(request).is_err() {
            return;
        }
    }
}

/// A pass that panics takes the process with it: Kubernetes starts it again, and everything is derived anew.
pub(crate) fn flatten<T>(ended: Result<T, tokio::task::JoinError>) -> T {
    ended.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))
}

/// Until pods, Services and ConfigMaps have been listed once: a pass on an empty cache would take all for lost.
async fn wait_for_caches(context: &Context) {
    let Context { pods, services, config_maps, .. } = context;
    // An error means that the watch has ended, with the controller.
    let _ = tokio::join!(pods.wait_until_ready(), services.wait_until_ready(), config_maps.wait_until_ready());
}

async fn until_stopped() -> anyhow::Result<()> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    tracing::info!("stopped; the jobs go on");
    Ok(())
}
