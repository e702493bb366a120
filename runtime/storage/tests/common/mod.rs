//! What the tests of stores share: a store on the in-process server, a directory that goes away.
#![allow(dead_code, unreachable_pub, missing_docs, clippy::unwrap_used, reason = "each test binary uses a part of it")]

pub mod suite;

use sluice_storage::{S3Credentials, S3Settings, S3Store, StoreDeadlines};
use sluice_test_s3::TestS3;
use std::path::{Path, PathBuf};

pub fn settings(server: &TestS3, prefix: &str) -> S3Settings {
    S3Settings {
        bucket: "test".to_owned(),
        prefix: prefix.to_owned(),
        endpoint: Some(server.endpoint()),
        region: None,
        path_style: true,
        credentials: Some(S3Credentials {
            access_key_id: server.options().access_key_id.clone(),
            secret_access_key: server.options().secret_access_key.clone(),
            session_token: None,
        }),
        deadlines: StoreDeadlines::default(),
    }
}

pub fn s3_store(server: &TestS3, prefix: &str) -> S3Store {
    S3Store::new(settings(server, prefix)).unwrap()
}

pub struct TemporaryDirectory(PathBuf);

impl TemporaryDirectory {
    pub fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("sluice-storage-{name}-{}", uuid::Uuid::new_v4()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TemporaryDirectory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
