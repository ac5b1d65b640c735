//! Models and layouts that hold every pair of choices ([`pairwise`]) give the losses of one rank.

use crate::instruction_set;
use crate::parity::problem;
use bessemer_collectives::ThreadSettings;
use bessemer_optim::OptimizerChoice;
use bessemer_parity::{Bounds, Case, Comparison, Layout, ParityJob, References, in_process, pairwise};
use bessemer_tensor::Backend;
use bessemer_test_tier::either;
use bessemer_train::TrainError;

fn backend() -> Result<Box<dyn Backend>, TrainError> {
    Ok(Box::new(instruction_set::cpu(1)))
}

/// Ranks of the largest layout.
const RANKS: usize = 16;

fn job(case: &Case, steps: u64) -> ParityJob {
    case.job(steps, 3).expect("a model that fits together")
}

fn check(cases: &[(Case, ParityJob)]) {
    let settings = ThreadSettings::default();
    let mut references = References::new(&settings, &backend);
    let mut problems = Vec::new();
    for (case, job) in cases {
        let reference = references.of(job, &case.layout).expect("the reference runs");
        assert!(reference.trajectory.losses.iter().all(|l| l.is_finite()));
        let found = in_process(job, &case.layout, &settings, &backend);
        let problem = match &found {
            Ok(found) => problem(job, found, reference),
            Err(e) => Some(e.to_string()),
        };
        problems.extend(problem.map(|p| format!("{:?} {}: {p}", job.optim.optimizer, case.name())));
    }
    assert!(problems.is_empty(), "{problems:#?}");
}

#[test]
fn every_pair_of_choices_gives_the_losses_of_one_rank() {
    let cases: Vec<_> = pairwise(RANKS).into_iter().map(|c| (c.clone(), job(&c, either(2, 3)))).collect();
    assert!(cases.len() > 40);
    check(&cases);
}

/// Matrices with key and value rows that several ranks hold are gathered for their update.
#[test]
fn optimizers_of_whole_matrices_share_key_and_value_heads() {
    let optimizers = [OptimizerChoice::Muon, OptimizerChoice::Adafactor, OptimizerChoice::Kfac];
    let shared = |c: &Case| c.layout.parallel.tensor > c.variant.kv_heads;
    let mut cases = Vec::new();
    for (i, case) in pairwise(8).into_iter().filter(shared).enumerate() {
        let mut job = job(&case, 2);
        job.optim.optimizer = optimizers[i % optimizers.len()];
        job.optim.kfac.inverse_every = 2;
        if case.layout.goes_with(job.optim.optimizer) {
            cases.push((case, job));
        }
    }
    let all = |optimizer| cases.iter().filter(|(_, job)| job.optim.optimizer == optimizer).count();
    let counts = optimizers.map(all);
    assert!(counts.iter().all(|count| *count > 2), "{counts:?}");
    check(&cases);
}

/// Asynchronous schedules with attention within documents and a window, against one process that reads weights as old.
#[test]
fn asynchronous_schedules_have_the_bits_of_one_process_in_every_variant() {
    let settings = ThreadSettings::default();
    let mut references = References::new(&settings, &backend);
    let variants =
        pairwise(RANKS).into_iter().filter(|c| c.layout.parallel.pipeline == 1 && c.variant.documents);
    for (i, mut case) in variants.enumerate() {
        let (schedule, micro_batches) = [("pipedream", 1), ("pipedream-2bw", 2)][i % 2];
        case.variant.tied_embeddings = false;
        case.layout = Layout::single().pipelined(schedule, 2, micro_batches, &[]);
        let mut job = job(&case, 4);
        job.optim = case.layout.optim(&job.optim);
        let reference = references.of(&job, &case.layout).expect("the reference runs");
        assert_eq!(reference.bounds, Bounds::EXACT);
        let found = in_process(&job, &case.layout, &settings, &backend).expect("the layout runs");
        let problem = Comparison::new(&found, &reference.trajectory, &reference.bounds).problem;
        assert_eq!(problem, None, "{}", case.name());
    }
}
