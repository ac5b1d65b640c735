//! The steps between two layouts, applied to small tensors on the host: whatever the mesh and the layouts, every rank
//! ends up with its part of the same tensor.

use bessemer_mesh::{
    Action, Axis, Block, Dim, DimRange, Form, Layout, LayoutError, Mesh, MeshConfig, Placement, Reduction,
    Step, local_ranges, redistribute, require,
};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// Element (row-major number in the whole tensor) and value.
type Part = BTreeMap<usize, i64>;

fn mesh(degrees: &[(Axis, usize)]) -> Mesh {
    let config = degrees.iter().fold(MeshConfig::new(), |c, (a, n)| c.with(*a, *n));
    Mesh::new(&config, degrees.iter().map(|d| d.1).product()).unwrap()
}

fn value(element: usize) -> i64 {
    (element * 37 % 101) as i64 - 50
}

/// Elements that a rank holds.
fn elements(layout: &Layout, form: &Form, mesh: &Mesh, rank: usize) -> Vec<usize> {
    let mut all = vec![0];
    for (spans, len) in layout.ranges(form, mesh, &mesh.coord(rank)).iter().zip(form.shape()) {
        let along: Vec<usize> = spans.iter().flat_map(|s| s.range()).collect();
        all = all.iter().flat_map(|e| along.iter().map(move |i| e * len + i)).collect();
    }
    all
}

fn partial_axes(layout: &Layout) -> (Vec<Axis>, Reduction) {
    let mut found = (Vec::new(), Reduction::Sum);
    for axis in Axis::ALL {
        if let Placement::Partial { reduce } = layout.at(axis) {
            found.0.push(axis);
            found.1 = reduce;
        }
    }
    found
}

/// What each rank holds: terms whose reduction over the partial axes is [`value`].
fn scattered(layout: &Layout, form: &Form, mesh: &Mesh) -> Vec<Part> {
    let (axes, reduce) = partial_axes(layout);
    let terms = mesh.size(&axes);
    let other = |e: usize, p: usize| ((e * 13 + p * 7) % 11) as i64;
    let term = |e: usize, p: usize| match reduce {
        _ if terms == 1 => value(e),
        Reduction::Max | Reduction::LogSumExp if p == e % terms => value(e),
        Reduction::Max | Reduction::LogSumExp => value(e) - other(e, p),
        Reduction::Sum if p + 1 < terms => other(e, p),
        Reduction::Sum => value(e) - (0..terms - 1).map(|p| other(e, p)).sum::<i64>(),
    };
    (0..mesh.world())
        .map(|r| {
            let p = mesh.position(r, &axes);
            elements(layout, form, mesh, r).into_iter().map(|e| (e, term(e, p))).collect()
        })
        .collect()
}

/// The reduction of terms. Integers stand for the logarithms of a log-sum-exp, and the largest for their sum: what is
/// checked is which elements meet, and that nothing but a neutral element is added.
fn reduced(parts: &[&Part], reduce: Reduction) -> Part {
    let mut out = parts[0].clone();
    for part in &parts[1..] {
        assert!(part.keys().eq(out.keys()), "terms of different elements");
        for (e, v) in *part {
            out.entry(*e).and_modify(|o| *o = if reduce == Reduction::Sum { *o + v } else { (*o).max(*v) });
        }
    }
    out
}

fn united(parts: &[&Part]) -> Part {
    let mut out = Part::new();
    for (e, v) in parts.iter().flat_map(|p| p.iter()) {
        assert_eq!(*out.entry(*e).or_insert(*v), *v, "copies that differ");
    }
    out
}

