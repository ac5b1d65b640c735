//! Perceptual hashes of 64 bits, and near-duplicates by Hamming distance.
//!
//! - dHash: luma resized to 9 x 8 (Lanczos); bit (r, c) says whether pixel c + 1 of row r is brighter than pixel c
//!   (N. Krawetz, "Kind of like that", 2013).
//! - pHash: luma resized to 32 x 32 (Lanczos), DCT-II along both dimensions; bit (r, c) of the 8 x 8 lowest frequencies says whether
//!   the coefficient is above their median (N. Krawetz, "Looks like it", 2011; the constant term takes part, as in `imagehash`).
//!
//! Bits are row by row, the first one the highest, so the hexadecimal form is that of the Python package `imagehash`.
//!
//! Near-duplicates: two hashes within distance d agree in at least one of d + 1 blocks of their bits (pigeonhole), so candidates
//! are looked up by (block, value) and then compared (G. Manku, A. Jain, A. Das Sarma, "Detecting near-duplicates for web
//! crawling", WWW 2007, in its simplest form). Cost for n hashes: n (d + 1) look-ups, and about n^2 (d + 1) / 2^(64 / (d + 1)) comparisons
//! of one instruction.

use crate::image::{Filter, Image, resize_samples};
use crate::{MediaError, Result};
use bessemer_units::stats::median;
use std::collections::HashMap;

/// The difference hash of an image.
///
/// # Errors
/// None for an image that exists; resizing checks its arguments.
pub fn dhash(image: &Image) -> Result<u64> {
    let small = resize_samples::<1>(&image.luma(), (image.width(), image.height()), (9, 8), Filter::Lanczos)?;
    let bits = small.chunks_exact(9).flat_map(|row| row.windows(2).map(|p| p[1] > p[0]));
    Ok(pack(bits))
}

/// The DCT hash of an image.
///
/// # Errors
/// As [`dhash`].
pub fn phash(image: &Image) -> Result<u64> {
    const N: usize = 32;
    const LOW: usize = 8;
    let small = resize_samples::<1>(&image.luma(), (image.width(), image.height()), (N, N), Filter::Lanczos)?;
    // cos(pi k (2 n + 1) / 2N), scaled by 2 as scipy's unnormalised DCT-II; a common factor changes no comparison.
    let basis: [[f64; N]; LOW] = std::array::from_fn(|k| {
        std::array::from_fn(|n| {
            2.0 * (std::f64::consts::PI * (k * (2 * n + 1)) as f64 / (2 * N) as f64).cos()
        })
    });
    // Columns first: t[k][x] = sum_y basis[k][y] s[y][x].
    let mut columns = [[0.0; N]; LOW];
    for (y, row) in small.chunks_exact(N).enumerate() {
        for (k, column) in columns.iter_mut().enumerate() {
            for (t, &v) in column.iter_mut().zip(row) {
                *t += basis[k][y] * f64::from(v);
            }
        }
    }
    let mut low = [0.0; LOW * LOW];
    for (i, v) in low.iter_mut().enumerate() {
        *v = columns[i / LOW].iter().zip(&basis[i % LOW]).map(|(t, b)| t * b).sum();
    }
    let mut sorted = low;
    let median = median(&mut sorted);
    Ok(pack(low.iter().map(|&v| v > median)))
}

fn pack(bits: impl Iterator<Item = bool>) -> u64 {
    bits.fold(0, |hash, bit| hash << 1 | u64::from(bit))
}

/// Number of bits in which two hashes differ.
pub fn distance(a: u64, b: u64) -> u32 {
    (a ^ b).count_ones()
}

/// Hashes that can be asked for neighbours within a fixed distance. Grows one by one; what it answers depends on the order of
/// insertion alone. Memory: 8 bytes a hash and about 4 (d + 1) for the blocks' lists.
#[derive(Debug)]
pub struct HashIndex {
    within: u32,
    hashes: Vec<u64>,
    blocks: HashMap<(u32, u64), Vec<u32>>,
}

impl HashIndex {
    /// An empty index for neighbours within distance `within`.
    ///
    /// # Errors
    /// [`MediaError::Argument`] above 31: half of all random pairs differ in 32 bits or fewer.
    pub fn new(within: u32) -> Result<HashIndex> {
        if within > 31 {
            return Err(MediaError::Argument(format!(
                "near-duplicates: wanted a distance of 0 to 31 of 64 bits, found {within}"
            )));
        }
        Ok(HashIndex { within, hashes: Vec::new(), blocks: HashMap::new() })
    }

