//! One suite that every store passes ([`common::suite`]).
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic")]

mod common;

use common::s3_store;
use common::suite::passes_everything;
use sluice_storage::{FileStore, MemoryStore, StoreDeadlines};
use sluice_test_s3::{Options, TestS3};
use std::sync::Arc;

#[tokio::test(flavor = "multi_thread")]
async fn memory_store_conforms() {
    passes_everything(Arc::new(MemoryStore::new())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn file_store_conforms() {
    let directory = common::TemporaryDirectory::new("conformance");
    passes_everything(Arc::new(FileStore::new(directory.path().join("not/yet/there"), StoreDeadlines::default())))
        .await;
    let left = walk(directory.path());
    assert!(!left.iter().any(|name| name.contains(".sluice-put-")), "temporary files are removed: {left:?}");
}

fn walk(directory: &std::path::Path) -> Vec<String> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let entry = entry.unwrap();
        names.push(entry.path().display().to_string());
        if entry.file_type().unwrap().is_dir() {
            names.extend(walk(&entry.path()));
        }
    }
    names
}

#[tokio::test(flavor = "multi_thread")]
async fn s3_store_conforms() {
    let server = TestS3::start(Options::default()).await.unwrap();
    passes_everything(Arc::new(s3_store(&server, "a/prefix"))).await;
    assert_eq!(server.unfinished_uploads("test"), 0, "a large put that lost leaves no parts");
    assert!(server.keys("test").iter().all(|key| key.starts_with("a/prefix/")), "keys stay below the prefix");
}

#[tokio::test(flavor = "multi_thread")]
async fn s3_store_conforms_without_a_prefix_and_with_small_pages() {
    let server = TestS3::start(Options { page_size: 3, ..Options::default() }).await.unwrap();
    passes_everything(Arc::new(s3_store(&server, ""))).await;
}
