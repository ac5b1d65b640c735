//! Gates and capacities of experts: each operator against the reference, and whole layers against golden values in f64 (those of DeepSeek-V3's
//! gate shared with transformers 5.24's module on torch 2.15, to 1e-7).

use crate::experts::{D, F, Inputs};
use crate::{Setup, Suite};
use bessemer_tensor::op::*;
use bessemer_tensor::rng::RngKey;

/// A limit on the choices of an expert.
#[derive(Clone, Copy)]
struct Limit {
    capacity: usize,
    drop: DropRule,
    random: bool,
}

/// A layer of gated experts on the inputs of the golden values, forward.
struct Routed {
    experts: Vec<f32>,
    preferred: Vec<f32>,
    weights: Vec<f32>,
    counts: Vec<f32>,
    kept: Vec<f32>,
    dot: f64,
    /// Means over tokens of the balance loss of all tokens, by the choices, and by those of scores alone.
    balance: [f64; 2],
}

fn routed(
    mut s: Setup,
    (t, e, k): (usize, usize, usize),
    (gate, bias): (Gate, Option<&[f32]>),
    limit: Option<Limit>,
    leaving: Option<usize>,
) -> Routed {
    let Inputs { x, router, gate_up, down, dy } = Inputs::new(&mut s, t, e);
    let (logits, probabilities, weights) = (s.mat(t, e), s.mat(t, e), s.mat(t, k));
    let [experts, preferred, rows, kept] = std::array::from_fn(|_| s.index_mat(t, k));
    let (sources, offsets) = (s.index_mat(1, t * k), s.index_mat(1, e + 1));
    let bias = bias.map(|bias| s.values(1, e, bias));
    let in_node = leaving.map(|leaving| {
        let counters = s.dropout(0.0, RngKey::new(1, 9, "nodes"), 0).counters;
        let (nodes, group, turn, here) = (2, t, t, TokenRows::whole(t));
        KeepInNode { logits, counters, nodes, group, turn, leaving, here, out: s.mat(t, e) }
    });
    let route = Route {
        logits: in_node.map_or(logits, |op| op.out),
        bias,
        probabilities,
        experts,
        preferred: Some(preferred),
        weights,
        lse: None,
        gate,
    };
    let plain = Linear {
        x,
        weight: router,
        bias: None,
        activation: None,
        residual: None,
        rowwise: false,
        out: logits,
    };
    s.launch(&plain.into()).unwrap();
    in_node.iter().for_each(|op| s.launch(&(*op).into()).unwrap());
    s.launch(&route.into()).unwrap();
    if let Some(Limit { capacity, drop, random }) = limit {
        let golden: Vec<f32> = (1..=t).map(|t| (t as f64 * 0.618_033_988_749_894_9).fract() as f32).collect();
        let second = random.then(|| RandomSecond { weights, random: s.values(t, 1, &golden) });
        let scores = (drop == DropRule::Score).then_some(probabilities);
        let keep = KeepChoices {
            experts,
            scores,
            second,
            count: e,
            capacity,
            group: t,
            drop,
            here: TokenRows::whole(experts.rows),
            kept,
        };
        s.launch(&keep.into()).unwrap();
    }
    let assign = AssignRows { experts, kept: limit.map(|_| kept), shadows: None, rows, sources, offsets };
    s.launch(&assign.into()).unwrap();
    let r = t * k;
    let [dispatched, out] = std::array::from_fn(|_| s.mat(r, D));
    let (hidden, gated, y) = (s.mat(r, 2 * F), s.mat(r, F), s.mat(t, D));
    let (up_gate, up) = (hidden.columns(0, F), hidden.columns(F, F));
    let live = Some(offsets.columns(e, 1));
    let layer: [Op; 5] = [
        Dispatch { x, sources, choices: k, out: dispatched }.into(),
        GroupedLinear { x: dispatched, weight: gate_up, offsets, out: hidden }.into(),
        Gated { live, kind: ActivationKind::Silu, gate: up_gate, up, out: gated }.into(),
        GroupedLinear { x: gated, weight: down, offsets, out }.into(),
        CombineRows { x: out, rows, weights, out: y }.into(),
    ];
    layer.iter().for_each(|op| s.launch(op).unwrap());
    let dot = s.read(y).iter().zip(s.read(dy)).map(|(y, dy)| f64::from(*y) * f64::from(dy)).sum();
    let (counts, value, span) = (s.index_mat(1, e), s.mat(1, 1), TokenSpan::whole(t));
    let balance = [preferred, experts].map(|experts| {
        s.launch(&CountChoices { experts, span, counts }.into()).unwrap();
        let normalise = gate.score == Score::Sigmoid;
        s.launch(&BalanceLoss { probabilities, counts, choices: k, normalise, span, value }.into()).unwrap();
        f64::from(s.read(value)[0]) / t as f64
    });
    Routed {
        experts: s.read(experts),
        preferred: s.read(preferred),
        weights: s.read(weights),
        counts: s.read(counts),
        kept: s.read(kept),
        dot,
        balance: [balance[1], balance[0]],
    }
}

