//! The feed-forward block: `f(x Wup + b) Wdown + b`, or gated (Shazeer 2020) `(f(gate) * up) Wdown` with gate and up one
//! fused product; how it joins the stream is [`Residual`]'s.
//!
//! Cost forward: 4 n D F FLOPs, gated 6 n D F. The gated backward turns the stored gate and up into their gradients in
//! place, unless it is split.

use crate::params::{LinearWeights, ParamTable, Weight};
use crate::pass::Pass;
use crate::residual::{Residual, StreamActivations, weight_gradients};
use crate::seams::{SeamAt, SeamPlace};
use crate::step::Accumulate;
use bessemer_arch::{ActivationChoice, MlpKind, Model, Unit};
use bessemer_tensor::op::{Activation, ActivationKind, DropoutMask, Gated, GatedBackward, Linear};
use bessemer_tensor::{TensorError, View};

/// Parameters and kind of one feed-forward block.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MlpBlock {
    layer: usize,
    residual: Residual,
    kind: MlpKind,
    activation: ActivationKind,
    /// Up, or gate and up.
    up: LinearWeights,
    down: LinearWeights,
}

/// What the forward pass leaves for the backward pass.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MlpActivations {
    pub(crate) stream: StreamActivations,
    /// Hidden values are not kept: the backward pass makes them again.
    pub(crate) recompute: bool,
    /// Before the non-linearity: up, or gate and up.
    pub(crate) pre_np: View,
    pub(crate) hidden_nf: View,
    /// Where the gradients of gate and up go, if they must not take the places of gate and up.
    pub(crate) dpre_np: Option<View>,
}

/// The two halves of gate_up.
fn halves(pre_np: View) -> (View, View) {
    let f = pre_np.cols / 2;
    (pre_np.columns(0, f), pre_np.columns(f, f))
}

impl MlpBlock {
    pub(crate) fn new(model: &Model, table: &ParamTable, layer: usize) -> MlpBlock {
        let kind = model.mlp();
        let first = if kind == MlpKind::Gated { "gate_up" } else { "up" };
        MlpBlock {
            layer,
            residual: Residual::new(model, table, &format!("layers.{layer}.mlp_norm")),
            kind,
            activation: match model.activation {
                ActivationChoice::Relu => ActivationKind::Relu,
                ActivationChoice::ReluSquared => ActivationKind::ReluSquared,
                ActivationChoice::GeluTanh | ActivationChoice::Geglu => ActivationKind::GeluTanh,
                ActivationChoice::GeluErf => ActivationKind::GeluErf,
                ActivationChoice::Swiglu => ActivationKind::Silu,
            },
            up: table.linear(&format!("layers.{layer}.mlp.{first}")),
            down: table.linear(&format!("layers.{layer}.mlp.down")),
        }
    }

    pub(crate) fn each(&mut self, visit: &mut dyn FnMut(&mut Weight)) {
        self.residual.each(visit);
        self.up.each(visit);
        self.down.each(visit);
    }

    fn at(&self, place: SeamPlace) -> SeamAt {
        SeamAt { unit: Unit::Layer(self.layer), place }
    }

    pub(crate) fn forward(
        &self,
        pass: &mut Pass<'_>,
        a: &MlpActivations,
        branch_nd: View,
        dropout: Option<DropoutMask>,
    ) -> Result<(), TensorError> {
        let input_nd = self.residual.enter(pass, self.at(SeamPlace::MlpIn), &a.stream)?;
        let linear = Linear {
            x: input_nd,
            weight: self.up.weight.value,
            bias: self.up.bias.map(|b| b.value),
            activation: None,
            residual: None,
            out: a.hidden_nf,
        };
        let at = self.at(SeamPlace::MlpIn);
        match self.kind {
            MlpKind::Plain => {
                let linear = Linear { activation: Some((self.activation, a.pre_np)), ..linear };
                Residual::first(pass, at, &a.stream, linear)?;
            }
            MlpKind::Gated => {
                Residual::first(pass, at, &a.stream, Linear { out: a.pre_np, ..linear })?;
                self.hidden(pass, a)?;
            }
        }
        let at = self.at(SeamPlace::MlpOut);
        self.residual.leave(pass, at, &self.down, a.hidden_nf, &a.stream, branch_nd, dropout)
    }

    /// The values between the two products, from what was stored of the first.
    fn hidden(&self, pass: &mut Pass<'_>, a: &MlpActivations) -> Result<(), TensorError> {
        match self.kind {
            MlpKind::Plain => {
                pass.launch(Activation { kind: self.activation, x: a.pre_np, out: a.hidden_nf })
            }
            MlpKind::Gated => {
                let (gate, up) = halves(a.pre_np);
                pass.launch(Gated { kind: self.activation, gate, up, out: a.hidden_nf })
            }
        }
    }

    /// `dx_nd` holds the gradient of x_out and then that of x. `dhidden_nf` is scratch.
    pub(crate) fn backward(
        &self,
        pass: &mut Pass<'_>,
        a: &MlpActivations,
        branch_nd: View,
        dhidden_nf: View,
        dx_nd: View,
        dropout: Option<DropoutMask>,
        accumulate: Accumulate,
    ) -> Result<(), TensorError> {
        if a.recompute {
            self.hidden(pass, a)?;
        }
        let at = self.at(SeamPlace::MlpOut);
        // The plain block's derivative is an epilogue of the product; the gated one has an operator of its own.
        let activation = (self.kind == MlpKind::Plain).then_some((self.activation, a.pre_np));
        let g = self.residual.leave_backward(
            pass,
            at,
            &self.down,
            a.hidden_nf,
            activation,
            &a.stream,
            (dx_nd, branch_nd),
            dhidden_nf,
            dropout,
            accumulate,
        )?;
        let dpre_np = match self.kind {
            MlpKind::Plain => dhidden_nf,
            MlpKind::Gated => {
                let (gate, up) = halves(a.pre_np);
                let dpre_np = a.dpre_np.unwrap_or(a.pre_np);
                let (dgate, dup) = halves(dpre_np);
                pass.launch(GatedBackward { kind: self.activation, gate, up, dout: dhidden_nf, dgate, dup })?;
                dpre_np
            }
        };
        let input_nd = self.residual.input_again(pass, self.at(SeamPlace::MlpIn), &a.stream)?;
        let (at, views) = (self.at(SeamPlace::MlpIn), (input_nd, dpre_np, g.input_nd));
        Residual::first_gradients(pass, at, &self.up, &a.stream, views, accumulate.weight)?;
        self.residual.enter_backward(pass, self.at(SeamPlace::MlpIn), &a.stream, &g, accumulate.input)
    }

    /// The gradients of both matrices, from what a split backward pass has kept: (x, dy) of up and of down.
    pub(crate) fn backward_weight(
        &self,
        pass: &mut Pass<'_>,
        [up, down]: [(View, View); 2],
        accumulate: bool,
    ) -> Result<(), TensorError> {
        weight_gradients(pass, &self.down, down.0, down.1, accumulate)?;
        weight_gradients(pass, &self.up, up.0, up.1, accumulate)
    }
}
