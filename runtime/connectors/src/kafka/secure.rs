//! TLS and SASL for the connections that are not librdkafka's, as `properties.*` say it for both.
//!
//! On the same OpenSSL that librdkafka is linked with, so that the same certificates and keys are taken. Mechanisms are PLAIN,
//! SCRAM-SHA-256 and SCRAM-SHA-512. What is not understood is refused when the table is read ([`Security::read`]).

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use openssl::error::ErrorStack;
use openssl::hash::{MessageDigest, hash};
use openssl::pkcs5::pbkdf2_hmac;
use openssl::pkcs12::Pkcs12;
use openssl::pkey::PKey;
use openssl::sign::Signer;
use openssl::ssl::{SslConnector, SslConnectorBuilder, SslMethod, SslStream, SslVerifyMode};
use openssl::x509::X509;
use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::TcpStream;

/// Where systems keep the certificates they trust, as librdkafka looks for them.
const TRUSTED: [&str; 6] = [
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/pki/tls/cacert.pem",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// Properties that change what a connection trusts or shows, and are librdkafka's alone.
const NOT_UNDERSTOOD: [&str; 7] = [
    "ssl.crl.location",
    "ssl.engine.location",
    "ssl.providers",
    "ssl.ca.certificate.stores",
    "ssl.cipher.suites",
    "ssl.curves.list",
    "ssl.sigalgs.list",
];

/// How a connection is made safe. Read once from the properties, by librdkafka's names.
#[derive(Clone, Default)]
pub(super) struct Security {
    values: BTreeMap<String, String>,
    is_encrypted: bool,
    mechanism: Option<Mechanism>,
}

/// How the client says who it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mechanism {
    Plain,
    ScramSha256,
    ScramSha512,
}

impl Mechanism {
    const fn name(self) -> &'static str {
        match self {
            Self::Plain => "PLAIN",
            Self::ScramSha256 => "SCRAM-SHA-256",
            Self::ScramSha512 => "SCRAM-SHA-512",
        }
    }
}

impl Security {
    /// Of librdkafka's properties.
    ///
    /// # Errors
    /// The name of the property that is not understood, and what it may be.
    pub(super) fn read(values: &BTreeMap<String, String>) -> Result<Self, (&'static str, &'static str)> {
        let get = |name: &str| values.get(name).map(|value| value.to_ascii_lowercase());
        let (is_encrypted, is_sasl) = match get("security.protocol").as_deref() {
            None | Some("plaintext") => (false, false),
            Some("ssl") => (true, false),
            Some("sasl_plaintext") => (false, true),
            Some("sasl_ssl") => (true, true),
            Some(_) => return Err(("security.protocol", "plaintext, ssl, sasl_plaintext or sasl_ssl")),
        };
        let mechanism = match get("sasl.mechanisms").or_else(|| get("sasl.mechanism")).as_deref() {
            _ if !is_sasl => None,
            Some("plain") => Some(Mechanism::Plain),
            Some("scram-sha-256") => Some(Mechanism::ScramSha256),
            Some("scram-sha-512") => Some(Mechanism::ScramSha512),
            _ => return Err(("sasl.mechanism", "PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512")),
        };
        if let Some(name) = NOT_UNDERSTOOD.iter().find(|name| is_encrypted && values.contains_key(**name)) {
            return Err((name, "left away"));
        }
        Ok(Self { values: values.clone(), is_encrypted, mechanism })
    }

    fn get(&self, name: &str) -> Option<&str> {
        self.values.get(name).map(String::as_str)
    }

