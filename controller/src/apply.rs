//! Step 6: the API calls of a plan. Idempotent: what is there already is left, what is gone already is no error.

use crate::build::{Security, build_disruption_budget, build_pod, build_program, build_service, names};
use crate::certificates::CertificateError;
use crate::context::Context;
use crate::facts::Role;
use crate::plan::{ObjectIdentity, Plan, PodPlan};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Client, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use sluice_crds::{Problem, StreamJob};
use sluice_protocol::Generation;
use sluice_protocol::job_master::Command;
use sluice_rpc::control::ControlError;
use std::fmt::Debug;

/// Why a plan could not be carried out. All are tried again.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// The API server refused or did not answer.
    #[error("cannot {action}: {}", describe(source))]
    Api {
        /// What was being done.
        action: String,
        /// What came back.
        #[source]
        source: kube::Error,
    },
    /// An object of that name belongs to somebody else.
    #[error("{kind} {name} belongs to another owner; it must go before this StreamJob's can be made")]
    NameTaken {
        /// Its kind.
        kind: String,
        /// Its name.
        name: String,
    },
    /// A pod cannot be created.
    #[error("{error}")]
    Pod {
        /// Which.
        role: Role,
        /// Why.
        #[source]
        error: Box<ApplyError>,
    },
    /// The spec does not make a pod.
    #[error("{0}")]
    Build(Problem),
    /// Certificates cannot be made.
    #[error(transparent)]
    Certificates(#[from] CertificateError),
    /// The frozen program cannot be written.
    #[error("{0}")]
    Program(String),
}

/// What the API server said, without its wrapping.
fn describe(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) if !status.message.is_empty() => format!("{} ({})", status.message, status.code),
        other => other.to_string(),
    }
}

impl ApplyError {
    /// Whether somebody else changed the object in between: tried again at once, on new facts.
    #[must_use]
    pub fn is_conflict(&self) -> bool {
        match self {
            Self::Api { source: kube::Error::Api(status), .. } => status.code == 409,
            Self::Pod { error, .. } => error.is_conflict(),
            _ => false,
        }
    }

    /// Whether it is certain that nothing was made: the API server has said no, or it was never asked.
    #[must_use]
    fn is_refusal(&self) -> bool {
        match self {
            Self::Api { source: kube::Error::Api(status), .. } => {
                (400..500).contains(&status.code) && !matches!(status.code, 408 | 409 | 429)
            }
            Self::Api { .. } => false,
            Self::Pod { error, .. } => error.is_refusal(),
            Self::NameTaken { .. } | Self::Certificates(_) | Self::Build(_) | Self::Program(_) => true,
        }
    }

    /// The lowest TaskManager index of `create` that no pod was made with, where that is certain: pods are made in the
    /// order of the list. It is free again (C2).
    #[must_use]
    pub fn unused_index(&self, create: &[PodPlan]) -> Option<u32> {
        let Self::Pod { role, .. } = self else { return None };
        let refused = create.iter().position(|pod| pod.role == *role).filter(|_| self.is_refusal())?;
        let indexes = create[refused..].iter().filter_map(|pod| match pod.role {
            Role::TaskManager(index) => Some(index),
            Role::JobManager => None,
        });
        indexes.min()
    }

    /// Whether nothing can be made any more because the namespace is being deleted.
    #[must_use]
    pub fn is_namespace_going(&self) -> bool {
        let says_so = |status: &kube::core::Status| {
            let causes = status.details.iter().flat_map(|details| &details.causes);
            causes.into_iter().any(|cause| cause.reason == "NamespaceTerminating")
                || status.message.contains("because it is being terminated")
        };
        matches!(self, Self::Api { source: kube::Error::Api(status), .. } if status.code == 403 && says_so(status))
    }

    /// CamelCase.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Api { source: kube::Error::Api(status), .. } if status.code == 403 => {
                if status.message.contains("exceeded quota") { "QuotaExceeded" } else { "Forbidden" }
            }
            Self::Api { .. } => "ApiError",
            Self::Pod { error, .. } => error.name(),
            Self::NameTaken { .. } => "NameTaken",
            Self::Build(_) => "InvalidPodTemplate",
            Self::Program(_) => "InvalidProgram",
            Self::Certificates(_) => "CertificateError",
        }
    }
}

