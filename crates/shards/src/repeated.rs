//! Tokens of a split that occur in another one too: validation that repeats training.

use crate::{ShardError, ShardSet};
use std::collections::HashMap;

/// Tokens of a block: longer than most phrases that texts share by chance, shorter than most documents.
const BLOCK: usize = 32;
/// Most blocks that are looked for, evenly spread over the split.
const MOST_BLOCKS: u64 = 1 << 14;
/// Tokens that are read at a time.
const PIECE: u64 = 1 << 20;
/// Most pieces of the other split that are searched, evenly spread over it.
const MOST_PIECES: u64 = 256;
/// Bits of the filter before the table, a power of two: 128 KiB stay in a core's cache.
const FILTER_BITS: u32 = 20;
/// Multiplier of the rolling hash (odd, from Knuth's MMIX generator).
const BASE: u64 = 6_364_136_223_846_793_005;

/// Blocks of tokens of one split that occur in another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RepeatedBlocks {
    /// Tokens of a block.
    pub block_tokens: usize,
    /// Blocks that were looked for.
    pub blocks: u64,
    /// Blocks that occur in the other split as well, at any offset.
    pub repeated: u64,
}

/// Counts the blocks of `validation` whose tokens occur in `train` as well, at any offset. Exact for the blocks and the tokens that it
/// looks at: at most 16,384 blocks of 32 tokens, and 256 Mi tokens of `train`, both evenly spread.
///
/// A rolling hash finds candidates (Karp and Rabin 1987); their tokens are compared.
///
/// # Errors
/// If a file is damaged or can no longer be read.
pub fn repeated_blocks(train: &ShardSet, validation: &ShardSet) -> Result<RepeatedBlocks, ShardError> {
    let all = validation.token_count() / BLOCK as u64;
    let blocks = all.min(MOST_BLOCKS);
    let mut tokens = vec![0u32; blocks as usize * BLOCK];
    for (number, block) in tokens.chunks_exact_mut(BLOCK).enumerate() {
        let index = (u128::from(all) * number as u128 / u128::from(blocks)) as u64;
        validation.read(index * BLOCK as u64, block)?;
    }
    let mut table: HashMap<u64, Vec<usize>> = HashMap::new();
    let mut filter = vec![0u64; 1 << (FILTER_BITS - 6)];
    for (number, block) in tokens.chunks_exact(BLOCK).enumerate() {
        let hash = block.iter().fold(0, |hash, token| push(hash, *token));
        let bit = bit(hash);
        filter[bit / 64] |= 1 << (bit % 64);
        table.entry(hash).or_default().push(number);
    }
    let mut found = vec![false; blocks as usize];
    let total = train.token_count();
    let pieces = total.div_ceil(PIECE);
    let searched = pieces.min(MOST_PIECES);
    let leaving = (0..BLOCK).fold(1u64, |power, _| power.wrapping_mul(BASE));
    let mut piece = Vec::new();
    for number in 0..searched {
        let index = (u128::from(pieces) * u128::from(number) / u128::from(searched)) as u64;
        let start = index * PIECE;
        // Blocks that begin in the piece may end in the next one.
        piece.resize((total - start).min(PIECE + BLOCK as u64 - 1) as usize, 0);
        train.read(start, &mut piece)?;
        let mut hash = 0u64;
        for (at, token) in piece.iter().enumerate() {
            hash = push(hash, *token);
            if at >= BLOCK {
                hash = hash.wrapping_sub(u64::from(piece[at - BLOCK]).wrapping_add(1).wrapping_mul(leaving));
            }
            let bit = bit(hash);
            if at + 1 < BLOCK || filter[bit / 64] >> (bit % 64) & 1 == 0 {
                continue;
            }
            for block in table.get(&hash).into_iter().flatten() {
                found[*block] |= piece[at + 1 - BLOCK..=at] == tokens[block * BLOCK..(block + 1) * BLOCK];
            }
        }
    }
    let repeated = found.into_iter().filter(|found| *found).count() as u64;
    Ok(RepeatedBlocks { block_tokens: BLOCK, blocks, repeated })
}

fn push(hash: u64, token: u32) -> u64 {
    hash.wrapping_mul(BASE).wrapping_add(u64::from(token) + 1)
}

/// The bit of the filter: the high bits of a product depend on all of the hash.
fn bit(hash: u64) -> usize {
    ((hash ^ (hash >> 32)).wrapping_mul(BASE) >> (64 - FILTER_BITS)) as usize
}
