//! Failures on demand, for tests: of a rank at its k-th collective, or of messages on their way.

use crate::call::Call;
use crate::wrap::{Wrapped, Wrapper};
use crate::{
    Collective, CollectiveError, Communicator, ElementType, HostSliceMut, Memory, NullCommunicator, Reduce,
    Transport, TransportError,
};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// A fault of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The call errs on this rank, whose communicator stays.
    Error,
    /// The rank does nothing for so long, then makes the call.
    Hang(Duration),
    /// The communicator is dropped, as if the rank had gone.
    Drop,
    /// The call returns at once and has done nothing, as if it had been forgotten. All ranks must leave out the same one.
    Skip,
}

/// A fault at one collective of a rank.
#[derive(Debug, Clone)]
pub struct Faulty {
    fault: Fault,
    at: u64,
    /// Number of collectives so far, of the communicator and of groups made from it.
    seen: Arc<AtomicU64>,
    /// Error of every call since the communicator was dropped.
    lost: Option<CollectiveError>,
}

impl Faulty {
    /// `fault` at collective `at`, the first being 0, counted over the communicator that is wrapped and groups made
    /// from it.
    pub fn new(fault: Fault, at: u64) -> Faulty {
        Faulty { fault, at, seen: Arc::default(), lost: None }
    }

    /// Wraps a communicator that gets this fault.
    pub fn wrap(&self, inner: Box<dyn Communicator>) -> Box<dyn Communicator> {
        Wrapped::boxed(inner, self.clone())
    }
}

impl Wrapper for Faulty {
    fn run(
        &mut self,
        inner: &mut Box<dyn Communicator>,
        collective: &Collective<'_>,
        memory: Memory<'_>,
    ) -> Result<(), CollectiveError> {
        let site = || Call::new(collective, &memory).site(inner.label(), inner.rank());
        if let Some(error) = &self.lost {
            return Err(error.at(site()));
        }
        if self.seen.fetch_add(1, Ordering::Relaxed) == self.at {
            let problem = format!("fault injected at collective {}", self.at).into();
            let error = CollectiveError::Engine { site: site(), problem };
            match self.fault {
                Fault::Error => return Err(error),
                Fault::Skip => return Ok(()),
                Fault::Hang(time) => std::thread::sleep(time),
                Fault::Drop => {
                    // The stand-in has no peers: to the others this rank is gone.
                    *inner = Box::new(NullCommunicator::new(inner.label(), inner.rank(), inner.size()));
                    self.lost = Some(error.clone());
                    return Err(error);
                }
            }
        }
        inner.run(collective, memory)
    }

    fn for_group(&self) -> Faulty {
        self.clone()
    }
}

/// Sums that come out wrong on a rank, which the call does not report.
#[derive(Debug, Clone, Default)]
pub struct FaultySums {
    left: Arc<AtomicU64>,
}

impl FaultySums {
    /// From now on so many sums of at least 64 elements in f32 have a flipped bit in the first element that belongs to this rank.
    pub fn set(&self, count: u64) {
        self.left.store(count, Ordering::Relaxed);
    }

    /// Wraps a communicator whose sums, and those of groups made from it, come out wrong.
    pub fn wrap(&self, inner: Box<dyn Communicator>) -> Box<dyn Communicator> {
        Wrapped::boxed(inner, self.clone())
    }
}

impl Wrapper for FaultySums {
    fn run(
        &mut self,
        inner: &mut Box<dyn Communicator>,
        collective: &Collective<'_>,
        memory: Memory<'_>,
    ) -> Result<(), CollectiveError> {
        let Memory::InPlace(HostSliceMut { element: ElementType::F32, bytes }) = memory else {
            return inner.run(collective, memory);
        };
        let values = HostSliceMut { element: ElementType::F32, bytes: &mut *bytes };
        inner.run(collective, Memory::InPlace(values))?;
        let long = bytes.len() >= 4 * 64 && collective.reduce() == Some(Reduce::Sum);
        let take = |left: u64| left.checked_sub(1);
        if long && self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok() {
            let first = collective.parts().map_or(0, |parts| parts.range(inner.rank()).start);
            // The bit of the exponent that stands for a factor of 2^32.
            if let Some(highest) = bytes.get_mut(4 * first + 3) {
                *highest ^= 1 << 4;
            }
        }
        Ok(())
    }

    fn for_group(&self) -> FaultySums {
        self.clone()
    }
}

/// A fault of a message in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MessageFault {
    /// One bit of it changes, counted from its end.
    FlipBit(usize),
    /// The message never arrives.
    Lose,
    /// The message arrives twice.
    Repeat,
    /// It arrives after the next one to the same rank on the same channel.
    Swap,
}

/// A transport that mistreats one of the messages that its rank sends.
#[derive(Debug)]
pub struct FaultyTransport {
    inner: Arc<dyn Transport>,
    fault: MessageFault,
    at: u64,
    sent: AtomicU64,
    /// The message that is to arrive late.
    held: Mutex<Option<(usize, u32, Vec<u8>)>>,
}

impl FaultyTransport {
    /// `fault` to message `at` of those that this rank sends, the first being 0.
    pub fn new(inner: Arc<dyn Transport>, fault: MessageFault, at: u64) -> FaultyTransport {
        FaultyTransport { inner, fault, at, sent: AtomicU64::new(0), held: Mutex::new(None) }
    }
}

impl Transport for FaultyTransport {
    fn rank(&self) -> usize {
        self.inner.rank()
    }

    fn size(&self) -> usize {
        self.inner.size()
    }

    fn send(&self, to: usize, channel: u32, mut message: Vec<u8>) -> Result<(), TransportError> {
        if self.sent.fetch_add(1, Ordering::Relaxed) == self.at {
            match self.fault {
                MessageFault::FlipBit(bit) => {
                    let last = message.len() * 8 - 1;
                    let bit = last - bit.min(last);
                    message[bit / 8] ^= 1 << (bit % 8);
                }
                MessageFault::Lose => return Ok(()),
                MessageFault::Repeat => self.inner.send(to, channel, message.clone())?,
                MessageFault::Swap => {
                    *self.held.lock().unwrap_or_else(PoisonError::into_inner) = Some((to, channel, message));
                    return Ok(());
                }
            }
        }
        self.inner.send(to, channel, message)?;
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((to, channel, message)) = held.take_if(|h| (h.0, h.1) == (to, channel)) {
            self.inner.send(to, channel, message)?;
        }
        Ok(())
    }

    fn receive(&self, from: usize, channel: u32, patience: Duration) -> Result<Vec<u8>, TransportError> {
        self.inner.receive(from, channel, patience)
    }

    fn buffer(&self, length: usize) -> Vec<u8> {
        self.inner.buffer(length)
    }

    fn keep(&self, message: Vec<u8>) {
        self.inner.keep(message);
    }
}