/// Creates the frozen program of a plan: before any status names it, since nothing else could make it once the spec has
/// changed again. What no status comes to name is removed like a past revision's.
///
/// # Errors
/// It cannot be written, or the API server refuses or does not answer.
pub(crate) async fn create_program(context: &Context, job: &StreamJob, plan: &Plan) -> Result<(), ApplyError> {
    let Some(program) = &plan.program else { return Ok(()) };
    let config_map = build_program(job, program).map_err(|rejection| ApplyError::Program(rejection.message))?;
    let namespace = job.namespace().unwrap_or_default();
    let api = Api::<ConfigMap>::namespaced(context.client.clone(), &namespace);
    let name = config_map.name_any();
    let failed = |source| ApplyError::Api { action: format!("mark ConfigMap {name}"), source };
    if create_owned(&context.client, &namespace, job, &config_map).await? == Created::New {
        return Ok(());
    }
    // A past revision's program is used again, while a delete of it may still be on its way: with another version it is not
    // what that delete means (C2). One that is gone by now is an error, and the next pass makes it.
    let there = api.get_metadata(&name).await.map_err(failed)?.metadata;
    let mark = json!({"metadata": {
        "uid": there.uid,
        "annotations": {names::USED_ANNOTATION: there.resource_version},
    }});
    api.patch_metadata(&name, &PatchParams::default(), &Patch::Merge(&mark)).await.map(drop).map_err(failed)
}

/// Carries out everything but the program and the status. TaskManagers speak as plainly as the JobManager of `plain`, if
/// that is their generation. Whether a JobManager has heard what it is asked: one that refuses has.
///
/// # Errors
/// The first call that fails; the rest is left to the next pass.
pub async fn apply(
    context: &Context,
    job: &StreamJob,
    plan: &Plan,
    plain: Option<Generation>,
) -> Result<bool, ApplyError> {
    let Plan { memory, view: _, program: _, service, create, spec, delete, delete_programs, command, .. } = plan;
    let namespace = job.namespace().unwrap_or_default();
    let client = &context.client;
    for pod in delete {
        delete_exactly::<Pod>(context, &namespace, pod).await?;
    }
    if let Some(generation) = service {
        apply_owned(client, &namespace, job, build_service(job, *generation)).await?;
        let budget = build_disruption_budget(job, spec.as_ref().unwrap_or(&job.spec));
        apply_owned(client, &namespace, job, budget).await?;
    }
    for plan in create {
        let spec = spec.as_ref().unwrap_or(&job.spec);
        let failed = |error| ApplyError::Pod { role: plan.role, error: Box::new(error) };
        let security = if plain == Some(plan.generation) { Security::Plain } else { Security::Tls };
        let pod = build_pod(job, spec, plan, security).map_err(ApplyError::Build).map_err(failed)?;
        create_owned(client, &namespace, job, &pod).await.map_err(failed)?;
    }
    if create.iter().any(|plan| plan.role == Role::JobManager) {
        context.metrics.count_generation();
    }
    for program in delete_programs {
        delete_exactly::<ConfigMap>(context, &namespace, program).await?;
    }
    match command {
        Some(command) => Ok(ask(context, job, memory.generation, command).await),
        None => Ok(true),
    }
}

/// Whether it was heard.
async fn ask(context: &Context, job: &StreamJob, generation: Generation, command: &Command) -> bool {
    let request_id = request_id(command, generation);
    let asked = context.streams.execute(&names::job_id(job), generation, &request_id, command).await;
    if let Err(error) = &asked {
        tracing::warn!(?command, "the JobManager did not take a command, it is asked again: {error}");
    }
    !matches!(asked, Err(ControlError::Unreachable { .. }))
}

/// Names what is asked: the JobManager hands each on once. What must be asked again has another name.
fn request_id(command: &Command, generation: Generation) -> String {
    match command {
        Command::Stop | Command::Cancel => format!("controller-{command:?}-{generation}"),
        Command::Release => format!("controller-release-{generation}"),
        Command::Savepoint(request) => format!("controller-savepoint-{}", request.id),
        Command::TriggerCheckpoint { id } | Command::Dispose { id, .. } => format!("controller-{id}"),
        Command::Reconfigure(options) => format!("controller-options-{}", options.id),
    }
}

/// Puts or removes a finalizer: of the object as it was read, so that what others put meanwhile stays.
///
/// # Errors
/// The API server refuses or does not answer; an object that is gone is no error.
pub(crate) async fn write_finalizer<K>(
    client: &Client,
    object: &K,
    finalizer: &str,
    put: bool,
) -> Result<(), ApplyError>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned,
{
    let (kind, name) = (K::kind(&()), object.name_any());
    let others = object.finalizers().iter().map(String::as_str).filter(|one| *one != finalizer);
    let finalizers: Vec<_> = others.chain(put.then_some(finalizer)).collect();
    let patch = json!({"metadata": {"resourceVersion": object.resource_version(), "finalizers": finalizers}});
    let api = Api::<K>::namespaced(client.clone(), &object.namespace().unwrap_or_default());
    let parameters = PatchParams { field_manager: Some(names::MANAGER.to_owned()), ..PatchParams::default() };
    match api.patch_metadata(&name, &parameters, &Patch::Merge(&patch)).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        written => written
            .map(drop)
            .map_err(|source| ApplyError::Api { action: format!("write the finalizers of {kind} {name}"), source }),
    }
}

