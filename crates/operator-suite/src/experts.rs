//! Gates, rows and grouped products of experts: each operator against the reference, and a whole layer against golden values in f64
//! (shared with transformers 5.24's Mixtral block on torch 2.15, which gives them to 1e-7).

use crate::{Setup, Suite};
use bessemer_tensor::op::*;
use bessemer_tensor::{TensorError, View};
use bessemer_units::DType;

/// (N, E, K); the last has more than one block of tokens.
const SHAPES: [(usize, usize, usize); 5] = [(1, 1, 1), (7, 3, 2), (40, 8, 2), (33, 64, 8), (300, 130, 3)];

fn route(s: &mut Setup, (n, e, k): (usize, usize, usize), renormalise: bool) -> Route {
    Route {
        logits: s.strided(n, e, 1),
        bias: None,
        probabilities: s.strided(n, e, 2),
        experts: s.index_mat(n, k),
        preferred: None,
        weights: s.strided(n, k, 1),
        lse: renormalise.then(|| s.mat(1, n)),
        gate: Gate::softmax(renormalise),
    }
}

/// Gates with biases, in groups of experts where the number of experts is a multiple of four, and the choices by scores alone.
fn biased_route(s: &mut Setup, shape: (usize, usize, usize), score: Score) -> Route {
    let (n, e, k) = shape;
    let (groups, kept) = if e % 4 == 0 && k <= e / 2 { (4, 2) } else { (1, 1) };
    let gate = Gate { score, groups, kept, scale: 2.5, ..Gate::softmax(score == Score::Sigmoid) };
    let bias: Vec<f32> = (0..e).map(|e| 0.1 * (1.0 + 2.0 * e as f32).sin()).collect();
    let bias = Some(s.values(1, e, &bias));
    Route { bias, preferred: Some(s.index_mat(n, k)), lse: None, gate, ..route(s, shape, false) }
}

pub(crate) fn routes_agree_with_the_reference(suite: &Suite<'_>) {
    for shape in SHAPES {
        for renormalise in [false, true] {
            suite.check(&format!("route {shape:?} {renormalise}"), 2e-6, &|s| {
                route(s, shape, renormalise).into()
            });
        }
        for score in [Score::Softmax, Score::Sigmoid] {
            suite.check(&format!("route with biases {shape:?} {score:?}"), 2e-6, &|s| {
                biased_route(s, shape, score).into()
            });
        }
    }
}

/// Equal logits go to the lower expert, and what is not a number comes last.
pub(crate) fn ties_go_to_the_lower_expert(suite: &Suite<'_>) {
    for kernels in suite.kernels() {
        let mut s = suite.setup(kernels, 1);
        let op = route(&mut s, (3, 4, 3), false);
        let nan = f32::NAN;
        let logits = [1.0, 2.0, 2.0, 1.0, 0.0, -0.0, 0.0, 0.0, nan, 1.0, nan, -1.0];
        s.backend.write_f32(op.logits, &logits).unwrap();
        s.launch(&op.into()).unwrap();
        assert_eq!(s.read(op.experts), [1.0, 2.0, 0.0, 0.0, 1.0, 2.0, 1.0, 3.0, 0.0], "{kernels}");
    }
}

fn route_backward(s: &mut Setup, route: &Route, sequences: usize, losses: bool) -> RouteBackward {
    let Route { probabilities, experts, weights, gate, .. } = *route;
    let (n, e, k) = (probabilities.rows, probabilities.cols, weights.cols);
    let counts = s.index_mat(sequences, e);
    let span = TokenSpan::whole(n / sequences);
    s.launch(&CountChoices { experts, span, counts }.into()).unwrap();
    let lse = route.lse.unwrap_or_else(|| s.mat(1, n));
    RouteBackward {
        probabilities,
        experts,
        weights,
        dweights: s.strided(n, k, 1),
        balance: losses.then(|| BalanceTerm { counts, weight: s.values(1, 2, &[0.1, 0.03]) }),
        z_loss: (losses && gate.score == Score::Softmax).then(|| (lse, s.values(1, 2, &[0.2, 0.05]))),
        gate,
        span,
        dlogits: s.strided(n, e, 1),
    }
}

pub(crate) fn gradients_of_routes_and_balance_losses_agree_with_the_reference(suite: &Suite<'_>) {
    for (n, e, k) in [(1, 1, 1), (12, 4, 2), (120, 33, 4)] {
        for (sequences, losses) in [(1, false), (1, true), (n.min(4), true)] {
            let what = format!("{n} {e} {k} of {sequences}, {losses}");
            suite.check(&format!("gradient of a route {what}"), 2e-6, &|s| {
                let forward = route(s, (n, e, k), losses);
                s.launch(&forward.into()).unwrap();
                route_backward(s, &forward, sequences, losses).into()
            });
            suite.check(&format!("balance {what}"), 2e-6, &|s| {
                let forward = route(s, (n, e, k), losses);
                s.launch(&forward.into()).unwrap();
                let counts = s.index_mat(sequences, e);
                let span = TokenSpan::whole(n / sequences);
                s.launch(&CountChoices { experts: forward.experts, span, counts }.into()).unwrap();
                let (probabilities, value) = (forward.probabilities, s.mat(1, sequences));
                BalanceLoss { probabilities, counts, choices: k, normalise: losses, span, value }.into()
            });
            suite.check(&format!("gradient of a route of sigmoids {what}"), 2e-6, &|s| {
                let forward = biased_route(s, (n, e, k), Score::Sigmoid);
                s.launch(&forward.into()).unwrap();
                route_backward(s, &forward, sequences, losses).into()
            });
        }
    }
}

