//! The Secret `<job>-tls`: what lies under which key, and how it is read back.
//!
//! `ca.crt` is what every process believes; `tls.crt` and `tls.key` are those of a client, so that the Secret's files as
//! they are serve `--tls-directory`; pods get the pair of their role under these names. `signer.*` and `next.*` are the
//! controller's alone.

use super::renewal::{Held, Lives, Step};
use super::{ApplyError, CertificateError};
use crate::apply::is_controlled_by;
use crate::build::{metadata, names};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::Api;
use kube::{Client, ResourceExt};
use sluice_crds::StreamJob;
use sluice_protocol::Timestamp;
use sluice_rpc::tls::authority::{Authority, AuthorityError};
use sluice_rpc::tls::{AUTHORITY_FILE, CERTIFICATE_FILE, KEY_FILE, Role};
use std::collections::BTreeMap;

const HELD: &str = "sluice.dev/certificates";
const SIGNER: &str = "signer";
const NEXT: &str = "next";

/// The roles whose certificates lie in the Secret.
const ROLES: [Role; 3] = [Role::Client, Role::JobManager, Role::TaskManager];

/// What the Secret holds.
#[derive(Clone)]
pub(super) struct Material {
    pub(super) held: Held,
    data: BTreeMap<String, String>,
}

/// The keys of a role's certificate and private key.
pub(crate) fn keys(role: Role) -> (String, String) {
    match role {
        Role::Client => (CERTIFICATE_FILE.to_owned(), KEY_FILE.to_owned()),
        role => pair(role.name()),
    }
}

fn pair(name: &str) -> (String, String) {
    (format!("{name}.crt"), format!("{name}.key"))
}

impl Material {
    fn get(&self, key: &str) -> &str {
        self.data.get(key).map_or("", String::as_str)
    }

    /// The authority that signs.
    pub(super) fn authority(&self, uid: &str) -> Result<Authority, AuthorityError> {
        let (certificate, key) = pair(SIGNER);
        Authority::from_pem(uid, self.get(&certificate), self.get(&key))
    }

    fn next(&self, uid: &str) -> Result<Authority, AuthorityError> {
        let (certificate, key) = pair(NEXT);
        Authority::from_pem(uid, self.get(&certificate), self.get(&key))
    }

    /// What is remembered of it: a thousand jobs' certificates would be megabytes.
    pub(super) fn without_leaves(mut self) -> Self {
        for (certificate, key) in ROLES.map(keys) {
            self.data.remove(&certificate);
            self.data.remove(&key);
        }
        self
    }

    fn has_leaves(&self) -> bool {
        ROLES.iter().flat_map(|role| <[String; 2]>::from(keys(*role))).all(|key| !self.get(&key).is_empty())
    }

    /// All authorities that are believed.
    pub(super) fn bundle(&self) -> String {
        self.get(AUTHORITY_FILE).to_owned()
    }

    fn put(&mut self, name: &str, certificate: &str, key: String) {
        let (at_certificate, at_key) = pair(name);
        self.data.insert(at_certificate, certificate.to_owned());
        self.data.insert(at_key, key);
    }

    /// Certificates for all roles, by the authority that signs.
    fn issue(&mut self, uid: &str, now: Timestamp, lives: &Lives) -> Result<(), AuthorityError> {
        let authority = self.authority(uid)?;
        for role in ROLES {
            let issued = authority.issue(role, now, lives.leaf)?;
            let (certificate, key) = keys(role);
            self.data.insert(certificate, issued.certificate);
            self.data.insert(key, issued.key);
        }
        self.held.leaves_since = now;
        Ok(())
    }
}

