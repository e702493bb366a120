//! `examples/socket-wordcount.yaml` as a newcomer runs it, against a TCP server, and what its plan says.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::{Directory, Ran};
use std::collections::BTreeMap;
use std::io::Write as _;
use std::net::TcpListener;
use std::process::Stdio;

const EXAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/socket-wordcount.yaml");
const TEXT: &str = "to be or not to be\nthat is the question\n\nto  die to sleep\n";

/// The rows that stand at the end of a printed changelog.
fn materialised(printed: &str) -> BTreeMap<String, i64> {
    let mut counts = BTreeMap::new();
    for line in printed.lines() {
        let (kind, row) = line.split_once('[').unwrap();
        let (word, count) = row.trim_end_matches(']').split_once(", ").unwrap();
        match kind {
            "+I" | "+U" => drop(counts.insert(word.to_owned(), count.parse().unwrap())),
            "-U" | "-D" => assert_eq!(counts.remove(word), Some(count.parse().unwrap()), "{line}"),
            other => panic!("a row of kind {other}"),
        }
    }
    counts
}

#[test]
fn the_example_counts_the_words_of_a_server_and_ends_with_it() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = server.local_addr().unwrap().port().to_string();
    let directory = Directory::new("socket");
    let manifest = std::fs::read_to_string(EXAMPLE).unwrap().replace("'9999'", &format!("'{port}'"));
    std::fs::write(directory.path().join("job.yaml"), manifest).unwrap();

    let plan = directory.run("plan job.yaml");
    assert!(plan.out.contains("cannot be read again"), "{plan:?}");

    let mut command = directory.command("run job.yaml --rest-port 0");
    let running = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    server.accept().unwrap().0.write_all(TEXT.as_bytes()).unwrap();
    let ran = Ran::from(running.wait_with_output().unwrap());
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    let mut expected = BTreeMap::new();
    for word in TEXT.split_whitespace() {
        *expected.entry(word.to_owned()).or_insert(0) += 1;
    }
    assert_eq!(materialised(&ran.out), expected);
}
