//! A decoder as one stage (or chunk) of a pipeline: a [`Span`] of the model, several micro-batches in flight, backward
//! passes that may be split into an input part and a weight part (Qi et al. 2024, Zero Bubble Pipeline Parallelism).
//!
//! # How it is used
//! [`Decoder::of_stage`] makes a decoder of a span with `slots` sets of activations, one for each micro-batch between its
//! forward and its backward pass, and `pending` sets of operands for the weight part of a split backward pass. For each
//! micro-batch:
//!
//! | step | call | before | after |
//! |---|---|---|---|
//! | forward | [`Decoder::stage_forward`] | write [`Decoder::stage_input`] (not with the embedding) | send [`Decoder::stage_output`] (not with the head) |
//! | loss alone | [`Decoder::stage_loss`] (with the head) | a forward pass | [`Decoder::stage_release`] |
//! | backward | [`Decoder::stage_backward`] | write [`Decoder::stage_output_gradient`] (not with the head, which makes the loss) | send [`Decoder::stage_input_gradient`] (not with the embedding) |
//! | or its input part | [`Decoder::stage_backward_input`] | the same | the same; the slot is free |
//! | and its weight part | [`Decoder::stage_backward_weight`] | any passes of other micro-batches | the pending set is free |
//!
//! Every stage gets every micro-batch's whole [`TokenBatch`]: positions and documents are needed in every layer, ids by the
//! embedding, targets by the head. Views are the same over the life of a decoder (a caller may look them up once); their
//! values are `[rows, D]` in the activations' stored type, rows = n, or n / t where the stream is cut by rows. Where micro-batches
//! have several lengths, views are those of the micro-batch in the slot: set its length ([`Decoder::stage_length`]) before reading
//! `stage_input`.
//!
//! ```text
//! let mut stage = Decoder::of_stage(backend, &tensor_shard, stream, shape, config, &StageConfig { span, slots: 4, pending: 2, overlap: false, shadowing: None }, None)?;
//! recv into stage.stage_input(slot)?;   stage.stage_forward(backend, ranks, slot, &batch, Some(&ctx))?;   send stage.stage_output(slot)?;
//! recv into stage.stage_output_gradient(slot)?;
//! let (_, pending) = stage.stage_backward_input(backend, ranks, slot, first_input)?;    send stage.stage_input_gradient(slot)?;
//! stage.stage_backward_weight(backend, ranks, pending, first_weight)?;
//! ```
//!
//! Several chunks on one device: the first with [`Decoder::of_stage`], the others with [`Decoder::of_stage_beside`] it.
//!
//! A stage whose weights change while micro-batches are in flight reads the version that the caller names
//! ([`Decoder::stage_values`]); the weight part of a backward pass reads none.
//!
//! A pass can also be run unit by unit, with work of other ranks in between: [`Decoder::begin_forward`],
//! [`Decoder::begin_backward`] or [`Decoder::begin_weight`], then [`Decoder::run_unit`] for each unit in the order of the pass, then
//! [`Decoder::end_pass`]. The calls of the table do that.
//!
//! # Lifetimes of the views
//! - `stage_input` is read by the forward pass *and* by the backward pass: it stays as it is in between.
//! - `stage_output` and `stage_output_gradient` of a slot are one memory (the output is not needed once it was sent, and its
//!   gradient cannot come before): send the output before the gradient is written.
//! - A decoder made to score keeps the stream of a slot in one memory: input and output are the same view.
//! - `stage_input_gradient` holds from the end of [`Decoder::stage_backward`] or [`Decoder::stage_backward_input`] until the
//!   slot's next backward pass; without a head it is in the memory of `stage_output`, thus only until the slot's next
//!   *forward* pass: send it before.
//!
//! # Contents of the input part
//! All but the gradients of the layers' matrices and their biases: gradients of inputs, of norms, of the embedding tables;
//! with the head, loss and gradient of the output projection, which are fused (their logits are never stored). The
//! weight part computes the matrices' gradients from the values of the input part in a pending set: inputs x and output
//! gradients dy of each linear map. Input part and weight part one after the other give the bits of
//! [`Decoder::stage_backward`], and that those of [`Decoder::forward_backward`].
//!
//! Gradients are replaced or added to according to each call's own `accumulate`: false for the first call of a step that writes
//! them. The first input part and the first weight part of a step may belong to different micro-batches;
//! [`Decoder::stage_backward`] writes what both write, and takes an [`Accumulate`] with a flag for each (or one bool for
//! both), so that a step may mix split and whole backward passes in any order.
//!
//! A tied token table is a parameter of the first and of the last span: each holds the values and makes its own term of
//! the gradient; the caller adds the two.

