//! The keys of one key group: an index into rows of words.
//!
//! Word 0 of a row is the key: the BIGINT itself, or the position of the encoded key in the arena. The accumulators
//! follow. The index is not part of a snapshot; a restore builds it anew.

use super::arena::{Arena, FrozenArena};
use super::cow::CopyOnWrite;
use super::hash::ShardChanges;
use super::links::Links;
use super::rows::{GroupRows, Wanted};
use hashbrown::HashTable;
use hashbrown::hash_table;
use sluice_protocol::key_group::{self, encode};
use std::sync::Arc;

/// Rows of a chunk: what is copied when one row of it is written during a snapshot.
pub(super) const CHUNK_ROWS: usize = 256;

/// Words of a bit per row of a chunk.
pub(super) const MASK_WORDS: usize = CHUNK_ROWS / 64;

/// Keys of a key group that are listed as removed between two freezes at least, however few rows there are.
const MOST_REMOVED: usize = 4096;

/// An index entry.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entry {
    pub(super) row: u32,
    /// The key's position among the distinct keys of the batch that touched it last.
    pub(super) slot: u32,
}

#[derive(Debug)]
pub(super) struct Shard {
    bigint: bool,
    /// Words of a row.
    width: usize,
    index: HashTable<Entry>,
    /// The NULL key among BIGINT keys.
    null: Option<Entry>,
    rows: Rows,
    arena: Arena,
    changes: ShardChanges,
    /// Chains of rows with one prefix, where the table has prefixes.
    links: Option<Links>,
}

#[derive(Debug, Default)]
struct Rows {
    chunks: Vec<Chunk>,
    count: usize,
}

#[derive(Debug)]
struct Chunk {
    rows: CopyOnWrite<Vec<u64>>,
    /// Which rows were written since the last freeze; beside the rows' address, which is read anyway.
    written: [u64; MASK_WORDS],
}

impl Default for Chunk {
    fn default() -> Self {
        Self { rows: CopyOnWrite::Owned(Vec::new()), written: [0; MASK_WORDS] }
    }
}

impl Chunk {
    #[inline]
    fn note(&mut self, position: usize) {
        self.written[position / 64] |= 1 << (position % 64);
    }
}

/// The rows of a shard, shared.
pub(super) struct FrozenShard {
    pub(super) chunks: Vec<Arc<Vec<u64>>>,
    pub(super) rows: usize,
    pub(super) null_row: Option<u32>,
    pub(super) arena: FrozenArena,
}

/// Spreads hashes whose upper bits are alike, as they are within a key group: the index takes its tags from them.
const fn spread(hash: u64) -> u64 {
    hash.rotate_left(32)
}

fn hash_bigint(word: u64) -> u64 {
    key_group::hash(&encode::bigint(word as i64))
}

impl Rows {
    fn push(&mut self, width: usize, key: u64) -> u32 {
        let row = self.count;
        if row.is_multiple_of(CHUNK_ROWS) {
            self.chunks.push(Chunk::default());
        }
        if let Some(chunk) = self.chunks.last_mut() {
            chunk.note(row % CHUNK_ROWS);
            let chunk = chunk.rows.get_mut();
            chunk.push(key);
            chunk.resize(chunk.len() + width - 1, 0);
        }
        self.count += 1;
        row as u32
    }

    #[inline]
    fn get(&self, width: usize, row: u32) -> &[u64] {
        let (chunk, offset) = (row as usize / CHUNK_ROWS, row as usize % CHUNK_ROWS * width);
        &self.chunks[chunk].rows.get()[offset..offset + width]
    }

    #[inline]
    fn get_mut(&mut self, width: usize, row: u32) -> &mut [u64] {
        let (chunk, position) = (row as usize / CHUNK_ROWS, row as usize % CHUNK_ROWS);
        let chunk = &mut self.chunks[chunk];
        chunk.note(position);
        &mut chunk.rows.get_mut()[position * width..(position + 1) * width]
    }

    /// To change where a key lies, not what it is.
    fn key_position_mut(&mut self, width: usize, row: u32) -> &mut u64 {
        let (chunk, offset) = (row as usize / CHUNK_ROWS, row as usize % CHUNK_ROWS * width);
        &mut self.chunks[chunk].rows.get_mut()[offset]
    }

