//! N-grams counted by sorting: keys of one order are numbers, equal n-grams stand together.

/// Sorted n-gram keys of one order.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Counts {
    /// Keys in order, with how often each occurs.
    grams: Vec<(u128, u64)>,
    total: u64,
}

impl Counts {
    /// Counts keys.
    pub(crate) fn of(mut keys: Vec<u128>) -> Counts {
        keys.sort_unstable();
        let total = keys.len() as u64;
        let mut grams: Vec<(u128, u64)> = Vec::with_capacity(keys.len());
        for key in keys {
            match grams.last_mut() {
                Some((last, count)) if *last == key => *count += 1,
                _ => grams.push((key, 1)),
            }
        }
        Counts { grams, total }
    }

    /// N-grams, each as often as it occurs.
    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// N-grams of both, each as often as it occurs in the one that has fewer of it.
    pub(crate) fn shared(&self, other: &Counts) -> u64 {
        let (mut i, mut j, mut shared) = (0, 0, 0);
        while let (Some((a, n)), Some((b, m))) = (self.grams.get(i), other.grams.get(j)) {
            if a == b {
                shared += (*n).min(*m);
            }
            i += usize::from(a <= b);
            j += usize::from(b <= a);
        }
        shared
    }

    /// For each n-gram the larger of both counts.
    pub(crate) fn most(&self, other: &Counts) -> Counts {
        let (mut i, mut j) = (0, 0);
        let mut grams = Vec::with_capacity(self.grams.len() + other.grams.len());
        loop {
            match (self.grams.get(i), other.grams.get(j)) {
                (Some(a), Some(b)) if a.0 == b.0 => {
                    grams.push((a.0, a.1.max(b.1)));
                    (i, j) = (i + 1, j + 1);
                }
                (Some(a), b) if b.is_none_or(|b| a.0 < b.0) => {
                    grams.push(*a);
                    i += 1;
                }
                (_, Some(b)) => {
                    grams.push(*b);
                    j += 1;
                }
                (_, None) => break,
            }
        }
        let total = grams.iter().map(|(_, count)| count).sum();
        Counts { grams, total }
    }
}

/// Numbers of words, the same for equal words.
#[derive(Debug, Default)]
pub(crate) struct Words<'a> {
    numbers: std::collections::HashMap<&'a str, u32>,
}

impl<'a> Words<'a> {
    /// Numbers of the words of a text.
    pub(crate) fn number(&mut self, words: impl Iterator<Item = &'a str>) -> Vec<u32> {
        words
            .map(|word| {
                let next = self.numbers.len() as u32;
                *self.numbers.entry(word).or_insert(next)
            })
            .collect()
    }
}

/// N-grams of words, up to four of them, counted.
pub(crate) fn word_grams(words: &[u32], order: usize) -> Counts {
    let key = |gram: &[u32]| gram.iter().fold(0, |key, word| key << 32 | u128::from(*word));
    Counts::of(words.windows(order).map(key).collect())
}

/// Bits of a character in a key.
const CHAR_BITS: usize = 21;

/// The n-grams of a text's characters for every order up to six, from one sort: in the order of the longest ones the shorter ones, with which these begin,
/// stand in order too.
#[derive(Debug)]
pub(crate) struct CharGrams {
    /// A key for each character: the n-gram that begins with it, as numbers from 1; 0 behind the end of the text.
    keys: Vec<u128>,
    longest: usize,
}

impl CharGrams {
    /// N-grams up to `longest`, at most six.
    pub(crate) fn new(chars: &[char], longest: usize) -> CharGrams {
        let (mask, mut key) = ((1 << (CHAR_BITS * longest)) - 1, 0);
        let next = |c: Option<&char>| c.map_or(0, |c| u128::from(u32::from(*c)) + 1);
        let mut keys = Vec::with_capacity(chars.len());
        for at in 0..chars.len() + longest.saturating_sub(1) {
            key = (key << CHAR_BITS | next(chars.get(at))) & mask;
            if at + 1 >= longest {
                keys.push(key);
            }
        }
        keys.sort_unstable();
        CharGrams { keys, longest }
    }

    /// N-grams of an order from 1 on, each as often as it occurs.
    pub(crate) fn total(&self, order: usize) -> u64 {
        (self.keys.len() + 1).saturating_sub(order) as u64
    }

    /// N-grams of both, each as often as it occurs in the one that has fewer of it.
    pub(crate) fn shared(&self, other: &CharGrams, order: usize) -> u64 {
        let shift = CHAR_BITS * (self.longest - order);
        // Keys that the end of the text cuts are no n-grams of this order.
        let grams = |keys: &'_ [u128]| -> Vec<u128> {
            let whole = |key: u128| key & ((1 << CHAR_BITS) - 1) != 0;
            keys.iter().map(|key| key >> shift).filter(|key| whole(*key)).collect()
        };
        let (own, other) = (grams(&self.keys), grams(&other.keys));
        let (mut i, mut j, mut shared) = (0, 0, 0);
        while let (Some(a), Some(b)) = (own.get(i), other.get(j)) {
            shared += u64::from(a == b);
            i += usize::from(a <= b);
            j += usize::from(b <= a);
        }
        shared
    }
}
