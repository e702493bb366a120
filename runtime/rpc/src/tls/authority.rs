//! A job's certificate authority, and the certificates that it signs: ECDSA P-256, made with *ring*.
//!
//! It has no clock: the caller says from when to when a certificate is valid. Keys leave it as PEM only, and are in no
//! error.

use super::{Credentials, Role};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};
use sluice_protocol::{TimeSpan, Timestamp};
use std::time::{Duration, SystemTime};

/// Clocks of a cluster differ: a certificate is valid from this long before it is made.
pub const SKEW: TimeSpan = TimeSpan::from_secs(3600);

/// A certificate or key that cannot be made or read.
#[derive(Debug, thiserror::Error)]
#[error("the job's certificate authority: {0}")]
pub struct AuthorityError(String);

impl From<rcgen::Error> for AuthorityError {
    fn from(error: rcgen::Error) -> Self {
        Self(error.to_string())
    }
}

/// The authority of one job.
pub struct Authority {
    job_uid: String,
    certificate: String,
    key: KeyPair,
}

impl Authority {
    /// A new one, valid for `life` from `now` on.
    ///
    /// # Errors
    /// There is no randomness.
    pub fn new(job_uid: &str, now: Timestamp, life: TimeSpan) -> Result<Self, AuthorityError> {
        let key = KeyPair::generate()?;
        let mut params = authority_params(job_uid);
        set_life(&mut params, now, life);
        let certificate = params.self_signed(&key)?.pem();
        Ok(Self { job_uid: job_uid.to_owned(), certificate, key })
    }

    /// The one that was made before: its certificate and key, as PEM.
    ///
    /// # Errors
    /// The key is none.
    pub fn from_pem(job_uid: &str, certificate: &str, key: &str) -> Result<Self, AuthorityError> {
        let key = KeyPair::from_pem(key)?;
        Ok(Self { job_uid: job_uid.to_owned(), certificate: certificate.to_owned(), key })
    }

    /// Its certificate, as PEM.
    #[must_use]
    pub fn certificate(&self) -> &str {
        &self.certificate
    }

    /// Its private key, as PEM.
    #[must_use]
    pub fn key(&self) -> String {
        self.key.serialize_pem()
    }

    /// A certificate with its key for a process with this role, valid for `life` from `now` on.
    ///
    /// # Errors
    /// There is no randomness.
    pub fn issue(&self, role: Role, now: Timestamp, life: TimeSpan) -> Result<Credentials, AuthorityError> {
        let mut params = CertificateParams::new(vec![role.dns_name()])?;
        params.distinguished_name.push(DnType::CommonName, format!("{} of {}", role.name(), self.job_uid));
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        set_life(&mut params, now, life);
        let key = KeyPair::generate()?;
        let issuer = Issuer::new(authority_params(&self.job_uid), &self.key);
        let certificate = params.signed_by(&key, &issuer)?.pem();
        Ok(Credentials { authority: self.certificate.clone(), certificate, key: key.serialize_pem() })
    }
}

/// What of an authority stands in the certificates that it signs, and is the same whenever it is made from its key.
fn authority_params(job_uid: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, format!("sluice job {job_uid}"));
    params
}

fn set_life(params: &mut CertificateParams, now: Timestamp, life: TimeSpan) {
    let at = |time: Timestamp| SystemTime::UNIX_EPOCH + Duration::from_millis(time.0);
    params.not_before = at(Timestamp(now.0.saturating_sub(SKEW.0))).into();
    params.not_after = at(now.plus(life)).into();
}
