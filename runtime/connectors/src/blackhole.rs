//! The `blackhole` sink: takes everything and keeps nothing. For measuring; at a rate, to see what back-pressure does.

#[cfg(test)]
mod tests;

use crate::options::{Known, Options};
use crate::throttle::Throttle;
use sluice_engine::batch::Batch;
use sluice_engine::error::TaskError;
use sluice_engine::operator::Clock;
use sluice_engine::sink::{AcceptedKinds, Sink, SinkContext, SinkFactory};
use sluice_engine::table::{TableDescriptor, TableError};

/// Rows per second over all writers; Flink's `blackhole` has no such option.
const RATE: &str = "rows-per-second";

/// Makes writers that drop what they get.
pub(crate) struct BlackholeSinkFactory {
    rows_per_second: Option<u32>,
}

impl BlackholeSinkFactory {
    /// Reads the only option.
    pub(crate) fn new(table: &TableDescriptor) -> Result<Self, TableError> {
        let options = Options::new(table, &Known { names: &[RATE], formats: &[], properties: false, refused: &[] })?;
        let allowed = "a whole number above 0";
        let rows_per_second = options.parse(RATE, allowed)?;
        if rows_per_second == Some(0) {
            return Err(options.wrong(RATE, "0", allowed));
        }
        Ok(Self { rows_per_second })
    }
}

impl SinkFactory for BlackholeSinkFactory {
    fn create(&self) -> Result<Box<dyn Sink>, TaskError> {
        Ok(Box::new(BlackholeSink { rows_per_second: self.rows_per_second, slow: None }))
    }

    /// Without `-U`, which would only be made to be dropped.
    fn accepted_kinds(&self) -> AcceptedKinds {
        AcceptedKinds::Upsert
    }
}

struct BlackholeSink {
    rows_per_second: Option<u32>,
    /// What keeps it to its rate.
    slow: Option<(Throttle, Clock)>,
}

impl Sink for BlackholeSink {
    fn open(&mut self, context: SinkContext) -> Result<(), TaskError> {
        if let Some(rate) = self.rows_per_second {
            let share = f64::from(rate) / f64::from(context.operator.parallelism.max(1));
            let throttle = Throttle::new(share, (context.clock)(), context.waker)
                .map_err(|error| TaskError::External(format!("blackhole cannot start its timer thread: {error}")))?;
            self.slow = Some((throttle, context.clock));
        }
        Ok(())
    }

    /// A batch is taken whole; the next one when the rate has caught up with it.
    fn is_writable(&mut self) -> Result<bool, TaskError> {
        let Some((throttle, clock)) = &mut self.slow else { return Ok(true) };
        if throttle.available(clock()) > 0 {
            return Ok(true);
        }
        throttle.wake_when_due();
        Ok(false)
    }

    fn write(&mut self, batch: Batch) -> Result<(), TaskError> {
        if let Some((throttle, _)) = &mut self.slow {
            throttle.take(batch.len());
        }
        Ok(())
    }
}
