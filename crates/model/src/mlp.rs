//! The feed-forward block: `x_out = x + dropout(f(Norm(x) Wup + b) Wdown + b)`, or gated (Shazeer 2020)
//! `(f(gate) * up) Wdown` with gate and up one fused product.
//!
//! Cost forward: 4 n D F FLOPs, gated 6 n D F. The gated backward turns the stored gate and up into their gradients in
//! place.

use crate::norm::{NormStats, NormWeights};
use crate::params::{LinearWeights, ParamTable};
use crate::pass::Pass;
use crate::residual;
use crate::seams::{SeamAt, SeamPlace};
use bessemer_arch::{ActivationChoice, MlpKind, Model};
use bessemer_tensor::op::{
    Activation, ActivationKind, DropoutMask, Gated, GatedBackward, Linear, LinearBackwardInput,
};
use bessemer_tensor::{TensorError, View};

/// Parameters and kind of one feed-forward block.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MlpBlock {
    layer: usize,
    norm: NormWeights,
    kind: MlpKind,
    activation: ActivationKind,
    /// Up, or gate and up.
    up: LinearWeights,
    down: LinearWeights,
}

/// What the forward pass leaves for the backward pass.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MlpActivations {
    pub(crate) x_nd: View,
    pub(crate) stats: NormStats,
    pub(crate) normed_nd: View,
    /// Normalised rows and hidden values are not kept: the backward pass makes them again.
    pub(crate) recompute: bool,
    /// Before the non-linearity: up, or gate and up.
    pub(crate) pre_np: View,
    pub(crate) hidden_nf: View,
    pub(crate) x_out_nd: View,
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
            norm: NormWeights::new(model, table, &format!("layers.{layer}.mlp_norm")),
            kind,
            activation: match model.activation {
                ActivationChoice::Relu => ActivationKind::Relu,
                ActivationChoice::GeluTanh | ActivationChoice::Geglu => ActivationKind::GeluTanh,
                ActivationChoice::GeluErf => ActivationKind::GeluErf,
                ActivationChoice::Swiglu => ActivationKind::Silu,
            },
            up: table.linear(&format!("layers.{layer}.mlp.{first}")),
            down: table.linear(&format!("layers.{layer}.mlp.down")),
        }
    }

    fn at(&self, place: SeamPlace) -> SeamAt {
        SeamAt { layer: self.layer, place }
    }

    pub(crate) fn forward(
        &self,
        pass: &mut Pass<'_>,
        a: &MlpActivations,
        branch_nd: View,
        dropout: Option<DropoutMask>,
    ) -> Result<(), TensorError> {
        self.norm.forward(pass, a.x_nd, a.stats, a.normed_nd)?;
        pass.seam_forward(self.at(SeamPlace::MlpIn), a.normed_nd)?;
        let linear = Linear {
            x: a.normed_nd,
            weight: self.up.weight.value,
            bias: self.up.bias.map(|b| b.value),
            activation: None,
            residual: None,
            out: a.hidden_nf,
        };
        match self.kind {
            MlpKind::Plain => {
                pass.launch(Linear { activation: Some((self.activation, a.pre_np)), ..linear })?;
            }
            MlpKind::Gated => {
                pass.launch(Linear { out: a.pre_np, ..linear })?;
                self.hidden(pass, a)?;
            }
        }
        let at = self.at(SeamPlace::MlpOut);
        residual::forward(pass, at, &self.down, a.hidden_nf, a.x_nd, branch_nd, a.x_out_nd, dropout)
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
        accumulate: bool,
    ) -> Result<(), TensorError> {
        if a.recompute {
            self.hidden(pass, a)?;
        }
        let at = self.at(SeamPlace::MlpOut);
        // The plain block's derivative is an epilogue of the product; the gated one has an operator of its own.
        let activation = (self.kind == MlpKind::Plain).then_some((self.activation, a.pre_np));
        residual::backward(
            pass,
            at,
            &self.down,
            a.hidden_nf,
            activation,
            dx_nd,
            branch_nd,
            dhidden_nf,
            dropout,
            accumulate,
        )?;
        let dpre_np = match self.kind {
            MlpKind::Plain => dhidden_nf,
            MlpKind::Gated => {
                let (gate, up) = halves(a.pre_np);
                pass.launch(GatedBackward {
                    kind: self.activation,
                    gate,
                    up,
                    dout: dhidden_nf,
                    dgate: gate,
                    dup: up,
                })?;
                a.pre_np
            }
        };
        if a.recompute {
            self.norm.forward(pass, a.x_nd, a.stats, a.normed_nd)?;
            pass.seam_forward(self.at(SeamPlace::MlpIn), a.normed_nd)?;
        }
        residual::weight_gradients(pass, &self.up, a.normed_nd, dpre_np, accumulate)?;
        pass.launch(LinearBackwardInput {
            dy: dpre_np,
            weight: self.up.weight.value,
            activation: None,
            dx: branch_nd,
            accumulate: false,
        })?;
        pass.seam_backward(self.at(SeamPlace::MlpIn), branch_nd)?;
        self.norm.backward(pass, a.x_nd, a.stats, branch_nd, dx_nd, true, accumulate)
    }
}
