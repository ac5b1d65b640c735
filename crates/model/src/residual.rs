//! How a block f joins the residual stream, and the parts that both blocks share.
//!
//! | placement | forward | stored besides the block's own |
//! |---|---|---|
//! | pre | `x_out = x + dropout(f(Norm(x)))` | Norm(x), statistics |
//! | pre, norm "none" | `x_out = x + dropout(f(x))` | nothing |
//! | post | `x_out = Norm(s)`, `s = x + dropout(f(x))` | s, statistics |
//! | deepnorm | `x_out = Norm(s)`, `s = alpha x + dropout(f(x))` (Wang et al. 2022) | s, statistics |
//!
//! f ends with a linear map `y W^T + b`; Megatron's *f* stands before the block reads its input, their *g* between that
//! last product and the rest. Backward, dx_out and dx share one buffer: pre adds what comes through the block and its
//! normalisation to dx_out; post first takes ds through the normalisation and then `dx = alpha ds + (what comes through
//! the block)`.

use crate::norm::{NormStats, NormWeights};
use crate::params::{LinearWeights, ParamTable, Weight};
use crate::pass::{Pass, rows_of};
use crate::seams::{Product, SeamAt};
use crate::step::Accumulate;
use bessemer_arch::{Model, Placement};
use bessemer_tensor::op::{
    ActivationKind, Add, Copy, Dropout, DropoutMask, Linear, LinearBackwardInput, LinearBackwardWeight, Scale,
};
use bessemer_tensor::{TensorError, View};

/// A block's normalisation and its factor on the stream.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Residual {
    placement: Placement,
    norm: Option<NormWeights>,
    /// DeepNorm's alpha, 1 otherwise.
    alpha: f32,
}

/// The stream around a block.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StreamActivations {
    pub(crate) x_nd: View,
    /// Statistics of the normalisation, if there is one.
    pub(crate) stats: Option<NormStats>,
    /// Pre-normalised: Norm(x), or x itself if there is no normalisation. Otherwise the sum s.
    pub(crate) side_nd: View,
    /// Norm(x) is not kept: the backward pass makes it again. A sum s is always kept.
    pub(crate) recompute: bool,
    pub(crate) x_out_nd: View,
    /// Where the stream is cut by rows (the other matrices then have the rows that are here): all rows of the block's
    /// input, of its last product and of their gradients, in turns.
    pub(crate) whole_nd: Option<View>,
    /// In the input part of a split backward pass: what must stay for the weight part.
    pub(crate) kept: Option<KeptStream>,
}

/// Where a split backward pass leaves what the weight part needs of a block's ends, `[n, d]` each, all rows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KeptStream {
    /// The rows that the block has read: the input of its first linear map.
    pub(crate) x_nd: View,
    /// The gradient of its last linear map's product.
    pub(crate) dproduct_nd: View,
}

/// Gradients on the way through a block.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StreamGradients {
    /// The gradient of the last product, before [`Residual::leave_backward`] splits it off: of x_out or of s.
    kept_nd: View,
    /// The gradient of the block's input, rows of the stream; may be overwritten before.
    local_nd: View,
    /// Where the block writes that gradient: the same, or all rows of it.
    pub(crate) input_nd: View,
}

impl Residual {
    pub(crate) fn new(model: &Model, table: &ParamTable, norm: &str) -> Residual {
        Residual {
            placement: model.placement,
            norm: NormWeights::new(model, table, norm),
            alpha: model.residual_scale() as f32,
        }
    }

    pub(crate) fn each(&mut self, visit: &mut dyn FnMut(&mut Weight)) {
        if let Some(norm) = &mut self.norm {
            norm.each(visit);
        }
    }

    /// The rows that the block reads, which may still be arriving. `at` is the place before the block, whose first product
    /// must be made by [`Residual::first`].
    pub(crate) fn enter(
        &self,
        pass: &mut Pass<'_>,
        at: SeamAt,
        a: &StreamActivations,
    ) -> Result<View, TensorError> {
        self.normalise(pass, a)?;
        if let (Some(whole_nd), None) = (a.whole_nd, a.kept) {
            pass.gather_ahead(at, self.input(a), whole_nd)?;
            return Ok(whole_nd);
        }
        self.hand_over(pass, at, a, true)
    }

