//! Communication inside an optimizer's step that needs whole matrices.
//!
//! F elements of curvature factors, `F_r` of them of matrices that shard rank r owns, N shard ranks, R copies, elements a
//! rank sends whenever the curvature is refreshed:
//!
//! | what | group | elements |
//! |---|---|---|
//! | sums of factors, to their owner | shard | `F - F_r` |
//! | and between copies | replicate | `2 F_r (R-1)/R` |
//! | inverses, each from the copy that made it | replicate | `F_r`, less those that the next copy made |
//!
//! A matrix of P elements that is cut over t tensor ranks is gathered once a step for Muon and K-FAC (P less the next rank's
//! part), gradient and value for Adafactor; K-FAC also gathers, of each micro-batch that it sees, what the cut side of each
//! linear map takes or gives.

use crate::columns::Columns;
use crate::control::ControlMessages;
use crate::error::ParallelError;
use crate::exchange::{Exchange, ExchangeError};
use crate::operands::Operands;
use crate::owner::Owners;
use crate::tensor::TensorGroup;
use crate::worker::Job;
use bessemer_arch::TensorShardParam;
use bessemer_collectives::{CollectiveError, Parts, Reduce};
use bessemer_mesh::{Axis, ElementRun};
use bessemer_optim::{OptimParam, OptimizerChoice, Peers};
use bessemer_tensor::{Backend, TensorError, View};
use std::ops::Range;

/// A parameter as its optimizer's ranks see it.
#[derive(Debug)]
struct Shared {
    name: String,
    /// Group of the parameter.
    group: usize,
    owner: Option<usize>,
    /// By tensor rank, where the parameter is cut: where its elements are in the whole.
    runs: Vec<Vec<ElementRun>>,
    /// By tensor rank: lengths of the parts.
    parts: Parts,
}

/// Layouts and buffers that are the same in all steps.
#[derive(Debug)]
pub(crate) struct OptimizerCommunication {
    /// By the number in the optimizer's list.
    params: Vec<Shared>,
    /// Parts of a reduce-scatter: the owner of a matrix gets all of it.
    lengths: Parts,
    control: ControlMessages,
    /// What travels, on the host, and a whole parameter.
    values: Vec<f32>,
    whole: Vec<f32>,
    /// Elements of both that are planned.
    planned: [usize; 2],
}

impl OptimizerCommunication {
    /// `params`: group, owner and, by tensor rank, the tensor shards of each of the optimizer's parameters; `factor`: elements of
    /// the largest factor of curvature, if there is any.
    pub(crate) fn new(
        params: Vec<(usize, Option<usize>, Vec<TensorShardParam>)>,
        factor: usize,
    ) -> OptimizerCommunication {
        let (mut all, mut largest) = (factor, 0);
        let shared = |(group, owner, tensor_shards): (usize, Option<usize>, Vec<TensorShardParam>)| {
            let name = tensor_shards.first().map_or(String::new(), |p| p.name().to_owned());
            let parts = Parts::of(tensor_shards.iter().map(TensorShardParam::len));
            let cut = tensor_shards.len() > 1;
            if cut {
                all = all.max(parts.len());
                largest = largest.max(tensor_shards[0].sharding.spec.len());
            }
            let runs =
                if cut { tensor_shards.iter().map(TensorShardParam::runs).collect() } else { Vec::new() };
            Shared { name, group, owner, runs, parts }
        };
        let params = params.into_iter().map(shared).collect();
        OptimizerCommunication {
            params,
            lengths: Parts::default(),
            control: ControlMessages::default(),
            values: Vec::new(),
            whole: Vec::new(),
            planned: [all, largest],
        }
    }

    /// Allocates the host memory that is planned.
    pub(crate) fn allocate(&mut self) {
        for (memory, planned) in [&mut self.values, &mut self.whole].into_iter().zip(self.planned) {
            memory.reserve_exact(planned.saturating_sub(memory.len()));
        }
    }

    /// Bytes on the host, allocated or planned.
    pub(crate) fn bytes(&self) -> u64 {
        let [values, whole] = self.planned;
        4 * (self.values.capacity().max(values) + self.whole.capacity().max(whole)) as u64
    }
}

/// Prepares the communication of an optimizer over `list`, in steps and in passes. `tensor_shard`: this rank's part of every parameter.
pub(crate) fn share(
    backend: &mut dyn Backend,
    job: &Job<'_>,
    (owners, group_of): (&Owners, &dyn Fn(usize) -> usize),
    list: &[(usize, Range<usize>, OptimParam)],
    tensor_shard: &[TensorShardParam],
) -> Result<(OptimizerCommunication, Operands), ParallelError> {
    let plan = job.plan;
    let ranks = plan.mesh.degree(Axis::Tensor);
    let tensor_shards =
        |param: usize| (0..ranks).map(|at| tensor_shard[param].along(Axis::Tensor, at)).collect::<Vec<_>>();
    let curved = job.optim.optimizer == OptimizerChoice::Kfac;
    let mut factor = 0;
    let mut numbers = vec![None; tensor_shard.len()];
    let mut params = Vec::with_capacity(list.len());
    for (number, (param, _, seen)) in list.iter().enumerate() {
        numbers[*param] = Some(number);
        let all = tensor_shards(*param);
        if curved && !seen.blocks.is_empty() && plan.data_ranks() > 1 {
            let shape = &all[0].sharding.spec.shape;
            // No block has more rows than its matrix.
            let side = shape.iter().copied().max().unwrap_or(0);
            factor = factor.max(side * side);
        }
        let together = if seen.whole.is_some() { all } else { all.into_iter().take(1).collect() };
        params.push((group_of(*param), owners.of(*param), together));
    }
    let columns = if curved && ranks > 1 {
        let all: Vec<_> = (0..numbers.len()).map(tensor_shards).collect();
        Some(Columns::new(backend, &all, job.shape.tokens(), job.activations.storage.dtype())?)
    } else {
        None
    };
    Ok((OptimizerCommunication::new(params, factor), Operands::new(numbers, columns)))
}