fn close(suite: &Suite<'_>, what: &str, found: f64, wanted: f64) {
    let bound = f64::from(suite.bound(1e-6)) * wanted.abs().max(1.0);
    assert!((found - wanted).abs() < bound, "{what}: {found}, wanted {wanted}");
}

pub(crate) fn deepseeks_gate_has_the_golden_values(suite: &Suite<'_>) {
    let gate = Gate { score: Score::Sigmoid, renormalise: true, groups: 4, kept: 2, scale: 2.5 };
    let bias: Vec<f32> = (0..8).map(|e| 0.1 * (1.0 + 2.0 * f64::from(e)).sin() as f32).collect();
    for kernels in suite.kernels() {
        let found = routed(suite.setup(kernels, 2), (10, 8, 3), (gate, Some(&bias)), None, None);
        // The sets of a token in ascending order.
        let sets: Vec<Vec<usize>> = found
            .experts
            .chunks(3)
            .map(|of| {
                let mut of: Vec<usize> = of.iter().map(|e| *e as usize).collect();
                of.sort_unstable();
                of
            })
            .collect();
        let wanted = [367, 23, 167, 167, 23, 167, 167, 467, 13, 17]
            .map(|digits: usize| [digits / 100 % 10, digits / 10 % 10, digits % 10].to_vec());
        assert_eq!(sets, wanted, "{kernels}");
        assert_eq!(found.counts, [4.0, 6.0, 2.0, 4.0, 1.0, 0.0, 6.0, 7.0], "{kernels}");
        for (expert, wanted) in [(3.0, 0.887_950_049), (6.0, 0.884_001_729), (7.0, 0.728_048_222)] {
            let at = (0..3).find(|s| found.experts[*s] == expert).unwrap();
            close(suite, "weight", f64::from(found.weights[at]), wanted);
        }
        close(suite, "dot", found.dot, 0.383_266_471);
        close(suite, "balance by routing", found.balance[0], 0.999_547_340);
        close(suite, "balance by affinity", found.balance[1], 1.014_021_317);
        assert_ne!(found.preferred, found.experts);
    }
}

/// Tokens whose choice of this number is dropped.
fn dropped(found: &Routed, choices: usize, choice: usize) -> Vec<usize> {
    (0..found.kept.len() / choices).filter(|t| found.kept[t * choices + choice] == 0.0).collect()
}

pub(crate) fn capacities_have_the_golden_values(suite: &Suite<'_>) {
    for kernels in suite.kernels() {
        let switch = |capacity, drop| {
            let limit = Limit { capacity, drop, random: false };
            routed(suite.setup(kernels, 2), (12, 4, 1), (Gate::softmax(false), None), Some(limit), None)
        };
        for (capacity, drop, gone, dot) in [
            (3, DropRule::Position, vec![6], 0.686_706_228),
            (3, DropRule::Score, vec![3], 0.825_059_100),
            (4, DropRule::Position, vec![], 0.776_777_849),
        ] {
            let found = switch(capacity, drop);
            assert_eq!(dropped(&found, 1, 0), gone, "{kernels}, {drop:?} {capacity}");
            close(suite, "switch", found.dot, dot);
        }
        let gshard = |capacity, random| {
            let limit = Limit { capacity, drop: DropRule::Choice, random };
            routed(suite.setup(kernels, 2), (12, 4, 2), (Gate::softmax(true), None), Some(limit), None)
        };
        let half = gshard(3, true);
        assert_eq!(dropped(&half, 2, 0), [6]);
        assert_eq!(
            dropped(&half, 2, 1),
            (0..12).collect::<Vec<_>>(),
            "7 is not sent, the others find no place"
        );
        close(suite, "gshard", half.dot, 0.849_955_590);
        let whole = gshard(6, true);
        assert_eq!((dropped(&whole, 2, 0), dropped(&whole, 2, 1)), (vec![], vec![2, 6, 7, 8, 10]));
        close(suite, "gshard", whole.dot, 0.315_762_189);
        close(suite, "gshard without random", gshard(3, false).dot, 0.852_433_815);
        close(suite, "gshard without random", gshard(6, false).dot, 0.357_976_030);
        // Every expert chooses: all choices of all tokens, of which each expert keeps the best.
        let limit = Limit { capacity: 3, drop: DropRule::Score, random: false };
        let chosen =
            routed(suite.setup(kernels, 2), (12, 4, 4), (Gate::softmax(false), None), Some(limit), None);
        let mut tokens = vec![Vec::new(); 4];
        for (i, _) in chosen.kept.iter().enumerate().filter(|(_, kept)| **kept == 1.0) {
            tokens[chosen.experts[i] as usize].push(i / 4);
        }
        assert_eq!(tokens, [[1, 4, 7], [2, 5, 6], [4, 7, 10], [8, 9, 11]], "{kernels}");
        close(suite, "expert choice", chosen.dot, 0.643_009_580);
    }
}

