//! The certificates of each job's processes (mTLS): made, kept in one Secret per job, renewed.
//!
//! The Secret `<job>-tls` is owned by the StreamJob and written before the first pod that mounts it (C2). It holds the
//! job's authority with its private key, which no pod mounts, and one certificate per role. It is asked for by name,
//! never listed or watched: before pods are made, and otherwise no more often than [`LOOK`]. The authority stays in
//! memory, so that after somebody has deleted the Secret those who believe it go on. When what is renewed, [`renewal`]
//! decides.
//!
//! Renewal restarts nothing: processes read their files again when they change.

mod renewal;
mod secret;
pub(crate) use secret::keys;

#[cfg(test)]
mod tests;

use crate::apply::ApplyError;
use crate::build::names;
use crate::time::now;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, PostParams};
use kube::{Client, ResourceExt};
use renewal::{Lives, Step};
use secret::Material;
use sluice_crds::StreamJob;
use sluice_protocol::{TimeSpan, Timestamp};
use sluice_rpc::tls::authority::AuthorityError;
use sluice_rpc::tls::{Role, Tls, TlsError};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How long what was read is taken for what is there.
const LOOK: TimeSpan = TimeSpan::from_secs(600);

/// Certificates that cannot be made or read.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// The authority.
    #[error(transparent)]
    Authority(#[from] AuthorityError),
    /// The controller's own.
    #[error(transparent)]
    Own(#[from] TlsError),
}

/// The certificates of all jobs that this replica has looked after.
#[derive(Default)]
pub struct Certificates {
    lives: Lives,
    known: Mutex<HashMap<String, Known>>,
}

#[derive(Clone)]
struct Known {
    /// Without the certificates of the roles.
    material: Material,
    /// Of the controller, for this job.
    tls: Arc<Tls>,
    looked_at: Timestamp,
}

impl Certificates {
    /// The controller's own certificate for a job, as far as it has been looked after.
    #[must_use]
    pub fn of(&self, job_uid: &str) -> Option<Arc<Tls>> {
        self.lock().get(job_uid).map(|known| Arc::clone(&known.tls))
    }

    /// Forgets a job that is gone.
    pub fn forget(&self, job_uid: &str) {
        self.lock().remove(job_uid);
    }

    /// Makes the Secret what it should be; `fresh` when pods are about to rest on it. Returns when there is more to do.
    ///
    /// # Errors
    /// The API server refuses, another has the name, or somebody wrote the Secret meanwhile.
    pub(crate) async fn ensure(&self, client: &Client, job: &StreamJob, fresh: bool) -> Result<Timestamp, ApplyError> {
        let (uid, now) = (job.uid().unwrap_or_default(), now());
        let known = self.lock().get(&uid).cloned();
        let due = |known: &Known| renewal::due(&known.material.held, &self.lives);
        if let Some(known) = known.as_ref().filter(|known| !fresh && now < known.looked_at.plus(LOOK).min(due(known))) {
            return Ok(due(known));
        }
        let there = secret::read(client, job).await?;
        let remembered = known.map(|known| known.material);
        let mut damaged = false;
        let (version, held) = match there {
            Some((version, Some(found))) => (Some(version), Some(found)),
            // Damaged: written again by the same authority, where that is known.
            Some((version, None)) => {
                damaged = true;
                (Some(version), remembered)
            }
            None => (None, remembered),
        };
        let step = renewal::step(held.as_ref().map(|material| &material.held), now, &self.lives);
        let made = |error: CertificateError| ApplyError::Certificates(error);
        let material = secret::renewed(&uid, held.as_ref(), step, now, &self.lives).map_err(made)?;
        if version.is_none() || damaged || step != Step::Keep {
            write(client, job, version, &material).await?;
            tracing::info!(job = %names::job_id(job), ?step, "certificates written");
        }
        let tls = Arc::new(own(&uid, &material, now, &self.lives).map_err(made)?);
        let known = Known { material: material.without_leaves(), tls, looked_at: now };
        let next = due(&known);
        self.lock().insert(uid, known);
        Ok(next)
    }

    /// Forgets all: another replica may renew them from now on.
    pub fn clear(&self) {
        self.lock().clear();
    }

    /// A panic elsewhere must not stop the controller: the map is whole at every step.
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The controller's certificate is in no Secret: it signs one for itself whenever it has looked.
fn own(uid: &str, material: &Material, now: Timestamp, lives: &Lives) -> Result<Tls, CertificateError> {
    let mut credentials = material.authority(uid)?.issue(Role::Controller, now, lives.leaf)?;
    credentials.authority = material.bundle();
    Ok(Tls::of_client(&credentials)?)
}

async fn write(
    client: &Client,
    job: &StreamJob,
    version: Option<String>,
    material: &Material,
) -> Result<(), ApplyError> {
    let mut object = secret::build(job, material);
    let name = object.name_any();
    let api = Api::<Secret>::namespaced(client.clone(), &job.namespace().unwrap_or_default());
    let parameters = PostParams { field_manager: Some(names::MANAGER.to_owned()), ..PostParams::default() };
    let written = if version.is_some() {
        object.metadata.resource_version = version;
        api.replace(&name, &parameters, &object).await
    } else {
        api.create(&parameters, &object).await
    };
    written.map(drop).map_err(|source| ApplyError::Api { action: format!("write Secret {name}"), source })
}