    fn pop(&mut self, width: usize) {
        self.count -= 1;
        if let Some(chunk) = self.chunks.last_mut() {
            let chunk = chunk.rows.get_mut();
            chunk.truncate(chunk.len() - width);
            if chunk.is_empty() {
                self.chunks.pop();
            }
        }
    }
}

impl Shard {
    pub(super) fn new(accumulator_words: usize, bigint: bool, prefixed: bool) -> Self {
        Self {
            bigint,
            width: accumulator_words + 1,
            index: HashTable::new(),
            null: None,
            rows: Rows::default(),
            arena: Arena::default(),
            changes: ShardChanges::default(),
            links: prefixed.then(Links::default),
        }
    }

    pub(super) const fn len(&self) -> usize {
        self.rows.count
    }

    /// Bytes that are allocated for it, about.
    pub(super) fn bytes(&self) -> u64 {
        let rows = self.rows.chunks.len() * (CHUNK_ROWS * self.width * size_of::<u64>() + size_of::<Chunk>());
        // A byte of the table beside each entry.
        let index = self.index.capacity() * (size_of::<Entry>() + 1) * 8 / 7;
        rows as u64 + index as u64 + self.arena.bytes() + self.links.as_ref().map_or(0, Links::bytes)
    }

    #[inline]
    pub(super) fn bigint_key(&mut self, hash: u64, key: i64) -> &mut Entry {
        let (rows, width, word) = (&mut self.rows, self.width, key as u64);
        let found = self.index.entry(
            spread(hash),
            |entry| rows.get(width, entry.row)[0] == word,
            |entry| spread(hash_bigint(rows.get(width, entry.row)[0])),
        );
        match found {
            hash_table::Entry::Occupied(occupied) => occupied.into_mut(),
            hash_table::Entry::Vacant(vacant) => {
                let row = rows.push(width, word);
                vacant.insert(Entry { row, slot: u32::MAX }).into_mut()
            }
        }
    }

    pub(super) fn null_key(&mut self) -> &mut Entry {
        let (rows, width) = (&mut self.rows, self.width);
        self.null.get_or_insert_with(|| Entry { row: rows.push(width, 0), slot: u32::MAX })
    }

    #[inline]
    pub(super) fn encoded_key(&mut self, hash: u64, key: &[u8]) -> &mut Entry {
        self.encoded_entry(hash, key, None)
    }

    /// As [`Self::encoded_key`], of a table with prefixes: the prefix hashes so and has so many bytes.
    pub(super) fn prefixed_key(&mut self, hash: u64, key: &[u8], group_hash: u64, prefix: u32) -> &mut Entry {
        self.encoded_entry(hash, key, Some((group_hash, prefix)))
    }

    #[inline]
    fn encoded_entry(&mut self, hash: u64, key: &[u8], group: Option<(u64, u32)>) -> &mut Entry {
        let (rows, arena, width) = (&mut self.rows, &mut self.arena, self.width);
        let found = self.index.entry(
            spread(hash),
            |entry| arena.get(rows.get(width, entry.row)[0]) == key,
            |entry| spread(key_group::hash(arena.get(rows.get(width, entry.row)[0]))),
        );
        match found {
            hash_table::Entry::Occupied(occupied) => occupied.into_mut(),
            hash_table::Entry::Vacant(vacant) => {
                let row = rows.push(width, arena.push(key));
                if let (Some((group_hash, prefix)), Some(links)) = (group, &mut self.links) {
                    let begins = &key[..prefix as usize];
                    let is_same = |other: u32| arena.get(rows.get(width, other)[0]).starts_with(begins);
                    links.push(group_hash, prefix, is_same);
                }
                vacant.insert(Entry { row, slot: u32::MAX }).into_mut()
            }
        }
    }

    /// The rows whose keys begin with this prefix, with their keys.
    pub(super) fn with_prefix(&self, group_hash: u64, prefix: &[u8]) -> impl Iterator<Item = (u32, &[u8])> {
        let key = |row: u32| self.arena.get(self.rows.get(self.width, row)[0]);
        let links = self.links.as_ref();
        let first = links.and_then(|links| links.first(group_hash, |row| key(row).starts_with(prefix)));
        let rows = std::iter::successors(first, move |row| links.and_then(|links| links.next(*row)));
        rows.map(move |row| (row, key(row)))
    }

