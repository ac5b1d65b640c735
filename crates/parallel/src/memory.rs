//! Memory of the values and gradients of each unit, by stage.
//!
//! With N ranks on the shard axis and P parameters of w bytes (4 in f32, 2 in bf16 and f16), gradients of g bytes, a rank
//! holds, besides the optimizer's state (over N from ZeRO-1 on; for AdamW 8 bytes a parameter, 12 with masters, 2
//! instead of 8 with moments in 8 bits):
//!
//! | stage | "weights" | "gradients" | "gathered" |
//! |---|---|---|---|
//! | ddp, zero1 | w P | g P | – |
//! | zero2 | w P | g P / N | gradients of the root unit, of a separate tied table, and of one layer; with several micro-batches the largest unit's over N once more |
//! | zero3 | w P / N | g P / N | that, and values of the root unit, of the table and of two layers |
//!
//! Layers alternate in the gathered memory, so the model's views never change: layer i uses the values' buffer i mod 2.

use crate::config::Stage;
use crate::flat::FlatUnit;
use crate::plan::{Coord, Plan};
use crate::worker::Job;
use bessemer_arch::{ParamSpec, TensorShard};
use bessemer_collectives::Parts;
use bessemer_optim::OptimParam;
use bessemer_runtime::Param;
use bessemer_tensor::{Backend, BufferSpec, TensorError, View};
use bessemer_units::DType;
use std::ops::Range;

/// One unit's values or gradients, one row each.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stretch {
    /// The whole unit; not always valid where layers alternate.
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
    /// Indexed by unit.
    pub(crate) values: Vec<Stretch>,
    /// Indexed by unit; frozen ones have none.
    pub(crate) gradients: Vec<Option<Stretch>>,
    /// Indexed by unit: every shard rank's part.
    pub(crate) parts: Vec<Parts>,
    /// The term of this rank's part of a unit's gradients that a micro-batch adds to the sum of earlier ones.
    pub(crate) term: Option<View>,
    /// The parameters that the model reads.
    pub(crate) params: Vec<Param>,
}

/// One kind of tensor while it is placed.
struct Placing<'a> {
    backend: &'a mut dyn Backend,
    units: &'a [FlatUnit],
    parts: &'a [Parts],
    /// Indexed by unit: this rank among those over which it is sharded.
    ranks: &'a [usize],
    /// Type of the values or gradients of a group.
    dtype: &'a dyn Fn(usize) -> DType,
}

impl Placing<'_> {
    fn buffer(
        &mut self,
        class: &'static str,
        (group, name): (usize, &str),
        len: usize,
    ) -> Result<View, TensorError> {
        let dtype = (self.dtype)(group);
        Ok(self.backend.alloc(BufferSpec { class, name, dtype, len })?.vector())
    }

    /// A unit whole, this rank's part within it.
    fn kept(&mut self, class: &'static str, number: usize) -> Result<Stretch, TensorError> {
        let unit = &self.units[number];
        let whole = self.buffer(class, (unit.group, &unit.name), unit.len())?;
        let own = self.parts[number].range(self.ranks[number]);
        Ok(Stretch { whole, own: whole.columns(own.start, own.len()) })
    }

    /// Memory that the layers of one group share: `turns` buffers, fewer for fewer layers.
    fn shared(&mut self, class: &'static str, group: usize, turns: usize) -> Result<Vec<View>, TensorError> {
        let layers = || self.units.iter().filter(|unit| unit.layer.is_some() && unit.group == group);
        let (longest, count) = (layers().map(|unit| unit.len()).max().unwrap_or(0), layers().count());
        let of_group = if group > 0 { format!(" of group {group}") } else { String::new() };
        let name = |turn: usize| format!("{class} of layers{of_group}, {turn}");
        (0..turns.min(count)).map(|turn| self.buffer("gathered", (group, &name(turn)), longest)).collect()
    }

    /// A part kept, the whole unit elsewhere: a layer in memory that layers share, another unit in its own.
    fn cut(&mut self, class: &'static str, number: usize, shared: &[View]) -> Result<Stretch, TensorError> {
        let unit = &self.units[number];
        let whole = match unit.layer {
            Some(layer) => shared[layer % shared.len()].columns(0, unit.len()),
            None => {
                self.buffer("gathered", (unit.group, &format!("{class} of {}", unit.name)), unit.len())?
            }
        };
        let own = self.parts[number].range(self.ranks[number]).len();
        Ok(Stretch { whole, own: self.buffer(class, (unit.group, &unit.name), own)? })
    }

    /// Every unit that `takes` accepts, cut if `cuts`.
    fn all(
        &mut self,
        class: &'static str,
        (cuts, turns): (&dyn Fn(&FlatUnit) -> bool, usize),
        takes: &dyn Fn(&FlatUnit) -> bool,
    ) -> Result<Vec<Option<Stretch>>, TensorError> {
        let groups = self.units.iter().map(|unit| unit.group + 1).max().unwrap_or(0);
        let mut shared: Vec<Option<Vec<View>>> = vec![None; groups];
        let mut all = Vec::with_capacity(self.units.len());
        for (number, unit) in self.units.iter().enumerate() {
            if !takes(unit) {
                all.push(None);
                continue;
            }
            if !cuts(unit) {
                all.push(Some(self.kept(class, number)?));
                continue;
            }
            if shared[unit.group].is_none() {
                shared[unit.group] = Some(self.shared(class, unit.group, turns)?);
            }
            let places = shared[unit.group].as_deref().unwrap_or_default();
            all.push(Some(self.cut(class, number, places)?));
        }
        Ok(all)
    }
}

