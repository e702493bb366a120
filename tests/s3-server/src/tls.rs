//! Certificates made for one test: an authority, and a server's certificate that it signs.

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::io;
use std::sync::Arc;
use tokio_rustls::TlsAcceptor;

/// An authority that nobody trusts until they are told to.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

/// A server's certificate with its key.
#[derive(Debug)]
pub struct Certificate {
    chain: CertificateDer<'static>,
    key: PrivateKeyDer<'static>,
}

impl Clone for Certificate {
    fn clone(&self) -> Self {
        Self { chain: self.chain.clone(), key: self.key.clone_key() }
    }
}

fn failed(error: impl std::error::Error + Send + Sync + 'static) -> io::Error {
    io::Error::other(error)
}

impl Authority {
    /// A new one.
    ///
    /// # Errors
    /// When there is no randomness.
    pub fn new() -> io::Result<Self> {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, format!("authority {:016x} of a test", fastrand::u64(..)));
        let key = KeyPair::generate().map_err(failed)?;
        Ok(Self { issuer: CertifiedIssuer::self_signed(params, key).map_err(failed)? })
    }

    /// Its own certificate, which clients are told to trust.
    #[must_use]
    pub fn pem(&self) -> String {
        self.issuer.pem()
    }

    /// A certificate for a server of this name or address.
    ///
    /// # Errors
    /// When the name is none.
    pub fn certificate_for(&self, name: &str) -> io::Result<Certificate> {
        let params = CertificateParams::new(vec![name.to_owned()]).map_err(failed)?;
        let key = KeyPair::generate().map_err(failed)?;
        let certificate = params.signed_by(&key, &self.issuer).map_err(failed)?;
        let key = PrivateKeyDer::try_from(key.serialize_der()).map_err(io::Error::other)?;
        Ok(Certificate { chain: certificate.der().clone(), key })
    }
}

impl Certificate {
    /// Takes connections with it; clients show no certificate.
    ///
    /// # Errors
    /// When key and certificate do not fit.
    pub fn acceptor(&self) -> io::Result<TlsAcceptor> {
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(failed)?
            .with_no_client_auth()
            .with_single_cert(vec![self.chain.clone()], self.key.clone_key())
            .map_err(failed)?;
        Ok(TlsAcceptor::from(Arc::new(config)))
    }
}
