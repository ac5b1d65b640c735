//! Power: how many judgements tell two systems apart.
//!
//! - [`sign_test_power`], [`sign_test_size`]: comparisons of two systems, judged by the exact sign test; ties are left out of the test, so that the number of
//!   judgements that count is itself random (the unconditional power of McNemar's exact test).
//! - [`proportions_power`], [`proportions_size`]: two groups that are judged by themselves, by the normal approximation (Fleiss, Levin and Paik 2003, section 4.2, without
//!   correction for continuity; R's `power.prop.test`).

use std::collections::HashMap;

/// Largest number of judgements that sizes are searched for.
pub const MOST_JUDGEMENTS: u64 = 1_000_000;
/// Standard deviations of a binomial distribution that are summed to each side: what lies beyond has less than 1e-15 of the probability.
const WIDTH: f64 = 8.5;

/// Sides on which a test looks for a difference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sides {
    /// Only on the side on which it is.
    One,
    /// On both.
    Two,
}

impl Sides {
    fn count(self) -> f64 {
        match self {
            Sides::One => 1.0,
            Sides::Two => 2.0,
        }
    }
}

/// A test of a difference.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Test {
    /// Probability of finding a difference that is not there, over all sides; above 0, below 1.
    pub alpha: f64,
    /// Sides.
    pub sides: Sides,
}

/// Comparisons of two systems.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Comparisons {
    /// Share of the comparisons with a winner that the better system wins.
    pub win: f64,
    /// Share of comparisons that end in a tie.
    pub ties: f64,
}

/// Sign tests of one significance, with what several of them share.
struct SignTests {
    test: Test,
    /// Logarithms of factorials.
    factorials: Vec<f64>,
    /// The largest number of losses at which a difference is found, by the number of comparisons.
    critical: HashMap<u64, Option<u64>>,
}

impl SignTests {
    fn new(most: u64, test: Test) -> SignTests {
        let mut logarithms = vec![0.0];
        let mut sum = 0.0;
        for i in 1..=most {
            sum += (i as f64).ln();
            logarithms.push(sum);
        }
        SignTests { test, factorials: logarithms, critical: HashMap::new() }
    }

    /// The probability of `k` of `n` with probability `p` each.
    fn binomial(&self, n: u64, k: u64, p: f64) -> f64 {
        let of = |i: u64| self.factorials[i as usize];
        // 0 ln 0 is 0.
        let times = |count: u64, p: f64| if count == 0 { 0.0 } else { count as f64 * p.ln() };
        (of(n) - of(k) - of(n - k) + times(k, p) + times(n - k, 1.0 - p)).exp()
    }

    /// The probability of at most `k` of `n`.
    fn at_most(&self, n: u64, k: u64, p: f64) -> f64 {
        let (low, high) = likely(n, p);
        match (k < low, k >= high) {
            (true, _) => 0.0,
            (_, true) => 1.0,
            _ => (low..=k).map(|i| self.binomial(n, i, p)).sum(),
        }
    }

    /// The largest number of losses of `n` at which the test finds a difference.
    fn critical(&mut self, n: u64) -> Option<u64> {
        if let Some(known) = self.critical.get(&n) {
            return *known;
        }
        let alpha = self.test.alpha / self.test.sides.count();
        let (low, _) = likely(n, 0.5);
        let mut sum = 0.0;
        let mut found = None;
        for k in low..=n {
            sum += self.binomial(n, k, 0.5);
            // Sums that are equal to alpha but for rounding are not above it.
            if sum > alpha * (1.0 + 1e-12) {
                break;
            }
            found = Some(k);
        }
        self.critical.insert(n, found);
        found
    }

    /// Power over `n` comparisons, all with a winner.
    fn of_winners(&mut self, n: u64, win: f64) -> f64 {
        let Some(critical) = self.critical(n) else { return 0.0 };
        let right = self.at_most(n, critical, 1.0 - win);
        match self.test.sides {
            Sides::One => right,
            Sides::Two => right + self.at_most(n, critical, win),
        }
    }

    /// Power over `n` comparisons. `known`: that over comparisons with a winner, by their number, for the same share of wins.
    fn power(&mut self, n: u64, of: Comparisons, known: &mut HashMap<u64, f64>) -> f64 {
        let (low, high) = if of.ties == 0.0 { (n, n) } else { likely(n, 1.0 - of.ties) };
        (low..=high)
            .map(|winners| {
                let power = *known.entry(winners).or_insert_with(|| self.of_winners(winners, of.win));
                self.binomial(n, winners, 1.0 - of.ties) * power
            })
            .sum()
    }
}

/// The numbers that have nearly all of the probability of a binomial distribution.
fn likely(n: u64, p: f64) -> (u64, u64) {
    let (mean, deviation) = (n as f64 * p, (n as f64 * p * (1.0 - p)).sqrt());
    let width = WIDTH * deviation + WIDTH;
    ((mean - width).max(0.0) as u64, ((mean + width).ceil() as u64).min(n))
}