/// The peers of one step.
pub(crate) struct RankPeers<'a> {
    pub(crate) exchange: &'a mut Exchange,
    pub(crate) tensor: &'a mut TensorGroup,
    pub(crate) sharing: &'a mut OptimizerCommunication,
    /// The error of a collective, of which the optimizer only has the text.
    pub(crate) failed: Option<CollectiveError>,
}

impl RankPeers<'_> {
    fn note<T>(&mut self, result: Result<T, ExchangeError>) -> Result<T, TensorError> {
        result.map_err(|e| match e {
            ExchangeError::Tensor(e) => e,
            ExchangeError::Collective(e) => {
                let text = e.to_string().into();
                self.failed = Some(e);
                TensorError::Outside(text)
            }
        })
    }

    fn summed(&mut self, backend: &mut dyn Backend, param: usize, factor: View) -> Result<(), ExchangeError> {
        let OptimizerCommunication { params, lengths, values, .. } = &mut *self.sharing;
        let Shared { name, group, owner, .. } = &params[param];
        let queues = self.exchange.group(*group);
        let (ranks, me) = (queues.shard.size(), queues.shard.rank());
        let owner = owner.unwrap_or(me);
        let copies = queues.replicate.size();
        if ranks * copies == 1 {
            return Ok(());
        }
        values.resize(factor.len(), 0.0);
        backend.read_f32(factor, values)?;
        if ranks > 1 {
            let len = values.len();
            lengths.set((0..ranks).map(|r| if r == owner { len } else { 0 }));
            let mut shard = queues.shard.idle()?;
            shard.reduce_scatter(name, &mut *values, lengths, Reduce::Sum)?;
        }
        if owner != me {
            return Ok(());
        }
        if copies > 1 {
            queues.replicate.idle()?.all_reduce(name, &mut *values, Reduce::Sum)?;
        }
        Ok(backend.write_f32(factor, values)?)
    }

    fn spread(
        &mut self,
        backend: &mut dyn Backend,
        (param, from): (usize, usize),
        inverse: View,
    ) -> Result<(), ExchangeError> {
        let OptimizerCommunication { params, values, .. } = &mut *self.sharing;
        let replicate = &mut self.exchange.group(params[param].group).replicate;
        if replicate.size() == 1 {
            return Ok(());
        }
        let mine = replicate.rank() == from;
        values.resize(inverse.len(), 0.0);
        if mine {
            backend.read_f32(inverse, values)?;
        }
        replicate.idle()?.broadcast(&params[param].name, from, &mut *values)?;
        if mine { Ok(()) } else { Ok(backend.write_f32(inverse, values)?) }
    }

    fn gathered(
        &mut self,
        backend: &mut dyn Backend,
        param: usize,
        (part, to): (View, View),
    ) -> Result<(), ExchangeError> {
        let OptimizerCommunication { params, values, whole, .. } = &mut *self.sharing;
        let Shared { name, runs, parts, .. } = &params[param];
        values.resize(parts.len(), 0.0);
        let line = self.tensor.line();
        backend.read_f32(part, &mut values[parts.range(line.rank())])?;
        line.idle()?.all_gather(name, &mut *values, parts)?;
        whole.resize(to.len(), 0.0);
        for (rank, list) in runs.iter().enumerate() {
            let part = &values[parts.range(rank)];
            for run in list {
                whole[run.wholes()].copy_from_slice(&part[run.locals()]);
            }
        }
        Ok(backend.write_f32(to, whole)?)
    }
}

impl Peers for RankPeers<'_> {
    fn sum_curvature(
        &mut self,
        backend: &mut dyn Backend,
        param: usize,
        factor: View,
    ) -> Result<(), TensorError> {
        let result = self.summed(backend, param, factor);
        self.note(result)
    }

    fn spread_inverse(
        &mut self,
        backend: &mut dyn Backend,
        param: usize,
        from: usize,
        inverse: View,
    ) -> Result<(), TensorError> {
        let result = self.spread(backend, (param, from), inverse);
        self.note(result)
    }

    fn sum_over_owners(&mut self, value: f64) -> Result<f64, TensorError> {
        // K-FAC, whose terms these are, trains one group of parameters.
        let shard = &mut self.exchange.group(0).shard;
        if shard.size() == 1 {
            return Ok(value);
        }
        let control = &mut self.sharing.control;
        let mut sum = || control.sum(&mut *shard.idle()?, "size of the step", value);
        let result = sum().map_err(ExchangeError::from);
        self.note(result)
    }

    fn gather(
        &mut self,
        backend: &mut dyn Backend,
        param: usize,
        part: View,
        whole: View,
    ) -> Result<(), TensorError> {
        let result = self.gathered(backend, param, (part, whole));
        self.note(result)
    }

    fn keep(
        &mut self,
        backend: &mut dyn Backend,
        param: usize,
        whole: View,
        part: View,
    ) -> Result<(), TensorError> {
        let rank = self.tensor.line().rank();
        let OptimizerCommunication { params, values, whole: host, .. } = &mut *self.sharing;
        let Some(list) = params[param].runs.get(rank) else { return Ok(()) };
        host.resize(whole.len(), 0.0);
        backend.read_f32(whole, host)?;
        values.resize(part.len(), 0.0);
        for run in list {
            values[run.locals()].copy_from_slice(&host[run.wholes()]);
        }
        backend.write_f32(part, values)
    }
}
