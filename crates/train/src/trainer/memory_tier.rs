//! Copies of the state in shared memory (`save.memory`): made after steps, and used when the run is started again.
//!
//! ```text
//! after a step     state that the rank saves ─► its older slot in shared memory ─► (keep = "peers") the memory of other failure domains
//! at the start     copies over all ranks ─► the newest step of which all are there ─► a rank whose memory is lost gets its
//!                  copy from a peer ─► every rank reads the elements that it needs from the ranks that saved them
//! ```
//! A copy is used if it is at least as new as the newest checkpoint on disk and has the same layout; another layout is restored from disk.
//! A rank that cannot make copies emits one warning, and the run continues with checkpoints on disk alone.

mod copy;
mod elements;
mod launch;
mod overflow;
mod restore;

use super::Trainer;
use crate::observer::Observer;
use crate::state::TrainState;
use crate::{TrainError, TrainerInput};
use bessemer_checkpoint::{MemoryConfig, MemoryKeep, MemoryOverflow};
use bessemer_collectives::{Communicator, InFlight};
use bessemer_durable::{ConfinedDir, FileLock};
use bessemer_memory_checkpoint::{
    CompleteCopy, CopyOffer, CopySource, FoundCopy, MemoryError, Pacing, PeerCopies, RankPlacement,
    RecoveryPlan, Slot, SlotDirectory, SlotPair, Tier, receive_part, send_part, stable_hash,
};
use bessemer_parallel::{OwnSlice, OwnSlices, ParallelError, Worker};
use bessemer_units::{Bytes, counted};
use copy::{Copier, CopyInterval, recommended};
pub(super) use launch::host;
use launch::{Launch, unnoted};
use overflow::{Parts, Space};
use std::ops::Range;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Messages.
const RUN: &str = "run of copies in memory";
const LAYOUT: &str = "layout of copies in memory";
const HOST: &str = "failure domain";
const PROBLEM: &str = "problem of copies in memory";
const EVERY: &str = "steps between copies in memory";
const ON_THE_WAY: &str = "copies on their way to peers";
const BROKEN: &str = "ranks that make no more copies";

/// Most threads of a rank that copy: more do not write to memory faster.
const MOST_THREADS: usize = 8;
/// Bytes of a rank's small files besides its slots, at most.
const SMALL_FILES: u64 = 64 << 10;
/// Longest time that a piece for a peer waits for an idle network: longer than most collectives over a slow one take.
const PATIENCE: Duration = Duration::from_millis(250);
/// File in the directory of checkpoints: which copies belong to the run, and how often it was launched. Without it they are another run's.
pub const RUN_FILE: &str = ".memory.json";

/// Group for copies to peers, and the collectives that have priority over them.
pub(super) struct PeerGroup {
    group: Box<dyn Communicator>,
    in_flight: InFlight,
}

/// Makes the group in which copies are sent to peers, if the recipe requests them. Collectives of the returned world are counted.
pub(super) fn peer_group(
    config: &MemoryConfig,
    mut world: Box<dyn Communicator>,
) -> Result<(Box<dyn Communicator>, Option<PeerGroup>), TrainError> {
    if config.keep != MemoryKeep::Peers || world.size() == 1 {
        return Ok((world, None));
    }
    let all: Vec<usize> = (0..world.size()).collect();
    let group = world.group("copies in memory", &all).map_err(ParallelError::from)?;
    let in_flight = InFlight::new();
    Ok((in_flight.wrap(world), Some(PeerGroup { group, in_flight })))
}

/// A rank's copies.
pub(super) struct MemoryTier {
    interval: CopyInterval,
    slices: OwnSlices,
    parts: Parts,
    /// Ranks whose state this rank's host holds for them.
    sources: Vec<usize>,
    launch: Launch,
    memory: HostMemory,
    peers: Option<PeerCopies>,
    /// Text on how copies are kept, for the first lines of a session.
    summary: String,
    copier: Copier,
    notes: Vec<u8>,
    /// True if a checkpoint of the step that the session resumes from was due, and is not on disk.
    owes_save: bool,
    /// No more copies are made.
    broken: bool,
    copied: Copied,
}

/// Copies of a session.
#[derive(Debug, Clone, Copy, Default)]
struct Copied {
    count: u64,
    /// Steps that had none because the preceding copy was still in flight to peers.
    skipped: u64,
    /// Seconds for which training has waited, and those of them for parts stored elsewhere.
    seconds: f64,
    elsewhere: f64,
    /// Seconds of a step.
    step: f64,
}

