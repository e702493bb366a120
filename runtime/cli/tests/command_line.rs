//! The binary as a person meets it: what it prints, how it ends, and that killed jobs go on where they were.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic")]

mod common;

use common::{Directory, wait_for_line};
use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const JOB: &str = "apiVersion: sluice.dev/v1alpha1
kind: StreamJob
metadata: {name: numbers}
spec:
  program:
    sql: |
      CREATE TABLE numbers (k BIGINT) WITH ('connector'='datagen', 'number-of-rows'='ROWS', 'rows-per-second'='RATE',
        'fields.k.min'='1', 'fields.k.max'='5');
      CREATE TABLE counts (k BIGINT, c BIGINT, PRIMARY KEY (k) NOT ENFORCED) WITH ('connector'='blackhole');
      INSERT INTO counts SELECT k, COUNT(*) AS c FROM numbers GROUP BY k;
  parallelism: 2
  checkpointing: {interval: 200ms}
";

fn write_job(directory: &Directory, rows: u64, rate: u64) {
    let job = JOB.replace("ROWS", &rows.to_string()).replace("RATE", &rate.to_string());
    std::fs::write(directory.path().join("job.yaml"), job).unwrap();
}

fn signal(child: &Child, name: &str) {
    let status = Command::new("kill").args([format!("-{name}"), child.id().to_string()]).status().unwrap();
    assert!(status.success());
}

/// The counts of all keys in the newest checkpoint.
fn counted(directory: &Directory) -> u64 {
    let inspected = directory.run("checkpoint inspect ./sluice-checkpoints --rows 100");
    assert_eq!(inspected.code, Some(0), "{inspected:?}");
    let rows = inspected.out.lines().skip_while(|line| !line.contains("first ")).skip(2);
    rows.filter_map(|line| line.split_whitespace().nth(2)).map(|count| count.parse::<u64>().unwrap()).sum()
}

#[test]
fn a_job_runs_to_its_end_and_its_checkpoint_tells_the_counts() {
    let directory = Directory::new("end");
    write_job(&directory, 20_000, 20_000);
    let ran = directory.run("run job.yaml --rest-port 0");
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.err.contains("finished"), "{ran:?}");
    let listed = directory.run("checkpoint list --manifest job.yaml");
    assert!(listed.out.contains("default/numbers-") && listed.out.contains("finished"), "{listed:?}");
    assert_eq!(counted(&directory), 20_000);
}

#[test]
fn a_killed_job_resumes_without_losing_or_doubling_a_row() {
    let directory = Directory::new("killed");
    write_job(&directory, 40_000, 10_000);
    let mut child = directory.command("run job.yaml --rest-port 0").stderr(Stdio::null()).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(2_000));
    child.kill().unwrap();
    child.wait().unwrap();
    let before = counted(&directory);
    assert!(before > 0 && before < 40_000, "killed in the middle, at {before}");
    let ran = directory.run("run job.yaml --rest-port 0 --resume");
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!(counted(&directory), 40_000);
}

#[test]
fn an_interrupt_stops_with_a_last_checkpoint() {
    let directory = Directory::new("interrupt");
    write_job(&directory, 1_000_000, 10_000);
    let mut child = directory.command("run job.yaml --rest-port 0").stderr(Stdio::piped()).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(1_500));
    signal(&child, "INT");
    let status = child.wait().unwrap();
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(status.code(), Some(0), "{said}");
    assert!(said.contains("resume with: sluice run job.yaml --resume"), "{said}");
    let listed = directory.run("checkpoint list --manifest job.yaml");
    assert!(listed.out.contains("stopped"), "{listed:?}");
}

#[test]
fn the_demo_survives_a_kill() {
    let directory = Directory::new("demo");
    let mut child = directory.command("demo").stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    wait_for_line(&mut child, "checkpoint 3 ");
    child.kill().unwrap();
    child.wait().unwrap();
    let ran = directory.run("demo --resume");
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.out.contains("400,000 counted: none lost, none doubled"), "{ran:?}");
}

