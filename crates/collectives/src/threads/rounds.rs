//! The collectives as rounds over slots.
//!
//! A slot holds `section` elements for each rank. While values are reduced, section q of rank r's slot is the next piece
//! of part q as rank r has it; section r, which nobody else needs for that, is the piece of rank r's part that was
//! reduced in the round before. So an all-reduce of k pieces takes k + 1 rounds.

use super::ThreadCommunicator;
use crate::call::{Call, even, piece};
use crate::order::{self, Element};
use crate::{CollectiveError, Parts, Reduce};

/// Elements summed at a time: 16 KiB, so that they stay in the first-level cache.
pub(super) const BLOCK: usize = 4096;

/// Below this many terms, ranks times elements, every rank reduces everything in one round.
const AT_ONCE: usize = 32 << 10;

impl ThreadCommunicator {
    /// Elements of a slot.
    fn capacity<E: Element>(&self) -> usize {
        (self.shared.limits.piece_bytes / E::DTYPE.size()).max(self.shared.size)
    }

    /// One round: this rank's slot is filled, then all meet. In the first round of a call its signature goes along, and
    /// those of the others are compared with it.
    fn round<E: Element>(
        &mut self,
        call: &Call<'_>,
        first: bool,
        fill: impl FnOnce(&mut [E]),
    ) -> Result<(), CollectiveError> {
        self.round += 1;
        let (rank, round, size) = (self.rank, self.round, self.shared.size);
        let signature = first.then(|| call.signature());
        let capacity = self.capacity::<E>();
        self.shared.write(rank, round, |slot| {
            if first {
                slot.signature = signature;
                slot.name.clear();
                slot.name.push_str(call.name);
            }
            let lane = E::lane_mut(&mut slot.values);
            if lane.len() < capacity {
                lane.resize(capacity, E::default());
            }
            fill(&mut lane[..capacity]);
        });
        self.shared.meet(rank, round).map_err(|stop| self.error(call, stop))?;
        for peer in (0..size).filter(|peer| first && *peer != rank) {
            let there = self.shared.read(peer, round, |slot| {
                let differs = slot.signature != signature;
                differs.then(|| slot.signature.map(|s| s.describe(&slot.name)).unwrap_or_default())
            });
            if let Some(there) = there {
                let place = call.place(&self.shared.label, rank);
                return Err(CollectiveError::Mismatch { place, peer, there: there.into() });
            }
        }
        Ok(())
    }

    /// A round without values.
    pub(super) fn meet_once(&mut self, call: &Call<'_>) -> Result<(), CollectiveError> {
        self.round::<f32>(call, true, |_| ())
    }

    /// Reduces `own` with what the other ranks' slots hold from element `at` on.
    fn reduce<E: Element>(&mut self, own: &mut [E], at: usize, reduce: Reduce) {
        let (rank, round, size) = (self.rank, self.round, self.shared.size);
        for (b, block) in own.chunks_mut(BLOCK).enumerate() {
            let sums = &mut self.sums[..block.len()];
            let from = at + b * BLOCK;
            for peer in 0..size {
                let mut term = |values: &[E]| match peer {
                    0 => order::begin(sums, values.iter().copied()),
                    _ => order::add(sums, values.iter().copied(), reduce),
                };
                if peer == rank {
                    term(block);
                } else {
                    self.shared
                        .read(peer, round, |slot| term(&E::lane(&slot.values)[from..from + block.len()]));
                }
            }
            order::end(sums, block);
        }
    }

    /// Copies what rank `peer`'s slot holds from element `at` on.
    fn copy<E: Element>(&self, peer: usize, at: usize, to: &mut [E]) {
        self.shared
            .read(peer, self.round, |slot| to.copy_from_slice(&E::lane(&slot.values)[at..at + to.len()]));
    }

    pub(super) fn reduce_all<E: Element>(
        &mut self,
        call: &Call<'_>,
        values: &mut [E],
        reduce: Reduce,
    ) -> Result<(), CollectiveError> {
        let (rank, size, len) = (self.rank, self.shared.size, values.len());
        let capacity = self.capacity::<E>();
        if len * size <= AT_ONCE && len <= capacity {
            self.round::<E>(call, true, |slot| slot[..len].copy_from_slice(values))?;
            self.reduce(values, 0, reduce);
            return Ok(());
        }
        let section = capacity / size;
        let part = |r: usize| even(len, size, r);
        let pieces = part(0).len().div_ceil(section);
        for k in 0..=pieces {
            self.round::<E>(call, k == 0, |slot| {
                for q in 0..size {
                    // Of the own part, what the round before reduced; of the others', what they are to reduce now.
                    let from = match (q == rank, k) {
                        (true, 0) => 0..0,
                        (true, _) => piece(&part(q), k - 1, section),
                        (false, _) => piece(&part(q), k, section),
                    };
                    slot[q * section..][..from.len()].copy_from_slice(&values[from]);
                }
            })?;
            let own = piece(&part(rank), k, section);
            self.reduce(&mut values[own], rank * section, reduce);
            for q in (0..size).filter(|q| k > 0 && *q != rank) {
                let done = piece(&part(q), k - 1, section);
                self.copy(q, q * section, &mut values[done]);
            }
        }
        Ok(())
    }

