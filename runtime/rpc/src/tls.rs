//! mTLS between the processes of one job: whom a process believes, and what a peer may ask of it.
//!
//! Every job has a certificate authority of its own ([`authority`]), so a certificate that it signed proves the job; the
//! names in it prove the [`Role`]. [`Tls`] holds one process's certificate, reads it again when its files change, and
//! opens and takes connections ([`stream`]); nothing here knows what is said on them.
//!
//! Callers rely on: a connection that is handed out with TLS comes from a peer of the same job with a role; sessions are
//! never resumed, so each handshake looks at the certificates as they are. Open connections outlive a certificate.

pub mod authority;
pub mod handshakes;
pub mod stream;
#[cfg(test)]
mod tests;

use rustls::client::{Resumption, verify_server_name};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::{NoServerSessionStorage, ParsedCertificate, WebPkiClientVerifier};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

/// The authorities that are believed, as PEM: the job's, and for a time its last one.
pub const AUTHORITY_FILE: &str = "ca.crt";
/// The process's own certificate, as PEM.
pub const CERTIFICATE_FILE: &str = "tls.crt";
/// Its private key, as PEM.
pub const KEY_FILE: &str = "tls.key";

/// Stands in what is said of a connection that failed because of it.
pub const EXPIRED: &str = "CertificateExpired";

/// What the names in a certificate end with.
const DOMAIN: &str = "job.sluice";

/// What a process is to its job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// The controller: follows and commands JobManagers.
    Controller,
    /// A person or a script with `sluice savepoint`, `stop` and their like: as the controller.
    Client,
    /// Is commanded, and deploys tasks.
    JobManager,
    /// Registers with the JobManager, and exchanges rows with its like.
    TaskManager,
}

impl Role {
    /// Those that a certificate can give.
    pub const ALL: [Self; 4] = [Self::Controller, Self::Client, Self::JobManager, Self::TaskManager];

    /// As it stands in names.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Controller => "controller",
            Self::Client => "client",
            Self::JobManager => "jobmanager",
            Self::TaskManager => "taskmanager",
        }
    }

    /// The DNS name by which a certificate gives it.
    #[must_use]
    pub fn dns_name(self) -> String {
        format!("{}.{DOMAIN}", self.name())
    }
}

/// What can go wrong with a certificate of one's own.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file that cannot be read.
    #[error(
        "--tls-directory: {path} cannot be read: {source}; expected {AUTHORITY_FILE}, {CERTIFICATE_FILE} and {KEY_FILE} in one directory"
    )]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// It is no certificate or key, or they do not belong together.
    #[error(
        "certificate {place}: {message}; expected PEM of a certificate, its key and its authority, as in the Secret <job>-tls"
    )]
    Malformed {
        /// Where it came from.
        place: String,
        /// What is wrong.
        message: String,
    },
}

/// A certificate, its key and the authorities that are believed, as PEM.
#[derive(Clone)]
pub struct Credentials {
    /// One or more authorities.
    pub authority: String,
    /// The own certificate.
    pub certificate: String,
    /// Its private key.
    pub key: String,
}

/// One process's side of mTLS.
pub struct Tls {
    directory: Option<PathBuf>,
    loaded: Mutex<Loaded>,
}

#[derive(Clone)]
struct Configs {
    client: Arc<ClientConfig>,
    server: Option<Arc<ServerConfig>>,
}

struct Loaded {
    configs: Configs,
    /// When the files changed last, as the file system says; also of a set that could not be used.
    stamp: Vec<Option<SystemTime>>,
}

impl Tls {
    /// With the certificate in a directory of [`AUTHORITY_FILE`], [`CERTIFICATE_FILE`] and [`KEY_FILE`], which is read
    /// again when it changes.
    ///
    /// # Errors
    /// A file is missing or is not what it should be.
    pub fn from_directory(directory: &Path) -> Result<Self, TlsError> {
        let stamp = stamp(directory);
        let configs = configs(&read(directory)?, true, &format!("in {}", directory.display()))?;
        Ok(Self { directory: Some(directory.to_owned()), loaded: Mutex::new(Loaded { configs, stamp }) })
    }

    /// With a certificate that stays.
    ///
    /// # Errors
    /// It is not what it should be.
    pub fn from_credentials(credentials: &Credentials) -> Result<Self, TlsError> {
        Self::in_memory(credentials, true)
    }

    /// The same for a process that opens connections and takes none.
    ///
    /// # Errors
    /// It is not what it should be.
    pub fn of_client(credentials: &Credentials) -> Result<Self, TlsError> {
        Self::in_memory(credentials, false)
    }

    fn in_memory(credentials: &Credentials, is_server: bool) -> Result<Self, TlsError> {
        let loaded = Loaded { configs: configs(credentials, is_server, "in memory")?, stamp: Vec::new() };
        Ok(Self { directory: None, loaded: Mutex::new(loaded) })
    }

    /// What the next handshake uses. Files that changed and cannot be used leave the last ones in force.
    fn current(&self) -> Configs {
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(directory) = &self.directory else { return loaded.configs.clone() };
        let stamp = stamp(directory);
        if stamp != loaded.stamp {
            // A set that is being written does not fit together, and is looked at again once it has changed.
            loaded.stamp = stamp;
            let place = format!("in {}", directory.display());
            match read(directory).and_then(|credentials| configs(&credentials, true, &place)) {
                Ok(configs) => {
                    tracing::info!("a new certificate {place} is in use");
                    loaded.configs = configs;
                }
                Err(error) => tracing::warn!("the last certificate stays in use: {error}"),
            }
        }
        loaded.configs.clone()
    }
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Tls").field("directory", &self.directory).finish_non_exhaustive()
    }
}

