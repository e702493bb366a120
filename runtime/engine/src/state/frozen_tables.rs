//! Several tables of one operator, frozen together.

use crate::error::TaskError;
use crate::operator::{ListPiece, OperatorState, SnapshotWriter, TakePiece, WriteOptions};

/// Frozen tables whose names differ, written one after the other.
pub struct FrozenTables(pub Vec<Box<dyn SnapshotWriter>>);

/// Frozen tables, and lists that were written already.
pub struct FrozenWithLists {
    /// The tables.
    pub tables: FrozenTables,
    /// The lists.
    pub lists: Vec<ListPiece>,
}

impl SnapshotWriter for FrozenWithLists {
    fn write(&self, options: &WriteOptions, take: TakePiece<'_>) -> Result<OperatorState, TaskError> {
        let state = self.tables.write(options, take)?;
        Ok(OperatorState { operator: self.lists.clone(), ..state })
    }
}

impl SnapshotWriter for FrozenTables {
    fn write(&self, options: &WriteOptions, take: TakePiece<'_>) -> Result<OperatorState, TaskError> {
        let mut state = OperatorState::default();
        for table in &self.0 {
            state.layers.extend(table.write(options, &mut *take)?.layers);
        }
        Ok(state)
    }
}
