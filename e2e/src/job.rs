//! A StreamJob on the cluster: its status and its pods, as a user sees them.

use crate::kubectl;
use anyhow::Context as _;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::time::{Duration, Instant};

/// A StreamJob.
pub struct Job {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl Job {
    /// The whole object.
    ///
    /// # Errors
    /// When it is not there.
    pub fn get(&self) -> anyhow::Result<Value> {
        let text = kubectl(&["-n", &self.namespace, "get", "streamjob", &self.name, "-o", "json"])?;
        Ok(serde_json::from_str(&text)?)
    }

    /// Its status; null while there is none.
    ///
    /// # Errors
    /// When the object is not there.
    pub fn status(&self) -> anyhow::Result<Value> {
        Ok(self.get()?["status"].take())
    }

    /// Waits until the status is as wanted.
    ///
    /// # Panics
    /// After `timeout`, with the last status.
    pub fn wait_status(&self, what: &str, timeout: Duration, wanted: impl Fn(&Value) -> bool) -> Value {
        let deadline = Instant::now() + timeout;
        let mut last = Value::Null;
        while Instant::now() < deadline {
            if let Ok(status) = self.status() {
                if wanted(&status) {
                    return status;
                }
                last = status;
            }
            std::thread::sleep(Duration::from_millis(200));
        }
        panic!("waited {timeout:?} for {what}; last status: {last:#}");
    }

    /// Waits for Running and a checkpoint later than `after`.
    pub fn wait_checkpoint(&self, after: u64) -> Value {
        self.wait_status("a later checkpoint", Duration::from_secs(120), |status| {
            status["state"] == "Running" && checkpoint(status) > after
        })
    }

    /// Names of its pods with this role (`jobmanager`, `taskmanager`) that have not ended.
    ///
    /// # Errors
    /// When the cluster does not answer.
    pub fn pods(&self, role: &str) -> anyhow::Result<Vec<String>> {
        let infix = if role == "jobmanager" { "-jm" } else { "-tm-" };
        let text = kubectl(&["-n", &self.namespace, "get", "pods", "-o", "json"])?;
        let list: Value = serde_json::from_str(&text)?;
        let items = list["items"].as_array().context("no items")?;
        Ok(items
            .iter()
            .filter(|pod| pod["metadata"]["deletionTimestamp"].is_null())
            .filter(|pod| pod["status"]["phase"] != "Failed" && pod["status"]["phase"] != "Succeeded")
            .filter_map(|pod| pod["metadata"]["name"].as_str())
            .filter(|name| name.starts_with(&self.name) && name.contains(infix))
            .map(ToOwned::to_owned)
            .collect())
    }

    /// What a JobManager pod shows on its port 8081, through the API server: newer than the StreamJob's status.
    #[must_use]
    pub fn page_of(&self, pod: &str) -> Option<Value> {
        let path = format!("/api/v1/namespaces/{}/pods/{pod}:8081/proxy/status", self.namespace);
        serde_json::from_str(&kubectl(&["get", "--raw", &path]).ok()?).ok()
    }

    /// SIGSTOP to the process of a pod, where the node is this machine; elsewhere nothing happens.
    ///
    /// # Errors
    /// When it may not be signalled.
    pub fn suspend_pod(&self, pod: &str) -> anyhow::Result<()> {
        self.process_of(pod).map_or(Ok(()), |pid| kill(pid, Signal::SIGSTOP).context("SIGSTOP"))
    }

    /// The job's directory below checkpoint storage.
    ///
    /// # Errors
    /// When the object is not there.
    pub fn directory(&self) -> anyhow::Result<String> {
        let job = self.get()?;
        let uid = job["metadata"]["uid"].as_str().context("no uid")?;
        Ok(format!("{}/{}-{uid}", self.namespace, self.name))
    }

    /// SIGKILL to the processes of pods, one right after the other: directly where the node is this machine, else by
    /// forced deletions.
    ///
    /// # Errors
    /// When neither works.
    pub fn kill_pods(&self, pods: &[&str]) -> anyhow::Result<()> {
        let processes: Vec<_> = pods.iter().map(|pod| self.process_of(pod)).collect();
        for (pod, process) in pods.iter().zip(processes) {
            if let Some(pid) = process {
                kill(pid, Signal::SIGKILL).context("SIGKILL")?;
            } else {
                kubectl(&["-n", &self.namespace, "delete", "pod", pod, "--grace-period=0", "--force"])?;
            }
        }
        Ok(())
    }

    /// The process of a pod, where the node is this machine: the `sluice` process whose command line names the
    /// pod's namespace, job, generation and role.
    #[must_use]
    pub fn process_of(&self, pod: &str) -> Option<Pid> {
        let uid = self.get().ok()?["metadata"]["uid"].as_str()?.to_owned();
        let generation = pod.strip_prefix(&format!("{}-", self.name))?.split('-').next()?.to_owned();
        let is_task_manager = pod.contains("-tm-");
        for entry in std::fs::read_dir("/proc").ok()?.flatten() {
            let Some(id) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else { continue };
            let Ok(line) = std::fs::read(entry.path().join("cmdline")) else { continue };
            let arguments: Vec<&str> =
                line.split(|byte| *byte == 0).filter_map(|part| std::str::from_utf8(part).ok()).collect();
            let follows =
                |flag: &str, value: &str| arguments.windows(2).any(|pair| pair[0] == flag && pair[1] == value);
            let role_fits = if is_task_manager {
                follows("--id", pod)
            } else {
                arguments.contains(&"jobmanager") && follows("--generation", &generation)
            };
            if role_fits && follows("--uid", &uid) {
                return Some(Pid::from_raw(id));
            }
        }
        None
    }
}

/// Id of the last completed checkpoint; 0 = none.
#[must_use]
pub fn checkpoint(status: &Value) -> u64 {
    status["lastCheckpoint"]["id"].as_u64().unwrap_or(0)
}

/// Id of the checkpoint that the current attempt was restored from; 0 = none.
#[must_use]
pub fn restored(status: &Value) -> u64 {
    status["restoredFrom"]["id"].as_u64().unwrap_or(0)
}

/// A condition's `(status, reason, message)`.
#[must_use]
pub fn condition(status: &Value, kind: &str) -> Option<(String, String, String)> {
    let condition = status["conditions"].as_array()?.iter().find(|condition| condition["type"] == kind)?;
    let text = |field: &str| condition[field].as_str().unwrap_or_default().to_owned();
    Some((text("status"), text("reason"), text("message")))
}