use crate::config::ActivationConfig;
use crate::decoder::{Decoder, Parts, PassMemory, Purpose, Shape, expect_room};
use crate::error::ModelError;
use crate::params::{self, Param};
use crate::ranks::StageRanks;
use crate::slots::{Pending, SlotUse, nothing_in};
use crate::step::{Accumulate, LossSum, StepContext, TokenBatch};
use crate::tensor_shard::{Stream, ranks_of};
use crate::units::StageUnit;
use bessemer_arch::{Model, Span, TensorShard};
use bessemer_program::{Phase, Ranks, Shadowing, StepValues, run};
use bessemer_tensor::op::{DropoutMask, IGNORED};
use bessemer_tensor::rng::RngKey;
use bessemer_tensor::{Backend, View};

/// Part of the model that a stage holds, and the number of micro-batches at a time.
#[derive(Debug, Clone, PartialEq)]
pub struct StageConfig {
    /// The part of the model.
    pub span: Span,
    /// Micro-batches between forward and backward (or its input part) at a time; at least 1.
    pub slots: usize,
    /// Micro-batches between the two parts of a split backward pass at a time; 0 if none is split.
    pub pending: usize,
    /// Whether collectives of a tensor shard run concurrently with products, which are made in pieces of rows.
    pub overlap: bool,
    /// Experts that every one of the ranks that share them may compute for its own tokens.
    pub shadowing: Option<Shadowing>,
}

/// Part of a backward pass that reads a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BackwardPart {
    /// All of it.
    Whole,
    /// All but the gradients of the layers' matrices, for which a pending set is left.
    Input,
}

/// A pass of a stage between [`Decoder::begin_forward`], [`Decoder::begin_backward`] or [`Decoder::begin_weight`] and
/// [`Decoder::end_pass`].
#[derive(Debug, Clone, Copy)]
pub struct StagePass {
    pub(crate) phase: Phase,
    pub(crate) memory: PassMemory,
    values: StepValues,
    /// Use of the slot after the pass.
    use_after: SlotUse,
    /// Scored targets of the micro-batch.
    scored: u64,
}

/// Memory of the slots of a stage made beside another one on one device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlotMemory {
    /// Memory of the stage's own.
    Own,
    /// Memory of the other stage.
    Shared,
}

impl StageConfig {
    /// The whole model, for one micro-batch at a time.
    pub fn whole(model: &Model) -> StageConfig {
        StageConfig { span: Span::whole(model), slots: 1, pending: 0, overlap: false, shadowing: None }
    }

    pub(crate) fn check(&self, model: &Model, purpose: Purpose) -> Result<(), ModelError> {
        self.span.check(model).map_err(|e| ModelError::Stage(e.to_string()))?;
        if self.slots == 0 {
            return Err(ModelError::Stage("wanted at least one slot for a micro-batch, found none".into()));
        }
        if self.pending > 0 && purpose == Purpose::Score {
            let found = self.pending;
            let text =
                format!("a decoder made to score has no backward pass to split, found {found} pending sets");
            return Err(ModelError::Stage(text));
        }
        Ok(())
    }
}

impl Decoder {
    /// A decoder of a span of a tensor shard of a model; the whole model is `model.tensor_shard(1, 0)`. Parameters are
    /// `tensor_shard.specs(&stage.span)`, under their names in the whole model, placed by the caller or allocated here.
    ///
    /// # Errors
    /// Same errors as [`Decoder::of_tensor_shard`]; a span that the model does not have, no slot.
    pub fn of_stage(
        backend: &mut dyn Backend,
        tensor_shard: &TensorShard,
        stream: Stream,
        shape: Shape,
        config: ActivationConfig,
        stage: &StageConfig,
        placed: Option<Vec<Param>>,
    ) -> Result<Decoder, ModelError> {
        Decoder::stage_with(backend, (tensor_shard, stream), (shape, config), stage, placed, None)
    }

