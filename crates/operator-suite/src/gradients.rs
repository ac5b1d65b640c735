//! Backward operators against finite differences of their forward operators.
//!
//! For a random direction u of one input and random weights w of the outputs, the derivative of `sum w . out` along u is
//! estimated by Richardson's extrapolation of central differences, and must equal `u . (backward applied to w)`. The forward
//! pass is f32, so steps are large (2^-5) and the extrapolation takes off their h^2 error.

use crate::attention_blocks::{ORDERS, positions};
use crate::setup::noise;
use crate::{Setup, Suite};
use bessemer_tensor::View;
use bessemer_tensor::op::*;
use bessemer_tensor::rng::RngKey;

fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
}

/// Holds `gradient`, what the backward pass gave for `input`, against differences of `forward`, which writes `out`.
fn hold(
    suite: &Suite<'_>,
    s: &mut Setup,
    what: &str,
    forward: &Op,
    input: View,
    out: View,
    w: &[f32],
    gradient: View,
) {
    hold_all(suite, s, what, std::slice::from_ref(forward), input, out, w, gradient);
}

/// Holds the gradient of several operators, one after the other, as [`hold`] does.
fn hold_all(
    suite: &Suite<'_>,
    s: &mut Setup,
    what: &str,
    forward: &[Op],
    input: View,
    out: View,
    w: &[f32],
    gradient: View,
) {
    let (x, g) = (s.read(input), s.read(gradient));
    let u = noise(what, x.len());
    let mut central = |h: f32| {
        let mut side = |sign: f32| {
            let moved: Vec<f32> = x.iter().zip(&u).map(|(x, u)| x + sign * h * u).collect();
            s.backend.write_f32(input, &moved).unwrap();
            forward.iter().for_each(|op| s.launch(op).unwrap());
            dot(w, &s.read(out))
        };
        (side(1.0) - side(-1.0)) / (2.0 * f64::from(h))
    };
    let (coarse, fine) = (central(1.0 / 32.0), central(1.0 / 64.0));
    let truth = (4.0 * fine - coarse) / 3.0;
    s.backend.write_f32(input, &x).unwrap();
    let found = dot(&u, &g);
    // Against the size of the terms of the sum, because the sum itself may be near 0.
    let size = dot(&u, &u).sqrt() * dot(&g, &g).sqrt();
    assert!(
        (found - truth).abs() < f64::from(suite.bound(2e-3)) * size.max(0.05),
        "{what}: backward {found}, differences {truth}"
    );
}

/// The fastest kernels and the reference: those between are held against the reference elsewhere.
fn setups(suite: &Suite<'_>) -> [Setup; 2] {
    suite.reference_and_fastest().map(|kernels| suite.setup(kernels, 2))
}

