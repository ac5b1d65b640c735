//! Parts of ranks' states: each lies in slots of its own.

use crate::message::part as message;
use crate::overflow::{OverflowPlan, Pair};
use crate::slot::{CHUNK, CompleteCopy, Slot};
use crate::{MemoryError, Result};
use bessemer_collectives::{Communicator, Message};
use std::ops::Range;
use std::time::Instant;

/// Place of a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Tier {
    /// In a rank's memory for copies.
    Memory,
    /// In the slower store of the rank whose state it is.
    Store,
}

/// A part of a rank's state.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct StatePart {
    /// Rank whose state it is.
    pub of: usize,
    /// Rank that writes it.
    pub holder: usize,
    /// Its place.
    pub tier: Tier,
    /// Its bytes among those that the rank saves.
    pub bytes: Range<u64>,
}

impl StatePart {
    /// Parts of states of `state` bytes, by rank: first what each rank holds itself, then what goes elsewhere.
    pub fn list(state: &[u64], plan: &OverflowPlan) -> Vec<StatePart> {
        let elsewhere = |rank: usize| {
            let sent = plan.transfers.iter().filter(|transfer| transfer.pair.from == rank);
            sent.map(|transfer| transfer.bytes).sum::<u64>() + plan.stored[rank]
        };
        let mut ends: Vec<u64> = state.iter().enumerate().map(|(rank, n)| n - elsewhere(rank)).collect();
        let own = |(of, end): (usize, &u64)| StatePart { of, holder: of, tier: Tier::Memory, bytes: 0..*end };
        let mut parts: Vec<_> = ends.iter().enumerate().map(own).collect();
        let mut next = |of: usize, bytes: u64| {
            let start = ends[of];
            ends[of] += bytes;
            start..start + bytes
        };
        for transfer in &plan.transfers {
            let Pair { from: of, to: holder } = transfer.pair;
            parts.push(StatePart { of, holder, tier: Tier::Memory, bytes: next(of, transfer.bytes) });
        }
        for (of, bytes) in plan.stored.iter().enumerate().filter(|(_, bytes)| **bytes > 0) {
            parts.push(StatePart { of, holder: of, tier: Tier::Store, bytes: next(of, *bytes) });
        }
        parts
    }

    /// Whether it goes to another rank.
    pub fn is_sent(&self) -> bool {
        self.of != self.holder
    }
}

/// Reads elements of a part, from the given one on.
pub type ReadPart<'a, E> = dyn FnMut(usize, &mut [f32]) -> std::result::Result<(), E> + 'a;

/// Sends the `elements` elements of a part to rank `to`, which calls [`receive_part`].
///
/// # Errors
/// Errors of `read`; an answer of another rank.
pub fn send_part<E: From<MemoryError>>(
    group: &mut dyn Communicator,
    to: usize,
    elements: usize,
    read: &mut ReadPart<'_, E>,
) -> std::result::Result<(), E> {
    const STEP: usize = CHUNK / 4;
    let mut chunk = vec![0.0; STEP.min(elements)];
    for start in (0..elements).step_by(STEP) {
        let here = &mut chunk[..(elements - start).min(STEP)];
        read(start, here)?;
        group.send(message(to), bytemuck::cast_slice::<f32, u8>(here)).map_err(MemoryError::from)?;
    }
    Ok(())
}

/// Receives a part of the state after `step` from rank `from` into a slot of its size.
///
/// # Errors
/// Answers of the system, when all has been received; an answer of another rank.
pub fn receive_part(
    group: &mut dyn Communicator,
    from: usize,
    slot: &Slot,
    step: u64,
    launch: u64,
) -> Result<CompleteCopy> {
    // A slot that cannot be written does not keep the sender waiting.
    let mut writer = slot.begin(step, launch);
    let mut bytes = vec![0; CHUNK.min(slot.key().bytes as usize)];
    for number in 0..slot.key().chunks() {
        let chunk = slot.key().chunk(number);
        let here = &mut bytes[..(chunk.end - chunk.start) as usize];
        group.receive(message(from), &mut *here)?;
        writer = writer.and_then(|writer| writer.write_chunk(number, here).map(|()| writer));
    }
    writer?.finish(&[])
}

