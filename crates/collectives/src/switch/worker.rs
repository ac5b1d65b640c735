//! A worker: the collectives of one rank through the slots of a switch, as a state machine without sockets and clocks.

use super::fixed_point::{PacketScale, ZERO, exponent};
use super::packet::{Packet, SlotUse, WorkerId};
use crate::{ElementType, HostSliceMut};
use std::ops::Range;
use std::time::Duration;

/// How a worker uses a switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkerSettings {
    /// Workers of the job.
    pub workers: u32,
    /// Values of a packet.
    pub values: u32,
    /// Time without an answer after which a packet is sent again; doubled each time, up to 16 times as long.
    pub resend_after: Duration,
}

/// Counts of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WorkerCounts {
    /// Packets with values, without those that were sent again.
    pub sent: u64,
    /// Packets that were sent again.
    pub resent: u64,
    /// Sums that arrived.
    pub sums: u64,
    /// Sums that had arrived before, or were for nobody.
    pub repeated: u64,
    /// Slots whose sum had not arrived, at most.
    pub most_in_flight: u32,
}

/// State of a slot that waits for a sum.
#[derive(Debug, Clone, Copy)]
struct Waiting {
    /// Packet of the collective whose sum is missing; before the first one exponents alone are sent.
    block: Option<usize>,
    scale: PacketScale,
    due: Duration,
    tries: u32,
}

/// One worker of a job that has slots. Every slot has one packet in flight at most (Sapio et al. 2021, algorithm 4).
///
/// It sums f32 as fixed-point numbers and u32 modulo 2^32, in place. The values of an all-reduce in progress are an argument of
/// every call and must be the same memory until [`SlotWorker::in_flight`] is 0.
#[derive(Debug)]
pub struct SlotWorker {
    id: WorkerId,
    settings: WorkerSettings,
    /// Uses of each slot, in all collectives.
    phases: Vec<u32>,
    counts: WorkerCounts,
    /// Number of the all-reduce in progress.
    collective: u32,
    waiting: Vec<Option<Waiting>>,
    in_flight: u32,
    packet: Vec<u8>,
    body: Vec<u8>,
}

impl SlotWorker {
    /// A worker of a job to which the switch has granted `slots` slots.
    pub fn new(id: WorkerId, settings: WorkerSettings, slots: u32) -> SlotWorker {
        SlotWorker {
            id,
            settings,
            phases: vec![0; slots as usize],
            counts: WorkerCounts::default(),
            collective: 0,
            waiting: Vec::new(),
            in_flight: 0,
            packet: Vec::new(),
            body: Vec::new(),
        }
    }

    /// Counts so far.
    pub fn counts(&self) -> WorkerCounts {
        self.counts
    }

    /// Slots of the job.
    pub fn slots(&self) -> u32 {
        self.phases.len() as u32
    }

    /// Slots whose sum has not arrived; 0 when the all-reduce is done.
    pub fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// When the next packet is to be sent again.
    pub fn next_due(&self) -> Option<Duration> {
        self.waiting.iter().flatten().map(|slot| slot.due).min()
    }

    /// Begins an all-reduce and sends the first packet of each slot. All workers begin the same ones in the same order;
    /// `collective` is a number that differs between different ones.
    ///
    /// # Panics
    /// If the values are neither f32 nor u32, or another all-reduce is in progress.
    pub fn begin(
        &mut self,
        values: &HostSliceMut<'_>,
        collective: u32,
        now: Duration,
        send: &mut dyn FnMut(&[u8]),
    ) {
        let floats = values.element == ElementType::F32;
        assert!(floats || values.element == ElementType::U32, "a switch sums f32 and u32");
        assert_eq!(self.in_flight, 0, "one all-reduce at a time");
        let blocks = values.bytes.len().div_ceil(4 * self.settings.values as usize);
        let used = blocks.min(self.phases.len());
        self.collective = collective;
        self.in_flight = used as u32;
        self.counts.most_in_flight = self.counts.most_in_flight.max(self.in_flight);
        self.waiting.clear();
        self.waiting.extend((0..used).map(|slot| {
            let block = (!floats).then_some(slot);
            Some(Waiting { block, scale: PacketScale::new(ZERO, 1), due: now, tries: 0 })
        }));
        (0..used).for_each(|slot| self.send(values, slot, now, send));
    }

