//! One rank: its part of the model and of the optimizer's state, and its peers.

use crate::check::check_layouts;
use crate::error::ParallelError;
use crate::exchange::{Exchange, ExchangeError};
use crate::flat::{FlatUnit, units};
use crate::groups::Groups;
use crate::memory::ParamMemory;
use crate::norm::{LocalSquares, counted};
use crate::owner::{Owners, with_others};
use crate::peers::{RankPeers, Sharing, share};
use crate::plan::{Coord, Plan};
use crate::seams::{Curvature, Micro, RankSeams, Watching};
use crate::tensor::TensorGroup;
use crate::words::Words;
use bessemer_arch::{Model, PortionParam};
use bessemer_collectives::{Communicator, Span};
use bessemer_model::{
    ActivationConfig, Decoder, LossSum, ModelError, Shape, StepContext, Stream, TokenBatch,
};
use bessemer_optim::{OptimConfig, Optimizer, Ranks, StepStats};
use bessemer_tensor::{Backend, View};
use std::collections::BTreeMap;
use std::ops::Range;

/// What every rank of a job is made for.
#[derive(Debug, Clone, Copy)]
pub struct Job<'a> {
    /// The whole model.
    pub model: &'a Model,
    /// A micro-batch of one rank; made to train.
    pub shape: Shape,
    /// How activations are kept.
    pub activations: ActivationConfig,
    /// The optimizer.
    pub optim: &'a OptimConfig,
    /// Weight of the z-loss.
    pub z_loss: f32,
    /// Who does what.
    pub plan: &'a Plan,
}

/// A stretch of a parameter that this rank's optimizer steps.
#[derive(Debug, Clone)]
pub(crate) struct Stepped {
    /// Number of the parameter.
    pub(crate) param: usize,
    /// Elements of this rank's portion of it.
    pub(crate) range: Range<usize>,
}

/// One rank of a job. All ranks make the same calls in the same order.
#[derive(Debug)]
pub struct Worker {
    pub(crate) plan: Plan,
    pub(crate) whole: Model,
    pub(crate) coord: Coord,
    pub(crate) world: Box<dyn Communicator>,
    pub(crate) tensor: TensorGroup,
    pub(crate) exchange: Exchange,
    pub(crate) units: Vec<FlatUnit>,
    pub(crate) owners: Owners,
    pub(crate) memory: ParamMemory,
    /// This rank's portion of every parameter.
    pub(crate) portion: Vec<PortionParam>,
    pub(crate) decoder: Decoder,
    pub(crate) optimizer: Optimizer,
    sharing: Sharing,
    curvature: Curvature,
    pub(crate) stepped: Vec<Stepped>,
    /// The optimizer's state tensors on this rank, by name.
    pub(crate) states: BTreeMap<String, View>,
    squares: LocalSquares,
    words: Words,
}

impl Worker {
    /// Makes this rank's buffers and groups, after its program was checked ([`check_layouts`]). `world` is the communicator
    /// of all ranks of the plan.
    ///
    /// # Errors
    /// A model that the plan cannot cut, a layout that does not fit together, or what the backend or another rank answers.
    pub fn new(
        backend: &mut dyn Backend,
        job: &Job<'_>,
        world: Box<dyn Communicator>,
    ) -> Result<Worker, ParallelError> {
        if job.plan.tensor() > 1 {
            check_layouts(job, job.plan.coord(world.rank()).tensor)?;
        }
        Worker::unchecked(backend, job, world)
    }

