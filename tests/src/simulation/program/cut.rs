//! What a snapshot holds, read without the engine's restore, and what it must hold at its positions.

use super::archive::Row;
use super::shape::{ARCHIVE, CONTROL_SPLIT, HISTOGRAM, RELAYED, SOURCE_STEP, TALLY};
use super::time::{LATENESS, Times};
use super::windows::{self, WINDOWS};
use super::{Counts, Events, column};
use sluice_engine::batch::{Batch, RowKind};
use sluice_engine::in_flight;
use sluice_engine::state::merged::MergedState;
use sluice_protocol::CheckpointId;
use sluice_protocol::metadata::Metadata;
use sluice_protocol::state::{
    InFlightHandle, KeyedStateKind, OperatorSnapshot, OperatorStateHandle, Redistribution, StateData,
};
use std::collections::{BTreeMap, BTreeSet};

/// A snapshot's content, put together from all its subtasks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Cut {
    /// The next row of each split.
    pub positions: BTreeMap<u32, u64>,
    /// State of the first keyed operator, and of the second.
    pub counts: Counts,
    /// See `counts`.
    pub histogram: Counts,
    /// Events in flight, by key; and how many of them are on their way to the relay.
    pub queued: Counts,
    /// See `queued`.
    pub before_relay: i64,
    /// Changes of counts in flight, by count: those taken back are negative.
    pub changes: Counts,
    /// Events in flight to the archive.
    pub archiving: BTreeSet<Row>,
    /// Broadcast state.
    pub rules: BTreeMap<i64, i64>,
    /// The sums of the lists that are split, and of the union lists, by operator.
    pub tallies: BTreeMap<String, (i64, i64)>,
    /// Watermarks and late rows.
    pub times: Times,
    /// Of windows that have not fired.
    pub windows: windows::State,
}

/// Reads an object of the store by its path.
pub type Fetch<'a> = &'a dyn Fn(&str) -> Option<Vec<u8>>;

impl Cut {
    /// Reads a snapshot in this directory.
    ///
    /// # Errors
    /// When it is torn: a file is missing, or something is there twice.
    pub fn read(metadata: &Metadata, directory: &str, fetch: Fetch<'_>) -> Result<Self, String> {
        Self::put_together(metadata.checkpoint, &metadata.operators, &metadata.in_flight, (directory, fetch))
    }

