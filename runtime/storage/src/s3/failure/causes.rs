//! What lies below an error of the SDK: credentials that cannot be had, a certificate that is not trusted.
//!
//! Errors are recognised by their types, never by their words.

use aws_credential_types::provider::error::CredentialsError;
use aws_sdk_s3::config::http::HttpResponse;
use aws_sdk_s3::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_sts::operation::assume_role::AssumeRoleError;
use aws_sdk_sts::operation::assume_role_with_web_identity::AssumeRoleWithWebIdentityError;
use rustls::CertificateError;
use std::error::Error;
use std::io;

/// Why there are no credentials.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::s3) enum NoCredentials {
    /// Nothing offers any.
    Missing,
    /// What offers them is wrong, or it was refused what it asked for.
    Refused(String),
    /// Who hands them out does not answer.
    Unavailable(String),
}

/// Why no TLS connection stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::s3) struct TlsFailure {
    pub(super) message: String,
    pub(super) advice: &'static str,
}

/// The errors of a chain, outermost first. What an I/O error wraps is in it too, which `source` skips.
fn chain<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |error| {
        let error: &'a (dyn Error + 'static) = *error;
        match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
            Some(wrapped) => Some(wrapped),
            None => error.source(),
        }
    })
}

/// The messages of an error's chain, outermost first, each once.
pub(super) fn root_causes(error: &(dyn Error + 'static)) -> String {
    let mut messages: Vec<String> = Vec::new();
    for message in chain(error).map(ToString::to_string) {
        if !messages.contains(&message) {
            messages.push(message);
        }
    }
    messages.join(": ")
}

pub(super) fn find_no_credentials(error: &(dyn Error + 'static)) -> Option<NoCredentials> {
    let found = chain(error).find_map(|error| error.downcast_ref::<CredentialsError>())?;
    Some(match found {
        CredentialsError::CredentialsNotLoaded(_) => NoCredentials::Missing,
        CredentialsError::InvalidConfiguration(_) => NoCredentials::Refused(root_causes(found)),
        _ => find_refusal(found).map_or_else(|| NoCredentials::Unavailable(root_causes(found)), NoCredentials::Refused),
    })
}

/// What STS said, or which file of ours cannot be read.
fn find_refusal(error: &CredentialsError) -> Option<String> {
    chain(error).find_map(|error| {
        let by_token = error.downcast_ref::<SdkError<AssumeRoleWithWebIdentityError, HttpResponse>>();
        let by_role = error.downcast_ref::<SdkError<AssumeRoleError, HttpResponse>>();
        let unreadable = error.downcast_ref::<io::Error>().filter(|error| is_of_a_file(error));
        let said = by_token.and_then(answer_of).or_else(|| by_role.and_then(answer_of));
        said.or_else(|| unreadable.map(|error| format!("the file with the token cannot be read: {error}")))
    })
}

fn is_of_a_file(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied | io::ErrorKind::IsADirectory)
}

/// A refusal that asking again does not change.
fn answer_of<E: ProvideErrorMetadata>(error: &SdkError<E, HttpResponse>) -> Option<String> {
    let SdkError::ServiceError(service) = error else { return None };
    let status = service.raw().status().as_u16();
    let (code, message) = (service.err().code().unwrap_or_default(), service.err().message().unwrap_or_default());
    let passes = status >= 500 || status == 429 || code.starts_with("Throttling") || code == "IDPCommunicationError";
    (!passes).then(|| format!("STS answers {status} {code} {message}"))
}

pub(super) fn find_tls_failure(error: &(dyn Error + 'static)) -> Option<TlsFailure> {
    let found = chain(error).find_map(|error| error.downcast_ref::<rustls::Error>())?;
    let advice = match found {
        // BadSignature: an authority of the same name is trusted, but it is another one.
        rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature) => {
            "the server's certificate is signed by an authority that is not trusted here: put that authority's \
             certificate, as PEM, into a file and name the file in SSL_CERT_FILE (on Kubernetes: mount it and set the \
             variable by podTemplate)"
        }
        rustls::Error::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        ) => "the server's certificate is for another name: write the name that it is for into the endpoint",
        rustls::Error::InvalidCertificate(_) => "the server's certificate must be replaced",
        rustls::Error::InvalidMessage(_) => {
            "the server does not speak TLS at this port: write http://, or its TLS port"
        }
        _ => return None,
    };
    Some(TlsFailure { message: root_causes(error), advice })
}
