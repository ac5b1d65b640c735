//! The job's state as whole tensors: what checkpoints and initialisation see, whatever the layout.
//!
//! Names, shapes and order are those of a job of one rank. Reading a tensor is a collective of all ranks (each of them
//! then has it whole); writing one is each rank's own affair.

use crate::error::ParallelError;
use crate::flat::common;
use crate::worker::Worker;
use bessemer_arch::{Model, ParamSpec, PortionParam};
use bessemer_collectives::{Parts, Values};
use bessemer_model::{Param, initial_values};
use bessemer_optim::{OptimConfig, OptimParam, Optimizer, is_moment_name};
use bessemer_tensor::null::NullBackend;
use bessemer_tensor::{Backend, BufferSpec, TensorError, View};
use bessemer_units::DType;
use std::ops::Range;

/// A whole tensor of the job's state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateTensor {
    /// A parameter's name, or the kind of an optimizer state, a dot and that.
    pub name: String,
    /// Whole shape.
    pub shape: Vec<usize>,
    /// Type on the device.
    pub dtype: DType,
    place: Place,
}

impl StateTensor {
    /// Elements.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// True if there is no element (never for a model that exists).
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Where this rank has its stretch.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Place {
    /// Parameter number.
    Param(usize),
    /// The gradient of this parameter.
    Gradient(usize),
    /// State of this parameter that has its shape, named so.
    Moment(usize, String),
    /// State of another shape, whole on the shard rank that owns its parameter, or on all.
    Whole {
        /// The state's name.
        name: String,
        /// Position on the shard axis.
        owner: Option<usize>,
    },
}

/// What of a parameter.
#[derive(Debug, Clone, Copy)]
enum Of<'a> {
    Value,
    Gradient,
    /// The optimizer's state of this name.
    State(&'a str),
}

/// Names and shapes of every state of a job of one rank, in its order: an optimizer for `params` where nothing is kept.
fn whole_states(
    model: &Model,
    params: &[Param],
    config: &OptimConfig,
) -> Result<Vec<(String, Vec<usize>)>, ParallelError> {
    let mut null = NullBackend::new();
    let whole = |(spec, here): (ParamSpec, &Param)| -> Result<OptimParam, TensorError> {
        let (rows, cols) = spec.matrix();
        let (dtype, len) = (here.value.dtype(), rows * cols);
        let spec_of = BufferSpec { class: "", name: &spec.name, dtype, len };
        let value = null.alloc(spec_of)?.matrix(rows, cols);
        let grad = null.alloc(BufferSpec { dtype: DType::F32, ..spec_of })?.matrix(rows, cols);
        Ok(OptimParam::of(model, &spec, value, grad))
    };
    let params = model.params().into_iter().zip(params).map(whole).collect::<Result<Vec<_>, _>>()?;
    let optimizer = Optimizer::new(&mut null, &params, config)?;
    let shape = |view: View| if view.rows == 1 { vec![view.cols] } else { vec![view.rows, view.cols] };
    Ok(optimizer.states().into_iter().map(|(name, view)| (name, shape(view))).collect())
}

fn no_state(name: &str, len: usize) -> ParallelError {
    ParallelError::Layout(format!("the optimizer has no state {name:?} of {len} values"))
}

impl Worker {
    /// Every tensor of the state, in one order for all ranks and layouts. `config` is the optimizer's.
    ///
    /// # Errors
    /// A configuration that the optimizer refuses.
    pub fn tensors(&self, config: &OptimConfig) -> Result<Vec<StateTensor>, ParallelError> {
        let mut list = self.params();
        for (name, own) in whole_states(&self.whole, &self.memory.params, config)? {
            let param = name.split_once('.').map_or(name.as_str(), |(_, param)| param);
            let number = self.portion.iter().position(|p| p.name() == param);
            let (shape, place) = match number.filter(|_| is_moment_name(&name)) {
                // A moment has its parameter's shape; a factor or a counter its own.
                Some(i) => (self.portion[i].sharding.spec.shape.clone(), Place::Moment(i, name.clone())),
                None => {
                    let owner = number.and_then(|i| self.owners.of(i));
                    (own, Place::Whole { name: name.clone(), owner })
                }
            };
            list.push(StateTensor { name, shape, dtype: DType::F32, place });
        }
        Ok(list)
    }

    /// The parameters, as whole tensors.
    pub fn params(&self) -> Vec<StateTensor> {
        self.each(Place::Param)
    }

