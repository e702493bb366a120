//! Tables of backend `Hash` within a limit: what they take is counted, given back, and refused by name beyond it.

use super::*;
use crate::state::memory::StateMemory;

fn table(memory: &Arc<StateMemory>, key: &DataType) -> Box<dyn KeyedTable> {
    let backend = StateBackend::HashWithin(Arc::clone(memory));
    let context = OperatorContext { state_backend: backend, ..crate::testing::context(0, 1) };
    context.keyed_table("counts", layout(&[("k", key.clone())])).unwrap()
}

fn keys(key: &DataType, keys: std::ops::Range<i64>) -> RecordBatch {
    let column: ArrayRef = match key {
        DataType::Int64 => Arc::new(keys.collect::<Int64Array>()),
        _ => Arc::new(StringArray::from_iter_values(keys.map(|key| format!("the key with number {key}")))),
    };
    RecordBatch::try_from_iter_with_nullable([("k", column, true)]).unwrap()
}

/// Adds keys until the table refuses.
fn fill(table: &mut dyn KeyedTable, key: &DataType) -> (i64, TaskError) {
    let mut added = 0;
    loop {
        let rows = keys(key, added..added + 1000);
        let (mut touched, mut words) = (TouchedKeys::default(), Vec::new());
        table.touch(&rows, &[0], &mut touched).unwrap();
        table.load(&touched, &mut words);
        if let Err(error) = table.store(&touched, &words, &vec![Fate::Write; touched.keys.len()]) {
            return (added, error);
        }
        added += 1000;
        assert!(added < 10_000_000, "nothing is refused");
    }
}

#[test]
fn what_is_too_much_is_refused_by_name_and_given_back_at_the_end() {
    for (key, least) in [(DataType::Int64, 16), (DataType::Utf8, 40)] {
        let memory = Arc::new(StateMemory::new(8 << 20));
        let mut first = table(&memory, &key);
        let (added, error) = fill(first.as_mut(), &key);
        assert_eq!(error.to_failure().reason, "MemoryExceeded");
        assert!(error.to_string().contains("state 'counts'") && error.to_string().contains("is 8 MiB"), "{error}");
        let per_key = (8 << 20) / added;
        assert!((least..=200).contains(&per_key), "{per_key} bytes per {key}");
        // Another table of the process has what the first one has left: nothing.
        assert!(fill(table(&memory, &key).as_mut(), &key).0 < added / 10);
        drop(first);
        assert_eq!(memory.used(), 0);
        assert!(fill(table(&memory, &key).as_mut(), &key).0 > added / 2);
    }
}

#[test]
fn a_table_that_shrinks_gives_back_and_may_always_do_so() {
    let memory = Arc::new(StateMemory::new(64 << 20));
    let key = DataType::Int64;
    let mut table = table(&memory, &key);
    add(table.as_mut(), &keys(&key, 0..200_000), 1);
    let full = memory.used();
    memory.set_limit(1 << 20);
    remove(table.as_mut(), &keys(&key, 0..199_000));
    assert!(memory.used() < full * 3 / 4, "{} of {full}", memory.used());
}
