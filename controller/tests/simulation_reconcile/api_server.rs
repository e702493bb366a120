//! An API server in memory: what the controller, the kubelets and people see of Kubernetes.
//!
//! As the real one: each object has a uid and a resourceVersion, a write may demand one, the generation rises with the
//! spec only, status is written apart, a deletion waits for finalizers and for the kubelet, a ConfigMap may be immutable,
//! what nobody owns any more is collected, and a watch goes on from a resourceVersion while it is remembered.
//! It knows no schema, no defaults and one field manager. Nothing here takes time or fails; `network` does both.

use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// How many changes a watch may be behind.
const REMEMBERED: usize = 600;

/// Resource, namespace and name.
pub(crate) type Key = (String, String, String);

/// One request.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    pub(crate) method: String,
    pub(crate) resource: String,
    pub(crate) api_version: String,
    pub(crate) namespace: String,
    pub(crate) name: Option<String>,
    pub(crate) subresource: Option<String>,
    pub(crate) query: BTreeMap<String, String>,
    /// The media type of a patch.
    pub(crate) content: String,
    /// Whether only metadata is asked for.
    pub(crate) partial: bool,
    pub(crate) body: Value,
}

impl Call {
    pub(crate) fn is_watch(&self) -> bool {
        self.query.get("watch").is_some_and(|watch| watch == "true")
    }

    pub(crate) fn key(&self) -> Key {
        (self.resource.clone(), self.namespace.clone(), self.name.clone().unwrap_or_default())
    }

    /// Whether an object is among those that are asked for.
    fn selects(&self, key: &Key, object: &Value) -> bool {
        let labels = self.query.get("labelSelector").map(String::as_str).unwrap_or_default();
        let has = |pair: &str| match pair.split_once('=') {
            Some((label, value)) => object["metadata"]["labels"][label] == value,
            None => !object["metadata"]["labels"][pair].is_null(),
        };
        key.0 == self.resource
            && (self.namespace.is_empty() || key.1 == self.namespace)
            && labels.split(',').filter(|pair| !pair.is_empty()).all(has)
    }
}

/// Its answer.
pub(crate) type Answer = Result<Value, Refusal>;

/// A Status.
#[derive(Debug, Clone)]
pub(crate) struct Refusal {
    pub(crate) code: u16,
    pub(crate) reason: &'static str,
    pub(crate) message: String,
}

impl Refusal {
    pub(crate) fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Self { code, reason, message: message.into() }
    }

    pub(crate) fn status(&self) -> Value {
        json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": self.message,
            "reason": self.reason, "code": self.code})
    }
}

/// One change.
#[derive(Debug, Clone)]
struct Change {
    version: u64,
    kind: &'static str,
    key: Key,
    object: Value,
}

/// What happened to an object, for the checks.
#[derive(Debug, Clone)]
pub(crate) struct Written {
    pub(crate) key: Key,
    pub(crate) before: Option<Value>,
    pub(crate) after: Option<Value>,
}

/// The objects and what happened to them.
#[derive(Default)]
pub(crate) struct ApiServer {
    objects: BTreeMap<Key, Value>,
    changes: VecDeque<Change>,
    version: u64,
    uids: u64,
    /// The resourceVersion with which each uid was made.
    made_at: BTreeMap<String, u64>,
    /// Seconds since 1970.
    pub(crate) now: i64,
    /// Pods that a namespace may have.
    pub(crate) pod_quota: Option<usize>,
    /// The namespace that is being deleted: nothing can be made in it any more.
    pub(crate) terminating: Option<String>,
    /// What was written and was not checked yet.
    pub(crate) written: Vec<Written>,
}

/// The kind of a resource.
fn kind(resource: &str) -> &str {
    match resource {
        "streamjobs" => "StreamJob",
        "savepoints" => "Savepoint",
        "pods" => "Pod",
        "services" => "Service",
        "configmaps" => "ConfigMap",
        "secrets" => "Secret",
        "poddisruptionbudgets" => "PodDisruptionBudget",
        "leases" => "Lease",
        "events" => "Event",
        other => other,
    }
}

