//! Wiring: client, watches, streams, the HTTP server, the election, and the loop that makes passes.
//!
//! Watches and server run from the start to the end, so that a standby has its caches warm; passes are made, and
//! streams followed, by the replica that leads, for as long as it does.

use crate::arguments::Arguments;
use crate::backoff::Backoff;
use crate::certificates::Certificates;
use crate::connection::{Connector, Network};
use crate::context::Context;
use crate::events::Events;
use crate::http::{self, Served};
use crate::leader::{Candidate, Leadership};
use crate::metrics::{Metrics, STREAM_JOB};
use crate::outdated::Outdated;
use crate::panics::guard_job;
use crate::passes::make_passes;
use crate::planted::Planted;
use crate::pulse::Pulse;
use crate::queue::Queue;
use crate::reconcile::make_pass;
use crate::streams::Streams;
use crate::watches::{self, Jobs, Request, Source, WatchedPod, trim_config_map, trim_pod, trim_service};
use crate::{client, savepoint};
use ::http::{Request as HttpRequest, Response};
use anyhow::Context as _;
use futures::StreamExt;
use futures::stream::BoxStream;
use k8s_openapi::api::core::v1::{ConfigMap, Service};
use kube::Client;
use kube::client::Body;
use kube::config::Config;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{broadcast, mpsc};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tokio_util::task::AbortOnDropHandle;
use tower::{BoxError, Service as TowerService};

/// Passes at once, over different StreamJobs.
const CONCURRENCY: usize = 16;

/// StreamJobs with news that passes over other kinds may lag behind; past that they look at all.
const TOUCHED: usize = 1024;

/// How long passes that are under way at the end may take.
const LAST_PASSES: Duration = Duration::from_secs(2);

/// Runs the controller until SIGTERM or SIGINT; job pods go on without it.
///
/// # Errors
/// No configuration for a cluster, or the address of `--listen` cannot be taken.
pub async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let mut stopped = Box::pin(until_stopped()?);
    let config = Config::infer().await.context("no cluster: set KUBECONFIG, or run in a pod with a ServiceAccount")?;
    let listen = TcpListener::bind(arguments.listen).await;
    let listener = listen.with_context(|| format!("--listen {}: the address cannot be taken", arguments.listen))?;
    let metrics = Arc::new(Metrics::default());
    let mut candidate = candidate(&arguments, client::build(&config, &metrics, None)?);
    let leadership = leadership(candidate.as_ref());
    let client = client::build(&config, &metrics, Some(&leadership))?;
    let outside = Outside { client, connector: Arc::new(Network), planted: Planted::default() };
    let replica = Replica::start(&arguments, outside, metrics, leadership);
    let pulse = Arc::new(Pulse::new());
    let served =
        Served { context: Arc::clone(&replica.context), jobs: replica.jobs.clone(), pulse: Arc::clone(&pulse) };
    let mut server = AbortOnDropHandle::new(tokio::spawn(http::serve(listener, served)));
    {
        let work = replica.lead(candidate.as_mut());
        tokio::pin!(work);
        tokio::select! {
            biased;
            () = &mut work => anyhow::bail!("the watches ended"),
            () = pulse.beat() => {}
            served = &mut server => served?.context("the HTTP server ended")?,
            () = &mut stopped => {}
        }
        replica.close();
        // What is under way ends; what does not in time is given up with its request.
        let _ = tokio::time::timeout(LAST_PASSES, work).await;
    }
    if let Some(candidate) = &mut candidate {
        candidate.release().await;
    }
    tracing::info!("stopped; the jobs go on");
    Ok(())
}

/// Runs one replica over whatever stands for an API server and for the JobManagers, until `stopped`. What a simulation
/// runs: a replica that is killed is one whose future is dropped.
pub async fn run_over<S>(
    arguments: &Arguments,
    service: S,
    connector: Arc<dyn Connector>,
    planted: Planted,
    stopped: impl Future<Output = ()>,
) where
    S: TowerService<HttpRequest<Body>, Response = Response<axum::body::Body>> + Clone + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Into<BoxError>,
{
    let metrics = Arc::new(Metrics::default());
    let mut candidate = candidate(arguments, client::over(service.clone(), &metrics, None));
    let leadership =
        if planted.no_leader_gate { Arc::new(Leadership::alone()) } else { leadership(candidate.as_ref()) };
    let outside = Outside { client: client::over(service, &metrics, Some(&leadership)), connector, planted };
    let replica = Replica::start(arguments, outside, metrics, leadership);
    {
        let work = replica.lead(candidate.as_mut());
        tokio::pin!(work);
        tokio::select! {
            biased;
            () = &mut work => {}
            () = stopped => {}
        }
        replica.close();
        let _ = tokio::time::timeout(LAST_PASSES, work).await;
    }
    if let Some(candidate) = &mut candidate {
        candidate.release().await;
    }
}

fn candidate(arguments: &Arguments, client: Client) -> Option<Candidate> {
    arguments.lease().map(|lease| Candidate::new(client, lease, arguments.pod_name.as_deref()))
}

