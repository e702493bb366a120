//! What people do, and what breaks: the acts of a scenario, carried out.

use crate::api_server::Call;
use crate::kubelet::{self, Signal};
use crate::replicas::Replicas;
use crate::scenario::{Act, JOBS, Scenario};
use crate::task_manager::fail_a_task;
use crate::world::World;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The namespace of everything.
pub(crate) const NAMESPACE: &str = "streams";

fn call(method: &str, resource: &str, name: Option<&str>, body: Value) -> Call {
    let api_version = match resource {
        "streamjobs" | "savepoints" => "sluice.dev/v1alpha1",
        _ => "v1",
    };
    Call {
        method: method.to_owned(),
        resource: resource.to_owned(),
        api_version: api_version.to_owned(),
        namespace: NAMESPACE.to_owned(),
        name: name.map(ToOwned::to_owned),
        subresource: None,
        query: BTreeMap::new(),
        content: "application/merge-patch+json".to_owned(),
        partial: false,
        body,
    }
}

/// Carries out the scenario's acts, each at its time.
pub(crate) async fn act_all(world: &World, replicas: &Replicas, scenario: &Scenario) {
    for (at, job, act) in &scenario.acts {
        tokio::time::sleep(Duration::from_millis(at.saturating_sub(world.now()))).await;
        world.trace(|| format!("act on {job}: {act:?}"));
        carry_out(world, replicas, job, act).await;
        if world.lock().violation.is_some() {
            return;
        }
    }
}

async fn carry_out(world: &World, replicas: &Replicas, job: &str, act: &Act) {
    let now = world.now();
    match act {
        Act::Create(spec) => {
            let mut object = json!({"metadata": {"name": job}, "spec": spec});
            object["spec"]["state"] = json!("Running");
            // There may be one yet.
            while world.ask(&call("POST", "streamjobs", None, object.clone())).is_err() && world.now() < now + 120_000 {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
        Act::Edit(change) => drop(world.ask(&call("PATCH", "streamjobs", Some(job), json!({"spec": change})))),
        Act::Delete => drop(world.ask(&call("DELETE", "streamjobs", Some(job), json!({})))),
        Act::Savepoint => {
            let object = json!({"metadata": {"name": format!("s{now}")}, "spec": {"job": job, "timeout": "60s"}});
            drop(world.ask(&call("POST", "savepoints", None, object)));
        }
        Act::Restore(nonce) => restore(world, job, (job, *nonce)),
        Act::RestoreForeign(nonce) => {
            let other = JOBS.iter().find(|other| **other != job).copied().unwrap_or_default();
            restore(world, other, (job, *nonce));
        }
        Act::EndNamespace => {
            world.change(|state| state.api.terminating = Some(NAMESPACE.to_owned()));
            tokio::spawn(end_namespace(world.clone()));
        }
        Act::DieDeleting(millis) => {
            world.lock().delete_held_for = Some(*millis);
            let (world, replicas) = (world.clone(), replicas.clone());
            tokio::spawn(async move {
                while world.lock().delete_held_for.is_some() {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                replicas.kill_all(200);
            });
        }
        Act::DeletePod => {
            if let Some((name, _)) = any_pod(world) {
                let is_hurried = world.lock().rng.bool();
                let options = if is_hurried { json!({"gracePeriodSeconds": 0}) } else { json!({}) };
                drop(world.ask(&call("DELETE", "pods", Some(&name), options)));
            }
        }
        Act::KillReplica(index, millis) => replicas.kill(*index, *millis),
        Act::StopReplica(index) => replicas.stop(*index),
        Act::TangleReplica(index, millis) => replicas.tangle(*index, *millis),
        Act::FreezeLeader(millis) => replicas.freeze_leader(*millis),
        Act::BreakWatches => world.breaks.send_modify(|breaks| *breaks += 1),
        Act::Compact => {
            world.lock().api.compact();
            world.breaks.send_modify(|breaks| *breaks += 1);
        }
        Act::ApiAway(millis) => world.lock().api_away_until = now + millis,
        Act::Lag(millis) => world.lock().watches_lag_until = now + millis,
        Act::StoreAway(millis) => world.lock().store_away_until = now + millis,
        Act::KillPod => {
            if let Some((_, uid)) = any_pod(world) {
                kubelet::signal(world, &uid, Signal::Kill);
            }
        }
        Act::NodeLost(millis) => {
            if let Some((_, uid)) = any_pod(world) {
                kubelet::signal(world, &uid, Signal::NodeLost(*millis));
            }
        }
        Act::FailTask => fail_a_task(world).await,
        Act::Quota(pods, millis) => {
            world.lock().api.pod_quota = Some(*pods);
            let (world, millis) = (world.clone(), *millis);
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_millis(millis)).await;
                world.lock().api.pod_quota = None;
            });
        }
    }
}

/// A job is to start from a savepoint of a job, if that has one.
fn restore(world: &World, of: &str, (job, nonce): (&str, u32)) {
    if let Some(from) = any_savepoint(world, of) {
        let change = json!({"spec": {"restore": {"from": from, "nonce": nonce}}});
        drop(world.ask(&call("PATCH", "streamjobs", Some(job), change)));
    }
}

/// The namespace's controller deletes what is in it, kind by kind and again and again, in no order that anybody may rely on.
async fn end_namespace(world: World) {
    loop {
        let mut keys: Vec<_> = {
            let state = world.lock();
            let inside = state.api.objects().iter().filter(|(key, _)| key.1 == NAMESPACE);
            let left = inside.filter(|(_, object)| object["metadata"]["deletionTimestamp"].is_null());
            left.map(|(key, _)| key.clone()).collect()
        };
        world.lock().rng.shuffle(&mut keys);
        for (resource, _, name) in keys {
            world.pause(1..400).await;
            drop(world.ask(&call("DELETE", &resource, Some(&name), json!({}))));
        }
        if world.lock().api.objects().keys().all(|key| key.1 != NAMESPACE) {
            world.lock().check.coverage.namespaces_ended += 1;
            return;
        }
        world.pause(1000..5000).await;
    }
}

/// Where a completed savepoint of a job that is there lies.
fn any_savepoint(world: &World, job: &str) -> Option<String> {
    let mut state = world.lock();
    let uid = state.api.get("streamjobs", NAMESPACE, job)?["metadata"]["uid"].as_str()?.to_owned();
    let paths: Vec<_> = state
        .api
        .all("savepoints")
        .filter_map(|(_, savepoint)| savepoint["status"]["path"].as_str())
        .filter(|path| path.contains(&uid))
        .map(ToOwned::to_owned)
        .collect();
    state.rng.choice(paths)
}

/// Name and uid of one pod.
fn any_pod(world: &World) -> Option<(String, String)> {
    let mut state = world.lock();
    let pods: Vec<_> = state
        .api
        .all("pods")
        .map(|(key, pod)| (key.2.clone(), pod["metadata"]["uid"].as_str().unwrap_or_default().to_owned()))
        .collect();
    state.rng.choice(pods)
}

/// Nothing goes wrong any more.
pub(crate) fn calm(world: &World, replicas: &Replicas) {
    let mut state = world.lock();
    state.is_faulty = false;
    state.api.pod_quota = None;
    state.delete_held_for = None;
    state.watches_lag_until = 0;
    drop(state);
    for tangled in replicas.tangled() {
        tangled.store(false, Ordering::Relaxed);
    }
}
