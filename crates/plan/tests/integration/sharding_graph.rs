//! Solvers of cost graphs against the enumeration of all options.

use bessemer_plan::sharding::{
    CostGraph, Front, MOST_POINTS, Price, Solution, Traces, Weights, fronts, link, lower_bound, minimum,
};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, TestRunner};
use std::fmt::Write as _;
use std::io::Write as _;
use std::process::{Command, Stdio};

/// Calls `see` with every combination of options.
fn each(sizes: &[usize], see: &mut dyn FnMut(&[usize])) {
    let mut options = vec![0; sizes.len()];
    loop {
        see(&options);
        let Some(at) = (0..sizes.len()).rev().find(|at| options[*at] + 1 < sizes[*at]) else { return };
        options[at] += 1;
        options[at + 1..].fill(0);
    }
}

/// The fastest options within so many bytes.
fn by_enumeration(graph: &CostGraph, limit: f64) -> Option<Solution> {
    let sizes: Vec<usize> = graph.nodes.iter().map(Vec::len).collect();
    let mut best: Option<Solution> = None;
    each(&sizes, &mut |options| {
        let price = graph.price(options);
        let better = best.as_ref().is_none_or(|best| price.seconds < best.price.seconds);
        if price.memory <= limit && price.seconds.is_finite() && better {
            best = Some(Solution { price, options: options.to_vec() });
        }
    });
    best
}

/// Graphs of any shape: numbers are whole so that sums are exact, and some pairs of options are impossible.
fn any_graph(most: usize) -> impl Strategy<Value = CostGraph> {
    let price = (0u32..50, 0u32..50).prop_map(|(s, m)| Price { seconds: f64::from(s), memory: f64::from(m) });
    let nodes = prop::collection::vec(prop::collection::vec(price, 1..=3), 1..=most);
    (
        nodes,
        prop::collection::vec(
            (any::<prop::sample::Index>(), any::<prop::sample::Index>(), any::<u64>()),
            0..16,
        ),
    )
        .prop_map(|(nodes, pairs)| {
            let mut graph = CostGraph::default();
            for node in nodes {
                graph.add(node);
            }
            for (a, b, mut seed) in pairs {
                let (a, b) = (a.index(graph.nodes.len()), b.index(graph.nodes.len()));
                if a == b {
                    continue;
                }
                let mut seconds = || {
                    seed =
                        seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    match seed >> 60 {
                        0 => f64::INFINITY,
                        _ => (seed >> 33) as f64 % 40.0,
                    }
                };
                let table: Vec<f64> =
                    (0..graph.nodes[a].len() * graph.nodes[b].len()).map(|_| seconds()).collect();
                graph.join(a, b, &table);
            }
            graph
        })
}

fn bound_of(graph: &CostGraph, limit: f64) -> Option<f64> {
    let price =
        |weights| Ok::<_, bessemer_plan::sharding::Entangled>(minimum(graph, weights)?.map(|s| s.price));
    let bound = lower_bound(limit, price).unwrap()?;
    assert!(bound.feasible >= bound.seconds * (1.0 - 1e-9), "{bound:?}");
    Some(bound.seconds)
}

proptest! {
    #![proptest_config(Config::with_cases(300))]

    #[test]
    fn elimination_finds_the_minimum_of_all_combinations(graph in any_graph(10)) {
        let found = minimum(&graph, Weights::SECONDS).unwrap();
        let wanted = by_enumeration(&graph, f64::INFINITY);
        prop_assert_eq!(found.as_ref().map(|s| s.price.seconds), wanted.map(|s| s.price.seconds));
        if let Some(found) = found {
            prop_assert_eq!(graph.price(&found.options), found.price);
        }
    }

    #[test]
    fn fronts_hold_the_minimum_under_every_limit(graph in any_graph(8)) {
        let mut traces = Traces::default();
        let found = fronts(&graph, 0, f64::INFINITY, &mut traces).unwrap();
        prop_assert!(found.iter().all(|front| front.factor == 1.0), "nothing was thinned");
        for limit in [0.0, 20.0, 50.0, 90.0, 140.0, 1e9] {
            let within = found.iter().filter_map(|front| front.within(limit));
            let best = within.min_by(|a, b| a.price.seconds.total_cmp(&b.price.seconds));
            let wanted = by_enumeration(&graph, limit);
            prop_assert_eq!(best.map(|p| p.price.seconds), wanted.as_ref().map(|s| s.price.seconds));
            // With the limit from the beginning the answer is the same.
            let limited = fronts(&graph, 0, limit, &mut traces).unwrap();
            let fastest = limited.iter().filter_map(Front::fastest).map(|p| p.price.seconds).min_by(f64::total_cmp);
            prop_assert_eq!(fastest, wanted.as_ref().map(|s| s.price.seconds));
            let Some(point) = best else {
                prop_assert_eq!(bound_of(&graph, limit), None);
                continue;
            };
            let units = traces.units(point);
            let options: Vec<usize> = units[0].iter().map(|(_, option)| *option).collect();
            prop_assert_eq!(graph.price(&options), point.price);
            let bound = bound_of(&graph, limit).unwrap();
            prop_assert!(bound <= point.price.seconds + 1e-9, "{} above {}", bound, point.price.seconds);
            if limit == 1e9 {
                prop_assert_eq!(bound, point.price.seconds);
            }
        }
    }
}