#[test]
fn a_snapshot_is_restored_by_path() {
    let directory = Directory::new("snapshot");
    write_job(&directory, 10_000, 100_000);
    assert_eq!(directory.run("run job.yaml --rest-port 0").code, Some(0));
    let listed = directory.run("checkpoint list ./sluice-checkpoints").out;
    let path = listed.split_whitespace().find(|word| word.contains("/chk-")).unwrap();
    let path = path.strip_prefix("file://").unwrap();
    let line = format!("run job.yaml --rest-port 0 --checkpoint-dir other -s {path}/_metadata");
    let restored = directory.run(&line);
    assert_eq!(restored.code, Some(0), "{restored:?}");
    // All rows were read before the snapshot, so the restored job adds none and keeps all.
    let inspected = directory.run("checkpoint inspect other --rows 100").out;
    assert!(inspected.contains("default/numbers-"), "{inspected}");
    let missing = directory.run("run job.yaml --rest-port 0 -s ./nowhere/chk-7");
    assert_eq!(missing.code, Some(2), "{missing:?}");
    assert!(missing.err.contains("nowhere/chk-7"), "{missing:?}");
}

#[test]
fn what_is_wrong_is_said_with_its_place() {
    let directory = Directory::new("wrong");
    write_job(&directory, 10, 10);
    for (line, code, words) in [
        ("run missing.yaml", 2, "missing.yaml"),
        ("run job.yaml --resume --rest-port 0", 2, "--resume: there is nothing to resume"),
        ("checkpoint inspect ./nothing", 2, "there is no checkpoint below file:///"),
        ("checkpoint list gs://bucket", 2, "'gs://bucket' is no address of storage"),
        ("checkpoint list", 2, "name a place or a --manifest"),
        ("run job.yaml -n", 2, "--from-snapshot"),
        ("run job.yaml --paralelism 2", 2, "--parallelism"),
        ("jobmanager --namespace a --name b --uid c --generation one", 2, "--generation"),
    ] {
        let ran = directory.run(line);
        assert_eq!(ran.code, Some(code), "{line}: {ran:?}");
        assert!(ran.err.contains(words), "{line}: {ran:?}");
        assert!(!ran.err.contains("panicked"), "{line}: {ran:?}");
    }
    let listed = directory.run("checkpoint list .");
    assert_eq!((listed.code, listed.out.starts_with("no checkpoints below file:///")), (Some(0), true), "{listed:?}");
}

#[test]
fn manifests_are_validated_and_planned_without_running() {
    let directory = Directory::new("validate");
    write_job(&directory, 10, 10);
    let valid = directory.run("validate job.yaml");
    assert_eq!((valid.code, valid.out.contains("job.yaml: ok")), (Some(0), true), "{valid:?}");
    let plan = directory.run("plan job.yaml");
    assert!(plan.out.contains("uid") && plan.out.contains("hash[k]"), "{plan:?}");
    let typo = JOB.replace("parallelism", "paralelism");
    std::fs::write(directory.path().join("typo.yaml"), typo).unwrap();
    let both = directory.run("validate typo.yaml job.yaml");
    assert_eq!(both.code, Some(2), "{both:?}");
    assert!(both.err.contains("paralelism") && both.err.contains("did you mean parallelism?"), "{both:?}");
    assert!(both.out.contains("job.yaml: ok"), "the second is checked too: {both:?}");
}

