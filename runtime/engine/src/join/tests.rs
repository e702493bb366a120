//! Joins of random changelogs of both sides against nested loops over the rows alive; snapshots restored at another
//! parallelism; rows that expire.

mod bounds;
mod ttl;

use super::*;
use crate::operator::{OperatorState, RestoredKeyed};
use crate::partition::rows_of_subtask;
use crate::state::StateBackend;
use crate::testing::{Collected, Random, backends, context, lines, restored, written};
use arrow::array::{ArrayRef, Float64Array, Int64Array, StringArray};
use arrow::datatypes::{Field, Schema};
use sluice_protocol::SubtaskIndex;
use std::collections::BTreeMap;

/// Left: `v, a, b, f` joined by (a, b); right: `b, w, a`. Few values, so that rows repeat.
#[derive(Debug, Clone, PartialEq)]
struct Row {
    a: Option<i64>,
    b: Option<&'static str>,
    value: Option<i64>,
    zero: f64,
}

fn schema(side: usize) -> SchemaRef {
    let (a, b) = (Field::new("a", DataType::Int64, true), Field::new("b", DataType::Utf8, true));
    let number = |name: &str| Field::new(name, DataType::Int64, true);
    Arc::new(Schema::new(match side {
        0 => vec![number("v"), a, b, Field::new("f", DataType::Float64, true)],
        _ => vec![b, number("w"), a],
    }))
}

fn batch(side: usize, rows: &[(RowKind, Row)]) -> Batch {
    let a: ArrayRef = Arc::new(rows.iter().map(|(_, row)| row.a).collect::<Int64Array>());
    let b: ArrayRef = Arc::new(rows.iter().map(|(_, row)| row.b).collect::<StringArray>());
    let value: ArrayRef = Arc::new(rows.iter().map(|(_, row)| row.value).collect::<Int64Array>());
    let zero: ArrayRef = Arc::new(Float64Array::from_iter_values(rows.iter().map(|(_, row)| row.zero)));
    let columns = if side == 0 { vec![value, a, b, zero] } else { vec![b, value, a] };
    let kinds = UInt8Array::from_iter_values(rows.iter().map(|(kind, _)| *kind as u8));
    Batch { rows: RecordBatch::try_new(schema(side), columns).unwrap(), kinds: Some(kinds) }
}

/// `v < w`.
struct Less;

impl RowExpression for Less {
    fn evaluate(&self, batch: &RecordBatch) -> Result<ArrayRef, TaskError> {
        Ok(Arc::new(arrow::compute::kernels::cmp::lt(batch.column(0), batch.column(5)).unwrap()))
    }
}

fn factory(kind: JoinKind, conditional: bool, ttls: [Option<u64>; 2]) -> JoinFactory {
    let columns: Vec<_> =
        [0, 1].iter().flat_map(|side| schema(*side).fields().iter().cloned().collect::<Vec<_>>()).collect();
    let make: ExpressionFactory = Box::new(|| Ok(Box::new(Less)));
    let [left_ttl, right_ttl] = ttls.map(|ttl| ttl.map(TimeSpan));
    let spec = JoinSpec {
        kind,
        left: schema(0),
        right: schema(1),
        left_keys: vec![1, 2],
        right_keys: vec![2, 0],
        condition: conditional.then_some(make),
        output: Arc::new(Schema::new(columns)),
        left_ttl,
        right_ttl,
        bounds: None,
    };
    JoinFactory::new(spec).unwrap()
}