fn apply(step: &Step, form: &Form, mesh: &Mesh, parts: &[Part]) -> Vec<Part> {
    (0..mesh.world())
        .map(|rank| {
            let group: Vec<&Part> = mesh.group(rank, &step.axes).iter().map(|r| &parts[*r]).collect();
            let mut available = match step.action {
                Action::AllGather { .. } | Action::AllToAll { .. } => united(&group),
                Action::ReduceScatter { reduce, .. } | Action::AllReduce { reduce } => {
                    reduced(&group, reduce)
                }
                Action::Slice { .. } => parts[rank].clone(),
                Action::Mask { reduce } => masked(&parts[rank], reduce, mesh.position(rank, &step.axes)),
            };
            let wanted = elements(&step.after, form, mesh, rank);
            if matches!(step.action, Action::AllGather { .. } | Action::AllReduce { .. }) {
                let mut sorted = wanted.clone();
                sorted.sort();
                assert!(available.keys().eq(&sorted), "{step:?} leaves more than its layout says");
            }
            wanted
                .into_iter()
                .map(|e| (e, available.remove(&e).unwrap_or_else(|| panic!("{step:?}: no element {e}"))))
                .collect()
        })
        .collect()
}

fn masked(part: &Part, reduce: Reduction, position: usize) -> Part {
    let neutral = |v: i64| match reduce {
        Reduction::Max => v,
        Reduction::Sum => 0,
        Reduction::LogSumExp => i64::MIN,
    };
    part.iter().map(|(e, v)| (*e, if position == 0 { *v } else { neutral(*v) })).collect()
}

fn placement(dims: usize, partial: Option<Reduction>) -> impl Strategy<Value = Placement> {
    let shard = (0..dims).prop_map(|dim| Placement::Shard { dim });
    match partial {
        Some(reduce) => {
            prop_oneof![Just(Placement::Replicate), shard, Just(Placement::Partial { reduce })].boxed()
        }
        None => prop_oneof![Just(Placement::Replicate), shard].boxed(),
    }
}

const AXES: [Axis; 4] = [Axis::Replicate, Axis::Shard, Axis::Context, Axis::Tensor];

fn layout(dims: usize, partial: Option<Reduction>) -> impl Strategy<Value = Layout> {
    proptest::collection::vec(placement(dims, partial), AXES.len())
        .prop_map(|p| AXES.iter().zip(p).fold(Layout::replicated(), |l, (a, p)| l.with(*a, p)))
}

fn dim() -> impl Strategy<Value = Dim> {
    let block = (1usize..5, 1usize..3, any::<bool>()).prop_map(|(units, unit, replicated)| Block {
        units,
        unit,
        replicated,
    });
    proptest::collection::vec(block, 1..4).prop_map(Dim::of)
}

fn reduction() -> impl Strategy<Value = Reduction> {
    prop_oneof![Just(Reduction::Sum), Just(Reduction::Max), Just(Reduction::LogSumExp)]
}

