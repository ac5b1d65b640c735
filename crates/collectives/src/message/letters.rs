//! Tagged messages as frames: those of a pair come in the order in which they were sent, and wait until they are asked for.

use super::MessageCommunicator;
use super::frame::{self, Header};
use super::steps::copy;
use crate::call::{Call, other_message, piece, still_under_way, unread_messages};
use crate::order::Element;
use crate::{CollectiveError, TransportError};
use bessemer_units::DType;
use std::collections::VecDeque;
use std::time::Duration;

/// What came from one peer and what comes next.
#[derive(Debug, Default)]
pub(super) struct Letters {
    /// Number of the message whose frame comes next, and which of its frames that is.
    sequence: u64,
    step: u32,
    /// Frames that came and were not asked for yet.
    waiting: VecDeque<(Header, Vec<u8>)>,
}

impl Letters {
    /// Names and tags of the messages that wait.
    pub(super) fn unread(&self) -> impl Iterator<Item = (&str, u64)> {
        self.waiting.iter().filter(|w| w.0.step == 0).map(|(h, bytes)| (frame::parts(bytes).0, h.tag))
    }
}

impl MessageCommunicator {
    /// Frames of a message of so many elements.
    fn frames(&self, len: usize, dtype: Option<DType>) -> u32 {
        let most = (self.settings.piece_bytes / dtype.map_or(1, DType::size)).max(1);
        len.div_ceil(most).max(1) as u32
    }

    pub(super) fn send_to<E: Element>(
        &mut self,
        call: &Call<'_>,
        to: usize,
        not_before: u64,
        values: &[E],
    ) -> Result<(), CollectiveError> {
        let [_, channel] = MessageCommunicator::channels_of(self.id);
        let most = self.elements::<E>();
        let header = Header {
            farewell: false,
            signature: call.signature(),
            channel,
            sender: self.rank as u32,
            sequence: self.sent[to],
            step: 0,
            tag: call.tag.unwrap_or_default(),
            not_before,
        };
        for step in 0..self.frames(values.len(), Some(E::DTYPE)) {
            let now = piece(&(0..values.len()), step as usize, most);
            self.post(call, to, &Header { step, ..header }, |bytes| E::put(&values[now], bytes))?;
            self.under_way += 1;
        }
        self.most_under_way = self.most_under_way.max(self.under_way);
        self.sent[to] += 1;
        Ok(())
    }

    pub(super) fn receive_from<E: Element>(
        &mut self,
        call: &Call<'_>,
        from: usize,
        values: &mut [E],
    ) -> Result<(), CollectiveError> {
        let most = self.elements::<E>();
        let (header, mut bytes) = self.letter(call, from, |h| h.step == 0 && Some(h.tag) == call.tag)?;
        if header.signature != call.signature() {
            let (name, ends) = (frame::parts(&bytes).0, (self.label.as_str(), self.rank, from));
            return Err(other_message(call, ends, (&header.signature, name)));
        }
        let (len, frames) = (values.len(), self.frames(values.len(), Some(E::DTYPE)));
        for step in 0..frames {
            if step > 0 {
                (_, bytes) = self.letter(call, from, |h| (h.sequence, h.step) == (header.sequence, step))?;
            }
            let now = piece(&(0..len), step as usize, most);
            copy(frame::parts(&bytes).1, &mut values[now]).map_err(|problem| {
                let place = call.place(&self.label, self.rank);
                CollectiveError::Engine { place, problem: problem.into() }
            })?;
            self.under_way -= 1;
            self.keep(std::mem::take(&mut bytes));
        }
        still_under_way(header.not_before).into_iter().for_each(std::thread::sleep);
        Ok(())
    }

    /// Whether the last frame of a message with this tag has come; looks at what the transport has meanwhile.
    pub(super) fn look_for(&mut self, call: &Call<'_>, from: usize) -> Result<bool, CollectiveError> {
        let [_, channel] = MessageCommunicator::channels_of(self.id);
        loop {
            let whole = self.letters[from].waiting.iter().find(|(h, _)| {
                let last = self.frames(h.signature.len as usize, h.signature.dtype) - 1;
                Some(h.tag) == call.tag && h.step == last
            });
            if let Some((header, _)) = whole {
                return Ok(still_under_way(header.not_before).is_none());
            }
            match self.transport.receive(self.members[from], channel, Duration::ZERO) {
                Ok(bytes) => {
                    let next = self.next_letter(call, from, bytes)?;
                    self.letters[from].waiting.push_back(next);
                }
                Err(TransportError::Timeout { .. }) => return Ok(false),
                Err(error) => return Err(self.transport_error(call, error)),
            }
        }
    }

    /// The first frame that is wanted, of those that wait or come.
    fn letter(
        &mut self,
        call: &Call<'_>,
        from: usize,
        wanted: impl Fn(&Header) -> bool,
    ) -> Result<(Header, Vec<u8>), CollectiveError> {
        let [_, channel] = MessageCommunicator::channels_of(self.id);
        let waiting = &mut self.letters[from].waiting;
        let found = waiting.iter().position(|(h, _)| wanted(h));
        if let Some(frame) = found.and_then(|at| waiting.remove(at)) {
            return Ok(frame);
        }
        loop {
            let bytes = self.wait(call, from, channel)?;
            let next = self.next_letter(call, from, bytes)?;
            if wanted(&next.0) {
                return Ok(next);
            }
            self.letters[from].waiting.push_back(next);
        }
    }

    /// A frame that came, which must be the very next one of this peer.
    fn next_letter(
        &mut self,
        call: &Call<'_>,
        from: usize,
        bytes: Vec<u8>,
    ) -> Result<(Header, Vec<u8>), CollectiveError> {
        let [_, channel] = MessageCommunicator::channels_of(self.id);
        let Letters { sequence, step, .. } = self.letters[from];
        let header = self.admit(call, (from, channel, sequence, step), &bytes)?;
        let last = self.frames(header.signature.len as usize, header.signature.dtype) - 1;
        let next = &mut self.letters[from];
        (next.sequence, next.step) = if step == last { (sequence + 1, 0) } else { (sequence, step + 1) };
        Ok((header, bytes))
    }

    /// What came from a peer and was not asked for.
    pub(super) fn unread(&self, from: usize) -> Option<String> {
        unread_messages(from, self.letters[from].unread())
    }
}