/// Routes at random: experts, and where each choice has its row.
struct Rows {
    experts: View,
    rows: View,
    sources: View,
    offsets: View,
}

fn rows(s: &mut Setup, (n, e, k): (usize, usize, usize)) -> Rows {
    let experts = s.index_mat(n, k);
    let chosen: Vec<u32> =
        (0..n * k).map(|i| ((i / k * 5 + i / k / 3 + i % k * (1 + i / k % 2)) % e) as u32).collect();
    s.backend.write_u32(experts, &chosen).unwrap();
    let (rows, sources, offsets) = (s.index_mat(n, k), s.index_mat(1, n * k), s.index_mat(1, e + 1));
    let found = Rows { experts, rows, sources, offsets };
    s.launch(&AssignRows { experts, kept: None, shadows: None, rows, sources, offsets }.into()).unwrap();
    found
}

pub(crate) fn rows_lie_by_expert_then_token_then_choice(suite: &Suite<'_>) {
    for kernels in suite.kernels() {
        for (n, e, k) in [(1, 1, 1), (9, 4, 2), (200, 7, 3)] {
            let mut s = suite.setup(kernels, 3);
            let Rows { experts, rows, sources, offsets } = rows(&mut s, (n, e, k));
            let chosen = s.read(experts);
            let mut order: Vec<usize> = (0..n * k).collect();
            order.sort_by_key(|i| chosen[*i] as usize);
            let wanted: Vec<f32> = order.iter().map(|i| *i as f32).collect();
            assert_eq!(s.read(sources), wanted, "{kernels}");
            let (rows, offsets) = (s.read(rows), s.read(offsets));
            assert!(order.iter().enumerate().all(|(r, i)| rows[*i] == r as f32), "{kernels}");
            let before = |e: usize| chosen.iter().filter(|c| (**c as usize) < e).count() as f32;
            assert!((0..=e).all(|e| offsets[e] == before(e)), "{kernels}");
        }
    }
}

pub(crate) fn rows_are_copied_and_summed_as_in_the_reference(suite: &Suite<'_>) {
    for (i, (shape, d)) in [((1, 1, 1), 1), ((9, 4, 2), 5), ((70, 5, 3), 65)].into_iter().enumerate() {
        let (n, _, k) = shape;
        // Some choices have no row.
        let dropped = |s: &mut Setup, of: &Rows| {
            let mut rows: Vec<u32> = s.read(of.rows).iter().map(|r| *r as u32).collect();
            let mut sources: Vec<u32> = s.read(of.sources).iter().map(|r| *r as u32).collect();
            for t in (3..n).step_by(4) {
                sources[rows[t * k] as usize] = NO_ROW;
                rows[t * k] = NO_ROW;
            }
            s.backend.write_u32(of.rows, &rows).unwrap();
            s.backend.write_u32(of.sources, &sources).unwrap();
        };
        suite.check(&format!("dispatch {shape:?}"), 0.0, &|s| {
            let of = rows(s, shape);
            dropped(s, &of);
            Dispatch { x: s.act(n, d, 1), sources: of.sources, choices: k, out: s.act(n * k, d, 2) }.into()
        });
        suite.check(&format!("dispatch backward {shape:?}"), 2e-6, &|s| {
            let of = rows(s, shape);
            dropped(s, &of);
            let (dout, dx) = (s.act(n * k, d, 1), s.act(n, d, 2));
            DispatchBackward { dout, rows: of.rows, dx, accumulate: i % 2 == 1 }.into()
        });
        suite.check(&format!("combine {shape:?}"), 2e-6, &|s| {
            let of = rows(s, shape);
            dropped(s, &of);
            let (x, weights, out) = (s.act(n * k, d, 1), s.strided(n, k, 1), s.act(n, d, 2));
            CombineRows { x, rows: of.rows, weights, out }.into()
        });
        suite.check(&format!("combine backward {shape:?}"), 4e-6, &|s| {
            let of = rows(s, shape);
            dropped(s, &of);
            CombineRowsBackward {
                dout: s.act(n, d, 1),
                x: s.act(n * k, d, 2),
                rows: of.rows,
                sources: of.sources,
                weights: s.strided(n, k, 1),
                dx: s.act(n * k, d, 1),
                dweights: s.strided(n, k, 1),
            }
            .into()
        });
    }
}

