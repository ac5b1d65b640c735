//! Recording: the model's code for one device, as unit programs.
//!
//! | unit | lists |
//! |---|---|
//! | embedding | forward, score, backward |
//! | layer | forward, score, backward |
//! | head | score (loss alone), backward (loss and gradients are fused) |
//! | logits, decode | score |
//!
//! Shapes are those of the whole model. Nothing here knows of ranks: what a layout does to an operator stands in the
//! operator's own file, and [`bessemer_program::partition()`] applies it.

mod adapters;
mod attention;
mod decode;
mod embedding;
mod experts;
mod head;
mod mlp;
mod residual;
mod shared_expert;

pub use embedding::sinusoids;
pub use experts::{BALANCE_LOSS, ROUTER_Z_LOSS};
pub use head::{DISTILLATION_LOSS, Z_LOSS};

use bessemer_arch::{Experts, Model, NormChoice, Sharding};
use bessemer_mesh::{Axis, Dim, Layout, Placement};
use bessemer_program::{Class, Input, Phase, Random, Recorder, UnitProgram};
use bessemer_tensor::View;
use bessemer_tensor::op::{
    Dropout, DropoutMask, Linear, LinearBackwardInput, LinearBackwardWeight, Noise, Norm, NormBackward,
    NormKind,
};
use bessemer_units::DType;

/// Model, shape and types for which units are recorded.
#[derive(Debug, Clone, Copy)]
pub struct Recording<'a> {
    /// The whole model.
    pub model: &'a Model,
    /// How its parameters are sharded, in the order of [`Model::params`].
    pub shardings: &'a [Sharding],
    /// B, sequences.
    pub sequences: usize,
    /// T, tokens of a sequence.
    pub seq: usize,
    /// Element type of activations.
    pub storage: DType,
    /// Head and embedding are in one stage and share the token table's gradient: the head begins it.
    pub tied_here: bool,
    /// Backward lists are recorded.
    pub train: bool,
    /// The bits of a row do not depend on how many rows there are.
    pub rowwise: bool,
    /// A second model whose predictions the head's backward list compares with.
    pub teacher: Option<TeacherShape>,
}

/// A teacher as the head of a student reads it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TeacherShape {
    /// Width of the teacher.
    pub width: usize,
    /// Element type of its output projection.
    pub projection: DType,
    /// tau, by which the logits of both are divided.
    pub temperature: f32,
}

impl<'a> Recording<'a> {
    /// For batches of so many sequences of so many tokens; without backward lists.
    pub fn new(
        model: &'a Model,
        shardings: &'a [Sharding],
        [sequences, seq]: [usize; 2],
        storage: DType,
    ) -> Recording<'a> {
        Recording {
            model,
            shardings,
            sequences,
            seq,
            storage,
            tied_here: false,
            train: false,
            rowwise: false,
            teacher: None,
        }
    }

    /// Names of the unit begin with `prefix`.
    fn begin(&self, prefix: &str) -> Writer<'a> {
        Writer { recording: *self, recorder: Recorder::new(prefix), prefix: prefix.into(), experts: None }
    }

    fn begin_layer(&self, index: usize) -> Writer<'a> {
        Writer { experts: self.model.experts_of(index), ..self.begin(&format!("layers.{index}.")) }
    }
}

/// One unit while it is recorded.
struct Writer<'a> {
    recording: Recording<'a>,
    recorder: Recorder,
    /// Of the unit's parameters in the whole model: "layers.3.", or nothing.
    prefix: String,
    /// Experts of the layer; none in other units and where the feed-forward block is dense.
    experts: Option<Experts>,
}

/// A normalisation: its result and the statistics of its rows.
#[derive(Debug, Clone, Copy)]
struct Normed {
    kind: NormKind,
    x: View,
    weight: View,
    out: View,
    mean: Option<View>,
    rstd: View,
}

