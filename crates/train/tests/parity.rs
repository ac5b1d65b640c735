//! Every kind of layout gives the losses of one rank.

use bessemer_collectives::ThreadSettings;
use bessemer_kernels_cpu::{CpuBackend, CpuConfig};
use bessemer_model::ActivationConfig;
use bessemer_optim::{OptimConfig, OptimizerChoice};
use bessemer_parallel::Stage;
use bessemer_tensor::Backend;
use bessemer_train::TrainError;
use bessemer_train::parity::{Bounds, Comparison, Layout, ParityJob, Style, in_process, matrix};

fn backend() -> Result<Box<dyn Backend>, TrainError> {
    let config = CpuConfig { threads: 1, ..CpuConfig::default() };
    Ok(Box::new(CpuBackend::new(config).map_err(|e| TrainError::Recipe(e.to_string()))?))
}

fn job(style: Style, steps: u64) -> ParityJob {
    ParityJob {
        model: style.model(16).expect("a model that fits together"),
        optim: OptimConfig { lr: 1e-3, ..OptimConfig::default() },
        activations: ActivationConfig::default(),
        sequences: 16,
        seq: 16,
        steps,
        seed: 3,
    }
}

fn check(style: Style, layouts: &[Layout], steps: u64) {
    check_job(style, &job(style, steps), layouts);
}

fn check_job(style: Style, job: &ParityJob, layouts: &[Layout]) {
    let settings = ThreadSettings::default();
    let reference = in_process(job, &Layout::single(), &settings, &backend).expect("the layout runs");
    assert!(reference.losses.iter().all(|l| l.is_finite()));
    for layout in layouts {
        let found = in_process(job, layout, &settings, &backend).expect("the layout runs");
        let c = Comparison::new(&found, &reference, &Bounds::default());
        assert_eq!(c.problem, None, "{:?} {} {}", job.optim.optimizer, style.name(), layout.name);
    }
}

#[test]
fn data_parallel_layouts_give_the_losses_of_one_rank() {
    for style in Style::ALL {
        let layouts: Vec<_> = matrix(4).into_iter().filter(|l| l.parallel.tensor == 1).collect();
        assert!(layouts.len() > 10);
        check(style, &layouts, 5);
    }
}

#[test]
fn tensor_parallel_layouts_give_the_losses_of_one_rank() {
    for style in Style::ALL {
        let cut = |l: &Layout| l.parallel.tensor > 1;
        let layouts: Vec<_> = matrix(4).into_iter().filter(cut).collect();
        assert!(layouts.len() > 10);
        check(style, &layouts, 5);
    }
}

/// Optimizers that make an update from a whole matrix: every matrix has one owner on the shard axis.
#[test]
fn optimizers_of_whole_matrices_give_the_losses_of_one_rank() {
    for optimizer in [OptimizerChoice::Muon, OptimizerChoice::Adafactor] {
        for style in Style::ALL {
            let mut job = job(style, 5);
            job.optim.optimizer = optimizer;
            let layouts: Vec<_> = matrix(4)
                .into_iter()
                .filter(|l| l.parallel.tensor == 1 && (l.parallel.stage != Stage::Ddp || l.ranks == 2))
                .collect();
            assert!(layouts.len() > 10);
            check_job(style, &job, &layouts);
        }
    }
}
