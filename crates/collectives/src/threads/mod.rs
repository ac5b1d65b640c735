//! Ranks as threads of one process.
//!
//! A collective is a few rounds. In each, every rank writes a piece of its values to a slot of its own, all meet at a
//! barrier, and then read each other's slots. Pieces are small enough to stay in the caches, so main memory sees each
//! value about as often as if ranks read each other's buffers in place, which safe Rust does not allow for borrowed
//! memory.

mod rounds;
mod shared;

use crate::call::{Call, other_message, still_in_flight};
use crate::engine::Engine;
use crate::error::CallSite;
use crate::{Breaker, CollectiveError, Communicator, Memory, Message, Pattern};
use shared::{Limits, Shared, Stop};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// Settings of ranks that are threads.
#[derive(Debug, Clone)]
pub struct ThreadSettings {
    /// Time that a rank waits for others before it gives up.
    pub patience: Duration,
    /// Time that a waiting rank spins before it sleeps; zero where there are more ranks than processors.
    pub spin: Duration,
    /// Bytes of a rank's slot: what it shows the others in one round.
    pub piece_bytes: usize,
}

impl Default for ThreadSettings {
    fn default() -> ThreadSettings {
        ThreadSettings {
            patience: Duration::from_secs(600),
            spin: Duration::from_micros(20),
            piece_bytes: 512 << 10,
        }
    }
}

/// One rank of a group of threads.
#[derive(Debug)]
pub struct ThreadCommunicator {
    shared: Arc<Shared>,
    rank: usize,
    round: u64,
    failed: Option<CollectiveError>,
    /// Number of groups of each label and ranks that this rank has made.
    groups: HashMap<(String, Vec<usize>), u64>,
    /// Accumulator of a block ([`crate::reduce`]).
    sums: Vec<u32>,
}

impl ThreadCommunicator {
    /// Makes a group of `ranks` ranks, to be moved to the caller's threads. A rank whose communicator is dropped, by a panic
    /// or otherwise, is lost to the others: their calls that need it err.
    pub fn world(label: &str, ranks: usize, settings: &ThreadSettings) -> Vec<ThreadCommunicator> {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let limits = Limits {
            patience: settings.patience,
            spin: if ranks <= processors { settings.spin } else { Duration::ZERO },
            piece_bytes: settings.piece_bytes,
        };
        let shared = Arc::new(Shared::new(label, ranks, limits));
        (0..ranks).map(|rank| ThreadCommunicator::of(Arc::clone(&shared), rank)).collect()
    }

    fn of(shared: Arc<Shared>, rank: usize) -> ThreadCommunicator {
        let sums = vec![0; rounds::BLOCK];
        ThreadCommunicator { shared, rank, round: 0, failed: None, groups: HashMap::new(), sums }
    }

    fn error(&self, call: &Call<'_>, stop: Stop) -> CollectiveError {
        let site = call.site(&self.shared.label, self.rank);
        match stop {
            Stop::Late { missing, waited, report } => {
                CollectiveError::Timeout { site, missing, waited, report }
            }
            Stop::Gone { peer, problem } => CollectiveError::PeerLost { site, peer, problem },
            Stop::Failed { by, error } => error.seen_from(by, site),
        }
    }
}

impl ThreadCommunicator {
    fn send_to(
        &mut self,
        call: &Call<'_>,
        to: usize,
        tag: u64,
        values: &[u8],
    ) -> Result<(), CollectiveError> {
        let posted = self.shared.post(self.rank, to, call.signature(), |message| {
            message.name.clear();
            message.name.push_str(call.name);
            (message.tag, message.not_before) = (tag, call.not_before);
            message.values.clear();
            message.values.extend_from_slice(values);
        });
        posted.map_err(|stop| self.error(call, stop))
    }

    fn receive_from(
        &mut self,
        call: &Call<'_>,
        from: usize,
        tag: u64,
        values: &mut [u8],
    ) -> Result<(), CollectiveError> {
        let taken = self.shared.take_message(from, self.rank, tag);
        let message = taken.map_err(|stop| self.error(call, stop))?;
        if message.signature != call.signature() {
            let group = (self.shared.label.as_str(), self.rank);
            return Err(other_message(call, group, from, &message.signature, &message.name));
        }
        still_in_flight(message.not_before).into_iter().for_each(std::thread::sleep);
        values.copy_from_slice(&message.values);
        self.shared.return_message(self.rank, message);
        Ok(())
    }
}

impl Drop for ThreadCommunicator {
    fn drop(&mut self) {
        let why = match &self.failed {
            Some(error) => format!("it stopped after {error}"),
            None if std::thread::panicking() => "it panicked".to_string(),
            None => "it left".to_string(),
        };
        self.shared.leave(self.rank, &why);
    }
}

impl Engine for ThreadCommunicator {
    fn label(&self) -> &str {
        &self.shared.label
    }

    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.shared.size
    }

    fn breaker(&self) -> Breaker {
        let (shared, rank) = (Arc::clone(&self.shared), self.rank);
        Breaker::new(move |problem| {
            let site =
                CallSite { group: shared.label.clone(), rank, collective: "any call", name: String::new() };
            let (site, problem) = (Box::new(site), problem.into());
            shared.fail(rank, &CollectiveError::BrokenOff { site, problem });
        })
    }

    fn failed(&mut self) -> &mut Option<CollectiveError> {
        &mut self.failed
    }

    fn obstacle(&self, call: &Call<'_>) -> Result<(), CollectiveError> {
        self.shared.failed().map_or(Ok(()), |stop| Err(self.error(call, stop)))
    }

    fn announce_failure(&mut self, error: &CollectiveError) {
        self.shared.fail(self.rank, error);
    }

    fn perform(&mut self, call: &Call<'_>, memory: Memory<'_>) -> Result<(), CollectiveError> {
        match (call.pattern, memory) {
            (Pattern::AllReduce(reduce), Memory::InPlace(v)) => self.reduce_all(call, v.bytes, reduce),
            (Pattern::ReduceScatter(parts, reduce), Memory::InPlace(v)) => {
                self.scatter(call, v.bytes, parts, reduce)
            }
            (Pattern::AllGather(parts), Memory::InPlace(v)) => self.gather(call, v.bytes, parts),
            (Pattern::AllToAll { send: from, receive: to }, Memory::Exchange { send, receive }) => {
                self.exchange(call, (send.bytes, from), (receive.bytes, to))
            }
            (Pattern::Broadcast { root }, Memory::InPlace(v)) => self.spread(call, root, v.bytes),
            (Pattern::Send { peer, tag }, Memory::Read(values)) => {
                self.send_to(call, peer, tag, values.bytes)
            }
            (Pattern::Receive { peer, tag }, Memory::InPlace(v)) => {
                self.receive_from(call, peer, tag, v.bytes)
            }
            // A barrier; the check of the call has refused everything else.
            _ => self.round(call, true, |_| ()),
        }
    }

    fn arrived(&mut self, call: &Call<'_>, message: Message<'_>) -> Result<bool, CollectiveError> {
        let found = self.shared.has_message(message.peer, self.rank, message.tag);
        found.map_err(|stop| self.error(call, stop))
    }

    fn join(
        &mut self,
        label: &str,
        ranks: &[usize],
        position: usize,
    ) -> Result<Box<dyn Communicator>, CollectiveError> {
        let count = self.groups.entry((label.into(), ranks.into())).or_default();
        let group = self.shared.join(label, ranks, position, *count);
        *count += 1;
        Ok(Box::new(ThreadCommunicator::of(group, position)))
    }
}
