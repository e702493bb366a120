//! Of the rows of a shard those whose keys begin alike, chained: what a table with a prefix finds them by.
//!
//! It knows rows by their numbers only; who uses it compares prefixes. It is no part of a snapshot; a restore builds it
//! anew.

use hashbrown::HashTable;

/// No row.
const NONE: u32 = u32::MAX;

#[derive(Debug, Clone, Copy)]
struct Head {
    hash: u64,
    row: u32,
}

#[derive(Debug, Clone, Copy)]
struct Link {
    next: u32,
    previous: u32,
    /// Bytes of the prefix of its key.
    prefix: u32,
}

/// The chains of a shard.
#[derive(Debug, Default)]
pub(super) struct Links {
    heads: HashTable<Head>,
    rows: Vec<Link>,
}

/// Within a key group the upper bits of hashes are alike; the index takes its tags from them.
const fn spread(hash: u64) -> u64 {
    hash.rotate_left(32)
}

impl Links {
    /// Bytes that are allocated for it, about.
    pub(super) fn bytes(&self) -> u64 {
        let heads = self.heads.capacity() * (size_of::<Head>() + 1) * 8 / 7;
        (heads + self.rows.capacity() * size_of::<Link>()) as u64
    }

    /// The next row was added, whose prefix hashes so and has so many bytes.
    pub(super) fn push(&mut self, hash: u64, prefix: u32, is_same: impl Fn(u32) -> bool) {
        let row = self.rows.len() as u32;
        let mut next = NONE;
        match self.heads.find_mut(spread(hash), |head| head.hash == hash && is_same(head.row)) {
            Some(head) => next = std::mem::replace(&mut head.row, row),
            None => drop(self.heads.insert_unique(spread(hash), Head { hash, row }, |head| spread(head.hash))),
        }
        if let Some(link) = self.rows.get_mut(next as usize) {
            link.previous = row;
        }
        self.rows.push(Link { next, previous: NONE, prefix });
    }

    /// The first row of the chain whose prefix hashes so.
    pub(super) fn first(&self, hash: u64, is_same: impl Fn(u32) -> bool) -> Option<u32> {
        self.heads.find(spread(hash), |head| head.hash == hash && is_same(head.row)).map(|head| head.row)
    }

    /// The row after this one in its chain.
    pub(super) fn next(&self, row: u32) -> Option<u32> {
        let next = self.rows.get(row as usize)?.next;
        (next != NONE).then_some(next)
    }

    /// Bytes of the prefix of a row's key.
    pub(super) fn prefix(&self, row: u32) -> usize {
        self.rows[row as usize].prefix as usize
    }

    /// A row leaves its chain; its place is still taken.
    pub(super) fn unlink(&mut self, row: u32, hash: u64) {
        let Link { next, previous, .. } = self.rows[row as usize];
        if let Some(link) = self.rows.get_mut(next as usize) {
            link.previous = previous;
        }
        if let Some(link) = self.rows.get_mut(previous as usize) {
            link.next = next;
            return;
        }
        let Ok(mut head) = self.heads.find_entry(spread(hash), |head| head.row == row) else { return };
        if next == NONE {
            head.remove();
        } else {
            head.get_mut().row = next;
        }
    }

    /// The last row takes the place of one that has left; its prefix hashes so.
    pub(super) fn move_last(&mut self, to: u32, hash: u64) {
        let Some(link) = self.rows.pop() else { return };
        let from = self.rows.len() as u32;
        if from == to {
            return;
        }
        self.rows[to as usize] = link;
        if let Some(next) = self.rows.get_mut(link.next as usize) {
            next.previous = to;
        }
        if let Some(previous) = self.rows.get_mut(link.previous as usize) {
            previous.next = to;
        } else if let Some(head) = self.heads.find_mut(spread(hash), |head| head.row == from) {
            head.row = to;
        }
    }
}
