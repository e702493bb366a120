//! The last failures of a job, over all its JobManagers: each JobManager tells its own, the controller adds the lost
//! JobManagers and what the kubelet says of the pods. Pure.
//!
//! Callers rely on: newest first, the last five and beside them the last one of each of the last generations, at most ten
//! in all; and what was known of a failure stays when its pod or its JobManager is
//! gone.

use super::shorten;
use crate::facts::{Facts, PodFacts};
use crate::plan::LostJobManager;
use crate::time::{from_time, to_time};
use sluice_crds::StatusFailure;
use sluice_protocol::Timestamp;
use sluice_protocol::failure::FailureRecord;
use sluice_protocol::status::JobStatus;
use std::collections::BTreeSet;

/// Failures that status shows, whatever their generation.
const LATEST: usize = 5;
/// Failures that status shows, with the last ones of earlier generations.
const LIMIT: usize = 10;
/// Characters of the last log lines.
const LOG: usize = 1_000;

/// Old failures, those that the JobManager tells, and its own loss.
pub(super) fn build_failures(
    old: &[StatusFailure],
    report: Option<&JobStatus>,
    lost: Option<&LostJobManager>,
    facts: &Facts,
) -> Vec<StatusFailure> {
    let reported = report.iter().flat_map(|report| &report.failures).map(|record| of_record(record, &facts.pods));
    let mut failures: Vec<_> = lost.map(|lost| of_job_manager(lost, facts)).into_iter().chain(reported).collect();
    for failure in &mut failures {
        if let Some(known) = old.iter().find(|known| is_same(known, failure)) {
            failure.pod_end = failure.pod_end.take().or_else(|| known.pod_end.clone());
            failure.last_log_lines = failure.last_log_lines.take().or_else(|| known.last_log_lines.clone());
        }
    }
    let earlier: Vec<_> =
        old.iter().filter(|old| !failures.iter().any(|failure| is_same(old, failure))).cloned().collect();
    failures.extend(earlier);
    failures.sort_by_key(|failure| std::cmp::Reverse(failure.at.as_ref().map(from_time).unwrap_or_default()));
    keep_latest(&mut failures);
    failures
}

/// A generation whose tasks fail again and again pushes out its own failures, not why the ones before it ended.
fn keep_latest(failures: &mut Vec<StatusFailure>) {
    let (mut position, mut generations) = (0, BTreeSet::new());
    failures.retain(|failure| {
        position += 1;
        let is_last_of_generation = generations.insert(failure.generation);
        is_last_of_generation || position <= LATEST
    });
    failures.truncate(LIMIT);
}

/// Whether two entries tell of one failure.
fn is_same(one: &StatusFailure, other: &StatusFailure) -> bool {
    // As the API server keeps it: to the second.
    let second = |failure: &StatusFailure| failure.at.as_ref().map(|at| from_time(at).0 / 1000);
    let key = |failure: &StatusFailure| (failure.generation, failure.attempt, failure.reason.clone(), second(failure));
    key(one) == key(other)
}

fn of_record(record: &FailureRecord, pods: &[PodFacts]) -> StatusFailure {
    let pod = record.task_manager.as_ref().map(|id| id.0.clone());
    let failure = StatusFailure {
        fault: Some(format!("{:?}", record.failure.fault)),
        generation: Some(record.run.generation.0),
        attempt: Some(record.run.attempt.0),
        reason: Some(record.failure.reason.clone()),
        message: Some(shorten(&record.failure.message)),
        ..of_pod(pod.as_deref(), pods)
    };
    StatusFailure { at: Some(to_time(whole_second(record.at))), ..failure }
}

fn of_job_manager(lost: &LostJobManager, facts: &Facts) -> StatusFailure {
    let failure = StatusFailure {
        fault: Some(lost.fault.to_owned()),
        generation: Some(lost.generation.0),
        reason: Some(lost.cause.reason.clone()),
        message: Some(shorten(&lost.cause.message)),
        ..of_pod(lost.pod.as_deref(), &facts.pods)
    };
    StatusFailure { at: Some(to_time(whole_second(facts.now))), ..failure }
}

