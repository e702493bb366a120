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
        let next = line.next(now).expect("somebody waits");
        assert_eq!(*next, number);
        line.ended(next, Some(now + seconds(300)));
    }
}

#[test]
fn several_requests_are_one_and_one_during_a_turn_is_another_turn() {
    let (mut line, now) = (Line::default(), Instant::now());
    line.ask(&"a");
    line.ask(&"a");
    let first = line.next(now).expect("waits");
    assert_eq!(line.next(now), None, "one at a time");
    line.ask(&"a");
    line.ask(&"a");
    assert_eq!(line.next(now), None);
    line.ended(first, Some(now + seconds(300)));
    assert_eq!(line.due(), None, "what was asked for meanwhile does not wait");
    let again = line.next(now).expect("was asked for meanwhile");
    line.ended(again, None);
    assert_eq!((line.next(now), line.places.len()), (None, 0), "nothing is remembered of who waits for nothing");
}

#[test]
fn later_turns_come_in_time_and_a_request_comes_before() {
    let (mut line, now) = (Line::default(), Instant::now());
    for (object, wait) in [("late", 9), ("early", 5), ("asked", 9)] {
        line.ask(&object);
        let turn = line.next(now).expect("waits");
        line.ended(turn, Some(now + seconds(wait)));
    }
    assert_eq!((line.next(now), line.due()), (None, Some(now + seconds(5))));
    line.ask(&"asked");
    assert_eq!(line.next(now).as_deref(), Some(&"asked"));
    assert_eq!(line.next(now + seconds(4)), None);
    assert_eq!(line.next(now + seconds(60)).as_deref(), Some(&"early"));
    assert_eq!(line.next(now + seconds(60)).as_deref(), Some(&"late"));
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
    tokio::join!(make_passes(asked, &cache, 2, pass), ends);
    let done = done.into_inner().unwrap();
    assert_eq!((most.load(Ordering::Relaxed), busy.load(Ordering::Relaxed)), (2, 0));
    assert!(done.iter().filter(|name| *name == "a").count() > 1, "{done:?}");
    assert_eq!(done.iter().filter(|name| *name != "a").count(), 2, "{done:?}");
}