/// Slots of this host.
struct HostMemory {
    directory: SlotDirectory,
    pair: SlotPair,
    /// Slots for parts of other ranks' states, and in the store, by part.
    elsewhere: Vec<(usize, SlotPair)>,
    store: Option<SlotDirectory>,
    #[allow(dead_code, reason = "held, never read")]
    lock: FileLock,
}

impl MemoryTier {
    /// Reserves memory for copies, and starts the thread that sends them to peers. If a rank cannot, none makes copies, and the reason becomes
    /// a warning. `left`: memory that the rest of the run does not take.
    pub(super) fn set_up(
        worker: &mut Worker,
        input: &TrainerInput,
        peers: Option<PeerGroup>,
        left: Bytes,
        warnings: &mut Vec<String>,
    ) -> Result<Option<MemoryTier>, TrainError> {
        let config = &input.recipe.save.memory;
        if config.keep == MemoryKeep::None {
            return Ok(None);
        }
        let (rank, ranks) = (worker.rank(), worker.plan().ranks());
        let record = if rank == 0 { Launch::next(&input.directory) } else { Ok(Launch::default()) };
        let launch = record.as_ref().ok().cloned().unwrap_or_default();
        let launch = serde_json::to_vec(&launch).map_err(restore::unreadable)?;
        let launch = worker.gather_bytes(RUN, &launch)?.swap_remove(0);
        let mut launch: Launch = serde_json::from_slice(&launch).map_err(restore::unreadable)?;
        let tensors = worker.tensors(&input.recipe.optim)?;
        let slices = worker.own_slices(&tensors)?;
        let own = [slices.elements() as u64, layout_hash(slices.slices())];
        let all = worker.gather_numbers(LAYOUT, &own)?;
        let layout = hash_of(all.iter().copied());
        let hosts = worker.gather_numbers(HOST, &[host()])?;
        let on_host = hosts.iter().filter(|host| **host == hosts[rank]).count();
        let threads = copy_threads(input.recipe.run.threads, on_host);
        let states = all.chunks_exact(2).map(|two| 4 * two[0]).collect();
        let opened = open(config, &input.directory, launch.run(), rank).and_then(|opened| {
            match config.overflow == MemoryOverflow::Disk {
                true => overflow::open_store(&input.directory).map(|_| opened),
                false => Ok(opened),
            }
        });
        let own = opened.as_ref().map_or(0, |opened| opened.space(config, left, on_host));
        let run_directory = &input.directory;
        let space = Space { config, run_directory, layout, states, hosts: hosts.clone(), own };
        let before = launch.overflow.clone();
        let parts = Parts::agree(worker, &space, &mut launch)?;
        let domains = match config.ranks_per_domain {
            0 => hosts,
            n => (0..ranks as u64).map(|rank| rank / n).collect(),
        };
        let copies = 1 + if peers.is_some() { config.peer_copies() as usize } else { 0 };
        let placement = RankPlacement::new(&domains, copies);
        let sources: Vec<usize> = placement.sources(rank);
        let noted = record.and_then(|_| match rank == 0 && launch.overflow != before {
            true => launch.note_overflow(&input.directory),
            false => Ok(()),
        });
        let reserved =
            noted.map_err(|e| format!("no file of the run's copies can be written: {e}")).and_then(|()| {
                let reserved = opened.and_then(|opened| opened.reserve(&space, &parts, (rank, &sources)));
                reserved.map_err(|e| e.to_string())
            });
        let problem = reserved.as_ref().err().cloned().unwrap_or_default();
        let problems = worker.gather_bytes(PROBLEM, problem.as_bytes())?;
        if let Some(failed) = problems.iter().position(|text| !text.is_empty()) {
            let text = String::from_utf8_lossy(&problems[failed]).into_owned();
            warnings.push(format!(
                "no copies of the state are kept in memory, only checkpoints on disk: rank {failed}: {text}"
            ));
            if rank == 0 && launch.overflow.take().is_some() {
                // The next launch plans anew.
                let _ = launch.note_overflow(&input.directory);
            }
            return Ok(None);
        }
        let Ok((memory, held)) = reserved else { return Ok(None) };
        let lonely = config.keep == MemoryKeep::Peers && placement.domains() == 1;
        if lonely {
            warnings.push(
                "save.memory.keep = \"peers\", and all ranks are in one failure domain: copies are kept in own memory only (see \
                 save.memory.ranks_per_domain)"
                    .into(),
            );
        }
        let summary = summary(config, &placement, &memory.directory, &parts, rank);
        let peers = match peers.filter(|_| !lonely) {
            Some(PeerGroup { group, in_flight }) => {
                let rate = (config.rate_mib > 0).then_some((config.rate_mib << 20) as f64);
                let pacing = Pacing { in_flight, patience: PATIENCE, rate };
                let started = PeerCopies::start(group, placement.peers(rank), held, pacing);
                Some(started.map_err(|e| {
                    ParallelError::Layout(format!("no thread could be started for copies: {e}"))
                })?)
            }
            None => None,
        };
        Ok(Some(MemoryTier {
            interval: CopyInterval::new(config.every_steps, input.recipe.save.overhead),
            slices,
            parts,
            sources,
            launch,
            memory,
            peers,
            summary,
            copier: Copier::new(threads),
            notes: Vec::new(),
            owes_save: false,
            broken: false,
            copied: Copied::default(),
        }))
    }

