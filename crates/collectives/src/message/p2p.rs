//! Point-to-point messages as frames: those of a pair come in the order in which they were sent, and wait in a queue
//! until they are received.

use super::MessageCommunicator;
use super::frame::{self, Header};
use super::steps::copy;
use crate::call::{Call, other_message, piece, still_in_flight, unread_messages};
use crate::{CollectiveError, ElementType, TransportError};
use std::collections::VecDeque;
use std::time::Duration;

/// Messages from one peer.
#[derive(Debug, Default)]
pub(super) struct P2pQueue {
    /// Number of the message whose frame comes next.
    sequence: u64,
    /// Number of that frame in its message.
    step: u32,
    /// Frames that arrived and were not received yet.
    waiting: VecDeque<(Header, Vec<u8>)>,
}

impl P2pQueue {
    /// Names and tags of the waiting messages.
    pub(super) fn unread(&self) -> impl Iterator<Item = (&str, u64)> {
        self.waiting.iter().filter(|w| w.0.step == 0).map(|(h, bytes)| (frame::parts(bytes).0, h.tag))
    }
}

impl MessageCommunicator {
    /// Number of frames of a message of `len` elements.
    fn frames(&self, len: usize, element: Option<ElementType>) -> u32 {
        let size = element.map_or(1, ElementType::size);
        (len * size).div_ceil(self.piece_bytes(size)).max(1) as u32
    }

    pub(super) fn send_to(
        &mut self,
        call: &Call<'_>,
        to: usize,
        values: &[u8],
    ) -> Result<(), CollectiveError> {
        let [_, channel] = MessageCommunicator::channels_of(self.id);
        let most = self.piece_bytes(call.element_bytes());
        let header = Header {
            shutdown: false,
            signature: call.signature(),
            channel,
            sender: self.rank as u32,
            sequence: self.sent[to],
            step: 0,
            tag: call.tag().unwrap_or_default(),
            not_before: call.not_before,
        };
        for step in 0..self.frames(call.len, call.element) {
            let now = piece(&(0..values.len()), step as usize, most);
            self.post(call, to, &Header { step, ..header }, &values[now])?;
        }
        self.sent[to] += 1;
        Ok(())
    }

    pub(super) fn receive_from(
        &mut self,
        call: &Call<'_>,
        from: usize,
        values: &mut [u8],
    ) -> Result<(), CollectiveError> {
        let most = self.piece_bytes(call.element_bytes());
        let (header, mut bytes) =
            self.take_frame(call, from, |h| h.step == 0 && Some(h.tag) == call.tag())?;
        if header.signature != call.signature() {
            let (name, group) = (frame::parts(&bytes).0, (self.label.as_str(), self.rank));
            return Err(other_message(call, group, from, &header.signature, name));
        }
        let (len, frames) = (values.len(), self.frames(call.len, call.element));
        for step in 0..frames {
            if step > 0 {
                (_, bytes) =
                    self.take_frame(call, from, |h| (h.sequence, h.step) == (header.sequence, step))?;
            }
            let now = piece(&(0..len), step as usize, most);
            copy(frame::parts(&bytes).1, &mut values[now]).map_err(|problem| {
                let site = call.site(&self.label, self.rank);
                CollectiveError::Engine { site, problem: problem.into() }
            })?;
            self.transport.keep(std::mem::take(&mut bytes));
        }
        still_in_flight(header.not_before).into_iter().for_each(std::thread::sleep);
        Ok(())
    }

    /// Tells whether the last frame of a message with this tag has arrived, after taking what the transport has.
    pub(super) fn look_for(&mut self, call: &Call<'_>, from: usize) -> Result<bool, CollectiveError> {
        let [_, channel] = MessageCommunicator::channels_of(self.id);
        loop {
            let whole = self.p2p[from].waiting.iter().find(|(h, _)| {
                let last = self.frames(h.signature.len as usize, h.signature.element) - 1;
                Some(h.tag) == call.tag() && h.step == last
            });
            if let Some((header, _)) = whole {
                return Ok(still_in_flight(header.not_before).is_none());
            }
            match self.transport.receive(self.members[from], channel, Duration::ZERO) {
                Ok(bytes) => {
                    let next = self.admit_next(call, from, bytes)?;
                    self.p2p[from].waiting.push_back(next);
                }
                Err(TransportError::Timeout { .. }) => return Ok(false),
                Err(error) => return Err(self.transport_error(call, error)),
            }
        }
    }

    /// Returns the first wanted frame, of those that wait or come.
    fn take_frame(
        &mut self,
        call: &Call<'_>,
        from: usize,
        wanted: impl Fn(&Header) -> bool,
    ) -> Result<(Header, Vec<u8>), CollectiveError> {
        let [_, channel] = MessageCommunicator::channels_of(self.id);
        let waiting = &mut self.p2p[from].waiting;
        let found = waiting.iter().position(|(h, _)| wanted(h));
        if let Some(frame) = found.and_then(|at| waiting.remove(at)) {
            return Ok(frame);
        }
        loop {
            let bytes = self.wait(call, from, channel)?;
            let next = self.admit_next(call, from, bytes)?;
            if wanted(&next.0) {
                return Ok(next);
            }
            self.p2p[from].waiting.push_back(next);
        }
    }

    /// Admits a frame, which must be the very next one of this peer.
    fn admit_next(
        &mut self,
        call: &Call<'_>,
        from: usize,
        bytes: Vec<u8>,
    ) -> Result<(Header, Vec<u8>), CollectiveError> {
        let [_, channel] = MessageCommunicator::channels_of(self.id);
        let P2pQueue { sequence, step, .. } = self.p2p[from];
        let header = self.admit(call, (from, channel, sequence, step), &bytes)?;
        let last = self.frames(header.signature.len as usize, header.signature.element) - 1;
        let next = &mut self.p2p[from];
        (next.sequence, next.step) = if step == last { (sequence + 1, 0) } else { (sequence, step + 1) };
        Ok((header, bytes))
    }

    /// Text that lists what arrived from a peer and nobody asked for.
    pub(super) fn unread(&self, from: usize) -> Option<String> {
        unread_messages(from, self.p2p[from].unread())
    }
}
