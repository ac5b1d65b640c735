//! The feed-forward block: `f(x Wup + b) Wdown + b`, or gated (Shazeer 2020) `(f(gate) * up) Wdown` with gate and up one
//! fused product.
//!
//! Cost forward: 4 n D F FLOPs, gated 6 n D F. Hidden values may be made again from the pre-activations.

use super::Writer;
use super::residual::Block;
use bessemer_arch::{ActivationChoice, MlpKind};
use bessemer_mesh::{Block as Columns, Dim};
use bessemer_program::Class;
use bessemer_tensor::View;
use bessemer_tensor::op::{Activation, ActivationKind, Gated, GatedBackward, Linear};

const PLAIN: Block = Block {
    norm: "mlp_norm",
    first: "mlp.up",
    last: "mlp.down",
    dropout: "mlp.down.dropout",
    branch: "mlp.branch",
};

/// The two halves of gate and up.
pub(super) fn halves(pre: View) -> (View, View) {
    let f = pre.cols / 2;
    (pre.columns(0, f), pre.columns(f, f))
}

impl Writer<'_> {
    fn mlp(&self) -> Block {
        match self.model().mlp() {
            MlpKind::Plain => PLAIN,
            MlpKind::Gated => Block { first: "mlp.gate_up", ..PLAIN },
        }
    }

    pub(super) fn activation_kind(&self) -> ActivationKind {
        match self.model().activation {
            ActivationChoice::Relu => ActivationKind::Relu,
            ActivationChoice::ReluSquared => ActivationKind::ReluSquared,
            ActivationChoice::GeluTanh | ActivationChoice::Geglu => ActivationKind::GeluTanh,
            ActivationChoice::GeluErf => ActivationKind::GeluErf,
            ActivationChoice::Swiglu => ActivationKind::Silu,
        }
    }

    /// Before the non-linearity: up, or gate and up.
    fn pre(&mut self, name: &str) -> View {
        let f = Columns::plain(self.model().ffn_width);
        let blocks = if self.model().mlp() == MlpKind::Gated { 2 } else { 1 };
        self.activation(name, Dim::of(vec![f; blocks]))
    }

    fn hidden(&mut self, name: &str) -> View {
        let f = self.model().ffn_width;
        self.activation(name, Dim::plain(f))
    }

    pub(super) fn mlp_forward(&mut self) {
        if let Some(experts) = self.experts {
            return self.experts_forward(experts);
        }
        let (block, kind) = (self.mlp(), self.activation_kind());
        let (x, x_out) = (self.residual_rows("attention.out"), self.stream(Class::StreamOut));
        let input = self.enter(block, x);
        let (pre, hidden) = (self.pre("mlp.pre"), self.hidden("mlp.hidden"));
        match self.model().mlp() {
            MlpKind::Plain => {
                let activation = Activation { kind, x: pre, out: hidden };
                if self.is_adapted(block.first) {
                    self.adapted(block.first, input, pre, Self::pre);
                    self.recorder.launch(activation);
                } else {
                    let op =
                        Linear { activation: Some((kind, pre)), ..self.linear(block.first, input, hidden) };
                    self.recorder.launch(op);
                }
                self.recorder.again(hidden, activation);
            }
            MlpKind::Gated => {
                self.adapted(block.first, input, pre, Self::pre);
                let (gate, up) = halves(pre);
                let op = Gated { live: None, kind, gate, up, out: hidden };
                self.recorder.launch(op);
                self.recorder.again(hidden, op);
            }
        }
        self.leave(block, hidden, x, x_out);
    }

    pub(super) fn mlp_backward(&mut self) {
        if let Some(experts) = self.experts {
            return self.experts_backward(experts);
        }
        let (block, kind) = (self.mlp(), self.activation_kind());
        let x = self.residual_rows("attention.out");
        let (pre, hidden, dpre) =
            (self.pre("mlp.pre"), self.hidden("mlp.hidden"), self.pre("mlp.pre.gradient"));
        let kept = match self.model().mlp() {
            // The derivative is an epilogue of the product.
            MlpKind::Plain => self.leave_backward(block, hidden, Some((kind, pre)), dpre),
            MlpKind::Gated => {
                let dout = self.hidden("mlp.hidden.gradient");
                let kept = self.leave_backward(block, hidden, None, dout);
                let ((gate, up), (dgate, dup)) = (halves(pre), halves(dpre));
                self.recorder.launch(GatedBackward { live: None, kind, gate, up, dout, dgate, dup });
                kept
            }
        };
        let input = self.read_again(block, x);
        self.enter_backward(block, x, input, dpre, kept);
    }
}
