//! Running totals: which slices a window that fires reads.

use super::*;
use crate::aggregate::AggregateKind;
use crate::state::StateBackend;
use crate::state::memory::StateMemory;
use crate::testing::{Collected, backends, context, lines};
use arrow::array::{ArrayRef, TimestampMillisecondArray};
use arrow::datatypes::TimeUnit;

const HOP: WindowKind = WindowKind::Hop { slide: 10, size: 50, offset: 0 };
const CUMULATE: WindowKind = WindowKind::Cumulate { step: 10, size: 50, offset: 0 };

fn batch(rows: &[(i64, i64)]) -> RecordBatch {
    let keys: ArrayRef = Arc::new(Int64Array::from_iter_values(rows.iter().map(|row| row.0)));
    let times: ArrayRef = Arc::new(rows.iter().map(|row| Some(row.1)).collect::<TimestampMillisecondArray>());
    RecordBatch::try_from_iter([("k", keys), ("t", times)]).unwrap()
}

fn opened(kind: &WindowKind, aggregate: AggregateKind, on: &StateBackend) -> WindowAggregate {
    let call = AggregateCall::new(aggregate, Some(0), "a");
    let spec = WindowAggregateSpec {
        input: batch(&[]).schema(),
        keys: vec![0],
        key_names: vec!["k".to_owned()],
        calls: vec![AggregateCall::new(AggregateKind::Count, None, "n"), call],
        kind: kind.clone(),
        time: RowTime::Column(1),
        window_time: DataType::Timestamp(TimeUnit::Millisecond, None),
        late: LateRows::default(),
    };
    let mut operator = WindowAggregateFactory::new(spec).unwrap().build();
    let context = OperatorContext { state_backend: on.clone(), ..context(0, 1) };
    operator.open(&context, RestoredState::default()).unwrap();
    operator
}

fn process(operator: &mut WindowAggregate, rows: &[(i64, i64)]) {
    operator.process(Batch::inserts(batch(rows)), &mut Collected::default()).unwrap();
}

/// Keys with their counts.
fn fire(operator: &mut WindowAggregate, watermark: i64) -> Vec<String> {
    let mut out = Collected::default();
    while operator.watermark(watermark, &mut out).unwrap() == Progress::More {}
    let mut found: Vec<String> = out.0.iter().flat_map(lines).collect();
    found.iter_mut().for_each(|line| *line = line.split(' ').skip(1).take(2).collect::<Vec<_>>().join(" "));
    found.sort();
    found
}

/// Three slices of three keys, of which two windows have fired; then the slices in the middle are emptied, so that what comes
/// out tells whether they are read again.
fn of_the_third_window(operator: &mut WindowAggregate) -> Vec<String> {
    let rows: Vec<(i64, i64)> = (0..30).map(|time| (time % 3, time)).collect();
    process(operator, &rows);
    assert_eq!(fire(operator, 19), ["0 4", "0 7", "1 3", "1 7", "2 3", "2 6"]);
    let context = operator.context.clone().unwrap();
    for slice in operator.slices.range_mut(..=20) {
        slice.1.table = context.keyed_table("nothing", Arc::clone(&operator.plan.calls.layout)).unwrap();
    }
    fire(operator, 29)
}

const WHOLE: [&str; 3] = ["0 10", "1 10", "2 10"];
const LAST: [&str; 3] = ["0 3", "1 3", "2 4"];

#[test]
fn a_window_reads_only_what_it_does_not_share_with_the_one_before() {
    let [hash, disk] = backends();
    let (count, max) = (AggregateKind::Count, AggregateKind::Max);
    for (kind, aggregate, on, expected) in [
        (HOP, count, &hash, WHOLE),
        (CUMULATE, count, &hash, WHOLE),
        (CUMULATE, max, &hash, WHOLE),
        // What an extremum was without a slice is not known, and no more is kept in memory than the backend allows.
        (HOP, max, &hash, LAST),
        (HOP, count, &disk, LAST),
        (HOP, count, &StateBackend::HashWithin(Arc::new(StateMemory::new(1 << 20))), WHOLE),
    ] {
        let mut operator = opened(&kind, aggregate, on);
        assert_eq!(of_the_third_window(&mut operator), expected, "{kind} {aggregate:?}");
    }
}

/// The slice that leaves is taken back, and keys go with their last row.
#[test]
fn what_leaves_a_window_is_no_part_of_the_next_one() {
    let mut operator = opened(&HOP, AggregateKind::Count, &StateBackend::Hash);
    process(&mut operator, &[(1, 0), (2, 0), (2, 15), (3, 25), (1, 45)]);
    assert_eq!(fire(&mut operator, 49).len(), 2 + 2 + 3 + 3 + 3);
    assert_eq!(fire(&mut operator, 59), ["1 1", "2 1", "3 1"]);
    assert_eq!(fire(&mut operator, 69), ["1 1", "3 1"]);
    assert_eq!(fire(&mut operator, 89), ["1 1", "1 1"]);
    assert_eq!(fire(&mut operator, 199), [""; 0]);
    assert!(operator.slices.is_empty());
}

/// A row that is late for some windows counts in the others, of its own key group only.
#[test]
fn rows_for_slices_that_were_added_already_count() {
    let mut operator = opened(&HOP, AggregateKind::Count, &StateBackend::Hash);
    process(&mut operator, &[(1, 0), (2, 0), (1, 10), (2, 10), (1, 20), (2, 20)]);
    assert_eq!(fire(&mut operator, 29), ["1 1", "1 2", "1 3", "2 1", "2 2", "2 3"]);
    process(&mut operator, &[(1, 11)]);
    assert_eq!(fire(&mut operator, 39), ["1 4", "2 3"]);
    assert_eq!(fire(&mut operator, 59), ["1 3", "1 4", "2 2", "2 3"]);
}

/// Where the memory is short totals are given up, and their part of it with them.
#[test]
fn totals_never_cost_a_job_its_memory() {
    let memory = Arc::new(StateMemory::new(1 << 24));
    let mut operator = opened(&HOP, AggregateKind::Count, &StateBackend::HashWithin(Arc::clone(&memory)));
    let rows: Vec<(i64, i64)> = (0..2000).map(|row| (row, 5)).collect();
    process(&mut operator, &rows);
    let tables = memory.used();
    assert_eq!(fire(&mut operator, 9).len(), 2000);
    assert!(memory.used() > tables, "totals are counted");
    let rows: Vec<(i64, i64)> = (2000..4000).map(|row| (row, 15)).collect();
    memory.set_limit(1 << 30);
    process(&mut operator, &rows);
    let tables = 2 * tables;
    memory.set_limit(memory.used());
    assert_eq!(fire(&mut operator, 19).len(), 4000);
    assert!(memory.used() <= tables + tables / 4, "{} of {tables}", memory.used());
    assert_eq!(fire(&mut operator, 29).len(), 4000, "without totals");
}
