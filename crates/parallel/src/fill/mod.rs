//! K-FAC's work in the bubbles of a pipeline (Osawa et al. 2023, PipeFisher): which unit when is planned before the first
//! step from floating-point operations alone, and every rank plans the same; so a run with the same recipe is the same run.
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

mod copies;
mod plan;

pub use copies::{PlannedCopies, plan_copies};
pub use plan::{plan_evaluations, plan_fill};

use crate::chunk::Chunk;
use crate::error::ParallelError;
use crate::peers::RankPeers;
use crate::prepare::{ExecOp, Prepared, prepare};
use crate::worker::{Job, Worker};
use bessemer_optim::KfacWork;
use bessemer_schedule::{Fill, Filler, Program};
use bessemer_tensor::op::{Copy, Op};
use bessemer_tensor::{Backend, BufferSpec, Stream, TensorError, View};

/// Operands of one layer and micro-batch.
#[derive(Debug, Clone, Copy)]
struct Kept {
    /// Inputs `[tokens, inputs]`.
    x: View,
    /// Gradients of the outputs `[tokens, outputs]`.
    dy: View,
}

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
pub(crate) struct ChunkFill {
    factors: Vec<FactorUnit>,
    /// Layers whose directions are made here.
    directions: Vec<bool>,
    /// By the optimizer's number of the parameter: position among the layers.
    layers: Vec<Option<usize>>,
    /// By micro-batch and layer.
    kept: Vec<Vec<Kept>>,
}

/// The programs with their fillers, and where the refresh stands.
#[derive(Debug)]
pub(crate) struct Refresh {
    cycle: Vec<Prepared>,
    /// The schedules of the cycle, from which the lists were prepared.
    pub(crate) programs: Vec<Program>,
    /// Which of them is next; none while there are no inverses.
    pub(crate) phase: Option<usize>,
}

impl ChunkFill {
    fn new(backend: &mut dyn Backend, chunk: &Chunk, job: &Job<'_>) -> Result<ChunkFill, ParallelError> {
        let micro_batches = job.program.micro_batches();
        let tokens = job.shape.tokens();
        let mut fill =
            ChunkFill { factors: Vec::new(), directions: Vec::new(), layers: Vec::new(), kept: Vec::new() };
        let mut params = Vec::new();
        for unit in chunk.optimizer.kfac_units(1, tokens) {
            match unit.work {
                KfacWork::Curvature { param, outputs, .. } => {
                    if params.last() != Some(&param) {
                        params.push(param);
                    }
                    let layer = params.len() - 1;
                    let (inverts, spreads, begun) = (false, false, false);
                    fill.factors.push(FactorUnit { layer, outputs, inverts, spreads, begun });
                }
                KfacWork::Sync { .. } => {}
                KfacWork::Invert { factor } => fill.factors[factor].inverts = true,
                KfacWork::Spread { factor } => fill.factors[factor].spreads = true,
                KfacWork::Precondition { layer } => {
                    fill.directions.resize(fill.directions.len().max(layer + 1), false);
                    fill.directions[layer] = true;
                }
            }
        }
        let numbers = &chunk.curvature.numbers;
        fill.layers = vec![None; numbers.iter().flatten().max().map_or(0, |n| n + 1)];
        let dtype = job.activations.storage.dtype();
        let class = "kept for curvature";
        for (layer, number) in params.iter().enumerate() {
            fill.layers[*number] = Some(layer);
        }
        for micro in 0..micro_batches {
            let mut kept = Vec::with_capacity(params.len());
            for number in &params {
                let param = numbers.iter().position(|n| n == &Some(*number));
                let Some(param) = param.map(|p| &chunk.memory.params[p]) else {
                    return Err(ParallelError::Layout(format!("parameter {number} of K-FAC is not here")));
                };
                let (outputs, inputs) = param.spec.matrix();
                let mut matrix = |what: &str, cols: usize| {
                    let name = format!("{what} {micro} {}", param.spec.name);
                    let spec = BufferSpec { class, name: &name, dtype, len: tokens * cols };
                    Ok::<View, TensorError>(backend.alloc(spec)?.matrix(tokens, cols))
                };
                kept.push(Kept { x: matrix("inputs", inputs)?, dy: matrix("gradients", outputs)? });
            }
            fill.kept.push(kept);
        }
        Ok(fill)
    }

    /// Keeps the operands of a layer.
    pub(crate) fn keep(
        &mut self,
        backend: &mut dyn Backend,
        micro: usize,
        number: usize,
        (x, dy): (View, View),
    ) -> Result<(), TensorError> {
        let Some(layer) = self.layers.get(number).copied().flatten() else { return Ok(()) };
        let kept = self.kept[micro][layer];
        for (src, dst) in [(x, kept.x), (dy, kept.dy)] {
            backend.launch(Stream(0), &Op::from(Copy { src, dst }))?;
        }
        Ok(())
    }
}

impl Chunk {
    /// Whether such a unit is done here.
    pub(crate) fn has_kfac(&self, filler: Filler) -> bool {
        self.fill.is_some() && !matches!(filler, Filler::Evaluate | Filler::Copy)
    }