    /// The block's first product, of what [`Residual::enter`] gave.
    pub(crate) fn first(
        pass: &mut Pass<'_>,
        at: SeamAt,
        a: &StreamActivations,
        linear: Linear,
    ) -> Result<(), TensorError> {
        let arriving = a.whole_nd.filter(|whole_nd| *whole_nd == linear.x).map(|whole_nd| (at, whole_nd));
        pass.rows(linear.x.rows, arriving, None, |rows| Linear {
            x: rows_of(linear.x, rows),
            out: rows_of(linear.out, rows),
            activation: linear.activation.map(|(kind, pre)| (kind, rows_of(pre, rows))),
            ..linear
        })
    }

    /// Gradients of the block's first linear map: of its parameters, and of the block's input, which
    /// [`Residual::enter_backward`] adds up. That sum travels while the parameters' gradients are made, unless the input's
    /// gradient takes the place of the input.
    pub(crate) fn first_gradients(
        pass: &mut Pass<'_>,
        at: SeamAt,
        w: &LinearWeights,
        a: &StreamActivations,
        (x, dy, dx): (View, View, View),
        accumulate: bool,
    ) -> Result<(), TensorError> {
        let first = a.whole_nd.is_none() && pass.product() != Product::Whole;
        if first {
            Residual::first_backward(pass, at, w, dy, dx)?;
        }
        weight_gradients(pass, w, x, dy, accumulate)?;
        if first { Ok(()) } else { Residual::first_backward(pass, at, w, dy, dx) }
    }

    fn first_backward(
        pass: &mut Pass<'_>,
        at: SeamAt,
        w: &LinearWeights,
        dy: View,
        dx: View,
    ) -> Result<(), TensorError> {
        let leaving = (pass.product() != Product::Whole).then_some((at, dx));
        pass.rows(dy.rows, None, leaving, |rows| LinearBackwardInput {
            dy: rows_of(dy, rows),
            weight: w.weight.value,
            activation: None,
            dx: rows_of(dx, rows),
            accumulate: false,
        })
    }

    /// True if there was something to do.
    fn normalise(&self, pass: &mut Pass<'_>, a: &StreamActivations) -> Result<bool, TensorError> {
        let (Placement::Pre, Some(norm)) = (self.placement, &self.norm) else { return Ok(false) };
        norm.forward(pass, a.x_nd, a.stats, a.side_nd)?;
        Ok(true)
    }

    /// Through the *f* before the block; in place only if the values are `fresh`.
    fn hand_over(
        &self,
        pass: &mut Pass<'_>,
        at: SeamAt,
        a: &StreamActivations,
        fresh: bool,
    ) -> Result<View, TensorError> {
        let local_nd = self.input(a);
        match a.whole_nd {
            Some(whole_nd) => {
                let to_nd = a.kept.map_or(whole_nd, |kept| kept.x_nd);
                pass.gather(at, local_nd, to_nd)?;
                return Ok(to_nd);
            }
            None if fresh => pass.seam_forward(at, local_nd)?,
            None => {}
        }
        match a.kept {
            // Norm(x) is there already; the stream itself is not what stays.
            Some(kept) if kept.x_nd != local_nd => pass.launch(Copy { src: local_nd, dst: kept.x_nd })?,
            _ => {}
        }
        Ok(local_nd)
    }

    fn input(&self, a: &StreamActivations) -> View {
        if self.placement == Placement::Pre { a.side_nd } else { a.x_nd }
    }

    /// The rows that the block has read, in the backward pass. `at` is the place before the block.
    pub(crate) fn input_again(
        &self,
        pass: &mut Pass<'_>,
        at: SeamAt,
        a: &StreamActivations,
    ) -> Result<View, TensorError> {
        let again = a.recompute && self.normalise(pass, a)?;
        self.hand_over(pass, at, a, again)
    }

