//! A model's matrices with its adapters merged into them: `W + s B A` (Hu et al. 2021, LoRA, section 4.1), with magnitudes m its rows
//! scaled to these norms (Liu et al. 2024, DoRA).

use crate::error::SourceError;
use crate::source::{TensorSource, TensorSpec};
use bessemer_arch::{AdapterTarget, Model, ParamId};
use std::collections::HashMap;

/// Why a format without adapters refuses a model that has some.
pub(crate) const ADAPTERS: &str = "the model has adapters, which the format does not have: wanted a model without, as MergedAdapters gives it";

/// An adapter of some rows of a matrix.
#[derive(Clone, Copy)]
struct Adapter {
    /// Numbers of A and B in the source.
    matrices: [usize; 2],
    magnitude: Option<usize>,
    /// First row that it changes.
    first: usize,
    rank: usize,
    scale: f64,
}

/// A tensor without the adapters.
struct Tensor {
    /// Number in the source.
    number: usize,
    adapters: Vec<Adapter>,
}

/// The parameters of [`MergedAdapters::model`], from those of a model with adapters. Sums are formed in f64 and rounded once.
pub struct MergedAdapters<'a> {
    source: &'a mut dyn TensorSource,
    specs: Vec<TensorSpec>,
    tensors: Vec<Tensor>,
    model: Model,
}

impl std::fmt::Debug for MergedAdapters<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MergedAdapters").field("specs", &self.specs).finish_non_exhaustive()
    }
}

impl<'a> MergedAdapters<'a> {
    /// `source`: the parameters of `model` under their canonical names.
    ///
    /// # Errors
    /// A matrix of an adapter that the source lacks.
    pub fn new(model: &Model, source: &'a mut dyn TensorSource) -> Result<MergedAdapters<'a>, SourceError> {
        let numbers: HashMap<&str, usize> =
            source.specs().iter().enumerate().map(|(number, spec)| (spec.name.as_str(), number)).collect();
        let number = |id: ParamId| {
            let name = id.to_string();
            numbers
                .get(name.as_str())
                .copied()
                .ok_or_else(|| format!("{name}, a matrix of an adapter, is missing"))
        };
        let (mut specs, mut tensors) = (Vec::new(), Vec::new());
        for (at, spec) in source.specs().iter().enumerate() {
            let id = ParamId::parse(&spec.name);
            if id.is_some_and(|id| id.role().is_adapter()) {
                continue;
            }
            let mut adapters = Vec::new();
            for (of, layer) in model.adapters.iter().zip(id.and_then(|id| id.unit().layer())) {
                let adapted = |target: &&AdapterTarget| id.map(ParamId::role) == Some(target.adapts(model));
                for target in of.targets.iter().filter(adapted) {
                    let [a, b] = target.roles().map(|role| number(role.in_layer(layer)));
                    let magnitude = of.magnitude.then(|| number(target.magnitude().in_layer(layer)));
                    adapters.push(Adapter {
                        matrices: [a?, b?],
                        magnitude: magnitude.transpose()?,
                        first: target.outputs(model).start,
                        rank: of.rank_of(*target),
                        scale: of.scale_of(*target),
                    });
                }
            }
            specs.push(spec.clone());
            tensors.push(Tensor { number: at, adapters });
        }
        let model = Model { adapters: None, ..model.clone() };
        Ok(MergedAdapters { source, specs, tensors, model })
    }

    /// The model without adapters.
    pub fn model(&self) -> &Model {
        &self.model
    }

    fn matrix(&mut self, number: usize) -> Result<Vec<f32>, SourceError> {
        let len = self.source.specs()[number].checked_len().unwrap_or(0);
        let mut values = vec![0.0; len];
        self.source.fill(number, &mut values)?;
        Ok(values)
    }
}

impl TensorSource for MergedAdapters<'_> {
    fn specs(&self) -> &[TensorSpec] {
        &self.specs
    }

    fn fill_part(
        &mut self,
        index: usize,
        first: usize,
        values: &mut [f32],
    ) -> Option<Result<(), SourceError>> {
        let merges = self.tensors.iter().any(|tensor| !tensor.adapters.is_empty());
        if merges { None } else { self.source.fill_part(self.tensors[index].number, first, values) }
    }

    fn fill(&mut self, index: usize, values: &mut [f32]) -> Result<(), SourceError> {
        self.source.fill(self.tensors[index].number, values)?;
        let inputs = self.specs[index].shape.last().copied().unwrap_or(1).max(1);
        for at in 0..self.tensors[index].adapters.len() {
            let Adapter { matrices, magnitude, first, rank, scale } = self.tensors[index].adapters[at];
            let [a, b] = matrices;
            let (a, b) = (self.matrix(a)?, self.matrix(b)?);
            let magnitude = magnitude.map(|number| self.matrix(number)).transpose()?;
            let rows = values.chunks_mut(inputs).skip(first).zip(b.chunks(rank));
            let mut merged = vec![0.0; inputs];
            for (number, (row, of_b)) in rows.enumerate() {
                merged.fill(0.0);
                for (b, of_a) in of_b.iter().zip(a.chunks(inputs)) {
                    let factor = scale * f64::from(*b);
                    merged.iter_mut().zip(of_a).for_each(|(sum, a)| *sum += factor * f64::from(*a));
                }
                merged.iter_mut().zip(&*row).for_each(|(sum, w)| *sum += f64::from(*w));
                let norm = || merged.iter().map(|w| w * w).sum::<f64>().sqrt();
                let factor = match &magnitude {
                    None => 1.0,
                    Some(magnitude) => match norm() {
                        0.0 => 0.0,
                        norm => f64::from(magnitude[number]) / norm,
                    },
                };
                row.iter_mut().zip(&merged).for_each(|(w, merged)| *w = (factor * merged) as f32);
            }
        }
        Ok(())
    }
}
