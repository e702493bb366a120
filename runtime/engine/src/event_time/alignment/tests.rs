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
