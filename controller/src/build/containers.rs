//! The main container of a JobManager and of a TaskManager: command line, environment, probes, security.

use super::{map, names};
use crate::plan::PodPlan;
use k8s_openapi::api::core::v1::{
    Capabilities, Container, ContainerPort, EnvFromSource, EnvVar, EnvVarSource, HTTPGetAction, ObjectFieldSelector,
    Probe, ResourceRequirements, SecretEnvSource, SecurityContext, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use sluice_crds::pod_template::protected::PROGRAM_DIRECTORY;
pub(super) use sluice_crds::pod_template::protected::PROGRAM_VOLUME;
use sluice_crds::{StreamJob, StreamJobSpec};

/// The volume of `/tmp`, the one place a container may write to.
pub(super) const TMP_VOLUME: &str = "tmp";

/// The certificate's directory, below that of the program.
pub(super) const TLS_SUBDIRECTORY: &str = "tls";

const TERMINATION_MESSAGE: &str = "/dev/termination-log";
const DIRECTIVE: &str = "SLUICE_DIRECTIVE";
const FAILURES: &str = "SLUICE_FAILURES";

pub(super) fn job_manager(job: &StreamJob, spec: &StreamJobSpec, plan: &PodPlan) -> Container {
    let id = names::job_id(job);
    let mut args = vec!["jobmanager".to_owned()];
    args.extend(identity(&id, plan));
    args.extend(flags(&[
        ("--revision", plan.revision.to_string()),
        ("--rpc-bind", format!("0.0.0.0:{}", names::RPC_PORT)),
        ("--rest-port", names::REST_PORT.to_string()),
        ("--termination-message", TERMINATION_MESSAGE.to_owned()),
    ]));
    let variable = |name: &str, json: &str| EnvVar {
        name: name.to_owned(),
        // Kubernetes would expand $(NAME).
        value: Some(json.replace("$(", "$$(")),
        value_from: None,
    };
    Container {
        name: names::JOB_MANAGER.to_owned(),
        args: Some(args),
        env: Some(vec![variable(DIRECTIVE, &plan.directive), variable(FAILURES, &plan.failures)]),
        ports: Some(vec![port("rpc", names::RPC_PORT), port("rest", names::REST_PORT)]),
        resources: Some(resources(spec.job_manager.resources.as_ref(), "20m", "64Mi")),
        ..common(spec, plan)
    }
}

pub(super) fn task_manager(job: &StreamJob, spec: &StreamJobSpec, plan: &PodPlan, pod: &str) -> Container {
    let id = names::job_id(job);
    let mut args = vec!["taskmanager".to_owned()];
    args.extend(identity(&id, plan));
    args.extend(flags(&[
        ("--id", pod.to_owned()),
        ("--job-manager", format!("{}.{}.svc:{}", names::service(&id.name), id.namespace, names::RPC_PORT)),
        ("--slots", spec.task_manager.slots.to_string()),
        ("--data-bind", format!("0.0.0.0:{}", names::DATA_PORT)),
        ("--data-advertise", format!("$(POD_IP):{}", names::DATA_PORT)),
        ("--rest-port", names::REST_PORT.to_string()),
        ("--termination-message", TERMINATION_MESSAGE.to_owned()),
    ]));
    Container {
        name: names::TASK_MANAGER.to_owned(),
        args: Some(args),
        env: Some(vec![pod_ip()]),
        ports: Some(vec![port("data", names::DATA_PORT), port("rest", names::REST_PORT)]),
        resources: Some(resources(spec.task_manager.resources.as_ref(), "50m", "128Mi")),
        ..common(spec, plan)
    }
}

fn identity(id: &sluice_protocol::JobId, plan: &PodPlan) -> Vec<String> {
    flags(&[
        ("--manifest", format!("{PROGRAM_DIRECTORY}/{}", names::MANIFEST_KEY)),
        ("--namespace", id.namespace.clone()),
        ("--name", id.name.clone()),
        ("--uid", id.uid.clone()),
        ("--generation", plan.generation.to_string()),
    ])
}

/// Where the process finds its certificate.
pub(super) fn tls_flags() -> Vec<String> {
    flags(&[("--tls-directory", format!("{PROGRAM_DIRECTORY}/{TLS_SUBDIRECTORY}"))])
}

fn flags(pairs: &[(&str, String)]) -> Vec<String> {
    pairs.iter().flat_map(|(flag, value)| [(*flag).to_owned(), value.clone()]).collect()
}

/// What both have in common; the caller names container, arguments, environment and ports.
fn common(spec: &StreamJobSpec, plan: &PodPlan) -> Container {
    Container {
        image: Some(plan.image.clone()),
        image_pull_policy: spec.image_pull_policy.map(|policy| policy.as_str().to_owned()),
        env_from: credentials(spec),
        termination_message_path: Some(TERMINATION_MESSAGE.to_owned()),
        // Where a process dies without its last word, the kubelet takes the end of its log.
        termination_message_policy: Some("FallbackToLogsOnError".to_owned()),
        liveness_probe: Some(probe("/healthz", 10, 6)),
        readiness_probe: Some(probe("/readyz", 2, 3)),
        security_context: Some(SecurityContext {
            allow_privilege_escalation: Some(false),
            read_only_root_filesystem: Some(true),
            capabilities: Some(Capabilities { drop: Some(vec!["ALL".to_owned()]), add: None }),
            ..SecurityContext::default()
        }),
        volume_mounts: Some(vec![
            VolumeMount {
                name: PROGRAM_VOLUME.to_owned(),
                mount_path: PROGRAM_DIRECTORY.to_owned(),
                read_only: Some(true),
                ..VolumeMount::default()
            },
            VolumeMount { name: TMP_VOLUME.to_owned(), mount_path: "/tmp".to_owned(), ..VolumeMount::default() },
        ]),
        ..Container::default()
    }
}

/// AWS_ACCESS_KEY_ID and its like, from the Secret that the user names: the controller never sees it.
fn credentials(spec: &StreamJobSpec) -> Option<Vec<EnvFromSource>> {
    let secret = spec.checkpointing.as_ref()?.storage_options.as_ref()?.credentials_secret.clone()?;
    let secret_ref = Some(SecretEnvSource { name: secret, optional: Some(false) });
    Some(vec![EnvFromSource { secret_ref, ..EnvFromSource::default() }])
}

fn pod_ip() -> EnvVar {
    let field = ObjectFieldSelector { field_path: "status.podIP".to_owned(), api_version: Some("v1".to_owned()) };
    EnvVar {
        name: "POD_IP".to_owned(),
        value: None,
        value_from: Some(EnvVarSource { field_ref: Some(field), ..EnvVarSource::default() }),
    }
}

fn port(name: &str, number: u16) -> ContainerPort {
    ContainerPort {
        name: Some(name.to_owned()),
        container_port: i32::from(number),
        protocol: Some("TCP".to_owned()),
        ..ContainerPort::default()
    }
}

fn probe(path: &str, period_seconds: i32, failures: i32) -> Probe {
    Probe {
        http_get: Some(HTTPGetAction {
            path: Some(path.to_owned()),
            port: IntOrString::String("rest".to_owned()),
            ..HTTPGetAction::default()
        }),
        period_seconds: Some(period_seconds),
        timeout_seconds: Some(5),
        failure_threshold: Some(failures),
        ..Probe::default()
    }
}

/// The user's, else requests that keep the pod out of the class that is evicted first.
fn resources(given: Option<&ResourceRequirements>, cpu: &str, memory: &str) -> ResourceRequirements {
    given.cloned().unwrap_or_else(|| ResourceRequirements {
        requests: Some(map(&[("cpu", cpu), ("memory", memory)]).into_iter().map(|(k, v)| (k, Quantity(v))).collect()),
        ..ResourceRequirements::default()
    })
}
