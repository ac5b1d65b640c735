//! Rehydration: documents that were found many times come back several times, but not as often as they were found.
//!
//! ```text
//! repeats(copies) = the weight of the largest size <= copies; 1 below the first size and without a table
//! ```
//!
//! Penedo et al. 2025 (FineWeb-2, arXiv:2506.20920) keep one document of each MinHash cluster and repeat it by
//! [`FINEWEB2`]: a page with a handful of copies is rather good, one with a thousand is rather boilerplate.

/// The sizes and weights of FineWeb-2.
pub const FINEWEB2: [[u64; 2]; 6] = [[1, 1], [2, 2], [3, 3], [5, 5], [100, 8], [1000, 1]];

/// How often a document that stands for `copies` documents is taken, by a table of `[size, weight]` with rising sizes.
pub fn repeats(table: &[[u64; 2]], copies: u64) -> u64 {
    let next = table.partition_point(|&[size, _]| size <= copies);
    next.checked_sub(1).map_or(1, |place| table[place][1])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_between_the_steps_take_the_step_below() {
        let of = |copies| repeats(&FINEWEB2, copies);
        let sizes = [0, 1, 2, 3, 4, 5, 6, 99, 100, 999, 1000, 1001, u64::MAX];
        assert_eq!(sizes.map(of), [1, 1, 2, 3, 3, 5, 5, 5, 8, 8, 1, 1, 1]);
        assert_eq!(repeats(&[], 7), 1);
        assert_eq!(repeats(&[[10, 3]], 9), 1);
    }
}