    /// Does a unit of K-FAC's work.
    pub(crate) fn fill_kfac(&mut self, backend: &mut dyn Backend, unit: Fill) -> Result<(), ParallelError> {
        let nobody =
            || ParallelError::Layout(format!("the program has filler work {unit:?}, and nobody does it"));
        let Some(fill) = &mut self.fill else { return Err(nobody()) };
        let mut works = [None; 2];
        match unit.filler {
            Filler::Curvature if !fill.factors.is_empty() => {
                let (micro, factor) = (unit.unit / fill.factors.len(), unit.unit % fill.factors.len());
                let of = &mut fill.factors[factor];
                let kept = fill.kept.get(micro).ok_or_else(nobody)?[of.layer];
                let x = if of.outputs { kept.dy } else { kept.x };
                let accumulate = std::mem::replace(&mut of.begun, true);
                return Ok(self.optimizer.kfac_curvature(backend, factor, x, accumulate)?);
            }
            Filler::SyncCurvature => {
                fill.factors.get_mut(unit.unit).ok_or_else(nobody)?.begun = false;
                works[0] = Some(KfacWork::Sync { factor: unit.unit });
            }
            Filler::Invert => {
                let of = fill.factors.get(unit.unit).ok_or_else(nobody)?;
                works[0] = of.inverts.then_some(KfacWork::Invert { factor: unit.unit });
                works[1] = of.spreads.then_some(KfacWork::Spread { factor: unit.unit });
            }
            Filler::Precondition => {
                let mine = fill.directions.get(unit.unit).copied().unwrap_or(false);
                works[0] = mine.then_some(KfacWork::Precondition { layer: unit.unit });
            }
            _ => return Err(nobody()),
        }
        let mut peers = RankPeers {
            exchange: &mut self.exchange,
            tensor: &mut self.tensor,
            sharing: &mut self.sharing,
            pipeline: None,
            failed: None,
        };
        for work in works.into_iter().flatten() {
            let done = self.optimizer.kfac_work(backend, &mut peers, work);
            match (done, peers.failed.take()) {
                (Err(_), Some(failed)) => return Err(failed.into()),
                (done, _) => done?,
            }
        }
        Ok(())
    }
}

impl Worker {
    /// Allocates memory for operands and prepares the programs.
    pub(crate) fn begin_filling(
        &mut self,
        backend: &mut dyn Backend,
        job: &Job<'_>,
        programs: &[Program],
    ) -> Result<(), ParallelError> {
        for chunk in &mut self.chunks {
            let fill = ChunkFill::new(backend, chunk, job)?;
            chunk.fill = Some(fill);
        }
        let cycle = programs.iter().map(|p| prepare(p, self.coord.pipeline)).collect::<Result<_, _>>()?;
        self.refresh = Some(Refresh { cycle, programs: programs.to_vec(), phase: None });
        Ok(())
    }

    /// Steps of the refresh interval, where bubbles are filled.
    pub fn refresh_interval(&self) -> Option<usize> {
        self.refresh.as_ref().map(|f| f.cycle.len())
    }

    /// Whether a checkpoint holds all that the next step needs, because no refresh of the curvature is half done.
    pub fn at_rest(&self) -> bool {
        self.refresh.as_ref().is_none_or(|f| f.phase.is_none_or(|phase| phase == 0))
    }

    /// The instructions of the current step.
    pub(crate) fn ops(&self) -> &[ExecOp] {
        match &self.refresh {
            Some(Refresh { cycle, phase: Some(phase), .. }) => &cycle[*phase].ops,
            _ => &self.prepared.ops,
        }
    }

    /// Whether the current step copies the operands of linear maps for curvature.
    pub(crate) fn keeps_operands(&self) -> bool {
        matches!(&self.refresh, Some(Refresh { phase: Some(0), .. }))
    }

    /// Begins a step: the first step that finds inverses begins the first refresh.
    pub(crate) fn begin_step(&mut self) {
        let Some(refresh) = &mut self.refresh else { return };
        if refresh.phase.is_none() && self.chunks.iter().all(|c| c.optimizer.has_curvature()) {
            self.chunks.iter_mut().for_each(|c| c.optimizer.refresh_by_units());
            refresh.phase = Some(0);
        }
    }

    /// Whether this step continues a refresh that an earlier step began.
    pub(crate) fn amid_refresh(&self) -> bool {
        matches!(&self.refresh, Some(Refresh { phase: Some(1..), .. }))
    }

    /// The next step begins a refresh.
    pub(crate) fn forget_refresh(&mut self) {
        if let Some(Refresh { phase: Some(phase), .. }) = &mut self.refresh {
            *phase = 0;
        }
        let fills = self.chunks.iter_mut().filter_map(|c| c.fill.as_mut());
        fills.flat_map(|f| &mut f.factors).for_each(|f| f.begun = false);
    }

    /// Ends a step. If it was skipped, a refresh that it began is forgotten.
    pub(crate) fn end_step(&mut self, left_out: bool) {
        let Some(Refresh { cycle, phase: Some(phase), .. }) = &mut self.refresh else { return };
        match left_out && *phase == 0 {
            true => self.forget_refresh(),
            false => *phase = (*phase + 1) % cycle.len(),
        }
    }
}
