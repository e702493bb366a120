//! Watermarks of splits, cut into batches anyhow, idle and finished splits, and key groups with watermarks of their own.

use super::source::{INTERVAL, Piece, SourceWatermarks, take_restored};
use super::*;
use crate::batch::Batch;
use crate::operator::{OperatorContext, RestoredList, RestoredState};
use crate::operators::RowExpression;
use crate::source::SplitChange;
use crate::testing::Random;
use arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch};
use arrow::datatypes::Int64Type;
use sluice_protocol::state::SplitState;
use sluice_protocol::{KeyGroup, KeyGroupRange, SubtaskIndex, TimeSpan, Timestamp};
use std::sync::Arc;

/// The first column, less a delay.
struct Column(i64);

impl RowExpression for Column {
    fn evaluate(&self, batch: &RecordBatch) -> Result<ArrayRef, crate::error::TaskError> {
        let values = batch.column(0).as_primitive::<Int64Type>().unary::<_, Int64Type>(|value| value - self.0);
        Ok(Arc::new(values))
    }
}

fn strategy(delay: i64, idle_timeout: Option<u64>) -> WatermarkStrategy {
    WatermarkStrategy {
        time: Box::new(|| Ok(Box::new(Column(0)))),
        watermark: Box::new(move || Ok(Box::new(Column(delay)))),
        idle_timeout: idle_timeout.map(TimeSpan),
        alignment: None,
    }
}

fn batch(times: &[i64]) -> Batch {
    let column: ArrayRef = Arc::new(Int64Array::from(times.to_vec()));
    Batch::inserts(RecordBatch::try_from_iter([("t", column)]).unwrap())
}

fn added(split: &str) -> SplitChange {
    SplitChange::Added { split: split.to_owned(), may_idle: true }
}

fn watermarks(delay: i64, idle_timeout: Option<u64>, splits: &[&str]) -> SourceWatermarks {
    let mut watermarks =
        SourceWatermarks::new(&strategy(delay, idle_timeout), std::collections::BTreeMap::new()).unwrap();
    watermarks.begin(&splits.iter().map(|split| added(split)).collect::<Vec<_>>());
    watermarks
}

/// `5 7 W3 idle`: rows and watermarks in order.
fn text(pieces: impl IntoIterator<Item = Piece>) -> String {
    let word = |piece| match piece {
        Piece::Rows(batch) => {
            let values = batch.rows.column(0).as_primitive::<Int64Type>().values().iter();
            values.map(ToString::to_string).collect::<Vec<_>>().join(" ")
        }
        Piece::Status(WatermarkStatus { watermark, idle }) => {
            format!("W{watermark}{}", if idle { " idle" } else { "" })
        }
    };
    pieces.into_iter().map(word).collect::<Vec<_>>().join(" ")
}

const fn status(watermark: i64, idle: bool) -> WatermarkStatus {
    WatermarkStatus { watermark, idle }
}

#[test]
fn a_batch_is_cut_before_a_row_that_is_late_by_the_rows_before_it() {
    let mut one = watermarks(2, None, &["a"]);
    let pieces = one.pieces(batch(&[10, 9, 8, 12, 11, 10, 9, 20]), Some("a")).unwrap();
    assert_eq!(text(pieces), "10 9 W8 8 12 11 W10 10 9 20");
    assert_eq!(one.take_status(Timestamp(0), true), Some(status(18, false)));
    assert_eq!(one.take_status(Timestamp(0), true), None, "nothing new");
}

/// Which rows are late must not depend on where a source ends its batches.
#[test]
fn lateness_is_that_of_the_rows_whatever_the_batches() {
    let mut random = Random(7);
    for _ in 0..200 {
        let times: Vec<i64> = (0..60).map(|row| row * 3 + random.below(40) as i64).collect();
        let late = |sizes: &mut dyn FnMut() -> usize| {
            let (mut one, mut now, mut rest) = (watermarks(10, None, &["a"]), 0, times.as_slice());
            let (mut current, mut late) = (i64::MIN, Vec::new());
            while !rest.is_empty() {
                let (rows, others) = rest.split_at(sizes().min(rest.len()));
                rest = others;
                let mut pieces = one.pieces(batch(rows), Some("a")).unwrap();
                now += 30;
                pieces.extend(one.take_status(Timestamp(now), false).map(Piece::Status));
                for piece in pieces {
                    match piece {
                        Piece::Status(status) => current = status.watermark,
                        Piece::Rows(batch) => {
                            let values = batch.rows.column(0).as_primitive::<Int64Type>().values().to_vec();
                            late.extend(values.into_iter().map(|time| time <= current));
                        }
                    }
                }
            }
            late
        };
        let expected = late(&mut || 1);
        assert!(expected.contains(&true) && expected.contains(&false));
        assert_eq!(late(&mut || 60), expected);
        assert_eq!(late(&mut || 1 + random.below(9) as usize), expected);
    }
}

