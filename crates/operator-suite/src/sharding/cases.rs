//! One operator of every kind, and more where options change the rule. Loops have at least two iterations, and different
//! numbers of them.

use bessemer_tensor::op::*;
use bessemer_tensor::rng::RngKey;
use bessemer_tensor::{Buffer, View};
use bessemer_units::DType;
use std::collections::BTreeMap;

/// Values of an operand. Indices are kept as floats.
#[derive(Debug, Clone)]
pub(crate) struct Data {
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) values: Vec<f32>,
}

/// An operator on virtual buffers, and the values of its operands.
pub(crate) struct Case {
    pub(crate) what: String,
    pub(crate) op: Op,
    pub(crate) values: BTreeMap<&'static str, Data>,
}

#[derive(Default)]
struct Maker {
    buffers: Vec<Data>,
    cases: Vec<Case>,
}

impl Maker {
    fn view(&mut self, dtype: DType, rows: usize, cols: usize, values: Vec<f32>) -> View {
        let id = self.buffers.len() as u32;
        self.buffers.push(Data { rows, cols, values });
        Buffer { id, len: rows * cols, dtype }.matrix(rows, cols)
    }

    fn with(&mut self, rows: usize, cols: usize, value: impl Fn(usize, f32) -> f32) -> View {
        let mut values = vec![0.0; rows * cols];
        RngKey::new(9, self.buffers.len() as u64, "case").fill_normal(0, 1.0, &mut values);
        let values = values.into_iter().enumerate().map(|(i, x)| value(i, x)).collect();
        self.view(DType::F32, rows, cols, values)
    }

    /// Normal values.
    fn normal(&mut self, rows: usize, cols: usize) -> View {
        self.with(rows, cols, |_, x| x)
    }

    /// Values from 0.5 on.
    fn positive(&mut self, rows: usize, cols: usize) -> View {
        self.with(rows, cols, |_, x| 0.5 + x.abs())
    }

    fn codes(&mut self, rows: usize, cols: usize) -> View {
        let values = (0..rows * cols).map(|i| (i * 37 % 256) as f32).collect();
        self.view(DType::U8, rows, cols, values)
    }

    fn indices(&mut self, count: usize, index: impl Fn(usize) -> usize) -> View {
        self.view(DType::U32, 1, count, (0..count).map(|i| index(i) as f32).collect())
    }

    fn index_mat(&mut self, rows: usize, cols: usize, index: impl Fn(usize) -> usize) -> View {
        self.view(DType::U32, rows, cols, (0..rows * cols).map(|i| index(i) as f32).collect())
    }

    fn case(&mut self, what: &str, op: impl Into<Op>) {
        let op = op.into();
        let values = (op.operands().iter())
            .map(|o| (o.name, self.buffers[o.view.buffer.id as usize].clone()))
            .collect();
        self.cases.push(Case { what: format!("{} {what}", op.name()), op, values });
    }
}

pub(crate) fn cases() -> Vec<Case> {
    let mut m = Maker::default();
    elementwise(&mut m);
    attentions(&mut m);
    tables(&mut m);
    products(&mut m);
    losses(&mut m);
    experts(&mut m);
    norms(&mut m);
    matrices(&mut m);
    optimizers(&mut m);
    m.cases
}

