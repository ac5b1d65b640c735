//! Bytes by group and kind of collective.
//!
//! What is counted are the bytes of ring algorithms (Patarasuk and Yuan 2009), whatever the engine below does: with N
//! elements over n ranks, of which L_r belong to rank r, rank r
//!
//! ```text
//!                   sends                       receives
//! reduce-scatter    N - L_r                     N - L_{r-1}                 even parts: N (n-1)/n
//! all-gather        N - L_{r+1}                 N - L_r                     even parts: N (n-1)/n
//! all-reduce        both of the above, parts as even as can be              even parts: 2 N (n-1)/n
//! broadcast         N, but the last of the ring 0; receives N, but the root 0
//! all-to-all        what goes to others         what comes from others
//! ```

use crate::call::Call;
use crate::wrap::{Wrapped, Wrapper};
use crate::{Collective, CollectiveError, CollectiveKind, Communicator, Memory, Volume};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Calls and bytes of one kind of collective in groups of one label.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Number of collectives that succeeded.
    pub calls: u64,
    /// Bytes of those collectives, on this rank.
    pub volume: Volume,
}

/// Counts what goes through the communicators that it wraps and through groups made from them. Clones share their counts,
/// so one is kept to read.
#[derive(Debug, Clone, Default)]
pub struct Ledger {
    rows: Arc<Mutex<BTreeMap<String, BTreeMap<CollectiveKind, Traffic>>>>,
}

impl Ledger {
    /// A ledger in which nothing is counted yet.
    pub fn new() -> Ledger {
        Ledger::default()
    }

    /// Wraps a communicator whose traffic is counted here.
    pub fn wrap(&self, inner: Box<dyn Communicator>) -> Box<dyn Communicator> {
        Wrapped::boxed(inner, self.clone())
    }

    /// Returns the traffic by label of the group, then by kind.
    pub fn rows(&self) -> Vec<(String, CollectiveKind, Traffic)> {
        let rows = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
        let of = |(label, kinds): (&String, &BTreeMap<CollectiveKind, Traffic>)| {
            kinds.iter().map(|(kind, t)| (label.clone(), *kind, *t)).collect::<Vec<_>>()
        };
        rows.iter().flat_map(of).collect()
    }

    /// Returns the traffic of all kinds in groups of one label.
    pub fn of(&self, label: &str) -> Traffic {
        let rows = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
        let mut sum = Traffic::default();
        for traffic in rows.get(label).into_iter().flat_map(BTreeMap::values) {
            sum.calls += traffic.calls;
            sum.volume.sent += traffic.volume.sent;
            sum.volume.received += traffic.volume.received;
        }
        sum
    }

    /// Sets all counts to zero.
    pub fn clear(&self) {
        let mut rows = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
        // The rows stay, so that counting goes on without asking for memory.
        rows.values_mut().flat_map(BTreeMap::values_mut).for_each(|t| *t = Traffic::default());
    }
}

impl Wrapper for Ledger {
    fn run(
        &mut self,
        inner: &mut Box<dyn Communicator>,
        collective: &Collective<'_>,
        memory: Memory<'_>,
    ) -> Result<(), CollectiveError> {
        let call = Call::new(collective, &memory);
        inner.run(collective, memory)?;
        let volume = call.ring(inner.rank(), inner.size());
        let mut rows = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
        if !rows.contains_key(inner.label()) {
            rows.insert(inner.label().to_string(), BTreeMap::new());
        }
        if let Some(kinds) = rows.get_mut(inner.label()) {
            let traffic = kinds.entry(call.kind()).or_default();
            traffic.calls += 1;
            traffic.volume.sent += volume.sent;
            traffic.volume.received += volume.received;
        }
        Ok(())
    }

    fn for_group(&self) -> Ledger {
        self.clone()
    }
}
