//! Choosing the next token from logits.
//!
//! In this order, each step switched off by its neutral value:
//!
//! 1. repetition penalty r: a logit l of a token that occurred becomes l / r if l > 0, else l r (Keskar et al., "CTRL",
//!    2019);
//! 2. frequency penalty f and presence penalty q: a logit of a token that was generated n > 0 times becomes l - f n - q (OpenAI's API reference; tokens of
//!    the prompt do not count, as in vLLM);
//! 3. temperature T: p = softmax(l / T); T = 0 takes the largest logit, the lowest token among equals;
//! 4. top-k: only the k most probable tokens (Fan et al. 2018), lower tokens first among equals, so exactly k;
//! 5. min-p: of these, the tokens with at least min-p times the probability of the most probable one (Nguyen et al. 2024);
//! 6. top-p: of these, the smallest set of most probable tokens that holds at least p of their probability (nucleus
//!    sampling, Holtzman et al. 2019), at least one;
//! 7. the inverse of the remaining distribution function at a uniform number.
//!
//! The uniform number of token i of sample s is a pure function of (seed, s, i). Cost: O(V), and O(m log m) for the m
//! tokens that top-k leaves (V without top-k) when top-k or top-p is on.

use crate::error::EvalError;
use bessemer_tensor::rng::RngKey;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How the next token is chosen.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SamplingConfig {
    /// Divides the logits: below 1 bolder, above 1 more even. 0 always takes the most probable token.
    pub temperature: f64,
    /// Choose among this many most probable tokens; 0: among all.
    pub top_k: u64,
    /// Choose among the most probable tokens that together hold this probability; 1: among all.
    pub top_p: f64,
    /// Choose among the tokens with at least this share of the probability of the most probable one; 0: among all.
    pub min_p: f64,
    /// Makes tokens that occurred already less probable; 1: leaves them, 1.1 to 1.3 is usual.
    pub repetition_penalty: f64,
    /// Subtracted from the logit of a token for each time that it was generated; 0: none.
    pub frequency_penalty: f64,
    /// Subtracted from the logit of a token that was generated; 0: none.
    pub presence_penalty: f64,
    /// Seed of the choices. The same seed gives the same text.
    pub seed: u64,
}

impl Default for SamplingConfig {
    fn default() -> Self {
        SamplingConfig {
            temperature: 0.8,
            top_k: 0,
            top_p: 0.95,
            min_p: 0.0,
            repetition_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            seed: 0,
        }
    }
}

impl SamplingConfig {
    /// Always the most probable token.
    pub fn greedy() -> SamplingConfig {
        SamplingConfig { temperature: 0.0, top_p: 1.0, ..SamplingConfig::default() }
    }

    /// Says which key has which value outside its allowed range, if any.
    ///
    /// # Errors
    /// A sentence for the user.
    pub fn check(&self) -> Result<(), String> {
        let in_range = |key: &str, value: f64, allowed: bool, wanted: &str| {
            if allowed { Ok(()) } else { Err(format!("{key} = {value}: wanted {wanted}")) }
        };
        let (t, p, r) = (self.temperature, self.top_p, self.repetition_penalty);
        in_range("temperature", t, (0.0..=100.0).contains(&t), "0 (most probable token) to 100")?;
        in_range("top_p", p, p > 0.0 && p <= 1.0, "more than 0 and at most 1")?;
        in_range("min_p", self.min_p, (0.0..=1.0).contains(&self.min_p), "0 to 1")?;
        in_range("repetition_penalty", r, (0.01..=100.0).contains(&r), "0.01 to 100, 1 for none")?;
        for (key, penalty) in
            [("frequency_penalty", self.frequency_penalty), ("presence_penalty", self.presence_penalty)]
        {
            in_range(key, penalty, (-2.0..=2.0).contains(&penalty), "-2 to 2, 0 for none")?;
        }
        if self.seed > i64::MAX as u64 {
            return Err(format!("seed = {}: wanted 0 to {}", self.seed, i64::MAX));
        }
        Ok(())
    }
}

/// The uniform number in [0, 1), with 53 bits, that chooses token `index` of sample `sample`.
pub fn uniform(seed: u64, sample: u64, index: u64) -> f64 {
    let words = RngKey::new(seed, sample, "generate").block(index);
    let bits = (u64::from(words[0]) << 32 | u64::from(words[1])) >> 11;
    bits as f64 / (1u64 << 53) as f64
}

