//! Ranks of random changelogs against sorting the rows alive; snapshots restored at another parallelism; rows that
//! expire; the first and the last row that arrives.

mod window;

use super::*;
use crate::batch::RowKind;
use crate::operator::{OperatorState, RestoredKeyed};
use crate::partition::rows_of_subtask;
use crate::state::StateBackend;
use crate::testing::{Collected, Random, backends, context, lines, restored, written};
use arrow::array::{ArrayRef, Float64Array, Int64Array, StringArray, UInt8Array};
use sluice_protocol::SubtaskIndex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

/// Columns `k, v, s, f`: partitions by `k`, ordered by `v DESC NULLS LAST, s`, then by the others, so by `f`.
#[derive(Debug, Clone, PartialEq)]
struct Row {
    k: Option<i64>,
    v: Option<i64>,
    s: Option<&'static str>,
    f: f64,
}

fn row(k: i64, v: i64) -> Row {
    Row { k: Some(k), v: Some(v), s: Some("x"), f: 0.0 }
}

fn schema() -> SchemaRef {
    let field = |name: &str, data_type| Field::new(name, data_type, true);
    Arc::new(Schema::new(vec![
        field("k", DataType::Int64),
        field("v", DataType::Int64),
        field("s", DataType::Utf8),
        field("f", DataType::Float64),
    ]))
}

fn batch(rows: &[(RowKind, Row)]) -> Batch {
    let columns: Vec<ArrayRef> = vec![
        Arc::new(rows.iter().map(|(_, row)| row.k).collect::<Int64Array>()),
        Arc::new(rows.iter().map(|(_, row)| row.v).collect::<Int64Array>()),
        Arc::new(rows.iter().map(|(_, row)| row.s).collect::<StringArray>()),
        Arc::new(Float64Array::from_iter_values(rows.iter().map(|(_, row)| row.f))),
    ];
    let kinds = UInt8Array::from_iter_values(rows.iter().map(|(kind, _)| *kind as u8));
    let kinds = rows.iter().any(|(kind, _)| *kind != RowKind::Insert).then_some(kinds);
    Batch { rows: RecordBatch::try_new(schema(), columns).unwrap(), kinds }
}

fn spec(limit: u64, has_number: bool, changelog: bool) -> RankSpec {
    RankSpec {
        input: schema(),
        keys: vec![0],
        by: RankBy::Columns(vec![
            RankOrder { column: 1, descending: true, nulls_first: false },
            RankOrder { column: 2, descending: false, nulls_first: true },
        ]),
        limit,
        number: has_number.then(|| "number".to_owned()),
        emit_update_before: true,
        changelog,
        ttl: None,
    }
}

/// All subtasks, fed as the exchange would.
struct Subtasks(Vec<Box<dyn Operator>>);

impl Subtasks {
    fn new(factory: &dyn OperatorFactory, backend: &StateBackend, parallelism: u32, states: &[OperatorState]) -> Self {
        let keyed: Vec<RestoredKeyed> = states.iter().flat_map(|state| &state.keyed).map(restored).collect();
        let state = RestoredState { restored: true, keyed, ..RestoredState::default() };
        let open = |index| {
            let mut operator = factory.create().unwrap();
            let context = OperatorContext { state_backend: backend.clone(), ..context(index, parallelism) };
            operator.open(&context, state.clone()).unwrap();
            operator
        };
        Self((0..parallelism).map(open).collect())
    }

    fn process(&mut self, keys: &[usize], rows: &[(RowKind, Row)]) -> Collected {
        let parallelism = self.0.len() as u32;
        let mut out = Collected::default();
        for (index, operator) in (0..).zip(&mut self.0) {
            let own = rows_of_subtask(batch(rows), keys, SubtaskIndex(index), parallelism, 128).unwrap();
            if let Some(own) = own {
                operator.process(own, &mut out).unwrap();
            }
        }
        out
    }

    fn states(&mut self) -> Vec<OperatorState> {
        let frozen = self.0.iter_mut().map(|operator| operator.snapshot(CheckpointId(1)).unwrap().unwrap());
        frozen.map(|writer| written(writer.as_ref())).collect()
    }
}

