//! Blocks of token data that are kept in memory.
//!
//! With exact epochs no policy has more hits an epoch than the cache holds blocks, where a block is used once: a block can only hit if it was
//! there when the epoch began. *Fixed membership* has exactly that many: it keeps the first blocks and never evicts (Mohan et al. 2021,
//! MinIO). *Least recently used* has fewer, (1-f)(1 - ln(1-f)) misses a block with a share f of the data in the cache, and suits an order
//! that uses a block often within a short time.
//!
//! A block is verified when it is loaded. Requests of several threads for one block load it once.

use crate::ShardError;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Blocks that a full cache keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CachePolicy {
    /// The blocks that were requested first; others are read past the cache.
    Fixed,
    /// The blocks that were used last; each block that is read is loaded.
    Lru,
}

/// Origin of a block that was requested of a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CacheRead {
    /// The block was in the cache.
    Hit,
    /// The block was loaded.
    Loaded,
    /// The block stays outside of the cache.
    Outside,
}

/// Size and policy of a cache of blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheConfig {
    /// Most bytes of blocks.
    pub bytes: u64,
    /// Blocks that stay.
    pub policy: CachePolicy,
}

/// A block in memory, or space for one.
#[derive(Debug)]
struct CacheSlot {
    bytes: Vec<u8>,
    /// Block that is there or is being loaded.
    key: Option<u64>,
    loading: bool,
    /// Slots whose blocks were used before and after this one; of blocks that are there.
    before: usize,
    after: usize,
}

/// No slot.
const NONE: usize = usize::MAX;

#[derive(Debug)]
struct CacheState {
    slots: Vec<CacheSlot>,
    by_key: HashMap<u64, usize>,
    /// Slots without a block.
    free: Vec<usize>,
    /// Slots whose blocks were used least and most recently.
    oldest: usize,
    newest: usize,
}

/// A cache of blocks, shared between threads. All memory is asked for when it is made.
#[derive(Debug)]
pub(crate) struct BlockCache {
    policy: CachePolicy,
    state: Mutex<CacheState>,
    /// A load has ended.
    loaded: Condvar,
    /// Bytes that were evicted.
    evicted: AtomicU64,
}

impl BlockCache {
    /// Space for `blocks` blocks of at most `block_bytes` bytes.
    pub(crate) fn new(policy: CachePolicy, blocks: usize, block_bytes: usize) -> BlockCache {
        let slot = |_| CacheSlot {
            bytes: Vec::with_capacity(block_bytes),
            key: None,
            loading: false,
            before: NONE,
            after: NONE,
        };
        let state = CacheState {
            slots: (0..blocks).map(slot).collect(),
            by_key: HashMap::with_capacity(2 * blocks),
            free: (0..blocks).rev().collect(),
            oldest: NONE,
            newest: NONE,
        };
        BlockCache { policy, state: Mutex::new(state), loaded: Condvar::new(), evicted: AtomicU64::new(0) }
    }

    /// Bytes that were evicted so far.
    pub(crate) fn evicted(&self) -> u64 {
        self.evicted.load(Ordering::Relaxed)
    }

    /// Calls `visit` with block `key`, which `load` brings in if it is not there. A block that stays outside is neither loaded nor visited.
    ///
    /// # Errors
    /// The error of `load`.
    pub(crate) fn read(
        &self,
        key: u64,
        load: impl FnOnce(&mut Vec<u8>) -> Result<(), ShardError>,
        visit: impl FnOnce(&[u8]),
    ) -> Result<CacheRead, ShardError> {
        let mut state = self.lock();
        loop {
            match state.by_key.get(&key) {
                Some(&at) if state.slots[at].loading => {
                    state = self.loaded.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
                Some(&at) => {
                    state.unlink(at);
                    state.link_as_newest(at);
                    visit(&state.slots[at].bytes);
                    return Ok(CacheRead::Hit);
                }
                None => break,
            }
        }
        let Some(at) = self.claim(&mut state, key) else { return Ok(CacheRead::Outside) };
        let mut bytes = std::mem::take(&mut state.slots[at].bytes);
        drop(state);
        let claimed = Claimed { cache: self, at, key };
        let loaded = load(&mut bytes);
        let mut state = self.lock();
        state.slots[at].bytes = bytes;
        if let Err(e) = loaded {
            // It locks.
            drop(state);
            drop(claimed);
            return Err(e);
        }
        std::mem::forget(claimed);
        state.slots[at].loading = false;
        state.link_as_newest(at);
        visit(&state.slots[at].bytes);
        drop(state);
        self.loaded.notify_all();
        Ok(CacheRead::Loaded)
    }

    fn lock(&self) -> MutexGuard<'_, CacheState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A slot for block `key`, which is then being loaded; none if the block stays outside.
    fn claim(&self, state: &mut CacheState, key: u64) -> Option<usize> {
        let at = match (state.free.pop(), self.policy) {
            (Some(at), _) => at,
            (None, CachePolicy::Fixed) => return None,
            (None, CachePolicy::Lru) => {
                // None if all are being loaded.
                let at = Some(state.oldest).filter(|at| *at != NONE)?;
                state.unlink(at);
                self.evicted.fetch_add(state.slots[at].bytes.len() as u64, Ordering::Relaxed);
                if let Some(former) = state.slots[at].key.take() {
                    state.by_key.remove(&former);
                }
                at
            }
        };
        let slot = &mut state.slots[at];
        (slot.key, slot.loading) = (Some(key), true);
        state.by_key.insert(key, at);
        Some(at)
    }
}

impl CacheState {
    /// Takes a slot out of the list by last use.
    fn unlink(&mut self, at: usize) {
        let CacheSlot { before, after, .. } = self.slots[at];
        match before {
            NONE => self.oldest = after,
            before => self.slots[before].after = after,
        }
        match after {
            NONE => self.newest = before,
            after => self.slots[after].before = before,
        }
    }

    /// Puts a slot at the end of the list by last use.
    fn link_as_newest(&mut self, at: usize) {
        (self.slots[at].before, self.slots[at].after) = (self.newest, NONE);
        match self.newest {
            NONE => self.oldest = at,
            newest => self.slots[newest].after = at,
        }
        self.newest = at;
    }
}

/// A slot whose block is being loaded. Dropped before that has succeeded, it frees the slot, so that no thread waits for it.
struct Claimed<'a> {
    cache: &'a BlockCache,
    at: usize,
    key: u64,
}

impl Drop for Claimed<'_> {
    fn drop(&mut self) {
        let mut state = self.cache.lock();
        state.by_key.remove(&self.key);
        (state.slots[self.at].key, state.slots[self.at].loading) = (None, false);
        state.free.push(self.at);
        drop(state);
        self.cache.loaded.notify_all();
    }
}