/// Gates with the balance loss of two sequences and the z-loss, rows, and grouped products.
pub(crate) fn experts(suite: &Suite<'_>) {
    for mut s in setups(suite) {
        let (n, d, e, k, f) = (6, 4, 3, 2, 5);
        let r = n * k;
        // Experts are far enough apart for no choice to change, and have unequal loads.
        let score = |t: usize, expert: usize| ((expert + usize::from(t % 3 == 2)) % e) as f32;
        let scores: Vec<f32> = (0..n * e).map(|i| 1.5 * score(i / e, i % e) - 1.0).collect();
        let (logits, probabilities, weights) = (s.values(n, e, &scores), s.mat(n, e), s.mat(n, k));
        let (experts, counts) = (s.index_mat(n, k), s.index_mat(2, e));
        let (lse, value, span) = (s.mat(1, n), s.mat(1, 2), TokenSpan::whole(n / 2));
        let sigmoid = Gate { score: Score::Sigmoid, scale: 2.5, ..Gate::softmax(true) };
        for gate in [Gate::softmax(false), Gate::softmax(true), sigmoid] {
            let is_softmax = gate.score == Score::Softmax;
            let bias = (!is_softmax).then(|| s.values(1, e, &[0.2, -0.1, 0.05]));
            let all = Route {
                logits,
                bias,
                probabilities,
                experts,
                preferred: None,
                weights,
                lse: Some(lse),
                gate,
            };
            let route = if is_softmax { all } else { Route { lse: None, ..all } };
            s.launch(&route.into()).unwrap();
            s.launch(&CountChoices { experts, span, counts }.into()).unwrap();
            let w = noise("weights of experts", n * k);
            let (dweights, dlogits) = (s.values(n, k, &w), s.mat(n, e));
            let none = RouteBackward {
                probabilities,
                experts,
                weights,
                dweights,
                balance: None,
                z_loss: None,
                gate,
                span,
                dlogits,
            };
            s.launch(&none.into()).unwrap();
            hold(suite, &mut s, "route", &route.into(), logits, weights, &w, dlogits);
            let zeros = s.values(n, k, &vec![0.0; n * k]);
            let weight = s.values(1, 2, &[1.0, 0.7]);
            let balance = Some(BalanceTerm { counts, weight });
            s.launch(&RouteBackward { dweights: zeros, balance, ..none }.into()).unwrap();
            let loss = BalanceLoss { probabilities, counts, choices: k, normalise: !is_softmax, span, value };
            let both = [route.into(), loss.into()];
            hold_all(suite, &mut s, "balance", &both, logits, value, &[0.7, 0.7], dlogits);
            let loads = s.values(1, e, &[1.6, 0.5, 0.9]);
            let balance = Some(BalanceTerm { counts: loads, weight });
            s.launch(&RouteBackward { dweights: zeros, balance, ..none }.into()).unwrap();
            let loss = BalanceLoss { counts: loads, value: value.columns(0, 1), ..loss };
            let both = [route.into(), loss.into()];
            hold_all(suite, &mut s, "balance by loads", &both, logits, loss.value, &[0.7], dlogits);
            if !is_softmax {
                continue;
            }
            // d lse^2 = 2 lse d lse: held at the values of lse.
            s.launch(&route.into()).unwrap();
            let slope: Vec<f32> = s.read(lse).iter().map(|lse| 2.0 * 0.7 * lse).collect();
            s.launch(&RouteBackward { dweights: zeros, z_loss: Some((lse, weight)), ..none }.into()).unwrap();
            hold(suite, &mut s, "z-loss of a router", &route.into(), logits, lse, &slope, dlogits);
        }
        let (rows, sources, offsets) = (s.index_mat(n, k), s.index_mat(1, r), s.index_mat(1, e + 1));
        s.launch(&AssignRows { experts, kept: None, shadows: None, rows, sources, offsets }.into()).unwrap();
        let (x, out, dx) = (s.mat(n, d), s.mat(r, d), s.mat(n, d));
        let w = noise("rows", r * d);
        let dout = s.values(r, d, &w);
        s.launch(&DispatchBackward { dout, rows, dx, accumulate: false }.into()).unwrap();
        let forward = Dispatch { x, sources, choices: k, out };
        hold(suite, &mut s, "dispatch", &forward.into(), x, out, &w, dx);
        let (y, sum, dy, dweights) = (s.mat(r, d), s.mat(n, d), s.mat(r, d), s.mat(n, k));
        let w = noise("sums", n * d);
        let dout = s.values(n, d, &w);
        let backward = CombineRowsBackward { dout, x: y, rows, sources, weights, dx: dy, dweights };
        s.launch(&backward.into()).unwrap();
        let forward = CombineRows { x: y, rows, weights, out: sum };
        hold(suite, &mut s, "combine rows", &forward.into(), y, sum, &w, dy);
        hold(suite, &mut s, "combine weights", &forward.into(), weights, sum, &w, dweights);
        let (weight, out, dx, dweight) = (s.mat(e * f, d), s.mat(r, f), s.mat(r, d), s.mat(e * f, d));
        let w = noise("grouped", r * f);
        let dy = s.values(r, f, &w);
        s.launch(&GroupedLinearBackwardInput { dy, weight, offsets, dx }.into()).unwrap();
        let accumulate = false;
        s.launch(&GroupedLinearBackwardWeight { x: y, dy, offsets, dweight, accumulate }.into()).unwrap();
        let forward = GroupedLinear { x: y, weight, offsets, out };
        hold(suite, &mut s, "grouped x", &forward.into(), y, out, &w, dx);
        hold(suite, &mut s, "grouped weight", &forward.into(), weight, out, &w, dweight);
    }
}

pub(crate) fn gated_rows(suite: &Suite<'_>) {
    for mut s in setups(suite) {
        let (n, d) = (9, 7);
        let (x, y, gates, out) = (s.mat(n, d), s.mat(n, d), s.mat(n, 1), s.mat(n, d));
        let w = noise("gated rows", n * d);
        let (dout, dy, dgates) = (s.values(n, d, &w), s.mat(n, d), s.mat(n, 1));
        s.launch(&AddGatedRowsBackward { dout, y, gates, mixed: None, dy, dgates }.into()).unwrap();
        let forward = AddGatedRows { x, y, gates, out }.into();
        hold(suite, &mut s, "gated rows", &forward, y, out, &w, dy);
        hold(suite, &mut s, "gates of rows", &forward, gates, out, &w, dgates);
        let (gates, dgates, dx) = (s.mat(n, 2), s.mat(n, 2), s.mat(n, d));
        let mixed = Some(MixedRows { x, dx });
        s.launch(&AddGatedRowsBackward { dout, y, gates, mixed, dy, dgates }.into()).unwrap();
        let forward = AddGatedRows { x, y, gates, out }.into();
        for (what, of, by) in [("x", x, dx), ("y", y, dy), ("gates", gates, dgates)] {
            hold(suite, &mut s, &format!("{what} of mixed rows"), &forward, of, out, &w, by);
        }
    }
}

