//! Checks for a broken machine: ranks that should hold the same bits are compared, and a suspicious step is computed again.
//!
//! ```text
//! passes ─► (every n steps) are the sums between ranks those of their terms? ── no ──► the same passes again, as below
//!        ─► have replicas the same norm of the gradient? ── no ──► as well
//!        ─► (every n steps) do replicas hold the same bits? ── no ──► back to the newest checkpoint, the same steps again
//!        ─► finite, no spike? ── no ──► the same passes again: same bits? ── yes ──► the model made them: skip, rewind or diverge
//!        ─► update                                                └─ no ──► once more; the result of two of three is used
//! a checkpoint is due ─► do replicas hold the same bits? ── no ──► as above, nothing is saved
//! ```
//! All checkpoints have been compared before they are written, so the newest one is from before the fault. The recomputed steps
//! have the bits of an undisturbed run. Consequences for the host: [`consequence`].

use super::Trainer;
use super::saving::Restored;
use crate::TrainError;
use crate::integrity::{Consequence, HeldHash, Repeated, StepEvidence, consequence, judge, mismatch};
use crate::observer::Observer;
use crate::runner::Passes;
use bessemer_collectives::{Fingerprint, SumCheck};
use bessemer_filling::RankFill;
use bessemer_memory_checkpoint::stable_hash;
use bessemer_parallel::{HeldStretch, OwnSlices, ParallelError, Worker};
use bessemer_recipe::{IntegrityConfig, Recipe, Rerun};
use bessemer_runlog::{Fault, FaultVerdict};
use bessemer_tensor::Backend;
use bessemer_units::counted;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Instant;

/// Messages.
const SHARED: &str = "ranks that hold the same";
const REPLICAS: &str = "hashes of replicas";
const TENSORS: &str = "hashes of tensors of replicas";
const GRADIENTS: &str = "hashes of gradients";
const AT_REST: &str = "changes of state at rest";
const NORMS: &str = "gradient norms";
const SUMS: &str = "findings about sums";
const HOSTS: &str = "hosts of ranks";
const CONSEQUENCE: &str = "consequence of a fault";

/// Elements that are read and hashed at a time: they stay in the caches in between.
const BLOCK: usize = 1 << 16;

/// Marker in place of hosts, in the message about a consequence.
const DISAMBIGUATE: &str = "\n";

/// A rank's part of the checks.
pub(super) struct Integrity {
    config: IntegrityConfig,
    /// Stretches that this rank holds and others hold too, by the set of holders, and the number of the set.
    sets: Vec<(u64, Vec<HeldStretch>)>,
    /// Whether any rank holds stretches that another rank holds too.
    compares: bool,
    /// All that this rank holds, if it is checked at rest.
    at_rest: Vec<HeldStretch>,
    /// Its hash after the newest update, where the next step is to check it.
    hash_at_rest: Option<u64>,
    /// Names of the tensors that stretches are of.
    names: Vec<String>,
    /// Gradients of which this rank shows the hash when a step is computed again.
    gradients: OwnSlices,
    block: Vec<f32>,
    hash: Fingerprint,
    /// Check of the sums between ranks.
    pub(super) sums: SumCheck,
    host: String,
}

/// A finding of a check.
struct Finding {
    found_at: u64,
    check: &'static str,
    verdict: FaultVerdict,
    suspects: BTreeSet<usize>,
    /// True if the fault is certainly one of the suspects; the others are not suspects.
    named: bool,
    text: String,
}

/// Number of a set of ranks, the same on all of them.
fn number_of(holders: &[usize]) -> u64 {
    stable_hash(&[&to_bytes(holders.iter().map(|rank| *rank as u64))]) as u64
}

fn to_bytes(numbers: impl IntoIterator<Item = u64>) -> Vec<u8> {
    numbers.into_iter().flat_map(u64::to_le_bytes).collect()
}

fn of_bytes(bytes: &[u8]) -> Vec<u64> {
    bytes.as_chunks::<8>().0.iter().map(|number| u64::from_le_bytes(*number)).collect()
}

