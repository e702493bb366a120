//! What an S3 server's refusal means: for the caller's next step ([`StoreFailureKind`]) and for a person.

mod causes;

use crate::{StoreFailure, StoreFailureKind, unreachable, unsuitable};
use aws_sdk_s3::config::http::HttpResponse;
use aws_sdk_s3::error::{DisplayErrorContext, ProvideErrorMetadata, SdkError};
use causes::{NoCredentials, TlsFailure, find_no_credentials, find_tls_failure, root_causes};
use std::error::Error;
use std::fmt::{self, Display};
use std::time::Duration;

/// What was tried, where.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    pub operation: &'static str,
    pub uri: &'a str,
    pub bucket: &'a str,
    pub key: &'a str,
    pub endpoint: &'a str,
}

impl Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}/{} at {}", self.operation, self.uri, self.key, self.endpoint)
    }
}

impl Place<'_> {
    pub(super) fn timed_out(&self, deadline: Duration) -> StoreFailure {
        unreachable(format!(
            "{self}: no answer within {deadline:?}; check that the server is up and reachable from here"
        ))
    }

    pub(super) fn broken_off(&self, error: &dyn Error) -> StoreFailure {
        unreachable(format!("{self}: the answer broke off: {}", DisplayErrorContext(error)))
    }

    pub(super) fn not_built(&self, error: &dyn Error) -> StoreFailure {
        unsuitable(format!("{self}: the request could not be built: {}", DisplayErrorContext(error)))
    }

    /// The failure that this refusal is, with what a person can do about it.
    pub(super) fn failure(&self, refusal: &Refusal) -> StoreFailure {
        let (kind, advice) = refusal.verdict(self);
        StoreFailure { kind, message: format!("{self}: {refusal}; {advice}") }
    }
}

/// An answer that is not success, or the lack of one.
#[derive(Debug)]
pub(super) enum Refusal {
    /// The server answered.
    Answer { status: u16, code: String, message: String },
    /// There are no credentials to sign with.
    Credentials(NoCredentials),
    /// No TLS connection to the server, or to STS, and a new attempt would go the same way.
    Tls(TlsFailure),
    /// No connection, or it broke.
    Connection(String),
    /// The request never left.
    Request(String),
}

impl Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Answer { status, code, message } => {
                let status = if *status == 0 { String::new() } else { status.to_string() };
                let words =
                    [status.as_str(), code, message.trim_end_matches('.')].into_iter().filter(|word| !word.is_empty());
                f.write_str(&words.collect::<Vec<_>>().join(" "))
            }
            Self::Credentials(NoCredentials::Missing) => f.write_str("no credentials were found"),
            Self::Credentials(NoCredentials::Refused(message) | NoCredentials::Unavailable(message)) => {
                write!(f, "credentials could not be had: {message}")
            }
            Self::Tls(failure) => f.write_str(&failure.message),
            Self::Connection(message) | Self::Request(message) => f.write_str(message),
        }
    }
}

impl Refusal {
    /// From an error inside an answer that is a success as a whole.
    pub(super) fn from_code(code: &str, message: &str) -> Self {
        Self::Answer { status: 0, code: code.to_owned(), message: message.to_owned() }
    }

    fn status_and_code(&self) -> (u16, &str) {
        match self {
            Self::Answer { status, code, .. } => (*status, code),
            _ => (0, ""),
        }
    }

    /// A conditional put met an object, or another put under way.
    pub(super) fn is_taken(&self) -> bool {
        matches!(self.status_and_code(), (412, _) | (_, "PreconditionFailed" | "ConditionalRequestConflict"))
    }

    /// There is no such object, in a bucket that exists. Another 404 may come from anything that is no S3 server.
    pub(super) fn is_absent(&self) -> bool {
        self.status_and_code().1 == "NoSuchKey"
    }

    /// The same for HEAD, whose answers carry no code.
    pub(super) fn is_absent_head(&self) -> bool {
        self.is_absent() || self.status_and_code().0 == 404
    }

    /// An upload in parts was completed or aborted already.
    pub(super) fn is_no_upload(&self) -> bool {
        self.status_and_code().1 == "NoSuchUpload"
    }

    /// A range begins past the end of the object.
    pub(super) fn is_past_end(&self) -> bool {
        matches!(self.status_and_code(), (416, _) | (_, "InvalidRange"))
    }

