//! The chain of stateful operators below a place in a statement, as text: what ids are made of.

use std::collections::{BTreeMap, BTreeSet};

/// A chain, said in two ways. Each text is empty or begins with a dot.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Chain {
    /// The operators, with tables only where the sides of a join need them.
    short: String,
    /// The operators and the tables below them.
    full: String,
}

impl Chain {
    /// A table that is read.
    pub(super) fn of_table(table: &str) -> Self {
        Self { short: String::new(), full: format!(".{table}") }
    }

    /// With an operator on top.
    pub(super) fn then(&self, operator: &str) -> Self {
        Self { short: format!("{}.{operator}", self.short), full: format!("{}.{operator}", self.full) }
    }

    /// Of UNION: whichever way round they stand, what is above keeps the same state.
    pub(super) fn united(left: &Self, right: &Self) -> Self {
        Self { short: both(&left.short, &right.short), full: both(&left.full, &right.full) }
    }

    /// Of a join, which keeps the rows of each side apart: sides that differ in their tables only are told by them.
    pub(super) fn joined(left: &Self, right: &Self) -> Self {
        let full = both(&left.full, &right.full);
        let are_alike = left.short == right.short && left.full != right.full;
        Self { short: if are_alike { full.clone() } else { both(&left.short, &right.short) }, full }
    }
}

/// The chains of two inputs.
fn both(left: &str, right: &str) -> String {
    if left.is_empty() && right.is_empty() {
        return String::new();
    }
    format!(".[{}|{}]", left.trim_start_matches('.'), right.trim_start_matches('.'))
}

/// A text for each chain, no two of them equal: the short one, unless another chain over other tables has the same;
/// what is equal in full is numbered.
pub(super) fn distinct_texts(chains: &[&Chain]) -> Vec<String> {
    let mut tables: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for chain in chains {
        tables.entry(&chain.short).or_default().insert(&chain.full);
    }
    let is_told = |chain: &Chain| tables.get(chain.short.as_str()).is_none_or(|full| full.len() == 1);
    let mut used = BTreeSet::new();
    let distinct = chains.iter().map(|chain| {
        let text = if is_told(chain) { &chain.short } else { &chain.full };
        let mut distinct = text.clone();
        for number in 2.. {
            if used.insert(distinct.clone()) {
                break;
            }
            distinct = format!("{text}#{number}");
        }
        distinct
    });
    distinct.collect()
}
