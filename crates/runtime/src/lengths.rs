//! Micro-batches of several sequence lengths in one decoder, and input-aware recomputation (Liao et al. 2022, "Mimose").
//!
//! Each length of [`crate::ActivationConfig::lengths`] has unit programs of its own, recorded once with the decoder. A slot is one
//! buffer for each element type. Every length lays out its inputs, its residual stream and its saved values in it from the front, so
//! the slot is as large as the largest layout, and a shorter micro-batch takes no more memory than a longer one. Scratch is the
//! largest of all lengths.
//!
//! With [`bessemer_units::Recompute::InputAware`] each length has a plan of its own: as few layers as the budget demands offload their
//! stored activations, from the first one on, as many as may ([`crate::ActivationConfig::offload`]). If that does not suffice, as few of the
//! others as needed recompute everything. The bytes of a program are exact, so the plans are made with the decoder and nothing is measured
//! in a step. `total` in the sketch is the null backend's count for the whole stage:
//!
//! ```text
//! every layer keeps everything at every length
//! while total > budget:
//!     take the length whose layout of a slot is the largest
//!     it has to free total - budget more:
//!         its next layers offload, as few as may free that much, at least one
//!         or, if all that may offload do: the greedy choice of layers of the paper (bessemer_program::choose_layers) recomputes
//! ```
//! An offloaded layer costs its bytes twice on the disk, which works concurrently with the computation. A recomputed one costs a forward
//! pass, which does not. So offloading goes first, and `train.offload_layers` sets how many layers the disk keeps up with.

use crate::decoder::Decoder;
use crate::error::ModelError;
use crate::memory::{Allocating, ScratchBuffers, Slot, UNTOUCHED, larger};
use crate::params::Param;
use crate::units::{Plan, StageUnit};
use bessemer_arch::Unit;
use bessemer_program::{Class, Home, Scratch, choose_layers, offloaded_bytes};
use bessemer_tensor::null::NullBackend;
use bessemer_tensor::{Backend, Buffer, View};
use bessemer_units::{Bytes, DType, OffloadPlan, Recompute, RecomputePlan};

/// Elements that the offsets of matrices in an arena are multiples of.
const ALIGNED_ELEMENTS: usize = 64;

/// The units of one length, before their memory is made.
#[derive(Debug, Clone)]
pub(crate) struct LengthUnits<'a> {
    pub(crate) plan: Plan<'a>,
    pub(crate) units: Vec<StageUnit>,
}

/// A length below the longest: its units, and its layout of each slot.
#[derive(Debug)]
pub(crate) struct ShorterLength {
    pub(crate) seq: usize,
    pub(crate) units: Vec<StageUnit>,
    pub(crate) slots: Vec<Slot>,
}

/// Plan of a stage's layers for micro-batches of one length under a budget of activations, by their numbers in the model.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct LengthPlan {
    /// Tokens of a sequence.
    pub seq: usize,
    /// Layers that recompute everything.
    pub recomputed: Vec<usize>,
    /// Layers that offload their stored values.
    pub offloaded: Vec<usize>,
}

/// Memory in which matrices are laid out one after the other.
#[derive(Debug, Default, Clone)]
pub(crate) struct Arena {
    used: Scratch,
    /// The buffers; none while the layout is only measured.
    memory: ScratchBuffers,
}

impl Arena {
    pub(crate) fn matrix(&mut self, dtype: DType, rows: usize, cols: usize) -> View {
        let used = self.used.entry(dtype).or_default();
        let offset = *used;
        *used = (offset + rows * cols).next_multiple_of(ALIGNED_ELEMENTS);
        let buffer = Buffer { dtype, ..UNTOUCHED.buffer };
        let unmade = View { buffer, rows, cols, stride: cols, ..UNTOUCHED };
        self.memory.matrix(dtype, offset, rows, cols).unwrap_or(unmade)
    }
}

impl<'a> Plan<'a> {
    /// Whether slots are arenas. A decoder made to score has one length.
    pub(crate) fn has_arenas(&self) -> bool {
        let several = !self.config.lengths.is_empty() || self.config.recompute.budget().is_some();
        several && self.shape.purpose == crate::Purpose::Train
    }