/// Whether a status is written apart, and a generation counted.
fn has_status(resource: &str) -> bool {
    matches!(resource, "streamjobs" | "savepoints" | "pods")
}

impl ApiServer {
    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    /// The resourceVersion with which an object was made.
    pub(crate) fn made_at(&self, uid: &str) -> Option<u64> {
        self.made_at.get(uid).copied()
    }

    pub(crate) fn get(&self, resource: &str, namespace: &str, name: &str) -> Option<&Value> {
        self.objects.get(&(resource.to_owned(), namespace.to_owned(), name.to_owned()))
    }

    pub(crate) fn all<'a>(&'a self, resource: &'a str) -> impl Iterator<Item = (&'a Key, &'a Value)> {
        self.objects.iter().filter(move |(key, _)| key.0 == resource)
    }

    pub(crate) fn objects(&self) -> &BTreeMap<Key, Value> {
        &self.objects
    }

    /// Carries out anything but a watch.
    pub(crate) fn call(&mut self, call: &Call) -> Answer {
        match (call.method.as_str(), call.name.is_some()) {
            ("GET", false) => Ok(self.list(call)),
            ("GET", true) => {
                let object = self.objects.get(&call.key()).ok_or_else(|| not_found(call))?;
                Ok(as_asked(call, object))
            }
            ("POST", _) => self.create(call),
            ("PUT", _) => self.replace(call),
            ("PATCH", _) => self.patch(call),
            ("DELETE", true) => self.delete(call),
            _ => Err(Refusal::new(405, "MethodNotAllowed", "the simulation has no such call")),
        }
    }

    fn list(&self, call: &Call) -> Value {
        let items = self.objects.iter().filter(|(key, object)| call.selects(key, object));
        let items: Vec<_> = items.map(|(_, object)| as_asked(call, object)).collect();
        let kind = if call.partial { "PartialObjectMetadata" } else { kind(&call.resource) };
        json!({"apiVersion": call.api_version, "kind": format!("{kind}List"),
            "metadata": {"resourceVersion": self.version.to_string()}, "items": items})
    }

    /// The changes after a version that a watch asks for, and the version that they lead to; `None` when they are
    /// forgotten.
    pub(crate) fn changes(&self, call: &Call, after: u64) -> Option<(Vec<Value>, u64)> {
        let oldest = self.changes.front().map_or(self.version, |change| change.version - 1);
        if after < oldest {
            return None;
        }
        let news = self.changes.iter().filter(|change| change.version > after);
        let news = news.filter(|change| call.selects(&change.key, &change.object));
        let news = news.map(|change| json!({"type": change.kind, "object": as_asked(call, &change.object)}));
        Some((news.collect(), self.version))
    }

    /// Forgets all changes: who watches must list again.
    pub(crate) fn compact(&mut self) {
        self.changes.clear();
    }

    fn create(&mut self, call: &Call) -> Answer {
        let mut object = call.body.clone();
        let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let key = (call.resource.clone(), call.namespace.clone(), name);
        if self.objects.contains_key(&key) {
            return Err(Refusal::new(409, "AlreadyExists", format!("{} \"{}\" already exists", key.0, key.2)));
        }
        if self.terminating.as_ref() == Some(&key.1) {
            let message = format!(
                "{} \"{}\" is forbidden: unable to create new content in namespace {} because it is being terminated",
                key.0, key.2, key.1
            );
            return Err(Refusal::new(403, "Forbidden", message));
        }
        let pods = self.objects.keys().filter(|other| other.0 == "pods" && other.1 == key.1).count();
        if key.0 == "pods" && self.pod_quota.is_some_and(|quota| pods >= quota) {
            let message = format!("pods \"{}\" is forbidden: exceeded quota: q, used: pods={pods}", key.2);
            return Err(Refusal::new(403, "Forbidden", message));
        }
        self.uids += 1;
        object["metadata"]["uid"] = json!(format!("{:08x}-0000-4000-8000-000000000000", self.uids));
        object["metadata"]["namespace"] = json!(call.namespace);
        object["metadata"]["creationTimestamp"] = json!(rfc3339(self.now));
        object["apiVersion"] = json!(call.api_version);
        object["kind"] = json!(kind(&call.resource));
        if has_status(&call.resource) {
            object["metadata"]["generation"] = json!(1);
            object.as_object_mut().map(|fields| fields.remove("status"));
        }
        if key.0 == "pods" {
            object["status"] = json!({"phase": "Pending"});
        }
        let uid = object["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
        self.made_at.insert(uid, self.version + 1);
        Ok(self.put("ADDED", key, object))
    }

    fn replace(&mut self, call: &Call) -> Answer {
        let old = self.expected(call)?;
        let mut new = call.body.clone();
        for field in ["uid", "creationTimestamp", "namespace", "generation", "deletionTimestamp"] {
            new["metadata"][field] = old["metadata"][field].clone();
        }
        self.update(call, &old, new)
    }

    fn patch(&mut self, call: &Call) -> Answer {
        let applies = call.content.starts_with("application/apply-patch");
        if applies && call.subresource.is_none() && !self.objects.contains_key(&call.key()) {
            return self.create(call);
        }
        let old = self.expected(call)?;
        let mut new = old.clone();
        if applies {
            apply(&mut new, &call.body, call.subresource.as_deref());
        } else {
            merge(&mut new, &call.body);
        }
        self.update(call, &old, new)
    }

    /// The object as the caller has it.
    fn expected(&self, call: &Call) -> Result<Value, Refusal> {
        let old = self.objects.get(&call.key()).ok_or_else(|| not_found(call))?;
        let demanded = &call.body["metadata"]["resourceVersion"];
        if !demanded.is_null() && *demanded != old["metadata"]["resourceVersion"] {
            let message = format!("Operation cannot be fulfilled on {}: the object has been modified", call.resource);
            return Err(Refusal::new(409, "Conflict", message));
        }
        Ok(old.clone())
    }

    fn update(&mut self, call: &Call, old: &Value, mut new: Value) -> Answer {
        new["metadata"]["resourceVersion"] = old["metadata"]["resourceVersion"].clone();
        if has_status(&call.resource) {
            let kept = if call.subresource.as_deref() == Some("status") { "spec" } else { "status" };
            new[kept] = old[kept].clone();
            if new["spec"] != old["spec"] {
                new["metadata"]["generation"] = json!(old["metadata"]["generation"].as_i64().unwrap_or(1) + 1);
            }
        }
        if old["immutable"] == json!(true) && new["data"] != old["data"] {
            return Err(Refusal::new(422, "Invalid", "field is immutable when `immutable` is set"));
        }
        if new == *old {
            return Ok(as_asked(call, old));
        }
        let is_done = new["metadata"]["deletionTimestamp"].is_string() && finalizers(&new) == 0;
        if is_done && call.resource != "pods" {
            return Ok(self.remove(&call.key(), new));
        }
        let put = self.put("MODIFIED", call.key(), new);
        Ok(as_asked(call, &put))
    }

    fn delete(&mut self, call: &Call) -> Answer {
        let key = call.key();
        let old = self.objects.get(&key).cloned().ok_or_else(|| not_found(call))?;
        let demanded = &call.body["preconditions"]["uid"];
        if !demanded.is_null() && *demanded != old["metadata"]["uid"] {
            return Err(Refusal::new(409, "Conflict", "the UID in the precondition does not match"));
        }
        let demanded = &call.body["preconditions"]["resourceVersion"];
        if !demanded.is_null() && *demanded != old["metadata"]["resourceVersion"] {
            return Err(Refusal::new(409, "Conflict", "the ResourceVersion in the precondition does not match"));
        }
        let waits =
            finalizers(&old) > 0 || (key.0 == "pods" && old["spec"]["nodeName"].is_string() && !has_ended(&old));
        let is_forced = call.body["gracePeriodSeconds"] == json!(0) && finalizers(&old) == 0;
        if !waits || is_forced {
            return Ok(self.remove(&key, old));
        }
        if old["metadata"]["deletionTimestamp"].is_string() {
            return Ok(old);
        }
        let mut new = old;
        new["metadata"]["deletionTimestamp"] = json!(rfc3339(self.now));
        Ok(self.put("MODIFIED", key, new))
    }

    /// Removes an object at once, whatever holds it.
    pub(crate) fn remove(&mut self, key: &Key, mut object: Value) -> Value {
        let before = self.objects.remove(key);
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.note("DELETED", key.clone(), object.clone());
        self.written.push(Written { key: key.clone(), before, after: None });
        object
    }

    /// Changes an object as who owns it would.
    pub(crate) fn modify(&mut self, key: &Key, change: impl FnOnce(&mut Value)) {
        let Some(old) = self.objects.get(key) else { return };
        let mut new = old.clone();
        change(&mut new);
        if new != *old {
            self.put("MODIFIED", key.clone(), new);
        }
    }

    fn put(&mut self, kind: &'static str, key: Key, mut object: Value) -> Value {
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let before = self.objects.insert(key.clone(), object.clone());
        self.note(kind, key.clone(), object.clone());
        self.written.push(Written { key, before, after: Some(object.clone()) });
        object
    }

    fn note(&mut self, kind: &'static str, key: Key, object: Value) {
        self.changes.push_back(Change { version: self.version, kind, key, object });
        if self.changes.len() > REMEMBERED {
            self.changes.pop_front();
        }
    }

    /// Deletes what only objects own that are gone.
    pub(crate) fn collect_garbage(&mut self) {
        let uids: BTreeSet<String> =
            self.objects.values().filter_map(|object| Some(object["metadata"]["uid"].as_str()?.to_owned())).collect();
        let is_orphan = |object: &Value| {
            let owners = object["metadata"]["ownerReferences"].as_array().cloned().unwrap_or_default();
            !owners.is_empty() && owners.iter().all(|owner| !uids.contains(owner["uid"].as_str().unwrap_or_default()))
        };
        let orphans: Vec<Key> =
            self.objects.iter().filter(|(_, object)| is_orphan(object)).map(|(key, _)| key.clone()).collect();
        for (resource, namespace, name) in orphans {
            let call = Call {
                method: "DELETE".to_owned(),
                resource,
                api_version: String::new(),
                namespace,
                name: Some(name),
                subresource: None,
                query: BTreeMap::new(),
                content: String::new(),
                partial: false,
                body: json!({}),
            };
            // It may be terminating already.
            let _ = self.delete(&call);
        }
    }
}