fn elementwise(m: &mut Maker) {
    let (r, c) = (5, 7);
    let kind = ActivationKind::GeluErf;
    let [x, y, z, out, other] = std::array::from_fn(|_| m.normal(r, c));
    m.case("0", Fill { dst: out, value: 0.0 });
    m.case("1.5", Fill { dst: out, value: 1.5 });
    m.case("", Copy { src: x, dst: out });
    m.case("", Add { a: x, b: y, out });
    m.case("in place", Add { a: x, b: y, out: x });
    m.case("", Scale { x, out, factor: -1.25 });
    let counters = m.indices(DropoutMask::WORDS, |i| [81, 90, 9, 0, 0, 0][i]);
    let mask = DropoutMask { p: 0.4, counters, first: 6 };
    m.case("", Dropout { x, out, mask, noise: Noise::Bernoulli, global_cols: c });
    m.case("jitter", Dropout { x, out, mask, noise: Noise::Uniform, global_cols: c });
    m.case("of a shard of columns", Dropout { x, out: x, mask, noise: Noise::Bernoulli, global_cols: 31 });
    m.case("", Activation { kind, x, out });
    m.case("", ActivationBackward { kind, x, dout: y, dx: out });
    m.case("", Gated { live: None, kind, gate: x, up: y, out });
    m.case("", GatedBackward { live: None, kind, gate: x, up: y, dout: z, dgate: out, dup: other });
    m.case("in place", GatedBackward { live: None, kind, gate: x, up: y, dout: z, dgate: x, dup: y });
    m.case("", Combine { a: x, alpha: 0.3, b: y, beta: -1.5, step: None, out });
    let (codes, values) = (m.codes(r, 3 * c), m.normal(r, 3 * c));
    let scales = m.normal(r, 3);
    for (what, keep_sign, accumulate) in [("", true, false), ("of gradients", false, true)] {
        m.case(what, Quantise { src: values, codes, scales, keep_sign });
        m.case(what, Dequantise { codes, scales, dst: values, accumulate });
    }
    let (weight, a, b, squares) = (m.normal(c, r), m.normal(3, r), m.normal(c, 3), m.positive(1, c));
    m.case("", AdaptedSquares { weight, a, b, scale: 0.5, out: squares });
    let (magnitude, bias, dmagnitude) = (m.normal(1, c), m.normal(1, c), m.normal(1, c));
    for (what, bias, accumulate) in [("", None, false), ("with a bias", Some(bias), true)] {
        m.case(what, Magnitudes { x, bias, magnitude, squares, out });
        let (dout, dx) = (y, out);
        m.case(what, MagnitudesBackward { dout, x, bias, magnitude, squares, dx, dmagnitude, accumulate });
    }
    let step = Some(m.with(1, 2, |i, _| [1.0, 0.5][i]));
    m.case("with a step", Combine { a: x, alpha: 0.3, b: y, beta: -1.5, step, out });
}

fn attentions(m: &mut Maker) {
    // Sequences, positions, key/value heads, query heads of each, width. Heads that are numbered (slopes, masks) can be
    // sharded within a group only where there is one group.
    for (b, t, g, r, e, numbered) in [
        (3, 6, 2, 3, 4, false),
        (2, 5, 3, 1, 4, true),
        (2, 5, 1, 4, 6, true),
        (1, 7, 2, 2, 4, false),
        (1, 9, 1, 2, 6, true),
    ] {
        let heads = g * r;
        let shape = AttentionShape { batch: b, seq: t, heads, kv_heads: g, head_dim: e, scale: 0.6 };
        let n = b * t;
        let [q, out, dout, dq] = std::array::from_fn(|_| m.normal(n, heads * e));
        let [k, v, dk, dv] = std::array::from_fn(|_| m.normal(n, g * e));
        let documents = m.indices(n, |i| if i % t >= 3 { 3 } else { 0 });
        // Sums of exponentials that make weights around 1/t.
        let lse = m.with(b * heads, t, |_, x| 2.5 + 0.1 * x.abs());
        let layer = heads + 3;
        let alibi = numbered.then_some(Alibi { heads: layer, first: 2 });
        let counters = m.indices(DropoutMask::WORDS, |i| [33, 35, 5, 0, 4, 0][i]);
        let weights = DropoutMask { p: 0.3, counters, first: 3 };
        let dropout = numbered.then_some(AttentionDropout { mask: weights, heads: layer, first: 2 });
        let masks = [
            AttentionMask { alibi, ..AttentionMask::default() },
            AttentionMask { window: Some(3), documents: Some(documents), alibi, ..AttentionMask::default() },
        ];
        for (i, mask) in masks.into_iter().enumerate() {
            let what = format!("{b} {t} {g} {r} {e}, mask {i}");
            m.case(&what, Attention { shape, q, k, v, out, lse, mask, dropout });
            m.case(&what, AttentionBackward { shape, q, k, v, out, lse, dout, dq, dk, dv, mask, dropout });
        }
        let keys =
            Some(SomeKeys { positions: Positions { first: 1, later: None, stride: 2 }, seq: 2 * t + 4 });
        let mask = AttentionMask { queries: 4.into(), keys, alibi, ..AttentionMask::default() };
        let dropout = None;
        m.case("of some keys", Attention { shape, q, k, v, out, lse, mask, dropout });
        m.case(
            "of some keys",
            AttentionBackward { shape, q, k, v, out, lse, dout, dq, dk, dv, mask, dropout },
        );
        let part_lse = m.with(b * heads, t, |i, x| if i % 3 == 0 { f32::NEG_INFINITY } else { x });
        m.case("", AttentionMerge { shape, out, lse, part: dq, part_lse });
        let (past, capacity) = (4, 14);
        let [k_cache, v_cache] = std::array::from_fn(|_| m.normal(b * capacity, g * e));
        for window in [None, Some(6)] {
            let op = AttentionCached { shape, past, capacity, window, alibi, q, k_cache, v_cache, out };
            m.case(&format!("{b} {t} {g} {r} {e}, {window:?}"), op);
        }
        let places = m.indices(3 * b, |i| if i % 3 == 0 { i / 3 } else { i % 3 });
        let one = AttentionShape { seq: 1, ..shape };
        let (q1, out) = (m.normal(b, heads * e), m.normal(b, heads * e));
        let (k, v, window) = (m.normal(b, g * e), m.normal(b, g * e), None);
        let op = AttentionSlots {
            shape: one,
            capacity,
            window,
            alibi,
            places,
            q: q1,
            k,
            v,
            k_cache,
            v_cache,
            out,
        };
        m.case("", op);
        for inverse in [false, true] {
            let positions = m.indices(n, |i| 2 + i % t);
            let (theta, scaling) = (100.0, RopeScaling::None);
            m.case("", Rope { x: q, positions, heads, theta, scaling, inverse });
        }
    }
}

