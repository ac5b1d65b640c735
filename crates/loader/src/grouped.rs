//! The order of an epoch by groups of blocks: the samples of a stretch of the epoch are in a few blocks.
//!
//! ```text
//! windows of the text:      | block 0 | block 1 | block 2 | ... | last block, maybe shorter |     W windows each
//! blocks of the epoch:      P(0) P(1) .. P(g-1) | P(g) .. P(2g-1) | ...                           g of them are a group
//! samples of group t:       the windows of its blocks, in the order of a permutation Q_t of their own
//! ```
//!
//! P and Q_t are [`Permutation`]s, so that the order is computed and not stored: a sample costs two of them and some
//! divisions, whatever the counter. With one group, P is left out: the order is that of one permutation of all windows, to the bit.
//!
//! A cache that holds a group reads each block once an epoch. Windows that are neighbours in the text are at most a group apart in the
//! order: n / 3 places in the mean, for the n windows of their group. In the uniform order n is the whole epoch.

use crate::Permutation;
use crate::order::fold;
use bessemer_units::splitmix::nth;
use serde::{Deserialize, Serialize};

/// Size of blocks and groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Grouping {
    /// W, windows of a block; at least 1.
    pub block: u64,
    /// g, blocks of a group; at least 1.
    pub group: u64,
}

impl Grouping {
    /// Whether `windows` windows are more than one group.
    pub fn divides(&self, windows: u64) -> bool {
        windows.div_ceil(self.block.max(1)) > self.group.max(1)
    }
}

/// The order of the windows of an epoch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EpochOrder {
    /// Permutation of all windows.
    uniform: Permutation,
    grouped: Option<GroupedOrder>,
}

/// Several groups.
#[derive(Debug, Clone, PartialEq, Eq)]
struct GroupedOrder {
    size: Grouping,
    /// P.
    blocks: Permutation,
    count: u64,
    /// Place of the last block of the text among the blocks of the epoch.
    last_at: u64,
    /// Windows that it has less than the others.
    lacks: u64,
    /// Seed of the groups' permutations.
    seed: u64,
    epoch: u64,
}

impl EpochOrder {
    /// The order of `windows` windows in an epoch, uniform or by groups.
    pub fn new(windows: u64, seed: u64, epoch: u64, grouping: Option<Grouping>) -> EpochOrder {
        let grouped =
            grouping.filter(|grouping| grouping.divides(windows)).map(|Grouping { block, group }| {
                let size = Grouping { block: block.max(1), group: group.max(1) };
                let count = windows.div_ceil(size.block);
                let blocks = Permutation::new(count, fold(seed, "blocks"), epoch);
                let (last_at, lacks) = (blocks.invert(count - 1), count * size.block - windows);
                GroupedOrder { size, blocks, count, last_at, lacks, seed: fold(seed, "groups"), epoch }
            });
        EpochOrder { uniform: Permutation::new(windows, seed, epoch), grouped }
    }

    /// The window at a place of the epoch.
    ///
    /// # Panics
    /// If there are not so many windows.
    pub fn window(&self, place: u64) -> u64 {
        match &self.grouped {
            Some(grouped) => grouped.window(place),
            None => self.uniform.apply(place),
        }
    }

    /// A value of [0, bound) that belongs to the epoch as a whole and is independent of the order.
    pub(crate) fn epoch_value(&self, bound: u64) -> u64 {
        self.uniform.epoch_value(bound)
    }
}

impl GroupedOrder {
    /// Windows in the first `blocks` blocks of the epoch.
    fn before(&self, blocks: u64) -> u64 {
        let lacks = if self.last_at < blocks { self.lacks } else { 0 };
        blocks * self.size.block - lacks
    }

    /// First block of group `group` in the order of the epoch, at most their number.
    fn first_block(&self, group: u64) -> u64 {
        (group * self.size.group).min(self.count)
    }

    fn window(&self, place: u64) -> u64 {
        let Grouping { block, group } = self.size;
        // Groups behind the one with the last block of the text begin earlier by what this lacks.
        let with_last = self.last_at / group;
        let behind = place >= self.before(self.first_block(with_last + 1));
        let number = (place + if behind { self.lacks } else { 0 }) / (block * group);
        let (first, end) = (self.first_block(number), self.first_block(number + 1));
        let start = self.before(first);
        let order = Permutation::new(self.before(end) - start, nth(self.seed, number), self.epoch);
        let within = start + order.apply(place - start);
        // The same for blocks: those behind the last block of the text begin earlier.
        let behind = within >= self.before(self.last_at + 1);
        let at = (within + if behind { self.lacks } else { 0 }) / block;
        self.blocks.apply(at) * block + (within - self.before(at))
    }
}
