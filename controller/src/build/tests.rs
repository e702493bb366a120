//! The built objects as a person reads them, and what a `podTemplate` may and may not change.

use super::*;
use crate::facts::Role;
use crate::plan::PodPlan;
use crate::validate::validate_program;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde_json::json;
use sluice_crds::to_yaml;
use sluice_protocol::Generation;

fn job(extra: &serde_json::Value) -> StreamJob {
    let mut spec = json!({
        "program": {"sql": "INSERT INTO pv SELECT app_id, COUNT(*) AS pv FROM page_views GROUP BY app_id;"},
        "parallelism": 4,
        "taskManager": {"slots": 2},
        "checkpointing": {
            "interval": "2s", "storage": "s3://checkpoints/demo",
            "storageOptions": {"endpoint": "http://10.244.0.1:9000", "pathStyle": true, "credentialsSecret": "s3"},
        },
    });
    let spec_object = spec.as_object_mut().expect("is an object");
    spec_object.extend(extra.as_object().expect("is an object").clone());
    serde_json::from_value(json!({
        "apiVersion": "sluice.dev/v1alpha1", "kind": "StreamJob",
        "metadata": {"name": "pageviews", "namespace": "streams", "uid": "6d4f"}, "spec": spec,
    }))
    .expect("is a StreamJob")
}

fn plan(role: Role) -> PodPlan {
    PodPlan {
        role,
        generation: Generation(3),
        revision: 2,
        config_map: "pageviews-program-0123456789".to_owned(),
        directive: r#"{"id":"2-0","seen":41,"start":"continue"}"#.to_owned(),
        failures: r#"{"revision":2}"#.to_owned(),
        image: "sluice/runtime:0.1.0".to_owned(),
    }
}

fn pod(extra: &serde_json::Value, role: Role) -> k8s_openapi::api::core::v1::Pod {
    let job = job(extra);
    build_pod(&job, &job.spec, &plan(role), Security::Tls).expect("can be built")
}

#[test]
fn a_job_manager_pod() {
    insta::assert_snapshot!(to_yaml(&pod(&json!({}), Role::JobManager)).expect("is serialisable"));
}

#[test]
fn a_task_manager_pod() {
    insta::assert_snapshot!(to_yaml(&pod(&json!({}), Role::TaskManager(5))).expect("is serialisable"));
}

#[test]
fn the_service_selects_one_generation() {
    insta::assert_snapshot!(to_yaml(&build_service(&job(&json!({})), Generation(3))).expect("is serialisable"));
}

#[test]
fn the_program_is_an_immutable_config_map() {
    let job = job(&json!({}));
    let program = validate_program(&job, None).expect("is right");
    insta::assert_snapshot!(to_yaml(&build_program(&job, &program).expect("can be built")).expect("is serialisable"));
}

#[test]
fn a_pod_template_adds_and_does_not_take_away() {
    let template = json!({
        "metadata": {"labels": {"team": "web"}, "annotations": {"note": "x"}},
        "spec": {
            "nodeSelector": {"disk": "ssd"}, "serviceAccountName": "irsa",
            "tolerations": [{"key": "spot", "operator": "Exists"}],
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}},
            "volumes": [
                {"name": "checkpoints", "persistentVolumeClaim": {"claimName": "c"}},
                {"name": "tmp", "persistentVolumeClaim": {"claimName": "scratch"}},
            ],
            "containers": [
                {"name": "taskmanager", "env": [{"name": "RUST_LOG", "value": "debug"}],
                 "ports": [{"name": "debug", "containerPort": 9000}], "livenessProbe": {"periodSeconds": 30},
                 "volumeMounts": [{"name": "checkpoints", "mountPath": "/checkpoints"}]},
                {"name": "sidecar", "image": "sidecar:1"},
            ],
        },
    });
    let pod = pod(&json!({"taskManager": {"podTemplate": template}}), Role::TaskManager(0));
    let labels = pod.metadata.labels.expect("has labels");
    assert_eq!((labels["team"].as_str(), labels[names::GENERATION_LABEL].as_str()), ("web", "3"));
    assert_eq!(pod.metadata.annotations.expect("has annotations")["note"], "x");
    let spec = pod.spec.expect("has a spec");
    assert_eq!(spec.restart_policy.as_deref(), Some("Never"));
    assert_eq!(spec.service_account_name.as_deref(), Some("irsa"));
    assert_eq!(spec.node_selector.expect("has one")["disk"], "ssd");
    assert_eq!(spec.tolerations.map(|all| all.len()), Some(1));
    assert!(spec.affinity.is_some());
    let volumes: Vec<_> = spec.volumes.iter().flatten().map(|volume| volume.name.as_str()).collect();
    assert_eq!(volumes, ["program", "checkpoints", "tmp"]);
    let scratch = &spec.volumes.iter().flatten().last().expect("is there");
    assert!(scratch.empty_dir.is_none() && scratch.persistent_volume_claim.is_some(), "one source: {scratch:?}");
    let containers: Vec<_> = spec.containers.iter().map(|container| container.name.as_str()).collect();
    assert_eq!(containers, ["taskmanager", "sidecar"]);
    let main = &spec.containers[0];
    assert_eq!(main.args.as_ref().expect("has arguments")[0], "taskmanager");
    let env: Vec<_> = main.env.iter().flatten().map(|env| env.name.as_str()).collect();
    assert_eq!(env, ["POD_IP", "RUST_LOG"]);
    let ports: Vec<_> = main.ports.iter().flatten().filter_map(|port| port.name.as_deref()).collect();
    assert_eq!(ports, ["data", "rest", "debug"]);
    let probe = main.liveness_probe.as_ref().expect("has one");
    assert!(probe.period_seconds == Some(30) && probe.http_get.is_some(), "{probe:?}");
    assert_eq!(main.volume_mounts.as_ref().map(Vec::len), Some(3));
}

