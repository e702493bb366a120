//! What cannot be done, what is in vain and what is stuck: told by name, and no restart spent for it.

use super::*;

#[test]
fn what_kubernetes_cannot_do_is_told_and_spends_nothing() {
    let first = facts();
    let mut facts = after(&first, &plan(&first));
    let problem = Rejection { reason: "ImagePullBackOff".to_owned(), message: "no such image".to_owned() };
    let pod = job_manager(&mut facts);
    pod.started = false;
    pod.problem = Some(problem.clone());
    let told = plan(&facts);
    assert_eq!((told.view.degraded, told.memory.failures.total()), (Some(problem), 0));
    assert_eq!(told.view.message, "no such image");

    // A change of the spec does not wait for a pod that never ran.
    let plan = plan(&changed(facts));
    assert_eq!(created(&plan)[0], (2, JM));
    assert_eq!(directive(&plan)["start"], "resumeLatest", "there is no ledger yet");
}

#[test]
fn each_thing_that_kubernetes_cannot_do_is_told_within_a_pass_and_spends_nothing() {
    for reason in ["ErrImagePull", "Unschedulable", "CreateContainerConfigError"] {
        for role in [JM, TM(1)] {
            let mut facts = running();
            let pod = facts.pods.iter_mut().find(|pod| pod.role == role).expect("is there");
            let problem = Rejection { reason: reason.to_owned(), message: "what".to_owned() };
            (pod.started, pod.problem) = (false, Some(problem.clone()));
            let told = plan(&facts);
            assert_eq!((told.view.degraded, told.memory.failures.total()), (Some(problem), 0), "{reason} {role:?}");
            assert!(told.create.is_empty() && told.delete.is_empty());
        }
    }
    // A bucket that is not there: the JobManager waits for it, and says so.
    let mut facts = running();
    let message = "s3://bucket: NoSuchBucket".to_owned();
    let report = facts.report.as_mut().expect("runs");
    (report.state, report.attempt) = (JobState::Starting, Attempt(0));
    report.notices = vec![Notice { reason: "StoreMissing".to_owned(), message: message.clone() }];
    let told = plan(&facts);
    let expected = Rejection { reason: "StoreMissing".to_owned(), message };
    assert_eq!((told.view.degraded, told.memory.failures.total()), (Some(expected), 0));
}

/// A Secret that a volume names and that is not there: the kubelet tells it in an event alone.
#[test]
fn a_pod_that_waits_for_its_volumes_is_told_of_after_a_while() {
    let first = facts();
    let mut facts = after(&first, &plan(&first));
    for pod in &mut facts.pods {
        (pod.started, pod.ready_since) = (false, None);
    }
    let early = plan(&facts);
    assert_eq!((early.view.degraded, early.wake_at), (None, Some(NOW.plus(TimeSpan::from_secs(30)))));
    facts.now = NOW.plus(TimeSpan::from_secs(30));
    let told = plan(&facts);
    let wrong = told.view.degraded.expect("is told");
    assert_eq!((wrong.reason.as_str(), told.memory.failures.total()), ("ContainerCreating", 0));
    assert!(wrong.message.contains("pod pv-1-jm") && wrong.message.contains("Secret"), "{}", wrong.message);
}

/// It was told as an event when the revision began; it is no sign that anything goes wrong.
#[test]
fn what_a_spec_says_in_vain_is_told_once_and_does_not_degrade_the_job() {
    let mut job = job();
    let checkpointing = json!({"interval": "2s", "minPause": "1s", "maxConcurrent": 2});
    job.spec.checkpointing = Some(serde_json::from_value(checkpointing).expect("is a checkpointing block"));
    let first = Facts { program: validate_program(&job, None), ..facts() };
    let told = |plan: &Plan| plan.events.iter().filter(|event| event.reason == "MaxConcurrentOverruled").count();
    assert_eq!(told(&plan(&first)), 1);
    let mut running = after(&first, &plan(&first));
    let notice = |reason: &str| sluice_protocol::status::Notice { reason: reason.to_owned(), message: String::new() };
    let report = JobStatus { state: JobState::Running, generation: Generation(1), since: NOW, ..JobStatus::default() };
    running.report = Some(JobStatus { notices: vec![notice("MaxConcurrentOverruled")], ..report.clone() });
    let second = plan(&running);
    assert_eq!((told(&second), second.view.degraded), (0, None));
    let notices = vec![notice("MaxConcurrentOverruled"), notice("StoreUnreachable")];
    running.report = Some(JobStatus { notices, ..report });
    let degraded = plan(&running).view.degraded.map(|wrong| wrong.reason);
    assert_eq!(degraded.as_deref(), Some("StoreUnreachable"), "what comes behind it is seen");
}

/// Running without a checkpoint is told; how long that may take depends on the options.
#[test]
fn a_job_that_runs_but_completes_no_checkpoint_is_degraded() {
    let seconds = |n| NOW.plus(TimeSpan::from_secs(n));
    let mut facts = running();
    facts.now = seconds(1199);
    let early = plan(&facts);
    assert_eq!((early.view.degraded, early.wake_at), (None, Some(seconds(1200))), "two timeouts of 10 minutes");
    facts.now = seconds(1200);
    let stuck = plan(&facts);
    assert_eq!(stuck.view.degraded.map(|wrong| wrong.reason).as_deref(), Some("CheckpointsStuck"));
    facts.report.as_mut().expect("is there").since = seconds(1);
    assert_eq!(plan(&facts).view.degraded, None, "it counts from when the tasks run");
    facts.report.as_mut().expect("is there").since = NOW;
    let tolerable = sluice_protocol::options::TolerableFailures::Count(1);
    for spec in
        [facts.frozen.as_mut(), facts.program.as_mut().ok().map(|program| &mut program.spec)].into_iter().flatten()
    {
        spec.checkpointing.as_mut().expect("is there").tolerable_failures = tolerable;
    }
    assert_eq!(plan(&facts).view.degraded, None, "one more may fail");
}

/// FKO showed jobs that restart, with no restart counted.
#[test]
fn a_job_that_never_ran_starts_and_does_not_restart() {
    let first = facts();
    let mut facts = after(&first, &plan(&first));
    facts.told.state = Some(StreamJobState::Restarting);
    assert_eq!(plan(&facts).view.state, Some(StreamJobState::Starting));
    exit(&mut facts, ExitKind::Superseded);
    assert_eq!(plan(&facts).view.state, Some(StreamJobState::Starting), "a generation that has no fault");
    kill(&mut facts);
    let lost = plan(&facts);
    assert_eq!((lost.view.state, lost.memory.failures.total()), (Some(StreamJobState::Restarting), 1));
    assert_eq!(lost.lost.map(|lost| (lost.fault, lost.pod)), Some(("External", Some("pv-1-jm".to_owned()))));
}