impl Integrity {
    /// Finds the stretches that this rank and others hold. `sums`: wraps the worker's communicators.
    pub(super) fn set_up(
        worker: &mut Worker,
        recipe: &Recipe,
        sums: SumCheck,
    ) -> Result<Integrity, TrainError> {
        let config = recipe.train.integrity.clone();
        let tensors = worker.tensors(&recipe.optim)?;
        let held = worker.held_stretches(&tensors)?;
        let mut sets: Vec<(u64, Vec<HeldStretch>)> = Vec::new();
        let mut compares = false;
        if config.every_steps > 0 && worker.plan().ranks() > 1 {
            for stretch in held.iter().filter(|stretch| stretch.holders.len() > 1).cloned() {
                let number = number_of(&stretch.holders);
                match sets.iter_mut().find(|set| set.0 == number) {
                    Some(set) => set.1.push(stretch),
                    None => sets.push((number, vec![stretch])),
                }
            }
            compares = worker.any(SHARED, !sets.is_empty())?;
        }
        let asynchronous = worker.plan().pipe.asynchronous();
        let at_rest = if config.at_rest_every > 0 && !asynchronous { held } else { Vec::new() };
        let gradients = worker.own_slices(&worker.gradients_of_params())?;
        let host = bessemer_durable::read_to_string(Path::new("/proc/sys/kernel/hostname"));
        let host = host.unwrap_or_default().trim().to_owned();
        Ok(Integrity {
            config,
            sets,
            compares,
            at_rest,
            hash_at_rest: None,
            names: tensors.into_iter().map(|tensor| tensor.name).collect(),
            gradients,
            block: Vec::new(),
            hash: Fingerprint::default(),
            sums,
            host,
        })
    }

    /// Whether sums between ranks are to be checked in the step after `step`.
    pub(super) fn sums_are_due(&self, step: u64) -> bool {
        let every = self.config.every_steps;
        every > 0 && (step + 1).is_multiple_of(every)
    }

    /// Hashes the values that this rank shares: one number for each set of holders.
    fn held(&mut self, backend: &mut dyn Backend) -> Result<Vec<HeldHash>, TrainError> {
        let mut held = Vec::with_capacity(self.sets.len());
        for (set, stretches) in &self.sets {
            self.hash.reset();
            for stretch in stretches {
                push(&mut self.hash, &mut self.block, backend, stretch)?;
            }
            held.push(HeldHash { set: *set, hash: self.hash.value() });
        }
        Ok(held)
    }

    /// Hashes the tensors of some sets: (set, tensor, hash).
    fn held_tensors(
        &mut self,
        backend: &mut dyn Backend,
        wanted: &BTreeSet<u64>,
    ) -> Result<Vec<[u64; 3]>, TrainError> {
        let mut held = Vec::new();
        for (set, stretches) in self.sets.iter().filter(|set| wanted.contains(&set.0)) {
            for tensor in stretches.chunk_by(|a, b| a.tensor == b.tensor) {
                self.hash.reset();
                for stretch in tensor {
                    push(&mut self.hash, &mut self.block, backend, stretch)?;
                }
                held.push([*set, tensor[0].tensor as u64, self.hash.value()]);
            }
        }
        Ok(held)
    }

    /// Hashes all that this rank holds.
    fn all_held(&mut self, backend: &mut dyn Backend) -> Result<u64, TrainError> {
        self.hash.reset();
        for stretch in &self.at_rest {
            push(&mut self.hash, &mut self.block, backend, stretch)?;
        }
        Ok(self.hash.value())
    }

    /// Hash of the gradients that this rank contributes.
    fn gradients(&mut self, backend: &mut dyn Backend) -> Result<u64, TrainError> {
        self.hash.reset();
        let (all, mut at) = (self.gradients.elements(), 0);
        while at < all {
            let end = (at + BLOCK).min(all);
            self.block.resize(BLOCK.max(self.block.len()), 0.0);
            let values = &mut self.block[..end - at];
            self.gradients.read(backend, at..end, values)?;
            self.hash.push(values);
            at = end;
        }
        Ok(self.hash.value())
    }
}

/// Adds a stretch to a hash.
fn push(
    hash: &mut Fingerprint,
    block: &mut Vec<f32>,
    backend: &mut dyn Backend,
    stretch: &HeldStretch,
) -> Result<(), TrainError> {
    block.resize(BLOCK, 0.0);
    let mut at = stretch.at.start;
    while at < stretch.at.end {
        let values = &mut block[..BLOCK.min(stretch.at.end - at)];
        stretch.view.read(backend, at, values)?;
        hash.push(values);
        at += values.len();
    }
    Ok(())
}

/// Whether replicas have different norms of the gradient that they have summed. The same on every rank; part of every step.
pub(crate) fn norms_differ(
    worker: &mut Worker,
    config: &IntegrityConfig,
    norm: f64,
) -> Result<bool, ParallelError> {
    // Within a replica the norm is gathered, and the same by construction.
    match config.every_steps > 0 && worker.plan().replicate() > 1 {
        true => Ok(!worker.same_on_all(NORMS, norm.to_bits())?),
        false => Ok(false),
    }
}