fn case() -> impl Strategy<Value = (Mesh, Form, Layout, Layout)> {
    let degrees = proptest::collection::vec(1usize..4, AXES.len());
    let kinds = (reduction(), reduction());
    (degrees, proptest::collection::vec(dim(), 1..4), kinds).prop_flat_map(|(degrees, dims, kinds)| {
        let degrees: Vec<(Axis, usize)> = AXES.iter().copied().zip(degrees).collect();
        let n = dims.len();
        (Just(mesh(&degrees)), Just(Form { dims }), layout(n, Some(kinds.0)), layout(n, Some(kinds.1)))
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn every_rank_ends_with_its_part_of_the_same_tensor((mesh, form, from, to) in case()) {
        let steps = redistribute("x", &form, &mesh, &from, &to).unwrap();
        let mut parts = scattered(&from, &form, &mesh);
        let mut now = None;
        for step in &steps {
            prop_assert!(step.axes.iter().all(|a| mesh.degree(*a) > 1));
            prop_assert!(now.is_none_or(|n| n == step.before));
            parts = apply(step, &form, &mesh, &parts);
            now = Some(step.after);
        }
        let (axes, reduce) = partial_axes(&to);
        for rank in 0..mesh.world() {
            let group: Vec<&Part> = mesh.group(rank, &axes).iter().map(|r| &parts[*r]).collect();
            let found = reduced(&group, reduce);
            let wanted: Part =
                elements(&to, &form, &mesh, rank).into_iter().map(|e| (e, value(e))).collect();
            prop_assert_eq!(found, wanted, "{}: {:?}", mesh.describe(rank), steps);
        }
    }

    #[test]
    fn runs_are_the_elements_and_every_element_is_counted_once((mesh, form, _, to) in case()) {
        let axes = [Axis::Replicate, Axis::Shard, Axis::Context, Axis::Tensor];
        let partial = |a: &Axis| matches!(to.at(*a), Placement::Partial { .. });
        let to = axes.into_iter().filter(partial).fold(to, |l, a| l.with(a, Placement::Replicate));
        let mut counted = vec![0; form.shape().iter().product()];
        for rank in 0..mesh.world() {
            let coord = mesh.coord(rank);
            let held = elements(&to, &form, &mesh, rank);
            let mut by_runs = Vec::new();
            for run in to.runs(&form, &mesh, &coord) {
                prop_assert_eq!(run.local, by_runs.len());
                by_runs.extend(run.wholes());
            }
            prop_assert_eq!(&by_runs, &held);
            for run in to.counted_runs(&form, &mesh, &coord) {
                prop_assert_eq!(&held[run.locals()], &run.wholes().collect::<Vec<_>>()[..]);
                run.wholes().for_each(|e| counted[e] += 1);
            }
        }
        prop_assert!(counted.iter().all(|n| *n == 1), "{counted:?}");
    }

    /// A larger tensor never costs less (AutoParallel issue 425).
    #[test]
    fn costs_are_monotonic(sizes in (1usize..40, 1usize..40), more in (0usize..9, 0usize..9),
                           from in layout(2, Some(Reduction::Sum)), to in layout(2, Some(Reduction::Sum))) {
        let m = mesh(&[(Axis::Replicate, 2), (Axis::Shard, 3), (Axis::Tensor, 4)]);
        let cost = |rows, columns| {
            let form = Form::plain(&[rows, columns]);
            let steps = redistribute("x", &form, &m, &from, &to).unwrap();
            steps.iter().map(|s| s.mean_volume(&form, &m)).sum::<f64>()
        };
        let (small, large) = (cost(sizes.0, sizes.1), cost(sizes.0 + more.0, sizes.1 + more.1));
        prop_assert!(small <= large * (1.0 + 1e-12), "{small} for {sizes:?}, {large} for {more:?} more");
    }

    #[test]
    fn parts_cover_the_tensor_and_overlap_only_in_replicas((mesh, form, _, to) in case()) {
        let mut met = vec![0; form.shape().iter().product()];
        let axes: Vec<Axis> =
            AXES.into_iter().filter(|a| matches!(to.at(*a), Placement::Shard { .. })).collect();
        for rank in mesh.group(0, &axes) {
            elements(&to, &form, &mesh, rank).into_iter().for_each(|e| met[e] += 1);
        }
        let replicas = form.dims.iter().flat_map(|d| &d.blocks).any(|b| b.replicated);
        prop_assert!(met.iter().all(|n| if replicas { *n >= 1 } else { *n == 1 }), "{met:?}");
    }
}

/// Elements that all ranks send in one collective from one layout to another, straight from its definition; `None` if no
/// single one leads there.
fn one_collective(from: &Layout, to: &Layout, form: &Form, m: &Mesh) -> Option<f64> {
    let group: Vec<Axis> = AXES.into_iter().filter(|a| from.at(*a) != to.at(*a)).collect();
    let (was, is) = (from.at(*group.first()?), to.at(group[0]));
    if group.iter().any(|a| (from.at(*a), to.at(*a)) != (was, is)) {
        return None;
    }
    let held = |layout: &Layout| -> Vec<BTreeSet<usize>> {
        (0..m.world()).map(|r| elements(layout, form, m, r).into_iter().collect()).collect()
    };
    let (before, after) = (held(from), held(to));
    let n = m.size(&group) as f64;
    let mut sent = 0.0;
    for rank in 0..m.world() {
        let union: BTreeSet<usize> =
            m.group(rank, &group).iter().flat_map(|r| before[*r].iter().copied()).collect();
        let (b, a) = (&before[rank], &after[rank]);
        let (legal, elements) = match (was, is) {
            (Placement::Replicate, Placement::Shard { .. }) => (a.is_subset(b), 0.0),
            (Placement::Replicate, Placement::Partial { .. }) => (a == b, 0.0),
            (Placement::Shard { .. }, Placement::Replicate) => (*a == union, (a.len() - b.len()) as f64),
            (Placement::Shard { .. }, Placement::Shard { .. }) => {
                (a.is_subset(&union) && a.len() == b.len(), a.difference(b).count() as f64)
            }
            (Placement::Partial { .. }, Placement::Replicate) => {
                (a == b, 2.0 * a.len() as f64 * (n - 1.0) / n)
            }
            (Placement::Partial { .. }, Placement::Shard { .. }) => {
                (a.is_subset(b), a.len() as f64 * (n - 1.0))
            }
            _ => (false, 0.0),
        };
        if !legal {
            return None;
        }
        sent += elements;
    }
    Some(sent)
}

/// Every pair of layouts of a matrix over three axes, against Floyd and Warshall's search over single collectives.
#[test]
fn no_path_of_collectives_sends_less() {
    let m = mesh(&[(Axis::Replicate, 2), (Axis::Shard, 3), (Axis::Tensor, 2)]);
    let form = Form::plain(&[12, 12]);
    let placements = [Placement::Replicate, shard(0), shard(1), SUM];
    let axes = [Axis::Replicate, Axis::Shard, Axis::Tensor];
    let all: Vec<Layout> = (0..64)
        .map(|i| (0..3).fold(Layout::replicated(), |l, d| l.with(axes[d], placements[i >> (2 * d) & 3])))
        .collect();
    let mut least: Vec<Vec<f64>> = (all.iter())
        .map(|from| {
            all.iter().map(|to| one_collective(from, to, &form, &m).unwrap_or(f64::INFINITY)).collect()
        })
        .collect();
    for by in 0..64 {
        for from in 0..64 {
            for to in 0..64 {
                least[from][to] = least[from][to].min(least[from][by] + least[by][to]);
            }
        }
    }
    for (i, from) in all.iter().enumerate() {
        for (j, to) in all.iter().enumerate() {
            let steps = redistribute("x", &form, &m, from, to).unwrap();
            let sent: u64 = (0..m.world())
                .flat_map(|r| steps.iter().map(move |s| (s, r)))
                .map(|(s, r)| s.volume(&form, &m, r))
                .sum();
            let wanted = if i == j { 0.0 } else { least[i][j] };
            assert!(
                (sent as f64 - wanted).abs() < 1e-6,
                "{from:?} to {to:?}: {sent}, wanted {wanted}: {steps:?}"
            );
            let mean: f64 = steps.iter().map(|s| s.mean_volume(&form, &m)).sum();
            assert!((mean * m.world() as f64 - wanted).abs() < 1e-6, "{mean}");
        }
    }
}

/// From rows to columns over 8 x 16 ranks: one all-to-all of the flat group, where a plan axis by axis gathers over shard,
/// exchanges over tensor and slices, 0.2266 N.
#[test]
fn a_flat_group_sends_29_times_less_than_one_axis_after_the_other() {
    let m = mesh(&[(Axis::Tensor, 8), (Axis::Shard, 16)]);
    let form = Form::plain(&[1024, 1024]);
    let over_both = |dim| Layout::replicated().with(Axis::Tensor, shard(dim)).with(Axis::Shard, shard(dim));
    let steps = redistribute("x", &form, &m, &over_both(0), &over_both(1)).unwrap();
    assert_eq!(steps.len(), 1);
    assert_eq!(steps[0].axes, [Axis::Tensor, Axis::Shard]);
    assert_eq!(steps[0].action, Action::AllToAll { from: 0, to: 1 });
    let share = steps[0].volume(&form, &m, 77) as f64 / f64::from(1 << 20);
    assert_eq!(share, 127.0 / 16384.0);
    assert!((share - 0.00775).abs() < 1e-5);
    assert!((0.2266 / share - 29.0).abs() < 0.3);
}

const SUM: Placement = Placement::Partial { reduce: Reduction::Sum };

fn shard(dim: usize) -> Placement {
    Placement::Shard { dim }
}

/// N (n-1)/n, N (n-1)/n, 2N (n-1)/n; an all-to-all sends (n-1)/n of a part.
#[test]
fn volumes_are_those_of_ring_algorithms() {
    let (m, form) = (mesh(&[(Axis::Tensor, 4)]), Form::plain(&[8, 12]));
    let volume = |from: Placement, to: Placement| {
        let of = |p| Layout::replicated().with(Axis::Tensor, p);
        let steps = redistribute("x", &form, &m, &of(from), &of(to)).unwrap();
        assert_eq!(steps.len(), 1);
        let volumes: Vec<u64> = (0..4).map(|r| steps[0].volume(&form, &m, r)).collect();
        assert!(volumes.iter().all(|v| *v == volumes[0]), "{volumes:?}");
        volumes[0]
    };
    assert_eq!(volume(shard(0), Placement::Replicate), 72);
    assert_eq!(volume(SUM, shard(1)), 72);
    assert_eq!(volume(SUM, Placement::Replicate), 144);
    assert_eq!(volume(shard(0), shard(1)), 18);
    assert_eq!(volume(Placement::Replicate, shard(1)), 0);
    assert_eq!(volume(Placement::Replicate, SUM), 0);
    let log_sums = Placement::Partial { reduce: Reduction::LogSumExp };
    assert_eq!(volume(log_sums, Placement::Replicate), 3 * 96);
    // Sequence parallelism: the all-reduce in two halves, with the norm between them.
    assert_eq!(
        volume(SUM, shard(0)) + volume(shard(0), Placement::Replicate),
        volume(SUM, Placement::Replicate)
    );
}

/// 5 rows over 2 ranks: 3 and 2; each receives what the other has.
#[test]
fn uneven_parts_send_what_the_others_lack() {
    let (m, form) = (mesh(&[(Axis::Shard, 2)]), Form::plain(&[5, 2]));
    let cut = Layout::replicated().with(Axis::Shard, shard(0));
    let steps = redistribute("x", &form, &m, &cut, &Layout::replicated()).unwrap();
    assert_eq!((steps[0].volume(&form, &m, 0), steps[0].volume(&form, &m, 1)), (4, 6));
}

/// Tensor divides first, shard what is left: shard must be gathered before tensor can be, or out of the way.
#[test]
fn what_divides_last_is_undone_first_and_sums_are_made_while_parts_are_small() {
    let m = mesh(&[(Axis::Replicate, 2), (Axis::Shard, 2), (Axis::Tensor, 2)]);
    let form = Form::plain(&[8, 4]);
    let both = Layout::replicated().with(Axis::Tensor, shard(0)).with(Axis::Shard, shard(0));
    let from = both.with(Axis::Replicate, SUM);
    let plan = |to: &Layout| -> Vec<(Vec<Axis>, Action)> {
        let steps = redistribute("x", &form, &m, &from, to).unwrap();
        steps.into_iter().map(|s| (s.axes, s.action)).collect()
    };
    let (sum, gather) = (Action::AllReduce { reduce: Reduction::Sum }, Action::AllGather { dim: 0 });
    let exchange = |from, to| Action::AllToAll { from, to };
    assert_eq!(
        plan(&Layout::replicated()),
        [(vec![Axis::Replicate], sum), (vec![Axis::Tensor, Axis::Shard], gather)]
    );
    assert_eq!(plan(&both), [(vec![Axis::Replicate], sum)]);
    assert!(plan(&from).is_empty());
    // Both axes move to the other dim, and shard back, while the parts are small: 9/16 N, where gathering over shard and
    // tensor and slicing again sends 3/4 N.
    let shard_only = Layout::replicated().with(Axis::Shard, shard(0));
    let steps = redistribute("x", &form, &m, &both, &shard_only).unwrap();
    let found: Vec<_> = steps.iter().map(|s| (&s.axes[..], s.action)).collect();
    let (shard_axis, tensor_axis) = (&[Axis::Shard][..], &[Axis::Tensor][..]);
    let to_and_fro = [(&[Axis::Tensor, Axis::Shard][..], exchange(0, 1)), (shard_axis, exchange(1, 0))];
    assert_eq!(found, [to_and_fro[0], to_and_fro[1], (tensor_axis, Action::AllGather { dim: 1 })]);
    assert_eq!(steps.iter().map(|s| s.volume(&form, &m, 0)).sum::<u64>(), 9 * 32 / 16);
}

#[test]
fn other_owners_receive_what_they_did_not_have() {
    let m = mesh(&[(Axis::Shard, 3)]);
    let flat = |lengths: [usize; 3]| Form { dims: vec![Dim::owned_lengths(Axis::Shard, lengths)] };
    let layout = Layout::replicated().with(Axis::Shard, shard(0));
    let moved = |from: &Form, to: &Form| -> Vec<u64> {
        (0..3).map(|r| layout.moved(from, to, &m, &m.coord(r))).collect()
    };
    assert_eq!(moved(&flat([5, 4, 3]), &flat([4, 4, 4])), [0, 1, 1]);
    assert_eq!(moved(&Form::plain(&[12]), &flat([0, 12, 0])), [0, 8, 0]);
    let steps = redistribute("u", &flat([5, 4, 3]), &m, &layout, &Layout::replicated()).unwrap();
    assert_eq!((0..3).map(|r| steps[0].volume(&flat([5, 4, 3]), &m, r)).collect::<Vec<_>>(), [7, 8, 9]);
}

#[test]
fn layouts_that_no_tensor_can_have_are_refused() {
    let m = mesh(&[(Axis::Shard, 2), (Axis::Tensor, 2)]);
    let form = Form::plain(&[4]);
    let whole = Layout::replicated();
    let refused = |form: &Form, from: Layout, to: Layout, words: &[&str]| {
        let e = redistribute("layers.3.mlp.down", form, &m, &from, &to).unwrap_err().to_string();
        assert!(e.starts_with("layers.3.mlp.down: ") && words.iter().all(|w| e.contains(w)), "{e}");
    };
    let max = Placement::Partial { reduce: Reduction::Max };
    let mixed = whole.with(Axis::Tensor, SUM).with(Axis::Shard, max);
    refused(&form, mixed, whole, &["partial maximum over shard", "partial sum over tensor"]);
    refused(&form, whole.with(Axis::Tensor, shard(1)), whole, &["dim 1", "has 1 dims"]);
    let experts = whole.with(Axis::Expert, shard(0));
    refused(&form, whole, experts, &["sharded by dim 0 over the expert axis", "no ranks of its own"]);
    assert!(require("x", &experts, &whole, &m).is_err());
    let owned = Form { dims: vec![Dim::owned_lengths(Axis::Shard, [1, 1, 2])] };
    refused(&owned, whole, whole.with(Axis::Shard, shard(0)), &["dim 0", "owner 2 along shard"]);
    refused(&owned, whole, whole.with(Axis::Tensor, shard(0)), &["owners along shard", "over tensor"]);
    // One rank along the axis: nothing is partial, nothing is sent.
    let alone = mesh(&[(Axis::Shard, 2)]);
    assert_eq!(redistribute("x", &form, &alone, &whole.with(Axis::Tensor, SUM), &whole), Ok(vec![]));
    // One reduction becomes another by way of the whole.
    let sum_to_max =
        redistribute("x", &form, &m, &whole.with(Axis::Tensor, SUM), &whole.with(Axis::Tensor, max));
    let actions: Vec<_> = sum_to_max.unwrap().iter().map(|s| s.action).collect();
    assert_eq!(
        actions,
        [Action::AllReduce { reduce: Reduction::Sum }, Action::Mask { reduce: Reduction::Max }]
    );
}

/// 8 query heads and 2 key and value heads over 4 ranks: ranks 2 and 3 hold the second of those.
#[test]
fn replicas_of_key_and_value_heads_are_known() {
    let m = mesh(&[(Axis::Shard, 2), (Axis::Tensor, 4)]);
    let heads = |n| Block::heads(n, 3);
    let form = Form { dims: vec![Dim::of([heads(8), heads(2), heads(2)]), Dim::plain(5)] };
    let layout = Layout::replicated().with(Axis::Tensor, shard(0));
    for rank in 0..8 {
        let coord = m.coord(rank);
        let at = coord.at(Axis::Tensor);
        let replicas = layout.replicated_blocks(&form, &m, &coord).unwrap();
        assert_eq!(
            (replicas.axis, replicas.positions, replicas.dim),
            (Axis::Tensor, at / 2 * 2..at / 2 * 2 + 2, 0)
        );
        assert_eq!(replicas.local, [DimRange { start: 6, len: 6 }]);
        let counted = local_ranges(&layout.counted_runs(&form, &m, &coord));
        let rows = match (coord.at(Axis::Shard), at % 2) {
            (0, 0) => 12,
            (0, _) => 6,
            _ => 0,
        };
        let wanted: Vec<_> = (rows > 0).then_some(0..rows * 5).into_iter().collect();
        assert_eq!(counted, wanted, "{}", m.describe(rank));
    }
    let two = mesh(&[(Axis::Tensor, 2)]);
    assert_eq!(layout.replicated_blocks(&form, &two, &two.coord(1)), None);
}

#[test]
fn a_partial_value_is_not_taken_for_the_whole_one() {
    let m = mesh(&[(Axis::Shard, 2), (Axis::Tensor, 2)]);
    let whole = Layout::replicated();
    let found = |placement, wanted: Placement| {
        let (wanted, found) = (whole.with(Axis::Tensor, wanted), whole.with(Axis::Tensor, placement));
        require("layers.3.attention.out", &wanted, &found, &m).unwrap_err()
    };
    let e = found(SUM, Placement::Replicate);
    assert!(matches!(&e, LayoutError::Mismatch { axis: Axis::Tensor, .. }));
    assert_eq!(
        e.to_string(),
        "layers.3.attention.out: a partial sum over the tensor axis, but it is consumed as replicated; an all-reduce over \
         tensor leads there"
    );
    let says = |e: LayoutError, word: &str| assert!(e.to_string().contains(word), "{e}");
    says(found(SUM, shard(0)), "a reduce-scatter of dim 0 over tensor");
    says(found(shard(0), Placement::Replicate), "an all-gather of dim 0 over tensor");
    says(found(shard(0), shard(1)), "an all-to-all from dim 0 to dim 1");
    // Logits that were gathered before a loss that wants them sharded (Megatron-LM issue 7452).
    says(found(Placement::Replicate, shard(1)), "a slice of dim 1");
    says(found(Placement::Replicate, SUM), "on the first rank of tensor only");
    let partial = whole.with(Axis::Tensor, SUM);
    assert_eq!(require("x", &partial, &partial, &m), Ok(()));
    assert_eq!(require("x", &whole, &partial, &mesh(&[(Axis::Shard, 2)])), Ok(()));
}
