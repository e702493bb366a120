//! The pods of a job: what they have in common, and the user's `podTemplate` merged in.
//!
//! Lists merge by their keys as Kubernetes' own do: containers, volumes and environment by name, mounts by path, ports by
//! number; tolerations and a node selector are replaced. What the protocol rests on was refused by name before
//! (`sluice_crds::pod_template::protected`), and is put back here all the same.

use super::{containers, map, metadata, names};
use crate::certificates::keys;
use crate::facts::Role;
use crate::plan::PodPlan;
use k8s_openapi::DeepMerge;
use k8s_openapi::api::core::v1::{
    ConfigMapProjection, Container, EmptyDirVolumeSource, KeyToPath, Pod, PodSecurityContext, PodSpec, PodTemplateSpec,
    ProjectedVolumeSource, SeccompProfile, SecretProjection, TopologySpreadConstraint, Volume, VolumeProjection,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::ResourceExt;
use sluice_crds::pod_template::decode_pod_template;
use sluice_crds::pod_template::protected::SECRETS_DIRECTORY;
use sluice_crds::{Problem, StreamJob, StreamJobSpec};
use sluice_protocol::secrets::{SecretReference, references};
use sluice_rpc::tls;
use std::collections::BTreeMap;

/// The user and group of job pods; the image's own.
const USER: i64 = 65_532;

/// Autoscalers may remove a node with this pod: its volumes hold nothing that lasts, and another takes its place. They
/// would leave it alone otherwise, since they do not know its owner's kind.
const SAFE_TO_EVICT: &str = "cluster-autoscaler.kubernetes.io/safe-to-evict";

/// Time between SIGTERM and SIGKILL: for a JobManager little, since the ledger fences and nothing is lost by being
/// quick; for a TaskManager enough for a checkpoint, after which its tasks run elsewhere.
const fn grace_seconds(role: Role) -> i64 {
    match role {
        Role::JobManager => 10,
        Role::TaskManager(_) => 30,
    }
}

/// The private keys are for the user and group of the pod alone.
const PROGRAM_MODE: i32 = 0o440;

/// How the processes of a pod speak with others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Security {
    /// With the job's certificates.
    Tls,
    /// As the JobManager of their generation does, which an older controller made.
    Plain,
}

/// A pod of `job` as planned; `spec` is the frozen one.
///
/// # Errors
/// The spec's `podTemplate` is not one: its place and what is wrong.
pub fn build_pod(job: &StreamJob, spec: &StreamJobSpec, plan: &PodPlan, security: Security) -> Result<Pod, Problem> {
    let (field, template) = match plan.role {
        Role::JobManager => ("spec.jobManager.podTemplate", &spec.job_manager.pod_template),
        Role::TaskManager(_) => ("spec.taskManager.podTemplate", &spec.task_manager.pod_template),
    };
    let pod = own_pod(job, spec, plan, security);
    match template {
        None => Ok(pod),
        Some(template) => Ok(merge(pod, decode_pod_template(field, template)?)),
    }
}

fn own_pod(job: &StreamJob, spec: &StreamJobSpec, plan: &PodPlan, security: Security) -> Pod {
    let generation = (names::GENERATION_LABEL, plan.generation.to_string());
    let name = job.name_any();
    let (name, mut labels) = match plan.role {
        Role::JobManager => {
            let labels = vec![generation, (names::COMPONENT_LABEL, names::JOB_MANAGER.to_owned())];
            (names::job_manager(&name, plan.generation), labels)
        }
        Role::TaskManager(index) => {
            let component = (names::COMPONENT_LABEL, names::TASK_MANAGER.to_owned());
            let labels = vec![generation, component, (names::INDEX_LABEL, index.to_string())];
            (names::task_manager(&name, plan.generation, index), labels)
        }
    };
    let mut container = match plan.role {
        Role::JobManager => containers::job_manager(job, spec, plan),
        Role::TaskManager(_) => containers::task_manager(job, spec, plan, &name),
    };
    if security == Security::Tls {
        labels.push((names::TLS_LABEL, "true".to_owned()));
        container.args.get_or_insert_default().extend(containers::tls_flags());
    }
    let mut metadata = metadata(job, name, &labels);
    metadata.annotations = Some(map(&[(SAFE_TO_EVICT, "true")]));
    let mut spec = pod_spec(container, plan, program_volume(job, spec, plan, security));
    if matches!(plan.role, Role::TaskManager(_)) {
        spec.topology_spread_constraints = Some(vec![spread(metadata.labels.clone().unwrap_or_default())]);
    }
    Pod { metadata, spec: Some(spec), status: None }
}

/// TaskManagers of one generation lie on several nodes where there are several, so that a lost node takes few along.
fn spread(mut labels: BTreeMap<String, String>) -> TopologySpreadConstraint {
    labels.retain(|label, _| [names::JOB_LABEL, names::COMPONENT_LABEL, names::GENERATION_LABEL].contains(&&**label));
    TopologySpreadConstraint {
        max_skew: 1,
        topology_key: "kubernetes.io/hostname".to_owned(),
        when_unsatisfiable: "ScheduleAnyway".to_owned(),
        label_selector: Some(LabelSelector { match_labels: Some(labels), match_expressions: None }),
        ..TopologySpreadConstraint::default()
    }
}

