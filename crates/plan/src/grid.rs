//! Grids of tensor-parallel ranks in closed form: what of each product a rank computes, and the seconds of the grid's collectives.
//!
//! A plane of r x c ranks in d layers gives a rank `tokens / (r d)` rows, all columns of the inputs, which are gathered, and 1/c of the
//! outputs; matrices are gathered over the r ranks (Xu et al. 2021, by gathers instead of broadcasts; Wang et al. 2021). A cube of q^3
//! ranks gives it 1/q of the rows, inputs and outputs each (Bian et al. 2021). Elements are those of [`bessemer_mesh::formulas`]. Nothing
//! travels beside the computation.

use crate::operator::{Spread, collective_seconds};
use crate::search::divisors;
use crate::{Efficiency, Job, Layout, Machine, Transformer};
use bessemer_mesh::formulas::{CubeProduct, cube_ends, cube_layer, plane_ends, plane_layer};
use bessemer_mesh::{Axis, TensorGrid};
use bessemer_program::CollectiveKind;

/// Bytes of an activation and of a parameter on its way.
const ELEMENT: f64 = 2.0;
/// Products of a layer.
const PRODUCTS: f64 = 4.0;
/// Numbers that two normalisations of a layer sum for each row, forward and backward.
const ROW_SUMS: usize = 4;

/// What divides rows, inputs and outputs of the products of a layer on one rank.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct ProductShare {
    pub(crate) rows: f64,
    /// Of the first product of a block.
    pub(crate) inputs: f64,
    pub(crate) outputs: f64,
    /// Of the second one.
    pub(crate) second_inputs: f64,
    pub(crate) second_outputs: f64,
}

impl ProductShare {
    pub(crate) fn of(layout: &Layout) -> ProductShare {
        match layout.grid {
            None => {
                let line = layout.tensor as f64;
                ProductShare {
                    rows: 1.0,
                    inputs: 1.0,
                    outputs: line,
                    second_inputs: line,
                    second_outputs: 1.0,
                }
            }
            Some(TensorGrid::Plane { rows, columns, depth }) => ProductShare {
                rows: (rows * depth) as f64,
                inputs: 1.0,
                outputs: columns as f64,
                second_inputs: 1.0,
                second_outputs: columns as f64,
            },
            Some(TensorGrid::Cube { side }) => {
                let q = side as f64;
                ProductShare { rows: q, inputs: q, outputs: q, second_inputs: q, second_outputs: q }
            }
        }
    }
}

/// All grids whose ranks divide `ranks`: planes of at least two ranks along rows and columns, in any number of layers, and cubes.
pub fn grids(ranks: usize) -> Vec<TensorGrid> {
    let several = |number: usize| divisors(number).filter(|divisor| *divisor > 1);
    let planes = several(ranks).flat_map(|rows| {
        several(ranks / rows).flat_map(move |columns| {
            divisors(ranks / rows / columns).map(move |depth| TensorGrid::Plane { rows, columns, depth })
        })
    });
    let cubes = (2..).map_while(|side: usize| (side.pow(3) <= ranks).then_some(TensorGrid::Cube { side }));
    planes.chain(cubes.filter(|grid| ranks.is_multiple_of(grid.ranks()))).collect()
}

/// Whether a grid divides a model.
pub(crate) fn divides(grid: TensorGrid, model: &Transformer) -> bool {
    let (width, inner) = grid.divisors();
    let line = grid.degree(grid.line());
    model.width.is_multiple_of(width)
        && [model.width, model.ffn_width].iter().all(|number| number.is_multiple_of(inner))
        && [model.heads, model.kv_heads, model.ffn_width].iter().all(|number| number.is_multiple_of(line))
}

/// How the groups along an axis of a grid lie on nodes: columns beside each other, then rows, then depth.
fn spread(grid: TensorGrid, axis: Axis, job: &Job, machine: &Machine) -> Spread {
    let stride = match axis {
        Axis::TensorColumn => 1,
        Axis::TensorRow => grid.degree(Axis::TensorColumn),
        _ => grid.degree(Axis::TensorColumn) * grid.degree(Axis::TensorRow),
    };
    let ranks = grid.degree(axis);
    let per_node = (machine.node / stride.min(machine.node)).clamp(1, ranks);
    Spread { ranks, per_node, sharing: (job.devices().min(machine.node) / per_node).max(1) }
}

