//! Where credentials and trust come from when settings name none: web identity, the system's certificates, as pods have
//! them. Both are read from the environment, so each store runs in a child of this program with its own.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic")]

mod common;

use common::TemporaryDirectory;
use sluice_protocol::options::StorageOptions;
use sluice_storage::{StoreFailure, open_store};
use sluice_test_s3::{Authority, Options, TestS3, WebIdentity};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

const ROLE: &str = "arn:aws:iam::000000000000:role/checkpoints";
/// Before each reply of a child, since the test harness prints lines of its own.
const REPLY: &str = "reply ";
const ENDPOINT: &str = "SLUICE_TEST_CHILD_ENDPOINT";

/// Not a test of its own: the child. Puts an object for each line that it reads, and tells what came of it.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "started by the other tests"]
async fn child() {
    let Ok(endpoint) = std::env::var(ENDPOINT) else { return };
    let options = StorageOptions { endpoint: Some(endpoint), path_style: true, ..StorageOptions::default() };
    let store = open_store("s3://test/child", Some(&options)).unwrap();
    for key in std::io::stdin().lines() {
        let key = key.unwrap();
        let result = store.put_if_absent(&key, bytes::Bytes::from_static(b"x")).await;
        let failure = result.err().map(|failure| serde_json::to_string(&failure).unwrap());
        println!("{REPLY}{}", failure.unwrap_or_default());
    }
}

/// A child with a store that knows its server's address and nothing else but its environment.
struct StoreInChild {
    keys: ChildStdin,
    replies: Lines<BufReader<ChildStdout>>,
    /// Killed when it is dropped.
    _child: Child,
}

impl StoreInChild {
    fn start(endpoint: &str, environment: &[(&str, &str)]) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["child", "--exact", "--ignored", "--nocapture"])
            .env_clear()
            .env(ENDPOINT, endpoint)
            .envs(environment.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let replies = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { keys: child.stdin.take().unwrap(), replies, _child: child }
    }

    async fn put(&mut self, key: &str) -> Result<(), StoreFailure> {
        self.keys.write_all(format!("{key}\n").as_bytes()).await.unwrap();
        loop {
            let line = self.replies.next_line().await.unwrap().unwrap();
            match line.split_once(REPLY) {
                Some((_, "")) => return Ok(()),
                Some((_, failure)) => return Err(serde_json::from_str(failure).unwrap()),
                None => {}
            }
        }
    }

    async fn refusal(&mut self, key: &str) -> String {
        let failure = self.put(key).await.unwrap_err();
        format!("{:?}: {failure}", failure.kind)
    }
}

/// A server that is an STS too.
async fn sts(session_life: Duration) -> TestS3 {
    let web_identity = WebIdentity { role: ROLE.to_owned(), session_life };
    TestS3::start(Options { web_identity: Some(web_identity), ..Options::default() }).await.unwrap()
}

const AN_HOUR: Duration = Duration::from_secs(3600);

/// As EKS sets up a pod of a service account with a role.
fn in_a_pod(server: &TestS3, role: &str, token_file: &Path) -> StoreInChild {
    let variables = [
        ("AWS_ROLE_ARN", role),
        ("AWS_WEB_IDENTITY_TOKEN_FILE", token_file.to_str().unwrap()),
        ("AWS_ENDPOINT_URL_STS", &server.endpoint()),
        ("AWS_REGION", "us-east-1"),
    ];
    StoreInChild::start(&server.endpoint(), &variables)
}

#[tokio::test(flavor = "multi_thread")]
async fn web_identity_gives_keys_that_are_kept_while_they_are_good() {
    let (server, directory) = (sts(AN_HOUR).await, TemporaryDirectory::new("token"));
    let file = directory.path().join("token");
    std::fs::write(&file, "first.token").unwrap();
    server.accept_token("first.token");
    let mut store = in_a_pod(&server, ROLE, &file);
    store.put("one").await.unwrap();
    std::fs::remove_file(&file).unwrap();
    store.put("two").await.unwrap();
    assert_eq!(server.sessions().len(), 1);
    assert_eq!(server.keys("test"), ["child/one", "child/two"]);
}

