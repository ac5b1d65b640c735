//! A model on a grid of ranks, each a decoder of its own on a thread of its own, against the whole model: the losses and every gradient.

use crate::group::{Groups, part_of};
use crate::programs::refuse;
use crate::tensor_shards::{Outcome, completed, of_whole, outcome};
use crate::tiny::{self, SEQ, cpu, dense_kinds, models, relative};

use bessemer_arch::{ActivationChoice, Model, TensorShard, Unit};
use bessemer_mesh::formulas::{CubeProduct, cube_layer, plane_layer, ring};
use bessemer_mesh::{Axis, TensorGrid};
use bessemer_program::Node;
use bessemer_runtime::{ActivationConfig, Decoder, ModelError, Phase, Purpose, Shape, StageConfig, Stream};
use bessemer_tensor::null::NullBackend;
use bessemer_test_tier::{Sample, either};
use bessemer_units::{Recompute, Storage};

pub(crate) const fn plane(rows: usize, columns: usize, depth: usize) -> TensorGrid {
    TensorGrid::Plane { rows, columns, depth }
}

/// Sequences enough for every grid.
fn shape(grid: TensorGrid) -> Shape {
    Shape { sequences: grid.sequence_parts().max(2), seq: SEQ, purpose: Purpose::Train }
}

