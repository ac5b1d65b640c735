//! A hash table from a pair of token ids to a 64-bit value: open addressing, linear probing, at most half full.
//! One multiplication and usually one cache line a look-up.

/// A pair of token ids.
pub(crate) type Pair = (u32, u32);

/// No pair has this key: ids are below 2^24.
const EMPTY: u64 = u64::MAX;

/// Map from [`Pair`] to `V`.
#[derive(Debug, Clone)]
pub(crate) struct PairTable<V> {
    slots: Vec<(u64, V)>,
    shift: u32,
    len: usize,
}

impl<V: Copy + Default> PairTable<V> {
    /// An empty table with space for `capacity` pairs.
    pub(crate) fn with_capacity(capacity: usize) -> Self {
        let slots = (capacity.max(8) * 2).next_power_of_two();
        PairTable { slots: vec![(EMPTY, V::default()); slots], shift: 64 - slots.trailing_zeros(), len: 0 }
    }

    #[inline(always)]
    fn key(pair: Pair) -> u64 {
        (u64::from(pair.0) << 32) | u64::from(pair.1)
    }

    /// Hash of a pair, best in its high bits.
    #[inline(always)]
    pub(crate) fn hash(pair: Pair) -> u64 {
        Self::mix(Self::key(pair))
    }

    #[inline(always)]
    fn mix(key: u64) -> u64 {
        // Fibonacci hashing (Knuth, TAOCP 6.4); ids sit in the low bits of both halves, so mix the halves first.
        (key ^ (key >> 29)).wrapping_mul(0x9E37_79B9_7F4A_7C15)
    }

    #[inline(always)]
    fn home(&self, key: u64) -> usize {
        (Self::mix(key) >> self.shift) as usize
    }

    /// The value of a pair.
    #[inline(always)]
    pub(crate) fn get(&self, pair: Pair) -> Option<V> {
        let key = Self::key(pair);
        let mask = self.slots.len() - 1;
        let mut at = self.home(key);
        loop {
            let (found, value) = self.slots[at & mask];
            if found == key {
                return Some(value);
            }
            if found == EMPTY {
                return None;
            }
            at += 1;
        }
    }

    /// Makes space for `more` pairs, so that slots found until then stay where they are.
    pub(crate) fn reserve(&mut self, more: usize) {
        if (self.len + more) * 2 <= self.slots.len() {
            return;
        }
        let mut grown = Self::with_capacity((self.len + more).max(self.len * 2));
        for &(key, value) in self.slots.iter().filter(|slot| slot.0 != EMPTY) {
            let slot = grown.slot_of_key(key);
            grown.slots[slot].1 = value;
        }
        *self = grown;
    }

    /// The slot of a pair, which is entered with the default value if absent. Call [`Self::reserve`] before.
    #[inline]
    pub(crate) fn slot(&mut self, pair: Pair) -> usize {
        self.slot_of_key(Self::key(pair))
    }

    #[inline]
    fn slot_of_key(&mut self, key: u64) -> usize {
        let mask = self.slots.len() - 1;
        let mut at = self.home(key) & mask;
        while self.slots[at].0 != key {
            if self.slots[at].0 == EMPTY {
                self.slots[at].0 = key;
                self.len += 1;
                debug_assert!(self.len * 2 <= self.slots.len(), "reserve before entering pairs");
                break;
            }
            at = (at + 1) & mask;
        }
        at
    }

    /// The value in a slot.
    #[inline]
    pub(crate) fn value(&mut self, slot: usize) -> &mut V {
        &mut self.slots[slot].1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    #[test]
    fn behaves_like_a_map_through_growth() {
        let (mut table, mut model) = (PairTable::<i64>::with_capacity(1), HashMap::new());
        for i in 0..20_000u64 {
            let pair = ((i * i % 257) as u32, (i * 31 % 1021) as u32);
            table.reserve(1);
            let slot = table.slot(pair);
            *table.value(slot) += i as i64;
            *model.entry(pair).or_insert(0) += i as i64;
        }
        for (pair, value) in &model {
            assert_eq!(table.get(*pair), Some(*value));
        }
        assert_eq!(table.get((9999, 9999)), None);
        assert_eq!(table.len, model.len());
    }
}
