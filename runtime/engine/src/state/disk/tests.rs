//! What a table leaves on the disk beside its rows.

use super::*;
use crate::state::tests::{add, layout, texts};
use crate::testing::written;
use arrow::datatypes::DataType;

/// Storage `JobManager`: no checkpoint is ever a base.
#[test]
fn checkpoints_without_a_base_leave_no_changes_on_the_disk() {
    let name = format!("without-base-{}", std::process::id());
    let space = DiskSpace::create(&std::env::temp_dir(), &name, 16 << 20).unwrap();
    let groups = KeyGroupRange { start: 0, end: 128 };
    let mut table = DiskKeyedTable::new("counts", layout(&[("k", DataType::Utf8)]), (groups, 128), &space).unwrap();
    table.forget_changes();
    for checkpoint in 1..=50 {
        add(&mut table, &texts(&["a".to_owned(), "b".to_owned(), format!("{checkpoint}")]), 1);
        assert_eq!(table.keyspaces.changes.iter().count(), 3);
        let frozen = table.freeze(CheckpointId(checkpoint)).unwrap();
        assert!(!written(frozen.as_ref()).keyed.is_empty());
        assert_eq!(table.keyspaces.changes.iter().count(), 0, "after checkpoint {checkpoint}");
    }
}