/// The result as a multiset; a row that goes must be there.
#[derive(Debug, Default, PartialEq)]
struct Table(BTreeMap<String, i64>);

impl Table {
    fn apply(&mut self, batches: &Collected) {
        for line in batches.0.iter().flat_map(lines) {
            let (kind, row) = line.split_once(' ').unwrap();
            let count = self.0.entry(row.to_owned()).or_default();
            *count += if matches!(kind, "+I" | "+U") { 1 } else { -1 };
            assert!(*count >= 0, "{kind} of {row}, which is not there");
            if *count == 0 {
                self.0.remove(row);
            }
        }
    }

    /// By sorting.
    fn of(spec: &RankSpec, rows: &[Row]) -> Self {
        let mut partitions: BTreeMap<Option<i64>, Vec<&Row>> = BTreeMap::new();
        rows.iter().for_each(|row| partitions.entry(row.k.filter(|_| !spec.keys.is_empty())).or_default().push(row));
        let mut table = Self::default();
        for mut rows in partitions.into_values() {
            // Those without a value are last; 0.0 stands before NaN.
            rows.sort_by_key(|row| (row.v.is_none(), row.v.map(|v| -v), row.s, row.k, row.f.is_nan()));
            for (place, row) in (1..=spec.limit).zip(rows) {
                let text = |value: Option<i64>| value.map_or("NULL".to_owned(), |value| value.to_string());
                let f = if row.f.is_nan() { "NaN" } else { "0.0" };
                let mut line = format!("{} {} {} {f}", text(row.k), text(row.v), row.s.unwrap_or("NULL"));
                if spec.number.is_some() {
                    line += &format!(" {place}");
                }
                *table.0.entry(line).or_default() += 1;
            }
        }
        table
    }
}

fn draw(random: &mut Random) -> Row {
    Row {
        k: (random.below(7) > 0).then(|| random.below(3) as i64),
        v: (random.below(6) > 0).then(|| random.below(5) as i64),
        s: [Some(""), Some("x"), Some("xx"), None][random.below(13) as usize / 4],
        f: [0.0, -0.0, f64::NAN][random.below(3) as usize],
    }
}

/// The next changes: rows that come, and of a changelog some that are there go.
fn changes(random: &mut Random, alive: &mut Vec<Row>, count: u64, changelog: bool) -> Vec<(RowKind, Row)> {
    let mut changes = Vec::new();
    for _ in 0..count {
        if changelog && !alive.is_empty() && random.below(100) < 45 {
            let row = alive.swap_remove(random.below(alive.len() as u64) as usize);
            changes.push(([RowKind::UpdateBefore, RowKind::Delete][random.below(2) as usize], row));
        } else {
            let row = draw(random);
            alive.push(row.clone());
            changes.push((RowKind::Insert, row));
        }
    }
    changes
}

#[test]
fn any_stream_gives_the_first_rows_of_those_alive_also_after_restores() {
    for (backend, rounds) in backends().into_iter().zip([25, 3]) {
        for seed in 1..=16 {
            let (limit, changelog) = ([1, 2, 3, 7][seed as usize % 4], seed % 8 < 4);
            let mut spec = spec(limit, seed > 8, changelog);
            if seed % 5 == 0 {
                spec.keys.clear();
            }
            let factory = RankFactory::new(spec.clone()).unwrap();
            let (mut random, mut alive, mut table) = (Random(seed * 7_777_777), Vec::new(), Table::default());
            let mut subtasks = Subtasks::new(&factory, &backend, 1, &[]);
            for round in 0..rounds {
                for _ in 0..6 {
                    let count = 1 + random.below(12);
                    let changes = changes(&mut random, &mut alive, count, changelog);
                    table.apply(&subtasks.process(&spec.keys, &changes));
                    assert_eq!(table, Table::of(&spec, &alive), "seed {seed} round {round}");
                }
                let parallelism = if spec.keys.is_empty() { 1 } else { 1 + random.below(4) as u32 };
                let states = subtasks.states();
                subtasks = Subtasks::new(&factory, &backend, parallelism, &states);
            }
        }
    }
}

fn single(subtasks: &mut Subtasks, rows: &[(RowKind, Row)]) -> Vec<String> {
    subtasks.process(&[0], rows).0.iter().flat_map(lines).collect()
}

