//! K-FAC's work in the bubbles of a pipeline (Osawa et al. 2023, PipeFisher).
//!
//! ```text
//! first step: the plain program; the optimizer refreshes everything, so that there are inverses
//! then, over and over, the steps of the refresh interval:
//!   0        inputs and output gradients of every micro-batch are kept as its backward pass makes them
//!   0, 1 ..  curvature, sums, inversions run where the plan has put them; each inverse serves from then on
//! every step the layers' directions are made right before the optimizer's step
//! ```
//! What must never happen: a unit reads operands of another refresh (they are written in step 0 only, whose plan has no
//! unit of the refresh before); curvature of a step that is left out joins the running means (sums wait for the next step,
//! and do not come if the first one was left out: the next begins the refresh again).
//!
//! Memory besides K-FAC's own: inputs and output gradients of every layer and micro-batch of a step.

use crate::operands::KeptOperands;
use bessemer_optim::KfacWork;
use bessemer_parallel::{Chunk, Job, LinearMap, LinearOperands, ParallelError};
use bessemer_schedule::{Fill, Filler, Place};
use bessemer_tensor::{Backend, TensorError};

/// A factor of the curvature.
#[derive(Debug, Clone, Copy)]
struct FactorUnit {
    /// Position among the layers that are kept.
    layer: usize,
    outputs: bool,
    /// Whether this rank inverts the factor.
    inverts: bool,
    /// Whether one replica sends the inverse to the others.
    spreads: bool,
    /// Whether a micro-batch of the current refresh has been added.
    begun: bool,
}

/// One chunk's part of the work.
#[derive(Debug)]
struct ChunkRefresh {
    operands: KeptOperands,
    factors: Vec<FactorUnit>,
    /// Layers whose directions are made here.
    directions: Vec<bool>,
}

/// K-FAC's work, and where the refresh stands.
#[derive(Debug)]
pub(crate) struct Refresh {
    chunks: Vec<ChunkRefresh>,
    /// Steps of the interval.
    pub(crate) interval: usize,
    /// The next step of the interval, or the current one; none while there are no inverses.
    pub(crate) phase: Option<usize>,
}

impl ChunkRefresh {
    fn new(
        backend: &mut dyn Backend,
        chunk: &mut Chunk,
        job: &Job<'_>,
        here: Place,
    ) -> Result<ChunkRefresh, ParallelError> {
        let (mut factors, mut directions, mut params) = (Vec::new(), Vec::new(), Vec::new());
        for unit in chunk.optimizer().kfac_units(1, job.shape.tokens()) {
            match unit.work {
                KfacWork::Curvature { param, outputs, .. } => {
                    if params.last() != Some(&param) {
                        params.push(param);
                    }
                    let layer = params.len() - 1;
                    let (inverts, spreads, begun) = (false, false, false);
                    factors.push(FactorUnit { layer, outputs, inverts, spreads, begun });
                }
                KfacWork::Sync { .. } => {}
                KfacWork::Invert { factor } => factors[factor].inverts = true,
                KfacWork::Spread { factor } => factors[factor].spreads = true,
                KfacWork::Precondition { layer } => {
                    directions.resize(directions.len().max(layer + 1), false);
                    directions[layer] = true;
                }
            }
        }
        let (program, stage) = (job.program, chunk.stage());
        let visits = |micro| program.place(micro, stage) == here;
        let operands = KeptOperands::new(backend, job, chunk, &params, visits)?;
        Ok(ChunkRefresh { operands, factors, directions })
    }
}

impl Refresh {
    /// Allocates memory for the operands that bubbles read.
    pub(crate) fn new(
        backend: &mut dyn Backend,
        job: &Job<'_>,
        chunks: &mut [Chunk],
        rank: usize,
        interval: usize,
    ) -> Result<Refresh, ParallelError> {
        let all = chunks.iter_mut().enumerate();
        let chunks = all
            .map(|(number, chunk)| ChunkRefresh::new(backend, chunk, job, Place { rank, chunk: number }))
            .collect::<Result<_, _>>()?;
        Ok(Refresh { chunks, interval, phase: None })
    }

