//! The block beside the experts of a layer: `y + g (f(x Wgate) * (x Wup)) Wdown`, y what the experts give and g the sigmoid of one number a
//! token, computed in f32, or 1 (Dai et al. 2024, DeepSeekMoE; Qwen2-MoE).
//!
//! Cost forward: 6 n D F FLOPs. Hidden values may be made again from the pre-activations.

use super::Writer;
use super::mlp::halves;
use bessemer_arch::SharedExpert;
use bessemer_mesh::{Block as Columns, Dim};
use bessemer_program::Class;
use bessemer_tensor::View;
use bessemer_tensor::op::{Add, AddGatedRows, AddGatedRowsBackward, Gated, GatedBackward, Linear};
use bessemer_units::DType;

const FIRST: &str = "mlp.shared.gate_up";
const LAST: &str = "mlp.shared.down";
const GATE: &str = "mlp.shared.gate";

/// Values of the block that its backward pass reads.
struct Shared {
    pre: View,
    hidden: View,
    out: View,
    /// f32 `[n, 1]`, before the sigmoid.
    gates: Option<View>,
}

impl Writer<'_> {
    fn shared(&mut self, SharedExpert { width, gate }: SharedExpert) -> Shared {
        let f = Columns::plain(width);
        Shared {
            pre: self.activation("mlp.shared.pre", Dim::of([f, f])),
            hidden: self.activation("mlp.shared.hidden", Dim::plain(width)),
            out: self.residual_rows("mlp.shared.out"),
            gates: gate.then(|| self.gates("mlp.shared.gates")),
        }
    }

    /// f32 `[n, 1]`.
    fn gates(&mut self, name: &str) -> View {
        let dims = [Dim::plain(self.n()), Dim::plain(1)];
        self.recorder.value(name, Class::Local, DType::F32, dims)
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
        match gates {
            Some(gates) => {
                let product = Linear { rowwise: true, ..self.linear(GATE, read, gates) };
                self.recorder.launch(product);
                self.recorder.launch(AddGatedRows { x: branch, y: out, gates, out: sum });
            }
            None => self.recorder.launch(Add { a: branch, b: out, out: sum }),
        }
        sum
    }

    /// The gradients of the block, and what reaches `input` through it, added to `dinput`. `dbranch` is the gradient of the sum.
    pub(super) fn shared_backward(&mut self, of: SharedExpert, input: View, dbranch: View, dinput: View) {
        let Shared { pre, hidden, out, gates } = self.shared(of);
        let mut dout = dbranch;
        let dgates = gates.map(|gates| {
            let dgates = self.gates("mlp.shared.gates.gradient");
            let dy = self.residual_rows("mlp.shared.out.gradient");
            self.recorder.launch(AddGatedRowsBackward { dout, y: out, gates, dy, dgates });
            dout = dy;
            dgates
        });
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
        if let Some(dgates) = dgates {
            let read = self.router_input(input);
            self.linear_gradients(GATE, read, dgates);
            self.add_router_gradient(GATE, dgates, dinput);
        }
    }
}