#[test]
fn a_place_changes_by_an_update_and_rows_without_numbers_leave_and_enter() {
    use RowKind::{Delete, Insert};
    for backend in backends() {
        let mut numbered = Subtasks::new(&RankFactory::new(spec(2, true, true)).unwrap(), &backend, 1, &[]);
        assert_eq!(
            single(&mut numbered, &[(Insert, row(1, 5)), (Insert, row(1, 4))]),
            ["+I 1 5 x 0.0 1", "+I 1 4 x 0.0 2"]
        );
        let shifted = ["-U 1 5 x 0.0 1", "+U 1 6 x 0.0 1", "-U 1 4 x 0.0 2", "+U 1 5 x 0.0 2"];
        assert_eq!(single(&mut numbered, &[(Insert, row(1, 6))]), shifted);
        assert_eq!(
            single(&mut numbered, &[(Insert, row(1, 3)), (Delete, row(1, 9))]),
            [""; 0],
            "behind the limit, and unknown"
        );
        let back = single(&mut numbered, &[(Delete, row(1, 6)), (Delete, row(1, 5)), (Delete, row(1, 4))]);
        assert_eq!(back, ["-U 1 6 x 0.0 1", "+U 1 3 x 0.0 1", "-D 1 5 x 0.0 2"]);
        let mut plain = Subtasks::new(&RankFactory::new(spec(2, false, true)).unwrap(), &backend, 1, &[]);
        single(&mut plain, &[(Insert, row(1, 5)), (Insert, row(1, 4))]);
        assert_eq!(single(&mut plain, &[(Insert, row(1, 6))]), ["-D 1 4 x 0.0", "+I 1 6 x 0.0"]);
        let mut best = Subtasks::new(&RankFactory::new(spec(1, false, true)).unwrap(), &backend, 1, &[]);
        single(&mut best, &[(Insert, row(1, 5))]);
        assert_eq!(single(&mut best, &[(Insert, row(1, 6))]), ["-U 1 5 x 0.0", "+U 1 6 x 0.0"]);
        let quiet = RankSpec { emit_update_before: false, ..spec(1, false, true) };
        let mut quiet = Subtasks::new(&RankFactory::new(quiet).unwrap(), &backend, 1, &[]);
        single(&mut quiet, &[(Insert, row(1, 5))]);
        assert_eq!(single(&mut quiet, &[(Insert, row(1, 6))]), ["+U 1 6 x 0.0"]);
    }
}

#[test]
fn rows_that_are_not_retracted_are_kept_up_to_the_limit() {
    for (changelog, kept) in [(false, 3), (true, 40)] {
        let mut rank =
            Subtasks::new(&RankFactory::new(spec(3, false, changelog)).unwrap(), &StateBackend::Hash, 1, &[]);
        (0..40).for_each(|v| drop(single(&mut rank, &[(RowKind::Insert, row(1, v))])));
        let rows: u64 = rank.states().iter().flat_map(|state| &state.keyed).map(|piece| piece.rows).sum();
        assert_eq!(rows, kept, "changelog: {changelog}");
    }
}

/// Feeds an operator by a clock that the test moves.
struct Timed {
    time: Arc<AtomicU64>,
    subtasks: Subtasks,
}

impl Timed {
    fn new(factory: &dyn OperatorFactory, backend: &StateBackend) -> Self {
        let time = Arc::new(AtomicU64::new(0));
        let clock: Clock = {
            let time = Arc::clone(&time);
            Arc::new(move || Timestamp(time.load(Ordering::SeqCst)))
        };
        let mut operator = factory.create().unwrap();
        operator.set_clock(&clock);
        let context = OperatorContext { state_backend: backend.clone(), ..context(0, 1) };
        operator.open(&context, RestoredState::default()).unwrap();
        Self { time, subtasks: Subtasks(vec![operator]) }
    }

    fn at(&mut self, at: u64, row: Row) -> Vec<String> {
        self.time.store(at, Ordering::SeqCst);
        single(&mut self.subtasks, &[(RowKind::Insert, row)])
    }
}