    /// As [`Worker::new`], for the check itself.
    pub(crate) fn unchecked(
        backend: &mut dyn Backend,
        job: &Job<'_>,
        world: Box<dyn Communicator>,
    ) -> Result<Worker, ParallelError> {
        let plan = job.plan;
        if world.size() != plan.ranks() {
            return Err(ParallelError::Layout(format!(
                "the plan is for {} ranks, {} were started",
                plan.ranks(),
                world.size()
            )));
        }
        let groups = Groups::new(world, plan)?;
        let coord = groups.coord;
        let layout = |e: bessemer_arch::PortionError| ParallelError::Layout(e.to_string());
        let portion = job.model.portion(plan.tensor(), coord.tensor).map_err(layout)?;
        let specs = portion.model.params();
        let owners = Owners::new(job.model, job.optim, plan.shard());
        let (units, parts) = owners.lay_out(units(&specs), plan.shard());
        let memory = ParamMemory::alloc(backend, specs, (&units, parts), plan.stage, coord.shard)?;
        let stream = if plan.sequence { Stream::Rows } else { Stream::Whole };
        let placed = Some(memory.params.clone());
        let mut decoder = Decoder::of_portion(backend, &portion, stream, job.shape, job.activations, placed)?;
        decoder.set_z_loss(job.z_loss);
        let list = memory.optim_params(&portion.model, &units, plan.shard() == 1, coord.shard);
        let list = with_others(list, job, &portion, &memory.params);
        let params: Vec<_> = list.iter().map(|p| p.2.clone()).collect();
        let ranks = Ranks { data: plan.data_ranks(), copies: plan.replicate(), copy: coord.replicate };
        let mut optimizer = Optimizer::of_rank(backend, &params, job.optim, ranks)?;
        optimizer.plan_capture(backend, job.shape.tokens(), job.activations.storage.dtype())?;
        let part = portion;
        let portion = part.params();
        let cut = |grad: View, range: &Range<usize>, r: Range<usize>| match r == *range {
            true => grad,
            false => View {
                offset: grad.offset + r.start - range.start,
                rows: 1,
                cols: r.len(),
                stride: r.len(),
                ..grad
            },
        };
        let gradients: Vec<View> = list
            .iter()
            .flat_map(|(index, range, param)| {
                let counted = counted(&portion[*index], range);
                counted.into_iter().map(move |r| cut(param.grad, range, r))
            })
            .collect();
        let squares = LocalSquares::new(backend, &gradients)?;
        let (sharing, curvature) = share(backend, job, &owners, &list)?;
        let stepped = list.into_iter().filter(|(_, _, param)| !param.elsewhere);
        let stepped = stepped.map(|(param, range, _)| Stepped { param, range }).collect();
        let Groups { world, shard, replicate, tensor, .. } = groups;
        let gradients: Vec<_> =
            portion.iter().cloned().zip(memory.params.iter().filter_map(|p| p.grad)).collect();
        let tensor = TensorGroup::new(tensor, &part, plan.sequence, &gradients)?;
        Ok(Worker {
            plan: plan.clone(),
            whole: job.model.clone(),
            coord,
            world,
            tensor,
            exchange: Exchange::new(plan.stage, shard, replicate, &units, &memory),
            units,
            owners,
            memory,
            portion,
            decoder,
            states: optimizer.states().into_iter().collect(),
            optimizer,
            sharing,
            curvature,
            stepped,
            squares,
            words: Words::default(),
        })
    }

    /// Who does what.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Where this rank stands.
    pub fn coord(&self) -> Coord {
        self.coord
    }

    /// This rank's number.
    pub fn rank(&self) -> usize {
        self.world.rank()
    }

    /// The whole model.
    pub fn model(&self) -> &Model {
        &self.whole
    }

    /// The communicator of all ranks.
    pub fn world(&mut self) -> &mut dyn Communicator {
        &mut *self.world
    }

    /// This rank's portion of the model. With stage "zero3" its parameters hold nothing lasting between passes.
    pub fn decoder(&self) -> &Decoder {
        &self.decoder
    }

    /// Elements of this rank's portion that each rank of the shard axis steps: equal but for a remainder, or what the
    /// owners of whole matrices have.
    pub fn shares(&self) -> Vec<usize> {
        let share = |r| self.memory.parts.iter().map(|parts| parts.range(r).len()).sum();
        (0..self.plan.shard()).map(share).collect()
    }

    /// Bytes of host memory in which values wait for collectives.
    pub fn staging_bytes(&self) -> u64 {
        self.exchange.staging_bytes() + self.sharing.bytes() + self.curvature.bytes()
    }

    /// Notes from now on when collectives on the data-parallel axes run, for a trace.
    pub fn keep_spans(&mut self) {
        self.exchange.keep_spans();
    }

    /// Moves what was noted since the last time to `to`.
    pub fn take_spans(&mut self, to: &mut Vec<Span>) {
        self.exchange.take_spans(to);
    }

    /// Loss and gradients of one micro-batch of this rank; gradients are complete, over all data-parallel ranks, after
    /// the last of the step. `ctx.accumulate` is decided here. The loss is this rank's.
    ///
    /// # Errors
    /// What the model or another rank answers.
    pub fn forward_backward(
        &mut self,
        backend: &mut dyn Backend,
        batch: &TokenBatch<'_>,
        ctx: &StepContext,
        micro: Micro,
    ) -> Result<LossSum, ParallelError> {
        let parts_only = self.exchange.reduces_every_time();
        let ctx = StepContext { accumulate: !micro.first && !parts_only, ..*ctx };
        let captures = self.optimizer.captures(ctx.step + 1);
        let mut seams = RankSeams {
            exchange: &mut self.exchange,
            tensor: &mut self.tensor,
            watching: captures
                .then_some(Watching { optimizer: &mut self.optimizer, how: &mut self.curvature }),
            micro: Some(micro),
            failed: None,
            layers: self.whole.layers,
        };
        let result = self.decoder.forward_backward_through(backend, &mut seams, batch, &ctx);
        let sum = told(result, seams.failed)?;
        if micro.last || parts_only {
            lift(self.exchange.finish_gradients(backend, !micro.first, micro.last))?;
        }
        Ok(sum)
    }

