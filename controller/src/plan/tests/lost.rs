//! JobManagers and TaskManagers that are lost, drained, or cannot be heard: what follows, and what it spends.

use super::*;

#[test]
fn a_killed_job_manager_is_followed_by_the_next_generation() {
    let mut facts = running();
    kill(&mut facts);
    let first = plan(&facts);
    assert_eq!(created(&first), []);
    assert_eq!(first.memory.next_restart_at, Some(NOW.plus(TimeSpan::from_secs(1))));
    assert_eq!(first.memory.failures.total(), 1);
    assert_eq!(first.view.state, Some(StreamJobState::Restarting));
    let deleted: Vec<_> = first.delete.iter().map(|pod| pod.name.as_str()).collect();
    assert_eq!(deleted, ["pv-1-tm-0", "pv-1-tm-1"]);

    let mut waiting = after(&facts, &first);
    assert_eq!(plan(&waiting).memory, first.memory, "it is counted once");
    waiting.now = NOW.plus(TimeSpan::from_secs(1));
    let second = plan(&waiting);
    assert_eq!(created(&second), [(2, JM), (2, TM(0)), (2, TM(1))]);
    assert_eq!(directive(&second), json!({"id": "1-0", "seen": 7, "start": "continue"}));
    assert_eq!(second.memory.failures.total(), 1);
    assert_eq!(second.memory.revision, 1);
}

#[test]
fn job_managers_and_attempts_spend_one_budget() {
    let mut facts = running();
    let mut counts = FailureCounts::new(1);
    counts.record(CountedFailure::Attempt(Generation(1), Attempt(1)), NOW);
    counts.record(CountedFailure::Attempt(Generation(1), Attempt(2)), NOW);
    facts.report.as_mut().expect("is there").failure_counts = counts;
    let counted = plan(&facts);
    assert_eq!(counted.memory.failures.total(), 2);
    let mut facts = after(&facts, &counted);
    kill(&mut facts);
    let plan = plan(&facts);
    assert_eq!(plan.view.state, Some(StreamJobState::Failed));
    let message = plan.view.message;
    assert!(message.starts_with("JobManager of generation 1 lost: pod pv-1-jm: Error (exit code 137)"), "{message}");
    assert!(message.contains("allows 2 restarts"), "{message}");
}

#[test]
fn a_pod_that_is_gone_deleted_or_silent_is_lost() {
    let mut gone = running();
    gone.pods.retain(|pod| pod.role != JM);
    let mut deleted = running();
    job_manager(&mut deleted).terminating = true;
    let mut silent = running();
    job_manager(&mut silent).unready_since = Some(NOW);
    assert!(plan(&silent).view.ready, "it may come back");
    silent.now = NOW.plus(TimeSpan::from_secs(30));
    for (facts, reason) in [(gone, "Gone"), (deleted, "Deleted"), (silent, "Unresponsive")] {
        let plan = plan(&facts);
        assert_eq!(plan.view.state, Some(StreamJobState::Restarting), "{reason}");
        assert_eq!(plan.view.reason, format!("JobManager{reason}"));
    }
}

#[test]
fn a_drained_job_manager_is_followed_at_once_and_spends_no_restart() {
    let mut facts = running();
    let strategy = serde_json::json!({"none": {}});
    let mut frozen = facts.frozen.clone().expect("runs");
    frozen.restart_strategy = Some(serde_json::from_value(strategy).expect("is a strategy"));
    (facts.frozen, facts.program) =
        (Some(frozen.clone()), facts.program.map(|program| Program { spec: frozen, ..program }));
    job_manager(&mut facts).terminating = true;
    assert_eq!(plan(&facts).view.state, Some(StreamJobState::Failed), "one that is deleted is a failure");
    job_manager(&mut facts).drained = true;
    let drained = plan(&facts);
    assert_eq!((drained.memory.generation, drained.view.reason.as_str()), (Generation(2), "JobManagerDrained"));
    assert_eq!(drained.memory.failures, facts.memory.failures);
    assert!(drained.create.iter().any(|pod| pod.role == JM));
}

#[test]
fn pods_on_a_lost_node_are_given_up_soon_unless_they_still_answer() {
    let mut facts = running();
    let pod = job_manager(&mut facts);
    (pod.unready_since, pod.on_lost_node) = (Some(NOW), true);
    facts.now = NOW.plus(TimeSpan::from_secs(5));
    assert!(plan(&facts).view.ready, "its stream is up");
    facts.connected = false;
    assert_eq!(plan(&facts).view.reason, "NodeLost");
    (facts.connected, facts.now) = (true, NOW.plus(TimeSpan::from_secs(20)));
    assert_eq!(plan(&facts).view.reason, "NodeLost", "only its kubelet may be away for a moment");

    let mut facts = running();
    let report = facts.report.as_mut().expect("runs");
    report.task_managers.clear();
    let pod = facts.pods.iter_mut().find(|pod| pod.role != JM).expect("runs");
    (pod.unready_since, pod.on_lost_node) = (Some(NOW), true);
    let lost = pod.uid.clone();
    facts.now = facts.report.as_ref().expect("runs").since.max(NOW).plus(TimeSpan::from_secs(5));
    let replaced = plan(&facts);
    assert!(replaced.delete.iter().any(|pod| pod.uid == lost));
    assert_eq!(replaced.create.len(), 1);
}