/// The squares are constants: the gradients are slopes of the scaling alone.
pub(crate) fn magnitudes(suite: &Suite<'_>) {
    for mut s in setups(suite) {
        let (n, i, o, r) = (9, 7, 11, 3);
        let (weight, a, b, squares) = (s.mat(o, i), s.mat(r, i), s.mat(o, r), s.mat(1, o));
        s.launch(&AdaptedSquares { weight, a, b, scale: 2.0, out: squares }.into()).unwrap();
        let (matrix, low, rank) = (s.read(weight), s.read(a), s.read(b));
        let adapted = |row: usize, at: usize| {
            matrix[row * i + at] + 2.0 * (0..r).map(|k| rank[row * r + k] * low[k * i + at]).sum::<f32>()
        };
        let near = |row: usize, found: f32| {
            let wanted: f32 = (0..i).map(|at| adapted(row, at).powi(2)).sum();
            (found - wanted).abs() < suite.bound(1e-5) * wanted
        };
        assert!(s.read(squares).into_iter().enumerate().all(|(row, found)| near(row, found)));
        let (x, bias, magnitude, out) = (s.mat(n, o), Some(s.mat(1, o)), s.mat(1, o), s.mat(n, o));
        let w = noise("magnitudes", n * o);
        let (dout, dx, dmagnitude, accumulate) = (s.values(n, o, &w), s.mat(n, o), s.mat(1, o), false);
        let backward = MagnitudesBackward { dout, x, bias, magnitude, squares, dx, dmagnitude, accumulate };
        s.launch(&backward.into()).unwrap();
        let forward = Magnitudes { x, bias, magnitude, squares, out }.into();
        hold(suite, &mut s, "products", &forward, x, out, &w, dx);
        hold(suite, &mut s, "magnitudes", &forward, magnitude, out, &w, dmagnitude);
    }
}

pub(crate) fn linear(suite: &Suite<'_>) {
    for mut s in setups(suite) {
        let (n, i, o) = (9, 7, 11);
        let x = s.mat(n, i);
        let (weight, bias, pre) = (s.mat(o, i), s.mat(1, o), s.mat(n, o));
        let residual = s.mat(n, o);
        let out = s.mat(n, o);
        let forward = Op::from(Linear {
            x,
            weight,
            bias: Some(bias),
            activation: Some((ActivationKind::GeluTanh, pre)),
            residual: Some(residual),
            rowwise: false,
            out,
        });
        s.launch(&forward).unwrap();
        let w = noise("w", n * o);
        let dout = s.values(n, o, &w);
        let dpre = s.mat(n, o);
        s.launch(&ActivationBackward { kind: ActivationKind::GeluTanh, x: pre, dout, dx: dpre }.into())
            .unwrap();
        let (dx, dweight, dbias) = (s.mat(n, i), s.mat(o, i), s.mat(1, o));
        s.launch(&LinearBackwardInput { dy: dpre, weight, activation: None, dx, accumulate: false }.into())
            .unwrap();
        let back = LinearBackwardWeight { x, dy: dpre, dweight, dbias: Some(dbias), accumulate: false };
        s.launch(&back.into()).unwrap();
        hold(suite, &mut s, "linear x", &forward, x, out, &w, dx);
        hold(suite, &mut s, "linear weight", &forward, weight, out, &w, dweight);
        hold(suite, &mut s, "linear bias", &forward, bias, out, &w, dbias);
    }
}

pub(crate) fn activations_and_gated_units(suite: &Suite<'_>) {
    for mut s in setups(suite) {
        let smooth = [ActivationKind::GeluTanh, ActivationKind::GeluErf, ActivationKind::Silu];
        // Its second derivative jumps at 0, its first does not.
        for kind in smooth.into_iter().chain([ActivationKind::ReluSquared]) {
            let (r, c) = (6, 19);
            let (gate, up, out) = (s.mat(r, c), s.mat(r, c), s.mat(r, c));
            let w = noise("w", r * c);
            let dout = s.values(r, c, &w);
            let (dgate, dup) = (s.mat(r, c), s.mat(r, c));
            let forward = Op::from(Gated { live: None, kind, gate, up, out });
            s.launch(&GatedBackward { live: None, kind, gate, up, dout, dgate, dup }.into()).unwrap();
            hold(suite, &mut s, &format!("gate {kind:?}"), &forward, gate, out, &w, dgate);
            hold(suite, &mut s, &format!("up {kind:?}"), &forward, up, out, &w, dup);
            let forward = Op::from(Activation { kind, x: gate, out });
            s.launch(&ActivationBackward { kind, x: gate, dout, dx: dgate }.into()).unwrap();
            hold(suite, &mut s, &format!("activation {kind:?}"), &forward, gate, out, &w, dgate);
        }
    }
}

