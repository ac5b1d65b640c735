//! Logits of a whole model's batch, a few rows at a time.

use crate::config::LOGIT_ROWS;
use crate::decoder::Decoder;
use crate::error::ModelError;
use crate::memory::Binding;
use crate::params::Param;
use crate::ranks::StageRanks;
use crate::step::TokenBatch;
use crate::units::{Plan, StageUnit};
use bessemer_arch::Unit;
use bessemer_model::Recording;
use bessemer_program::{Phase, StepValues, plan_memory, run};
use bessemer_tensor::{Backend, View};

impl Decoder {
    pub(crate) fn logits_binding<'a>(&'a self, unit: &'a StageUnit, external: &'a [View]) -> Binding<'a> {
        Binding {
            unit,
            at: 0,
            phase: Phase::Score,
            values: &self.values,
            gradients: &[],
            slot: None,
            stream: (external[0], external[0]),
            kept: None,
            pending: None,
            losses: None,
            auxiliary: &[],
            counts: None,
            loss_weights: None,
            counters: None,
            constant: None,
            external,
            scratch: &self.buffers.scratch,
            indices: None,
        }
    }

    /// Rows of logits that each of the programs for them makes.
    pub(crate) fn logit_rows(&self) -> impl Iterator<Item = usize> + use<> {
        logit_rows(self.shape.tokens())
    }

    /// Logits of every token of a batch, without dropout; `visit(n, logits)` is called for n = 0, 1, ... with row n
    /// (sequence n / T, position n % T). Targets are not looked at beyond the checks.
    pub fn logits(
        &mut self,
        backend: &mut dyn Backend,
        batch: &TokenBatch<'_>,
        visit: impl FnMut(usize, &[f32]),
    ) -> Result<(), ModelError> {
        let peers = self.peers.clone();
        self.logits_through(backend, peers.lock().ranks(), batch, visit)
    }

    /// Computes [`Decoder::logits`] with other ranks.
    pub fn logits_through(
        &mut self,
        backend: &mut dyn Backend,
        ranks: &mut dyn StageRanks,
        batch: &TokenBatch<'_>,
        mut visit: impl FnMut(usize, &[f32]),
    ) -> Result<(), ModelError> {
        self.expect_whole("a row of logits")?;
        self.check_batch(batch)?;
        if self.length_of_tokens(batch.ids.len())?.is_some() {
            return Err(ModelError::Shape {
                what: "batch for logits",
                wanted: format!("{} tokens, those of the longest length", self.shape.tokens()),
                found: batch.ids.len().to_string(),
            });
        }
        self.held.free(0);
        self.stage_forward(backend, ranks, 0, batch, None)?;
        let (Some(most), n) = (self.buffers.logits, self.shape.tokens()) else { return Ok(()) };
        let x = *self.buffers.slots[0].stream.last().unwrap_or(&most);
        let mut host = vec![0.0; most.len()];
        let mut table = Vec::new();
        ranks.unit_begins(backend, Unit::Head, Phase::Score)?;
        for first in (0..n).step_by(most.rows) {
            let rows = most.rows.min(n - first);
            let unit = &self.logits[usize::from(rows < most.rows)];
            let external = [x.rows(first, rows), most.rows(0, rows)];
            self.logits_binding(unit, &external).fill(&mut table);
            run(
                &unit.program,
                Phase::Score,
                (&table, &unit.parameters),
                &StepValues::default(),
                backend,
                &mut *ranks,
            )?;
            let host = &mut host[..rows * most.cols];
            backend.read_f32(external[1], host)?;
            host.chunks_exact(most.cols).enumerate().for_each(|(i, row)| visit(first + i, row));
        }
        Ok(ranks.unit_ends(backend, Unit::Head, Phase::Score)?)
    }
}

/// Rows of the pieces in which the logits of so many rows are made: all but the last, and the last if it is shorter.
fn logit_rows(n: usize) -> impl Iterator<Item = usize> {
    let most = n.min(LOGIT_ROWS);
    std::iter::once(most).chain((!n.is_multiple_of(most)).then_some(n % most))
}

/// Programs for the logits of a whole model.
pub(crate) fn logits_units(plan: &Plan<'_>, params: &[Param]) -> Result<Vec<StageUnit>, ModelError> {
    if !plan.stage.span.is_whole(plan.model) || plan.ranks.iter().any(|rank| rank.degree > 1) {
        return Ok(Vec::new());
    }
    let shardings = plan.model.shardings();
    let recording =
        Recording::new(plan.model, &shardings, [plan.shape.sequences, plan.shape.seq], plan.storage());
    let unit = |rows: usize| {
        let program = recording.logits(rows);
        let memory = plan_memory(&program, &[Phase::Score]);
        let find = |name: &String| params.iter().position(|p| p.spec.name == *name).unwrap_or(usize::MAX);
        let parameters = program.parameters.iter().map(find).collect();
        StageUnit { unit: Unit::Head, program, memory, distinct: true, parameters }
    };
    Ok(logit_rows(plan.shape.tokens()).map(unit).collect())
}