    /// The same of its parts.
    ///
    /// # Errors
    /// As above.
    pub fn put_together(
        id: CheckpointId,
        operators: &[OperatorSnapshot],
        in_flight: &[InFlightHandle],
        (directory, fetch): (&str, Fetch<'_>),
    ) -> Result<Self, String> {
        let bytes = |data: &StateData| match data.resolve(directory) {
            StateData::Inline { bytes } => Ok(bytes),
            StateData::File { path, .. } => {
                fetch(&path).ok_or_else(|| format!("K2: {path} of checkpoint {id} is missing"))
            }
        };
        let mut cut = Self::default();
        for operator in operators {
            for split in &operator.splits {
                let number = split.split.parse().map_err(|_| format!("split {} is none", split.split))?;
                let position = split.state["position"].as_u64().ok_or("a split without a position")?;
                cut.times.splits.extend(split.state["watermark"].as_i64().map(|watermark| (number, watermark)));
                if cut.positions.insert(number, position).is_some() {
                    return Err(format!("checkpoint {id} holds split {number} twice"));
                }
            }
            if operator.uid.0.as_str() == WINDOWS {
                for handle in operator.keyed.iter().rev() {
                    cut.windows.read_slice(operator.subtask, handle, bytes(&handle.data)?)?;
                }
            }
            let mut merged = MergedState::default();
            let into = if operator.uid.0.as_str() == HISTOGRAM { &mut cut.histogram } else { &mut cut.counts };
            for handle in operator.keyed.iter().rev().filter(|_| operator.uid.0.as_str() != WINDOWS) {
                read_counts(&mut merged, handle.kind, bytes(&handle.data)?, into)?;
            }
            for list in &operator.operator {
                cut.read_list(operator.uid.0.as_str(), list, &bytes(&list.data)?)?;
            }
        }
        in_flight.iter().try_for_each(|handle| cut.read_in_flight(handle))?;
        Ok(cut)
    }

    fn read_list(&mut self, uid: &str, list: &OperatorStateHandle, bytes: &[u8]) -> Result<(), String> {
        if uid == LATENESS {
            return self.times.read_list(&list.name, bytes);
        }
        if uid == WINDOWS {
            return self.windows.read_list(&list.name, bytes);
        }
        let unreadable = |error: serde_json::Error| format!("list {} of {uid}: {error}", list.name);
        if list.redistribution == Redistribution::Broadcast {
            let entries: Vec<(i64, i64)> = serde_json::from_slice(bytes).map_err(unreadable)?;
            return match entries.into_iter().find(|(rule, value)| self.rules.insert(*rule, *value).is_some()) {
                Some((rule, _)) => Err(format!("rule {rule} is stored twice")),
                None => Ok(()),
            };
        }
        let items: Vec<i64> = serde_json::from_slice(bytes).map_err(unreadable)?;
        let (split, union) = self.tallies.entry(uid.to_owned()).or_default();
        let sum = if list.redistribution == Redistribution::Split { split } else { union };
        *sum += items.iter().sum::<i64>();
        Ok(())
    }

    fn read_in_flight(&mut self, handle: &InFlightHandle) -> Result<(), String> {
        let StateData::Inline { bytes } = &handle.data else {
            return Err("batches in flight are not inline".to_owned());
        };
        let batches = in_flight::read(&bytes.clone().into(), &handle.edge).map_err(|error| error.to_string())?;
        let is_change = handle.edge.ends_with(&format!("-> {HISTOGRAM}"));
        for batch in &batches {
            if is_change {
                add_signed(batch, &mut self.changes);
                continue;
            }
            if handle.edge.ends_with(&format!("-> {ARCHIVE}")) {
                self.archiving.extend(column(batch, 2).into_iter().zip(column(batch, 3)));
                continue;
            }
            if handle.edge.ends_with(&format!("-> {WINDOWS}")) {
                self.windows.in_flight.extend(column(batch, 2).into_iter().zip(column(batch, 3)));
                continue;
            }
            if column(batch, 2).contains(&i64::from(CONTROL_SPLIT)) {
                return Err(format!("B3: rows of the broadcast edge {} were overtaken", handle.edge));
            }
            self.times.in_flight.extend(column(batch, 2).into_iter().zip(column(batch, 3)));
            self.before_relay += if handle.edge.ends_with(&format!("-> {RELAYED}")) { batch.len() as i64 } else { 0 };
            for (key, value) in column(batch, 0).into_iter().zip(column(batch, 1)) {
                add(&mut self.queued, key, (1, value));
            }
        }
        Ok(())
    }

    /// What all of it amounts to: state and events in flight.
    #[must_use]
    pub fn total(&self) -> Counts {
        let mut total = self.counts.clone();
        self.queued.iter().for_each(|(key, both)| add(&mut total, *key, *both));
        total
    }

    /// What readers of the sink see when nothing is in flight.
    #[must_use]
    pub fn view(&self, events: &Events) -> &Counts {
        if events.shape.histogram { &self.histogram } else { &self.counts }
    }

    /// What the archive holds once all of it is committed.
    #[must_use]
    pub fn archived(&self) -> BTreeSet<Row> {
        Events::rows(&self.positions).filter(|row| !self.archiving.contains(row)).collect()
    }

    /// Whether it is a cut of the input. At least once, counts may be higher.
    ///
    /// # Errors
    /// What it holds, and what the input has.
    pub fn verify(&self, events: &Events, at_least_once: bool) -> Result<(), String> {
        if !at_least_once {
            self.times.verify(events, &self.positions)?;
            self.windows.verify(events, &self.positions)?;
        }
        let (positions, total, expected) = (&self.positions, self.total(), events.counts(&self.positions));
        let no_cut = |what: &str, found: String, expected: String| {
            Err(format!("is no cut: at {positions:?} it holds {what} {found}, the input has {expected}"))
        };
        let debug = |counts: &Counts| format!("{counts:?}");
        if at_least_once {
            let is_more = |(key, (count, sum)): (&i64, &(i64, i64))| {
                total.get(key).is_some_and(|found| found.0 >= *count && found.1 >= *sum)
            };
            let is_enough = expected.iter().all(is_more);
            return if is_enough { Ok(()) } else { no_cut("at least", debug(&total), debug(&expected)) };
        }
        if total != expected {
            return no_cut("counts", debug(&total), debug(&expected));
        }
        if events.shape.histogram {
            let (mut found, expected) = (self.histogram.clone(), histogram(&self.counts));
            self.changes.iter().for_each(|(count, both)| add(&mut found, *count, *both));
            found.retain(|_, both| *both != (0, 0));
            if found != expected {
                return no_cut("a histogram", debug(&found), debug(&expected));
            }
        }
        let rules = events.rules(positions);
        if events.shape.control && self.rules != rules {
            return no_cut("rules", format!("{:?}", self.rules), format!("{rules:?}"));
        }
        self.verify_lists(events)
    }

    fn verify_lists(&self, events: &Events) -> Result<(), String> {
        let is_relayed = |split: &u32| events.shape.is_relayed((split / SOURCE_STEP) as usize);
        let relayed = self.positions.iter().filter(|(split, _)| **split < CONTROL_SPLIT && is_relayed(split));
        let relayed = relayed.map(|(_, position)| *position as i64).sum::<i64>() - self.before_relay;
        let counted = self.counts.values().map(|(count, _)| count).sum::<i64>();
        let expected = [(TALLY, counted)].into_iter().chain(events.shape.has_relay().then_some((RELAYED, relayed)));
        for (uid, expected) in expected {
            let found = self.tallies.get(uid).copied().unwrap_or_default();
            if found != (expected, expected) {
                return Err(format!("is no cut: the lists of {uid} tell of {found:?} rows, {expected} came there"));
            }
        }
        Ok(())
    }
}

/// By count how many keys have it, and the sum of their sums.
fn histogram(counts: &Counts) -> Counts {
    let mut histogram = Counts::new();
    counts.values().for_each(|(count, sum)| add(&mut histogram, *count, (1, *sum)));
    histogram
}

fn add(counts: &mut Counts, key: i64, (count, sum): (i64, i64)) {
    let entry = counts.entry(key).or_default();
    *entry = (entry.0 + count, entry.1 + sum);
}

fn add_signed(batch: &Batch, changes: &mut Counts) {
    for (row, (count, sum)) in column(batch, 1).into_iter().zip(column(batch, 2)).enumerate() {
        let kind = batch.kinds.as_ref().map_or(RowKind::Insert as u8, |kinds| kinds.value(row));
        let is_taken_back = kind == RowKind::UpdateBefore as u8 || kind == RowKind::Delete as u8;
        let sign = if is_taken_back { -1 } else { 1 };
        add(changes, count, (sign, sign * sum));
    }
}

/// Adds the rows of the next older file of keyed state that no newer one has overwritten.
pub(super) fn read_counts(
    merged: &mut MergedState,
    kind: KeyedStateKind,
    bytes: Vec<u8>,
    into: &mut Counts,
) -> Result<(), String> {
    let batches = merged.read(&bytes.into(), kind == KeyedStateKind::Delta, usize::MAX);
    for rows in batches.map_err(|error| error.to_string())? {
        let batch = Batch::inserts(rows);
        let (keys, counts, sums) = (column(&batch, 1), column(&batch, 2), column(&batch, 3));
        for ((key, count), sum) in keys.into_iter().zip(counts).zip(sums) {
            if into.insert(key, (count, sum)).is_some() {
                return Err(format!("key {key} is in the state twice"));
            }
        }
    }
    Ok(())
}
