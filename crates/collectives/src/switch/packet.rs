//! Packets between workers and the switch, numbers little-endian:
//!
//! | bytes | what |
//! |---|---|
//! | 0-3 | `BSWT` |
//! | 4, 5 | version, 1; kind |
//! | 6-7, 8-15 | worker and job that the packet is from, or for |
//! | 16-19, 20-23 | slot and phase of values and sums; slots wanted and workers of a join; slots granted |
//! | 24-27 | hash of the collective of values and sums; values a packet of a join; 1: try a refused join again |
//! | 28-31 | exponent of values and sums |
//! | 32-39 | XXH3 of the body, seeded with the XXH3 of the bytes before |
//! | 40- | 32-bit integers, or the reason of a refusal |

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

const MAGIC: &[u8; 4] = b"BSWT";
const VERSION: u8 = 1;
const HEADER: usize = 40;
/// Most bytes of a packet: what a UDP datagram holds.
pub(super) const MOST_BYTES: usize = 65_507;
/// Most values of a packet.
pub const MOST_VALUES: usize = (MOST_BYTES - HEADER) / 4;

/// A worker of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkerId {
    /// Job, a number on which its workers agree.
    pub job: u64,
    /// Worker, from 0.
    pub worker: u16,
}

/// Place and purpose of the values of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotUse {
    /// Slot, counted from the first of the job.
    pub slot: u32,
    /// Uses of the slot before this one, modulo 2^32. Its lowest bit says in which of the two versions the sum is formed.
    pub phase: u32,
    /// Hash of the collective, on which all workers must agree.
    pub collective: u32,
    /// Exponent of the values that this slot has next; of a sum the largest of all workers.
    pub exponent: i32,
}

/// A packet that has been checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Packet<'a> {
    /// A worker asks for slots.
    Join {
        /// Workers of the job.
        workers: u32,
        /// Slots that it would use.
        slots: u32,
        /// Values that its packets have at most.
        values: u32,
    },
    /// The job has slots.
    Granted {
        /// Number of slots.
        slots: u32,
    },
    /// Values of one worker, four bytes each.
    Values(SlotUse, &'a [u8]),
    /// The sum of all workers' values.
    Sum(SlotUse, &'a [u8]),
    /// A worker has every sum that it wants.
    Leave,
    /// The switch knows that the worker has left.
    Left,
    /// The switch does not serve the job.
    Refused {
        /// Whether a join may succeed later.
        retry: bool,
        /// Description: what was wanted and what was found.
        reason: &'a str,
    },
}

impl<'a> Packet<'a> {
    /// Replaces the contents of `bytes` by the packet.
    pub fn encode(&self, id: WorkerId, bytes: &mut Vec<u8>) {
        let used = |at: &SlotUse| [at.slot, at.phase, at.collective, at.exponent as u32];
        let (kind, numbers, body): (u8, [u32; 4], &[u8]) = match self {
            Packet::Join { workers, slots, values } => (0, [*slots, *workers, *values, 0], &[]),
            Packet::Granted { slots } => (1, [*slots, 0, 0, 0], &[]),
            Packet::Values(at, values) => (2, used(at), values),
            Packet::Sum(at, values) => (3, used(at), values),
            Packet::Leave => (4, [0; 4], &[]),
            Packet::Left => (5, [0; 4], &[]),
            Packet::Refused { retry, reason } => (6, [0, 0, u32::from(*retry), 0], reason.as_bytes()),
        };
        bytes.clear();
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&[VERSION, kind]);
        bytes.extend_from_slice(&id.worker.to_le_bytes());
        bytes.extend_from_slice(&id.job.to_le_bytes());
        numbers.iter().for_each(|number| bytes.extend_from_slice(&number.to_le_bytes()));
        let sum = xxh3_64_with_seed(body, xxh3_64(bytes));
        bytes.extend_from_slice(&sum.to_le_bytes());
        bytes.extend_from_slice(body);
    }

    /// Reads a packet; `None` if the bytes are not one. What is damaged counts as lost.
    pub fn decode(bytes: &'a [u8]) -> Option<(WorkerId, Packet<'a>)> {
        let (header, body) = bytes.split_at_checked(HEADER)?;
        if &header[..4] != MAGIC || header[4] != VERSION {
            return None;
        }
        let word = |at: usize| Some(u32::from_le_bytes(header[at..at + 4].try_into().ok()?));
        let long = |at: usize| Some(u64::from_le_bytes(header[at..at + 8].try_into().ok()?));
        if long(32)? != xxh3_64_with_seed(body, xxh3_64(&header[..32])) {
            return None;
        }
        let id = WorkerId { job: long(8)?, worker: u16::from_le_bytes([header[6], header[7]]) };
        let used = || {
            let exponent = word(28)? as i32;
            let at = SlotUse { slot: word(16)?, phase: word(20)?, collective: word(24)?, exponent };
            body.len().is_multiple_of(4).then_some(at)
        };
        let packet = match header[5] {
            0 => Packet::Join { slots: word(16)?, workers: word(20)?, values: word(24)? },
            1 => Packet::Granted { slots: word(16)? },
            2 => Packet::Values(used()?, body),
            3 => Packet::Sum(used()?, body),
            4 => Packet::Leave,
            5 => Packet::Left,
            6 => Packet::Refused { retry: word(24)? == 1, reason: std::str::from_utf8(body).ok()? },
            _ => return None,
        };
        Some((id, packet))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_read_as_they_were_written_and_a_changed_bit_loses_them() {
        let at = SlotUse { slot: 7, phase: u32::MAX, collective: 9, exponent: -149 };
        let packets = [
            Packet::Join { workers: 3, slots: 64, values: 32 },
            Packet::Granted { slots: 5 },
            Packet::Values(at, &[1, 2, 3, 4]),
            Packet::Sum(at, &[]),
            Packet::Leave,
            Packet::Left,
            Packet::Refused { retry: true, reason: "no slots" },
        ];
        let id = WorkerId { job: 1 << 40, worker: 65_535 };
        let mut bytes = vec![0xff; 3];
        for packet in packets {
            packet.encode(id, &mut bytes);
            assert_eq!(Packet::decode(&bytes), Some((id, packet)));
            assert_eq!(Packet::decode(&bytes[..bytes.len() - 1]), None);
            for bit in 0..8 * bytes.len() {
                let mut damaged = bytes.clone();
                damaged[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(Packet::decode(&damaged), None, "bit {bit} of {packet:?}");
            }
        }
        // Three bytes are no integers, even with a right sum.
        Packet::Values(at, &[1, 2, 3]).encode(id, &mut bytes);
        assert_eq!(Packet::decode(&bytes), None);
    }
}