#[test]
fn an_expired_certificate_is_told_by_name() {
    let why = "JobManager at '10.0.0.1:6123' cannot be reached: CertificateExpired: its certificate has expired";
    let facts = Facts {
        stream_problem: Some(stream_problem(Some(CertificateProblem::Expired), why)),
        connected: false,
        ..running()
    };
    let view = plan(&facts).view;
    let told = view.degraded.expect("is told");
    assert_eq!((told.reason.as_str(), told.message.as_str(), view.ready), ("CertificateExpired", why, false));
    for (certificate, why) in [(None, "CertificateExpired, says the text"), (Some(CertificateProblem::NotBelieved), "")]
    {
        let other = stream_problem(certificate, why);
        let other = Facts { stream_problem: Some(other), connected: false, ..running() };
        assert_eq!(plan(&other).view.degraded, None, "a stream that is down for a moment is no news");
    }
}

#[test]
fn a_lost_stream_is_told_of_and_becomes_a_lost_job_manager_only_after_a_while() {
    let seconds = |n| NOW.plus(TimeSpan::from_secs(n));
    let mut facts = Facts { unreachable_since: Some(NOW), connected: false, ..running() };
    assert!(plan(&facts).view.ready);
    facts.now = seconds(10);
    let told = plan(&facts);
    assert_eq!((told.view.ready, told.acts()), (false, false));
    assert_eq!(told.view.degraded.expect("is told").reason, "JobManagerUnreachable");
    assert_eq!(told.wake_at, Some(seconds(120)));
    facts.now = seconds(120);
    assert_eq!(plan(&facts).view.state, Some(StreamJobState::Restarting));
    facts.mostly_unreachable = true;
    assert_eq!(plan(&facts).view.state, Some(StreamJobState::Running), "it is the controller that is cut off");
    facts.now = seconds(180);
    assert_eq!(plan(&facts).view.state, Some(StreamJobState::Restarting), "but it holds its hand for 60 s only");
}

#[test]
fn a_crash_between_intent_and_pods_makes_the_same_pods() {
    let first = facts();
    let intent = plan(&first);
    let crashed = Facts { pods: Vec::new(), service_generation: None, ..after(&first, &intent) };
    let again = plan(&crashed);
    assert_eq!(created(&again)[0], (1, JM));
    assert_eq!((again.memory.generation, again.memory.failures.total()), (Generation(1), 0));
    assert_eq!(directive(&again), directive(&intent));
}

#[test]
fn a_lost_task_manager_is_replaced_under_a_new_index() {
    let mut facts = running();
    facts.pods.retain(|pod| pod.role != TM(0));
    let replaced = plan(&facts);
    assert_eq!(created(&replaced), [(1, TM(2))]);
    assert_eq!(replaced.memory.next_task_manager, 3);
    let facts = after(&facts, &replaced);
    assert!(!plan(&facts).acts());
}

/// While the JobManager starts, its TaskManagers look for it and are unready through no fault of theirs.
#[test]
fn a_task_manager_that_does_not_answer_is_replaced_once_its_job_manager_misses_it() {
    let mut facts = running();
    facts.pods.iter_mut().filter(|pod| pod.role == TM(1)).for_each(|pod| pod.unready_since = Some(NOW));
    facts.now = NOW.plus(TimeSpan::from_secs(60));
    facts.report.as_mut().expect("is there").since = NOW.plus(TimeSpan::from_secs(31));
    assert!(!plan(&facts).acts(), "the JobManager has run for 29 s only");
    facts.report.as_mut().expect("is there").since = NOW.plus(TimeSpan::from_secs(30));
    assert!(!plan(&Facts { connected: false, ..facts.clone() }).acts(), "nobody knows what the JobManager sees");
    let replaced = plan(&facts);
    assert_eq!((created(&replaced), replaced.delete[0].name.as_str()), (vec![(1, TM(2))], "pv-1-tm-1"));
    let known = sluice_protocol::status::TaskManagerStatus { id: "pv-1-tm-1".into(), slots: 1, last_heard: NOW };
    facts.report.as_mut().expect("is there").task_managers.push(known);
    assert!(!plan(&facts).acts());
}

#[test]
fn task_managers_that_die_young_are_replaced_ever_more_slowly() {
    let mut facts = running();
    let mut delays = Vec::new();
    for _ in 0..5 {
        let at = facts.now;
        let victim = facts.pods.iter_mut().rev().find(|pod| pod.role != JM && pod.is_alive()).expect("is there");
        victim.created_at = at;
        victim.ended = Some(PodEnd { record: None, account: String::new(), last_log_lines: None, at });
        let mut step = plan(&facts);
        facts = after(&facts, &step);
        while step.create.is_empty() {
            facts.now = step.wake_at.expect("wakes");
            step = plan(&facts);
            facts = after(&facts, &step);
        }
        delays.push(facts.now.since(at).0 / 1000);
    }
    assert_eq!(delays, [0, 1, 2, 4, 4], "the oldest of the dead pods are removed");
}

#[test]
fn task_managers_that_ended_as_told_are_not_replaced() {
    let mut facts = running();
    let record = ExitRecord::new(ExitKind::Finished, "", "");
    for pod in facts.pods.iter_mut().filter(|pod| pod.role != JM) {
        pod.ended =
            Some(PodEnd { record: Some(record.clone()), account: String::new(), last_log_lines: None, at: NOW });
    }
    assert_eq!(created(&plan(&facts)), []);
}
