//! Limits of a reader of WARC files.

/// Limits of what a reader holds in memory, and of the damage after which it gives up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WarcLimits {
    /// Bytes of the longest block that is returned; a longer one is passed over without being held.
    pub max_block: u64,
    /// Bytes of the longest header of a record.
    pub max_header: usize,
    /// A member that gave more than `bomb_floor` bytes and more than this many for each compressed one is left.
    pub max_ratio: u64,
    /// See `max_ratio`: deflate reaches 1032 on zeros, pages seldom 50.
    pub bomb_floor: u64,
    /// After this many places that look like a member and are none, the rest of the file is given up.
    pub max_candidates: u64,
}

impl Default for WarcLimits {
    fn default() -> Self {
        WarcLimits {
            max_block: 32 << 20,
            max_header: 256 << 10,
            max_ratio: 256,
            bomb_floor: 16 << 20,
            max_candidates: 100_000,
        }
    }
}
