//! What stores answer when things are wrong: lost responses, outages, credentials, buckets, stores to be refused.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic")]

mod common;

use bytes::Bytes;
use common::{TemporaryDirectory, s3_store, settings};
use sluice_protocol::options::StorageOptions;
use sluice_protocol::store::{StoreOperation, StoreReply};
use sluice_storage::{
    FileStore, ObjectStore, PutOutcome, S3Store, StoreDeadlines, StoreExecutor, StoreFailureKind, UnfinishedUpload,
    open_store, probe,
};
use sluice_test_s3::{Fault, Options, Outage, TestS3};
use std::sync::Arc;
use std::time::{Duration, Instant};

async fn server() -> TestS3 {
    TestS3::start(Options::default()).await.unwrap()
}

fn impatient(server: &TestS3) -> S3Store {
    let deadlines = StoreDeadlines { connect: Duration::from_millis(300), attempt: Duration::from_millis(500) };
    S3Store::new(sluice_storage::S3Settings { deadlines, ..settings(server, "impatient") }).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_response_of_a_put_is_a_failure_and_not_a_foreign_object() {
    let server = server().await;
    let store = s3_store(&server, "lost");
    for fault in [Fault::FailAfter, Fault::FailBefore] {
        let key = format!("{fault:?}");
        server.set_fault(move |request| if request.operation == "PutObject" { fault } else { Fault::Pass });
        let before = server.requests("PutObject");
        let failure = store.put_if_absent(&key, Bytes::from_static(b"mine")).await.unwrap_err();
        assert_eq!(failure.kind, StoreFailureKind::Unreachable, "{failure}");
        assert_eq!(server.requests("PutObject") - before, 1, "the SDK must not put again by itself");
        server.clear_fault();
        let stands = store.get(&key).await.unwrap();
        assert_eq!(stands, (fault == Fault::FailAfter).then(|| Bytes::from_static(b"mine")));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_put_that_never_answers_fails_within_its_deadline() {
    let server = server().await;
    let store = impatient(&server);
    server.set_fault(|request| if request.operation == "PutObject" { Fault::HangAfter } else { Fault::Pass });
    let started = Instant::now();
    let failure = store.put_if_absent("key", Bytes::from_static(b"mine")).await.unwrap_err();
    assert_eq!(failure.kind, StoreFailureKind::Unreachable, "{failure}");
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    server.clear_fault();
    assert_eq!(store.get("key").await.unwrap(), Some(Bytes::from_static(b"mine")), "it took effect nevertheless");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_that_fails_leaves_no_parts() {
    let server = server().await;
    let store = s3_store(&server, "parts");
    server.set_fault(|request| if request.operation == "UploadPart" { Fault::FailBefore } else { Fault::Pass });
    let failure = store.put_if_absent("large", vec![7; 17 << 20].into()).await.unwrap_err();
    assert_eq!(failure.kind, StoreFailureKind::Unreachable, "{failure}");
    assert_eq!(server.unfinished_uploads("test"), 0);
    server.clear_fault();
    assert_eq!(store.put_if_absent("large", vec![7; 17 << 20].into()).await.unwrap(), PutOutcome::Created);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outage_is_unreachable_within_the_deadline_and_passes() {
    let server = server().await;
    let store = impatient(&server);
    store.put_if_absent("before", Bytes::from_static(b"x")).await.unwrap();
    for outage in [Outage::Errors, Outage::Hangs, Outage::Refuses] {
        server.set_outage(outage);
        tokio::time::sleep(Duration::from_millis(50)).await;
        let started = Instant::now();
        let during = format!("during-{outage:?}");
        let put = store.put_if_absent(&during, Bytes::from_static(b"x")).await.unwrap_err();
        let get = store.get("before").await.unwrap_err();
        let list = store.list("", None).await.unwrap_err();
        // What had no answer may take effect all the same, and later.
        let delete = store.delete(&["other".to_owned()]).await.unwrap_err();
        for failure in [put, get, list, delete] {
            assert_eq!(failure.kind, StoreFailureKind::Unreachable, "{outage:?}: {failure}");
            assert!(failure.message.contains(&server.endpoint()), "the message says where: {failure}");
        }
        assert!(started.elapsed() < Duration::from_secs(5), "{outage:?} took {:?}", started.elapsed());
        server.set_outage(Outage::None);
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!(store.get("before").await.unwrap(), Some(Bytes::from_static(b"x")), "after {outage:?}");
        let during = store.get(&during).await.unwrap();
        assert!(during.is_none() || outage == Outage::Hangs, "after {outage:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_credentials_are_denied_and_a_missing_bucket_is_missing() {
    let server = server().await;
    let mut wrong_secret = settings(&server, "");
    wrong_secret.credentials.as_mut().unwrap().secret_access_key = "wrong".to_owned();
    let mut unknown_key = settings(&server, "");
    unknown_key.credentials.as_mut().unwrap().access_key_id = "unknown".to_owned();
    let mut missing = settings(&server, "some/where");
    missing.bucket = "no-such-bucket".to_owned();
    for (settings, kind, mentions) in [
        (wrong_secret, StoreFailureKind::Denied, "credentials"),
        (unknown_key, StoreFailureKind::Denied, "credentials"),
        (missing, StoreFailureKind::MissingBucket, "no-such-bucket"),
    ] {
        let store = S3Store::new(settings).unwrap();
        let failures = [
            store.put_if_absent("key", Bytes::from_static(b"x")).await.unwrap_err(),
            store.put_if_absent("key", vec![0; 9 << 20].into()).await.unwrap_err(),
            store.get("key").await.unwrap_err(),
            store.list("", None).await.unwrap_err(),
            store.delete(&["key".to_owned()]).await.unwrap_err(),
            probe(&store, "job/ledger").await.unwrap_err(),
        ];
        for failure in failures {
            assert_eq!(failure.kind, kind, "{failure}");
            assert!(failure.message.contains(mentions), "{failure}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_probe_refuses_a_store_that_ignores_conditions() {
    let server = TestS3::start(Options { ignore_if_none_match: true, ..Options::default() }).await.unwrap();
    let store = s3_store(&server, "probe");
    let failure = probe(&store, "job/ledger").await.unwrap_err();
    assert_eq!(failure.kind, StoreFailureKind::Unsuitable);
    assert!(failure.message.contains("8 of 8 simultaneous puts"), "{failure}");
    assert!(failure.message.contains("s3://test/probe"), "the store is named: {failure}");
    assert_eq!(server.keys("test"), Vec::<String>::new(), "the probe cleans up");
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_listening_is_unreachable() {
    let server = server().await;
    let settings = settings(&server, "");
    drop(server);
    tokio::time::sleep(Duration::from_millis(50)).await;
    let failure = S3Store::new(settings).unwrap().get("key").await.unwrap_err();
    assert_eq!(failure.kind, StoreFailureKind::Unreachable, "{failure}");
    assert!(failure.message.contains("GET s3://test/key at http://127.0.0.1:"), "{failure}");
}

#[tokio::test(flavor = "multi_thread")]
async fn addresses_that_cannot_be_read_are_named() {
    for (uri, endpoint, expected) in [
        ("bucket/path", None, "'bucket/path' is no address of storage"),
        ("s3:///path", None, "'s3:///path' names no bucket"),
        ("file://relative/path", None, "not an absolute path"),
        ("gs://bucket", None, "'gs://bucket' is no address"),
        ("s3://bucket", Some("localhost:9000"), "storageOptions.endpoint 'localhost:9000' is no URL"),
    ] {
        let options = StorageOptions { endpoint: endpoint.map(str::to_owned), ..StorageOptions::default() };
        let failure = open_store(uri, Some(&options)).err().unwrap();
        assert_eq!(failure.kind, StoreFailureKind::Unsuitable);
        assert!(failure.message.contains(expected), "{failure}");
    }
    assert_eq!(open_store("file:///a/b/", None).unwrap().uri(), "file:///a/b");
    assert_eq!(open_store("s3://bucket/a/b/", None).unwrap().uri(), "s3://bucket/a/b");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_store_names_what_is_in_its_way() {
    let directory = TemporaryDirectory::new("way");
    std::fs::write(directory.path().join("file"), b"not a directory").unwrap();
    let store = FileStore::new(directory.path().join("file"), StoreDeadlines::default());
    let failure = store.put_if_absent("ledger/1", Bytes::from_static(b"x")).await.unwrap_err();
    assert_eq!(failure.kind, StoreFailureKind::Unsuitable, "{failure}");
    for key in ["../outside", "a//b", "", "a/./b", "/etc/passwd"] {
        let failure = store.get(key).await.unwrap_err();
        assert_eq!(failure.kind, StoreFailureKind::Unsuitable, "{key}: {failure}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_with_an_address_is_read_from_another_store() {
    let (home, other) = (TemporaryDirectory::new("home"), TemporaryDirectory::new("other"));
    let foreign = FileStore::new(other.path(), StoreDeadlines::default());
    foreign.put_if_absent("job/chk-1/_metadata", Bytes::from_static(b"foreign")).await.unwrap();
    foreign.put_if_absent("job/chk-10/_metadata", Bytes::from_static(b"later")).await.unwrap();
    let executor = StoreExecutor::new(Arc::new(FileStore::new(home.path(), StoreDeadlines::default())), None);
    let key = format!("{}/job/chk-1/_metadata", foreign.uri());
    let got = executor.execute(StoreOperation::Get { key: key.clone() }).await;
    assert_eq!(got, StoreReply::Object(b"foreign".to_vec()));
    let prefix = format!("{}/job/chk-1/", foreign.uri());
    let listed = executor.execute(StoreOperation::List { prefix, start_after: None }).await;
    assert_eq!(listed, StoreReply::Keys(vec![key]));
    let unreadable = executor.execute(StoreOperation::Get { key: "ftp://host/x".to_owned() }).await;
    assert!(matches!(unreadable, StoreReply::Failed(failure) if failure.kind == StoreFailureKind::Unsuitable));
}

/// What a process that dies in the middle of an upload leaves behind can be found and given up (K6).
#[tokio::test(flavor = "multi_thread")]
async fn unfinished_uploads_are_found_and_given_up() {
    let server = server().await;
    let store = s3_store(&server, "sweep");
    server.set_fault(|request| match request.operation {
        "UploadPart" | "AbortMultipartUpload" => Fault::FailBefore,
        _ => Fault::Pass,
    });
    for key in ["job/1/chk-1/a", "job/1/chk-2/b", "other/1/chk-1/c"] {
        store.put_if_absent(key, vec![7; 9 << 20].into()).await.unwrap_err();
    }
    server.clear_fault();
    assert_eq!(server.unfinished_uploads("test"), 3);
    let found = store.list_uploads("job/").await.unwrap();
    assert_eq!(found.iter().map(|upload| upload.key.as_str()).collect::<Vec<_>>(), ["job/1/chk-1/a", "job/1/chk-2/b"]);
    store.abort_uploads(&found).await.unwrap();
    store.abort_uploads(&found).await.unwrap();
    assert_eq!((server.unfinished_uploads("test"), store.list_uploads("job/").await.unwrap().len()), (1, 0));
    assert_eq!(store.put_if_absent("job/1/chk-1/a", vec![7; 9 << 20].into()).await.unwrap(), PutOutcome::Created);
    assert_eq!(store.list_uploads("job/").await.unwrap(), [], "a finished one is none");
}

#[tokio::test]
async fn temporary_files_of_dead_processes_are_found_and_given_up() {
    let directory = TemporaryDirectory::new("unfinished");
    let store = FileStore::new(directory.path(), StoreDeadlines::default());
    store.put_if_absent("job/1/chk-1/state", Bytes::from_static(b"x")).await.unwrap();
    let left = directory.path().join("job/1/chk-1/.sluice-put-1");
    std::fs::write(&left, b"half").unwrap();
    let found = store.list_uploads("job/").await.unwrap();
    assert_eq!(found.iter().map(|upload| upload.key.as_str()).collect::<Vec<_>>(), ["job/1/chk-1/.sluice-put-1"]);
    assert_eq!(store.list("job/", None).await.unwrap(), ["job/1/chk-1/state"]);
    let object = UnfinishedUpload { key: "job/1/chk-1/state".to_owned(), id: String::new() };
    store.abort_uploads(&[found[0].clone(), object]).await.unwrap();
    assert!(!left.exists() && directory.path().join("job/1/chk-1/state").exists());
}
