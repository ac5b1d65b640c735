//! Messages on the control lane: a header of 40 bytes, followed by short messages themselves.
//!
//! | bytes | little-endian |
//! |---|---|
//! | 0..4 | `BMP1` |
//! | 4 | kind |
//! | 5..8 | zero |
//! | 8..12 | channel |
//! | 12..16 | zero |
//! | 16..24 | number of the message between these two ranks, from 0 (data only) |
//! | 24..32 | bytes of the message |
//! | 32..40 | XXH3 of bytes 0..32 and of what follows the header here |
//!
//! A control message that the engine calls received but did not write has the wrong number or the wrong hash; for those on
//! the payload lane see `marks`.

use xxhash_rust::xxh3::Xxh3;

pub(crate) const HEADER: usize = 40;
/// Longest message that travels with its header; longer ones have theirs sent ahead and go on the payload lane.
pub(crate) const INLINE: usize = 16 << 10;
/// Longest message: a header with a longer one is damaged.
const LONGEST: u64 = 1 << 42;
const MAGIC: &[u8; 4] = b"BMP1";

/// Kind of a control message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ControlKind {
    /// First message between two ranks: the sender's identity.
    Hello,
    /// Heartbeat.
    Beat,
    /// Header of a message that follows it.
    Short,
    /// Header of a message that comes on the payload lane.
    Long,
    /// The sender sends nothing more, and waits for the others to announce the same.
    Done,
    /// Last message of the sender, which has heard `Done` from all others.
    Leave,
    /// The sender gives up: rank to blame, reason.
    GiveUp,
}

const KINDS: [ControlKind; 7] = [
    ControlKind::Hello,
    ControlKind::Beat,
    ControlKind::Short,
    ControlKind::Long,
    ControlKind::Done,
    ControlKind::Leave,
    ControlKind::GiveUp,
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) kind: ControlKind,
    pub(crate) channel: u32,
    pub(crate) number: u64,
    pub(crate) length: u64,
}

fn hash(head: &[u8], body: &[u8]) -> u64 {
    let mut hasher = Xxh3::new();
    hasher.update(head);
    hasher.update(body);
    hasher.digest()
}

impl Header {
    /// Header of a message without number, channel or contents.
    pub(crate) fn bare(kind: ControlKind) -> Header {
        Header { kind, channel: 0, number: 0, length: 0 }
    }

    /// Writes header and body over what `into` holds.
    pub(crate) fn write(&self, body: &[u8], into: &mut Vec<u8>) {
        into.clear();
        into.extend_from_slice(MAGIC);
        let kind = KINDS.iter().position(|k| *k == self.kind).expect("KINDS lists every kind");
        into.extend_from_slice(&[kind as u8, 0, 0, 0]);
        into.extend_from_slice(&self.channel.to_le_bytes());
        into.extend_from_slice(&[0; 4]);
        into.extend_from_slice(&self.number.to_le_bytes());
        into.extend_from_slice(&self.length.to_le_bytes());
        let check = hash(into, body);
        into.extend_from_slice(&check.to_le_bytes());
        into.extend_from_slice(body);
    }

    /// Reads a control message into header and body.
    pub(crate) fn read(message: &[u8]) -> Result<(Header, &[u8]), String> {
        let Some((head, body)) = message.split_at_checked(HEADER) else {
            return Err(format!("{} bytes, shorter than a header", message.len()));
        };
        let word = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().expect("eight bytes"));
        if &head[..4] != MAGIC {
            return Err(format!("begins with {:02x?}, not with a header", &head[..4]));
        }
        if word(32) != hash(&head[..32], body) {
            return Err("its hash differs from its contents".to_owned());
        }
        let Some(kind) = KINDS.get(usize::from(head[4])).copied() else {
            return Err(format!("unknown kind {}", head[4]));
        };
        let channel = u32::from_le_bytes(head[8..12].try_into().expect("four bytes"));
        let header = Header { kind, channel, number: word(16), length: word(24) };
        if header.length > LONGEST || (kind != ControlKind::Long && header.length != body.len() as u64) {
            return Err(format!("announces {} bytes and has {}", header.length, body.len()));
        }
        Ok((header, body))
    }
}

/// Body of a [`ControlKind::GiveUp`] message.
pub(crate) fn notice(culprit: usize, text: &str) -> Vec<u8> {
    // Longer texts would not fit into a control message.
    let end = (0..=text.len().min(INLINE / 2)).rev().find(|i| text.is_char_boundary(*i)).unwrap_or(0);
    [&(culprit as u64).to_le_bytes()[..], &text.as_bytes()[..end]].concat()
}

/// Reads the rank to blame and the reason from that body.
pub(crate) fn read_notice(body: &[u8]) -> Option<(usize, String)> {
    let (culprit, text) = body.split_first_chunk::<8>()?;
    Some((usize::try_from(u64::from_le_bytes(*culprit)).ok()?, String::from_utf8_lossy(text).into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_comes_back_and_every_changed_bit_is_noticed() {
        let body = b"0123456789";
        let header = Header { kind: ControlKind::Short, channel: 7, number: 1 << 40, length: 10 };
        let mut message = Vec::new();
        header.write(body, &mut message);
        assert_eq!(message.len(), HEADER + 10);
        assert_eq!(Header::read(&message), Ok((header, &body[..])));
        for bit in 0..message.len() * 8 {
            message[bit / 8] ^= 1 << (bit % 8);
            assert!(Header::read(&message).is_err(), "bit {bit}");
            message[bit / 8] ^= 1 << (bit % 8);
        }
        for length in 0..message.len() {
            assert!(Header::read(&message[..length]).is_err(), "{length} bytes");
        }
    }

    #[test]
    fn lengths_that_cannot_be_are_refused() {
        let mut message = Vec::new();
        Header { kind: ControlKind::Long, channel: 0, number: 0, length: u64::MAX }.write(&[], &mut message);
        assert!(Header::read(&message).unwrap_err().contains("announces"));
        Header { kind: ControlKind::Short, channel: 0, number: 0, length: 3 }.write(b"ab", &mut message);
        assert!(Header::read(&message).unwrap_err().contains("announces 3 bytes and has 2"));
    }
}
