//! The `filesystem` sink on S3: its files are multipart uploads, completed with the checkpoint. Against the tests' own server,
//! and against one that others wrote where `cargo verify` names it; with `CI=true` that must be there.
#![allow(clippy::unwrap_used, missing_docs, reason = "helpers of tests may panic")]

use arrow::array::AsArray as _;
use arrow::array::{ArrayRef, Int64Array, RecordBatch};
use arrow::datatypes::{DataType, Field, Int64Type, Schema};
use sluice_engine::batch::Batch;
use sluice_engine::operator::{OperatorContext, RestoredState};
use sluice_engine::sink::SinkFactory;
use sluice_engine::sink::conformance::{self, Subject};
use sluice_engine::source::{SourceContext, SourceFactory, SourcePoll};
use sluice_engine::state::StateBackend;
use sluice_engine::table::{ConnectorCatalog as _, TableDescriptor, TableOption};
use sluice_protocol::options::StorageOptions;
use sluice_protocol::state::Committable;
use sluice_protocol::{KeyGroupRange, SubtaskIndex, Timestamp};
use sluice_storage::UnfinishedUpload;
use sluice_storage::staging::{StagedFile, Staging};
use sluice_test_s3::{Options, TestS3};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

static NUMBER: AtomicU32 = AtomicU32::new(0);

struct Files {
    uri: String,
    storage: StorageOptions,
    sink: Arc<dyn SinkFactory>,
    source: Arc<dyn SourceFactory>,
}

fn schema() -> Arc<Schema> {
    Arc::new(Schema::new(vec![Field::new("n", DataType::Int64, true)]))
}

impl Files {
    fn new(bucket: &str, storage: &StorageOptions, format: &str) -> Self {
        let number = NUMBER.fetch_add(1, Ordering::SeqCst);
        let uri = format!("s3://{bucket}/files-{}-{number}", std::process::id());
        let option = |(key, value): (&str, &str)| TableOption { key: key.to_owned(), value: value.to_owned() };
        let options = [("connector", "filesystem"), ("path", uri.as_str()), ("format", format)].map(option).to_vec();
        let table = TableDescriptor::new("t", schema(), vec![], options);
        let catalog = sluice_connectors::catalog_with(Some(storage.clone()), sluice_connectors::no_secrets());
        let (sink, source) = (catalog.sink(&table).unwrap(), catalog.source(&table).unwrap());
        Self { uri, storage: storage.clone(), sink, source }
    }

    fn staging(&self) -> Staging {
        Staging::open(&self.uri, Some(&self.storage)).unwrap()
    }
}

fn wait<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

impl Subject for Files {
    fn factory(&self) -> &dyn SinkFactory {
        self.sink.as_ref()
    }

    fn rows(&self, numbers: Range<i64>) -> Batch {
        let column: ArrayRef = Arc::new(Int64Array::from_iter_values(numbers));
        Batch::inserts(RecordBatch::try_new(schema(), vec![column]).unwrap())
    }

    fn visible(&self) -> Result<Vec<i64>, String> {
        let mut source = self.source.create().unwrap();
        let operator = OperatorContext {
            uid: "t".into(),
            subtask: SubtaskIndex(0),
            parallelism: 1,
            key_groups: KeyGroupRange { start: 0, end: 128 },
            max_parallelism: 128,
            state_backend: StateBackend::default(),
        };
        let context =
            SourceContext { operator, waker: Arc::new(|| {}), clock: Arc::new(Timestamp::default), by_split: true };
        source.open(context, RestoredState::default()).map_err(|error| error.to_string())?;
        let mut found = vec![];
        loop {
            match source.poll(1000).map_err(|error| error.to_string())? {
                SourcePoll::Batch(batch) => found.extend(batch.rows.column(0).as_primitive::<Int64Type>().values()),
                SourcePoll::Pending => std::thread::sleep(Duration::from_millis(1)),
                SourcePoll::Finished => return Ok(found),
            }
        }
    }

    fn open_transactions(&self) -> Result<usize, String> {
        wait(self.staging().staged()).map(|staged| staged.len()).map_err(|failure| failure.to_string())
    }

    fn destroy(&self, committable: &Committable) -> Result<(), String> {
        let file: StagedFile = serde_json::from_slice(&committable.bytes).unwrap();
        let upload = UnfinishedUpload { key: file.key, id: file.upload.unwrap() };
        wait(self.staging().abort(&[upload])).map_err(|failure| failure.to_string())
    }
}

fn options(endpoint: String) -> StorageOptions {
    StorageOptions { endpoint: Some(endpoint), region: None, path_style: true, credentials_secret: None }
}

/// The keys reach the connector as they do in a job: by the environment of the process, this test's own.
fn with_keys(test: &str, access: &str, secret: &str, endpoint: &str, bucket: &str) {
    let status = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture", "--ignored"])
        .env("AWS_ACCESS_KEY_ID", access)
        .env("AWS_SECRET_ACCESS_KEY", secret)
        .env("FILES_ENDPOINT", endpoint)
        .env("FILES_BUCKET", bucket)
        .status()
        .unwrap();
    assert!(status.success());
}

#[test]
#[ignore = "run by the other tests, with a server and keys in its environment"]
fn suite() {
    let endpoint = options(std::env::var("FILES_ENDPOINT").unwrap());
    let bucket = std::env::var("FILES_BUCKET").unwrap();
    for format in ["json", "parquet"] {
        conformance::check(|| Ok(Files::new(&bucket, &endpoint, format)))
            .unwrap_or_else(|what| panic!("{format}: {what}"));
    }
}

#[test]
fn the_sink_on_s3_stands_the_suite() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let server = runtime.block_on(TestS3::start(Options::default())).unwrap();
    let Options { access_key_id, secret_access_key, buckets, .. } = server.options().clone();
    with_keys("suite", &access_key_id, &secret_access_key, &server.endpoint(), &buckets[0]);
}

#[test]
fn the_sink_on_a_real_server_stands_the_suite() {
    let read = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let Some(endpoint) = read("SLUICE_TEST_S3") else {
        assert!(read("CI").is_none_or(|ci| ci != "true"), "CI=true, but SLUICE_TEST_S3* is not set");
        println!("skipped: no S3 server named (SLUICE_TEST_S3*); `cargo verify` starts one");
        return;
    };
    let value = |name: &str| read(name).unwrap();
    let (access, secret) = (value("SLUICE_TEST_S3_ACCESS_KEY"), value("SLUICE_TEST_S3_SECRET_KEY"));
    with_keys("suite", &access, &secret, &endpoint, &value("SLUICE_TEST_S3_BUCKET"));
}
