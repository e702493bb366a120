//! What stores answer when things are wrong: lost responses, outages, credentials, buckets, stores to be refused.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic")]

mod common;

use async_trait::async_trait;
use bytes::Bytes;
use common::{TemporaryDirectory, s3_store, settings};
use sluice_protocol::Timestamp;
use sluice_protocol::options::StorageOptions;
use sluice_protocol::store::{StoreOperation, StoreReply};
use sluice_storage::{
    FileStore, MemoryStore, ObjectStore, PutOutcome, S3Store, StoreDeadlines, StoreExecutor, StoreFailure,
    StoreFailureKind, UnfinishedUpload, open_store, probe,
};
use sluice_test_s3::{Fault, Options, Outage, TestS3};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
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

/// More of them than a page of the list holds, at keys of which several have more than one, and one of many is refused:
/// the others go all the same (K6).
#[tokio::test(flavor = "multi_thread")]
async fn any_number_of_unfinished_uploads_goes_whatever_is_refused_beside_it() {
    let server = TestS3::start(Options { page_size: 7, ..Options::default() }).await.unwrap();
    let store = s3_store(&server, "many");
    server.set_fault(|request| match request.operation {
        "UploadPart" | "AbortMultipartUpload" => Fault::FailBefore,
        _ => Fault::Pass,
    });
    let large: Bytes = vec![7; 9 << 20].into();
    for number in 0..40 {
        store.put_if_absent(&format!("job/1/shared/{}-x", number % 30), large.clone()).await.unwrap_err();
    }
    store.put_if_absent("jobs/1/shared/1-x", large.clone()).await.unwrap_err();
    server.set_fault(|request| match request.operation {
        "AbortMultipartUpload" if request.key.ends_with("/3-x") => Fault::FailBefore,
        _ => Fault::Pass,
    });
    let found = store.list_uploads("job/").await.unwrap();
    assert_eq!(found.len(), 40, "each is found once: {found:?}");
    store.abort_uploads(&found).await.unwrap_err();
    assert_eq!(server.unfinished_uploads("test"), 3, "two of one key that is refused, and the other job's");
    server.clear_fault();
    store.abort_uploads(&found).await.unwrap();
    assert_eq!(server.unfinished_uploads("test"), 1);
}

/// Also of another store than the job's own, as savepoints may lie in.
#[tokio::test]
async fn uploads_are_found_and_given_up_by_absolute_addresses() {
    let (home, other) = (TemporaryDirectory::new("uploads-home"), TemporaryDirectory::new("uploads-other"));
    let executor = StoreExecutor::new(Arc::new(FileStore::new(home.path(), StoreDeadlines::default())), None);
    let left = other.path().join(format!("job/1-5/.sluice-put-{}-state", "a".repeat(32)));
    std::fs::create_dir_all(left.parent().unwrap()).unwrap();
    std::fs::write(&left, b"half").unwrap();
    let prefix = format!("file://{}/job/", other.path().display());
    let reply = executor.execute(StoreOperation::ListUploads { prefix: prefix.clone() }).await;
    let StoreReply::Uploads(found) = reply else { panic!("{reply:?}") };
    assert_eq!(found.iter().map(|upload| upload.key.as_str()).collect::<Vec<_>>(), [format!("{prefix}1-5/state")]);
    assert_eq!(executor.execute(StoreOperation::AbortUploads { uploads: found }).await, StoreReply::Deleted);
    assert!(!left.exists());
}

/// A temporary file tells which object it would have become; one of a name too long for that, or of an older release,
/// only where.
#[tokio::test]
async fn temporary_files_of_dead_processes_are_found_and_given_up() {
    let directory = TemporaryDirectory::new("unfinished");
    let store = FileStore::new(directory.path(), StoreDeadlines::default());
    let long = format!("job/1/shared/5-{}", "x".repeat(230));
    for key in ["job/1/chk-1/state", &long] {
        store.put_if_absent(key, Bytes::from_static(b"x")).await.unwrap();
    }
    let nonces = ["8d9c0f3e111122223333444455556666-state", "8d9c0f3e111122223333444455556667"];
    let left = [nonces[0], nonces[1], "8d9c0f3e-1111-2222-3333-444455556666"];
    let left = left.map(|name| format!("job/1/chk-1/.sluice-put-{name}"));
    for name in &left {
        std::fs::write(directory.path().join(name), b"half").unwrap();
    }
    let found = store.list_uploads("job/").await.unwrap();
    let keys: Vec<_> = found.iter().map(|upload| upload.key.as_str()).collect();
    assert_eq!(keys, [&left[2], &left[1], "job/1/chk-1/state"]);
    assert_eq!(store.list("job/", None).await.unwrap(), ["job/1/chk-1/state", &long]);
    let object = UnfinishedUpload { key: "job/1/chk-1/state".to_owned(), id: String::new() };
    store.abort_uploads(&[found, vec![object]].concat()).await.unwrap();
    assert!(left.iter().all(|name| !directory.path().join(name).exists()));
    assert!(directory.path().join("job/1/chk-1/state").exists());
}

/// Loses all its objects right before the first list.
struct Swept {
    inner: MemoryStore,
    lists: AtomicUsize,
}

#[async_trait]
impl ObjectStore for Swept {
    fn uri(&self) -> &str {
        self.inner.uri()
    }

    async fn put_if_absent(&self, key: &str, bytes: Bytes) -> Result<PutOutcome, StoreFailure> {
        self.inner.put_if_absent(key, bytes).await
    }

    async fn get(&self, key: &str) -> Result<Option<Bytes>, StoreFailure> {
        self.inner.get(key).await
    }

    async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Option<Bytes>, StoreFailure> {
        self.inner.get_range(key, range).await
    }

    async fn head(&self, key: &str) -> Result<Option<u64>, StoreFailure> {
        self.inner.head(key).await
    }

    async fn modified(&self, key: &str) -> Result<Option<Timestamp>, StoreFailure> {
        self.inner.modified(key).await
    }

    async fn list(&self, prefix: &str, start_after: Option<&str>) -> Result<Vec<String>, StoreFailure> {
        if self.lists.fetch_add(1, Ordering::Relaxed) == 0 {
            self.inner.delete(&self.inner.list("", None).await?).await?;
        }
        self.inner.list(prefix, start_after).await
    }

    async fn delete(&self, keys: &[String]) -> Result<(), StoreFailure> {
        self.inner.delete(keys).await
    }

    async fn list_uploads(&self, prefix: &str) -> Result<Vec<UnfinishedUpload>, StoreFailure> {
        self.inner.list_uploads(prefix).await
    }

    async fn abort_uploads(&self, uploads: &[UnfinishedUpload]) -> Result<(), StoreFailure> {
        self.inner.abort_uploads(uploads).await
    }
}

/// A sweep of the job may take the objects of a probe from under it; only what is broken twice is the store's doing (L7).
#[tokio::test(flavor = "multi_thread")]
async fn a_probe_whose_objects_are_swept_meanwhile_refuses_no_store() {
    let store = Swept { inner: MemoryStore::new(), lists: AtomicUsize::new(0) };
    probe(&store, "default/pv-1").await.unwrap();
    assert!(store.lists.load(Ordering::Relaxed) > 1);
    assert_eq!(store.list("", None).await.unwrap(), Vec::<String>::new());
}
