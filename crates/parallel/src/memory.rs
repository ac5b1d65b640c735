//! Where the values and gradients of each unit are, by stage.
//!
//! With N ranks on the shard axis and P parameters of w bytes (4 in f32, 2 in bf16 and f16), gradients of g bytes, a rank
//! holds, besides the optimizer's state (over N from ZeRO-1 on; for AdamW 8 bytes a parameter, 12 with masters, 2
//! instead of 8 with moments in 8 bits):
//!
//! | stage | "weights" | "gradients" | "gathered" |
//! |---|---|---|---|
//! | ddp, zero1 | w P | g P | – |
//! | zero2 | w P | g P / N | gradients of the root unit, of a tied table that lies apart, and of one layer; with several micro-batches the largest unit's over N once more |
//! | zero3 | w P / N | g P / N | that, and values of the root unit, of the table and of two layers |
//!
//! Layers take turns in the gathered memory, so the model's views never change: layer i has the values' place i mod 2.

use crate::config::Stage;
use crate::flat::FlatUnit;
use crate::worker::Job;
use bessemer_arch::{ParamSpec, TensorShard};
use bessemer_collectives::Parts;
use bessemer_model::Param;
use bessemer_optim::OptimParam;
use bessemer_tensor::{Backend, BufferSpec, TensorError, View};
use bessemer_units::DType;
use std::ops::Range;

/// One unit's values or gradients, one row each.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stretch {
    /// All of them; not always valid where layers take turns.
    pub(crate) whole: View,
    /// This rank's part, which is kept. Within `whole` if that is kept.
    pub(crate) own: View,
}

impl Stretch {
    /// Whether this rank's part has memory of its own, so that the whole lasts only while a unit uses it.
    pub(crate) fn apart(&self) -> bool {
        self.own.buffer != self.whole.buffer
    }
}

/// The memory of all parameters on one rank.
#[derive(Debug)]
pub(crate) struct ParamMemory {
    /// By unit.
    pub(crate) values: Vec<Stretch>,
    /// By unit.
    pub(crate) gradients: Vec<Stretch>,
    /// By unit: every shard rank's part.
    pub(crate) parts: Vec<Parts>,
    /// The term of this rank's part of a unit's gradients that a micro-batch adds to the sum of earlier ones.
    pub(crate) term: Option<View>,
    /// As the model sees them.
    pub(crate) params: Vec<Param>,
}

/// One kind of tensor while it is placed.
struct Placing<'a> {
    backend: &'a mut dyn Backend,
    units: &'a [FlatUnit],
    parts: &'a [Parts],
    rank: usize,
    dtype: DType,
}

impl Placing<'_> {
    fn buffer(&mut self, class: &'static str, name: &str, len: usize) -> Result<View, TensorError> {
        Ok(self.backend.alloc(BufferSpec { class, name, dtype: self.dtype, len })?.vector())
    }

    /// Every unit whole, this rank's part within it.
    fn kept(&mut self, class: &'static str) -> Result<Vec<Stretch>, TensorError> {
        let (units, parts) = (self.units, self.parts);
        let place = |(unit, parts): (&FlatUnit, &Parts)| {
            let whole = self.buffer(class, &unit.name, unit.len())?;
            let own = parts.range(self.rank);
            Ok(Stretch { whole, own: whole.columns(own.start, own.len()) })
        };
        units.iter().zip(parts).map(place).collect()
    }

    /// Parts kept, whole units elsewhere: layers in `turns` places that they share, each other unit in one of its own.
    fn cut(&mut self, class: &'static str, turns: usize) -> Result<Vec<Stretch>, TensorError> {
        let (units, parts) = (self.units, self.parts);
        let longest = units.iter().filter(|u| u.layer.is_some()).map(|u| u.len()).max().unwrap_or(0);
        let layers = units.iter().filter(|u| u.layer.is_some()).count();
        let mut places = Vec::with_capacity(turns);
        for turn in 0..turns.min(layers) {
            places.push(self.buffer("gathered", &format!("{class} of layers, {turn}"), longest)?);
        }
        let place = |(unit, parts): (&FlatUnit, &Parts)| {
            let whole = match unit.layer {
                Some(layer) => places[layer % places.len()].columns(0, unit.len()),
                None => self.buffer("gathered", &format!("{class} of {}", unit.name), unit.len())?,
            };
            let own = self.buffer(class, &unit.name, parts.range(self.rank).len())?;
            Ok(Stretch { whole, own })
        };
        units.iter().zip(parts).map(place).collect()
    }
}

