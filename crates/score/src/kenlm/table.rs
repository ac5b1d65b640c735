//! N-grams in hash tables, laid out as the probing binary of KenLM lays them out.
//!
//! The key of an n-gram starts with the id of its last word and takes in one earlier word after the other; tables are
//! probed linearly and key 0 marks a free slot. The sign of a probability (which is never positive) says whether the
//! n-gram is the end of a longer one, and a back-off weight of -0.0 says that it is not the beginning of one.

/// Key of an n-gram from the key of the n-gram without its first word.
pub(crate) fn extend_key(key: u64, earlier: u32) -> u64 {
    key.wrapping_mul(8_978_948_897_894_561_157)
        ^ (1 + earlier as u64).wrapping_mul(17_894_857_484_156_487_943)
}

/// Weight of an n-gram that begins no longer one.
pub(crate) const NO_EXTENSION: f32 = -0.0;

/// Slots of `W` words: two for the key, then the probability and, in all but the longest order, the back-off weight.
#[derive(Debug, Clone, Default)]
pub(crate) struct Table<const W: usize> {
    pub(crate) slots: Vec<[u32; W]>,
    pub(crate) entries: u64,
}

/// Slots of a table for `entries` n-grams, as KenLM sizes it.
pub(crate) fn slots_for(entries: u64, multiplier: f32) -> u64 {
    entries.saturating_add(1).max((multiplier * entries as f32) as u64)
}

impl<const W: usize> Table<W> {
    pub(crate) fn with_room(entries: u64, multiplier: f32) -> Table<W> {
        Table { slots: vec![[0; W]; slots_for(entries, multiplier) as usize], entries: 0 }
    }

    /// Where `key` is, or the free slot where it would go; `None` in a table that is full of others.
    fn slot(&self, key: u64) -> Option<(usize, bool)> {
        let start = (key % self.slots.len().max(1) as u64) as usize;
        for at in (start..self.slots.len()).chain(0..start) {
            match self.slots[at][0] as u64 | (self.slots[at][1] as u64) << 32 {
                0 => return Some((at, false)),
                found if found == key => return Some((at, true)),
                _ => {}
            }
        }
        None
    }

    pub(crate) fn find(&self, key: u64) -> Option<&[u32; W]> {
        match self.slot(key) {
            Some((at, true)) => Some(&self.slots[at]),
            _ => None,
        }
    }

    pub(crate) fn find_mut(&mut self, key: u64) -> Option<&mut [u32; W]> {
        match self.slot(key) {
            Some((at, true)) => Some(&mut self.slots[at]),
            _ => None,
        }
    }

    /// Adds a new n-gram; false if it is there.
    pub(crate) fn insert(&mut self, key: u64, rest: &[u32]) -> bool {
        // One slot always stays free: that is what ends the search for what is not there.
        if self.entries + 1 >= self.slots.len() as u64 {
            self.grow();
        }
        match self.slot(key) {
            Some((at, false)) => {
                self.slots[at][0] = key as u32;
                self.slots[at][1] = (key >> 32) as u32;
                self.slots[at][2..].copy_from_slice(rest);
                self.entries += 1;
                true
            }
            _ => false,
        }
    }

    fn grow(&mut self) {
        let old = std::mem::replace(self, Table::with_room(self.entries * 2 + 8, 1.5));
        for slot in old.slots.iter().filter(|slot| slot[0] != 0 || slot[1] != 0) {
            self.insert(slot[0] as u64 | (slot[1] as u64) << 32, &slot[2..]);
        }
    }
}

/// All n-grams of a model.
#[derive(Debug, Clone, Default)]
pub(crate) struct Probing {
    /// By word id: log10 probability and back-off weight.
    pub(crate) unigrams: Vec<[f32; 2]>,
    /// Orders 2 to the longest but one.
    pub(crate) middle: Vec<Table<4>>,
    pub(crate) longest: Table<3>,
}

/// A stored probability without its flag.
pub(crate) fn negative(stored: f32) -> f32 {
    -stored.abs()
}

impl Probing {
    /// An empty model for `counts[n - 1]` n-grams of length n.
    pub(crate) fn with_room(counts: &[u64], multiplier: f32) -> Probing {
        let order = counts.len();
        Probing {
            unigrams: Vec::new(),
            middle: counts[1..order - 1].iter().map(|&c| Table::with_room(c, multiplier)).collect(),
            longest: Table::with_room(counts[order - 1], multiplier),
        }
    }

