//! A pod, as far as decisions look at it. Pure.

use crate::build::names;
use crate::facts::{PodEnd, PodFacts, Rejection, Role};
use crate::time::from_time;
use k8s_openapi::api::core::v1::{ContainerState, ContainerStateTerminated, ContainerStatus, Pod, PodCondition};
use kube::ResourceExt;
use serde_json::Value;
use sluice_protocol::failure::{ExitKind, ExitRecord};
use sluice_protocol::{Generation, Timestamp};

/// Reads a pod of a job; `None` when it does not carry the labels of one.
#[must_use]
pub fn pod_facts(pod: &Pod) -> Option<PodFacts> {
    let generation = Generation(pod.labels().get(names::GENERATION_LABEL)?.parse().ok()?);
    let role = match pod.labels().get(names::COMPONENT_LABEL)?.as_str() {
        names::JOB_MANAGER => Role::JobManager,
        names::TASK_MANAGER => Role::TaskManager(pod.labels().get(names::INDEX_LABEL)?.parse().ok()?),
        _ => return None,
    };
    let created_at = pod.metadata.creation_timestamp.as_ref().map(from_time).unwrap_or_default();
    let container = main_container(pod);
    Some(PodFacts {
        name: pod.name_any(),
        uid: pod.uid().unwrap_or_default(),
        generation,
        role,
        image: pod.spec.as_ref().and_then(|spec| spec.containers.first()?.image.clone()).unwrap_or_default(),
        ip: pod.status.as_ref().and_then(|status| status.pod_ip.clone()).filter(|ip| !ip.is_empty()),
        tls: pod.labels().contains_key(names::TLS_LABEL),
        terminating: pod.metadata.deletion_timestamp.is_some(),
        ended: pod_end(pod, container, created_at),
        lingers: container.is_some_and(has_terminated) && !is_over(pod),
        started: container.and_then(|status| status.state.as_ref()).is_some_and(|state| state.waiting.is_none()),
        ready_since: condition(pod, "Ready")
            .filter(|condition| condition.status == "True")
            .and_then(|condition| condition.last_transition_time.as_ref().map(from_time)),
        unready_since: unready_since(pod, container),
        on_lost_node: is_on_lost_node(pod, container),
        drained: is_drained(pod),
        problem: problem(pod, container),
        created_at,
    })
}

fn main_container(pod: &Pod) -> Option<&ContainerStatus> {
    let component = pod.labels().get(names::COMPONENT_LABEL)?;
    pod.status.as_ref()?.container_statuses.as_ref()?.iter().find(|status| status.name == *component)
}

/// A pod has ended when its main container has, or when the pod is declared failed as a whole (evicted, for one).
fn pod_end(pod: &Pod, container: Option<&ContainerStatus>, created_at: Timestamp) -> Option<PodEnd> {
    if let Some(terminated) = container.and_then(|status| status.state.as_ref()?.terminated.as_ref()) {
        return Some(PodEnd {
            record: exit_record(terminated),
            account: account(terminated),
            last_log_lines: last_log_lines(terminated),
            at: terminated.finished_at.as_ref().map_or(created_at, from_time),
        });
    }
    let status = pod.status.as_ref().filter(|_| is_over(pod))?;
    let reason = status.reason.as_deref().unwrap_or("the pod ended");
    let message = status.message.as_deref().unwrap_or_default();
    Some(PodEnd {
        record: None,
        account: format!("{reason} {message}").trim_end().to_owned(),
        last_log_lines: None,
        at: created_at,
    })
}

fn has_terminated(container: &ContainerStatus) -> bool {
    container.state.as_ref().is_some_and(|state| state.terminated.is_some())
}

/// Whether none of its containers runs, or will.
fn is_over(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Failed" | "Succeeded"))
}

fn exit_record(terminated: &ContainerStateTerminated) -> Option<ExitRecord> {
    let record: Value = serde_json::from_str(terminated.message.as_deref()?.trim()).ok()?;
    serde_json::from_value(record.clone()).ok().or_else(|| exit_record_of_later_version(record))
}

