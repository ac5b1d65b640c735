//! What records are made of, and how those of one width are sorted and summed.

use std::fmt::Debug;

/// Unit of which a record has a fixed number. Records are compared unit by unit.
pub trait RecordUnit: bytemuck::Pod + Ord + Send + Sync + Debug {
    /// Number that is compared before the rest of a record: it never decreases where the record increases.
    fn prefix(record: &[Self]) -> u64;
}

impl RecordUnit for u8 {
    fn prefix(record: &[u8]) -> u64 {
        match record.first_chunk() {
            Some(bytes) => u64::from_be_bytes(*bytes),
            // Shorter keys are filled up with zeros, which no byte is below.
            None => {
                record.iter().enumerate().fold(0, |sum, (at, &byte)| sum | u64::from(byte) << (56 - 8 * at))
            }
        }
    }
}

impl RecordUnit for u64 {
    fn prefix(record: &[u64]) -> u64 {
        record.first().copied().unwrap_or(0)
    }
}

/// Units of a record, and how records of this width are sorted in memory.
#[derive(Debug, Clone, Copy)]
pub struct RecordWidth<U> {
    pub(crate) units: usize,
    pub(crate) sort: fn(&mut [U]),
}

impl RecordWidth<u8> {
    /// Records of `BYTES` bytes.
    pub const fn bytes<const BYTES: usize>() -> Self {
        RecordWidth { units: BYTES, sort: |records| records.as_chunks_mut::<BYTES>().0.sort_unstable() }
    }
}

impl RecordWidth<u64> {
    /// Records of `N` words.
    pub const fn words<const N: usize>() -> Self {
        let sort = |records: &mut [u64]| {
            // Two words are one comparison of numbers, and rarely equal.
            let head = |words: &[u64; N]| {
                words.first_chunk().map_or(0, |&[high, low]| u128::from(high) << 64 | u128::from(low))
            };
            let records = records.as_chunks_mut::<N>().0;
            if N == 2 {
                records.sort_unstable_by_key(head);
            } else {
                records.sort_unstable_by(|a, b| head(a).cmp(&head(b)).then_with(|| a.cmp(b)));
            }
        };
        RecordWidth { units: N, sort }
    }
}

/// Adds the second record to the first if their keys are equal; says whether they are.
pub(crate) type AddRecord<U> = fn(&mut [U], &[U]) -> bool;

/// Adds the little-endian u64 at the end of `more` to the one of `to` if the bytes before them are equal; says whether
/// they are.
pub(crate) fn add_count(to: &mut [u8], more: &[u8]) -> bool {
    let (Some((key, sum)), Some((other, count))) = (to.split_last_chunk_mut(), more.split_last_chunk())
    else {
        return false;
    };
    let equal = *key == *other;
    if equal {
        *sum = u64::from_le_bytes(*sum).saturating_add(u64::from_le_bytes(*count)).to_le_bytes();
    }
    equal
}

/// Makes one record of neighbours among sorted ones that `add` merges.
pub(crate) fn add_neighbors<U: RecordUnit>(records: &mut Vec<U>, width: usize, add: AddRecord<U>) {
    let mut end = 0;
    for at in (0..records.len()).step_by(width) {
        let (sums, rest) = records.split_at_mut(at);
        if end == 0 || !add(&mut sums[end - width..end], &rest[..width]) {
            records.copy_within(at..at + width, end);
            end += width;
        }
    }
    records.truncate(end);
}