    pub(crate) fn order(&self) -> usize {
        self.middle.len() + 2
    }

    /// Key of the n-gram `ids`, first word first.
    fn key(ids: &[u32]) -> u64 {
        let (last, earlier) = ids.split_last().expect("an n-gram has a word");
        earlier.iter().rev().fold(*last as u64, |key, &word| extend_key(key, word))
    }

    /// Probability and back-off weight of the n-gram `ids` if it is there.
    pub(crate) fn get(&self, ids: &[u32]) -> Option<(f32, f32)> {
        let key = Self::key(ids);
        match ids.len() {
            1 => self.unigrams.get(ids[0] as usize).map(|u| (negative(u[0]), u[1])),
            n if n == self.order() => self.longest.find(key).map(|s| (negative(f32::from_bits(s[2])), 0.0)),
            n => {
                let slot = self.middle[n - 2].find(key)?;
                Some((negative(f32::from_bits(slot[2])), f32::from_bits(slot[3])))
            }
        }
    }

    /// Adds an n-gram of two words or more whose context is there. An end of it that is missing (a model may be
    /// pruned) is filled in with the probability that the model gives it anyway. The error is what is wrong.
    pub(crate) fn insert(&mut self, ids: &[u32], log10: f32, backoff: f32) -> Result<(), &'static str> {
        let n = ids.len();
        self.mark_context(&ids[..n - 1])?;
        self.ensure(&ids[1..])?;
        self.mark_suffix(&ids[1..]);
        let key = Self::key(ids);
        let new = if n == self.order() {
            self.longest.insert(key, &[negative(log10).to_bits()])
        } else {
            let backoff = if backoff == 0.0 { NO_EXTENSION } else { backoff };
            self.middle[n - 2].insert(key, &[negative(log10).to_bits(), backoff.to_bits()])
        };
        if new { Ok(()) } else { Err("an n-gram occurs twice (or two n-grams share a 64-bit key)") }
    }

    /// Makes sure that `ids` is there; its probability.
    fn ensure(&mut self, ids: &[u32]) -> Result<f32, &'static str> {
        if let Some((log10, _)) = self.get(ids) {
            return Ok(log10);
        }
        let n = ids.len();
        let (_, backoff) = self.get(&ids[..n - 1]).unwrap_or((0.0, 0.0));
        let log10 = backoff + self.ensure(&ids[1..])?;
        self.mark_suffix(&ids[1..]);
        if self.get(&ids[..n - 1]).is_some() {
            self.mark_context(&ids[..n - 1])?;
        }
        self.middle[n - 2].insert(Self::key(ids), &[negative(log10).to_bits(), NO_EXTENSION.to_bits()]);
        Ok(log10)
    }

    /// The n-gram now begins a longer one.
    fn mark_context(&mut self, ids: &[u32]) -> Result<(), &'static str> {
        const MISSING: &str =
            "the words before the last one are not an n-gram of their own, which every ARPA file has";
        let bits = |backoff: u32| if backoff == NO_EXTENSION.to_bits() { 0 } else { backoff };
        if let [id] = ids {
            let unigram = self.unigrams.get_mut(*id as usize).ok_or(MISSING)?;
            unigram[1] = f32::from_bits(bits(unigram[1].to_bits()));
        } else {
            let slot = self.middle[ids.len() - 2].find_mut(Self::key(ids)).ok_or(MISSING)?;
            slot[3] = bits(slot[3]);
        }
        Ok(())
    }

    /// The n-gram now ends a longer one.
    fn mark_suffix(&mut self, ids: &[u32]) {
        if let [id] = ids {
            let unigram = &mut self.unigrams[*id as usize];
            unigram[0] = unigram[0].abs();
        } else if let Some(slot) = self.middle[ids.len() - 2].find_mut(Self::key(ids)) {
            slot[2] = f32::from_bits(slot[2]).abs().to_bits();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_is_that_of_kenlm() {
        assert_eq!(Probing::key(&[3, 5]), 10_256_688_703_862_665_093);
    }

    #[test]
    fn tables_grow_and_refuse_what_they_have() {
        let mut table = Table::<3>::with_room(1, 1.5);
        for key in 1..100u64 {
            assert!(table.insert(key * 7, &[key as u32]));
        }
        assert!(!table.insert(7, &[0]));
        assert_eq!(table.find(70).map(|s| s[2]), Some(10));
        assert!(table.find(71).is_none());
    }
}