pub(crate) fn norms(suite: &Suite<'_>) {
    for mut s in setups(suite) {
        for kind in [NormKind::Layer, NormKind::Rms] {
            let (n, d) = (5, 37);
            let (x, weight, out, rstd) = (s.mat(n, d), s.mat(1, d), s.mat(n, d), s.mat(1, n));
            let layer = kind == NormKind::Layer;
            let (bias, mean) = (layer.then(|| s.mat(1, d)), layer.then(|| s.mat(1, n)));
            let forward = Op::from(Norm { kind, x, weight, bias, out, mean, rstd, eps: 1e-5 });
            s.launch(&forward).unwrap();
            let w = noise("w", n * d);
            let dout = s.values(n, d, &w);
            let (dx, dweight, dbias) = (s.mat(n, d), s.mat(1, d), layer.then(|| s.mat(1, d)));
            let back = NormBackward {
                kind,
                x,
                weight,
                mean,
                rstd,
                dout,
                dx,
                accumulate_dx: false,
                dweight,
                dbias,
                accumulate: false,
            };
            s.launch(&back.into()).unwrap();
            hold(suite, &mut s, &format!("norm x {kind:?}"), &forward, x, out, &w, dx);
            hold(suite, &mut s, &format!("norm weight {kind:?}"), &forward, weight, out, &w, dweight);
            if let (Some(bias), Some(dbias)) = (bias, dbias) {
                hold(suite, &mut s, "norm bias", &forward, bias, out, &w, dbias);
            }
        }
    }
}

/// A normalisation whose columns two devices have, of unequal numbers: the sums of both are added, and the columns of both are those of
/// the whole.
pub(crate) fn norms_of_sums(suite: &Suite<'_>) {
    for mut s in setups(suite) {
        for kind in [NormKind::Layer, NormKind::Rms] {
            let (n, d, eps) = (5, 37, 1e-5);
            let layer = kind == NormKind::Layer;
            let parts = [(0, 20), (20, 17)];
            let (x, weight, out, rstd) = (s.mat(n, d), s.mat(1, d), s.mat(n, d), s.mat(1, n));
            let (bias, mean) = (layer.then(|| s.mat(1, d)), layer.then(|| s.mat(1, n)));
            let (sums, squares) = (layer.then(|| s.mat(1, n)), s.mat(1, n));
            let mut forward: Vec<Op> = Vec::new();
            let total = |list: &mut Vec<Op>,
                         s: &mut Setup,
                         rows: usize,
                         out: View,
                         of: &dyn Fn(View, usize) -> Op| {
                let terms = [s.mat(rows, n), s.mat(rows, n)];
                list.extend((0..2).map(|part| of(terms[part], part)));
                list.push(Add { a: terms[0], b: terms[1], out }.into());
            };
            let columns = |view: View, part: usize| view.columns(parts[part].0, parts[part].1);
            if let Some(out) = sums {
                total(&mut forward, &mut s, 1, out, &|out, part| {
                    RowSums { term: RowTerm::Value, x: columns(x, part), about: None, width: d, out }.into()
                });
            }
            total(&mut forward, &mut s, 1, squares, &|out, part| {
                RowSums { term: RowTerm::Square, x: columns(x, part), about: sums, width: d, out }.into()
            });
            forward.extend((0..2).map(|p| {
                let (x, weight, bias) = (columns(x, p), columns(weight, p), bias.map(|b| columns(b, p)));
                let out = columns(out, p);
                Op::from(NormOfSums { kind, x, sums, squares, width: d, weight, bias, out, mean, rstd, eps })
            }));
            forward.iter().for_each(|op| s.launch(op).unwrap());
            let near = |a: &[f32], b: &[f32]| {
                a.iter().zip(b).all(|(a, b)| (a - b).abs() < suite.bound(1e-5) * (1.0 + b.abs()))
            };
            let (made, numbers) = (s.read(out), s.read(rstd));
            s.launch(&Norm { kind, x, weight, bias, out, mean, rstd, eps }.into()).unwrap();
            assert!(near(&made, &s.read(out)) && near(&numbers, &s.read(rstd)), "{kind:?}");
            let w = noise("w", n * d);
            let dout = s.values(n, d, &w);
            let (dx, dweight, dbias) = (s.mat(n, d), s.mat(1, d), layer.then(|| s.mat(1, d)));
            let gradient_sums = s.mat(if layer { 2 } else { 1 }, n);
            let mut backward: Vec<Op> = Vec::new();
            total(&mut backward, &mut s, gradient_sums.rows, gradient_sums, &|sums, p| {
                let (x, weight, dout) = (columns(x, p), columns(weight, p), columns(dout, p));
                NormGradientSums { kind, x, weight, mean, rstd, dout, sums }.into()
            });
            backward.extend((0..2).map(|p| {
                Op::from(NormBackwardOfSums {
                    kind,
                    x: columns(x, p),
                    weight: columns(weight, p),
                    mean,
                    rstd,
                    dout: columns(dout, p),
                    sums: gradient_sums,
                    width: d,
                    dx: columns(dx, p),
                    accumulate_dx: false,
                    dweight: columns(dweight, p),
                    dbias: dbias.map(|b| columns(b, p)),
                    accumulate: false,
                })
            }));
            backward.iter().for_each(|op| s.launch(op).unwrap());
            let what = |input: &str| format!("norm of sums, {input} {kind:?}");
            hold_all(suite, &mut s, &what("x"), &forward, x, out, &w, dx);
            hold_all(suite, &mut s, &what("weight"), &forward, weight, out, &w, dweight);
            if let (Some(bias), Some(dbias)) = (bias, dbias) {
                hold_all(suite, &mut s, &what("bias"), &forward, bias, out, &w, dbias);
            }
        }
    }
}

