//! The bytes that a step on a grid of tensor-parallel ranks sends, axis by axis: the closed forms of its layers, of embedding, head and
//! loss, of sums of gradients, of data parallelism and pipelines beside the grid, and of control messages.

use crate::traffic::{Traffic, counted, in_8_bits};
use bessemer_arch::{Model, NormChoice, PositionChoice, Span};
use bessemer_mesh::formulas::{
    CubeProduct, Exchange, GridElements, Passes, cube_ends, cube_gradients, cube_layer, pipeline_micro_batch,
    plane_ends, plane_gradients, plane_layer, ring,
};
use bessemer_mesh::{Axis, TensorGrid};
use bessemer_optim::OptimConfig;
use bessemer_parallel::{Plan, Stage};
use bessemer_parity::{Layout, Style, grids, in_int8};
use bessemer_runtime::{ActivationConfig, Purpose, Shape};
use bessemer_schedule::{Place, Program};
use bessemer_test_tier::{Sample, either};
use bessemer_units::{ParamStorage, Recompute, ReduceDType};

/// Elements that a rank sends along rows, columns and depth.
type ByAxis = [f64; 3];
const AXES: [Axis; 3] = [Axis::TensorRow, Axis::TensorColumn, Axis::TensorDepth];

fn plus(a: ByAxis, times: f64, b: ByAxis) -> ByAxis {
    std::array::from_fn(|i| a[i] + times * b[i])
}

/// A model on a grid.
struct OnGrid<'a> {
    model: &'a Model,
    grid: TensorGrid,
    /// Normalisations whose forward pass is made again.
    recomputed: bool,
}

impl OnGrid<'_> {
    /// Key/value heads, as often as ranks of the axis of heads hold them.
    fn kv_heads(&self) -> usize {
        self.model.kv_heads.max(self.grid.degree(self.grid.line()))
    }

    /// Outputs of the product that makes queries, keys and values.
    fn qkv_width(&self) -> usize {
        (self.model.heads + 2 * self.kv_heads()) * self.model.head_dim
    }

    /// Numbers of a normalisation that are summed for each row in one direction.
    fn sums(&self) -> usize {
        if self.model.norm == NormChoice::LayerNorm { 2 } else { 1 }
    }

    /// Parameters of a stage.
    fn stage(&self, span: &Span) -> GridElements {
        let (m, width, bias) = (self.model, self.model.width, usize::from(self.model.bias));
        let norm = width * if m.norm == NormChoice::LayerNorm { 1 + bias } else { 1 };
        let outputs = self.qkv_width() + m.mlp_in_width();
        let (layers, table) = (span.layers.len(), m.vocab_size * width);
        let positions = if m.positions == PositionChoice::Learned { m.context * width } else { 0 };
        let mut matrices = layers * width * (outputs + m.attention_width() + m.ffn_width);
        let mut vectors = layers * 2 * norm;
        if span.embedding {
            (matrices, vectors) = (matrices + table, vectors + positions);
        }
        if span.head {
            vectors += norm;
            matrices += if m.tied_embeddings && span.embedding { 0 } else { table };
        }
        GridElements {
            matrices: matrices as f64,
            first_biases: (layers * bias * outputs) as f64,
            second_biases: (layers * bias * 2 * width) as f64,
            vectors: vectors as f64,
            head_norms: if m.qk_norm { (layers * 2 * m.head_dim) as f64 } else { 0.0 },
        }
    }

    /// Ranks that hold the same part of a matrix, and of a vector.
    fn holders(&self) -> (f64, f64) {
        match self.grid {
            TensorGrid::Plane { rows, depth, .. } => (depth as f64, (rows * depth) as f64),
            TensorGrid::Cube { side } => (1.0, (side * side) as f64),
        }
    }

    /// Elements on all ranks of the grid together.
    fn on_all(&self, of: GridElements) -> f64 {
        let (matrix, vector) = self.holders();
        matrix * of.matrices
            + vector * (of.first_biases + of.second_biases + of.vectors)
            + self.grid.ranks() as f64 * of.head_norms
    }

    /// Elements that a rank sends for a micro-batch.
    fn micro_batch(&self, tokens: usize) -> ByAxis {
        let (m, sums) = (self.model, self.sums());
        let (vocabulary, width) = (m.vocab_size, m.width);
        let products = [
            (m.width, self.qkv_width()),
            (m.attention_width(), m.width),
            (m.width, m.mlp_in_width()),
            (m.ffn_width, m.width),
        ];
        let row_sums = 2 * sums * if self.recomputed { 3 } else { 2 };
        let (ends, layer) = match self.grid {
            TensorGrid::Plane { rows, columns, depth } => {
                let sides = [rows, columns, depth];
                let of = [
                    plane_ends(tokens, vocabulary, width, sides, 2 * sums),
                    plane_layer(tokens, &products, sides, row_sums),
                ];
                of.map(|v| [v.rows, v.columns, v.depth]).into()
            }
            TensorGrid::Cube { side } => {
                let product = |(i, (inputs, outputs))| CubeProduct { inputs, outputs, second: i % 2 == 1 };
                let products: Vec<CubeProduct> = products.into_iter().enumerate().map(product).collect();
                let of = [
                    cube_ends(tokens, vocabulary, width, side, 2 * sums),
                    cube_layer(tokens, &products, side),
                ];
                let [ends, mut layer] = of.map(|v| [v.rows, v.columns, v.parameters]);
                layer[1] += 2.0 * ring(tokens as f64 / (side * side) as f64 * row_sums as f64, side);
                (ends, layer)
            }
        };
        plus(ends, m.layers as f64, layer)
    }

    /// Elements that a rank sends to complete the gradients of a stage.
    fn gradients(&self, of: GridElements) -> ByAxis {
        match self.grid {
            TensorGrid::Plane { rows, columns, depth } => {
                let v = plane_gradients(of, [rows, columns, depth]);
                [v.rows, v.columns, v.depth]
            }
            TensorGrid::Cube { side } => {
                let v = cube_gradients(of, side);
                [v.rows, v.columns, v.parameters]
            }
        }
    }
}