    /// The block's last linear map `w` on `y_ni`, dropout, residual sum, and the normalisation of the sum. `branch_nd`
    /// is scratch.
    pub(crate) fn leave(
        &self,
        pass: &mut Pass<'_>,
        at: SeamAt,
        w: &LinearWeights,
        y_ni: View,
        a: &StreamActivations,
        branch_nd: View,
        dropout: Option<DropoutMask>,
    ) -> Result<(), TensorError> {
        let (Placement::Post | Placement::DeepNorm, Some(norm)) = (self.placement, &self.norm) else {
            return self.sum(pass, at, w, y_ni, a, branch_nd, a.x_out_nd, dropout);
        };
        self.sum(pass, at, w, y_ni, a, branch_nd, a.side_nd, dropout)?;
        norm.forward(pass, a.side_nd, a.stats, a.x_out_nd)
    }

    /// `sum = alpha x + dropout(y W^T + b)`.
    fn sum(
        &self,
        pass: &mut Pass<'_>,
        at: SeamAt,
        w: &LinearWeights,
        y_ni: View,
        a: &StreamActivations,
        branch_nd: View,
        sum_nd: View,
        dropout: Option<DropoutMask>,
    ) -> Result<(), TensorError> {
        let (product, x_nd) = (pass.product(), a.x_nd);
        let linear = Linear {
            x: y_ni,
            weight: w.weight.value,
            bias: None,
            activation: None,
            residual: None,
            out: sum_nd,
        };
        let bias = w.bias.map(|b| b.value);
        let scaled = self.alpha != 1.0;
        if product == Product::Whole && a.whole_nd.is_none() && dropout.is_none() {
            if !scaled {
                return pass.launch(Linear { bias, residual: Some(x_nd), ..linear });
            }
            pass.launch(Scale { x: x_nd, out: branch_nd, factor: self.alpha })?;
            return pass.launch(Linear { bias, residual: Some(branch_nd), ..linear });
        }
        let bias = bias.filter(|_| product != Product::Partial { adds_bias: false });
        let out = a.whole_nd.unwrap_or(branch_nd);
        let leaving = (product != Product::Whole).then_some((at, out));
        pass.rows(y_ni.rows, None, leaving, |rows| Linear {
            x: rows_of(y_ni, rows),
            bias,
            out: rows_of(out, rows),
            ..linear
        })?;
        match a.whole_nd {
            Some(whole_nd) => pass.reduce_scatter(at, whole_nd, branch_nd)?,
            None if product != Product::Whole => pass.seam_forward(at, branch_nd)?,
            None => {}
        }
        if let Some(mask) = dropout {
            pass.launch(Dropout { x: branch_nd, out: branch_nd, mask, global_cols: branch_nd.cols })?;
        }
        if !scaled {
            return pass.launch(Add { a: x_nd, b: branch_nd, out: sum_nd });
        }
        pass.launch(Scale { x: x_nd, out: sum_nd, factor: self.alpha })?;
        pass.launch(Add { a: sum_nd, b: branch_nd, out: sum_nd })
    }