    fn verdict(&self, place: &Place<'_>) -> (StoreFailureKind, String) {
        let (kind, advice) = match self {
            Self::Answer { status, code, .. } => return verdict_of_answer(*status, code, place),
            Self::Connection(_) => (
                StoreFailureKind::Unreachable,
                "check that the server is up and reachable from here, and storageOptions.endpoint",
            ),
            Self::Credentials(NoCredentials::Unavailable(_)) => (
                StoreFailureKind::Unreachable,
                "check that what hands out the credentials (for web identity: STS, AWS_ENDPOINT_URL_STS) is up and \
                 reachable from here",
            ),
            Self::Credentials(NoCredentials::Missing) => (
                StoreFailureKind::Denied,
                "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (on Kubernetes: name a Secret in \
                 storageOptions.credentialsSecret), or use web identity",
            ),
            Self::Credentials(NoCredentials::Refused(_)) => (
                StoreFailureKind::Denied,
                "check that AWS_WEB_IDENTITY_TOKEN_FILE holds a current token and that the role in AWS_ROLE_ARN trusts \
                 its issuer and subject (on Kubernetes: the annotation of the pods' service account)",
            ),
            Self::Tls(failure) => (StoreFailureKind::Unsuitable, failure.advice),
            Self::Request(_) => (StoreFailureKind::Unsuitable, "check storage and storageOptions"),
        };
        (kind, advice.to_owned())
    }
}

fn verdict_of_answer(status: u16, code: &str, place: &Place<'_>) -> (StoreFailureKind, String) {
    let bucket = place.bucket;
    match (status, code) {
        (_, "NoSuchBucket") => (
            StoreFailureKind::MissingBucket,
            format!("the bucket '{bucket}' does not exist: create it or correct checkpointing.storage"),
        ),
        (_, "RequestTimeTooSkewed") => (StoreFailureKind::Denied, "set this machine's clock".to_owned()),
        (
            _,
            "AccessDenied"
            | "InvalidAccessKeyId"
            // The same, as versitygw calls it, with status 404.
            | "XAdminUserNotFound"
            | "SignatureDoesNotMatch"
            | "ExpiredToken"
            | "InvalidToken"
            | "TokenRefreshRequired"
            | "AccountProblem"
            | "AllAccessDisabled",
        )
        | (401 | 403, _) => (
            StoreFailureKind::Denied,
            format!(
                "check the credentials (on Kubernetes the Secret that storageOptions.credentialsSecret names) and that \
                 they may read, write, list and delete in the bucket '{bucket}'"
            ),
        ),
        (301 | 307, _)
        | (_, "PermanentRedirect" | "AuthorizationHeaderMalformed" | "IllegalLocationConstraintException") => {
            let advice = "set storageOptions.region and endpoint to the bucket's, and pathStyle if the server wants it";
            (StoreFailureKind::Unsuitable, advice.to_owned())
        }
        (501, _) | (_, "NotImplemented") => {
            (StoreFailureKind::Unsuitable, "this server lacks what checkpoints need; use another".to_owned())
        }
        (408 | 409 | 429 | 500.., _)
        | (_, "SlowDown" | "InternalError" | "ServiceUnavailable" | "RequestTimeout" | "OperationAborted") => {
            (StoreFailureKind::Unreachable, "the server is in trouble or busy; see its own log".to_owned())
        }
        (404, _) => (
            StoreFailureKind::Unsuitable,
            "nothing is found at this address: check checkpointing.storage, storageOptions.endpoint and pathStyle"
                .to_owned(),
        ),
        _ => (StoreFailureKind::Unsuitable, "check storage and storageOptions".to_owned()),
    }
}

impl<E> From<SdkError<E, HttpResponse>> for Refusal
where
    E: ProvideErrorMetadata + Error + Send + Sync + 'static,
{
    fn from(error: SdkError<E, HttpResponse>) -> Self {
        // First of all: STS may be what is not trusted.
        if let Some(failure) = find_tls_failure(&error) {
            return Self::Tls(failure);
        }
        if let Some(cause) = find_no_credentials(&error) {
            return Self::Credentials(cause);
        }
        match &error {
            SdkError::ServiceError(service) => Self::Answer {
                status: service.raw().status().as_u16(),
                code: service.err().code().unwrap_or_default().to_owned(),
                message: service.err().message().unwrap_or_default().to_owned(),
            },
            SdkError::ResponseError(response) => Self::Answer {
                status: response.raw().status().as_u16(),
                code: String::new(),
                message: format!("an answer that is not S3's: {}", DisplayErrorContext(&error)),
            },
            SdkError::ConstructionFailure(_) => Self::Request(DisplayErrorContext(&error).to_string()),
            _ => Self::Connection(root_causes(&error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Place, Refusal};
    use crate::StoreFailureKind;

    #[test]
    fn an_unknown_access_key_is_told_as_such_whatever_the_server_calls_it() {
        let place = Place { operation: "LIST", uri: "s3://b", bucket: "b", key: "k", endpoint: "http://e" };
        for (status, code) in [(403, "InvalidAccessKeyId"), (404, "XAdminUserNotFound"), (403, "SignatureDoesNotMatch")]
        {
            let refusal = Refusal::Answer { status, code: code.to_owned(), message: String::new() };
            let failure = place.failure(&refusal);
            assert_eq!(failure.kind, StoreFailureKind::Denied, "{failure}");
            assert!(failure.message.contains("credentialsSecret"), "{failure}");
        }
    }
}
