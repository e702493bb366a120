//! One job over every storage and both state backends: its checkpoints are written by the real writer, and one of them is
//! restored, after a failure, by the tasks that go on.

use super::*;
use sluice_protocol::options::IN_JOB_MANAGER;
use sluice_storage::{ObjectStore, S3Credentials, S3Settings, S3Store};
use sluice_test_s3::{Options, TestS3};
use std::sync::Arc;

/// So many that state is too large for `_metadata`.
const MANY: i64 = 20_011;

fn s3(server: &TestS3, prefix: &str) -> S3Store {
    let Options { access_key_id, secret_access_key, .. } = server.options().clone();
    let credentials = Some(S3Credentials { access_key_id, secret_access_key, session_token: None });
    let (bucket, endpoint) = ("test".to_owned(), Some(server.endpoint()));
    let settings = S3Settings {
        bucket,
        prefix: prefix.to_owned(),
        endpoint,
        path_style: true,
        credentials,
        ..S3Settings::default()
    };
    S3Store::new(settings).unwrap()
}

/// Runs a job that fails once in its middle; gives the path of the checkpoint that it went on from.
async fn fails_and_goes_on(storage: store::Storage, options: JobOptions) -> String {
    let sink = Collected::default();
    let cluster = start_cluster_on(storage, program_of(MANY, Some(20_000), &sink), options, None).await;
    let _task_managers = [cluster.start_task_manager("tm-0").await, cluster.start_task_manager("tm-1").await];
    let client = within(ControlClient::connect(&cluster.rpc.to_string(), None)).await.unwrap();
    let mut watch = client.watch(&job_id(), Generation(1)).await.unwrap();
    let (sender, mut statuses) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Some(Ok(status)) = futures::StreamExt::next(&mut watch).await {
            let _ = sender.send(status);
        }
    });
    wait_for(&mut statuses, |status| status.completed_checkpoints >= 3).await;
    sink.fail_once();
    let restored = wait_for(&mut statuses, |status| status.attempt.0 == 2 && status.state == JobState::Running).await;
    assert_ended(&within(cluster.record).await.unwrap(), ExitKind::Finished);
    assert!(sink.last_values() == expected_of(MANY), "other counts than those of all rows");
    restored.restored_from.expect("a checkpoint was restored").path
}

fn on(backend: StateBackend) -> JobOptions {
    JobOptions { state_backend: backend, ..options(Some(Path::new("/unused"))) }
}

/// Objects of keyed state that lie below a prefix of a store.
async fn state_files(store: &dyn ObjectStore) -> usize {
    store.list("", None).await.unwrap().iter().filter(|key| key.ends_with(".parquet")).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_checkpoint_in_the_job_manager_is_restored() {
    for backend in [StateBackend::Hash, StateBackend::Disk] {
        let mut options = on(backend);
        options.checkpointing.as_mut().unwrap().storage = IN_JOB_MANAGER.to_owned();
        fails_and_goes_on(store::open_storage(&options).unwrap(), options).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_checkpoint_in_a_file_system_is_restored() {
    for backend in [StateBackend::Hash, StateBackend::Disk] {
        let directory = directory("storages");
        let options = JobOptions { state_backend: backend, ..options(Some(&directory)) };
        let path = fails_and_goes_on(store::open_storage(&options).unwrap(), options).await;
        assert!(path.starts_with(&format!("file://{}", directory.display())), "{path}");
        std::fs::remove_dir_all(directory).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_checkpoint_in_s3_is_restored() {
    let server = TestS3::start(Options::default()).await.unwrap();
    for (prefix, backend) in [("hash", StateBackend::Hash), ("disk", StateBackend::Disk)] {
        let store = Arc::new(s3(&server, prefix));
        let shared: Arc<dyn ObjectStore> = store.clone();
        let path = fails_and_goes_on(store::Storage::on(shared), on(backend)).await;
        assert!(path.starts_with(&format!("s3://test/{prefix}/")), "{path}");
        assert!(state_files(store.as_ref()).await > 0, "its state lies in files");
    }
}
