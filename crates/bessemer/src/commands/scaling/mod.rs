//! `bessemer scaling`: loss by size and compute, from finished runs or from published laws.

mod advise;
mod fit;
mod kaplan;
mod runs;
mod shape;

pub(crate) use fit::Fit;
pub(crate) use runs::{Runs, directory};

use crate::cli::{FitArgs, ScalingCommand};
use crate::console::Console;
use crate::failure::Failure;
use bessemer_scaling::bootstrap::{Bootstrap, bootstrap};
use bessemer_scaling::{Allocation, Exponents, ParametricFit, ParametricLaw, TrainedRun, fit_parametric};
use serde_json::{Value, json};

pub(crate) fn run(command: &ScalingCommand, as_json: bool, console: &mut Console) -> Result<(), Failure> {
    match command {
        ScalingCommand::Fit(args) => fit::run(args, as_json, console),
        ScalingCommand::Advise(args) => advise::run(args, as_json, console),
    }
}

/// Part of the samples that an interval holds.
const SHARE: f64 = 0.95;

/// A law and how sure it is.
pub(crate) struct Fitted {
    exponents: Exponents,
    pub(crate) fit: ParametricFit,
    samples: Bootstrap,
}

impl Fitted {
    fn of(runs: &[TrainedRun], args: &FitArgs) -> Result<Fitted, Failure> {
        let exponents = if args.one_exponent { Exponents::One } else { Exponents::Two };
        let fit = fit_parametric(runs, exponents).map_err(|cause| Failure::new(cause.to_string()))?;
        let samples = bootstrap(runs, exponents, &fit.law, args.samples as usize, args.seed);
        Ok(Fitted { exponents, fit, samples })
    }

    /// The interval of the loss at a size.
    pub(crate) fn loss_interval(&self, at: Allocation) -> Option<[f64; 2]> {
        self.samples.loss(SHARE, at)
    }

    fn interval(&self, of: impl Fn(&ParametricLaw) -> f64) -> Option<[f64; 2]> {
        self.samples.interval(SHARE, of)
    }
}

/// Reads one figure off a law.
type Figure = fn(&ParametricLaw) -> f64;

/// Figures of a law with their names.
const FIGURES: [(&str, Figure); 7] = [
    ("E", |law| law.irreducible()),
    ("A", |law| law.ln_a.exp()),
    ("B", |law| law.ln_b.exp()),
    ("alpha", |law| law.alpha),
    ("beta", |law| law.beta),
    ("exponent of parameters by compute", |law| law.exponents().0),
    ("exponent of tokens by compute", |law| law.exponents().1),
];

/// A number of parameters, tokens or operations with four digits: 1.234e9.
pub(crate) fn scientific(x: f64) -> String {
    format!("{x:.3e}")
}

fn law_value(law: &ParametricLaw) -> Value {
    json!({ "e": law.irreducible(), "a": law.ln_a.exp(), "b": law.ln_b.exp(), "alpha": law.alpha, "beta": law.beta })
}
