//! The promise of the spine, with plain processes: page views from a real broker are counted with checkpoints in a
//! real S3 server, processes are killed with SIGKILL in the middle, and every count is right (issue "The spine").

#![allow(clippy::expect_used, reason = "a test fails by panicking")]

use sluice_protocol::status::{JobState, JobStatus};
use sluice_tests::harness::job::Job;
use sluice_tests::harness::kafka::{self, Producer};
use sluice_tests::harness::pageviews::{Load, PageViewJob, expected_counts, materialised_counts};
use sluice_tests::harness::{Services, unique, wait_for};
use std::time::Duration;

const PARTITIONS: i32 = 4;
const APPS: u64 = 60;
const EVENTS: u64 = 200_000;

struct Topics {
    input: String,
    output: String,
}

async fn make_topics(services: &Services, partitions: i32) -> Topics {
    let topics = Topics { input: unique("page-views"), output: unique("pv") };
    let wanted = [(topics.input.as_str(), partitions), (topics.output.as_str(), 2)];
    kafka::create_topics(&services.kafka, &wanted).await.expect("topics");
    topics
}

fn manifest(services: &Services, topics: &Topics, parallelism: u32, interval: &str) -> String {
    PageViewJob {
        kafka: &services.kafka,
        input: &topics.input,
        output: &topics.output,
        parallelism,
        interval,
        storage: &format!("s3://{}/processes", services.s3.bucket),
        storage_options: &format!(r#"{{endpoint: "{}", pathStyle: true}}"#, services.s3.endpoint),
    }
    .manifest()
}

/// Produces all events over about `seconds`.
fn produce(services: &Services, topics: &Topics, seconds: u64) -> std::thread::JoinHandle<()> {
    let duration = Duration::from_secs(seconds);
    let load = Load { seed: 7, events: EVENTS, apps: APPS, partitions: PARTITIONS, duration };
    load.produce(&services.kafka, &topics.input)
}

fn wait_for_equal_counts(services: &Services, topics: &Topics) {
    let expected = expected_counts(&services.kafka, &topics.input).expect("the input");
    assert_eq!(expected.values().sum::<u64>(), EVENTS);
    assert!(expected.len() >= 50, "{} apps", expected.len());
    let mut last = Default::default();
    let deadline = std::time::Instant::now() + Duration::from_secs(60);
    while std::time::Instant::now() < deadline {
        last = materialised_counts(&services.kafka, &topics.output).expect("the output");
        if last == expected {
            return;
        }
        std::thread::sleep(Duration::from_millis(500));
    }
    assert_eq!(last, expected, "the counts of the output topic against those of the input");
}

fn latest(status: &JobStatus) -> u64 {
    status.last_checkpoint.as_ref().map_or(0, |checkpoint| checkpoint.id.0)
}

/// The restored checkpoint is the one that was the latest retained one when the process died, or one that
/// completed between the last look and the kill.
fn assert_restored_latest(before: &JobStatus, after: &JobStatus) {
    let restored = after.restored_from.as_ref().expect("restored from a checkpoint").id.0;
    let known = latest(before);
    assert!(restored >= known && restored <= known + 2, "restored {restored}, the latest was {known}");
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_task_manager_and_job_manager_and_both_change_no_count() {
    let Some(services) = Services::from_environment() else { return };
    let topics = make_topics(&services, PARTITIONS).await;
    let producer = produce(&services, &topics, 25);
    let mut job = Job::new("pageviews", &manifest(&services, &topics, 2, "500ms"), Some(&services.s3));

    job.start_generation(2);
    let before = job.wait_checkpoint(1);

    // A TaskManager: the same generation, the next attempt, from the latest checkpoint.
    let index = *job.task_managers.keys().next().expect("a TaskManager");
    job.kill_task_manager(index);
    job.start_task_manager();
    let after = job.wait_status("the second attempt", Duration::from_secs(30), |status| {
        status.state == JobState::Running && status.attempt.0 == 2
    });
    assert_restored_latest(&before, &after);
    assert_eq!(after.generation.0, 1);
    assert_eq!(after.failed_attempts, 1, "{after:#?}");

    // The JobManager: the next generation.
    let before = job.wait_checkpoint(after.completed_checkpoints);
    job.kill_job_manager();
    job.start_generation(2);
    let after = job.wait_checkpoint(0);
    assert_restored_latest(&before, &after);
    assert_eq!(after.generation.0, 2);

    // Both, with a checkpoint under way.
    let pending = job
        .wait_status("a pending checkpoint", Duration::from_secs(30), |status| !status.pending_checkpoints.is_empty());
    job.kill_job_manager();
    job.start_generation(2);
    let after = job.wait_checkpoint(0);
    assert_restored_latest(&pending, &after);
    assert_eq!(after.generation.0, 3);

    producer.join().expect("the producer");
    wait_for_equal_counts(&services, &topics);
}

/// As a drained node or a spot instance that is taken back does: the tasks move behind a checkpoint, no restart is spent.
#[tokio::test(flavor = "multi_thread")]
async fn task_manager_that_is_told_to_end_leaves_behind_a_checkpoint_and_spends_no_restart() {
    let Some(services) = Services::from_environment() else { return };
    let topics = make_topics(&services, PARTITIONS).await;
    let producer = produce(&services, &topics, 5);
    let mut job = Job::new("leaving", &manifest(&services, &topics, 2, "30s"), Some(&services.s3));
    job.start_generation(2);
    let before = job.wait_status("all tasks run", Duration::from_secs(60), |status| status.state == JobState::Running);
    job.start_task_manager();
    job.wait_status("the spare", Duration::from_secs(30), |status| status.task_managers.len() == 3);

    let index = *job.task_managers.keys().next().expect("a TaskManager");
    let mut told = job.task_managers.remove(&index).expect("it is there");
    told.signal(nix::sys::signal::Signal::SIGTERM);
    told.wait(Duration::from_secs(20));
    let after = job.wait_status("the second attempt", Duration::from_secs(30), |status| {
        status.state == JobState::Running && status.attempt.0 == 2
    });
    assert_eq!((after.generation.0, after.failed_attempts), (1, 0), "{after:#?}");
    // Its interval is half a minute: this one was taken because the TaskManager left.
    let restored = after.restored_from.as_ref().expect("restored from a checkpoint").id.0;
    assert_eq!(restored, latest(&before) + 1, "{after:#?}");

    producer.join().expect("the producer");
    wait_for_equal_counts(&services, &topics);
}

#[tokio::test(flavor = "multi_thread")]
async fn woken_zombie_job_manager_appends_and_deletes_nothing() {
    use nix::sys::signal::Signal;
    let Some(services) = Services::from_environment() else { return };
    let topics = make_topics(&services, PARTITIONS).await;
    let producer = produce(&services, &topics, 10);
    let mut job = Job::new("zombie", &manifest(&services, &topics, 2, "500ms"), Some(&services.s3));
    job.start_generation(2);
    job.wait_checkpoint(1);
    job.suspend_job_manager();
    let mut zombie = job.start_generation(2).expect("the old JobManager");
    job.wait_checkpoint(2);

    zombie.signal(Signal::SIGCONT);
    let status = zombie.wait(Duration::from_secs(30));
    let record = job.exit_record(1);
    assert_eq!(record["kind"], "Superseded", "{record}");
    assert_eq!(record["byGeneration"], 2, "{record}");
    assert_eq!(status.code(), Some(10));

    let before = job.status().expect("a status");
    job.wait_checkpoint(before.completed_checkpoints + 1);

    // A late start of an older generation exits without a word in the ledger.
    let (rpc, rest) = (sluice_tests::harness::process::free_port(), sluice_tests::harness::process::free_port());
    let mut late = job.spawn_job_manager(1, rpc, rest);
    assert_eq!(late.wait(Duration::from_secs(30)).code(), Some(10), "{}", late.log());

    producer.join().expect("the producer");
    wait_for_equal_counts(&services, &topics);
}

#[tokio::test(flavor = "multi_thread")]
async fn woken_zombie_task_manager_is_refused() {
    use nix::sys::signal::Signal;
    let Some(services) = Services::from_environment() else { return };
    let topics = make_topics(&services, PARTITIONS).await;
    let producer = produce(&services, &topics, 20);
    let mut job = Job::new("zombie-tm", &manifest(&services, &topics, 2, "500ms"), Some(&services.s3));
    job.start_generation(2);
    let before = job.wait_checkpoint(1);
    let index = *job.task_managers.keys().next().expect("a TaskManager");
    let zombie = job.task_managers.remove(&index).expect("a TaskManager");
    zombie.signal(Signal::SIGSTOP);
    job.start_task_manager();
    // Seen by the heartbeat timeout of 10 s, since its connection stays open.
    let after = job.wait_status("the second attempt", Duration::from_secs(40), |status| {
        status.state == JobState::Running && status.attempt.0 == 2
    });
    assert!(latest(&after) >= latest(&before));
    zombie.signal(Signal::SIGCONT);
    job.wait_checkpoint(after.completed_checkpoints + 2);
    assert_eq!(job.status().expect("a status").attempt.0, 2, "the woken TaskManager disturbed the job");
    producer.join().expect("the producer");
    wait_for_equal_counts(&services, &topics);
}

#[tokio::test(flavor = "multi_thread")]
async fn textbook_checkpoint_holds_the_offset_and_a_second_job_reads_on_from_it() {
    let Some(services) = Services::from_environment() else { return };
    for parallelism in [1, 2] {
        textbook(&services, parallelism).await;
    }
}

/// Topic with one partition; after 1,000 events a checkpoint holds `(0, 1000)` and the counts.
async fn textbook(services: &Services, parallelism: u32) {
    let topics = make_topics(services, 1).await;
    let producer = Producer::new(&services.kafka).expect("a producer");
    for number in 0..1000 {
        let app = if number % 6 == 5 { "app2" } else { "app1" };
        producer.send(&topics.input, 0, &page_view(app, number)).expect("sent");
    }
    producer.flush().expect("delivered");
    let mut first = Job::new("textbook", &manifest(services, &topics, parallelism, "300ms"), Some(&services.s3));
    first.start_generation(parallelism);
    let expected = [("app1".to_owned(), 834), ("app2".to_owned(), 166)].into_iter().collect();
    wait_for("the counts", Duration::from_secs(60), || {
        (materialised_counts(&services.kafka, &topics.output).ok()? == expected).then_some(())
    });
    let now = first.status().expect("a status").completed_checkpoints;
    let status = first.wait_checkpoint(now + 1);
    let checkpoint = status.last_checkpoint.expect("a checkpoint");
    let inspected = first.run_cli(&["checkpoint", "inspect", &checkpoint.path], services);
    assert!(inspected.contains("1000"), "the last consumed offset is missing:\n{inspected}");
    // A checkpoint of a job that has not ended would be refused (K7).
    let checkpoint = first.status().and_then(|status| status.last_checkpoint).expect("a checkpoint");
    first.cancel();
    drop(first);

    for number in 1000..1500 {
        producer.send(&topics.input, 0, &page_view("app2", number)).expect("sent");
    }
    producer.flush().expect("delivered");
    let mut second = Job::new("textbook2", &manifest(services, &topics, parallelism, "300ms"), Some(&services.s3));
    second.set_directive(serde_json::json!({"id": "r1", "seen": 0,
        "start": {"path": {"from": checkpoint.path, "allowNonRestoredState": false}}}));
    second.start_generation(parallelism);
    let expected = [("app1".to_owned(), 834), ("app2".to_owned(), 666)].into_iter().collect();
    wait_for("the counts of the second job", Duration::from_secs(60), || {
        (materialised_counts(&services.kafka, &topics.output).ok()? == expected).then_some(())
    });
}

/// G5: the first job's processes are killed, its ledger has no end. Another job takes its directory over and counts on; the
/// first one, started again, is told where it went, and so is a third.
#[tokio::test(flavor = "multi_thread")]
async fn a_killed_job_goes_on_as_another_from_its_directory_with_exact_counts_and_is_told_so() {
    let Some(services) = Services::from_environment() else { return };
    let topics = make_topics(&services, 1).await;
    let producer = Producer::new(&services.kafka).expect("a producer");
    let send = |app: &str, numbers: std::ops::Range<u64>| {
        numbers.for_each(|number| producer.send(&topics.input, 0, &page_view(app, number)).expect("sent"));
        producer.flush().expect("delivered");
    };
    let wait_for_counts = |wanted: &[(&str, u64)]| {
        let wanted = wanted.iter().map(|(app, count)| ((*app).to_owned(), *count)).collect();
        wait_for("the counts", Duration::from_secs(60), || {
            (materialised_counts(&services.kafka, &topics.output).ok()? == wanted).then_some(())
        });
    };
    let job = |name: &str, from: Option<&str>| {
        let mut job = Job::new(name, &manifest(&services, &topics, 2, "300ms"), Some(&services.s3));
        if let Some(from) = from {
            let start = serde_json::json!({"path": {"from": from, "allowNonRestoredState": false}});
            job.set_directive(serde_json::json!({"id": "r1", "seen": 0, "start": start}));
        }
        job
    };
    let place = |job: &Job| format!("s3://{}/processes/{}", services.s3.bucket, job.job_directory());

    let mut first = job("killed", None);
    first.start_generation(2);
    send("app1", 0..1000);
    wait_for_counts(&[("app1", 1000)]);
    let completed = first.status().expect("a status").completed_checkpoints;
    first.wait_checkpoint(completed + 1);
    first.kill_job_manager();
    first.task_managers.clear();
    send("app2", 1000..1500);

    let mut second = job("taker", Some(&place(&first)));
    second.start_generation(2);
    wait_for_counts(&[("app1", 1000), ("app2", 500)]);
    let restored = second.wait_checkpoint(1).restored_from.expect("what was restored");
    assert!(restored.path.starts_with(&format!("{}/1/chk-", place(&first))), "{}", restored.path);

    first.start_generation(0);
    let mut third = job("late", Some(&place(&first)));
    third.start_generation(0);
    for (told, code, reason) in [(&mut first, 11, "MovedTo"), (&mut third, 2, "JobMoved")] {
        let ended = told.job_manager.as_mut().expect("it runs").wait(Duration::from_secs(30));
        let record = told.exit_record(told.generation());
        assert_eq!((ended.code(), &record["reason"]), (Some(code), &serde_json::json!(reason)), "{record}");
        assert!(record["message"].as_str().expect("text").contains(&place(&second)), "{record}");
    }
    send("app1", 1500..1600);
    wait_for_counts(&[("app1", 1100), ("app2", 500)]);
}

fn page_view(app: &str, number: u64) -> String {
    format!(r#"{{"app_id":"{app}","url":"/{number}","ts":"2026-01-01 00:00:00.000"}}"#)
}