/// Groups with no rows, few and many, and one with all; rows after the last offset belong to no group.
const GROUPS: [&[u32]; 5] =
    [&[0, 1], &[0, 0, 1, 32, 64, 97, 97], &[0, 0, 0, 70], &[0, 70, 70, 70], &[2, 9, 10, 40]];

pub(crate) fn grouped_products_agree_with_the_reference(suite: &Suite<'_>) {
    for (case, offsets) in GROUPS.into_iter().enumerate() {
        let (groups, spare) = (offsets.len() - 1, case % 3);
        let r = offsets[groups] as usize + spare;
        // One group of each matrix, or several.
        // Several panels of columns and parts of k.
        let wide = (case == 1).then_some((groups, (150, 1100)));
        let shared = (1..groups).rev().find(|matrices| groups.is_multiple_of(*matrices));
        for (e, (i, o)) in
            shared.into_iter().chain([groups]).zip([(17, 33), (1, 1)]).chain([(groups, (64, 40))]).chain(wide)
        {
            let bound = |k: usize| 2e-5f32.max(4e-6 * (k as f32).sqrt());
            let what = format!("{offsets:?} of {e} matrices {i} x {o}");
            suite.check(&format!("grouped {what}"), bound(i), &|s| {
                let (x, weight) = (s.act(r, i, 1), s.param(e * o, i, case % 2));
                GroupedLinear { x, weight, offsets: s.indices(offsets), out: s.act(r, o, 2) }.into()
            });
            suite.check(&format!("grouped input gradient {what}"), bound(o), &|s| {
                let (dy, weight) = (s.act(r, o, 1), s.param(e * o, i, case % 2));
                let (offsets, dx) = (s.indices(offsets), s.act(r, i, 2));
                GroupedLinearBackwardInput { dy, weight, offsets, dx }.into()
            });
            suite.check(&format!("grouped weight gradient {what}"), 4e-5, &|s| {
                let (x, dy) = (s.act(r, i, 1), s.act(r, o, 2));
                // The reference rounds once.
                let dweight = match e < groups {
                    true => s.typed(DType::F32, e * o, i, case % 2),
                    false => s.gradient(e * o, i, case % 2),
                };
                let (offsets, accumulate) = (s.indices(offsets), case % 2 == 1);
                GroupedLinearBackwardWeight { x, dy, offsets, dweight, accumulate }.into()
            });
        }
    }
}

/// Indices as they are.
fn numbers(s: &mut Setup, view: View) -> Vec<u32> {
    // The mark of none is the largest number.
    s.read(view).into_iter().map(|value| value as u32).collect()
}

/// Two devices with two experts each: rows for shadows come first, and those of other experts are counted from there.
pub(crate) fn shadows_are_chosen_and_their_rows_come_first(suite: &Suite<'_>) {
    for kernels in suite.kernels() {
        let mut s = suite.setup(kernels, 1);
        let offsets = s.indices(&[0, 1, 5, 6, 6, 0, 0, 4, 5, 7]);
        let offsets = View { rows: 2, cols: 5, stride: 5, ..offsets };
        let (slots, routed) = (s.index_mat(1, 3), s.index_mat(2, 5));
        let costs = ShadowCosts { row_products: 10, row_exchanges: 0, shadow: 1, owned: 0 };
        // The devices compute 9 and 4 rows; with a shadow of expert 1 5 and 8, with one of expert 2 as well 6 and 7, and a third one lowers none.
        s.launch(&ChooseShadows { offsets, costs, slots, routed }.into()).unwrap();
        assert_eq!(numbers(&mut s, slots), [1, 2, NO_EXPERT], "{kernels}");
        assert_eq!(numbers(&mut s, routed), [5, 6, 6, 6, 6, 5, 5, 5, 5, 7], "{kernels}");
        // The rows of the first device.
        let chosen = s.index_mat(3, 2);
        s.backend.write_u32(chosen, &[1, 0, 2, 1, 1, 1]).unwrap();
        let (rows, sources, own) = (s.index_mat(3, 2), s.index_mat(1, 6), s.index_mat(1, 5));
        let ends = s.index_mat(1, 4);
        let shadows = Some(ShadowRows { slots, offsets: ends });
        let assign = AssignRows { experts: chosen, kept: None, shadows, rows, sources, offsets: own };
        s.launch(&assign.into()).unwrap();
        assert_eq!(numbers(&mut s, rows), [0, 5, 4, 1, 2, 3], "{kernels}");
        assert_eq!(numbers(&mut s, sources), [0, 3, 4, 5, 2, 1], "{kernels}");
        assert_eq!(numbers(&mut s, ends), [0, 4, 5, 5], "{kernels}");
        assert_eq!(numbers(&mut s, own), [5, 6, 6, 6, 6], "{kernels}");
        // Too dear, a shadow is left out, and all is as without.
        let dear = ShadowCosts { shadow: 1000, ..costs };
        s.launch(&ChooseShadows { offsets, costs: dear, slots, routed }.into()).unwrap();
        assert_eq!(numbers(&mut s, slots), [NO_EXPERT; 3], "{kernels}");
        assert_eq!(numbers(&mut s, routed), [0, 1, 5, 6, 6, 0, 0, 4, 5, 7], "{kernels}");
        s.launch(&assign.into()).unwrap();
        assert_eq!(numbers(&mut s, rows), [1, 0, 5, 2, 3, 4], "{kernels}");
        assert_eq!(numbers(&mut s, own), [0, 1, 5, 6, 6], "{kernels}");
        for wrong in [[4, NO_EXPERT, NO_EXPERT], [2, 2, 3], [3, 1, 2], [0, NO_EXPERT, 1]] {
            s.backend.write_u32(slots, &wrong).unwrap();
            let found = s.launch(&assign.into());
            assert!(
                matches!(found, Err(TensorError::Index { operand: "slots", .. })),
                "{wrong:?}: {found:?}"
            );
        }
        let falling = s.indices(&[0, 2, 1]);
        let (slots, routed) = (s.index_mat(1, 1), s.index_mat(1, 3));
        let found = s.launch(&ChooseShadows { offsets: falling, costs, slots, routed }.into());
        assert!(matches!(found, Err(TensorError::Index { operand: "offsets", at: 2, .. })), "{found:?}");
    }
}

