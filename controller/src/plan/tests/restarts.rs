//! Each restart is seen by exactly one pass, however late it comes and whoever makes it.

use super::*;
use sluice_protocol::failure::{Failure, FailureRecord, Fault};
use sluice_protocol::ids::Run;

fn seen(plan: &Plan) -> Vec<(&str, u64)> {
    plan.restarts.iter().map(|(cause, times)| (cause.as_str(), *times)).collect()
}

/// The JobManager tells of failures of its attempts, the newest first.
fn failed(facts: &mut Facts, reasons: &[&str]) {
    let report = facts.report.as_mut().expect("it runs");
    report.failure_counts = FailureCounts::new(1);
    report.failures.clear();
    for (attempt, reason) in (1..).zip(reasons) {
        let run = Run { generation: Generation(1), attempt: Attempt(attempt) };
        let failure = Failure::restart(reason, Fault::External, "it broke");
        let counted = CountedFailure::Attempt(run.generation, run.attempt);
        let policy = sluice_protocol::restart::RestartPolicy::from_spec(None, true).expect("is right");
        policy.on_failure(&mut report.failure_counts, counted, None, NOW);
        report.failures.insert(0, FailureRecord { at: NOW, run, task_manager: None, subtask: None, failure });
    }
    report.attempt = Attempt(u32::try_from(reasons.len()).expect("are few") + 1);
}

#[test]
fn restarts_in_place_count_although_the_tasks_run_again_when_they_are_seen() {
    let mut facts = running();
    assert_eq!(seen(&plan(&facts)), []);
    failed(&mut facts, &["TaskManagerLost", "External", "TaskManagerLost"]);
    let step = plan(&facts);
    assert_eq!(seen(&step), [("External", 1), ("TaskManagerLost", 2)]);
    assert_eq!(step.view.state, Some(StreamJobState::Running), "it has never been seen to restart");
    // The same report, seen again by the next pass, by another controller, or by one whose write was refused.
    let mut known = after(&facts, &step);
    assert_eq!(seen(&plan(&known)), []);
    assert_eq!(seen(&plan(&facts)), seen(&step));
    failed(&mut known, &["TaskManagerLost", "External", "TaskManagerLost", "TasksStuck"]);
    assert_eq!(seen(&plan(&known)), [("TasksStuck", 1)]);
    // Of more than it tells of, the oldest stands for the rest; what ends the job is no restart.
    failed(&mut facts, &["A", "B", "C"]);
    let report = facts.report.as_mut().expect("it runs");
    report.failures.truncate(1);
    assert_eq!(seen(&plan(&facts)), [("C", 3)]);
    facts.report.as_mut().expect("it runs").state = JobState::Failed;
    assert_eq!(seen(&plan(&facts)), [("C", 2)]);
}

#[test]
fn a_lost_job_manager_counts_once_over_all_passes_until_its_successor_runs() {
    let mut facts = running();
    kill(&mut facts);
    let lost = plan(&facts);
    assert_eq!((seen(&lost), lost.create.len()), (vec![("JobManagerLost", 1)], 0));
    let mut waits = after(&facts, &lost);
    assert_eq!(seen(&plan(&waits)), []);
    waits.now = NOW.plus(TimeSpan::from_secs(1));
    let next = plan(&waits);
    assert_eq!((seen(&next), next.memory.generation), (vec![], Generation(2)));
    assert_eq!(seen(&plan(&after(&waits, &next))), []);
}

#[test]
fn a_drain_is_a_restart_and_neither_an_upgrade_nor_an_end_is() {
    let mut drained = running();
    (job_manager(&mut drained).terminating, job_manager(&mut drained).drained) = (true, true);
    let step = plan(&drained);
    assert_eq!((seen(&step), step.memory.failures.total()), (vec![("JobManagerDrained", 1)], 0));
    assert_eq!(seen(&plan(&after(&drained, &step))), []);

    let facts = changed(running());
    let mut stopping = after(&facts, &plan(&facts));
    exit(&mut stopping, ExitKind::Stopped);
    let next = plan(&stopping);
    assert_eq!((seen(&next), next.memory.revision), (vec![], 2));

    let mut given_up = running();
    given_up.memory.failures = FailureCounts::new(1);
    for generation in [Generation(7), Generation(8)] {
        let policy = sluice_protocol::restart::RestartPolicy::from_spec(None, true).expect("is right");
        policy.on_failure(&mut given_up.memory.failures, CountedFailure::JobManager(generation), None, NOW);
    }
    kill(&mut given_up);
    let end = plan(&given_up);
    assert_eq!((seen(&end), end.view.state), (vec![], Some(StreamJobState::Failed)));
}