    /// Wraps a connection to this host.
    pub(super) fn wrap(&self, host: &str, stream: TcpStream) -> io::Result<Stream> {
        if !self.is_encrypted {
            return Ok(Stream::Plain(stream));
        }
        let mut connector = SslConnector::builder(SslMethod::tls_client())?;
        let verifies = self.get("enable.ssl.certificate.verification") != Some("false");
        if verifies {
            self.trust(&mut connector)?;
        } else {
            connector.set_verify(SslVerifyMode::NONE);
        }
        self.identify(&mut connector)?;
        let mut configuration = connector.build().configure()?;
        configuration
            .set_verify_hostname(verifies && self.get("ssl.endpoint.identification.algorithm") != Some("none"));
        let connected = configuration.connect(host, stream);
        connected.map(|stream| Stream::Encrypted(Box::new(stream))).map_err(|error| io::Error::other(error.to_string()))
    }

    /// Whom to believe.
    fn trust(&self, connector: &mut SslConnectorBuilder) -> io::Result<()> {
        if let Some(pem) = self.get("ssl.ca.pem") {
            for certificate in X509::stack_from_pem(pem.as_bytes())? {
                connector.cert_store_mut().add_cert(certificate)?;
            }
            return Ok(());
        }
        let given = self.get("ssl.ca.location").filter(|place| *place != "probe");
        let Some(place) = given.or_else(|| TRUSTED.into_iter().find(|place| std::fs::exists(place).unwrap_or(false)))
        else {
            return Ok(());
        };
        if std::fs::metadata(place)?.is_dir() {
            connector.load_verify_locations(None, Some(place.as_ref()))?;
        } else {
            connector.set_ca_file(place)?;
        }
        Ok(())
    }

    /// What to show.
    fn identify(&self, connector: &mut SslConnectorBuilder) -> io::Result<()> {
        let password = self.get("ssl.key.password").unwrap_or_default();
        if let Some(place) = self.get("ssl.keystore.location") {
            let store = Pkcs12::from_der(&std::fs::read(place)?)?;
            let store = store.parse2(self.get("ssl.keystore.password").unwrap_or_default())?;
            store.cert.iter().try_for_each(|certificate| connector.set_certificate(certificate))?;
            store.pkey.iter().try_for_each(|key| connector.set_private_key(key))?;
            for certificate in store.ca.into_iter().flatten() {
                connector.add_extra_chain_cert(certificate)?;
            }
            return Ok(());
        }
        if let Some(place) = self.get("ssl.certificate.location") {
            connector.set_certificate_chain_file(place)?;
        } else if let Some(pem) = self.get("ssl.certificate.pem") {
            let mut chain = X509::stack_from_pem(pem.as_bytes())?.into_iter();
            chain.next().iter().try_for_each(|certificate| connector.set_certificate(certificate))?;
            chain.try_for_each(|certificate| connector.add_extra_chain_cert(certificate))?;
        }
        let key = match (self.get("ssl.key.location"), self.get("ssl.key.pem")) {
            (Some(place), _) => Some(std::fs::read(place)?),
            (None, Some(pem)) => Some(pem.as_bytes().to_vec()),
            (None, None) => None,
        };
        if let Some(key) = key {
            connector.set_private_key(&*PKey::private_key_from_pem_passphrase(&key, password.as_bytes())?)?;
        }
        Ok(())
    }

    /// The mechanism's name, and the conversation to have; `None`: no SASL.
    pub(super) fn conversation(&self) -> Option<(&'static str, Conversation)> {
        let mechanism = self.mechanism?;
        let user = self.get("sasl.username").unwrap_or_default().to_owned();
        let password = self.get("sasl.password").unwrap_or_default().to_owned();
        let conversation = match mechanism {
            Mechanism::Plain => Conversation::Plain { user, password },
            Mechanism::ScramSha256 => Conversation::scram(MessageDigest::sha256(), &user, password),
            Mechanism::ScramSha512 => Conversation::scram(MessageDigest::sha512(), &user, password),
        };
        Some((mechanism.name(), conversation))
    }
}

/// A connection, safe or not.
pub(super) enum Stream {
    Plain(TcpStream),
    Encrypted(Box<SslStream<TcpStream>>),
}

impl Read for Stream {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.read(bytes),
            Self::Encrypted(stream) => stream.read(bytes),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.write(bytes),
            Self::Encrypted(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(stream) => stream.flush(),
            Self::Encrypted(stream) => stream.flush(),
        }
    }
}

