//! Learning rate as a function of the step.
//!
//! With peak p, final rate m = p * min_lr_ratio, w warm-up steps and S steps in all: step i < w has p (i+1)/(w+1)
//! (or p i/w, see [`OptimConfig::warmup_from_zero`]). After it x = (i - w)/(S - w) and
//! - cosine: `m + (p - m) (1 + cos(pi x))/2` (Loshchilov & Hutter 2017);
//! - linear: `m + (p - m) (1 - x)`;
//! - constant: p;
//! - inverse-sqrt: `max(m, p sqrt(w / i))`, w = 10,000 shifted by as much if there is no warm-up (Vaswani et al. 2017, in
//!   the form of Hugging Face transformers);
//! - polynomial: `m + (p - m) (1 - x)^power`;
//! - cosine-restarts: cosine with the fractional part of `cycles x` for x (Loshchilov & Hutter 2017);
//! - wsd: p until the last `decay_fraction` of S, then `m + (p - m) (1 - y)` or `m + (p - m) (1 - sqrt y)` with y from
//!   0 to 1 (Hu et al. 2024, MiniCPM; Hägele et al. 2024).
//!
//! From step S on the rate is the final one (constant: p; inverse-sqrt goes on).
//!
//! A schedule is homogeneous: with i, w and S in tokens instead of steps of one size it has the same rates, to the bit while
//! tokens are below 2^53. So a run whose batch changes counts in tokens ([`Schedule::of_tokens`]).

use crate::config::{DecayShape, OptimConfig, ScheduleChoice};

/// Learning rates of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct Schedule {
    /// Positions in a step: 1 where positions are steps, the tokens of a step where they are tokens.
    unit: u64,
    kind: ScheduleChoice,
    shape: DecayShape,
    peak: f64,
    least: f64,
    from_zero: bool,
    warmup: u64,
    /// First position of the decay.
    decay_from: u64,
    total: u64,
    power: f64,
    cycles: u64,
}

/// Steps of the time scale of an inverse square root without warm-up.
const TIMESCALE: f64 = 10_000.0;

impl Schedule {
    /// The schedule of a run of `total_steps` steps, whose positions are steps.
    pub fn new(config: &OptimConfig, total_steps: u64) -> Schedule {
        Schedule::of_tokens(config, total_steps, 1)
    }

    /// The schedule of a run of `total` tokens in steps of `step_tokens`, whose positions are tokens. The keys of `config` that count
    /// steps count such steps.
    pub fn of_tokens(config: &OptimConfig, total: u64, step_tokens: u64) -> Schedule {
        let unit = step_tokens.max(1);
        let steps = total.div_ceil(unit);
        let warmup = config.warmup(steps).saturating_mul(unit);
        let decay = ((config.decay_fraction * steps as f64).round() as u64).saturating_mul(unit);
        let decay_from = match config.schedule {
            ScheduleChoice::Wsd => total.saturating_sub(decay).max(warmup),
            _ => warmup,
        };
        Schedule {
            unit,
            kind: config.schedule,
            shape: config.decay_shape,
            peak: config.lr,
            least: config.lr * config.min_lr_ratio,
            from_zero: config.warmup_from_zero,
            warmup,
            decay_from,
            total,
            power: config.decay_power,
            cycles: config.cycles,
        }
    }