#[test]
fn the_slowest_split_holds_the_watermark_back_until_it_falls_silent_or_ends() {
    let mut two = watermarks(0, Some(1000), &["a", "b"]);
    two.polled(Some("a"), Timestamp(0));
    assert_eq!(text(two.pieces(batch(&[50]), Some("a")).unwrap()), "50");
    assert_eq!(two.take_status(Timestamp(0), true), None, "b may begin anywhere");
    two.polled(None, Timestamp(600));
    let wake = Some(Timestamp(600 + 1000 - INTERVAL.0));
    assert_eq!(two.wake_at(Timestamp(600)), wake, "both could fall silent then, work on rows is no silence");
    two.pause();
    two.polled(None, Timestamp(9000));
    assert_eq!(two.take_status(Timestamp(9000), true), None, "back-pressure is no silence");
    two.polled(Some("a"), Timestamp(9100));
    assert_eq!(text(two.pieces(batch(&[60]), Some("a")).unwrap()), "60");
    two.polled(None, Timestamp(9500));
    assert_eq!(two.take_status(Timestamp(9500), true), None);
    two.polled(None, Timestamp(10_250));
    assert_eq!(two.take_status(Timestamp(10_250), true), Some(status(60, false)), "b has been silent for a second");
    two.polled(Some("b"), Timestamp(10_300));
    assert_eq!(
        text(two.pieces(batch(&[40, 70]), Some("b")).unwrap()),
        "40 70",
        "late, as the first one after the silence"
    );
    two.finish(&[SplitChange::Finished { split: "a".to_owned() }]);
    assert_eq!(two.take_status(Timestamp(10_300), true), Some(status(70, false)));
    two.finish(&[SplitChange::Finished { split: "b".to_owned() }]);
    assert_eq!(two.take_status(Timestamp(10_300), true), None, "it may be at its end");
    two.polled(None, Timestamp(10_300));
    assert_eq!(two.take_status(Timestamp(10_300), true), Some(status(70, true)), "nothing is read");
    two.begin(&[added("c")]);
    assert_eq!(
        text(two.pieces(batch(&[10, 80]), Some("c")).unwrap()),
        "W70 10 80",
        "active again, and nothing regresses"
    );
}

#[test]
fn a_source_without_splits_is_idle_at_once() {
    let mut none = watermarks(0, None, &[]);
    assert_eq!(none.take_status(Timestamp(0), true), Some(status(i64::MIN, true)));
}

#[test]
fn watermarks_wait_for_their_time_unless_a_row_is_late() {
    let mut one = watermarks(5, None, &["a"]);
    one.pieces(batch(&[10]), Some("a")).unwrap();
    assert_eq!(one.take_status(Timestamp(0), false), Some(status(5, false)));
    one.pieces(batch(&[20]), Some("a")).unwrap();
    assert_eq!(one.take_status(Timestamp(50), false), None);
    assert_eq!(one.wake_at(Timestamp(50)), Some(Timestamp(0).plus(INTERVAL)));
    assert_eq!(one.take_status(Timestamp(0).plus(INTERVAL), false), Some(status(15, false)));
}

