//! The places where a model that is cut over several devices talks to the others.
//!
//! Tensor parallelism as in Megatron-LM (Shoeybi et al. 2019): the first matrix of a block is cut by outputs, the
//! second by inputs. Their *f* stands before the first (forward: identity, backward: all-reduce), their *g* after the
//! second (forward: all-reduce, backward: identity). A decoder on one of n such devices is made from the same
//! `Model` with heads, kv_heads and ffn_width divided by n and head_dim written out; only its seams differ.

use bessemer_arch::Model;
use bessemer_tensor::{Backend, TensorError, View};

/// A part of the model whose parameters are needed together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Unit {
    /// Token and position tables.
    Embedding,
    /// A layer, from 0.
    Layer(usize),
    /// Last normalisation and output projection.
    Head,
}

impl Unit {
    /// All units of a model in the order of the forward pass.
    pub fn all(model: &Model) -> impl DoubleEndedIterator<Item = Unit> {
        std::iter::once(Unit::Embedding).chain((0..model.layers).map(Unit::Layer)).chain([Unit::Head])
    }

    /// The unit that the parameter of this name belongs to.
    pub fn of(name: &str) -> Unit {
        let layer = name.strip_prefix("layers.").and_then(|rest| rest.split('.').next()?.parse().ok());
        match layer {
            Some(layer) => Unit::Layer(layer),
            None if name.starts_with("embed.") => Unit::Embedding,
            None => Unit::Head,
        }
    }

    /// True if launches of the unit use the parameter of this name: it is the unit's own, or the token table that the
    /// head shares with the embedding (`tied`).
    pub fn uses(self, name: &str, tied: bool) -> bool {
        Unit::of(name) == self || (tied && self == Unit::Head && name == "embed.tokens")
    }
}

/// Which way a unit is gone through.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Values.
    Forward,
    /// Gradients, and values that are made again for them.
    Backward,
}

/// Where in a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SeamPlace {
    /// The normalised input of the attention block, before queries, keys and values are made: an *f*.
    AttentionIn,
    /// The product of the attention's output matrix, before bias, dropout and residual are complete: a *g*.
    AttentionOut,
    /// The normalised input of the feed-forward block: an *f*.
    MlpIn,
    /// The product of the feed-forward block's second matrix: a *g*.
    MlpOut,
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
    /// One term of a sum over devices, which [`Seams::forward`] completes at the two *g* places. The residual is added
    /// after that, on every device.
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
/// - loss or logits: all in [`Phase::Forward`], the head last and once.
///
/// [`Seams::gradient_ready`] of a parameter comes within the backward phase of the unit that it belongs to
/// ([`Unit::of`]). A tied token table is read and its gradient begun by the head, completed by the embedding: its values
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
    /// layer and micro-batch; the token table and the output projection are not announced. What an implementation
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

#[cfg(test)]
mod tests {
    use super::Unit;
    use bessemer_arch::named;

    #[test]
    fn every_parameter_belongs_to_one_unit_and_a_tied_table_is_used_by_two() {
        let model = named("gpt2").unwrap();
        assert!(model.tied_embeddings);
        for p in model.params() {
            let mut users: Vec<_> = Unit::all(&model).filter(|u| u.uses(&p.name, true)).collect();
            if p.name == "embed.tokens" {
                assert_eq!(users.pop(), Some(Unit::Head));
            }
            assert_eq!(users, [Unit::of(&p.name)], "{}", p.name);
        }
        assert_eq!(Unit::of("layers.11.mlp.down.bias"), Unit::Layer(11));
        assert_eq!(Unit::of("final_norm.weight"), Unit::Head);
        assert!(!Unit::Head.uses("embed.tokens", false) && !Unit::Head.uses("embed.positions", true));
    }
}
