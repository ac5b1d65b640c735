//! Ranks as threads of one process.
//!
//! A collective is a few rounds. In each, every rank writes a piece of its values to a slot of its own, all meet at a
//! barrier, and then read each other's slots. Pieces are small enough to stay in the caches, so main memory sees each
//! value about as often as if ranks read each other's buffers in place, which safe Rust does not allow for borrowed
//! memory.

mod rounds;
mod shared;

use crate::call::{Call, other_message, still_under_way};
use crate::engine::Engine;
use crate::order::Element;
use crate::{Breaker, CollectiveError, Communicator, Message, Parts, Place, Reduce};
use shared::{Limits, Shared, Stop};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// How in-process ranks wait and copy.
#[derive(Debug, Clone)]
pub struct ThreadSettings {
    /// How long a rank waits for others before it gives up.
    pub patience: Duration,
    /// How long a waiting rank looks again and again before it sleeps; nothing where there are more ranks than
    /// processors.
    pub spin: Duration,
    /// Bytes that a rank shows the others at a time.
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
    /// How many groups of each label and ranks this rank has made.
    groups: HashMap<(String, Vec<usize>), u64>,
    /// Sums of a block.
    sums: Vec<f32>,
}

impl ThreadCommunicator {
    /// A group of `ranks` ranks, to be moved to their threads. A rank whose communicator is dropped, by a panic or
    /// otherwise, is lost to the others: their calls that need it err.
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
        let sums = vec![0.0; rounds::BLOCK];
        ThreadCommunicator { shared, rank, round: 0, failed: None, groups: HashMap::new(), sums }
    }

    fn error(&self, call: &Call<'_>, stop: Stop) -> CollectiveError {
        let place = call.place(&self.shared.label, self.rank);
        match stop {
            Stop::Late { missing, waited, report } => {
                CollectiveError::Timeout { place, missing, waited, report }
            }
            Stop::Gone { peer, problem } => CollectiveError::PeerLost { place, peer, problem },
            Stop::Failed { by, error } => error.seen_from(by, place),
        }
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
            let place =
                Place { group: shared.label.clone(), rank, collective: "any call", name: String::new() };
            let (place, problem) = (Box::new(place), problem.into());
            shared.fail(rank, &CollectiveError::BrokenOff { place, problem });
        })
    }

    fn failed(&mut self) -> &mut Option<CollectiveError> {
        &mut self.failed
    }

    fn stands(&self, call: &Call<'_>) -> Result<(), CollectiveError> {
        self.shared.failed().map_or(Ok(()), |stop| Err(self.error(call, stop)))
    }

    fn tell(&mut self, error: &CollectiveError) {
        self.shared.fail(self.rank, error);
    }

    fn all_reduce<E: Element>(
        &mut self,
        call: &Call<'_>,
        values: &mut [E],
        reduce: Reduce,
    ) -> Result<(), CollectiveError> {
        self.reduce_all(call, values, reduce)
    }

    fn reduce_scatter<E: Element>(
        &mut self,
        call: &Call<'_>,
        values: &mut [E],
        parts: &Parts,
        reduce: Reduce,
    ) -> Result<(), CollectiveError> {
        self.scatter(call, values, parts, reduce)
    }

    fn all_gather<E: Element>(
        &mut self,
        call: &Call<'_>,
        values: &mut [E],
        parts: &Parts,
    ) -> Result<(), CollectiveError> {
        self.gather(call, values, parts)
    }

    fn all_to_all<E: Element>(
        &mut self,
        call: &Call<'_>,
        send: (&[E], &Parts),
        receive: (&mut [E], &Parts),
    ) -> Result<(), CollectiveError> {
        self.exchange(call, send, receive)
    }

    fn broadcast<E: Element>(
        &mut self,
        call: &Call<'_>,
        root: usize,
        values: &mut [E],
    ) -> Result<(), CollectiveError> {
        self.spread(call, root, values)
    }

    fn send<E: Element>(
        &mut self,
        call: &Call<'_>,
        message: Message<'_>,
        values: &[E],
    ) -> Result<(), CollectiveError> {
        let posted = self.shared.post(self.rank, message.peer, call.signature(), |letter| {
            letter.name.clear();
            letter.name.push_str(message.name);
            (letter.tag, letter.not_before) = (message.tag, message.not_before);
            let lane = E::lane_mut(&mut letter.values);
            lane.clear();
            lane.extend_from_slice(values);
        });
        posted.map_err(|stop| self.error(call, stop))
    }

    fn receive<E: Element>(
        &mut self,
        call: &Call<'_>,
        message: Message<'_>,
        values: &mut [E],
    ) -> Result<(), CollectiveError> {
        let taken = self.shared.take_letter(message.peer, self.rank, message.tag);
        let letter = taken.map_err(|stop| self.error(call, stop))?;
        if letter.signature != call.signature() {
            let ends = (self.shared.label.as_str(), self.rank, message.peer);
            return Err(other_message(call, ends, (&letter.signature, &letter.name)));
        }
        still_under_way(letter.not_before).into_iter().for_each(std::thread::sleep);
        values.copy_from_slice(E::lane(&letter.values));
        self.shared.return_letter(self.rank, letter);
        Ok(())
    }

    fn arrived(&mut self, call: &Call<'_>, message: Message<'_>) -> Result<bool, CollectiveError> {
        let found = self.shared.has_letter(message.peer, self.rank, message.tag);
        found.map_err(|stop| self.error(call, stop))
    }

    fn barrier(&mut self, call: &Call<'_>) -> Result<(), CollectiveError> {
        self.meet_once(call)
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
