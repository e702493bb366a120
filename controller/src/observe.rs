//! Step 1: what the API server and the status streams say about a StreamJob, as facts.
//!
//! Pods, Services and ConfigMaps come from the watches' caches. Where a decision must not rest on a cache that lags behind
//! ([`confirm`]), a pod that the cache does not show and that may have been made is asked for by its name: nothing is ever
//! listed. Nothing is decided here.

mod pods;

use crate::build::names;
use crate::context::Context;
use crate::facts::{Facts, Lifecycle, Memory, PROGRAM_MISSING, PodFacts, Rejection, Role, Told};
use crate::plan::ObjectIdentity;
use crate::streams::Target;
use crate::{savepoint, status, time, validate};
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Service};
use kube::api::Api;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::{Resource, ResourceExt};
use sluice_crds::{StreamJob, StreamJobSpec, parse_manifest};
use sluice_protocol::Generation;

pub use pods::pod_facts;

/// Reads everything that decides about `job`, pods as the watch's cache shows them.
///
/// # Errors
/// The API server cannot be asked for the user's ConfigMap, or for one that the cache does not show.
pub async fn observe(context: &Context, job: &StreamJob) -> Result<Facts, kube::Error> {
    let namespace = job.namespace().unwrap_or_default();
    let memory = status::read_memory(job);
    let sql = read_sql(context, job, &namespace).await?;
    let stream = context.streams.view(&names::job_id(job), memory.generation);
    let (frozen, frozen_problem) = match frozen_spec(context, &namespace, &memory.program).await? {
        Ok(spec) => (Some(spec), None),
        Err(problem) => (None, Some(problem).filter(|_| !memory.program.is_empty())),
    };
    let (stable, given_up) = (memory.stable.as_ref(), memory.rolled_back.as_ref());
    let stable = frozen_spec(context, &namespace, stable.map_or("", |one| &one.program)).await?.ok();
    let given_up = frozen_spec(context, &namespace, given_up.map_or("", |one| &one.program)).await?.ok();
    let now = time::now();
    let pods = cached_pods(context, job, &namespace);
    Ok(Facts {
        now,
        name: job.name_any(),
        directory: names::job_id(job).to_string(),
        default_image: context.runtime_image.clone(),
        spec_generation: job.metadata.generation.unwrap_or_default(),
        desired: job.spec.state,
        program: validate::validate_program(job, sql),
        frozen,
        frozen_problem,
        stable,
        given_up,
        lifecycle: lifecycle(job),
        deleting: job.metadata.deletion_timestamp.is_some(),
        namespace_goes: false,
        has_finalizer: job.finalizers().iter().any(|finalizer| finalizer == names::FINALIZER),
        told: told(job),
        pods,
        disposals: savepoint::wanted_disposals(&context.savepoints, job, now),
        programs: programs(&context.config_maps, job, &namespace),
        service_generation: service_generation(&context.services, job, &namespace),
        report: stream.report,
        connected: stream.connected,
        unreachable_since: stream.unreachable_since,
        tried_since: stream.tried_since,
        stream_problem: stream.why,
        mostly_unreachable: context.streams.mostly_unreachable(),
        leading_since: context.streams.leading_since(),
        memory,
    })
}

/// The same facts with the pods that the cache does not show and that the API server knows, for a plan that acts. What was
/// read from ConfigMaps is not read again: one that changes meanwhile starts the next pass.
///
/// # Errors
/// The API server cannot be asked for pods.
pub async fn confirm(context: &Context, job: &StreamJob, facts: Facts) -> Result<Facts, kube::Error> {
    let namespace = job.namespace().unwrap_or_default();
    let needed = facts.frozen.as_ref().unwrap_or(&job.spec).task_manager_count();
    let pods = confirmed_pods(context, job, &namespace, &facts.memory, needed).await?;
    let stream = context.streams.view(&names::job_id(job), facts.memory.generation);
    Ok(Facts {
        now: time::now(),
        pods,
        report: stream.report,
        connected: stream.connected,
        unreachable_since: stream.unreachable_since,
        tried_since: stream.tried_since,
        stream_problem: stream.why,
        ..facts
    })
}