fn text(row: Option<&Row>, side: usize) -> String {
    let number = |value: Option<i64>| value.map_or("NULL".to_owned(), |value| value.to_string());
    match (row, side) {
        (None, 0) => "NULL NULL NULL NULL".to_owned(),
        (None, _) => "NULL NULL NULL".to_owned(),
        (Some(Row { a, b, value, zero }), 0) => {
            let zero = if zero.is_nan() { "NaN".to_owned() } else { "0.0".to_owned() };
            format!("{} {} {} {zero}", number(*value), number(*a), b.unwrap_or("NULL"))
        }
        (Some(Row { a, b, value, .. }), _) => format!("{} {} {}", b.unwrap_or("NULL"), number(*value), number(*a)),
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
            match kind {
                "+I" => *count += 1,
                "-D" => *count -= 1,
                other => panic!("{other}"),
            }
            assert!(*count >= 0, "-D of {row}, which is not there");
            if *count == 0 {
                self.0.remove(row);
            }
        }
    }

    /// By nested loops.
    fn of(kind: JoinKind, conditional: bool, [left, right]: &[Vec<Row>; 2]) -> Self {
        let mut table = Self::default();
        let matches = |own: &Row, other: &Row| {
            let equal = own.a.is_some() && own.a == other.a && own.b.is_some() && own.b == other.b;
            equal && (!conditional || own.value.zip(other.value).is_some_and(|(v, w)| v < w))
        };
        let mut add = |left: Option<&Row>, right: Option<&Row>| {
            *table.0.entry(format!("{} {}", text(left, 0), text(right, 1))).or_default() += 1;
        };
        for own in left {
            let found: Vec<&Row> = right.iter().filter(|other| matches(own, other)).collect();
            found.iter().for_each(|other| add(Some(own), Some(other)));
            if found.is_empty() && matches!(kind, JoinKind::LeftOuter | JoinKind::FullOuter) {
                add(Some(own), None);
            }
        }
        if matches!(kind, JoinKind::RightOuter | JoinKind::FullOuter) {
            let is_lonely = |other: &&Row| !left.iter().any(|own| matches(own, other));
            right.iter().filter(is_lonely).for_each(|other| add(None, Some(other)));
        }
        table
    }
}

fn draw(random: &mut Random, keys: u64) -> Row {
    Row {
        a: (random.below(8) > 0).then(|| random.below(keys) as i64),
        b: [Some(""), Some("x"), Some("xx"), None][random.below(13) as usize / 4],
        value: (random.below(6) > 0).then(|| random.below(3) as i64),
        zero: [0.0, -0.0, f64::NAN][random.below(3) as usize],
    }
}

/// The next changes of a side: rows that come, and some that are there go.
fn changes(random: &mut Random, alive: &mut Vec<Row>, count: u64, keys: u64) -> Vec<(RowKind, Row)> {
    let mut changes = Vec::new();
    for _ in 0..count {
        if !alive.is_empty() && random.below(100) < 45 {
            let row = alive.swap_remove(random.below(alive.len() as u64) as usize);
            changes.push(([RowKind::UpdateBefore, RowKind::Delete][random.below(2) as usize], row));
        } else {
            let row = draw(random, keys);
            alive.push(row.clone());
            changes.push(([RowKind::Insert, RowKind::UpdateAfter][random.below(2) as usize], row));
        }
    }
    changes
}

/// All subtasks, fed as the exchange would.
struct Subtasks(Vec<Box<dyn Operator>>);

