//! Layouts that no tensor can have, and what ranks hold alike.

use bessemer_mesh::{
    Axis, Block, Dim, DimRange, Form, Layout, Mesh, MeshConfig, Placement, Reduction, local_ranges,
};

const SUM: Placement = Placement::Partial { reduce: Reduction::Sum };

fn shard(dim: usize) -> Placement {
    Placement::Shard { dim }
}

fn mesh(degrees: &[(Axis, usize)]) -> Mesh {
    let config = degrees.iter().fold(MeshConfig::new(), |c, (a, n)| c.with(*a, *n));
    Mesh::new(&config, degrees.iter().map(|d| d.1).product()).unwrap()
}

#[test]
fn layouts_that_no_tensor_can_have_are_refused() {
    let m = mesh(&[(Axis::Shard, 2), (Axis::Tensor, 2)]);
    let form = Form::plain(&[4]);
    let whole = Layout::replicated();
    let refused = |form: &Form, layout: Layout, words: &[&str]| {
        let e = layout.check("layers.3.mlp.down", form, &m).unwrap_err().to_string();
        assert!(e.starts_with("layers.3.mlp.down: ") && words.iter().all(|w| e.contains(w)), "{e}");
    };
    let max = Placement::Partial { reduce: Reduction::Max };
    let mixed = whole.with(Axis::Tensor, SUM).with(Axis::Shard, max);
    refused(&form, mixed, &["partial maximum over shard", "partial sum over tensor"]);
    refused(&form, whole.with(Axis::Tensor, shard(1)), &["dim 1", "has 1 dims"]);
    let owned = Form { dims: vec![Dim::owned_lengths(Axis::Shard, [1, 1, 2])] };
    refused(&owned, whole.with(Axis::Shard, shard(0)), &["dim 0", "owner 2 along shard"]);
    refused(&owned, whole.with(Axis::Tensor, shard(0)), &["owners along shard", "over tensor"]);
}

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
