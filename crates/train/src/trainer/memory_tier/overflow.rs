//! Parts of ranks' states that are stored elsewhere because their memory has no space for all of them (`save.memory.overflow`).
//!
//! Their locations are planned when a session begins ([`Tiers`]), from the memory that each rank has and rates that are measured then. The
//! plan is kept in the run's record: copies are found again where the next launch partitions states alike.

use super::launch::{Launch, SavedOverflow};
use super::{TrainError, hash_of};
use crate::state::CHECKPOINTS;
use bessemer_checkpoint::{MemoryConfig, MemoryKeep, MemoryOverflow};
use bessemer_durable::ConfinedDir;
use bessemer_memory_checkpoint::{
    MemoryError, NOTES_ROOM, OverflowPlan, Pair, SlotKey, StatePart, Tier, Tiers, measure_rates,
};
use bessemer_parallel::Worker;
use bessemer_units::Bytes;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Messages.
const SPACE: &str = "memory for copies";
const RATES: &str = "rates to other ranks' memory";

/// Ranks that a rank may send to: more gain little and cost time to measure.
const RECEIVERS: usize = 8;
/// Bytes that are written to measure the store's rate.
const PROBE: usize = 8 << 20;
/// Bytes in which file systems in memory give memory out.
const PAGE: u64 = 4096;
/// Bytes of an element.
const ELEMENT: u64 = 4;

/// Whether parts of states may be stored elsewhere.
pub(super) fn is_allowed(config: &MemoryConfig) -> bool {
    config.overflow != MemoryOverflow::None && config.keep == MemoryKeep::Own
}

/// Directory of the slower store, below that of the run.
pub(super) fn store() -> PathBuf {
    Path::new(CHECKPOINTS).join(".memory")
}

/// Makes the directory of the slower store, or opens it.
pub(super) fn open_store(run: &ConfinedDir) -> Result<ConfinedDir, MemoryError> {
    run.create_dir(store()).map_err(|source| {
        let path = run.path().join(store());
        MemoryError::Io { action: "create", path, source }
    })
}

/// Parts of all ranks' states and the keys of their slots.
#[derive(Debug)]
pub(super) struct Parts {
    list: Vec<StatePart>,
    keys: Vec<SlotKey>,
    ranks: usize,
    /// Seconds after which all ranks have sent and stored the parts kept elsewhere, as planned.
    planned: f64,
}

/// A run's states and the memory for copies of them.
pub(super) struct Space<'a> {
    pub(super) config: &'a MemoryConfig,
    pub(super) run_directory: &'a ConfinedDir,
    /// Hash of the layout.
    pub(super) layout: u64,
    /// Bytes of each rank's state.
    pub(super) states: Vec<u64>,
    /// Each rank's host.
    pub(super) hosts: Vec<u64>,
    /// Bytes of memory that this rank has for copies.
    pub(super) own: u64,
}

impl Parts {
    /// Decides where each part is stored. All ranks call this, with the same launch.
    pub(super) fn agree(
        worker: &mut Worker,
        space: &Space<'_>,
        launch: &mut Launch,
    ) -> Result<Parts, TrainError> {
        let allowed = is_allowed(space.config);
        let saved = launch.overflow.take().filter(|saved| allowed && saved.layout == space.layout);
        let found = match saved {
            Some(saved) => Some(saved),
            None if allowed => space.plan(worker)?,
            None => None,
        };
        launch.overflow = found;
        Ok(Parts::new(launch, space))
    }

    fn new(launch: &Launch, space: &Space<'_>) -> Parts {
        let ranks = space.states.len();
        let saved = launch.overflow.as_ref();
        let plan = saved.map_or_else(|| OverflowPlan::none(ranks), |saved| saved.plan.clone());
        let list = StatePart::list(&space.states, &plan);
        let layout = match saved {
            None => space.layout,
            Some(_) => {
                let ends = list.iter().flat_map(|part| [part.of as u64, part.holder as u64, part.bytes.end]);
                hash_of(std::iter::once(space.layout).chain(ends))
            }
        };
        let key = |(number, part): (usize, &StatePart)| SlotKey {
            run: launch.run(),
            part: number as u32,
            parts: list.len() as u32,
            layout,
            bytes: part.bytes.end - part.bytes.start,
            notes: if number < ranks { NOTES_ROOM } else { 0 },
        };
        let keys = list.iter().enumerate().map(key).collect();
        Parts { keys, list, ranks, planned: plan.scheduled }
    }

    /// All parts. The first ones are those that each rank holds of its own state, by rank.
    pub(super) fn list(&self) -> &[StatePart] {
        &self.list
    }

    /// Keys of the slots, indexed by part.
    pub(super) fn keys(&self) -> &[SlotKey] {
        &self.keys
    }

