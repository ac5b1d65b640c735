//! The collectives as steps of frames.

use super::MessageCommunicator;
use crate::call::{Call, Signature, even, piece};
use crate::order::{self, Element};
use crate::{CollectiveError, Parts, Reduce};
use std::ops::Range;

/// Below this many terms, ranks times elements, an all-reduce is one step: everybody sends everything. Headers are then
/// most of the bytes anyway.
const AT_ONCE: usize = 4 << 10;

/// Copies the payload of a frame, which must be of the length that both ends computed.
pub(super) fn copy<E: Element>(payload: &[u8], to: &mut [E]) -> Result<(), String> {
    fits::<E>(payload, to.len())?;
    to.iter_mut().zip(E::each(payload)).for_each(|(to, from)| *to = from);
    Ok(())
}

fn fits<E: Element>(payload: &[u8], elements: usize) -> Result<(), String> {
    let wanted = elements * E::DTYPE.size();
    match payload.len() == wanted {
        true => Ok(()),
        false => Err(format!(
            "a frame of {} bytes of values, {wanted} wanted: do all ranks have the same settings?",
            payload.len()
        )),
    }
}

/// That a peer is gone is left to be found when its frame is waited for: it may have said why.
fn unless_gone(error: CollectiveError) -> Result<(), CollectiveError> {
    match error {
        CollectiveError::PeerLost { .. } => Ok(()),
        error => Err(error),
    }
}

impl MessageCommunicator {
    pub(super) fn elements<E: Element>(&self) -> usize {
        (self.settings.piece_bytes / E::DTYPE.size()).max(1)
    }

    /// The collective is over.
    pub(super) fn end(&mut self) -> Result<(), CollectiveError> {
        self.sequence += 1;
        Ok(())
    }

    /// Sends a frame of the collective to every other rank.
    fn post_all(
        &mut self,
        call: &Call<'_>,
        signature: Signature,
        step: u32,
        mut payload: impl FnMut(usize, &mut Vec<u8>),
    ) -> Result<(), CollectiveError> {
        let rank = self.rank;
        for peer in (0..self.members.len()).filter(|p| *p != rank) {
            let header = self.header(signature, step);
            self.post(call, peer, &header, |bytes| payload(peer, bytes)).or_else(unless_gone)?;
        }
        Ok(())
    }

    fn take_one(
        &mut self,
        call: &Call<'_>,
        signature: Signature,
        (peer, step): (usize, u32),
        work: impl FnOnce(&mut Vec<f32>, &[u8]) -> Result<(), String>,
    ) -> Result<(), CollectiveError> {
        let [channel, _] = MessageCommunicator::channels_of(self.id);
        self.take(call, signature, (peer, channel, self.sequence, step), work)
    }

    /// `own` becomes the reduction over the ranks, whose terms are in the frames of one step.
    fn reduce<E: Element>(
        &mut self,
        call: &Call<'_>,
        signature: Signature,
        step: u32,
        own: &mut [E],
        reduce: Reduce,
    ) -> Result<(), CollectiveError> {
        let len = own.len();
        self.sums.clear();
        self.sums.resize(len, 0.0);
        for peer in 0..self.members.len() {
            if peer == self.rank {
                match peer {
                    0 => order::begin(&mut self.sums, own.iter().copied()),
                    _ => order::add(&mut self.sums, own.iter().copied(), reduce),
                }
                continue;
            }
            self.take_one(call, signature, (peer, step), |sums, payload| {
                fits::<E>(payload, len)?;
                match peer {
                    0 => order::begin(sums, E::each(payload)),
                    _ => order::add(sums, E::each(payload), reduce),
                }
                Ok(())
            })?;
        }
        order::end(&self.sums, own);
        Ok(())
    }

    /// Part r of every rank goes to rank r, which reduces it. The step after the last one.
    pub(super) fn scatter<E: Element>(
        &mut self,
        call: &Call<'_>,
        values: &mut [E],
        part: impl Fn(usize) -> Range<usize>,
        first: u32,
        reduce: Reduce,
    ) -> Result<u32, CollectiveError> {
        let (size, signature, most) = (self.members.len(), call.signature(), self.elements::<E>());
        let steps = (0..size).map(|q| part(q).len()).max().unwrap_or(0).div_ceil(most).max(1);
        for k in 0..=steps {
            if k < steps {
                self.post_all(call, signature, first + k as u32, |peer, bytes| {
                    E::put(&values[piece(&part(peer), k, most)], bytes);
                })?;
            }
            // One step behind, so that frames are under way while this rank sums.
            if k > 0 {
                let own = piece(&part(self.rank), k - 1, most);
                self.reduce(call, signature, first + k as u32 - 1, &mut values[own], reduce)?;
            }
        }
        Ok(first + steps as u32)
    }

