//! The parts of the lecture's models, forward and backward by hand from single operators.

use super::rig::{Init, Param, Rig};
use bessemer_tensor::View;
use bessemer_tensor::op::{
    ActivationBackward, ActivationKind, Attention, AttentionBackward, AttentionMask, AttentionShape, Copy,
    Linear, LinearBackwardInput, LinearBackwardWeight, Norm, NormBackward, NormKind,
};

const RELU: ActivationKind = ActivationKind::Relu;

/// A layer between the embedding and the output projection. It keeps the operands of its backward pass.
pub(crate) trait Layer {
    /// `y = f(x)`.
    fn forward(&self, rig: &mut Rig, x: View, y: View);
    /// `dx` from `dy`, and the gradients of the parameters; `x` as in the forward pass.
    fn backward(&self, rig: &mut Rig, x: View, dy: View, dx: View);
}

/// Causal attention without output projection.
pub(crate) struct Heads {
    shape: AttentionShape,
    qkv: Param,
    qkv_nj: View,
    dqkv_nj: View,
    out_nd: View,
    lse: View,
}

impl Heads {
    pub(crate) fn new(rig: &mut Rig, batch: usize, seq: usize, width: usize, heads: usize) -> Heads {
        let n = batch * seq;
        let shape = AttentionShape {
            batch,
            seq,
            heads,
            kv_heads: heads,
            head_dim: width / heads,
            // The lecture divides by the root of the whole width, not of a head's.
            scale: 1.0 / (width as f32).sqrt(),
        };
        Heads {
            shape,
            qkv: rig.param(3 * width, width, Init::Uniform(1.0 / (width as f32).sqrt())),
            qkv_nj: rig.matrix(n, 3 * width),
            dqkv_nj: rig.matrix(n, 3 * width),
            out_nd: rig.matrix(n, width),
            lse: rig.matrix(batch * heads, seq),
        }
    }

    fn parts(qkv_nj: View) -> [View; 3] {
        let d = qkv_nj.cols / 3;
        [0, 1, 2].map(|i| qkv_nj.columns(i * d, d))
    }
}

impl Layer for Heads {
    fn forward(&self, rig: &mut Rig, x: View, y: View) {
        let [q, k, v] = Heads::parts(self.qkv_nj);
        rig.launch(linear(x, self.qkv.value, None, self.qkv_nj));
        rig.launch(Attention {
            shape: self.shape,
            q,
            k,
            v,
            out: self.out_nd,
            lse: self.lse,
            mask: AttentionMask::default(),
            dropout: None,
        });
        rig.launch(Copy { src: self.out_nd, dst: y });
    }

    fn backward(&self, rig: &mut Rig, x: View, dy: View, dx: View) {
        let ([q, k, v], [dq, dk, dv]) = (Heads::parts(self.qkv_nj), Heads::parts(self.dqkv_nj));
        rig.launch(AttentionBackward {
            shape: self.shape,
            q,
            k,
            v,
            out: self.out_nd,
            lse: self.lse,
            dout: dy,
            dq,
            dk,
            dv,
            mask: AttentionMask::default(),
            dropout: None,
        });
        linear_backward(rig, x, (self.qkv, None), self.dqkv_nj, None, dx);
    }
}

/// `relu(x W^T + b)`.
pub(crate) struct Rectified {
    w: (Param, Param),
    pre: View,
    dpre: View,
}

impl Rectified {
    pub(crate) fn new(rig: &mut Rig, n: usize, width: usize) -> Rectified {
        Rectified { w: rig.linear(width, width), pre: rig.matrix(n, width), dpre: rig.matrix(n, width) }
    }
}

impl Layer for Rectified {
    fn forward(&self, rig: &mut Rig, x: View, y: View) {
        let plain = linear(x, self.w.0.value, Some(self.w.1.value), y);
        rig.launch(Linear { activation: Some((RELU, self.pre)), ..plain });
    }

    fn backward(&self, rig: &mut Rig, x: View, dy: View, dx: View) {
        rig.launch(ActivationBackward { kind: RELU, x: self.pre, dout: dy, dx: self.dpre });
        linear_backward(rig, x, (self.w.0, Some(self.w.1)), self.dpre, None, dx);
    }
}

/// LayerNorm.
pub(crate) struct LayerNorm {
    weight: Param,
    bias: Param,
    mean: View,
    rstd: View,
}

impl LayerNorm {
    pub(crate) fn new(rig: &mut Rig, n: usize, width: usize) -> LayerNorm {
        LayerNorm {
            weight: rig.param(1, width, Init::Constant(1.0)),
            bias: rig.param(1, width, Init::Constant(0.0)),
            mean: rig.matrix(1, n),
            rstd: rig.matrix(1, n),
        }
    }