    /// From the gradient of x_out in `dx_nd` to that of the last map's input in `dy_ni`, through the activation that
    /// made that input if there is one. `branch_nd` is scratch and must stay until [`Residual::enter_backward`].
    pub(crate) fn leave_backward(
        &self,
        pass: &mut Pass<'_>,
        at: SeamAt,
        w: &LinearWeights,
        y_ni: View,
        activation: Option<(ActivationKind, View)>,
        a: &StreamActivations,
        (dx_nd, branch_nd): (View, View),
        dy_ni: View,
        dropout: Option<DropoutMask>,
        accumulate: Accumulate,
    ) -> Result<StreamGradients, TensorError> {
        let (kept_nd, local_nd) = match (self.placement, &self.norm) {
            (Placement::Post | Placement::DeepNorm, Some(norm)) => {
                norm.backward(pass, a.side_nd, a.stats, dx_nd, branch_nd, false, accumulate.input)?;
                (branch_nd, dx_nd)
            }
            _ => (dx_nd, branch_nd),
        };
        let dproduct_nd = match dropout {
            None => kept_nd,
            Some(mask) => {
                let out = match a.kept {
                    Some(kept) if a.whole_nd.is_none() => kept.dproduct_nd,
                    _ => local_nd,
                };
                pass.launch(Dropout { x: kept_nd, out, mask, global_cols: out.cols })?;
                out
            }
        };
        let dproduct_nd = self.product_gradient(pass, at, a, dproduct_nd)?;
        weight_gradients(pass, w, y_ni, dproduct_nd, accumulate.weight)?;
        pass.launch(LinearBackwardInput {
            dy: dproduct_nd,
            weight: w.weight.value,
            activation,
            dx: dy_ni,
            accumulate: false,
        })?;
        Ok(StreamGradients { kept_nd, local_nd, input_nd: a.whole_nd.unwrap_or(local_nd) })
    }

    /// Through the *g* behind the block: the gradient of the last product's rows, all of them.
    fn product_gradient(
        &self,
        pass: &mut Pass<'_>,
        at: SeamAt,
        a: &StreamActivations,
        local_nd: View,
    ) -> Result<View, TensorError> {
        if let Some(whole_nd) = a.whole_nd {
            let to_nd = a.kept.map_or(whole_nd, |kept| kept.dproduct_nd);
            pass.gather(at, local_nd, to_nd)?;
            return Ok(to_nd);
        }
        pass.seam_backward(at, local_nd)?;
        match a.kept {
            Some(kept) if kept.dproduct_nd != local_nd => {
                // The stream's own gradient, which goes on changing.
                pass.launch(Copy { src: local_nd, dst: kept.dproduct_nd })?;
            }
            _ => {}
        }
        Ok(local_nd)
    }

    /// With the gradient of the block's input in `g.input_nd`: completes the gradient of x, in the buffer that held
    /// that of x_out.
    pub(crate) fn enter_backward(
        &self,
        pass: &mut Pass<'_>,
        at: SeamAt,
        a: &StreamActivations,
        g: &StreamGradients,
        accumulate: bool,
    ) -> Result<(), TensorError> {
        match a.whole_nd {
            Some(whole_nd) => pass.reduce_scatter(at, whole_nd, g.local_nd)?,
            None => pass.seam_backward(at, g.local_nd)?,
        }
        if self.placement == Placement::Pre {
            return match &self.norm {
                Some(norm) => norm.backward(pass, a.x_nd, a.stats, g.local_nd, g.kept_nd, true, accumulate),
                None => pass.launch(Add { a: g.kept_nd, b: g.local_nd, out: g.kept_nd }),
            };
        }
        if self.alpha != 1.0 {
            pass.launch(Scale { x: g.kept_nd, out: g.kept_nd, factor: self.alpha })?;
        }
        pass.launch(Add { a: g.local_nd, b: g.kept_nd, out: g.local_nd })
    }
}

/// Gradients of a linear map's own parameters, complete after this; in the input part of a split backward pass nothing:
/// inputs and gradients stay where the weight part finds them.
pub(crate) fn weight_gradients(
    pass: &mut Pass<'_>,
    w: &LinearWeights,
    x_ni: View,
    dy_no: View,
    accumulate: bool,
) -> Result<(), TensorError> {
    if pass.defers() {
        return Ok(());
    }
    pass.linear_backward(&w.weight, x_ni, dy_no)?;
    pass.launch(LinearBackwardWeight {
        x: x_ni,
        dy: dy_no,
        dweight: w.weight.grad(),
        dbias: w.bias.map(|b| b.grad()),
        accumulate,
    })?;
    pass.gradient_ready(&w.weight)?;
    w.bias.map_or(Ok(()), |b| pass.gradient_ready(&b))
}
