//! A path that is changed, files that grow, directories that are empty or out of sight, stores that are silent.

use super::super::patience::patiently;
use super::super::upload::Upload;
use super::*;
use sluice_engine::sink::{Commit, CommitError};
use sluice_storage::staging::Staging;
use sluice_storage::{S3Settings, StoreDeadlines, StoreFailure};
use std::cell::Cell;
use std::time::Instant;

const JSON: [(&str, &str); 1] = [("format", "json")];

fn line(number: i64) -> String {
    format!("{{\"n\":{number},\"text\":\"text \\\"{number}\\\", and more\"}}\n")
}

/// Handles of rows that are staged in the directory.
fn stage(files: &Files) -> Vec<Committable> {
    let mut sink = open_sink(files, Run::default());
    sink.write(rows(0..10)).unwrap();
    while !sink.flush().unwrap() {
        std::thread::sleep(Duration::from_millis(1));
    }
    sink.committables(CheckpointId(1)).unwrap()
}

#[test]
fn a_handle_is_committed_where_it_was_staged_though_the_path_has_changed() {
    let (before, after) = (Files::new(&JSON), Files::new(&JSON));
    let handles = stage(&before);
    for expected in [Commit::Committed, Commit::AlreadyCommitted] {
        assert_eq!(committer(&after).commit(&handles[0]), Ok(expected));
    }
    assert!(before.visible().unwrap().into_iter().eq(0..10));
    assert!(after.visible().unwrap().is_empty());
    // Out of sight is not lost, and both places are told.
    std::fs::remove_dir_all(&before.directory.0).unwrap();
    let Err(CommitError::Retriable(message)) = committer(&after).commit(&handles[0]) else { panic!("given up") };
    for files in [&before, &after] {
        assert!(message.contains(files.table.option("path").unwrap()), "{message}");
    }
}

#[test]
fn a_bounded_table_is_what_its_directory_held_when_its_source_first_started() {
    let directory = Directory::new();
    let table = table(&format!("file://{}", directory.0.display()), &JSON);
    let mut states = vec![];
    for subtask in 0..2 {
        states.extend(open_source(&table, (subtask, 2), RestoredState::default()).snapshot().unwrap());
    }
    assert_eq!(states.len(), 1, "that nothing was found is remembered");
    std::fs::write(directory.0.join("a.json"), line(1)).unwrap();
    for subtask in 0..3 {
        let mut source = open_source(&table, (subtask, 3), own(&table, (subtask, 3), &states));
        assert!(read_all(source.as_mut()).is_empty());
        assert_eq!(source.snapshot().unwrap().len(), usize::from(subtask == 0));
    }
    // One that is new in the program has not been there.
    assert_eq!(read_all(open_source(&table, (0, 1), RestoredState::default()).as_mut()), [1]);
}

