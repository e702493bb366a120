//! Lines from a real server: whole, in order, to the end, and what is no line.

use super::*;
use arrow::array::AsArray;
use arrow::datatypes::{Field, Int64Type, Schema};
use sluice_engine::operator::{OperatorContext, RestoredState};
use sluice_engine::source::{SourceContext, SourcePoll};
use sluice_engine::table::TableOption;
use sluice_protocol::{KeyGroupRange, OperatorUid, Timestamp};
use std::io::Write as _;
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

fn table(fields: Vec<Field>, options: &[(&str, &str)]) -> TableDescriptor {
    let option = |(key, value): &(&str, &str)| TableOption { key: (*key).to_owned(), value: (*value).to_owned() };
    let mut all = vec![option(&("connector", "socket"))];
    all.extend(options.iter().map(option));
    TableDescriptor::new("t", Arc::new(Schema::new(fields)), vec![], all)
}

fn line() -> Vec<Field> {
    vec![Field::new("line", DataType::Utf8, true)]
}

fn context(subtask: u32) -> SourceContext {
    SourceContext {
        operator: OperatorContext {
            uid: OperatorUid::from("source"),
            subtask: SubtaskIndex(subtask),
            parallelism: 2,
            key_groups: KeyGroupRange { start: 0, end: 128 },
            max_parallelism: 128,
            state_backend: sluice_engine::state::StateBackend::default(),
        },
        waker: Arc::new(|| ()),
        clock: Arc::new(|| Timestamp(0)),
        by_split: false,
    }
}

/// A server and a source that is connected to it.
fn connected(fields: Vec<Field>, options: &[(&str, &str)]) -> (TcpStream, Box<dyn Source>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let all = [&[("hostname", "127.0.0.1"), ("port", port.as_str())], options].concat();
    let factory = SocketSourceFactory::new(&table(fields, &all)).unwrap_or_else(|error| panic!("{error}"));
    let mut source = factory.create().unwrap();
    source.open(context(0), RestoredState::default()).unwrap();
    (listener.accept().unwrap().0, source)
}

/// Batches until the end, or the error.
fn read(source: &mut dyn Source) -> Result<Vec<arrow::array::RecordBatch>, TaskError> {
    let (mut batches, deadline) = (Vec::new(), Instant::now() + Duration::from_secs(30));
    while Instant::now() < deadline {
        match source.poll(3)? {
            SourcePoll::Batch(batch) => batches.push(batch.rows),
            SourcePoll::Finished => return Ok(batches),
            SourcePoll::Pending => std::thread::sleep(Duration::from_millis(1)),
        }
    }
    panic!("the source has not ended");
}

fn texts(source: &mut dyn Source) -> Vec<String> {
    let batches = read(source).unwrap();
    let column = |batch: &arrow::array::RecordBatch| -> Vec<String> {
        batch.column(0).as_string::<i32>().iter().map(|text| text.unwrap().to_owned()).collect()
    };
    batches.iter().flat_map(column).collect()
}

#[test]
fn lines_come_whole_and_in_order_whatever_pieces_they_are_sent_in() {
    let (mut server, mut source) = connected(line(), &[("format", "raw")]);
    let sent = "to be or\r\nnot\n\nto be\ngr\u{f6}\u{df}e\nlast".as_bytes();
    for piece in sent.chunks(3) {
        server.write_all(piece).unwrap();
        std::thread::sleep(Duration::from_millis(2));
    }
    drop(server);
    assert_eq!(texts(&mut *source), ["to be or", "not", "", "to be", "größe", "last"]);
}

#[test]
fn another_byte_may_end_a_line_and_a_fast_server_is_held_back() {
    let (mut server, mut source) = connected(line(), &[("format", "raw"), ("byte-delimiter", "59")]);
    let sent: Vec<String> = (0..200_000).map(|number| number.to_string()).collect();
    let text = sent.join(";");
    let writer = std::thread::spawn(move || server.write_all(text.as_bytes()).unwrap());
    assert_eq!(texts(&mut *source), sent);
    writer.join().unwrap();
}

#[test]
fn json_lines_are_rows_and_one_that_is_none_is_named() {
    let fields = || vec![Field::new("n", DataType::Int64, true)];
    let (mut server, mut source) = connected(fields(), &[("format", "json")]);
    server.write_all(b"{\"n\": 1}\n{\"n\": 2}\nno\n").unwrap();
    drop(server);
    let error = read(&mut *source).unwrap_err().to_string();
    assert!(error.contains("line 3") && error.contains("It begins: no"), "{error}");

    let options = [("format", "json"), ("json.ignore-parse-errors", "true")];
    let (mut server, mut source) = connected(fields(), &options);
    server.write_all(b"no\n{\"n\": 7}\nno\n").unwrap();
    drop(server);
    let rows = read(&mut *source).unwrap();
    assert_eq!(rows.iter().map(|rows| rows.column(0).as_primitive::<Int64Type>().value(0)).collect::<Vec<_>>(), [7]);
}

#[test]
fn what_is_no_text_or_no_line_fails_by_name() {
    let (mut server, mut source) = connected(line(), &[("format", "raw")]);
    server.write_all(b"fine\n\xff\xfe\n").unwrap();
    drop(server);
    let error = read(&mut *source).unwrap_err().to_string();
    assert!(error.contains("line 2") && error.contains("UTF-8"), "{error}");

    let (mut server, mut source) = connected(line(), &[("format", "raw")]);
    let writer = std::thread::spawn(move || drop(server.write_all(&vec![b'x'; 3 << 20])));
    let error = read(&mut *source).unwrap_err().to_string();
    assert!(error.contains("byte-delimiter"), "{error}");
    drop(source);
    writer.join().unwrap();
}

#[test]
fn one_subtask_reads_and_a_server_that_is_not_there_is_named() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let options = [("hostname", "127.0.0.1"), ("port", port.as_str()), ("format", "raw")];
    let factory = SocketSourceFactory::new(&table(line(), &options)).unwrap_or_else(|error| panic!("{error}"));
    let mut second = factory.create().unwrap();
    second.open(context(1), RestoredState::default()).unwrap();
    assert!(matches!(second.poll(10), Ok(SourcePoll::Finished)));
    assert!(second.snapshot().unwrap().is_empty());
    let error = factory.create().unwrap().open(context(0), RestoredState::default()).unwrap_err().to_string();
    assert!(error.contains(&port) && error.contains("nc -lk"), "{error}");
    assert!(factory.note().is_some_and(|note| note.contains("cannot be read again")));
}

#[test]
fn options_are_checked() {
    let refused = |fields: Vec<Field>, options: &[(&str, &str)]| {
        SocketSourceFactory::new(&table(fields, options)).err().unwrap().to_string()
    };
    let there = [("hostname", "h"), ("port", "1"), ("format", "raw")];
    assert!(refused(line(), &there[..2]).contains("'json', 'csv', 'raw', 'debezium-json'"));
    assert!(refused(line(), &[("hostname", "h"), ("port", "70000"), ("format", "raw")]).contains("65535"));
    assert!(refused(line(), &[&there[..], &[("byte-delimiter", "300")]].concat()).contains("byte"));
    let two = vec![Field::new("a", DataType::Utf8, true), Field::new("n", DataType::Int64, true)];
    assert!(refused(two, &there).contains("n Int64"));
}