/// Tokens around a choice.
#[derive(Debug, Clone, Copy, Default)]
pub struct SamplingContext<'a> {
    /// Tokens of the prompt; the repetition penalty looks at them.
    pub prompt: &'a [u32],
    /// Tokens generated so far; all penalties look at them.
    pub generated: &'a [u32],
    /// Tokens that must not be chosen, in ascending order.
    pub excluded: &'a [u32],
}

/// Chooses tokens. Holds settings that were checked and memory that is used again.
#[derive(Debug)]
pub struct Sampler {
    config: SamplingConfig,
    /// Tokens that are left, with their logits, then with their weights.
    candidates: Vec<(f64, u32)>,
    /// Tokens that occurred, each once and in order, with the number of times that it was generated.
    occurred: Vec<(u32, u32)>,
}

impl Sampler {
    /// A sampler with these settings.
    ///
    /// # Errors
    /// [`EvalError::Setting`] naming the key that is out of range.
    pub fn new(config: &SamplingConfig) -> Result<Sampler, EvalError> {
        config.check().map_err(EvalError::Setting)?;
        Ok(Sampler { config: config.clone(), candidates: Vec::new(), occurred: Vec::new() })
    }

    /// The settings.
    pub fn config(&self) -> &SamplingConfig {
        &self.config
    }

    /// Chooses token `index` of sample `sample`.
    ///
    /// # Errors
    /// As [`Sampler::pick`].
    pub fn pick_nth(
        &mut self,
        logits: &[f32],
        context: SamplingContext<'_>,
        sample: u64,
        index: u64,
    ) -> Result<u32, EvalError> {
        self.pick(logits, context, uniform(self.config.seed, sample, index))
    }

    /// Chooses a token by a number in [0, 1): a pure function of the arguments and the settings. Minus infinity excludes
    /// a token.
    ///
    /// # Errors
    /// [`EvalError::Logit`] for a logit that is no number or plus infinity; [`EvalError::NoCandidate`] without logits or
    /// where all are minus infinity.
    pub fn pick(
        &mut self,
        logits: &[f32],
        context: SamplingContext<'_>,
        uniform: f64,
    ) -> Result<u32, EvalError> {
        if let Some(token) = logits.iter().position(|l| l.is_nan() || *l == f32::INFINITY) {
            return Err(EvalError::Logit { token, value: logits[token] });
        }
        self.collect(logits, context)?;
        if self.config.temperature == 0.0 {
            let best =
                self.candidates.iter().copied().reduce(|best, c| if before(&c, &best) { c } else { best });
            return best.map(|c| c.1).ok_or(EvalError::NoCandidate("every token is excluded"));
        }
        self.keep_top_k();
        self.weigh();
        self.keep_min_p();
        self.keep_top_p();
        let total: f64 = self.candidates.iter().map(|c| c.0).sum();
        let wanted = uniform * total;
        let mut sum = 0.0;
        for &(weight, token) in &self.candidates {
            sum += weight;
            if sum > wanted {
                return Ok(token);
            }
        }
        // Rounding: the sum ended just below the wanted number. The last token that can be chosen at all.
        let last = self.candidates.iter().rev().find(|c| c.0 > 0.0);
        last.map(|c| c.1).ok_or(EvalError::NoCandidate("every token is excluded"))
    }

    /// Counts the tokens that penalties look at.
    fn count_occurrences(&mut self, context: SamplingContext<'_>) {
        let SamplingConfig { repetition_penalty, frequency_penalty, presence_penalty, .. } = self.config;
        self.occurred.clear();
        if repetition_penalty != 1.0 {
            self.occurred.extend(context.prompt.iter().map(|token| (*token, 0)));
        }
        if repetition_penalty != 1.0 || frequency_penalty != 0.0 || presence_penalty != 0.0 {
            self.occurred.extend(context.generated.iter().map(|token| (*token, 1)));
        }
        self.occurred.sort_unstable();
        self.occurred.dedup_by(|next, kept| {
            let same = next.0 == kept.0;
            kept.1 += if same { next.1 } else { 0 };
            same
        });
    }