/// Terms of three devices for the shadows of experts 3 and 4, of which this device has experts 4 to 7.
pub(crate) fn gradients_of_shadows_are_added_in_the_order_of_devices(suite: &Suite<'_>) {
    for kernels in suite.kernels() {
        for dtype in [DType::F32, DType::Bf16] {
            let mut s = suite.setup(kernels, 1);
            let slots = s.indices(&[3, 4, NO_EXPERT]);
            // Of expert 4 with two rows of three columns; rows behind them are not read.
            let terms_of: Vec<f32> =
                (0..54).map(|i| if i < 18 { 1.0 + 1e-3 * i as f32 } else { 1e9 }).collect();
            let terms = s.values(18, 3, &terms_of);
            let dweight = s.typed(dtype, 8, 3, 0);
            let before = s.read(dweight);
            s.launch(&AddShadowGradients { terms, slots, first: 4, experts: 4, dweight }.into()).unwrap();
            let after = s.read(dweight);
            assert_eq!(after[6..], before[6..], "{kernels}");
            let rounded = s.typed(dtype, 1, 1, 0);
            for at in 0..6 {
                let wanted = (0..3).fold(before[at], |sum, device| {
                    s.backend.write_f32(rounded, &[sum + terms_of[device * 6 + at]]).unwrap();
                    s.read(rounded)[0]
                });
                assert_eq!(after[at], wanted, "{kernels} {dtype}");
            }
        }
    }
}

/// Two devices have sent rows: 1, 2, 0 and 3 of the first for four experts, 0, 1, 4 and 2 of the second.
pub(crate) fn received_rows_are_grouped_by_device_and_expert(suite: &Suite<'_>) {
    for kernels in suite.kernels() {
        let mut s = suite.setup(kernels, 1);
        let offsets = s.indices(&[0, 1, 3, 3, 6, 0, 0, 1, 5, 7]);
        let offsets = View { rows: 2, cols: 5, stride: 5, ..offsets };
        for (first, wanted) in [(0, [0.0, 1.0, 3.0, 3.0, 4.0]), (2, [0.0, 0.0, 3.0, 7.0, 9.0])] {
            let groups = s.index_mat(1, 5);
            s.launch(&ReceivedGroups { offsets, first, groups }.into()).unwrap();
            assert_eq!(s.read(groups), wanted, "{kernels}");
        }
        let falling = s.indices(&[0, 2, 1]);
        let groups = s.index_mat(1, 3);
        let wrong = s.launch(&ReceivedGroups { offsets: falling, first: 0, groups }.into());
        assert!(matches!(wrong, Err(TensorError::Index { operand: "offsets", at: 2, .. })), "{wrong:?}");
        // Rows behind those that count stay as they are.
        let (gate, up, live) = (s.values(4, 3, &[0.0; 12]), s.mat(4, 3), s.indices(&[3]));
        let out = s.values(4, 3, &[5.0; 12]);
        let gated = Gated { kind: ActivationKind::Silu, gate, up, live: Some(live), out };
        s.launch(&gated.into()).unwrap();
        assert_eq!(s.read(out)[6..], [0.0, 0.0, 0.0, 5.0, 5.0, 5.0], "{kernels}");
        // Of several numbers, rows from the first on and before the last count.
        let out = s.values(4, 3, &[5.0; 12]);
        let live = Some(s.indices(&[1, 1, 3]));
        s.launch(&Gated { live, out, ..gated }.into()).unwrap();
        assert_eq!(s.read(out), [[5.0; 3], [0.0; 3], [0.0; 3], [5.0; 3]].concat(), "{kernels}");
        let dout = s.values(4, 3, &[1.0; 12]);
        let (dgate, dup) = (s.values(4, 3, &[5.0; 12]), s.values(4, 3, &[5.0; 12]));
        let live = Some(s.indices(&[2, 4]));
        let kind = ActivationKind::Silu;
        s.launch(&GatedBackward { kind, gate, up, dout, live, dgate, dup }.into()).unwrap();
        assert_eq!(s.read(dup), [[5.0; 3], [5.0; 3], [0.0; 3], [0.0; 3]].concat(), "{kernels}");
        let falling = Gated { live: Some(s.indices(&[3, 2])), ..gated };
        let wrong = s.launch(&falling.into());
        assert!(matches!(wrong, Err(TensorError::Index { operand: "live", at: 1, .. })), "{wrong:?}");
        let many = Gated { live: Some(s.indices(&[5])), ..gated };
        let wrong = s.launch(&many.into());
        assert!(matches!(wrong, Err(TensorError::Index { operand: "live", .. })), "{wrong:?}");
    }
}