    /// `dx (+)=` the gradient through the normalisation.
    fn backward_into(&self, rig: &mut Rig, x: View, dy: View, dx: View, accumulate_dx: bool) {
        rig.launch(NormBackward {
            kind: NormKind::Layer,
            x,
            weight: self.weight.value,
            mean: Some(self.mean),
            rstd: self.rstd,
            dout: dy,
            dx,
            accumulate_dx,
            dweight: self.weight.grad,
            dbias: Some(self.bias.grad),
            accumulate: false,
        });
    }
}

impl Layer for LayerNorm {
    fn forward(&self, rig: &mut Rig, x: View, y: View) {
        rig.launch(Norm {
            kind: NormKind::Layer,
            x,
            weight: self.weight.value,
            bias: Some(self.bias.value),
            out: y,
            mean: Some(self.mean),
            rstd: self.rstd,
            eps: 1e-5,
        });
    }

    fn backward(&self, rig: &mut Rig, x: View, dy: View, dx: View) {
        self.backward_into(rig, x, dy, dx, false);
    }
}

/// `m = x + proj(heads(norm(x)))`, `y = m + down(relu(up(norm(m))))`.
pub(crate) struct Block {
    norms: [LayerNorm; 2],
    heads: Heads,
    proj: (Param, Param),
    up: (Param, Param),
    down: (Param, Param),
    /// Normalised input and the residual stream after the first branch.
    normed: [View; 2],
    mixed: View,
    middle: View,
    hidden: View,
    pre: View,
    dhidden: View,
    dbranch: View,
    dmixed: View,
    dmiddle: View,
}

impl Block {
    pub(crate) fn new(rig: &mut Rig, batch: usize, seq: usize, width: usize, heads: usize) -> Block {
        let (n, f) = (batch * seq, 4 * width);
        Block {
            norms: [LayerNorm::new(rig, n, width), LayerNorm::new(rig, n, width)],
            heads: Heads::new(rig, batch, seq, width, heads),
            proj: rig.linear(width, width),
            up: rig.linear(width, f),
            down: rig.linear(f, width),
            normed: [rig.matrix(n, width), rig.matrix(n, width)],
            mixed: rig.matrix(n, width),
            middle: rig.matrix(n, width),
            hidden: rig.matrix(n, f),
            pre: rig.matrix(n, f),
            dhidden: rig.matrix(n, f),
            dbranch: rig.matrix(n, width),
            dmixed: rig.matrix(n, width),
            dmiddle: rig.matrix(n, width),
        }
    }
}

impl Layer for Block {
    fn forward(&self, rig: &mut Rig, x: View, y: View) {
        self.norms[0].forward(rig, x, self.normed[0]);
        self.heads.forward(rig, self.normed[0], self.mixed);
        let proj = linear(self.mixed, self.proj.0.value, Some(self.proj.1.value), self.middle);
        rig.launch(Linear { residual: Some(x), ..proj });
        self.norms[1].forward(rig, self.middle, self.normed[1]);
        let up = linear(self.normed[1], self.up.0.value, Some(self.up.1.value), self.hidden);
        rig.launch(Linear { activation: Some((RELU, self.pre)), ..up });
        let down = linear(self.hidden, self.down.0.value, Some(self.down.1.value), y);
        rig.launch(Linear { residual: Some(self.middle), ..down });
    }

    fn backward(&self, rig: &mut Rig, x: View, dy: View, dx: View) {
        let bias = |w: (Param, Param)| (w.0, Some(w.1));
        linear_backward(rig, self.hidden, bias(self.down), dy, Some((RELU, self.pre)), self.dhidden);
        linear_backward(rig, self.normed[1], bias(self.up), self.dhidden, None, self.dbranch);
        rig.launch(Copy { src: dy, dst: self.dmiddle });
        self.norms[1].backward_into(rig, self.middle, self.dbranch, self.dmiddle, true);
        linear_backward(rig, self.mixed, bias(self.proj), self.dmiddle, None, self.dmixed);
        self.heads.backward(rig, self.normed[0], self.dmixed, self.dbranch);
        rig.launch(Copy { src: self.dmiddle, dst: dx });
        self.norms[0].backward_into(rig, x, self.dbranch, dx, true);
    }
}

fn linear(x: View, weight: View, bias: Option<View>, out: View) -> Linear {
    Linear { x, weight, bias, activation: None, residual: None, rowwise: false, out }
}

/// Computes both halves of a linear map's backward pass.
fn linear_backward(
    rig: &mut Rig,
    x: View,
    (weight, bias): (Param, Option<Param>),
    dy: View,
    activation: Option<(ActivationKind, View)>,
    dx: View,
) {
    let dbias = bias.map(|b| b.grad);
    rig.launch(LinearBackwardWeight { x, dy, dweight: weight.grad, dbias, accumulate: false });
    rig.launch(LinearBackwardInput { dy, weight: weight.value, activation, dx, accumulate: false });
}
