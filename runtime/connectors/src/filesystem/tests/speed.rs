//! How fast rows become Parquet.

use super::*;
use parquet::arrow::ArrowWriter;
use parquet::basic::Compression;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use std::time::Instant;

#[test]
#[ignore = "measures"]
fn speed_of_parquet() {
    let schema = Arc::new(Schema::new(vec![
        Field::new("k", DataType::Int64, true),
        Field::new("v", DataType::Int64, true),
        Field::new("t", DataType::Utf8, true),
    ]));
    let mut state = 1_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let batches: Vec<RecordBatch> = (0..500)
        .map(|_| {
            let k: ArrayRef = Arc::new(Int64Array::from_iter_values((0..4096).map(|_| (next() % 100_000) as i64)));
            let v: ArrayRef = Arc::new(Int64Array::from_iter_values((0..4096).map(|_| (next() % 1000) as i64)));
            let t: ArrayRef =
                Arc::new(StringArray::from_iter_values((0..4096).map(|_| format!("{:016x}{:016x}", next(), next()))));
            RecordBatch::try_new(schema.clone(), vec![k, v, t]).unwrap()
        })
        .collect();
    let base = || WriterProperties::builder().set_compression(Compression::SNAPPY);
    let variants: Vec<(&str, WriterProperties)> = vec![
        ("as is", base().build()),
        ("chunk statistics", base().set_statistics_enabled(EnabledStatistics::Chunk).build()),
        ("no dictionary", base().set_dictionary_enabled(false).build()),
        ("no dictionary for t", base().set_column_dictionary_enabled("t".into(), false).build()),
        ("dictionary 256k", base().set_dictionary_page_size_limit(256 << 10).build()),
        ("batch 8192", base().set_write_batch_size(8192).build()),
        ("batch 64k", base().set_write_batch_size(65536).build()),
        ("no compression", WriterProperties::builder().build()),
        (
            "all",
            base()
                .set_statistics_enabled(EnabledStatistics::Chunk)
                .set_dictionary_enabled(false)
                .set_write_batch_size(8192)
                .build(),
        ),
    ];
    for (name, properties) in variants {
        let started = Instant::now();
        let mut writer = ArrowWriter::try_new(Vec::new(), schema.clone(), Some(properties)).unwrap();
        let mut size = 0;
        for batch in &batches {
            writer.write(batch).unwrap();
            if writer.in_progress_size() >= 32 << 20 {
                writer.flush().unwrap();
                size += std::mem::take(writer.inner_mut()).len();
            }
        }
        size += writer.into_inner().unwrap().len();
        let rate = 500.0 * 4096.0 * 48.0 / 1e6 / started.elapsed().as_secs_f64();
        println!("{name}: {rate:.0} MB/s, {size} bytes");
    }
}
