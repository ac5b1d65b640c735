//! Going on from copies in memory.

use super::MemoryTier;
use super::elements::CopiedState;
use crate::TrainError;
use crate::state::TrainState;
use crate::trainer::Trainer;
use bessemer_checkpoint::{CheckpointError, Skipped};
use bessemer_memory_checkpoint::{
    CompleteCopy, CopyOffer, RecoveryPlan, Slot, lost_parts, receive_copy, send_copy,
};
use bessemer_parallel::{ParallelError, Worker, batches};
use bessemer_runlog::Resume;

/// The part whose copy is damaged, and a description.
type Damage = (usize, String);

/// Messages.
const OFFERS: &str = "copies in memory";
const DAMAGED: &str = "damaged copies in memory";
const NOTES: &str = "notes of copies in memory";
const ON_DISK: &str = "newest checkpoint on disk";

/// This rank's copy of the step that all ranks resume from.
pub(super) struct OwnCopy {
    plan: RecoveryPlan,
    slot: Slot,
    copy: CompleteCopy,
    /// Other parts that this rank reads for all, with their slots.
    elsewhere: Vec<(usize, Slot)>,
}

impl OwnCopy {
    /// The parts that this rank reads, first the one it holds of its own state, and their slots.
    pub(super) fn slots(&self, rank: usize) -> impl Iterator<Item = (usize, &Slot)> {
        std::iter::once((rank, &self.slot)).chain(self.elsewhere.iter().map(|(part, slot)| (*part, slot)))
    }
}

pub(super) fn unreadable(e: serde_json::Error) -> TrainError {
    TrainError::State { place: "memory".into(), problem: e.to_string() }
}

impl Trainer {
    /// Puts the newest copies of all ranks into the buffers, if they are at least as new as the newest checkpoint on disk. All ranks call this, and
    /// all return the same.
    pub(in crate::trainer) fn restore_from_memory(&mut self) -> Result<bool, TrainError> {
        let Some(tier) = &self.memory_tier else { return Ok(false) };
        let worker = &mut self.runner.worker;
        let newest = self.records.as_ref().map(|_| self.store.latest_complete_until(u64::MAX));
        let (disk, skipped) = match newest {
            Some(Ok(Some(newest))) => newest,
            Some(Err(CheckpointError::NothingValid { skipped, .. })) => (0, skipped),
            _ => (0, Vec::new()),
        };
        let disk = worker.broadcast_from_root(ON_DISK, disk)?;
        let chosen = choose(tier, worker, disk, &mut self.warnings)?;
        // Without a copy the checkpoints are read, which warns of them.
        let Some(own) = chosen else { return Ok(false) };
        self.warnings.extend(skipped.iter().map(Skipped::to_string));
        self.load_copies(&own)?;
        let (step, ranks) = (own.plan.step, self.runner.worker.plan().ranks());
        self.forget_copies_after(step)?;
        let owes_save = self.input.recipe.save.due_by_steps(step) && disk < step;
        if let Some(tier) = &mut self.memory_tier {
            tier.owes_save = owes_save;
            // Peers may lack this copy, as it was in flight or their memory is new. The next copy of this rank replaces an older one,
            // so without this, own memory and that of peers would have no step in common until the next copy has arrived.
            if let Some(peers) = &tier.peers {
                peers.send(own.slot.try_clone()?, own.copy);
            }
        }
        self.identify(step)?;
        let records_dropped = match &mut self.records {
            Some(records) => records.go_on_from(step, true)?,
            None => 0,
        };
        let on_disk = match disk {
            0 => "there is no checkpoint on disk".to_owned(),
            step => format!("the newest checkpoint on disk is of step {step}"),
        };
        let path = match own.plan.from_peers(ranks) {
            0 => format!("own memory; {on_disk}"),
            n => format!("memory, {n} of {ranks} ranks from a peer's because their own was lost; {on_disk}"),
        };
        self.resumed = Some(Resume { step, path, records_dropped });
        Ok(true)
    }

    /// Puts copies into the buffers: each rank has its own copy of the same step.
    fn load_copies(&mut self, own: &OwnCopy) -> Result<(), TrainError> {
        let worker = &mut self.runner.worker;
        // The first rank's clock is the run's.
        let notes = if worker.rank() == 0 { own.slot.notes(&own.copy)? } else { Vec::new() };
        let notes = worker.gather_bytes(NOTES, &notes)?;
        let saved: TrainState = serde_json::from_slice(&notes[0]).map_err(unreadable)?;
        let place = format!("memory, step {}", own.plan.step);
        // Copies hold no recipe, so keys without an effect on batch and order are not recorded.
        let continuation = self.continuation(saved, None, &place)?;
        let Some(tier) = &self.memory_tier else { return Ok(()) };
        let worker = &mut self.runner.worker;
        let tensors = worker.tensors(&self.input.recipe.optim)?;
        let mut copies = CopiedState::gather(worker, tier, own)?;
        for batch in batches(&tensors) {
            copies.fetch(worker, own, batch.clone().map(|number| (number, &tensors[number])))?;
            for number in batch {
                let tensor = &tensors[number];
                worker.write_with(&mut *self.backend, tensor, &mut |runs, to| {
                    copies.read(number, tensor, runs, to)
                })?;
            }
        }
        worker.adopt_state(&mut *self.backend)?;
        self.go_on(continuation);
        Ok(())
    }
}

