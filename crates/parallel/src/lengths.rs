//! Micro-batches of several lengths, and budgets of activations, in a job: unsupported combinations.

use crate::error::ParallelError;
use crate::fill::FillSupplier;
use crate::worker::Job;
use bessemer_optim::OptimizerChoice;

/// Refuses a job whose micro-batches have several lengths, or whose layers are recomputed under a budget, if that is not supported
/// with the rest of it. `chunks`: stages of a rank.
pub(crate) fn check(
    job: &Job<'_>,
    fill: Option<&dyn FillSupplier>,
    chunks: usize,
) -> Result<(), ParallelError> {
    let refused = |text: String| Err(ParallelError::Layout(text));
    if job.activations.recompute.budget().is_some() && chunks > 1 {
        return refused(format!(
            "train.recompute = \"input-aware\" plans the activations of one stage of the model, and schedule {:?} has {chunks} on a rank: \
             take a schedule with one stage a rank, such as \"1f1b\", or another train.recompute",
            job.program.name
        ));
    }
    if job.activations.lengths.is_empty() {
        return Ok(());
    }
    let plan = job.plan;
    let problem = if plan.pipe.asynchronous() && plan.pipeline() > 1 {
        Some(format!("schedule {:?}, whose steps share micro-batches in flight", job.program.name))
    } else if plan.context_ranks() > 1 {
        Some("context parallelism, whose ranks shard sequences of equal length".into())
    } else if plan.experts() > 1 {
        Some("parallel.experts, whose ranks exchange rows of equally long micro-batches".into())
    } else if job.optim.optimizer == OptimizerChoice::Kfac {
        Some("K-FAC, whose curvature would count padding as tokens".into())
    } else if fill.is_some() {
        Some("work in bubbles, which is planned for passes of equal length".into())
    } else {
        None
    };
    match problem {
        Some(problem) => refused(format!(
            "micro-batches of several lengths (train.lengths) do not work with {problem}: expected \
             train.lengths = \"packed\", or another setting there"
        )),
        None => Ok(()),
    }
}