fn cached_pods(context: &Context, job: &StreamJob, namespace: &str) -> Vec<PodFacts> {
    let uid = job.uid().unwrap_or_default();
    let owned = context.pods.state_filter(|pod| pod.namespace().as_deref() == Some(namespace) && is_owned(pod, &uid));
    let mut facts: Vec<PodFacts> = owned.iter().filter_map(|pod| pod.facts.clone()).collect();
    facts.sort_by_key(|pod| (pod.generation, pod.role));
    facts
}

async fn confirmed_pods(
    context: &Context,
    job: &StreamJob,
    namespace: &str,
    memory: &Memory,
    needed: u32,
) -> Result<Vec<PodFacts>, kube::Error> {
    let uid = job.uid().unwrap_or_default();
    let mut facts = cached_pods(context, job, namespace);
    let pods = Api::<Pod>::namespaced(context.client.clone(), namespace);
    for name in unseen(&job.name_any(), memory, needed, &facts) {
        let pod = pods.get_opt(&name).await?.filter(|pod| is_owned(pod, &uid));
        facts.extend(pod.as_ref().and_then(pod_facts));
    }
    facts.sort_by_key(|pod| (pod.generation, pod.role));
    Ok(facts)
}

/// Names of pods that were perhaps made and that the cache does not show. TaskManagers are made in the order of their
/// indexes, and the watch shows them in that order: one before another that was seen is gone.
fn unseen(job: &str, memory: &Memory, needed: u32, seen: &[PodFacts]) -> Vec<String> {
    let generation = memory.generation;
    let roles = seen.iter().filter(|pod| pod.generation == generation).map(|pod| pod.role);
    let (mut has_job_manager, mut from) = (generation.0 == 0, memory.next_task_manager.saturating_sub(needed));
    for role in roles {
        match role {
            Role::JobManager => has_job_manager = true,
            Role::TaskManager(index) => from = from.max(index + 1),
        }
    }
    let job_manager = (!has_job_manager).then(|| names::job_manager(job, generation));
    let task_managers = (from..memory.next_task_manager).map(|index| names::task_manager(job, generation, index));
    job_manager.into_iter().chain(task_managers).collect()
}

fn is_owned<K: Resource>(object: &K, uid: &str) -> bool {
    object.meta().owner_references.iter().flatten().any(|owner| owner.uid == uid)
}

/// The SQL text of a program that is kept in a ConfigMap: `None` when the program is inline, else what was found.
async fn read_sql(
    context: &Context,
    job: &StreamJob,
    namespace: &str,
) -> Result<Option<validate::SqlText>, kube::Error> {
    let Some(from) = &job.spec.program.sql_from else { return Ok(None) };
    let key = &from.config_map_key_ref;
    let config_map = Api::<ConfigMap>::namespaced(context.client.clone(), namespace).get_opt(&key.name).await?;
    Ok(Some(match config_map {
        None => validate::SqlText::NoConfigMap,
        Some(config_map) => match config_map.data.unwrap_or_default().remove(&key.key) {
            None => validate::SqlText::NoKey,
            Some(sql) => validate::SqlText::Found(sql),
        },
    }))
}

fn lifecycle(job: &StreamJob) -> Lifecycle {
    let StreamJobSpec { upgrade, stability, deletion, .. } = &job.spec;
    Lifecycle { upgrade: upgrade.clone(), stability: stability.clone(), deletion: deletion.clone() }
}

