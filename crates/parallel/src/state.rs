//! The job's state as whole tensors: what checkpoints and initialisation see, whatever the layout.
//!
//! Names, shapes, types and order are those of a job of one rank whose parameters are f32: a parameter of fewer bits is seen
//! as its f32 master, so a checkpoint of one precision is one of every precision. Reading a tensor is a collective of all
//! ranks (each of them then has it whole); writing one is each rank's own affair.

mod pieces;

pub(crate) use pieces::OwnPiece;

use crate::chunk::Chunk;
use crate::error::ParallelError;
use crate::flat::common;
use crate::owner::Owners;
use crate::plan::{Coord, Plan};
use crate::worker::Worker;
use bessemer_arch::{Model, ParamId, ParamSpec, PortionParam, owner};
use bessemer_collectives::Parts;
use bessemer_model::initial_values;
use bessemer_optim::{OptimConfig, OptimParam, Optimizer, is_moment_name};
use bessemer_schedule::Place as PipelinePlace;
use bessemer_tensor::null::NullBackend;
use bessemer_tensor::{Backend, BufferSpec, TensorError, View};
use bessemer_units::DType;
use std::collections::HashMap;
use std::ops::Range;

/// A whole tensor of the job's state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateTensor {
    /// A parameter's name, or the kind of an optimizer state, a dot and that.
    pub name: String,
    /// Whole shape.
    pub shape: Vec<usize>,
    /// Type in checkpoints.
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

    /// The parameter that the tensor is, or is a gradient or a state of.
    fn param(&self) -> Option<ParamId> {
        match &self.place {
            Place::Param(id) | Place::Gradient(id) | Place::Moment(id, _) => Some(*id),
            Place::Whole { param, .. } => *param,
        }
    }
}

/// Where this rank has its stretch.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Place {
    /// The parameter itself.
    Param(ParamId),
    /// The gradient of this parameter.
    Gradient(ParamId),
    /// State of this parameter that has its shape, named so.
    Moment(ParamId, String),
    /// State of another shape, whole on the shard rank that owns its parameter, or on all.
    Whole {
        /// The state's name.
        name: String,
        /// Its parameter, if it is one's.
        param: Option<ParamId>,
        /// Position on the shard axis.
        owner: Option<usize>,
    },
}

/// What the names of the f32 values of parameters of fewer bits begin with, among the optimizer's states.
const MASTER: &str = "master.";

/// What of a parameter.
#[derive(Debug, Clone, Copy)]
enum Of<'a> {
    Value,
    Gradient,
    /// The optimizer's state of this name.
    State(&'a str),
}

/// A state of the optimizer of a job of one rank with f32 parameters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WholeState {
    pub(crate) name: String,
    /// Number of its parameter in the model, if it is one's.
    pub(crate) param: Option<usize>,
    /// Its parameter's shape if it has one value for each of its parameter's.
    pub(crate) shape: Vec<usize>,
    /// It has one value for each of its parameter's, and lies where they lie.
    pub(crate) moment: bool,
}

/// Every state of a job of one rank with f32 parameters, in its order: those of an optimizer on memory that is only counted.
pub(crate) fn whole_states(model: &Model, config: &OptimConfig) -> Result<Vec<WholeState>, ParallelError> {
    let mut null = NullBackend::new();
    let whole = |spec: &ParamSpec| -> Result<OptimParam, TensorError> {
        let (rows, cols) = spec.matrix();
        let mut matrix = || {
            let spec = BufferSpec { class: "", name: &spec.name, dtype: DType::F32, len: rows * cols };
            null.alloc(spec).map(|b| b.matrix(rows, cols))
        };
        let (value, grad) = (matrix()?, matrix()?);
        Ok(OptimParam::of(model, spec, value, grad))
    };
    let specs = model.params();
    let params = specs.iter().map(whole).collect::<Result<Vec<_>, _>>()?;
    let optimizer = Optimizer::new(&mut null, &params, config)?;
    let numbers: HashMap<&str, usize> = specs.iter().enumerate().map(|(i, p)| (p.name.as_str(), i)).collect();
    let state = |(name, view): (String, View)| {
        // The kind of the state, a dot, and the parameter.
        let param = name.split_once('.').and_then(|(_, param)| numbers.get(param).copied());
        let moment = is_moment_name(&name);
        let shape = match param.filter(|_| moment) {
            Some(number) => specs[number].shape.clone(),
            None if view.rows == 1 => vec![view.cols],
            None => vec![view.rows, view.cols],
        };
        WholeState { name, param, shape, moment: param.is_some() && moment }
    };
    Ok(optimizer.states().into_iter().map(state).collect())
}

