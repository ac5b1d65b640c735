//! Mutations of an input, each a function of a seed: what `cargo test` runs beside the seeds themselves.

use bessemer_units::splitmix::SplitMix64;

/// Numbers at which readers of lengths and offsets break.
const EDGES: &[u64] =
    &[0, 1, 0x7f, 0x80, 0xff, 0x7fff, 0xffff, 0x7fff_ffff, 0xffff_ffff, u64::MAX >> 1, u64::MAX];
/// Bytes that mean something to many formats.
const MARKS: &[u8] = b"\0\n\r\"'<>{}[]:;,&%\\\x1b\xc3\xed\xf0\xff";

/// An input with one to eight changes; `other` lends parts of itself.
pub fn mutated(input: &[u8], other: &[u8], random: &mut SplitMix64) -> Vec<u8> {
    let mut bytes = input.to_vec();
    for _ in 0..=random.index(8) {
        let at = random.index(bytes.len() + 1);
        let length = (1 + random.index(16)).min(bytes.len() - at);
        match random.index(9) {
            0 => bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= 1 << random.index(8)),
            1 => bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte = random.next_u64() as u8),
            2 => bytes.truncate(at),
            3 => drop(bytes.drain(at..at + length)),
            4 => {
                let part = bytes[at..at + length].repeat(1 + random.index(64));
                bytes.splice(at..at, part);
            }
            5 => {
                let edge = EDGES[random.index(EDGES.len())].to_le_bytes();
                let width = [1, 2, 4, 8][random.index(4)];
                bytes.iter_mut().skip(at).zip(&edge[..width]).for_each(|(byte, edge)| *byte = *edge);
            }
            6 => bytes.insert(at, MARKS[random.index(MARKS.len())]),
            7 => {
                let from = random.index(other.len() + 1);
                let part = &other[from..other.len().min(from + 1 + random.index(256))];
                bytes.splice(at..at, part.iter().copied());
            }
            _ => {
                let to = random.index(bytes.len() + 1);
                let part = bytes[at..at + length].to_vec();
                bytes.splice(to..to, part);
            }
        }
    }
    bytes
}