    /// Returns another stage of the same model, for the same batches: a further chunk of a device. Its passes alternate
    /// with this one's, so that both use one scratch, as far as this one's is large enough; make it beside a stage that has
    /// layers. With [`SlotMemory::Shared`] a slot of a number is the same memory in both stages, and the caller has a micro-batch
    /// in it in one of them at a time.
    ///
    /// # Errors
    /// Same errors as [`Decoder::of_stage`]; slots that cannot be shared, because the layers of the two stages keep other values.
    pub fn of_stage_beside(
        &self,
        backend: &mut dyn Backend,
        stage: &StageConfig,
        placed: Option<Vec<Param>>,
        slots: SlotMemory,
    ) -> Result<Decoder, ModelError> {
        let whole;
        let tensor_shard = match self.tensor_shard() {
            Some(tensor_shard) => tensor_shard,
            None => {
                whole = self.model.tensor_shard(1, 0).map_err(|e| ModelError::Stage(e.to_string()))?;
                &whole
            }
        };
        let stream = self.stream();
        let batches = (self.shape, self.config.clone());
        Decoder::stage_with(backend, (tensor_shard, stream), batches, stage, placed, Some((self, slots)))
    }

    fn stage_with(
        backend: &mut dyn Backend,
        (tensor_shard, stream): (&TensorShard, Stream),
        (shape, config): (Shape, ActivationConfig),
        stage: &StageConfig,
        placed: Option<Vec<Param>>,
        beside: Option<(&Decoder, SlotMemory)>,
    ) -> Result<Decoder, ModelError> {
        shape.check(&tensor_shard.whole)?;
        stage.check(&tensor_shard.model, shape.purpose)?;
        if let Some(grid) = tensor_shard.grid.filter(|_| stage.pending > 0) {
            return Err(ModelError::Stage(format!(
                "a schedule that splits backward passes, on a grid of {grid} tensor-parallel ranks, whose gradients are reduced within \
                 their pass; take parallel.schedule = \"1f1b\" or another that does not split, or a number for parallel.tensor"
            )));
        }
        let ranks = &ranks_of(tensor_shard, stream, shape)?;
        if shape.purpose == Purpose::Train {
            stream.check(tensor_shard, shape.sequences, &config.lengths)?;
        }
        let params = match placed {
            Some(params) => params,
            None => params::alloc(backend, tensor_shard.specs(&stage.span), shape.purpose == Purpose::Train)?,
        };
        let parts = Parts {
            model: &tensor_shard.model,
            tensor_shard: Some(tensor_shard),
            ranks,
            shape,
            config: &config,
            stage,
        };
        let mut decoder = Decoder::build(backend, &parts, params, beside)?;
        decoder.tensor_shard = Some(Box::new(tensor_shard.clone()));
        Ok(decoder)
    }

    /// Part of the model that is here, and the number of micro-batches.
    pub fn stage(&self) -> &StageConfig {
        &self.stage
    }

    /// View to which the caller writes the residual stream that enters the span, `[rows, D]`.
    ///
    /// # Errors
    /// A span that has the embedding, a slot that does not exist.
    pub fn stage_input(&self, slot: usize) -> Result<View, ModelError> {
        self.edge(slot, self.stage.span.embedding, "embedding: it reads tokens and takes no stream")?;
        Ok(self.slot(slot).stream[0])
    }

    /// View of the residual stream that leaves the span, after the forward pass, `[rows, D]`.
    ///
    /// # Errors
    /// A span that has the head, a slot that does not exist.
    pub fn stage_output(&self, slot: usize) -> Result<View, ModelError> {
        self.edge(slot, self.stage.span.head, "head: it makes the loss and gives no stream")?;
        Ok(self.stream_of(slot))
    }

    /// View to which the caller writes the gradient of the span's output, `[rows, D]`; the pass changes it.
    ///
    /// # Errors
    /// A span that has the head, a slot that does not exist, a decoder made to score.
    pub fn stage_output_gradient(&self, slot: usize) -> Result<View, ModelError> {
        self.expect_training()?;
        self.edge(slot, self.stage.span.head, "head: its gradient is that of the loss")?;
        Ok(self.slot(slot).gradient)
    }