    /// The shapes of all lengths, the longest first.
    fn of_lengths(&self) -> Result<Vec<Plan<'a>>, ModelError> {
        let mut lengths = self.config.lengths.clone();
        lengths.sort_unstable_by_key(|seq| std::cmp::Reverse(*seq));
        lengths.dedup();
        lengths.retain(|seq| *seq != self.shape.seq);
        if let Some(wrong) = lengths.iter().find(|seq| **seq == 0 || **seq > self.shape.seq) {
            return Err(ModelError::Shape {
                what: "length of a micro-batch's sequences",
                wanted: format!("1 to {}, the longest", self.shape.seq),
                found: wrong.to_string(),
            });
        }
        let plan = |seq| {
            let mut plan = self.clone();
            plan.shape.seq = seq;
            plan
        };
        Ok(std::iter::once(self.shape.seq).chain(lengths).map(plan).collect())
    }

    /// The units of every length, the longest first, as the budget allows. `params`: those of the stage; `logits`: scratch of the
    /// logits of a whole model.
    ///
    /// # Errors
    /// Configurations that do not support several lengths; a budget that is too small even if every layer that may offloads or recomputes.
    pub(crate) fn units_of_lengths(
        &self,
        params: &[Param],
        logits: &Scratch,
    ) -> Result<Vec<LengthUnits<'a>>, ModelError> {
        let refused = |what: &str| Err(ModelError::Stage(what.into()));
        if self.stage.pending > 0 {
            return refused(
                "micro-batches of several lengths and input-aware recomputation need whole backward passes, \
                 and the schedule splits them: set another parallel.schedule, such as \"1f1b\"",
            );
        }
        if self.config.recompute.stored_micro_batches > 0 {
            return refused(
                "train.stored_micro_batches works only with train.lengths = \"packed\" and without \
                 train.activation_memory: expected 0",
            );
        }
        let plans = self.of_lengths()?;
        let offload = self.config.offload;
        let units = |plan: &Plan<'a>, recompute: &RecomputePlan, offload: OffloadPlan| {
            let units = plan.units_with(recompute, offload, params)?;
            Ok::<_, ModelError>(LengthUnits { units, plan: plan.clone() })
        };
        let all = |recompute: &RecomputePlan, offload: OffloadPlan| -> Result<Vec<_>, ModelError> {
            plans.iter().map(|plan| units(plan, recompute, offload)).collect()
        };
        let Some(budget) = self.config.recompute.budget() else {
            return all(&self.config.recompute, offload);
        };
        let here = OffloadPlan::default();
        let (mut chosen, full) = (all(&Recompute::None.into(), here)?, all(&Recompute::Full.into(), here)?);
        let first = self.stage.span.layers.start;
        let layers = self.stage.span.layers.len();
        let most = offload.count(layers);
        let freed: Vec<Vec<Bytes>> = chosen.iter().zip(&full).map(|(none, full)| freed(none, full)).collect();
        let offloadable: Vec<Vec<u64>> = chosen.iter().map(offloadable).collect();
        let mut offloaded: Vec<usize> = vec![0; plans.len()];
        let mut again: Vec<Vec<usize>> = vec![Vec::new(); plans.len()];
        loop {
            let total = activation_bytes(&chosen, logits)?;
            let missing = total.saturating_sub(budget.0);
            if missing == 0 {
                return Ok(chosen);
            }
            // Slots are as large as this length's; scratch does not shrink by recomputing more.
            let sizes = chosen.iter().map(slot_bytes).collect::<Result<Vec<u64>, _>>()?;
            let at = (0..sizes.len()).rev().max_by_key(|at| sizes[*at]).unwrap_or(0);
            let needed = missing.div_ceil(self.stage.slots as u64);
            if offloaded[at] < most {
                let mut left = needed;
                while offloaded[at] < most && left > 0 {
                    left = left.saturating_sub(offloadable[at][offloaded[at]]);
                    offloaded[at] += 1;
                }
            } else if again[at].len() < layers - most {
                let before: u64 = again[at].iter().map(|layer| freed[at][*layer].0).sum();
                let others = choose_layers(&freed[at][most..], Bytes(before + needed));
                again[at] = others.into_iter().map(|layer| most + layer).collect();
            } else {
                return Err(ModelError::ActivationMemory {
                    budget,
                    least: Bytes(total),
                    with: match most {
                        0 => "every layer recomputed".into(),
                        all if all == layers => "every layer offloaded".into(),
                        some => format!("{some} layers offloaded and the others recomputed"),
                    },
                    micro_batches: self.stage.slots,
                    sequences: self.shape.sequences,
                    seq: self.shape.seq,
                });
            }
            let numbers: Vec<usize> = again[at].iter().map(|layer| first + layer).collect();
            chosen[at] = units(&plans[at], &RecomputePlan::full_in(&numbers), offload.first(offloaded[at]))?;
        }
    }
}