    /// Sends what is due again.
    pub fn resend(&mut self, values: &HostSliceMut<'_>, now: Duration, send: &mut dyn FnMut(&[u8])) {
        for slot in 0..self.waiting.len() {
            if self.waiting[slot].is_some_and(|waiting| waiting.due <= now) {
                self.send(values, slot, now, send);
            }
        }
    }

    /// Takes a packet from the switch and sends the next one of its slot. What is for nobody here is dropped.
    ///
    /// # Errors
    /// The switch's reason if it refuses the job.
    pub fn receive(
        &mut self,
        values: &mut HostSliceMut<'_>,
        packet: &[u8],
        now: Duration,
        send: &mut dyn FnMut(&[u8]),
    ) -> Result<(), String> {
        let (at, sum) = match Packet::decode(packet) {
            Some((id, Packet::Sum(at, sum))) if id == self.id => (at, sum),
            Some((id, Packet::Refused { retry: false, reason })) if id == self.id => {
                return Err(reason.to_string());
            }
            _ => return Ok(()),
        };
        let slot = at.slot as usize;
        let expected = self.phases.get(slot) == Some(&at.phase) && at.collective == self.collective;
        let Some(waiting) = self.waiting.get(slot).copied().flatten().filter(|_| expected) else {
            self.counts.repeated += 1;
            return Ok(());
        };
        if let Some(block) = waiting.block {
            let range = self.range(values, block);
            if sum.len() != range.len() {
                return Err(format!("a sum of {} bytes for a packet of {}", sum.len(), range.len()));
            }
            let floats = values.element == ElementType::F32;
            let places = values.bytes[range].as_chunks_mut::<4>().0;
            for (value, sum) in places.iter_mut().zip(sum.as_chunks::<4>().0) {
                let float = || waiting.scale.float(i32::from_le_bytes(*sum)).to_le_bytes();
                *value = if floats { float() } else { *sum };
            }
        }
        self.counts.sums += 1;
        self.phases[slot] = at.phase.wrapping_add(1);
        let next = waiting.block.map_or(slot, |block| block + self.phases.len());
        if self.range(values, next).is_empty() {
            self.waiting[slot] = None;
            self.in_flight -= 1;
            return Ok(());
        }
        let scale = PacketScale::new(at.exponent, self.settings.workers);
        self.waiting[slot] = Some(Waiting { block: Some(next), scale, due: now, tries: 0 });
        self.send(values, slot, now, send);
        Ok(())
    }

    /// Bytes of a packet's values; empty behind the last.
    fn range(&self, values: &HostSliceMut<'_>, block: usize) -> Range<usize> {
        let (all, size) = (values.bytes.len(), 4 * self.settings.values as usize);
        let from = block.saturating_mul(size).min(all);
        from..from.saturating_add(size).min(all)
    }

    /// Sends the packet of a slot, for the first time or again.
    fn send(&mut self, values: &HostSliceMut<'_>, slot: usize, now: Duration, send: &mut dyn FnMut(&[u8])) {
        let Some(waiting) = self.waiting[slot] else { return };
        let floats = values.element == ElementType::F32;
        let read = |range: Range<usize>| {
            values.bytes[range].as_chunks::<4>().0.iter().map(|value| f32::from_le_bytes(*value))
        };
        self.body.clear();
        let next = match waiting.block {
            None => slot,
            Some(block) => {
                let range = self.range(values, block);
                if floats {
                    self.body.extend(read(range).flat_map(|x| waiting.scale.fixed(x).to_le_bytes()));
                } else {
                    self.body.extend_from_slice(&values.bytes[range]);
                }
                block + self.phases.len()
            }
        };
        let at = SlotUse {
            slot: slot as u32,
            phase: self.phases[slot],
            collective: self.collective,
            exponent: if floats { exponent(read(self.range(values, next))) } else { ZERO },
        };
        Packet::Values(at, &self.body).encode(self.id, &mut self.packet);
        send(&self.packet);
        match waiting.tries {
            0 => self.counts.sent += 1,
            _ => self.counts.resent += 1,
        }
        let due = now + self.settings.resend_after * (1 << waiting.tries.min(4));
        self.waiting[slot] = Some(Waiting { due, tries: waiting.tries + 1, ..waiting });
    }
}