/// The frozen manifest and the certificate of the pod's role in one volume; the authority's key stays out of it. The
/// kubelet keeps it up to date.
fn program_volume(job: &StreamJob, spec: &StreamJobSpec, plan: &PodPlan, security: Security) -> Volume {
    let program = VolumeProjection {
        config_map: Some(ConfigMapProjection { name: plan.config_map.clone(), ..ConfigMapProjection::default() }),
        ..VolumeProjection::default()
    };
    let role = match plan.role {
        Role::JobManager => tls::Role::JobManager,
        Role::TaskManager(_) => tls::Role::TaskManager,
    };
    let (certificate, key) = keys(role);
    let file = |key: String, name: &str| KeyToPath {
        path: format!("{}/{name}", containers::TLS_SUBDIRECTORY),
        key,
        mode: None,
    };
    let items = vec![
        file(tls::AUTHORITY_FILE.to_owned(), tls::AUTHORITY_FILE),
        file(certificate, tls::CERTIFICATE_FILE),
        file(key, tls::KEY_FILE),
    ];
    let name = names::certificates(&job.name_any());
    let certificates = VolumeProjection {
        secret: Some(SecretProjection { name, items: Some(items), optional: None }),
        ..VolumeProjection::default()
    };
    let sources = std::iter::once(program)
        .chain((security == Security::Tls).then_some(certificates))
        .chain(secrets(spec.program.sql.as_deref().unwrap_or_default()));
    Volume {
        name: containers::PROGRAM_VOLUME.to_owned(),
        projected: Some(ProjectedVolumeSource { sources: Some(sources.collect()), default_mode: Some(PROGRAM_MODE) }),
        ..Volume::default()
    }
}

/// What the program names as `${secret:NAME/KEY}`, each a file `NAME/KEY`. The kubelet reads the values, the controller never
/// does; a Secret or key that is not there keeps the pod from starting.
fn secrets(program: &str) -> Vec<VolumeProjection> {
    let mut by_name: BTreeMap<String, Vec<KeyToPath>> = BTreeMap::new();
    for SecretReference { name, key } in references(program) {
        let path = format!("{}/{name}/{key}", SECRETS_DIRECTORY);
        by_name.entry(name).or_default().push(KeyToPath { path, key, mode: None });
    }
    let projection = |(name, items)| VolumeProjection {
        secret: Some(SecretProjection { name, items: Some(items), optional: Some(false) }),
        ..VolumeProjection::default()
    };
    by_name.into_iter().map(projection).collect()
}

fn pod_spec(container: Container, plan: &PodPlan, program: Volume) -> PodSpec {
    PodSpec {
        containers: vec![container],
        restart_policy: Some("Never".to_owned()),
        automount_service_account_token: Some(false),
        enable_service_links: Some(false),
        termination_grace_period_seconds: Some(grace_seconds(plan.role)),
        security_context: Some(PodSecurityContext {
            run_as_non_root: Some(true),
            run_as_user: Some(USER),
            run_as_group: Some(USER),
            fs_group: Some(USER),
            seccomp_profile: Some(SeccompProfile { type_: "RuntimeDefault".to_owned(), localhost_profile: None }),
            ..PodSecurityContext::default()
        }),
        volumes: Some(vec![
            program,
            Volume {
                name: containers::TMP_VOLUME.to_owned(),
                empty_dir: Some(EmptyDirVolumeSource::default()),
                ..Volume::default()
            },
        ]),
        ..PodSpec::default()
    }
}

/// Merges as Kubernetes does. A volume of the same name is another source, not two in one.
fn merge(own: Pod, template: PodTemplateSpec) -> Pod {
    let mut pod = own.clone();
    let replaced = |volume: &Volume| {
        let others = template.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
        volume.name != containers::PROGRAM_VOLUME && others.into_iter().any(|other| other.name == volume.name)
    };
    if let Some(volumes) = pod.spec.as_mut().and_then(|spec| spec.volumes.as_mut()) {
        volumes.retain(|volume| !replaced(volume));
    }
    let meta = template.metadata.unwrap_or_default();
    pod.metadata.annotations.get_or_insert_default().extend(meta.annotations.unwrap_or_default());
    pod.metadata.labels.get_or_insert_default().extend(meta.labels.unwrap_or_default());
    pod.spec.merge_from(template.spec);
    restore_own(&mut pod, own);
    pod
}

fn restore_own(pod: &mut Pod, own: Pod) {
    pod.metadata.labels.get_or_insert_default().extend(own.metadata.labels.unwrap_or_default());
    let (Some(spec), Some(own_spec)) = (&mut pod.spec, own.spec) else { return };
    spec.restart_policy = own_spec.restart_policy;
    for own_container in own_spec.containers {
        if let Some(container) = spec.containers.iter_mut().find(|container| container.name == own_container.name) {
            container.args = own_container.args;
            container.command = own_container.command;
            container.image = own_container.image;
            container.termination_message_path = own_container.termination_message_path;
        }
    }
}