#[test]
fn a_partition_expires_as_a_whole() {
    for backend in backends() {
        let spec = RankSpec { ttl: Some(TimeSpan(100)), ..spec(2, true, true) };
        let mut rank = Timed::new(&RankFactory::new(spec).unwrap(), &backend);
        rank.at(1000, row(1, 5));
        assert_eq!(rank.at(1090, row(1, 4)), ["+I 1 4 x 0.0 2"]);
        assert_eq!(rank.at(1180, row(1, 3)), [""; 0], "the first row lives as long as its partition is touched");
        assert_eq!(rank.at(1280, row(1, 1)), ["+I 1 1 x 0.0 1"]);
        rank.time.store(1280, Ordering::SeqCst);
        let rows: u64 = rank.subtasks.states().iter().flat_map(|state| &state.keyed).map(|piece| piece.rows).sum();
        assert_eq!(rows, 1, "what has expired is removed");
    }
}

#[test]
fn the_first_row_that_arrives_is_kept_until_its_key_expires() {
    for backend in backends() {
        let mut first = Timed::new(&FirstRowFactory::new(schema(), vec![0], Some(TimeSpan(100))).unwrap(), &backend);
        let both = batch(&[(RowKind::Insert, row(7, 5)), (RowKind::Insert, row(7, 6)), (RowKind::Insert, row(8, 1))]);
        let mut out = Collected::default();
        first.time.store(1000, Ordering::SeqCst);
        first.subtasks.0[0].process(both, &mut out).unwrap();
        assert_eq!(out.0.iter().flat_map(lines).collect::<Vec<_>>(), ["+I 7 5 x 0.0", "+I 8 1 x 0.0"]);
        assert_eq!(first.at(1090, row(7, 9)), [""; 0]);
        assert_eq!(first.at(1100, row(7, 9)), ["+I 7 9 x 0.0"], "since its first row");
        let forever = FirstRowFactory::new(schema(), vec![0], None).unwrap();
        let mut before = Subtasks::new(&forever, &backend, 2, &[]);
        single(&mut before, &[(RowKind::Insert, row(7, 5))]);
        let mut after = Subtasks::new(&forever, &backend, 3, &before.states());
        assert_eq!(single(&mut after, &[(RowKind::Insert, row(7, 5)), (RowKind::Insert, row(9, 5))]), ["+I 9 5 x 0.0"]);
    }
}

#[test]
fn the_last_row_that_arrives_takes_the_place_of_the_one_before() {
    for backend in backends() {
        let spec = RankSpec { by: RankBy::LastArrival, ..spec(1, false, false) };
        let factory = RankFactory::new(spec).unwrap();
        let mut last = Subtasks::new(&factory, &backend, 2, &[]);
        single(&mut last, &[(RowKind::Insert, row(7, 5)), (RowKind::Insert, row(7, 3))]);
        let mut last = Subtasks::new(&factory, &backend, 3, &last.states());
        assert_eq!(single(&mut last, &[(RowKind::Insert, row(7, 3))]), [""; 0], "the same row");
        let both = [(RowKind::Insert, row(7, 9)), (RowKind::Insert, row(7, 4))];
        assert_eq!(single(&mut last, &both), ["-U 7 3 x 0.0", "+U 7 4 x 0.0"]);
    }
}

#[test]
fn a_rank_that_does_not_fit_is_refused() {
    let refusal = |spec: RankSpec| RankFactory::new(spec).err().map(|error| error.to_string()).unwrap();
    assert!(refusal(spec(0, true, true)).contains("limit 0"));
    assert!(refusal(RankSpec { keys: vec![9], ..spec(1, true, true) }).contains("column 9"));
    assert!(refusal(RankSpec { by: RankBy::LastArrival, ..spec(2, true, false) }).contains("arrival"));
    let mut rank = Subtasks::new(&RankFactory::new(spec(1, true, true)).unwrap(), &StateBackend::Hash, 1, &[]);
    single(&mut rank, &[(RowKind::Insert, row(7, 5))]);
    let keyed = rank.states()[0].keyed.iter().map(restored).collect();
    let mut first = FirstRowFactory::new(schema(), vec![0], None).unwrap().create().unwrap();
    let opened = first.open(&context(0, 1), RestoredState { keyed, ..RestoredState::default() });
    assert!(opened.unwrap_err().to_string().contains("another kind of operator"));
}
