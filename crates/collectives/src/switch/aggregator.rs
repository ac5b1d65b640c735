//! The switch: slots that sum, as a state machine without sockets and clocks.

use super::packet::{Packet, SlotUse, WorkerId};
use std::collections::BTreeMap;
use std::time::Duration;

/// Memory of a switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SwitchMemory {
    /// Slots, which all jobs share.
    pub slots: u32,
    /// 32-bit integers of a slot.
    pub values: u32,
}

/// Counts of a switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SwitchCounts {
    /// Packets with values that were added.
    pub added: u64,
    /// Packets whose values had been added before; those whose sum was known were answered.
    pub repeated: u64,
    /// Packets of an earlier use of their slot.
    pub stale: u64,
    /// Packets that were no packets, or from nobody who had joined.
    pub foreign: u64,
    /// Sums that were complete.
    pub sums: u64,
    /// Slots in which some contributions are there and others are missing.
    pub held: u32,
    /// Most of those at one time.
    pub most_held: u32,
}

/// One of the two sums that a slot keeps.
#[derive(Debug, Clone, Default)]
struct SlotVersion {
    phase: u32,
    /// Contributions that have been added; 0 only in a slot that was never used.
    count: u32,
    /// A bit for each worker.
    seen: Vec<u64>,
    first: u16,
    collective: u32,
    exponent: i32,
    values: Vec<i32>,
}

#[derive(Debug)]
struct SwitchJob<A> {
    workers: u32,
    values: u32,
    base: usize,
    slots: u32,
    addresses: Vec<Option<A>>,
    left: Vec<bool>,
    heard: Duration,
    /// Why the job is not served any more.
    refused: Option<String>,
}

/// A switch that sums. `A` is the address of a worker.
///
/// Jobs share the slots: a job gets a range of its own when its first worker joins, of as many slots as it wants or as are free
/// in one piece, and keeps it until all workers have left. Within a job the protocol is that of SwitchML (Sapio et al. 2021,
/// algorithm 3): a slot has two versions, and while one collects, the other keeps the last sum for workers that have missed it.
/// A worker uses a slot again only after it has the sum, so nobody needs a sum once two later uses have begun. The paper's switch
/// knows one bit of the use and relies on links that do not reorder; here a packet carries the whole number, so that a late copy is
/// not taken for a new use.
#[derive(Debug)]
pub struct Aggregator<A> {
    memory: SwitchMemory,
    versions: Vec<[SlotVersion; 2]>,
    jobs: BTreeMap<u64, SwitchJob<A>>,
    counts: SwitchCounts,
}

impl<A: Copy + Eq> Aggregator<A> {
    /// A switch that serves nobody yet.
    pub fn new(memory: SwitchMemory) -> Aggregator<A> {
        let versions = vec![<[SlotVersion; 2]>::default(); memory.slots as usize];
        Aggregator { memory, versions, jobs: BTreeMap::new(), counts: SwitchCounts::default() }
    }

    /// Counts so far.
    pub fn counts(&self) -> SwitchCounts {
        self.counts
    }

    /// Slots that belong to a job.
    pub fn granted(&self) -> u32 {
        self.jobs.values().map(|job| job.slots).sum()
    }

    /// Jobs that have slots.
    pub fn jobs(&self) -> usize {
        self.jobs.len()
    }

