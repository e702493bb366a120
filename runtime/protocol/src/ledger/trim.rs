//! Which entries may be removed (L4).
//!
//! A zombie's next number is its successor's first entry, so first entries are never removed, nor is the last one.

use crate::ledger::fold::Fold;
use crate::paths::JobPaths;
use std::ops::Range;

/// Appends between two trims, and entries that a trim leaves.
pub const KEPT: u64 = 100;

/// The bound that an entry of this number announces, when it is time for one.
#[must_use]
pub fn bound_at(number: u64) -> Option<u64> {
    (number.is_multiple_of(KEPT) && number > KEPT).then(|| number - KEPT + 1)
}

/// The keys to remove once `trimmed_below` has risen by a standing entry.
#[must_use]
pub fn keys_to_remove(paths: &JobPaths, numbers: Range<u64>, first_entries: &[u64]) -> Vec<String> {
    let removable = numbers.filter(|number| *number > 0 && !first_entries.contains(number));
    removable.map(|number| paths.ledger_entry(number)).collect()
}

/// The fold with its bound raised. First entries below it stay in the store without being remembered.
#[must_use]
pub fn raise_bound(mut fold: Fold, trimmed_below: u64) -> Fold {
    fold.trimmed_below = trimmed_below;
    fold.first_entries.retain(|number| *number >= trimmed_below);
    fold
}