/// The spec that a ConfigMap holds, or why that is not known. One that the cache does not have yet is asked for.
async fn frozen_spec(
    context: &Context,
    namespace: &str,
    program: &str,
) -> Result<Result<StreamJobSpec, Rejection>, kube::Error> {
    let cached = context.config_maps.get(&ObjectRef::new(program).within(namespace));
    let found = match cached {
        Some(config_map) => Some(read_frozen(&config_map)),
        None if program.is_empty() => None,
        None => {
            let config_maps = Api::<ConfigMap>::namespaced(context.client.clone(), namespace);
            config_maps.get_opt(program).await?.map(|config_map| read_frozen(&config_map))
        }
    };
    Ok(found.unwrap_or_else(|| {
        let message = format!("ConfigMap {program}, which holds the program that runs, is gone");
        Err(Rejection { reason: PROGRAM_MISSING.to_owned(), message })
    }))
}

fn read_frozen(config_map: &ConfigMap) -> Result<StreamJobSpec, Rejection> {
    let text = config_map.data.as_ref().and_then(|data| data.get(names::MANIFEST_KEY));
    let parsed = parse_manifest(text.map_or("", String::as_str));
    parsed.map(|job| job.spec).map_err(|error| Rejection {
        reason: "ProgramUnreadable".to_owned(),
        message: format!(
            "ConfigMap {}, which holds the program that runs, cannot be read by this version of the operator: {error}",
            config_map.name_any()
        ),
    })
}

fn programs(store: &Store<ConfigMap>, job: &StreamJob, namespace: &str) -> Vec<ObjectIdentity> {
    let uid = job.uid().unwrap_or_default();
    let owned = store
        .state_filter(|config_map| config_map.namespace().as_deref() == Some(namespace) && is_owned(config_map, &uid));
    let identity = |config_map: &ConfigMap| ObjectIdentity {
        name: config_map.name_any(),
        uid: config_map.uid().unwrap_or_default(),
        version: config_map.resource_version(),
    };
    let mut programs: Vec<_> = owned.iter().map(|config_map| identity(config_map)).collect();
    programs.sort_by(|one, other| one.name.cmp(&other.name));
    programs
}

fn service_generation(store: &Store<Service>, job: &StreamJob, namespace: &str) -> Option<u64> {
    let service = store.get(&ObjectRef::new(&names::service(&job.name_any())).within(namespace))?;
    if !is_owned(service.as_ref(), &job.uid().unwrap_or_default()) {
        return None;
    }
    service.spec.as_ref()?.selector.as_ref()?.get(names::GENERATION_LABEL)?.parse().ok()
}

fn told(job: &StreamJob) -> Told {
    let Some(status) = &job.status else { return Told::default() };
    let condition = |kind: &str| status.conditions.iter().find(|condition| condition.type_ == kind);
    let holds = |kind: &str| condition(kind).filter(|condition| condition.status == "True");
    let progressing = condition(status::PROGRESSING);
    Told {
        state: status.state,
        reason: progressing.map(|condition| condition.reason.clone()).unwrap_or_default(),
        message: status.message.clone().unwrap_or_default(),
        failure: status.failures.first().and_then(|failure| failure.message.clone()),
        observed_generation: status.observed_generation.unwrap_or_default(),
        generation: Generation(status.generation.unwrap_or_default()),
        ready: holds(status::READY).is_some(),
        degraded: holds(status::DEGRADED)
            .map(|wrong| Rejection { reason: wrong.reason.clone(), message: wrong.message.clone() }),
    }
}

/// Where the JobManager of a generation answers: its pod's own address, so that no other pod can answer for it.
#[must_use]
pub fn job_manager_target(facts: &Facts) -> Option<Target> {
    let generation = facts.memory.generation;
    let pod = facts.pods.iter().find(|pod| {
        pod.role == Role::JobManager && pod.generation == generation && pod.ended.is_none() && pod.started
    })?;
    let address = format!("{}:{}", pod.ip.as_ref()?, names::RPC_PORT);
    Some(Target { generation, address, tls: pod.tls })
}

#[cfg(test)]
mod tests;
