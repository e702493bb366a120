//! The `blackhole` sink: takes everything and keeps nothing. For measuring.

use crate::options::{Known, Options};
use sluice_engine::batch::Batch;
use sluice_engine::error::TaskError;
use sluice_engine::sink::{AcceptedKinds, Sink, SinkContext, SinkFactory};
use sluice_engine::table::{TableDescriptor, TableError};

/// Makes writers that drop what they get.
pub(crate) struct BlackholeSinkFactory;

impl BlackholeSinkFactory {
    /// Has no options but `connector`.
    pub(crate) fn new(table: &TableDescriptor) -> Result<Self, TableError> {
        Options::new(table, &Known { names: &[], properties: false, refused: &[] }).map(|_| Self)
    }
}

impl SinkFactory for BlackholeSinkFactory {
    fn create(&self) -> Result<Box<dyn Sink>, TaskError> {
        Ok(Box::new(BlackholeSink))
    }

    /// Without `-U`, which would only be made to be dropped.
    fn accepted_kinds(&self) -> AcceptedKinds {
        AcceptedKinds::Upsert
    }
}

struct BlackholeSink;

impl Sink for BlackholeSink {
    fn open(&mut self, _: SinkContext) -> Result<(), TaskError> {
        Ok(())
    }

    fn write(&mut self, _: Batch) -> Result<(), TaskError> {
        Ok(())
    }
}
