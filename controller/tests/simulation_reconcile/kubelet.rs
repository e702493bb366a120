//! The kubelets: a pod waits for its node and its image, runs its process, and ends with it, by its deletion, or by force.

use crate::api_server::{Key, Written, rfc3339};
use crate::job_manager::JobManager;
use crate::task_manager::TaskManager;
use crate::world::{State, World};
use serde_json::{Value, json};
use sluice_protocol::failure::ExitRecord;
use tokio::sync::mpsc;

/// What a kubelet hears about a pod.
#[derive(Debug, Clone)]
pub(crate) enum Signal {
    /// It is being deleted.
    Terminate,
    /// Its process dies without a word.
    Kill,
    /// Its process ended and said why.
    Exited(ExitRecord),
    /// It was removed from the API server by force.
    Gone,
    /// Its node goes silent for so many milliseconds.
    NodeLost(u64),
}

/// A pod has changed.
pub(crate) fn on_pod(world: &World, written: &Written) {
    let object = written.after.as_ref().or(written.before.as_ref());
    let Some(uid) = object.and_then(|pod| pod["metadata"]["uid"].as_str()).map(ToOwned::to_owned) else { return };
    match (&written.before, &written.after) {
        (None, Some(pod)) => {
            let (sender, signals) = mpsc::unbounded_channel();
            world.lock().pods.insert(uid.clone(), sender);
            let pod = Pod { world: world.clone(), key: written.key.clone(), uid, signals, pod: pod.clone() };
            tokio::spawn(pod.live());
        }
        (Some(before), Some(after)) => {
            if before["metadata"]["deletionTimestamp"].is_null() && after["metadata"]["deletionTimestamp"].is_string() {
                signal(world, &uid, Signal::Terminate);
            }
        }
        (_, None) => signal(world, &uid, Signal::Gone),
    }
}

/// Tells a pod's kubelet something, where there is one yet.
pub(crate) fn signal(world: &World, uid: &str, signal: Signal) {
    if let Some(ear) = world.lock().pods.get(uid) {
        let _ = ear.send(signal);
    }
}

struct Pod {
    world: World,
    key: Key,
    uid: String,
    signals: mpsc::UnboundedReceiver<Signal>,
    /// As it was made.
    pod: Value,
}

impl Pod {
    async fn live(mut self) {
        let world = self.world.clone();
        let started = tokio::select! {
            biased;
            signal = self.signals.recv() => Err(signal),
            address = begin(world.clone(), self.key.clone(), self.pod.clone()) => Ok(address),
        };
        match started {
            Ok(address) => self.run(&address).await,
            // Deleted before it ran.
            Err(signal) => self.vanish(signal.is_some_and(|signal| matches!(signal, Signal::Gone))).await,
        }
        world.lock().pods.remove(&self.uid);
    }

    async fn run(&mut self, address: &str) {
        let world = self.world.clone();
        self.start_process(address);
        world.pause(20..400).await;
        self.set(|status, now| status["conditions"] = ready(true, now));
        loop {
            match self.signals.recv().await {
                Some(Signal::Exited(record)) => return self.ended(Some(&record)).await,
                Some(Signal::Kill) => {
                    self.stop_process();
                    return self.ended(None).await;
                }
                Some(Signal::Terminate) => return self.terminate().await,
                Some(Signal::NodeLost(millis)) => self.lose_node(millis).await,
                Some(Signal::Gone) | None => return self.stop_process(),
            }
        }
    }

    /// SIGTERM, and after a while SIGKILL.
    async fn terminate(&mut self) {
        let world = self.world.clone();
        world.pause(20..1500).await;
        self.stop_process();
        world.pause(10..500).await;
        self.vanish(false).await;
    }

    /// Nobody hears of the pod for a while; its process goes on and reaches nobody.
    async fn lose_node(&mut self, millis: u64) {
        let world = self.world.clone();
        world.trace(|| format!("the node of {} is lost for {millis} ms", self.key.2));
        self.set_reachable(false);
        world.pause(2000..5000).await;
        self.set(|status, now| {
            status["conditions"] = json!([
                {"type": "Ready", "status": "False", "lastTransitionTime": now},
                {"type": "ContainersReady", "status": "True", "lastTransitionTime": now},
            ]);
        });
        tokio::time::sleep(std::time::Duration::from_millis(millis)).await;
        self.set_reachable(true);
        self.set(|status, now| status["conditions"] = ready(true, now));
    }

    fn set_reachable(&self, reachable: bool) {
        let mut state = self.world.lock();
        if let Some(job_manager) = state.job_managers.get_mut(&self.uid) {
            job_manager.set_reachable(reachable);
        }
    }

