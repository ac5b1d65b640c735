//! The collectives as rounds over slots.
//!
//! A slot holds `section` bytes for each rank. While values are reduced, section q of rank r's slot is the next piece
//! of part q as rank r has it; section r, which nobody else needs for that, is the piece of rank r's part that was
//! reduced in the round before. So an all-reduce of k pieces takes k + 1 rounds.

use super::ThreadCommunicator;
use crate::call::{Call, even, piece};
use crate::{CollectiveError, ElementType, Parts, Reduce, reduce};
use std::ops::Range;

/// Elements summed at a time: 16 KiB, so that they stay in the first-level cache.
pub(super) const BLOCK: usize = 4096;

/// Below this many terms, ranks times elements, every rank reduces everything in one round.
const AT_ONCE: usize = 32 << 10;

impl ThreadCommunicator {
    /// Bytes of a slot, a multiple of the size of an element for each rank.
    fn capacity(&self, call: &Call<'_>) -> usize {
        let element = call.element_bytes().max(1);
        (self.shared.limits.piece_bytes / element).max(self.shared.size) * element
    }

    /// Bytes of a slot that belong to one rank.
    fn section(&self, call: &Call<'_>) -> usize {
        let element = call.element_bytes().max(1);
        self.capacity(call) / element / self.shared.size * element
    }