/// What each sink promises (S7), without asking anybody.
#[test]
fn the_plan_says_of_each_sink_what_it_guarantees() {
    let directory = Directory::new("guarantees");
    let kafka = "'connector'='kafka', 'topic'='t', 'properties.bootstrap.servers'='localhost:9092', 'format'='json'";
    let upsert = "'connector'='upsert-kafka', 'topic'='t', 'properties.bootstrap.servers'='localhost:9092', \
                  'key.format'='json', 'value.format'='json'";
    let with = |options: &str, guarantee: &str| format!("{options}, 'sink.delivery-guarantee'='{guarantee}'");
    for (options, guarantee) in [
        (kafka.to_owned(), "at-least-once"),
        (with(kafka, "at-least-once"), "at-least-once"),
        (with(kafka, "exactly-once"), "exactly-once"),
        (with(kafka, "none"), "none"),
        (upsert.to_owned(), "at-least-once"),
        (with(upsert, "exactly-once"), "exactly-once"),
        (with(upsert, "none"), "none"),
        ("'connector'='filesystem', 'path'='file:///tmp/out', 'format'='json'".to_owned(), "exactly-once"),
        ("'connector'='print'".to_owned(), "at-least-once"),
        ("'connector'='blackhole'".to_owned(), "at-least-once"),
    ] {
        let key = if options.contains("upsert-kafka") { ", PRIMARY KEY (k) NOT ENFORCED" } else { "" };
        let job = format!(
            "apiVersion: sluice.dev/v1alpha1\nkind: StreamJob\nmetadata: {{name: out}}\nspec:\n  program:\n    sql: |\n      \
             CREATE TABLE numbers (k BIGINT NOT NULL) WITH ('connector'='datagen');\n      CREATE TABLE out (k BIGINT NOT \
             NULL{key}) WITH ({options});\n      INSERT INTO out SELECT k FROM numbers;\n  checkpointing: {{interval: 1s, \
             storage: \"file:///tmp/checkpoints\"}}\n"
        );
        std::fs::write(directory.path().join("job.yaml"), job).unwrap();
        let plan = directory.run("plan job.yaml");
        let promised = format!("Sink(table=[out], fields=[k], delivery=[{guarantee}])");
        assert!(plan.code == Some(0) && plan.out.contains(&promised), "{options}: {plan:?}");
    }
}

#[test]
fn a_process_in_a_pod_ends_when_it_is_told() {
    let directory = Directory::new("told");
    write_job(&directory, 10, 10);
    let who = "--manifest job.yaml --namespace a --name b --uid c --generation 1 --rest-port 0";
    let job_manager = format!("jobmanager {who} --rpc-bind 127.0.0.1:0");
    let task_manager = format!("taskmanager {who} --id tm --job-manager 127.0.0.1:1 --data-bind 127.0.0.1:0");
    for line in [job_manager, task_manager] {
        let mut child = directory.command(&line).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(1_000));
        signal(&child, "TERM");
        assert_eq!(child.wait().unwrap().code(), Some(143), "{line}");
    }
}

/// Nothing listens where the checkpoint storage should be, from the very beginning.
#[test]
fn a_run_whose_storage_stays_away_ends_and_what_is_not_obeyed_is_said() {
    let directory = Directory::new("away");
    let storage = "{interval: 200ms, storage: 's3://bucket/path', storageOptions: {endpoint: 'http://127.0.0.1:1', pathStyle: true}}";
    let job = JOB.replace("{interval: 200ms}", storage).replace("ROWS", "10").replace("RATE", "10");
    std::fs::write(directory.path().join("job.yaml"), format!("{job}  savepoints: {{interval: 1h}}\n")).unwrap();
    let mut command = directory.command("run job.yaml --rest-port 0 --start-timeout 2");
    command.env("AWS_ACCESS_KEY_ID", "a").env("AWS_SECRET_ACCESS_KEY", "b").stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let patience = std::time::Instant::now() + Duration::from_secs(40);
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if std::time::Instant::now() > patience {
            child.kill().unwrap();
            panic!("it waits for ever");
        }
        std::thread::sleep(Duration::from_millis(100));
    };
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(status.code(), Some(1), "{said}");
    let last = said.lines().last().unwrap();
    assert!(last.starts_with("error: StoreUnreachable: ") && last.contains("within 2 s"), "{said}");
    assert!(said.contains("note: spec.savepoints is obeyed on a cluster alone"), "{said}");
}