/// Reads until this number has come, and a little more.
fn read_until(sources: &mut [Box<dyn Source>], last: i64) -> Vec<i64> {
    let (mut found, mut left) = (vec![], 2000);
    while left > 0 {
        for source in &mut *sources {
            if let SourcePoll::Batch(batch) = source.poll(1000).unwrap() {
                found.extend(numbers(&batch));
            }
        }
        left = if found.contains(&last) { left.min(60) } else { left } - 1;
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(found.contains(&last), "{found:?}");
    found.sort_unstable();
    found
}

#[test]
fn a_file_that_grows_into_another_range_is_not_read_again_neither_at_once_nor_after_a_restore() {
    let directory = Directory::new();
    let file = |number: i64| directory.0.join(format!("{number}.json"));
    let grow = |numbers: Range<i64>| {
        for number in numbers {
            // Zeros take no room on the disk.
            let opened = std::fs::OpenOptions::new().write(true).open(file(number)).unwrap();
            opened.set_len(splits::RANGE + 10).unwrap();
            let after = format!("\n{}", line(100 + number));
            std::os::unix::fs::FileExt::write_all_at(&opened, after.as_bytes(), splits::RANGE + 10).unwrap();
        }
    };
    (0..8).for_each(|number| std::fs::write(file(number), line(number)).unwrap());
    let options = [("format", "json"), ("source.monitor-interval", "20 ms")];
    let table = table(&format!("file://{}", directory.0.display()), &options);
    let open = |state: &dyn Fn(u32) -> RestoredState| -> Vec<Box<dyn Source>> {
        (0..3).map(|subtask| open_source(&table, (subtask, 3), state(subtask))).collect()
    };
    let mut sources = open(&|_| RestoredState::default());
    assert!(read_until(&mut sources, 7).into_iter().eq(0..8));
    grow(0..4);
    std::fs::write(file(8), line(8)).unwrap();
    assert_eq!(read_until(&mut sources, 8), [8]);
    let states: Vec<SplitState> = sources.iter_mut().flat_map(|source| source.snapshot().unwrap()).collect();
    drop(sources);
    grow(4..8);
    std::fs::write(file(9), line(9)).unwrap();
    let mut restored = open(&|subtask| own(&table, (subtask, 3), &states));
    assert_eq!(read_until(&mut restored, 9), [9]);
}

#[test]
fn a_read_that_fails_once_is_tried_again() {
    let directory = Directory::new();
    let path = directory.0.join("a.json");
    // Nothing can be read through it: too many levels of links.
    std::os::unix::fs::symlink("a.json", &path).unwrap();
    let uri = format!("file://{}", directory.0.display());
    let options = Arc::new(options::read_source(&table(&uri, &JSON), None).unwrap());
    let store = sluice_storage::open_store(&uri, None).unwrap();
    let files = rows::Files { store, runtime: Arc::new(runtime().unwrap()), options };
    let text = line(1);
    let split = splits::Split {
        file: "a.json".into(),
        start: 0,
        end: text.len() as u64,
        progress: splits::Progress::default(),
    };
    let mended = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(100));
        std::fs::write(path.with_extension("new"), text).unwrap();
        std::fs::rename(path.with_extension("new"), path).unwrap();
    });
    let mut found = vec![];
    let mut take = |piece: rows::Piece, _| {
        found.extend(piece.batch.iter().flat_map(numbers));
        true
    };
    files.read(&split, &mut take).unwrap();
    mended.join().unwrap();
    assert_eq!(found, [1]);
}

#[test]
fn who_has_gone_begins_no_further_try() {
    let runtime = runtime().unwrap();
    let silent = || StoreFailure { kind: StoreFailureKind::Unreachable, message: "no answer".into() };
    let tried = |gone_after: u32| {
        let tries = Cell::new(0);
        let attempt = async || {
            tries.set(tries.get() + 1);
            Err::<(), _>(silent())
        };
        runtime.block_on(patiently(|| tries.get() >= gone_after, attempt)).unwrap_err();
        tries.get()
    };
    assert_eq!((tried(1), tried(2), tried(100)), (1, 2, 5));
}

/// A task that is cancelled while S3 is silent must end within the minute after which its process is given up.
#[test]
fn a_writer_that_goes_does_not_wait_for_a_store_that_is_silent() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let credentials = sluice_storage::S3Credentials {
        access_key_id: "key".into(),
        secret_access_key: "secret".into(),
        session_token: None,
    };
    let minute = Duration::from_secs(60);
    let settings = S3Settings {
        bucket: "bucket".into(),
        endpoint: Some(format!("http://{}", listener.local_addr().unwrap())),
        path_style: true,
        credentials: Some(credentials),
        deadlines: StoreDeadlines { connect: minute, attempt: minute },
        ..S3Settings::default()
    };
    let upload = Upload::start(Staging::on_s3(settings).unwrap(), Arc::new(|| {})).unwrap();
    upload.begin(0, "part-0.json".to_owned()).unwrap();
    let _silent = listener.accept().unwrap();
    let begun = Instant::now();
    drop(upload);
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
}