    /// View of the gradient of the span's input, after the backward pass or its input part, `[rows, D]`.
    ///
    /// # Errors
    /// A span that has the embedding, a slot that does not exist, a decoder made to score.
    pub fn stage_input_gradient(&self, slot: usize) -> Result<View, ModelError> {
        self.expect_training()?;
        self.edge(slot, self.stage.span.embedding, "embedding: no gradient leaves it")?;
        Ok(self.slot(slot).gradient)
    }

    /// Computes the residual stream at the end of the span from ids or [`Decoder::stage_input`]. With `ctx` a training pass: its dropout,
    /// and its loss scale for the backward pass (`ctx.accumulate` is ignored); without, no dropout and no backward pass after it.
    ///
    /// # Errors
    /// Same errors as [`Decoder::begin_forward`]; an error of the backend.
    pub fn stage_forward(
        &mut self,
        backend: &mut dyn Backend,
        ranks: &mut dyn StageRanks,
        slot: usize,
        batch: &TokenBatch<'_>,
        ctx: Option<&StepContext>,
    ) -> Result<(), ModelError> {
        let pass = self.begin_forward(backend, slot, batch, ctx)?;
        self.forward_of(backend, ranks, &pass)?;
        Ok(())
    }

    /// The units of a forward pass that has begun, and its end; the auxiliary losses that it makes.
    pub(crate) fn forward_of(
        &mut self,
        backend: &mut dyn Backend,
        ranks: &mut dyn StageRanks,
        pass: &StagePass,
    ) -> Result<Option<LossSum>, ModelError> {
        // The head's pass is that of the loss.
        let units = self.units.len() - usize::from(self.stage.span.head);
        self.run_units(backend, ranks, &mut (0..units), pass)?;
        self.end_pass(pass);
        match pass.phase {
            Phase::Forward => self.pass_loss(backend, pass, None),
            _ => Ok(None),
        }
    }

    /// Begins a forward pass: writes a batch to a slot, and the numbers of the step to the device. With `ctx` a training pass.
    ///
    /// # Errors
    /// A slot that does not exist or holds a training pass whose backward pass has not been run
    /// ([`Decoder::stage_release`] forgets it), a batch of another shape, an error of the backend.
    pub fn begin_forward(
        &mut self,
        backend: &mut dyn Backend,
        slot: usize,
        batch: &TokenBatch<'_>,
        ctx: Option<&StepContext>,
    ) -> Result<StagePass, ModelError> {
        if let SlotUse::Training(..) = self.used(slot)? {
            return Err(ModelError::Stage(format!(
                "wanted a free slot for a forward pass, found slot {slot} with a micro-batch whose backward pass has \
                 not been run; run it, release the slot or make more slots (there are {})",
                self.stage.slots
            )));
        }
        if ctx.is_some() {
            self.expect_training()?;
        }
        self.check_batch(batch)?;
        self.held.free(slot);
        let length = self.length_of_tokens(batch.ids.len())?;
        if length != self.held.length[slot] && !self.stage.span.embedding {
            return Err(ModelError::Stage(format!(
                "slot {slot} takes the stream of sequences of {} tokens, found a batch of {} tokens in {} sequences; state the length \
                 before the stream is written (Decoder::stage_length)",
                self.seq_of(slot),
                batch.ids.len(),
                self.shape.sequences
            )));
        }
        self.held.length[slot] = length;
        self.upload(backend, slot, batch, ctx)?;
        if let Some(ctx) = ctx {
            self.teach(backend, batch, ctx.step)?;
            self.write_step(backend, slot, ctx)?;
        }
        let kept = if ctx.is_some() && self.stage.pending > 0 { self.held.take_kept() } else { None };
        self.held.of_slot[slot] = kept;
        let scored = batch.targets.iter().filter(|&&t| t != IGNORED).count() as u64;
        Ok(StagePass {
            phase: if ctx.is_some() { Phase::Forward } else { Phase::Score },
            memory: PassMemory { slot: Some(slot), kept: kept.or(self.held.any_kept()), pending: None },
            values: StepValues::default(),
            use_after: match ctx {
                Some(ctx) => SlotUse::Training(scored, *ctx),
                None => SlotUse::Scored(scored),
            },
            scored,
        })
    }