/// Finds the newest step, at least `disk`, of which every rank has an intact copy, own or from a peer; a remark for each that was passed over. All
/// ranks call this, and all return `None` or the same step.
fn choose(
    tier: &MemoryTier,
    worker: &mut Worker,
    disk: u64,
    remarks: &mut Vec<String>,
) -> Result<Option<OwnCopy>, TrainError> {
    let (rank, parts) = (worker.rank(), tier.parts.list());
    let found = worker.gather_bytes(OFFERS, &CopyOffer::to_numbers(&tier.offers(rank)))?;
    let of_rank = |(by, bytes): (usize, &Vec<u8>)| CopyOffer::of_numbers(by, bytes);
    let mut offers: Vec<CopyOffer> = found.iter().enumerate().flat_map(of_rank).collect();
    let none = offers.is_empty();
    let newest_left = offers.iter().filter(|offer| !tier.launch.has(offer)).max_by_key(|offer| offer.step);
    if let Some(CopyOffer { step, launch, .. }) = newest_left {
        remarks.push(format!(
            "copies in memory of launch {launch}, up to step {step}, are ignored: the run has since \
             continued from an older step"
        ));
    }
    offers.retain(|offer| tier.launch.has(offer));
    loop {
        let Some(plan) = RecoveryPlan::newest(&offers, parts.len()) else {
            let why = match lost_parts(&offers, parts.len()).first() {
                Some(part) => {
                    format!("no host has a copy of the state of rank {} in memory", parts[*part].of)
                }
                None => "the copies in memory have no step in common".into(),
            };
            if !none {
                remarks.push(format!("copies in memory are not used: {why}"));
            }
            return Ok(None);
        };
        if plan.step < disk {
            let step = plan.step;
            remarks.push(format!(
                "copies in memory are of step {step}, the newest checkpoint on disk of step {disk}"
            ));
            return Ok(None);
        }
        let mut damage = Vec::new();
        let found = read_here(tier, &plan, rank, &mut damage);
        let damage = serde_json::to_vec(&damage).map_err(unreadable)?;
        let before = offers.len();
        for (by, list) in worker.gather_bytes(DAMAGED, &damage)?.iter().enumerate() {
            let list: Vec<Damage> = serde_json::from_slice(list).map_err(unreadable)?;
            for (of, problem) in list {
                remarks.push(format!("rank {by}: {problem}"));
                let damaged =
                    |o: &CopyOffer| (o.by, o.of, o.step, o.launch) == (by, of, plan.step, plan.launch);
                offers.retain(|offer| !damaged(offer));
            }
        }
        if offers.len() < before {
            continue;
        }
        return match send_to_the_lost(tier, worker, plan, found)? {
            Some(own) => Ok(Some(own)),
            None => {
                let problem = "a rank has no copy of the step that all ranks continue from";
                Err(ParallelError::Layout(problem.into()).into())
            }
        };
    }
}

/// A verified copy on this host.
struct FoundCopy {
    of: usize,
    slot: Slot,
    copy: CompleteCopy,
}

/// Opens and verifies the copies that this rank reads for a plan. Adds the parts whose copies are damaged, with the reasons, to `damage`.
fn read_here(
    tier: &MemoryTier,
    plan: &RecoveryPlan,
    rank: usize,
    damage: &mut Vec<Damage>,
) -> Vec<FoundCopy> {
    let here = (0..plan.from.len()).filter(|of| plan.from[*of] == rank);
    let open = |of| match tier.open(of, plan) {
        Ok((slot, copy)) => Some(FoundCopy { of, slot, copy }),
        Err(e) => {
            damage.push((of, e.to_string()));
            None
        }
    };
    here.filter_map(open).collect()
}

/// Sends copies to the ranks whose memory is lost. Returns this rank's copy, found here or received. Parts that are stored elsewhere
/// than in their rank's memory remain there.
fn send_to_the_lost(
    tier: &MemoryTier,
    worker: &mut Worker,
    plan: RecoveryPlan,
    mut found: Vec<FoundCopy>,
) -> Result<Option<OwnCopy>, TrainError> {
    let (rank, ranks) = (worker.rank(), worker.plan().ranks());
    for (of, from) in plan.from.iter().enumerate().take(ranks).filter(|(of, from)| of != *from) {
        if *from == rank {
            for sent in found.iter().filter(|found| found.of == of) {
                send_copy(worker.world(), of, &sent.slot, &sent.copy)?;
            }
        } else if of == rank {
            let slot = tier.memory.pair.next();
            let copy = receive_copy(worker.world(), *from, slot)?;
            found.push(FoundCopy { of, slot: slot.try_clone()?, copy });
        }
    }
    let (own, others): (Vec<_>, Vec<_>) = found.into_iter().partition(|found| found.of == rank);
    let others = others.into_iter().filter(|found| found.of >= ranks);
    let elsewhere = others.map(|found| (found.of, found.slot)).collect();
    let own = own.into_iter().next();
    Ok(own.map(|FoundCopy { slot, copy, .. }| OwnCopy { plan, slot, copy, elsewhere }))
}
