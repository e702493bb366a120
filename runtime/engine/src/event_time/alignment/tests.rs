//! Who waits for whom.

use super::*;
use sluice_protocol::{SubtaskIndex, VertexId};
use std::sync::atomic::{AtomicUsize, Ordering};

fn member(groups: &Arc<AlignmentGroups>, vertex: u32, group: &str) -> AlignmentMember {
    let alignment =
        WatermarkAlignment { group: group.to_owned(), max_drift: TimeSpan(10), update_interval: TimeSpan(1000) };
    let subtask = SubtaskId { vertex: VertexId(vertex), index: SubtaskIndex(0) };
    AlignmentMember::new(Arc::clone(groups), subtask, alignment)
}

fn at(watermark: i64) -> WatermarkStatus {
    WatermarkStatus { watermark, idle: false }
}

fn silent() -> Waker {
    Arc::new(|| {})
}

fn said(group: &str, watermark: i64) -> Vec<GroupWatermark> {
    vec![GroupWatermark { group: group.to_owned(), watermark }]
}

#[test]
fn who_is_too_far_ahead_waits_and_is_woken() {
    let groups = Arc::new(AlignmentGroups::new(false));
    let (mut fast, mut slow) = (member(&groups, 0, "g"), member(&groups, 1, "g"));
    let other = member(&groups, 2, "another");
    let woken = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&woken);
    let waker: Waker = Arc::new(move || {
        counted.fetch_add(1, Ordering::Relaxed);
    });
    fast.report(at(5));
    assert!(fast.is_ahead(&waker), "the other is not up yet");
    slow.report(at(0));
    assert_eq!(woken.load(Ordering::Relaxed), 1);
    assert!(!fast.is_ahead(&waker) && !slow.is_ahead(&waker) && !other.is_ahead(&waker));
    fast.report(at(11));
    assert!(fast.is_ahead(&waker) && !slow.is_ahead(&waker));
    fast.report(at(10));
    assert!(!fast.is_ahead(&waker), "just as far as it may");
}

#[test]
fn idle_and_ended_ones_hold_nobody_back_nor_do_they_wait() {
    let groups = Arc::new(AlignmentGroups::new(false));
    let (mut fast, mut slow) = (member(&groups, 0, "g"), member(&groups, 1, "g"));
    fast.report(at(100));
    slow.report(at(0));
    assert!(fast.is_ahead(&silent()));
    slow.report(WatermarkStatus { watermark: 0, idle: true });
    assert!(!fast.is_ahead(&silent()));
    slow.report(at(1));
    assert!(fast.is_ahead(&silent()));
    fast.report(WatermarkStatus { watermark: 100, idle: true });
    assert!(!fast.is_ahead(&silent()), "it has to find out when there are rows again");
    fast.report(at(100));
    drop(slow);
    assert!(!fast.is_ahead(&silent()));
    assert_eq!(groups.report(), said("g", 100));
}

#[test]
fn other_task_managers_are_waited_for_from_the_beginning() {
    let groups = Arc::new(AlignmentGroups::new(true));
    let mut fast = member(&groups, 0, "g");
    fast.report(at(100));
    assert!(fast.is_ahead(&silent()), "of them nothing is known");
    groups.hear(&said("g", 89));
    assert!(fast.is_ahead(&silent()));
    groups.hear(&said("g", 90));
    assert!(!fast.is_ahead(&silent()));
    groups.hear(&said("another", 0));
    assert!(!fast.is_ahead(&silent()), "nobody of its group is at work there");
}

/// Its time is 7 s ahead of the other's, with a split that is idle or not.
mod of_a_source {
    use super::*;
    use crate::batch::Batch;
    use crate::error::TaskError;
    use crate::event_time::source::{SourceWatermarks, WatermarkStrategy};
    use crate::operators::RowExpression;
    use crate::source::SplitChange;
    use arrow::array::{ArrayRef, Int64Array, RecordBatch};
    use sluice_protocol::Timestamp;

    struct First;

    impl RowExpression for First {
        fn evaluate(&self, batch: &RecordBatch) -> Result<ArrayRef, TaskError> {
            Ok(Arc::clone(batch.column(0)))
        }
    }

    fn source(groups: &Arc<AlignmentGroups>, splits: &[&str]) -> SourceWatermarks {
        let strategy = WatermarkStrategy {
            time: Box::new(|| Ok(Box::new(First))),
            watermark: Box::new(|| Ok(Box::new(First))),
            idle_timeout: Some(TimeSpan(1000)),
            alignment: None,
        };
        let mut source = SourceWatermarks::new(&strategy, BTreeMap::new()).unwrap();
        let added = |split: &&str| SplitChange::Added { split: (*split).to_owned(), may_idle: true };
        source.begin(&splits.iter().map(added).collect::<Vec<_>>());
        source.align(member(groups, 0, "g"));
        source
    }

    fn rows(times: &[i64]) -> Batch {
        let column: ArrayRef = Arc::new(Int64Array::from(times.to_vec()));
        Batch::inserts(RecordBatch::try_from_iter([("t", column)]).unwrap())
    }

    /// Gives a row of split `a` at each of these times of the clock.
    fn read(source: &mut SourceWatermarks, clock: impl IntoIterator<Item = u64>, time: i64) {
        for now in clock {
            source.polled(Some("a"), Timestamp(now));
            source.pieces(rows(&[time]), Some("a")).unwrap();
            source.polled(None, Timestamp(now + 10));
        }
    }

    #[test]
    fn none_waits_while_a_split_of_its_own_is_idle() {
        let groups = Arc::new(AlignmentGroups::new(false));
        let mut other = member(&groups, 1, "g");
        other.report(at(0));
        let mut fast = source(&groups, &["a", "b"]);
        read(&mut fast, (0..4000).step_by(100), 7000);
        assert!(!fast.waits(&silent()), "nobody else would find out that the idle split has rows again");
        fast.polled(Some("b"), Timestamp(4000));
        fast.pieces(rows(&[6000]), Some("b")).unwrap();
        assert!(fast.waits(&silent()), "no split is idle");
        fast.finish(&[SplitChange::Finished { split: "b".to_owned() }]);
        other.report(at(5000));
        assert!(fast.waits(&silent()), "a split at its end has no more rows");
        other.report(at(6995));
        assert!(!fast.waits(&silent()));
    }

    #[test]
    fn nothing_falls_silent_while_it_waits() {
        let groups = Arc::new(AlignmentGroups::new(false));
        let mut other = member(&groups, 1, "g");
        other.report(at(0));
        let mut fast = source(&groups, &["a"]);
        read(&mut fast, [0], 7000);
        assert!(fast.take_status(Timestamp(10), true).is_some());
        // Almost silent for long enough.
        fast.polled(None, Timestamp(999));
        assert!(fast.waits(&silent()));
        fast.pause();
        assert_eq!(fast.wake_at(Timestamp(1000)), Some(Timestamp(2000)), "only word from elsewhere is waited for");
        assert_eq!(fast.wake_at(Timestamp(1500)), Some(Timestamp(2500)));
        other.report(at(7000));
        assert!(!fast.waits(&silent()));
        assert!(fast.wake_at(Timestamp(1000)).is_some_and(|at| at < Timestamp(1100)));
    }
}
