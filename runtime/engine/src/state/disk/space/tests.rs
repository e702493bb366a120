//! Buffers stay within their bounds, however small the entries are.

use super::{DiskSpace, Keyspaces, MOST_SEALED};
use fjall::AbstractTree;

const MOST: u64 = 1 << 20;
const BATCH: u64 = 1000;

#[test]
fn buffers_of_small_entries_never_outgrow_what_they_may_hold() {
    let parent = std::env::temp_dir().join(format!("sluice-buffers-{}", std::process::id()));
    let space = DiskSpace::create(&parent, "buffers", 1 << 20).unwrap();
    let keyspaces = Keyspaces::with_buffers(&space, MOST, MOST).unwrap();
    let mut largest = 0;
    for batch in 0..60 {
        let mut writes = keyspaces.writes();
        for key in batch * BATCH..(batch + 1) * BATCH {
            writes.insert_row(&key.to_be_bytes(), vec![0; 8]);
            writes.insert_change(key.to_be_bytes().to_vec());
        }
        let of_batch = writes.rows;
        writes.commit().unwrap();
        for keyspace in [&keyspaces.rows, &keyspaces.changes] {
            let active = keyspace.tree.active_memtable().size();
            assert!(active < MOST + of_batch, "{active} bytes after batch {batch}");
            assert!(keyspace.sealed_memtable_count() <= MOST_SEALED, "after batch {batch}");
            largest = largest.max(active);
        }
    }
    assert!(largest > MOST / 2, "{largest}: nothing was buffered");
    drop((keyspaces, space));
    std::fs::remove_dir_all(&parent).unwrap();
}
