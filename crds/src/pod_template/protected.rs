//! What a `podTemplate` may not touch, since the protocol or the controller rests on it: refused by name, rather than
//! overwritten without a word.

use crate::validate::Problem;
use k8s_openapi::api::core::v1::{Container, PodSpec, PodTemplateSpec, Probe};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

/// Labels below this are the controller's.
pub const LABEL_DOMAIN: &str = "sluice.dev/";
/// Further labels of the controller's.
pub const LABELS: [&str; 4] = [
    "app.kubernetes.io/name",
    "app.kubernetes.io/instance",
    "app.kubernetes.io/managed-by",
    "app.kubernetes.io/component",
];
/// The volume of the frozen manifest.
pub const PROGRAM_VOLUME: &str = "program";
/// Where it is mounted.
pub const PROGRAM_DIRECTORY: &str = "/etc/sluice";

/// Where the secrets that a program names lie, below [`PROGRAM_DIRECTORY`]: files `NAME/KEY`.
pub const SECRETS_DIRECTORY: &str = "secrets";
/// Environment of the main containers.
pub const ENVIRONMENT: [&str; 3] = ["SLUICE_DIRECTIVE", "SLUICE_FAILURES", "POD_IP"];
/// Names of the main containers' ports.
pub const PORTS: [&str; 3] = ["rpc", "rest", "data"];
/// The main containers, of which each pod has one.
pub const MAIN_CONTAINERS: [&str; 2] = ["jobmanager", "taskmanager"];

struct Check<'a> {
    field: &'a str,
    problems: Vec<Problem>,
}

/// What a template at `field`, for pods with this main container, touches though it may not.
pub(super) fn check(field: &str, main: &str, template: &PodTemplateSpec) -> Vec<Problem> {
    let mut check = Check { field, problems: Vec::new() };
    if let Some(metadata) = &template.metadata {
        check.metadata(metadata);
    }
    if let Some(spec) = &template.spec {
        check.spec(main, spec);
    }
    check.problems
}

impl Check<'_> {
    fn refuse_if(&mut self, wrong: bool, place: &str, message: &str) {
        if wrong {
            self.problems.push(Problem { field: format!("{}.{place}", self.field), message: message.to_owned() });
        }
    }

    fn metadata(&mut self, metadata: &ObjectMeta) {
        let bare = ObjectMeta { labels: None, annotations: None, ..metadata.clone() };
        self.refuse_if(
            bare != ObjectMeta::default(),
            "metadata",
            "takes labels and annotations only: names, owners and all else are given by the controller",
        );
        for label in metadata.labels.iter().flatten().map(|(label, _)| label) {
            self.refuse_if(
                label.starts_with(LABEL_DOMAIN) || LABELS.contains(&label.as_str()),
                &format!("metadata.labels[{label}]"),
                "is a label by which the controller finds its pods; choose another",
            );
        }
    }

    fn spec(&mut self, main: &str, spec: &PodSpec) {
        self.refuse_if(
            spec.restart_policy.as_ref().is_some_and(|policy| policy != "Never"),
            "spec.restartPolicy",
            "must be Never: a process that ended is not started again under the same generation; remove it",
        );
        self.refuse_if(
            spec.ephemeral_containers.is_some(),
            "spec.ephemeralContainers",
            "cannot be set when a pod is made",
        );
        for (index, volume) in spec.volumes.iter().flatten().enumerate() {
            self.refuse_if(
                volume.name == PROGRAM_VOLUME,
                &format!("spec.volumes[{index}].name"),
                "'program' is the volume of the job's program; choose another name",
            );
        }
        let all = spec.containers.iter().map(|container| ("containers", container));
        let all = all.chain(spec.init_containers.iter().flatten().map(|container| ("initContainers", container)));
        for (list, container) in all.filter(|(_, container)| MAIN_CONTAINERS.contains(&container.name.as_str())) {
            if list == "containers" && container.name == main {
                self.main_container(container);
            } else {
                self.refuse_if(
                    true,
                    &format!("spec.{list}[{}]", container.name),
                    &format!("the container to change is containers[{main}] here; name another one otherwise"),
                );
            }
        }
    }

    fn main_container(&mut self, container: &Container) {
        let place = |field: &str| format!("spec.containers[{}].{field}", container.name);
        let set = "is set by the controller and cannot be changed; remove it";
        self.refuse_if(container.image.is_some(), &place("image"), "is set by spec.image; remove it here");
        self.refuse_if(container.command.is_some(), &place("command"), set);
        self.refuse_if(container.args.is_some(), &place("args"), set);
        self.refuse_if(container.termination_message_path.is_some(), &place("terminationMessagePath"), set);
        self.refuse_if(container.termination_message_policy.is_some(), &place("terminationMessagePolicy"), set);
        for (name, probe) in
            [("livenessProbe", &container.liveness_probe), ("readinessProbe", &container.readiness_probe)]
        {
            self.refuse_if(
                probe.as_ref().is_some_and(has_handler),
                &place(name),
                "may change times and thresholds only: what is asked is set by the controller",
            );
        }
        for variable in container.env.iter().flatten().filter(|variable| ENVIRONMENT.contains(&variable.name.as_str()))
        {
            self.refuse_if(true, &place(&format!("env[{}]", variable.name)), set);
        }
        for port in container.ports.iter().flatten() {
            let name = port.name.as_deref().unwrap_or_default();
            self.refuse_if(PORTS.contains(&name), &place(&format!("ports[{name}]")), set);
        }
        for mount in container.volume_mounts.iter().flatten() {
            let inside = std::path::Path::new(&mount.mount_path).starts_with(PROGRAM_DIRECTORY);
            self.refuse_if(
                inside,
                &place(&format!("volumeMounts[{}]", mount.mount_path)),
                "is where the job's program lies; choose another path",
            );
        }
    }
}

