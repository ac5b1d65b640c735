//! Every kind of layout gives the losses of one rank.

use bessemer_collectives::ThreadSettings;
use bessemer_kernels_cpu::{CpuBackend, CpuConfig};
use bessemer_model::ActivationConfig;
use bessemer_optim::{OptimConfig, OptimizerChoice};
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
        let name = format!("{:?} {} {}", job.optim.optimizer, style.name(), layout.name);
        assert_eq!(c.problem, None, "{name}");
        // A few steps drift far less than the bound of a long run, and what they led to is the same. (Not so biases: those
        // of keys have no gradient but rounding, which optimizers scale up to a step.)
        assert!(c.any_loss.0 < 1e-6, "{name}: {:?}", c.any_loss);
        for ((tensor, a), (_, b)) in found.params.iter().zip(&reference.params) {
            let norm = |v: &mut dyn Iterator<Item = f32>| v.map(|v| f64::from(v).powi(2)).sum::<f64>().sqrt();
            let apart = norm(&mut a.iter().zip(b).map(|(a, b)| a - b)) / norm(&mut b.iter().copied());
            assert!(tensor.ends_with("bias") || apart < 1e-4, "{name}: {tensor} {apart:.1e} apart");
        }
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

/// Optimizers that make an update from a whole matrix: every matrix has one owner on the shard axis, and is brought together
/// over the tensor axis.
fn whole_matrices(optimizer: OptimizerChoice) {
    for style in Style::ALL {
        let mut job = job(style, 5);
        job.optim.optimizer = optimizer;
        job.optim.kfac.inverse_every = 2;
        let layouts: Vec<_> = matrix(4)
            .into_iter()
            .filter(|l| l.parallel.tensor < 4 && l.accumulation == 2)
            .filter(|l| l.ranks == 4 || l.parallel.tensor > 1)
            .collect();
        assert!(layouts.len() > 10);
        check_job(style, &job, &layouts);
    }
}

#[test]
fn muon_gives_the_losses_of_one_rank() {
    whole_matrices(OptimizerChoice::Muon);
}

#[test]
fn adafactor_gives_the_losses_of_one_rank() {
    whole_matrices(OptimizerChoice::Adafactor);
}

#[test]
fn kfac_gives_the_losses_of_one_rank() {
    whole_matrices(OptimizerChoice::Kfac);
}