/// A chain of equal units is a graph of copies of them, joined at their boundaries.
#[test]
fn linked_units_are_one_graph() {
    let mut runner = TestRunner::deterministic();
    for _ in 0..60 {
        let unit = any_graph(3).new_tree(&mut runner).unwrap().current();
        let options = unit.nodes[0].len();
        let between: Vec<f64> = (0..options * options).map(|at| (at * 7 % 5) as f64).collect();
        let mut whole = CostGraph::default();
        let count = unit.nodes.len();
        for copy in 0..3 {
            for node in &unit.nodes {
                whole.add(node.clone());
            }
            for edge in unit.edges() {
                let [a, b] = edge.nodes.map(|node| node + copy * count);
                whole.join(a, b, &edge.seconds);
            }
            if copy > 0 {
                whole.join((copy - 1) * count, copy * count, &between);
            }
        }
        let mut traces = Traces::default();
        let of_unit = fronts(&unit, 0, f64::INFINITY, &mut traces).unwrap();
        let mut chain = of_unit.clone();
        for _ in 1..3 {
            chain = link(&chain, &of_unit, &between, f64::INFINITY, |_, _| true, &mut traces);
        }
        for limit in [60.0, 120.0, 1e9] {
            let points = chain.iter().filter_map(|front| front.within(limit));
            let best = points.min_by(|a, b| a.price.seconds.total_cmp(&b.price.seconds));
            let wanted = by_enumeration(&whole, limit);
            assert_eq!(best.map(|p| p.price.seconds), wanted.map(|s| s.price.seconds));
            let Some(best) = best else { continue };
            let options: Vec<usize> = traces.units(best).concat().iter().map(|(_, option)| *option).collect();
            assert_eq!(whole.price(&options), best.price);
        }
    }
}

/// Many points are thinned; what is left is real, and nearly as fast as the factor says.
#[test]
fn thinned_fronts_keep_their_promise() {
    // 2^14 sums of seconds, each with its own memory.
    let mut graph = CostGraph::default();
    let nodes = 14;
    for node in 0..nodes {
        let step = f64::from(1 << node);
        graph.add(vec![Price { seconds: 1e5 + step, memory: 0.0 }, Price { seconds: 1e5, memory: step }]);
        if node > 0 {
            graph.join(node - 1, node, &[0.0; 4]);
        }
    }
    let mut traces = Traces::default();
    let front = &fronts(&graph, 0, f64::INFINITY, &mut traces).unwrap();
    assert!(front.iter().all(|f| f.points.len() <= MOST_POINTS && f.factor > 1.0 && f.factor < 1.02));
    for limit in [0.0, 1.0, 100.0, 5000.5, 16_000.0] {
        let found = front
            .iter()
            .filter_map(|f| f.within(limit))
            .map(|p| p.price.seconds)
            .min_by(f64::total_cmp)
            .unwrap();
        // Seconds and bytes of all decisions add up to 2^14 - 1.
        let wanted = 14e5 + 16_383.0 - limit.floor();
        let factor = front.iter().map(|f| f.factor).fold(1.0, f64::max);
        assert!((wanted..=wanted * factor).contains(&found), "{found} for {wanted}, {factor}");
        let bound = bound_of(&graph, limit).unwrap();
        assert!(bound <= wanted && bound > wanted - 2.0, "{bound} for {wanted}");
    }
}

/// A complete graph has no order of elimination with small tables.
#[test]
fn entangled_graphs_are_refused() {
    let mut graph = CostGraph::default();
    for node in 0..12 {
        graph.add(vec![Price::default(); 8]);
        for other in 0..node {
            graph.join(other, node, &[1.0; 64]);
        }
    }
    let problem = minimum(&graph, Weights::SECONDS).unwrap_err().to_string();
    assert!(
        problem.contains("the graph of 12 decisions is too entangled: a table over 11 of them"),
        "{problem}"
    );
}

