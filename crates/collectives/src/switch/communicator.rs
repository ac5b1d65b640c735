//! A communicator whose all-reduces are summed by a switch.

use super::client::{SwitchClient, SwitchError, SwitchSettings};
use super::packet::WorkerId;
use crate::call::Call;
use crate::{
    Breaker, Collective, CollectiveError, CollectiveKind, Communicator, ElementType, Memory, Message, Reduce,
};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

/// Wraps communicators: sums of f32 and u32 over all ranks go through a switch, everything else through the communicator
/// below. A group that is made from one is a job of its own on the switch, from its first sum on.
///
/// Sums of f32 are those of fixed-point numbers ([`super::fixed_point`] states their error): the same bits on every rank and in
/// every order of arrival, but not the bits of the other communicators.
#[derive(Debug, Clone, Copy)]
pub struct SwitchReduce {
    settings: SwitchSettings,
    job: u64,
}

impl SwitchReduce {
    /// Sums through a switch as job `job`, a number that all ranks of the job and nobody else have.
    pub fn new(settings: SwitchSettings, job: u64) -> SwitchReduce {
        SwitchReduce { settings, job }
    }

    /// Wraps a communicator. Nothing is sent to the switch before the first sum.
    pub fn wrap(self, inner: Box<dyn Communicator>) -> Box<dyn Communicator> {
        let broken = Broken { stopped: Arc::default(), reason: Arc::default() };
        Box::new(Switched { inner, reduce: self, client: None, made: HashMap::new(), failed: None, broken })
    }
}

/// Whether another thread has ended the group, and why.
#[derive(Debug, Clone)]
struct Broken {
    stopped: Arc<AtomicBool>,
    reason: Arc<Mutex<String>>,
}

#[derive(Debug)]
struct Switched {
    inner: Box<dyn Communicator>,
    reduce: SwitchReduce,
    client: Option<SwitchClient>,
    /// How often each group was made.
    made: HashMap<u64, u64>,
    failed: Option<CollectiveError>,
    broken: Broken,
}

impl Switched {
    /// Whether the switch runs the call.
    fn serves(&self, call: &Call<'_>) -> bool {
        self.inner.size() > 1
            && call.kind() == CollectiveKind::AllReduce
            && call.reduce() == Some(Reduce::Sum)
            && matches!(call.element, Some(ElementType::F32 | ElementType::U32))
            // The communicator below refuses what is wrong, and tells the others.
            && call.check(self.inner.label(), self.inner.rank(), self.inner.size()).is_ok()
    }

    fn sum(&mut self, call: &Call<'_>, memory: Memory<'_>) -> Result<(), SwitchError> {
        let Memory::InPlace(values) = memory else { return Ok(()) };
        let client = match self.client.take() {
            Some(client) => client,
            None => {
                let id = WorkerId { job: self.reduce.job, worker: self.inner.rank() as u16 };
                SwitchClient::join(id, self.inner.size() as u32, &self.reduce.settings)?
            }
        };
        let signature = call.signature();
        let mut hash = Xxh3::new();
        hash.update(&signature.name.to_le_bytes());
        hash.update(&signature.len.to_le_bytes());
        hash.update(&[u8::from(call.element == Some(ElementType::F32))]);
        let stopped = Arc::clone(&self.broken.stopped);
        let client = self.client.insert(client);
        client.all_reduce(values, hash.digest() as u32, &|| stopped.load(Ordering::Relaxed))
    }
}

impl Communicator for Switched {
    fn label(&self) -> &str {
        self.inner.label()
    }

    fn rank(&self) -> usize {
        self.inner.rank()
    }

    fn size(&self) -> usize {
        self.inner.size()
    }

    fn breaker(&self) -> Breaker {
        let (inner, broken) = (self.inner.breaker(), self.broken.clone());
        Breaker::new(move |problem| {
            problem.clone_into(&mut broken.reason.lock().unwrap_or_else(PoisonError::into_inner));
            broken.stopped.store(true, Ordering::Relaxed);
            inner.break_off(problem);
        })
    }

    fn run(&mut self, collective: &Collective<'_>, memory: Memory<'_>) -> Result<(), CollectiveError> {
        let call = Call::new(collective, &memory);
        let site = || call.site(self.inner.label(), self.inner.rank());
        if let Some(error) = &self.failed {
            return Err(error.at(site()));
        }
        if !self.serves(&call) {
            return self.inner.run(collective, memory);
        }
        let Err(error) = self.sum(&call, memory) else { return Ok(()) };
        let site = call.site(self.inner.label(), self.inner.rank());
        let problem = error.to_string();
        // The other ranks learn it through the communicator below, or wait for the switch in vain.
        self.inner.breaker().break_off(&problem);
        let error = match error {
            SwitchError::BrokenOff => {
                let reason = self.broken.reason.lock().unwrap_or_else(PoisonError::into_inner).clone();
                CollectiveError::BrokenOff { site, problem: reason.into() }
            }
            _ => CollectiveError::Engine { site, problem: problem.into() },
        };
        self.failed = Some(error.clone());
        Err(error)
    }

    fn arrived(&mut self, message: Message<'_>) -> Result<bool, CollectiveError> {
        self.inner.arrived(message)
    }

    fn group(&mut self, label: &str, ranks: &[usize]) -> Result<Box<dyn Communicator>, CollectiveError> {
        let inner = self.inner.group(label, ranks)?;
        let mut hash = Xxh3::with_seed(self.reduce.job);
        hash.update(label.as_bytes());
        ranks.iter().for_each(|rank| hash.update(&(*rank as u64).to_le_bytes()));
        let group = hash.digest();
        let times = self.made.entry(group).or_insert(0);
        *times += 1;
        let job = xxh3_64(&[group.to_le_bytes(), times.to_le_bytes()].concat());
        Ok(SwitchReduce { settings: self.reduce.settings, job }.wrap(inner))
    }
}