    /// The loss of the micro-batch in a slot, without gradients, at the span with the head. `per_token` as in
    /// [`Decoder::loss`]. The slot still holds it: a training pass may continue with its backward pass.
    ///
    /// # Errors
    /// A span without the head, a slot without a forward pass.
    pub fn stage_loss(
        &mut self,
        backend: &mut dyn Backend,
        ranks: &mut dyn StageRanks,
        slot: usize,
        per_token: Option<&mut [f32]>,
    ) -> Result<LossSum, ModelError> {
        if self.used(slot)? == SlotUse::Free {
            return Err(nothing_in(slot, "a forward pass"));
        }
        if !self.stage.span.head {
            return Err(ModelError::Stage(
                "wanted the span with the head for a loss, found one without".into(),
            ));
        }
        expect_room("per_token", per_token.as_deref(), self.tokens_of(slot))?;
        self.loss_of(backend, ranks, slot, per_token)
    }

    /// The whole backward pass of the micro-batch in a slot, which is free after it. The loss, if the head is here.
    ///
    /// # Errors
    /// A slot without a training pass, a decoder made to score, an error of the backend (the slot is free then, too).
    pub fn stage_backward(
        &mut self,
        backend: &mut dyn Backend,
        ranks: &mut dyn StageRanks,
        slot: usize,
        accumulate: impl Into<Accumulate>,
    ) -> Result<Option<LossSum>, ModelError> {
        let pass = self.begin_backward(backend, slot, accumulate.into(), BackwardPart::Whole)?;
        Ok(self.backward_of(backend, ranks, &pass)?.0)
    }

    /// Runs the input part of the backward pass of the micro-batch in a slot, which is free after it; the operands of the weight part are
    /// in the pending set. Returns the loss, if the head is here.
    ///
    /// # Errors
    /// Same errors as [`Decoder::stage_backward`]; no free pending set (nothing has happened then).
    pub fn stage_backward_input(
        &mut self,
        backend: &mut dyn Backend,
        ranks: &mut dyn StageRanks,
        slot: usize,
        accumulate: bool,
    ) -> Result<(Option<LossSum>, Pending), ModelError> {
        let pass = self.begin_backward(backend, slot, accumulate.into(), BackwardPart::Input)?;
        let (loss, pending) = self.backward_of(backend, ranks, &pass)?;
        Ok((loss, pending.expect("an input part leaves a pending set")))
    }

    /// Begins the backward pass of the micro-batch in a slot, or its input part; the slot is free from the pass's end on.
    ///
    /// # Errors
    /// A slot without a training pass, a decoder made to score, no pending set that is free, an error of the backend.
    pub fn begin_backward(
        &mut self,
        backend: &mut dyn Backend,
        slot: usize,
        Accumulate { input, weight }: Accumulate,
        part: BackwardPart,
    ) -> Result<StagePass, ModelError> {
        let ctx = self.training(slot)?;
        if self.config.in_gradients && (input || weight) {
            return Err(ModelError::Stage(
                "wanted a pass that replaces the gradients, because the forward pass has used their memory \
                 (ActivationConfig::in_gradients), found one that adds to them"
                    .into(),
            ));
        }
        let pending = match part {
            BackwardPart::Whole => None,
            BackwardPart::Input => Some(self.held.pending.iter().position(|used| !used).ok_or_else(|| {
                ModelError::Stage(format!(
                    "wanted a free pending set for the weight part of slot {slot}, found all {} in use; run a weight part \
                     before, or make more sets",
                    self.stage.pending
                ))
            })?),
        };
        let pass = StagePass {
            phase: if pending.is_some() { Phase::BackwardInput } else { Phase::Backward },
            memory: PassMemory { slot: Some(slot), kept: self.held.of_slot[slot], pending },
            values: StepValues { add_matrices: weight, add_others: input, ..StepValues::default() },
            use_after: SlotUse::Free,
            scored: self.scored(slot),
        };
        let written = self.write_step(backend, slot, &ctx);
        written.inspect_err(|_| self.held.free(slot))?;
        Ok(pass)
    }