/// Elements that the ranks of a ring send together.
fn whole_ring(elements: f64, ranks: usize) -> f64 {
    ranks as f64 * ring(elements, ranks)
}

/// Bytes that all ranks send in a step, by the closed forms. Everything is f32.
fn expected(of: &OnGrid<'_>, (plan, program): (&Plan, &Program), micro: usize, shape: Shape) -> Traffic {
    let (model, grid) = (of.model, of.grid);
    let spans = plan.spans(model, program.stages).expect("stages");
    let (replicas, shard, data) = (plan.replicate(), plan.shard(), plan.data_ranks());
    let mut sent: Vec<(String, f64)> = Vec::new();
    let mut send = |label: &str, elements: f64| sent.push((label.into(), 4.0 * elements));
    let (ranks, tokens) = (grid.ranks() as f64, shape.tokens());
    let sharers = (grid.degree(grid.line()) / model.kv_heads).max(1);
    let Passes { reduce_scatters, all_gathers } = plan.stage.passes(micro, Exchange::EachMicroBatch);
    let mut along = plus([0.0; 3], (data * micro) as f64 * ranks, of.micro_batch(tokens));
    for (number, span) in spans.iter().enumerate() {
        let (holders, elements) = (program.holders(number).len(), of.stage(span));
        let all = of.on_all(elements);
        let int8 = plan.reduce_dtype == ReduceDType::Int8;
        if shard > 1 {
            let passes = if int8 { 0.0 } else { reduce_scatters } + all_gathers;
            send("shard", (replicas * holders) as f64 * passes * whole_ring(all, shard));
        }
        if int8 {
            let of_stage = in_8_bits(model, (plan, program), span, (holders, reduce_scatters));
            of_stage.into_iter().for_each(|(label, bytes)| send(label, bytes / 4.0));
        } else {
            send("replicate", 2.0 * whole_ring(all, replicas * holders));
        }
        let times = (data * holders) as f64 * if plan.stage >= Stage::Zero2 { reduce_scatters } else { 1.0 };
        along = plus(along, times * ranks, of.gradients(elements));
        // Ranks that hold the same key/value heads.
        let ((matrix, vector), bias) = (of.holders(), usize::from(model.bias));
        let each = matrix * model.width as f64 + vector * bias as f64;
        let held = (span.layers.len() * 2 * of.kv_heads() * model.head_dim) as f64 * each;
        send("tensor copies", times * 2.0 * whole_ring(held / sharers as f64, sharers));
    }
    AXES.iter().zip(along).for_each(|(axis, elements)| send(axis.name(), elements));
    if model.tied_embeddings {
        let apart = program.routes.iter().filter(|r| r[0].rank != r[r.len() - 1].rank).count();
        let table = of.holders().0 * (model.vocab_size * model.width) as f64;
        send("tied table", (apart * replicas) as f64 * 2.0 * whole_ring(table, 2));
    }
    let crossings = |route: &Vec<Place>| route.windows(2).filter(|pair| pair[0].rank != pair[1].rank).count();
    for route in program.route_of[..micro].iter().map(|route| &program.routes[*route]) {
        let elements = pipeline_micro_batch(shape.sequences, shape.seq, model.width, crossings(route));
        send("pipeline", data as f64 * elements);
    }
    // Control messages of 64-bit numbers: two of the losses, one of the norm.
    let world = plan.ranks();
    let numbers =
        |count: usize, size: usize| 2.0 * (world / size) as f64 * whole_ring((count * size) as f64, size);
    send("world", numbers(2, world));
    send("shard", numbers(1, shard));
    send("pipeline", numbers(1, plan.pipeline()));
    let layer: Vec<Axis> = plan.layer_axes().collect();
    send(&bessemer_mesh::label(&layer), numbers(1, grid.ranks()));
    let mut traffic = std::collections::BTreeMap::<String, f64>::new();
    for (label, bytes) in sent.into_iter().filter(|(_, bytes)| *bytes > 0.0) {
        *traffic.entry(label).or_default() += bytes;
    }
    traffic.into_iter().map(|(label, bytes)| (label, bytes.round() as u64)).collect()
}

