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

fn is_ahead(member: &AlignmentMember, waker: &Waker) -> bool {
    let WatermarkStatus { watermark, idle } = member.reported;
    !idle && member.bound(watermark, waker).is_some_and(|bound| watermark > bound)
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
    assert!(is_ahead(&fast, &waker), "the other is not up yet");
    slow.report(at(0));
    assert_eq!(woken.load(Ordering::Relaxed), 1);
    assert!(!is_ahead(&fast, &waker) && !is_ahead(&slow, &waker) && !is_ahead(&other, &waker));
    fast.report(at(11));
    assert!(is_ahead(&fast, &waker) && !is_ahead(&slow, &waker));
    fast.report(at(10));
    assert!(!is_ahead(&fast, &waker), "just as far as it may");
}

#[test]
fn idle_and_ended_ones_hold_nobody_back_nor_do_they_wait() {
    let groups = Arc::new(AlignmentGroups::new(false));
    let (mut fast, mut slow) = (member(&groups, 0, "g"), member(&groups, 1, "g"));
    fast.report(at(100));
    slow.report(at(0));
    assert!(is_ahead(&fast, &silent()));
    slow.report(WatermarkStatus { watermark: 0, idle: true });
    assert!(!is_ahead(&fast, &silent()));
    slow.report(at(1));
    assert!(is_ahead(&fast, &silent()));
    fast.report(WatermarkStatus { watermark: 100, idle: true });
    assert!(!is_ahead(&fast, &silent()), "it has to find out when there are rows again");
    fast.report(at(100));
    drop(slow);
    assert!(!is_ahead(&fast, &silent()));
    assert_eq!(groups.report(), said("g", 100));
}

#[test]
fn other_task_managers_are_waited_for_from_the_beginning() {
    let groups = Arc::new(AlignmentGroups::new(true));
    let mut fast = member(&groups, 0, "g");
    fast.report(at(100));
    assert!(is_ahead(&fast, &silent()), "of them nothing is known");
    groups.hear(&said("g", 89));
    assert!(is_ahead(&fast, &silent()));
    groups.hear(&said("g", 90));
    assert!(!is_ahead(&fast, &silent()));
    groups.hear(&said("another", 0));
    assert!(!is_ahead(&fast, &silent()), "nobody of its group is at work there");
}

/// Its time is ahead of the other's, with a split that is idle or not.
mod of_a_source {
    use super::*;
    use crate::batch::Batch;
    use crate::error::TaskError;
    use crate::event_time::source::{SourceWatermarks, WatermarkStrategy};
    use crate::operator::RestoredState;
    use crate::operators::RowExpression;
    use crate::source::{Source, SourceContext, SourcePoll, SplitChange};
    use arrow::array::{ArrayRef, Int64Array, RecordBatch};
    use sluice_protocol::Timestamp;
    use sluice_protocol::state::SplitState;

    /// What is held back; `None`: it cannot do that.
    #[derive(Default)]
    struct Reader(Option<Vec<String>>);

    impl Source for Reader {
        fn open(&mut self, _: SourceContext, _: RestoredState) -> Result<(), TaskError> {
            Ok(())
        }

        fn poll(&mut self, _: usize) -> Result<SourcePoll, TaskError> {
            Ok(SourcePoll::Pending)
        }

        fn snapshot(&mut self) -> Result<Vec<SplitState>, TaskError> {
            Ok(Vec::new())
        }

        fn hold_splits(&mut self, held: &[&str]) -> bool {
            self.0.as_mut().is_some_and(|known| {
                *known = held.iter().map(|split| (*split).to_owned()).collect();
                true
            })
        }
    }

    impl Reader {
        /// Whether it reads nothing, and what it holds back.
        fn asks(&mut self, source: &mut SourceWatermarks) -> (bool, Vec<String>) {
            (source.waits(self, &silent()), self.0.clone().unwrap_or_default())
        }
    }

    fn waits(source: &mut SourceWatermarks) -> bool {
        source.waits(&mut Reader(None), &silent())
    }

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
    fn one_that_cannot_hold_splits_back_does_not_wait_while_one_is_idle() {
        let groups = Arc::new(AlignmentGroups::new(false));
        let mut other = member(&groups, 1, "g");
        other.report(at(0));
        let mut fast = source(&groups, &["a", "b"]);
        read(&mut fast, (0..4000).step_by(100), 7000);
        assert!(!waits(&mut fast), "nobody else would find out that the idle split has rows again");
        fast.polled(Some("b"), Timestamp(4000));
        fast.pieces(rows(&[6000]), Some("b")).unwrap();
        assert!(waits(&mut fast), "no split is idle");
        fast.finish(&[SplitChange::Finished { split: "b".to_owned() }]);
        other.report(at(5000));
        assert!(waits(&mut fast), "a split at its end has no more rows");
        other.report(at(6995));
        assert!(!waits(&mut fast));
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
        assert!(waits(&mut fast));
        fast.pause();
        assert_eq!(fast.wake_at(Timestamp(1000)), Some(Timestamp(2000)), "only word from elsewhere is waited for");
        assert_eq!(fast.wake_at(Timestamp(1500)), Some(Timestamp(2500)));
        other.report(at(7000));
        assert!(!waits(&mut fast));
        assert!(fast.wake_at(Timestamp(1000)).is_some_and(|at| at < Timestamp(1100)));
    }

    fn names(splits: &[&str]) -> Vec<String> {
        splits.iter().map(|split| (*split).to_owned()).collect()
    }

    /// Each split is held to the bound of the group, whether another is idle, behind, or at its end.
    #[test]
    fn splits_that_are_ahead_are_held_and_idle_ones_are_read() {
        let groups = Arc::new(AlignmentGroups::new(false));
        let mut other = member(&groups, 1, "g");
        other.report(at(0));
        let mut reader = Reader(Some(Vec::new()));
        let mut fast = source(&groups, &["a", "b", "c"]);
        let mut give = |source: &mut SourceWatermarks, split: &str, time: i64| {
            source.pieces(rows(&[time]), Some(split)).unwrap();
            reader.asks(source)
        };
        assert_eq!(give(&mut fast, "a", 11), (false, names(&["a"])), "the own splits have said nothing");
        assert_eq!(give(&mut fast, "b", 10), (false, names(&["a", "b"])));
        assert_eq!(give(&mut fast, "c", 5), (false, names(&["a"])), "b is as far as it may");
        for now in (0..4000).step_by(100) {
            // Only b has rows, and none that it could not have.
            fast.polled(Some("b"), Timestamp(now));
            fast.pieces(rows(&[10]), Some("b")).unwrap();
            fast.polled(None, Timestamp(now + 10));
        }
        assert_eq!(give(&mut fast, "b", 12), (false, names(&["a", "b"])), "c is idle: it is read, the others are not");
        assert_eq!(fast.wake_at(Timestamp(4000)), None, "what is held does not fall silent");
        assert_eq!(give(&mut fast, "c", 13), (true, names(&["a", "b", "c"])));
        other.report(at(1));
        assert_eq!(reader.asks(&mut fast), (false, names(&["b", "c"])));
        fast.finish(&[SplitChange::Finished { split: "a".to_owned() }]);
        assert_eq!(reader.asks(&mut fast), (true, names(&["b", "c"])), "a is at its end");
        drop(other);
        assert_eq!(reader.asks(&mut fast), (false, names(&[])));
    }
}
