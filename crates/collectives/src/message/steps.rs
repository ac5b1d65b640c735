//! The collectives as steps of frames.

use super::MessageCommunicator;
use crate::call::{Call, Signature, even, piece};
use crate::{CollectiveError, Reduce, reduce};
use std::ops::Range;

/// Below this many terms, ranks times elements, an all-reduce is one step: everybody sends everything. Headers are then
/// most of the bytes anyway.
const AT_ONCE: usize = 4 << 10;

/// Copies the payload of a frame, which must be of the length that both ends computed.
pub(super) fn copy(payload: &[u8], to: &mut [u8]) -> Result<(), String> {
    fits(payload, to.len())?;
    to.copy_from_slice(payload);
    Ok(())
}

fn fits(payload: &[u8], wanted: usize) -> Result<(), String> {
    match payload.len() == wanted {
        true => Ok(()),
        false => Err(format!(
            "a frame of {} bytes of values, {wanted} wanted: do all ranks have the same settings?",
            payload.len()
        )),
    }
}

/// Passes over the loss of a peer: the wait for its frame reports it, perhaps with the reason that it sent.
fn unless_gone(error: CollectiveError) -> Result<(), CollectiveError> {
    match error {
        CollectiveError::PeerLost { .. } => Ok(()),
        error => Err(error),
    }
}

impl MessageCommunicator {
    /// Most bytes of values in a frame, a multiple of the size of an element.
    pub(super) fn piece_bytes(&self, element: usize) -> usize {
        let element = element.max(1);
        (self.settings.piece_bytes / element).max(1) * element
    }

