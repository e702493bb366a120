//! A sink that remembers what it was given, and fails on request.

use arrow::array::{Array, Int64Array};
use sluice_engine::batch::{Batch, RowKind};
use sluice_engine::error::TaskError;
use sluice_engine::program::Program;
use sluice_engine::sink::{AcceptedKinds, Sink, SinkContext, SinkFactory};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// What came, by the first column: the last value of the second. Rows are key and value, both BIGINT.
#[derive(Clone, Default)]
pub(crate) struct Collected {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    values: Mutex<BTreeMap<i64, i64>>,
    first_at: Mutex<Option<Instant>>,
    fail: AtomicBool,
    stalled: AtomicBool,
}

impl Collected {
    /// Puts itself in place of every sink.
    pub(crate) fn replace_sinks(&self, program: &mut Program) {
        for vertex in &mut program.vertices {
            if let Some((_, factory)) = &mut vertex.sink {
                *factory = Arc::new(self.clone());
            }
        }
    }

    pub(crate) fn last_values(&self) -> BTreeMap<i64, i64> {
        self.shared.values.lock().unwrap().clone()
    }

    pub(crate) fn first_at(&self) -> Option<Instant> {
        *self.shared.first_at.lock().unwrap()
    }

    /// Whether there is no room from now on.
    pub(crate) fn stall(&self, stalled: bool) {
        self.shared.stalled.store(stalled, Ordering::SeqCst);
    }

    /// The next write fails.
    pub(crate) fn fail_once(&self) {
        self.shared.fail.store(true, Ordering::SeqCst);
    }
}

impl SinkFactory for Collected {
    fn create(&self) -> Result<Box<dyn Sink>, TaskError> {
        Ok(Box::new(self.clone()))
    }

    fn accepted_kinds(&self) -> AcceptedKinds {
        AcceptedKinds::Upsert
    }
}

impl Sink for Collected {
    fn open(&mut self, _: SinkContext) -> Result<(), TaskError> {
        Ok(())
    }

    fn is_writable(&mut self) -> Result<bool, TaskError> {
        Ok(!self.shared.stalled.load(Ordering::SeqCst))
    }

    fn write(&mut self, batch: Batch) -> Result<(), TaskError> {
        if self.shared.fail.swap(false, Ordering::SeqCst) {
            return Err(TaskError::External("the sink was told to fail".to_owned()));
        }
        self.shared.first_at.lock().unwrap().get_or_insert_with(Instant::now);
        let column = |at: usize| batch.rows.column(at).as_any().downcast_ref::<Int64Array>().unwrap().clone();
        let (keys, counts) = (column(0), column(1));
        let mut values = self.shared.values.lock().unwrap();
        for row in 0..keys.len() {
            let kind = batch.kinds.as_ref().map_or(RowKind::Insert as u8, |kinds| kinds.value(row));
            if kind == RowKind::UpdateBefore as u8 || kind == RowKind::Delete as u8 {
                continue;
            }
            values.insert(keys.value(row), counts.value(row));
        }
        Ok(())
    }
}
