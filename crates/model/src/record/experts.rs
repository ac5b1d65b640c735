//! Experts in place of the feed-forward block: `sum over the k experts e that the router chooses of w_e (f(gate_e) * up_e) Wdown_e`.
//!
//! | step | operator |
//! |---|---|
//! | noise on the router's input, if the gate has any (training) | dropout |
//! | router logits, f32 whatever the type of the activations | linear |
//! | experts of other nodes closed to most tokens, if the gate has nodes (training) | keep_in_node |
//! | scores, choices, weights | route |
//! | loads of a sequence, and the losses that balance them (training) | count_choices, balance_loss |
//! | choices that are kept, if experts have a capacity (training, or where experts choose) | random_numbers, keep_choices |
//! | a row for each choice, sorted by expert | assign_rows, dispatch |
//! | each expert's block on its rows | grouped_linear, gated, grouped_linear |
//! | weighed sum of a token's rows | combine_rows |
//! | a block beside the experts, if the model has one ([`super::shared_expert`]) | linear, gated, linear, add or add_gated_rows |
//!
//! Lists do not depend on the choices: counts and offsets are values. Without a capacity all k n rows are computed, none is dropped
//! (Gale et al. 2022, MegaBlocks); values of rows have places for all k n in any case. Backward, routing values are those that the forward pass has left; copies of rows are made again.

