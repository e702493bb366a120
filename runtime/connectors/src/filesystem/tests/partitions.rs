//! Tables with PARTITIONED BY: where files lie, what stands in them, and what is refused.

use super::*;

/// Of `n`, `text` and `kind`, partitioned by the last.
fn partitioned(path: &str, kind: DataType, options: &[(&str, &str)]) -> TableDescriptor {
    let mut table = table(path, options);
    let mut fields = schema().fields().to_vec();
    fields.insert(1, Arc::new(Field::new("kind", kind, true)));
    table.schema = Arc::new(Schema::new(fields));
    table.declared = Arc::clone(&table.schema);
    table.partition_keys = vec!["kind".to_owned()];
    table
}

fn rows_of(kinds: &[Option<&str>]) -> Batch {
    let rows = rows(0..i64::try_from(kinds.len()).unwrap());
    let kinds: ArrayRef = Arc::new(StringArray::from(kinds.to_vec()));
    let columns = vec![rows.rows.column(0).clone(), kinds, rows.rows.column(1).clone()];
    let table = partitioned("file:///tmp/x", DataType::Utf8, &[("format", "json")]);
    Batch::inserts(RecordBatch::try_new(table.schema, columns).unwrap())
}

#[test]
fn each_partition_is_a_directory_whose_name_says_its_column() {
    for format in ["json", "csv", "parquet"] {
        let directory = Directory::new();
        let path = format!("file://{}", directory.0.display());
        let table = partitioned(&path, DataType::Utf8, &[("format", format)]);
        let files = Files { factory: FileSinkFactory::new(&table, None).unwrap(), directory, table };
        write_all(&files, vec![rows_of(&[Some("a/b"), None, Some("c")]), rows_of(&[Some("c"), Some("c")])]);
        let mut directories: Vec<String> = std::fs::read_dir(&files.directory.0)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().to_str().unwrap().to_owned())
            .collect();
        directories.sort();
        assert_eq!(directories, ["kind=__HIVE_DEFAULT_PARTITION__", "kind=a%2Fb", "kind=c"], "{format}");
        for name in &directories {
            // Both batches of `c` are in one file.
            assert_eq!(std::fs::read_dir(files.directory.0.join(name)).unwrap().count(), 1, "{format}: {name}");
        }
        let (text, _) = all_text(&files.table);
        let mut found: Vec<&str> = text.lines().collect();
        found.sort_unstable();
        let row = |n: u32, kind: &str| format!("| {n} | {kind}text \"{n}\", and more |");
        let expected = [row(0, "a/b | "), row(0, "c | "), row(1, "c | "), row(1, "| "), row(2, "c | ")];
        assert_eq!(found, expected, "{format}");
        if format == "json" {
            let file = std::fs::read_dir(files.directory.0.join("kind=a%2Fb")).unwrap().next().unwrap().unwrap();
            let text = std::fs::read_to_string(file.path()).unwrap();
            assert_eq!(text, "{\"n\":0,\"text\":\"text \\\"0\\\", and more\"}\n");
        }
    }
}

#[test]
fn what_a_directory_cannot_say_is_named() {
    let directory = Directory::new();
    let path = format!("file://{}", directory.0.display());
    let options = [("format", "json")];
    let read = || {
        let mut source = open_source(&partitioned(&path, DataType::Int32, &options), (0, 1), RestoredState::default());
        loop {
            match source.poll(10) {
                Ok(SourcePoll::Finished) => panic!("it was read"),
                Ok(_) => std::thread::sleep(Duration::from_millis(2)),
                Err(error) => return error.to_string(),
            }
        }
    };
    std::fs::create_dir(directory.0.join("kind=seven")).unwrap();
    std::fs::write(directory.0.join("kind=seven/a.json"), "{\"n\":1}\n").unwrap();
    let error = read();
    assert!(error.contains("kind=seven/a.json") && error.contains("'seven'"), "{error}");
    std::fs::remove_file(directory.0.join("kind=seven/a.json")).unwrap();
    std::fs::write(directory.0.join("a.json"), "{\"n\":1}\n").unwrap();
    let error = read();
    assert!(error.contains("lies in no directory 'kind=…'"), "{error}");

    let of_times = partitioned(&path, DataType::Float64, &options);
    let refused = FileSinkFactory::new(&of_times, None).err().unwrap().to_string();
    assert!(refused.contains("'kind' is Float64"), "{refused}");
    let unpartitioned = table(&path, &[("format", "json"), ("partition.default-name", "none")]);
    let refused = FileSinkFactory::new(&unpartitioned, None).err().unwrap().to_string();
    assert!(refused.contains("PARTITIONED BY"), "{refused}");
}

#[test]
fn a_value_that_no_directory_can_be_named_by_is_refused() {
    let directory = Directory::new();
    let path = format!("file://{}", directory.0.display());
    let table = partitioned(&path, DataType::Utf8, &[("format", "json")]);
    let files = Files { factory: FileSinkFactory::new(&table, None).unwrap(), directory, table };
    // 'kind=' is 5 bytes, and '%2F' is 3.
    let (long, longest) = (format!("{}/", "x".repeat(248)), format!("{}/", "x".repeat(247)));
    let refused = open_sink(&files, Run::default()).write(rows_of(&[Some("a"), Some(&long)]));
    let Err(TaskError::BadData(message)) = refused else { panic!("{refused:?}") };
    for part in ["table 't'", "column 'kind'", "256 bytes", "'xxxx"] {
        assert!(message.contains(part), "no {part}: {message}");
    }
    assert!(message.len() < 300, "it holds all of the value: {message}");
    write_all(&files, vec![rows_of(&[Some(&longest)])]);
    let found = std::fs::read_dir(&files.directory.0).unwrap().find(|entry| {
        let entry = entry.as_ref().unwrap();
        entry.file_name().len() == 255 && std::fs::read_dir(entry.path()).unwrap().count() == 1
    });
    assert!(found.is_some());
}

/// As docs/memory.md says.
#[test]
fn a_sink_says_what_it_holds() {
    let path = "file:///nowhere";
    let of = |table: &TableDescriptor| FileSinkFactory::new(table, None).unwrap().buffered_bytes() >> 20;
    let formats = ["json", "parquet"].map(|format| [("format", format)]);
    assert_eq!(formats.map(|format| of(&table(path, &format))), [40, 64]);
    assert_eq!(formats.map(|format| of(&partitioned(path, DataType::Utf8, &format))), [96, 96]);
}