fn tables(m: &mut Maker) {
    let (v, n, d, p) = (11, 9, 4, 5);
    let [table, dtable] = std::array::from_fn(|_| m.normal(v, d));
    let [learned, dlearned] = std::array::from_fn(|_| m.normal(p, d));
    let [out, dout] = std::array::from_fn(|_| m.normal(n, d));
    let (ids, positions) = (m.indices(n, |i| (i * 5 + 2) % v), m.indices(n, |i| i % p));
    let shifted = m.indices(n, |i| (i * 5 + 2) % (v + 8));
    m.case("", Embedding { table, tensor_shard: None, ids, positions: None, out });
    let at = |table| Some(PositionTable { table, positions });
    m.case("with positions", Embedding { table, tensor_shard: None, ids, positions: at(learned), out });
    let tensor_shard = Some(VocabularyShard { first: 4, of: v + 8 });
    m.case("of a part", Embedding { table, tensor_shard, ids: shifted, positions: None, out });
    m.case("", EmbeddingBackward { ids, dout, dtable, tensor_shard: None, positions: None });
    let positions = at(dlearned);
    m.case("of a part", EmbeddingBackward { ids: shifted, dout, dtable, tensor_shard, positions });
}

fn products(m: &mut Maker) {
    let (n, i, o) = (9, 7, 5);
    let [x, dx, before] = std::array::from_fn(|_| m.normal(n, i));
    let [y, dy, pre, residual] = std::array::from_fn(|_| m.normal(n, o));
    let [weight, dweight] = std::array::from_fn(|_| m.normal(o, i));
    let [bias, dbias] = std::array::from_fn(|_| m.normal(1, o));
    let kind = ActivationKind::Silu;
    let plain = Linear { x, weight, bias: None, activation: None, residual: None, rowwise: false, out: y };
    m.case("", plain);
    m.case("with bias and residual", Linear { bias: Some(bias), residual: Some(residual), ..plain });
    m.case("with activation", Linear { bias: Some(bias), activation: Some((kind, pre)), ..plain });
    for accumulate in [false, true] {
        let what = format!("accumulate {accumulate}");
        for activation in [None, Some((kind, before))] {
            m.case(&what, LinearBackwardInput { dy, weight, activation, dx, accumulate });
        }
        for dbias in [None, Some(dbias)] {
            m.case(&what, LinearBackwardWeight { x, dy, dweight, dbias, accumulate });
        }
    }
}