impl Trainer {
    /// Whether ranks are to be compared in the current step, whose passes are done.
    pub(super) fn comparison_is_due(&self) -> bool {
        let every = self.integrity.config.every_steps;
        self.integrity.compares && (self.state.step + 1).is_multiple_of(every)
    }

    /// Whether ranks are to be compared after steps that began at `before`, of a schedule whose steps cannot be interrupted.
    pub(super) fn comparison_was_due(&self, before: u64) -> bool {
        let every = self.integrity.config.every_steps;
        self.integrity.compares && self.state.step / every > before / every
    }

    /// Compares the values that ranks should hold alike. False if they do not: the run has then gone back, and computes the same steps again. All ranks
    /// call this, with the number of the step at hand.
    pub(super) fn replicas_agree(
        &mut self,
        found_at: u64,
        observer: &mut dyn Observer,
    ) -> Result<bool, TrainError> {
        if !self.integrity.compares {
            return Ok(true);
        }
        let begun = Instant::now();
        let held = self.integrity.held(&mut *self.backend)?;
        let bytes = to_bytes(held.iter().flat_map(|held| [held.set, held.hash]));
        let all = self.runner.worker.gather_bytes(REPLICAS, &bytes)?;
        let of_rank = |bytes: &Vec<u8>| {
            let pairs = of_bytes(bytes);
            pairs.as_chunks::<2>().0.iter().map(|[set, hash]| HeldHash { set: *set, hash: *hash }).collect()
        };
        let all: Vec<Vec<HeldHash>> = all.iter().map(of_rank).collect();
        let found = mismatch(&all);
        self.tracing.event("comparison of replicas", begun, found_at);
        let Some(found) = found else { return Ok(true) };
        let tensors = self.integrity.held_tensors(&mut *self.backend, &found.sets)?;
        let all = self.runner.worker.gather_bytes(TENSORS, &to_bytes(tensors.into_iter().flatten()))?;
        let mut hashes: BTreeMap<(u64, u64), BTreeSet<u64>> = BTreeMap::new();
        for bytes in &all {
            for [set, tensor, hash] in of_bytes(bytes).as_chunks::<3>().0 {
                hashes.entry((*tensor, *set)).or_default().insert(*hash);
            }
        }
        let differ: Vec<usize> =
            hashes.iter().filter(|(_, hashes)| hashes.len() > 1).map(|(at, _)| at.0 as usize).collect();
        let name = differ.first().and_then(|tensor| self.integrity.names.get(*tensor));
        let text = format!(
            "replicas differ in {}, {:?} among them",
            counted(differ.len(), "tensor"),
            name.map_or("", String::as_str)
        );
        let (suspects, named) = (found.suspects, found.majority);
        let verdict = FaultVerdict::Transient;
        self.mend(Finding { found_at, check: "replicas", verdict, suspects, named, text }, observer)?;
        Ok(false)
    }

    /// Called when the state has been read from a checkpoint: forgets the earlier hash.
    pub(super) fn state_was_replaced(&mut self) {
        self.integrity.hash_at_rest = None;
    }

    /// The update of a step is over: takes the hash of the state at rest, if the next step is to check it.
    pub(super) fn rests(&mut self) -> Result<(), TrainError> {
        let every = self.integrity.config.at_rest_every;
        if !self.integrity.at_rest.is_empty() && self.state.step.is_multiple_of(every) {
            self.integrity.hash_at_rest = Some(self.integrity.all_held(&mut *self.backend)?);
        }
        Ok(())
    }

    /// Checks that the state is unchanged since the newest update. False if it is not on some rank: the run has then gone back, and computes
    /// the same steps again.
    pub(super) fn has_rested(&mut self, observer: &mut dyn Observer) -> Result<bool, TrainError> {
        let Some(before) = self.integrity.hash_at_rest.take() else { return Ok(true) };
        let changed = self.integrity.all_held(&mut *self.backend)? != before;
        let changed = self.runner.worker.gather_numbers(AT_REST, &[u64::from(changed)])?;
        let suspects: BTreeSet<usize> = (0..changed.len()).filter(|rank| changed[*rank] != 0).collect();
        if suspects.is_empty() {
            return Ok(true);
        }
        let text = "parameters or optimizer state changed in memory although no step wrote them".into();
        let (found_at, check, verdict) = (self.state.step + 1, "state at rest", FaultVerdict::Transient);
        self.mend(Finding { found_at, check, verdict, suspects, named: true, text }, observer)?;
        Ok(false)
    }

