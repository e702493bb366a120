//! What a person gets to read when a manifest is wrong, and what is taken.

use super::*;
use sluice_protocol::TimeSpan;

const PAGEVIEWS: &str = r#"apiVersion: sluice.dev/v1alpha1
kind: StreamJob
metadata: {name: pageviews}
spec:
  program:
    sql: |
      INSERT INTO pv SELECT app_id, COUNT(*) AS pv FROM page_views GROUP BY app_id;
  parallelism: 2
  taskManager: {slots: 1}
  checkpointing: {interval: 2s, storage: "s3://checkpoints/demo", retained: 3, tolerableFailures: 100, storageOptions: {endpoint: "http://127.0.0.1:9000", pathStyle: true, credentialsSecret: s3}}
  restartStrategy: {fixedDelay: {attempts: 10, delay: 1s}}
"#;

fn refused(from: &str, to: &str) -> ManifestError {
    assert!(PAGEVIEWS.contains(from), "the manifest has no '{from}'");
    parse_manifest(&PAGEVIEWS.replacen(from, to, 1)).expect_err("must be refused")
}

#[test]
fn a_whole_manifest_is_read() {
    let job = parse_manifest(PAGEVIEWS).expect("is right");
    assert_eq!(job.metadata.name.as_deref(), Some("pageviews"));
    assert_eq!(job.spec.parallelism, 2);
    assert_eq!(job.spec.max_parallelism, 128);
    let checkpointing = job.spec.checkpointing.as_ref().expect("is there");
    assert_eq!(checkpointing.interval, TimeSpan::from_secs(2));
    assert_eq!(checkpointing.timeout, TimeSpan::from_secs(600));
    assert!(crate::validate(&job.spec).is_empty());
    let options = job.spec.job_options();
    assert_eq!((options.parallelism, options.max_parallelism, options.slots), (2, 128, 1));
    assert_eq!(options.checkpointing, job.spec.checkpointing);
}

#[test]
fn what_is_written_is_read_again() {
    let job = parse_manifest(PAGEVIEWS).expect("is right");
    let again = parse_manifest(&to_yaml(&job).expect("is serialisable")).expect("is right");
    assert_eq!(again, job);
}

#[test]
fn tolerable_failures_take_a_number_or_a_word() {
    use sluice_protocol::options::{TolerableFailures, Unlimited};
    let read = |text: &str| {
        let job = parse_manifest(&PAGEVIEWS.replace("tolerableFailures: 100", text)).expect("is right");
        job.spec.checkpointing.expect("is there").tolerable_failures
    };
    assert_eq!(read("tolerableFailures: 7"), TolerableFailures::Count(7));
    assert_eq!(read("tolerableFailures: Unlimited"), TolerableFailures::Unlimited(Unlimited::Unlimited));
    assert_eq!(read("timeout: 10m"), TolerableFailures::Count(0));
}

#[test]
fn a_typo_is_refused_with_path_line_and_the_right_name() {
    let error = refused("parallelism: 2", "paralelism: 2");
    assert_eq!(error.to_string(), "line 8: spec.paralelism is not a field of a StreamJob; did you mean parallelism?");
    let error = refused("retained: 3", "retain: 3");
    assert_eq!(
        error.to_string(),
        "line 10: spec.checkpointing.retain is not a field of a StreamJob; did you mean retained?"
    );
    let error = refused("pathStyle", "pathstyle");
    assert_eq!(
        error.to_string(),
        "line 10: spec.checkpointing.storageOptions.pathstyle is not a field of a StreamJob; did you mean pathStyle?"
    );
    let error = refused("metadata:", "color: blue\nmetadata:");
    assert!(error.to_string().starts_with("line 3: color is not a field of a StreamJob; expected one of"), "{error}");
}

#[test]
fn a_wrong_value_is_refused_with_path_and_line() {
    let error = refused("parallelism: 2", "parallelism: two");
    let ManifestError::Invalid { path, line, message } = &error else { panic!("{error}") };
    assert_eq!((path.as_str(), *line), ("spec.parallelism", 8));
    assert!(message.contains("string \"two\""), "{message}");

    let error = refused("interval: 2s", "interval: 2 lightyears");
    let ManifestError::Invalid { path, line, message } = &error else { panic!("{error}") };
    assert_eq!((path.as_str(), *line), ("spec.checkpointing.interval", 10));
    assert!(message.starts_with("'2 lightyears' is not a span of time"), "{message}");
    assert!(!message.contains(" at line "), "{message}");
}

#[test]
fn a_missing_field_is_named() {
    let error = refused("interval: 2s, ", "");
    let ManifestError::Invalid { path, line, message } = &error else { panic!("{error}") };
    assert_eq!((path.as_str(), *line), ("spec.checkpointing", 10));
    assert!(message.contains("missing field `interval`"), "{message}");
}

#[test]
fn kubernetes_own_types_are_read_strictly_too() {
    let error = refused("{slots: 1}", "{slots: 1, resources: {limit: {cpu: 1}}}");
    let ManifestError::Invalid { path, line, .. } = &error else { panic!("{error}") };
    assert_eq!((path.as_str(), *line), ("spec.taskManager.resources.limit", 9));
}

#[test]
fn other_kinds_and_other_texts_are_refused() {
    assert_eq!(
        refused("kind: StreamJob", "kind: Deployment").to_string(),
        "the manifest holds kind Deployment of sluice.dev/v1alpha1, expected kind StreamJob of sluice.dev/v1alpha1"
    );
    assert!(matches!(parse_manifest("just words"), Err(ManifestError::WrongKind { .. })));
    assert!(matches!(parse_manifest("a: ["), Err(ManifestError::Syntax { .. })));
    let two = format!("{PAGEVIEWS}---\n{PAGEVIEWS}");
    assert!(matches!(parse_manifest(&two), Err(ManifestError::Syntax { .. })));
    let error = refused("{name: pageviews}", "{name: Page_Views}");
    assert!(matches!(&error, ManifestError::Invalid { path, line: 3, .. } if path == "metadata.name"), "{error}");
}