    /// Learning rate of the step that begins at position `step`, counted from 0.
    pub fn at(&self, step: u64) -> f64 {
        if step < self.warmup {
            return self.peak
                * if self.from_zero {
                    step as f64 / self.warmup as f64
                } else {
                    (step + self.unit) as f64 / (self.warmup + self.unit) as f64
                };
        }
        if self.kind == ScheduleChoice::Constant || step < self.decay_from {
            return self.peak;
        }
        if self.kind == ScheduleChoice::InverseSqrt {
            let scale = if self.warmup > 0 { self.warmup as f64 } else { TIMESCALE * self.unit as f64 };
            let height = (scale / (step as f64 - self.warmup as f64 + scale)).sqrt();
            return self.least.max(self.peak * height);
        }
        if step >= self.total {
            return self.least;
        }
        let (done, steps) = (step - self.decay_from, self.total - self.decay_from);
        let x = done as f64 / steps as f64;
        let height = match (self.kind, self.shape) {
            (ScheduleChoice::Cosine, _) => 0.5 * (1.0 + (std::f64::consts::PI * x).cos()),
            (ScheduleChoice::CosineRestarts, _) => {
                // The fractional part of cycles * done / steps in integers: as a quotient of floats, a product that is a
                // whole number may be rounded to just below it, and a restart would have the final rate.
                let within = u128::from(self.cycles) * u128::from(done) % u128::from(steps);
                0.5 * (1.0 + (std::f64::consts::PI * (within as f64 / steps as f64)).cos())
            }
            (ScheduleChoice::Polynomial, _) => (1.0 - x).powf(self.power),
            (ScheduleChoice::Wsd, DecayShape::Sqrt) => 1.0 - x.sqrt(),
            _ => 1.0 - x,
        };
        self.least + (self.peak - self.least) * height
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(config: OptimConfig, total: u64, at: &[(u64, f64)], tolerance: f64) {
        let s = Schedule::new(&config, total);
        for &(step, lr) in at {
            let found = s.at(step);
            assert!(
                (found - lr).abs() <= tolerance * lr.abs().max(1e-12),
                "step {step}: {found}, wanted {lr}"
            );
        }
    }

    /// Rates of steps 0, 1, ..., cut off after two decimals as the source prints them.
    fn check_list(config: OptimConfig, list: &[f64]) {
        let s = Schedule::new(&config, list.len() as u64);
        for (step, lr) in list.iter().enumerate() {
            let found = s.at(step as u64);
            assert!((-1e-12..0.01).contains(&(found - lr)), "step {step}: {found}, wanted {lr}");
        }
    }

    /// Every schedule, in tokens of steps of an odd size.
    #[test]
    fn in_tokens_the_rates_of_steps_have_the_same_bits() {
        use ScheduleChoice as S;
        for schedule in
            [S::Cosine, S::Linear, S::Constant, S::InverseSqrt, S::Polynomial, S::CosineRestarts, S::Wsd]
        {
            for (warmup_steps, warmup_from_zero) in [(0, false), (7, false), (7, true)] {
                let c =
                    OptimConfig { schedule, warmup_steps, warmup_from_zero, cycles: 3, ..Default::default() };
                let (steps, tokens) = (Schedule::new(&c, 101), Schedule::of_tokens(&c, 101 * 12_345, 12_345));
                for step in 0..110 {
                    assert_eq!(steps.at(step).to_bits(), tokens.at(step * 12_345).to_bits(), "{c:?} {step}");
                }
            }
        }
    }

    #[test]
    fn nanogpt_cosine() {
        let c = OptimConfig { lr: 1e-3, warmup_steps: 100, ..Default::default() };
        let gold = [
            (0, 9.900990099e-6),
            (99, 9.900990099e-4),
            (100, 1e-3),
            (1050, 5.5e-4),
            (2000, 1e-4),
            (9999, 1e-4),
        ];
        check(c, 2000, &gold, 1e-9);
    }

    /// Lists of the Hugging Face scheduler tests: peak 10, 10 steps.
    #[test]
    fn warm_up_lists() {
        let c = OptimConfig { lr: 10.0, min_lr_ratio: 0.0, warmup_from_zero: true, ..Default::default() };
        let constant = ScheduleChoice::Constant;
        check_list(
            OptimConfig { schedule: constant, warmup_steps: 4, ..c.clone() },
            &[0.0, 2.5, 5.0, 7.5, 10.0, 10.0, 10.0, 10.0, 10.0, 10.0],
        );
        let linear = ScheduleChoice::Linear;
        check_list(
            OptimConfig { schedule: linear, warmup_steps: 2, ..c.clone() },
            &[0.0, 5.0, 10.0, 8.75, 7.5, 6.25, 5.0, 3.75, 2.5, 1.25],
        );
        check_list(
            OptimConfig { warmup_steps: 2, ..c },
            &[0.0, 5.0, 10.0, 9.61, 8.53, 6.91, 5.0, 3.08, 1.46, 0.38],
        );
    }

    /// Rates rounded to as many decimals as the source prints.
    fn check_rounded(config: OptimConfig, decimals: i32, list: &[f64]) {
        let s = Schedule::new(&config, list.len() as u64);
        for (step, lr) in list.iter().enumerate() {
            let found = s.at(step as u64);
            assert!(
                (found - lr).abs() < 0.500_001 * 10f64.powi(-decimals),
                "step {step}: {found}, wanted {lr}"
            );
        }
    }

    /// Hard restarts and polynomial decay from the Hugging Face scheduler tests; the inverse square root is its
    /// `get_inverse_sqrt_schedule`.
    #[test]
    #[allow(clippy::approx_constant, reason = "the list as its source prints it")]
    fn restarts_polynomials_and_inverse_square_roots() {
        let c = OptimConfig { lr: 10.0, min_lr_ratio: 0.0, warmup_from_zero: true, ..Default::default() };
        let restarts = ScheduleChoice::CosineRestarts;
        check_list(
            OptimConfig { schedule: restarts, cycles: 2, warmup_steps: 2, ..c.clone() },
            &[0.0, 5.0, 10.0, 8.53, 5.0, 1.46, 10.0, 8.53, 5.0, 1.46],
        );
        let c = OptimConfig { lr: 1.0, ..c };
        check_rounded(
            OptimConfig {
                schedule: ScheduleChoice::Polynomial,
                decay_power: 1.5,
                min_lr_ratio: 0.1,
                warmup_steps: 3,
                ..c.clone()
            },
            4,
            &[0.0, 0.3333, 0.6667, 1.0, 0.8542, 0.7173, 0.5899, 0.4727, 0.3667, 0.2732, 0.1943, 0.1333],
        );
        let root = OptimConfig { schedule: ScheduleChoice::InverseSqrt, warmup_steps: 4, ..c };
        check_rounded(
            root.clone(),
            4,
            &[0.0, 0.25, 0.5, 0.75, 1.0, 0.8944, 0.8165, 0.7559, 0.7071, 0.6667, 0.6325, 0.6030],
        );
        // A floor, and no end.
        let s = Schedule::new(&OptimConfig { min_lr_ratio: 0.1, ..root.clone() }, 12);
        assert_eq!((s.at(100), s.at(1_000)), (0.2, 0.1));
        let unwarmed = OptimConfig { warmup_steps: 0, warmup_fraction: 0.0, ..root };
        check(unwarmed, 10, &[(0, 1.0), (30_000, 0.5)], 1e-12);
    }

    /// With c cycles over n steps, step i begins a cycle exactly where n divides c i. In floats 22 * (30 / 44) is just below
    /// 15, which gave step 30 the final rate in place of the peak.
    #[test]
    fn every_restart_has_the_peak_rate() {
        for total in [1, 3, 7, 44, 100, 1_000, 12_345] {
            for cycles in (1..=64).chain([1 << 20]) {
                let schedule = ScheduleChoice::CosineRestarts;
                let c = OptimConfig { lr: 1.0, schedule, cycles, warmup_fraction: 0.0, ..Default::default() };
                let s = Schedule::new(&c, total);
                for step in 0..total {
                    let begins = (cycles * step) % total == 0;
                    assert_eq!(
                        s.at(step) == 1.0,
                        begins,
                        "{cycles} cycles, {total} steps, step {step}: {}",
                        s.at(step)
                    );
                }
            }
        }
    }

    #[test]
    fn warm_up_stable_decay_is_flat_and_then_falls_in_the_last_fifth() {
        let c = OptimConfig {
            lr: 1.0,
            schedule: ScheduleChoice::Wsd,
            warmup_steps: 9,
            min_lr_ratio: 0.0,
            ..Default::default()
        };
        check(
            c.clone(),
            100,
            &[(0, 0.1), (8, 0.9), (9, 1.0), (80, 1.0), (85, 0.75), (95, 0.25), (100, 0.0)],
            1e-12,
        );
        let sqrt = OptimConfig { decay_shape: DecayShape::Sqrt, min_lr_ratio: 0.5, ..c };
        check(sqrt, 100, &[(80, 1.0), (85, 0.75), (100, 0.5)], 1e-12);
    }

    #[test]
    fn degenerate_runs_have_finite_rates() {
        for schedule in [
            ScheduleChoice::Cosine,
            ScheduleChoice::Wsd,
            ScheduleChoice::Linear,
            ScheduleChoice::Constant,
            ScheduleChoice::InverseSqrt,
            ScheduleChoice::Polynomial,
            ScheduleChoice::CosineRestarts,
        ] {
            for (total, warmup_steps, decay_fraction) in [(0, 0, 1.0), (1, 0, 0.0), (5, 50, 1.0), (5, 5, 0.0)]
            {
                let c = OptimConfig { schedule, warmup_steps, decay_fraction, ..Default::default() };
                let s = Schedule::new(&c, total);
                assert!((0..60).all(|i| s.at(i).is_finite() && s.at(i) >= 0.0 && s.at(i) <= c.lr), "{s:?}");
            }
        }
    }
}
