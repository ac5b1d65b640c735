//! The places where a model that is cut over several devices talks to the others.
//!
//! Tensor parallelism as in Megatron-LM (Shoeybi et al. 2019): the first matrix of a block is cut by outputs, the
//! second by inputs. Their *f* stands before the first (forward: identity, backward: all-reduce), their *g* after the
//! second (forward: all-reduce, backward: identity). The vocabulary is cut too: the token table ends with a *g*, the output
//! projection begins with an *f*, and the loss is combined in between. With sequence parallelism (Korthikanti et al.
//! 2022) the stream between *g* and *f* is cut by rows: *f* is an all-gather forward and a reduce-scatter backward, *g*
//! the reverse.
//!
//! A decoder on one of t such devices is a [`crate::Decoder::of_portion`]. What its seams do:
//!
//! | | stream whole: in place | stream cut by rows |
//! |---|---|---|
//! | *f*, values | [`Seams::forward`]: nothing | [`Seams::gather`], in a layer again in the backward pass |
//! | *f*, gradients | [`Seams::backward`]: all-reduce | [`Seams::reduce_scatter`] |
//! | *g*, values | [`Seams::forward`]: all-reduce | [`Seams::reduce_scatter`] |
//! | *g*, gradients | [`Seams::backward`]: nothing | [`Seams::gather`] |
//! | loss | [`Seams::loss_sums`] | [`Seams::loss_sums`] |

use bessemer_arch::Unit;
use bessemer_tensor::{Backend, TensorError, View};
use std::ops::Range;

/// Which way a unit is gone through.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Values.
    Forward,
    /// Gradients, and values that are made again for them.
    Backward,
    /// The first part of a backward pass that is split ([`crate::Decoder::stage_backward_input`]): all but the
    /// gradients of the layers' matrices and their biases.
    BackwardInput,
    /// The second part: those gradients. No parameter's value is read.
    BackwardWeight,
}

/// Where in a unit. At an *f* something that all devices have enters the part that is cut, at a *g* something partial
/// leaves it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SeamPlace {
    /// The rows looked up in the token table, before scale and positions: a *g*. Only where the vocabulary is cut.
    EmbeddingOut,
    /// The normalised input of the attention block, before queries, keys and values are made: an *f*.
    AttentionIn,
    /// The product of the attention's output matrix, before bias, dropout and residual are complete: a *g*.
    AttentionOut,
    /// The normalised input of the feed-forward block: an *f*.
    MlpIn,
    /// The product of the feed-forward block's second matrix: a *g*.
    MlpOut,
    /// The rows that the output projection reads: an *f*. Only where the vocabulary is cut.
    HeadIn,
}

/// A place of the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SeamAt {
    /// The unit.
    pub unit: Unit,
    /// Place in the unit.
    pub place: SeamPlace,
}

/// What the product of a block's second matrix is on this device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Product {
    /// Complete. Bias and residual are fused into the product (unless dropout stands between), and
    /// [`Seams::forward`] is not called at the two *g* places: there is nothing to hand over.
    Whole,
    /// One term of a sum over devices, which [`Seams::forward`] (or [`Seams::reduce_scatter`]) completes at the two *g*
    /// places. The residual is added after that.
    Partial {
        /// True on exactly one of the devices: it adds the bias to its term.
        adds_bias: bool,
    },
}

/// What a run on more than one device does inside a step. Every default is one device's: nothing.
///
/// Calls come in the order of the launches on stream 0. An implementation that needs the values on the host or on
/// another stream waits for them through the backend. None of them is made while a decoder plans its memory.
///
/// Order of the units of a pass, each between its `unit_begins` and `unit_ends`, the next beginning after the one before
/// has ended:
/// - forward and backward: `Embedding`, `Layer(0)`, ..., `Layer(L-1)` in [`Phase::Forward`]; then in [`Phase::Backward`]
///   `Head`, whose loss is fused with its gradients and which therefore has no forward phase, `Layer(L-1)`, ...,
///   `Layer(0)`, `Embedding`;
/// - loss or logits: all in [`Phase::Forward`], the head last and once;
/// - a stage of a pipeline ([`crate::Decoder::of_stage`]): the same for the units that are here. A backward pass that is
///   split goes through them in [`Phase::BackwardInput`], and later in [`Phase::BackwardWeight`], in which
///   [`Seams::linear_backward`] and [`Seams::gradient_ready`] come; everything else happens in the first part.
///
/// [`Seams::gradient_ready`] of a parameter comes within the backward phase of the unit that it belongs to
/// ([`bessemer_arch::ParamId::unit`]; a tied token table without the embedding: the head). A tied token table is read and its gradient begun by the head, completed by the embedding: its values
/// may be released in between, its gradient must stay. All other gradients are written only within their unit.
/// A pass that fails stops where it is; the unit that had begun does not end.
pub trait Seams {
    /// What the second products are. Constant over the life of a decoder.
    fn product(&self) -> Product {
        Product::Whole
    }

    /// The launches of `unit` that follow read its parameters ([`Unit::uses`]); in the backward phase they also write its
    /// gradients.
    fn unit_begins(
        &mut self,
        _backend: &mut dyn Backend,
        _unit: Unit,
        _phase: Phase,
    ) -> Result<(), TensorError> {
        Ok(())
    }

    /// All launches of this phase of `unit` have been made.
    fn unit_ends(
        &mut self,
        _backend: &mut dyn Backend,
        _unit: Unit,
        _phase: Phase,
    ) -> Result<(), TensorError> {
        Ok(())
    }

    /// `value` `[n, d]` has been computed here and may be changed in place before the model goes on. At the two *f* places
    /// this happens a second time in the backward pass if the value is computed again there.
    fn forward(&mut self, _backend: &mut dyn Backend, _at: SeamAt, _value: View) -> Result<(), TensorError> {
        Ok(())
    }

