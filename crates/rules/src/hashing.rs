//! Counting segments and windows of words by 64-bit keys.
//!
//! The key of a window must be the key of its text, whatever the words that make it up ("ab" "c" and "a" "bc" are the
//! same to a tool that joins them). A polynomial hash over bytes has that property and costs one product per window:
//! with `S_k` the sum of `(b_t + 1) B^t` over the bytes before word k, the key of words i..j is `(S_j - S_i) B^(-t_i)`,
//! modulo the prime 2^61 - 1.

/// The modulus.
const P: u64 = (1 << 61) - 1;
/// The base: any number whose powers do not repeat soon.
const BASE: u64 = 0x0d1c_9f3a_5b77_e2c9 % P;

const fn reduce(value: u128) -> u64 {
    let folded = (value as u64 & P) + (value >> 61) as u64 % P;
    if folded >= P { folded - P } else { folded }
}

const fn mul(a: u64, b: u64) -> u64 {
    let product = a as u128 * b as u128;
    let folded = (product as u64 & P) + (product >> 61) as u64;
    if folded >= P { folded - P } else { folded }
}

fn add(a: u64, b: u64) -> u64 {
    let sum = a + b;
    if sum >= P { sum - P } else { sum }
}

fn sub(a: u64, b: u64) -> u64 {
    if a >= b { a - b } else { a + P - b }
}

const fn power(mut base: u64, mut exponent: u64) -> u64 {
    let mut result = 1;
    while exponent > 0 {
        if exponent & 1 == 1 {
            result = mul(result, base);
        }
        base = mul(base, base);
        exponent >>= 1;
    }
    result
}

/// Bytes that are summed before one reduction.
const BLOCK: usize = 64;

const fn powers(base: u64) -> [u64; BLOCK + 1] {
    let mut table = [1; BLOCK + 1];
    let mut index = 1;
    while index <= BLOCK {
        table[index] = mul(table[index - 1], base);
        index += 1;
    }
    table
}

static POWERS: [u64; BLOCK + 1] = powers(BASE);
static INVERSE_POWERS: [u64; BLOCK + 1] = powers(power(BASE, P - 2));

fn power_of(table: &[u64; BLOCK + 1], exponent: usize) -> u64 {
    match table.get(exponent) {
        Some(&power) => power,
        None => power(table[1], exponent as u64),
    }
}

/// `sum (b_t + 1) B^t`.
fn polynomial(bytes: &[u8]) -> u64 {
    let mut total = 0;
    for (block, chunk) in bytes.chunks(BLOCK).enumerate() {
        let sum: u128 = chunk
            .iter()
            .zip(&POWERS)
            .map(|(&byte, &power)| u128::from(u64::from(byte) + 1) * u128::from(power))
            .sum();
        let sum = reduce(sum);
        total = if block == 0 { sum } else { add(total, mul(sum, power(POWERS[BLOCK], block as u64))) };
    }
    total
}

/// Keys of the windows of a list of words.
#[derive(Debug, Default, Clone)]
pub(crate) struct WindowKeys {
    sums: Vec<u64>,
    inverse: Vec<u64>,
}

impl WindowKeys {
    /// Prepares the windows of these words; with `spaced`, words are kept apart by a blank.
    pub(crate) fn fill<'w>(&mut self, spaced: bool, words: impl Iterator<Item = &'w [u8]>) {
        self.sums.clear();
        self.inverse.clear();
        let (mut sum, mut power, mut inverse) = (0, 1, 1);
        self.sums.push(sum);
        self.inverse.push(inverse);
        for word in words {
            let mut hash = polynomial(word);
            let mut len = word.len();
            if spaced {
                hash = add(hash, mul(u64::from(b' ') + 1, power_of(&POWERS, len)));
                len += 1;
            }
            sum = add(sum, mul(hash, power));
            power = mul(power, power_of(&POWERS, len));
            inverse = mul(inverse, power_of(&INVERSE_POWERS, len));
            self.sums.push(sum);
            self.inverse.push(inverse);
        }
    }

    /// Number of windows of `n` words.
    pub(crate) fn windows(&self, n: usize) -> usize {
        self.sums.len().saturating_sub(n)
    }

    /// The key of words `index .. index + n`.
    #[inline]
    pub(crate) fn key(&self, index: usize, n: usize) -> u64 {
        mul(sub(self.sums[index + n], self.sums[index]), self.inverse[index])
    }
}