fn not_here(name: &str) -> ParallelError {
    ParallelError::Layout(format!("the stage that should hold {name:?} does not"))
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
        let specs = self.whole.params();
        // An owner is the same whether a stage or the whole model is looked at.
        let owners = Owners::new(&self.whole, config, self.plan.shard());
        for WholeState { name, param, shape, moment } in whole_states(&self.whole, config)? {
            let (id, own_name) = (param.map(|number| specs[number].id), name.clone());
            let place = match id.filter(|_| moment) {
                Some(id) => Place::Moment(id, own_name),
                None => {
                    let owner = param.and_then(|number| owners.of(number));
                    Place::Whole { name: own_name, param: id, owner }
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
    pub fn gradients_of_params(&self) -> Vec<StateTensor> {
        self.each(Place::Gradient)
    }

    fn each(&self, place: fn(ParamId) -> Place) -> Vec<StateTensor> {
        let tensor = |spec: ParamSpec| StateTensor {
            name: spec.name,
            shape: spec.shape,
            dtype: DType::F32,
            place: place(spec.id),
        };
        self.whole.params().into_iter().map(tensor).collect()
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
        let holder = self.holder(tensor);
        let (plan, coord) = (&self.plan, self.coord);
        if holder.rank == coord.pipeline {
            let chunk = &mut self.chunks[holder.chunk];
            let of = match &tensor.place {
                Place::Whole { name, owner, .. } => {
                    if owner.is_none_or(|owner| owner == coord.shard) {
                        backend.read_f32(chunk.state_view(name, values.len())?, values)?;
                    }
                    if let Some(owner) = owner {
                        chunk.exchange.shard().idle()?.broadcast(name, *owner, &mut *values)?;
                    }
                    return self.tell(holder.rank, &tensor.name, values);
                }
                Place::Param(_) => Of::Value,
                Place::Gradient(_) => Of::Gradient,
                Place::Moment(_, name) => Of::State(name),
            };
            let param = chunk.param_of(tensor).ok_or_else(|| not_here(&tensor.name))?;
            let part = chunk.read_portion(backend, (plan, coord), param, &of)?;
            chunk.assemble((&self.whole, plan, coord), (param, &tensor.name), part, values)?;
        }
        self.tell(holder.rank, &tensor.name, values)
    }

    /// Gives a tensor to the ranks of the other stages.
    fn tell(&mut self, holder: usize, name: &str, values: &mut [f32]) -> Result<(), ParallelError> {
        if self.pipeline.size() > 1 {
            self.pipeline.broadcast(name, holder, values)?;
        }
        Ok(())
    }

    /// The chunk that stands for a tensor: the first holder of its parameter's stage. A state of no parameter is the first
    /// stage's.
    fn holder(&self, tensor: &StateTensor) -> PipelinePlace {
        let stage = tensor.param().and_then(|id| owner(&self.spans, id)).unwrap_or(0);
        self.program.routes[0][stage]
    }

    /// Takes this rank's stretches of a whole tensor.
    ///
    /// # Errors
    /// What the device answers.
    pub fn write(
        &mut self,
        backend: &mut dyn Backend,
        tensor: &StateTensor,
        values: &[f32],
    ) -> Result<(), ParallelError> {
        let place = (&self.plan, self.coord);
        for chunk in &self.chunks {
            let of = match &tensor.place {
                Place::Whole { owner: Some(owner), .. } if *owner != self.coord.shard => continue,
                Place::Whole { name, param, .. } => {
                    if param.is_none() || chunk.states.contains_key(name) {
                        backend.write_f32(chunk.state_view(name, values.len())?, values)?;
                    }
                    continue;
                }
                Place::Param(_) => Of::Value,
                Place::Gradient(_) => Of::Gradient,
                Place::Moment(_, name) => Of::State(name),
            };
            let Some(param) = chunk.param_of(tensor) else { continue };
            let mut part = vec![0.0; chunk.portion[param].len()];
            for run in chunk.portion[param].runs() {
                part[run.locals()].copy_from_slice(&values[run.wholes()]);
            }
            chunk.write_portion(backend, place, param, &of, &part)?;
        }
        Ok(())
    }

    /// Sets every parameter to its initial value under `seed`: the elements are those of the whole model, whatever the
    /// layout. A master has all bits of them.
    ///
    /// # Errors
    /// What the device answers.
    pub fn init(&mut self, backend: &mut dyn Backend, seed: u64) -> Result<(), ParallelError> {
        for chunk in &mut self.chunks {
            for (i, param) in chunk.portion.iter().enumerate() {
                let mut part = vec![0.0; param.len()];
                for (run, init) in param.initial_runs() {
                    initial_values(init, seed, param.name(), run.whole, &mut part[run.locals()]);
                }
                chunk.write_portion(backend, (&self.plan, self.coord), i, &Of::Value, &part)?;
            }
        }
        Ok(())
    }

    /// Tells the optimizer that all tensors were written.
    ///
    /// # Errors
    /// What the device answers.
    pub fn adopt_state(&mut self, backend: &mut dyn Backend) -> Result<(), ParallelError> {
        self.chunks.iter_mut().try_for_each(|c| Ok(c.optimizer.adopt_state(backend)?))
    }
}

impl Chunk {
    /// Number in this chunk of the parameter that a tensor belongs to.
    fn param_of(&self, tensor: &StateTensor) -> Option<usize> {
        self.param(tensor.param()?)
    }

    /// This rank's portion of a parameter, or of its state of that name, from the ranks of the shard axis.
    fn read_portion(
        &mut self,
        backend: &mut dyn Backend,
        (plan, coord): (&Plan, Coord),
        param: usize,
        of: &Of<'_>,
    ) -> Result<Vec<f32>, ParallelError> {
        if matches!(of, Of::Value) && self.types.has_masters() {
            let master = format!("{MASTER}{}", self.portion[param].name());
            return self.read_portion(backend, (plan, coord), param, &Of::State(&master));
        }
        let mut values = vec![0.0; self.portion[param].len()];
        let kept = matches!(of, Of::Value) && plan.keeps_values();
        if kept {
            backend.read_f32(self.memory.params[param].value, &mut values)?;
            return Ok(values);
        }
        let place = self.place(param);
        let parts = self.stretches(plan, place);
        if let Some(view) = self.own_view(coord, place, of)? {
            backend.read_f32(view, &mut values[parts.range(coord.shard)])?;
        }
        if plan.shard() > 1 {
            let name = self.portion[param].name().to_owned();
            self.exchange.shard().idle()?.all_gather(&name, &mut values, &parts)?;
        }
        Ok(values)
    }

    /// (unit, elements of it) of a parameter.
    fn place(&self, param: usize) -> (usize, usize) {
        let find = |(u, unit): (usize, &crate::flat::FlatUnit)| {
            unit.params.iter().position(|p| p.0 == param).map(|at| (u, at))
        };
        self.units.list.iter().enumerate().find_map(find).expect("every parameter is in one unit")
    }

    /// How a parameter's elements lie over the shard axis.
    fn stretches(&self, plan: &Plan, (unit, at): (usize, usize)) -> Parts {
        let range = &self.units.list[unit].params[at].1;
        let parts = &self.memory.parts[unit];
        Parts::of((0..plan.shard()).map(|r| common(range, &parts.range(r)).len()))
    }

    /// This rank's stretch of a parameter's value or state, if it has one.
    fn own_view(
        &self,
        coord: Coord,
        (unit, at): (usize, usize),
        of: &Of<'_>,
    ) -> Result<Option<View>, ParallelError> {
        let (param, range) = &self.units.list[unit].params[at];
        let own = self.memory.parts[unit].range(coord.shard);
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
        (model, plan, coord): (&Model, &Plan, Coord),
        (param, name): (usize, &str),
        part: Vec<f32>,
        values: &mut [f32],
    ) -> Result<(), ParallelError> {
        if plan.tensor() == 1 {
            values.copy_from_slice(&part);
            return Ok(());
        }
        let portions = self.portions_of(model, plan, param)?;
        let parts = Parts::of(portions.iter().map(PortionParam::len));
        let mut all = vec![0.0; parts.len()];
        all[parts.range(coord.tensor)].copy_from_slice(&part);
        self.tensor.idle()?.all_gather(name, &mut all, &parts)?;
        for (r, portion) in portions.iter().enumerate() {
            let part = &all[parts.range(r)];
            for run in portion.runs() {
                values[run.wholes()].copy_from_slice(&part[run.locals()]);
            }
        }
        Ok(())
    }

    fn portions_of(
        &self,
        model: &Model,
        plan: &Plan,
        param: usize,
    ) -> Result<Vec<PortionParam>, ParallelError> {
        let name = self.portion[param].name();
        let portion = |index| {
            let portion = model.portion(plan.tensor(), index);
            let params = portion.map_err(|e| ParallelError::Layout(e.to_string()))?.params();
            Ok(params.into_iter().find(|p| p.name() == name).expect("portions have the same parameters"))
        };
        (0..plan.tensor()).map(portion).collect()
    }

    fn write_portion(
        &self,
        backend: &mut dyn Backend,
        (plan, coord): (&Plan, Coord),
        param: usize,
        of: &Of<'_>,
        part: &[f32],
    ) -> Result<(), ParallelError> {
        if matches!(of, Of::Value) && self.types.has_masters() {
            let master = format!("{MASTER}{}", self.portion[param].name());
            self.write_portion(backend, (plan, coord), param, &Of::State(&master), part)?;
        }
        if matches!(of, Of::Value) && plan.keeps_values() {
            return Ok(backend.write_f32(self.memory.params[param].value, part)?);
        }
        let place = self.place(param);
        let parts = self.stretches(plan, place);
        if let Some(view) = self.own_view(coord, place, of)? {
            backend.write_f32(view, &part[parts.range(coord.shard)])?;
        }
        Ok(())
    }
}