/// Writes a status over the one that was read: a status that another has written meanwhile is a conflict.
///
/// # Errors
/// The API server refuses or does not answer.
pub(crate) async fn write_status<K>(client: &Client, object: &K, status: &impl Serialize) -> Result<K, ApplyError>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned,
{
    let (kind, name) = (K::kind(&()), object.name_any());
    let patch = json!({
        "apiVersion": K::api_version(&()),
        "kind": kind,
        "metadata": {"name": name, "resourceVersion": object.resource_version()},
        "status": status,
    });
    let api = Api::<K>::namespaced(client.clone(), &object.namespace().unwrap_or_default());
    let written = api.patch_status(&name, &PatchParams::apply(names::MANAGER).force(), &Patch::Apply(&patch)).await;
    written.map_err(|source| ApplyError::Api { action: format!("write the status of {kind} {name}"), source })
}

/// What came of [`create_owned`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Created {
    /// It was made.
    New,
    /// It was there.
    There,
}

/// Creates an object of a StreamJob, unless it is there.
pub(crate) async fn create_owned<K>(
    client: &Client,
    namespace: &str,
    job: &StreamJob,
    object: &K,
) -> Result<Created, ApplyError>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + Serialize + DeserializeOwned,
{
    let api = Api::<K>::namespaced(client.clone(), namespace);
    let (kind, name) = (K::kind(&()).to_string(), object.name_any());
    let failed = |source| ApplyError::Api { action: format!("create {kind} {name}"), source };
    let parameters = PostParams { field_manager: Some(names::MANAGER.to_owned()), ..PostParams::default() };
    match api.create(&parameters, object).await {
        Ok(_) => Ok(Created::New),
        Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => {
            let there = api.get_metadata_opt(&name).await.map_err(failed)?;
            match there {
                Some(there) if !is_controlled_by(&there, job) => Err(ApplyError::NameTaken { kind, name }),
                _ => Ok(Created::There),
            }
        }
        Err(source) => Err(failed(source)),
    }
}

pub(crate) fn is_controlled_by(object: &impl Resource, job: &StreamJob) -> bool {
    let uid = job.uid().unwrap_or_default();
    let mut owners = object.meta().owner_references.iter().flatten();
    owners.any(|owner| owner.controller == Some(true) && owner.uid == uid)
}

/// Makes an object of a StreamJob what it should be; one of that name that is not the StreamJob's is left alone.
async fn apply_owned<K>(client: &Client, namespace: &str, job: &StreamJob, mut object: K) -> Result<(), ApplyError>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + Serialize + DeserializeOwned,
{
    let (kind, name) = (K::kind(&()).to_string(), object.name_any());
    let failed = |source| ApplyError::Api { action: format!("apply {kind} {name}"), source };
    let api = Api::<K>::namespaced(client.clone(), namespace);
    let there = api.get_metadata_opt(&name).await.map_err(failed)?;
    let Some(there) = there else { return create_owned(client, namespace, job, &object).await.map(drop) };
    if !is_controlled_by(&there, job) {
        return Err(ApplyError::NameTaken { kind, name });
    }
    // Another that takes its place meanwhile is a conflict.
    object.meta_mut().uid = there.metadata.uid;
    let applied = api.patch(&name, &PatchParams::apply(names::MANAGER).force(), &Patch::Apply(&object)).await;
    applied.map(drop).map_err(failed)
}

/// Deletes exactly this object (C2): one of the same name with another uid, or another version where one is named, is left
/// alone.
pub(crate) async fn delete_exactly<K>(
    context: &Context,
    namespace: &str,
    object: &ObjectIdentity,
) -> Result<(), ApplyError>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned,
{
    let uid = Some(object.uid.clone()).filter(|_| !context.planted.deletes_by_name);
    let resource_version = object.version.clone().filter(|_| !context.planted.deletes_by_name);
    let preconditions = Preconditions { uid, resource_version };
    let parameters = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
    let deleted = Api::<K>::namespaced(context.client.clone(), namespace).delete(&object.name, &parameters).await;
    ignore_gone(deleted.map(drop), || format!("delete {} {}", K::kind(&()), object.name))
}

/// 404: gone already. 409: another object has that name now.
fn ignore_gone(result: Result<(), kube::Error>, action: impl Fn() -> String) -> Result<(), ApplyError> {
    match result {
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
        other => other.map_err(|source| ApplyError::Api { action: action(), source }),
    }
}

#[cfg(test)]
mod tests;