    /// Handles a state that may be wrong: goes back to the newest checkpoint, and decides about the hosts.
    fn mend(&mut self, finding: Finding, observer: &mut dyn Observer) -> Result<(), TrainError> {
        let back_to = self.go_back_to_intact(observer)?;
        self.conclude(finding, back_to, observer)?;
        match back_to {
            Some(_) => Ok(()),
            None => Err(TrainError::StartAgain { step: self.state.step }),
        }
    }

    /// Goes back to the newest checkpoint, all of which were compared before they were written, and on with the same data. `None` if there is none.
    fn go_back_to_intact(&mut self, observer: &mut dyn Observer) -> Result<Option<u64>, TrainError> {
        self.end_saving(true, observer)?;
        let restored = self.load_newest("checkpoint from before a fault", u64::MAX, true)?;
        let Some(Restored { loaded, remarks }) = restored else {
            // Copies in memory may have the fault.
            self.forget_copies_after(0)?;
            return Ok(None);
        };
        self.go_back(&loaded, self.state.loader.samples, observer)?;
        (self.skipped_in_a_row, self.taken, self.validation) = (0, true, None);
        remarks.into_iter().try_for_each(|remark| self.warn(remark, observer))?;
        Ok(Some(self.state.step))
    }

    /// Records a fault, and ends the run here if it should continue on other hosts.
    fn conclude(
        &mut self,
        finding: Finding,
        back_to: Option<u64>,
        observer: &mut dyn Observer,
    ) -> Result<(), TrainError> {
        let Finding { found_at, check, verdict, suspects, named, text } = finding;
        let hosts = self.runner.worker.gather_bytes(HOSTS, self.integrity.host.as_bytes())?;
        let host = |rank: &usize| String::from_utf8_lossy(&hosts[*rank]).into_owned();
        let places: Vec<String> =
            suspects.iter().map(|rank| format!("rank {rank} on host {}", host(rank))).collect();
        let who = match (places.is_empty(), named || places.len() == 1) {
            (true, _) => "the faulty rank is unknown".to_owned(),
            (false, true) => format!("faulty: {}", places.join(", ")),
            (false, false) => format!("one of them is faulty: {}", places.join(", ")),
        };
        let mut message = format!("step {found_at}: {text}; {who}");
        if let Some(step) = back_to {
            message += &format!("; rolled back to step {step}, the same steps are computed again");
        }
        let hosts: BTreeSet<String> = suspects.iter().map(host).collect();
        let mut fault = Fault {
            found_at,
            check: check.into(),
            verdict,
            ranks: suspects.iter().map(|rank| *rank as u64).collect(),
            hosts: hosts.into_iter().collect(),
            back_to,
            message,
        };
        let next = self.records.as_ref().map(|records| consequence(records.faults(), &fault, named));
        let text = match &next {
            Some(Consequence::OtherHost(hosts)) => hosts.iter().cloned().collect::<Vec<_>>().join("\n"),
            Some(Consequence::Disambiguate) => DISAMBIGUATE.into(),
            Some(Consequence::GoOn) | None => String::new(),
        };
        let told = self.runner.worker.gather_bytes(CONSEQUENCE, text.as_bytes())?;
        let told = String::from_utf8_lossy(&told[0]).into_owned();
        if !told.is_empty() && told != DISAMBIGUATE {
            fault.verdict = FaultVerdict::Persistent;
        }
        let (step, what) = (found_at, fault.message.clone());
        self.append(fault.into(), observer)?;
        match told.as_str() {
            "" => Ok(()),
            DISAMBIGUATE => Err(TrainError::Disambiguate { step, what }),
            hosts => {
                let own = hosts.lines().any(|host| host == self.integrity.host);
                Err(TrainError::BadHost { step, what, hosts: hosts.replace('\n', ", "), own })
            }
        }
    }

    /// Why the passes of the step at hand are suspicious, if they are. The same on every rank.
    fn suspicion(&mut self, passes: &Passes) -> Option<String> {
        let (loss, norm) = (passes.loss.mean(), passes.grad_norm);
        // A smaller loss scale may cure an overflow.
        let scaled = matches!(self.scaling, Some((_, true))) && passes.loss.nats.is_finite();
        if !(loss.is_finite() && (norm.is_finite() || scaled)) {
            return Some(format!("the loss is {loss} and the gradient norm {norm}"));
        }
        self.spikes.find(&self.state.spikes, loss, norm).map(|spike| spike.to_string())
    }

