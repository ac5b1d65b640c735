//! Ranks, coordinates and groups.

use bessemer_mesh::{Axis, Mesh, MeshConfig, label};
use proptest::prelude::*;

fn mesh(degrees: &[(Axis, usize)]) -> Mesh {
    let config = degrees.iter().fold(MeshConfig::new(), |c, (a, n)| c.with(*a, *n));
    Mesh::new(&config, degrees.iter().map(|d| d.1).product()).unwrap()
}

#[test]
fn tensor_ranks_are_neighbours_and_replicas_far_apart() {
    let m = mesh(&[(Axis::Pipeline, 2), (Axis::Replicate, 2), (Axis::Shard, 2), (Axis::Tensor, 2)]);
    assert_eq!(m.world(), 16);
    assert_eq!(m.group(0, &[Axis::Tensor]), [0, 1]);
    assert_eq!(m.group(5, &[Axis::Shard]), [5, 7]);
    assert_eq!(m.group(0, &[Axis::Pipeline]), [0, 4]);
    assert_eq!(m.group(0, &[Axis::Replicate]), [0, 8]);
    assert_eq!(m.group(3, &[Axis::Replicate, Axis::Shard]), [1, 3, 9, 11]);
    assert_eq!(m.position(9, &[Axis::Shard, Axis::Replicate]), 2);
    assert_eq!(m.describe(13), "rank 13 (pipeline 1, replicate 1, shard 0, tensor 1)");
    assert_eq!(label(&[Axis::Shard, Axis::Replicate]), "replicate+shard");
    assert_eq!(m.groups(&[Axis::Tensor]).len(), 8);
}

#[test]
fn the_order_can_be_set() {
    let config = MeshConfig::new().with(Axis::Shard, 2).with(Axis::Pipeline, 2).order(&[Axis::Pipeline]);
    let m = Mesh::new(&config, 4).unwrap();
    assert_eq!(m.group(0, &[Axis::Pipeline]), [0, 1]);
    assert_eq!(m.group(0, &[Axis::Shard]), [0, 2]);
}

#[test]
fn ranks_that_are_left_go_to_the_open_axis() {
    let config = MeshConfig::new().with(Axis::Tensor, 2).with(Axis::Replicate, 0);
    assert_eq!(Mesh::new(&config, 8).unwrap().degree(Axis::Replicate), 4);
    let e = Mesh::new(&config, 7).unwrap_err().to_string();
    assert!(e.contains("tensor 2 takes 2 ranks") && e.contains("the 7 there are"), "{e}");
    assert!(e.contains("tensor to 1") && e.contains("multiple of 2"), "{e}");
}

#[test]
fn ranks_that_share_experts_are_nearer_than_other_data_parallel_ones() {
    let m = mesh(&[(Axis::Shard, 2), (Axis::Expert, 2), (Axis::Tensor, 2)]);
    assert_eq!(m.group(5, &[Axis::Expert]), [5, 7]);
    assert_eq!(m.group(5, &[Axis::Shard]), [1, 5]);
    assert_eq!(m.describe(7), "rank 7 (shard 1, tensor 1, expert 1)");
}

#[test]
fn what_is_no_mesh_is_refused_with_the_reason() {
    let refused = |config: MeshConfig, ranks: usize, words: &[&str]| {
        let e = Mesh::new(&config, ranks).unwrap_err().to_string();
        assert!(words.iter().all(|w| e.contains(w)), "{e}");
    };
    let three = MeshConfig::new().with(Axis::Tensor, 2).with(Axis::Pipeline, 3);
    refused(three.clone(), 8, &["pipeline 3 x tensor 2 makes 6 ranks", "there are 8", "pipeline to 4"]);
    refused(three, 12, &["replicate to 2", "shard to 2", "tensor to 4", "or start 6 ranks"]);
    refused(MeshConfig::new(), 2, &["every axis 1 makes 1", "replicate to 2"]);
    refused(MeshConfig::new().with(Axis::Tensor, 0).with(Axis::Shard, 0), 4, &["shard and tensor at 0"]);
    refused(MeshConfig::new().order(&[Axis::Shard, Axis::Shard]), 1, &["shard twice"]);
    refused(MeshConfig::new(), 0, &["at least one"]);
    refused(
        MeshConfig::new().with(Axis::Tensor, 2).with(Axis::TensorRow, 2),
        4,
        &["line or a grid", "found both"],
    );
    let huge = MeshConfig::new().with(Axis::Tensor, usize::MAX).with(Axis::Shard, 2);
    refused(huge, 4, &["too many"]);
}

fn degrees() -> impl Strategy<Value = Vec<(Axis, usize)>> {
    proptest::collection::vec(1usize..4, 5).prop_map(|n| Axis::ALL.iter().copied().take(5).zip(n).collect())
}

proptest! {
    #[test]
    fn coordinates_and_groups_are_consistent(
        degrees in degrees(),
        order in proptest::sample::subsequence(Axis::ALL[..5].to_vec(), 0..=5).prop_shuffle(),
        axes in proptest::sample::subsequence(Axis::ALL[..5].to_vec(), 0..=5),
    ) {
        let config = degrees.iter().fold(MeshConfig::new(), |c, (a, n)| c.with(*a, *n)).order(&order);
        let m = Mesh::new(&config, degrees.iter().map(|d| d.1).product()).unwrap();
        let mut met = vec![0; m.world()];
        for group in m.groups(&axes) {
            prop_assert_eq!(group.len(), m.size(&axes));
            prop_assert!(group.is_sorted());
            for (i, rank) in group.iter().enumerate() {
                met[*rank] += 1;
                prop_assert_eq!(m.rank(&m.coord(*rank)), *rank);
                prop_assert_eq!(m.position(*rank, &axes), i);
                prop_assert_eq!(m.rank(&m.moved(m.coord(group[0]), &axes, i)), *rank);
                prop_assert_eq!(&m.group(*rank, &axes), &group);
            }
        }
        prop_assert!(met.iter().all(|n| *n == 1));
    }
}