    /// Runs the weight part of a backward pass, after which the pending set is free.
    ///
    /// # Errors
    /// A set that is not in use, or an error of the backend (the set is free then, too).
    pub fn stage_backward_weight(
        &mut self,
        backend: &mut dyn Backend,
        ranks: &mut dyn StageRanks,
        pending: Pending,
        accumulate: bool,
    ) -> Result<(), ModelError> {
        let pass = self.begin_weight(pending, accumulate)?;
        self.run_units(backend, ranks, &mut (0..self.units.len()).rev(), &pass)?;
        self.end_pass(&pass);
        Ok(())
    }

    /// Begins the weight part of a backward pass; the pending set is free from then on.
    ///
    /// # Errors
    /// A set that is not in use.
    pub fn begin_weight(&mut self, pending: Pending, accumulate: bool) -> Result<StagePass, ModelError> {
        self.expect_pending(pending)?;
        self.release(pending);
        Ok(StagePass {
            phase: Phase::BackwardWeight,
            memory: PassMemory { slot: None, kept: pending.kept, pending: Some(pending.set) },
            values: StepValues { add_matrices: accumulate, add_others: true, ..StepValues::default() },
            use_after: SlotUse::Free,
            scored: 0,
        })
    }

    /// Runs the list of unit number `at` for a pass.
    ///
    /// # Errors
    /// An error of the backend or of another rank. The pass is given up then: its memory is free.
    pub fn run_unit(
        &mut self,
        backend: &mut dyn Backend,
        ranks: &mut dyn Ranks,
        at: usize,
        pass: &StagePass,
    ) -> Result<(), ModelError> {
        let mut table = std::mem::take(&mut self.table);
        self.binding(at, pass.phase, pass.memory).fill(&mut table);
        let StageUnit { program, parameters, .. } = self.unit(at, pass.memory.slot);
        let (past, capacity) = self.prefix.as_ref().map_or((0, 0), |prefix| (prefix.past, prefix.capacity()));
        let second_memory = self.second_memory_of(at, pass.memory);
        let values = &StepValues { second_memory, past, capacity, ..pass.values };
        let result = run(program, pass.phase, (&table, parameters), values, backend, ranks);
        self.table = table;
        if result.is_err() {
            self.give_up(pass);
        }
        Ok(result?)
    }

    /// Ends a pass: a forward pass leaves its micro-batch in the slot, a backward pass frees the slot. Returns the pending set of
    /// an input part.
    pub fn end_pass(&mut self, pass: &StagePass) -> Option<Pending> {
        let slot = pass.memory.slot?;
        self.held.slots[slot] = pass.use_after;
        if pass.use_after != SlotUse::Free {
            return None;
        }
        let kept = self.held.of_slot[slot].take();
        match pass.memory.pending {
            Some(set) => {
                self.held.pending[set] = true;
                Some(Pending { set, kept })
            }
            None => {
                kept.into_iter().for_each(|kept| self.held.kept[kept] = false);
                None
            }
        }
    }

    /// The losses that a pass that has ended has made: those of the tokens, scored or backward with the head, and this rank's terms of
    /// auxiliary losses; `None` if it makes none. `per_token` as in [`Decoder::loss`].
    ///
    /// # Errors
    /// An error of the backend.
    pub fn pass_loss(
        &mut self,
        backend: &mut dyn Backend,
        pass: &StagePass,
        per_token: Option<&mut [f32]>,
    ) -> Result<Option<LossSum>, ModelError> {
        let Some(slot) = pass.memory.slot else { return Ok(None) };
        let mut sum = match pass.phase != Phase::Forward && self.stage.span.head {
            true => Some(self.read_losses(backend, slot, pass.scored)?),
            false => None,
        };
        if let (Some(out), Some(_)) = (per_token, &sum) {
            out.copy_from_slice(&self.numbers[..out.len()]);
        }
        if pass.phase == Phase::Forward {
            self.read_counts(backend, slot)?;
        }
        let weighs = self.loss_numbers.iter().any(Option::is_some);
        if pass.phase != Phase::Score && (weighs || self.has_routers()) {
            let auxiliary = self.read_auxiliary_losses(backend, slot, pass.phase)?;
            if weighs {
                sum = Some(LossSum { auxiliary, ..sum.unwrap_or_default() });
            }
        }
        Ok(sum)
    }

    /// Frees the memory of a pass that failed.
    pub(crate) fn give_up(&mut self, pass: &StagePass) {
        if let Some(slot) = pass.memory.slot {
            self.held.free(slot);
        }
    }