#[test]
fn what_a_running_job_logs_is_changed() {
    let directory = Directory::new("log-level");
    write_job(&directory, 1_000_000, 1_000);
    let log = std::fs::File::create(directory.path().join("log")).unwrap();
    let mut child = directory.command("--log-format json run job.yaml --rest-port 0").stderr(log).spawn().unwrap();
    let log = || std::fs::read_to_string(directory.path().join("log")).unwrap();
    let until = |words: &str| {
        let found = (0..400).any(|_| {
            std::thread::sleep(Duration::from_millis(25));
            log().contains(words)
        });
        assert!(found, "no {words:?} in\n{}", log());
    };
    until("control endpoint: ");
    let said = log();
    let endpoint = said.split("control endpoint: ").nth(1).unwrap().split_whitespace().next().unwrap();
    let refused = directory.run(&format!("log-level sluice_node=loud --jobmanager {endpoint}"));
    assert_eq!(refused.code, Some(2), "{refused:?}");
    assert!(refused.err.contains("'sluice_node=loud' is no log filter"), "{refused:?}");
    assert!(!log().contains("\"DEBUG\""), "{}", log());
    let changed = directory.run(&format!("log-level sluice_node=debug --jobmanager {endpoint}"));
    assert_eq!(changed.code, Some(0), "{changed:?}");
    until("\"level\":\"DEBUG\"");
    let listed = directory.run(&format!("list --jobmanager {endpoint}"));
    assert_eq!(listed.code, Some(0), "{listed:?}");
    let line = listed.out.lines().nth(1).unwrap_or_default();
    assert!(listed.out.starts_with("NAMESPACE") && line.contains("numbers") && line.contains("Running"), "{listed:?}");
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn validate_tells_all_that_is_wrong_with_line_and_caret() {
    let directory = Directory::new("validate");
    let job = JOB.replace("ROWS", "10").replace("RATE", "10").replace("parallelism: 2", "parallelism: 0");
    let job = job.replace("SELECT k, COUNT(*)", "SELECT kk, COUNT(*)");
    std::fs::write(directory.path().join("job.yaml"), job).unwrap();
    let ran = directory.run("validate job.yaml");
    assert_eq!(ran.code, Some(2), "{ran:?}");
    for words in ["spec.parallelism", "11 |   parallelism: 0\n   |   ^", "4 | INSERT INTO counts SELECT kk, COUNT(*)"] {
        assert!(ran.err.contains(words), "no {words:?}: {ran:?}");
    }
    std::fs::write(directory.path().join("job.yaml"), JOB.replace("  parallelism", "  paralelism")).unwrap();
    let ran = directory.run("validate job.yaml");
    assert!(ran.err.contains("did you mean parallelism?\n   |\n11 |   paralelism: 2\n   |   ^"), "{ran:?}");
}

#[test]
fn sql_is_answered_over_the_state_of_a_checkpoint() {
    let directory = Directory::new("query");
    write_job(&directory, 20_000, 20_000);
    let ran = directory.run("run job.yaml --rest-port 0");
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let query = |more: &[&str]| {
        let mut command = directory.command("checkpoint query");
        common::Ran::from(command.args(more).output().unwrap())
    };
    let listed = query(&["sluice-checkpoints"]);
    for words in ["state1", "`counts.group-aggregate(k)`.`", "5", "k Int64", "splits", "subtask UInt32"] {
        assert!(listed.out.contains(words), "no {words:?}: {listed:?}");
    }
    for from in ["state1", "`counts.group-aggregate(k)`"] {
        let sql = format!("SELECT k, `COUNT(*)` AS c FROM {from} WHERE k <> 3 ORDER BY k DESC LIMIT 2");
        let found = query(&["sluice-checkpoints", &sql]);
        let lines: Vec<Vec<&str>> = found.out.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines.len(), 3, "{found:?}");
        assert_eq!((lines[0][0], lines[0][1], lines[1][0], lines[2][0]), ("k", "c", "5", "4"), "{found:?}");
    }
    let json = query(&["--manifest", "job.yaml", "SELECT SUM(`COUNT(*)`) AS n FROM state1", "--output", "json"]);
    assert_eq!((json.code, json.out.as_str()), (Some(0), "[{\"n\":20000}]\n"), "{json:?}");
    for (sql, words) in [
        ("SELECT *\nFROM state7", "state7"),
        ("SELECT kk FROM state1", "1 | SELECT kk FROM state1\n  |        ^"),
        ("SELECT k FRM state1, x", "1 | SELECT k FRM state1, x"),
        ("CREATE TABLE t AS SELECT 1", "DDL"),
        ("DELETE FROM state1", "DML"),
    ] {
        let refused = query(&["sluice-checkpoints", sql]);
        assert_eq!(refused.code, Some(2), "{sql}: {refused:?}");
        assert!(refused.err.contains(words), "{sql}: {refused:?}");
    }
}

