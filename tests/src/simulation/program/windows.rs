//! Windows in the simulated jobs: counts and sums by key and window, which fire as the watermark passes them (W1, B4).
//!
//! Rows are shown to them as having happened so much later ([`AHEAD`]) that none is late, in whatever order splits are read.
//! So each window must fire with all its rows, whatever died, and no row may be counted twice. What is checked:
//! - *A result* has all rows of the whole input that belong to its window: else it fired too early, or lost some.
//! - *A slice in a snapshot* has all rows before the positions, but those in flight. None is missing whose windows are open.
//! - *The operator's watermark* at an aligned barrier, as in [`super::time`].
//! - *At the end* each window has fired.

use super::archive::Row;
use super::cut::read_counts;
use super::shape::CONTROL_SPLIT;
use super::time::{DELAY, check_watermarks, read_watermarks};
use super::{Counts, Events, column, schema};
use arrow::array::AsArray;
use arrow::datatypes::{DataType, TimeUnit, TimestampMillisecondType};
use sluice_engine::aggregate::{AggregateCall, AggregateKind};
use sluice_engine::batch::Batch;
use sluice_engine::error::TaskError;
use sluice_engine::sink::{AcceptedKinds, Sink, SinkContext, SinkFactory};
use sluice_engine::state::merged::MergedState;
use sluice_engine::window::{LateRows, RowTime, WindowAggregateFactory, WindowAggregateSpec, WindowKind};
use sluice_protocol::SubtaskIndex;
use sluice_protocol::state::KeyedStateHandle;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

/// The windowed operator.
pub const WINDOWS: &str = "windows";
/// Its sink.
pub const RESULTS: &str = "results";

/// How a wrong result begins.
pub const WRONG: &str = "W1: window";

/// By so many gaps rows are later to windows: the watermark waits for as many less than rows are out of order by.
const AHEAD: i64 = DELAY;

/// The lengths of windows, in gaps: `size` is a multiple of `slide`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Windows {
    /// From one to the next, which is how long a slice is.
    pub slide: u64,
    /// Of each.
    pub size: u64,
}

impl Windows {
    /// Those of a seed: of one slice, which TUMBLE, or of some, which HOP.
    #[must_use]
    pub fn new(rng: &mut fastrand::Rng) -> Self {
        let slide = rng.u64(3..12);
        Self { slide, size: slide * rng.u64(1..=4) }
    }
}

/// Ends of windows with their keys, of which readers have seen results. Outlives all processes.
pub type Results = Arc<Mutex<BTreeSet<(i64, i64)>>>;

impl Events {
    /// When rows happened, as windows see it.
    pub(super) fn shown(&self, times: &[i64]) -> Vec<i64> {
        times.iter().map(|time| time + AHEAD * self.gap_millis as i64).collect()
    }

    /// Length of a slice, and of a window.
    fn lengths(&self) -> (i64, i64) {
        let Windows { slide, size } = self.shape.windows.unwrap_or(Windows { slide: 1, size: 1 });
        ((slide * self.gap_millis) as i64, (size * self.gap_millis) as i64)
    }

    /// Counts and sums by the start of the slice, of these rows.
    fn slices(&self, rows: impl Iterator<Item = Row>) -> BTreeMap<i64, Counts> {
        let (slide, _) = self.lengths();
        let mut slices: BTreeMap<i64, Counts> = BTreeMap::new();
        for (split, position) in rows {
            let (split, position) = (split as u32, position as u64);
            let (key, value) = self.row(split, position);
            let shown = self.shown(&[self.time(split, position)])[0];
            let entry = slices.entry(shown.div_euclid(slide) * slide).or_default().entry(key).or_default();
            *entry = (entry.0 + 1, entry.1 + value);
        }
        slices
    }

    /// Counts and sums by the end of the window, of the whole input.
    fn windows(&self) -> BTreeMap<i64, Counts> {
        let (slide, size) = self.lengths();
        let mut windows: BTreeMap<i64, Counts> = BTreeMap::new();
        for (start, counts) in self.slices(Self::rows(&self.end())) {
            for end in (1..=size / slide).map(|number| start + number * slide) {
                let window = windows.entry(end).or_default();
                counts.iter().for_each(|(key, (count, sum))| {
                    let entry = window.entry(*key).or_default();
                    *entry = (entry.0 + count, entry.1 + sum);
                });
            }
        }
        windows
    }

    /// What readers of the results have not seen at the end.
    ///
    /// # Errors
    /// When there is something.
    pub fn check_results(&self, results: &Results) -> Result<(), String> {
        if self.shape.windows.is_none() {
            return Ok(());
        }
        let seen = results.lock().unwrap_or_else(PoisonError::into_inner);
        let all = self.windows();
        let mut all = all.iter().flat_map(|(end, counts)| counts.keys().map(|key| (*end, *key)));
        match all.find(|one| !seen.contains(one)) {
            None => Ok(()),
            Some((end, key)) => Err(format!("{WRONG} that ends at {end} has not fired for key {key}")),
        }
    }
}

/// The operator.
///
/// # Panics
/// Never: the windows are well formed.
pub(super) fn aggregate(events: &Events) -> WindowAggregateFactory {
    let (slide, size) = events.lengths();
    let kind =
        if slide == size { WindowKind::Tumble { size, offset: 0 } } else { WindowKind::Hop { slide, size, offset: 0 } };
    let spec = WindowAggregateSpec {
        input: schema(),
        keys: vec![0],
        key_names: vec!["k".to_owned()],
        calls: vec![
            AggregateCall::new(AggregateKind::Count, None, "n"),
            AggregateCall::new(AggregateKind::Sum, Some(1), "s"),
        ],
        kind,
        time: RowTime::Column(5),
        window_time: DataType::Timestamp(TimeUnit::Millisecond, None),
        late: LateRows::default(),
    };
    WindowAggregateFactory::new(spec).expect("well-formed windows")
}