/// Power of the exact sign test over `judgements` comparisons: the probability that it finds which system is better. At most [`MOST_JUDGEMENTS`] are counted.
pub fn sign_test_power(judgements: u64, of: Comparisons, test: Test) -> f64 {
    let judgements = judgements.min(MOST_JUDGEMENTS);
    SignTests::new(judgements, test).power(judgements, of, &mut HashMap::new())
}

/// The smallest number of comparisons from which on the sign test has this power, and with every larger number too: the power of an exact test goes up in a sawtooth. None
/// if there is no difference, no winner, or [`MOST_JUDGEMENTS`] do not suffice.
pub fn sign_test_size(of: Comparisons, test: Test, power: f64) -> Option<u64> {
    let distance = (of.win - 0.5).abs();
    let winners = (normal_quantile(1.0 - test.alpha / test.sides.count())
        + normal_quantile(power) * 2.0 * (of.win * (1.0 - of.win)).sqrt())
    .max(0.0)
    .powi(2)
        / (4.0 * distance * distance);
    // The normal approximation (Noether 1987), and room for the sawtooth about it.
    let guess = winners / (1.0 - of.ties);
    let room = 8.0 * guess.sqrt() + 60.0;
    if !guess.is_finite() || guess + room > MOST_JUDGEMENTS as f64 {
        return None;
    }
    let (least, most) = ((guess - room).max(0.0) as u64, (guess + room) as u64);
    let (mut tests, mut known) = (SignTests::new(most, test), HashMap::new());
    let last_below = (least..=most).rev().find(|n| tests.power(*n, of, &mut known) < power);
    match last_below {
        Some(n) if n == most => None,
        Some(n) => Some(n + 1),
        None => Some(least),
    }
}

/// The smallest share of wins above a half that the sign test finds with this power among `judgements` comparisons. None if it does not even find that one
/// system always wins.
pub fn detectable_win(judgements: u64, ties: f64, test: Test, power: f64) -> Option<f64> {
    let judgements = judgements.min(MOST_JUDGEMENTS);
    let mut tests = SignTests::new(judgements, test);
    let mut finds =
        |win: f64| tests.power(judgements, Comparisons { win, ties }, &mut HashMap::new()) >= power;
    finds(1.0).then(|| bisect(0.5, 1.0, 30, finds))
}

/// Power of the comparison of two shares in two groups of `size` each.
pub fn proportions_power(size: f64, (first, second): (f64, f64), test: Test) -> f64 {
    let (pooled, apart) = deviations(first, second);
    let quantile = normal_quantile(1.0 - test.alpha / test.sides.count());
    let distance = size.sqrt() * (first - second).abs() - quantile * pooled;
    match apart == 0.0 {
        // Both shares are certain.
        true => f64::from(u8::from(distance > 0.0)),
        false => normal_cdf(distance / apart),
    }
}

/// Size of each of two groups whose shares are distinguished with this power. None if they are equal.
pub fn proportions_size((first, second): (f64, f64), test: Test, power: f64) -> Option<f64> {
    let (pooled, apart) = deviations(first, second);
    let quantile = normal_quantile(1.0 - test.alpha / test.sides.count());
    let size = ((quantile * pooled + normal_quantile(power) * apart) / (first - second)).powi(2);
    size.is_finite().then_some(size)
}

/// Deviations of a difference of shares, times the root of the size: if both are equal, and as they are.
fn deviations(first: f64, second: f64) -> (f64, f64) {
    let mean = (first + second) / 2.0;
    let variance = |p: f64| p * (1.0 - p);
    ((2.0 * variance(mean)).sqrt(), (variance(first) + variance(second)).sqrt())
}

/// How many judgements are worth as much as one of another task, if each task has `per_task` with this correlation: the design effect of Kish (1965).
pub fn design_effect(per_task: u32, correlation: f64) -> f64 {
    1.0 + f64::from(per_task.saturating_sub(1)) * correlation
}

/// The standard normal distribution: `1/2 + density(x) (x + x³/3 + x⁵/(3·5) + …)` (Marsaglia 2004).
pub fn normal_cdf(x: f64) -> f64 {
    // Beyond, the series loses digits that the sum no longer has.
    if x.abs() > 8.0 {
        return if x > 0.0 { 1.0 } else { 0.0 };
    }
    let (mut term, mut sum, mut i) = (x, x, 1.0);
    loop {
        i += 2.0;
        term *= x * x / i;
        let next = sum + term;
        if next == sum {
            break;
        }
        sum = next;
    }
    0.5 + sum * (-0.5 * x * x).exp() / (2.0 * std::f64::consts::PI).sqrt()
}

/// The number below which the standard normal distribution has the probability `p`, by halving.
pub fn normal_quantile(p: f64) -> f64 {
    bisect(-8.0, 8.0, 60, |x| normal_cdf(x) >= p)
}

