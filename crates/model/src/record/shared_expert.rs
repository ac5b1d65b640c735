//! The block beside the experts of a layer: `y + g (f(x Wgate) * (x Wup)) Wdown`, y what the experts give and g the sigmoid of one number a
//! token, computed in f32, or 1 (Dai et al. 2024, DeepSeekMoE; Qwen2-MoE); or both weighed by a softmax of two numbers a token (Rajbhandari
//! et al. 2022, PR-MoE).
//!
//! Cost forward: 6 n D F FLOPs. Hidden values may be made again from the pre-activations.

use super::Writer;
use super::mlp::halves;
use bessemer_arch::SharedExpert;
use bessemer_mesh::{Block as Columns, Dim};
use bessemer_program::Class;
use bessemer_tensor::View;
use bessemer_tensor::op::{Add, AddGatedRows, AddGatedRowsBackward, Gated, GatedBackward, Linear, MixedRows};
use bessemer_units::DType;

const FIRST: &str = "mlp.shared.gate_up";
const LAST: &str = "mlp.shared.down";

/// The map that gives the gates of a token, and their number.
fn gate_map(of: SharedExpert) -> Option<(&'static str, usize)> {
    match of {
        SharedExpert { mixed: true, .. } => Some(("mlp.mixture", 2)),
        SharedExpert { gate: true, .. } => Some(("mlp.shared.gate", 1)),
        SharedExpert { .. } => None,
    }
}

/// Values of the block that its backward pass reads.
struct Shared {
    pre: View,
    hidden: View,
    out: View,
    /// f32 `[n, 1]` or `[n, 2]`, before the sigmoid or softmax.
    gates: Option<View>,
}

/// Gradients of the two sides of the sum.
pub(super) struct Parted {
    /// Gradient of the experts' result.
    pub(super) experts: View,
    /// Gradient of the block's result.
    shared: View,
    gates: Option<View>,
}

impl Writer<'_> {
    fn shared(&mut self, of: SharedExpert) -> Shared {
        let f = Columns::plain(of.width);
        Shared {
            pre: self.activation("mlp.shared.pre", Dim::of([f, f])),
            hidden: self.activation("mlp.shared.hidden", Dim::plain(of.width)),
            out: self.residual_rows("mlp.shared.out"),
            gates: self.gates("mlp.shared.gates", of),
        }
    }

    fn gates(&mut self, name: &str, of: SharedExpert) -> Option<View> {
        let (_, count) = gate_map(of)?;
        let dims = [Dim::plain(self.n()), Dim::plain(count)];
        Some(self.recorder.value(name, Class::Local, DType::F32, dims))
    }

    /// The sum of `branch` and what the block makes of `input`, of which `read` are the rows in f32.
    pub(super) fn shared_forward(&mut self, of: SharedExpert, input: View, read: View, branch: View) -> View {
        let Shared { pre, hidden, out, gates } = self.shared(of);
        let product = self.linear(FIRST, input, pre);
        self.recorder.launch(product);
        let (gate, up) = halves(pre);
        let gated = Gated { kind: self.activation_kind(), gate, up, live: None, out: hidden };
        self.recorder.launch(gated);
        self.recorder.again(hidden, gated);
        let product = self.linear(LAST, hidden, out);
        self.recorder.launch(product);
        let sum = self.residual_rows("mlp.experts.sum");
        match gate_map(of).zip(gates) {
            Some(((map, _), gates)) => {
                let product = Linear { rowwise: true, ..self.linear(map, read, gates) };
                self.recorder.launch(product);
                self.recorder.launch(AddGatedRows { x: branch, y: out, gates, out: sum });
            }
            None => self.recorder.launch(Add { a: branch, b: out, out: sum }),
        }
        sum
    }

    /// The gradients of the two sides of a sum whose gradient is `dbranch`; `branch` is what the experts give.
    pub(super) fn shared_parted(&mut self, of: SharedExpert, branch: View, dbranch: View) -> Parted {
        let Shared { out, gates, .. } = self.shared(of);
        let dgates = self.gates("mlp.shared.gates.gradient", of);
        let Some((gates, dgates)) = gates.zip(dgates) else {
            return Parted { experts: dbranch, shared: dbranch, gates: None };
        };
        let dy = self.residual_rows("mlp.shared.out.gradient");
        let mixed =
            of.mixed.then(|| MixedRows { x: branch, dx: self.residual_rows("mlp.experts.branch.gradient") });
        self.recorder.launch(AddGatedRowsBackward { dout: dbranch, y: out, gates, mixed, dy, dgates });
        Parted { experts: mixed.map_or(dbranch, |mixed| mixed.dx), shared: dy, gates: Some(dgates) }
    }

    /// The gradients of the block, and what reaches `input` through it, added to `dinput`.
    pub(super) fn shared_backward(&mut self, of: SharedExpert, input: View, parted: &Parted, dinput: View) {
        let Shared { pre, hidden, .. } = self.shared(of);
        let dout = parted.shared;
        self.linear_gradients(LAST, hidden, dout);
        let dhidden = self.activation("mlp.shared.hidden.gradient", Dim::plain(of.width));
        let op = self.input_gradient(LAST, dout, dhidden);
        self.recorder.launch(op);
        let f = Columns::plain(of.width);
        let dpre = self.activation("mlp.shared.pre.gradient", Dim::of([f, f]));
        let ((gate, up), (dgate, dup)) = (halves(pre), halves(dpre));
        let kind = self.activation_kind();
        self.recorder.launch(GatedBackward { kind, gate, up, dout: dhidden, live: None, dgate, dup });
        self.linear_gradients(FIRST, input, dpre);
        // Tensor-parallel ranks make terms of it, which are summed before they are added.
        let dshared = self.residual_rows("mlp.shared.in.gradient");
        let op = self.input_gradient(FIRST, dpre, dshared);
        self.recorder.launch(op);
        self.recorder.launch(Add { a: dinput, b: dshared, out: dinput });
        if let Some(((map, _), dgates)) = gate_map(of).zip(parted.gates) {
            let read = self.router_input(input);
            self.linear_gradients(map, read, dgates);
            self.add_router_gradient(map, dgates, dinput);
        }
    }
}
