//! The Service in front of the JobManager, and the ConfigMap with the frozen manifest.

use super::{metadata, names};
use crate::facts::{Program, Rejection};
use crate::validate::frozen_manifest;
use k8s_openapi::api::core::v1::{ConfigMap, Service, ServicePort, ServiceSpec};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::ResourceExt;
use sluice_crds::StreamJob;
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