pub(crate) fn the_topology_aware_gate_has_the_golden_values(suite: &Suite<'_>) {
    let free = [23, 2, 13, 12, 2, 13, 13, 20, 31, 31, 21, 30];
    let bound = [1, 1, 10, 10, 1, 10, 10, 20, 31, 10, 21, 1];
    for kernels in suite.kernels() {
        for (leaving, wanted) in [(3, bound), (12, free)] {
            let setup = suite.setup(kernels, 2);
            let found = routed(setup, (12, 4, 2), (Gate::softmax(true), None), None, Some(leaving));
            let choices: Vec<u32> =
                found.experts.chunks(2).map(|of| 10 * of[0] as u32 + of[1] as u32).collect();
            assert_eq!(choices, wanted, "{kernels}, {leaving} may leave");
            if leaving == 3 {
                close(suite, "dot", found.dot, 0.764_353_730);
            }
        }
    }
}

pub(crate) fn tokens_in_their_nodes_are_those_of_the_reference(suite: &Suite<'_>) {
    for (i, (n, e, nodes, group)) in
        [(1usize, 1, 1, 1usize), (12, 4, 2, 3), (96, 6, 3, 16), (70, 8, 2, 35)].into_iter().enumerate()
    {
        for leaving in [0, 1, group.div_ceil(4), group] {
            suite.check(&format!("{n} tokens, {e} experts of {nodes} nodes, {leaving} leave"), 0.0, &|s| {
                let logits = s.strided(n, e, 1 + i);
                // The counters have half of the number.
                let counters = s.dropout(0.0, RngKey::new(1, 9, "nodes"), 10 * group as u64).counters;
                let (here, turn) = (TokenRows { skip: n / 3, ..TokenRows::whole(n) }, 2 * group);
                let out = s.mat(n - n / 3, e);
                KeepInNode { logits, counters, nodes, group, turn, leaving, here, out }.into()
            });
        }
    }
}

pub(crate) fn kept_choices_are_those_of_the_reference(suite: &Suite<'_>) {
    for (i, (n, e, k, groups)) in
        [(1usize, 1, 1, 1), (12, 3, 2, 2), (150, 7, 3, 3), (90, 5, 5, 1)].into_iter().enumerate()
    {
        for drop in [DropRule::Position, DropRule::Choice, DropRule::Score] {
            for capacity in [1, (n * k).div_ceil(2 * e * groups), n] {
                let random = i % 2 == 1;
                suite.check(&format!("kept of {n} {e} {k}, {drop:?} {capacity}"), 2e-6, &|s| {
                    let route = Route {
                        logits: s.strided(n, e, 1),
                        bias: None,
                        probabilities: s.mat(n, e),
                        experts: s.index_mat(n, k),
                        preferred: None,
                        weights: s.mat(n, k),
                        lse: None,
                        gate: Gate::softmax(true),
                    };
                    s.launch(&route.into()).unwrap();
                    let second = random.then(|| {
                        let counters = s.dropout(0.0, RngKey::new(1, 9, "second"), 0).counters;
                        let random = s.mat(n, 1);
                        s.launch(&RandomNumbers { counters, out: random }.into()).unwrap();
                        RandomSecond { weights: route.weights, random }
                    });
                    let (experts, scores) = (route.experts, Some(route.probabilities));
                    let (group, kept) = (n / groups, s.index_mat(n, k));
                    KeepChoices {
                        experts,
                        scores,
                        second,
                        count: e,
                        capacity,
                        group,
                        drop,
                        here: TokenRows::whole(experts.rows),
                        kept,
                    }
                    .into()
                });
            }
        }
    }
    suite.check("random numbers", 0.0, &|s| {
        let counters = s.dropout(0.0, RngKey::new(3, 5, "numbers"), 11).counters;
        RandomNumbers { counters, out: s.mat(300, 3) }.into()
    });
    for (at, gap) in [0, 1, 3].into_iter().enumerate() {
        suite.check("jitter", 2e-6, &|s| {
            let mask = s.dropout(0.1, RngKey::new(1, 9, "jitter"), at as u64);
            let (x, out) = (s.act(37, 300, gap), s.act(37, 300, 0));
            Dropout { x, out, mask, noise: Noise::Uniform, global_cols: 300 }.into()
        });
    }
}

