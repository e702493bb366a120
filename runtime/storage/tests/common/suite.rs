//! What every store must do: what the ledger and checkpoints rely on.

use bytes::Bytes;
use sluice_protocol::store::{StoreOperation, StoreReply, UnfinishedUpload};
use sluice_storage::{ObjectStore, PutOutcome, StoreExecutor, probe};
use std::collections::BTreeSet;
use std::sync::Arc;

pub async fn passes_everything(store: Arc<dyn ObjectStore>) {
    objects_come_back_as_they_were_put(&*store).await;
    a_taken_key_is_kept(&*store).await;
    one_of_many_racing_puts_wins(&store).await;
    ranges_are_cut_off_at_the_end(&*store).await;
    lists_are_complete_and_ordered(&*store).await;
    prefixes_are_text_and_not_directories(&*store).await;
    deletes_take_many_keys_and_absent_ones(&*store).await;
    large_objects_travel_too(&*store).await;
    strange_keys_are_kept_apart(&*store).await;
    operations_are_executed(Arc::clone(&store)).await;
    uploads_that_are_not_there_are_no_error(&store).await;
    probe(&*store, "job/ledger").await.unwrap();
    assert_eq!(store.list("job/ledger", None).await.unwrap(), Vec::<String>::new(), "the probe cleans up");
}

/// What has an object is no unfinished upload, and giving up what is not there, or is an object, harms nothing (K6).
async fn uploads_that_are_not_there_are_no_error(store: &Arc<dyn ObjectStore>) {
    store.put_if_absent("up/1/chk-1/state", vec![7; 9 << 20].into()).await.unwrap();
    assert_eq!(store.list_uploads("up/").await.unwrap(), []);
    let absent = |key: &str| UnfinishedUpload { key: key.to_owned(), id: String::new() };
    store.abort_uploads(&[absent("up/1/chk-1/state"), absent("up/none")]).await.ok();
    assert_eq!(store.head("up/1/chk-1/state").await.unwrap(), Some(9 << 20));
    let executor = StoreExecutor::new(Arc::clone(store), None);
    let prefix = format!("{}/up/", store.uri());
    assert_eq!(executor.execute(StoreOperation::ListUploads { prefix }).await, StoreReply::Uploads(vec![]));
}

async fn objects_come_back_as_they_were_put(store: &dyn ObjectStore) {
    let bytes: Bytes = (0..=255u8).cycle().take(70_000).collect::<Vec<_>>().into();
    assert_eq!(store.get("a/object").await.unwrap(), None);
    assert_eq!(store.head("a/object").await.unwrap(), None);
    assert_eq!(store.put_if_absent("a/object", bytes.clone()).await.unwrap(), PutOutcome::Created);
    assert_eq!(store.get("a/object").await.unwrap(), Some(bytes));
    assert_eq!(store.head("a/object").await.unwrap(), Some(70_000));
    assert_eq!(store.put_if_absent("a/empty", Bytes::new()).await.unwrap(), PutOutcome::Created);
    assert_eq!(store.get("a/empty").await.unwrap(), Some(Bytes::new()));
}

async fn a_taken_key_is_kept(store: &dyn ObjectStore) {
    store.put_if_absent("taken", Bytes::from_static(b"first")).await.unwrap();
    assert_eq!(store.put_if_absent("taken", Bytes::from_static(b"second")).await.unwrap(), PutOutcome::Exists);
    assert_eq!(store.get("taken").await.unwrap(), Some(Bytes::from_static(b"first")));
}

async fn one_of_many_racing_puts_wins(store: &Arc<dyn ObjectStore>) {
    for round in 0..20 {
        let key = format!("race/{round}");
        let racers = (0..8).map(|racer| {
            let (store, key) = (Arc::clone(store), key.clone());
            tokio::spawn(
                async move { (racer, store.put_if_absent(&key, Bytes::from(format!("{racer}"))).await.unwrap()) },
            )
        });
        let outcomes = futures::future::join_all(racers).await;
        let winners: Vec<i32> = outcomes
            .into_iter()
            .map(Result::unwrap)
            .filter(|(_, outcome)| *outcome == PutOutcome::Created)
            .map(|(racer, _)| racer)
            .collect();
        assert_eq!(winners.len(), 1, "round {round}: {winners:?}");
        assert_eq!(store.get(&key).await.unwrap(), Some(Bytes::from(format!("{}", winners[0]))));
    }
}

async fn ranges_are_cut_off_at_the_end(store: &dyn ObjectStore) {
    store.put_if_absent("range", Bytes::from_static(b"0123456789")).await.unwrap();
    for (range, expected) in
        [(2..5, "234"), (0..10, "0123456789"), (8..100, "89"), (10..20, ""), (99..100, ""), (3..3, "")]
    {
        let found = store.get_range("range", range.clone()).await.unwrap();
        assert_eq!(found, Some(Bytes::from(expected)), "{range:?}");
    }
    assert_eq!(store.get_range("no such range", 0..1).await.unwrap(), None);
    assert_eq!(store.get_range("no such range", 1..1).await.unwrap(), None);
}