impl Subtasks {
    fn new(factory: &JoinFactory, backend: &StateBackend, parallelism: u32, states: &[OperatorState]) -> Self {
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

    fn process(&mut self, side: usize, batch: &Batch) -> Collected {
        let (parallelism, keys) = (self.0.len() as u32, [[1, 2], [2, 0]][side]);
        let mut out = Collected::default();
        for (index, operator) in (0..).zip(&mut self.0) {
            let own = rows_of_subtask(batch.clone(), &keys, SubtaskIndex(index), parallelism, 128).unwrap();
            if let Some(own) = own {
                operator.process_input(side as u8, own, &mut out).unwrap();
            }
        }
        out
    }

    fn freeze(&mut self) -> Vec<Box<dyn SnapshotWriter>> {
        self.0.iter_mut().map(|operator| operator.snapshot(CheckpointId(1)).unwrap().unwrap()).collect()
    }
}

const KINDS: [(JoinKind, bool); 8] = [
    (JoinKind::Inner, false),
    (JoinKind::Inner, true),
    (JoinKind::LeftOuter, false),
    (JoinKind::LeftOuter, true),
    (JoinKind::RightOuter, false),
    (JoinKind::RightOuter, true),
    (JoinKind::FullOuter, false),
    (JoinKind::FullOuter, true),
];

#[test]
fn any_interleaving_of_both_changelogs_gives_the_join_of_the_rows_alive_also_after_restores() {
    for (backend, rounds) in backends().into_iter().zip([30, 4]) {
        for (seed, (kind, conditional)) in (1..).zip(KINDS) {
            let factory = factory(kind, conditional, [None, None]);
            let mut random = Random(seed * 7_777_777);
            let mut alive: [Vec<Row>; 2] = Default::default();
            let mut table = Table::default();
            let mut subtasks = Subtasks::new(&factory, &backend, 1, &[]);
            for round in 0..rounds {
                for _ in 0..6 {
                    let side = random.below(2) as usize;
                    let count = 1 + random.below(30);
                    let changes = changes(&mut random, &mut alive[side], count, 1 + round);
                    table.apply(&subtasks.process(side, &batch(side, &changes)));
                    assert_eq!(table, Table::of(kind, conditional, &alive), "{kind:?} {conditional} round {round}");
                }
                if random.below(2) == 0 {
                    let frozen = subtasks.freeze();
                    // What comes after the freeze is not in it.
                    let later = changes(&mut random.clone(), &mut alive[0].clone(), 10, 3);
                    subtasks.process(0, &batch(0, &later));
                    let states: Vec<_> = frozen.iter().map(|writer| written(writer.as_ref())).collect();
                    subtasks = Subtasks::new(&factory, &backend, 1 + random.below(4) as u32, &states);
                }
            }
        }
    }
}

fn row(value: i64, a: i64) -> Row {
    Row { a: Some(a), b: Some("x"), value: Some(value), zero: 0.0 }
}

fn single(subtasks: &mut Subtasks, side: usize, changes: &[(RowKind, Row)]) -> Vec<String> {
    subtasks.process(side, &batch(side, changes)).0.iter().flat_map(lines).collect()
}

#[test]
fn a_left_row_is_padded_just_while_it_has_no_match() {
    use RowKind::{Delete, Insert, UpdateAfter, UpdateBefore};
    for backend in backends() {
        let mut join = Subtasks::new(&factory(JoinKind::LeftOuter, false, [None, None]), &backend, 1, &[]);
        let padded = "1 7 x 0.0 NULL NULL NULL";
        assert_eq!(single(&mut join, 0, &[(Insert, row(1, 7))]), [format!("+I {padded}")]);
        let first = single(&mut join, 1, &[(Insert, row(5, 7))]);
        assert_eq!(first, [format!("-D {padded}"), "+I 1 7 x 0.0 x 5 7".to_owned()], "the padded row goes first");
        assert_eq!(single(&mut join, 1, &[(Insert, row(6, 7))]), ["+I 1 7 x 0.0 x 6 7"]);
        assert_eq!(single(&mut join, 1, &[(Delete, row(5, 7))]), ["-D 1 7 x 0.0 x 5 7"]);
        let update = [(UpdateBefore, row(6, 7)), (UpdateAfter, row(6, 7))];
        assert_eq!(single(&mut join, 1, &update), [""; 0], "no net change");
        let moved = single(&mut join, 1, &[(UpdateBefore, row(6, 7)), (UpdateAfter, row(8, 7))]);
        assert_eq!(moved, ["-D 1 7 x 0.0 x 6 7", "+I 1 7 x 0.0 x 8 7"], "it is not padded in between");
        let last = single(&mut join, 1, &[(Delete, row(8, 7))]);
        assert_eq!(last, ["-D 1 7 x 0.0 x 8 7".to_owned(), format!("+I {padded}")]);
        assert_eq!(single(&mut join, 0, &[(Delete, row(1, 7))]), [format!("-D {padded}")]);
        let left = written(join.freeze()[0].as_ref());
        assert_eq!(left.keyed.len(), 0, "no state is left");
    }
}

#[test]
fn null_keys_match_nothing_and_are_kept_nowhere() {
    let null = |value| Row { a: None, ..row(value, 0) };
    for (kind, expected) in
        [(JoinKind::Inner, vec![]), (JoinKind::LeftOuter, vec!["+I 1 NULL x 0.0 NULL NULL NULL".to_owned()])]
    {
        let mut join = Subtasks::new(&factory(kind, false, [None, None]), &StateBackend::Hash, 1, &[]);
        assert_eq!(single(&mut join, 1, &[(RowKind::Insert, null(2))]), [""; 0]);
        assert_eq!(single(&mut join, 0, &[(RowKind::Insert, null(1))]), expected);
        assert_eq!(written(join.freeze()[0].as_ref()).keyed.len(), 0);
    }
}

#[test]
fn a_key_with_many_rows_comes_out_in_bounded_batches() {
    let mut join = Subtasks::new(&factory(JoinKind::LeftOuter, true, [None, None]), &StateBackend::Hash, 1, &[]);
    let left: Vec<_> = (0..300).map(|value| (RowKind::Insert, row(value, 7))).collect();
    let right: Vec<_> = (0..300).map(|value| (RowKind::Insert, row(value, 7))).collect();
    let (mut table, alive) =
        (Table::default(), [&left, &right].map(|rows| rows.iter().map(|row| row.1.clone()).collect()));
    table.apply(&join.process(0, &batch(0, &left)));
    let out = join.process(1, &batch(1, &right));
    assert!(
        out.0.iter().all(|batch| batch.len() <= 2 * 4096),
        "{:?}",
        out.0.iter().map(Batch::len).collect::<Vec<_>>()
    );
    table.apply(&out);
    assert_eq!(table, Table::of(JoinKind::LeftOuter, true, &alive));
}

#[test]
fn state_of_another_operator_or_key_is_refused_by_name() {
    let mut join = Subtasks::new(&factory(JoinKind::Inner, false, [None, None]), &StateBackend::Hash, 1, &[]);
    single(&mut join, 0, &[(RowKind::Insert, row(1, 7))]);
    let state = written(join.freeze()[0].as_ref());
    let refused = |factory: &JoinFactory, name: Option<&str>| {
        let rename = |piece| RestoredKeyed { name: name.unwrap_or("left").to_owned(), ..restored(piece) };
        let keyed = state.keyed.iter().map(rename).collect();
        let state = RestoredState { restored: true, keyed, ..RestoredState::default() };
        factory.create().unwrap().open(&context(0, 1), state).unwrap_err().to_string()
    };
    let inner = factory(JoinKind::Inner, false, [None, None]);
    assert!(refused(&inner, Some("groups")).contains("state 'groups'"));
    let outer = factory(JoinKind::LeftOuter, false, [None, None]);
    assert!(refused(&outer, None).contains("'$matches'"));
    let fields = |kind| {
        vec![
            Field::new("v", DataType::Int64, true),
            Field::new("a", kind, true),
            Field::new("b", DataType::Utf8, true),
            Field::new("f", DataType::Float64, true),
        ]
    };
    let other_key = Arc::new(Schema::new(fields(DataType::Int32)));
    let both = fields(DataType::Int32).into_iter().chain(fields(DataType::Int32)).collect::<Vec<_>>();
    let spec = JoinSpec {
        kind: JoinKind::Inner,
        left: Arc::clone(&other_key),
        right: other_key,
        left_keys: vec![1, 2],
        right_keys: vec![1, 2],
        condition: None,
        output: Arc::new(Schema::new(both)),
        left_ttl: None,
        right_ttl: None,
        bounds: None,
    };
    let text = refused(&JoinFactory::new(spec).unwrap(), None);
    assert!(text.contains("'a' is a key and is Int64 in the snapshot, but Int32"), "{text}");
}

#[test]
fn plans_that_do_not_fit_are_refused_by_name() {
    let spec = |left_keys: Vec<usize>, right_keys: Vec<usize>| JoinSpec {
        kind: JoinKind::Inner,
        left: schema(0),
        right: schema(1),
        left_keys,
        right_keys,
        condition: None,
        output: schema(0),
        left_ttl: None,
        right_ttl: None,
        bounds: None,
    };
    let refused = |left, right| JoinFactory::new(spec(left, right)).err().unwrap().to_string();
    assert!(refused(vec![], vec![]).contains("0 and 0"));
    assert!(refused(vec![9], vec![0]).contains("column 9"));
    assert!(refused(vec![1], vec![0]).contains("'a' (Int64) with 'b' (Utf8)"));
    assert!(refused(vec![1], vec![2]).contains("was planned with"));
}