    /// Runs the passes of a suspicious step again, of which `passes` are the first; returns those that two computations agree on, or
    /// `None` if the run has gone back. In a row of suspicious steps the first is enough: later steps with the same parameters are as
    /// suspicious.
    pub(super) fn validated(
        &mut self,
        passes: Passes,
        observer: &mut dyn Observer,
    ) -> Result<Option<Passes>, TrainError> {
        let in_a_row = self.skipped_in_a_row > 0 || self.state.spikes.in_a_row > 0;
        let off = self.integrity.config.rerun == Rerun::Off || in_a_row;
        let wrong = match self.wrong_sum()? {
            None if norms_differ(&mut self.runner.worker, &self.integrity.config, passes.grad_norm)? => {
                Some("the ranks computed different norms of the same gradient".to_owned())
            }
            found => found,
        };
        let check = if wrong.is_some() { "sums" } else { "rerun" };
        let why = match wrong {
            Some(text) => text,
            None if off => return Ok(Some(passes)),
            None => match self.suspicion(&passes) {
                Some(text) => text,
                None => return Ok(Some(passes)),
            },
        };
        let found_at = self.state.step + 1;
        let finding = |verdict, suspects: BTreeSet<usize>, text| {
            let named = suspects.len() == 1;
            Finding { found_at, check, verdict, suspects, named, text }
        };
        // Work in bubbles continues from pass to pass, so that such a pass cannot be computed twice.
        if RankFill::of_mut(&mut self.runner.worker).is_some() {
            return match check {
                "sums" => {
                    self.mend(finding(FaultVerdict::Transient, BTreeSet::new(), why), observer).map(|()| None)
                }
                _ => Ok(Some(passes)),
            };
        }
        let mut evidence = vec![self.evidence(passes.grad_norm)?];
        loop {
            self.runner.worker.discard();
            let (again, _) = self.passes()?;
            evidence.push(self.evidence(again.grad_norm)?);
            match judge(&evidence) {
                Repeated::Undecided => {}
                Repeated::Reproduced if check == "rerun" => {
                    let text = format!("{why}; the step was computed again, with the same bits");
                    let finding = finding(FaultVerdict::Reproduced, BTreeSet::new(), text);
                    self.conclude(finding, None, observer)?;
                    return Ok(Some(again));
                }
                Repeated::Outvoted { wrong } => {
                    let right = 2;
                    let suspects = self.ranks_of_replicas(&evidence[wrong].differing(&evidence[right]));
                    let text = format!(
                        "{why}; the step was computed three times, and the two results with equal bits are \
                         used"
                    );
                    self.conclude(finding(FaultVerdict::Transient, suspects, text), None, observer)?;
                    return Ok(Some(again));
                }
                Repeated::Reproduced | Repeated::Unstable => {
                    let what = format!("{why}; computing the step again did not help");
                    let pairs = evidence.windows(2).flat_map(|two| two[0].differing(&two[1]));
                    let suspects = self.ranks_of_replicas(&pairs.collect::<Vec<_>>());
                    self.forget_copies_after(self.state.step)?;
                    self.conclude(finding(FaultVerdict::Unknown, suspects, what.clone()), None, observer)?;
                    return Err(TrainError::Disambiguate { step: found_at, what });
                }
            }
        }
    }

    /// Returns the defect of a sum between ranks in the passes that are done, if they were checked. The same on every rank.
    fn wrong_sum(&mut self) -> Result<Option<String>, TrainError> {
        if !self.integrity.sums_are_due(self.state.step) {
            return Ok(None);
        }
        let text = self.integrity.sums.take().unwrap_or_default();
        let texts = self.runner.worker.gather_bytes(SUMS, text.as_bytes())?;
        let found = texts.iter().find(|text| !text.is_empty());
        Ok(found.map(|text| String::from_utf8_lossy(text).into_owned()))
    }

    /// Losses and gradients of the passes that are over, of all ranks.
    fn evidence(&mut self, norm: f64) -> Result<StepEvidence, TrainError> {
        let losses = self.runner.worker.rank_losses().map(<[u64]>::to_vec).collect();
        let own = self.integrity.gradients(&mut *self.backend)?;
        let gradients = self.runner.worker.gather_numbers(GRADIENTS, &[own])?;
        let norms = self.runner.worker.gather_numbers(NORMS, &[norm.to_bits()])?;
        Ok(StepEvidence { losses, norms, gradients })
    }

    /// All ranks that see the data of some ranks: a loss is made by the ranks of a pipeline and of its layers together.
    fn ranks_of_replicas(&self, ranks: &[usize]) -> BTreeSet<usize> {
        let plan = self.runner.worker.plan();
        let data: BTreeSet<usize> = ranks.iter().map(|rank| plan.data_index(plan.coord(*rank))).collect();
        (0..plan.ranks()).filter(|rank| data.contains(&plan.data_index(plan.coord(*rank)))).collect()
    }
}