    /// In place of [`Seams::forward`] at an *f* and of [`Seams::backward`] at a *g*, where the stream is cut by rows
    /// ([`crate::Stream::Rows`]): fills `whole` `[n, d]` with the `local` `[n / t, d]` of all portions, in their order.
    /// At the *f* of a layer this happens a second time in the backward pass. The two views do not overlap; `whole` is
    /// used by the launches that follow and may be overwritten at the next place.
    fn gather(
        &mut self,
        _backend: &mut dyn Backend,
        _at: SeamAt,
        _local: View,
        _whole: View,
    ) -> Result<(), TensorError> {
        Err(TensorError::Outside("these seams cannot gather rows of a stream that is cut".into()))
    }

    /// In place of [`Seams::forward`] at a *g* and of [`Seams::backward`] at an *f*, where the stream is cut by rows: the
    /// sum of the `whole` `[n, d]` of all portions, of which the rows of this portion go to `local` `[n / t, d]`.
    fn reduce_scatter(
        &mut self,
        _backend: &mut dyn Backend,
        _at: SeamAt,
        _whole: View,
        _local: View,
    ) -> Result<(), TensorError> {
        Err(TensorError::Outside("these seams cannot add up rows of a stream that is cut".into()))
    }

    /// Whether rows of a product are of use before all of it is there: products behind an *f* and before a *g*, and those of
    /// their backward passes, are then made in pieces of rows, and [`Seams::rows_wanted`], [`Seams::rows_arrive`] and
    /// [`Seams::rows_ready`] are called. Rows of a product do not depend on each other, so no value changes.
    fn takes_rows(&self) -> bool {
        false
    }

    /// In place of [`Seams::gather`] at an *f* in the forward pass, once a piece, in order: these rows of `whole` are wanted
    /// soon. Each piece is waited for by [`Seams::rows_arrive`], in the same order.
    fn rows_wanted(
        &mut self,
        _backend: &mut dyn Backend,
        _at: SeamAt,
        _local: View,
        _whole: View,
        _rows: Range<usize>,
    ) -> Result<(), TensorError> {
        Ok(())
    }

    /// The launches that follow read these rows of `whole`.
    fn rows_arrive(
        &mut self,
        _backend: &mut dyn Backend,
        _at: SeamAt,
        _whole: View,
        _rows: Range<usize>,
    ) -> Result<(), TensorError> {
        Ok(())
    }

    /// These rows of `value` are complete, a piece of what [`Seams::forward`] (at a *g*), [`Seams::backward`] (at an *f*) or
    /// [`Seams::reduce_scatter`] will be called for when all are. Once a piece, in order.
    fn rows_ready(
        &mut self,
        _backend: &mut dyn Backend,
        _at: SeamAt,
        _value: View,
        _rows: Range<usize>,
    ) -> Result<(), TensorError> {
        Ok(())
    }

    /// Once a pass where the vocabulary is cut, within the head's unit: `lse` `[1, n]` (f32) holds the log-sum-exp of each
    /// row's logits over the words that are here, `target_logit` `[1, n]` the logit of its target or 0 if that is not
    /// here. They become those of the whole vocabulary, on every portion: the logarithm of the sum of the exponentials
    /// of all `lse`, and the sum of all `target_logit`. Both are 0 where nothing is scored, and what they become there
    /// does not matter.
    fn loss_sums(
        &mut self,
        _backend: &mut dyn Backend,
        _lse: View,
        _target_logit: View,
    ) -> Result<(), TensorError> {
        Err(TensorError::Outside("these seams cannot combine the loss of a vocabulary that is cut".into()))
    }

    /// `gradient` `[n, d]` of the value at this place has been computed here and may be changed in place. At a *g*
    /// place it may be the residual stream's own gradient, which an identity leaves alone.
    fn backward(
        &mut self,
        _backend: &mut dyn Backend,
        _at: SeamAt,
        _gradient: View,
    ) -> Result<(), TensorError> {
        Ok(())
    }

    /// The gradient of linear map number `param` (in [`crate::Decoder::params`]) is about to be made from its inputs `x`
    /// `[n, inputs]` and the gradients `dy` `[n, outputs]` of its outputs, both only to be read. Called once a matrix of a
    /// layer and micro-batch; the token table and the output projection are not announced. On a portion these are the
    /// inputs and outputs that the part of the matrix has. What an implementation
    /// launches needs workspace that it reserved before.
    fn linear_backward(
        &mut self,
        _backend: &mut dyn Backend,
        _param: usize,
        _x: View,
        _dy: View,
    ) -> Result<(), TensorError> {
        Ok(())
    }

    /// Nothing more is added to the gradient of parameter number `param` (in [`crate::Decoder::params`]) in this
    /// micro-batch. Called once for every parameter, in the order of the backward pass. Whether it is the step's last
    /// micro-batch is known to the caller of the pass.
    ///
    /// On a portion, `gradient` may be a term of a sum over portions that nobody has formed yet: of what works on this
    /// portion's heads only (QK-norm; key and value rows that several portions hold), and with [`crate::Stream::Rows`] of
    /// what works on its rows only (norms, learned positions). [`bessemer_arch::GradientSum`] says which. Biases behind a
    /// *g* are complete on every portion either way: their gradient is made from all rows.
    fn gradient_ready(
        &mut self,
        _backend: &mut dyn Backend,
        _param: usize,
        _gradient: View,
    ) -> Result<(), TensorError> {
        Ok(())
    }
}

/// One device: every seam is the identity.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct OneDevice;

impl Seams for OneDevice {}