fn losses(m: &mut Maker) {
    let (n, d, v) = (7, 4, 11);
    let [x, dx] = std::array::from_fn(|_| m.normal(n, d));
    let [weight, dweight] = std::array::from_fn(|_| m.normal(v, d));
    let targets = m.indices(n, |i| (i * 7 + 3) % v);
    let [loss, scored] = std::array::from_fn(|_| m.normal(1, n));
    let lse = m.with(1, n, |_, x| 3.0 + x);
    let target_logit = m.normal(1, n);
    let tensor_shard = VocabularyShard { first: 0, of: v };
    m.case("", LogitSums { x, weight, tensor_shard, targets, lse, target_logit });
    let parts = m.normal(6, n);
    m.case("", CombineLogSums { parts, lse, target_logit });
    m.case(
        "",
        LinearCrossEntropy { x, weight, targets, loss, scored_lse: None, backward: None, teacher: None },
    );
    let portioned = LinearCrossEntropyShard {
        x,
        weight,
        tensor_shard,
        targets,
        lse,
        target_logit,
        loss,
        scored_lse: None,
        backward: None,
    };
    m.case("", portioned);
    for (accumulate, scored_lse) in [(true, None), (false, Some(scored))] {
        let (factors, z_loss) = (m.positive(1, n), Some(m.with(1, 1, |_, _| 0.1)));
        let backward = Some(LossBackward { factors, z_loss, dx, dweight, accumulate });
        let what = format!("backward, accumulate {accumulate}");
        m.case(&what, LinearCrossEntropy { x, weight, targets, loss, scored_lse, backward, teacher: None });
        m.case(&what, LinearCrossEntropyShard { scored_lse, backward, ..portioned });
        let teacher = Teacher {
            x: m.normal(n, d + 2),
            weight: m.normal(v, d + 2),
            factor: m.with(1, 1, |_, _| 0.5),
            temperature: 2.0,
            divergence: m.normal(1, n),
        };
        let what = format!("{what}, teacher");
        let teacher = Some(teacher);
        m.case(&what, LinearCrossEntropy { x, weight, targets, loss, scored_lse, backward, teacher });
    }
}

