//! A hash table of numbers, for things that are interned: words, windows of words, lines.

use std::hash::{BuildHasher, Hasher, RandomState};

/// An open-addressing table of numbers; what a number stands for lies with the caller, who compares it exactly.
#[derive(Debug, Default, Clone)]
pub(crate) struct IdTable {
    /// A number plus one; 0 is empty.
    slots: Vec<u32>,
    shift: u32,
    seed: Seed,
}

/// Random, so that no document can be written whose words collide. Results do not depend on it.
#[derive(Debug, Clone, Copy)]
struct Seed(u64);

impl Default for Seed {
    fn default() -> Seed {
        Seed(RandomState::new().build_hasher().finish())
    }
}

impl IdTable {
    /// Empties the table and reserves space for `entries` numbers.
    pub(crate) fn reset(&mut self, entries: usize) {
        let size = (entries * 2).next_power_of_two().max(16);
        self.slots.clear();
        self.slots.resize(size, 0);
        self.shift = 64 - size.trailing_zeros();
    }

    /// A hash of two numbers.
    #[inline]
    pub(crate) fn hash(&self, a: u64, b: u64) -> u64 {
        let product = u128::from(a ^ self.seed.0) * u128::from(b ^ 0x9e37_79b9_7f4a_7c15);
        product as u64 ^ (product >> 64) as u64
    }

    /// The number with this hash that `same` accepts; if there is none, `new` is inserted.
    #[inline]
    pub(crate) fn find_or_insert(&mut self, hash: u64, new: u32, same: impl Fn(u32) -> bool) -> u32 {
        let at = self.position(hash, same);
        if self.slots[at] == 0 {
            self.slots[at] = new + 1;
        }
        self.slots[at] - 1
    }

    /// The number with this hash that `same` accepts.
    pub(crate) fn find(&self, hash: u64, same: impl Fn(u32) -> bool) -> Option<u32> {
        self.slots[self.position(hash, same)].checked_sub(1)
    }

    #[inline]
    fn position(&self, hash: u64, same: impl Fn(u32) -> bool) -> usize {
        let mask = self.slots.len() - 1;
        let mut at = (hash >> self.shift) as usize & mask;
        while self.slots[at] != 0 && !same(self.slots[at] - 1) {
            at = (at + 1) & mask;
        }
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    proptest! {
        #[test]
        fn numbers_are_those_of_a_map(keys in prop::collection::vec(prop_oneof![0u64..8, any::<u64>()], 0..200), collide: bool) {
            let mut table = IdTable::default();
            table.reset(3);
            table.reset(keys.len());
            let mut plain: HashMap<u64, u32> = HashMap::new();
            let mut known: Vec<u64> = Vec::new();
            for &key in &keys {
                let hash = if collide { 7 } else { table.hash(key, 1) };
                prop_assert_eq!(table.find(hash, |id| known[id as usize] == key), plain.get(&key).copied());
                let new = known.len() as u32;
                let id = table.find_or_insert(hash, new, |id| known[id as usize] == key);
                if id == new {
                    known.push(key);
                }
                prop_assert_eq!(id, *plain.entry(key).or_insert(new));
            }
        }
    }
}