/// A matrix or vector parameter within its unit.
fn within(unit: View, range: &Range<usize>, spec: &ParamSpec) -> View {
    let (rows, cols) = spec.matrix();
    View { offset: unit.offset + range.start, rows, cols, stride: cols, ..unit }
}

impl ParamMemory {
    /// Allocates for the rank of a job at `coord`.
    pub(crate) fn alloc(
        backend: &mut dyn Backend,
        job: &Job<'_>,
        specs: Vec<ParamSpec>,
        units: &[FlatUnit],
        coord: Coord,
    ) -> Result<ParamMemory, TensorError> {
        let (stage, types, groups) = (job.plan.stage, job.types, job.plan.groups.list());
        let parts: Vec<Parts> = units.iter().map(FlatUnit::parts).collect();
        let ranks: Vec<usize> = units.iter().map(|unit| job.plan.shard_index(unit.group, coord)).collect();
        let of_values = |group: usize| groups[group].values.unwrap_or(types.weights.dtype());
        let of_gradients = |_: usize| types.gradients.dtype();
        let mut placing = Placing { backend, units, parts: &parts, ranks: &ranks, dtype: &of_values };
        let cuts = |unit: &FlatUnit| stage == Stage::Zero3 && unit.ranks > 1;
        let values = placing.all("weights", (&cuts, 2), &|_| true)?;
        let values: Vec<Stretch> = values.into_iter().flatten().collect();
        placing.dtype = &of_gradients;
        let trained = |unit: &FlatUnit| groups[unit.group].trainable;
        // Where passes leave terms of some gradients, they leave terms of all.
        let settles = job.plan.settles();
        let gradients = placing.all("gradients", (&|_| settles, 1), &trained)?;
        let adds = settles && job.program.micro_batches() > 1;
        let largest = gradients.iter().flatten().map(|g| g.own.len()).max().filter(|_| adds);
        let term = largest
            .map(|len| placing.buffer("gathered", (0, "gradients of a micro-batch"), len))
            .transpose()?;
        let mut places: Vec<Option<(View, Option<View>)>> = vec![None; specs.len()];
        for ((unit, value), grad) in units.iter().zip(&values).zip(&gradients) {
            for (index, range) in &unit.params {
                let view = |stretch: &Stretch| within(stretch.whole, range, &specs[*index]);
                places[*index] = Some((view(value), grad.as_ref().map(view)));
            }
        }
        let param = |(spec, place): (ParamSpec, Option<(View, Option<View>)>)| {
            let (value, grad) = place.expect("every parameter is in one unit");
            Param { spec, value, grad }
        };
        let params = specs.into_iter().zip(places).map(param).collect();
        Ok(ParamMemory { values, gradients, parts, term, params })
    }

    /// The parameters that the optimizer steps on the rank at `coord`: whole ones of groups that are not sharded, else their
    /// elements in this rank's parts, in the order of the parameters. With each its number in the list of parameters and the elements.
    pub(crate) fn optim_params(
        &self,
        part: &TensorShard,
        units: &[FlatUnit],
        (plan, coord): (&Plan, Coord),
    ) -> Vec<(usize, Range<usize>, OptimParam)> {
        let mut list = Vec::new();
        for (u, unit) in units.iter().enumerate() {
            let Some(gradients) = &self.gradients[u] else { continue };
            let (whole, rank) = (unit.ranks == 1, plan.shard_index(unit.group, coord));
            for (at, (index, range)) in unit.params.iter().enumerate() {
                let spec = &self.params[*index].spec;
                let model = part.model_of(spec.id);
                if whole {
                    let (value, grad) = (self.params[*index].value, within(gradients.own, range, spec));
                    list.push((*index, 0..range.len(), OptimParam::of(model, spec, value, grad)));
                    continue;
                }
                let here = unit.run(at, rank);
                if here.len == 0 {
                    continue;
                }
                let cut = |s: &Stretch| s.own.columns(here.local, here.len);
                let (value, grad) = (cut(&self.values[u]), cut(gradients));
                // A parameter that is whole here is a matrix; a stretch of one is not.
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
