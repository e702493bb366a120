//! The suite that every store passes, against an S3 server that others wrote. `cargo verify` starts one and names it;
//! without it the test skips and says so, with `CI=true` it fails instead.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic")]

mod common;

use common::suite::passes_everything;
use sluice_storage::{S3Credentials, S3Settings, S3Store, StoreFailureKind, probe};
use std::sync::Arc;

#[tokio::test(flavor = "multi_thread")]
async fn a_real_server_conforms() {
    let read = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let Some(endpoint) = read("SLUICE_TEST_S3") else {
        assert!(read("CI").is_none_or(|ci| ci != "true"), "CI=true, but SLUICE_TEST_S3* is not set");
        println!("skipped: no S3 server named (SLUICE_TEST_S3*); `cargo verify` starts one");
        return;
    };
    let settings = S3Settings {
        bucket: read("SLUICE_TEST_S3_BUCKET").unwrap(),
        prefix: format!("conformance-{}", uuid::Uuid::new_v4()),
        endpoint: Some(endpoint),
        path_style: true,
        credentials: Some(S3Credentials {
            access_key_id: read("SLUICE_TEST_S3_ACCESS_KEY").unwrap(),
            secret_access_key: read("SLUICE_TEST_S3_SECRET_KEY").unwrap(),
            session_token: None,
        }),
        ..S3Settings::default()
    };
    let missing = S3Settings { bucket: "no-such-bucket".to_owned(), ..settings.clone() };
    let mut wrong = settings.clone();
    wrong.credentials.as_mut().unwrap().secret_access_key = "wrong".to_owned();
    passes_everything(Arc::new(S3Store::new(settings).unwrap())).await;
    let kind_of = async |settings| probe(&S3Store::new(settings).unwrap(), "job/ledger").await.unwrap_err().kind;
    assert_eq!(kind_of(missing).await, StoreFailureKind::MissingBucket);
    assert_eq!(kind_of(wrong).await, StoreFailureKind::Denied);
}
