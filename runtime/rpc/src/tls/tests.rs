//! Who is believed: over loopback, with real certificates.

use super::authority::Authority;
use super::stream::{PeerStream, Refusals, incoming};
use super::{AUTHORITY_FILE, CERTIFICATE_FILE, Credentials, KEY_FILE, Role, Tls};
use futures::StreamExt as _;
use sluice_protocol::{TimeSpan, Timestamp};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

const DAY: TimeSpan = TimeSpan::from_secs(86_400);

#[allow(clippy::disallowed_methods, reason = "the tests' edge")]
fn now() -> Timestamp {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    Timestamp(u64::try_from(since.as_millis()).unwrap())
}

fn authority() -> Authority {
    Authority::new("6d4f", now(), DAY).unwrap()
}

fn tls(credentials: &Credentials) -> Tls {
    Tls::from_credentials(credentials).unwrap()
}

fn holder(authority: &Authority, role: Role) -> Tls {
    tls(&authority.issue(role, now(), DAY).unwrap())
}

/// What server and client come to; a byte each way makes sure that both are through.
async fn meet(server: &Tls, client: &Tls, expected: Role) -> (Result<Role, String>, Result<(), String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let serve = async {
        let mut stream = server.accept(listener.accept().await.unwrap().0).await.map_err(|error| error.to_string())?;
        stream.write_u8(7).await.map_err(|error| error.to_string())?;
        stream.flush().await.map_err(|error| error.to_string())?;
        match stream {
            PeerStream::Tls(_, role) => Ok(role),
            PeerStream::Plain(_) => Err("plain".to_owned()),
        }
    };
    let ask = async {
        let stream = TcpStream::connect(address).await.unwrap();
        let mut stream = client.connect(stream, expected).await.map_err(|error| error.to_string())?;
        stream.read_u8().await.map(drop).map_err(|error| error.to_string())
    };
    tokio::join!(serve, ask)
}

#[tokio::test]
async fn processes_of_one_job_know_each_other_by_role() {
    let authority = authority();
    let server = holder(&authority, Role::JobManager);
    for role in Role::ALL {
        let (seen, answer) = meet(&server, &holder(&authority, role), Role::JobManager).await;
        assert_eq!((seen, answer), (Ok(role), Ok(())), "{role:?}");
    }
}

#[tokio::test]
async fn the_authority_is_the_same_when_it_is_read_back() {
    let first = authority();
    let again = Authority::from_pem("6d4f", first.certificate(), &first.key()).unwrap();
    let (seen, answer) =
        meet(&holder(&first, Role::JobManager), &holder(&again, Role::TaskManager), Role::JobManager).await;
    assert_eq!((seen, answer), (Ok(Role::TaskManager), Ok(())));
}

#[tokio::test]
async fn another_jobs_certificate_is_refused_by_both_sides() {
    // The same uid, for the names to be the same: the key is what counts.
    let (own, other) = (authority(), authority());
    let (server, stranger) = (holder(&own, Role::JobManager), holder(&other, Role::TaskManager));
    let (_, answer) = meet(&server, &stranger, Role::JobManager).await;
    assert!(answer.clone().unwrap_err().contains("of another job"), "{answer:?}");
    // One that believes this job and holds a certificate of its own.
    let forged = other.issue(Role::Controller, now(), DAY).unwrap();
    let forged = tls(&Credentials { authority: own.certificate().to_owned(), ..forged });
    let (seen, answer) = meet(&server, &forged, Role::JobManager).await;
    assert!(seen.clone().unwrap_err().contains("of another job") && answer.is_err(), "{seen:?} {answer:?}");
}

#[tokio::test]
async fn a_task_manager_cannot_pass_for_the_job_manager() {
    let authority = authority();
    let (server, client) = (holder(&authority, Role::TaskManager), holder(&authority, Role::Controller));
    let (_, answer) = meet(&server, &client, Role::JobManager).await;
    assert!(answer.clone().unwrap_err().contains("for another role"), "{answer:?}");
}

#[tokio::test]
async fn an_expired_certificate_is_told_by_name_on_both_sides() {
    let authority = authority();
    let long_ago = Timestamp(now().0 - 3 * DAY.0);
    let old = tls(&authority.issue(Role::Controller, long_ago, DAY).unwrap());
    let (seen, answer) = meet(&holder(&authority, Role::JobManager), &old, Role::JobManager).await;
    assert!(seen.clone().unwrap_err().contains("CertificateExpired"), "{seen:?}");
    assert!(answer.clone().unwrap_err().contains("CertificateExpired"), "{answer:?}");
    let old = tls(&authority.issue(Role::JobManager, long_ago, DAY).unwrap());
    let (_, answer) = meet(&old, &holder(&authority, Role::Controller), Role::JobManager).await;
    assert!(answer.clone().unwrap_err().contains("CertificateExpired"), "{answer:?}");
}

#[tokio::test]
async fn a_clock_that_is_late_believes_a_new_certificate() {
    let authority = Authority::new("6d4f", Timestamp(now().0 + 1_800_000), DAY).unwrap();
    let early = |role| tls(&authority.issue(role, Timestamp(now().0 + 1_800_000), DAY).unwrap());
    let (seen, _) = meet(&early(Role::JobManager), &early(Role::TaskManager), Role::JobManager).await;
    assert_eq!(seen, Ok(Role::TaskManager));
}

