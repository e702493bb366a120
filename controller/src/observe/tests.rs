//! Frozen programs: from the cache, from the API server where the cache lags behind, or why there is none. Pods that the cache
//! does not show.

use super::*;
use crate::facts::PROGRAM_MISSING;
use crate::fake_api::{Calls, lines, server};
use crate::plan::plan;
use crate::plan::tests::{facts, job, running};
use crate::validate::frozen_manifest;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::runtime::reflector::store;
use kube::runtime::watcher::Event;
use serde_json::json;

fn config_map(text: &str) -> ConfigMap {
    ConfigMap {
        metadata: ObjectMeta {
            name: Some("pv-program-1".to_owned()),
            namespace: Some("ns".to_owned()),
            ..ObjectMeta::default()
        },
        data: Some([(names::MANIFEST_KEY.to_owned(), text.to_owned())].into()),
        ..ConfigMap::default()
    }
}

fn manifest() -> String {
    frozen_manifest("pv", "ns", &job().spec).expect("is written")
}

/// What is found for the program that runs, with `stored` on the API server and `cached` in the cache; and the calls.
async fn found(stored: Option<String>, cached: Option<String>) -> (Result<StreamJobSpec, Rejection>, Vec<String>) {
    let calls = Calls::default();
    let stored = stored.map(|text| json!(config_map(&text)));
    let client = server(&calls, move |_, path| {
        stored.clone().filter(|_| path.ends_with("configmaps/pv-program-1")).map(|stored| (200, stored))
    });
    let (config_maps, mut writer) = store();
    if let Some(text) = cached {
        writer.apply_watcher_event(&Event::Apply(config_map(&text)));
    }
    let context = Context { config_maps, ..Context::on(client) };
    let found = frozen_spec(&context, "ns", "pv-program-1").await.expect("answers");
    (found, lines(&calls))
}

#[tokio::test]
async fn a_program_that_the_cache_does_not_have_yet_is_read_from_the_api_server() {
    let (cached, calls) = found(None, Some(manifest())).await;
    assert_eq!((cached, calls.len()), (Ok(job().spec), 0));
    let (read, calls) = found(Some(manifest()), None).await;
    assert_eq!((read, calls), (Ok(job().spec), vec!["GET /api/v1/namespaces/ns/configmaps/pv-program-1".to_owned()]));
    let (missing, _) = found(None, None).await;
    assert_eq!(missing.expect_err("is gone").reason, PROGRAM_MISSING);
    let newer = manifest().replace("spec:\n", "spec:\n  ofALaterVersion: true\n");
    let unreadable = found(None, Some(newer)).await.0.expect_err("is not read");
    assert_eq!(unreadable.reason, "ProgramUnreadable");
    assert!(
        unreadable.message.contains("pv-program-1") && unreadable.message.contains("ofALaterVersion"),
        "{}",
        unreadable.message
    );
}

/// From the status that an earlier version wrote to the plan: a program that this version cannot read restarts nothing.
#[tokio::test]
async fn a_job_goes_on_when_this_version_cannot_read_its_program() {
    let ran = running();
    let mut job = job();
    job.status = Some(status::build_status(&job, &facts(), &plan(&ran)));
    job.metadata.generation = Some(1);
    let client = server(&Calls::default(), |_, _| None);
    let (config_maps, mut writer) = store();
    let mut unreadable = config_map("spec: {program: {sql: a}, ofALaterVersion: true}");
    unreadable.metadata.name = Some(ran.memory.program.clone());
    writer.apply_watcher_event(&Event::Apply(unreadable));
    let context = Context { config_maps, ..Context::on(client) };
    let observed = observe(&context, &job).await.expect("is observed");
    assert_eq!((observed.frozen.clone(), observed.memory.revision), (None, 1));
    let wanted = observed.program.clone().expect("is right");
    let other = crate::facts::Program { config_map: "pv-program-of-this-version".to_owned(), ..wanted };
    let facts = Facts { frozen: observed.frozen, frozen_problem: observed.frozen_problem, program: Ok(other), ..ran };
    let next = plan(&facts);
    assert_eq!((next.memory.stop.clone(), next.command.clone(), next.acts()), (None, None, false));
    assert_eq!(next.view.degraded.expect("is told").reason, "ProgramUnreadable");
}

/// A cache that lags behind is no reason to make a pod twice, and what it shows is not asked for again.
#[test]
fn pods_that_were_perhaps_made_and_are_not_shown_are_asked_for_by_name() {
    let facts = running();
    let pods = |roles: &[Role]| -> Vec<PodFacts> {
        let pod = &facts.pods[0];
        let generation = facts.memory.generation;
        roles.iter().map(|role| PodFacts { role: *role, generation, ..pod.clone() }).collect()
    };
    let memory = Memory { next_task_manager: 5, ..facts.memory.clone() };
    let names = |roles: &[Role], memory: &Memory| unseen("pv", memory, 2, &pods(roles)).join(" ");
    let generation = memory.generation;
    assert_eq!(names(&[], &memory), format!("pv-{generation}-jm pv-{generation}-tm-3 pv-{generation}-tm-4"));
    assert_eq!(names(&[Role::JobManager, Role::TaskManager(3)], &memory), format!("pv-{generation}-tm-4"));
    assert_eq!(names(&[Role::JobManager, Role::TaskManager(4)], &memory), "", "the older one is gone");
    let none = Memory { next_task_manager: 0, ..memory };
    assert_eq!(names(&[Role::JobManager], &none), "");
    let earlier = PodFacts { generation: Generation(generation.0 - 1), ..pods(&[Role::JobManager])[0].clone() };
    assert_eq!(unseen("pv", &none, 2, &[earlier]), [format!("pv-{generation}-jm")]);
    assert!(unseen("pv", &Memory::default(), 2, &[]).is_empty(), "nothing was made yet");
}

/// A pass that acts reads the user's program once, and asks for what the cache does not show.
#[tokio::test]
async fn facts_are_confirmed_without_reading_programs_again() {
    let calls = Calls::default();
    let mut program = config_map("");
    program.data = Some([("job.sql".to_owned(), "INSERT INTO a SELECT * FROM b;".to_owned())].into());
    let client = server(&calls, move |_, path| path.ends_with("configmaps/mine").then(|| (200, json!(program))));
    let mut job = job();
    let from = json!({"sqlFrom": {"configMapKeyRef": {"name": "mine", "key": "job.sql"}}});
    job.spec.program = serde_json::from_value(from).expect("is a program");
    let context = Context::on(client);
    let observed = observe(&context, &job).await.expect("is observed");
    assert_eq!(lines(&calls), ["GET /api/v1/namespaces/ns/configmaps/mine"]);
    calls.lock().expect("no panic").clear();
    let memory = Memory { generation: Generation(1), ..observed.memory.clone() };
    let confirmed = confirm(&context, &job, Facts { memory, ..observed.clone() }).await.expect("is confirmed");
    assert_eq!(lines(&calls), ["GET /api/v1/namespaces/ns/pods/pv-1-jm"]);
    assert_eq!(confirmed.program, observed.program);
}