/// What is said to prove who one is: [`Self::first`], then [`Self::next`] for each answer until there is nothing to say.
pub(super) enum Conversation {
    Plain { user: String, password: String },
    Scram(Scram),
}

/// RFC 5802.
pub(super) struct Scram {
    digest: MessageDigest,
    password: String,
    nonce: String,
    /// `n=user,r=nonce`.
    first: String,
    /// What the server must answer at the end.
    signature: Option<Vec<u8>>,
}

impl Conversation {
    fn scram(digest: MessageDigest, user: &str, password: String) -> Self {
        let mut random = [0; 24];
        // Without randomness of its own it takes the server's, which is in the proof too.
        let _ = openssl::rand::rand_bytes(&mut random);
        let nonce = STANDARD.encode(random);
        Self::Scram(Scram::new(digest, user, password, nonce))
    }

    /// The first words.
    pub(super) fn first(&self) -> Vec<u8> {
        match self {
            Self::Plain { user, password } => format!("\0{user}\0{password}").into_bytes(),
            Self::Scram(scram) => format!("n,,{}", scram.first).into_bytes(),
        }
    }

    /// What to say to an answer; `None`: it is over.
    pub(super) fn next(&mut self, answer: &[u8]) -> io::Result<Option<Vec<u8>>> {
        match self {
            Self::Plain { .. } => Ok(None),
            Self::Scram(scram) => scram.next(answer),
        }
    }
}

impl Scram {
    fn new(digest: MessageDigest, user: &str, password: String, nonce: String) -> Self {
        let first = format!("n={},r={nonce}", user.replace('=', "=3D").replace(',', "=2C"));
        Self { digest, password, nonce, first, signature: None }
    }

    fn next(&mut self, answer: &[u8]) -> io::Result<Option<Vec<u8>>> {
        let answer = String::from_utf8_lossy(answer).into_owned();
        let field = |name: &str| answer.split(',').find_map(|part| part.strip_prefix(name)).map(str::to_owned);
        if let Some(signature) = &self.signature {
            let given = field("v=").and_then(|text| STANDARD.decode(text).ok());
            return if given.as_ref() == Some(signature) {
                Ok(None)
            } else {
                Err(broken("proves not to know the password"))
            };
        }
        let (Some(nonce), Some(salt), Some(rounds)) = (field("r="), field("s="), field("i=")) else {
            return Err(broken("says something else than SCRAM expects"));
        };
        let salt = STANDARD.decode(salt).map_err(|_| broken("gives a salt that is none"))?;
        let rounds = rounds.parse().map_err(|_| broken("gives a number of rounds that is none"))?;
        if !nonce.starts_with(&self.nonce) {
            return Err(broken("answers somebody else"));
        }
        let mut salted = vec![0; self.digest.size()];
        pbkdf2_hmac(self.password.as_bytes(), &salt, rounds, self.digest, &mut salted)?;
        let client_key = self.hmac(&salted, b"Client Key")?;
        let last = format!("c=biws,r={nonce}");
        let said = format!("{},{answer},{last}", self.first);
        let stored_key = hash(self.digest, &client_key)?;
        let client_signature = self.hmac(&stored_key, said.as_bytes())?;
        let proof: Vec<u8> = client_key.iter().zip(&client_signature).map(|(left, right)| left ^ right).collect();
        let server_key = self.hmac(&salted, b"Server Key")?;
        self.signature = Some(self.hmac(&server_key, said.as_bytes())?);
        Ok(Some(format!("{last},p={}", STANDARD.encode(proof)).into_bytes()))
    }

    fn hmac(&self, key: &[u8], text: &[u8]) -> Result<Vec<u8>, ErrorStack> {
        Signer::new(self.digest, &*PKey::hmac(key)?)?.sign_oneshot_to_vec(text)
    }
}

fn broken(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, format!("the broker {what} (SASL)"))
}

#[cfg(test)]
mod tests;