pub(super) struct ResultsSink {
    pub(super) results: Results,
    pub(super) events: Events,
}

struct ResultsWriter {
    results: Results,
    expected: BTreeMap<i64, Counts>,
}

impl SinkFactory for ResultsSink {
    fn create(&self) -> Result<Box<dyn Sink>, TaskError> {
        Ok(Box::new(ResultsWriter { results: Arc::clone(&self.results), expected: self.events.windows() }))
    }

    fn accepted_kinds(&self) -> AcceptedKinds {
        AcceptedKinds::InsertOnly
    }
}

impl Sink for ResultsWriter {
    fn open(&mut self, _: SinkContext) -> Result<(), TaskError> {
        Ok(())
    }

    fn write(&mut self, batch: Batch) -> Result<(), TaskError> {
        let ends = batch.rows.column(4).as_primitive::<TimestampMillisecondType>().values().to_vec();
        let (keys, counts, sums) = (column(&batch, 0), column(&batch, 1), column(&batch, 2));
        let mut results = self.results.lock().unwrap_or_else(PoisonError::into_inner);
        for (row, (end, key)) in ends.into_iter().zip(keys).enumerate() {
            let found = Some((counts[row], sums[row]));
            let expected = self.expected.get(&end).and_then(|counts| counts.get(&key)).copied();
            if found != expected {
                let text = format!("{WRONG} that ends at {end} fired for key {key} with {found:?}, not {expected:?}");
                return Err(TaskError::Internal(text));
            }
            results.insert((end, key));
        }
        Ok(())
    }
}

/// What a snapshot holds of windows.
#[derive(Debug, Default)]
pub struct State {
    slices: BTreeMap<i64, Counts>,
    watermarks: BTreeSet<i64>,
    /// Rows in flight on the way to the operator.
    pub in_flight: BTreeSet<Row>,
    /// What newer files of a slice hold, by subtask.
    merged: BTreeMap<(SubtaskIndex, String), MergedState>,
}

impl Clone for State {
    fn clone(&self) -> Self {
        let Self { slices, watermarks, in_flight, .. } = self;
        let (slices, watermarks, in_flight) = (slices.clone(), watermarks.clone(), in_flight.clone());
        Self { slices, watermarks, in_flight, merged: BTreeMap::new() }
    }
}

impl PartialEq for State {
    fn eq(&self, other: &Self) -> bool {
        (&self.slices, &self.watermarks, &self.in_flight) == (&other.slices, &other.watermarks, &other.in_flight)
    }
}
impl Eq for State {}

impl State {
    /// The next older file of a slice of a subtask.
    ///
    /// # Errors
    /// When it cannot be read, or holds a key that another has.
    pub fn read_slice(
        &mut self,
        subtask: SubtaskIndex,
        handle: &KeyedStateHandle,
        bytes: Vec<u8>,
    ) -> Result<(), String> {
        let name = handle.name.as_str();
        let start = name.strip_prefix("slice_").and_then(|rest| rest.split('_').next()?.parse().ok());
        let start: i64 = start.ok_or_else(|| format!("{WINDOWS} hold a table {name}"))?;
        let merged = self.merged.entry((subtask, name.to_owned())).or_default();
        read_counts(merged, handle.kind, bytes, self.slices.entry(start).or_default())
            .map_err(|what| format!("{WRONG}, slice {name}: {what}"))
    }

    /// One of the operator's lists.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn read_list(&mut self, name: &str, bytes: &[u8]) -> Result<(), String> {
        if name == "watermarks" { read_watermarks(bytes, &mut self.watermarks) } else { Ok(()) }
    }

    /// Whether it is what the rows before these positions say.
    ///
    /// # Errors
    /// What it holds, and what the rows say.
    pub fn verify(&self, events: &Events, positions: &BTreeMap<u32, u64>) -> Result<(), String> {
        if events.shape.windows.is_none() {
            return Ok(());
        }
        let mut positions = positions.clone();
        positions.remove(&CONTROL_SPLIT);
        let least = events.least(&positions);
        check_watermarks(&self.watermarks, least.filter(|_| events.foretold.watermark))
            .map_err(|what| format!("{WRONG}s: at {positions:?} {what}"))?;
        let (_, size) = events.lengths();
        let expected = events.slices(Events::rows(&positions).filter(|row| !self.in_flight.contains(row)));
        for (start, found) in &self.slices {
            let known = expected.get(start).cloned().unwrap_or_default();
            if let Some((key, found)) = found.iter().find(|(key, found)| known.get(key) != Some(found)) {
                let known = known.get(key);
                return Err(format!(
                    "{WRONG}s: at {positions:?} slice {start} has {found:?} of key {key}, not {known:?}"
                ));
            }
        }
        // The last window of a slice has fired: it is needed no more.
        let is_over = |start: &i64| least.is_none_or(|least| start + size - 1 <= least);
        for (start, known) in expected.iter().filter(|(start, _)| !is_over(start)) {
            let found = self.slices.get(start);
            if let Some(key) = known.keys().find(|key| !found.is_some_and(|found| found.contains_key(*key))) {
                return Err(format!("{WRONG}s: at {positions:?} slice {start} has lost key {key}"));
            }
        }
        Ok(())
    }
}
