//! `bessemer plan calibrate`: a few layouts of a recipe run on this machine, and the constants of the cost model are fitted to them.
//!
//! Which layouts run depends on what they are, never on how long they take: those near which every layout of the job lies
//! ([`choose_at_most`]). Their table is read by `--fit` like any other.

use super::machine;
use super::training::{Training, name};
use crate::cli::PlanCalibrateArgs;
use crate::console::{Console, print};
use crate::failure::Failure;
use crate::machine::threads;
use crate::recipes::load_recipe_for;
use bessemer_measure::{Bench, Job as BenchJob, LayoutCase, Setup, StepSize, median};
use bessemer_parallel::ContextMethod;
use bessemer_plan::{
    Calibration, DataParallel, Job, Layout, Machine, Measurement, PipelineSchedule, Question, Recompute,
    candidates, choose_at_most, errors,
};
use bessemer_recipe::RecipeUse;
use serde_json::json;
use std::fmt::Write;

pub(super) fn run(args: &PlanCalibrateArgs, as_json: bool, console: &mut Console) -> Result<(), Failure> {
    let machine = machine(&args.machine)?;
    let training = Training::new(&load_recipe_for(&args.recipe, &args.sets, RecipeUse::Layout)?)?;
    let chosen = chosen(&training, &machine, args.runs as usize)?;
    let mut measured: Vec<Measurement> = Vec::new();
    for (number, step) in chosen.iter().enumerate() {
        let layout = &step.job.layout;
        let prefix = format!("{}/{}: {}", number + 1, chosen.len(), name(layout));
        match seconds(&training, &machine, layout, args) {
            Ok(seconds) => {
                console.say(&format!("{prefix}: {seconds:.4} s"));
                measured.push(Measurement { seconds, ..step.clone() });
            }
            // A layout that the recipe or the model refuses.
            Err(refused) => console.say(&format!("{prefix}: left out, {}", refused.message)),
        }
    }
    if measured.len() < 2 {
        return Err(Failure::new(format!(
            "{} of {} layouts of {} ranks ran; wanted at least two to fit constants to: -v says why the others did not",
            measured.len(),
            chosen.len(),
            machine.node
        )));
    }
    let jobs: Vec<(&Job, f64)> = measured.iter().map(|step| (&step.job, step.seconds)).collect();
    bessemer_durable::write(&args.out, table(&jobs).as_bytes())
        .map_err(|cause| Failure::new(format!("--out {}: {cause}", args.out.display())))?;
    let calibration = Calibration::of(&measured);
    let left_out = Calibration::leave_one_out(&measured);
    let expected = errors(&left_out.iter().map(|error| 1.0 + error).collect::<Vec<f64>>());
    if as_json {
        let value = json!({ "calibration": calibration, "leave_one_out": left_out, "expected": expected });
        return Ok(print(&serde_json::to_string(&value)?)?);
    }
    let mut text = format!("{}: {} steps of {} ranks\n", args.out.display(), measured.len(), machine.node);
    let _ = writeln!(text, "{:>10} {:>10} {:>10}  layout", "measured", "fitted", "left out");
    for (step, error) in measured.iter().zip(&left_out) {
        let fitted = calibration.predict(&step.job, &step.machine).total;
        let layout = name(&step.job.layout);
        let _ = writeln!(
            text,
            "{:>8.4} s {:>8.4} s {:>8.4} s  {layout}",
            step.seconds,
            fitted,
            (1.0 + error) * step.seconds
        );
    }
    if let Some(expected) = expected {
        let _ = writeln!(
            text,
            "each step predicted from the others: mean error {:.1} %, median {:.1} %, p90 {:.1} %",
            100.0 * expected.mean,
            100.0 * expected.median,
            100.0 * expected.p90
        );
    }
    let band = calibration.band;
    let of = if band.steps > 0 { "these steps" } else { "published tables, because these steps are too few" };
    let _ = writeln!(
        text,
        "eight of ten measured times are expected between {:.2} and {:.2} times the predicted one, from {of}",
        band.low, band.high
    );
    Ok(print(&text)?)
}

/// Layouts that stand for all of a job on a machine, without times.
fn chosen(training: &Training, machine: &Machine, runs: usize) -> Result<Vec<Measurement>, Failure> {
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
    .map_err(Failure::usage)?;
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
        return Err(Failure::usage(format!(
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

/// The median step of a layout on ranks of this process.
fn seconds(
    training: &Training,
    machine: &Machine,
    layout: &Layout,
    args: &PlanCalibrateArgs,
) -> Result<f64, Failure> {
    let recipe = training.in_layout(layout, machine.node);
    let (config, types) = (recipe.parallel.clone(), recipe.train.types());
    let job = BenchJob::of(recipe, training.model.clone())?;
    let bench = Bench {
        job: &job,
        types,
        ranks: machine.node,
        threads: threads(0),
        size: StepSize::Sequences(training.sequences),
        timeout: args.waiting.timeout(),
        paced: None,
    };
    let case = LayoutCase { name: name(layout), config, slow: false, sequences: None, recompute: None };
    let mut times = Setup::new(&bench, &case)?.steps(1, args.steps, None)?;
    Ok(median(&mut times))
}

/// The steps as a table of `--fit`.
fn table(steps: &[(&Job, f64)]) -> String {
    let mut text = String::from(
        "row,hidden,heads,kv_heads,ffn,gated,layers,vocab,seq,tp,cp,pp,virtual,dp,micro_batch,global_batch,zero,recompute,sequence,\
         overlap,attention,gradient_bytes,time_ms\n",
    );
    let answer = |yes: bool| if yes { "yes" } else { "no" };
    for (number, (job, seconds)) in steps.iter().enumerate() {
        let (model, layout) = (&job.model, &job.layout);
        let zero = match layout.zero {
            DataParallel::Ddp => 0,
            DataParallel::Zero1 => 1,
            DataParallel::Zero2 => 2,
            DataParallel::Zero3 => 3,
        };
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
    use bessemer_plan::{Transformer, read_table};

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
            zero: DataParallel::Zero1,
            recompute: Recompute::Attention,
            sequence: true,
            overlap: true,
            gradient_bytes: 4.0,
            ..Layout::default()
        };
        let job = Job { model, seq: 32, global_batch: 16, fused_attention: true, layout };
        let text = table(&[(&job, 0.125), (&job, 0.25)]);
        let steps = read_table(&text, &machine, true).expect("a table").steps;
        assert_eq!(
            steps.iter().map(|step| (step.job, step.seconds)).collect::<Vec<_>>(),
            [(job, 0.125), (job, 0.25)]
        );
    }
}
