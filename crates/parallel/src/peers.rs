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
//! part), gradient and value for Adafactor; K-FAC also gathers, of each micro-batch that it processes, the inputs or outputs on the cut
//! side of each linear map.

use crate::columns::Columns;
use crate::control::ControlMessages;
use crate::error::ParallelError;
use crate::exchange::{Exchange, ExchangeError, fill, stream};
use crate::operands::Operands;
use crate::owner::Owners;
use crate::tensor::TensorGroup;
use crate::worker::Job;
use bessemer_arch::TensorShardParam;
use bessemer_collectives::{Collective, CollectiveError, HostStaging, Parts, Pattern, Reduce};
use bessemer_mesh::{Axis, ElementRun};
use bessemer_optim::{OptimParam, OptimizerChoice, Peers};
use bessemer_tensor::op::Copy;
use bessemer_tensor::{Backend, Stream, TensorError, View};
use bessemer_units::DType;
use std::ops::Range;

/// A parameter as its optimizer's ranks see it.
#[derive(Debug)]
struct Shared {
    name: String,
    /// Group of the parameter.
    group: usize,
    owner: Option<usize>,
    /// Indexed by tensor rank, where the parameter is cut: the location of its elements in the whole.
    blocks: Vec<Vec<Block>>,
    /// Indexed by tensor rank: lengths of the parts.
    parts: Parts,
}

/// Rows of a part, one after the other, that are equally spaced in the whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Block {
    /// First element in the whole and in the part.
    first: ElementRun,
    rows: usize,
    /// Elements of the whole from the start of a row to the start of the next.
    stride: usize,
}

impl Block {
    /// The blocks of a part.
    fn of(runs: &[ElementRun]) -> Vec<Block> {
        let mut blocks: Vec<Block> = Vec::new();
        for run in runs {
            if let Some(Block { first, rows, stride }) = blocks.last_mut()
                && (first.len, first.local + *rows * first.len) == (run.len, run.local)
            {
                let apart = run.whole.saturating_sub(first.whole);
                if *rows == 1 && apart >= run.len || *rows > 1 && apart == *rows * *stride {
                    (*stride, *rows) = (apart / *rows, *rows + 1);
                    continue;
                }
            }
            blocks.push(Block { first: *run, rows: 1, stride: run.len });
        }
        blocks
    }

    fn of_whole(&self, whole: View) -> View {
        let Block { first, rows, stride } = *self;
        View { offset: whole.offset + first.whole, rows, cols: first.len, stride, ..whole }
    }

    fn of_part(&self, part: View) -> View {
        let (offset, cols) = (part.offset + self.first.local, self.first.len);
        View { offset, rows: self.rows, cols, stride: cols, ..part }
    }
}

/// Layouts that are the same in all steps.
#[derive(Debug)]
pub(crate) struct OptimizerCommunication {
    /// Indexed by the number in the optimizer's list.
    params: Vec<Shared>,
    /// Parts of a reduce-scatter: the owner of a matrix gets all of it.
    lengths: Parts,
    control: ControlMessages,
    /// Outputs of a gather.
    views: Vec<View>,
}

impl OptimizerCommunication {
    /// `params`: group, owner and, by tensor rank, the tensor shards of each of the optimizer's parameters; `factor`: elements of
    /// the largest factor of curvature, if there is any.
    pub(crate) fn new(
        params: Vec<(usize, Option<usize>, Vec<TensorShardParam>)>,
        factor: usize,
        staging: &HostStaging,
    ) -> OptimizerCommunication {
        let mut most = factor;
        let shared = |(group, owner, tensor_shards): (usize, Option<usize>, Vec<TensorShardParam>)| {
            let name = tensor_shards.first().map_or(String::new(), |p| p.name().to_owned());
            let parts = Parts::of(tensor_shards.iter().map(TensorShardParam::len));
            let mut blocks = Vec::new();
            if tensor_shards.len() > 1 {
                most = most.max(parts.len());
                blocks.extend(tensor_shards.iter().map(|p| Block::of(&p.runs())));
            }
            Shared { name, group, owner, blocks, parts }
        };
        let params: Vec<Shared> = params.into_iter().map(shared).collect();
        if most > 0 {
            staging.plan(1, DType::F32, most);
        }
        let views = params.iter().map(|p| p.blocks.iter().map(Vec::len).sum()).max().unwrap_or(0);
        OptimizerCommunication {
            params,
            lengths: Parts::default(),
            control: ControlMessages::default(),
            views: Vec::with_capacity(views),
        }
    }
}

