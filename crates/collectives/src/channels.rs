//! Messages between threads of one process: for tests, and what a foreign engine is held against.

use crate::{SpareBuffers, Transport, TransportError};
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

#[derive(Debug, Default)]
struct Mailbox {
    /// Messages by sender and channel.
    queues: Mutex<Queues>,
    came: Condvar,
}

#[derive(Debug, Default)]
struct Queues {
    waiting: HashMap<(usize, u32), VecDeque<Vec<u8>>>,
    /// Senders that are gone.
    gone: Vec<bool>,
}

impl Mailbox {
    fn lock(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One rank's end of channels in memory. An end that is dropped is lost to the others.
#[derive(Debug)]
pub struct ChannelTransport {
    rank: usize,
    mailboxes: Arc<Vec<Mailbox>>,
    /// Of all ranks: a message's memory goes to its receiver.
    spare: Arc<Mutex<SpareBuffers>>,
}

impl ChannelTransport {
    /// The ends of `ranks` ranks.
    pub fn world(ranks: usize) -> Vec<ChannelTransport> {
        let mailbox = || {
            let queues = Queues { waiting: HashMap::new(), gone: vec![false; ranks] };
            Mailbox { queues: Mutex::new(queues), came: Condvar::new() }
        };
        let mailboxes: Arc<Vec<Mailbox>> = Arc::new(std::iter::repeat_with(mailbox).take(ranks).collect());
        let spare = Arc::default();
        let end =
            |rank| ChannelTransport { rank, mailboxes: Arc::clone(&mailboxes), spare: Arc::clone(&spare) };
        (0..ranks).map(end).collect()
    }

    fn spare(&self) -> MutexGuard<'_, SpareBuffers> {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ChannelTransport {
    fn drop(&mut self) {
        for mailbox in self.mailboxes.iter() {
            mailbox.lock().gone[self.rank] = true;
            mailbox.came.notify_all();
        }
    }
}

impl Transport for ChannelTransport {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.mailboxes.len()
    }

    fn send(&self, to: usize, channel: u32, message: Vec<u8>) -> Result<(), TransportError> {
        if self.mailboxes[self.rank].lock().gone[to] {
            return Err(TransportError::PeerLost { peer: to, problem: "its end was dropped".into() });
        }
        let mailbox = &self.mailboxes[to];
        mailbox.lock().waiting.entry((self.rank, channel)).or_default().push_back(message);
        mailbox.came.notify_all();
        Ok(())
    }

    fn receive(&self, from: usize, channel: u32, patience: Duration) -> Result<Vec<u8>, TransportError> {
        let since = Instant::now();
        let mailbox = &self.mailboxes[self.rank];
        let mut queues = mailbox.lock();
        loop {
            if let Some(message) = queues.waiting.get_mut(&(from, channel)).and_then(VecDeque::pop_front) {
                return Ok(message);
            }
            if queues.gone[from] {
                return Err(TransportError::PeerLost { peer: from, problem: "its end was dropped".into() });
            }
            let waited = since.elapsed();
            let Some(left) = patience.checked_sub(waited).filter(|d| !d.is_zero()) else {
                return Err(TransportError::Timeout { from, waited });
            };
            queues = mailbox.came.wait_timeout(queues, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn buffer(&self, length: usize) -> Vec<u8> {
        self.spare().take(length).unwrap_or_default()
    }

    fn keep(&self, message: Vec<u8>) {
        self.spare().give(message);
    }
}