fn experts(m: &mut Maker) {
    // Two sequences of three tokens, two choices among four experts, rows of width 4 to products of 3 outputs.
    let (b, n, k, e, d, o) = (2, 6, 2, 4, 4, 3);
    let r = n * k;
    let chosen = |i: usize| (i / k * 3 + i % k * (1 + i / k % 2)) % e;
    let experts = m.index_mat(n, k, chosen);
    let [logits, probabilities, dlogits] = std::array::from_fn(|_| m.normal(n, e));
    let [weights, dweights] = std::array::from_fn(|_| m.positive(n, k));
    let lse = m.positive(1, n);
    let grouped = Gate { score: Score::Sigmoid, groups: 2, kept: 1, scale: 2.5, ..Gate::softmax(true) };
    for (gate, lse) in [
        (Gate::softmax(true), None),
        (Gate::softmax(false), Some(lse)),
        (Gate::softmax(true), Some(lse)),
        (grouped, None),
    ] {
        let what = format!("{gate:?} {}", lse.is_some());
        let normalise = gate.score == Score::Sigmoid;
        let bias = normalise.then(|| m.normal(1, e));
        let [chosen, alone] = std::array::from_fn(|_| m.index_mat(n, k, |_| 0));
        let preferred = bias.map(|_| alone);
        let experts_of =
            |experts| Route { logits, bias, probabilities, experts, preferred, weights, lse, gate };
        m.case(&what, experts_of(chosen));
        let positive = m.positive(n, e);
        let of = |i: usize| 1 + i % 3;
        let counts = match lse.is_some() && gate.renormalise {
            true => m.positive(1, e),
            false => m.index_mat(b, e, of),
        };
        let [balance, z] = std::array::from_fn(|_| m.with(1, 2, |i, _| [0.5, 0.25][i]));
        m.case(
            &what,
            RouteBackward {
                probabilities: positive,
                experts,
                weights,
                dweights,
                balance: (lse.is_some() || normalise).then_some(BalanceTerm { counts, weight: balance }),
                z_loss: lse.map(|lse| (lse, z)),
                gate,
                span: TokenSpan::whole(n / b),
                dlogits,
            },
        );
        let value = m.normal(1, counts.rows);
        let (choices, span) = (k, TokenSpan::whole(n / b));
        m.case(&what, BalanceLoss { probabilities: positive, counts, choices, normalise, span, value });
    }
    let (random, scores) = (m.positive(n, 1), m.positive(n, e));
    let counters = m.index_mat(1, DropoutMask::WORDS, |i| i);
    m.case("", RandomNumbers { counters, out: random });
    let kept = m.index_mat(n, k, |i| usize::from(i % 5 != 3));
    for drop in [DropRule::Position, DropRule::Choice, DropRule::Score] {
        let second = (drop == DropRule::Choice).then_some(RandomSecond { weights, random });
        let scores = (drop == DropRule::Score).then_some(scores);
        let (count, capacity, group) = (e, if drop == DropRule::Choice { 1 } else { 2 }, n);
        let made = m.index_mat(n, k, |_| 0);
        m.case(
            &format!("{drop:?}"),
            KeepChoices {
                experts,
                scores,
                second,
                count,
                capacity,
                group,
                drop,
                here: TokenRows::whole(n),
                kept: made,
            },
        );
    }
    let (here, out) = (TokenRows::whole(n), m.normal(n, e));
    let (nodes, group, turn, leaving) = (2, n / 2, n / 2, 1);
    m.case("", KeepInNode { logits: scores, counters, nodes, group, turn, leaving, here, out });
    let counts = m.index_mat(b, e, |_| 0);
    m.case("", CountChoices { experts, span: TokenSpan::whole(n / b), counts });
    let groups = m.index_mat(1, 3, |_| 0);
    let two = m.index_mat(2, 4, |i| i % 4);
    m.case("", ReceivedGroups { offsets: two, first: 2, groups });
    let (slots, routed) = (m.index_mat(1, 2, |_| 0), m.index_mat(2, 5, |_| 0));
    let two = m.index_mat(2, 5, |i| [0, 1, 5, 6, 6, 0, 0, 4, 5, 7][i]);
    let costs = ShadowCosts { row_products: 10, row_exchanges: 0, shadow: 1, owned: 0 };
    m.case("", ChooseShadows { offsets: two, costs, slots, routed });
    let mut order: Vec<usize> = (0..r).collect();
    order.sort_by_key(|i| chosen(*i));
    let row_of = |i: usize| order.iter().position(|j| *j == i).unwrap();
    let (rows, sources) = (m.index_mat(n, k, row_of), m.index_mat(1, r, |i| order[i]));
    let offsets = m.index_mat(1, e + 1, |e| (0..r).filter(|i| chosen(*i) < e).count());
    let [made_rows, made_sources, made_offsets] =
        [(n, k), (1, r), (1, e + 1)].map(|(rows, cols)| m.index_mat(rows, cols, |_| 0));
    for kept in [None, Some(kept)] {
        m.case(
            &format!("kept {}", kept.is_some()),
            AssignRows {
                experts,
                kept,
                shadows: None,
                rows: made_rows,
                sources: made_sources,
                offsets: made_offsets,
            },
        );
    }
    let (slots, ends) = (m.index_mat(1, 1, |_| 1), m.index_mat(1, 2, |_| 0));
    let assign = AssignRows {
        experts,
        kept: None,
        shadows: Some(ShadowRows { slots, offsets: ends }),
        rows: made_rows,
        sources: made_sources,
        offsets: made_offsets,
    };
    m.case("with shadows", assign);
    let (terms, dweight) = (m.normal(2 * o, d), m.normal(e * o, d));
    m.case("", AddShadowGradients { terms, slots, first: 0, experts: e, dweight });
    let [x, other, out] = std::array::from_fn(|_| m.normal(n, d));
    let [at_experts, back] = std::array::from_fn(|_| m.normal(r, d));
    m.case("", Dispatch { x, sources, choices: k, out: at_experts });
    for accumulate in [false, true] {
        let what = format!("accumulate {accumulate}");
        m.case(&what, DispatchBackward { dout: at_experts, rows, dx: out, accumulate });
        let [inputs, outputs] = [d, o].map(|cols| m.normal(r, cols));
        let dweight = m.normal(e * o, d);
        m.case(&what, GroupedLinearBackwardWeight { x: inputs, dy: outputs, offsets, dweight, accumulate });
    }
    let (gates, dgates) = (m.normal(n, 1), m.normal(n, 1));
    m.case("", AddGatedRows { x, y: other, gates, out });
    m.case("", AddGatedRowsBackward { dout: x, y: other, gates, mixed: None, dy: out, dgates });
    let (gates, dgates, dx) = (m.normal(n, 2), m.normal(n, 2), m.normal(n, d));
    m.case("of two", AddGatedRows { x, y: other, gates, out });
    let mixed = Some(MixedRows { x: dx, dx: m.normal(n, d) });
    m.case("of two", AddGatedRowsBackward { dout: x, y: other, gates, mixed, dy: out, dgates });
    m.case("", CombineRows { x: at_experts, rows, weights, out });
    m.case("", CombineRowsBackward { dout: x, x: at_experts, rows, sources, weights, dx: back, dweights });
    let (weight, made) = (m.normal(e * o, d), m.normal(r, o));
    m.case("", GroupedLinear { x: at_experts, weight, offsets, out: made });
    m.case("", GroupedLinearBackwardInput { dy: made, weight, offsets, dx: back });
}