/// The smallest number between two for which a condition holds that holds for all larger ones and for `high`.
fn bisect(mut low: f64, mut high: f64, times: u32, mut holds: impl FnMut(f64) -> bool) -> f64 {
    for _ in 0..times {
        let middle = f64::midpoint(low, high);
        if holds(middle) { high = middle } else { low = middle }
    }
    high
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: Test = Test { alpha: 0.05, sides: Sides::Two };

    fn close(found: f64, wanted: f64, bound: f64) {
        assert!((found - wanted).abs() <= bound, "{found} {wanted}");
    }

    fn of(win: f64, ties: f64) -> Comparisons {
        Comparisons { win, ties }
    }

    /// scipy 1.17: `binom.sf(n - c - 1, n, p) + binom.cdf(c, n, p)` with the largest c for which `binom.cdf(c, n, .5) <= .025`; with ties, the mean of this over
    /// `binom.pmf(m, n, 1 - ties)`.
    #[test]
    fn the_sign_test_has_the_power_of_scipys_binomials() {
        for (n, win, power) in [
            (200, 0.6, 0.786_848_265_307_621_5),
            (199, 0.6, 0.803_714_599_420_820_1),
            (783, 0.55, 0.788_536_694_186_309),
            (30, 0.75, 0.803_406_918_782_048_5),
            (6, 0.9, 0.531_442),
            (5, 0.9, 0.0),
            (0, 0.9, 0.0),
        ] {
            close(sign_test_power(n, of(win, 0.0), TWO), power, 1e-11);
        }
        close(sign_test_power(100, of(0.7, 0.2), TWO), 0.945_729_266_532_794_2, 1e-11);
        close(sign_test_power(20, of(1.0, 0.0), TWO), 1.0, 1e-12);
    }

    /// An exact McNemar test, odds ratio 0.25, 40 % of 50 pairs discordant, one side, alpha 0.05, by sums over scipy 1.17's binomials: power 0.839357, actual
    /// alpha 0.032578.
    #[test]
    fn ties_count_as_in_mcnemars_test() {
        let test = Test { alpha: 0.05, sides: Sides::One };
        close(sign_test_power(50, of(0.8, 0.6), test), 0.839_357, 1e-6);
        close(sign_test_power(50, of(0.5, 0.6), test), 0.032_578, 1e-6);
    }

    /// The same by scipy: one more than the last number with less power.
    #[test]
    fn sizes_hold_for_every_larger_number() {
        for (win, ties, size) in [(0.6, 0.0, 210), (0.55, 0.0, 820), (0.75, 0.0, 35), (0.7, 0.2, 64)] {
            assert_eq!(sign_test_size(of(win, ties), TWO, 0.8), Some(size), "{win} {ties}");
            assert_eq!(sign_test_size(of(1.0 - win, ties), TWO, 0.8), Some(size), "{win} {ties}");
        }
        // Noether's approximation gives 78,482 and twice as many.
        let large = sign_test_size(of(0.505, 0.0), TWO, 0.8).unwrap();
        let with_ties = sign_test_size(of(0.505, 0.5), TWO, 0.8).unwrap();
        assert!(
            (78_000..80_000).contains(&large) && (156_000..160_000).contains(&with_ties),
            "{large} {with_ties}"
        );
        assert_eq!(sign_test_size(of(1.0, 0.0), TWO, 0.8), Some(6), "2 / 2^6 is below 0.05, 2 / 2^5 is not");
        for (win, ties) in [(0.5, 0.0), (0.6, 1.0), (0.500_01, 0.0)] {
            assert_eq!(sign_test_size(of(win, ties), TWO, 0.8), None, "{win} {ties}");
        }
        let found = detectable_win(210, 0.0, TWO, 0.8).unwrap();
        assert!(found < 0.6 && sign_test_power(210, of(found, 0.0), TWO) >= 0.8, "{found}");
        assert!(sign_test_power(210, of(found - 1e-6, 0.0), TWO) < 0.8);
        assert_eq!(detectable_win(5, 0.0, TWO, 0.8), None);
    }

    /// The examples in the help of R's `power.prop.test`: power 0.740; n = 76.7; 57.7; 109.
    #[test]
    fn proportions_are_those_of_r() {
        let pair = (0.5, 0.75);
        close(proportions_power(50.0, pair, TWO), 0.740, 5e-4);
        close(proportions_power(50.0, pair, TWO), 0.740_165_901_331_387_6, 1e-12);
        close(proportions_size(pair, TWO, 0.9).unwrap(), 76.7, 0.05);
        close(proportions_size(pair, TWO, 0.8).unwrap(), 57.7, 0.05);
        close(proportions_size(pair, Test { alpha: 0.01, ..TWO }, 0.9).unwrap(), 109.0, 0.5);
        assert_eq!(proportions_size((0.5, 0.5), TWO, 0.8), None);
    }

    /// Tables of the normal distribution (R: `pnorm(1.96)`, `qnorm(0.975)`, `pnorm(-3)`).
    #[test]
    fn the_normal_distribution_is_that_of_tables() {
        close(normal_cdf(1.96), 0.975_002_104_851_779_7, 1e-14);
        close(normal_cdf(-3.0), 0.001_349_898_031_630_094_6, 1e-15);
        close(normal_quantile(0.975), 1.959_963_984_540_054, 1e-13);
        close(normal_quantile(0.5), 0.0, 1e-13);
        close(design_effect(4, 0.5), 2.5, 0.0);
    }
}