#[test]
fn what_a_split_knew_is_said_first_after_a_restore() {
    let mut two = watermarks(0, Some(100), &["a", "b"]);
    two.polled(Some("a"), Timestamp(0));
    two.pieces(batch(&[50]), Some("a")).unwrap();
    two.polled(None, Timestamp(50));
    two.polled(Some("a"), Timestamp(100));
    two.pieces(batch(&[60]), Some("a")).unwrap();
    two.polled(None, Timestamp(120));
    let split = |split: &str| SplitState { split: split.to_owned(), state: serde_json::json!({"offset": 3}) };
    let mut splits = vec![split("a"), split("b")];
    two.store(&mut splits).unwrap();
    let stored: Vec<String> = splits.iter().map(|split| split.state.to_string()).collect();
    assert_eq!(
        stored,
        [r#"{"offset":3,"watermark":60}"#, &format!(r#"{{"idle":true,"offset":3,"watermark":{}}}"#, i64::MIN)]
    );
    let mut state = RestoredState { restored: true, splits, ..RestoredState::default() };
    let known = take_restored(&mut state);
    assert_eq!(state.splits, [split("a"), split("b")], "the source gets its own fields alone");
    let mut again = SourceWatermarks::new(&strategy(0, Some(100)), known).unwrap();
    again.begin(&[added("a"), added("b")]);
    assert_eq!(again.take_status(Timestamp(0), true), Some(status(60, false)), "b is still idle");
    let mut older = RestoredState { splits: vec![split("a")], ..RestoredState::default() };
    assert!(take_restored(&mut older).is_empty());
}

/// Splits that had ended say again what they had said, also where the source tells nothing of them any more; nor do they say
/// more: in which order they ended is not known.
#[test]
fn splits_that_had_ended_are_remembered_after_a_restore() {
    let known = || [("a", 50), ("b", 70)].map(|(split, at)| (split.to_owned(), status(at, false))).into();
    let ended = |split: &str| SplitChange::Finished { split: split.to_owned() };
    for changes in [vec![], vec![added("a"), ended("a"), added("b"), ended("b")]] {
        let mut all_ended = SourceWatermarks::new(&strategy(0, None), known()).unwrap();
        all_ended.open(&changes);
        if !changes.is_empty() {
            assert_eq!(all_ended.take_status(Timestamp(0), true), Some(status(50, false)), "it may be at its end");
            all_ended.polled(None, Timestamp(0));
        }
        assert_eq!(all_ended.take_status(Timestamp(0), true), Some(status(50, true)), "{changes:?}");
        all_ended.begin(&[added("c")]);
        assert_eq!(text(all_ended.pieces(batch(&[10, 80]), Some("c")).unwrap()), "W50 10 80", "nothing regresses");
    }
    let mut one_read = SourceWatermarks::new(&strategy(0, None), known()).unwrap();
    one_read.open(&[added("b")]);
    assert_eq!(one_read.take_status(Timestamp(0), true), Some(status(70, false)), "what has ended is no bound");
}

fn context(start: u16, end: u16) -> OperatorContext {
    OperatorContext {
        uid: "window".into(),
        subtask: SubtaskIndex(0),
        parallelism: 2,
        key_groups: KeyGroupRange { start, end },
        max_parallelism: 8,
        state_backend: crate::state::StateBackend::default(),
    }
}

fn restored(of: &[&KeyGroupWatermarks]) -> RestoredState {
    let list = |one: &&KeyGroupWatermarks| {
        let piece = one.snapshot().unwrap();
        RestoredList { name: piece.name, redistribution: piece.redistribution, items: piece.items }
    };
    RestoredState { restored: true, operator: of.iter().map(list).collect(), ..RestoredState::default() }
}

#[test]
fn key_groups_keep_the_higher_watermark_of_their_own_and_the_subtasks() {
    let empty = RestoredState::default();
    let mut left = KeyGroupWatermarks::open(&context(0, 4), &empty).unwrap();
    let mut right = KeyGroupWatermarks::open(&context(4, 8), &empty).unwrap();
    left.advance(40);
    right.advance(60);
    right.advance(50);
    let mut middle = KeyGroupWatermarks::open(&context(2, 6), &restored(&[&left, &right])).unwrap();
    assert_eq!((middle.current(), middle.uniform()), (40, None));
    assert_eq!([2, 3, 4, 5].map(|group| middle.of(KeyGroup(group))), [40, 40, 60, 60]);
    middle.advance(55);
    assert_eq!([2, 3, 4, 5].map(|group| middle.of(KeyGroup(group))), [55, 55, 60, 60]);
    let again = KeyGroupWatermarks::open(&context(2, 6), &restored(&[&middle])).unwrap();
    assert_eq!([2, 3, 4, 5].map(|group| again.of(KeyGroup(group))), [55, 55, 60, 60]);
    middle.advance(i64::MAX);
    assert_eq!(middle.uniform(), Some(i64::MAX));
    let drained = KeyGroupWatermarks::open(&context(2, 6), &restored(&[&middle])).unwrap();
    assert_eq!(drained.uniform(), Some(55), "that the inputs ended is no part of the state");
    let partly = KeyGroupWatermarks::open(&context(0, 8), &restored(&[&middle])).unwrap();
    assert_eq!((partly.current(), partly.of(KeyGroup(3))), (i64::MIN, 55), "nothing is known of the others");
}

/// A key group is a range of hashes: where their number changes, rows that were late stay so.
#[test]
fn key_groups_keep_their_watermarks_among_another_number() {
    let of = |start, end, max_parallelism| OperatorContext { max_parallelism, ..context(start, end) };
    let mut left = KeyGroupWatermarks::open(&context(0, 4), &RestoredState::default()).unwrap();
    let mut right = KeyGroupWatermarks::open(&context(4, 8), &RestoredState::default()).unwrap();
    left.advance(40);
    right.advance(60);
    let state = restored(&[&left, &right]);
    let twice = KeyGroupWatermarks::open(&of(4, 12, 16), &state).unwrap();
    assert_eq!((twice.current(), [7, 8].map(|group| twice.of(KeyGroup(group)))), (40, [40, 60]));
    let half = KeyGroupWatermarks::open(&of(2, 4, 4), &state).unwrap();
    assert_eq!(half.uniform(), Some(60), "the subtask that has the right half begins there");
    let odd = KeyGroupWatermarks::open(&of(0, 3, 3), &state).unwrap();
    assert_eq!([0, 1, 2].map(|group| odd.of(KeyGroup(group))), [40, 40, 60], "1 has hashes of both");
    let again = KeyGroupWatermarks::open(&of(0, 3, 3), &restored(&[&odd])).unwrap();
    assert_eq!([0, 1, 2].map(|group| again.of(KeyGroup(group))), [40, 40, 60]);
}