/// A factor of jitter is at most eps away from 1, and 1 in the mean.
pub(crate) fn jitter_keeps_the_mean(suite: &Suite<'_>) {
    let ones = vec![1.0; 40_000];
    let out = suite.run(suite.fastest(), 2, &|s| {
        let mask = s.dropout(0.25, RngKey::new(4, 0, "jitter"), 0);
        let x = s.values(100, 400, &ones);
        Dropout { x, out: x, mask, noise: Noise::Uniform, global_cols: x.cols }.into()
    });
    let mean = out[0].iter().map(|x| f64::from(*x)).sum::<f64>() / 40_000.0;
    let spread = out[0].iter().map(|x| f64::from(x - 1.0).powi(2)).sum::<f64>() / 40_000.0;
    assert!(out[0].iter().all(|x| (0.75..=1.25).contains(x)));
    // The variance of a uniform number in [-1, 1] is 1/3.
    assert!((mean - 1.0).abs() < 0.005 && (spread - 0.0625 / 3.0).abs() < 0.001, "{mean} {spread}");
}

pub(crate) fn wrong_gates_and_capacities_are_refused(suite: &Suite<'_>) {
    for kernels in suite.kernels() {
        let mut s = suite.setup(kernels, 1);
        let (logits, probabilities, weights) = (s.mat(4, 6), s.mat(4, 6), s.mat(4, 3));
        let experts = s.index_mat(4, 3);
        let gate = Gate { groups: 3, kept: 1, ..Gate::softmax(true) };
        let route =
            Route { logits, bias: None, probabilities, experts, preferred: None, weights, lse: None, gate };
        let refused = |s: &mut Setup, op: Op| s.launch(&op).unwrap_err().to_string();
        let e = refused(&mut s, route.into());
        assert!(e.contains("groups that divide 6 experts, of which the kept have 3"), "{e}");
        let four = Gate { groups: 4, kept: 4, ..gate };
        assert!(refused(&mut s, Route { gate: four, ..route }.into()).contains("4 of 4 groups"));
        let kept = s.index_mat(4, 3);
        let keep = KeepChoices {
            experts,
            scores: None,
            second: None,
            count: 6,
            capacity: 1,
            group: 3,
            drop: DropRule::Position,
            here: TokenRows::whole(4),
            kept,
        };
        assert!(refused(&mut s, keep.into()).contains("3 of 4"));
        let by_score = KeepChoices { group: 4, drop: DropRule::Score, ..keep };
        assert!(refused(&mut s, by_score.into()).contains("scores"));
        let beyond = KeepChoices { group: 4, here: TokenRows { skip: 1, ..keep.here }, ..keep };
        assert!(refused(&mut s, beyond.into()).contains("rows 1 to 5 of 4 tokens"));
        let here = TokenRows::whole(4);
        let counters = s.dropout(0.0, RngKey::new(1, 9, "nodes"), 0).counters;
        let out = probabilities;
        let in_node = KeepInNode { logits, counters, nodes: 2, group: 2, turn: 2, leaving: 1, here, out };
        for (op, wanted) in [
            (KeepInNode { nodes: 4, ..in_node }, "nodes that divide 6 experts"),
            (KeepInNode { group: 3, ..in_node }, "tokens that divide 4"),
            (KeepInNode { turn: 3, ..in_node }, "a multiple of the 2 of a group"),
            (KeepInNode { here: TokenRows { skip: 1, ..here }, ..in_node }, "rows 1 to 5 of 4 tokens"),
        ] {
            assert!(refused(&mut s, op.into()).contains(wanted));
        }
        s.backend.write_u32(experts, &[6; 12]).unwrap();
        let e = refused(&mut s, KeepChoices { group: 4, ..keep }.into());
        assert!(e.contains("experts"), "{e}");
    }
}
