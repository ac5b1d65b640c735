//! A copy on its way from one rank to another: a header, then the data and the notes in pieces.

use crate::slot::{CHUNK, CompleteCopy, NOTES_ROOM, Slot, SlotKey, SlotWriter};
use crate::{MemoryError, Result};
use bessemer_collectives::{Communicator, Message};
use std::ops::Range;

const HEADER: &str = "copy of the state, header";
const PIECES: &str = "copy of the state";
const RECEIVED: &str = "copy of the state, received";
const PART: &str = "part of the state";

/// Tags of the kinds of messages between two ranks.
const HEADER_TAG: u64 = 0;
const PIECE_TAG: u64 = 1;
const RECEIVED_TAG: u64 = 2;
const PART_TAG: u64 = 3;

pub(crate) fn header(peer: usize) -> Message<'static> {
    Message::new(HEADER, HEADER_TAG, peer)
}

pub(crate) fn piece(peer: usize) -> Message<'static> {
    Message::new(PIECES, PIECE_TAG, peer)
}

/// A chunk of a part of a state.
pub(crate) fn part(peer: usize) -> Message<'static> {
    Message::new(PART, PART_TAG, peer)
}

/// Answer to a piece: 1 for all pieces that were received and written, 0 for a copy that was given up.
pub(crate) fn received(peer: usize) -> Message<'static> {
    Message::new(RECEIVED, RECEIVED_TAG, peer)
}

/// Bytes of a piece, some of which are a chunk: a collective that begins may have to wait for those on their way.
pub(crate) const PIECE: usize = CHUNK / 4;

/// Pieces of a copy: those of the data, and those of the notes, of which there is at least one.
pub(crate) fn pieces(key: &SlotKey, copy: &CompleteCopy) -> usize {
    data_pieces(key) + copy.notes.div_ceil(PIECE as u64).max(1) as usize
}

fn data_pieces(key: &SlotKey) -> usize {
    key.bytes.div_ceil(PIECE as u64) as usize
}

/// The bytes of a piece in the data, behind which the notes stand.
fn piece_bytes(key: &SlotKey, copy: &CompleteCopy, number: usize) -> Range<u64> {
    let (first, end, number) = match number.checked_sub(data_pieces(key)) {
        None => (0, key.bytes, number),
        Some(number) => (key.bytes, key.bytes + copy.notes, number),
    };
    let start = first + number as u64 * PIECE as u64;
    start..end.min(start + PIECE as u64)
}

/// Reads a piece into memory for at least [`PIECE`] bytes.
pub(crate) fn read_piece<'a>(
    slot: &Slot,
    copy: &CompleteCopy,
    number: usize,
    bytes: &'a mut [u8],
) -> Result<&'a [u8]> {
    let range = piece_bytes(slot.key(), copy, number);
    let here = &mut bytes[..(range.end - range.start) as usize];
    slot.read_at(here, range.start)?;
    Ok(here)
}

/// Words of a header.
pub(crate) const WORDS: usize = 10;

pub(crate) fn to_words(copy: &CompleteCopy) -> [u32; WORDS] {
    let mut words = [0; WORDS];
    for (i, long) in [copy.step, copy.launch, copy.notes].into_iter().enumerate() {
        (words[2 * i], words[2 * i + 1]) = (long as u32, (long >> 32) as u32);
    }
    (0..4).for_each(|i| words[6 + i] = (copy.hash >> (32 * i)) as u32);
    words
}

pub(crate) fn from_words(words: &[u32; WORDS]) -> CompleteCopy {
    let long = |i: usize| u64::from(words[2 * i]) | u64::from(words[2 * i + 1]) << 32;
    let hash = (0..4).map(|i| u128::from(words[6 + i]) << (32 * i)).sum();
    CompleteCopy { step: long(0), launch: long(1), notes: long(2), hash }
}

/// Sends a copy to rank `to` of a group, which calls [`receive_copy`].
///
/// # Errors
/// Answers of the system or of another rank.
pub fn send_copy(group: &mut dyn Communicator, to: usize, slot: &Slot, copy: &CompleteCopy) -> Result<()> {
    group.send(header(to), &to_words(copy))?;
    let mut bytes = vec![0; PIECE];
    for number in 0..pieces(slot.key(), copy) {
        group.send(piece(to), read_piece(slot, copy, number, &mut bytes)?)?;
    }
    Ok(())
}

/// Receives a copy from rank `from` of a group into a slot of the same key.
///
/// # Errors
/// [`MemoryError::Damaged`] for bytes with another hash; answers of the system or of another rank.
pub fn receive_copy(group: &mut dyn Communicator, from: usize, slot: &Slot) -> Result<CompleteCopy> {
    let mut words = [0u32; WORDS];
    group.receive(header(from), &mut words)?;
    let copy = from_words(&words);
    let mut arriving = ArrivingCopy::begin(slot, copy)?;
    let mut bytes = vec![0; PIECE];
    loop {
        let here = &mut bytes[..arriving.next_length()];
        group.receive(piece(from), &mut *here)?;
        if arriving.push(here)? {
            return arriving.finish();
        }
    }
}

/// A copy of which some pieces have arrived.
pub(crate) struct ArrivingCopy<'a> {
    writer: SlotWriter<'a>,
    key: &'a SlotKey,
    copy: CompleteCopy,
    /// Number of the next piece.
    next: usize,
    /// Number of the next chunk, and what has arrived of it; behind the last chunk, the notes.
    chunk: usize,
    bytes: Vec<u8>,
}

impl<'a> ArrivingCopy<'a> {
    pub(crate) fn begin(slot: &'a Slot, copy: CompleteCopy) -> Result<ArrivingCopy<'a>> {
        if copy.notes > NOTES_ROOM {
            let found = u128::from(copy.notes);
            let (path, step) = (slot.path().into(), copy.step);
            return Err(MemoryError::Damaged { path, step, wanted: copy.hash, found });
        }
        let writer = slot.begin(copy.step, copy.launch)?;
        let bytes = Vec::with_capacity(CHUNK);
        Ok(ArrivingCopy { writer, key: slot.key(), copy, next: 0, chunk: 0, bytes })
    }

    /// Bytes of the next piece.
    pub(crate) fn next_length(&self) -> usize {
        let range = piece_bytes(self.key, &self.copy, self.next);
        (range.end - range.start) as usize
    }

    /// Takes a piece; true if it was the last one.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Result<bool> {
        self.bytes.extend_from_slice(bytes);
        self.next += 1;
        if self.chunk < self.key.chunks() {
            let chunk = self.key.chunk(self.chunk);
            if self.bytes.len() as u64 == chunk.end - chunk.start {
                self.writer.write_chunk(self.chunk, &self.bytes)?;
                self.bytes.clear();
                self.chunk += 1;
            }
        }
        Ok(self.next == pieces(self.key, &self.copy))
    }

    pub(crate) fn finish(self) -> Result<CompleteCopy> {
        self.writer.finish_as(&self.bytes, self.copy.hash)
    }
}
