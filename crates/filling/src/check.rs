//! Refusals of layouts and choices that work in bubbles cannot be combined with.

use bessemer_optim::OptimizerChoice;
use bessemer_parallel::{FillChoice, FillConfig, ParallelError, Plan};

/// Refuses `parallel.fill` where there are no bubbles, where the steps of stages read different weights, and where it has work of
/// another optimizer.
///
/// # Errors
/// The reason, with what would do.
pub fn check(plan: &Plan, fill: &FillConfig, optimizer: OptimizerChoice) -> Result<(), ParallelError> {
    let wrong = |text: String| Err(ParallelError::Layout(text));
    let asynchronous = plan.pipeline() > 1 && plan.pipe.asynchronous();
    let name = plan.pipe.name();
    if plan.pipeline() == 1 && !fill.is_none() {
        return wrong(format!(
            "parallel.fill = {fill} without a pipeline, so there are no bubbles: set parallel.pipeline above \
             1, or parallel.fill = \"none\""
        ));
    }
    if asynchronous && !fill.is_none() {
        return wrong(format!(
            "parallel.fill = {fill} with parallel.schedule = {name:?}, whose stages read weights of different steps: take a \
             schedule with a flush such as \"1f1b\", or parallel.fill = \"none\""
        ));
    }
    if fill.has(FillChoice::Kfac) && optimizer != OptimizerChoice::Kfac {
        return wrong(format!(
            "parallel.fill = {fill} with optim.optimizer = {:?}: wanted optim.optimizer = \"kfac\", or a fill without \"kfac\"",
            optimizer.name()
        ));
    }
    Ok(())
}