    /// Sends a frame of the collective to every other rank.
    fn post_all<'a>(
        &mut self,
        call: &Call<'_>,
        signature: Signature,
        step: u32,
        payload: impl Fn(usize) -> &'a [u8],
    ) -> Result<(), CollectiveError> {
        let rank = self.rank;
        for peer in (0..self.members.len()).filter(|p| *p != rank) {
            let header = self.header(signature, step);
            self.post(call, peer, &header, payload(peer)).or_else(unless_gone)?;
        }
        Ok(())
    }

    fn take_one(
        &mut self,
        call: &Call<'_>,
        signature: Signature,
        (peer, step): (usize, u32),
        work: impl FnOnce(&mut [u32], &[u8]) -> Result<(), String>,
    ) -> Result<(), CollectiveError> {
        let [channel, _] = MessageCommunicator::channels_of(self.id);
        self.take(call, signature, (peer, channel, self.sequence, step), work)
    }

    /// Makes `own` the reduction over the ranks, whose terms are in the frames of one step.
    fn reduce(
        &mut self,
        call: &Call<'_>,
        signature: Signature,
        step: u32,
        own: &mut [u8],
        how: Reduce,
    ) -> Result<(), CollectiveError> {
        let Some(element) = call.element else { return Ok(()) };
        let len = own.len();
        self.sums.resize(len / element.size(), 0);
        for peer in 0..self.members.len() {
            if peer == self.rank {
                match peer {
                    0 => reduce::first(element, &mut self.sums, own),
                    _ => reduce::add(element, &mut self.sums, own, how),
                }
                continue;
            }
            self.take_one(call, signature, (peer, step), |sums, payload| {
                fits(payload, len)?;
                match peer {
                    0 => reduce::first(element, sums, payload),
                    _ => reduce::add(element, sums, payload, how),
                }
                Ok(())
            })?;
        }
        reduce::finish(element, &self.sums, own);
        Ok(())
    }

    /// Sends part r of every rank, in bytes, to rank r, which reduces it. Returns the step after the last one.
    pub(super) fn scatter(
        &mut self,
        call: &Call<'_>,
        values: &mut [u8],
        part: impl Fn(usize) -> Range<usize>,
        first: u32,
        reduce: Reduce,
    ) -> Result<u32, CollectiveError> {
        let (size, signature, most) =
            (self.members.len(), call.signature(), self.piece_bytes(call.element_bytes()));
        let steps = (0..size).map(|q| part(q).len()).max().unwrap_or(0).div_ceil(most).max(1);
        for k in 0..=steps {
            if k < steps {
                let values: &[u8] = values;
                let of = |peer| &values[piece(&part(peer), k, most)];
                self.post_all(call, signature, first + k as u32, of)?;
            }
            // One step behind, so that frames are under way while this rank sums.
            if k > 0 {
                let own = piece(&part(self.rank), k - 1, most);
                self.reduce(call, signature, first + k as u32 - 1, &mut values[own], reduce)?;
            }
        }
        Ok(first + steps as u32)
    }

    /// Sends part r of rank r, in bytes, to every rank. Returns the step after the last one.
    pub(super) fn gather(
        &mut self,
        call: &Call<'_>,
        values: &mut [u8],
        part: impl Fn(usize) -> Range<usize>,
        first: u32,
    ) -> Result<u32, CollectiveError> {
        let (size, signature, most) =
            (self.members.len(), call.signature(), self.piece_bytes(call.element_bytes()));
        let steps = (0..size).map(|q| part(q).len()).max().unwrap_or(0).div_ceil(most).max(1);
        let rank = self.rank;
        for k in 0..=steps {
            if k < steps {
                let own = &values[piece(&part(rank), k, most)];
                self.post_all(call, signature, first + k as u32, |_| own)?;
            }
            for peer in (0..size).filter(|p| k > 0 && *p != rank) {
                let to = piece(&part(peer), k - 1, most);
                let step = first + k as u32 - 1;
                self.take_one(call, signature, (peer, step), |_, payload| copy(payload, &mut values[to]))?;
            }
        }
        Ok(first + steps as u32)
    }

    pub(super) fn reduce_all(
        &mut self,
        call: &Call<'_>,
        values: &mut [u8],
        reduce: Reduce,
    ) -> Result<(), CollectiveError> {
        let (len, element, size) = (call.len, call.element_bytes(), self.members.len());
        let part = |q: usize| {
            let elements = even(len, size, q);
            elements.start * element..elements.end * element
        };
        if len * size <= AT_ONCE && values.len() <= self.piece_bytes(element) {
            let signature = call.signature();
            let own: &[u8] = values;
            self.post_all(call, signature, 0, |_| own)?;
            self.reduce(call, signature, 0, values, reduce)
        } else {
            self.scatter(call, values, part, 0, reduce)
                .and_then(|next| self.gather(call, values, part, next))
                .map(drop)
        }
    }

    /// Runs an all-to-all, with parts in bytes. The number of steps of a pair follows from what its two ends send each
    /// other. The last frame of each pair is empty and sent when everything has arrived: who met an error sends a shutdown
    /// instead.
    pub(super) fn exchange(
        &mut self,
        call: &Call<'_>,
        (values, send): (&[u8], impl Fn(usize) -> Range<usize>),
        (out, receive): (&mut [u8], impl Fn(usize) -> Range<usize>),
    ) -> Result<(), CollectiveError> {
        let (rank, size, element) = (self.rank, self.members.len(), call.element_bytes());
        let (signature, most) = (call.signature(), self.piece_bytes(element));
        // Both ends of a pair say how much goes between them.
        let with = |bytes: usize| Signature { len: (bytes / element) as u64, ..signature };
        let steps = |q: usize| send(q).len().max(receive(q).len()).div_ceil(most).max(1);
        let peers = move || (0..size).filter(move |q| *q != rank);
        out[receive(rank)].copy_from_slice(&values[send(rank)]);
        for k in 0..=peers().map(steps).max().unwrap_or(0) {
            for q in peers().filter(|q| k < steps(*q)) {
                let from = piece(&send(q), k, most);
                let header = self.header(with(send(q).len()), k as u32);
                self.post(call, q, &header, &values[from]).or_else(unless_gone)?;
            }
            for q in peers().filter(|q| k > 0 && k <= steps(*q)) {
                let to = piece(&receive(q), k - 1, most);
                let wanted = with(receive(q).len());
                self.take_one(call, wanted, (q, k as u32 - 1), |_, b| copy(b, &mut out[to]))?;
            }
        }
        for q in peers() {
            let header = self.header(with(send(q).len()), steps(q) as u32);
            self.post(call, q, &header, &[]).or_else(unless_gone)?;
        }
        for q in peers() {
            let wanted = with(receive(q).len());
            self.take_one(call, wanted, (q, steps(q) as u32), |_, b| copy(b, &mut []))?;
        }
        Ok(())
    }
}
