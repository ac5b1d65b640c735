//! Marks in receive buffers, which show afterwards whether MPI wrote them.
//!
//! MPICH over UCX (measured) calls messages of a dead rank received without writing them, in whole or in half. What is in
//! the memory then is an earlier message, perhaps one whose own checksum is right. Hashing every long message would cost as
//! much as moving it; a mark of eight bytes in each page costs a few percent, and what arrives equals it by chance once in
//! 2^64 marks.

use xxhash_rust::xxh3::xxh3_64_with_seed;

const MARK: usize = 8;
const EVERY: usize = 4096;

/// Mark of one message between two ranks: never used before, and not guessable from contents.
fn mark(rank: usize, number: u64) -> [u8; MARK] {
    xxh3_64_with_seed(&number.to_le_bytes(), 0x6265_7373_656d_6572 ^ rank as u64).to_le_bytes()
}

/// Positions of marks: every 4096 bytes, and at the end.
fn places(length: usize) -> impl Iterator<Item = usize> {
    let last = length.checked_sub(MARK);
    (0..length.saturating_sub(MARK)).step_by(EVERY).chain(last)
}

/// Sets the marks.
pub(crate) fn set(buffer: &mut [u8], rank: usize, number: u64) {
    let mark = mark(rank, number);
    for at in places(buffer.len()) {
        buffer[at..at + MARK].copy_from_slice(&mark);
    }
}

/// Returns the first byte of a mark that is still there.
pub(crate) fn left(buffer: &[u8], rank: usize, number: u64) -> Option<usize> {
    let mark = mark(rank, number);
    places(buffer.len()).find(|at| buffer[*at..*at + MARK] == mark)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_nobody_wrote_is_noticed() {
        for length in [8, 9, 4096, 4104, 4105, 100_000] {
            let mut buffer = vec![0; length];
            set(&mut buffer, 3, 7);
            assert!(left(&buffer, 3, 7).is_some(), "{length}");
            assert_eq!(left(&buffer, 3, 8), None, "marks of different messages differ");
            let half = length / 2 / EVERY * EVERY;
            buffer[..half].fill(1);
            assert!(left(&buffer, 3, 7).is_some_and(|at| at >= half), "{length}");
            buffer.fill(1);
            assert_eq!(left(&buffer, 3, 7), None);
        }
        assert_eq!(left(&[], 0, 0), None);
    }
}