    /// Parts that are stored elsewhere than in their rank's memory, with their numbers.
    pub(super) fn elsewhere(&self) -> impl Iterator<Item = (usize, &StatePart)> {
        self.list.iter().enumerate().skip(self.ranks)
    }

    /// Whether any part is sent to another rank.
    pub(super) fn are_sent(&self) -> bool {
        self.elsewhere().any(|(_, part)| part.is_sent())
    }

    /// Summary of the parts stored elsewhere, for the first lines of a session.
    pub(super) fn summary(&self) -> Option<String> {
        let bytes = |part: &StatePart| part.bytes.end - part.bytes.start;
        let sum =
            |tier: Tier| Bytes(self.elsewhere().map(|(_, p)| p).filter(|p| p.tier == tier).map(bytes).sum());
        self.elsewhere().next()?;
        let (memory, store) = (sum(Tier::Memory), sum(Tier::Store));
        Some(format!("of what has no space there {memory} go to other ranks' memory and {store} to disk"))
    }

    /// Measured cost of these parts for this rank, `seconds` a copy, compared with the plan.
    pub(super) fn outcome(&self, seconds: f64) -> Option<String> {
        self.elsewhere().next()?;
        let (found, planned) = (1e3 * seconds, 1e3 * self.planned);
        Some(format!(
            "rank 0 took {found:.2} ms of it for what lies elsewhere, {planned:.2} ms were planned for all ranks"
        ))
    }
}

impl Space<'_> {
    /// Plans the locations of the overflow; `None`: nothing overflows, or it fits nowhere. All ranks call this.
    fn plan(&self, worker: &mut Worker) -> Result<Option<SavedOverflow>, TrainError> {
        let notes = SlotKey::overhead(NOTES_ROOM) + PAGE;
        // Two slots of each part.
        let found = worker.gather_numbers(SPACE, &[self.own])?;
        let mut capacity: Vec<u64> = found.iter().map(|space| (space / 2).saturating_sub(notes)).collect();
        let over: Vec<usize> =
            (0..capacity.len()).filter(|rank| self.states[*rank] > capacity[*rank]).collect();
        if over.is_empty() {
            return Ok(None);
        }
        for (rank, capacity) in capacity.iter_mut().enumerate().filter(|(rank, _)| !over.contains(rank)) {
            // Each received part has a header, and its last page may be all but empty.
            let headers = over.len() as u64 * (SlotKey::overhead(0) + PAGE);
            *capacity = capacity.saturating_sub(headers).max(self.states[rank]);
        }
        let mut tiers = Tiers { state: self.states.clone(), capacity, ..Tiers::default() };
        let pairs = self.candidates(&tiers, &over);
        let mut rates = measure_rates(worker.world(), &pairs)?;
        let stores = self.config.overflow == MemoryOverflow::Disk && over.contains(&worker.rank());
        rates.push(if stores { store_rate(self.run_directory).unwrap_or(0.0) } else { 0.0 });
        let numbers: Vec<u64> = rates.iter().map(|rate| rate.to_bits()).collect();
        let all = worker.gather_numbers(RATES, &numbers)?;
        let by_rank: Vec<Vec<f64>> = all
            .chunks_exact(rates.len())
            .map(|list| list.iter().map(|n| f64::from_bits(*n)).collect())
            .collect();
        tiers.slow = by_rank.iter().map(|rates| rates[pairs.len()]).collect();
        tiers.rates = pairs
            .iter()
            .enumerate()
            .map(|(i, pair)| (*pair, by_rank[pair.from][i]))
            .collect::<HashMap<_, _>>();
        Ok(tiers.plan(ELEMENT).map(|plan| SavedOverflow { layout: self.layout, plan }))
    }

    /// Ranks that each rank whose state overflows may send to: those on its host first, then those with the most memory to spare.
    fn candidates(&self, tiers: &Tiers, over: &[usize]) -> Vec<Pair> {
        let spare: Vec<usize> = (0..self.states.len()).filter(|rank| tiers.spare(*rank) >= ELEMENT).collect();
        let of = |from: usize| {
            let mut receivers = spare.clone();
            receivers.sort_by_key(|to| {
                (self.hosts[*to] != self.hosts[from], std::cmp::Reverse(tiers.spare(*to)), *to)
            });
            receivers.truncate(RECEIVERS);
            receivers.into_iter().map(move |to| Pair { from, to })
        };
        over.iter().copied().flat_map(of).collect()
    }
}

/// Bytes a second at which a file in the store is written to the device.
fn store_rate(run: &ConfinedDir) -> std::io::Result<f64> {
    let file = run.dir(store())?.reserve_unnamed(PROBE as u64)?;
    let bytes = vec![0x5a; PROBE];
    let begun = Instant::now();
    file.write_all_at(&bytes, 0)?;
    file.sync_data()?;
    Ok(PROBE as f64 / begun.elapsed().as_secs_f64().max(1e-9))
}
