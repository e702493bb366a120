//! The edge of a process: the one place where the clock is read, random numbers are made and certificates are opened.

use sluice_engine::operator::Clock;
use sluice_protocol::failure::{ExitKind, ExitRecord, Failure, Fault, Retry};
use sluice_protocol::{RandomSource, Timestamp};
use sluice_rpc::tls::Tls;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use tracing::{error, warn};

/// The time.
#[must_use]
#[expect(clippy::disallowed_methods, reason = "this is the seam through which time enters a process")]
pub fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

/// The clock that tasks are given.
#[must_use]
pub fn clock() -> Clock {
    Arc::new(now)
}

/// Random numbers of the operating system.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemRandom;

impl RandomSource for SystemRandom {
    fn next_u64(&mut self) -> u64 {
        // The fixed bits of a random UUID lie at different places in its halves.
        let (high, low) = uuid::Uuid::new_v4().as_u64_pair();
        high ^ low
    }
}

/// A random identity.
#[must_use]
pub fn random_id() -> String {
    uuid::Uuid::new_v4().simple().to_string()
}

/// The certificate of a process that listens on `bind`, where it has one. Without, whoever reaches the port is believed:
/// said aloud, unless only this machine does.
///
/// # Errors
/// It cannot be used.
pub fn open_tls(directory: Option<&Path>, flag: &str, bind: &str) -> Result<Option<Arc<Tls>>, Failure> {
    if let Some(directory) = directory {
        let tls = Tls::from_directory(directory);
        return tls.map(|tls| Some(Arc::new(tls))).map_err(|error| Failure::user("Certificate", error.to_string()));
    }
    if !bind.parse::<SocketAddr>().is_ok_and(|address| address.ip().is_loopback()) {
        warn!("{flag} {bind}: whoever reaches this address can stop the job or read its rows; give --tls-directory");
    }
    Ok(None)
}

/// The record of a process that ends because of this failure before or without a job.
#[must_use]
pub fn exit_of_failure(failure: &Failure) -> ExitRecord {
    let kind = match (failure.fault, failure.retry) {
        (Fault::User, _) | (_, Retry::Never) => ExitKind::UserError,
        _ => ExitKind::Internal,
    };
    ExitRecord::new(kind, failure.reason.clone(), failure.message.clone())
}

/// Writes the record where Kubernetes reads a container's termination message (design §7).
pub fn write_termination_message(path: &Path, record: &ExitRecord) {
    let written = serde_json::to_vec(record).map_err(std::io::Error::other).and_then(|json| std::fs::write(path, json));
    if let Err(problem) = written {
        error!("the termination message {} cannot be written: {problem}", path.display());
    }
}