/// Prepares the communication of an optimizer over `list`, in steps and in passes. `tensor_shard`: this rank's part of every parameter.
pub(crate) fn share(
    backend: &mut dyn Backend,
    job: &Job<'_>,
    (owners, group_of): (&Owners, &dyn Fn(usize) -> usize),
    list: &[(usize, Range<usize>, OptimParam)],
    tensor_shard: &[TensorShardParam],
    staging: &HostStaging,
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
        let activations = job.activations.storage.dtype();
        Some(Columns::new(backend, &all, job.shape.tokens(), activations, staging)?)
    } else {
        None
    };
    Ok((OptimizerCommunication::new(params, factor, staging), Operands::new(numbers, columns)))
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
        let OptimizerCommunication { params, lengths, .. } = &mut *self.sharing;
        let Shared { name, group, owner, .. } = &params[param];
        let groups = self.exchange.group(*group);
        let (ranks, me) = (groups.shard.size(), groups.shard.rank());
        let owner = owner.unwrap_or(me);
        let (all, own) = ([factor], if owner == me { &[factor][..] } else { &[] });
        if ranks > 1 {
            lengths.set((0..ranks).map(|r| if r == owner { factor.len() } else { 0 }));
            let sum = Collective::new(name, Pattern::ReduceScatter(lengths, Reduce::Sum));
            groups.shard.run(backend, stream(Axis::Shard), &sum, &all, own)?;
        }
        if owner == me && groups.replicate.size() > 1 {
            let sum = Collective::new(name, Pattern::AllReduce(Reduce::Sum));
            groups.replicate.run(backend, stream(Axis::Replicate), &sum, &all, &all)?;
        }
        Ok(())
    }

    fn spread(
        &mut self,
        backend: &mut dyn Backend,
        (param, root): (usize, usize),
        inverse: View,
    ) -> Result<(), ExchangeError> {
        let Shared { name, group, .. } = &self.sharing.params[param];
        let replicate = &mut self.exchange.group(*group).replicate;
        if replicate.size() == 1 {
            return Ok(());
        }
        let root_here = replicate.rank() == root;
        let inverse = [inverse];
        let (from, to) = if root_here { (&inverse[..], &[][..]) } else { (&[][..], &inverse[..]) };
        let spread = Collective::new(name, Pattern::Broadcast { root });
        replicate.run(backend, stream(Axis::Replicate), &spread, from, to)
    }

    fn gathered(
        &mut self,
        backend: &mut dyn Backend,
        param: usize,
        (part, whole): (View, View),
    ) -> Result<(), ExchangeError> {
        let OptimizerCommunication { params, views, .. } = &mut *self.sharing;
        let Shared { name, blocks, parts, .. } = &params[param];
        let (line, stream) = self.tensor.line();
        let (mine, gather) = (line.rank(), Collective::new(name, Pattern::AllGather(parts)));
        fill(views, blocks.iter().flatten().map(|block| block.of_whole(whole)));
        if part.dtype() == whole.dtype() {
            return line.run(backend, stream, &gather, &[part], views);
        }
        // Parts travel in the type of the whole.
        for block in &blocks[mine] {
            let op = Copy { src: block.of_part(part), dst: block.of_whole(whole) };
            backend.launch(Stream::Compute, &op.into())?;
        }
        let before = blocks[..mine].iter().map(Vec::len).sum::<usize>();
        let from = &views[before..before + blocks[mine].len()];
        line.run(backend, stream, &gather, from, views)
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
        let mut sum = || control.sum(&mut *shard.host()?, "size of the step", value);
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
        let rank = self.tensor.line().0.rank();
        for block in self.sharing.params[param].blocks.get(rank).into_iter().flatten() {
            let op = Copy { src: block.of_whole(whole), dst: block.of_part(part) };
            backend.launch(Stream::Compute, &op.into())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_of_a_matrix_are_one_block() {
        let run = |whole, local, len| ElementRun { whole, local, len };
        // Columns 2 and 3 of a matrix of five, then a vector, then its neighbour.
        let runs = [run(2, 0, 2), run(7, 2, 2), run(12, 4, 2), run(30, 6, 3), run(33, 9, 1)];
        let block = |first, rows, stride| Block { first, rows, stride };
        let wanted = [block(runs[0], 3, 5), block(runs[3], 1, 3), block(runs[4], 1, 1)];
        assert_eq!(Block::of(&runs), wanted);
    }
}
