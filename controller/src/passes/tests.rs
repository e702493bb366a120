//! Turns: who waits longest comes first, nobody is forgotten, and passes over one object follow each other.

use super::*;
use futures::channel::mpsc;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::runtime::reflector::store;
use kube::runtime::watcher::Event;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

fn seconds(number: u64) -> Duration {
    Duration::from_secs(number)
}

/// Whoever came later is never first, however many go on coming: what was asked of a busy controller has waited for 50 s
/// in the order of a hash table, while others were done at once.
#[test]
fn who_waits_longest_comes_first_however_many_come() {
    let (mut line, now) = (Line::default(), Instant::now());
    (0..100).for_each(|number| line.ask(&number));
    for number in 0..1000 {
        line.ask(&(number + 100));
        let next = line.next().expect("somebody waits");
        assert_eq!(*next, number);
        line.ended(next, Some(now + seconds(300)));
    }
}

#[test]
fn several_requests_are_one_and_one_during_a_turn_is_another_turn() {
    let (mut line, now) = (Line::default(), Instant::now());
    line.ask(&"a");
    line.ask(&"a");
    let first = line.next().expect("waits");
    assert_eq!(line.next(), None, "one at a time");
    line.ask(&"a");
    line.ask(&"a");
    assert_eq!(line.next(), None);
    line.ended(first, Some(now + seconds(300)));
    assert_eq!(line.due(), None, "what was asked for meanwhile does not wait");
    let again = line.next().expect("was asked for meanwhile");
    line.ended(again, None);
    assert_eq!((line.next(), line.places.len()), (None, 0), "nothing is remembered of who waits for nothing");
}

#[test]
fn later_turns_come_in_time_and_a_request_comes_before() {
    let (mut line, now) = (Line::default(), Instant::now());
    for (object, wait) in [("late", 9), ("early", 5), ("asked", 9)] {
        line.ask(&object);
        let turn = line.next().expect("waits");
        line.ended(turn, Some(now + seconds(wait)));
    }
    line.join(now);
    assert_eq!((line.next(), line.due()), (None, Some(now + seconds(5))));
    line.ask(&"asked");
    assert_eq!(line.next().as_deref(), Some(&"asked"));
    line.join(now + seconds(4));
    assert_eq!(line.next(), None);
    line.join(now + seconds(60));
    assert_eq!(line.next().as_deref(), Some(&"early"));
    assert_eq!(line.next().as_deref(), Some(&"late"));
    assert_eq!(line.due(), None);
}

fn object(name: &str) -> ConfigMap {
    let mut object = ConfigMap::default();
    object.metadata.name = Some(name.to_owned());
    object
}

#[tokio::test]
async fn so_many_at_once_and_when_requests_end_what_is_under_way_ends_too() {
    let (cache, mut writer) = store();
    ["a", "b", "c"].into_iter().for_each(|name| writer.apply_watcher_event(&Event::Apply(object(name))));
    let (requests, asked) = mpsc::unbounded();
    ["a", "b", "c", "gone"].into_iter().for_each(|name| requests.unbounded_send(ObjectRef::new(name)).unwrap());
    let (busy, most, done) = (AtomicUsize::new(0), AtomicUsize::new(0), Mutex::new(Vec::new()));
    let pass = |object: Arc<ConfigMap>| {
        let (busy, most, done) = (&busy, &most, &done);
        async move {
            most.fetch_max(busy.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
            tokio::time::sleep(Duration::from_millis(20)).await;
            busy.fetch_sub(1, Ordering::Relaxed);
            let name = object.metadata.name.clone().unwrap_or_default();
            done.lock().unwrap().push(name.clone());
            // One comes again by itself.
            if name == "a" { Action::requeue(Duration::from_millis(5)) } else { Action::await_change() }
        }
    };
    let ends = async {
        tokio::time::sleep(Duration::from_millis(110)).await;
        drop(requests);
    };
    tokio::join!(make_passes(asked, &cache, 2, |_| (), pass), ends);
    let done = done.into_inner().unwrap();
    assert_eq!((most.load(Ordering::Relaxed), busy.load(Ordering::Relaxed)), (2, 0));
    assert!(done.iter().filter(|name| *name == "a").count() > 1, "{done:?}");
    assert_eq!(done.iter().filter(|name| *name != "a").count(), 2, "{done:?}");
}

/// Waits for something that another task brings about.
async fn until(mut is_so: impl FnMut() -> bool) {
    let wait = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(seconds(20), wait).await.expect("comes about");
}

/// Who was due first has waited longest, also when it was due while all turns were taken.
#[tokio::test]
async fn who_is_due_while_all_are_busy_comes_before_who_asks_later_and_the_line_is_told() {
    let (cache, mut writer) = store();
    ["due", "busy", "later"].into_iter().for_each(|name| writer.apply_watcher_event(&Event::Apply(object(name))));
    let (requests, asked) = mpsc::unbounded();
    let ask = |name| requests.unbounded_send(ObjectRef::new(name)).unwrap();
    let (turns, waiting, is_over) = (Mutex::new(Vec::new()), AtomicUsize::new(0), tokio::sync::Notify::new());
    let pass = |object: Arc<ConfigMap>| {
        let (name, is_over) = (object.metadata.name.clone().unwrap_or_default(), &is_over);
        turns.lock().unwrap().push(name.clone());
        let is_first = turns.lock().unwrap().len() == 1;
        async move {
            if name == "busy" {
                is_over.notified().await;
            }
            if is_first { Action::requeue(Duration::from_millis(100)) } else { Action::await_change() }
        }
    };
    let story = async {
        ask("due");
        until(|| turns.lock().unwrap().len() == 1).await;
        ask("busy");
        until(|| turns.lock().unwrap().len() == 2).await;
        until(|| waiting.load(Ordering::Relaxed) == 1).await;
        ask("later");
        until(|| waiting.load(Ordering::Relaxed) == 2).await;
        is_over.notify_one();
        until(|| turns.lock().unwrap().len() == 4).await;
        requests.close_channel();
    };
    let told = |depth| waiting.store(depth, Ordering::Relaxed);
    tokio::join!(make_passes(asked, &cache, 1, told, pass), story);
    assert_eq!(turns.into_inner().unwrap(), ["due", "busy", "due", "later"]);
    assert_eq!(waiting.into_inner(), 0);
}
