//! Step 5: a plan's pods, Service and ConfigMap as Kubernetes objects. Pure.
//!
//! Every object carries the job's labels and is owned by the StreamJob (`controller: true`), so that deleting the
//! StreamJob deletes them and nothing else.

mod containers;
pub mod names;
mod objects;
mod pod;

pub use objects::{build_disruption_budget, build_program, build_service};
pub use pod::{Security, build_pod};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::Resource;
use sluice_crds::StreamJob;
use std::collections::BTreeMap;

/// The metadata of an object named `name` that belongs to `job`.
pub(crate) fn metadata(job: &StreamJob, name: String, extra: &[(&str, String)]) -> ObjectMeta {
    let mut labels = names::labels(job.metadata.name.as_deref().unwrap_or_default());
    labels.extend(extra.iter().map(|(key, value)| ((*key).to_owned(), value.clone())));
    ObjectMeta {
        name: Some(name),
        namespace: job.metadata.namespace.clone(),
        labels: Some(labels),
        owner_references: job.controller_owner_ref(&()).map(without_block).map(|owner| vec![owner]),
        ..ObjectMeta::default()
    }
}

/// Without `blockOwnerDeletion`, which needs a right on the StreamJob's finalizers and buys nothing here.
fn without_block(owner: OwnerReference) -> OwnerReference {
    OwnerReference { block_owner_deletion: None, ..owner }
}

fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

#[cfg(test)]
mod tests;