fn has_handler(probe: &Probe) -> bool {
    probe.exec.is_some() || probe.grpc.is_some() || probe.http_get.is_some() || probe.tcp_socket.is_some()
}

#[cfg(test)]
mod tests {
    use crate::pod_template::validate_pod_template;
    use serde_json::{Value, json};

    #[track_caller]
    fn assert_refused(template: &Value, place: &str) {
        let problems = validate_pod_template("spec.taskManager.podTemplate", "taskmanager", template);
        let fields: Vec<_> = problems.iter().map(|problem| problem.field.as_str()).collect();
        assert_eq!(fields, [format!("spec.taskManager.podTemplate.{place}")], "{problems:?}");
    }

    #[test]
    fn what_the_controller_needs_is_refused_by_name() {
        assert_refused(&json!({"metadata": {"name": "a"}}), "metadata");
        assert_refused(
            &json!({"metadata": {"labels": {"sluice.dev/generation": "9"}}}),
            "metadata.labels[sluice.dev/generation]",
        );
        assert_refused(&json!({"spec": {"containers": [], "restartPolicy": "Always"}}), "spec.restartPolicy");
        assert_refused(&json!({"spec": {"containers": [], "volumes": [{"name": "program"}]}}), "spec.volumes[0].name");
        assert_refused(&json!({"spec": {"containers": [{"name": "jobmanager"}]}}), "spec.containers[jobmanager]");
        let main = |field: &str, value: Value| json!({"spec": {"containers": [{"name": "taskmanager", field: value}]}});
        let place = |field: &str| format!("spec.containers[taskmanager].{field}");
        for field in ["command", "args"] {
            assert_refused(&main(field, json!(["x"])), &place(field));
        }
        for field in ["image", "terminationMessagePath", "terminationMessagePolicy"] {
            assert_refused(&main(field, json!("x")), &place(field));
        }
        assert_refused(&main("env", json!([{"name": "POD_IP", "value": "1"}])), &place("env[POD_IP]"));
        assert_refused(&main("ports", json!([{"name": "rest", "containerPort": 1}])), &place("ports[rest]"));
        assert_refused(
            &main("volumeMounts", json!([{"name": "a", "mountPath": "/etc/sluice/x"}])),
            &place("volumeMounts[/etc/sluice/x]"),
        );
        assert_refused(&main("readinessProbe", json!({"tcpSocket": {"port": 1}})), &place("readinessProbe"));
    }

    #[test]
    fn all_else_is_taken() {
        let template = json!({
            "metadata": {"labels": {"team": "web"}, "annotations": {"a": "b"}},
            "spec": {
                "restartPolicy": "Never", "serviceAccountName": "irsa", "nodeSelector": {"a": "b"},
                "tolerations": [{"operator": "Exists"}], "volumes": [{"name": "tmp", "emptyDir": {"medium": "Memory"}}],
                "initContainers": [{"name": "wait", "image": "x"}],
                "containers": [
                    {"name": "taskmanager", "livenessProbe": {"periodSeconds": 30}, "ports": [{"containerPort": 9000}],
                     "env": [{"name": "RUST_LOG", "value": "debug"}]},
                    {"name": "sidecar", "image": "x", "args": ["y"], "env": [{"name": "POD_IP", "value": "1"}]},
                ],
            },
        });
        assert_eq!(validate_pod_template("f", "taskmanager", &template), []);
    }
}
