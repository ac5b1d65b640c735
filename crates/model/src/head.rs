//! The end: last normalisation, output projection, loss.

use crate::norm::{NormStats, NormWeights};
use crate::params::{ParamTable, Weight};
use crate::pass::Pass;
use bessemer_arch::Model;
use bessemer_tensor::op::{Linear, LinearCrossEntropy, LossBackward};
use bessemer_tensor::{TensorError, View};

/// Parameters of the last normalisation and the output projection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Head {
    norm: NormWeights,
    /// `[v, d]`; the token table itself if tied.
    weight: Weight,
    tied: bool,
    /// Weight of the z-loss in the gradients.
    pub(crate) z_loss: f32,
}

/// What the end of the model works on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HeadActivations {
    pub(crate) x_nd: View,
    pub(crate) stats: NormStats,
    /// `[1, n]`.
    pub(crate) loss: View,
}

impl Head {
    pub(crate) fn new(model: &Model, table: &ParamTable) -> Head {
        let tied = model.tied_embeddings;
        Head {
            norm: NormWeights::new(model, table, "final_norm"),
            weight: table.get(if tied { "embed.tokens" } else { "head.weight" }),
            tied,
            z_loss: 0.0,
        }
    }

    /// Token losses only. `normed_nd` is scratch.
    pub(crate) fn loss(
        &self,
        pass: &mut Pass<'_>,
        a: &HeadActivations,
        targets: View,
        normed_nd: View,
    ) -> Result<(), TensorError> {
        self.norm.forward(pass, a.x_nd, a.stats, normed_nd)?;
        pass.launch(LinearCrossEntropy {
            x: normed_nd,
            weight: self.weight.value,
            targets,
            loss: a.loss,
            backward: None,
        })
    }

    /// Token losses, and the gradient of x into `dx_nd`. `branch_nd` is scratch.
    pub(crate) fn loss_and_backward(
        &self,
        pass: &mut Pass<'_>,
        a: &HeadActivations,
        targets: View,
        scale: f32,
        branch_nd: View,
        dx_nd: View,
        accumulate: bool,
    ) -> Result<(), TensorError> {
        // The normalised rows are not needed after the fused loss: they live where the stream's gradient will be.
        let normed_nd = dx_nd;
        self.norm.forward(pass, a.x_nd, a.stats, normed_nd)?;
        pass.launch(LinearCrossEntropy {
            x: normed_nd,
            weight: self.weight.value,
            targets,
            loss: a.loss,
            backward: Some(LossBackward {
                scale,
                z_loss: self.z_loss,
                dx: branch_nd,
                dweight: self.weight.grad(),
                accumulate,
            }),
        })?;
        if !self.tied {
            pass.gradient_ready(&self.weight)?;
        }
        self.norm.backward(pass, a.x_nd, a.stats, branch_nd, dx_nd, false, accumulate)
    }

    /// Logits of rows of x. `normed_nd` is scratch of the same rows.
    pub(crate) fn logits(
        &self,
        pass: &mut Pass<'_>,
        x_nd: View,
        stats: NormStats,
        normed_nd: View,
        logits_nv: View,
    ) -> Result<(), TensorError> {
        self.norm.forward(pass, x_nd, stats, normed_nd)?;
        pass.launch(Linear {
            x: normed_nd,
            weight: self.weight.value,
            bias: None,
            activation: None,
            residual: None,
            out: logits_nv,
        })
    }
}
