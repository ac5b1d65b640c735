//! The job's state as whole tensors: the view of checkpoints and initialisation, whatever the layout.
//!
//! Names, shapes, types and order are those of a job of one rank whose parameters are f32: a parameter of fewer bits appears
//! as its f32 master, and a moment in 8 bits as the values of its codes, so a checkpoint of one precision is one of every precision.
//! Reading a tensor is a collective of all ranks (each of them then has it whole); writing one is local to each rank.

mod ahead;
mod chunk;
mod pieces;
mod slices;

pub use ahead::batches;
pub use pieces::{HeldStretch, OwnPiece, ReadElements};
pub use slices::{FinishedCopy, OwnSlice, OwnSlices, PendingCopy, StateCopy};

use crate::chunk::Chunk;
use crate::error::ParallelError;
use crate::flat::{GroupShards, UnitPlace};
use crate::owner::Owners;
use crate::plan::{Coord, Plan};
use crate::worker::Worker;
use bessemer_arch::{Model, ParamId, ParamSpec, owner};
use bessemer_collectives::Parts;
use bessemer_mesh::ElementRun;
use bessemer_model::initial_values;
use bessemer_optim::{OptimConfig, OptimParam, Optimizer, StateView, is_moment_name};
use bessemer_schedule::Place as PipelinePlace;
use bessemer_tensor::null::NullBackend;
use bessemer_tensor::{Backend, BufferSpec, TensorError};
use bessemer_units::DType;
use std::collections::HashMap;

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

/// Receiver of the tensors of [`Worker::read_all`]: the device, the number in the list, the values.
pub type TakeTensor<'a> = dyn FnMut(&mut dyn Backend, usize, &[f32]) -> Result<(), ParallelError> + 'a;

/// Place of this rank's stretch.
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

/// Prefix of the names of the f32 values of parameters of fewer bits, among the optimizer's states.
const MASTER: &str = "master.";

/// Kind of a parameter's tensor.
#[derive(Debug, Clone, Copy)]
enum Of<'a> {
    Value,
    Gradient,
    /// The optimizer's state of this name.
    State(&'a str),
}

/// A state of the optimizer of a job of one rank with f32 parameters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WholeState {
    /// The kind of the state, a dot, and its parameter's name if it is one's.
    pub name: String,
    /// Number of its parameter in the model, if it is one's.
    pub param: Option<usize>,
    /// Its parameter's shape if it has one value for each of its parameter's.
    pub shape: Vec<usize>,
    /// True if the state has one value for each of its parameter's, stored in the same layout.
    pub moment: bool,
}

/// Every state of a job of one rank with f32 parameters, in its order: those of an optimizer on memory that is only counted.
///
/// # Errors
/// A configuration that the optimizer refuses.
pub fn whole_states(model: &Model, config: &OptimConfig) -> Result<Vec<WholeState>, ParallelError> {
    states_of(model, config, &|_| true)
}

/// [`whole_states`] of the parameters that are trained.
fn states_of(
    model: &Model,
    config: &OptimConfig,
    trains: &dyn Fn(ParamId) -> bool,
) -> Result<Vec<WholeState>, ParallelError> {
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
    let trained = specs.iter().filter(|spec| trains(spec.id));
    let params = trained.map(whole).collect::<Result<Vec<_>, _>>()?;
    let optimizer = Optimizer::new(&mut null, &params, config)?;
    let numbers: HashMap<&str, usize> = specs.iter().enumerate().map(|(i, p)| (p.name.as_str(), i)).collect();
    let state = |(name, view): (String, StateView)| {
        // The kind of the state, a dot, and the parameter.
        let param = name.split_once('.').and_then(|(_, param)| numbers.get(param).copied());
        let moment = is_moment_name(&name);
        let shape = match param.filter(|_| moment) {
            Some(number) => specs[number].shape.clone(),
            None if view.rows() == 1 => vec![view.cols()],
            None => vec![view.rows(), view.cols()],
        };
        WholeState { name, param, shape, moment: param.is_some() && moment }
    };
    Ok(optimizer.states().into_iter().map(state).collect())
}