/// An open-addressing table from keys to counts and first places.
#[derive(Debug, Default, Clone)]
pub(crate) struct Table {
    slots: Vec<Slot>,
    shift: u32,
}

/// One key.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Slot {
    /// The key plus one; 0 is empty.
    key: u64,
    /// How often it came.
    pub(crate) count: u32,
    /// Value that the caller gave with the first occurrence.
    pub(crate) first: u32,
}

impl Table {
    /// Empties the table and reserves space for `keys` keys.
    pub(crate) fn reset(&mut self, keys: usize) {
        let size = (keys * 2).next_power_of_two().max(16);
        self.slots.clear();
        self.slots.resize(size, Slot::default());
        self.shift = 64 - size.trailing_zeros();
    }

    /// Counts a key; the slot holds its number of occurrences so far.
    #[inline]
    pub(crate) fn count(&mut self, key: u64, place: usize) -> &mut Slot {
        let at = self.position(key);
        let slot = &mut self.slots[at];
        if slot.key == 0 {
            *slot = Slot { key: key.wrapping_add(1).max(1), count: 0, first: place as u32 };
        }
        slot.count += 1;
        slot
    }

    /// How often a key came.
    #[inline]
    pub(crate) fn get(&self, key: u64) -> u32 {
        self.slots[self.position(key)].count
    }

    /// The slots in use, in no particular order.
    pub(crate) fn used(&self) -> impl Iterator<Item = &Slot> {
        self.slots.iter().filter(|slot| slot.count > 0)
    }

    #[inline]
    fn position(&self, key: u64) -> usize {
        let stored = key.wrapping_add(1).max(1);
        let mut at = (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> self.shift) as usize;
        let mask = self.slots.len() - 1;
        while self.slots[at].key != 0 && self.slots[at].key != stored {
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
        fn keys_are_those_of_the_joined_text(words in prop::collection::vec("[ab]{1,3}|[a-c]{60,70}", 0..40), n in 1usize..5) {
            for spaced in [false, true] {
                let mut keys = WindowKeys::default();
                keys.fill(spaced, words.iter().map(|w| w.as_bytes()));
                let windows: Vec<String> =
                    words.windows(n).map(|w| w.join(if spaced { " " } else { "" })).collect();
                prop_assert_eq!(keys.windows(n), windows.len());
                for (i, a) in windows.iter().enumerate() {
                    for (j, b) in windows.iter().enumerate() {
                        prop_assert_eq!(keys.key(i, n) == keys.key(j, n), a == b);
                    }
                }
            }
        }

        #[test]
        fn the_table_counts(keys in prop::collection::vec(prop_oneof![0u64..8, Just(u64::MAX), any::<u64>()], 0..200)) {
            let mut table = Table::default();
            table.reset(3);
            table.reset(keys.len());
            let mut plain: HashMap<u64, (u32, u32)> = HashMap::new();
            for (place, &key) in keys.iter().enumerate() {
                // The largest key shares its slot with 0: the price of a mark for empty slots.
                let key = key.min(u64::MAX - 1);
                let entry = plain.entry(key).or_insert((0, place as u32));
                entry.0 += 1;
                let slot = *table.count(key, place);
                prop_assert_eq!((slot.count, slot.first), *entry);
            }
            prop_assert_eq!(table.used().count(), plain.len());
            for (key, (count, _)) in plain {
                prop_assert_eq!(table.get(key), count);
            }
        }
    }
}
