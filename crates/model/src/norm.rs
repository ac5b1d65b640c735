//! LayerNorm or RMSNorm, as a block or the head uses it.

use crate::params::{ParamTable, Weight};
use crate::pass::Pass;
use bessemer_arch::{Model, NormChoice};
use bessemer_tensor::op::{Norm, NormBackward, NormKind};
use bessemer_tensor::{TensorError, View};

/// A normalisation's parameters.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NormWeights {
    kind: NormKind,
    eps: f32,
    weight: Weight,
    bias: Option<Weight>,
}

/// Statistics of the rows, kept for the backward pass.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NormStats {
    /// `[1, n]`, LayerNorm only.
    pub(crate) mean: Option<View>,
    /// `[1, n]`.
    pub(crate) rstd: View,
}

impl NormStats {
    /// The statistics of the first `n` rows.
    pub(crate) fn rows(&self, n: usize) -> NormStats {
        NormStats { mean: self.mean.map(|m| m.columns(0, n)), rstd: self.rstd.columns(0, n) }
    }
}

impl NormWeights {
    /// The normalisation of that name, if the model has it.
    pub(crate) fn new(model: &Model, table: &ParamTable, name: &str) -> Option<NormWeights> {
        Some(NormWeights {
            kind: match model.norm {
                NormChoice::LayerNorm => NormKind::Layer,
                NormChoice::RmsNorm => NormKind::Rms,
                NormChoice::None => return None,
            },
            eps: model.norm_eps as f32,
            weight: table.find(&format!("{name}.weight"))?,
            bias: table.find(&format!("{name}.bias")),
        })
    }

    pub(crate) fn forward(
        &self,
        pass: &mut Pass<'_>,
        x_nd: View,
        stats: Option<NormStats>,
        out_nd: View,
    ) -> Result<(), TensorError> {
        let stats = stats.expect("a model with normalisations has statistics");
        pass.launch(Norm {
            kind: self.kind,
            x: x_nd,
            weight: self.weight.value,
            bias: self.bias.map(|b| b.value),
            out: out_nd,
            mean: stats.mean,
            rstd: stats.rstd,
            eps: self.eps,
        })
    }

    /// RMSNorm of that name, whatever the model's blocks have (QK-norm).
    pub(crate) fn rms(model: &Model, table: &ParamTable, name: &str) -> NormWeights {
        let weight = table.get(&format!("{name}.weight"));
        NormWeights { kind: NormKind::Rms, eps: model.norm_eps as f32, weight, bias: None }
    }

    /// `dx (+)=` the gradient that reaches x through the normalisation, and the parameters' gradients.
    pub(crate) fn backward(
        &self,
        pass: &mut Pass<'_>,
        x_nd: View,
        stats: Option<NormStats>,
        dout_nd: View,
        dx_nd: View,
        accumulate_dx: bool,
        accumulate: bool,
    ) -> Result<(), TensorError> {
        self.gradients(pass, x_nd, stats, dout_nd, dx_nd, accumulate_dx, accumulate)?;
        self.ready(pass)
    }

    /// As [`NormWeights::backward`], for weights whose gradients others will still add to.
    pub(crate) fn gradients(
        &self,
        pass: &mut Pass<'_>,
        x_nd: View,
        stats: Option<NormStats>,
        dout_nd: View,
        dx_nd: View,
        accumulate_dx: bool,
        accumulate: bool,
    ) -> Result<(), TensorError> {
        let stats = stats.expect("a model with normalisations has statistics");
        pass.launch(NormBackward {
            kind: self.kind,
            x: x_nd,
            weight: self.weight.value,
            mean: stats.mean,
            rstd: stats.rstd,
            dout: dout_nd,
            dx: dx_nd,
            accumulate_dx,
            dweight: self.weight.grad(),
            dbias: self.bias.map(|b| b.grad()),
            accumulate,
        })
    }

    pub(crate) fn each(&mut self, visit: &mut dyn FnMut(&mut Weight)) {
        visit(&mut self.weight);
        self.bias.iter_mut().for_each(visit);
    }

    /// Says that the gradients of the weights are complete.
    pub(crate) fn ready(&self, pass: &mut Pass<'_>) -> Result<(), TensorError> {
        pass.gradient_ready(&self.weight)?;
        self.bias.map_or(Ok(()), |b| pass.gradient_ready(&b))
    }
}