fn norms(m: &mut Maker) {
    let (n, d) = (7, 6);
    let [x, out, dout, dx] = std::array::from_fn(|_| m.normal(n, d));
    let [weight, bias, dweight, dbias] = std::array::from_fn(|_| m.normal(1, d));
    let (mean, rstd) = (m.normal(1, n), m.positive(1, n));
    let eps = 1e-5;
    for (kind, layer) in [(NormKind::Layer, true), (NormKind::Rms, false)] {
        let (bias, dbias, mean) = (layer.then_some(bias), layer.then_some(dbias), layer.then_some(mean));
        m.case(&format!("{kind:?}"), Norm { kind, x, weight, bias, out, mean, rstd, eps });
        for (accumulate_dx, accumulate) in [(false, true), (true, false)] {
            let op = NormBackward {
                kind,
                x,
                weight,
                mean,
                rstd,
                dout,
                dx,
                accumulate_dx,
                dweight,
                dbias,
                accumulate,
            };
            m.case(&format!("{kind:?} {accumulate}"), op);
        }
    }
    for (kind, layer) in [(NormKind::Layer, true), (NormKind::Rms, false)] {
        let width = d + 4;
        let (bias, dbias, mean) = (layer.then_some(bias), layer.then_some(dbias), layer.then_some(mean));
        let (sums, squares) = (layer.then(|| m.normal(1, n)), m.positive(1, n));
        let term = if layer { RowTerm::Value } else { RowTerm::Square };
        let row_sums = m.normal(1, n);
        m.case(&format!("{term:?}"), RowSums { term, x, about: None, width, out: row_sums });
        let about = m.normal(1, n);
        let op = RowSums { term: RowTerm::Square, x, about: Some(about), width, out: row_sums };
        m.case("of squares about means", op);
        let op = NormOfSums { kind, x, sums, squares, width, weight, bias, out, mean, rstd, eps };
        m.case(&format!("{kind:?}"), op);
        let sums = m.normal(if layer { 2 } else { 1 }, n);
        m.case(&format!("{kind:?}"), NormGradientSums { kind, x, weight, mean, rstd, dout, sums });
        for (accumulate_dx, accumulate) in [(false, true), (true, false)] {
            let op = NormBackwardOfSums {
                kind,
                x,
                weight,
                mean,
                rstd,
                dout,
                sums,
                width,
                dx,
                accumulate_dx,
                dweight,
                dbias,
                accumulate,
            };
            m.case(&format!("{kind:?} {accumulate}"), op);
        }
    }
    // Heads of a row with one weight.
    let (kind, mean, bias, dbias, heads) = (NormKind::Rms, None, None, None, 3);
    let [x, out, dout, dx] = std::array::from_fn(|_| m.normal(n, heads * d));
    let rstd = m.positive(heads, n);
    m.case("of heads", Norm { kind, x, weight, bias, out, mean, rstd, eps });
    let (accumulate_dx, accumulate) = (false, true);
    let op =
        NormBackward { kind, x, weight, mean, rstd, dout, dx, accumulate_dx, dweight, dbias, accumulate };
    m.case("of heads", op);
}

