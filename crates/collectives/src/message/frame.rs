//! One message of a collective. The layout is in the README of this crate.

use crate::call::Signature;
use crate::{CollectiveKind, ElementType, Reduce};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

const MAGIC: [u8; 4] = *b"BCMF";
const VERSION: u8 = 2;
/// Bytes before the name.
pub(super) const HEADER: usize = 96;

const REDUCES: [Reduce; 2] = [Reduce::Sum, Reduce::Max];
const NONE: u8 = 0xff;

/// Header of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header {
    /// The frame carries no values but the reason why the sender makes no further call. `signature.root` is the rank that
    /// is to blame.
    pub(super) shutdown: bool,
    pub(super) signature: Signature,
    pub(super) channel: u32,
    /// Sender's position in the group.
    pub(super) sender: u32,
    /// Number of collectives of the group before this one; for messages, of messages of this pair.
    pub(super) sequence: u64,
    /// Number of frames of the collective before this one, to the same rank.
    pub(super) step: u32,
    /// Tag of a message.
    pub(super) tag: u64,
    /// Time before which a message counts as in flight ([`crate::Collective`]).
    pub(super) not_before: u64,
}

/// A frame that was read.
#[derive(Debug)]
pub(super) struct Frame<'a> {
    pub(super) header: Header,
    /// Name of the values; empty but in the first frame of a collective.
    pub(super) name: &'a str,
    pub(super) payload: &'a [u8],
}

fn code<T: PartialEq>(all: &[T], value: Option<T>) -> u8 {
    value.and_then(|v| all.iter().position(|a| *a == v)).map_or(NONE, |at| at as u8)
}

/// Writes a frame into `bytes`.
pub(super) fn write(header: &Header, name: &str, bytes: &mut Vec<u8>, payload: &[u8]) {
    let s = &header.signature;
    bytes.clear();
    bytes.extend(MAGIC);
    bytes.extend([VERSION, u8::from(header.shutdown), code(&CollectiveKind::ALL, Some(s.kind))]);
    bytes.extend([code(&ElementType::ALL, s.element), code(&REDUCES, s.reduce), 0, 0, 0]);
    for word in [header.channel, header.sender, s.root, header.step, name.len() as u32] {
        bytes.extend(word.to_le_bytes());
    }
    // Payload length and checksum are known later.
    for word in [header.sequence, s.len, s.parts, s.name, header.tag, header.not_before, 0, 0] {
        bytes.extend(word.to_le_bytes());
    }
    bytes.extend(name.as_bytes());
    bytes.extend_from_slice(payload);
    let length = (bytes.len() - HEADER - name.len()) as u64;
    bytes[HEADER - 16..HEADER - 8].copy_from_slice(&length.to_le_bytes());
    let sum = checksum(bytes);
    bytes[HEADER - 8..HEADER].copy_from_slice(&sum.to_le_bytes());
}

fn checksum(bytes: &[u8]) -> u64 {
    xxh3_64_with_seed(&bytes[HEADER..], xxh3_64(&bytes[..HEADER - 8]))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]))
}

/// Reads a frame.
///
/// # Errors
/// Describes what is wrong with the frame.
pub(super) fn read(bytes: &[u8]) -> Result<Frame<'_>, String> {
    if bytes.len() < HEADER {
        return Err(format!("a frame of {} bytes, shorter than its header of {HEADER}", bytes.len()));
    }
    if bytes[..4] != MAGIC {
        return Err(format!("a frame that begins with {:02x?}, not {:02x?}", &bytes[..4], MAGIC));
    }
    if bytes[4] != VERSION {
        return Err(format!(
            "a frame of version {}, this program uses {VERSION}: start the same build on every rank",
            bytes[4]
        ));
    }
    let (wanted, found) = (u64_at(bytes, HEADER - 8), checksum(bytes));
    if wanted != found {
        return Err(format!(
            "a frame whose checksum is {found:016x} and should be {wanted:016x}: bytes were changed in \
             transit"
        ));
    }
    let name_len = u32_at(bytes, 28) as usize;
    let payload = u64_at(bytes, HEADER - 16);
    let inside = (bytes.len() - HEADER).checked_sub(name_len);
    let fits = inside.is_some_and(|rest| rest as u64 == payload);
    let name = bytes[HEADER..].get(..name_len).and_then(|name| std::str::from_utf8(name).ok());
    let (Some(name), Some(kind), true) = (name, CollectiveKind::ALL.get(bytes[6] as usize).copied(), fits)
    else {
        return Err("a frame whose header contradicts itself".into());
    };
    let signature = Signature {
        kind,
        element: ElementType::ALL.get(bytes[7] as usize).copied(),
        reduce: REDUCES.get(bytes[8] as usize).copied(),
        root: u32_at(bytes, 20),
        len: u64_at(bytes, 40),
        parts: u64_at(bytes, 48),
        name: u64_at(bytes, 56),
    };
    let header = Header {
        shutdown: bytes[5] == 1,
        signature,
        channel: u32_at(bytes, 12),
        sender: u32_at(bytes, 16),
        sequence: u64_at(bytes, 32),
        step: u32_at(bytes, 24),
        tag: u64_at(bytes, 64),
        not_before: u64_at(bytes, 72),
    };
    Ok(Frame { header, name, payload: &bytes[HEADER + name_len..] })
}

/// Splits a frame that was read before into name and values.
pub(super) fn parts(bytes: &[u8]) -> (&str, &[u8]) {
    let (name, payload) = bytes[HEADER..].split_at(u32_at(bytes, 28) as usize);
    (std::str::from_utf8(name).unwrap_or_default(), payload)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> (Header, Vec<u8>) {
        let signature = Signature {
            kind: CollectiveKind::ReduceScatter,
            element: Some(ElementType::Bf16),
            reduce: Some(Reduce::Max),
            root: 3,
            len: 1 << 40,
            parts: 77,
            name: 99,
        };
        let (sequence, tag, not_before) = (1 << 33, 1 << 63, 1 << 62);
        let header =
            Header { shutdown: false, signature, channel: 5, sender: 2, sequence, step: 9, tag, not_before };
        let mut bytes = vec![1, 2, 3];
        write(&header, "wté", &mut bytes, &[10, 20, 30, 40]);
        (header, bytes)
    }

    #[test]
    fn a_frame_comes_back() {
        let (header, bytes) = sample();
        let frame = read(&bytes).unwrap();
        assert_eq!((frame.header, frame.name, frame.payload), (header, "wté", &[10u8, 20, 30, 40][..]));
        assert_eq!(bytes.len(), HEADER + 4 + 4);
    }

    #[test]
    fn no_frame_with_a_bit_changed_or_a_byte_less_or_more_is_read() {
        let (_, bytes) = sample();
        for bit in 0..bytes.len() * 8 {
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(read(&bad).is_err(), "bit {bit}");
        }
        for length in 0..bytes.len() {
            assert!(read(&bytes[..length]).is_err(), "{length} bytes");
        }
        assert!(read(&[&bytes[..], &[0]].concat()).is_err());
    }
}
