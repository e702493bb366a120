//! Whole jobs: in one process, and as a JobManager with two TaskManagers over loopback; what comes out of the sink is
//! compared with counts made another way.

pub(crate) mod collect;
mod storages;
mod tls;

use crate::data_plane::DataPlane;
use crate::edge;
use crate::job::JobDescription;
use crate::job_manager::driver::{Driver, DriverConfig, Patience};
use crate::job_manager::{self, store};
use crate::local::{LocalRun, LocalStart, run_local};
use crate::logs::LogSwitch;
use crate::memory::MemoryLimit;
use crate::metrics::TaskMetrics;
use crate::steps::Steps;
use crate::task_manager::worker::Worker;
use crate::task_manager::{Equipment, session};
use collect::Collected;
use sluice_engine::channel::DEFAULT_WINDOW;
use sluice_engine::program::Program;
use sluice_protocol::failure::{ExitKind, ExitRecord};
use sluice_protocol::job_master::{Command, Directive, JobMasterConfig, Planted, StartFrom};
use sluice_protocol::message::Registration;
use sluice_protocol::options::{CheckpointingSpec, JobOptions, StateBackend};
use sluice_protocol::restart::FailureCounts;
use sluice_protocol::status::{JobState, JobStatus};
use sluice_protocol::{Generation, JobId, ProcessId, TaskManagerId, TimeSpan};
use sluice_rpc::control::{ControlClient, ControlError};
use sluice_rpc::tls::Tls;
use sluice_sql::PlanOptions;
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

const ROWS: i64 = 60_000;
const KEYS: i64 = 10;

pub(crate) fn options(storage: Option<&Path>) -> JobOptions {
    let checkpointing = storage.map(|directory| {
        let storage = format!("file://{}", directory.display());
        let text =
            serde_json::json!({"interval": "100ms", "storage": storage, "retained": 3, "tolerableFailures": 100});
        serde_json::from_value::<CheckpointingSpec>(text).unwrap()
    });
    let restart = serde_json::json!({"fixedDelay": {"attempts": 5, "delay": "50ms"}});
    JobOptions {
        parallelism: 2,
        checkpointing,
        restart_strategy: Some(serde_json::from_value(restart).unwrap()),
        buffer_timeout: TimeSpan::from_millis(10),
        ..JobOptions::default()
    }
}

/// Counts rows per key. The keys go round, so each of them comes `ROWS / KEYS` times.
pub(crate) fn program(rows_per_second: Option<u32>, sink: &Collected) -> Program {
    program_of(KEYS, rows_per_second, sink)
}

/// The same with so many keys.
fn program_of(keys: i64, rows_per_second: Option<u32>, sink: &Collected) -> Program {
    let rate = format!(", 'rows-per-second'='{}'", rows_per_second.unwrap_or(10_000_000));
    let sql = format!(
        "CREATE TABLE numbers (n BIGINT) WITH ('connector'='datagen', 'number-of-rows'='{ROWS}', \
           'fields.n.kind'='sequence', 'fields.n.start'='0', 'fields.n.end'='{}'{rate});
         CREATE TABLE counts (k BIGINT, c BIGINT, PRIMARY KEY (k) NOT ENFORCED) WITH ('connector'='blackhole');
         INSERT INTO counts SELECT n % {keys} AS k, COUNT(*) AS c FROM numbers GROUP BY n % {keys};",
        ROWS - 1
    );
    let plan = PlanOptions { parallelism: 2, max_parallelism: 128 };
    let mut program = sluice_sql::plan(&sql, &plan, &sluice_connectors::catalog()).unwrap();
    sink.replace_sinks(&mut program);
    program
}

/// Numbers that are times as well, and are aligned.
pub(crate) fn aligned_program(sink: &Collected) -> Program {
    let sql = "CREATE TABLE numbers (n BIGINT, ts AS TO_TIMESTAMP_LTZ(n, 3), WATERMARK FOR ts AS ts) WITH (
           'connector'='datagen', 'number-of-rows'='60000', 'rows-per-second'='10000', 'fields.n.kind'='sequence',
           'fields.n.start'='0', 'fields.n.end'='59999', 'scan.watermark.alignment.group'='numbers',
           'scan.watermark.alignment.max-drift'='1 ms', 'scan.watermark.alignment.update-interval'='20 ms');
         CREATE TABLE counts (k BIGINT, c BIGINT, PRIMARY KEY (k) NOT ENFORCED) WITH ('connector'='blackhole');
         INSERT INTO counts SELECT n % 10 AS k, COUNT(*) AS c FROM numbers GROUP BY n % 10;";
    let plan = PlanOptions { parallelism: 2, max_parallelism: 128 };
    let mut program = sluice_sql::plan(sql, &plan, &sluice_connectors::catalog()).unwrap();
    sink.replace_sinks(&mut program);
    program
}