pub(crate) fn attention_with_grouped_heads_masks_and_dropout(suite: &Suite<'_>) {
    for mut s in setups(suite) {
        let weights = s.dropout(0.2, RngKey::new(1, 2, "a"), 0);
        let starts: Vec<u32> = (0..36).map(|n| if n % 18 < 6 { 0 } else { 6 }).collect();
        let documents = s.indices(&starts);
        // The last 18 of 30 positions, and keys after them that no query sees.
        let starts: Vec<u32> = (0..36).map(|n| if n % 18 < 6 { 4 } else { 18 }).collect();
        let later = s.indices(&starts);
        let none = AttentionMask::default();
        let apart = Positions { first: 1, later: Some(21), stride: 1 };
        let (window, alibi) = (Some(5), Some(Alibi::of(4)));
        for (what, mask, dropout) in [
            ("plain", none, None),
            ("dropout", none, Some(AttentionDropout { mask: weights, heads: 7, first: 2 })),
            ("window", AttentionMask { window, ..none }, None),
            ("alibi", AttentionMask { alibi, ..none }, None),
            ("documents", AttentionMask { documents: Some(documents), ..none }, None),
            (
                "all",
                AttentionMask { window, alibi, documents: Some(documents), ..none },
                Some(AttentionDropout::of(4, weights)),
            ),
            ("later", AttentionMask { queries: 12.into(), ..none }, None),
            ("in two stretches", AttentionMask { queries: apart, window: Some(9), ..none }, None),
            (
                "later, all",
                AttentionMask { window, alibi, documents: Some(later), queries: 12.into(), keys: None },
                Some(AttentionDropout::of(4, weights)),
            ),
        ] {
            let shape = AttentionShape { batch: 2, seq: 18, heads: 4, kv_heads: 2, head_dim: 6, scale: 0.3 };
            let (n, hq, hk) = (36, 24, 12);
            let keys = if mask.queries.first > 0 { 2 * 31 } else { n };
            let (q, k, v) = (s.mat(n, hq), s.mat(keys, hk), s.mat(keys, hk));
            let (out, lse) = (s.mat(n, hq), s.mat(8, 18));
            let forward = Op::from(Attention { shape, q, k, v, out, lse, mask, dropout });
            s.launch(&forward).unwrap();
            let w = noise("w", n * hq);
            let dout = s.values(n, hq, &w);
            let (dq, dk, dv) = (s.mat(n, hq), s.mat(keys, hk), s.mat(keys, hk));
            s.launch(&AttentionBackward { shape, q, k, v, out, lse, dout, dq, dk, dv, mask, dropout }.into())
                .unwrap();
            for (operand, input, gradient) in [("q", q, dq), ("k", k, dk), ("v", v, dv)] {
                hold(
                    suite,
                    &mut s,
                    &format!("attention {what} {operand}"),
                    &forward,
                    input,
                    out,
                    &w,
                    gradient,
                );
            }
        }
    }
}

/// Attention to the keys of two ranks, block by block, merged; its gradients from the merged result.
pub(crate) fn merged_attention(suite: &Suite<'_>) {
    for mut s in setups(suite) {
        for order in ORDERS {
            let (ranks, n, hq, hk) = (2, 12, 24, 12);
            let shape = AttentionShape { batch: 1, seq: n, heads: 4, kv_heads: 2, head_dim: 6, scale: 0.3 };
            let q = s.mat(n, hq);
            let [keys, values, dkeys, dvalues]: [Vec<View>; 4] =
                std::array::from_fn(|_| (0..ranks).map(|_| s.mat(n, hk)).collect());
            let [out, part, dq, dq_term] = std::array::from_fn(|_| s.mat(n, hq));
            let [lse, part_lse] = std::array::from_fn(|_| s.mat(4, n));
            let weights = s.dropout(0.2, RngKey::new(1, 2, "a"), 0);
            let dropout = Some(AttentionDropout::of(4, weights));
            let mask = |rank| AttentionMask {
                queries: positions(order, ranks * n, ranks, 1),
                keys: Some(SomeKeys { positions: positions(order, ranks * n, ranks, rank), seq: ranks * n }),
                alibi: Some(Alibi::of(4)),
                window: Some(17),
                documents: None,
            };
            let of = |rank: usize, out, lse| {
                Op::from(Attention {
                    shape,
                    q,
                    k: keys[rank],
                    v: values[rank],
                    out,
                    lse,
                    mask: mask(rank),
                    dropout,
                })
            };
            let forward = [
                of(1, out, lse),
                of(0, part, part_lse),
                AttentionMerge { shape, out, lse, part, part_lse }.into(),
            ];
            forward.iter().for_each(|op| s.launch(op).unwrap());
            let w = noise("w", n * hq);
            let dout = s.values(n, hq, &w);
            for rank in 0..ranks {
                let (k, v, dk, dv) = (keys[rank], values[rank], dkeys[rank], dvalues[rank]);
                let (dq, mask) = (if rank == 0 { dq } else { dq_term }, mask(rank));
                s.launch(
                    &AttentionBackward { shape, q, k, v, out, lse, dout, dq, dk, dv, mask, dropout }.into(),
                )
                .unwrap();
            }
            s.launch(&Add { a: dq, b: dq_term, out: dq }.into()).unwrap();
            let inputs = [("q", q, dq), ("k", keys[0], dkeys[0]), ("k", keys[1], dkeys[1])];
            for (operand, input, gradient) in
                inputs.into_iter().chain([("v", values[0], dvalues[0]), ("v", values[1], dvalues[1])])
            {
                let what = format!("merged attention {order:?} {operand}");
                hold_all(suite, &mut s, &what, &forward, input, out, &w, gradient);
            }
        }
    }
}

