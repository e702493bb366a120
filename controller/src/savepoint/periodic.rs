//! Periodic savepoints of one StreamJob: which Savepoint object is to be made, and which are to go. Pure.
//!
//! All follows from the objects that are there: the newest one says when the next is due, so nothing is forgotten with
//! the controller, and after a pause there is one and no burst. An object is named by when it was due, so that it is
//! made once, however stale the view of it.

use crate::plan::ObjectIdentity as Reference;
use sluice_crds::schedule::Schedule;
use sluice_crds::{HistoryLimit, PeriodicSavepointsSpec, SavepointPhase};
use sluice_protocol::Timestamp;

/// Failed ones that are kept, at most.
const FAILED_KEPT: usize = 3;

/// What decides about the periodic savepoints of one StreamJob.
#[derive(Debug, Clone, PartialEq)]
pub struct PeriodicFacts {
    /// When they were read.
    pub now: Timestamp,
    /// What the spec asks for.
    pub spec: Option<PeriodicSavepointsSpec>,
    /// Whether the job is Running.
    pub running: bool,
    /// When the StreamJob was made.
    pub created_at: Timestamp,
    /// The Savepoint objects that were made for it.
    pub objects: Vec<PeriodicObject>,
}

/// One Savepoint object that was made by a schedule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeriodicObject {
    /// Name.
    pub name: String,
    /// uid.
    pub uid: String,
    /// When it was made.
    pub created_at: Timestamp,
    /// How far it is.
    pub phase: SavepointPhase,
    /// Whether it is being deleted.
    pub terminating: bool,
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PeriodicPlan {
    /// The time for which a Savepoint is to be made.
    pub create: Option<Timestamp>,
    /// Those to delete.
    pub delete: Vec<Reference>,
    /// When to look again at the latest.
    pub wake_at: Option<Timestamp>,
}

/// Decides.
#[must_use]
pub fn plan_periodic(facts: &PeriodicFacts) -> PeriodicPlan {
    let Some(spec) = &facts.spec else { return PeriodicPlan::default() };
    let mut plan = PeriodicPlan::default();
    let (delete, expires_at) = surplus(facts, &spec.history_limit);
    plan.delete = delete;
    let due = due(facts, spec);
    let in_time = |at: &Timestamp| *at > facts.now;
    plan.wake_at = due.into_iter().chain(expires_at).filter(in_time).min();
    let is_active = facts.objects.iter().any(|object| !object.phase.is_terminal() && !object.terminating);
    plan.create = due.filter(|at| !in_time(at) && facts.running && !is_active);
    plan
}

/// When the next one is due; that may be long ago.
fn due(facts: &PeriodicFacts, spec: &PeriodicSavepointsSpec) -> Option<Timestamp> {
    let newest = facts.objects.iter().map(|object| object.created_at).max();
    let last = newest.unwrap_or(facts.created_at);
    match (spec.interval, &spec.schedule) {
        (Some(interval), _) => Some(last.plus(interval)),
        (None, Some(schedule)) => schedule.parse::<Schedule>().ok()?.next_after(last),
        (None, None) => None,
    }
}

/// Those beyond the limits, oldest first, and when the next one will be too old. Those under way stay, and the newest
/// completed one always does.
fn surplus(facts: &PeriodicFacts, limit: &HistoryLimit) -> (Vec<Reference>, Option<Timestamp>) {
    let count = usize::try_from(limit.count).unwrap_or(usize::MAX).max(1);
    let ended = |completed: bool| {
        let is_meant = move |object: &&PeriodicObject| {
            object.phase.is_terminal()
                && (object.phase == SavepointPhase::Completed) == completed
                && !object.terminating
        };
        let mut objects: Vec<_> = facts.objects.iter().filter(is_meant).collect();
        objects.sort_by(|a, b| (b.created_at, &b.name).cmp(&(a.created_at, &a.name)));
        objects
    };
    let old = |object: &PeriodicObject| limit.age.map(|age| object.created_at.plus(age));
    let is_old = |object: &PeriodicObject| old(object).is_some_and(|at| at <= facts.now);
    let (completed, failed) = (ended(true), ended(false));
    let completed = completed.iter().enumerate().skip(1).map(|(index, object)| (index >= count, *object));
    let failed = failed.iter().enumerate().map(|(index, object)| (index >= count.min(FAILED_KEPT), *object));
    let (surplus, kept): (Vec<_>, Vec<_>) =
        completed.chain(failed).partition(|(beyond, object)| *beyond || is_old(object));
    let mut surplus: Vec<_> = surplus.into_iter().map(|(_, object)| object).collect();
    surplus.sort_by_key(|object| object.created_at);
    let reference =
        |object: &PeriodicObject| Reference { name: object.name.clone(), uid: object.uid.clone(), version: None };
    (surplus.into_iter().map(reference).collect(), kept.into_iter().filter_map(|(_, object)| old(object)).min())
}