    /// The gradients, as whole tensors under their parameters' names; after the last micro-batch of a step.
    pub fn gradients(&self) -> Vec<StateTensor> {
        self.each(Place::Gradient)
    }

    fn each(&self, place: fn(usize) -> Place) -> Vec<StateTensor> {
        let tensor = |(i, param): (usize, &PortionParam)| {
            let spec = &param.sharding.spec;
            let (name, shape) = (spec.name.clone(), spec.shape.clone());
            StateTensor { name, shape, dtype: DType::F32, place: place(i) }
        };
        self.portion.iter().enumerate().map(tensor).collect()
    }

    /// Puts a whole tensor into `values`, on every rank. All ranks call this for the same tensors in the same order.
    ///
    /// # Errors
    /// What the device or another rank answers.
    pub fn read(
        &mut self,
        backend: &mut dyn Backend,
        tensor: &StateTensor,
        values: &mut [f32],
    ) -> Result<(), ParallelError> {
        match &tensor.place {
            Place::Whole { name, owner } => {
                let mine = owner.is_none_or(|owner| owner == self.coord.shard);
                if mine {
                    backend.read_f32(self.state_view(name, values.len())?, values)?;
                }
                if let Some(owner) = owner {
                    self.exchange.shard().idle()?.broadcast(name, *owner, Values::F32(values))?;
                }
                Ok(())
            }
            Place::Param(i) => {
                let part = self.read_portion(backend, *i, &Of::Value)?;
                self.assemble(*i, &tensor.name, part, values)
            }
            Place::Gradient(i) => {
                let part = self.read_portion(backend, *i, &Of::Gradient)?;
                self.assemble(*i, &tensor.name, part, values)
            }
            Place::Moment(i, name) => {
                let part = self.read_portion(backend, *i, &Of::State(name))?;
                self.assemble(*i, name, part, values)
            }
        }
    }

    /// This rank's portion of a parameter, or of its state of that name, from the ranks of the shard axis.
    fn read_portion(
        &mut self,
        backend: &mut dyn Backend,
        param: usize,
        of: &Of<'_>,
    ) -> Result<Vec<f32>, ParallelError> {
        let mut values = vec![0.0; self.portion[param].len()];
        let kept = matches!(of, Of::Value) && self.plan.keeps_values();
        if kept {
            backend.read_f32(self.memory.params[param].value, &mut values)?;
            return Ok(values);
        }
        let place = self.place(param);
        let parts = self.stretches(place);
        if let Some(view) = self.own_view(place, of)? {
            backend.read_f32(view, &mut values[parts.range(self.coord.shard)])?;
        }
        if self.plan.shard() > 1 {
            let name = self.portion[param].name().to_owned();
            self.exchange.shard().idle()?.all_gather(&name, Values::F32(&mut values), &parts)?;
        }
        Ok(values)
    }

    /// (unit, elements of it) of a parameter.
    fn place(&self, param: usize) -> (usize, usize) {
        let find = |(u, unit): (usize, &crate::flat::FlatUnit)| {
            unit.params.iter().position(|p| p.0 == param).map(|at| (u, at))
        };
        self.units.iter().enumerate().find_map(find).expect("every parameter is in one unit")
    }

    /// How a parameter's elements lie over the shard axis.
    fn stretches(&self, (unit, at): (usize, usize)) -> Parts {
        let range = &self.units[unit].params[at].1;
        let parts = &self.memory.parts[unit];
        Parts::of((0..self.plan.shard()).map(|r| common(range, &parts.range(r)).len()))
    }

    /// This rank's stretch of a parameter's value or state, if it has one.
    fn own_view(&self, (unit, at): (usize, usize), of: &Of<'_>) -> Result<Option<View>, ParallelError> {
        let (param, range) = &self.units[unit].params[at];
        let own = self.memory.parts[unit].range(self.coord.shard);
        let here: Range<usize> = common(range, &own);
        if here.is_empty() {
            return Ok(None);
        }
        let cut = |stretch: View| Ok(Some(stretch.columns(here.start - own.start, here.len())));
        let name = match of {
            Of::Value => return cut(self.memory.values[unit].own),
            Of::Gradient => return cut(self.memory.gradients[unit].own),
            Of::State(name) => *name,
        };
        let stepped = self.stepped.iter().any(|s| s.param == *param && s.range.len() == here.len());
        match self.state_view(name, here.len()) {
            Ok(_) if !stepped => Err(no_state(name, here.len())),
            view => Ok(Some(view?)),
        }
    }

