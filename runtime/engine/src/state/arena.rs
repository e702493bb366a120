//! Encoded keys of a shard, appended to segments that snapshots share.

use super::cow::CopyOnWrite;
use std::sync::Arc;

/// A segment takes keys until it holds this many bytes; a longer key has one of its own.
const SEGMENT: usize = 16 * 1024;

/// Encoded keys by position: the segment in the upper 32 bits, the offset in the lower.
#[derive(Debug, Default)]
pub(super) struct Arena {
    segments: Vec<CopyOnWrite<Vec<u8>>>,
    live: usize,
    garbage: usize,
}

/// The segments of an arena, shared.
pub(super) type FrozenArena = Vec<Arc<Vec<u8>>>;

impl Arena {
    pub(super) fn push(&mut self, key: &[u8]) -> u64 {
        let needed = key.len() + 4;
        let fits = self.segments.last().is_some_and(|segment| segment.get().len() + needed <= SEGMENT);
        if !fits {
            self.segments.push(CopyOnWrite::Owned(Vec::with_capacity(needed)));
        }
        let index = self.segments.len() - 1;
        let segment = self.segments[index].get_mut();
        let position = ((index as u64) << 32) | segment.len() as u64;
        segment.extend_from_slice(&(key.len() as u32).to_le_bytes());
        segment.extend_from_slice(key);
        self.live += needed;
        position
    }

    #[inline]
    pub(super) fn get(&self, position: u64) -> &[u8] {
        key_in(self.segments[(position >> 32) as usize].get(), position)
    }

    /// Says that a key is not used any more.
    pub(super) fn drop_key(&mut self, position: u64) {
        let length = self.get(position).len() + 4;
        self.live -= length;
        self.garbage += length;
    }

    /// Whether more than half of it is unused, so that the keys in use should move to a new one.
    pub(super) const fn is_wasteful(&self) -> bool {
        self.garbage > self.live && self.garbage > 4 * SEGMENT
    }

    /// Bytes that are allocated for it, about.
    pub(super) const fn bytes(&self) -> u64 {
        (self.live + self.garbage) as u64
    }

    pub(super) fn freeze(&mut self) -> FrozenArena {
        self.segments.iter_mut().map(CopyOnWrite::freeze).collect()
    }
}

/// A key in a frozen arena.
pub(super) fn frozen_key(arena: &FrozenArena, position: u64) -> &[u8] {
    key_in(&arena[(position >> 32) as usize], position)
}

#[inline]
fn key_in(segment: &[u8], position: u64) -> &[u8] {
    let offset = position as u32 as usize;
    let start = offset + 4;
    let mut length = [0; 4];
    length.copy_from_slice(&segment[offset..start]);
    &segment[start..start + u32::from_le_bytes(length) as usize]
}