fn leadership(candidate: Option<&Candidate>) -> Arc<Leadership> {
    candidate.map_or_else(|| Arc::new(Leadership::alone()), Candidate::leadership)
}

/// What lies outside the process.
struct Outside {
    client: Client,
    connector: Arc<dyn Connector>,
    planted: Planted,
}

/// What runs whether or not it leads.
struct Replica {
    context: Arc<Context>,
    jobs: Jobs,
    queue: Arc<Queue<Request>>,
    savepoints: savepoint::Watched,
    _watches: Vec<AbortOnDropHandle<()>>,
}

impl Replica {
    /// Begins to watch.
    fn start(arguments: &Arguments, outside: Outside, metrics: Arc<Metrics>, leadership: Arc<Leadership>) -> Self {
        let Outside { client, connector, planted } = outside;
        let source = Source::new(client.clone(), &arguments.namespaces, Arc::clone(&metrics));
        let (trigger, news) = mpsc::unbounded_channel();
        let certificates = Arc::new(Certificates::default());
        let streams = Arc::new(Streams::new(trigger, connector, leadership, Arc::clone(&certificates)));
        let (touched, _) = broadcast::channel(TOUCHED);
        let (jobs, job_requests) = watches::watch_jobs(&source, watches::forget(&streams, touched.clone()));
        let (pods, pod_requests) = watches::watch_owned::<WatchedPod>(&source, trim_pod);
        let (services, service_requests) = watches::watch_owned::<Service>(&source, trim_service);
        let (config_maps, program_requests) = watches::watch_owned::<ConfigMap>(&source, trim_config_map);
        let mut requests: Vec<BoxStream<'static, Request>> = vec![
            job_requests.inspect(watches::touch(touched.clone())).boxed(),
            pod_requests.boxed(),
            service_requests.boxed(),
            program_requests.boxed(),
            watches::watch_programs(&source, jobs.clone()).boxed(),
            UnboundedReceiverStream::new(news).map(watches::request).inspect(watches::touch(touched.clone())).boxed(),
        ];
        let (disposals, wanted) = mpsc::unbounded_channel();
        requests.push(UnboundedReceiverStream::new(wanted).boxed());
        let savepoints = savepoint::watch(&source, jobs.clone(), &touched, disposals, &metrics);
        let queue = Queue::new(STREAM_JOB, &metrics);
        // Watches run by themselves: caches fill and streams are heard also while all passes are busy.
        let watches = requests.into_iter().map(|requests| tokio::spawn(Arc::clone(&queue).forward(requests)));
        let watches = watches.map(AbortOnDropHandle::new).collect();
        let namespaces =
            if arguments.namespaces.is_empty() { "(all)".to_owned() } else { arguments.namespaces.join(",") };
        tracing::info!(listen = %arguments.listen, namespaces, "watching StreamJobs");
        let events = Arc::new(Events::new(client.clone(), arguments.pod_name.clone(), Arc::clone(&metrics)));
        let runtime_image = arguments.runtime_image.clone();
        let backoff = Backoff::default();
        let all = savepoints.savepoints();
        let context = Context {
            client,
            runtime_image,
            pods,
            services,
            config_maps,
            savepoints: all,
            certificates,
            streams,
            events,
            metrics,
            backoff,
            outdated: Outdated::default(),
            planted,
        };
        Self { context: Arc::new(context), jobs, queue, savepoints, _watches: watches }
    }

    /// Leads whenever it may; ends when the watches do, or after [`Replica::close`].
    async fn lead(&self, mut candidate: Option<&mut Candidate>) {
        loop {
            if let Some(candidate) = &mut candidate {
                candidate.campaign().await;
            }
            tracing::info!("leading");
            self.context.metrics.set_leader(true);
            self.context.streams.lead(crate::time::now());
            let held = async {
                match &mut candidate {
                    Some(candidate) => candidate.hold().await,
                    None => std::future::pending().await,
                }
            };
            let passes = async {
                let savepoints = self.savepoints.make_passes(Arc::clone(&self.context));
                tokio::join!(self.make_passes(), savepoints)
            };
            tokio::select! {
                biased;
                () = held => {}
                _ = passes => return,
            }
            self.context.metrics.set_leader(false);
            self.close();
            self.context.streams.clear();
        }
    }

    /// Makes passes until [`Replica::close`].
    async fn make_passes(&self) {
        self.context.wait_for_caches().await;
        // An error means that the watch has ended, with the controller.
        let _ = self.jobs.wait_until_ready().await;
        let queued = self.queue.open();
        // Whatever happened before, all is looked at.
        watches::all(&self.jobs).into_iter().for_each(|request| self.queue.push(request));
        let pass = |job: Arc<_>| {
            let context = &self.context;
            guard_job(Arc::clone(&job), Arc::clone(context), make_pass(job, Arc::clone(context)))
        };
        make_passes(queued, &self.jobs, CONCURRENCY, |waiting| self.queue.tell_waiting(waiting), pass).await;
    }

    /// Begins no more passes.
    fn close(&self) {
        self.queue.close();
        self.savepoints.close();
    }
}

/// Heard from the first moment on.
fn until_stopped() -> anyhow::Result<impl Future<Output = ()>> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}