fn expected() -> BTreeMap<i64, i64> {
    expected_of(KEYS)
}

fn expected_of(keys: i64) -> BTreeMap<i64, i64> {
    (0..ROWS).fold(BTreeMap::new(), |mut counts, n| {
        *counts.entry(n % keys).or_default() += 1;
        counts
    })
}

fn directory(name: &str) -> PathBuf {
    let directory = std::env::temp_dir().join(format!("sluice-node-{name}-{}", edge::random_id()));
    std::fs::create_dir_all(&directory).unwrap();
    directory
}

struct Local {
    run: LocalRun,
    statuses: mpsc::UnboundedReceiver<JobStatus>,
}

fn local(program: Program, options: JobOptions, start: LocalStart) -> Local {
    let (sender, statuses) = mpsc::unbounded_channel();
    let on_status = move |status: &JobStatus, _: &[TaskMetrics]| sender.send(status.clone()).unwrap_or(());
    let run = LocalRun {
        namespace: "default".to_owned(),
        name: "counts".to_owned(),
        program,
        options,
        start,
        start_timeout: None,
        checkpoint_directory: PathBuf::from("unused"),
        rest_bind: None,
        control: None,
        on_status: Box::new(on_status),
        stop: CancellationToken::new(),
        abandon: CancellationToken::new(),
        memory: None,
        logs: LogSwitch::default(),
    };
    Local { run, statuses }
}

async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), future).await.expect("it takes too long")
}

async fn wait_for(statuses: &mut mpsc::UnboundedReceiver<JobStatus>, wanted: impl Fn(&JobStatus) -> bool) -> JobStatus {
    within(async {
        loop {
            let status = statuses.recv().await.expect("the job ended first");
            if wanted(&status) {
                return status;
            }
        }
    })
    .await
}