/// Location of a tensor's elements on the ranks of a chunk.
struct Reading {
    /// Number in the chunk of the parameter whose tensor shard it is, if the tensor axis shards it.
    param: Option<usize>,
    /// Elements of this tensor rank's tensor shard.
    len: usize,
    /// Group of its parameter; the first for a state of no parameter.
    group: usize,
    /// Parts of the tensor shard on the shard ranks of the group; nothing if it is whole here.
    parts: Option<Parts>,
    /// The elements on this rank.
    view: Option<StateView>,
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
        let shards = self.plan.group_shards();
        let groups = GroupShards { groups: &self.plan.groups, shards: &shards };
        let owners = Owners::new(&self.whole, config, &groups);
        let trains = |id: ParamId| self.plan.groups.trains(id);
        for WholeState { name, param, shape, moment } in states_of(&self.whole, config, &trains)? {
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
        let mut all = self.each(Place::Gradient);
        all.retain(|tensor| tensor.param().is_some_and(|id| self.plan.groups.trains(id)));
        all
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

    /// Puts a whole tensor into `values`, on every rank: a batch of one ([`Worker::read_batch`]).
    ///
    /// # Errors
    /// An error of the device or of another rank.
    pub fn read(
        &mut self,
        backend: &mut dyn Backend,
        tensor: &StateTensor,
        values: &mut [f32],
    ) -> Result<(), ParallelError> {
        self.read_batch(backend, std::slice::from_ref(tensor), values)
    }

    /// Reads tensors in [`batches`], and passes each of them to `take`, by its number in the list. All ranks call this for the same
    /// tensors.
    ///
    /// # Errors
    /// Errors of the device, of another rank or of `take`.
    pub fn read_all(
        &mut self,
        backend: &mut dyn Backend,
        tensors: &[StateTensor],
        take: &mut TakeTensor<'_>,
    ) -> Result<(), ParallelError> {
        let mut values = Vec::new();
        for batch in batches(tensors) {
            values.resize(tensors[batch.clone()].iter().map(StateTensor::len).sum(), 0.0);
            self.read_batch(backend, &tensors[batch.clone()], &mut values)?;
            let mut rest = &values[..];
            for number in batch {
                let (tensor, others) = rest.split_at(tensors[number].len());
                take(backend, number, tensor)?;
                rest = others;
            }
        }
        Ok(())
    }

    /// Puts whole tensors, one after the other, into `values`, on every rank. All ranks call this for the same tensors in the
    /// same order. The tensors of one stage take one collective on each axis, however many they are.
    ///
    /// # Errors
    /// An error of the device or of another rank.
    pub fn read_batch(
        &mut self,
        backend: &mut dyn Backend,
        tensors: &[StateTensor],
        values: &mut [f32],
    ) -> Result<(), ParallelError> {
        let mut rest = values;
        let mut from = 0;
        while let Some(first) = tensors.get(from) {
            let holder = self.holder(first);
            let of_stage = tensors[from..].iter().take_while(|t| self.holder(t) == holder).count();
            let stage = &tensors[from..from + of_stage];
            let (here, others) = rest.split_at_mut(stage.iter().map(StateTensor::len).sum());
            if holder.rank == self.coord.pipeline {
                self.chunks[holder.chunk].read_tensors(backend, &self.plan, self.coord, stage, here)?;
            }
            self.tell(holder.rank, &first.name, here)?;
            (rest, from) = (others, from + of_stage);
        }
        Ok(())
    }

    /// Gives a tensor to the ranks of the other stages.
    fn tell(&mut self, holder: usize, name: &str, values: &mut [f32]) -> Result<(), ParallelError> {
        if self.pipeline.size() > 1 {
            self.pipeline.host()?.broadcast(name, holder, values)?;
        }
        Ok(())
    }

    /// The chunk that provides a tensor: the first holder of its parameter's stage. A state of no parameter is the first
    /// stage's.
    fn holder(&self, tensor: &StateTensor) -> PipelinePlace {
        let stage = tensor.param().and_then(|id| owner(&self.spans, id)).unwrap_or(0);
        self.program.routes[0][stage]
    }

    /// Takes this rank's stretches of a whole tensor.
    ///
    /// # Errors
    /// An error of the device.
    pub fn write(
        &mut self,
        backend: &mut dyn Backend,
        tensor: &StateTensor,
        values: &[f32],
    ) -> Result<(), ParallelError> {
        self.write_with(backend, tensor, &mut |runs, part| {
            let mut to = 0;
            for (first, len) in runs {
                part[to..to + len].copy_from_slice(&values[*first..first + len]);
                to += len;
            }
            Ok::<(), ParallelError>(())
        })
    }

    /// Sets every parameter to its initial value under `seed`: the elements are those of the whole model, whatever the
    /// layout. A master has all bits of them.
    ///
    /// # Errors
    /// An error of the device.
    pub fn init(&mut self, backend: &mut dyn Backend, seed: u64) -> Result<(), ParallelError> {
        for chunk in &mut self.chunks {
            for (i, param) in chunk.tensor_shard.iter().enumerate() {
                let mut part = vec![0.0; param.len()];
                for (run, init) in param.initial_runs() {
                    initial_values(init, seed, param.name(), run.whole, &mut part[run.locals()]);
                }
                chunk.write_tensor_shard(backend, (&self.plan, self.coord), i, &Of::Value, 0, &part)?;
            }
        }
        Ok(())
    }

    /// Ends a restore: the optimizer reads all tensors again. All ranks call this.
    ///
    /// # Errors
    /// An error of the device or of another rank.
    pub fn adopt_state(&mut self, backend: &mut dyn Backend) -> Result<(), ParallelError> {
        for chunk in &mut self.chunks {
            chunk.optimizer.adopt_state(backend)?;
        }
        self.resume_fillers()
    }
}
