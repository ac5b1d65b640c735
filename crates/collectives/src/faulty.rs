//! Failures on demand, for tests: of a rank at its k-th collective, or of messages on their way.

use crate::call::Call;
use crate::wrap::{Around, Run, Wrapped};
use crate::{
    Breaker, CollectiveError, Communicator, Message, Parts, Reduce, Source, Transport, TransportError, Values,
};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// What happens.
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
    /// Collectives so far, of the communicator and of groups made from it.
    seen: Arc<AtomicU64>,
}

impl Faulty {
    /// `fault` at collective `at`, the first being 0, counted over the communicator that is wrapped and groups made
    /// from it.
    pub fn new(fault: Fault, at: u64) -> Faulty {
        Faulty { fault, at, seen: Arc::default() }
    }

    /// A communicator with this fault.
    pub fn wrap(&self, inner: Box<dyn Communicator>) -> Box<dyn Communicator> {
        Wrapped::boxed(inner, self.clone())
    }
}

impl Around for Faulty {
    fn around(
        &mut self,
        call: &Call<'_>,
        inner: &mut Box<dyn Communicator>,
        run: &mut Run<'_>,
    ) -> Result<(), CollectiveError> {
        if self.seen.fetch_add(1, Ordering::Relaxed) == self.at {
            let place = call.place(inner.label(), inner.rank());
            let problem = format!("fault injected at collective {}", self.at).into();
            let error = CollectiveError::Engine { place, problem };
            match self.fault {
                Fault::Error => return Err(error),
                Fault::Skip => return Ok(()),
                Fault::Hang(time) => std::thread::sleep(time),
                Fault::Drop => {
                    let gone =
                        Gone { label: inner.label().into(), rank: inner.rank(), size: inner.size(), error };
                    let gone: Box<dyn Communicator> = Box::new(gone);
                    drop(std::mem::replace(inner, gone));
                }
            }
        }
        run(inner.as_mut())
    }

    fn of_group(&self, _: &dyn Communicator) -> Faulty {
        self.clone()
    }
}

/// What is left of a communicator that was dropped: every call errs.
#[derive(Debug)]
struct Gone {
    label: String,
    rank: usize,
    size: usize,
    error: CollectiveError,
}

impl Gone {
    fn err(&self, call: &Call<'_>) -> Result<(), CollectiveError> {
        Err(self.error.again(call.place(&self.label, self.rank)))
    }
}

impl Communicator for Gone {
    fn label(&self) -> &str {
        &self.label
    }

    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn breaker(&self) -> Breaker {
        Breaker::new(|_| ())
    }

    fn all_reduce(&mut self, name: &str, v: Values<'_>, reduce: Reduce) -> Result<(), CollectiveError> {
        self.err(&Call::all_reduce(name, &v, reduce))
    }

    fn reduce_scatter(
        &mut self,
        name: &str,
        v: Values<'_>,
        parts: &Parts,
        reduce: Reduce,
    ) -> Result<(), CollectiveError> {
        self.err(&Call::reduce_scatter(name, &v, parts, reduce))
    }

    fn all_gather(&mut self, name: &str, v: Values<'_>, parts: &Parts) -> Result<(), CollectiveError> {
        self.err(&Call::all_gather(name, &v, parts))
    }

    fn all_to_all(
        &mut self,
        name: &str,
        send: (Source<'_>, &Parts),
        receive: (Values<'_>, &Parts),
    ) -> Result<(), CollectiveError> {
        self.err(&Call::all_to_all(name, (&send.0, send.1), (&receive.0, receive.1)))
    }

    fn broadcast(&mut self, name: &str, root: usize, v: Values<'_>) -> Result<(), CollectiveError> {
        self.err(&Call::broadcast(name, root, &v))
    }

    fn send(&mut self, message: Message<'_>, v: Source<'_>) -> Result<(), CollectiveError> {
        self.err(&Call::send(message, &v))
    }

    fn receive(&mut self, message: Message<'_>, v: Values<'_>) -> Result<(), CollectiveError> {
        self.err(&Call::receive(message, &v))
    }

    fn arrived(&mut self, message: Message<'_>) -> Result<bool, CollectiveError> {
        self.err(&Call::arrived(message)).map(|()| false)
    }

    fn barrier(&mut self, name: &str) -> Result<(), CollectiveError> {
        self.err(&Call::barrier(name))
    }

    fn group(&mut self, label: &str, _: &[usize]) -> Result<Box<dyn Communicator>, CollectiveError> {
        let error = self.error.again(Call::barrier(label).place(&self.label, self.rank));
        Err(error)
    }
}

/// What happens to a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MessageFault {
    /// One bit of it changes, counted from its end.
    FlipBit(usize),
    /// It never arrives.
    Lose,
    /// It arrives twice.
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
}