#[test]
fn what_a_job_left_is_removed_when_it_has_ended() {
    let directory = Directory::new("gc");
    write_job(&directory, 20_000, 20_000);
    let ran = directory.run("run job.yaml --rest-port 0");
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let mut jobs = std::fs::read_dir(directory.path().join("sluice-checkpoints/default")).unwrap().map(Result::unwrap);
    let job = jobs.find(|entry| entry.path().is_dir()).unwrap();
    let clean = directory.run("checkpoint gc ./sluice-checkpoints");
    assert_eq!(clean.code, Some(0), "{clean:?}");
    assert!(clean.out.contains("nothing around") && clean.out.contains("that its ledger does not reach"), "{clean:?}");
    let litter = job.path().join("1/chk-77/state.parquet");
    std::fs::create_dir_all(litter.parent().unwrap()).unwrap();
    std::fs::write(&litter, [7; 2048]).unwrap();
    let dry = directory.run("checkpoint gc ./sluice-checkpoints --dry-run");
    assert!(dry.out.contains("1 objects, 2.0 KiB, and 0 unfinished uploads") && litter.exists(), "{dry:?}");
    let gone = directory.run("checkpoint gc --manifest job.yaml");
    assert!(gone.err.contains("removed: 1 objects, 2.0 KiB") && !litter.exists(), "{gone:?}");
    assert_eq!(counted(&directory), 20_000);
}

#[test]
fn shells_complete_commands_and_jobs_on_a_cluster_need_one() {
    let directory = Directory::new("completion");
    for (shell, words) in [("bash", "complete -F _sluice"), ("zsh", "#compdef sluice"), ("fish", "complete -c sluice")]
    {
        let printed = directory.run(&format!("completion {shell}"));
        assert!(printed.code == Some(0) && printed.out.contains(words) && printed.out.contains("savepoint"), "{shell}");
    }
    let refused = directory.command("list -n streams").env("KUBECONFIG", "/nowhere").env("HOME", "/nowhere").output();
    let refused = common::Ran::from(refused.unwrap());
    assert_eq!(refused.code, Some(2), "{refused:?}");
    assert!(refused.err.contains("no cluster is known") && refused.err.contains("--jobmanager"), "{refused:?}");
    let both = directory.run("cancel -n streams pageviews --jobmanager localhost:1");
    assert!(both.code == Some(2) && both.err.contains("cannot be used with"), "{both:?}");
}

#[test]
fn a_job_that_is_named_wins_over_the_environment() {
    let directory = Directory::new("environment");
    let run = |line: &str| {
        let mut command = directory.command(line);
        command
            .env("SLUICE_JOBMANAGER", "127.0.0.1:1")
            .env("SLUICE_TLS_DIRECTORY", "./none")
            .env("KUBECONFIG", "./none");
        common::Ran::from(command.output().unwrap())
    };
    for line in ["savepoint -n streams pageviews", "cancel pageviews", "list -n streams", "list --all-namespaces"] {
        let ran = run(line);
        assert!(ran.err.contains("no cluster is known"), "{line}: {ran:?}");
    }
    for line in ["savepoint", "list", "list --tls-directory ./none", "savepoint --jobmanager 127.0.0.1:1"] {
        let ran = run(line);
        assert!(ran.err.contains("./none/"), "the directory is read: {line}: {ran:?}");
    }
    for line in ["savepoint --jobmanager 127.0.0.1:1 -n streams pageviews", "cancel --tls-directory ./none pageviews"] {
        let ran = run(line);
        assert_eq!(ran.code, Some(2), "{line}: {ran:?}");
        assert!(ran.err.contains("cannot be used with"), "{line}: {ran:?}");
    }
}
