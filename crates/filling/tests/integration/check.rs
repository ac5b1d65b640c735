//! Layouts and choices that work in bubbles cannot be combined with.

use bessemer_filling::check;
use bessemer_optim::OptimizerChoice;
use bessemer_parallel::{FillChoice, FillConfig, ParallelConfig, Plan};

#[test]
fn what_does_not_fit_says_why() {
    let of = |pipeline, schedule: &str, fill: FillConfig, tensor, optimizer| {
        let schedule = schedule.into();
        let tensor = bessemer_parallel::TensorConfig::Line(tensor);
        let config = ParallelConfig { pipeline, schedule, tensor, ..Default::default() };
        let model = bessemer_arch::named("gpt2-124m").expect("a listed name");
        let plan = Plan::new(&config, 4, &model, optimizer).expect("a layout that fits");
        check(&plan, &fill, optimizer).map_err(|e| e.to_string())
    };
    let both = FillConfig::Several(vec![FillChoice::Kfac, FillChoice::Checkpoint]);
    for (schedule, tensor) in [("zb-h1", 1), ("interleaved", 1), ("chimera", 1), ("1f1b", 2)] {
        assert_eq!(of(2, schedule, both.clone(), tensor, OptimizerChoice::Kfac), Ok(()));
        assert_eq!(of(2, schedule, FillConfig::default(), tensor, OptimizerChoice::Kfac), Ok(()));
    }
    for (pipeline, schedule, fill, optimizer, words) in [
        (1, "1f1b", both.clone(), OptimizerChoice::Kfac, "[\"kfac\", \"checkpoint\"] without a pipeline"),
        (
            2,
            "pipedream",
            FillChoice::Checkpoint.into(),
            OptimizerChoice::AdamW,
            "read weights of different steps",
        ),
        (2, "1f1b", both, OptimizerChoice::AdamW, "with optim.optimizer = \"adamw\""),
    ] {
        let e = of(pipeline, schedule, fill, 1, optimizer).unwrap_err();
        assert!(e.contains(words), "{e}");
    }
    let twice = FillConfig::Several(vec![FillChoice::Kfac, FillChoice::Kfac]);
    let e = ParallelConfig { fill: twice, ..Default::default() }.check().unwrap_err();
    assert!(e.contains("parallel.fill = [\"kfac\", \"kfac\"]") && e.contains("at most once"), "{e}");
}
