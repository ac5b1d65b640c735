//! Choices of experts: compared with those of one rank, and replayed where rounding has turned one.

use bessemer_collectives::ThreadSettings;
use bessemer_kernels_cpu::{CpuBackend, CpuConfig};
use bessemer_optim::OptimConfig;
use bessemer_parity::{Layout, ParityJob, References, RoutedComparison, Style, mixtures, routed};
use bessemer_runtime::ActivationConfig;
use bessemer_tensor::Backend;
use bessemer_train::TrainError;

fn backend() -> Result<Box<dyn Backend>, TrainError> {
    let config = CpuConfig { threads: 1, ..CpuConfig::default() };
    Ok(Box::new(CpuBackend::new(config).map_err(|e| TrainError::Recipe(e.to_string()))?))
}

fn layout(name: &str) -> Layout {
    mixtures(16, 32)
        .into_iter()
        .find(|layout| layout.name == name)
        .unwrap_or_else(|| panic!("no layout {name:?}"))
}

fn job(layout: &Layout, seed: u64, steps: u64) -> ParityJob {
    ParityJob {
        model: layout.model(Style::Llama, 16).unwrap(),
        optim: layout.optim(&OptimConfig { lr: 1e-3, ..OptimConfig::default() }),
        activations: ActivationConfig::default(),
        sequences: 32,
        seq: 16,
        steps,
        seed,
    }
}

/// A layout beside one rank of the seed `of`.
fn held(name: &str, seed: u64, of: u64, steps: u64) -> RoutedComparison {
    let (layout, settings) = (layout(name), ThreadSettings::default());
    let mut references = References::new(&settings, &backend);
    let reference = references.of(&job(&layout, of, steps), &layout).unwrap();
    let one_rank = (&reference.trajectory, reference.routes.as_ref().unwrap(), &reference.bounds);
    routed(&job(&layout, seed, steps), &layout, &settings, &backend, one_rank).unwrap()
}

/// Tokens that a sequence repeats at its beginning have equal scores, so experts that choose among a sequence's tokens, and nodes
/// that few of them leave, decide between them by rounding.
#[test]
fn choices_that_rounding_turns_are_close_and_losses_agree_where_those_of_one_rank_are_replayed() {
    for (name, seed) in [
        ("zero3 2, tensor 2 + sequence, experts over 2, gate expert choice", 2),
        ("replicate 2, 16 micro-batches, context 2 (all-gather), experts over 2, gate expert choice", 1),
        ("zero3 2, tensor 2 + sequence, experts over 2, gate two nodes", 1),
    ] {
        let found = held(name, seed, seed, 3);
        assert_eq!(found.comparison.problem, None, "{name}");
        let first = found.routes.first.unwrap();
        assert!(found.routes.differing() > 0 && found.choices == 3 * 4 * 512, "{name}: {:?}", found.routes);
        assert!(first.margin < 1e-4 && Some(first.step) >= found.routes.first_step(), "{name}: {first:?}");
        assert!(found.comparison.any_loss.0 < 1e-6 && found.before < 1e-6, "{name}: {:?}", found.comparison);
    }
}

/// Where tokens choose, and where a capacity drops by position, no choice turns in these steps; the layout's own run is held against one rank.
#[test]
fn choices_of_one_rank_are_made_in_layouts() {
    for name in [
        "zero3 2, tensor 2 + sequence, 2 micro-batches, experts over 2",
        "zero3 2, tensor 2 + sequence, experts over 2, gate gshard",
    ] {
        let found = held(name, 1, 1, 2);
        assert_eq!((found.comparison.problem, found.routes.differing()), (None, 0), "{name}");
        assert_eq!(found.choices, 2 * 4 * 512);
    }
}

/// Another model's choices are no rounding: they are refused, whether replayed or not.
#[test]
fn choices_of_another_run_are_a_problem() {
    let found = held("zero1 2, experts over 2", 2, 1, 1);
    let problem = found.comparison.problem.unwrap();
    assert!(problem.contains("first loss"), "{problem}");
}