async fn lists_are_complete_and_ordered(store: &dyn ObjectStore) {
    let numbers = [30, 4, 11, 25, 1, 19, 8, 2];
    for number in numbers {
        store.put_if_absent(&format!("list/{number:010}.json"), Bytes::from_static(b"x")).await.unwrap();
    }
    let expected: Vec<String> =
        BTreeSet::from(numbers).into_iter().map(|number| format!("list/{number:010}.json")).collect();
    assert_eq!(store.list("list/", None).await.unwrap(), expected);
    assert_eq!(store.list("list/", Some("list/0000000011.json")).await.unwrap(), expected[5..]);
    assert_eq!(store.list("list/", Some("list/0000000012")).await.unwrap(), expected[5..], "between two keys");
    assert_eq!(store.list("list/", Some("lisa")).await.unwrap(), expected, "before the prefix");
    assert_eq!(store.list("list/", Some("list/0000000030.json")).await.unwrap(), Vec::<String>::new());
    assert_eq!(store.list("nothing/", None).await.unwrap(), Vec::<String>::new());
}

async fn prefixes_are_text_and_not_directories(store: &dyn ObjectStore) {
    for key in ["p/chk-1/x", "p/chk-10/x", "p/chk-1/y/z", "p/chk-1-z", "p/chk-1/x.tail"] {
        store.put_if_absent(key, Bytes::from_static(b"x")).await.unwrap();
    }
    assert_eq!(store.list("p/chk-1/", None).await.unwrap(), ["p/chk-1/x", "p/chk-1/x.tail", "p/chk-1/y/z"]);
    let all = ["p/chk-1-z", "p/chk-1/x", "p/chk-1/x.tail", "p/chk-1/y/z", "p/chk-10/x"];
    assert_eq!(store.list("p/chk-1", None).await.unwrap(), all, "bytes are compared, so '-' < '/' < '0'");
    assert_eq!(store.list("p/", None).await.unwrap(), all);
}

async fn deletes_take_many_keys_and_absent_ones(store: &dyn ObjectStore) {
    for number in 0..30 {
        store.put_if_absent(&format!("delete/{number}"), Bytes::from_static(b"x")).await.unwrap();
    }
    // More than one batch of 1000, most of them absent.
    let keys: Vec<String> = (0..1030).rev().map(|number| format!("delete/{number}")).collect();
    store.delete(&keys).await.unwrap();
    assert_eq!(store.list("delete/", None).await.unwrap(), Vec::<String>::new());
    store.delete(&[]).await.unwrap();
    assert_eq!(store.put_if_absent("delete/0", Bytes::new()).await.unwrap(), PutOutcome::Created);
}

async fn large_objects_travel_too(store: &dyn ObjectStore) {
    let bytes: Bytes = (0..20_000_000u32).map(|position| (position % 251) as u8).collect::<Vec<_>>().into();
    assert_eq!(store.put_if_absent("large", bytes.clone()).await.unwrap(), PutOutcome::Created);
    assert_eq!(store.put_if_absent("large", bytes.slice(1..)).await.unwrap(), PutOutcome::Exists);
    assert!(store.get("large").await.unwrap() == Some(bytes.clone()), "the large object differs");
    let range = 8_388_600..8_388_616;
    assert_eq!(store.get_range("large", range).await.unwrap(), Some(bytes.slice(8_388_600..8_388_616)));
}

async fn strange_keys_are_kept_apart(store: &dyn ObjectStore) {
    let keys = ["s/a b", "s/a%20b", "s/a+b", "s/ä", "s/a&b=c?d#e", "s/'quoted'"];
    for key in keys {
        assert_eq!(store.put_if_absent(key, Bytes::from(key)).await.unwrap(), PutOutcome::Created, "{key}");
    }
    for key in keys {
        assert_eq!(store.get(key).await.unwrap(), Some(Bytes::from(key)), "{key}");
    }
    let mut sorted = keys.map(str::to_owned).to_vec();
    sorted.sort_unstable();
    assert_eq!(store.list("s/", None).await.unwrap(), sorted);
}

async fn operations_are_executed(store: Arc<dyn ObjectStore>) {
    let executor = StoreExecutor::new(Arc::clone(&store), None);
    let absolute = format!("{}/op/two", store.uri());
    let put = |key: &str| StoreOperation::PutIfAbsent { key: key.to_owned(), bytes: key.as_bytes().to_vec() };
    assert_eq!(executor.execute(put("op/one")).await, StoreReply::Put);
    assert_eq!(executor.execute(put("op/one")).await, StoreReply::Exists);
    assert_eq!(executor.execute(put(&absolute)).await, StoreReply::Put);
    let get = |key: &str| StoreOperation::Get { key: key.to_owned() };
    assert_eq!(executor.execute(get("op/two")).await, StoreReply::Object(absolute.clone().into_bytes()));
    assert_eq!(executor.execute(get("op/three")).await, StoreReply::Absent);
    let list = |prefix: String, start_after: Option<String>| StoreOperation::List { prefix, start_after };
    let both = StoreReply::Keys(vec!["op/one".to_owned(), "op/two".to_owned()]);
    assert_eq!(executor.execute(list("op/".to_owned(), None)).await, both);
    let after = Some(format!("{}/op/one", store.uri()));
    let listed = executor.execute(list(format!("{}/op/", store.uri()), after)).await;
    assert_eq!(listed, StoreReply::Keys(vec![absolute.clone()]), "an absolute prefix gives absolute keys");
    let delete = StoreOperation::Delete { keys: vec!["op/one".to_owned(), absolute] };
    assert_eq!(executor.execute(delete).await, StoreReply::Deleted);
    assert_eq!(store.list("op/", None).await.unwrap(), Vec::<String>::new());
}
