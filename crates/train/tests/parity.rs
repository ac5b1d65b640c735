//! Every kind of layout gives the losses of one rank.

use bessemer_collectives::ThreadSettings;
use bessemer_kernels_cpu::{CpuBackend, CpuConfig};
use bessemer_model::ActivationConfig;
use bessemer_optim::{OptimConfig, OptimizerChoice};
use bessemer_parallel::Stage;
use bessemer_tensor::Backend;
use bessemer_train::TrainError;
use bessemer_train::parity::{
    Bounds, Comparison, Layout, ParityJob, SYNCHRONOUS, Style, in_process, matrix, pipelines,
};
use bessemer_units::{ParamDType, Storage};

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
    let mut references: Vec<Layout> = Vec::new();
    let mut reference = None;
    for layout in layouts {
        // Layouts of one choice of types stand together.
        let single = Layout { types: layout.types, ..Layout::single() };
        if references.last() != Some(&single) {
            let one = in_process(job, &single, &settings, &backend).expect("one rank runs");
            assert!(one.losses.iter().all(|l| l.is_finite()));
            reference = Some(one);
            references.push(single);
        }
        let reference = reference.as_ref().expect("made above");
        let found = in_process(job, layout, &settings, &backend).expect("the layout runs");
        let c = Comparison::new(&found, reference, &Bounds::of(layout.types));
        let name = format!("{:?} {} {}", job.optim.optimizer, style.name(), layout.name);
        assert_eq!(c.problem, None, "{name}");
        if layout.types.has_masters() {
            continue;
        }
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
        let plain = |l: &Layout| l.parallel.tensor == 1 && !l.types.has_masters();
        let layouts: Vec<_> = matrix(4).into_iter().filter(plain).collect();
        assert!(layouts.len() > 10);
        check(style, &layouts, 5);
    }
}

#[test]
fn tensor_parallel_layouts_give_the_losses_of_one_rank() {
    for style in Style::ALL {
        let cut = |l: &Layout| l.parallel.tensor > 1 && !l.types.has_masters();
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
        let steps = |l: &Layout| l.types.gradients == ParamDType::F32 && optimizer != OptimizerChoice::Kfac;
        let mut layouts: Vec<_> = matrix(4)
            .into_iter()
            .filter(|l| l.parallel.tensor < 4 && l.accumulation == 2)
            .filter(|l| l.ranks == 4 || l.parallel.tensor > 1)
            .filter(|l| !l.types.has_masters() || steps(l))
            .collect();
        layouts.sort_by_key(|l| l.types.weights);
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

#[test]
fn layouts_with_bf16_parameters_give_the_losses_of_one_rank_with_them() {
    for style in Style::ALL {
        let mut layouts: Vec<_> = matrix(4).into_iter().filter(|l| l.types.has_masters()).collect();
        layouts.sort_by_key(|l| l.types.gradients);
        assert!(layouts.len() >= 8 && layouts.iter().any(|l| l.parallel.tensor > 1));
        check(style, &layouts, 8);
    }
}

/// Every schedule with a flush on two stages' ranks, and some of what goes with them; the rest is tried by the tests of
/// `parallel` and by `bessemer parity`.
#[test]
fn pipelines_give_the_losses_of_one_rank() {
    for style in Style::ALL {
        let job =
            ParityJob { model: style.deep_model(16).expect("a model that fits together"), ..job(style, 4) };
        let all = pipelines(8);
        let layouts: Vec<_> = SYNCHRONOUS
            .iter()
            .flat_map(|kind| all.iter().filter(|l| l.parallel.schedule == *kind && l.ranks == 2).take(1))
            .chain(all.iter().filter(|l| l.parallel.schedule == "zb-v" && l.ranks == 8 && l.data_ranks() > 1))
            .chain(all.iter().filter(|l| !l.parallel.stages.is_empty()))
            .cloned()
            .collect();
        assert!(layouts.len() > SYNCHRONOUS.len() + 3, "{}", layouts.len());
        check_job(style, &job, &layouts);
    }
}

/// Rows that travel in pieces beside the products have the bits of rows that wait. 256 rows are four pieces.
#[test]
fn overlap_over_the_tensor_axis_changes_no_bit() {
    for style in Style::ALL {
        for storage in [Storage::F32, Storage::Bf16] {
            let mut job = job(style, 3);
            job.activations.storage = storage;
            if storage == Storage::F32 {
                // Gathers for itself in between.
                job.optim.optimizer = OptimizerChoice::Kfac;
            }
            for sizes in [(2, false), (2, true), (4, true)] {
                let mut layout = Layout::of(Stage::Ddp, (1, 1), sizes, 1);
                let mut run = |overlap| {
                    layout.parallel.overlap = overlap;
                    in_process(&job, &layout, &ThreadSettings::default(), &backend).expect("the layout runs")
                };
                let (waiting, travelling) = (run(false), run(true));
                assert!(waiting == travelling, "{} {storage:?} {sizes:?}", style.name());
            }
        }
    }
}