/// Whatever the controller sets in a pod that it looks at later is among what a template may not touch.
#[test]
fn what_the_controller_rests_on_is_protected() {
    use sluice_crds::pod_template::protected::{ENVIRONMENT, LABEL_DOMAIN, LABELS, MAIN_CONTAINERS, PORTS};
    for role in [Role::JobManager, Role::TaskManager(0)] {
        let pod = pod(&json!({}), role);
        for label in pod.metadata.labels.expect("has labels").keys() {
            assert!(label.starts_with(LABEL_DOMAIN) || LABELS.contains(&label.as_str()), "{label}");
        }
        let main = &pod.spec.expect("has a spec").containers[0];
        assert!(MAIN_CONTAINERS.contains(&main.name.as_str()));
        assert!(main.env.iter().flatten().all(|variable| ENVIRONMENT.contains(&variable.name.as_str())));
        assert!(
            main.ports
                .iter()
                .flatten()
                .all(|port| port.name.as_ref().is_some_and(|name| PORTS.contains(&name.as_str())))
        );
    }
}

#[test]
fn a_wrong_pod_template_is_refused_with_its_place() {
    let job = job(&json!({"jobManager": {"podTemplate": {"spec": {"nodeSelektor": {}, "nodeName": 7}}}}));
    let problem = build_pod(&job, &job.spec, &plan(Role::JobManager), Security::Tls).expect_err("is refused");
    assert_eq!(problem.field, "spec.jobManager.podTemplate.spec.nodeName");
}

#[test]
fn the_longest_name_makes_legal_names() {
    let name = "a".repeat(40);
    let longest = names::task_manager(&name, Generation(9_999_999), 99_999);
    assert!(longest.len() <= 63, "{longest}");
    assert!(names::program(&name, "0123456789").len() <= 63);
}

#[test]
fn a_drain_takes_task_managers_away_one_at_a_time() {
    let spec = |extra| build_disruption_budget(&job(&extra), &job(&extra).spec).spec.expect("has one");
    let budget = spec(json!({}));
    assert_eq!(budget.min_available, Some(IntOrString::Int(1)), "of two");
    let selector = budget.selector.expect("selects").match_labels.expect("by labels");
    let pod = pod(&json!({}), Role::TaskManager(0)).metadata.labels.expect("has labels");
    assert!(selector.iter().all(|(label, value)| pod.get(label) == Some(value)), "{selector:?}");
    assert_eq!(spec(json!({"parallelism": 1})).min_available, Some(IntOrString::Int(0)), "the only one may go");
}

#[test]
fn annotations_of_a_template_join_the_own_and_may_overrule_them() {
    let annotations = json!({"a": "b", "cluster-autoscaler.kubernetes.io/safe-to-evict": "false"});
    let template = json!({"taskManager": {"podTemplate": {"metadata": {"annotations": annotations}}}});
    let annotations = pod(&template, Role::TaskManager(0)).metadata.annotations.expect("has annotations");
    assert_eq!((annotations["a"].as_str(), annotations.len()), ("b", 2));
    assert_eq!(annotations["cluster-autoscaler.kubernetes.io/safe-to-evict"], "false");
}
