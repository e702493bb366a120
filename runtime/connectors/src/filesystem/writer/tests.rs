//! How many files are open and how much they hold, whatever the partitions of a batch.

use super::super::tests::{Directory, operator, table};
use super::*;
use crate::filesystem::options::read_sink;
use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Schema};
use sluice_engine::operator::TaskIdentity;
use sluice_protocol::{JobId, Run};

/// Rows of these partitions, with so many other columns.
fn rows(partitions: usize, columns: usize) -> Batch {
    let mut fields = vec![Field::new("kind", DataType::Utf8, true)];
    fields.extend((0..columns).map(|column| Field::new(format!("c{column}"), DataType::Int64, true)));
    let kinds: ArrayRef = Arc::new(StringArray::from_iter_values((0..partitions).map(|kind| format!("p{kind}"))));
    let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(0..i64::try_from(partitions).unwrap()));
    let all = std::iter::once(kinds).chain(std::iter::repeat_n(numbers, columns));
    Batch::inserts(RecordBatch::try_new(Arc::new(Schema::new(fields)), all.collect()).unwrap())
}

fn writer(directory: &Directory, format: &str, rows: &Batch) -> FileWriter {
    let mut table = table(&format!("file://{}", directory.0.display()), &[("format", format)]);
    table.schema = rows.rows.schema();
    table.declared = Arc::clone(&table.schema);
    table.partition_keys = vec!["kind".to_owned()];
    let mut writer = FileWriter::new(Arc::new(read_sink(&table, None).unwrap()));
    let job = JobId { namespace: "n".into(), name: "j".into(), uid: "u".into() };
    let identity = TaskIdentity { job, run: Run::default() };
    let (waker, clock) = (Arc::new(|| {}) as Arc<_>, Arc::new(Timestamp::default) as Arc<_>);
    writer.open(SinkContext { operator: operator(0, 1), identity, waker, clock }).unwrap();
    "transaction".clone_into(&mut writer.transaction);
    writer
}

#[test]
fn files_are_few_even_while_a_batch_of_many_partitions_is_written() {
    let (directory, batch) = (Directory::new(), rows(1000, 1));
    let mut writer = writer(&directory, "json", &batch);
    for (partition, rows) in writer.options.layout.split(batch).unwrap() {
        writer.write_to(partition, &rows).unwrap();
        assert!(writer.open.len() <= MOST_OPEN, "{} files are open", writer.open.len());
    }
    let staged = loop {
        match writer.pre_commit().unwrap() {
            PreCommit::Staged(files) => break files,
            PreCommit::Pending => std::thread::sleep(std::time::Duration::from_millis(2)),
        }
    };
    assert_eq!(staged.len(), 1000);
}

#[test]
fn what_few_rows_in_many_columns_of_many_files_take_in_memory_is_counted() {
    let (directory, batch) = (Directory::new(), rows(30, 64));
    let mut writer = writer(&directory, "parquet", &batch);
    let of_file = |open: &Open| match &open.encoder {
        Encoder::Parquet { file, .. } => file.inner().len() + file.memory_size(),
        Encoder::Lines { .. } => 0,
    };
    let mut most = 0;
    for (partition, rows) in writer.options.layout.split(batch).unwrap() {
        writer.write_to(partition, &rows).unwrap();
        most = most.max(writer.open.values().map(of_file).sum::<usize>());
    }
    assert!((MOST_HELD / 2..=MOST_HELD).contains(&most), "{most} bytes");
}