    /// Runs one round: fills this rank's slot, then meets all ranks. In the first round of a call the signature goes along,
    /// and those of the others are compared with it.
    pub(super) fn round(
        &mut self,
        call: &Call<'_>,
        first: bool,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<(), CollectiveError> {
        self.round += 1;
        let (rank, round, size) = (self.rank, self.round, self.shared.size);
        let signature = first.then(|| call.signature());
        let capacity = self.capacity(call);
        self.shared.write(rank, round, |slot| {
            if first {
                slot.signature = signature;
                slot.name.clear();
                slot.name.push_str(call.name);
            }
            if slot.values.len() < capacity {
                slot.values.resize(capacity, 0);
            }
            fill(&mut slot.values[..capacity]);
        });
        self.shared.meet(rank, round).map_err(|stop| self.error(call, stop))?;
        for peer in (0..size).filter(|peer| first && *peer != rank) {
            let there = self.shared.read(peer, round, |slot| {
                let differs = slot.signature != signature;
                differs.then(|| slot.signature.map(|s| s.describe(&slot.name)).unwrap_or_default())
            });
            if let Some(there) = there {
                let site = call.site(&self.shared.label, rank);
                return Err(CollectiveError::Mismatch { site, peer, there: there.into() });
            }
        }
        Ok(())
    }

    /// Reduces `own` with what the other ranks' slots hold from byte `at` on.
    fn reduce(&mut self, element: ElementType, own: &mut [u8], at: usize, how: Reduce) {
        let (rank, round, size) = (self.rank, self.round, self.shared.size);
        for (b, block) in own.chunks_mut(BLOCK * element.size()).enumerate() {
            let sums = &mut self.sums[..block.len() / element.size()];
            let from = at + b * BLOCK * element.size();
            for peer in 0..size {
                let mut term = |values: &[u8]| match peer {
                    0 => reduce::first(element, sums, values),
                    _ => reduce::add(element, sums, values, how),
                };
                if peer == rank {
                    term(block);
                } else {
                    self.shared.read(peer, round, |slot| term(&slot.values[from..from + block.len()]));
                }
            }
            reduce::finish(element, sums, block);
        }
    }

    /// Copies what rank `peer`'s slot holds from byte `at` on.
    fn copy(&self, peer: usize, at: usize, to: &mut [u8]) {
        self.shared.read(peer, self.round, |slot| to.copy_from_slice(&slot.values[at..at + to.len()]));
    }

    pub(super) fn reduce_all(
        &mut self,
        call: &Call<'_>,
        values: &mut [u8],
        how: Reduce,
    ) -> Result<(), CollectiveError> {
        let Some(element) = call.element else { return Ok(()) };
        let (rank, size, len) = (self.rank, self.shared.size, values.len());
        if call.len * size <= AT_ONCE && len <= self.capacity(call) {
            self.round(call, true, |slot| slot[..len].copy_from_slice(values))?;
            self.reduce(element, values, 0, how);
            return Ok(());
        }
        let section = self.section(call);
        let part = |r: usize| in_bytes(call, even(call.len, size, r));
        let pieces = part(0).len().div_ceil(section);
        for k in 0..=pieces {
            self.round(call, k == 0, |slot| {
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
            self.reduce(element, &mut values[own], rank * section, how);
            for q in (0..size).filter(|q| k > 0 && *q != rank) {
                let done = piece(&part(q), k - 1, section);
                self.copy(q, q * section, &mut values[done]);
            }
        }
        Ok(())
    }

    pub(super) fn scatter(
        &mut self,
        call: &Call<'_>,
        values: &mut [u8],
        parts: &Parts,
        how: Reduce,
    ) -> Result<(), CollectiveError> {
        let Some(element) = call.element else { return Ok(()) };
        let (rank, section) = (self.rank, self.section(call));
        let part = |r: usize| in_bytes(call, parts.range(r));
        for k in 0..rounds(call, parts, section) {
            self.round(call, k == 0, |slot| {
                for q in (0..parts.count()).filter(|q| *q != rank) {
                    let from = piece(&part(q), k, section);
                    slot[q * section..][..from.len()].copy_from_slice(&values[from]);
                }
            })?;
            let own = piece(&part(rank), k, section);
            self.reduce(element, &mut values[own], rank * section, how);
        }
        Ok(())
    }

    pub(super) fn gather(
        &mut self,
        call: &Call<'_>,
        values: &mut [u8],
        parts: &Parts,
    ) -> Result<(), CollectiveError> {
        let (rank, size, capacity) = (self.rank, self.shared.size, self.capacity(call));
        let part = |r: usize| in_bytes(call, parts.range(r));
        for k in 0..rounds(call, parts, capacity) {
            self.round(call, k == 0, |slot| {
                let from = piece(&part(rank), k, capacity);
                slot[..from.len()].copy_from_slice(&values[from]);
            })?;
            for q in (0..size).filter(|q| *q != rank) {
                let to = piece(&part(q), k, capacity);
                self.copy(q, 0, &mut values[to]);
            }
        }
        Ok(())
    }

    pub(super) fn spread(
        &mut self,
        call: &Call<'_>,
        root: usize,
        values: &mut [u8],
    ) -> Result<(), CollectiveError> {
        let (rank, len, capacity) = (self.rank, values.len(), self.capacity(call));
        for k in 0..len.div_ceil(capacity).max(1) {
            let now = piece(&(0..len), k, capacity);
            self.round(call, k == 0, |slot| {
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

    pub(super) fn exchange(
        &mut self,
        call: &Call<'_>,
        (values, send): (&[u8], &Parts),
        (out, receive): (&mut [u8], &Parts),
    ) -> Result<(), CollectiveError> {
        let (rank, size, section) = (self.rank, self.shared.size, self.section(call));
        let (sent, received) = (|q| in_bytes(call, send.range(q)), |q| in_bytes(call, receive.range(q)));
        self.shared.write(rank, self.round + 1, |slot| {
            slot.pairs.clear();
            slot.pairs.extend((0..size).map(|q| send.range(q).len()));
            slot.pairs.extend((0..size).map(|q| receive.range(q).len()));
        });
        out[received(rank)].copy_from_slice(&values[sent(rank)]);
        let (mut k, mut rounds) = (0, 1);
        while k < rounds {
            self.round(call, k == 0, |slot| {
                for q in (0..size).filter(|q| *q != rank) {
                    let from = piece(&sent(q), k, section);
                    slot[q * section..][..from.len()].copy_from_slice(&values[from]);
                }
            })?;
            if k == 0 {
                rounds = (self.pairs_agree(call)? * call.element_bytes()).div_ceil(section).max(1);
            }
            for q in (0..size).filter(|q| *q != rank) {
                let to = piece(&received(q), k, section);
                self.copy(q, rank * section, &mut out[to]);
            }
            k += 1;
        }
        Ok(())
    }

    /// Compares what all ranks send with what all ranks expect, so that all of them err where two disagree. Returns the
    /// number of elements of the longest part.
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
                        let site = call.site(&self.shared.label, self.rank);
                        let (peer, other) = if from == self.rank { (to, from) } else { (from, to) };
                        let there = format!(
                            "{}, where rank {from} sends {sent} elements to rank {to}, which expects {expected} \
                             (rank {peer} against rank {other})",
                            call.signature().describe(call.name)
                        );
                        return Err(CollectiveError::Mismatch { site, peer, there: there.into() });
                    }
                    longest = longest.max(sent);
                }
                Ok(())
            })?;
        }
        Ok(longest)
    }
}

/// Bytes of a range of elements.
fn in_bytes(call: &Call<'_>, elements: Range<usize>) -> Range<usize> {
    elements.start * call.element_bytes()..elements.end * call.element_bytes()
}

/// Number of rounds that the longest part takes; at least one, so that ranks meet.
fn rounds(call: &Call<'_>, parts: &Parts, section: usize) -> usize {
    let longest = (0..parts.count()).map(|q| parts.range(q).len()).max().unwrap_or(0);
    (longest * call.element_bytes()).div_ceil(section).max(1)
}