pub(crate) fn rotations(suite: &Suite<'_>) {
    for mut s in setups(suite) {
        let (n, c) = (4, 24);
        let x = s.mat(n, c);
        let (copy, gradient) = (s.mat(n, c), s.mat(n, c));
        let positions = s.indices(&[0, 5, 1000, 3]);
        let rope =
            Rope { x: copy, positions, heads: 3, theta: 1e4, scaling: RopeScaling::None, inverse: false };
        let w = noise("w", n * c);
        s.backend.write_f32(gradient, &w).unwrap();
        s.launch(&Rope { x: gradient, inverse: true, ..rope }.into()).unwrap();
        // The operator works in place: a rotation is linear, so differences are rotations of the direction itself.
        let (u, g) = (noise("u", n * c), s.read(gradient));
        s.backend.write_f32(copy, &u).unwrap();
        s.launch(&rope.into()).unwrap();
        let (found, truth) = (dot(&u, &g), dot(&w, &s.read(copy)));
        assert!((found - truth).abs() < f64::from(suite.bound(1e-4)), "{found} {truth}");
        let _ = x;
    }
}

pub(crate) fn loss(suite: &Suite<'_>) {
    for mut s in setups(suite) {
        let (n, d, v) = (13, 8, 29);
        let (x, weight, loss) = (s.mat(n, d), s.mat(v, d), s.mat(1, n));
        let ids: Vec<u32> = (0..n).map(|i| if i == 4 { IGNORED } else { (i * 7 % v) as u32 }).collect();
        let targets = s.indices(&ids);
        let (dx, dweight) = (s.mat(n, d), s.mat(v, d));
        let forward =
            LinearCrossEntropy { x, weight, targets, loss, scored_lse: None, backward: None, teacher: None };
        let w: Vec<f32> = (0..n).map(|i| 0.25 + 0.125 * i as f32).collect();
        let factors = s.values(1, n, &w);
        let backward = Some(LossBackward { factors, z_loss: None, dx, dweight, accumulate: false });
        s.launch(&LinearCrossEntropy { backward, ..forward }.into()).unwrap();
        hold(suite, &mut s, "loss x", &forward.into(), x, loss, &w, dx);
        hold(suite, &mut s, "loss weight", &forward.into(), weight, loss, &w, dweight);
    }
}

/// Mean of the cross-entropy plus `z_loss` times the mean of lse^2, over rows of x and w given flat.
fn objective(x: &[f32], w: &[f32], targets: &[usize], d: usize, z_loss: f64) -> f64 {
    let mut sum = 0.0;
    for (row, &target) in x.chunks(d).zip(targets) {
        let z: Vec<f64> = w.chunks(d).map(|w| dot(row, w)).collect();
        let max = z.iter().fold(f64::NEG_INFINITY, |a, &b| a.max(b));
        let lse = max + z.iter().map(|z| (z - max).exp()).sum::<f64>().ln();
        sum += lse - z[target] + z_loss * lse * lse;
    }
    sum / targets.len() as f64
}

