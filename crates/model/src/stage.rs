//! A decoder as one stage (or chunk) of a pipeline: a [`Span`] of the model, several micro-batches in flight, backward
//! passes that may be split into an input part and a weight part (Qi et al. 2024, Zero Bubble Pipeline Parallelism).
//!
//! # How it is used
//! [`Decoder::of_stage`] makes a decoder of a span with `slots` sets of activations, one for each micro-batch between its
//! forward and its backward pass, and `pending` sets of what the weight part of a split backward pass needs. For each
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
//! embedding, targets by the head. Views are the same over the life of a decoder (a caller may look them up once); what
//! crosses them is `[rows, D]` in the activations' stored type, rows = n, or n / t where the stream is cut by rows.
//!
//! ```text
//! let mut stage = Decoder::of_stage(backend, &portion, stream, shape, config, &StageConfig { span, slots: 4, pending: 2 }, None)?;
//! recv into stage.stage_input(slot)?;   stage.stage_forward(backend, seams, slot, &batch, Some(&ctx))?;   send stage.stage_output(slot)?;
//! recv into stage.stage_output_gradient(slot)?;
//! let (_, pending) = stage.stage_backward_input(backend, seams, slot, first_input)?;    send stage.stage_input_gradient(slot)?;
//! stage.stage_backward_weight(backend, seams, pending, first_weight)?;
//! ```
//!
//! # Where the views lie in time
//! - `stage_input` is read by the forward pass *and* by the backward pass: it stays as it is in between.
//! - `stage_output` and `stage_output_gradient` of a slot are one memory (the output is not needed once it was sent, and its
//!   gradient cannot come before): send the output before the gradient is written.
//! - `stage_input_gradient` holds from the end of [`Decoder::stage_backward`] or [`Decoder::stage_backward_input`] until the
//!   slot's next backward pass; without a head it lies in the memory of `stage_output`, thus only until the slot's next
//!   *forward* pass: send it before.
//!
//! # What the input part does
//! All but the gradients of the layers' matrices and their biases: gradients of inputs, of norms, of the embedding tables;
//! with the head, loss and gradient of the output projection, which are fused (their logits are never stored). The
//! weight part makes the matrices' gradients from what the input part has left in a pending set: inputs x and output
//! gradients dy of each linear map. Input part and weight part one after the other give the bits of
//! [`Decoder::stage_backward`], and that those of [`Decoder::forward_backward`].
//!
//! Gradients replace or are added to by each call's own `accumulate`: false in the first micro-batch *of that kind of call*
//! of a step. When both parts are in use, the first input part and the first weight part (which may belong to different
//! micro-batches) replace; [`Decoder::stage_backward`] is both at once, so a stage that mixes split and whole backward
//! passes puts `accumulate: true` only if all the parameters have been written in this step before.
//!
//! # Order of the seams
//! Units as in [`Seams`], those of the span only. A whole backward pass: [`Phase::Backward`]. A split one: all units in
//! [`Phase::BackwardInput`], in which [`Seams::backward`], [`Seams::gather`] and the other exchanges of values happen; later all units
//! in the same order in [`Phase::BackwardWeight`], in which [`Seams::linear_backward`] and [`Seams::gradient_ready`] of *every*
//! parameter of the unit come, those that the input part made too: a unit's gradients are then complete. The weight part
//! exchanges no values. With several micro-batches, gradients of norms and tables may then hold the input parts of later
//! micro-batches as well.
//!
//! A tied token table is a parameter of the first and of the last span: each holds the values and makes its own term of
//! the gradient; the caller adds the two.

use crate::activations::ActivationConfig;
use crate::decoder::{Decoder, Shape};
use crate::error::ModelError;
use crate::params::Param;
use crate::portion::Stream;
use crate::seams::Seams;
use crate::step::{LossSum, StepContext, TokenBatch};
use bessemer_arch::{Portion, Span};
use bessemer_tensor::{Backend, View};
use bessemer_units::Bytes;

/// What of the model a stage holds, and for how many micro-batches at a time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StageConfig {
    /// The part of the model.
    pub span: Span,
    /// Micro-batches between forward and backward (or its input part) at a time; at least 1.
    pub slots: usize,
    /// Micro-batches between the two parts of a split backward pass at a time; 0 if none is split.
    pub pending: usize,
}

/// What the weight part of one split backward pass needs, in the decoder that gave it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Pending(pub(crate) usize);

/// Bytes of a stage by what they depend on, as the backend's ledger counts them: "activations" are
/// `shared + slots * per_slot + pending * per_pending`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StageMemory {
    /// Elements of the span's parameters.
    pub parameters: usize,
    /// Bytes of "constants": a fixed table of positions.
    pub constants: Bytes,
    /// Bytes of activations that all slots share.
    pub shared: Bytes,
    /// Bytes of one slot (M_B).
    pub per_slot: Bytes,
    /// Bytes of one pending set (M_W).
    pub per_pending: Bytes,
}

/// What a stage will hold, without allocating anything.
///
/// # Errors
/// As [`Decoder::of_stage`].
pub fn stage_memory(
    _portion: &Portion,
    _stream: Stream,
    _shape: Shape,
    _config: ActivationConfig,
    _span: &Span,
) -> Result<StageMemory, ModelError> {
    Err(absent())
}