impl Writer<'_> {
    fn model(&self) -> &Model {
        self.recording.model
    }

    /// n, tokens of a micro-batch.
    fn n(&self) -> usize {
        self.recording.sequences * self.recording.seq
    }

    /// True while random numbers are drawn.
    fn drops(&self) -> bool {
        self.model().dropout > 0.0 && self.recorder.phase() != Phase::Score
    }

    /// An activation `[n, cols]` of the unit's own.
    fn activation(&mut self, name: &str, cols: Dim) -> View {
        let (n, dtype) = (self.n(), self.recording.storage);
        self.recorder.value(name, Class::Local, dtype, [Dim::plain(n), cols])
    }

    /// An activation `[n, D]` whose rows are those of the residual stream.
    fn residual_rows(&mut self, name: &str) -> View {
        let width = self.model().width;
        let view = self.activation(name, Dim::plain(width));
        self.recorder.residual(view)
    }

    /// The residual stream `[n, D]`.
    fn stream(&mut self, class: Class) -> View {
        let name = match class {
            Class::StreamIn => "x",
            Class::StreamGradient => "x.gradient",
            _ => "x.out",
        };
        let (n, width, dtype) = (self.n(), self.model().width, self.recording.storage);
        self.recorder.value(name, class, dtype, [Dim::plain(n), Dim::plain(width)])
    }

    /// What the host writes: `[1, n]`, a number for each token.
    fn input(&mut self, input: Input) -> View {
        let (name, dtype, cols) = match input {
            Input::Ids => ("ids", DType::U32, self.n()),
            Input::Targets => ("targets", DType::U32, self.n()),
            Input::Positions => ("positions", DType::U32, self.n()),
            Input::Documents => ("documents", DType::U32, self.n()),
            Input::LossFactors => ("loss_factors", DType::F32, self.n()),
            Input::LossWeight(_) => unreachable!("recorded with its loss"),
        };
        self.recorder.value(name, Class::Input(input), dtype, [Dim::plain(1), Dim::plain(cols)])
    }

    /// f32 `[rows, n]`: a number for each token, or one for each token and head.
    fn numbers(&mut self, name: &str, rows: Dim) -> View {
        let n = self.n();
        self.recorder.value(name, Class::Local, DType::F32, [rows, Dim::plain(n)])
    }

    /// Dims, as a matrix, and layout of a parameter of the unit, if the model has it.
    fn spec(&self, name: &str) -> Option<([Dim; 2], Layout)> {
        let full = format!("{}{name}", self.prefix);
        let sharding = self.recording.shardings.iter().find(|s| s.spec.name == full)?;
        let (dims, first) = match &sharding.form.dims[..] {
            [rows, cols] => ([rows.clone(), cols.clone()], 0),
            dims => ([Dim::plain(1), dims[0].clone()], 1),
        };
        let of_matrix = |layout: Layout, axis: Axis| match sharding.layout.at(axis) {
            Placement::Shard { dim } => layout.with(axis, Placement::Shard { dim: dim + first }),
            placement => layout.with(axis, placement),
        };
        Some((dims, Axis::ALL.into_iter().fold(Layout::replicated(), of_matrix)))
    }

    /// The values of a parameter, if the model has it.
    fn parameter(&mut self, name: &str) -> Option<View> {
        let (dims, layout) = self.spec(name)?;
        let view = self.recorder.parameter(name, DType::F32, dims);
        self.recorder.declare(view, layout);
        Some(view)
    }

    /// The gradient of a parameter, if the model has it.
    fn gradient(&mut self, name: &str) -> Option<View> {
        let (dims, layout) = self.spec(name)?;
        let view = self.recorder.gradient(name, DType::F32, dims);
        self.recorder.declare(view, layout);
        Some(view)
    }

    /// A parameter that every model has.
    fn weight(&mut self, name: &str) -> View {
        self.parameter(name).expect("the unit's code asks only for parameters that the model lists")
    }

    /// The gradient of a parameter that every model has.
    fn weight_gradient(&mut self, name: &str) -> View {
        self.gradient(name).expect("the unit's code asks only for parameters that the model lists")
    }

    /// `out = x W^T + b`.
    fn linear(&mut self, map: &str, x: View, out: View) -> Linear {
        let weight = self.weight(&format!("{map}.weight"));
        let bias = self.parameter(&format!("{map}.bias"));
        Linear { x, weight, bias, activation: None, residual: None, rowwise: self.recording.rowwise, out }
    }

    /// Gradients of a linear map's own parameters, and of those of its adapters. Returns the gradient of its product, from which that of
    /// its input follows.
    fn linear_gradients(&mut self, map: &str, x: View, dy: View) -> View {
        let dy = self.product_gradient(map, dy);
        let dweight = self.weight_gradient(&format!("{map}.weight"));
        let dbias = self.gradient(&format!("{map}.bias"));
        self.recorder.launch(LinearBackwardWeight { x, dy, dweight, dbias, accumulate: false });
        self.adapter_gradients(map, x, dy);
        dy
    }

    /// `dx`: the gradient of a linear map's input, after [`Writer::linear_gradients`].
    fn adapted_input_gradient(&mut self, map: &str, dy: View, dx: View) {
        let op = self.input_gradient(map, dy, dx);
        self.recorder.launch(op);
        self.add_adapter_inputs(map, dx);
    }

    /// The gradient of a linear map's input, without what reaches it through adapters.
    fn input_gradient(&mut self, map: &str, dy: View, dx: View) -> LinearBackwardInput {
        let weight = self.weight(&format!("{map}.weight"));
        LinearBackwardInput { dy, weight, activation: None, dx, accumulate: false }
    }

    /// The normalisation of that name of the rows of `x`, head by head if `heads` has several, if the model has it.
    fn norm(&mut self, name: &str, kind: NormKind, x: View, out: View, heads: Dim) -> Normed {
        let weight = self.weight(&format!("{name}.weight"));
        let bias = self.parameter(&format!("{name}.bias"));
        let mean = (kind == NormKind::Layer).then(|| self.numbers(&format!("{name}.mean"), heads.clone()));
        let rstd = self.numbers(&format!("{name}.rstd"), heads);
        let eps = self.model().norm_eps as f32;
        let op = Norm { kind, x, weight, bias, out, mean, rstd, eps };
        self.recorder.launch(op);
        Normed { kind, x, weight, out, mean, rstd }
    }

    /// `dx (+)=` the gradient that reaches the rows through the normalisation, and the gradients of its parameters.
    fn norm_gradients(&mut self, name: &str, normed: &Normed, dout: View, dx: View, add: bool) {
        let dweight = self.weight_gradient(&format!("{name}.weight"));
        let dbias = self.gradient(&format!("{name}.bias"));
        let Normed { kind, x, weight, mean, rstd, .. } = *normed;
        self.recorder.launch(NormBackward {
            kind,
            x,
            weight,
            mean,
            rstd,
            dout,
            dx,
            accumulate_dx: add,
            dweight,
            dbias,
            accumulate: false,
        });
    }

    /// What the blocks' normalisation is, if the model has one.
    fn norm_kind(&self) -> Option<NormKind> {
        match self.model().norm {
            NormChoice::LayerNorm => Some(NormKind::Layer),
            NormChoice::RmsNorm => Some(NormKind::Rms),
            NormChoice::None => None,
        }
    }

    /// `out = mask x`, with the mask of a place of the residual stream.
    fn dropout(&mut self, place: &str, x: View, out: View) {
        let global_cols = self.model().width;
        let mask = self.mask(place, self.recording.seq * global_cols);
        self.recorder.launch(Dropout { x, out, mask, noise: Noise::Bernoulli, global_cols });
    }

    /// The mask of a place with so many elements for each sequence.
    fn mask(&mut self, place: &str, per_sequence: usize) -> DropoutMask {
        let random = Random { place: format!("{}{place}", self.prefix), per_sequence: per_sequence as u64 };
        let counters = self.recorder.random(place, random);
        DropoutMask { p: self.model().dropout as f32, counters, first: 0 }
    }

    fn finish(self) -> UnitProgram {
        self.recorder.finish()
    }
}

impl Recording<'_> {
    /// Layer `index` of the model.
    pub fn layer(&self, index: usize) -> UnitProgram {
        let mut writer = self.begin_layer(index);
        for phase in [Phase::Forward, Phase::Score] {
            writer.recorder.begin(phase);
            writer.attention_forward();
            writer.mlp_forward();
        }
        if self.train {
            writer.recorder.begin(Phase::Backward);
            writer.mlp_backward();
            writer.attention_backward();
        }
        writer.finish()
    }
}
