//! Who may ask: the fixed access key, and temporary ones that [`crate::sts`] hands out for web identity tokens.
//!
//! A temporary key is good until its end and only together with its session token, which the signature must cover.

use crate::Options;
use s3s::access::{S3Access, S3AccessContext};
use s3s::auth::{S3Auth, SecretKey};
use s3s::{S3Result, s3_error};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

const TOKEN_HEADER: &str = "x-amz-security-token";

/// A role that web identity tokens open.
#[derive(Debug, Clone)]
pub struct WebIdentity {
    /// The role that may be assumed.
    pub role: String,
    /// How long the keys are good that a token is exchanged for.
    pub session_life: Duration,
}

/// A temporary access key.
#[derive(Debug, Clone)]
pub struct Session {
    /// The key.
    pub access_key_id: String,
    /// Its secret.
    pub secret_access_key: String,
    /// Requests must bring it too.
    pub token: String,
    /// The key's end.
    pub until: SystemTime,
}

/// Why STS hands out no key, in its own words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TokenRefusal {
    /// Another role than the one that exists here.
    AccessDenied,
    /// It was current once.
    ExpiredTokenException,
    /// It never was.
    InvalidIdentityToken,
}

#[derive(Default)]
struct State {
    tokens: Vec<String>,
    sessions: BTreeMap<String, Session>,
}

#[expect(clippy::disallowed_methods, reason = "a server of tests ends its keys by the clock")]
fn now() -> SystemTime {
    SystemTime::now()
}

/// All keys; clones share them.
#[derive(Clone)]
pub(crate) struct Identities {
    access_key_id: String,
    secret_access_key: String,
    web_identity: Option<WebIdentity>,
    state: Arc<Mutex<State>>,
}

impl Identities {
    pub(crate) fn new(options: &Options) -> Self {
        Self {
            access_key_id: options.access_key_id.clone(),
            secret_access_key: options.secret_access_key.clone(),
            web_identity: options.web_identity.clone(),
            state: Arc::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on only this token is good; those before it are expired.
    pub(crate) fn accept_token(&self, token: &str) {
        self.state().tokens.push(token.to_owned());
    }

    /// Temporary access keys in the order in which they were handed out.
    pub(crate) fn sessions(&self) -> Vec<Session> {
        self.state().sessions.values().cloned().collect()
    }

    pub(crate) fn assume_role(&self, role: &str, token: &str) -> Result<Session, TokenRefusal> {
        let known = self.web_identity.as_ref().filter(|known| known.role == role).ok_or(TokenRefusal::AccessDenied)?;
        let mut state = self.state();
        if state.tokens.last().is_none_or(|current| current != token) {
            let was_good = state.tokens.iter().any(|older| older == token);
            return Err(if was_good {
                TokenRefusal::ExpiredTokenException
            } else {
                TokenRefusal::InvalidIdentityToken
            });
        }
        let number = state.sessions.len();
        let session = Session {
            access_key_id: format!("ASIATEMPORARY{number:05}"),
            secret_access_key: format!("temporary-secret-{:016x}", fastrand::u64(..)),
            token: format!("session/{number}+{:016x}==", fastrand::u64(..)),
            until: now() + known.session_life,
        };
        state.sessions.insert(session.access_key_id.clone(), session.clone());
        Ok(session)
    }
}

#[async_trait::async_trait]
impl S3Auth for Identities {
    async fn get_secret_key(&self, access_key: &str) -> S3Result<SecretKey> {
        if access_key == self.access_key_id {
            return Ok(self.secret_access_key.as_str().into());
        }
        let state = self.state();
        let session = state.sessions.get(access_key).ok_or_else(|| s3_error!(InvalidAccessKeyId))?;
        if session.until <= now() {
            return Err(s3_error!(ExpiredToken, "The provided token has expired."));
        }
        Ok(session.secret_access_key.as_str().into())
    }
}

#[async_trait::async_trait]
impl S3Access for Identities {
    async fn check(&self, context: &mut S3AccessContext<'_>) -> S3Result<()> {
        let Some(credentials) = context.credentials() else {
            return Err(s3_error!(AccessDenied, "Signature is required"));
        };
        let headers = context.headers();
        let token = headers.get(TOKEN_HEADER).and_then(|token| token.to_str().ok());
        let expected = self.state().sessions.get(&credentials.access_key).map(|session| session.token.clone());
        let signature = headers.get("authorization").and_then(|it| it.to_str().ok()).unwrap_or_default();
        match (token, expected) {
            (None, None) => Ok(()),
            (Some(token), Some(expected)) if token == expected && signature.contains(TOKEN_HEADER) => Ok(()),
            _ => Err(s3_error!(InvalidToken, "The provided token is malformed or otherwise invalid.")),
        }
    }
}