/// Offsets of some groups of all: products of these rows alone, with the bits that they have among the others.
pub(crate) fn some_groups_have_the_bits_that_they_have_among_all(suite: &Suite<'_>) {
    const I: usize = 96;
    const O: usize = 620;
    let all = [0u32, 40, 41, 105, 105, 300, 333, 333, 400];
    for (engine, product) in suite.devices.engines().into_iter().enumerate() {
        let found = |parts: &[&[u32]]| {
            let mut s = suite.engine_setup(engine, 2);
            let (x, dy) = (crate::setup::noise("x", 400 * I), crate::setup::noise("dy", 400 * O));
            let (x, dy) = (s.values(400, I, &x), s.values(400, O, &dy));
            // Two matrices, so four pairs of groups.
            let weight = s.values(2 * O, I, &crate::setup::noise("w", 2 * O * I));
            let (out, dx) = (s.values(400, O, &vec![7.0; 400 * O]), s.values(400, I, &vec![7.0; 400 * I]));
            for part in parts {
                let offsets = s.indices(part);
                s.launch(&GroupedLinear { x, weight, offsets, out }.into()).unwrap();
                s.launch(&GroupedLinearBackwardInput { dy, weight, offsets, dx }.into()).unwrap();
            }
            [out, dx].map(|view| s.read(view).iter().map(|x| x.to_bits()).collect::<Vec<u32>>())
        };
        let wanted = found(&[&all]);
        assert!(found(&[&all[4..7], &all[..5], &all[6..]]) == wanted, "{}", product.name);
        let some = found(&[&all[2..5]]);
        for (some, wanted, cols) in [(&some[0], &wanted[0], O), (&some[1], &wanted[1], I)] {
            let (from, to) = (41 * cols, 105 * cols);
            assert!(some[from..to] == wanted[from..to], "{}", product.name);
            let others = some[..from].iter().chain(&some[to..]);
            assert!(others.clone().all(|x| *x == 7f32.to_bits()), "{}", product.name);
        }
    }
}

/// Results of the three products of groups, `[rows, O]`, `[rows, I]` and `[groups O, I]`, of rows `first ..` and of one group or all.
fn grouped_bits(mut s: Setup, offsets: &[u32], group: Option<usize>) -> [Vec<u32>; 3] {
    const I: usize = 96;
    const O: usize = 620;
    let (groups, rows) = (offsets.len() - 1, offsets[offsets.len() - 1] as usize);
    let (groups, weights, rows) = match group {
        None => (groups, 0..groups, 0..rows),
        Some(group) => (1, group..group + 1, offsets[group] as usize..offsets[group + 1] as usize),
    };
    let part = |name: &str, of: usize, range: &std::ops::Range<usize>, cols: usize| {
        crate::setup::noise(name, of * cols)[range.start * cols..range.end * cols].to_vec()
    };
    let (all_rows, all_groups) = (offsets[offsets.len() - 1] as usize, offsets.len() - 1);
    let r = rows.len();
    let x = part("x", all_rows, &rows, I);
    let dy = part("dy", all_rows, &rows, O);
    let w = part("w", all_groups, &weights, O * I);
    let (x, dy, weight) = (s.values(r, I, &x), s.values(r, O, &dy), s.values(groups * O, I, &w));
    let offsets = match group {
        None => s.indices(offsets),
        Some(_) => s.indices(&[0, r as u32]),
    };
    let (out, dx, dweight) = (s.mat(r, O), s.mat(r, I), s.mat(groups * O, I));
    s.launch(&GroupedLinear { x, weight, offsets, out }.into()).unwrap();
    s.launch(&GroupedLinearBackwardInput { dy, weight, offsets, dx }.into()).unwrap();
    s.launch(&GroupedLinearBackwardWeight { x, dy, offsets, dweight, accumulate: false }.into()).unwrap();
    [out, dx, dweight].map(|view| s.read(view).iter().map(|x| x.to_bits()).collect())
}