/// What there is after a step.
pub(super) fn renewed(
    uid: &str,
    held: Option<&Material>,
    step: Step,
    now: Timestamp,
    lives: &Lives,
) -> Result<Material, CertificateError> {
    let Some(mut material) = held.cloned().filter(|_| step != Step::Make) else {
        let authority = Authority::new(uid, now, lives.authority)?;
        let held = Held { authority_since: now, leaves_since: now, next_since: None };
        let mut material = Material { held, data: BTreeMap::new() };
        material.put(SIGNER, authority.certificate(), authority.key());
        material.data.insert(AUTHORITY_FILE.to_owned(), authority.certificate().to_owned());
        material.issue(uid, now, lives)?;
        return Ok(material);
    };
    let signer = material.authority(uid)?;
    match step {
        Step::Keep | Step::Make => {}
        Step::Renew => {
            if material.held.next_since.is_none() {
                material.data.insert(AUTHORITY_FILE.to_owned(), signer.certificate().to_owned());
            }
            material.issue(uid, now, lives)?;
        }
        Step::Introduce => {
            let next = Authority::new(uid, now, lives.authority)?;
            material.put(NEXT, next.certificate(), next.key());
            material.data.insert(AUTHORITY_FILE.to_owned(), format!("{}{}", signer.certificate(), next.certificate()));
            material.held.next_since = Some(now);
        }
        Step::Switch => {
            let next = material.next(uid)?;
            material.put(SIGNER, next.certificate(), next.key());
            material.data.insert(AUTHORITY_FILE.to_owned(), format!("{}{}", next.certificate(), signer.certificate()));
            let (certificate, key) = pair(NEXT);
            material.data.remove(&certificate);
            material.data.remove(&key);
            material.held.authority_since = material.held.next_since.take().unwrap_or(now);
            material.issue(uid, now, lives)?;
        }
    }
    if !material.has_leaves() {
        material.issue(uid, now, lives)?;
    }
    Ok(material)
}

/// The Secret with its material.
pub(super) fn build(job: &StreamJob, material: &Material) -> Secret {
    let mut metadata = metadata(job, names::certificates(&job.name_any()), &[]);
    let held = serde_json::to_string(&material.held).unwrap_or_default();
    metadata.annotations = Some([(HELD.to_owned(), held)].into());
    let data = material.data.iter().map(|(key, text)| (key.clone(), ByteString(text.clone().into_bytes())));
    Secret { metadata, data: Some(data.collect()), type_: Some("Opaque".to_owned()), ..Secret::default() }
}

/// What a Secret holds; `None` when something is missing or is not what it should be: then all is made anew.
pub(super) fn parse(uid: &str, secret: &Secret) -> Option<Material> {
    let held: Held = serde_json::from_str(secret.annotations().get(HELD)?).ok()?;
    let text = |bytes: &ByteString| String::from_utf8(bytes.0.clone()).ok();
    let data: Option<_> = secret.data.iter().flatten().map(|(key, bytes)| Some((key.clone(), text(bytes)?))).collect();
    let material = Material { held, data: data? };
    let is_there = |key: &str| !material.get(key).is_empty();
    let complete = material.has_leaves() && is_there(AUTHORITY_FILE) && is_there(&pair(SIGNER).0);
    let believed = material.get(AUTHORITY_FILE).contains(material.get(&pair(SIGNER).0).trim());
    let usable = material.authority(uid).is_ok() && (held.next_since.is_none() || material.next(uid).is_ok());
    (complete && believed && usable).then_some(material)
}

/// The job's Secret: its resource version and what it holds.
pub(super) async fn read(client: &Client, job: &StreamJob) -> Result<Option<(String, Option<Material>)>, ApplyError> {
    let name = names::certificates(&job.name_any());
    let api = Api::<Secret>::namespaced(client.clone(), &job.namespace().unwrap_or_default());
    let failed = |source| ApplyError::Api { action: format!("read Secret {name}"), source };
    let Some(there) = api.get_opt(&name).await.map_err(failed)? else { return Ok(None) };
    if !is_controlled_by(&there, job) {
        return Err(ApplyError::NameTaken { kind: "Secret".to_owned(), name });
    }
    let material = parse(&job.uid().unwrap_or_default(), &there);
    Ok(Some((there.resource_version().unwrap_or_default(), material)))
}
