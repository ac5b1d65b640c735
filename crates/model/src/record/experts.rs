//! Experts in place of the feed-forward block: `sum over the k experts e that the router chooses of w_e (f(gate_e) * up_e) Wdown_e`.
//!
//! | step | operator |
//! |---|---|
//! | router logits, f32 whatever the type of the activations | linear |
//! | probabilities, choices, weights | route |
//! | loads of a sequence, and the losses that balance them (training) | count_choices, balance_loss |
//! | a row for each choice, sorted by expert | assign_rows, dispatch |
//! | each expert's block on its rows | grouped_linear, gated, grouped_linear |
//! | weighed sum of a token's rows | combine_rows |
//! | a block beside the experts, if the model has one ([`super::shared_expert`]) | linear, gated, linear, add or add_gated_rows |
//!
//! Lists do not depend on the choices: counts and offsets are values, and all k n rows are computed, none is dropped
//! (Gale et al. 2022, MegaBlocks). Backward, routing values are those that the forward pass has left; copies of rows are made again.

use super::Writer;
use super::residual::Block;
use bessemer_arch::Experts;
use bessemer_mesh::{Block as Columns, Dim};
use bessemer_program::{Class, Phase};
use bessemer_tensor::View;
use bessemer_tensor::op::{
    AssignRows, BalanceLoss, BalanceTerm, CombineRows, CombineRowsBackward, Copy, CountChoices, Dispatch,
    DispatchBackward, Gated, GatedBackward, GroupedLinear, GroupedLinearBackwardInput,
    GroupedLinearBackwardWeight, Linear, LinearBackwardInput, Route, RouteBackward, TokenSpan,
};
use bessemer_units::DType;

const EXPERTS: Block = Block {
    norm: "mlp_norm",
    first: "mlp.router",
    last: "mlp.experts.down",
    dropout: "mlp.down.dropout",
    branch: "mlp.branch",
};

/// Name of the auxiliary loss that balances the loads of experts: of each sequence and layer `E / (k T^2) sum_i c_i sum_t p[t, i]`,
/// c the choices of expert i, averaged over sequences and summed over layers (Shazeer et al. 2017; Fedus et al. 2021).
pub const BALANCE_LOSS: &str = "experts_balance";

/// Name of the auxiliary loss `mean(lse^2)`, lse the log-sum-exp of a token's router logits, summed over layers (Zoph et al. 2022).
pub const ROUTER_Z_LOSS: &str = "experts_z_loss";

/// Values of a layer's experts.
#[derive(Clone, Copy)]
struct Routed {
    logits: View,
    probabilities: View,
    experts: View,
    weights: View,
    lse: View,
    rows: View,
    sources: View,
    offsets: View,
    /// Rows of all choices: inputs of the experts, values before and behind their gates, results.
    dispatched: View,
    pre: View,
    hidden: View,
    out: View,
}

