//! The process behind a pod, where the node is this machine.

use nix::unistd::Pid;

/// The first process of a pod's containers, which have the pod's name as their host name.
#[must_use]
pub fn of_pod(pod: &str) -> Option<Pid> {
    let variable = format!("HOSTNAME={pod}");
    let ids = std::fs::read_dir("/proc").ok()?.flatten();
    let mut ids: Vec<i32> = ids.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    ids.sort_unstable();
    let has_name = |id: &i32| {
        let environment = std::fs::read(format!("/proc/{id}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|entry| entry == variable.as_bytes())
    };
    ids.into_iter().find(has_name).map(Pid::from_raw)
}