    /// Loss of one batch of this rank, without dropout; as [`Decoder::loss`].
    ///
    /// # Errors
    /// What the model or another rank answers.
    pub fn loss(
        &mut self,
        backend: &mut dyn Backend,
        batch: &TokenBatch<'_>,
        per_token: Option<&mut [f32]>,
    ) -> Result<LossSum, ParallelError> {
        let mut seams = RankSeams {
            exchange: &mut self.exchange,
            tensor: &mut self.tensor,
            watching: None,
            micro: None,
            failed: None,
            layers: self.whole.layers,
        };
        let result = self.decoder.loss_through(backend, &mut seams, batch, per_token);
        told(result, seams.failed)
    }

    /// Global norm of the gradient, the same bits on every rank.
    ///
    /// # Errors
    /// What the device or another rank answers.
    pub fn grad_norm(&mut self, backend: &mut dyn Backend) -> Result<f64, ParallelError> {
        let mut sum = self.squares.sum(backend)?;
        if self.plan.shard() > 1 {
            sum = self.words.sum(&mut *self.exchange.shard().idle()?, "norm of the gradient", sum)?;
        }
        sum = self.words.sum(self.tensor.communicator(), "norm of the gradient", sum)?;
        Ok(sum.sqrt())
    }

    /// The update of step `t`, counted from 1, with the norm that [`Worker::grad_norm`] told.
    ///
    /// # Errors
    /// What the optimizer or another rank answers.
    pub fn apply(
        &mut self,
        backend: &mut dyn Backend,
        t: u64,
        lr: f64,
        grad_norm: f64,
    ) -> Result<StepStats, ParallelError> {
        let mut peers = RankPeers {
            exchange: &mut self.exchange,
            tensor: &mut self.tensor,
            sharing: &mut self.sharing,
            failed: None,
        };
        let stats = self.optimizer.apply_with(backend, &mut peers, (t, lr), grad_norm);
        let stats = match (stats, peers.failed) {
            (Err(_), Some(failed)) => return Err(failed.into()),
            (stats, _) => stats?,
        };
        if !stats.skipped {
            lift(self.exchange.spread_values(backend))?;
        }
        Ok(stats)
    }

    /// Leaves an update out.
    pub fn skip(&mut self, grad_norm: f64) -> StepStats {
        self.optimizer.skip(grad_norm)
    }

    /// Forgets the curvature of the batch at hand.
    pub fn discard(&mut self) {
        self.optimizer.discard();
    }

    /// A sum of losses over the data-parallel ranks, added in their order; the same bits on every rank.
    ///
    /// # Errors
    /// What another rank answers.
    pub fn sum_over_data(&mut self, sum: LossSum) -> Result<LossSum, ParallelError> {
        if self.plan.ranks() == 1 {
            return Ok(sum);
        }
        let numbers = [sum.nats.to_bits(), sum.scored, sum.lse_squared.to_bits()];
        let all = self.words.gather(&mut *self.world, "losses", &numbers)?;
        let mut total = LossSum::default();
        for rank in all.chunks_exact(numbers.len()).step_by(self.plan.tensor()) {
            let (nats, lse_squared) = (f64::from_bits(rank[0]), f64::from_bits(rank[2]));
            total += LossSum { nats, scored: rank[1], lse_squared };
        }
        Ok(total)
    }

    /// What rank 0 says; every other rank's word is ignored.
    ///
    /// # Errors
    /// What another rank answers.
    pub fn agree(&mut self, name: &str, word: u64) -> Result<u64, ParallelError> {
        if self.plan.ranks() == 1 {
            return Ok(word);
        }
        Ok(self.words.gather(&mut *self.world, name, &[word])?[0])
    }
}

/// A pass's result; if a collective failed in it, that.
fn told<T>(
    result: Result<T, ModelError>,
    failed: Option<bessemer_collectives::CollectiveError>,
) -> Result<T, ParallelError> {
    match (result, failed) {
        (Ok(value), _) => Ok(value),
        (Err(_), Some(failed)) => Err(failed.into()),
        (Err(e), None) => Err(e.into()),
    }
}

pub(crate) fn lift<T>(result: Result<T, ExchangeError>) -> Result<T, ParallelError> {
    result.map_err(|e| match e {
        ExchangeError::Collective(e) => e.into(),
        ExchangeError::Tensor(e) => e.into(),
    })
}
