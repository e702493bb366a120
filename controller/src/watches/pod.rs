//! A pod as it is kept in memory: who it belongs to, and its facts. A Pod of the API is ten times as large.
//!
//! Callers rely on: what decisions look at is read when the pod arrives ([`pod_facts`]), of a pod asked for by name in the
//! same way.

use crate::facts::PodFacts;
use crate::observe::pod_facts;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::Deserialize;
use std::borrow::Cow;

/// Read from a Pod.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(from = "Pod")]
pub(crate) struct WatchedPod {
    metadata: ObjectMeta,
    /// `None` when it does not carry the labels of one of a job.
    pub(crate) facts: Option<PodFacts>,
}

impl From<Pod> for WatchedPod {
    fn from(pod: Pod) -> Self {
        let facts = pod_facts(&pod);
        let ObjectMeta { name, namespace, uid, owner_references, resource_version, .. } = pod.metadata;
        let metadata = ObjectMeta { name, namespace, uid, owner_references, resource_version, ..ObjectMeta::default() };
        Self { metadata, facts }
    }
}

impl Resource for WatchedPod {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind(kind: &()) -> Cow<'_, str> {
        Pod::kind(kind)
    }

    fn group(kind: &()) -> Cow<'_, str> {
        Pod::group(kind)
    }

    fn version(kind: &()) -> Cow<'_, str> {
        Pod::version(kind)
    }

    fn plural(kind: &()) -> Cow<'_, str> {
        Pod::plural(kind)
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::build::names;
    use crate::facts::Role;
    use kube::core::DeserializeGuard;
    use kube::runtime::reflector::Lookup;
    use serde_json::json;

    #[test]
    fn a_pod_of_the_api_is_read_as_its_facts() {
        let owner = json!({"apiVersion": "sluice.dev/v1alpha1", "kind": "StreamJob", "name": "pv", "uid": "6d4f"});
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "pv-3-tm-1", "namespace": "ns", "uid": "u", "resourceVersion": "17", "ownerReferences": [owner],
                "labels": {names::GENERATION_LABEL: "3", names::COMPONENT_LABEL: "taskmanager", names::INDEX_LABEL: "1"}},
            "spec": {"containers": [{"name": "taskmanager", "image": "runtime:1"}]},
            "status": {"phase": "Running", "podIP": "10.0.0.1"},
        });
        let pod: DeserializeGuard<WatchedPod> = serde_json::from_value(pod).expect("is JSON");
        let mut pod = pod.0.expect("is a pod");
        // The watch goes on from its version.
        assert_eq!(pod.meta().resource_version.as_deref(), Some("17"));
        crate::watches::trim_pod(&mut pod);
        assert_eq!(pod.to_object_ref(()).to_string(), "Pod.v1./pv-3-tm-1.ns");
        assert_eq!(pod.meta().owner_references.as_ref().map(Vec::len), Some(1));
        let facts = pod.facts.expect("has the labels");
        assert_eq!(
            (facts.role, facts.image.as_str(), facts.ip.as_deref()),
            (Role::TaskManager(1), "runtime:1", Some("10.0.0.1"))
        );
    }
}