/// Gradients with z-loss 0.1 from PyTorch 2.15 in f64:
/// `(cross_entropy(x @ w.T, t) + 0.1 * logsumexp(x @ w.T, -1).square().mean()).backward()`; then finite differences.
pub(crate) fn z_loss_has_the_gradients_of_pytorch_and_leaves_the_reported_loss_alone(suite: &Suite<'_>) {
    let x = [0.5, -1.0, 2.0, 0.25, -0.75, 1.5];
    let w = [1.0, 0.5, -0.5, 2.0, 0.25, -1.25, 1.5, 1.0];
    let losses = [0.389_606_94, 1.457_852, 0.084_667_87];
    let lse_gold = [1.764_607, 3.582_852, 3.459_668];
    let dx_gold = [0.156_412_93, 0.149_891_38, 0.415_092_85, 0.305_419_83, -0.035_435_57, 0.401_565_86];
    let dw_gold = [
        -0.375_011_7,
        -0.100_674_81,
        -0.115_280_99,
        0.271_560_6,
        0.022_739_709,
        0.036_056_068,
        0.831_103_4,
        0.081_098_68,
    ];
    for mut s in setups(suite) {
        let (dx, dweight, lse) = (s.mat(3, 2), s.mat(4, 2), s.mat(1, 3));
        let (factors, z_loss) = (s.values(1, 3, &[1.0 / 3.0; 3]), Some(s.values(1, 1, &[0.1])));
        let op = LinearCrossEntropy {
            x: s.values(3, 2, &x),
            weight: s.values(4, 2, &w),
            targets: s.indices(&[2, 0, 1]),
            loss: s.mat(1, 3),
            scored_lse: Some(lse),
            backward: Some(LossBackward { factors, z_loss, dx, dweight, accumulate: false }),
            teacher: None,
        };
        s.launch(&op.into()).unwrap();
        for (view, gold) in [(op.loss, &losses[..]), (lse, &lse_gold), (dx, &dx_gold), (dweight, &dw_gold)] {
            for (found, wanted) in s.read(view).iter().zip(gold) {
                assert!((found - wanted).abs() < suite.bound(2e-6), "{found} {wanted}");
            }
        }
        for (i, found) in s.read(dx).iter().enumerate() {
            let mut side = [x, x];
            side[0][i] += 1e-3;
            side[1][i] -= 1e-3;
            let [up, down] = side.map(|x| objective(&x, &w, &[2, 0, 1], 2, 0.1));
            let truth = (up - down) / (f64::from(side[0][i]) - f64::from(side[1][i]));
            assert!((f64::from(*found) - truth).abs() < f64::from(suite.bound(1e-5)), "{found} {truth}");
        }
    }
}

/// Numbers of a loss with distillation, in f64.
struct Distilled {
    cross_entropy: f64,
    /// `tau^2 KL(teacher || student)`.
    divergence: f64,
    /// Gradient of the sum of both in the student's logits.
    gradient: Vec<f64>,
}

fn softmax(logits: &[f64], temperature: f64) -> Vec<f64> {
    let max = logits.iter().fold(f64::NEG_INFINITY, |a, &b| a.max(b));
    let all: Vec<f64> = logits.iter().map(|z| ((z - max) / temperature).exp()).collect();
    let sum: f64 = all.iter().sum();
    all.iter().map(|p| p / sum).collect()
}

/// One token's loss from the definitions, and its gradient by their derivatives.
fn distilled(student: &[f64], teacher: &[f64], target: usize, tau: f64) -> Distilled {
    let (hard, soft, of_teacher) = (softmax(student, 1.0), softmax(student, tau), softmax(teacher, tau));
    let pairs = || soft.iter().zip(&of_teacher);
    Distilled {
        cross_entropy: -hard[target].ln(),
        divergence: tau * tau * pairs().map(|(p, q)| q * (q / p).ln()).sum::<f64>(),
        gradient: (pairs().zip(&hard).enumerate())
            .map(|(v, ((p, q), hard))| hard - f64::from(u8::from(v == target)) + tau * (p - q))
            .collect(),
    }
}

/// Distillation with the golden values of a mixture of students: 4 tokens, 7 logits, alpha 1, in f64, then by the kernels.
pub(crate) fn distillation_has_the_golden_values(suite: &Suite<'_>) {
    let (n, v) = (4, 7);
    let of = |f: &dyn Fn(f64, f64) -> f64| -> Vec<f64> {
        (0..n * v).map(|i| f((i / v) as f64, (i % v) as f64)).collect()
    };
    let student = of(&|t, v| (0.3 + 1.1 * t + 0.7 * v).sin());
    let teacher = of(&|t, v| 2.0 * (0.2 + 0.9 * t + 1.3 * v).cos());
    let targets: Vec<u32> = (0..n as u32).map(|t| 2 * t % v as u32).collect();
    let gold = [(1.0, 1.262_173_172, 0.602_791_767), (2.0, 1.580_235_537, 0.630_685_119)];
    for (tau, divergence, norm) in gold {
        let rows: Vec<Distilled> = (student.chunks(v).zip(teacher.chunks(v)).zip(&targets))
            .map(|((z, t), target)| distilled(z, t, *target as usize, tau))
            .collect();
        let mean = |of: &dyn Fn(&Distilled) -> f64| rows.iter().map(of).sum::<f64>() / n as f64;
        let squares = mean(&|row| row.gradient.iter().map(|g| g * g).sum()) / n as f64;
        for (found, wanted) in [
            (mean(&|row| row.cross_entropy), 1.896_101_869),
            (mean(&|row| row.divergence), divergence),
            (squares.sqrt(), norm),
        ] {
            assert!((found - wanted).abs() < 1e-9, "{found} {wanted}");
        }
        for mut s in setups(suite) {
            let f32s = |values: &[f64]| values.iter().map(|x| *x as f32).collect::<Vec<f32>>();
            let one: Vec<f32> = (0..v * v).map(|i| f32::from(u8::from(i / v == i % v))).collect();
            let (dx, dweight, divergences) = (s.mat(n, v), s.mat(v, v), s.mat(1, n));
            let (factors, weight) = (s.values(1, n, &[0.25; 4]), s.values(v, v, &one));
            let op = LinearCrossEntropy {
                x: s.values(n, v, &f32s(&student)),
                weight,
                targets: s.indices(&targets),
                loss: s.mat(1, n),
                scored_lse: None,
                backward: Some(LossBackward { factors, z_loss: None, dx, dweight, accumulate: false }),
                teacher: Some(Teacher {
                    x: s.values(n, v, &f32s(&teacher)),
                    weight,
                    factor: s.values(1, 1, &[1.0]),
                    temperature: tau as f32,
                    divergence: divergences,
                }),
            };
            s.launch(&op.into()).unwrap();
            let mean = |values: Vec<f32>| values.iter().map(|x| f64::from(*x)).sum::<f64>() / n as f64;
            let bound = f64::from(suite.bound(1e-6));
            assert!((mean(s.read(op.loss)) - 1.896_101_869).abs() < bound);
            assert!((mean(s.read(divergences)) - divergence).abs() < bound);
            let gradient = s.read(dx);
            let found = gradient.iter().map(|g| f64::from(*g).powi(2)).sum::<f64>().sqrt();
            assert!((found - norm).abs() < bound, "{found} {norm}");
            for (found, wanted) in gradient.iter().zip(rows.iter().flat_map(|row| &row.gradient)) {
                assert!((f64::from(*found) - wanted / n as f64).abs() < bound, "{found} {wanted}");
            }
        }
    }
}

