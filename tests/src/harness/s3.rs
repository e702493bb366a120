//! An S3 server of a test's own, for tests that take it away: started by `tests/services/s3.sh` on a free port.

use super::S3Address;
use super::process::free_port;
use super::unique;
use std::path::PathBuf;
use std::process::Command;

/// The access key of every such server: the script's own.
pub const ACCESS_KEY: &str = "sluicetestaccess";

/// Its secret.
pub const SECRET_KEY: &str = "sluicetestsecret0123";

/// A server that the test may kill and start again; its data stay until it is dropped.
pub struct OwnS3 {
    directory: PathBuf,
    port: u16,
    bucket: &'static str,
}

impl OwnS3 {
    /// Starts one with the bucket `test`.
    ///
    /// # Panics
    /// When the script fails.
    #[must_use]
    pub fn start() -> Self {
        Self::start_with("test")
    }

    /// Starts one with a bucket.
    ///
    /// # Panics
    /// When the script fails.
    #[must_use]
    pub fn start_with(bucket: &'static str) -> Self {
        let server = Self { directory: std::env::temp_dir().join(unique("sluice-test-s3")), port: free_port(), bucket };
        server.restart();
        server
    }

    /// Starts it again on the same port with the same data.
    ///
    /// # Panics
    /// When the script fails.
    pub fn restart(&self) {
        self.script("start");
    }

    /// SIGKILL.
    ///
    /// # Panics
    /// When the script fails.
    pub fn kill(&self) {
        self.script("kill9");
    }

    /// How it is reached.
    #[must_use]
    pub fn address(&self) -> S3Address {
        S3Address {
            endpoint: format!("http://127.0.0.1:{}", self.port),
            access_key: ACCESS_KEY.to_owned(),
            secret_key: SECRET_KEY.to_owned(),
            bucket: self.bucket.to_owned(),
        }
    }

    fn script(&self, action: &str) {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/services/s3.sh");
        let output = Command::new("bash")
            .args([script, action])
            .env("SLUICE_S3_DIR", &self.directory)
            .env("SLUICE_S3_PORT", self.port.to_string())
            .env("SLUICE_S3_BUCKET", self.bucket)
            .output()
            .expect("bash");
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "s3.sh {action}: {text}{}", String::from_utf8_lossy(&output.stdout));
    }
}

impl Drop for OwnS3 {
    fn drop(&mut self) {
        self.script("kill9");
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}