/// A group's bits are those that it has alone, however the products of all groups are cut, with any engine and number of workers.
pub(crate) fn groups_have_the_bits_that_they_have_alone(suite: &Suite<'_>) {
    for (offsets, filled) in [(&[0u32, 0, 1, 32, 64, 97, 700][..], 1..6), (&[0, 0, 700, 700], 1..2)] {
        for (engine, product) in suite.devices.engines().into_iter().enumerate() {
            let name = product.name;
            let together = grouped_bits(suite.engine_setup(engine, 1), offsets, None);
            for workers in [2, 4] {
                let found = grouped_bits(suite.engine_setup(engine, workers), offsets, None);
                assert!(found == together, "{name}, {offsets:?} with {workers} workers");
            }
            for group in filled.clone() {
                let alone = grouped_bits(suite.engine_setup(engine, 1), offsets, Some(group));
                let rows = offsets[group] as usize..offsets[group + 1] as usize;
                for (of, (alone, together)) in alone.iter().zip(&together).enumerate() {
                    let cols = alone.len() / if of < 2 { rows.len() } else { 1 };
                    let wanted = if of < 2 {
                        rows.start * cols..rows.end * cols
                    } else {
                        group * cols..(group + 1) * cols
                    };
                    assert!(*alone == together[wanted], "{name}, {offsets:?}, group {group}, product {of}");
                }
            }
        }
    }
}

pub(crate) fn experts_rows_and_offsets_past_the_end_are_named(suite: &Suite<'_>) {
    for kernels in suite.kernels() {
        let mut s = suite.setup(kernels, 1);
        let Rows { experts, rows, sources, offsets } = rows(&mut s, (9, 4, 2));
        let named = |e: TensorError, wanted: &str, index: u32| match e {
            TensorError::Index { operand, index: found, .. } => assert_eq!((operand, found), (wanted, index)),
            other => panic!("{other}"),
        };
        let fewer = s.index_mat(1, 4);
        let assign = AssignRows { experts, kept: None, shadows: None, rows, sources, offsets: fewer };
        named(s.launch(&assign.into()).unwrap_err(), "experts", 3);
        let counts = s.index_mat(3, 3);
        named(
            s.launch(&CountChoices { experts, span: TokenSpan::whole(experts.rows), counts }.into())
                .unwrap_err(),
            "experts",
            3,
        );
        let (few, out) = (s.mat(8, 5), s.mat(18, 5));
        let dispatch = Dispatch { x: few, sources, choices: 2, out };
        assert!(s.launch(&dispatch.into()).is_err());
        let falling = s.indices(&[0, 9, 4, 18]);
        let (x, weight, product) = (s.mat(18, 5), s.mat(6, 5), s.mat(18, 2));
        let grouped = GroupedLinear { x, weight, offsets: falling, out: product };
        named(s.launch(&grouped.into()).unwrap_err(), "offsets", 4);
        let past = GroupedLinear { offsets: s.indices(&[0, 9, 14, 19]), ..grouped };
        named(s.launch(&past.into()).unwrap_err(), "offsets", 19);
        let _ = offsets;
    }
}

const T: usize = 12;
pub(crate) const D: usize = 6;
const E: usize = 4;
pub(crate) const F: usize = 5;
const K: usize = 2;

/// A layer of gated experts with SiLU on the inputs of the golden values, forward and backward.
struct Layer {
    s: Setup,
    logits: View,
    route: Route,
    sources: View,
    counts: View,
    y: View,
    dy: View,
    dx: View,
    drouter: View,
    dgate_up: View,
    ddown: View,
}

fn filled(s: &mut Setup, rows: usize, cols: usize, of: impl Fn(f64, f64) -> f64) -> View {
    let values: Vec<f32> =
        (0..rows * cols).map(|i| of((i / cols) as f64, (i % cols) as f64) as f32).collect();
    s.values(rows, cols, &values)
}

/// Inputs of the golden values: of T tokens and E experts.
pub(crate) struct Inputs {
    pub(crate) x: View,
    pub(crate) router: View,
    pub(crate) gate_up: View,
    pub(crate) down: View,
    pub(crate) dy: View,
}

impl Inputs {
    pub(crate) fn new(s: &mut Setup, tokens: usize, experts: usize) -> Inputs {
        let (f, d) = (F as f64, D as f64);
        Inputs {
            x: filled(s, tokens, D, |t, j| (1.0 + 1.7 * t + 0.9 * j + 0.13 * t * j).sin()),
            router: filled(s, experts, D, |e, j| (0.5 + 2.3 * e + 1.1 * j + 0.29 * e * j).cos()),
            gate_up: filled(s, experts * 2 * F, D, |row, j| {
                let (e, h) = ((row / (2.0 * f)).floor(), row % (2.0 * f));
                match h < f {
                    true => 0.5 * (0.3 + 0.7 * e + 1.3 * h + 0.5 * j + 0.11 * e * h * j).sin(),
                    false => {
                        let h = h - f;
                        0.5 * (0.2 + 0.9 * e + 0.6 * h + 1.1 * j + 0.07 * e * h * j).cos()
                    }
                }
            }),
            down: filled(s, experts * D, F, |row, h| {
                let (e, j) = ((row / d).floor(), row % d);
                0.5 * (0.8 + 1.1 * e + 0.4 * j + 1.7 * h + 0.05 * e * j * h).sin()
            }),
            dy: filled(s, tokens, D, |t, j| (0.4 + 0.8 * t + 1.3 * j).cos()),
        }
    }
}

