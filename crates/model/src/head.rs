//! The end: last normalisation, output projection, loss.

use crate::norm::{NormStats, NormWeights};
use crate::params::{ParamTable, Weight};
use crate::pass::Pass;
use crate::portion::Cut;
use crate::seams::{SeamAt, SeamPlace};
use bessemer_arch::{Model, Unit};
use bessemer_tensor::op::{
    Linear, LinearCrossEntropy, LinearCrossEntropyPortion, LogitSums, LossBackward, Scale, TablePortion,
};
use bessemer_tensor::{TensorError, View};

/// Parameters of the last normalisation and the output projection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Head {
    norm: Option<NormWeights>,
    /// Factor on the logits (muP), here on the rows that the projection reads.
    scale: f32,
    /// `[v, d]`; the token table itself if tied.
    weight: Weight,
    /// Which rows of the whole projection these are, if not all.
    portion: Option<TablePortion>,
    /// The embedding adds to the gradient of the projection after the head.
    shared: bool,
    /// Weight of the z-loss in the gradients.
    pub(crate) z_loss: f32,
}

/// What the end of the model works on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HeadActivations {
    pub(crate) x_nd: View,
    /// If there is a last normalisation.
    pub(crate) stats: Option<NormStats>,
    /// `[2, n]` to train: losses, and log-sum-exps for the z-loss; `[1, n]` to score.
    pub(crate) loss: View,
    /// `[2, n]` where the vocabulary is cut: log-sum-exps and target logits.
    pub(crate) sums: Option<View>,
    /// Where the stream is cut by rows: all of them, for values; and for their gradients, to train.
    pub(crate) whole_nd: Option<View>,
    pub(crate) dwhole_nd: Option<View>,
}

/// Before the output projection.
const IN: SeamAt = SeamAt { unit: Unit::Head, place: SeamPlace::HeadIn };

impl Head {
    /// `with_embedding`: the embedding is in the same span.
    pub(crate) fn new(model: &Model, cut: &Cut, table: &ParamTable, with_embedding: bool) -> Head {
        let tied = model.tied_embeddings;
        Head {
            norm: NormWeights::new(model, table, "final_norm"),
            scale: model.logit_scale() as f32,
            weight: table.get(if tied { "embed.tokens" } else { "head.weight" }),
            portion: cut.vocabulary,
            shared: tied && with_embedding,
            z_loss: 0.0,
        }
    }

    pub(crate) fn each(&mut self, visit: &mut dyn FnMut(&mut Weight)) {
        if let Some(norm) = &mut self.norm {
            norm.each(visit);
        }
        visit(&mut self.weight);
    }

    /// The rows that the output projection reads: Norm(x) scaled, in `normed_nd`, or x itself if it is that already.
    fn read(
        &self,
        pass: &mut Pass<'_>,
        x_nd: View,
        stats: Option<NormStats>,
        normed_nd: View,
    ) -> Result<View, TensorError> {
        let rows_nd = match &self.norm {
            Some(norm) => {
                norm.forward(pass, x_nd, stats, normed_nd)?;
                normed_nd
            }
            None => x_nd,
        };
        if self.scale == 1.0 {
            return Ok(rows_nd);
        }
        pass.launch(Scale { x: rows_nd, out: normed_nd, factor: self.scale })?;
        Ok(normed_nd)
    }

    /// Through the *f* before the projection, if that is cut.
    fn hand_over(
        &self,
        pass: &mut Pass<'_>,
        a: &HeadActivations,
        rows_nd: View,
    ) -> Result<View, TensorError> {
        match a.whole_nd {
            Some(whole_nd) => pass.gather(IN, rows_nd, whole_nd)?,
            None if self.portion.is_some() => pass.seam_forward(IN, rows_nd)?,
            None => {}
        }
        Ok(a.whole_nd.unwrap_or(rows_nd))
    }

    /// The fused loss of the rows `x`. Where the vocabulary is cut, its two halves with the combined sums between them.
    fn cross_entropy(
        &self,
        pass: &mut Pass<'_>,
        a: &HeadActivations,
        x: View,
        targets: View,
        loss: View,
        backward: Option<LossBackward>,
    ) -> Result<(), TensorError> {
        let weight = self.weight.value;
        let (Some(portion), Some(sums)) = (self.portion, a.sums) else {
            return pass.launch(LinearCrossEntropy { x, weight, targets, loss, backward });
        };
        let (lse, target_logit) = (sums.rows(0, 1), sums.rows(1, 1));
        pass.launch(LogitSums { x, weight, portion, targets, lse, target_logit })?;
        pass.loss_sums(lse, target_logit)?;
        let op = LinearCrossEntropyPortion { x, weight, portion, targets, lse, target_logit, loss, backward };
        pass.launch(op)
    }

    /// Token losses only. `normed_nd` is scratch.
    pub(crate) fn loss(
        &self,
        pass: &mut Pass<'_>,
        a: &HeadActivations,
        targets: View,
        normed_nd: View,
    ) -> Result<(), TensorError> {
        let x = self.read(pass, a.x_nd, a.stats, normed_nd)?;
        let x = self.hand_over(pass, a, x)?;
        self.cross_entropy(pass, a, x, targets, a.loss.rows(0, 1), None)
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
        // The normalised rows are not needed after the fused loss: they live where the stream's gradient will be. Without
        // a normalisation the loss itself writes that gradient.
        let (normed_nd, dread_nd) = if self.norm.is_some() { (dx_nd, branch_nd) } else { (branch_nd, dx_nd) };
        let x = self.read(pass, a.x_nd, a.stats, normed_nd)?;
        let x = self.hand_over(pass, a, x)?;
        let backward = LossBackward {
            scale,
            z_loss: self.z_loss,
            dx: a.dwhole_nd.unwrap_or(dread_nd),
            dweight: self.weight.grad(),
            accumulate,
        };
        let loss = a.loss.rows(0, if self.z_loss == 0.0 { 1 } else { 2 });
        self.cross_entropy(pass, a, x, targets, loss, Some(backward))?;
        if !self.shared {
            pass.gradient_ready(&self.weight)?;
        }
        match a.dwhole_nd {
            Some(dwhole_nd) => pass.reduce_scatter(IN, dwhole_nd, dread_nd)?,
            None if self.portion.is_some() => pass.seam_backward(IN, dread_nd)?,
            None => {}
        }
        if self.scale != 1.0 {
            pass.launch(Scale { x: dread_nd, out: dread_nd, factor: self.scale })?;
        }
        match &self.norm {
            Some(norm) => norm.backward(pass, a.x_nd, a.stats, dread_nd, dx_nd, false, accumulate),
            None => Ok(()),
        }
    }

    /// Logits of rows of x. `normed_nd` is scratch of the same rows.
    pub(crate) fn logits(
        &self,
        pass: &mut Pass<'_>,
        x_nd: View,
        stats: Option<NormStats>,
        normed_nd: View,
        logits_nv: View,
    ) -> Result<(), TensorError> {
        let x = self.read(pass, x_nd, stats, normed_nd)?;
        pass.launch(Linear {
            x,
            weight: self.weight.value,
            bias: None,
            activation: None,
            residual: None,
            out: logits_nv,
        })
    }
}