fn stamp(directory: &Path) -> Vec<Option<SystemTime>> {
    let modified = |name: &&str| std::fs::metadata(directory.join(name)).and_then(|meta| meta.modified()).ok();
    [AUTHORITY_FILE, CERTIFICATE_FILE, KEY_FILE].iter().map(modified).collect()
}

fn read(directory: &Path) -> Result<Credentials, TlsError> {
    let read = |name: &str| {
        let path = directory.join(name);
        std::fs::read_to_string(&path).map_err(|source| TlsError::Read { path, source })
    };
    Ok(Credentials { authority: read(AUTHORITY_FILE)?, certificate: read(CERTIFICATE_FILE)?, key: read(KEY_FILE)? })
}

fn configs(credentials: &Credentials, is_server: bool, place: &str) -> Result<Configs, TlsError> {
    let malformed = |message: String| TlsError::Malformed { place: place.to_owned(), message };
    let certificates = |pem: &str| -> Result<Vec<CertificateDer<'static>>, TlsError> {
        let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.as_bytes()).collect();
        read.map_err(|error| malformed(format!("{error:?}")))
    };
    let mut roots = RootCertStore::empty();
    for authority in certificates(&credentials.authority)? {
        roots.add(authority).map_err(|error| malformed(error.to_string()))?;
    }
    let roots = Arc::new(roots);
    let chain = certificates(&credentials.certificate)?;
    let key = PrivateKeyDer::from_pem_slice(credentials.key.as_bytes());
    // Nothing of a key is ever shown.
    let key = key.map_err(|_| malformed("the private key is none".to_owned()))?;
    let provider = Arc::new(ring::default_provider());
    let wrong = |error: rustls::Error| malformed(error.to_string());
    let mut client = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(wrong)?
        .with_root_certificates(Arc::clone(&roots))
        .with_client_auth_cert(chain.clone(), key.clone_key())
        .map_err(wrong)?;
    client.resumption = Resumption::disabled();
    let server = is_server.then(|| server_config(roots, provider, chain, key)).transpose().map_err(malformed)?;
    Ok(Configs { client: Arc::new(client), server: server.map(Arc::new) })
}

fn server_config(
    roots: Arc<RootCertStore>,
    provider: Arc<CryptoProvider>,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<ServerConfig, String> {
    let verifier = WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(&provider));
    let verifier = verifier.build().map_err(|error| error.to_string())?;
    let mut server = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|error| error.to_string())?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, key)
        .map_err(|error| error.to_string())?;
    server.session_storage = Arc::new(NoServerSessionStorage {});
    server.send_tls13_tickets = 0;
    Ok(server)
}

/// The role that a certificate gives; it was verified before.
fn role_of(certificate: &CertificateDer<'_>) -> Option<Role> {
    let parsed = ParsedCertificate::try_from(certificate).ok()?;
    let gives = |role: &Role| {
        let name = ServerName::try_from(role.dns_name());
        name.is_ok_and(|name| verify_server_name(&parsed, &name).is_ok())
    };
    Role::ALL.into_iter().find(gives)
}

/// What is wrong with a certificate, as far as somebody decides by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CertificateProblem {
    /// The peer's or the own one has expired.
    Expired,
    /// One is missing, of another job, or for another role.
    NotBelieved,
}

/// A connection that failed because of a certificate.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct CertificateError {
    /// What is wrong.
    pub problem: CertificateProblem,
    message: String,
}

impl CertificateError {
    /// The one in an error of a connection.
    #[must_use]
    pub fn of(error: &std::io::Error) -> Option<&Self> {
        error.get_ref()?.downcast_ref()
    }
}

/// What a failed handshake, or a connection that the peer gave up, means: a [`CertificateError`] where it is one.
#[must_use]
pub fn explain(error: &std::io::Error) -> std::io::Error {
    use CertificateProblem::{Expired, NotBelieved};
    use rustls::{AlertDescription as Alert, CertificateError as Reason, Error};
    let of_certificate = |problem, message: &str| {
        let message = if problem == Expired { format!("{EXPIRED}: {message}") } else { message.to_owned() };
        std::io::Error::new(error.kind(), CertificateError { problem, message })
    };
    match error.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) {
        Some(Error::NoCertificatesPresented) => of_certificate(NotBelieved, "it presents no certificate"),
        Some(Error::InvalidCertificate(Reason::Expired | Reason::ExpiredContext { .. })) => {
            of_certificate(Expired, "its certificate has expired")
        }
        Some(Error::InvalidCertificate(Reason::UnknownIssuer | Reason::BadSignature)) => {
            let message = "its certificate is of another job: this job's authority has not signed it";
            of_certificate(NotBelieved, message)
        }
        Some(Error::InvalidCertificate(Reason::NotValidForName | Reason::NotValidForNameContext { .. })) => {
            of_certificate(NotBelieved, "its certificate is for another role")
        }
        Some(Error::InvalidMessage(_)) => std::io::Error::new(error.kind(), "it speaks no TLS"),
        Some(Error::AlertReceived(Alert::CertificateExpired)) => {
            of_certificate(Expired, "it says that the own certificate has expired")
        }
        Some(Error::AlertReceived(Alert::CertificateRequired)) => {
            of_certificate(NotBelieved, "it asks for a certificate")
        }
        Some(Error::AlertReceived(Alert::UnknownCA | Alert::DecryptError)) => {
            of_certificate(NotBelieved, "it says that the own certificate is of another job")
        }
        _ => std::io::Error::new(error.kind(), error.to_string()),
    }
}