impl Layer {
    fn run(mut s: Setup, renormalise: bool, losses: bool) -> Layer {
        let s_ = &mut s;
        let Inputs { x, router, gate_up, down, dy } = Inputs::new(s_, T, E);
        let (logits, probabilities, weights) = (s_.mat(T, E), s_.mat(T, E), s_.mat(T, K));
        let (experts, rows, sources) = (s_.index_mat(T, K), s_.index_mat(T, K), s_.index_mat(1, T * K));
        let (offsets, counts) = (s_.index_mat(1, E + 1), s_.index_mat(1, E));
        let lse = Some(s_.mat(1, T));
        let chosen_by = Gate::softmax(renormalise);
        let (bias, preferred) = (None, None);
        let route = Route { logits, bias, probabilities, experts, preferred, weights, lse, gate: chosen_by };
        let r = T * K;
        let [dispatched, out, dout, ddispatched] = std::array::from_fn(|_| s_.mat(r, D));
        let [hidden, dhidden] = std::array::from_fn(|_| s_.mat(r, 2 * F));
        let [gated, dgated] = std::array::from_fn(|_| s_.mat(r, F));
        let [y, dx] = std::array::from_fn(|_| s_.mat(T, D));
        let (dweights, dlogits) = (s_.mat(T, K), s_.mat(T, E));
        let (drouter, dgate_up, ddown) = (s_.mat(E, D), s_.mat(E * 2 * F, D), s_.mat(E * D, F));
        let per_token = |weight: f32| [weight, weight / T as f32];
        let (balance, z) = (s_.values(1, 2, &per_token(0.01)), s_.values(1, 2, &per_token(0.001)));
        let kind = ActivationKind::Silu;
        let (gate, up) = (hidden.columns(0, F), hidden.columns(F, F));
        let (dgate, dup) = (dhidden.columns(0, F), dhidden.columns(F, F));
        let plain = Linear {
            x,
            weight: router,
            bias: None,
            activation: None,
            residual: None,
            rowwise: false,
            out: logits,
        };
        let ops: Vec<Op> = vec![
            plain.into(),
            route.into(),
            CountChoices { experts, span: TokenSpan::whole(T), counts }.into(),
            AssignRows { experts, kept: None, shadows: None, rows, sources, offsets }.into(),
            Dispatch { x, sources, choices: K, out: dispatched }.into(),
            GroupedLinear { x: dispatched, weight: gate_up, offsets, out: hidden }.into(),
            Gated { live: None, kind, gate, up, out: gated }.into(),
            GroupedLinear { x: gated, weight: down, offsets, out }.into(),
            CombineRows { x: out, rows, weights, out: y }.into(),
            CombineRowsBackward { dout: dy, x: out, rows, sources, weights, dx: dout, dweights }.into(),
            GroupedLinearBackwardInput { dy: dout, weight: down, offsets, dx: dgated }.into(),
            GroupedLinearBackwardWeight { x: gated, dy: dout, offsets, dweight: ddown, accumulate: false }
                .into(),
            GatedBackward { live: None, kind, gate, up, dout: dgated, dgate, dup }.into(),
            GroupedLinearBackwardInput { dy: dhidden, weight: gate_up, offsets, dx: ddispatched }.into(),
            GroupedLinearBackwardWeight {
                x: dispatched,
                dy: dhidden,
                offsets,
                dweight: dgate_up,
                accumulate: false,
            }
            .into(),
            DispatchBackward { dout: ddispatched, rows, dx, accumulate: false }.into(),
            RouteBackward {
                probabilities,
                experts,
                weights,
                dweights,
                balance: losses.then_some(BalanceTerm { counts, weight: balance }),
                z_loss: lse.filter(|_| losses).map(|lse| (lse, z)),
                gate: chosen_by,
                span: TokenSpan::whole(T),
                dlogits,
            }
            .into(),
            LinearBackwardWeight { x, dy: dlogits, dweight: drouter, dbias: None, accumulate: false }.into(),
            LinearBackwardInput { dy: dlogits, weight: router, activation: None, dx, accumulate: true }
                .into(),
        ];
        ops.iter().for_each(|op| s_.launch(op).unwrap());
        Layer { s, logits, route, sources, counts, y, dy, dx, drouter, dgate_up, ddown }
    }

    fn read(&mut self, view: View) -> Vec<f64> {
        self.s.read(view).into_iter().map(f64::from).collect()
    }

    fn norm(&mut self, view: View) -> f64 {
        self.read(view).iter().map(|x| x * x).sum::<f64>().sqrt()
    }