    /// The tokens that are not excluded, with their penalised logits.
    fn collect(&mut self, logits: &[f32], context: SamplingContext<'_>) -> Result<(), EvalError> {
        self.count_occurrences(context);
        let repetition = self.config.repetition_penalty;
        let mut occurred = self.occurred.iter().peekable();
        let mut excluded = context.excluded.iter().peekable();
        self.candidates.clear();
        for (token, &logit) in (0u32..).zip(logits) {
            let mut logit = f64::from(logit);
            if let Some((_, times)) = occurred.next_if(|one| one.0 == token) {
                logit = if logit > 0.0 { logit / repetition } else { logit * repetition };
                if *times > 0 {
                    logit -= self.config.frequency_penalty * f64::from(*times) + self.config.presence_penalty;
                }
            }
            let excluded = excluded.next_if_eq(&&token).is_some();
            if logit > f64::NEG_INFINITY && !excluded {
                self.candidates.push((logit, token));
            }
        }
        match self.candidates.is_empty() {
            true if logits.is_empty() => Err(EvalError::NoCandidate("the model gave no logits")),
            true => Err(EvalError::NoCandidate("every logit is minus infinity")),
            false => Ok(()),
        }
    }

    /// Leaves the `top_k` largest logits.
    fn keep_top_k(&mut self) {
        let k = usize::try_from(self.config.top_k).unwrap_or(usize::MAX);
        if k > 0 && k < self.candidates.len() {
            self.candidates.select_nth_unstable_by(k - 1, order);
            self.candidates.truncate(k);
            // The rest of the selection has no order of its own.
            self.candidates.sort_unstable_by(order);
        }
    }

    /// Turns logits into probabilities up to a factor: the largest becomes 1.
    fn weigh(&mut self) {
        let largest = self.candidates.iter().map(|c| c.0).fold(f64::NEG_INFINITY, f64::max);
        for candidate in &mut self.candidates {
            candidate.0 = ((candidate.0 - largest) / self.config.temperature).exp();
        }
    }

    /// Leaves the weights of at least `min_p`: the largest weight is 1.
    fn keep_min_p(&mut self) {
        let least = self.config.min_p;
        if least > 0.0 {
            self.candidates.retain(|candidate| candidate.0 >= least);
        }
    }

    /// Leaves the smallest set of largest weights that holds `top_p` of their sum.
    fn keep_top_p(&mut self) {
        let p = self.config.top_p;
        if p >= 1.0 {
            return;
        }
        self.candidates.sort_unstable_by(order);
        let wanted = p * self.candidates.iter().map(|c| c.0).sum::<f64>();
        let mut sum = 0.0;
        let enough = self.candidates.iter().position(|c| {
            sum += c.0;
            sum >= wanted
        });
        if let Some(last) = enough {
            self.candidates.truncate(last + 1);
        }
    }
}

/// Larger values first, lower tokens first among equals. No value is NaN.
fn order(a: &(f64, u32), b: &(f64, u32)) -> std::cmp::Ordering {
    b.0.total_cmp(&a.0).then(a.1.cmp(&b.1))
}