fn assert_ended(record: &ExitRecord, kind: ExitKind) {
    assert_eq!(record.kind, kind, "{record:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_without_checkpoints_runs_to_its_end() {
    let sink = Collected::default();
    let Local { run, .. } = local(program(None, &sink), options(None), LocalStart::Empty);
    let started = std::time::Instant::now();
    assert_ended(&within(run_local(run)).await, ExitKind::Finished);
    assert_eq!(sink.last_values(), expected());
    let first = sink.first_at().unwrap().duration_since(started);
    assert!(first < Duration::from_secs(1), "first output after {first:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_job_resumes_where_it_was() {
    let storage = directory("resume");
    let sink = Collected::default();
    let Local { run, mut statuses } = local(program(Some(40_000), &sink), options(Some(&storage)), LocalStart::Empty);
    let stop = run.stop.clone();
    let job = tokio::spawn(run_local(run));
    wait_for(&mut statuses, |status| status.completed_checkpoints >= 2).await;
    stop.cancel();
    assert_ended(&within(job).await.unwrap(), ExitKind::Stopped);
    let half = sink.last_values();
    assert!(half.values().sum::<i64>() < ROWS, "it was not stopped in the middle: {half:?}");

    let Local { run, mut statuses } = local(program(None, &sink), options(Some(&storage)), LocalStart::Resume);
    let job = tokio::spawn(run_local(run));
    let status = wait_for(&mut statuses, |status| status.state == JobState::Running).await;
    assert_eq!(status.generation, Generation(2));
    assert!(status.restored_from.is_some(), "{status:?}");
    assert_ended(&within(job).await.unwrap(), ExitKind::Finished);
    assert_eq!(sink.last_values(), expected());
    std::fs::remove_dir_all(storage).unwrap();
}

/// The sink takes nothing, so every row that was read is in flight: too much to travel inline.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_in_flight_is_stored_in_files_and_read_back_under_another_parallelism() {
    let storage = directory("in-flight");
    let sink = Collected::default();
    sink.stall(true);
    let mut unaligned = options(Some(&storage));
    if let Some(checkpointing) = &mut unaligned.checkpointing {
        checkpointing.unaligned = true;
    }
    let Local { run, mut statuses } = local(program(Some(100_000), &sink), unaligned.clone(), LocalStart::Empty);
    let abandon = run.abandon.clone();
    let running = tokio::spawn(run_local(run));
    let is_large = |status: &JobStatus| status.last_checkpoint.as_ref().is_some_and(|one| one.bytes > 100_000);
    let status = wait_for(&mut statuses, is_large).await;
    abandon.cancel();
    within(running).await.unwrap();
    assert!(sink.last_values().is_empty());
    let directory = status.last_checkpoint.unwrap().path;
    let files = std::fs::read_dir(directory.trim_start_matches("file://")).unwrap();
    let names: Vec<String> = files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
    assert!(names.iter().any(|name| name.starts_with("in-flight-")), "{names:?}");
    sink.stall(false);
    let mut wider = program(None, &sink);
    wider.graph.vertices.iter_mut().for_each(|vertex| vertex.parallelism = 3);
    let Local { run, .. } = local(wider, JobOptions { parallelism: 3, ..unaligned }, LocalStart::Resume);
    assert_ended(&within(run_local(run)).await, ExitKind::Finished);
    assert_eq!(sink.last_values(), expected());
    std::fs::remove_dir_all(storage).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_goes_on_on_the_other_state_backend() {
    for (before, after) in [(StateBackend::Hash, StateBackend::Disk), (StateBackend::Disk, StateBackend::Hash)] {
        let storage = directory("backend");
        let sink = Collected::default();
        let on = |state_backend| JobOptions { state_backend, ..options(Some(&storage)) };
        let Local { run, mut statuses } = local(program(Some(40_000), &sink), on(before), LocalStart::Empty);
        let stop = run.stop.clone();
        let job = tokio::spawn(run_local(run));
        wait_for(&mut statuses, |status| status.completed_checkpoints >= 2).await;
        // A restart in place makes its tables anew in the same working directory.
        sink.fail_once();
        wait_for(&mut statuses, |status| status.attempt.0 == 2 && status.completed_checkpoints >= 3).await;
        stop.cancel();
        assert_ended(&within(job).await.unwrap(), ExitKind::Stopped);
        let Local { run, .. } = local(program(None, &sink), on(after), LocalStart::Resume);
        assert_ended(&within(run_local(run)).await, ExitKind::Finished);
        assert_eq!(sink.last_values(), expected());
        std::fs::remove_dir_all(storage).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_task_restarts_from_the_last_checkpoint() {
    let storage = directory("restart");
    let sink = Collected::default();
    let Local { run, mut statuses } = local(program(Some(40_000), &sink), options(Some(&storage)), LocalStart::Empty);
    let job = tokio::spawn(run_local(run));
    wait_for(&mut statuses, |status| status.completed_checkpoints >= 2).await;
    sink.fail_once();
    let status = wait_for(&mut statuses, |status| status.attempt.0 == 2 && status.state == JobState::Running).await;
    assert_eq!(status.failed_attempts, 1);
    assert!(status.failures[0].failure.message.contains("the sink was told to fail"), "{:?}", status.failures);
    assert!(status.restored_from.is_some());
    assert_ended(&within(job).await.unwrap(), ExitKind::Finished);
    assert_eq!(sink.last_values(), expected());
    std::fs::remove_dir_all(storage).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_to_resume_is_said() {
    let storage = directory("nothing");
    let Local { run, .. } = local(program(None, &Collected::default()), options(Some(&storage)), LocalStart::Resume);
    let record = within(run_local(run)).await;
    assert_ended(&record, ExitKind::UserError);
    assert!(record.message.contains("--resume"), "{record:?}");
    std::fs::remove_dir_all(storage).unwrap();
}

/// A run that never began has not taken the place of the last one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mistyped_path_leaves_the_last_run_to_be_resumed() {
    let storage = directory("mistyped");
    let sink = Collected::default();
    let Local { run, mut statuses } = local(program(Some(40_000), &sink), options(Some(&storage)), LocalStart::Empty);
    let stop = run.stop.clone();
    let job = tokio::spawn(run_local(run));
    wait_for(&mut statuses, |status| status.completed_checkpoints >= 1).await;
    stop.cancel();
    assert_ended(&within(job).await.unwrap(), ExitKind::Stopped);

    let from = format!("file://{}/default/counts-typo/1/chk-1", storage.display());
    let start = LocalStart::Snapshot { from, allow_non_restored_state: false, abandon_sinks: Vec::new() };
    let Local { run, .. } = local(program(None, &sink), options(Some(&storage)), start);
    let record = within(run_local(run)).await;
    assert_eq!((record.kind, record.reason.as_str()), (ExitKind::UserError, "SnapshotNotFound"));

    let Local { run, mut statuses } = local(program(None, &sink), options(Some(&storage)), LocalStart::Resume);
    let job = tokio::spawn(run_local(run));
    let status = wait_for(&mut statuses, |status| status.state == JobState::Running).await;
    assert!(status.restored_from.is_some(), "{status:?}");
    assert_ended(&within(job).await.unwrap(), ExitKind::Finished);
    assert_eq!(sink.last_values(), expected());
    std::fs::remove_dir_all(storage).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn storage_that_cannot_hold_a_ledger_is_refused_by_name() {
    let file = directory("unsuitable").join("file");
    std::fs::write(&file, "").unwrap();
    let options = options(Some(&file.join("below-a-file")));
    let Local { run, .. } = local(program(None, &Collected::default()), options, LocalStart::Empty);
    let record = within(run_local(run)).await;
    assert_ended(&record, ExitKind::UserError);
    assert!(record.message.contains("below-a-file"), "{record:?}");
    std::fs::remove_dir_all(file.parent().unwrap()).unwrap();
}

/// What the processes were told to log, each by its name.
#[derive(Clone, Default)]
struct Logged(Arc<Mutex<Vec<String>>>);

impl Logged {
    fn switch(&self, process: &str) -> LogSwitch {
        let (logged, process) = (Arc::clone(&self.0), process.to_owned());
        LogSwitch::new(move |filter| {
            if filter.contains(' ') {
                return Err(format!("'{filter}' is none"));
            }
            logged.lock().unwrap().push(format!("{process} {filter}"));
            Ok(())
        })
    }
}

/// A JobManager with its servers, as a process has it, on a job that was not read from a file.
struct Cluster {
    job: JobDescription,
    storage: store::Storage,
    rpc: SocketAddr,
    record: tokio::task::JoinHandle<ExitRecord>,
    logged: Logged,
}

pub(crate) fn job_id() -> JobId {
    JobId { namespace: "test".to_owned(), name: "counts".to_owned(), uid: "1".to_owned() }
}

async fn start_cluster(program: Program, options: JobOptions) -> Cluster {
    let storage = store::open_storage(&options).unwrap();
    start_cluster_on(storage, program, options, None).await
}

async fn start_cluster_on(
    storage: store::Storage,
    program: Program,
    options: JobOptions,
    tls: Option<Arc<Tls>>,
) -> Cluster {
    let job = JobDescription { job: job_id(), program, options, restore: None };
    let master = JobMasterConfig {
        job: job.job.clone(),
        generation: Generation(1),
        process: ProcessId(edge::random_id()),
        revision: 1,
        directive: Directive { id: "r1".to_owned(), seen: 0, start: StartFrom::Continue },
        graph: job.program.graph.clone(),
        options: job.options.clone(),
        storage_uri: storage.uri.clone(),
        probed: None,
        failures: FailureCounts::default(),
        planted: Planted::default(),
    };
    let logged = Logged::default();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let rpc = listener.local_addr().unwrap();
    let (patience, steps) = (Patience::WaitForStore, Steps::default());
    let (program, storage_of_driver) = (job.program.clone(), storage.clone());
    let (driver, handle) = Driver::new(DriverConfig { master, program, storage: storage_of_driver, patience, steps });
    let server = job_manager::serve(listener, &handle, &job.job, Generation(1), tls, &logged.switch("jobmanager"));
    drop(handle);
    let record = tokio::spawn(async move {
        let record = driver.run().await;
        server.await.unwrap();
        record
    });
    Cluster { job, storage, rpc, record, logged }
}

impl Cluster {
    /// A TaskManager; aborting it closes its connections as a kill does.
    async fn start_task_manager(&self, name: &str) -> tokio::task::JoinHandle<()> {
        self.start_task_manager_with(name, None).await.unwrap()
    }

    /// One with a certificate; why it cannot register otherwise.
    async fn start_task_manager_with(
        &self,
        name: &str,
        tls: Option<Arc<Tls>>,
    ) -> Result<tokio::task::JoinHandle<()>, String> {
        let runtime = tokio::runtime::Handle::current();
        let id = TaskManagerId::from(name);
        let plane =
            DataPlane::bind("127.0.0.1:0", "1", id.clone(), DEFAULT_WINDOW, runtime, tls.clone()).await.unwrap();
        let registration = Registration {
            task_manager: id,
            process: ProcessId(edge::random_id()),
            generation: Generation(1),
            slots: 1,
            data_address: plane.address().to_string(),
            fingerprint: self.job.program.graph.fingerprint(),
        };
        let equipment = Equipment::new(self.job.clone(), self.storage.clone(), MemoryLimit::find(None)).unwrap();
        let mut worker = Worker::new(registration, equipment, Some(plane));
        let session = session::connect(&self.rpc.to_string(), tls.as_ref(), &self.logged.switch(name)).await?;
        Ok(tokio::spawn(async move {
            worker.serve(session).await;
        }))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_logged_changes_in_all_processes_also_in_those_that_come_later() {
    let cluster = start_cluster(program(None, &Collected::default()), options(None)).await;
    let _first = cluster.start_task_manager("tm-0").await;
    let client = within(ControlClient::connect(&cluster.rpc.to_string(), None)).await.unwrap();
    within(client.set_log_level(Generation(1), "debug")).await.unwrap();
    let refused = within(client.set_log_level(Generation(1), "no filter")).await.unwrap_err();
    assert!(refused.to_string().contains("'no filter'"), "{refused}");
    assert!(within(client.set_log_level(Generation(2), "trace")).await.is_err(), "it is meant for another generation");
    let _second = cluster.start_task_manager("tm-1").await;
    let all = ["jobmanager debug", "tm-0 debug", "tm-1 debug"];
    within(async {
        while cluster.logged.0.lock().unwrap().len() < all.len() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    let mut logged = cluster.logged.0.lock().unwrap().clone();
    logged.sort();
    assert_eq!(logged, all);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_task_managers_exchange_rows_and_one_is_replaced() {
    let storage = directory("cluster");
    let sink = Collected::default();
    let cluster = start_cluster(program(Some(20_000), &sink), options(Some(&storage))).await;
    let _first = cluster.start_task_manager("tm-0").await;
    let second = cluster.start_task_manager("tm-1").await;
    let client = within(ControlClient::connect(&cluster.rpc.to_string(), None)).await.unwrap();
    let (sender, mut statuses) = mpsc::unbounded_channel();
    let mut watch = client.watch(&job_id(), Generation(1)).await.unwrap();
    tokio::spawn(async move {
        while let Some(Ok(status)) = futures::StreamExt::next(&mut watch).await {
            if sender.send(status).is_err() {
                return;
            }
        }
    });
    wait_for(&mut statuses, |status| status.completed_checkpoints >= 2).await;

    second.abort();
    let killed = std::time::Instant::now();
    wait_for(&mut statuses, |status| status.state == JobState::Restarting).await;
    assert!(killed.elapsed() < Duration::from_secs(1), "the loss was seen after {:?}", killed.elapsed());
    let _third = cluster.start_task_manager("tm-2").await;
    let status = wait_for(&mut statuses, |status| status.attempt.0 >= 2 && status.state == JobState::Running).await;
    assert!(status.restored_from.is_some(), "{status:?}");
    assert_ended(&within(cluster.record).await.unwrap(), ExitKind::Finished);
    assert_eq!(sink.last_values(), expected());
    std::fs::remove_dir_all(storage).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_carry_the_generation_and_are_run_once() {
    let sink = Collected::default();
    let cluster = start_cluster(program(Some(5_000), &sink), options(None)).await;
    let client = within(ControlClient::connect(&cluster.rpc.to_string(), None)).await.unwrap();
    let another = client.execute(Generation(2), "a", &Command::Cancel).await.unwrap_err();
    assert!(matches!(&another, ControlError::AnotherJobManager { .. }), "{another}");
    assert!(another.to_string().contains("generation 1"), "{another}");
    let trigger = Command::TriggerCheckpoint { id: "b".to_owned() };
    assert_eq!(client.describe().await.unwrap(), (job_id(), Generation(1)));
    let stranger = JobId { uid: "2".to_owned(), ..job_id() };
    let another = client.watch(&stranger, Generation(1)).await.err().unwrap();
    assert!(matches!(another, ControlError::AnotherJobManager { .. }), "{another}");
    assert!(client.execute(Generation(1), "b", &trigger).await.unwrap());
    assert!(!client.execute(Generation(1), "b", &trigger).await.unwrap());
    assert!(client.execute(Generation(1), "c", &Command::Cancel).await.unwrap());
    let record = within(cluster.record).await.unwrap();
    assert_eq!((record.kind, record.reason.as_str()), (ExitKind::Stopped, "Cancelled"));
}