    fn dot(&mut self) -> f64 {
        let (y, dy) = (self.read(self.y), self.read(self.dy));
        y.iter().zip(dy).map(|(y, dy)| y * dy).sum()
    }

    /// The mean over sequences of the balance loss of the choices in `experts`.
    fn balance(&mut self, experts: View, sequences: usize) -> f64 {
        let counts = self.s.index_mat(sequences, E);
        let value = self.s.mat(1, sequences);
        let span = TokenSpan::whole(T / sequences);
        self.s.launch(&CountChoices { experts, span, counts }.into()).unwrap();
        let (probabilities, choices) = (self.route.probabilities, experts.cols);
        self.s
            .launch(&BalanceLoss { probabilities, counts, choices, normalise: false, span, value }.into())
            .unwrap();
        self.read(value).iter().sum::<f64>() / T as f64
    }
}

pub(crate) fn a_layer_has_the_golden_values(suite: &Suite<'_>) {
    for kernels in suite.kernels() {
        let run = |renormalise, losses| Layer::run(suite.setup(kernels, 2), renormalise, losses);
        let close = |what: &str, found: f64, wanted: f64| {
            let bound = f64::from(suite.bound(1e-6)) * wanted.abs().max(1.0);
            assert!((found - wanted).abs() < bound, "{kernels}, {what}: {found}, wanted {wanted}");
        };
        let mut layer = run(true, true);
        let logits = layer.read(layer.logits);
        for (found, wanted) in
            logits.iter().zip([-0.035_715_943, -0.268_996_618, 0.209_877_466, 0.071_648_025])
        {
            close("z", *found, wanted);
        }
        let p = layer.read(layer.route.probabilities);
        for (found, wanted) in p.iter().zip([0.239_025_711, 0.189_291_934, 0.305_565_614, 0.266_116_741]) {
            close("p", *found, wanted);
        }
        let chosen = [2, 3, 0, 2, 1, 3, 1, 2, 0, 2, 1, 3, 1, 3, 2, 0, 3, 1, 3, 1, 2, 1, 3, 0].map(f64::from);
        assert_eq!(layer.read(layer.route.experts), chosen);
        assert_eq!(layer.read(layer.counts), [4.0, 7.0, 6.0, 7.0]);
        let order = [2, 8, 15, 23, 4, 6, 10, 12, 17, 19, 21, 0, 3, 7, 9, 14, 20, 1, 5, 11, 13, 16, 18, 22];
        assert_eq!(layer.read(layer.sources), order.map(f64::from));
        close("dot", layer.dot(), 0.322_886_156);
        let y = layer.read(layer.y);
        for (found, wanted) in y.iter().zip([0.194_481_764, 0.353_025_605, 0.462_303_494]) {
            close("y", *found, wanted);
        }
        let lse = layer.read(layer.route.lse.unwrap());
        let z_loss = lse.iter().map(|lse| lse * lse).sum::<f64>() / T as f64;
        close("z-loss", z_loss, 5.528_462_668);
        let balance = layer.balance(layer.route.experts, 1);
        close("balance", balance, 1.013_059_724);
        let experts = layer.route.experts;
        close("balance of sequences of 6", layer.balance(experts, 2), 0.999_051_946);
        close("balance of sequences of 4", layer.balance(experts, 3), 1.028_820_110);
        close("balance of first choices", layer.balance(experts.columns(0, 1), 1), 1.019_445_154);
        close("objective", layer.dot() + 0.01 * balance + 0.001 * z_loss, 0.338_545_215);
        close("|dW|", layer.norm(layer.drouter), 0.530_845_123);
        let drouter = layer.read(layer.drouter);
        for (found, wanted) in drouter.iter().zip([0.040_723_068, -0.091_588_524, -0.089_791_205]) {
            close("dW", *found, wanted);
        }
        close("|dx|", layer.norm(layer.dx), 1.906_068_979);
        for (e, wanted) in
            [0.401_134_264, 0.629_509_774, 0.618_179_214, 0.505_297_814].into_iter().enumerate()
        {
            close("|dgate|", layer.norm(layer.dgate_up.rows(e * 2 * F, F)), wanted);
        }
        let dup = (0..E).map(|e| layer.norm(layer.dgate_up.rows(e * 2 * F + F, F)).powi(2)).sum::<f64>();
        close("|dup|", dup.sqrt(), 1.070_255_211);
        close("|ddown|", layer.norm(layer.ddown), 2.748_841_091);
        let mut plain = run(true, false);
        close("|dW| without losses", plain.norm(plain.drouter), 0.530_554_591);
        close("dW without losses", plain.read(plain.drouter)[0], 0.040_272_659);
        let mut raw = run(false, true);
        close("raw dot", raw.dot(), 0.230_591_247);
        close("raw |dW|", raw.norm(raw.drouter), 0.496_544_390);
        close("raw |dx|", raw.norm(raw.dx), 1.651_413_064);
    }
}