/// Measures the rates at which this rank sends to others: bytes a second for each of `pairs` that it is the sender of, 0 for the others. All ranks
/// that occur in `pairs` call this with the same ones.
///
/// # Errors
/// An answer of another rank.
pub fn measure_rates(group: &mut dyn Communicator, pairs: &[Pair]) -> Result<Vec<f64>> {
    /// Chunks that are timed, after one that is not: connections are made when they are first used.
    const TIMED: usize = 4;
    let rank = group.rank();
    let mut bytes = vec![0u8; CHUNK];
    let mut rates = vec![0.0; pairs.len()];
    for (pair, rate) in pairs.iter().zip(&mut rates) {
        let mut answer = [0u8];
        let Pair { from, to } = *pair;
        let mut chunks = |group: &mut dyn Communicator, count: usize| -> Result<()> {
            for _ in 0..count {
                match rank == from {
                    true => group.send(message(to), &bytes[..])?,
                    false => group.receive(message(from), &mut bytes[..])?,
                }
            }
            match rank == from {
                true => group.receive(answer_of(to), &mut answer[..])?,
                false => group.send(answer_of(from), &answer[..])?,
            }
            Ok(())
        };
        if rank == from || rank == to {
            chunks(group, 1)?;
            let begun = Instant::now();
            chunks(group, TIMED)?;
            if rank == from {
                *rate = (TIMED * CHUNK) as f64 / begun.elapsed().as_secs_f64().max(1e-9);
            }
        }
    }
    Ok(rates)
}

fn answer_of(peer: usize) -> Message<'static> {
    crate::message::received(peer)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed unwrap here is a failed test")]
mod tests {
    use super::*;
    use crate::overflow::Transfer;
    use crate::slot::SlotKey;
    use bessemer_collectives::{ThreadCommunicator, ThreadSettings};

    fn on_ranks<R: Send>(ranks: usize, work: &(dyn Fn(&mut dyn Communicator) -> R + Sync)) -> Vec<R> {
        let world = ThreadCommunicator::world("world", ranks, &ThreadSettings::default());
        std::thread::scope(|scope| {
            let threads: Vec<_> =
                world.into_iter().map(|mut world| scope.spawn(move || work(&mut world))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    #[test]
    fn parts_are_a_state_cut_up() {
        let pair = |from, to| Pair { from, to };
        let transfers =
            vec![Transfer { pair: pair(0, 1), bytes: 8 }, Transfer { pair: pair(0, 2), bytes: 4 }];
        let plan = OverflowPlan { transfers, stored: vec![4, 0, 12], seconds: 0.0, scheduled: 0.0 };
        let parts = StatePart::list(&[40, 8, 12], &plan);
        let found: Vec<_> = parts.iter().map(|p| (p.of, p.holder, p.tier, p.bytes.clone())).collect();
        assert_eq!(
            found,
            [
                (0, 0, Tier::Memory, 0..24),
                (1, 1, Tier::Memory, 0..8),
                (2, 2, Tier::Memory, 0..0),
                (0, 1, Tier::Memory, 24..32),
                (0, 2, Tier::Memory, 32..36),
                (0, 0, Tier::Store, 36..40),
                (2, 2, Tier::Store, 0..12),
            ]
        );
        assert_eq!(parts.iter().map(StatePart::is_sent).filter(|sent| *sent).count(), 2);
    }

    #[test]
    fn a_part_that_is_sent_is_a_complete_copy_and_a_lost_slot_keeps_nobody_waiting() {
        let bytes = CHUNK as u64 + 500;
        let directory = tempfile::tempdir().unwrap();
        let key = SlotKey { run: 1, part: 5, parts: 6, layout: 3, bytes, notes: 0 };
        let path = directory.path().join("slot");
        let value = |at: u64| (at * 31 % 253) as u8;
        let ends = on_ranks(2, &|world| {
            if world.rank() == 0 {
                let mut read = |first: usize, to: &mut [f32]| {
                    let to: &mut [u8] = bytemuck::cast_slice_mut(to);
                    to.iter_mut().enumerate().for_each(|(i, byte)| *byte = value((4 * first + i) as u64));
                    Ok::<_, MemoryError>(())
                };
                let mut send = || send_part(world, 1, bytes as usize / 4, &mut read).is_ok();
                send() && send()
            } else {
                let slot = Slot::open(&path, key).unwrap();
                let copy = receive_part(world, 0, &slot, 9, 2).unwrap();
                assert_eq!((slot.complete(), copy.step, copy.launch), (Some(copy), 9, 2));
                slot.verify(&copy, 1).unwrap();
                let mut found = vec![0; bytes as usize];
                slot.read_at(&mut found, 0).unwrap();
                assert!(found.iter().enumerate().all(|(at, byte)| *byte == value(at as u64)));
                // A slot that is open for reading only.
                let lost = Slot::open_existing(&path, key).unwrap();
                receive_part(world, 0, &lost, 10, 2).is_err()
            }
        });
        assert_eq!(ends, [true, true]);
    }

    #[test]
    fn senders_measure_their_rates() {
        let pairs = [Pair { from: 0, to: 1 }, Pair { from: 0, to: 2 }, Pair { from: 2, to: 1 }];
        let rates = on_ranks(3, &|world| measure_rates(world, &pairs).unwrap());
        let sends = |rank: usize| pairs.map(|pair| pair.from == rank);
        for (rank, rates) in rates.iter().enumerate() {
            assert_eq!(rates.iter().map(|rate| *rate > 0.0).collect::<Vec<_>>(), sends(rank));
        }
    }
}