#[tokio::test]
async fn who_speaks_no_tls_holds_up_nobody() {
    let authority = authority();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let tls = Some(Arc::new(holder(&authority, Role::JobManager)));
    let mut taken = Box::pin(incoming(listener, tls, Arc::new(Refusals::default())));
    // One says nothing, one says something else.
    let _silent = TcpStream::connect(address).await.unwrap();
    let mut plain = TcpStream::connect(address).await.unwrap();
    plain.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
    let client = holder(&authority, Role::Client);
    let stream = TcpStream::connect(address).await.unwrap();
    let _client = client.connect(stream, Role::JobManager).await.unwrap();
    let first = tokio::time::timeout(Duration::from_secs(5), taken.next()).await.unwrap().unwrap().unwrap();
    assert!(matches!(first, PeerStream::Tls(_, Role::Client)), "{first:?}");
    let mut rest = Vec::new();
    let _ = plain.read_to_end(&mut rest).await;
    assert!(!rest.starts_with(b"HTTP"), "the plain connection is closed with an alert at most");
}

fn write(directory: &Path, credentials: &Credentials) {
    for (name, text) in [
        (AUTHORITY_FILE, &credentials.authority),
        (CERTIFICATE_FILE, &credentials.certificate),
        (KEY_FILE, &credentials.key),
    ] {
        std::fs::write(directory.join(name), text).unwrap();
    }
}

#[tokio::test]
async fn files_that_change_are_used_from_the_next_handshake_on() {
    let directory = tempfile::tempdir().unwrap();
    let (old, new) = (authority(), authority());
    write(directory.path(), &old.issue(Role::JobManager, now(), DAY).unwrap());
    let server = Tls::from_directory(directory.path()).unwrap();
    let client = holder(&new, Role::Controller);
    assert!(meet(&server, &client, Role::JobManager).await.1.is_err());
    tokio::time::sleep(Duration::from_millis(20)).await;
    // Half of a set: the last one stays in use.
    std::fs::write(directory.path().join(KEY_FILE), new.key()).unwrap();
    assert_eq!(meet(&server, &holder(&old, Role::Controller), Role::JobManager).await.0, Ok(Role::Controller));
    tokio::time::sleep(Duration::from_millis(20)).await;
    // A bundle of both authorities, while certificates of both are about.
    let issued = new.issue(Role::JobManager, now(), DAY).unwrap();
    let authority = format!("{}{}", new.certificate(), old.certificate());
    write(directory.path(), &Credentials { authority: authority.clone(), ..issued });
    assert_eq!(meet(&server, &client, Role::JobManager).await, (Ok(Role::Controller), Ok(())));
    let old_client = old.issue(Role::TaskManager, now(), DAY).unwrap();
    let old_client = tls(&Credentials { authority, ..old_client });
    assert_eq!(meet(&server, &old_client, Role::JobManager).await, (Ok(Role::TaskManager), Ok(())));
}

#[test]
fn what_is_wrong_with_files_is_said_without_the_key() {
    let directory = tempfile::tempdir().unwrap();
    let missing = Tls::from_directory(directory.path()).unwrap_err().to_string();
    assert!(missing.contains(AUTHORITY_FILE) && missing.contains("--tls-directory"), "{missing}");
    let issued = authority().issue(Role::JobManager, now(), DAY).unwrap();
    write(directory.path(), &Credentials { key: "secret".to_owned(), ..issued });
    let wrong = Tls::from_directory(directory.path()).unwrap_err().to_string();
    assert!(wrong.contains("private key") && !wrong.contains("secret"), "{wrong}");
}

/// How many of these the other side has closed, as soon as there are as many as expected.
async fn closed(streams: &[TcpStream], expected: usize) -> usize {
    let has_ended = |stream: &&TcpStream| match stream.try_read(&mut [0]) {
        Ok(bytes) => bytes == 0,
        Err(error) => error.kind() != std::io::ErrorKind::WouldBlock,
    };
    for _ in 0..250 {
        if streams.iter().filter(has_ended).count() >= expected {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    streams.iter().filter(has_ended).count()
}

/// One address is refused beyond its share, and another is served meanwhile.
#[tokio::test]
async fn a_stranger_who_says_nothing_keeps_nobody_else_out() {
    let authority = authority();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = Some(Arc::new(holder(&authority, Role::JobManager)));
    let mut taken = Box::pin(incoming(listener, server, Arc::new(Refusals::default())));
    let mut silent = Vec::new();
    for _ in 0..300 {
        silent.push(TcpStream::connect(address).await.unwrap());
    }
    assert_eq!(closed(&silent, 300 - 64).await, 300 - 64);
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.2:0".parse().unwrap()).unwrap();
    let stream = socket.connect(address).await.unwrap();
    let client = holder(&authority, Role::Controller);
    let (served, answer) = tokio::join!(taken.next(), client.connect(stream, Role::JobManager));
    assert!(answer.is_ok() && matches!(served, Some(Ok(PeerStream::Tls(_, Role::Controller)))));
    // Whoever goes leaves its place.
    drop(silent);
    let client_again = async {
        loop {
            let stream = TcpStream::connect(address).await.unwrap();
            if let Ok(stream) = client.connect(stream, Role::JobManager).await {
                return stream;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let again = async { tokio::join!(taken.next(), client_again) };
    tokio::time::timeout(Duration::from_secs(8), again).await.expect("its places are free again");
}