    /// The process has ended; the pod stays until somebody deletes it.
    async fn ended(&mut self, record: Option<&ExitRecord>) {
        let world = self.world.clone();
        world.pause(5..300).await;
        let code = record.map_or(137, |record| i64::from(record.kind.code()));
        let message = record.and_then(|record| serde_json::to_string(record).ok());
        let component = self.component().to_owned();
        world.trace(|| format!("{} ended: {}", self.key.2, message.as_deref().unwrap_or("killed")));
        self.set(|status, now| {
            let terminated = json!({"exitCode": code, "reason": if code == 0 { "Completed" } else { "Error" },
                "message": message, "startedAt": now, "finishedAt": now});
            status["phase"] = json!(if code == 0 { "Succeeded" } else { "Failed" });
            status["conditions"] = ready(false, now);
            status["containerStatuses"] =
                json!([{"name": component, "ready": false, "restartCount": 0, "image": "", "imageID": "",
                    "state": {"terminated": terminated}}]);
        });
        while let Some(signal) = self.signals.recv().await {
            match signal {
                Signal::Terminate => return self.vanish(false).await,
                Signal::Gone => return,
                _ => {}
            }
        }
    }

    async fn vanish(&mut self, is_gone: bool) {
        if is_gone {
            return;
        }
        self.world.pause(5..200).await;
        let (key, uid) = (self.key.clone(), self.uid.clone());
        self.world.change(|state| {
            if let Some(pod) = current(state, &key, &uid) {
                state.api.remove(&key, pod);
            }
        });
    }

    fn set(&self, change: impl FnOnce(&mut Value, &str)) {
        let (key, uid) = (self.key.clone(), self.uid.clone());
        self.world.change(|state| {
            let now = rfc3339(state.api.now);
            if current(state, &key, &uid).is_some() {
                state.api.modify(&key, |pod| change(&mut pod["status"], &now));
            }
        });
    }

    fn component(&self) -> &str {
        self.pod["metadata"]["labels"]["app.kubernetes.io/component"].as_str().unwrap_or_default()
    }

    fn start_process(&self, address: &str) {
        if self.component() == "jobmanager" {
            JobManager::start(&self.world, &self.pod, &self.uid, address);
        } else {
            TaskManager::start(&self.world, &self.pod, &self.uid);
        }
    }

    fn stop_process(&self) {
        JobManager::kill(&self.world, &self.uid);
        TaskManager::kill(&self.world, &self.uid);
    }
}

fn current(state: &State, (resource, namespace, name): &Key, uid: &str) -> Option<Value> {
    state.api.get(resource, namespace, name).filter(|pod| pod["metadata"]["uid"] == uid).cloned()
}

/// Until its container runs; its address.
async fn begin(world: World, key: Key, pod: Value) -> String {
    world.pause(5..300).await;
    world.change(|state| state.api.modify(&key, |pod| pod["spec"]["nodeName"] = json!("node")));
    let volumes = pod["spec"]["volumes"].as_array().cloned().unwrap_or_default();
    let sources = volumes.iter().filter_map(|volume| volume["projected"]["sources"].as_array()).flatten();
    let needed: Vec<(&str, String)> = sources
        .flat_map(|source| [("configmaps", &source["configMap"]["name"]), ("secrets", &source["secret"]["name"])])
        .filter_map(|(resource, name)| Some((resource, name.as_str()?.to_owned())))
        .collect();
    world.pause(20..1500).await;
    while needed.iter().any(|(resource, name)| world.lock().api.get(resource, &key.1, name).is_none()) {
        world.pause(500..2000).await;
    }
    world.change(|state| {
        state.addresses += 1;
        let address = format!("10.0.{}.{}", state.addresses / 250, state.addresses % 250 + 1);
        let now = rfc3339(state.api.now);
        let component = pod["metadata"]["labels"]["app.kubernetes.io/component"].clone();
        state.api.modify(&key, |pod| {
            pod["status"] = json!({"phase": "Running", "podIP": address, "conditions": ready(false, &now),
                "containerStatuses": [{"name": component, "ready": false, "restartCount": 0, "image": "", "imageID": "",
                    "state": {"running": {"startedAt": now}}}]});
        });
        address
    })
}

fn ready(is: bool, now: &str) -> Value {
    let status = if is { "True" } else { "False" };
    let reason = if is { Value::Null } else { json!("ContainersNotReady") };
    json!([
        {"type": "Ready", "status": status, "reason": reason, "lastTransitionTime": now},
        {"type": "ContainersReady", "status": status, "lastTransitionTime": now},
    ])
}