fn on_grid(model: &Model, grid: TensorGrid, config: &ActivationConfig) -> Vec<Outcome> {
    let groups = Groups::new(&grid.mesh());
    std::thread::scope(|s| {
        let run = |rank: usize| {
            let part = model.grid_shard(grid, rank).unwrap();
            let (groups, config) = (&groups, config.clone());
            s.spawn(move || {
                let mut b = cpu(1);
                let d = Decoder::of_tensor_shard(&mut b, &part, Stream::WHOLE, shape(grid), config, None);
                let mut d = d.unwrap_or_else(|e| panic!("{grid}, rank {rank}: {e}"));
                d.verify().unwrap_or_else(|e| panic!("{grid}, rank {rank}: {e}"));
                for (i, (param, spec)) in part.params().iter().zip(model.params()).enumerate() {
                    let values = part_of(param, &tiny::values(i, &spec));
                    d.write_param(&mut b, &spec.name, &values).unwrap();
                }
                outcome(&mut b, &mut d, &mut groups.member(rank))
            })
        };
        let threads: Vec<_> = (0..grid.ranks()).map(run).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

fn hold(what: &str, model: &Model, grid: TensorGrid, config: ActivationConfig, tolerance: f64) {
    let whole = of_whole(model, shape(grid), config.clone());
    let (all, mesh) = (on_grid(model, grid, &config), grid.mesh());
    let lse_squared: f64 = all.iter().map(|found| found.lse_squared).sum();
    assert!((lse_squared / whole.lse_squared - 1.0).abs() < tolerance, "{what}, grid {grid}");
    for (rank, found) in all.iter().enumerate() {
        let what = format!("{what}, {}, grid {grid}", mesh.describe(rank));
        for (found, wanted) in found.losses.iter().zip(&whole.losses) {
            assert!((found / wanted - 1.0).abs() < tolerance, "{what}: loss {found}, wanted {wanted}");
        }
        assert!(relative(&found.per_token, &whole.per_token) < tolerance, "{what}");
        let part = model.grid_shard(grid, rank).unwrap();
        for (i, param) in part.params().iter().enumerate() {
            let wanted = part_of(param, &whole.gradients[i]);
            let difference = relative(&completed(&part, i, true, &all), &wanted);
            assert!(difference < tolerance, "{what}: {} differs by {difference}", param.name());
        }
    }
}

pub(crate) const PLANES: [TensorGrid; 6] =
    [plane(2, 2, 1), plane(2, 1, 1), plane(1, 2, 1), plane(1, 1, 2), plane(2, 2, 2), plane(4, 4, 1)];

fn hold_all(grids: &[TensorGrid]) -> usize {
    let (mut held, mut sample) = (0, Sample::one_in(2));
    for (label, model) in dense_kinds() {
        for dropout in [0.0, 0.2] {
            let model = Model { dropout, ..model.clone() };
            for grid in grids.iter().filter(|grid| model.grid_shard(**grid, 0).is_ok()) {
                if !sample.takes() {
                    continue;
                }
                hold(
                    &format!("{label}, dropout {dropout}"),
                    &model,
                    *grid,
                    ActivationConfig::default(),
                    2e-5,
                );
                held += 1;
            }
        }
    }
    held
}

/// A rank's decoder on a device that only counts.
fn counted(model: &Model, grid: TensorGrid, rank: usize, recompute: Recompute) -> Decoder {
    let part = model.grid_shard(grid, rank).unwrap();
    let config = ActivationConfig { recompute: recompute.into(), ..ActivationConfig::default() };
    let stage = StageConfig::whole(&part.model);
    Decoder::of_stage(&mut NullBackend::new(), &part, Stream::WHOLE, shape(grid), config, &stage, None)
        .unwrap()
}

const CUBE: TensorGrid = TensorGrid::Cube { side: 2 };

#[test]
fn cubes_have_the_losses_and_gradients_of_the_whole() {
    let held = hold_all(&[CUBE]);
    assert!(held > either(10, 20), "{held}");
}

#[test]
fn recomputed_and_rounded_activations_go_on_grids_too() {
    for (label, model) in models() {
        for grid in [plane(2, 2, 1), CUBE] {
            if model.grid_shard(grid, 0).is_err() {
                continue;
            }
            for recompute in [Recompute::None, Recompute::Attention, Recompute::Full] {
                let kept = ActivationConfig { recompute: recompute.into(), ..ActivationConfig::default() };
                hold(&format!("{label}, {recompute:?}"), &model, grid, kept, 2e-5);
            }
            // Rounding takes values near zero to the other side of ReLU's kink.
            if model.activation != ActivationChoice::Relu {
                let config = ActivationConfig { storage: Storage::Bf16, ..ActivationConfig::default() };
                hold(label, &model, grid, config, 0.05);
            }
        }
    }
}

#[test]
fn every_mutation_of_a_program_on_a_grid_is_refused_by_name() {
    let (mut count, sample) = (0, &mut Sample::one_in(6));
    for (kind, (label, model)) in dense_kinds().into_iter().enumerate() {
        // One layer is as good as another.
        let model = Model { layers: 1, ..model };
        let grids = [(plane(2, 2, 1), 3), (plane(1, 2, 2), 2), (plane(2, 1, 2), 1), (CUBE, 5)];
        for (at, (grid, rank)) in grids.into_iter().enumerate() {
            if model.grid_shard(grid, rank).is_err() {
                continue;
            }
            for (choice, recompute) in [Recompute::Selective, Recompute::Full].into_iter().enumerate() {
                // Takes every second combination, so that each model is tried on each grid.
                if (kind + at + choice).is_multiple_of(2) {
                    continue;
                }
                let d = counted(&model, grid, rank, recompute);
                d.verify().unwrap_or_else(|e| panic!("{label}, grid {grid}: {e}"));
                for program in d.programs() {
                    count += refuse(&format!("{label}, grid {grid}"), &d, program, sample);
                }
            }
        }
    }
    assert!(count > either(800, 5_000), "{count}");
}

/// Bytes that the forward and backward pass of a layer send over an axis.
fn sent(d: &Decoder, axis: Axis) -> f64 {
    let (_, program, _) = d.programs().find(|p| p.0 == Unit::Layer(0)).unwrap();
    let rank = d.ranks().iter().find(|rank| rank.axis == axis).unwrap();
    let nodes = [Phase::Forward, Phase::Backward].into_iter().flat_map(|phase| program.list(phase));
    let bytes = nodes.map(|node| match node {
        Node::Collective(c) if c.axis == axis => c.bytes_sent(rank.degree, rank.index),
        _ => 0,
    });
    bytes.sum::<u64>() as f64
}

#[test]
fn bytes_of_a_layer_are_those_of_the_closed_forms() {
    for (label, model) in &models()[..2] {
        let layer_norm = *label == "gpt2";
        let (h, a, f) = (model.width, model.attention_width(), model.ffn_width);
        let products = [(h, model.qkv_width()), (a, h), (h, model.mlp_in_width()), (f, h)];
        for (recompute, again) in [(Recompute::None, 0), (Recompute::Selective, 1)] {
            // Two normalisations, forward, backward, and forward again.
            let row_sums = 2 * (2 + again) * if layer_norm { 2 } else { 1 };
            for (rows, columns, depth) in [(2, 2, 1), (2, 2, 2), (1, 2, 1), (2, 1, 1), (4, 4, 1)] {
                let grid = plane(rows, columns, depth);
                // Key/value heads that several ranks hold are in no closed form.
                if model.grid_shard(grid, 0).map_or(true, |part| part.kv_replicas > 1) {
                    continue;
                }
                let tokens = shape(grid).tokens();
                let wanted = plane_layer(tokens, &products, [rows, columns, depth], row_sums);
                for rank in [0, grid.ranks() - 1] {
                    let d = counted(model, grid, rank, recompute);
                    let axes =
                        [(Axis::TensorColumn, columns, wanted.columns), (Axis::TensorRow, rows, wanted.rows)];
                    for (axis, _, wanted) in axes.into_iter().filter(|(_, degree, _)| *degree > 1) {
                        assert_eq!(sent(&d, axis), 4.0 * wanted, "{label}, {grid}, {axis}, {recompute:?}");
                    }
                }
            }
        }
        if model.grid_shard(CUBE, 0).is_ok() {
            let product = |i: usize| {
                let (inputs, outputs) = products[i];
                CubeProduct { inputs, outputs, second: i % 2 == 1 }
            };
            let (side, tokens) = (2, shape(CUBE).tokens());
            let wanted = cube_layer(tokens, &std::array::from_fn::<_, 4, _>(product), side);
            let rows = tokens as f64 / (side * side) as f64;
            let norms = 2.0 * ring(rows * if layer_norm { 8.0 } else { 4.0 }, side);
            let d = counted(model, CUBE, 0, Recompute::None);
            for (axis, wanted) in [
                (Axis::TensorDepth, wanted.parameters),
                (Axis::TensorRow, wanted.rows),
                (Axis::TensorColumn, wanted.columns + norms),
            ] {
                assert_eq!(sent(&d, axis), 4.0 * wanted, "{label}, cube, {axis}");
            }
        }
    }
}

#[test]
fn what_a_grid_does_not_divide_is_refused_with_what_to_change() {
    let (_, model) = models().swap_remove(0);
    let message =
        |r: Result<TensorShard, bessemer_arch::TensorShardError>| r.map(drop).unwrap_err().to_string();
    let e = message(Model { width: 30, ..model.clone() }.grid_shard(plane(1, 4, 1), 0));
    assert!(e.contains("a width that is a multiple of 4, found 30; change model.width or the grid"), "{e}");
    let e = message(model.grid_shard(plane(1, 3, 1), 0));
    assert!(e.contains("is a multiple of 3, found"), "{e}");
    let part = model.grid_shard(plane(4, 1, 1), 0).unwrap();
    let shape = Shape { sequences: 2, seq: SEQ, purpose: Purpose::Train };
    let mut b = NullBackend::new();
    let mut of = |stream| {
        let d = Decoder::of_tensor_shard(&mut b, &part, stream, shape, ActivationConfig::default(), None);
        match d.map(drop) {
            Err(e @ ModelError::TensorShard(_)) => e.to_string(),
            other => panic!("{other:?}"),
        }
    };
    let e = of(Stream::WHOLE);
    assert!(
        e.contains("wanted a number of sequences that 4 divides, found 2; change train.micro_batch"),
        "{e}"
    );
    assert!(of(Stream::ROWS).contains("needs its own layout of the residual stream"));
}

#[test]
fn planes_have_the_losses_and_gradients_of_the_whole() {
    let held = hold_all(&PLANES);
    assert!(held > either(50, 100), "{held}");
}
