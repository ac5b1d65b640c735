//! The places where a model that is cut over several devices talks to the others.
//!
//! Tensor parallelism as in Megatron-LM (Shoeybi et al. 2019): the first matrix of a block is cut by outputs, the
//! second by inputs. Their *f* stands before the first (forward: identity, backward: all-reduce), their *g* after the
//! second (forward: all-reduce, backward: identity). A decoder on one of n such devices is made from the same
//! `Model` with heads, kv_heads and ffn_width divided by n and head_dim written out; only its seams differ.

use bessemer_tensor::{Backend, TensorError, View};

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
    /// Layer, from 0.
    pub layer: usize,
    /// Place in the layer.
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
/// another stream waits for them through the backend.
pub trait Seams {
    /// What the second products are. Constant over the life of a decoder.
    fn product(&self) -> Product {
        Product::Whole
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