/// The least seconds of the integer programme and of its relaxation, by HiGHS.
fn by_highs(python: &std::ffi::OsStr, graph: &CostGraph, limit: f64) -> Option<[f64; 2]> {
    let mut text = format!("{limit:?} {}", graph.nodes.len());
    for options in &graph.nodes {
        let _ = write!(text, " {}", options.len());
        for price in options {
            let _ = write!(text, " {:?} {:?}", price.seconds, price.memory);
        }
    }
    let _ = write!(text, " {}", graph.edges().len());
    for edge in graph.edges() {
        let _ = write!(text, " {} {}", edge.nodes[0], edge.nodes[1]);
        for seconds in &edge.seconds {
            let _ = write!(text, " {seconds:?}");
        }
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../golden/plan/milp.py");
    let mut command = Command::new(python);
    command.arg(script).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut process = command.spawn().unwrap();
    process.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let out = process.wait_with_output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let said = String::from_utf8_lossy(&out.stdout);
    // HiGHS greets first.
    let answer = said.lines().last().unwrap_or_default();
    let numbers: Vec<f64> = answer.split_whitespace().filter_map(|number| number.parse().ok()).collect();
    <[f64; 2]>::try_from(numbers).ok()
}

/// Layers of a decoder with random prices: the residual stream, two chains of heavy operators between it.
fn decoder(layers: usize, options: usize, seed: u64) -> CostGraph {
    let mut state = seed;
    let mut number = |most: f64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as f64 / (1u64 << 31) as f64 * most
    };
    let mut graph = CostGraph::default();
    let mut add = |graph: &mut CostGraph, before: &[usize]| {
        let prices = (0..options).map(|_| Price { seconds: number(9.0), memory: number(9.0) }).collect();
        let node = graph.add(prices);
        for other in before {
            let table: Vec<f64> = (0..options * options).map(|_| number(9.0)).collect();
            graph.join(*other, node, &table);
        }
        node
    };
    let mut stream = add(&mut graph, &[]);
    for _ in 0..layers {
        for operators in [3, 2] {
            let mut last = stream;
            for _ in 0..operators {
                last = add(&mut graph, &[last]);
            }
            stream = add(&mut graph, &[stream, last]);
        }
    }
    graph
}

#[test]
#[ignore = "compares with an outside tool: BESSEMER_PYTHON=… cargo test oracle -- --ignored (golden/requirements.txt)"]
fn oracle_highs_finds_the_same_optima() {
    let python = std::env::var_os("BESSEMER_PYTHON")
        .expect("BESSEMER_PYTHON names a Python with the packages of golden/requirements.txt");
    let mut runner = TestRunner::deterministic();
    let mut graphs: Vec<CostGraph> =
        (0..20).map(|_| any_graph(8).new_tree(&mut runner).unwrap().current()).collect();
    graphs.extend([(1, 4, 1), (2, 4, 2), (3, 3, 3), (1, 8, 4)].map(|(l, k, seed)| decoder(l, k, seed)));
    let mut gaps = 0;
    for graph in &graphs {
        let free = minimum(graph, Weights::SECONDS).unwrap();
        let wanted = by_highs(&python, graph, f64::INFINITY);
        assert_eq!(free.is_some(), wanted.is_some());
        let (Some(free), Some([wanted, _])) = (free, wanted) else { continue };
        assert!((free.price.seconds - wanted).abs() < 1e-6, "{} for {wanted}", free.price.seconds);
        // Limits from what the fastest solution takes down to where nothing fits.
        for share in [0.95, 0.8, 0.6, 0.3] {
            let limit = share * free.price.memory;
            let found = fronts(graph, 0, limit, &mut Traces::default()).unwrap();
            let factor = found.iter().map(|front| front.factor).fold(1.0, f64::max);
            let fastest =
                found.iter().filter_map(Front::fastest).map(|p| p.price.seconds).min_by(f64::total_cmp);
            let wanted = by_highs(&python, graph, limit);
            assert_eq!(fastest.is_some(), wanted.is_some(), "within {limit}");
            let (Some(fastest), Some([wanted, relaxation])) = (fastest, wanted) else { continue };
            let within = wanted - 1e-6..=wanted * factor + 1e-6;
            assert!(within.contains(&fastest), "{fastest} for {wanted}, {factor}");
            let bound = bound_of(graph, limit).unwrap();
            assert!(bound <= wanted + 1e-6 && bound >= relaxation - 1e-6, "{relaxation} {bound} {wanted}");
            gaps += usize::from(bound < wanted - 1e-6);
        }
    }
    assert!(gaps > 5, "bounds below the optimum: {gaps}");
}
