//! When a StreamJob whose pass has failed is looked at again.
//!
//! A pass writes what it intends before it acts (C2), and that write starts the next pass: a call that is refused for
//! long (a quota, a name that is taken) would be repeated as fast as the API server answers, each time with another
//! status. So passes wait after a failure, whatever wakes them; a changed spec is looked at at once. A pass on an object
//! that the cache has too late conflicts again until the watch has caught up, which starts a pass by itself.

use crate::facts::Rejection;
use sluice_protocol::{TimeSpan, Timestamp};
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// After the first failure; doubled by each further one.
const FIRST: TimeSpan = TimeSpan::from_secs(1);
/// At most: what else happens to the job waits as long.
const LAST: TimeSpan = TimeSpan::from_secs(16);

/// After the first conflict of an object as the cache has it; doubled by each further one.
const FIRST_CONFLICT: TimeSpan = TimeSpan::from_millis(200);
/// At most, where the watch does not catch up.
const LAST_CONFLICT: TimeSpan = TimeSpan::from_secs(5);

/// One that was not heard of for so long is gone.
const FORGOTTEN: TimeSpan = TimeSpan::from_secs(3600);

/// The StreamJobs whose last pass has failed, by uid.
#[derive(Debug, Default)]
pub struct Backoff {
    jobs: Mutex<HashMap<String, Failed>>,
    /// resourceVersion of the object that conflicted last, and how often, by uid.
    conflicts: Mutex<HashMap<String, (String, u32)>>,
}

#[derive(Debug, Clone)]
struct Failed {
    /// metadata.generation of the spec that it failed with.
    spec_generation: i64,
    failures: u32,
    until: Timestamp,
    why: Rejection,
}

impl Backoff {
    /// A pass has failed: how long the next one waits.
    pub fn failed(&self, uid: &str, spec_generation: i64, why: Rejection, now: Timestamp) -> TimeSpan {
        let mut jobs = self.lock();
        let failures = match jobs.get(uid) {
            Some(before) if before.spec_generation == spec_generation => before.failures.saturating_add(1),
            _ => 1,
        };
        let wait = TimeSpan(FIRST.0 << (failures - 1).min(10)).min(LAST);
        jobs.retain(|_, failed| now.since(failed.until) < FORGOTTEN);
        jobs.insert(uid.to_owned(), Failed { spec_generation, failures, until: now.plus(wait), why });
        wait
    }

    /// A pass went through, or the StreamJob is gone.
    pub fn forget(&self, uid: &str) {
        self.lock().remove(uid);
        self.lock_conflicts().remove(uid);
    }

    /// A write of an object as the cache has it has conflicted: how long the next pass waits.
    pub fn conflicted(&self, uid: &str, resource_version: &str) -> TimeSpan {
        let mut conflicts = self.lock_conflicts();
        let before =
            conflicts.get(uid).filter(|(version, _)| version == resource_version).map_or(0, |(_, times)| *times);
        conflicts.insert(uid.to_owned(), (resource_version.to_owned(), before.saturating_add(1)));
        TimeSpan(FIRST_CONFLICT.0 << before.min(10)).min(LAST_CONFLICT)
    }

    /// How long a pass has to wait yet, if it has to.
    #[must_use]
    pub fn remaining(&self, uid: &str, spec_generation: i64, now: Timestamp) -> Option<TimeSpan> {
        let jobs = self.lock();
        let failed = jobs.get(uid).filter(|failed| failed.spec_generation == spec_generation)?;
        Some(failed.until.since(now)).filter(|wait| wait.0 > 0)
    }

    /// What the last pass failed with, until one goes through.
    #[must_use]
    pub fn why(&self, uid: &str, spec_generation: i64) -> Option<Rejection> {
        let jobs = self.lock();
        jobs.get(uid).filter(|failed| failed.spec_generation == spec_generation).map(|failed| failed.why.clone())
    }

    /// A panic elsewhere must not stop the controller: the map is whole at every step.
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Failed>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_conflicts(&self) -> MutexGuard<'_, HashMap<String, (String, u32)>> {
        self.conflicts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp(1_767_225_600_000);

    fn why() -> Rejection {
        Rejection { reason: "QuotaExceeded".to_owned(), message: "pods".to_owned() }
    }

    #[test]
    fn waits_grow_to_a_limit_and_end_with_success() {
        let backoff = Backoff::default();
        let waits: Vec<_> = (0..7).map(|_| backoff.failed("a", 1, why(), NOW).0 / 1000).collect();
        assert_eq!(waits, [1, 2, 4, 8, 16, 16, 16]);
        assert_eq!(backoff.remaining("a", 1, NOW), Some(LAST));
        assert_eq!(backoff.remaining("a", 1, NOW.plus(LAST)), None);
        assert_eq!(backoff.remaining("b", 1, NOW), None);
        assert_eq!((backoff.why("a", 1), backoff.why("a", 2)), (Some(why()), None));
        backoff.forget("a");
        assert_eq!(backoff.remaining("a", 1, NOW), None);
        assert_eq!(backoff.failed("a", 1, why(), NOW), FIRST);
    }

    /// Found by the simulation: a watch that was long in coming back, and five passes a second meanwhile.
    #[test]
    fn conflicts_of_an_object_that_stays_old_become_rare() {
        let backoff = Backoff::default();
        let waits: Vec<_> = (0..7).map(|_| backoff.conflicted("a", "7").0).collect();
        assert_eq!(waits, [200, 400, 800, 1600, 3200, 5000, 5000]);
        assert_eq!(backoff.conflicted("a", "8"), FIRST_CONFLICT);
        backoff.forget("a");
        assert_eq!(backoff.conflicted("a", "8"), FIRST_CONFLICT);
    }

    #[test]
    fn a_changed_spec_waits_for_nothing() {
        let backoff = Backoff::default();
        backoff.failed("a", 1, why(), NOW);
        backoff.failed("a", 1, why(), NOW);
        assert_eq!(backoff.remaining("a", 2, NOW), None);
        assert_eq!(backoff.failed("a", 2, why(), NOW), FIRST);
    }
}