/// The name of the Savepoint that was due at a time: `pageviews-20261130-030000`.
#[must_use]
pub fn object_name(job: &str, due: Timestamp) -> String {
    format!("{job}-{}", crate::time::compact(due))
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_protocol::TimeSpan;

    const NOW: Timestamp = Timestamp(1_796_007_600_000); // 2026-11-30T03:00:00Z
    const HOUR: TimeSpan = TimeSpan::from_secs(3600);

    fn before(span: TimeSpan) -> Timestamp {
        Timestamp(NOW.0 - span.0)
    }

    fn hours(number: u64) -> TimeSpan {
        TimeSpan(number * HOUR.0)
    }

    fn object(name: &str, age: TimeSpan, phase: SavepointPhase) -> PeriodicObject {
        PeriodicObject {
            name: name.into(),
            uid: format!("uid-{name}"),
            created_at: before(age),
            phase,
            terminating: false,
        }
    }

    fn facts(spec: serde_json::Value, objects: Vec<PeriodicObject>) -> PeriodicFacts {
        let spec = serde_json::from_value(spec).expect("is a spec");
        PeriodicFacts { now: NOW, spec: Some(spec), running: true, created_at: before(hours(1000)), objects }
    }

    fn hourly() -> serde_json::Value {
        serde_json::json!({"interval": "1h", "historyLimit": {"count": 2}})
    }

    fn deleted(plan: &PeriodicPlan) -> Vec<&str> {
        plan.delete.iter().map(|object| object.name.as_str()).collect()
    }

    #[test]
    fn the_next_is_due_an_interval_after_the_newest() {
        use SavepointPhase::{Completed, Failed, InProgress};
        let due = plan_periodic(&facts(hourly(), vec![object("a", HOUR, Completed), object("b", hours(9), Completed)]));
        assert_eq!((due.create, due.wake_at), (Some(NOW), None));
        let early = plan_periodic(&facts(hourly(), vec![object("a", TimeSpan(HOUR.0 - 1), Failed)]));
        assert_eq!((early.create, early.wake_at), (None, Some(Timestamp(NOW.0 + 1))));
        let busy = plan_periodic(&facts(hourly(), vec![object("a", hours(2), InProgress)]));
        assert_eq!(busy.create, None, "one at a time");
        let resting = PeriodicFacts { running: false, ..facts(hourly(), vec![]) };
        assert_eq!(plan_periodic(&resting), PeriodicPlan::default());
    }

    #[test]
    fn after_a_pause_there_is_one_and_no_burst() {
        let mut facts = facts(hourly(), vec![object("a", hours(500), SavepointPhase::Completed)]);
        let due = plan_periodic(&facts).create.expect("is due");
        assert_eq!(object_name("pv", due), "pv-20261109-080000");
        // The same for whoever asks again before the object is seen.
        facts.now = NOW.plus(TimeSpan::from_secs(5));
        assert_eq!(plan_periodic(&facts).create, Some(due));
        facts.objects.push(object("b", TimeSpan(0), SavepointPhase::Completed));
        let plan = plan_periodic(&facts);
        assert_eq!((plan.create, plan.wake_at), (None, Some(NOW.plus(HOUR))));
    }

    #[test]
    fn a_schedule_is_due_at_its_times() {
        let daily = || serde_json::json!({"schedule": "0 3 * * *"});
        let plan = plan_periodic(&facts(daily(), vec![object("a", hours(24), SavepointPhase::Completed)]));
        assert_eq!(plan.create, Some(NOW));
        let made = facts(daily(), vec![object("a", TimeSpan(0), SavepointPhase::Pending)]);
        assert_eq!(plan_periodic(&made).wake_at, Some(NOW.plus(hours(24))));
    }

    #[test]
    fn limits_never_touch_the_newest_completed_one_nor_one_under_way() {
        use SavepointPhase::{Abandoned, Completed, Failed, Pending};
        let objects = vec![
            object("pending", TimeSpan(1), Pending),
            object("f1", hours(1), Failed),
            object("c1", hours(2), Completed),
            object("c2", hours(3), Completed),
            object("f2", hours(4), Abandoned),
            object("f3", hours(5), Failed),
            object("c3", hours(6), Completed),
            object("c4", hours(7), Completed),
        ];
        assert_eq!(deleted(&plan_periodic(&facts(hourly(), objects.clone()))), ["c4", "c3", "f3"]);
        let aged = serde_json::json!({"interval": "1h", "historyLimit": {"count": 100, "age": "1h"}});
        let plan = plan_periodic(&facts(aged.clone(), objects.clone()));
        assert_eq!(deleted(&plan), ["c4", "c3", "f3", "f2", "c2", "f1"]);
        let alone = plan_periodic(&facts(aged, vec![object("c", hours(900), Completed)]));
        assert_eq!(deleted(&alone), [""; 0]);
        let three = serde_json::json!({"interval": "1h", "historyLimit": {"count": 100, "age": "10h"}});
        let plan = plan_periodic(&facts(three, objects));
        assert_eq!((deleted(&plan), plan.wake_at), (vec![], Some(before(TimeSpan(1)).plus(HOUR))));
    }

    #[test]
    fn what_is_being_deleted_is_not_deleted_again() {
        let mut old = object("c2", hours(3), SavepointPhase::Completed);
        old.terminating = true;
        let one = serde_json::json!({"interval": "1h", "historyLimit": {"count": 1}});
        let plan = plan_periodic(&facts(one, vec![object("c1", TimeSpan(1), SavepointPhase::Completed), old]));
        assert_eq!(deleted(&plan), [""; 0]);
    }
}
