//! Several tables of one operator, frozen together.

use crate::error::TaskError;
use crate::operator::{OperatorState, SnapshotWriter, TakePiece, WriteOptions};

/// Frozen tables whose names differ, written one after the other.
pub struct FrozenTables(pub Vec<Box<dyn SnapshotWriter>>);

impl SnapshotWriter for FrozenTables {
    fn write(&self, options: &WriteOptions, take: TakePiece<'_>) -> Result<OperatorState, TaskError> {
        let mut state = OperatorState::default();
        for table in &self.0 {
            state.layers.extend(table.write(options, &mut *take)?.layers);
        }
        Ok(state)
    }
}
