//! Suffix arrays: the judge of the faster search.
//!
//! [`suffix_array`] is SA-IS (Nong, Zhang, Chan 2009), [`lcp_array`] is Kasai's (2001); both O(n). [`repeats`] reads
//! from them which bytes repeat, in the semantics of [`super`]. A byte costs about 30 bytes of memory here, so this form
//! serves tests and texts that fit; the search of [`super::Finder`] gives the same ranges for any size.

use super::ranges::{Interval, aligned, merge, subtract};
use std::ops::Range;

/// No suffix has been put here yet.
const EMPTY: u32 = u32::MAX;

/// Positions of the suffixes of `text` in ascending order; a suffix that is a prefix of another comes first.
///
/// # Panics
/// If the text has 2^32 - 1 symbols or more.
pub fn suffix_array(text: &[u8]) -> Vec<u32> {
    let symbols: Vec<u32> = text.iter().map(|&byte| u32::from(byte)).collect();
    suffix_array_of(&symbols, 255)
}

/// Length of the common prefix of suffixes `array[i - 1]` and `array[i]`; 0 for the first.
pub fn lcp_array(text: &[u8], array: &[u32]) -> Vec<u32> {
    let symbols: Vec<u32> = text.iter().map(|&byte| u32::from(byte)).collect();
    lcp_array_of(&symbols, array)
}

/// Kasai: the suffix behind position p shares at least one symbol less with its neighbour than the one at p does.
fn lcp_array_of(text: &[u32], array: &[u32]) -> Vec<u32> {
    let mut rank = vec![0u32; text.len()];
    for (place, &position) in array.iter().enumerate() {
        rank[position as usize] = place as u32;
    }
    let mut lcp = vec![0u32; text.len()];
    let mut shared = 0usize;
    for position in 0..text.len() {
        let place = rank[position] as usize;
        if place == 0 {
            shared = 0;
            continue;
        }
        let before = array[place - 1] as usize;
        let (left, right) = (&text[position..], &text[before..]);
        let limit = left.len().min(right.len());
        while shared < limit && left[shared] == right[shared] {
            shared += 1;
        }
        lcp[place] = shared as u32;
        shared = shared.saturating_sub(1);
    }
    lcp
}

/// Suffixes of types: `smaller[i]` where suffix i is below suffix i + 1, and where the types' parts of buckets begin.
struct Types {
    smaller: Vec<bool>,
    large_at: Vec<u32>,
    small_at: Vec<u32>,
}

impl Types {
    fn of(text: &[u32], upper: u32) -> Types {
        let (n, size) = (text.len(), upper as usize + 1);
        let mut smaller = vec![false; n];
        for i in (0..n - 1).rev() {
            smaller[i] = if text[i] == text[i + 1] { smaller[i + 1] } else { text[i] < text[i + 1] };
        }
        let (mut large_at, mut small_at) = (vec![0u32; size + 1], vec![0u32; size + 1]);
        for (&symbol, &smaller) in text.iter().zip(&smaller) {
            if smaller {
                large_at[symbol as usize + 1] += 1;
            } else {
                small_at[symbol as usize] += 1;
            }
        }
        for symbol in 0..size {
            small_at[symbol] += large_at[symbol];
            large_at[symbol + 1] += small_at[symbol];
        }
        Types { smaller, large_at, small_at }
    }

    /// Sorts all suffixes from the order of the leftmost smaller ones.
    fn induce(&self, text: &[u32], leftmost: &[u32], array: &mut [u32]) {
        array.fill(EMPTY);
        let put = |at: &mut [u32], symbol: u32, value: u32, array: &mut [u32]| {
            let place = &mut at[symbol as usize];
            array[*place as usize] = value;
            *place += 1;
        };
        let mut at = self.small_at.clone();
        for &position in leftmost {
            put(&mut at, text[position as usize], position, array);
        }
        at.copy_from_slice(&self.large_at);
        let last = text.len() - 1;
        put(&mut at, text[last], last as u32, array);
        for i in 0..array.len() {
            let position = array[i];
            if position != EMPTY && position > 0 && !self.smaller[position as usize - 1] {
                put(&mut at, text[position as usize - 1], position - 1, array);
            }
        }
        at.copy_from_slice(&self.large_at);
        for i in (0..array.len()).rev() {
            let position = array[i];
            if position != EMPTY && position > 0 && self.smaller[position as usize - 1] {
                let place = &mut at[text[position as usize - 1] as usize + 1];
                *place -= 1;
                array[*place as usize] = position - 1;
            }
        }
    }
}