/// Gradients of distillation are slopes of cross-entropy and divergence together.
pub(crate) fn distillation(suite: &Suite<'_>) {
    for mut s in setups(suite) {
        let (n, d, v) = (13, 8, 29);
        let (x, weight, loss, divergence) = (s.mat(n, d), s.mat(v, d), s.mat(1, n), s.mat(1, n));
        let ids: Vec<u32> = (0..n).map(|i| if i == 4 { IGNORED } else { (i * 7 % v) as u32 }).collect();
        let (targets, dx, dweight) = (s.indices(&ids), s.mat(n, d), s.mat(v, d));
        let factor = 0.75;
        let teacher = Teacher {
            x: s.mat(n, d + 3),
            weight: s.mat(v, d + 3),
            factor: s.values(1, 1, &[factor]),
            temperature: 1.7,
            divergence,
        };
        let forward =
            LinearCrossEntropy { x, weight, targets, loss, scored_lse: None, backward: None, teacher: None };
        let w: Vec<f32> = (0..n).map(|i| 0.25 + 0.125 * i as f32).collect();
        let backward =
            Some(LossBackward { factors: s.values(1, n, &w), z_loss: None, dx, dweight, accumulate: false });
        // The gradients of the divergence alone are what a teacher adds.
        s.launch(&LinearCrossEntropy { backward, ..forward }.into()).unwrap();
        let without = [s.read(dx), s.read(dweight)];
        s.launch(&LinearCrossEntropy { backward, teacher: Some(teacher), ..forward }.into()).unwrap();
        for (view, without) in [dx, dweight].into_iter().zip(&without) {
            let added: Vec<f32> =
                s.read(view).iter().zip(without).map(|(all, ce)| (all - ce) / factor).collect();
            assert!(added.iter().any(|gradient| *gradient != 0.0), "the teacher adds nothing");
            s.backend.write_f32(view, &added).unwrap();
        }
        let forward = LinearCrossEntropy { teacher: Some(teacher), ..forward }.into();
        hold(suite, &mut s, "distillation x", &forward, x, divergence, &w, dx);
        hold(suite, &mut s, "distillation weight", &forward, weight, divergence, &w, dweight);
    }
}

pub(crate) fn embedding(suite: &Suite<'_>) {
    for mut s in setups(suite) {
        let (n, d, v) = (12, 9, 5);
        let (table, learned, out) = (s.mat(v, d), s.mat(4, d), s.mat(n, d));
        let ids = s.indices(&(0..n as u32).map(|i| i * i % 5).collect::<Vec<_>>());
        let positions = s.indices(&(0..n as u32).map(|i| i % 4).collect::<Vec<_>>());
        let forward = Op::from(Embedding {
            table,
            tensor_shard: None,
            ids,
            positions: Some(PositionTable { table: learned, positions }),
            out,
        });
        let w = noise("w", n * d);
        let dout = s.values(n, d, &w);
        let (dtable, dlearned) = (s.values(v, d, &vec![0.0; v * d]), s.values(4, d, &vec![0.0; 4 * d]));
        let back = EmbeddingBackward {
            ids,
            dout,
            dtable,
            tensor_shard: None,
            positions: Some(PositionTable { table: dlearned, positions }),
        };
        s.launch(&back.into()).unwrap();
        hold(suite, &mut s, "embedding table", &forward, table, out, &w, dtable);
        hold(suite, &mut s, "embedding positions", &forward, learned, out, &w, dlearned);
    }
}