fn absent() -> ModelError {
    ModelError::Stage("not there yet".into())
}

impl Decoder {
    /// A decoder of a span of a portion of a model; the whole model is `model.portion(1, 0)`. Parameters are
    /// `stage.span.params(&portion.model)`, under their names in the whole model, placed by the caller or allocated here.
    ///
    /// # Errors
    /// As [`Decoder::of_portion`]; a span that is none of the model, no slot.
    pub fn of_stage(
        _backend: &mut dyn Backend,
        _portion: &Portion,
        _stream: Stream,
        _shape: Shape,
        _config: ActivationConfig,
        _stage: &StageConfig,
        _placed: Option<Vec<Param>>,
    ) -> Result<Decoder, ModelError> {
        Err(absent())
    }

    /// Where the caller puts the stream that enters the span, `[rows, D]`.
    ///
    /// # Errors
    /// A span that has the embedding, a slot that is not there.
    pub fn stage_input(&self, _slot: usize) -> Result<View, ModelError> {
        Err(absent())
    }

    /// Where the stream that leaves the span is after the forward pass, `[rows, D]`.
    ///
    /// # Errors
    /// A span that has the head, a slot that is not there.
    pub fn stage_output(&self, _slot: usize) -> Result<View, ModelError> {
        Err(absent())
    }

    /// Where the caller puts the gradient of the span's output, `[rows, D]`; the pass changes it.
    ///
    /// # Errors
    /// A span that has the head, a slot that is not there.
    pub fn stage_output_gradient(&self, _slot: usize) -> Result<View, ModelError> {
        Err(absent())
    }

    /// Where the gradient of the span's input is after the backward pass or its input part, `[rows, D]`.
    ///
    /// # Errors
    /// A span that has the embedding, a slot that is not there.
    pub fn stage_input_gradient(&self, _slot: usize) -> Result<View, ModelError> {
        Err(absent())
    }

    /// From ids or [`Decoder::stage_input`] to the end of the stream. With `ctx` a training pass: its dropout, and its loss
    /// scale for the backward pass (`ctx.accumulate` is not looked at); without, no dropout and no backward pass after it.
    ///
    /// # Errors
    /// A slot that is not there or holds a training pass whose backward pass has not been run
    /// ([`Decoder::stage_release`] forgets it), a batch of another shape, what the backend answers.
    pub fn stage_forward(
        &mut self,
        _backend: &mut dyn Backend,
        _seams: &mut dyn Seams,
        _slot: usize,
        _batch: &TokenBatch<'_>,
        _ctx: Option<&StepContext>,
    ) -> Result<(), ModelError> {
        Err(absent())
    }

    /// The loss of the micro-batch in a slot, without gradients, at the span with the head. `per_token` as in
    /// [`Decoder::loss`].
    ///
    /// # Errors
    /// A span without the head, a slot without a forward pass.
    pub fn stage_loss(
        &mut self,
        _backend: &mut dyn Backend,
        _seams: &mut dyn Seams,
        _slot: usize,
        _per_token: Option<&mut [f32]>,
    ) -> Result<LossSum, ModelError> {
        Err(absent())
    }

    /// Forgets what a slot holds, e.g. after an evaluation or when a step is given up. A weight part is given up with
    /// [`Decoder::stage_release_pending`].
    ///
    /// # Errors
    /// A slot that is not there.
    pub fn stage_release(&mut self, _slot: usize) -> Result<(), ModelError> {
        Err(absent())
    }

    /// Forgets a pending set.
    ///
    /// # Errors
    /// A set that is not in use.
    pub fn stage_release_pending(&mut self, _pending: Pending) -> Result<(), ModelError> {
        Err(absent())
    }

    /// The whole backward pass of the micro-batch in a slot, which is free after it. The loss, if the head is here.
    ///
    /// # Errors
    /// A slot without a training pass, a decoder made to score, what the backend answers.
    pub fn stage_backward(
        &mut self,
        _backend: &mut dyn Backend,
        _seams: &mut dyn Seams,
        _slot: usize,
        _accumulate: bool,
    ) -> Result<Option<LossSum>, ModelError> {
        Err(absent())
    }

    /// The input part of the backward pass of the micro-batch in a slot, which is free after it; what is left to do is in the
    /// pending set. The loss, if the head is here.
    ///
    /// # Errors
    /// As [`Decoder::stage_backward`]; no pending set that is free (nothing has happened then).
    pub fn stage_backward_input(
        &mut self,
        _backend: &mut dyn Backend,
        _seams: &mut dyn Seams,
        _slot: usize,
        _accumulate: bool,
    ) -> Result<(Option<LossSum>, Pending), ModelError> {
        Err(absent())
    }

    /// The weight part of a backward pass, after which the pending set is free.
    ///
    /// # Errors
    /// A set that is not in use, what the backend answers.
    pub fn stage_backward_weight(
        &mut self,
        _backend: &mut dyn Backend,
        _seams: &mut dyn Seams,
        _pending: Pending,
        _accumulate: bool,
    ) -> Result<(), ModelError> {
        Err(absent())
    }
}
