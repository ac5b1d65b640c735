//! Fits: to tables that a law made, and to the points of the published correction.

#![allow(clippy::print_stdout, reason = "says what was left out")]

use bessemer_scaling::approaches::{Curve, SMOOTHING, envelope, isoflops, smooth};
use bessemer_scaling::bootstrap::bootstrap;
use bessemer_scaling::kaplan::{KaplanLaw, fit_kaplan};
use bessemer_scaling::{
    Allocation, Exponents, ParametricLaw, ScalingError, TrainedRun, fit_parametric, objective,
};

fn made(law: &ParametricLaw, noise: f64) -> Vec<TrainedRun> {
    made_by(|at| law.loss(at), noise)
}

fn made_by(law: impl Fn(Allocation) -> f64, noise: f64) -> Vec<TrainedRun> {
    let mut runs = Vec::new();
    for i in 0..8 {
        for j in 0..6 {
            let at = Allocation { parameters: 2e7 * 2f64.powi(i), tokens: 5e8 * 2.5f64.powi(j) };
            // Signs without a pattern in i or j.
            let sign = if (i * 7 + j * j * 3 + i * j) % 5 < 2 { 1.0 } else { -0.7 };
            runs.push(TrainedRun { at, loss: law(at) * (1.0 + noise * sign) });
        }
    }
    runs
}

#[test]
fn the_law_that_made_the_losses_is_found() {
    for law in [ParametricLaw::BESIROGLU, ParametricLaw::HOFFMANN] {
        let fit = fit_parametric(&made(&law, 0.0), Exponents::Two).unwrap();
        assert!(fit.objective < 1e-16, "{fit:?}");
        assert!(
            (fit.law.alpha - law.alpha).abs() < 1e-5 && (fit.law.ln_e - law.ln_e).abs() < 1e-5,
            "{fit:?}"
        );
    }
    let law = ParametricLaw::MUENNIGHOFF;
    let one = fit_parametric(&made(&law, 0.0), Exponents::One).unwrap().law;
    assert!((one.alpha - law.alpha).abs() < 1e-5 && one.alpha == one.beta, "{one:?}");
}

#[test]
fn a_few_spoilt_runs_move_the_fit_little() {
    let law = ParametricLaw::BESIROGLU;
    let mut runs = made(&law, 5e-4);
    for spoilt in [5, 17, 31] {
        runs[spoilt].loss *= 1.3;
    }
    let fit = fit_parametric(&runs, Exponents::Two).unwrap().law;
    assert!((fit.alpha - law.alpha).abs() < 0.01 && (fit.beta - law.beta).abs() < 0.01, "{fit:?}");
    let drawn = bootstrap(&runs, Exponents::Two, &fit, 200, 1);
    let [low, high] = drawn.interval(0.95, |l| l.alpha).unwrap();
    assert!(low < law.alpha && law.alpha < high && high - low < 0.2, "{low} {high}");
    assert_eq!(drawn, bootstrap(&runs, Exponents::Two, &fit, 200, 1));
    let at = Allocation { parameters: 1e10, tokens: 2e11 };
    let [low, high] = drawn.loss(0.95, at).unwrap();
    assert!(low <= fit.loss(at) && fit.loss(at) <= high && high - low < 0.1, "{low} {high}");
}

/// The optimum of the same objective by SciPy 1.17.1: Nelder and Mead's method from twelve starts, each begun again eight times.
#[test]
fn kaplans_law_is_found_and_its_fit_is_the_optimum_of_another_program() {
    let law = KaplanLaw::PUBLISHED;
    let exact = fit_kaplan(&made_by(|at| law.loss(at), 0.0)).unwrap();
    assert!(exact.objective < 1e-16, "{exact:?}");
    assert!((exact.law.alpha_parameters - law.alpha_parameters).abs() < 1e-6, "{exact:?}");
    assert!((exact.law.tokens / law.tokens - 1.0).abs() < 1e-4, "{exact:?}");
    let mut runs = made_by(|at| law.loss(at), 5e-4);
    for spoilt in [5, 17, 31] {
        runs[spoilt].loss *= 1.3;
    }
    let fit = fit_kaplan(&runs).unwrap();
    assert!((fit.objective / 7.889_727_713e-4 - 1.0).abs() < 1e-8, "{fit:?}");
    for (found, wanted) in [
        (fit.law.parameters.ln(), 31.774_555_85),
        (fit.law.alpha_parameters, 0.076_086_097),
        (fit.law.tokens.ln(), 30.539_087_68),
        (fit.law.alpha_tokens, 0.102_836_615),
    ] {
        assert!((found / wanted - 1.0).abs() < 1e-5, "{fit:?}: wanted {wanted}");
    }
    assert!(matches!(fit_kaplan(&runs[..3]), Err(ScalingError::TooFewRuns { wanted: 4, found: 3 })));
    assert!(matches!(
        fit_kaplan(&runs[..6]),
        Err(ScalingError::TooFewSizes { quantity: "parameters", found: 1 })
    ));
}

#[test]
fn runs_that_say_too_little_are_refused() {
    let runs = made(&ParametricLaw::BESIROGLU, 0.0);
    let few = fit_parametric(&runs[..4], Exponents::Two);
    assert_eq!(few, Err(ScalingError::TooFewRuns { wanted: 5, found: 4 }));
    let one_size = fit_parametric(&runs[..6], Exponents::Two);
    assert_eq!(one_size, Err(ScalingError::TooFewSizes { quantity: "parameters", found: 1 }));
    let mut broken = runs;
    broken[3].loss = f64::NAN;
    assert!(matches!(
        fit_parametric(&broken, Exponents::Two),
        Err(ScalingError::Run { row: 3, quantity: "loss", .. })
    ));
}