    /// Part r of rank r goes to every rank. The step after the last one.
    pub(super) fn gather<E: Element>(
        &mut self,
        call: &Call<'_>,
        values: &mut [E],
        part: impl Fn(usize) -> Range<usize>,
        first: u32,
    ) -> Result<u32, CollectiveError> {
        let (size, signature, most) = (self.members.len(), call.signature(), self.elements::<E>());
        let steps = (0..size).map(|q| part(q).len()).max().unwrap_or(0).div_ceil(most).max(1);
        let rank = self.rank;
        for k in 0..=steps {
            if k < steps {
                self.post_all(call, signature, first + k as u32, |_, bytes| {
                    E::put(&values[piece(&part(rank), k, most)], bytes);
                })?;
            }
            for peer in (0..size).filter(|p| k > 0 && *p != rank) {
                let to = piece(&part(peer), k - 1, most);
                let step = first + k as u32 - 1;
                self.take_one(call, signature, (peer, step), |_, payload| copy(payload, &mut values[to]))?;
            }
        }
        Ok(first + steps as u32)
    }

    pub(super) fn reduce_all<E: Element>(
        &mut self,
        call: &Call<'_>,
        values: &mut [E],
        reduce: Reduce,
    ) -> Result<(), CollectiveError> {
        let (len, size) = (values.len(), self.members.len());
        let part = |q: usize| even(len, size, q);
        if len * size <= AT_ONCE && len <= self.elements::<E>() {
            let signature = call.signature();
            self.post_all(call, signature, 0, |_, bytes| E::put(values, bytes))
                .and_then(|()| self.reduce(call, signature, 0, values, reduce))
        } else {
            self.scatter(call, values, part, 0, reduce)
                .and_then(|next| self.gather(call, values, part, next))
                .map(drop)
        }
    }

    /// All-to-all. How many steps a pair takes follows from what its two ends send each other. The last frame of each
    /// pair is empty and sent when everything has come: whoever met an error says so instead.
    pub(super) fn exchange<E: Element>(
        &mut self,
        call: &Call<'_>,
        (values, send): (&[E], &Parts),
        (out, receive): (&mut [E], &Parts),
    ) -> Result<(), CollectiveError> {
        let (rank, size, most) = (self.rank, self.members.len(), self.elements::<E>());
        let signature = call.signature();
        // Both ends of a pair say how much goes between them.
        let with = |len: usize| Signature { len: len as u64, ..signature };
        let steps = |q: usize| send.range(q).len().max(receive.range(q).len()).div_ceil(most).max(1);
        let peers = move || (0..size).filter(move |q| *q != rank);
        out[receive.range(rank)].copy_from_slice(&values[send.range(rank)]);
        for k in 0..=peers().map(steps).max().unwrap_or(0) {
            for q in peers().filter(|q| k < steps(*q)) {
                let from = piece(&send.range(q), k, most);
                let header = self.header(with(send.range(q).len()), k as u32);
                let posted = self.post(call, q, &header, |bytes| E::put(&values[from], bytes));
                posted.or_else(unless_gone)?;
            }
            for q in peers().filter(|q| k > 0 && k <= steps(*q)) {
                let to = piece(&receive.range(q), k - 1, most);
                let wanted = with(receive.range(q).len());
                self.take_one(call, wanted, (q, k as u32 - 1), |_, b| copy(b, &mut out[to]))?;
            }
        }
        for q in peers() {
            let header = self.header(with(send.range(q).len()), steps(q) as u32);
            self.post(call, q, &header, |_| ()).or_else(unless_gone)?;
        }
        for q in peers() {
            let wanted = with(receive.range(q).len());
            self.take_one(call, wanted, (q, steps(q) as u32), |_, b| copy::<E>(b, &mut []))?;
        }
        Ok(())
    }
}
