//! What has changed in a table in memory between two freezes.

use crate::state::history::Changes;
use crate::state::shard::MASK_WORDS;

/// One bit per row of a chunk.
pub(in crate::state) type Mask = [u64; MASK_WORDS];

/// The changes of one key group.
#[derive(Debug, Clone, Default)]
pub(in crate::state) struct ShardChanges {
    /// Per chunk: rows that were written. Positions may lie beyond the last row.
    pub(in crate::state) written: Vec<Mask>,
    /// Keys that were removed; some may be there again.
    pub(in crate::state) removed: RemovedKeys,
}

/// Removed keys, in the order of their removal.
#[derive(Debug, Clone, Default)]
pub(in crate::state) struct RemovedKeys {
    /// BIGINT keys.
    pub(in crate::state) words: Vec<u64>,
    /// Whether the NULL among BIGINT keys is one.
    pub(in crate::state) null: bool,
    /// Encoded keys one after the other.
    bytes: Vec<u8>,
    /// Where each of them ends.
    ends: Vec<usize>,
    /// There were too many: they are not known.
    overflowed: bool,
}

impl RemovedKeys {
    pub(in crate::state) fn push_encoded(&mut self, key: &[u8]) {
        self.bytes.extend_from_slice(key);
        self.ends.push(self.bytes.len());
    }

    /// Encoded keys.
    pub(in crate::state) fn encoded(&self) -> impl Iterator<Item = &[u8]> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, end)| &self.bytes[start..*end])
    }

    pub(in crate::state) const fn len(&self) -> usize {
        self.words.len() + self.ends.len()
    }

    /// Forgets them and says so: a delta is not worth while.
    #[cold]
    pub(in crate::state) fn overflow(&mut self) {
        *self = Self { overflowed: true, ..Self::default() };
    }

    fn append(&mut self, newer: &Self) {
        self.words.extend_from_slice(&newer.words);
        self.null |= newer.null;
        newer.encoded().for_each(|key| self.push_encoded(key));
        self.overflowed |= newer.overflowed;
    }
}

impl ShardChanges {
    pub(in crate::state) fn append(&mut self, newer: &Self) {
        if self.written.len() < newer.written.len() {
            self.written.resize(newer.written.len(), Mask::default());
        }
        for (mask, newer) in self.written.iter_mut().zip(&newer.written) {
            mask.iter_mut().zip(newer).for_each(|(word, newer)| *word |= newer);
        }
        self.removed.append(&newer.removed);
    }

    fn count(&self) -> Option<u64> {
        let written: u32 = self.written.iter().flatten().map(|word| word.count_ones()).sum();
        (!self.removed.overflowed).then(|| u64::from(written) + self.removed.len() as u64)
    }
}

/// The changes of a whole table.
#[derive(Debug)]
pub(in crate::state) struct TableChanges {
    pub(in crate::state) shards: Vec<ShardChanges>,
}

impl TableChanges {
    pub(in crate::state) const fn new(shards: Vec<ShardChanges>) -> Self {
        Self { shards }
    }
}

impl Changes for TableChanges {
    fn merge(&self, newer: &Self) -> Self {
        let merge = |(older, newer): (&ShardChanges, &ShardChanges)| {
            let mut merged = older.clone();
            merged.append(newer);
            merged
        };
        Self { shards: self.shards.iter().zip(&newer.shards).map(merge).collect() }
    }

    fn count(&self) -> Option<u64> {
        self.shards.iter().map(ShardChanges::count).sum()
    }
}