fn before(a: &(f64, u32), b: &(f64, u32)) -> bool {
    // Not `total_cmp`, to which -0 and 0 differ.
    a.0 > b.0 || (a.0 == b.0 && a.1 < b.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sampler(temperature: f64, top_k: u64, top_p: f64) -> Sampler {
        let config = SamplingConfig { temperature, top_k, top_p, ..SamplingConfig::default() };
        Sampler::new(&config).unwrap()
    }

    fn softmax(logits: &[f32], temperature: f64) -> Vec<f64> {
        let weights: Vec<f64> = logits.iter().map(|&l| (f64::from(l) / temperature).exp()).collect();
        let sum: f64 = weights.iter().sum();
        weights.iter().map(|w| w / sum).collect()
    }

    /// Pearson's statistic of `draws` draws against the probabilities; None if an impossible token was drawn.
    fn chi_square(sampler: &mut Sampler, logits: &[f32], wanted: &[f64], draws: u64) -> Option<f64> {
        let mut counts = vec![0u64; logits.len()];
        for index in 0..draws {
            counts[sampler.pick_nth(logits, NONE, 3, index).unwrap() as usize] += 1;
        }
        let mut statistic = 0.0;
        for (&count, &p) in counts.iter().zip(wanted) {
            let expected = p * draws as f64;
            if p > 0.0 {
                statistic += (count as f64 - expected).powi(2) / expected;
            } else if count > 0 {
                return None;
            }
        }
        Some(statistic)
    }

    const NONE: SamplingContext<'_> = SamplingContext { prompt: &[], generated: &[], excluded: &[] };
    const LOGITS: [f32; 8] = [0.3, -1.2, 2.0, 0.3, 1.1, -0.4, 0.9, -3.0];

    /// The 0.999 quantile of chi-square with 7 degrees of freedom is 24.3, with 3 it is 16.3.
    #[test]
    fn draws_follow_the_softmax_at_each_temperature() {
        for temperature in [0.5, 1.0, 2.0] {
            let wanted = softmax(&LOGITS, temperature);
            let statistic = chi_square(&mut sampler(temperature, 0, 1.0), &LOGITS, &wanted, 40_000).unwrap();
            assert!(statistic < 24.3, "{temperature}: {statistic}");
        }
        // The judge judges: a slightly other temperature is noticed.
        let other = softmax(&LOGITS, 1.1);
        assert!(chi_square(&mut sampler(1.0, 0, 1.0), &LOGITS, &other, 40_000).unwrap() > 24.3);
    }

    #[test]
    fn top_k_and_top_p_draw_from_the_renormalised_rest() {
        let p = softmax(&LOGITS, 1.0);
        let only = |kept: &[usize]| -> Vec<f64> {
            let sum: f64 = kept.iter().map(|&i| p[i]).sum();
            (0..p.len()).map(|i| if kept.contains(&i) { p[i] / sum } else { 0.0 }).collect()
        };
        // The fourth place is shared by tokens 0 and 3: the lower one is in.
        let wanted = only(&[2, 4, 6, 0]);
        let statistic = chi_square(&mut sampler(1.0, 4, 1.0), &LOGITS, &wanted, 40_000);
        assert!(statistic.unwrap() < 16.3);
        let two = p[2] + p[4];
        for (top_p, kept) in
            [(1e-9, &[2usize][..]), (p[2] - 1e-9, &[2]), (p[2] + 1e-9, &[2, 4]), (two + 1e-9, &[2, 4, 6])]
        {
            let wanted = only(kept);
            let statistic = chi_square(&mut sampler(1.0, 0, top_p), &LOGITS, &wanted, 20_000);
            assert!(statistic.expect("a token outside the nucleus was drawn") < 16.3, "{top_p}");
        }
        // Top-p is a share of what top-k left.
        let statistic = chi_square(&mut sampler(1.0, 2, p[2] / two + 1e-9), &LOGITS, &only(&[2, 4]), 20_000);
        assert!(statistic.unwrap() < 16.3);
    }

    #[test]
    fn edges_of_top_k_and_top_p_keep_everything_or_one() {
        for index in 0..500 {
            let u = uniform(9, 0, index);
            let all = sampler(1.0, 0, 1.0).pick(&LOGITS, NONE, u).unwrap();
            assert_eq!(sampler(1.0, 8, 1.0).pick(&LOGITS, NONE, u).unwrap(), all);
            assert_eq!(sampler(1.0, u64::MAX, 1.0).pick(&LOGITS, NONE, u).unwrap(), all);
            assert_eq!(sampler(1.0, 1, 1.0).pick(&LOGITS, NONE, u).unwrap(), 2);
            assert_eq!(sampler(1e-9, 0, 1.0).pick(&LOGITS, NONE, u).unwrap(), 2);
        }
    }

    #[test]
    fn temperature_zero_takes_the_lowest_of_the_largest() {
        let mut greedy = Sampler::new(&SamplingConfig::greedy()).unwrap();
        assert_eq!(greedy.pick(&[1.0, 3.0, -5.0, 3.0], NONE, 0.99).unwrap(), 1);
        assert_eq!(greedy.pick(&[-0.0, 0.0], NONE, 0.99).unwrap(), 0);
        assert_eq!(greedy.pick(&[f32::NEG_INFINITY, -9.0], NONE, 0.0).unwrap(), 1);
    }

    #[test]
    fn numbers_that_are_none_are_refused_with_their_token() {
        for temperature in [0.0, 1.0] {
            let mut s = sampler(temperature, 0, 1.0);
            for bad in [f32::NAN, f32::INFINITY] {
                let e = s.pick(&[0.0, 1.0, bad, 2.0], NONE, 0.5).unwrap_err();
                assert!(matches!(e, EvalError::Logit { token: 2, .. }), "{e}");
            }
            assert!(matches!(s.pick(&[], NONE, 0.5), Err(EvalError::NoCandidate(_))));
            assert!(matches!(s.pick(&[f32::NEG_INFINITY; 3], NONE, 0.5), Err(EvalError::NoCandidate(_))));
        }
    }

    #[test]
    fn excluded_tokens_are_never_drawn() {
        let logits = [f32::NEG_INFINITY, 0.0, f32::NEG_INFINITY, 0.0];
        let wanted = [0.0, 0.5, 0.0, 0.5];
        assert!(chi_square(&mut sampler(1.0, 3, 0.999), &logits, &wanted, 2000).unwrap() < 10.8);
    }

    #[test]
    fn repetition_penalty_is_applied_once_to_each_token_that_occurred() {
        let config = SamplingConfig { repetition_penalty: 2.0, ..SamplingConfig::greedy() };
        let mut s = Sampler::new(&config).unwrap();
        let after = |prompt, generated| SamplingContext { prompt, generated, excluded: &[] };
        assert_eq!(s.pick(&[1.1, 2.0, -3.0], NONE, 0.0).unwrap(), 1);
        // 2.0 / 2 < 1.1; twice would not matter, four times neither.
        assert_eq!(s.pick(&[1.1, 2.0, -3.0], after(&[1], &[]), 0.0).unwrap(), 0);
        assert_eq!(s.pick(&[1.1, 2.0, -3.0], after(&[], &[1]), 0.0).unwrap(), 0);
        assert_eq!(s.pick(&[0.9, 2.0, -3.0], after(&[1, 7], &[1, 1]), 0.0).unwrap(), 1);
        // A negative logit falls: -1 * 2 < -1.5.
        assert_eq!(s.pick(&[-1.0, -1.5], after(&[0], &[]), 0.0).unwrap(), 1);
    }

    /// The distribution by its definition, over all tokens and without sorting: the steps of the module's description.
    fn reference(config: &SamplingConfig, logits: &[f32], context: SamplingContext<'_>) -> Vec<f64> {
        let times = |list: &[u32], token: usize| list.iter().filter(|t| **t as usize == token).count() as f64;
        let mut logits: Vec<f64> = logits.iter().map(|l| f64::from(*l)).collect();
        for (token, logit) in logits.iter_mut().enumerate() {
            let generated = times(context.generated, token);
            if generated + times(context.prompt, token) > 0.0 {
                *logit *=
                    if *logit > 0.0 { 1.0 / config.repetition_penalty } else { config.repetition_penalty };
            }
            *logit -= config.frequency_penalty * generated;
            *logit -= if generated > 0.0 { config.presence_penalty } else { 0.0 };
            if times(context.excluded, token) > 0.0 {
                *logit = f64::NEG_INFINITY;
            }
        }
        let weights: Vec<f64> = logits.iter().map(|l| (l / config.temperature).exp()).collect();
        let normal = |weights: &[f64]| {
            let sum: f64 = weights.iter().sum();
            weights.iter().map(|w| w / sum).collect::<Vec<f64>>()
        };
        let p = normal(&weights);
        let largest = p.iter().copied().fold(0.0, f64::max);
        normal(&p.iter().map(|p| if *p >= config.min_p * largest { *p } else { 0.0 }).collect::<Vec<_>>())
    }

    /// Shares of a grid of uniform numbers: within a step of the grid they are the probabilities.
    fn shares(config: &SamplingConfig, logits: &[f32], context: SamplingContext<'_>) -> Vec<f64> {
        let (mut sampler, steps) = (Sampler::new(config).unwrap(), 20_000);
        let mut shares = vec![0.0; logits.len()];
        for step in 0..steps {
            let token = sampler.pick(logits, context, (f64::from(step) + 0.5) / f64::from(steps)).unwrap();
            shares[token as usize] += 1.0 / f64::from(steps);
        }
        shares
    }

    #[test]
    fn penalties_min_p_and_exclusion_give_the_distribution_of_their_definition() {
        let plain = SamplingConfig { temperature: 0.7, top_p: 1.0, ..SamplingConfig::default() };
        let context = SamplingContext { prompt: &[4, 4, 7, 0], generated: &[2, 6, 2, 2, 0], excluded: &[] };
        for (name, config, context) in [
            ("frequency", SamplingConfig { frequency_penalty: 0.6, ..plain.clone() }, context),
            ("negative frequency", SamplingConfig { frequency_penalty: -0.4, ..plain.clone() }, context),
            ("presence", SamplingConfig { presence_penalty: 1.5, ..plain.clone() }, context),
            ("min_p", SamplingConfig { min_p: 0.2, ..plain.clone() }, context),
            ("all of the most probable", SamplingConfig { min_p: 1.0, ..plain.clone() }, context),
            ("excluded", plain.clone(), SamplingContext { excluded: &[0, 2], ..context }),
            (
                "together",
                SamplingConfig {
                    repetition_penalty: 1.3,
                    frequency_penalty: 0.2,
                    presence_penalty: -0.5,
                    min_p: 0.1,
                    ..plain.clone()
                },
                SamplingContext { excluded: &[4], ..context },
            ),
        ] {
            let (wanted, found) = (reference(&config, &LOGITS, context), shares(&config, &LOGITS, context));
            assert_ne!(wanted, reference(&plain, &LOGITS, NONE), "{name}");
            for (token, (wanted, found)) in wanted.iter().zip(&found).enumerate() {
                // Each border of a token's interval moves by less than one step.
                assert!((wanted - found).abs() < 2.0 / 20_000.0, "{name}: {token}: {wanted} {found}");
                assert_eq!(*wanted == 0.0, *found == 0.0, "{name}: {token}");
            }
            // Greedy: the same order, whatever min-p.
            let greedy = SamplingConfig { temperature: 0.0, ..config };
            let best = Sampler::new(&greedy).unwrap().pick(&LOGITS, context, 0.5).unwrap() as usize;
            assert!(wanted.iter().all(|p| *p <= wanted[best] * (1.0 + 1e-12)), "{name}: {best}");
        }
        let all = [0, 1, 2];
        let nothing = SamplingContext { excluded: &all, ..NONE };
        assert!(matches!(sampler(1.0, 0, 1.0).pick(&[0.0; 3], nothing, 0.5), Err(EvalError::NoCandidate(_))));
    }

    #[test]
    fn choices_are_a_function_of_seed_sample_and_index() {
        let draw = |seed, sample| -> Vec<u32> {
            let mut s = Sampler::new(&SamplingConfig { seed, ..SamplingConfig::default() }).unwrap();
            (0..50).map(|i| s.pick_nth(&LOGITS, NONE, sample, i).unwrap()).collect()
        };
        assert_eq!(draw(1, 2), draw(1, 2));
        assert_ne!(draw(1, 2), draw(1, 3));
        assert_ne!(draw(1, 2), draw(2, 2));
        assert!((0..10_000).all(|i| (0.0..1.0).contains(&uniform(5, 0, i))));
    }

    #[test]
    fn settings_out_of_range_are_named() {
        for (config, key) in [
            (SamplingConfig { temperature: -1.0, ..SamplingConfig::default() }, "temperature = -1"),
            (SamplingConfig { temperature: f64::NAN, ..SamplingConfig::default() }, "temperature = NaN"),
            (SamplingConfig { top_p: 0.0, ..SamplingConfig::default() }, "top_p = 0"),
            (SamplingConfig { top_p: 1.1, ..SamplingConfig::default() }, "top_p = 1.1"),
            (
                SamplingConfig { repetition_penalty: 0.0, ..SamplingConfig::default() },
                "repetition_penalty = 0",
            ),
            (SamplingConfig { min_p: -0.1, ..SamplingConfig::default() }, "min_p = -0.1"),
            (
                SamplingConfig { frequency_penalty: 2.5, ..SamplingConfig::default() },
                "frequency_penalty = 2.5",
            ),
            (
                SamplingConfig { presence_penalty: f64::NAN, ..SamplingConfig::default() },
                "presence_penalty = NaN",
            ),
            (SamplingConfig { seed: u64::MAX, ..SamplingConfig::default() }, "seed"),
        ] {
            let e = Sampler::new(&config).unwrap_err().to_string();
            assert!(e.starts_with(key) && e.contains("wanted"), "{e}");
        }
        assert!(SamplingConfig::default().check().is_ok() && SamplingConfig::greedy().check().is_ok());
    }
}
