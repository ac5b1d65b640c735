//! The ranks with the other experts of a decoder that has all tokens.

use crate::ranks::StageRanks;
use bessemer_program::OneDevice;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Ranks that passes of a decoder reach unless they are given others: those with the other experts. Decoders over the same parameters share them.
/// No ranks by default.
#[derive(Clone, Default)]
pub struct Peers(Option<Arc<Mutex<dyn StageRanks + Send>>>);

impl Peers {
    /// Returns peers that passes reach through `ranks`.
    pub fn new(ranks: impl StageRanks + Send + 'static) -> Peers {
        Peers(Some(Arc::new(Mutex::new(ranks))))
    }

    /// The ranks for one pass.
    pub(crate) fn lock(&self) -> PeersGuard<'_> {
        match &self.0 {
            Some(ranks) => PeersGuard::Some(ranks.lock().unwrap_or_else(PoisonError::into_inner)),
            None => PeersGuard::None(OneDevice),
        }
    }
}

impl fmt::Debug for Peers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Peers(..)" } else { "Peers(none)" })
    }
}

/// The ranks of a pass that runs.
pub(crate) enum PeersGuard<'a> {
    Some(MutexGuard<'a, dyn StageRanks + Send + 'static>),
    None(OneDevice),
}

impl PeersGuard<'_> {
    pub(crate) fn ranks(&mut self) -> &mut dyn StageRanks {
        match self {
            PeersGuard::Some(ranks) => &mut **ranks,
            PeersGuard::None(alone) => alone,
        }
    }
}