    /// (block, value of its bits) for each of the d + 1 blocks.
    fn keys(&self, hash: u64) -> impl Iterator<Item = (u32, u64)> + use<> {
        let blocks = self.within + 1;
        (0..blocks).map(move |i| {
            let (begin, end) = (64 * i / blocks, 64 * (i + 1) / blocks);
            let mask = if end - begin == 64 { u64::MAX } else { (1 << (end - begin)) - 1 };
            (i, hash >> begin & mask)
        })
    }

    /// The earliest inserted hash within the distance.
    pub fn earliest(&self, hash: u64) -> Option<usize> {
        let near = |&i: &u32| distance(self.hashes[i as usize], hash) <= self.within;
        // Lists grow at their ends, so the first hit of each is its earliest.
        let firsts = self.keys(hash).filter_map(|k| self.blocks.get(&k)?.iter().copied().find(near));
        firsts.min().map(|i| i as usize)
    }

    /// All inserted hashes within the distance, in the order of insertion.
    pub fn neighbours(&self, hash: u64) -> Vec<usize> {
        let mut found: Vec<usize> = self
            .keys(hash)
            .filter_map(|k| self.blocks.get(&k))
            .flatten()
            .map(|&i| i as usize)
            .filter(|&i| distance(self.hashes[i], hash) <= self.within)
            .collect();
        found.sort_unstable();
        found.dedup();
        found
    }

    /// Adds a hash and returns its number.
    ///
    /// # Panics
    /// After 2^32 hashes.
    pub fn insert(&mut self, hash: u64) -> usize {
        let number = u32::try_from(self.hashes.len()).expect("an index holds fewer than 2^32 hashes");
        for key in self.keys(hash) {
            self.blocks.entry(key).or_default().push(number);
        }
        self.hashes.push(hash);
        number as usize
    }
}

/// Groups of near-duplicates: connected components of the pairs within `within` bits. Returns for each hash the number of the
/// first one of its group, which is itself where it has no earlier neighbour.
///
/// # Errors
/// As [`HashIndex::new`].
pub fn groups(hashes: &[u64], within: u32) -> Result<Vec<usize>> {
    let mut index = HashIndex::new(within)?;
    let mut parent: Vec<usize> = Vec::with_capacity(hashes.len());
    let root = |parent: &mut Vec<usize>, mut i: usize| {
        while parent[i] != i {
            parent[i] = parent[parent[i]];
            i = parent[i];
        }
        i
    };
    for &hash in hashes {
        let near = index.neighbours(hash);
        let me = index.insert(hash);
        parent.push(me);
        for other in near {
            let (a, b) = (root(&mut parent, me), root(&mut parent, other));
            // The smaller number is the root, whatever the order of the unions.
            parent[a.max(b)] = a.min(b);
        }
    }
    Ok((0..parent.len()).map(|i| root(&mut parent, i)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn random(i: u64) -> u64 {
        let mut d = crate::image::Draws::new(11, i);
        (d.uniform() * 4294967296.0) as u64 | ((d.uniform() * 4294967296.0) as u64) << 32
    }

    #[test]
    fn groups_are_those_of_all_pairs() {
        for within in [0, 1, 3, 5, 10] {
            // Chains: each hash of a family is the one before it with a few bits flipped.
            let mut hashes = Vec::new();
            for family in 0..40 {
                let mut h = random(family);
                for step in 0..6 {
                    hashes.push(h);
                    for k in 0..(family + step) % 7 {
                        h ^= 1 << (random(1000 + family * 64 + step * 8 + k) % 64);
                    }
                }
            }
            // Shuffled, so that joins come in any order.
            hashes.sort_by_key(|h| h.wrapping_mul(0x9E37_79B9_7F4A_7C15));
            let mut naive: Vec<usize> = (0..hashes.len()).collect();
            loop {
                let before = naive.clone();
                for i in 0..hashes.len() {
                    for j in 0..hashes.len() {
                        if distance(hashes[i], hashes[j]) <= within {
                            naive[i] = naive[i].min(naive[j]);
                        }
                    }
                }
                if naive == before {
                    break;
                }
            }
            assert_eq!(groups(&hashes, within).unwrap(), naive, "distance {within}");
        }
        assert!(groups(&[], 32).is_err());
    }

    #[test]
    fn the_earliest_neighbour_is_found_in_every_block() {
        let mut index = HashIndex::new(2).unwrap();
        let base = 0xdead_beef_0123_4567;
        index.insert(base);
        index.insert(base ^ 1);
        for a in 0..64 {
            for b in 0..a {
                assert_eq!(index.earliest(base ^ 1 << a ^ 1 << b), Some(0));
            }
        }
        assert_eq!(index.earliest(base ^ 0b1110), None);
        assert_eq!(index.earliest(base ^ 0b0111), Some(1));
    }
}
