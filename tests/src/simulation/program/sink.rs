//! The sink: what its readers see, the last value of each key; sometimes too slow.

use super::{Counts, Events, column};
use crate::simulation::scenario::Scenario;
use sluice_engine::batch::{Batch, RowKind};
use sluice_engine::error::TaskError;
use sluice_engine::operator::Clock;
use sluice_engine::sink::{AcceptedKinds, Sink, SinkContext, SinkFactory};
use std::sync::{Arc, Mutex, PoisonError};

/// What the sink's writers have written, the last value of each key.
pub type View = Arc<Mutex<Counts>>;

/// How slow a sink is.
#[derive(Debug, Clone, Copy)]
pub struct Stalls {
    /// Of a hundred times that it is asked for room, how often it has none.
    pub percent: u32,
    /// Until when.
    pub until: u64,
}

impl Stalls {
    /// Those of a scenario.
    #[must_use]
    pub const fn new(scenario: &Scenario) -> Self {
        let Scenario { stalls, rows, gap_millis, stalls_on_millis, .. } = *scenario;
        Self { percent: stalls, until: rows * gap_millis + stalls_on_millis }
    }
}

pub(super) struct ViewSink {
    pub(super) view: View,
    pub(super) stalls: Stalls,
    pub(super) events: Events,
}

struct ViewWriter {
    view: View,
    stalls: Stalls,
    clock: Clock,
    random: fastrand::Rng,
}

impl SinkFactory for ViewSink {
    fn create(&self) -> Result<Box<dyn Sink>, TaskError> {
        let Self { view, stalls, events } = self;
        let random = fastrand::Rng::with_seed(events.seed);
        let clock: Clock = Arc::new(sluice_protocol::Timestamp::default);
        Ok(Box::new(ViewWriter { view: Arc::clone(view), stalls: *stalls, clock, random }))
    }

    fn accepted_kinds(&self) -> AcceptedKinds {
        AcceptedKinds::Upsert
    }
}

impl Sink for ViewWriter {
    fn open(&mut self, context: SinkContext) -> Result<(), TaskError> {
        self.random = fastrand::Rng::with_seed(self.random.u64(..) ^ u64::from(context.operator.subtask.0));
        self.clock = context.clock;
        Ok(())
    }

    fn is_writable(&mut self) -> Result<bool, TaskError> {
        let Stalls { percent, until } = self.stalls;
        Ok(percent == 0 || (self.clock)().0 > until || self.random.u32(..100) >= percent)
    }

    fn write(&mut self, batch: Batch) -> Result<(), TaskError> {
        let (keys, counts, sums) = (column(&batch, 0), column(&batch, 1), column(&batch, 2));
        let mut view = self.view.lock().unwrap_or_else(PoisonError::into_inner);
        for row in 0..batch.len() {
            let kind = batch.kinds.as_ref().map_or(RowKind::Insert as u8, |kinds| kinds.value(row));
            if kind == RowKind::Delete as u8 {
                view.remove(&keys[row]);
            } else {
                view.insert(keys[row], (counts[row], sums[row]));
            }
        }
        Ok(())
    }
}
