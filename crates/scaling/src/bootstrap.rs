//! Intervals by the bootstrap (Efron 1979): the law fitted again to samples of the runs, drawn with replacement.

use crate::fit::fit_from;
use crate::{Allocation, Exponents, ParametricLaw, TrainedRun};
use bessemer_tensor::rng::RngKey;

/// The law of each sample.
#[derive(Debug, Clone, PartialEq)]
pub struct Bootstrap {
    /// Laws, in the order of the samples.
    pub laws: Vec<ParametricLaw>,
}

/// Fits the law to `samples` samples of the runs, each from the law of all runs. A function of its arguments.
pub fn bootstrap(
    runs: &[TrainedRun],
    exponents: Exponents,
    law: &ParametricLaw,
    samples: usize,
    seed: u64,
) -> Bootstrap {
    let one = |sample: usize| {
        let key = RngKey::new(seed, sample as u64, "bootstrap");
        let drawn: Vec<TrainedRun> = (0..runs.len())
            .map(|i| {
                let word = key.block(i as u64 / 4)[i % 4];
                runs[((u64::from(word) * runs.len() as u64) >> 32) as usize]
            })
            .collect();
        fit_from(&drawn, exponents, law).law
    };
    Bootstrap { laws: (0..samples).map(one).collect() }
}

impl Bootstrap {
    /// The interval of a figure of the law that holds `share` of the samples, with as many below as above. None without samples.
    pub fn interval(&self, share: f64, of: impl Fn(&ParametricLaw) -> f64) -> Option<[f64; 2]> {
        let mut values: Vec<f64> = self.laws.iter().map(of).filter(|v| !v.is_nan()).collect();
        values.sort_by(f64::total_cmp);
        let at = |q: f64| {
            let position = q * (values.len() as f64 - 1.0);
            let (below, part) = (position.floor() as usize, position.fract());
            let above = values[(below + 1).min(values.len() - 1)];
            if part == 0.0 { values[below] } else { values[below] * (1.0 - part) + above * part }
        };
        (!values.is_empty()).then(|| [at((1.0 - share) / 2.0), at((1.0 + share) / 2.0)])
    }

    /// The interval of the loss at a size.
    pub fn loss(&self, share: f64, at: Allocation) -> Option<[f64; 2]> {
        self.interval(share, |law| law.loss(at))
    }
}