impl Writer<'_> {
    fn value(&mut self, name: &str, dtype: DType, dims: [Dim; 2]) -> View {
        self.recorder.value(&format!("mlp.experts.{name}"), Class::Local, dtype, dims)
    }

    /// Activations of the rows of all choices.
    fn at_experts(&mut self, name: &str, cols: Dim) -> View {
        let rows = self.n() * self.model().experts.map_or(0, |experts| experts.choices);
        let dtype = self.recording.storage;
        self.recorder.value(name, Class::Local, dtype, [Dim::plain(rows), cols])
    }

    fn routed(&mut self, Experts { count, choices, width, .. }: Experts) -> Routed {
        let (n, d) = (Dim::plain(self.n()), self.model().width);
        let (e, k, one) = (Dim::plain(count), Dim::plain(choices), Dim::plain(1));
        let f = Columns::plain(width);
        Routed {
            logits: self.value("logits", DType::F32, [n.clone(), e.clone()]),
            probabilities: self.value("probabilities", DType::F32, [n.clone(), e]),
            experts: self.value("chosen", DType::U32, [n.clone(), k.clone()]),
            weights: self.value("weights", DType::F32, [n.clone(), k.clone()]),
            lse: self.value("lse", DType::F32, [one.clone(), n.clone()]),
            rows: self.value("rows", DType::U32, [n, k]),
            sources: self.value("sources", DType::U32, [one.clone(), Dim::plain(self.n() * choices)]),
            offsets: self.value("offsets", DType::U32, [one, Dim::plain(count + 1)]),
            dispatched: self.at_experts("mlp.experts.in", Dim::plain(d)),
            pre: self.at_experts("mlp.pre", Dim::of([f, f])),
            hidden: self.at_experts("mlp.hidden", Dim::plain(width)),
            out: self.at_experts("mlp.experts.out", Dim::plain(d)),
        }
    }

    /// The rows that the router reads: f32.
    pub(super) fn router_input(&mut self, input: View) -> View {
        if input.dtype() == DType::F32 {
            return input;
        }
        let (n, d) = (self.n(), self.model().width);
        let dst = self.value("router.in", DType::F32, [Dim::plain(n), Dim::plain(d)]);
        self.recorder.launch(Copy { src: input, dst });
        dst
    }

    /// Loads and losses of what was routed, which training passes make.
    fn balance_losses(&mut self, routed: &Routed, Experts { count, choices, .. }: Experts) {
        let (sequences, span) = (self.recording.sequences, TokenSpan::whole(self.recording.seq));
        let counts = self.value("counts", DType::U32, [Dim::plain(sequences), Dim::plain(count)]);
        let &Routed { probabilities, experts, lse, .. } = routed;
        self.recorder.launch(CountChoices { experts, span, counts });
        let dims = [Dim::plain(1), Dim::plain(count)];
        let counts_of_pass = self.recorder.value("mlp.experts.loads", Class::Counts, DType::U32, dims);
        let span_of_pass = TokenSpan::whole(self.n());
        self.recorder.launch(CountChoices { experts, span: span_of_pass, counts: counts_of_pass });
        let dims = [Dim::plain(1), Dim::plain(sequences)];
        let (value, _) = self.recorder.auxiliary_loss(BALANCE_LOSS, false, dims);
        self.recorder.launch(BalanceLoss { probabilities, counts, choices, span, value });
        let dims = [Dim::plain(1), Dim::plain(self.n())];
        let (dst, _) = self.recorder.auxiliary_loss(ROUTER_Z_LOSS, true, dims);
        self.recorder.launch(Copy { src: lse, dst });
    }

    pub(super) fn experts_forward(&mut self, experts: Experts) {
        let (x, x_out) = (self.residual_rows("attention.out"), self.stream(Class::StreamOut));
        let input = self.enter(EXPERTS, x);
        let routed = self.routed(experts);
        let Routed { logits, probabilities, weights, lse, rows, sources, offsets, .. } = routed;
        let read = self.router_input(input);
        let product = Linear { rowwise: true, ..self.linear(EXPERTS.first, read, logits) };
        self.recorder.launch(product);
        let (renormalise, chosen) = (experts.renormalise, routed.experts);
        let lse = Some(lse);
        self.recorder.launch(Route { logits, probabilities, experts: chosen, weights, lse, renormalise });
        if self.recording.train && self.recorder.phase() == Phase::Forward {
            self.balance_losses(&routed, experts);
        }
        self.recorder.launch(AssignRows { experts: chosen, rows, sources, offsets });
        let Routed { dispatched, pre, hidden, out, .. } = routed;
        let copies = Dispatch { x: input, sources, choices: experts.choices, out: dispatched };
        self.recorder.launch(copies);
        self.recorder.again(dispatched, copies);
        let weight = self.weight("mlp.experts.gate_up.weight");
        self.recorder.launch(GroupedLinear { x: dispatched, weight, offsets, out: pre });
        let gated = self.gated(pre, hidden);
        self.recorder.launch(gated);
        self.recorder.again(hidden, gated);
        let weight = self.weight("mlp.experts.down.weight");
        self.recorder.launch(GroupedLinear { x: hidden, weight, offsets, out });
        let mut branch = self.residual_rows(EXPERTS.branch);
        self.recorder.launch(CombineRows { x: out, rows, weights, out: branch });
        if let Some(shared) = self.model().shared_expert {
            branch = self.shared_forward(shared, input, read, branch);
        }
        self.join(EXPERTS, branch, x, x_out);
    }

    fn gated(&self, pre: View, out: View) -> Gated {
        let (gate, up) = super::mlp::halves(pre);
        Gated { live: None, kind: self.activation_kind(), gate, up, out }
    }

    pub(super) fn experts_backward(&mut self, experts: Experts) {
        let x = self.residual_rows("attention.out");
        let (dbranch, kept) = self.join_backward(EXPERTS);
        let routed = self.routed(experts);
        let Routed { rows, sources, offsets, weights, dispatched, pre, hidden, out, .. } = routed;
        let (n, d, width) = (self.n(), self.model().width, experts.width);
        let dout = self.at_experts("mlp.experts.out.gradient", Dim::plain(d));
        let dims = [Dim::plain(n), Dim::plain(experts.choices)];
        let dweights = self.value("weights.gradient", DType::F32, dims);
        let spread =
            CombineRowsBackward { dout: dbranch, x: out, rows, sources, weights, dx: dout, dweights };
        self.recorder.launch(spread);
        let dweight = self.weight_gradient("mlp.experts.down.weight");
        let accumulate = false;
        self.recorder.launch(GroupedLinearBackwardWeight {
            x: hidden,
            dy: dout,
            offsets,
            dweight,
            accumulate,
        });
        let (weight, dhidden) = (
            self.weight("mlp.experts.down.weight"),
            self.at_experts("mlp.hidden.gradient", Dim::plain(width)),
        );
        self.recorder.launch(GroupedLinearBackwardInput { dy: dout, weight, offsets, dx: dhidden });
        let f = Columns::plain(width);
        let dpre = self.at_experts("mlp.pre.gradient", Dim::of([f, f]));
        let ((gate, up), (dgate, dup)) = (super::mlp::halves(pre), super::mlp::halves(dpre));
        let kind = self.activation_kind();
        self.recorder.launch(GatedBackward { live: None, kind, gate, up, dout: dhidden, dgate, dup });
        let dweight = self.weight_gradient("mlp.experts.gate_up.weight");
        self.recorder.launch(GroupedLinearBackwardWeight {
            x: dispatched,
            dy: dpre,
            offsets,
            dweight,
            accumulate,
        });
        let (weight, dback) = (
            self.weight("mlp.experts.gate_up.weight"),
            self.at_experts("mlp.experts.in.gradient", Dim::plain(d)),
        );
        self.recorder.launch(GroupedLinearBackwardInput { dy: dpre, weight, offsets, dx: dback });
        let dinput = self.entry_gradient(EXPERTS);
        self.recorder.launch(DispatchBackward { dout: dback, rows, dx: dinput, accumulate: false });
        let input = self.read_again(EXPERTS, x);
        self.router_backward(&routed, experts, dweights, (input, dinput));
        if let Some(shared) = self.model().shared_expert {
            self.shared_backward(shared, input, dbranch, dinput);
        }
        self.entered_backward(EXPERTS, x, dinput, kept);
    }

    /// The gradients of the router, and what reaches its input through it, added to `dinput`.
    fn router_backward(
        &mut self,
        routed: &Routed,
        experts: Experts,
        dweights: View,
        (input, dinput): (View, View),
    ) {
        let (sequences, n) = (self.recording.sequences, self.n());
        let counts = self.value("counts", DType::U32, [Dim::plain(sequences), Dim::plain(experts.count)]);
        let dlogits = self.value("logits.gradient", DType::F32, [Dim::plain(n), Dim::plain(experts.count)]);
        let weight = |writer: &Writer<'_>, loss| {
            let name = format!("{loss}.weight");
            writer.recorder.find(&name).expect("the forward list has the loss")
        };
        let balance = BalanceTerm { counts, weight: weight(self, BALANCE_LOSS) };
        self.recorder.launch(RouteBackward {
            probabilities: routed.probabilities,
            experts: routed.experts,
            weights: routed.weights,
            dweights,
            balance: Some(balance),
            z_loss: Some((routed.lse, weight(self, ROUTER_Z_LOSS))),
            renormalise: experts.renormalise,
            span: TokenSpan::whole(self.recording.seq),
            dlogits,
        });
        let read = self.router_input(input);
        self.linear_gradients(EXPERTS.first, read, dlogits);
        self.add_router_gradient(EXPERTS.first, dlogits, dinput);
    }

    /// Adds to `dinput` what reaches the input of a map that reads rows in f32.
    pub(super) fn add_router_gradient(&mut self, map: &str, dy: View, dinput: View) {
        if dinput.dtype() == DType::F32 {
            let op = LinearBackwardInput { accumulate: true, ..self.input_gradient(map, dy, dinput) };
            self.recorder.launch(op);
            return;
        }
        let dims = [Dim::plain(self.n()), Dim::plain(self.model().width)];
        let dread = self.recorder.value(&format!("{map}.read.gradient"), Class::Local, DType::F32, dims);
        let op = self.input_gradient(map, dy, dread);
        self.recorder.launch(op);
        let rounded = self.residual_rows(&format!("{map}.gradient"));
        self.recorder.launch(Copy { src: dread, dst: rounded });
        self.recorder.launch(bessemer_tensor::op::Add { a: dinput, b: rounded, out: dinput });
    }
}
