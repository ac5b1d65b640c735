//! Files of deduplication that other programs make: signatures and pairs of datatrove.

use bessemer_dedup::minhash::Width;
use bessemer_dedup::minhash::datatrove::{read_pairs, read_signatures};

/// Runs the target on one input.
pub fn run(data: &[u8]) {
    let Some((rows, data)) = data.split_first() else { return };
    for width in [Width::W32, Width::W64] {
        let _ = read_signatures(width, usize::from(*rows), data);
    }
    let _ = read_pairs(data);
}