    /// Copies the state that the rank saves into its older slot and the parts that other ranks' memory and the store hold of it, and passes
    /// the copy on for the peers. Ranks that send to each other call this together.
    fn copy(
        &mut self,
        worker: &mut Worker,
        backend: &mut dyn bessemer_tensor::Backend,
        state: &TrainState,
    ) -> Result<(), TrainError> {
        self.notes.clear();
        serde_json::to_writer(&mut self.notes, state)
            .map_err(|e| TrainError::State { place: "memory".into(), problem: e.to_string() })?;
        let begun = Instant::now();
        let elsewhere = self.copy_elsewhere(worker, backend, state.step);
        self.copied.elsewhere += begun.elapsed().as_secs_f64();
        let own = elements(&self.parts.list()[worker.rank()].bytes);
        let slot = self.memory.pair.next();
        let writer = slot.begin(state.step, self.launch.number)?;
        self.copier.copy(backend, &self.slices, own, &writer)?;
        elsewhere?;
        let copy = writer.finish(&self.notes)?;
        if let Some(peers) = &self.peers {
            peers.send(slot.try_clone()?, copy);
        }
        Ok(())
    }

    /// Sends and receives the parts in other ranks' memory, and stores those that this rank's memory has no space for. All ranks process the
    /// parts in the same order, and continue after an error of their own, so there is no deadlock.
    fn copy_elsewhere(
        &mut self,
        worker: &mut Worker,
        backend: &mut dyn bessemer_tensor::Backend,
        step: u64,
    ) -> Result<(), TrainError> {
        let (rank, launch) = (worker.rank(), self.launch.number);
        let mut result = Ok(());
        for (number, part) in self.parts.elsewhere() {
            let range = elements(&part.bytes);
            let held =
                self.memory.elsewhere.iter().find(|(of, _)| *of == number).map(|(_, pair)| pair.next());
            let done = match held {
                Some(slot) if part.is_sent() => {
                    receive_part(worker.world(), part.of, slot, step, launch).map(drop).map_err(Into::into)
                }
                Some(slot) => slot.begin(step, launch).map_err(TrainError::from).and_then(|writer| {
                    self.copier.copy(backend, &self.slices, range, &writer)?;
                    Ok(writer.finish(&[]).map(drop)?)
                }),
                None if part.of == rank => {
                    let mut read = |first: usize, to: &mut [f32]| {
                        let start = range.start + first;
                        Ok::<_, TrainError>(self.slices.read(backend, start..start + to.len(), to)?)
                    };
                    send_part(worker.world(), part.holder, range.len(), &mut read)
                }
                None => Ok(()),
            };
            result = result.and(done);
        }
        result
    }

    /// Text on the copies of the session.
    fn outcome(&self) -> String {
        let Copied { count, skipped, seconds, elsewhere, step } = self.copied;
        let mean = seconds / count.max(1) as f64;
        let mut own = format!(
            "{} of the state in memory; training waited {:.2} ms for each",
            counted(count, "copy"),
            1e3 * mean
        );
        if step > 0.0 && count > 0 {
            own += &format!(", {:.1} % of a step", 1e2 * mean / step);
            let every = recommended(mean, step, self.interval.overhead);
            own += &match self.interval.is_chosen() {
                true => format!(", the last after {}", counted(self.interval.every, "step")),
                false => format!(
                    "; after every {} they cost {} % (save.memory.every_steps = 0 chooses so)",
                    counted(every, "step"),
                    1e2 * self.interval.overhead
                ),
            };
        }
        if let Some(text) = self.parts.outcome(elsewhere / count.max(1) as f64) {
            own = format!("{own}; {text}");
        }
        match self.peers.as_ref().map(PeerCopies::traffic) {
            None => own,
            Some(traffic) => format!(
                "{own}; {skipped} steps had none because the copy before was on its way to peers, which took {} in pieces, {} of them while a \
                 collective was in flight or about to begin",
                Bytes(traffic.bytes),
                traffic.impatient
            ),
        }
    }