fn has_ended(pod: &Value) -> bool {
    matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"))
}

fn finalizers(object: &Value) -> usize {
    object["metadata"]["finalizers"].as_array().map_or(0, Vec::len)
}

fn not_found(call: &Call) -> Refusal {
    Refusal::new(404, "NotFound", format!("{} \"{}\" not found", call.resource, call.key().2))
}

fn as_asked(call: &Call, object: &Value) -> Value {
    if !call.partial {
        return object.clone();
    }
    json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": object["metadata"]})
}

/// Server-side apply by the one manager that there is: what it no longer names goes.
fn apply(object: &mut Value, wanted: &Value, subresource: Option<&str>) {
    if let Some(field) = subresource {
        object[field] = wanted[field].clone();
        return;
    }
    for (field, value) in wanted.as_object().into_iter().flatten() {
        match field.as_str() {
            "metadata" => {
                for (field, value) in value.as_object().into_iter().flatten() {
                    if field != "resourceVersion" {
                        object["metadata"][field] = value.clone();
                    }
                }
            }
            _ => object[field] = value.clone(),
        }
    }
}

/// A JSON merge patch (RFC 7386).
fn merge(object: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *object = patch.clone();
        return;
    };
    if !object.is_object() {
        *object = Value::Object(Map::new());
    }
    let Some(fields) = object.as_object_mut() else { return };
    for (field, value) in patch {
        if value.is_null() {
            fields.remove(field);
        } else {
            merge(fields.entry(field.clone()).or_insert(Value::Null), value);
        }
    }
}

/// A time as Kubernetes writes it.
pub(crate) fn rfc3339(seconds: i64) -> String {
    k8s_openapi::jiff::Timestamp::from_second(seconds).unwrap_or_default().to_string()
}
