//! Layouts of a recipe that run on this machine, for the constants of the cost model to be fitted to them.
//!
//! Which layouts run depends on what they are, never on how long they take: those near which every layout of the job lies
//! ([`choose_at_most`]). Their table is read by `--fit` like any other.

use crate::training::name;
use crate::{PlannerError, Training};
use bessemer_measure::machine::threads;
use bessemer_measure::{Bench, Job as BenchJob, LayoutCase, Setup, StepSize};
use bessemer_parallel::ContextMethod;
use bessemer_plan::{
    Calibration, Job, Layout, Machine, Measurement, PipelineSchedule, Question, Recompute, candidates,
    choose_at_most,
};
use bessemer_units::stats::upper_median;
use std::fmt::Write;
use std::time::Duration;

/// Layouts that stand for all of a job on a machine, without times.
///
/// # Errors
/// No layout that divides and fits.
pub fn calibration_layouts(
    training: &Training,
    machine: &Machine,
    runs: usize,
) -> Result<Vec<Measurement>, PlannerError> {
    let calibration = Calibration::none();
    let found = candidates(
        &Question {
            model: training.shape,
            seq: training.recipe.train.seq_len as usize,
            global_batch: training.sequences,
            devices: machine.node,
            machine,
            calibration: &calibration,
            bytes: training.bytes,
            grids: &[],
            splits: &[],
            samples: 0.0,
        },
        |layout: &Layout| has_columns(layout) && training.admits(layout),
    )
    .map_err(PlannerError::request)?;
    let all: Vec<Measurement> = (found.layouts.iter())
        .enumerate()
        .map(|(row, candidate)| Measurement {
            row: row + 1,
            job: candidate.job,
            machine: machine.clone(),
            seconds: candidate.time.total,
        })
        .collect();
    if all.is_empty() {
        return Err(PlannerError::request(format!(
            "no layout of {} ranks divides the {} sequences of a step (train.batch_tokens / train.seq_len) and fits; write a machine of \
             another number of ranks (bessemer doctor --machine FILE --ranks N)",
            machine.node, training.sequences
        )));
    }
    Ok(choose_at_most(&all, runs))
}

/// Whether a table has columns for a layout.
fn has_columns(layout: &Layout) -> bool {
    let context = layout.context == 1 || layout.context_method == ContextMethod::Ring;
    layout.schedule == PipelineSchedule::OneFOneB
        && layout.recomputed == 0
        && layout.shard == 0
        && context
        && layout.offload == 0
}

/// Seconds of the median of so many steps of a layout on ranks of this process, which wait for each other at most `timeout`.
///
/// # Errors
/// A layout that the recipe or the model refuses.
pub fn measured_seconds(
    training: &Training,
    machine: &Machine,
    layout: &Layout,
    steps: u64,
    timeout: Duration,
) -> Result<f64, PlannerError> {
    let recipe = training.in_layout(layout, machine.node);
    let (config, types) = (recipe.parallel.clone(), recipe.train.types());
    let job = BenchJob::of(recipe, training.model.clone())?;
    let bench = Bench {
        job: &job,
        types,
        ranks: machine.node,
        threads: threads(0),
        size: StepSize::Sequences(training.sequences),
        timeout,
        paced: None,
        router_skew: 0.0,
    };
    let case = LayoutCase { name: name(layout), config, slow: false, sequences: None, recompute: None };
    let mut times = Setup::new(&bench, &case)?.steps(1, steps, None)?;
    Ok(upper_median(&mut times))
}

/// Jobs with the measured seconds of their steps as a table of `--fit`.
pub fn calibration_table(steps: &[(&Job, f64)]) -> String {
    let mut text = String::from(
        "row,hidden,heads,kv_heads,ffn,gated,layers,vocab,seq,tp,cp,pp,virtual,dp,micro_batch,global_batch,zero,recompute,sequence,\
         overlap,attention,gradient_bytes,time_ms\n",
    );
    let answer = |yes: bool| if yes { "yes" } else { "no" };
    for (number, (job, seconds)) in steps.iter().enumerate() {
        let (model, layout) = (&job.model, &job.layout);
        let zero = layout.zero.number();
        let recompute = match layout.recompute {
            Recompute::None => "none",
            Recompute::Selective => "rows",
            Recompute::Attention => "selective",
            Recompute::AttentionOutput => "attention-output",
            Recompute::Full => "full",
        };
        let cells = [
            (number + 1).to_string(),
            model.width.to_string(),
            model.heads.to_string(),
            model.kv_heads.to_string(),
            model.ffn_width.to_string(),
            answer(model.gated).into(),
            model.layers.to_string(),
            model.vocab.to_string(),
            job.seq.to_string(),
            layout.tensor.to_string(),
            layout.context.to_string(),
            layout.pipeline.to_string(),
            layout.chunks.to_string(),
            layout.data.to_string(),
            layout.micro_batch.to_string(),
            job.global_batch.to_string(),
            zero.to_string(),
            recompute.into(),
            answer(layout.sequence).into(),
            answer(layout.overlap).into(),
            if job.fused_attention { "fused" } else { "stored" }.into(),
            layout.gradient_bytes.to_string(),
            format!("{:.6}", 1e3 * seconds),
        ];
        let _ = writeln!(text, "{}", cells.join(","));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use bessemer_plan::{GivenColumns, TableReader, Transformer, ZeroStage, read_table};

    /// Calibration as `--fit` reads it.
    #[test]
    fn the_table_of_calibration_is_read_again() {
        let machine = Machine::named("a100-80gb").expect("a machine");
        let model =
            Transformer { kv_heads: 2, gated: true, ffn_width: 96, ..Transformer::gpt(64, 4, 4, 512) };
        let layout = Layout {
            tensor: 2,
            pipeline: 2,
            data: 2,
            chunks: 2,
            micro_batch: 2,
            zero: ZeroStage::Zero1,
            recompute: Recompute::Attention,
            sequence: true,
            overlap: true,
            gradient_bytes: 4.0,
            ..Layout::default()
        };
        let job = Job { model, seq: 32, global_batch: 16, fused_attention: true, layout };
        let text = calibration_table(&[(&job, 0.125), (&job, 0.25)]);
        let reader = TableReader { machine: Some(&machine), only: true, given: &GivenColumns::default() };
        let steps = read_table(&text, &reader).expect("a table").steps;
        assert_eq!(
            steps.iter().map(|step| (step.job, step.seconds)).collect::<Vec<_>>(),
            [(job, 0.125), (job, 0.25)]
        );
    }
}
