//! Requests to an API server that refuses, is silent, or does not carry a connection on, over HTTP on loopback.

use super::{Cluster, ClusterError};
use crate::control::endpoint::Reached;
use crate::error::CommandError;
use serde_json::{Value, json};
use sluice_crds::names::RPC_PORT;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;

/// A cluster whose API server gives these answers by path; it is silent about others.
async fn cluster(answers: Vec<(&'static str, u16, Value)>) -> Cluster {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            tokio::spawn(answer(stream, answers.clone()));
        }
    });
    Cluster::at(kube::Config::new(url.parse().unwrap()), Some("streams")).unwrap()
}

async fn answer(stream: TcpStream, answers: Vec<(&'static str, u16, Value)>) {
    let mut stream = BufReader::new(stream);
    let mut request = String::new();
    while !request.ends_with("\r\n\r\n") {
        stream.read_line(&mut request).await.unwrap();
    }
    let path = request.split_whitespace().nth(1).unwrap();
    let path = path.split('?').next().unwrap();
    let Some((_, code, body)) = answers.into_iter().find(|(known, ..)| path.ends_with(known)) else {
        return std::future::pending().await;
    };
    if code == 101 {
        return refuse_port(&request, stream, body.as_str().unwrap()).await;
    }
    let body = body.to_string();
    let head = format!("HTTP/1.1 {code} Said\r\ncontent-type: application/json\r\nconnection: close\r\n");
    let answer = format!("{head}content-length: {}\r\n\r\n{body}", body.len());
    stream.write_all(answer.as_bytes()).await.unwrap();
}

/// Opens the web socket and says on the port's channel of errors what is wrong, as a kubelet does.
async fn refuse_port(request: &str, mut stream: BufReader<TcpStream>, error: &str) {
    let key = request.lines().find_map(|line| line.strip_prefix("sec-websocket-key: ")).unwrap();
    let accept = derive_accept_key(key.as_bytes());
    let head = "HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n";
    let head = format!("{head}sec-websocket-protocol: v4.channel.k8s.io\r\nsec-websocket-accept: {accept}\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    let [low, high] = RPC_PORT.to_le_bytes();
    for (channel, bytes) in [(0, &[low, high][..]), (1, &[low, high][..]), (1, error.as_bytes())] {
        let frame = [&[0x82, u8::try_from(bytes.len() + 1).unwrap(), channel], bytes].concat();
        stream.write_all(&frame).await.unwrap();
    }
    std::future::pending().await
}

fn refusal(code: u16, reason: &str, message: &str) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": code, "reason": reason,
           "message": message})
}

fn job() -> Value {
    json!({"apiVersion": "sluice.dev/v1alpha1", "kind": "StreamJob", "metadata": {"name": "pv", "namespace": "streams"},
           "spec": {"program": {"sql": ""}}, "status": {"generation": 3, "state": "Running"}})
}

fn pod(labels: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pv-3-jm", "namespace": "streams", "labels": labels},
           "status": {"phase": "Running"}})
}

#[tokio::test]
async fn a_connection_that_is_not_carried_into_the_pod_says_why() {
    let forbidden = refusal(403, "Forbidden", "pods \"pv-3-jm\" is forbidden");
    let answers =
        vec![("/streamjobs/pv", 200, job()), ("/pods/pv-3-jm", 200, pod(json!({}))), ("/portforward", 403, forbidden)];
    let (way, tls) = cluster(answers).await.reach("pv").await.unwrap();
    let Err(error) = Reached::through(way, tls).connect().await else { panic!("it connects") };
    assert!(matches!(&error, CommandError::Cluster(ClusterError::Refused { code: 403, .. })), "{error}");
    let said = error.to_string();
    for words in [
        "forwarding a port to pod streams/pv-3-jm failed: ",
        "403: pods \"pv-3-jm\" is forbidden; it needs create on pods/portforward: ",
        "`kubectl auth can-i create pods --subresource=portforward -n streams`",
    ] {
        assert!(said.contains(words), "no {words:?} in {said}");
    }
    assert_eq!(error.exit_code(), 2, "a person must act");
}

#[tokio::test]
async fn a_port_that_nobody_listens_on_says_so() {
    let refused = json!("dial tcp 127.0.0.1:6123: connect: connection refused");
    let answers =
        vec![("/streamjobs/pv", 200, job()), ("/pods/pv-3-jm", 200, pod(json!({}))), ("/portforward", 101, refused)];
    let (way, tls) = cluster(answers).await.reach("pv").await.unwrap();
    let Err(error) = Reached::through(way, tls).connect().await else { panic!("it connects") };
    let said = error.to_string();
    assert!(said.starts_with("forwarding port 6123 to pod streams/pv-3-jm failed: dial tcp"), "{said}");
    assert_eq!(error.exit_code(), 1, "it may pass");
}

#[tokio::test]
async fn what_the_api_server_says_is_told_with_what_would_help() {
    for (code, reason, words, exit_code) in [
        (401, "Unauthorized", "answered 401: no; the kubeconfig's credentials are not accepted", 2),
        (403, "Forbidden", "answered 403: no; it needs get on streamjobs.sluice.dev: `kubectl auth can-i get", 2),
        (503, "ServiceUnavailable", "answered 503: no; it may pass: try again", 1),
    ] {
        let cluster = cluster(vec![("/streamjobs/pv", code, refusal(code, reason, "no"))]).await;
        let error = cluster.job("pv").await.unwrap_err();
        let said = error.to_string();
        assert!(said.starts_with("reading StreamJob 'pv' failed: the API server http://127.0.0.1:"), "{said}");
        assert!(said.contains(words) && !said.contains("Status {"), "{said}");
        assert_eq!(CommandError::from(error).exit_code(), exit_code, "{said}");
    }
}

#[tokio::test]
async fn a_secret_that_is_missing_is_named() {
    let answers = vec![
        ("/streamjobs/pv", 200, job()),
        ("/pods/pv-3-jm", 200, pod(json!({"sluice.dev/tls": "1"}))),
        ("/secrets/pv-tls", 404, refusal(404, "NotFound", "secrets \"pv-tls\" not found")),
    ];
    let Err(error) = cluster(answers).await.reach("pv").await else { panic!("it is reached") };
    assert!(matches!(&error, ClusterError::Secret { key: "ca.crt", .. }), "{error}");
}

#[tokio::test]
async fn nobody_waits_for_ever() {
    let silent = Cluster { patience: Duration::from_millis(50), ..cluster(vec![]).await };
    let waiting = tokio::time::timeout(Duration::from_secs(30), silent.job("pv"));
    let error = waiting.await.expect("it gives up by itself").unwrap_err();
    assert!(error.is_unreachable() && error.to_string().ends_with("cannot be asked: no answer within 50ms"), "{error}");
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let nobody = Cluster::at(kube::Config::new(format!("http://{free}/").parse().unwrap()), None).unwrap();
    let said = nobody.job("pv").await.unwrap_err().to_string();
    assert!(said.contains("refused"), "the cause is told: {said}");
}