/// A matrix or vector parameter within its unit.
fn within(unit: View, range: &Range<usize>, spec: &ParamSpec) -> View {
    let (rows, cols) = spec.matrix();
    View { offset: unit.offset + range.start, rows, cols, stride: cols, ..unit }
}

impl ParamMemory {
    /// Allocates for shard rank `rank` of a job.
    pub(crate) fn alloc(
        backend: &mut dyn Backend,
        job: &Job<'_>,
        specs: Vec<ParamSpec>,
        units: &[FlatUnit],
        rank: usize,
    ) -> Result<ParamMemory, TensorError> {
        let (stage, types, ranks) = (job.plan.stage, job.types, job.plan.shard());
        let parts: Vec<Parts> = units.iter().map(|unit| unit.parts(ranks)).collect();
        let dtype = types.weights.dtype();
        let mut placing = Placing { backend, units, parts: &parts, rank, dtype };
        let values =
            if stage == Stage::Zero3 { placing.cut("weights", 2)? } else { placing.kept("weights")? };
        placing.dtype = types.gradients.dtype();
        let gradients =
            if stage >= Stage::Zero2 { placing.cut("gradients", 1)? } else { placing.kept("gradients")? };
        let adds = stage >= Stage::Zero2 && job.program.micro_batches() > 1;
        let largest = gradients.iter().map(|g| g.own.len()).max().filter(|_| adds);
        let term =
            largest.map(|len| placing.buffer("gathered", "gradients of a micro-batch", len)).transpose()?;
        let mut places: Vec<Option<(View, View)>> = vec![None; specs.len()];
        for ((unit, value), grad) in units.iter().zip(&values).zip(&gradients) {
            for (index, range) in &unit.params {
                let spec = &specs[*index];
                places[*index] = Some((within(value.whole, range, spec), within(grad.whole, range, spec)));
            }
        }
        let param = |(spec, place): (ParamSpec, Option<(View, View)>)| {
            let (value, grad) = place.expect("every parameter is in one unit");
            Param { spec, value, grad: Some(grad) }
        };
        let params = specs.into_iter().zip(places).map(param).collect();
        Ok(ParamMemory { values, gradients, parts, term, params })
    }

    /// What the optimizer steps on this rank: whole parameters if `whole`, else the stretches of them that lie in this
    /// rank's parts, in the order of the parameters. With each its number in the list of parameters and the elements.
    pub(crate) fn optim_params(
        &self,
        part: &TensorShard,
        units: &[FlatUnit],
        whole: bool,
        rank: usize,
    ) -> Vec<(usize, Range<usize>, OptimParam)> {
        let mut list = Vec::new();
        for (u, unit) in units.iter().enumerate() {
            let ranks = self.parts[u].count();
            for (at, (index, range)) in unit.params.iter().enumerate() {
                let spec = &self.params[*index].spec;
                let model = part.model_of(spec.id);
                if whole {
                    let (value, grad) = (self.params[*index].value, self.params[*index].grad);
                    let grad = grad.expect("made with gradients");
                    list.push((*index, 0..range.len(), OptimParam::of(model, spec, value, grad)));
                    continue;
                }
                let here = unit.run(at, ranks, rank);
                if here.len == 0 {
                    continue;
                }
                let cut = |s: &Stretch| s.own.columns(here.local, here.len);
                let (value, grad) = (cut(&self.values[u]), cut(&self.gradients[u]));
                // What is whole here is a matrix; a stretch of one is not.
                let param = if here.len == range.len() {
                    let (rows, cols) = spec.matrix();
                    let matrix = |v: View| View { rows, cols, stride: cols, ..v };
                    OptimParam::of(model, spec, matrix(value), matrix(grad))
                } else {
                    OptimParam {
                        lr_scale: spec.lr_scale,
                        class: spec.class(),
                        elements: spec.len(),
                        ..OptimParam::new(&spec.name, value, grad, spec.decays())
                    }
                };
                list.push((*index, here.wholes(), param));
            }
        }
        list.sort_by_key(|p| p.0);
        list
    }
}
