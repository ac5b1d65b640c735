//! The steps between two layouts, applied to small tensors on the host: whatever the mesh and the layouts, every rank
//! ends up with its part of the same tensor.

use bessemer_mesh::{
    Action, Axis, Block, Dim, Form, Layout, LayoutError, Mesh, MeshConfig, Placement, Reduction, Step,
    redistribute, require,
};
use proptest::prelude::*;
use std::collections::BTreeMap;

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
    for (spans, len) in layout.spans(form, mesh, &mesh.coord(rank)).iter().zip(form.shape()) {
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
        Reduction::Max if p == e % terms => value(e),
        Reduction::Max => value(e) - other(e, p),
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
            let group: Vec<&Part> = mesh.group(rank, &[step.axis]).iter().map(|r| &parts[*r]).collect();
            let mut available = match step.action {
                Action::AllGather { .. } | Action::AllToAll { .. } => united(&group),
                Action::ReduceScatter { reduce, .. } | Action::AllReduce { reduce } => {
                    reduced(&group, reduce)
                }
                Action::Slice { .. } => parts[rank].clone(),
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
    let block =
        (1usize..5, 1usize..3, any::<bool>()).prop_map(|(units, unit, copied)| Block { units, unit, copied });
    proptest::collection::vec(block, 1..4).prop_map(Dim::of)
}

fn case() -> impl Strategy<Value = (Mesh, Form, Layout, Layout, u8)> {
    let degrees = proptest::collection::vec(1usize..4, AXES.len());
    (degrees, proptest::collection::vec(dim(), 1..4), any::<bool>()).prop_flat_map(|(degrees, dims, max)| {
        let reduce = if max { Reduction::Max } else { Reduction::Sum };
        let degrees: Vec<(Axis, usize)> = AXES.iter().copied().zip(degrees).collect();
        let n = dims.len();
        (Just(mesh(&degrees)), Just(Form { dims }), layout(n, Some(reduce)), layout(n, None), any::<u8>())
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn every_rank_ends_with_its_part_of_the_same_tensor((mesh, form, from, to, stays) in case()) {
        // Some partial values stay what they are.
        let (axes, reduce) = partial_axes(&from);
        let kept = axes.iter().enumerate().filter(|(i, _)| stays >> i & 1 == 1).map(|(_, a)| *a);
        let to = kept.fold(to, |l, a| l.with(a, Placement::Partial { reduce }));

        let steps = redistribute("x", &form, &mesh, &from, &to).unwrap();
        let mut parts = scattered(&from, &form, &mesh);
        let mut now = None;
        for step in &steps {
            prop_assert!(mesh.degree(step.axis) > 1);
            prop_assert!(now.is_none_or(|n| n == step.before));
            parts = apply(step, &form, &mesh, &parts);
            now = Some(step.after);
        }
        for axis in AXES {
            let talks = steps.iter().filter(|s| s.axis == axis).count();
            prop_assert!(talks <= 2, "{axis}: {steps:?}");
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
    fn parts_cover_the_tensor_and_overlap_only_in_copies((mesh, form, _, to, _) in case()) {
        let mut met = vec![0; form.shape().iter().product()];
        let axes: Vec<Axis> =
            AXES.into_iter().filter(|a| matches!(to.at(*a), Placement::Shard { .. })).collect();
        for rank in mesh.group(0, &axes) {
            elements(&to, &form, &mesh, rank).into_iter().for_each(|e| met[e] += 1);
        }
        let copies = form.dims.iter().flat_map(|d| &d.blocks).any(|b| b.copied);
        prop_assert!(met.iter().all(|n| if copies { *n >= 1 } else { *n == 1 }), "{met:?}");
    }
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

/// Tensor cuts first, shard cuts what is left: shard must be gathered before tensor can be.
#[test]
fn the_last_cut_is_undone_first_and_sums_are_made_while_parts_are_small() {
    let m = mesh(&[(Axis::Replicate, 2), (Axis::Shard, 2), (Axis::Tensor, 2)]);
    let form = Form::plain(&[8, 4]);
    let both = Layout::replicated().with(Axis::Tensor, shard(0)).with(Axis::Shard, shard(0));
    let from = both.with(Axis::Replicate, SUM);
    let plan = |to: &Layout| -> Vec<(Axis, Action)> {
        redistribute("x", &form, &m, &from, to).unwrap().iter().map(|s| (s.axis, s.action)).collect()
    };
    let (sum, gather) = (Action::AllReduce { reduce: Reduction::Sum }, Action::AllGather { dim: 0 });
    assert_eq!(
        plan(&Layout::replicated()),
        [(Axis::Replicate, sum), (Axis::Shard, gather), (Axis::Tensor, gather)]
    );
    let shard_only = Layout::replicated().with(Axis::Shard, shard(0));
    let slice = Action::Slice { dim: 0 };
    assert_eq!(
        plan(&shard_only),
        [(Axis::Replicate, sum), (Axis::Shard, gather), (Axis::Tensor, gather), (Axis::Shard, slice)]
    );
    assert_eq!(plan(&both), [(Axis::Replicate, sum)]);
    assert!(plan(&from).is_empty());
}

#[test]
fn what_no_collective_can_make_is_refused() {
    let m = mesh(&[(Axis::Shard, 2), (Axis::Tensor, 2)]);
    let form = Form::plain(&[4]);
    let whole = Layout::replicated();
    let refused = |from: Layout, to: Layout, words: &[&str]| {
        let e = redistribute("layers.3.mlp.down", &form, &m, &from, &to).unwrap_err().to_string();
        assert!(e.starts_with("layers.3.mlp.down: ") && words.iter().all(|w| e.contains(w)), "{e}");
    };
    refused(whole, whole.with(Axis::Tensor, SUM), &["tensor", "no collective"]);
    let max = Placement::Partial { reduce: Reduction::Max };
    refused(whole.with(Axis::Tensor, SUM), whole.with(Axis::Tensor, max), &["no collective"]);
    let mixed = whole.with(Axis::Tensor, SUM).with(Axis::Shard, max);
    refused(mixed, whole, &["partial maximum over shard", "partial sum over tensor"]);
    refused(whole.with(Axis::Tensor, shard(1)), whole, &["dim 1", "has 1 dims"]);
    // One rank along the axis: nothing is partial, nothing is sent.
    let alone = mesh(&[(Axis::Shard, 2)]);
    assert_eq!(redistribute("x", &form, &alone, &whole.with(Axis::Tensor, SUM), &whole), Ok(vec![]));
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
    // Logits that were gathered before a loss that wants them cut (Megatron-LM issue 7452).
    says(found(Placement::Replicate, shard(1)), "a slice of dim 1");
    says(found(Placement::Replicate, SUM), "no collective");
    let partial = whole.with(Axis::Tensor, SUM);
    assert_eq!(require("x", &partial, &partial, &m), Ok(()));
    assert_eq!(require("x", &whole, &partial, &mesh(&[(Axis::Shard, 2)])), Ok(()));
}