    /// Copies rows together: all, or those that are wanted.
    pub(super) fn read(&self, wanted: Wanted<'_>, rows: &mut GroupRows) {
        let null = self.null.map(|null| null.row as usize);
        if wanted.is_none() {
            rows.words.reserve(self.rows.count * (self.width - 1));
        }
        let all = self.rows.chunks.iter().flat_map(|chunk| chunk.rows.get().chunks_exact(self.width));
        for (row, words) in all.enumerate() {
            if wanted.is_some_and(|wanted| !wanted(&words[1..])) {
                continue;
            }
            if self.bigint {
                rows.keys.push_bigint((null != Some(row)).then_some(words[0] as i64));
            } else {
                rows.keys.push_encoded(self.arena.get(words[0]));
            }
            rows.words.extend_from_slice(&words[1..]);
        }
    }

    #[inline]
    pub(super) fn accumulators(&self, row: u32) -> &[u64] {
        &self.rows.get(self.width, row)[1..]
    }

    #[inline]
    pub(super) fn accumulators_mut(&mut self, row: u32) -> &mut [u64] {
        &mut self.rows.get_mut(self.width, row)[1..]
    }

    /// Removes a row; the last one takes its place.
    pub(super) fn remove(&mut self, row: u32) {
        let key = self.rows.get(self.width, row)[0];
        self.note_removed(row, key);
        let group_hash = self.group_hash_of(row);
        if let Some(links) = &mut self.links {
            links.unlink(row, group_hash);
        }
        if self.null.is_some_and(|null| null.row == row) {
            self.null = None;
        } else if let Ok(entry) = self.index.find_entry(self.spread_hash_of(key), |entry| entry.row == row) {
            entry.remove();
        }
        if !self.bigint {
            self.arena.drop_key(key);
        }
        let last = (self.rows.count - 1) as u32;
        let group_hash = self.group_hash_of(last);
        if row != last {
            self.move_row(last, row);
        }
        if let Some(links) = &mut self.links {
            links.move_last(row, group_hash);
        }
        self.rows.pop(self.width);
        if self.arena.is_wasteful() {
            self.rebuild_arena();
        }
    }

    /// Of a table with prefixes, what the prefix of a row's key hashes to.
    fn group_hash_of(&self, row: u32) -> u64 {
        let Some(links) = &self.links else { return 0 };
        let key = self.arena.get(self.rows.get(self.width, row)[0]);
        key_group::hash(&key[..links.prefix(row)])
    }

    fn note_removed(&mut self, row: u32, key: u64) {
        let removed = &mut self.changes.removed;
        if removed.len() > self.rows.count / 2 + MOST_REMOVED {
            removed.overflow();
        }
        if !self.bigint {
            removed.push_encoded(self.arena.get(key));
        } else if self.null.is_some_and(|null| null.row == row) {
            removed.null = true;
        } else {
            removed.words.push(key);
        }
    }

    fn move_row(&mut self, from: u32, to: u32) {
        let words = self.rows.get(self.width, from).to_vec();
        let hash = self.spread_hash_of(words[0]);
        self.rows.get_mut(self.width, to).copy_from_slice(&words);
        let moved = match &mut self.null {
            Some(null) if null.row == from => Some(null),
            _ => self.index.find_mut(hash, |entry| entry.row == from),
        };
        if let Some(entry) = moved {
            entry.row = to;
        }
    }

    fn spread_hash_of(&self, key: u64) -> u64 {
        spread(if self.bigint { hash_bigint(key) } else { key_group::hash(self.arena.get(key)) })
    }

    fn rebuild_arena(&mut self) {
        let mut arena = Arena::default();
        for row in 0..self.rows.count as u32 {
            let position = self.rows.get(self.width, row)[0];
            *self.rows.key_position_mut(self.width, row) = arena.push(self.arena.get(position));
        }
        self.arena = arena;
    }

    pub(super) fn freeze(&mut self) -> (FrozenShard, ShardChanges) {
        let frozen = FrozenShard {
            chunks: self.rows.chunks.iter_mut().map(|chunk| chunk.rows.freeze()).collect(),
            rows: self.rows.count,
            null_row: self.null.map(|null| null.row),
            arena: self.arena.freeze(),
        };
        let mut changes = std::mem::take(&mut self.changes);
        changes.written = self.rows.chunks.iter_mut().map(|chunk| std::mem::take(&mut chunk.written)).collect();
        (frozen, changes)
    }

    pub(super) fn forget_changes(&mut self) {
        self.changes = ShardChanges::default();
        self.rows.chunks.iter_mut().for_each(|chunk| chunk.written = [0; MASK_WORDS]);
    }
}
