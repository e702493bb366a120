//! Versions of StreamJobs that this replica has written over.
//!
//! What a pass writes comes back by the watch a little later. Whatever starts a pass in between (a pod, a JobManager's
//! word) would see the object as it was before, plan on it, and have its write refused: such a pass is put off until the
//! watch has caught up, which starts one by itself.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Versions that are remembered of each object: those that one pass writes over, and some.
const REMEMBERED: usize = 8;
/// Objects; when there are more all are forgotten, which costs a refused write now and then.
const OBJECTS: usize = 16_384;

/// By uid, the newest last.
#[derive(Debug, Default)]
pub struct Outdated {
    versions: Mutex<HashMap<String, VecDeque<String>>>,
}

impl Outdated {
    /// This version was written over.
    pub fn note(&self, uid: &str, version: &str) {
        let mut all = self.lock();
        if all.len() >= OBJECTS {
            all.clear();
        }
        let versions = all.entry(uid.to_owned()).or_default();
        if versions.len() == REMEMBERED {
            versions.pop_front();
        }
        versions.push_back(version.to_owned());
    }

    /// Whether a later version is known to be.
    #[must_use]
    pub fn holds(&self, uid: &str, version: &str) -> bool {
        self.lock().get(uid).is_some_and(|versions| versions.iter().any(|one| one == version))
    }

    /// A panic elsewhere must not stop the controller: the map is whole at every step.
    fn lock(&self) -> MutexGuard<'_, HashMap<String, VecDeque<String>>> {
        self.versions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_versions_that_were_written_over_are_known() {
        let outdated = Outdated::default();
        assert!(!outdated.holds("a", "1"));
        for version in 1..=9 {
            outdated.note("a", &version.to_string());
        }
        assert!(outdated.holds("a", "9") && outdated.holds("a", "2") && !outdated.holds("b", "9"));
        assert!(!outdated.holds("a", "1"), "of each object the last {REMEMBERED} are kept");
        (0..OBJECTS).for_each(|number| outdated.note(&number.to_string(), "1"));
        assert!(!outdated.holds("a", "9") && outdated.holds("16383", "1"), "memory is bounded");
    }
}
