//! What the tests that need real services and real processes share: a broker, an S3 server, page views, processes.
//!
//! `cargo verify` starts the services and names them in `SLUICE_TEST_*`; without them these tests skip and say so,
//! with `CI=true` they fail instead. Everything listens on loopback; only processes that were started here are ended.

pub mod classic;
pub mod http;
pub mod job;
pub mod kafka;
pub mod ledger;
pub mod measure;
pub mod pageviews;
pub mod process;
pub mod s3;
pub mod steps;

use std::path::PathBuf;
use std::time::{Duration, Instant};

/// The services that this run of the tests may use.
#[derive(Debug, Clone)]
pub struct Services {
    /// Kafka's bootstrap address.
    pub kafka: String,
    /// The S3 server's URL.
    pub s3: S3Address,
}

/// An S3 server for tests.
#[derive(Debug, Clone)]
pub struct S3Address {
    /// `http://127.0.0.1:18333`.
    pub endpoint: String,
    /// Access key id.
    pub access_key: String,
    /// Secret access key.
    pub secret_key: String,
    /// An existing bucket.
    pub bucket: String,
}

impl Services {
    /// The services named in the environment, or `None` where there are none: the caller returns.
    ///
    /// # Panics
    /// With `CI=true` and without services: CI's set is complete.
    #[must_use]
    pub fn from_environment() -> Option<Self> {
        let read = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let services = (|| {
            Some(Self {
                kafka: read("SLUICE_TEST_KAFKA")?,
                s3: S3Address {
                    endpoint: read("SLUICE_TEST_S3")?,
                    access_key: read("SLUICE_TEST_S3_ACCESS_KEY")?,
                    secret_key: read("SLUICE_TEST_S3_SECRET_KEY")?,
                    bucket: read("SLUICE_TEST_S3_BUCKET")?,
                },
            })
        })();
        if services.is_none() {
            assert!(
                read("CI").is_none_or(|ci| ci != "true"),
                "CI=true, but SLUICE_TEST_KAFKA and SLUICE_TEST_S3* are not set"
            );
            println!(
                "skipped: no broker and S3 server named (SLUICE_TEST_KAFKA, SLUICE_TEST_S3*); `cargo verify` starts them"
            );
        }
        services
    }
}

/// The `sluice` binary: named by `cargo verify`, else beside the running test.
///
/// # Panics
/// When there is none: `cargo build --profile sluice -p sluice-cli` makes it.
#[must_use]
pub fn sluice_binary() -> PathBuf {
    if let Ok(path) = std::env::var("SLUICE_BIN") {
        return PathBuf::from(path);
    }
    let test = std::env::current_exe().expect("the path of this test");
    let path = test.ancestors().nth(2).expect("target/<profile>/deps/<test>").join("sluice");
    assert!(path.exists(), "{} is missing: run `cargo build --profile sluice -p sluice-cli`", path.display());
    path
}

/// Polls until `probe` gives a value.
///
/// # Panics
/// After `timeout`, with `what` in the message.
pub fn wait_for<T>(what: &str, timeout: Duration, mut probe: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + timeout;
    loop {
        if let Some(value) = probe() {
            return value;
        }
        assert!(Instant::now() < deadline, "waited {timeout:?} for {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A name that no earlier run has used.
#[must_use]
pub fn unique(prefix: &str) -> String {
    format!("{prefix}-{:08x}", fastrand::u32(..))
}
