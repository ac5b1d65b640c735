//! What K-FAC, and work in bubbles, cannot go with.

use crate::config::{FillChoice, FillConfig};
use crate::error::ParallelError;
use crate::plan::Plan;
use crate::worker::Job;
use bessemer_optim::OptimizerChoice;
use bessemer_schedule::Place;

/// Refuses work in bubbles where there are none or their steps read different weights, and K-FAC where its step would be a barrier.
pub(crate) fn check_plan(
    plan: &Plan,
    fill: &FillConfig,
    optimizer: OptimizerChoice,
) -> Result<(), ParallelError> {
    let wrong = |text: String| Err(ParallelError::Layout(text));
    let asynchronous = plan.pipeline() > 1 && plan.pipe.asynchronous();
    let (name, kfac) = (plan.pipe.name(), optimizer == OptimizerChoice::Kfac);
    if plan.pipeline() == 1 && !fill.is_none() {
        return wrong(format!(
            "parallel.fill = {fill} with no pipeline, and so no bubbles: take parallel.pipeline above 1, or parallel.fill = \
             \"none\""
        ));
    }
    if asynchronous && !fill.is_none() {
        return wrong(format!(
            "parallel.fill = {fill} with parallel.schedule = {name:?}, whose stages read weights of different steps: take a \
             schedule with a flush such as \"1f1b\", or parallel.fill = \"none\""
        ));
    }
    if fill.has(FillChoice::Kfac) && !kfac {
        return wrong(format!(
            "parallel.fill = {fill} with optim.optimizer = {:?}: wanted optim.optimizer = \"kfac\", or a fill without \"kfac\"",
            optimizer.name()
        ));
    }
    if kfac && asynchronous {
        return wrong(format!(
            "optim.optimizer = \"kfac\" with parallel.schedule = {name:?}, which updates each stage as soon as it can: the size of \
             K-FAC's step is a sum over the layers of all stages, for which every update would wait; take a schedule with a \
             flush such as \"1f1b\", or another optimizer"
        ));
    }
    Ok(())
}

/// Refuses a program whose holders of a stage see unequally many micro-batches, where K-FAC takes the mean of their curvature.
pub(crate) fn check_program(job: &Job<'_>) -> Result<(), ParallelError> {
    let program = job.program;
    if job.optim.optimizer != OptimizerChoice::Kfac {
        return Ok(());
    }
    for stage in 0..program.stages {
        let visits = |place: &Place| {
            (0..program.micro_batches()).filter(|micro| program.place(*micro, stage) == *place).count()
        };
        let counts: Vec<usize> = program.holders(stage).iter().map(visits).collect();
        if counts.iter().any(|count| *count != counts[0]) {
            return Err(ParallelError::Layout(format!(
                "optim.optimizer = \"kfac\" with schedule {:?}, whose holders of stage {stage} see {counts:?} micro-batches: wanted \
                 equally many, because their curvature is averaged; change train.micro_batch or train.batch_tokens, or the file",
                program.name
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::config::{FillChoice, FillConfig, ParallelConfig};
    use crate::plan::Plan;
    use bessemer_optim::OptimizerChoice;

    #[test]
    fn what_does_not_fit_says_why() {
        let of = |pipeline, schedule: &str, fill: FillConfig, tensor, optimizer| {
            let schedule = schedule.into();
            let config = ParallelConfig { pipeline, schedule, fill, tensor, ..Default::default() };
            let model = bessemer_arch::named("gpt2-124m").expect("a listed name");
            Plan::new(&config, 4, &model, optimizer).map(drop).map_err(|e| e.to_string())
        };
        let both = FillConfig::Several(vec![FillChoice::Kfac, FillChoice::Checkpoint]);
        for (schedule, tensor) in [("zb-h1", 1), ("interleaved", 1), ("chimera", 1), ("1f1b", 2)] {
            assert_eq!(of(2, schedule, both.clone(), tensor, OptimizerChoice::Kfac), Ok(()));
            assert_eq!(of(2, schedule, FillConfig::default(), tensor, OptimizerChoice::Kfac), Ok(()));
        }
        for (pipeline, schedule, fill, optimizer, words) in [
            (1, "1f1b", both.clone(), OptimizerChoice::Kfac, "[\"kfac\", \"checkpoint\"] with no pipeline"),
            (2, "pipedream", both.clone(), OptimizerChoice::Kfac, "read weights of different steps"),
            (2, "1f1b", both, OptimizerChoice::AdamW, "with optim.optimizer = \"adamw\""),
            (
                2,
                "pipedream",
                FillConfig::default(),
                OptimizerChoice::Kfac,
                "a sum over the layers of all stages",
            ),
        ] {
            let e = of(pipeline, schedule, fill, 1, optimizer).unwrap_err();
            assert!(e.contains(words), "{e}");
        }
        let twice = FillConfig::Several(vec![FillChoice::Kfac, FillChoice::Kfac]);
        let e = ParallelConfig { fill: twice, ..Default::default() }.check().unwrap_err();
        assert!(e.contains("parallel.fill = [\"kfac\", \"kfac\"]") && e.contains("at most once"), "{e}");
    }
}
