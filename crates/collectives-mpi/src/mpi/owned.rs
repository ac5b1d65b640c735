//! Requests that own their memory: it cannot be freed or touched while MPI uses it.
#![allow(unsafe_code)] // lends memory to requests

use super::checked::{Mpi, Slot};
use crate::engine::{Arrival, Engine, Fault, Lane};
use std::collections::VecDeque;

/// Bytes of one MPI message. MPI counts in `int`; and each piece that arrives counts as a heartbeat, so a piece must take
/// much less time than the silence after which a rank is given up.
const PIECE: usize = 8 << 20;
/// Most pieces of a message in flight.
const WINDOW: usize = 4;

/// An outgoing message.
#[derive(Debug)]
pub(crate) struct Outgoing {
    buffer: Vec<u8>,
    to: usize,
    lane: Lane,
    /// Start of the next piece.
    next: usize,
    /// Requests in progress, with the length of each.
    flying: VecDeque<(Slot, usize)>,
}

/// An incoming message.
#[derive(Debug)]
pub(crate) struct Incoming {
    buffer: Vec<u8>,
    /// Requests in progress, with the length of each, in order.
    flying: VecDeque<(Slot, usize)>,
}

impl Drop for Outgoing {
    fn drop(&mut self) {
        if !self.flying.is_empty() {
            // MPI still reads it: the memory is given up rather than freed. Only at the end of a broken world.
            std::mem::forget(std::mem::take(&mut self.buffer));
        }
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        if !self.flying.is_empty() {
            // MPI may still write into it: the memory is given up rather than freed. Only at the end of a broken world.
            std::mem::forget(std::mem::take(&mut self.buffer));
        }
    }
}

impl Outgoing {
    fn fill_window(&mut self, mpi: &mut Mpi) -> Result<(), Fault> {
        while self.next < self.buffer.len() && self.flying.len() < WINDOW {
            let end = self.buffer.len().min(self.next + PIECE);
            // SAFETY: the buffer is owned by self, never written while requests fly, its heap block does not move with
            // self, and Drop forgets it if one still flies.
            let slot = unsafe { mpi.isend(&self.buffer[self.next..end], self.to, self.lane)? };
            self.flying.push_back((slot, end - self.next));
            self.next = end;
        }
        Ok(())
    }
}

impl Engine for Mpi {
    type Outgoing = Outgoing;
    type Incoming = Incoming;

    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn host(&self) -> String {
        Mpi::host(self)
    }

    fn library(&self) -> String {
        Mpi::library(self)
    }

    fn send(&mut self, to: usize, lane: Lane, message: Vec<u8>) -> Result<Outgoing, Fault> {
        let flying = self.spare.pop().unwrap_or_default();
        let mut out = Outgoing { buffer: message, to, lane, next: 0, flying };
        out.fill_window(self)?;
        Ok(out)
    }

    fn poll_send(&mut self, out: &mut Outgoing) -> Result<Option<Vec<u8>>, Fault> {
        while let Some((slot, _)) = out.flying.front_mut() {
            if self.test(slot)?.is_none() {
                return Ok(None);
            }
            out.flying.pop_front();
            out.fill_window(self)?;
        }
        self.spare.push(std::mem::take(&mut out.flying));
        Ok(Some(std::mem::take(&mut out.buffer)))
    }

    fn handed_over(out: &Outgoing) -> bool {
        out.next == out.buffer.len()
    }

    fn probe(&mut self) -> Result<Option<(usize, usize)>, Fault> {
        self.iprobe(Lane::Control)
    }

    fn receive(&mut self, from: usize, lane: Lane, buffer: Vec<u8>) -> Result<Incoming, Fault> {
        let mut into = Incoming { buffer, flying: self.spare.pop().unwrap_or_default() };
        let (base, whole) = (into.buffer.as_mut_ptr(), into.buffer.len());
        for start in (0..whole).step_by(PIECE) {
            let length = PIECE.min(whole - start);
            // SAFETY: start + length is within the buffer. It is owned by `into`, which lets nobody touch it while
            // requests fly; pieces do not overlap; its heap block does not move with `into`, and Drop forgets it if a
            // request still flies.
            let slot = unsafe { self.irecv(base.add(start), length, from, lane)? };
            into.flying.push_back((slot, length));
        }
        Ok(into)
    }

    fn poll_receive(&mut self, into: &mut Incoming) -> Result<Arrival, Fault> {
        let mut landed = false;
        while let Some((slot, wanted)) = into.flying.front_mut() {
            let Some(found) = self.test(slot)? else {
                return Ok(if landed { Arrival::Piece } else { Arrival::Nothing });
            };
            let wanted = *wanted;
            into.flying.pop_front();
            landed = true;
            if found != wanted {
                let text = format!("{found} bytes arrived where {wanted} were announced");
                return Err(Fault { call: "MPI_Irecv", text });
            }
        }
        self.spare.push(std::mem::take(&mut into.flying));
        Ok(Arrival::Whole(std::mem::take(&mut into.buffer)))
    }

    fn finalize(self) -> Result<(), Fault> {
        Mpi::finalize(self)
    }
}
