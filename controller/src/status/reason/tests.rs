//! The table of the documentation, the enum, and what the sources say, are the same.

use super::*;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

const DOCUMENTATION: &str = include_str!("../../../../docs/operator.md");

#[test]
fn every_reason_is_documented_with_what_to_do_and_no_other_is() {
    let (_, table) = DOCUMENTATION.split_once("## Reasons").expect("has the section");
    let rows = table.lines().filter_map(|line| {
        let cells: Vec<_> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        let [reason, meaning, what_to_do] = cells[..] else { return None };
        let name = reason.strip_prefix('`')?.strip_suffix('`')?;
        assert!(!meaning.is_empty() && !what_to_do.is_empty(), "{name}");
        Some(name)
    });
    let documented: Vec<_> = rows.collect();
    let known: Vec<_> = Reason::ALL.iter().map(|reason| reason.as_str()).collect();
    assert_eq!(documented, known);
}

#[test]
fn a_word_that_is_not_listed_begins_the_message() {
    assert_eq!(listed("StateLost", "gone"), (Reason::StateLost, "gone".to_owned()));
    assert_eq!(listed("OfALaterVersion", "what"), (Reason::Unlisted, "OfALaterVersion: what".to_owned()));
    assert_eq!(listed("Unlisted", "OfALaterVersion: what"), (Reason::Unlisted, "OfALaterVersion: what".to_owned()));
}

/// What stands right before a reason in the sources of the controller and of the job's processes.
const MARKERS: [&str; 10] = [
    "rejection(",
    "refuse_snapshot(",
    "self.exit(ExitKind::StateMoved,",
    "self.end(StreamJobState::Failed,",
    "Failure::user(",
    "Failure::external(",
    "Failure::restart(",
    "reason: ",
    "View::progressing(StreamJobState::Stopping,",
    "self.next_generation(",
];

/// Reasons that reach no condition: of commands, of local runs, of Savepoint objects and of events.
const ELSEWHERE: [&str; 5] =
    ["NothingToResume", "NoControlEndpoint", "RequestFailed", "WrongCount", "InvalidRequestId"];

fn sources(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).expect("is a directory") {
        let path = entry.expect("is readable").path();
        let name = path.file_name().expect("has a name").to_string_lossy().into_owned();
        match (path.is_dir(), name.as_str()) {
            (_, "tests" | "tests.rs" | "savepoint" | "fake_api.rs") => {}
            (true, _) => sources(&path, found),
            (false, _) if name.ends_with(".rs") => found.push(path),
            (false, _) => {}
        }
    }
}

/// The words behind the markers.
fn reasons(text: &str) -> BTreeSet<String> {
    let text = text.split("#[cfg(test)]").next().unwrap_or_default();
    let behind = MARKERS.iter().flat_map(|marker| text.split(marker).skip(1));
    let words = behind.filter_map(|rest| rest.trim_start().strip_prefix('"')?.split('"').next());
    words
        .filter(|word| word.chars().all(|c| c.is_ascii_alphanumeric()) && !word.is_empty())
        .map(str::to_owned)
        .collect()
}

#[test]
fn no_reason_of_the_sources_is_left_out() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut files = Vec::new();
    for part in ["controller/src", "runtime/protocol/src", "runtime/engine/src", "runtime/node/src", "runtime/sql/src"]
    {
        sources(&root.join(part), &mut files);
    }
    let mut found = BTreeSet::new();
    for file in files {
        found.extend(reasons(&std::fs::read_to_string(&file).expect("is text")));
    }
    assert!(found.len() > 50, "the markers find what they did: {found:?}");
    let unlisted: Vec<_> =
        found.iter().filter(|word| Reason::parse(word).is_none() && !ELSEWHERE.contains(&word.as_str())).collect();
    assert!(unlisted.is_empty(), "reasons that are neither listed nor documented: {unlisted:?}");
}