    /// Copies that this rank can read: those on its host.
    fn offers(&self, rank: usize) -> Vec<CopyOffer> {
        let of_part = |of: usize| {
            let offer =
                move |copy: CompleteCopy| CopyOffer { by: rank, of, step: copy.step, launch: copy.launch };
            self.copies(of).into_iter().map(move |found| offer(found.copy))
        };
        (0..self.parts.list().len()).flat_map(of_part).collect()
    }

    /// The directory that contains a part's slots.
    fn directory(&self, part: usize) -> Option<&SlotDirectory> {
        match self.parts.list()[part].tier {
            Tier::Memory => Some(&self.memory.directory),
            Tier::Store => self.memory.store.as_ref(),
        }
    }

    /// Complete copies of a part that this rank can read.
    fn copies(&self, part: usize) -> Vec<FoundCopy> {
        self.directory(part).map_or(Vec::new(), |directory| directory.copies(self.parts.keys()[part]))
    }

    /// Opens a copy of a part on this host, and checks its bytes.
    fn open(&self, of: usize, plan: &RecoveryPlan) -> Result<(Slot, CompleteCopy), MemoryError> {
        let mut damage = None;
        for found in self.copies(of) {
            if (found.copy.step, found.copy.launch) == (plan.step, plan.launch) {
                match found.slot.verify(&found.copy, self.copier.threads()) {
                    Ok(()) => return Ok((found.slot, found.copy)),
                    Err(e) => damage = Some(e),
                }
            }
        }
        let path = self.memory.directory.path().into();
        Err(damage.unwrap_or(MemoryError::Foreign { path, problem: "a copy in memory is missing".into() }))
    }
}

/// The directory of a rank's slots, locked.
struct OpenDirectory {
    directory: SlotDirectory,
    lock: FileLock,
}

/// Removes copies in memory of this user's runs whose directories are gone or belong to other runs, where no process works
/// on them, and returns the paths. Besides the config's directory it looks into the default one.
pub fn sweep_copies_in_memory(config: &MemoryConfig) -> Vec<PathBuf> {
    let default = MemoryConfig::default().directory;
    let other = (config.directory != default).then_some(&config.directory);
    [Some(&default), other]
        .into_iter()
        .flatten()
        .flat_map(|base| SlotDirectory::sweep(base, &launch::number_of))
        .collect()
}

/// Path of the run directory without links, which is stored with copies.
fn real_path(run: &ConfinedDir) -> PathBuf {
    run.path().canonicalize().unwrap_or_else(|_| run.path().to_owned())
}

/// Makes or opens the directory of a rank's slots.
fn open(
    config: &MemoryConfig,
    run_directory: &ConfinedDir,
    run: u128,
    rank: usize,
) -> Result<OpenDirectory, MemoryError> {
    if rank == 0 {
        sweep_copies_in_memory(config);
    }
    let directory = SlotDirectory::open(&config.directory, run, &real_path(run_directory))?;
    let lock = directory.lock(rank)?;
    Ok(OpenDirectory { directory, lock })
}

impl OpenDirectory {
    /// Bytes of memory that the rank has for copies, of which the rest of the run leaves `left`. If the overflow may be stored elsewhere, it
    /// has its share of the file system, which `on_host` ranks use; otherwise ranks share it as they need.
    fn space(&self, config: &MemoryConfig, left: Bytes, on_host: usize) -> u64 {
        let (ranks, spare) = match overflow::is_allowed(config) {
            // Locks and directories take a little as well.
            true => (on_host.max(1) as u64, SMALL_FILES),
            false => (1, 0),
        };
        // Memory that a killed process has left is counted as used.
        let used = self.directory.used_bytes() / ranks;
        let files = (self.directory.free_bytes().unwrap_or(u64::MAX) / ranks).saturating_sub(spare);
        let free = left.0.min(files).saturating_add(used);
        match config.limit_mib {
            0 => free,
            mib => free.min(mib << 20),
        }
    }

