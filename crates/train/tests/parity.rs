//! Every kind of layout gives the losses of one rank.

use bessemer_collectives::ThreadSettings;
use bessemer_kernels_cpu::{CpuBackend, CpuConfig};
use bessemer_model::ActivationConfig;
use bessemer_optim::OptimConfig;
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
    let job = job(style, steps);
    let settings = ThreadSettings::default();
    let reference = in_process(&job, &Layout::single(), &settings, &backend).expect("the layout runs");
    assert!(reference.losses.iter().all(|l| l.is_finite()));
    for layout in layouts {
        let found = in_process(&job, layout, &settings, &backend).expect("the layout runs");
        let c = Comparison::new(&found, &reference, &Bounds::default());
        assert_eq!(c.problem, None, "{} {}", style.name(), layout.name);
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