fn check(what: &str, model: &Model, layout: &Layout, recompute: Recompute) {
    const SEQ: usize = 16;
    let optimizer = OptimConfig::default().optimizer;
    let plan = Plan::new(&layout.parallel, layout.ranks, model, optimizer).expect("a layout that fits");
    let program = plan.program(layout.accumulation, 1, None).expect("a schedule that fits");
    let grid = plan.grid.expect("a grid");
    let shape = Shape { sequences: 2 * grid.sequence_parts(), seq: SEQ, purpose: Purpose::Train };
    let of = OnGrid { model, grid, recomputed: recompute != Recompute::None };
    let wanted = expected(&of, (&plan, &program), layout.accumulation, shape);
    let activations = ActivationConfig { recompute: recompute.into(), ..ActivationConfig::default() };
    let found = counted(model, layout, (&plan, &program), activations, shape);
    assert_eq!(found, wanted, "{what}");
}

#[test]
fn steps_on_grids_send_the_bytes_of_the_closed_forms() {
    let (mut checked, mut sample) = (0, Sample::one_in(3));
    let int8 = in_int8(16, 16).into_iter().filter(|layout| layout.parallel.tensor.grid().is_some());
    // The closed forms are those of values of 4 bytes.
    let in_f32 = grids(16, 1 << 10).into_iter().filter(|layout| layout.types == ParamStorage::default());
    for layout in in_f32.chain(int8) {
        for style in Style::ALL {
            let model = layout.model(style, 16).expect("a model that fits together");
            for qk_norm in [false, true] {
                let model = Model { qk_norm, ..model.clone() };
                for recompute in [Recompute::None, Recompute::Selective] {
                    if !sample.takes() {
                        continue;
                    }
                    let what = format!("{} {}, QK-norm {qk_norm}, {recompute}", style.name(), layout.name);
                    check(&what, &model, &layout, recompute);
                    checked += 1;
                }
            }
        }
    }
    assert!(checked > either(80, 250), "{checked}");
}
