//! A sink at a rate refuses rows until the rate has caught up, and wakes the task then.

use super::*;
use arrow::array::{ArrayRef, Int64Array, RecordBatch};
use arrow::datatypes::{DataType, Field, Schema};
use sluice_engine::operator::OperatorContext;
use sluice_engine::table::TableOption;
use sluice_protocol::{KeyGroupRange, OperatorUid, SubtaskIndex, Timestamp};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

fn factory(options: &[(&str, &str)]) -> Result<BlackholeSinkFactory, TableError> {
    let option = |(key, value): &(&str, &str)| TableOption { key: (*key).to_owned(), value: (*value).to_owned() };
    let mut all = vec![option(&("connector", "blackhole"))];
    all.extend(options.iter().map(option));
    let schema = Arc::new(Schema::new(vec![Field::new("n", DataType::Int64, true)]));
    BlackholeSinkFactory::new(&TableDescriptor::new("t", schema, vec![], all))
}

fn batch(rows: i64) -> Batch {
    let column: ArrayRef = Arc::new(Int64Array::from_iter_values(0..rows));
    Batch::inserts(RecordBatch::try_from_iter([("n", column)]).unwrap())
}

#[test]
fn a_rate_is_kept_by_all_writers_together_and_the_task_is_woken() {
    let (now, woken) = (Arc::new(AtomicU64::new(1000)), Arc::new(AtomicUsize::new(0)));
    let (clock, wakes) = (Arc::clone(&now), Arc::clone(&woken));
    let context = SinkContext {
        operator: OperatorContext {
            uid: OperatorUid::from("sink"),
            subtask: SubtaskIndex(0),
            parallelism: 2,
            key_groups: KeyGroupRange { start: 0, end: 64 },
            max_parallelism: 128,
            state_backend: sluice_engine::state::StateBackend::default(),
        },
        identity: sluice_engine::operator::TaskIdentity::default(),
        waker: Arc::new(move || {
            wakes.fetch_add(1, Ordering::SeqCst);
        }),
        clock: Arc::new(move || Timestamp(clock.load(Ordering::SeqCst))),
    };
    let mut sink = factory(&[("rows-per-second", "2000")]).unwrap().create().unwrap();
    sink.open(context).unwrap();
    assert!(sink.is_writable().unwrap());
    sink.write(batch(500)).unwrap();
    assert!(!sink.is_writable().unwrap());
    now.store(1499, Ordering::SeqCst);
    assert!(!sink.is_writable().unwrap(), "1000 rows a second for one of two writers");
    let deadline = Instant::now() + Duration::from_secs(20);
    while woken.load(Ordering::SeqCst) == 0 {
        assert!(Instant::now() < deadline, "the task was not woken");
        std::thread::sleep(Duration::from_millis(5));
    }
    now.store(1501, Ordering::SeqCst);
    assert!(sink.is_writable().unwrap());
}

#[test]
fn a_rate_that_is_none_is_refused() {
    for rate in ["0", "-1", "fast"] {
        let error = factory(&[("rows-per-second", rate)]).err().unwrap().to_string();
        assert!(error.contains("rows-per-second"), "{error}");
    }
    factory(&[]).unwrap();
}