use super::Writer;
use super::residual::Block;
use bessemer_arch::{BalanceCounts, Capacity, DropChoice, Experts, ScoreChoice};
use bessemer_mesh::{Block as Columns, Dim};
use bessemer_program::{Class, Phase};
use bessemer_tensor::View;
use bessemer_tensor::op::{
    AssignRows, BalanceLoss, BalanceTerm, CombineRows, CombineRowsBackward, Copy, CountChoices, Dispatch,
    DispatchBackward, DropRule, Dropout, DropoutMask, Gate, Gated, GatedBackward, GroupedLinear,
    GroupedLinearBackwardInput, GroupedLinearBackwardWeight, KeepChoices, KeepInNode, Linear,
    LinearBackwardInput, Noise, RandomNumbers, RandomSecond, Route, RouteBackward, Score, TokenRows,
    TokenSpan,
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

/// Numbers that count what a capacity does: `kept` is 0 or 1.
const DROPPED_AND_KEPT: usize = 2;

/// Values of a layer's experts.
#[derive(Clone, Copy)]
struct Routed {
    logits: View,
    probabilities: View,
    experts: View,
    /// Choices that a balance loss counts, if they are not those that are made.
    preferred: Option<View>,
    weights: View,
    /// Log-sum-exps of softmax scores.
    lse: Option<View>,
    /// 1 for a choice that is kept, if choices may be dropped.
    kept: Option<View>,
    rows: View,
    sources: View,
    offsets: View,
    /// Rows of all choices: inputs of the experts, values before and behind their gates, results.
    dispatched: View,
    pre: View,
    hidden: View,
    out: View,
}

/// The operators' form of a gate.
fn gate(experts: Experts) -> Gate {
    let of = experts.gate;
    let (groups, kept) = of.groups.map_or((1, 1), |groups| (groups.count, groups.kept));
    Gate {
        score: match of.score {
            ScoreChoice::Softmax => Score::Softmax,
            ScoreChoice::Sigmoid => Score::Sigmoid,
        },
        renormalise: experts.renormalise,
        groups,
        kept,
        scale: of.scale.unwrap_or(1.0) as f32,
    }
}

impl Writer<'_> {
    fn value(&mut self, name: &str, dtype: DType, dims: [Dim; 2]) -> View {
        self.recorder.value(&format!("mlp.experts.{name}"), Class::Local, dtype, dims)
    }

    /// Activations of the rows of all choices.
    fn at_experts(&mut self, name: &str, cols: Dim) -> View {
        let rows = self.n() * self.experts.map_or(0, |experts| experts.candidates());
        let dtype = self.recording.storage;
        self.recorder.value(name, Class::Local, dtype, [Dim::plain(rows), cols])
    }

    fn routed(&mut self, experts: Experts) -> Routed {
        let Experts { count, width, gate, .. } = experts;
        let choices = experts.candidates();
        let (n, d) = (Dim::plain(self.n()), self.model().width);
        let prefers = gate.balance_counts == BalanceCounts::Scores && (gate.bias || gate.groups.is_some());
        let choice = |writer: &mut Self, name: &str| {
            let dims = [Dim::plain(writer.n()), Dim::plain(choices)];
            writer.value(name, DType::U32, dims)
        };
        let preferred = prefers.then(|| choice(self, "preferred"));
        let kept = self.capacity(experts).map(|_| {
            let kept = choice(self, "kept");
            self.recorder.residual(kept)
        });
        let has_lse = gate.score == ScoreChoice::Softmax;
        let lse = has_lse.then(|| self.value("lse", DType::F32, [Dim::plain(1), n.clone()]));
        let (e, k, one) = (Dim::plain(count), Dim::plain(choices), Dim::plain(1));
        let f = Columns::plain(width);
        Routed {
            logits: self.value("logits", DType::F32, [n.clone(), e.clone()]),
            probabilities: self.value("probabilities", DType::F32, [n.clone(), e]),
            experts: self.value("chosen", DType::U32, [n.clone(), k.clone()]),
            preferred,
            weights: self.value("weights", DType::F32, [n.clone(), k.clone()]),
            lse,
            kept,
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

    /// Whether the passes that are recorded, backward and forward ones of training, limit the choices of tokens.
    fn limits(&self) -> bool {
        self.recording.train && self.recorder.phase() != Phase::Score
    }

    /// The capacity of experts in the passes that are recorded: those of training have one, others where experts choose.
    fn capacity(&self, experts: Experts) -> Option<Capacity> {
        experts.gate.capacity.filter(|_| self.limits() || !experts.gate.is_causal())
    }

    /// The logits by which tokens choose. Those of closed experts have no gradient, because their probabilities are 0.
    fn open_logits(&mut self, experts: Experts, logits: View) -> View {
        let Some(nodes) = experts.gate.nodes.filter(|_| self.limits()) else { return logits };
        let dims = [Dim::plain(self.n()), Dim::plain(experts.count)];
        let out = self.value("logits.open", DType::F32, dims);
        let out = self.recorder.residual(out);
        let group = self.recording.seq;
        let counters = self.mask("mlp.experts.node", group).counters;
        self.recorder.launch(KeepInNode {
            logits,
            counters,
            nodes: nodes.count,
            group,
            turn: nodes.sequences * group,
            leaving: nodes.leaving(group),
            here: TokenRows::whole(self.n()),
            out,
        });
        out
    }

    /// The choices that are kept.
    fn keep(&mut self, routed: &Routed, experts: Experts) {
        let (Some(capacity), Some(kept)) = (self.capacity(experts), routed.kept) else { return };
        let group = capacity.sequences * self.recording.seq;
        let second = capacity.random_second.then(|| {
            let random = self.value("random", DType::F32, [Dim::plain(self.n()), Dim::plain(1)]);
            let counters = self.mask("mlp.experts.second", self.recording.seq).counters;
            self.recorder.launch(RandomNumbers { counters, out: random });
            RandomSecond { weights: routed.weights, random }
        });
        let drop = match capacity.drop {
            DropChoice::Position => DropRule::Position,
            DropChoice::Choice => DropRule::Choice,
            DropChoice::Score => DropRule::Score,
        };
        self.recorder.launch(KeepChoices {
            experts: routed.experts,
            scores: (drop == DropRule::Score).then_some(routed.probabilities),
            second,
            count: experts.count,
            capacity: capacity.rows(experts.choices, group, experts.count),
            group,
            drop,
            here: TokenRows::whole(self.n()),
            kept,
        });
    }

    /// Noise on a value of the router's rows in f32, in training: on what the router reads and on its gradient alike.
    fn jitter(&mut self, experts: Experts, name: &str, x: View) -> View {
        let p = experts.gate.jitter as f32;
        if p == 0.0 || !self.limits() {
            return x;
        }
        let (n, global_cols) = (self.n(), self.model().width);
        let out = self.value(name, DType::F32, [Dim::plain(n), Dim::plain(global_cols)]);
        let mask = self.mask("mlp.router.jitter", self.recording.seq * global_cols);
        let mask = DropoutMask { p, ..mask };
        self.recorder.launch(Dropout { x, out, mask, noise: Noise::Uniform, global_cols });
        out
    }

    /// Loads for the balance loss: counts of sequences, or of groups of them, or the loads of the step before.
    fn loads(&mut self, Experts { count, gate, .. }: Experts) -> (View, TokenSpan) {
        let Some(sequences) = gate.balance_over.sequences() else {
            return (self.weight("mlp.router.loads"), TokenSpan::whole(self.n()));
        };
        let span = TokenSpan::whole(sequences * self.recording.seq);
        let groups = self.recording.sequences.div_ceil(sequences);
        (self.value("counts", DType::U32, [Dim::plain(groups), Dim::plain(count)]), span)
    }

    /// Choices of each expert in a pass, followed by the numbers of dropped and of kept ones if there is a capacity.
    fn counts_of_pass(&mut self, of: Experts) -> View {
        let drops = of.gate.is_causal() && self.capacity(of).is_some();
        let dims = [Dim::plain(1), Dim::plain(of.count + if drops { DROPPED_AND_KEPT } else { 0 })];
        self.recorder.value("mlp.experts.loads", Class::Counts, DType::U32, dims)
    }

    /// Counts choices that are dropped and kept.
    fn count_drops(&mut self, of: Experts, kept: Option<View>) {
        let (Some(kept), counts) = (kept, self.counts_of_pass(of)) else { return };
        if counts.cols > of.count {
            let span = TokenSpan::whole(self.n());
            let counts = counts.columns(of.count, DROPPED_AND_KEPT);
            self.recorder.launch(CountChoices { experts: kept, span, counts });
        }
    }

    /// Loads and losses of what was routed, which training passes make.
    fn balance_losses(&mut self, routed: &Routed, of: Experts) {
        let (count, choices) = (of.count, of.candidates());
        let (counts, span) = self.loads(of);
        let &Routed { probabilities, experts, lse, .. } = routed;
        if counts.dtype() == DType::U32 {
            let experts = routed.preferred.unwrap_or(experts);
            self.recorder.launch(CountChoices { experts, span, counts });
        }
        let span_of_pass = TokenSpan::whole(self.n());
        let counts_of_pass = self.counts_of_pass(of).columns(0, count);
        self.recorder.launch(CountChoices { experts, span: span_of_pass, counts: counts_of_pass });
        let dims = [Dim::plain(1), Dim::plain(counts.rows)];
        let (value, _) = self.recorder.auxiliary_loss(BALANCE_LOSS, false, dims);
        let normalise = of.gate.score == ScoreChoice::Sigmoid;
        self.recorder.launch(BalanceLoss { probabilities, counts, choices, normalise, span, value });
        let Some(src) = lse else { return };
        let dims = [Dim::plain(1), Dim::plain(self.n())];
        let (dst, _) = self.recorder.auxiliary_loss(ROUTER_Z_LOSS, true, dims);
        self.recorder.launch(Copy { src, dst });
    }

    pub(super) fn experts_forward(&mut self, experts: Experts) {
        let (x, x_out) = (self.residual_rows("attention.out"), self.stream(Class::StreamOut));
        let input = self.enter(EXPERTS, x);
        let routed = self.routed(experts);
        let Routed { logits, probabilities, preferred, weights, lse, kept, rows, sources, offsets, .. } =
            routed;
        let read = self.router_input(input);
        let noisy = self.jitter(experts, "router.noisy", read);
        let product = Linear { rowwise: true, ..self.linear(EXPERTS.first, noisy, logits) };
        self.recorder.launch(product);
        let (gate, chosen) = (gate(experts), routed.experts);
        let bias = self.parameter("mlp.router.correction");
        let logits = self.open_logits(experts, logits);
        self.recorder.launch(Route {
            logits,
            bias,
            probabilities,
            experts: chosen,
            preferred,
            weights,
            lse,
            gate,
        });
        if self.recording.train && self.recorder.phase() == Phase::Forward {
            self.balance_losses(&routed, experts);
        }
        self.keep(&routed, experts);
        if self.recording.train && self.recorder.phase() == Phase::Forward {
            self.count_drops(experts, kept);
        }
        self.recorder.launch(AssignRows { experts: chosen, kept, shadows: None, rows, sources, offsets });
        let Routed { dispatched, pre, hidden, out, .. } = routed;
        let copies = Dispatch { x: input, sources, choices: experts.candidates(), out: dispatched };
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
        let (dsum, joined) = self.join_backward(EXPERTS);
        let routed = self.routed(experts);
        let shared = self.model().shared_expert.map(|of| {
            let branch = self.residual_rows(EXPERTS.branch);
            (of, self.shared_parted(of, branch, dsum))
        });
        let dbranch = shared.as_ref().map_or(dsum, |(_, parted)| parted.experts);
        let Routed { rows, sources, offsets, weights, dispatched, pre, hidden, out, .. } = routed;
        let (n, d, width) = (self.n(), self.model().width, experts.width);
        let dout = self.at_experts("mlp.experts.out.gradient", Dim::plain(d));
        let dims = [Dim::plain(n), Dim::plain(experts.candidates())];
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
        if let Some((of, parted)) = &shared {
            self.shared_backward(*of, input, parted, dinput);
        }
        self.entered_backward(EXPERTS, x, dinput, joined);
    }

    /// The gradients of the router, and what reaches its input through it, added to `dinput`.
    fn router_backward(
        &mut self,
        routed: &Routed,
        experts: Experts,
        dweights: View,
        (input, dinput): (View, View),
    ) {
        let n = self.n();
        let (counts, span) = self.loads(experts);
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
            z_loss: routed.lse.map(|lse| (lse, weight(self, ROUTER_Z_LOSS))),
            gate: gate(experts),
            span,
            dlogits,
        });
        let read = self.router_input(input);
        let noisy = self.jitter(experts, "router.noisy", read);
        self.linear_gradients(EXPERTS.first, noisy, dlogits);
        match noisy == read {
            true => self.add_router_gradient(EXPERTS.first, dlogits, dinput),
            false => {
                let dnoisy = self.read_gradient(EXPERTS.first, dlogits);
                let dread = self.jitter(experts, "router.read.gradient", dnoisy);
                self.add_read_gradient(EXPERTS.first, dread, dinput);
            }
        }
    }

    /// The gradient of the rows in f32 that a map reads.
    fn read_gradient(&mut self, map: &str, dy: View) -> View {
        let dims = [Dim::plain(self.n()), Dim::plain(self.model().width)];
        let dread = self.recorder.value(&format!("{map}.read.gradient"), Class::Local, DType::F32, dims);
        let op = self.input_gradient(map, dy, dread);
        self.recorder.launch(op);
        dread
    }

    /// Adds to `dinput` what reaches the input of a map that reads rows in f32.
    pub(super) fn add_router_gradient(&mut self, map: &str, dy: View, dinput: View) {
        if dinput.dtype() == DType::F32 {
            let op = LinearBackwardInput { accumulate: true, ..self.input_gradient(map, dy, dinput) };
            self.recorder.launch(op);
            return;
        }
        let dread = self.read_gradient(map, dy);
        self.add_read_gradient(map, dread, dinput);
    }

    /// Adds to `dinput` the gradient of the rows in f32 that a map reads.
    fn add_read_gradient(&mut self, map: &str, dread: View, dinput: View) {
        if dinput.dtype() == DType::F32 {
            self.recorder.launch(bessemer_tensor::op::Add { a: dinput, b: dread, out: dinput });
            return;
        }
        let rounded = self.residual_rows(&format!("{map}.gradient"));
        self.recorder.launch(Copy { src: dread, dst: rounded });
        self.recorder.launch(bessemer_tensor::op::Add { a: dinput, b: rounded, out: dinput });
    }
}