    /// The loss of the micro-batch in a slot of a span with the head.
    pub(crate) fn loss_of(
        &mut self,
        backend: &mut dyn Backend,
        ranks: &mut dyn StageRanks,
        slot: usize,
        per_token: Option<&mut [f32]>,
    ) -> Result<LossSum, ModelError> {
        let pass = StagePass {
            phase: Phase::Score,
            memory: PassMemory { slot: Some(slot), kept: self.held.any_kept(), pending: None },
            values: StepValues::default(),
            use_after: self.held.slots[slot],
            scored: self.scored(slot),
        };
        let first = self.units.len() - usize::from(self.stage.span.head);
        self.run_units(backend, ranks, &mut (first..self.units.len()), &pass)?;
        Ok(self.pass_loss(backend, &pass, per_token)?.unwrap_or_default())
    }

    /// The units of a backward pass that has begun, and its end.
    pub(crate) fn backward_of(
        &mut self,
        backend: &mut dyn Backend,
        ranks: &mut dyn StageRanks,
        pass: &StagePass,
    ) -> Result<(Option<LossSum>, Option<Pending>), ModelError> {
        self.run_units(backend, ranks, &mut (0..self.units.len()).rev(), pass)?;
        let pending = self.end_pass(pass);
        Ok((self.pass_loss(backend, pass, None)?, pending))
    }

    /// Bytes of the residual stream of one micro-batch, as it enters or leaves the stage.
    pub fn stream_bytes(&self) -> u64 {
        let stream = self.buffers.slots[0].stream[0];
        (stream.len() * stream.dtype().size()) as u64
    }

    /// Writes the numbers of a pass of a slot that vary from step to step: the counters of its lists' random numbers, and the weights of
    /// auxiliary losses.
    fn write_step(
        &mut self,
        backend: &mut dyn Backend,
        slot: usize,
        ctx: &StepContext,
    ) -> Result<(), ModelError> {
        let random = self.units.iter().flat_map(|u| &u.program.random);
        for (words, random) in self.counters.iter_mut().zip(random) {
            let key = RngKey::new(ctx.seed, ctx.step, &random.place);
            *words = DropoutMask::words(key, ctx.first_sequence.wrapping_mul(random.per_sequence));
        }
        if let Some(counters) = self.buffers.counters {
            backend.write_u32(counters, self.counters.as_flattened())?;
        }
        let Some(view) = self.buffers.loss_weights else { return Ok(()) };
        for (weights, number) in self.loss_weights.iter_mut().zip(&self.loss_numbers) {
            let weight = number.map_or(0.0, |number| {
                let loss = &self.weighed[number];
                (loss.weight_at(ctx.step) * loss.share_of_mean(self.held.scored_share[slot])) as f32
            });
            *weights = [weight, weight * ctx.loss_scale];
        }
        Ok(backend.write_f32(view, self.loss_weights.as_flattened())?)
    }

    /// The residual stream after the last layer.
    pub(crate) fn stream_of(&self, slot: usize) -> View {
        let stream = &self.slot(slot).stream;
        stream[stream.len() - 1]
    }

    /// Errors where the stream does not cross this edge of the span.
    fn edge(&self, slot: usize, absent: bool, why: &str) -> Result<(), ModelError> {
        self.used(slot)?;
        match absent {
            true => Err(ModelError::Stage(format!("this span has the {why}"))),
            false => Ok(()),
        }
    }

    pub(crate) fn expect_training(&self) -> Result<(), ModelError> {
        match self.shape.purpose {
            Purpose::Train => Ok(()),
            Purpose::Score => Err(ModelError::NotForTraining),
        }
    }

    /// Errors if this is not all of the layers, embedding and head, which `what` needs.
    pub(crate) fn expect_all_layers(&self, what: &str) -> Result<(), ModelError> {
        let span = &self.stage.span;
        if span.is_whole(&self.model) {
            return Ok(());
        }
        let (layers, has) = (&span.layers, |has| if has { "with" } else { "without" });
        Err(ModelError::Stage(format!(
            "{what} needs the whole model, found layers {}..{} of {} {} embedding and {} head; use the calls of a stage",
            layers.start,
            layers.end,
            self.model.layers,
            has(span.embedding),
            has(span.head)
        )))
    }
}