    /// Reserves a rank's slots, those of its sources and of the parts that it holds included.
    fn reserve(
        self,
        space: &Space<'_>,
        parts: &Parts,
        (rank, sources): (usize, &[usize]),
    ) -> Result<(HostMemory, Vec<CopySource>), MemoryError> {
        let OpenDirectory { directory, lock } = self;
        let keys = parts.keys();
        let held = || parts.elsewhere().filter(|(_, part)| part.holder == rank);
        let in_memory = held().filter(|(_, part)| part.tier == Tier::Memory).map(|(number, _)| number);
        let own = std::iter::once(rank).chain(sources.iter().copied());
        let needed: u64 = own.chain(in_memory).map(|part| 2 * keys[part].slot_bytes()).sum();
        if needed > space.own {
            let (path, free) = (space.config.directory.clone(), space.own);
            return Err(MemoryError::NoRoom { path, needed, free });
        }
        let store = match parts.elsewhere().any(|(_, part)| part.tier == Tier::Store) {
            true => {
                let base = overflow::open_store(space.run_directory)?;
                Some(SlotDirectory::open(&base, keys[rank].run, &real_path(space.run_directory))?)
            }
            false => None,
        };
        let pair = directory.pair(rank, keys[rank])?;
        let elsewhere = held().map(|(number, part)| {
            let place = store.as_ref().filter(|_| part.tier == Tier::Store).unwrap_or(&directory);
            Ok((number, place.pair(rank, keys[number])?))
        });
        let elsewhere = elsewhere.collect::<Result<Vec<_>, MemoryError>>()?;
        let source = |of: &usize| Ok(CopySource { rank: *of, pair: directory.pair(rank, keys[*of])? });
        let sources = sources.iter().map(source).collect::<Result<Vec<_>, MemoryError>>()?;
        Ok((HostMemory { directory, pair, elsewhere, store, lock }, sources))
    }
}

/// Converts a byte range of a rank's saved state to a range of f32 elements.
fn elements(bytes: &Range<u64>) -> Range<usize> {
    bytes.start as usize / 4..bytes.end as usize / 4
}

fn summary(
    config: &MemoryConfig,
    placement: &RankPlacement,
    directory: &SlotDirectory,
    parts: &Parts,
    rank: usize,
) -> String {
    let every = match config.every_steps {
        0 => "steps".to_owned(),
        1 => "every step".to_owned(),
        n => format!("every {n} steps"),
    };
    let path = directory.path().display();
    let slot = Bytes(parts.keys()[rank].slot_bytes());
    let mut own = format!("copies of the state after {every} in {path}, 2 x {slot} a rank");
    if let Some(elsewhere) = parts.summary() {
        own = format!("{own}; {elsewhere}");
    }
    let copies = placement.placement().copies();
    if copies == 1 {
        return own;
    }
    let chance = placement.placement().recovery_probability(copies);
    format!(
        "{own}, and as much for each of {} peers in other failure domains, of which there are {}: any {} lost at once are recovered from \
         memory, {copies} with probability {chance:.4}",
        copies - 1,
        placement.domains(),
        copies - 1
    )
}

/// Hash of which elements of which tensors a rank saves.
fn layout_hash(slices: &[OwnSlice]) -> u64 {
    let mut numbers = Vec::with_capacity(slices.len() * 8);
    for slice in slices {
        let (start, shape) = (&slice.part.start, &slice.part.shape);
        numbers.extend([slice.tensor, start.len()]);
        numbers.extend(start.iter().chain(shape));
    }
    hash_of(numbers.into_iter().map(|number| number as u64))
}

fn hash_of(numbers: impl Iterator<Item = u64>) -> u64 {
    let bytes: Vec<u8> = numbers.flat_map(u64::to_le_bytes).collect();
    stable_hash(&[&bytes]) as u64
}

/// Threads of a rank that copy and verify, where `ranks` ranks share the host's cores.
fn copy_threads(threads: u64, ranks: usize) -> usize {
    let cores = match threads {
        0 => std::thread::available_parallelism().map_or(1, |cores| cores.get()),
        n => n as usize,
    };
    (cores / ranks.max(1)).clamp(1, MOST_THREADS)
}

