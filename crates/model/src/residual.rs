//! The end of a block: its second linear map, dropout, and the residual stream,
//! `x_out = x + dropout(y W^T + b)`, with Megatron's *g* between the product and the rest.

use crate::params::LinearWeights;
use crate::pass::Pass;
use crate::seams::{Product, SeamAt};
use bessemer_tensor::op::{
    ActivationKind, Add, Dropout, DropoutMask, Linear, LinearBackwardInput, LinearBackwardWeight,
};
use bessemer_tensor::{TensorError, View};

/// `branch_nd` is scratch, used when something stands between the product and the residual.
pub(crate) fn forward(
    pass: &mut Pass<'_>,
    at: SeamAt,
    w: &LinearWeights,
    y_ni: View,
    x_nd: View,
    branch_nd: View,
    x_out_nd: View,
    dropout: Option<DropoutMask>,
) -> Result<(), TensorError> {
    let product = pass.product();
    let linear = Linear {
        x: y_ni,
        weight: w.weight.value,
        bias: None,
        activation: None,
        residual: None,
        out: x_out_nd,
    };
    let bias = w.bias.map(|b| b.value);
    if product == Product::Whole && dropout.is_none() {
        return pass.launch(Linear { bias, residual: Some(x_nd), ..linear });
    }
    let bias = bias.filter(|_| product != Product::Partial { adds_bias: false });
    pass.launch(Linear { bias, out: branch_nd, ..linear })?;
    if product != Product::Whole {
        pass.seam_forward(at, branch_nd)?;
    }
    if let Some(mask) = dropout {
        pass.launch(Dropout { x: branch_nd, out: branch_nd, mask })?;
    }
    pass.launch(Add { a: x_nd, b: branch_nd, out: x_out_nd })
}

/// `dy` = gradient of the linear map's input, through the activation that made it if there is one. The residual's own
/// gradient stays in `dx_nd`. `branch_nd` is scratch.
pub(crate) fn backward(
    pass: &mut Pass<'_>,
    at: SeamAt,
    w: &LinearWeights,
    y_ni: View,
    activation: Option<(ActivationKind, View)>,
    dx_nd: View,
    branch_nd: View,
    dy_ni: View,
    dropout: Option<DropoutMask>,
    accumulate: bool,
) -> Result<(), TensorError> {
    let dproduct_nd = match dropout {
        None => dx_nd,
        Some(mask) => {
            pass.launch(Dropout { x: dx_nd, out: branch_nd, mask })?;
            branch_nd
        }
    };
    pass.seam_backward(at, dproduct_nd)?;
    weight_gradients(pass, w, y_ni, dproduct_nd, accumulate)?;
    pass.launch(LinearBackwardInput {
        dy: dproduct_nd,
        weight: w.weight.value,
        activation,
        dx: dy_ni,
        accumulate: false,
    })
}

/// Gradients of a linear map's own parameters, complete after this.
pub(crate) fn weight_gradients(
    pass: &mut Pass<'_>,
    w: &LinearWeights,
    x_ni: View,
    dy_no: View,
    accumulate: bool,
) -> Result<(), TensorError> {
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
