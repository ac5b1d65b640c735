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

/// N-grams of characters, up to six of them, counted.
pub(crate) fn char_grams(chars: &[char], order: usize) -> Counts {
    let key = |gram: &[char]| gram.iter().fold(0, |key, c| key << 21 | u128::from(u32::from(*c)));
    Counts::of(chars.windows(order).map(key).collect())
}