    /// Takes a packet and appends the answers to `answers`. Packets that are not for this switch are counted and dropped.
    pub fn receive(&mut self, from: A, bytes: &[u8], now: Duration, answers: &mut Vec<(A, Vec<u8>)>) {
        let Some((id, packet)) = Packet::decode(bytes) else {
            self.counts.foreign += 1;
            return;
        };
        let mut answer = |to: A, id: WorkerId, packet: Packet<'_>| {
            let mut bytes = Vec::new();
            packet.encode(id, &mut bytes);
            answers.push((to, bytes));
        };
        match packet {
            Packet::Join { workers, slots, values } => {
                match self.join(id, from, [workers, slots, values], now) {
                    Ok(slots) => answer(from, id, Packet::Granted { slots }),
                    Err((retry, reason)) => answer(from, id, Packet::Refused { retry, reason: &reason }),
                }
            }
            Packet::Leave => {
                self.leave(id, from);
                answer(from, id, Packet::Left);
            }
            Packet::Values(at, values) => self.add(id, from, at, values, now, &mut answer),
            Packet::Granted { .. } | Packet::Sum(..) | Packet::Left | Packet::Refused { .. } => {
                self.counts.foreign += 1;
            }
        }
    }

    /// Frees the slots of jobs that nobody has been heard of since `since`: their workers are gone.
    pub fn expire(&mut self, since: Duration) {
        let gone: Vec<u64> =
            self.jobs.iter().filter(|(_, job)| job.heard < since).map(|(id, _)| *id).collect();
        gone.into_iter().for_each(|job| self.free(job));
    }

    fn join(
        &mut self,
        id: WorkerId,
        from: A,
        [workers, slots, values]: [u32; 3],
        now: Duration,
    ) -> Result<u32, (bool, String)> {
        let refuse = |reason: String| Err((false, reason));
        let most = self.memory.values;
        if !(1..=65_535).contains(&workers) || u32::from(id.worker) >= workers {
            return refuse(format!(
                "worker {} of {workers}: wanted 1 to 65535 workers, numbered from 0",
                id.worker
            ));
        }
        if slots == 0 || !(1..=most).contains(&values) {
            return refuse(format!(
                "{slots} slots of {values} integers: wanted at least one slot and 1 to {most} integers, which a slot of the switch has"
            ));
        }
        if !self.jobs.contains_key(&id.job) {
            let Some((base, slots)) = self.free_range(slots) else {
                let taken = self.granted();
                return Err((
                    true,
                    format!("wanted a free slot, all {taken} belong to {} jobs", self.jobs.len()),
                ));
            };
            self.versions[base..base + slots as usize].fill_with(Default::default);
            let n = workers as usize;
            let (addresses, left) = (vec![None; n], vec![false; n]);
            self.jobs.insert(
                id.job,
                SwitchJob { workers, values, base, slots, addresses, left, heard: now, refused: None },
            );
        }
        let Some(job) = self.jobs.get_mut(&id.job) else { return refuse("the job has ended".into()) };
        if (job.workers, job.values) != (workers, values) {
            return refuse(format!(
                "worker {} has {workers} workers and {values} integers a packet, the job {} and {}",
                id.worker, job.workers, job.values
            ));
        }
        let known = &mut job.addresses[usize::from(id.worker)];
        if known.is_some_and(|address| address != from) || job.left[usize::from(id.worker)] {
            return refuse(format!(
                "worker {} of this job has joined before; give every job a number of its own",
                id.worker
            ));
        }
        *known = Some(from);
        job.heard = now;
        Ok(job.slots)
    }

    /// The first free range that is long enough, else the longest.
    fn free_range(&self, wanted: u32) -> Option<(usize, u32)> {
        let mut taken: Vec<(usize, usize)> =
            self.jobs.values().map(|job| (job.base, job.base + job.slots as usize)).collect();
        taken.sort_unstable();
        taken.push((self.versions.len(), self.versions.len()));
        let (mut from, mut best) = (0, (0, 0));
        for (begin, end) in taken {
            let free = (begin - from) as u32;
            if free >= wanted {
                return Some((from, wanted));
            }
            if free > best.1 {
                best = (from, free);
            }
            from = end;
        }
        (best.1 > 0).then_some(best)
    }

    fn leave(&mut self, id: WorkerId, from: A) {
        let Some(job) = self.jobs.get_mut(&id.job) else { return };
        match job.addresses.get(usize::from(id.worker)) {
            Some(Some(address)) if *address == from => job.left[usize::from(id.worker)] = true,
            _ => return,
        }
        if job.left.iter().all(|left| *left) {
            self.free(id.job);
        }
    }

    fn free(&mut self, job: u64) {
        let Some(job) = self.jobs.remove(&job) else { return };
        for version in self.versions[job.base..job.base + job.slots as usize].iter().flatten() {
            self.counts.held -= u32::from(version.count > 0 && version.count < job.workers);
        }
    }

    fn add(
        &mut self,
        id: WorkerId,
        from: A,
        at: SlotUse,
        values: &[u8],
        now: Duration,
        answer: &mut impl FnMut(A, WorkerId, Packet<'_>),
    ) {
        let Some(job) = self.jobs.get_mut(&id.job) else {
            self.counts.foreign += 1;
            let reason = "the job has no slots: its workers sent no packet for too long, or it never joined";
            return answer(from, id, Packet::Refused { retry: false, reason });
        };
        let known = job.addresses.get(usize::from(id.worker)).copied().flatten();
        if known != Some(from) || at.slot >= job.slots || values.len() > 4 * job.values as usize {
            self.counts.foreign += 1;
            return;
        }
        job.heard = now;
        if let Some(reason) = &job.refused {
            return answer(from, id, Packet::Refused { retry: false, reason });
        }
        let version = &mut self.versions[job.base + at.slot as usize][(at.phase & 1) as usize];
        let ahead = at.phase.wrapping_sub(version.phase) as i32;
        if version.count > 0 && ahead < 0 {
            self.counts.stale += 1;
            return;
        }
        let incomplete = version.count > 0 && version.count < job.workers;
        if version.count == 0 || (ahead > 0 && !incomplete) {
            version.phase = at.phase;
            (version.count, version.first) = (0, id.worker);
            (version.collective, version.exponent) = (at.collective, at.exponent);
            version.seen.clear();
            version.seen.resize(job.workers.div_ceil(64) as usize, 0);
            version.values.clear();
            version.values.resize(values.len() / 4, 0);
        }
        let other = version.collective != at.collective || 4 * version.values.len() != values.len();
        if other || version.phase != at.phase {
            let reason = format!(
                "workers {} and {} of the job are in different collectives, or sum different lengths",
                version.first, id.worker
            );
            for (worker, address) in job.addresses.iter().enumerate() {
                let id = WorkerId { worker: worker as u16, ..id };
                address
                    .iter()
                    .for_each(|to| answer(*to, id, Packet::Refused { retry: false, reason: &reason }));
            }
            job.refused = Some(reason);
            return;
        }
        let (word, bit) = (usize::from(id.worker / 64), 1u64 << (id.worker % 64));
        let repeated = version.seen[word] & bit != 0;
        if repeated {
            self.counts.repeated += 1;
        } else {
            version.seen[word] |= bit;
            version.count += 1;
            version.exponent = version.exponent.max(at.exponent);
            for (sum, value) in version.values.iter_mut().zip(values.as_chunks::<4>().0) {
                *sum = sum.wrapping_add(i32::from_le_bytes(*value));
            }
            self.counts.added += 1;
            self.counts.held += u32::from(version.count == 1);
            self.counts.most_held = self.counts.most_held.max(self.counts.held);
        }
        if version.count < job.workers {
            return;
        }
        let sum: Vec<u8> = version.values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let sum = Packet::Sum(SlotUse { exponent: version.exponent, ..at }, &sum);
        if repeated {
            return answer(from, id, sum);
        }
        self.counts.held -= 1;
        self.counts.sums += 1;
        for (worker, address) in job.addresses.iter().enumerate() {
            let id = WorkerId { worker: worker as u16, ..id };
            address.iter().for_each(|to| answer(*to, id, sum));
        }
    }
}
