//! Wiring: client, watches, streams, the HTTP server, and the loop that makes passes.

use crate::arguments::Arguments;
use crate::context::Context;
use crate::events::Events;
use crate::http;
use crate::metrics::Metrics;
use crate::reconcile::{reconcile, retry};
use crate::streams::Streams;
use crate::watches::{self, Request, trim_config_map, trim_pod, trim_service};
use anyhow::Context as _;
use futures::stream::{self, BoxStream};
use futures::{FutureExt, StreamExt, TryFutureExt};
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Service};
use kube::Client;
use kube::runtime::{applier, controller};
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;

/// Passes at once, over different StreamJobs.
const CONCURRENCY: u16 = 16;

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
    let (jobs, job_requests) = watches::watch_jobs(&client, namespace, watches::forget(&streams));
    let (pods, pod_requests) = watches::watch_owned::<Pod>(&client, namespace, trim_pod);
    let (services, service_requests) = watches::watch_owned::<Service>(&client, namespace, trim_service);
    let (config_maps, program_requests) = watches::watch_owned::<ConfigMap>(&client, namespace, trim_config_map);
    let context = Arc::new(Context {
        events: Events::new(client.clone(), arguments.pod_name.clone()),
        metrics: Metrics::default(),
        runtime_image: arguments.runtime_image.clone(),
        client,
        pods,
        services,
        config_maps,
        streams,
    });
    let requests: [BoxStream<'static, Request>; 5] = [
        job_requests.boxed(),
        pod_requests.boxed(),
        service_requests.boxed(),
        program_requests.boxed(),
        UnboundedReceiverStream::new(news).map(watches::request).boxed(),
    ];
    tracing::info!(listen = %arguments.listen, namespace = namespace.unwrap_or("(all)"), "watching StreamJobs");
    let server = http::serve(listener, Arc::clone(&context), jobs.clone());
    let passes = make_passes(context, jobs, stream::select_all(requests));
    tokio::select! {
        () = passes => anyhow::bail!("the watches ended"),
        served = server => served.context("the HTTP server ended"),
        stopped = until_stopped() => stopped,
    }
}

async fn make_passes(
    context: Arc<Context>,
    jobs: watches::Jobs,
    requests: impl stream::Stream<Item = Request> + Send + 'static,
) {
    let config = controller::Config::default().concurrency(CONCURRENCY);
    let all_known = wait_for_caches(Arc::clone(&context));
    // The watches only move when they are polled, so the caches are waited for inside each pass.
    let ready = all_known.boxed().shared();
    let pass = move |job, context| {
        let ready = ready.clone();
        tokio::spawn(async move {
            ready.await;
            reconcile(job, context).await
        })
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))
        .boxed()
    };
    applier(pass, retry, context, jobs, requests, config).for_each(|_| futures::future::ready(())).await;
}

/// Until pods, Services and ConfigMaps have been listed once: a pass on an empty cache would take all for lost.
async fn wait_for_caches(context: Arc<Context>) {
    let Context { pods, services, config_maps, .. } = context.as_ref();
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