/// What the kubelet says of the pod that it happened on.
fn of_pod(name: Option<&str>, pods: &[PodFacts]) -> StatusFailure {
    let end = name.and_then(|name| pods.iter().find(|pod| pod.name == name)).and_then(|pod| pod.ended.as_ref());
    let log = end.and_then(|end| end.last_log_lines.as_ref());
    StatusFailure {
        pod: name.map(ToOwned::to_owned),
        pod_end: end.map(|end| shorten(&end.account)),
        last_log_lines: log.map(|log| last_characters(log, LOG)),
        ..StatusFailure::default()
    }
}

const fn whole_second(at: Timestamp) -> Timestamp {
    Timestamp(at.0 / 1000 * 1000)
}

fn last_characters(text: &str, limit: usize) -> String {
    let surplus = text.chars().count().saturating_sub(limit);
    text.chars().skip(surplus).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::{PodEnd, Rejection};
    use crate::plan::tests::{facts, running_pod_of};
    use sluice_protocol::failure::{Failure, Fault};
    use sluice_protocol::ids::Run;
    use sluice_protocol::{Attempt, Generation};

    fn record(generation: u64, attempt: u32, at: u64) -> FailureRecord {
        let run = Run { generation: Generation(generation), attempt: Attempt(attempt) };
        let failure = Failure::restart("TaskManagerLost", Fault::External, "its connection broke");
        FailureRecord { at: Timestamp(at), run, task_manager: Some("pv-1-tm-0".into()), subtask: None, failure }
    }

    fn report(failures: Vec<FailureRecord>) -> JobStatus {
        JobStatus { failures, ..JobStatus::default() }
    }

    #[test]
    fn a_killed_pod_says_how_it_ended_also_when_it_is_gone() {
        let mut facts = facts();
        let mut pod = running_pod_of("pv-1-tm-0");
        let last_log_lines = Some("allocating 3 GiB".to_owned());
        let account = "OOMKilled (exit code 137)".to_owned();
        pod.ended = Some(PodEnd { record: None, account, last_log_lines, at: facts.now });
        facts.pods = vec![pod];
        let told = report(vec![record(1, 1, 5_500)]);
        let first = build_failures(&[], Some(&told), None, &facts);
        assert_eq!(first[0].pod_end.as_deref(), Some("OOMKilled (exit code 137)"));
        assert_eq!(first[0].last_log_lines.as_deref(), Some("allocating 3 GiB"));
        assert_eq!((first[0].fault.as_deref(), first[0].attempt), (Some("External"), Some(1)));
        facts.pods.clear();
        assert_eq!(build_failures(&first, Some(&told), None, &facts), first);
        assert_eq!(build_failures(&first, None, None, &facts), first, "nor is it forgotten by the next JobManager");
    }

    #[test]
    fn the_last_failure_of_each_generation_is_kept() {
        let facts = facts();
        let mut known = Vec::new();
        for generation in 1..=12 {
            let at = |attempt: u32| generation * 100_000 + u64::from(attempt) * 1000;
            let told = report((1..=7).rev().map(|attempt| record(generation, attempt, at(attempt))).collect());
            known = build_failures(&known, Some(&told), None, &facts);
        }
        let shown: Vec<_> =
            known.iter().map(|failure| (failure.generation.unwrap(), failure.attempt.unwrap())).collect();
        let of_last = (3..=7).rev().map(|attempt| (12, attempt));
        let earlier = (7..=11).rev().map(|generation| (generation, 7));
        assert_eq!(shown, of_last.chain(earlier).collect::<Vec<_>>());
    }

    #[test]
    fn the_newest_come_first_with_lost_job_managers_among_them_and_five_are_kept() {
        let mut facts = facts();
        facts.now = Timestamp(9_000);
        let cause = Rejection { reason: "JobManagerLost".to_owned(), message: "pod pv-1-jm: Error".to_owned() };
        let lost =
            LostJobManager { generation: Generation(1), cause, fault: "External", pod: Some("pv-1-jm".to_owned()) };
        let told = report((1..=5).rev().map(|attempt| record(1, attempt, u64::from(attempt) * 1000)).collect());
        let failures = build_failures(&[], Some(&told), Some(&lost), &facts);
        let attempts: Vec<_> = failures.iter().map(|failure| failure.attempt).collect();
        assert_eq!(attempts, [None, Some(5), Some(4), Some(3), Some(2)]);
        assert_eq!(failures[0].pod.as_deref(), Some("pv-1-jm"));
    }
}
