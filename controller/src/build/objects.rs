//! The Service in front of the JobManager, and the ConfigMap with the frozen manifest.

use super::{metadata, names};
use crate::facts::{Program, Rejection};
use crate::validate::frozen_manifest;
use k8s_openapi::api::core::v1::{ConfigMap, Service, ServicePort, ServiceSpec};
use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::ResourceExt;
use sluice_crds::{StreamJob, StreamJobSpec};
use sluice_protocol::Generation;

/// `<job>-jm`: the JobManager of one generation, from its first moment, since TaskManagers register before it is
/// ready.
#[must_use]
pub fn build_service(job: &StreamJob, generation: Generation) -> Service {
    let mut selector = names::labels(&job.name_any());
    selector.insert(names::COMPONENT_LABEL.to_owned(), names::JOB_MANAGER.to_owned());
    selector.insert(names::GENERATION_LABEL.to_owned(), generation.to_string());
    let port = |name: &str, port: u16| ServicePort {
        name: Some(name.to_owned()),
        port: i32::from(port),
        protocol: Some("TCP".to_owned()),
        target_port: Some(IntOrString::String(name.to_owned())),
        ..ServicePort::default()
    };
    Service {
        metadata: metadata(job, names::service(&job.name_any()), &[]),
        spec: Some(ServiceSpec {
            selector: Some(selector),
            ports: Some(vec![port("rpc", names::RPC_PORT), port("rest", names::REST_PORT)]),
            publish_not_ready_addresses: Some(true),
            ..ServiceSpec::default()
        }),
        status: None,
    }
}

/// `<job>-tm`: a drain takes TaskManagers away one at a time. The JobManager may always go, since another follows at
/// once. A number, since a share would ask the StreamJob's scale, which counts subtasks.
#[must_use]
pub fn build_disruption_budget(job: &StreamJob, spec: &StreamJobSpec) -> PodDisruptionBudget {
    let selector = super::map(&[
        (names::MANAGED_BY_LABEL, names::MANAGER),
        (names::JOB_LABEL, &job.name_any()),
        (names::COMPONENT_LABEL, names::TASK_MANAGER),
    ]);
    let stay = spec.task_manager_count().saturating_sub(1);
    PodDisruptionBudget {
        metadata: metadata(job, names::disruption_budget(&job.name_any()), &[]),
        spec: Some(PodDisruptionBudgetSpec {
            min_available: Some(IntOrString::Int(i32::try_from(stay).unwrap_or(i32::MAX))),
            selector: Some(LabelSelector { match_labels: Some(selector), match_expressions: None }),
            // One that does not answer holds up no drain.
            unhealthy_pod_eviction_policy: Some("AlwaysAllow".to_owned()),
            ..PodDisruptionBudgetSpec::default()
        }),
        status: None,
    }
}

/// `<job>-program-<hash>`: immutable; named by what it holds.
///
/// # Errors
/// The spec cannot be written as YAML.
pub fn build_program(job: &StreamJob, program: &Program) -> Result<ConfigMap, Rejection> {
    let text = frozen_manifest(&job.name_any(), &job.namespace().unwrap_or_default(), &program.spec)?;
    Ok(ConfigMap {
        metadata: metadata(job, program.config_map.clone(), &[]),
        data: Some([(names::MANIFEST_KEY.to_owned(), text)].into()),
        immutable: Some(true),
        ..ConfigMap::default()
    })
}