/// Seconds of gathers and scatters that send so many elements along an axis in `count` collectives.
fn seconds(
    sent: f64,
    count: f64,
    axis: Axis,
    (job, grid): (&Job, TensorGrid),
    (machine, efficiency): (&Machine, &Efficiency),
) -> f64 {
    let spread = spread(grid, axis, job, machine);
    if spread.ranks < 2 || sent <= 0.0 {
        return 0.0;
    }
    let whole = sent * spread.ranks as f64 / (spread.ranks - 1) as f64 * ELEMENT;
    count * collective_seconds(CollectiveKind::AllGather, whole / count, axis, spread, machine, efficiency)
}

/// Inputs and outputs of the matrices of a layer, first and second of each block in turn.
fn products(model: &Transformer) -> [(usize, usize); 4] {
    let opening = if model.gated { 2 * model.ffn_width } else { model.ffn_width };
    let (width, inner) = (model.width, model.ffn_width);
    [(width, model.qkv_width()), (width, width), (width, opening), (inner, width)]
}

/// Seconds of the collectives of a layer's forward and backward pass over a micro-batch.
pub(crate) fn layer(job: &Job, grid: TensorGrid, machine: &Machine, efficiency: &Efficiency) -> f64 {
    let tokens = job.layout.micro_batch * job.seq;
    let products = products(&job.model);
    let of = |sent, count, axis| seconds(sent, count, axis, (job, grid), (machine, efficiency));
    match grid {
        TensorGrid::Plane { rows, columns, depth } => {
            let sent = plane_layer(tokens, &products, [rows, columns, depth], ROW_SUMS);
            of(sent.columns, 3.0 * PRODUCTS, Axis::TensorColumn)
                + of(sent.rows, 3.0 * PRODUCTS, Axis::TensorRow)
        }
        TensorGrid::Cube { side } => {
            let product = |(at, (inputs, outputs)): (usize, &(usize, usize))| CubeProduct {
                inputs: *inputs,
                outputs: *outputs,
                second: at % 2 == 1,
            };
            let sent =
                cube_layer(tokens, &std::array::from_fn::<_, 4, _>(|at| product((at, &products[at]))), side);
            of(sent.parameters, 3.0 * PRODUCTS, Axis::TensorDepth)
                + of(sent.rows, 2.5 * PRODUCTS, Axis::TensorRow)
                + of(sent.columns, 2.5 * PRODUCTS, Axis::TensorColumn)
        }
    }
}

/// Seconds of the collectives of embedding, output projection and loss of a micro-batch.
pub(crate) fn ends(job: &Job, grid: TensorGrid, machine: &Machine, efficiency: &Efficiency) -> f64 {
    let (tokens, model) = (job.layout.micro_batch * job.seq, &job.model);
    let of = |sent, count, axis| seconds(sent, count, axis, (job, grid), (machine, efficiency));
    let [rows, columns, depth] = match grid {
        TensorGrid::Plane { rows, columns, depth } => {
            let sent = plane_ends(tokens, model.vocab, model.width, [rows, columns, depth], ROW_SUMS / 2);
            [sent.rows, sent.columns, sent.depth]
        }
        TensorGrid::Cube { side } => {
            let sent = cube_ends(tokens, model.vocab, model.width, side, ROW_SUMS / 2);
            [sent.rows, sent.columns, sent.parameters]
        }
    };
    of(rows, PRODUCTS, Axis::TensorRow)
        + of(columns, PRODUCTS, Axis::TensorColumn)
        + of(depth, PRODUCTS, Axis::TensorDepth)
}

/// Seconds of the sums of `bytes` bytes of gradients over the layers of a plane, which hold the same parameters.
pub(crate) fn gradients(
    job: &Job,
    grid: TensorGrid,
    machine: &Machine,
    efficiency: &Efficiency,
    bytes: f64,
) -> f64 {
    match grid {
        TensorGrid::Plane { .. } => {
            let spread = spread(grid, Axis::TensorDepth, job, machine);
            let (kind, axis) = (CollectiveKind::AllReduce, Axis::TensorDepth);
            collective_seconds(kind, bytes, axis, spread, machine, efficiency)
        }
        TensorGrid::Cube { .. } => 0.0,
    }
}
