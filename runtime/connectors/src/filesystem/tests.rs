//! The sink stands the conformance suite, on a file system and on S3; what it writes comes back through the source.

use super::committer::file_of;
use super::*;
use arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Int64Type, Schema};
use sluice_engine::batch::Batch;
use sluice_engine::operator::{OperatorContext, RestoredState, TaskIdentity};
use sluice_engine::sink::SinkContext;
use sluice_engine::sink::conformance::{self, Subject};
use sluice_engine::source::{SourceContext, SourcePoll};
use sluice_engine::state::StateBackend;
use sluice_engine::table::TableOption;
use sluice_protocol::state::{Committable, SplitState};
use sluice_protocol::{CheckpointId, JobId, KeyGroupRange, Run, Timestamp};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

mod partitions;
mod troubles;

static NUMBER: AtomicU32 = AtomicU32::new(0);

/// A directory that goes away.
pub(super) struct Directory(pub(super) PathBuf);

impl Directory {
    pub(super) fn new() -> Self {
        let number = NUMBER.fetch_add(1, Ordering::SeqCst);
        let path = std::env::temp_dir().join(format!("sluice-files-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn schema() -> Arc<Schema> {
    Arc::new(Schema::new(vec![Field::new("n", DataType::Int64, true), Field::new("text", DataType::Utf8, true)]))
}

pub(super) fn table(path: &str, options: &[(&str, &str)]) -> TableDescriptor {
    let all = [("connector", "filesystem"), ("path", path)].into_iter().chain(options.iter().copied());
    let options = all.map(|(key, value)| TableOption { key: key.to_owned(), value: value.to_owned() });
    TableDescriptor::new("t", schema(), vec![], options.collect())
}

fn rows(numbers: Range<i64>) -> Batch {
    let texts: ArrayRef =
        Arc::new(StringArray::from_iter_values(numbers.clone().map(|n| format!("text \"{n}\", and more"))));
    let column: ArrayRef = Arc::new(Int64Array::from_iter_values(numbers));
    Batch::inserts(RecordBatch::try_new(schema(), vec![column, texts]).unwrap())
}

pub(super) fn operator(subtask: u32, parallelism: u32) -> OperatorContext {
    let subtask = SubtaskIndex(subtask);
    OperatorContext {
        uid: "t".into(),
        subtask,
        parallelism,
        key_groups: KeyGroupRange::of_subtask(subtask, parallelism, 128),
        max_parallelism: 128,
        state_backend: StateBackend::default(),
    }
}

fn open_source(table: &TableDescriptor, subtask: (u32, u32), state: RestoredState) -> Box<dyn Source> {
    let mut source = FileSourceFactory::new(table, None).unwrap().create().unwrap();
    let (waker, clock) = (Arc::new(|| {}) as Arc<_>, Arc::new(Timestamp::default) as Arc<_>);
    source
        .open(SourceContext { operator: operator(subtask.0, subtask.1), waker, clock, by_split: true }, state)
        .unwrap();
    source
}

fn numbers(batch: &Batch) -> Vec<i64> {
    let texts = batch.rows.column(1).as_string::<i32>();
    let numbers = batch.rows.column(0).as_primitive::<Int64Type>().values().to_vec();
    for (row, number) in numbers.iter().enumerate() {
        assert_eq!(texts.value(row), format!("text \"{number}\", and more"));
    }
    numbers
}

/// Everything, until the source says that it has finished.
fn read_all(source: &mut dyn Source) -> Vec<i64> {
    let mut found = vec![];
    loop {
        match source.poll(1000).unwrap() {
            SourcePoll::Batch(batch) => found.extend(numbers(&batch)),
            SourcePoll::Pending => std::thread::sleep(Duration::from_millis(2)),
            SourcePoll::Finished => return found,
        }
    }
}

/// The sink on a directory.
struct Files {
    directory: Directory,
    table: TableDescriptor,
    factory: FileSinkFactory,
}

impl Files {
    fn new(options: &[(&str, &str)]) -> Self {
        Self::partitioned(&[], options)
    }

    fn partitioned(by: &[&str], options: &[(&str, &str)]) -> Self {
        let directory = Directory::new();
        let mut table = table(&format!("file://{}", directory.0.display()), options);
        table.partition_keys = by.iter().map(|key| (*key).to_owned()).collect();
        Self { factory: FileSinkFactory::new(&table, None).unwrap(), directory, table }
    }
}

impl Subject for Files {
    fn factory(&self) -> &dyn SinkFactory {
        &self.factory
    }

    fn rows(&self, numbers: Range<i64>) -> Batch {
        rows(numbers)
    }

    fn visible(&self) -> Result<Vec<i64>, String> {
        let format = self.table.option("format").unwrap();
        let path = self.table.option("path").unwrap();
        let partition_keys = self.table.partition_keys.clone();
        let table = TableDescriptor { partition_keys, ..table(path, &[("format", format)]) };
        Ok(read_all(open_source(&table, (0, 1), RestoredState::default()).as_mut()))
    }

    fn open_transactions(&self) -> Result<usize, String> {
        Ok(hidden(&self.directory.0).len())
    }

    fn destroy(&self, committable: &Committable) -> Result<(), String> {
        let file = file_of(committable).map_err(|error| error.to_string())?;
        let (directory, name) = file.key.rsplit_once('/').unwrap_or(("", &file.key));
        let path = self.directory.0.join(directory).join(format!(".{name}.inprogress"));
        std::fs::remove_file(path).map_err(|error| error.to_string())
    }
}

fn hidden(directory: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap().map(Result::unwrap) {
        if entry.path().is_dir() {
            found.extend(hidden(&entry.path()));
        } else {
            found.push(entry.file_name().to_str().unwrap().to_owned());
        }
    }
    found.retain(|name| name.starts_with('.'));
    found
}

#[test]
fn the_sink_on_a_file_system_stands_the_suite() {
    for format in ["json", "csv", "parquet", "debezium-json"] {
        conformance::check(|| Ok(Files::new(&[("format", format)]))).unwrap_or_else(|what| panic!("{format}: {what}"));
    }
    // A file for every row, in more directories than are open at once.
    conformance::check(|| Ok(Files::partitioned(&["n"], &[("format", "json")]))).unwrap();
    // A file for every batch.
    let small = [("format", "json"), ("sink.rolling-policy.file-size", "1b")];
    conformance::check(|| Ok(Files::new(&small))).unwrap();
}

fn write(files: &Files, batches: impl Iterator<Item = Range<i64>>, run: Run) {
    write_run(files, batches.map(rows), run);
}

fn write_all(files: &Files, batches: Vec<Batch>) {
    write_run(files, batches.into_iter(), Run::default());
}

fn job() -> JobId {
    JobId { namespace: "n".into(), name: "j".into(), uid: "u".into() }
}

fn open_sink(files: &Files, run: Run) -> Box<dyn Sink> {
    let mut sink = files.factory.create().unwrap();
    let identity = TaskIdentity { job: job(), run };
    let (waker, clock) = (Arc::new(|| {}) as Arc<_>, Arc::new(Timestamp::default) as Arc<_>);
    sink.open(SinkContext { operator: operator(0, 1), identity, waker, clock }).unwrap();
    sink
}

fn committer(files: &Files) -> Box<dyn Committer> {
    files.factory.committer(CommitterContext { job: job(), sink: "t".into() }).unwrap().unwrap()
}

fn write_run(files: &Files, batches: impl Iterator<Item = Batch>, run: Run) {
    let mut sink = open_sink(files, run);
    for batch in batches {
        while !sink.is_writable().unwrap() {
            std::thread::sleep(Duration::from_millis(1));
        }
        sink.write(batch).unwrap();
    }
    while !sink.flush().unwrap() {
        std::thread::sleep(Duration::from_millis(1));
    }
    let mut committer = committer(files);
    for handle in sink.committables(CheckpointId(1)).unwrap() {
        committer.commit(&handle).unwrap();
    }
}

#[test]
fn files_end_at_their_size() {
    for format in ["json", "csv", "parquet", "debezium-json"] {
        let files = Files::new(&[("format", format), ("sink.rolling-policy.file-size", "200 kb")]);
        write(&files, (0..100).map(|batch| batch * 1000..batch * 1000 + 1000), Run::default());
        let count = std::fs::read_dir(&files.directory.0).unwrap().count();
        assert!((5..40).contains(&count), "{format}: {count} files");
        let mut found = files.visible().unwrap();
        found.sort_unstable();
        assert!(found.into_iter().eq(0..100_000), "{format}");
    }
}

/// What a subtask restores.
fn own(table: &TableDescriptor, (subtask, parallelism): (u32, u32), states: &[SplitState]) -> RestoredState {
    let factory = FileSourceFactory::new(table, None).unwrap();
    let own = states.iter().filter(|state| factory.owner(&state.split, parallelism).0 == subtask);
    RestoredState { restored: true, splits: own.cloned().collect(), ..RestoredState::default() }
}

#[test]
fn a_source_goes_on_where_its_splits_were_under_any_parallelism() {
    for format in ["json", "csv", "parquet", "debezium-json"] {
        let files = Files::new(&[("format", format), ("sink.rolling-policy.file-size", "300 kb")]);
        write(&files, (0..60).map(|batch| batch * 1000..batch * 1000 + 1000), Run::default());
        let table = table(files.table.option("path").unwrap(), &[("format", format)]);
        let mut found = vec![];
        let mut states: Vec<SplitState> = vec![];
        for subtask in 0..2 {
            let mut source = open_source(&table, (subtask, 2), RestoredState::default());
            let mut polls = 0;
            while polls < 3 {
                match source.poll(1000).unwrap() {
                    SourcePoll::Batch(batch) => {
                        found.extend(numbers(&batch));
                        polls += 1;
                    }
                    SourcePoll::Pending => std::thread::sleep(Duration::from_millis(2)),
                    SourcePoll::Finished => break,
                }
            }
            states.extend(source.snapshot().unwrap());
        }
        assert!(!found.is_empty() && found.len() < 60_000, "{format}: it was stopped in the middle");
        for subtask in 0..3 {
            found.extend(read_all(open_source(&table, (subtask, 3), own(&table, (subtask, 3), &states)).as_mut()));
        }
        found.sort_unstable();
        assert!(found.into_iter().eq(0..60_000), "{format}: each row once");
    }
}

#[test]
fn a_watched_directory_brings_new_files_and_shows_no_hidden_ones() {
    let files = Files::new(&[("format", "json")]);
    write(&files, std::iter::once(0..10), Run::default());
    std::fs::write(files.directory.0.join("_temporary.json"), "no json").unwrap();
    std::fs::write(files.directory.0.join(".hidden.json"), "no json").unwrap();
    let options = [("format", "json"), ("source.monitor-interval", "20 ms")];
    let mut source =
        open_source(&table(files.table.option("path").unwrap(), &options), (0, 1), RestoredState::default());
    let mut until = |count: usize| {
        let mut found = vec![];
        for _ in 0..2000 {
            match source.poll(1000).unwrap() {
                SourcePoll::Batch(batch) => found.extend(numbers(&batch)),
                SourcePoll::Pending => std::thread::sleep(Duration::from_millis(5)),
                SourcePoll::Finished => panic!("it never finishes"),
            }
            if found.len() >= count {
                return found;
            }
        }
        panic!("{found:?}")
    };
    assert!(until(10).into_iter().eq(0..10));
    write(&files, std::iter::once(10..15), Run { generation: sluice_protocol::Generation(2), ..Run::default() });
    assert!(until(5).into_iter().eq(10..15));
}

#[test]
fn a_line_that_crosses_ranges_is_read_once() {
    let directory = Directory::new();
    let mut text = String::new();
    for number in 0..500 {
        text.push_str(&format!("{{\"n\":{number},\"text\":\"text \\\"{number}\\\", and more\"}}\r\n"));
    }
    // The last one has no end.
    let text = text.trim_end().to_owned();
    std::fs::write(directory.0.join("a.json"), &text).unwrap();
    let path = format!("file://{}", directory.0.display());
    let options = Arc::new(options::read_source(&table(&path, &[("format", "json")]), None).unwrap());
    let store = sluice_storage::open_store(&path, None).unwrap();
    let files = rows::Files { store, runtime: Arc::new(runtime().unwrap()), options };
    for range in [7, 37, 38, 64, 1000, 100_000] {
        let mut found = vec![];
        let size = text.len() as u64;
        for start in (0..size).step_by(range) {
            let end = size.min(start + range as u64);
            let split = splits::Split { file: "a.json".into(), start, end, progress: splits::Progress::default() };
            files
                .read(&split, &mut |piece, _| {
                    found.extend(piece.batch.iter().flat_map(numbers));
                    true
                })
                .unwrap();
        }
        assert!(found.into_iter().eq(0..500), "ranges of {range} bytes");
    }
}

/// All rows of a table as text.
fn all_text(table: &TableDescriptor) -> (String, u64) {
    let mut source = open_source(table, (0, 1), RestoredState::default());
    let mut text = String::new();
    loop {
        match source.poll(1000).unwrap() {
            SourcePoll::Batch(batch) => {
                let pretty = arrow::util::pretty::pretty_format_batches(&[batch.rows]).unwrap().to_string();
                let rows = pretty.lines().filter(|line| line.starts_with("| ")).skip(1);
                rows.for_each(|row| {
                    text.push_str(&format!("{}\n", row.split_whitespace().collect::<Vec<_>>().join(" ")))
                });
            }
            SourcePoll::Pending => std::thread::sleep(Duration::from_millis(1)),
            SourcePoll::Finished => return (text, source.malformed_records()),
        }
    }
}

#[test]
fn lines_of_csv_are_read_by_position_and_bad_ones_passed_over() {
    let directory = Directory::new();
    let path = format!("file://{}", directory.0.display());
    std::fs::write(directory.0.join("a.csv"), "1,\"a\nb\"\nmany,c\n\n3\r\n4,\"d\"\"\"").unwrap();
    let options = [("format", "csv"), ("csv.ignore-parse-errors", "true")];
    let (text, malformed) = all_text(&table(&path, &options));
    assert_eq!((text.as_str(), malformed), ("| 1 | a |\n| | b |\n| | c |\n| 4 | d\" |\n", 1));
    let part = Arc::new(Schema::new(vec![Field::new("text", DataType::Utf8, true)]));
    let only_text = TableDescriptor { schema: part, ..table(&path, &options) };
    assert_eq!(all_text(&only_text).0, "| a |\n| b |\n| c |\n| d\" |\n");
}

#[test]
fn lines_are_raw_values_or_changes() {
    let directory = Directory::new();
    let path = format!("file://{}", directory.0.display());
    let change = r#"{"before":{"n":1,"text":"a"},"after":{"n":1,"text":"b"},"op":"u"}"#;
    std::fs::write(directory.0.join("a.json"), format!("{change}\n\n")).unwrap();
    let schema = Arc::new(Schema::new(vec![Field::new("line", DataType::Utf8, true)]));
    let options = table(&path, &[("format", "raw")]).options;
    let raw = TableDescriptor::new("t", schema, vec![], options);
    assert_eq!(all_text(&raw).0, format!("| {change} |\n| |\n"));
    let changes = table(&path, &[("format", "debezium-json")]);
    assert_eq!(FileSourceFactory::new(&changes, None).unwrap().produced_kinds(), ProducedKinds::All);
    assert_eq!(all_text(&changes).0, "| 1 | a |\n| 1 | b |\n");
}

#[test]
fn a_file_is_named_in_columns_and_what_is_no_line_goes_along() {
    let directory = Directory::new();
    let path = format!("file://{}", directory.0.display());
    std::fs::create_dir_all(directory.0.join("a")).unwrap();
    std::fs::write(directory.0.join("a/b.csv"), "1,x\ny\n2,z\n").unwrap();
    let field = |name, data_type| Field::new(name, data_type, true);
    let columns = [("size", "file.size"), ("file.name", "file.name")];
    let schema = Schema::new(vec![
        field("size", DataType::Int64),
        field("n", DataType::Int64),
        field("file.name", DataType::Utf8),
        field("text", DataType::Utf8),
    ]);
    let with = |schema: &Schema, more: &[(&str, &str)]| TableDescriptor {
        schema: Arc::new(schema.clone()),
        declared: Arc::new(schema.clone()),
        metadata: columns.map(|(column, key)| (column.to_owned(), key.to_owned())).into(),
        ..table(&path, &[&[("format", "csv")], more].concat())
    };
    let skipping = with(&schema, &[("csv.ignore-parse-errors", "true")]);
    assert_eq!(all_text(&skipping), ("| 10 | 1 | b.csv | x |\n| 10 | 2 | b.csv | z |\n".to_owned(), 1));
    let table = with(&schema, &[("dead-letter", "bad")]);
    let factory = FileSourceFactory::new(&table, None).unwrap();
    assert_eq!(factory.schema(), sluice_engine::table::with_dead_letters(&schema));
    let uri = sluice_storage::open_store(&path, None).unwrap().uri().to_owned();
    let reason = "incorrect number of fields for line 1, expected 2 got 1";
    let expected = format!(
        "| 10 | 1 | b.csv | x | | | | |\n| 10 | 2 | b.csv | z | | | | |\n| | | | | 79 | y | {uri}/a/b.csv@4 | {reason} |\n"
    );
    assert_eq!(all_text(&table), (expected, 1));
    let mut timed = with(&Schema::new(vec![field("n", DataType::Int64)]), &[("csv.ignore-parse-errors", "true")]);
    let time = DataType::Timestamp(arrow::datatypes::TimeUnit::Millisecond, Some("UTC".into()));
    timed.schema =
        Arc::new(Schema::new(vec![field("at", time), field("n", DataType::Int64), field("text", DataType::Utf8)]));
    timed.declared = Arc::clone(&timed.schema);
    timed.metadata = [("at".to_owned(), "file.modification-time".to_owned())].into();
    let changed = std::time::UNIX_EPOCH + Duration::from_millis(1_704_110_400_123);
    let file = std::fs::OpenOptions::new().append(true).open(directory.0.join("a/b.csv")).unwrap();
    file.set_modified(changed).unwrap();
    let at = "2024-01-01T12:00:00.123Z";
    assert_eq!(all_text(&timed), (format!("| {at} | 1 | x |\n| {at} | 2 | z |\n"), 1));
    let unknown = Schema::new(vec![field("n", DataType::Int64), field("size", DataType::Utf8)]);
    let refused = FileSourceFactory::new(&with(&unknown, &[]), None).err().unwrap().to_string();
    assert!(refused.contains("'file.size' is Int64"), "{refused}");
}

#[test]
fn what_cannot_be_read_is_named() {
    let directory = Directory::new();
    std::fs::write(directory.0.join("bad.json"), "{\"n\":1,\"text\":\"text \\\"1\\\", and more\"}\n{\"n\":\n").unwrap();
    let path = format!("file://{}", directory.0.display());
    let mut source = open_source(&table(&path, &[("format", "json")]), (0, 1), RestoredState::default());
    let error = loop {
        match source.poll(10) {
            Ok(_) => std::thread::sleep(Duration::from_millis(2)),
            Err(error) => break error.to_string(),
        }
    };
    assert!(error.contains("bad.json") && error.contains("at byte 38"), "{error}");
}

#[test]
fn options_are_refused_by_name() {
    let refused = |options: &[(&str, &str)]| match FileSinkFactory::new(&table("file:///tmp/x", options), None) {
        Ok(_) => panic!("{options:?} was taken"),
        Err(error) => error.to_string(),
    };
    assert!(refused(&[("format", "orc")]).contains("'json', 'csv', 'raw', 'debezium-json', 'parquet'"));
    assert!(refused(&[("format", "json"), ("auto-compaction", "true")]).contains("'auto-compaction'"));
    assert!(refused(&[("format", "json"), ("sink.rolling-policy.file-size", "0")]).contains("128MB"));
    let relative = FileSinkFactory::new(&table("files", &[("format", "json")]), None).err().unwrap().to_string();
    assert!(relative.contains("file:///"), "{relative}");
}