impl Trainer {
    /// Whether a checkpoint of the present step was due before the run was killed. Then it may be needed for a rollback.
    pub(super) fn owes_save(&mut self) -> bool {
        self.memory_tier.as_mut().is_some_and(|tier| std::mem::take(&mut tier.owes_save))
    }

    /// Text on how copies in memory are kept, for the log.
    pub(super) fn memory_text(&self) -> Option<String> {
        self.memory_tier.as_ref().map(|tier| tier.summary.clone())
    }

    /// Makes a copy of the state if one is due after the last step. The first rank reports the reason if none can be made any more.
    pub(super) fn copy_to_memory(&mut self, observer: &mut dyn Observer) -> Result<(), TrainError> {
        // Unfinished work is not in the state: neither work that spans steps nor an evaluation that awaits the next step's bubbles.
        let pending = self.evaluator.bubbles().is_some_and(|bubbles| bubbles.is_pending());
        let (step, worker) = (self.state.step, &mut self.runner.worker);
        if let Some(peers) = self.memory_tier.as_ref().and_then(|tier| tier.peers.as_ref()) {
            peers.begin_step();
        }
        let Some(tier) = self.memory_tier.as_mut().filter(|tier| tier.interval.is_due(step)) else {
            return Ok(());
        };
        if pending || !worker.at_rest() {
            return Ok(());
        }
        if let Some(peers) = &tier.peers
            && worker.any(ON_THE_WAY, tier.broken || !peers.is_idle())?
        {
            tier.copied.skipped += 1;
            let failure = peers.failure();
            return match failure.filter(|_| !std::mem::replace(&mut tier.broken, true)) {
                Some(problem) => {
                    self.warn(format!("copies of the state are no longer sent to peers: {problem}"), observer)
                }
                None => Ok(()),
            };
        }
        // Ranks that send to each other make copies together or not at all.
        tier.broken = match tier.parts.are_sent() {
            true => worker.any(BROKEN, tier.broken)?,
            false => tier.broken,
        };
        if tier.broken {
            return Ok(());
        }
        let begun = Instant::now();
        let copied = tier.copy(worker, &mut *self.backend, &self.state);
        let seconds = begun.elapsed().as_secs_f64();
        tier.copied.count += u64::from(copied.is_ok());
        tier.copied.seconds += seconds;
        let clean = self.saver.times.clean();
        tier.copied.step = clean.unwrap_or(tier.copied.step);
        let every = tier.interval.after(seconds, clean);
        if tier.interval.is_chosen() {
            // Clocks differ between ranks, and all make the same copies.
            let every = worker.broadcast_from_root(EVERY, every)?;
            tier.interval.next(step, every);
        }
        self.tracing.event("copy to memory", begun, step);
        match copied {
            Err(TrainError::MemoryCopies(e)) => {
                tier.broken = true;
                self.warn(format!("the state is no longer copied to memory: {e}"), observer)
            }
            other => other,
        }
    }

    /// Called when the run resumes after `step`: later copies are no longer its own. All ranks call this.
    pub(super) fn forget_copies_after(&mut self, step: u64) -> Result<(), TrainError> {
        let (rank, first) = (self.runner.worker.rank(), self.records.is_some());
        let Some(tier) = &mut self.memory_tier else { return Ok(()) };
        tier.launch.begin_after(step);
        if first {
            tier.launch.note(&self.input.directory).map_err(unnoted)?;
        }
        // The next copies then take the place of these, and not of those of `step`.
        tier.memory.pair.forget_after(step)?;
        for (_, pair) in &tier.memory.elsewhere {
            pair.forget_after(step)?;
        }
        for of in &tier.sources {
            tier.memory.directory.pair(rank, tier.parts.keys()[*of])?.forget_after(step)?;
        }
        Ok(())
    }

    /// Ends the copies. `saved`: the present step is on disk, so that they are of no use any more.
    pub(super) fn end_memory_tier(&mut self, saved: bool, observer: &mut dyn Observer) {
        if let Some(tier) = self.memory_tier.as_ref().filter(|_| self.records.is_some()) {
            observer.message(&tier.outcome());
        }
        if let Some(tier) = self.memory_tier.take_if(|_| saved) {
            let directories = [Some(tier.memory.directory.clone()), tier.memory.store.clone()];
            drop(tier);
            // Other ranks of this host remove the same; remaining files are swept when the run directory is gone.
            directories.into_iter().flatten().for_each(|directory| drop(directory.remove()));
            // Only if nothing else is in it.
            let _ = self.input.directory.remove_dir(overflow::store());
        }
    }
}