/// A kind of end that this version does not know: the rest of the record is read all the same.
fn exit_record_of_later_version(mut record: Value) -> Option<ExitRecord> {
    let kind = record.get_mut("kind").filter(|kind| kind.is_string())?;
    *kind = serde_json::to_value(ExitKind::Internal).ok()?;
    serde_json::from_value(record).ok()
}

/// What the kubelet puts in the place of a termination message: the end of the log.
fn last_log_lines(terminated: &ContainerStateTerminated) -> Option<String> {
    let text = terminated.message.as_deref().map(str::trim).filter(|text| !text.is_empty())?;
    exit_record(terminated).is_none().then(|| text.to_owned())
}

fn account(terminated: &ContainerStateTerminated) -> String {
    let reason = terminated.reason.as_deref().unwrap_or("ended");
    format!("{reason} (exit code {})", terminated.exit_code)
}

/// Only of a pod whose container runs: one that starts is not yet ready, which is no sign of death.
fn unready_since(pod: &Pod, container: Option<&ContainerStatus>) -> Option<Timestamp> {
    let running = container.and_then(|status| status.state.as_ref()?.running.as_ref())?;
    let ready = condition(pod, "Ready").filter(|condition| condition.status == "False")?;
    let since = ready.last_transition_time.as_ref().map(from_time)?;
    let started = running.started_at.as_ref().map(from_time).unwrap_or_default();
    Some(since.max(started))
}

/// The node controller says of the pods of a node that does not answer that they are not ready, and no more: what the
/// kubelet last said of their containers stays. That needs no right to look at nodes.
fn is_on_lost_node(pod: &Pod, container: Option<&ContainerStatus>) -> bool {
    let is = |kind: &str, status: &str| condition(pod, kind).is_some_and(|condition| condition.status == status);
    // A readiness gate that is not met has a reason.
    let no_reason = condition(pod, "Ready").is_some_and(|ready| ready.reason.as_deref().is_none_or(str::is_empty));
    no_reason && is("Ready", "False") && is("ContainersReady", "True") && container.is_some_and(|status| status.ready)
}

/// Eviction for its use of the node's memory or disk is the pod's own doing.
fn is_drained(pod: &Pod) -> bool {
    let is_evicted = pod.status.as_ref().and_then(|status| status.reason.as_deref()) == Some("Evicted");
    !is_evicted && condition(pod, "DisruptionTarget").is_some_and(|condition| condition.status == "True")
}

fn condition<'a>(pod: &'a Pod, kind: &str) -> Option<&'a PodCondition> {
    pod.status.as_ref()?.conditions.as_ref()?.iter().find(|condition| condition.type_ == kind)
}

/// What keeps a pod from starting: a place it cannot get, an image or a Secret that is not there.
fn problem(pod: &Pod, container: Option<&ContainerStatus>) -> Option<Rejection> {
    // The job's own container first, then what `podTemplate` adds.
    let status = pod.status.as_ref();
    let added = status.and_then(|status| status.container_statuses.as_ref()).into_iter().flatten();
    let first = status.and_then(|status| status.init_container_statuses.as_ref()).into_iter().flatten();
    let mut containers = container.into_iter().chain(first).chain(added);
    if let Some((reason, message)) = containers.find_map(|status| waiting_reason(status.state.as_ref()?)) {
        return Some(Rejection { message: format!("pod {}: {message}", pod.name_any()), reason });
    }
    let scheduled = condition(pod, "PodScheduled").filter(|condition| condition.status == "False")?;
    Some(Rejection {
        reason: scheduled.reason.clone().unwrap_or_else(|| "Unschedulable".to_owned()),
        message: format!("pod {}: {}", pod.name_any(), scheduled.message.as_deref().unwrap_or("has no node yet")),
    })
}

fn waiting_reason(state: &ContainerState) -> Option<(String, String)> {
    let waiting = state.waiting.as_ref()?;
    let reason = waiting.reason.as_deref()?;
    let harmless = matches!(reason, "ContainerCreating" | "PodInitializing");
    let message = waiting.message.clone().unwrap_or_else(|| reason.to_owned());
    (!harmless).then(|| (reason.to_owned(), message))
}

#[cfg(test)]
mod tests;