/// Bytes of each layer's saved values that its recomputation frees, for one micro-batch.
fn freed(none: &LengthUnits<'_>, full: &LengthUnits<'_>) -> Vec<Bytes> {
    let saved = |unit: &StageUnit| -> u64 {
        let values = unit.program.values.iter().zip(&unit.memory.homes);
        let bytes =
            values.filter(|(_, home)| **home == Home::Saved).map(|(v, _)| v.rows * v.cols * v.dtype.size());
        bytes.sum::<usize>() as u64
    };
    let pairs = none.units.iter().zip(&full.units).filter(|(unit, _)| matches!(unit.unit, Unit::Layer(_)));
    pairs.map(|(none, full)| Bytes(saved(none).saturating_sub(saved(full)))).collect()
}

/// Bytes of each layer that offloading takes out of a slot at most: its saved values and the stream that enters it.
fn offloadable(length: &LengthUnits<'_>) -> Vec<u64> {
    let bytes =
        |elements: usize, dtype: DType| (elements.next_multiple_of(ALIGNED_ELEMENTS) * dtype.size()) as u64;
    let stream = bytes(length.plan.stream().iter().product(), length.plan.storage());
    let of = |unit: &StageUnit| -> u64 {
        let values = unit.program.values.iter().zip(&unit.memory.homes);
        let saved = values.filter(|(_, home)| **home == Home::Saved);
        stream + saved.map(|(value, _)| bytes(value.rows * value.cols, value.dtype)).sum::<u64>()
    };
    length.units.iter().filter(|unit| matches!(unit.unit, Unit::Layer(_))).map(of).collect()
}

/// Bytes of activations of a stage for micro-batches of these lengths, as the null backend counts them.
fn activation_bytes(lengths: &[LengthUnits<'_>], logits: &Scratch) -> Result<u64, ModelError> {
    let Some((LengthUnits { plan, units }, shorter)) = lengths.split_first() else { return Ok(0) };
    let mut null = NullBackend::new();
    let of = Allocating::new(&mut null, plan, units);
    Allocating { shorter, logits: Some(logits), ..of }.all(&ScratchBuffers::default())?;
    let classes = null.memory().classes;
    Ok(classes.iter().filter(|class| class.0 == "activations").map(|class| class.1.0).sum())
}

/// Bytes of a slot in which only micro-batches of this length were.
fn slot_bytes(length: &LengthUnits<'_>) -> Result<u64, ModelError> {
    let (mut slot, mut turns) = (Arena::default(), Arena::default());
    let mut null = NullBackend::new();
    Allocating::new(&mut null, &length.plan, &length.units).lay_out(0, 0, &mut slot, &mut turns)?;
    Ok(slot.used.iter().map(|(dtype, len)| (dtype.size() * len) as u64).sum())
}

/// Buffers of so many elements.
fn buffers(backend: &mut dyn Backend, name: &str, wanted: &Scratch) -> Result<ScratchBuffers, ModelError> {
    ScratchBuffers::alloc_named(backend, ("activations", name), wanted, &ScratchBuffers::default())
}

impl Allocating<'_> {
    /// The slots of every length in arenas, by length and slot, the longest first.
    pub(crate) fn slots_in_arenas(&mut self) -> Result<Vec<Vec<Slot>>, ModelError> {
        let lengths = 1 + self.shorter.len();
        let (mut of_slot, mut of_turns) = (Scratch::new(), Scratch::new());
        for length in 0..lengths {
            let (mut slot, mut turns) = (Arena::default(), Arena::default());
            self.lay_out(length, 0, &mut slot, &mut turns)?;
            larger(&mut of_slot, &slot.used);
            larger(&mut of_turns, &turns.used);
        }
        let turns = Arena {
            memory: buffers(self.backend, "residual stream, in turn", &of_turns)?,
            ..Arena::default()
        };
        let mut slots: Vec<Vec<Slot>> = (0..lengths).map(|_| Vec::new()).collect();
        for at in 0..self.plan.stage.slots {
            let arena = Arena { memory: buffers(self.backend, "slot", &of_slot)?, ..Arena::default() };
            for (length, slots) in slots.iter_mut().enumerate() {
                slots.push(self.lay_out(length, at, &mut arena.clone(), &mut turns.clone())?);
            }
        }
        Ok(slots)
    }

    /// The layout of a length in slot number `at`.
    fn lay_out(
        &mut self,
        length: usize,
        at: usize,
        slot: &mut Arena,
        turns: &mut Arena,
    ) -> Result<Slot, ModelError> {
        let (plan, units) = match length.checked_sub(1) {
            None => (self.plan, self.units),
            Some(shorter) => (&self.shorter[shorter].plan, &self.shorter[shorter].units[..]),
        };
        let mut of_length =
            Allocating { shared: self.shared, ..Allocating::new(&mut *self.backend, plan, units) };
        if let Some(other) = self.shared {
            of_length.arena = Some(std::mem::take(slot));
            let made = of_length.shared_slot(other, length, at);
            *slot = of_length.arena.take().unwrap_or_default();
            return made;
        }
        of_length.arena = Some(std::mem::take(turns));
        let views = of_length.turns();
        *turns = of_length.arena.take().unwrap_or_default();
        of_length.arena = Some(std::mem::take(slot));
        let made = of_length.slot(units, &views?);
        *slot = of_length.arena.take().unwrap_or_default();
        made
    }
}