    /// The optimizer's state of this name and length on this rank.
    fn state_view(&self, name: &str, len: usize) -> Result<View, ParallelError> {
        let view = self.states.get(name).copied();
        view.filter(|v| v.len() == len).ok_or_else(|| no_state(name, len))
    }

    /// The whole tensor from the portions of the tensor axis.
    fn assemble(
        &mut self,
        param: usize,
        name: &str,
        part: Vec<f32>,
        values: &mut [f32],
    ) -> Result<(), ParallelError> {
        if self.plan.tensor() == 1 {
            values.copy_from_slice(&part);
            return Ok(());
        }
        let portions = self.portions_of(param)?;
        let parts = Parts::of(portions.iter().map(PortionParam::len));
        let mut all = vec![0.0; parts.len()];
        all[parts.range(self.coord.tensor)].copy_from_slice(&part);
        self.tensor.communicator().all_gather(name, Values::F32(&mut all), &parts)?;
        for (r, portion) in portions.iter().enumerate() {
            let part = &all[parts.range(r)];
            for run in portion.runs() {
                values[run.whole..run.whole + run.len].copy_from_slice(&part[run.part..run.part + run.len]);
            }
        }
        Ok(())
    }

    fn portions_of(&self, param: usize) -> Result<Vec<PortionParam>, ParallelError> {
        let portion = |index| {
            let portion = self.whole.portion(self.plan.tensor(), index);
            let mut params = portion.map_err(|e| ParallelError::Layout(e.to_string()))?.params();
            Ok(params.swap_remove(param))
        };
        (0..self.plan.tensor()).map(portion).collect()
    }

    /// Takes this rank's stretch of a whole tensor.
    ///
    /// # Errors
    /// What the device answers.
    pub fn write(
        &mut self,
        backend: &mut dyn Backend,
        tensor: &StateTensor,
        values: &[f32],
    ) -> Result<(), ParallelError> {
        let (param, of) = match &tensor.place {
            Place::Whole { owner: Some(owner), .. } if *owner != self.coord.shard => return Ok(()),
            Place::Whole { name, .. } => {
                return Ok(backend.write_f32(self.state_view(name, values.len())?, values)?);
            }
            Place::Param(i) => (*i, Of::Value),
            Place::Gradient(i) => (*i, Of::Gradient),
            Place::Moment(i, name) => (*i, Of::State(name)),
        };
        let mut part = vec![0.0; self.portion[param].len()];
        for run in self.portion[param].runs() {
            part[run.part..run.part + run.len].copy_from_slice(&values[run.whole..run.whole + run.len]);
        }
        self.write_portion(backend, param, &of, &part)
    }

    fn write_portion(
        &mut self,
        backend: &mut dyn Backend,
        param: usize,
        of: &Of<'_>,
        part: &[f32],
    ) -> Result<(), ParallelError> {
        if matches!(of, Of::Value) && self.plan.keeps_values() {
            return Ok(backend.write_f32(self.memory.params[param].value, part)?);
        }
        let place = self.place(param);
        let parts = self.stretches(place);
        if let Some(view) = self.own_view(place, of)? {
            backend.write_f32(view, &part[parts.range(self.coord.shard)])?;
        }
        Ok(())
    }

    /// Sets every parameter to its initial value under `seed`: the elements are those of the whole model, whatever the
    /// layout.
    ///
    /// # Errors
    /// What the device answers.
    pub fn init(&mut self, backend: &mut dyn Backend, seed: u64) -> Result<(), ParallelError> {
        for i in 0..self.portion.len() {
            let param = &self.portion[i];
            let mut part = vec![0.0; param.len()];
            for run in param.runs() {
                let values = &mut part[run.part..run.part + run.len];
                initial_values(run.init, seed, param.name(), run.whole, values);
            }
            self.write_portion(backend, i, &Of::Value, &part)?;
        }
        Ok(self.optimizer.adopt_values(backend)?)
    }

    /// Tells the optimizer that all tensors were written.
    ///
    /// # Errors
    /// What the device answers.
    pub fn adopt_state(&mut self, backend: &mut dyn Backend) -> Result<(), ParallelError> {
        Ok(self.optimizer.adopt_state(backend)?)
    }
}
