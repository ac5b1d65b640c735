//! Ranks as threads of one process.
//!
//! A collective is a few rounds. In each, every rank writes a piece of its values to a slot of its own, all meet at a
//! barrier, and then read each other's slots. Pieces are small enough to stay in the caches, so main memory sees each
//! value about as often as if ranks read each other's buffers in place, which safe Rust does not allow for borrowed
//! memory.

mod rounds;
mod shared;

use crate::call::{Call, other_message, position, still_under_way};
use crate::{Breaker, CollectiveError, Communicator, Message, Parts, Place, Reduce, Source, Values};
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

    /// Refuses a call that is wrong or comes after an error.
    fn enter(&mut self, call: &Call<'_>) -> Result<(), CollectiveError> {
        if let Some(error) = &self.failed {
            return Err(error.again(call.place(&self.shared.label, self.rank)));
        }
        let checked = call.check(&self.shared.label, self.rank, self.shared.size);
        let checked = checked.and_then(|()| match self.shared.failed() {
            Some(stop) => Err(self.error(call, stop)),
            None => Ok(()),
        });
        self.leave(checked)
    }

    /// Remembers an error and tells the others.
    fn leave(&mut self, result: Result<(), CollectiveError>) -> Result<(), CollectiveError> {
        if let Err(error) = &result {
            self.failed = Some(error.clone());
            self.shared.fail(self.rank, error);
        }
        result
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

impl Communicator for ThreadCommunicator {
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

    fn all_reduce(&mut self, name: &str, values: Values<'_>, reduce: Reduce) -> Result<(), CollectiveError> {
        let call = Call::all_reduce(name, &values, reduce);
        self.enter(&call)?;
        let result = match values {
            Values::F32(v) => self.reduce_all(&call, v, reduce),
            Values::Bf16(v) => self.reduce_all(&call, v, reduce),
        };
        self.leave(result)
    }

    fn reduce_scatter(
        &mut self,
        name: &str,
        values: Values<'_>,
        parts: &Parts,
        reduce: Reduce,
    ) -> Result<(), CollectiveError> {
        let call = Call::reduce_scatter(name, &values, parts, reduce);
        self.enter(&call)?;
        let result = match values {
            Values::F32(v) => self.scatter(&call, v, parts, reduce),
            Values::Bf16(v) => self.scatter(&call, v, parts, reduce),
        };
        self.leave(result)
    }

    fn all_gather(&mut self, name: &str, values: Values<'_>, parts: &Parts) -> Result<(), CollectiveError> {
        let call = Call::all_gather(name, &values, parts);
        self.enter(&call)?;
        let result = match values {
            Values::F32(v) => self.gather(&call, v, parts),
            Values::Bf16(v) => self.gather(&call, v, parts),
        };
        self.leave(result)
    }

    fn all_to_all(
        &mut self,
        name: &str,
        send: (Source<'_>, &Parts),
        receive: (Values<'_>, &Parts),
    ) -> Result<(), CollectiveError> {
        let call = Call::all_to_all(name, (&send.0, send.1), (&receive.0, receive.1));
        self.enter(&call)?;
        let result = match (send.0, receive.0) {
            (Source::F32(s), Values::F32(v)) => self.exchange(&call, (s, send.1), (v, receive.1)),
            (Source::Bf16(s), Values::Bf16(v)) => self.exchange(&call, (s, send.1), (v, receive.1)),
            // Refused by `enter`.
            _ => Ok(()),
        };
        self.leave(result)
    }

    fn broadcast(&mut self, name: &str, root: usize, values: Values<'_>) -> Result<(), CollectiveError> {
        let call = Call::broadcast(name, root, &values);
        self.enter(&call)?;
        let result = match values {
            Values::F32(v) => self.spread(&call, root, v),
            Values::Bf16(v) => self.spread(&call, root, v),
        };
        self.leave(result)
    }

    fn send(&mut self, message: Message<'_>, values: Source<'_>) -> Result<(), CollectiveError> {
        let call = Call::send(message, &values);
        self.enter(&call)?;
        let posted = self.shared.post(self.rank, message.peer, call.signature(), |letter| {
            letter.name.clear();
            letter.name.push_str(message.name);
            (letter.tag, letter.not_before) = (message.tag, message.not_before);
            letter.f32.clear();
            letter.bf16.clear();
            match values {
                Source::F32(v) => letter.f32.extend_from_slice(v),
                Source::Bf16(v) => letter.bf16.extend_from_slice(v),
            }
        });
        let result = posted.map_err(|stop| self.error(&call, stop));
        self.leave(result)
    }

    fn receive(&mut self, message: Message<'_>, values: Values<'_>) -> Result<(), CollectiveError> {
        let (call, from) = (Call::receive(message, &values), message.peer);
        self.enter(&call)?;
        let letter = match self.shared.take_letter(from, self.rank, message.tag) {
            Ok(letter) => letter,
            Err(stop) => {
                let error = self.error(&call, stop);
                return self.leave(Err(error));
            }
        };
        if letter.signature != call.signature() {
            let ends = (self.shared.label.as_str(), self.rank, from);
            let error = other_message(&call, ends, (&letter.signature, &letter.name));
            return self.leave(Err(error));
        }
        still_under_way(letter.not_before).into_iter().for_each(std::thread::sleep);
        match values {
            Values::F32(v) => v.copy_from_slice(&letter.f32),
            Values::Bf16(v) => v.copy_from_slice(&letter.bf16),
        }
        self.shared.return_letter(self.rank, letter);
        Ok(())
    }

    fn arrived(&mut self, message: Message<'_>) -> Result<bool, CollectiveError> {
        let call = Call::arrived(message);
        self.enter(&call)?;
        let found = self.shared.has_letter(message.peer, self.rank, message.tag);
        match found.map_err(|stop| self.error(&call, stop)) {
            Ok(found) => Ok(found),
            Err(error) => self.leave(Err(error)).map(|()| false),
        }
    }

    fn barrier(&mut self, name: &str) -> Result<(), CollectiveError> {
        let call = Call::barrier(name);
        self.enter(&call)?;
        let result = self.meet_once(&call);
        self.leave(result)
    }

    fn group(&mut self, label: &str, ranks: &[usize]) -> Result<Box<dyn Communicator>, CollectiveError> {
        let position = position(&self.shared.label, self.rank, self.shared.size, label, ranks)?;
        let count = self.groups.entry((label.into(), ranks.into())).or_default();
        let group = self.shared.join(label, ranks, position, *count);
        *count += 1;
        Ok(Box::new(ThreadCommunicator::of(group, position)))
    }
}