#[test]
fn both_curve_approaches_find_the_frontier_of_the_law() {
    let law = ParametricLaw::BESIROGLU;
    let (a, _) = law.exponents();
    let sizes: Vec<f64> = (0..24).map(|i| 1e7 * 1.45f64.powi(i)).collect();
    let curves: Vec<Curve> = sizes
        .iter()
        .map(|&parameters| Curve {
            parameters,
            points: (0..400)
                .map(|i| 1e7 * 1.035f64.powi(i))
                .map(|tokens| [tokens, law.loss(Allocation { parameters, tokens })])
                .collect(),
        })
        .collect();
    let found = envelope(&curves).unwrap();
    // Steps of sizes and the ends of the range keep it from being exact.
    assert!((found.parameters.exponent - a).abs() < 0.03, "{:?}", found.parameters);
    let mut runs = Vec::new();
    for flops in [1e18, 1e19, 1e20, 1e21] {
        let best = law.best(flops).parameters;
        for i in -3..=3 {
            let parameters = best * 1.3f64.powi(i);
            let at = Allocation { parameters, tokens: flops / (6.0 * parameters) };
            runs.push(TrainedRun { at, loss: law.loss(at) });
        }
    }
    let found = isoflops(&runs).unwrap();
    assert_eq!(found.points.len(), 4);
    assert!((found.parameters.exponent - a).abs() < 1e-3, "{:?}", found.parameters);
    assert!((found.best(1e22).parameters / law.best(1e22).parameters - 1.0).abs() < 0.02);
    // Only one side of the best sizes.
    let side: Vec<TrainedRun> =
        runs.iter().filter(|r| r.at.parameters > 1.2 * law.best(r.at.flops()).parameters).copied().collect();
    assert!(matches!(isoflops(&side), Err(ScalingError::TooFewBudgets { found: 0, .. })));
    assert!(envelope(&curves[..1]).is_err());
}

#[test]
fn smoothing_keeps_lines_away_from_the_ends_and_means_everywhere() {
    let line: Vec<[f64; 2]> = (0..200).map(|i| [f64::from(i), 3.0 - 0.01 * f64::from(i)]).collect();
    let smoothed = smooth(&line, SMOOTHING);
    for i in 50..150 {
        assert!((smoothed[i][1] - line[i][1]).abs() < 1e-9);
    }
    let level = smooth(&[[1.0, 2.0], [2.0, 2.0], [3.0, 2.0]], SMOOTHING);
    assert!(level.iter().all(|p| (p[1] - 2.0).abs() < 1e-12));
}

/// The points of Besiroglu et al. 2024: all but the five of highest loss.
fn published() -> Option<Vec<TrainedRun>> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/data/chinchilla_svg_points.csv");
    let Ok(text) = std::fs::read_to_string(path) else {
        println!("left out: there is no {path}");
        return None;
    };
    let mut runs: Vec<TrainedRun> = text
        .lines()
        .skip(1)
        .map(|line| {
            let fields: Vec<&str> = line.split(',').collect();
            let number = |i: usize| fields[i].parse::<f64>().expect("a number");
            let parameters = number(3);
            let tokens = number(4) / (6.0 * parameters);
            TrainedRun { at: Allocation { parameters, tokens }, loss: number(6) }
        })
        .collect();
    assert_eq!(runs.len(), 245);
    runs.sort_by(|a, b| a.loss.total_cmp(&b.loss));
    runs.truncate(240);
    Some(runs)
}

#[test]
fn the_published_points_have_the_published_optimum() {
    let Some(runs) = published() else { return };
    let fit = fit_parametric(&runs, Exponents::Two).unwrap();
    let near = |found: f64, wanted: f64, relative: f64| {
        assert!((found / wanted - 1.0).abs() < relative, "found {found}, wanted {wanted}: {fit:?}");
    };
    near(fit.objective, 1.018_274_018e-3, 1e-8);
    near(fit.law.ln_a.exp(), 477.826, 1e-4);
    near(fit.law.ln_b.exp(), 2143.417, 1e-4);
    near(fit.law.irreducible(), 1.817218, 1e-6);
    near(fit.law.alpha, 0.347310, 1e-5);
    near(fit.law.beta, 0.367172, 1e-5);
    let text = objective(&ParametricLaw::BESIROGLU, &runs);
    assert!(text > fit.objective && (text / 1.018_644_705e-3 - 1.0).abs() < 1e-6, "{text}");
}

#[test]
fn intervals_of_the_published_points_are_those_of_the_paper() {
    let Some(runs) = published() else { return };
    let fit = fit_parametric(&runs, Exponents::Two).unwrap();
    let drawn = bootstrap(&runs, Exponents::Two, &fit.law, 300, 7);
    // 95 % of 4000 samples in the paper: alpha 0.317 to 0.373, beta 0.331 to 0.415, E 1.769 to 1.871.
    let near = |found: [f64; 2], wanted: [f64; 2], by: f64| {
        assert!(
            (found[0] - wanted[0]).abs() < by && (found[1] - wanted[1]).abs() < by,
            "{found:?} {wanted:?}"
        );
    };
    near(drawn.interval(0.95, |l| l.alpha).unwrap(), [0.317, 0.373], 0.01);
    near(drawn.interval(0.95, |l| l.beta).unwrap(), [0.331, 0.415], 0.015);
    near(drawn.interval(0.95, |l| l.irreducible()).unwrap(), [1.769, 1.871], 0.015);
}