    pub(super) fn scatter<E: Element>(
        &mut self,
        call: &Call<'_>,
        values: &mut [E],
        parts: &Parts,
        reduce: Reduce,
    ) -> Result<(), CollectiveError> {
        let (rank, size) = (self.rank, self.shared.size);
        let section = self.capacity::<E>() / size;
        for k in 0..rounds(parts, section) {
            self.round::<E>(call, k == 0, |slot| {
                for q in (0..parts.count()).filter(|q| *q != rank) {
                    let from = piece(&parts.range(q), k, section);
                    slot[q * section..][..from.len()].copy_from_slice(&values[from]);
                }
            })?;
            let own = piece(&parts.range(rank), k, section);
            self.reduce(&mut values[own], rank * section, reduce);
        }
        Ok(())
    }

    pub(super) fn gather<E: Element>(
        &mut self,
        call: &Call<'_>,
        values: &mut [E],
        parts: &Parts,
    ) -> Result<(), CollectiveError> {
        let (rank, size, capacity) = (self.rank, self.shared.size, self.capacity::<E>());
        for k in 0..rounds(parts, capacity) {
            self.round::<E>(call, k == 0, |slot| {
                let from = piece(&parts.range(rank), k, capacity);
                slot[..from.len()].copy_from_slice(&values[from]);
            })?;
            for q in (0..size).filter(|q| *q != rank) {
                let to = piece(&parts.range(q), k, capacity);
                self.copy(q, 0, &mut values[to]);
            }
        }
        Ok(())
    }

    pub(super) fn spread<E: Element>(
        &mut self,
        call: &Call<'_>,
        root: usize,
        values: &mut [E],
    ) -> Result<(), CollectiveError> {
        let (rank, len, capacity) = (self.rank, values.len(), self.capacity::<E>());
        for k in 0..len.div_ceil(capacity).max(1) {
            let now = piece(&(0..len), k, capacity);
            self.round::<E>(call, k == 0, |slot| {
                if rank == root {
                    slot[..now.len()].copy_from_slice(&values[now.clone()]);
                }
            })?;
            if rank != root {
                self.copy(root, 0, &mut values[now]);
            }
        }
        Ok(())
    }

    pub(super) fn exchange<E: Element>(
        &mut self,
        call: &Call<'_>,
        (values, send): (&[E], &Parts),
        (out, receive): (&mut [E], &Parts),
    ) -> Result<(), CollectiveError> {
        let (rank, size) = (self.rank, self.shared.size);
        let section = self.capacity::<E>() / size;
        self.shared.write(rank, self.round + 1, |slot| {
            slot.pairs.clear();
            slot.pairs.extend((0..size).map(|q| send.range(q).len()));
            slot.pairs.extend((0..size).map(|q| receive.range(q).len()));
        });
        out[receive.range(rank)].copy_from_slice(&values[send.range(rank)]);
        let (mut k, mut rounds) = (0, 1);
        while k < rounds {
            self.round::<E>(call, k == 0, |slot| {
                for q in (0..size).filter(|q| *q != rank) {
                    let from = piece(&send.range(q), k, section);
                    slot[q * section..][..from.len()].copy_from_slice(&values[from]);
                }
            })?;
            if k == 0 {
                rounds = self.pairs_agree(call)?.div_ceil(section).max(1);
            }
            for q in (0..size).filter(|q| *q != rank) {
                let to = piece(&receive.range(q), k, section);
                self.copy(q, rank * section, &mut out[to]);
            }
            k += 1;
        }
        Ok(())
    }

    /// Every rank compares what all ranks send with what all ranks expect, so that all of them err where two disagree.
    /// Elements of the longest part.
    fn pairs_agree(&self, call: &Call<'_>) -> Result<usize, CollectiveError> {
        let size = self.shared.size;
        let mut longest = 0;
        for from in 0..size {
            self.shared.read(from, self.round, |source| {
                for to in 0..size {
                    let sent = source.pairs[to];
                    let expected = match to == from {
                        true => source.pairs[size + from],
                        false => self.shared.read(to, self.round, |sink| sink.pairs[size + from]),
                    };
                    if sent != expected {
                        let place = call.place(&self.shared.label, self.rank);
                        let (peer, other) = if from == self.rank { (to, from) } else { (from, to) };
                        let there = format!(
                            "{}, where rank {from} sends {sent} elements to rank {to}, which expects {expected} \
                             (rank {peer} against rank {other})",
                            call.signature().describe(call.name)
                        );
                        return Err(CollectiveError::Mismatch { place, peer, there: there.into() });
                    }
                    longest = longest.max(sent);
                }
                Ok(())
            })?;
        }
        Ok(longest)
    }
}

/// Rounds that the longest part takes; at least one, so that ranks meet.
fn rounds(parts: &Parts, section: usize) -> usize {
    let longest = (0..parts.count()).map(|q| parts.range(q).len()).max().unwrap_or(0);
    longest.div_ceil(section).max(1)
}