    /// Begins the first refresh: there are inverses of every factor.
    pub(crate) fn begin(&mut self, chunks: &mut [Chunk]) {
        if self.phase.is_none() {
            chunks.iter_mut().for_each(|c| c.optimizer().refresh_by_units());
            self.phase = Some(0);
        }
    }

    /// Curvature of a micro-batch, from the operands that were kept.
    fn curvature(
        &mut self,
        backend: &mut dyn Backend,
        chunk: &mut Chunk,
        unit: Fill,
    ) -> Result<(), ParallelError> {
        let ChunkRefresh { operands, factors, .. } = &mut self.chunks[unit.chunk];
        let (micro, factor) = (unit.unit / factors.len(), unit.unit % factors.len());
        let of = &mut factors[factor];
        let kept = operands.of(micro, of.layer).ok_or_else(|| unknown(unit))?;
        let x = if of.outputs { kept.dy } else { kept.x };
        let accumulate = std::mem::replace(&mut of.begun, true);
        Ok(chunk.optimizer().kfac_curvature(backend, factor, x, accumulate)?)
    }

    /// Does one unit of the work.
    pub(crate) fn run(
        &mut self,
        backend: &mut dyn Backend,
        chunks: &mut [Chunk],
        unit: Fill,
    ) -> Result<(), ParallelError> {
        let chunk = &mut chunks[unit.chunk];
        let ChunkRefresh { factors, directions, .. } = &mut self.chunks[unit.chunk];
        let mut works = [None; 2];
        match unit.filler {
            Filler::Curvature if !factors.is_empty() => return self.curvature(backend, chunk, unit),
            Filler::SyncCurvature => {
                factors.get_mut(unit.unit).ok_or_else(|| unknown(unit))?.begun = false;
                works[0] = Some(KfacWork::Sync { factor: unit.unit });
            }
            Filler::Invert => {
                let of = factors.get(unit.unit).ok_or_else(|| unknown(unit))?;
                works[0] = of.inverts.then_some(KfacWork::Invert { factor: unit.unit });
                works[1] = of.spreads.then_some(KfacWork::Spread { factor: unit.unit });
            }
            Filler::Precondition => {
                let mine = directions.get(unit.unit).copied().unwrap_or(false);
                works[0] = mine.then_some(KfacWork::Precondition { layer: unit.unit });
            }
            _ => return Err(unknown(unit)),
        }
        for work in works.into_iter().flatten() {
            chunk.with_peers(|optimizer, peers| optimizer.kfac_work(backend, peers, work))?;
        }
        Ok(())
    }

    /// Copies the operands of a linear map, for curvature that is taken later.
    pub(crate) fn keep(
        &self,
        backend: &mut dyn Backend,
        map: LinearMap,
        operands: LinearOperands,
    ) -> Result<(), TensorError> {
        self.chunks[map.chunk].operands.keep(backend, map, operands)
    }

    /// A refresh that a skipped step began is forgotten. The first update that is taken leaves inverses of every factor.
    pub(crate) fn end_step(&mut self, chunks: &mut [Chunk], skipped: bool) {
        match self.phase {
            Some(0) if skipped => self.discard(),
            Some(phase) => self.phase = Some((phase + 1) % self.interval),
            None if skipped => {}
            None => self.begin(chunks),
        }
    }

    /// Forgets the refresh that has begun.
    pub(crate) fn discard(&mut self) {
        self.phase = self.phase.map(|_| 0);
        self.chunks.iter_mut().flat_map(|c| &mut c.factors).for_each(|f| f.begun = false);
    }
}

fn unknown(unit: Fill) -> ParallelError {
    ParallelError::Layout(format!(
        "the program has filler work {unit:?}, whose state is missing on this rank"
    ))
}