impl Decoder {
    /// Lengths that the sequences of a micro-batch may have, the longest first.
    pub fn lengths(&self) -> impl Iterator<Item = usize> + '_ {
        std::iter::once(self.shape.seq).chain(self.shorter.iter().map(|length| length.seq))
    }

    /// Plans of the layers under the budget of input-aware recomputation, by length of a micro-batch's sequences, the longest first. Empty
    /// without a budget.
    pub fn plans_by_length(&self) -> Vec<LengthPlan> {
        if self.config.recompute.budget().is_none() || self.shape.purpose == crate::Purpose::Score {
            return Vec::new();
        }
        let plan = |(seq, units): (usize, &Vec<StageUnit>)| {
            // A layer that recomputes keeps the residual stream that enters it, which is not among its saved values.
            let keeps = |u: &StageUnit| {
                u.memory
                    .homes
                    .iter()
                    .zip(&u.program.values)
                    .any(|(home, value)| *home == Home::Saved && value.class == Class::Local)
            };
            let mut plan = LengthPlan { seq, ..LengthPlan::default() };
            for unit in units {
                match unit.unit {
                    Unit::Layer(layer) if offloaded_bytes(&unit.program) > 0 => plan.offloaded.push(layer),
                    Unit::Layer(layer) if !keeps(unit) => plan.recomputed.push(layer),
                    _ => {}
                }
            }
            plan
        };
        let all = std::iter::once(&self.units).chain(self.shorter.iter().map(|length| &length.units));
        self.lengths().zip(all).map(plan).collect()
    }

    /// Sets the length of the next micro-batch in a slot to `seq` tokens, before the message of another stage is written to
    /// [`Decoder::stage_input`]. Not needed for a decoder of one length.
    ///
    /// # Errors
    /// A slot that is not there, a length that the decoder was not made for.
    pub fn stage_length(&mut self, slot: usize, seq: usize) -> Result<(), ModelError> {
        self.used(slot)?;
        self.held.length[slot] = self.number_of_length(seq)?;
        Ok(())
    }

    /// Number of a length among the shorter ones; none for the longest.
    fn number_of_length(&self, seq: usize) -> Result<Option<usize>, ModelError> {
        if seq == self.shape.seq {
            return Ok(None);
        }
        match self.shorter.iter().position(|length| length.seq == seq) {
            Some(at) => Ok(Some(at)),
            None => {
                let wanted = self.lengths().map(|seq| seq.to_string()).collect::<Vec<_>>().join(", ");
                let what = "length of a micro-batch's sequences";
                Err(ModelError::Shape { what, wanted, found: seq.to_string() })
            }
        }
    }

    /// The length of a batch of so many tokens, as a number of a shorter length.
    pub(crate) fn length_of_tokens(&self, tokens: usize) -> Result<Option<usize>, ModelError> {
        let sequences = self.shape.sequences;
        match self.shorter.is_empty() || !tokens.is_multiple_of(sequences) {
            true => Ok(None),
            false => self.number_of_length(tokens / sequences),
        }
    }

    /// Tokens of a sequence of the micro-batch in a slot.
    pub(crate) fn seq_of(&self, slot: usize) -> usize {
        self.held.length[slot].map_or(self.shape.seq, |at| self.shorter[at].seq)
    }

    /// Tokens of the micro-batch in a slot.
    pub(crate) fn tokens_of(&self, slot: usize) -> usize {
        self.shape.sequences * self.seq_of(slot)
    }

    /// The layout of a slot for the micro-batch in it.
    pub(crate) fn slot(&self, slot: usize) -> &Slot {
        self.slot_of_length(self.held.length[slot], slot)
    }

    pub(crate) fn slot_of_length(&self, length: Option<usize>, slot: usize) -> &Slot {
        length.map_or(&self.buffers.slots[slot], |at| &self.shorter[at].slots[slot])
    }

    /// Every operator of the passes of each length: `ask` is called with the length made current in all slots.
    pub(crate) fn for_each_length<E>(
        &mut self,
        mut ask: impl FnMut(&mut Decoder) -> Result<(), E>,
    ) -> Result<(), E> {
        let lengths = std::iter::once(None).chain((0..self.shorter.len()).map(Some));
        let result = lengths.into_iter().try_for_each(|length| {
            self.held.length.fill(length);
            ask(self)
        });
        self.held.length.fill(None);
        result
    }
}