/// The server refuses keys past their end, so what succeeds afterwards has new ones, for the token that is in the file
/// then: the one before is refused.
#[tokio::test(flavor = "multi_thread")]
async fn keys_past_their_end_are_fetched_again_with_the_token_that_is_then_in_the_file() {
    let life = Duration::from_millis(800);
    let (server, directory) = (sts(life).await, TemporaryDirectory::new("renewed"));
    let file = directory.path().join("token");
    std::fs::write(&file, "first.token").unwrap();
    server.accept_token("first.token");
    let mut store = in_a_pod(&server, ROLE, &file);
    store.put("one").await.unwrap();
    let before = server.sessions();
    std::fs::write(&file, "second.token").unwrap();
    server.accept_token("second.token");
    tokio::time::sleep(life).await;
    store.put("two").await.unwrap();
    assert!(server.sessions().len() > before.len());
    assert_eq!(server.keys("test"), ["child/one", "child/two"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_is_refused_is_named_and_a_good_one_helps_at_once() {
    let (server, directory) = (sts(AN_HOUR).await, TemporaryDirectory::new("refused"));
    let file = directory.path().join("token");
    server.accept_token("old.token");
    server.accept_token("current.token");
    let mut store = in_a_pod(&server, ROLE, &file);
    let missing = store.refusal("key").await;
    assert!(missing.starts_with("Denied: PUT s3://test/child/key"), "{missing}");
    assert!(missing.contains("the file with the token cannot be read"), "{missing}");
    for (token, code) in [("old.token", "ExpiredTokenException"), ("foreign.token", "InvalidIdentityToken")] {
        std::fs::write(&file, token).unwrap();
        let refused = store.refusal("key").await;
        assert!(refused.starts_with("Denied: "), "{refused}");
        assert!(refused.contains(&format!("STS answers 400 {code}")), "{refused}");
        assert!(refused.contains("AWS_WEB_IDENTITY_TOKEN_FILE holds a current token"), "{refused}");
        assert!(!refused.contains(token), "a token is a secret: {refused}");
    }
    std::fs::write(&file, "current.token").unwrap();
    store.put("key").await.unwrap();
    let mut other = in_a_pod(&server, "arn:aws:iam::000000000000:role/other", &file);
    let refused = other.refusal("other").await;
    assert!(refused.starts_with("Denied: ") && refused.contains("STS answers 403 AccessDenied"), "{refused}");
}

/// The server asks for more than a good signature: so keys by Secret may be temporary ones, with their token.
#[tokio::test(flavor = "multi_thread")]
async fn temporary_keys_are_worth_nothing_without_their_token() {
    let (server, directory) = (sts(AN_HOUR).await, TemporaryDirectory::new("stolen"));
    let file = directory.path().join("token");
    std::fs::write(&file, "token").unwrap();
    server.accept_token("token");
    in_a_pod(&server, ROLE, &file).put("key").await.unwrap();
    let session = server.sessions().remove(0);
    let put = async |token: &str| {
        let environment = [
            ("AWS_ACCESS_KEY_ID", session.access_key_id.as_str()),
            ("AWS_SECRET_ACCESS_KEY", &session.secret_access_key),
            ("AWS_SESSION_TOKEN", token),
        ];
        let environment = if token.is_empty() { &environment[..2] } else { &environment };
        StoreInChild::start(&server.endpoint(), environment).put("key-2").await
    };
    for token in ["", "another"] {
        let refused = put(token).await.unwrap_err().to_string();
        assert!(refused.contains("InvalidToken"), "{refused}");
    }
    put(&session.token).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_sts_that_does_not_answer_is_unreachable_and_nothing_at_all_is_denied() {
    let directory = TemporaryDirectory::new("absent");
    let file = directory.path().join("token");
    std::fs::write(&file, "token").unwrap();
    let server = TestS3::start(Options::default()).await.unwrap();
    let gone = sts(AN_HOUR).await;
    let variables = [
        ("AWS_ROLE_ARN", ROLE),
        ("AWS_WEB_IDENTITY_TOKEN_FILE", file.to_str().unwrap()),
        ("AWS_ENDPOINT_URL_STS", &gone.endpoint()),
    ];
    let mut store = StoreInChild::start(&server.endpoint(), &variables);
    drop(gone);
    let refused = store.refusal("key").await;
    assert!(refused.starts_with("Unreachable: ") && refused.contains("AWS_ENDPOINT_URL_STS"), "{refused}");
    let refused = StoreInChild::start(&server.endpoint(), &[]).refusal("key").await;
    assert!(refused.starts_with("Denied: ") && refused.contains("no credentials were found"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_is_trusted_by_ssl_cert_file_and_refused_by_name_without() {
    let (authority, directory) = (Authority::new().unwrap(), TemporaryDirectory::new("tls"));
    let trusted = directory.path().join("authority.pem");
    std::fs::write(&trusted, authority.pem()).unwrap();
    let other = directory.path().join("other.pem");
    std::fs::write(&other, Authority::new().unwrap().pem()).unwrap();
    let start = async |name: &str| {
        let certificate = Some(authority.certificate_for(name).unwrap());
        TestS3::start(Options { certificate, ..Options::default() }).await.unwrap()
    };
    let store = |endpoint: &str, authority: &Path| {
        let known = Options::default();
        let variables = [
            ("AWS_ACCESS_KEY_ID", known.access_key_id.as_str()),
            ("AWS_SECRET_ACCESS_KEY", known.secret_access_key.as_str()),
            ("SSL_CERT_FILE", authority.to_str().unwrap()),
        ];
        StoreInChild::start(endpoint, &variables)
    };
    let server = start("127.0.0.1").await;
    assert!(server.endpoint().starts_with("https://"));
    store(&server.endpoint(), &trusted).put("key").await.unwrap();
    assert_eq!(server.keys("test"), ["child/key"]);

    let unknown = store(&server.endpoint(), &other).refusal("key").await;
    assert!(unknown.starts_with("Unsuitable: ") && unknown.contains("UnknownIssuer"), "{unknown}");
    assert!(unknown.contains("name the file in SSL_CERT_FILE"), "{unknown}");
    let misnamed = start("elsewhere.test").await;
    let refused = store(&misnamed.endpoint(), &trusted).refusal("key").await;
    assert!(refused.starts_with("Unsuitable: ") && refused.contains("is for another name"), "{refused}");
    let plain = TestS3::start(Options::default()).await.unwrap();
    let refused = store(&plain.endpoint().replace("http:", "https:"), &trusted).refusal("key").await;
    assert!(refused.starts_with("Unsuitable: ") && refused.contains("does not speak TLS"), "{refused}");
}
