//! Mutations of an input, each a function of a seed: what `cargo test` runs beside the seeds themselves.

/// SplitMix64 (Steele, Lea and Flood 2014).
#[derive(Debug, Clone)]
pub struct Random(pub u64);

impl Random {
    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`; 0 where that is 0.
    pub fn below(&mut self, end: usize) -> usize {
        (self.number() % end.max(1) as u64) as usize
    }
}

/// Numbers at which readers of lengths and offsets break.
const EDGES: &[u64] =
    &[0, 1, 0x7f, 0x80, 0xff, 0x7fff, 0xffff, 0x7fff_ffff, 0xffff_ffff, u64::MAX >> 1, u64::MAX];
/// Bytes that mean something to many formats.
const MARKS: &[u8] = b"\0\n\r\"'<>{}[]:;,&%\\\x1b\xc3\xed\xf0\xff";

/// An input with one to eight changes; `other` lends parts of itself.
pub fn mutated(input: &[u8], other: &[u8], random: &mut Random) -> Vec<u8> {
    let mut bytes = input.to_vec();
    for _ in 0..=random.below(8) {
        let at = random.below(bytes.len() + 1);
        let length = (1 + random.below(16)).min(bytes.len() - at);
        match random.below(9) {
            0 => bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= 1 << random.below(8)),
            1 => bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte = random.number() as u8),
            2 => bytes.truncate(at),
            3 => drop(bytes.drain(at..at + length)),
            4 => {
                let part = bytes[at..at + length].repeat(1 + random.below(64));
                bytes.splice(at..at, part);
            }
            5 => {
                let edge = EDGES[random.below(EDGES.len())].to_le_bytes();
                let width = [1, 2, 4, 8][random.below(4)];
                bytes.iter_mut().skip(at).zip(&edge[..width]).for_each(|(byte, edge)| *byte = *edge);
            }
            6 => bytes.insert(at, MARKS[random.below(MARKS.len())]),
            7 => {
                let from = random.below(other.len() + 1);
                let part = &other[from..other.len().min(from + 1 + random.below(256))];
                bytes.splice(at..at, part.iter().copied());
            }
            _ => {
                let to = random.below(bytes.len() + 1);
                let part = bytes[at..at + length].to_vec();
                bytes.splice(to..to, part);
            }
        }
    }
    bytes
}
