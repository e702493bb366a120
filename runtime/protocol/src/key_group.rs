//! From key to key group to subtask: part of the format (docs/protocol.md, F3).
//!
//! A key is encoded column by column ([`encode`]), hashed with XXH3 (64 bits, seed 0) over those bytes, and the
//! upper 32 bits of the hash are scaled to the number of key groups. Named `xxh3-v1` in `_metadata`. The golden
//! tests hold it fast; a change would be a new name.

use crate::ids::{KeyGroup, KeyGroupRange, SubtaskIndex};

/// The function's name in `_metadata`.
pub const NAME: &str = "xxh3-v1";

/// Largest number of key groups.
pub const MAX_PARALLELISM_LIMIT: u16 = 32_768;

/// The hash of an encoded key.
#[must_use]
pub fn hash(encoded: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64(encoded)
}

/// The key group of a hash, among `max_parallelism`.
#[must_use]
pub const fn of_hash(hash: u64, max_parallelism: u16) -> KeyGroup {
    KeyGroup((((hash >> 32) * max_parallelism as u64) >> 32) as u16)
}

/// The subtask that owns a key group: `group * parallelism / max_parallelism`, the inverse of
/// [`crate::KeyGroupRange::of_subtask`].
#[must_use]
pub const fn owner(group: KeyGroup, parallelism: u32, max_parallelism: u16) -> SubtaskIndex {
    SubtaskIndex((group.0 as u64 * parallelism as u64 / max_parallelism as u64) as u32)
}

/// The key groups among `to` that the hashes in `range` among `from` fall into: no more, no fewer.
///
/// A key group is a range of hashes whatever the number of key groups, so that what is divided among one number is found
/// again among another.
#[must_use]
pub fn rescaled(range: KeyGroupRange, from: u16, to: u16) -> KeyGroupRange {
    if range.is_empty() || from == to {
        return range;
    }
    // The upper half of the least hash of a key group.
    let least = |group: u16| (u64::from(group) << 32).div_ceil(u64::from(from.max(1)));
    let group = |upper: u64| of_hash(upper << 32, to).0;
    KeyGroupRange { start: group(least(range.start)), end: group(least(range.end) - 1) + 1 }
}

pub mod encode {
    //! The encoding of key columns: a tag byte, 0 for null and 1 for a value, then the value.
    //!
    //! Integers, dates, times, timestamps and decimals: little endian in their own width. Floats: −0.0 as 0.0, one
    //! NaN. Strings and bytes: a little-endian u32 length, then the bytes. Booleans: one byte. A dictionary encodes
    //! as its values do.

    /// A null.
    pub fn null(out: &mut Vec<u8>) {
        out.push(0);
    }

    /// A value of fixed width, given in little endian.
    pub fn fixed<const N: usize>(out: &mut Vec<u8>, little_endian: [u8; N]) {
        out.push(1);
        out.extend_from_slice(&little_endian);
    }

    /// A BIGINT on its own, without a buffer.
    #[must_use]
    pub const fn bigint(value: i64) -> [u8; 9] {
        let b = value.to_le_bytes();
        [1, b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]]
    }

    /// A DOUBLE.
    pub fn double(out: &mut Vec<u8>, value: f64) {
        let canonical = if value.is_nan() {
            f64::from_bits(0x7ff8_0000_0000_0000)
        } else if value == 0.0 {
            0.0
        } else {
            value
        };
        fixed(out, canonical.to_bits().to_le_bytes());
    }

    /// A FLOAT.
    pub fn float(out: &mut Vec<u8>, value: f32) {
        let canonical = if value.is_nan() {
            f32::from_bits(0x7fc0_0000)
        } else if value == 0.0 {
            0.0
        } else {
            value
        };
        fixed(out, canonical.to_bits().to_le_bytes());
    }

    /// A string or bytes.
    pub fn bytes(out: &mut Vec<u8>, value: &[u8]) {
        out.push(1);
        let length = u32::try_from(value.len()).unwrap_or(u32::MAX);
        out.extend_from_slice(&length.to_le_bytes());
        out.extend_from_slice(value);
    }
}

#[cfg(test)]
mod tests;