/// SA-IS over symbols 0 to `upper`.
fn suffix_array_of(text: &[u32], upper: u32) -> Vec<u32> {
    let n = text.len();
    assert!(n < EMPTY as usize, "suffix positions have 32 bits");
    match n {
        0 => return Vec::new(),
        1 => return vec![0],
        _ => {}
    }
    let types = Types::of(text, upper);
    let mut array = vec![EMPTY; n];
    let mut number = vec![EMPTY; n];
    let mut leftmost = Vec::new();
    for (i, number) in number.iter_mut().enumerate().skip(1) {
        if types.smaller[i] && !types.smaller[i - 1] {
            *number = leftmost.len() as u32;
            leftmost.push(i as u32);
        }
    }
    types.induce(text, &leftmost, &mut array);
    if leftmost.len() < 2 {
        return array;
    }
    // Equal pieces between leftmost smaller suffixes get equal names; the order of the names' suffixes is theirs.
    let sorted: Vec<u32> = array.iter().copied().filter(|&p| number[p as usize] != EMPTY).collect();
    let end = |position: u32| {
        leftmost.get(number[position as usize] as usize + 1).map_or(n, |&next| next as usize + 1)
    };
    let mut names = vec![0u32; leftmost.len()];
    let mut name = 0;
    for pair in sorted.windows(2) {
        let (left, right) = (pair[0] as usize..end(pair[0]), pair[1] as usize..end(pair[1]));
        // The piece that reaches the end of the text equals no other.
        let same = number[pair[0] as usize] as usize + 1 < leftmost.len()
            && number[pair[1] as usize] as usize + 1 < leftmost.len()
            && text[left] == text[right];
        name += u32::from(!same);
        names[number[pair[1] as usize] as usize] = name;
    }
    let order = suffix_array_of(&names, name);
    let sorted: Vec<u32> = order.iter().map(|&i| leftmost[i as usize]).collect();
    types.induce(text, &sorted, &mut array);
    array
}

/// The byte ranges of each document that [`super::Finder`] would remove, by suffix array.
///
/// # Panics
/// If documents and their separators make 2^32 - 1 symbols or more.
pub fn repeats(documents: &[&[u8]], length: usize) -> Vec<Vec<Range<u64>>> {
    // A separator of its own behind each document: no common prefix reaches beyond one.
    let mut symbols = Vec::new();
    let mut starts = Vec::new();
    for (index, document) in documents.iter().enumerate() {
        starts.push(symbols.len() as u64);
        symbols.extend(document.iter().map(|&byte| u32::from(byte)));
        symbols.push(256 + index as u32);
    }
    let array = suffix_array_of(&symbols, 256 + documents.len() as u32);
    let lcp = lcp_array_of(&symbols, &array);
    let (mut marks, mut keeps) = (Vec::new(), Vec::new());
    let mut begin = 0;
    while begin < array.len() {
        let mut end = begin + 1;
        while end < array.len() && lcp[end] as usize >= length {
            end += 1;
        }
        if end - begin > 1 {
            let window = |&position: &u32| (u64::from(position), u64::from(position) + length as u64);
            let mut group: Vec<Interval> = array[begin..end].iter().map(window).collect();
            group.sort_unstable();
            keeps.push(group[0]);
            marks.extend_from_slice(&group[1..]);
        }
        begin = end;
    }
    let inside = |all: &[Interval], start: u64, document: &[u8]| {
        let within = all.iter().filter(|range| range.0 >= start && range.1 <= start + document.len() as u64);
        let mut ranges: Vec<Interval> =
            within.map(|range| aligned(document, (range.0 - start, range.1 - start))).collect();
        ranges.sort_unstable();
        merge(&mut ranges);
        ranges
    };
    let each = documents.iter().zip(starts).map(|(document, start)| {
        let (marks, keeps) = (inside(&marks, start, document), inside(&keeps, start, document));
        subtract(&marks, &keeps).into_iter().map(|range| range.0..range.1).collect()
    });
    each.collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // A failed unwrap in a test is a failed test with a backtrace.
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn naive(text: &[u8]) -> (Vec<u32>, Vec<u32>) {
        let mut array: Vec<u32> = (0..text.len() as u32).collect();
        array.sort_by_key(|&p| &text[p as usize..]);
        let mut lcp = vec![0u32; text.len()];
        for i in 1..text.len() {
            let (a, b) = (&text[array[i - 1] as usize..], &text[array[i] as usize..]);
            lcp[i] = a.iter().zip(b).take_while(|(x, y)| x == y).count() as u32;
        }
        (array, lcp)
    }

    /// Golden of the reference.
    #[test]
    fn banana() {
        let array = suffix_array(b"banana");
        assert_eq!(array, [5, 3, 1, 0, 4, 2]);
        assert_eq!(lcp_array(b"banana", &array), [0, 1, 3, 0, 0, 2]);
    }

    #[test]
    fn fibonacci_and_periodic_strings_equal_the_naive_array() {
        let (mut a, mut b) = (b"a".to_vec(), b"ab".to_vec());
        while b.len() < 400 {
            let next = [b.as_slice(), a.as_slice()].concat();
            a = std::mem::replace(&mut b, next);
        }
        for text in [b, b"abcabc".repeat(40), vec![7; 300], vec![255; 2], vec![], vec![3], b"ba".to_vec()] {
            let (array, lcp) = naive(&text);
            assert_eq!(suffix_array(&text), array);
            assert_eq!(lcp_array(&text, &array), lcp);
        }
    }

    proptest! {
        #[test]
        fn random_strings_equal_the_naive_array(text in proptest::collection::vec(0u8..4, 0..200), wide in proptest::collection::vec(any::<u8>(), 0..100)) {
            for text in [text, wide] {
                let (array, lcp) = naive(&text);
                prop_assert_eq!(&suffix_array(&text), &array);
                prop_assert_eq!(lcp_array(&text, &array), lcp);
            }
        }
    }
}