fn matrices(m: &mut Maker) {
    let n = 6;
    let (x, y, out) = (m.normal(5, 7), m.normal(5, 7), m.normal(5, 7));
    let (one, squares) = (m.positive(1, 1), m.positive(1, 1));
    m.case("", Dot { a: x, b: y, out: one });
    m.case("", SumSquares { x, out: one, accumulate: false });
    m.case("accumulate", SumSquares { x, out: one, accumulate: true });
    m.case("", DivideByNorm { x, squares, slack: 1.0, eps: 1e-7, out });
    // Diagonally dominant, of which the lower triangle is read.
    let diagonal = move |i: usize| i / n == i % n;
    let a = m.with(n, n, move |i, x| if diagonal(i) { 9.0 } else { 0.5 * x });
    let (l, inverse) = (m.normal(n, n), m.normal(n, n));
    m.case("", Cholesky { a, shift: 1.0, l });
    let triangle = m.with(n, n, move |i, x| match (i / n).cmp(&(i % n)) {
        std::cmp::Ordering::Less => 0.0,
        std::cmp::Ordering::Equal => 2.0,
        std::cmp::Ordering::Greater => x,
    });
    m.case("", TriangularInverse { l: triangle, out: inverse });
}

fn optimizers(m: &mut Maker) {
    let (r, c) = (5, 7);
    let [param, grad, first, out, master] = std::array::from_fn(|_| m.normal(r, c));
    let v = m.positive(r, c);
    let (row, col) = (m.positive(1, r), m.positive(1, c));
    let squares = [20.0, 50.0].map(|total| m.with(1, 1, move |_, _| total));
    let weight_decay = 0.2;
    let step = m.with(1, 5, |i, _| [1.0, 0.5, 0.1, 0.3, 0.2][i]);
    let (flag_and_factor, flag_and_two) =
        (m.with(1, 2, |i, _| [1.0, 0.5][i]), m.with(1, 3, |i, _| [1.0, 0.5, 0.1][i]));
    for master in [None, Some(master)] {
        let op = AdamW {
            param,
            master,
            grad,
            m: first,
            v,
            step,
            beta1: 0.9,
            beta2: 0.95,
            eps: 1e-8,
            weight_decay,
        };
        m.case("", op);
    }
    let (long, slope, to) = (m.normal(6, 120), m.normal(6, 120), m.normal(6, 120));
    let [m_codes, v_codes] = std::array::from_fn(|_| m.codes(6, 120));
    let [m_scales, v_scales] = std::array::from_fn(|_| m.positive(1, 3));
    let op = AdamWInt8 {
        param: long,
        master: Some(to),
        grad: slope,
        m: m_codes,
        m_scales,
        v: v_codes,
        v_scales,
        step,
        beta1: 0.9,
        beta2: 0.95,
        eps: 1e-8,
        weight_decay,
    };
    m.case("", op);
    for m1 in [None, Some(first)] {
        let nesterov = m1.is_some();
        m.case(
            "",
            Sgd { param, grad, m: m1, momentum: 0.9, nesterov, step: flag_and_two, weight_decay, scale: 0.5 },
        );
        let op = AdafactorUpdate {
            param,
            direction: grad,
            direction_squares: squares[1],
            param_squares: m1.map(|_| squares[0]),
            values: r * c,
            m: m1,
            beta: 0.9,
            step: flag_and_factor,
            eps: 1e-3,
            threshold: 1.0,
            weight_decay,
        };
        m.case("", op);
    }
    m.case("", Lion { param, grad, m: first, step: flag_and_two, beta1: 0.9, beta2: 0.99, weight_decay });
    let (eps, decaying) = (1e-30, m.with(1, 3, |i, _| [1.0, 0.5, 0.8][i]));
    m.case("", FactoredMoments { grad, row, col, step: decaying, eps });
    m.case("", FactoredDirection { grad, row, col, step: flag_and_factor, out });
    m.case("in place", FactoredDirection { grad, row, col, step: flag_and_factor, out: grad });
    m.case("", MomentDirection { grad, v, step: decaying, eps, out });
}
