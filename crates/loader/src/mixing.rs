//! Training on a mixture: which component of a split gives sample c, and which of its own samples that is.
//!
//! ```text
//! weights    as they are asked for; without any, w_d = n_d^(1/T) / Σ n^(1/T), n_d the samples of component d
//! epochs     no component gives more than epochs_d · n_d samples of the run (`capped_weights`)
//! slots      p_d of Q = 2^20, by largest remainders: Σ p = Q; divided by what they all share, Q and p are the period's
//! place i    of a period: the component with the largest  p_d · max(i, 1) − Q · taken_d,  the first of equals
//! sample c   d = order[c mod Q], its sample number (c div Q) · p_d + (times that d stands before this place)
//! ```
//!
//! Within a period this is Megatron-LM's blend, with weights that are multiples of 2^-20. Such a blend closes: the one that
//! is chosen is never ahead by more than 1 − w_d of a sample, so after Q places each component has given exactly p_d, and
//! the blend can begin again. So one period is stored (6 bytes a place, 6 MiB at most), any sample is found at once, and
//! resuming needs the counter alone.
//!
//! No component is ever ahead of its share by a sample. It is behind by less than 1 sample where there are two, and by less
//! than their number minus one where there are more (of 5 %, 61 % and 34 % the second is once behind by 1.03). A
//! cap binds up to the rounding of the weights: to within a millionth of the run.
//!
//! Cost: Q · components once; a table look-up a sample.

use crate::error::{LoadError, any_scored};
use crate::mixture::{capped_weights, normalised, temperature_weights};
use crate::order::fold;
use crate::state::MixtureShare;
use crate::training::Stream;
use bessemer_shards::ShardSet;

/// Parts that weights are multiples of.
const SLOTS: u64 = 1 << 20;
/// Most components of a mixture.
pub const MOST_COMPONENTS: usize = 1024;

/// Share that one component is asked to have.
#[derive(Debug, Clone, PartialEq)]
pub struct Share {
    /// Its name in the shards.
    pub name: String,
    /// Its share of the samples, relative to the other weights. Either every component has one or none.
    pub weight: Option<f64>,
    /// Most passes over it; without it, any number.
    pub epochs: Option<f64>,
}

/// Part of one component that a run takes.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Taken {
    /// Its name.
    pub name: String,
    /// Tokens that it holds.
    pub tokens: u64,
    /// Samples of one pass over it.
    pub samples_per_epoch: u64,
    /// Its share of the samples of the run.
    pub weight: f64,
    /// Samples that the run takes.
    pub samples: u64,
    /// Passes over it that these are.
    pub epochs: f64,
}

/// The components of a split, and the order in which they give samples.
#[derive(Debug, Clone, PartialEq)]
pub struct Mixture {
    parts: Vec<Part>,
    /// Component at each place of the period.
    order: Vec<u16>,
    /// How often that component stands before this place.
    ranks: Vec<u32>,
    seq_len: usize,
}

#[derive(Debug, Clone, PartialEq)]
struct Part {
    name: String,
    tokens: u64,
    /// Places of the period that are this component's.
    slots: u64,
    /// Its samples, before the seed of the order is known.
    stream: Stream,
}

fn wrong(problem: String) -> LoadError {
    LoadError::Mixture(problem)
}

impl Mixture {
    /// The mixture of a split's components for a run of `samples` samples with `seq_len` inputs. `shares` say what is asked
    /// of each component; `temperature` holds where none has a weight.
    ///
    /// # Errors
    /// Components that are not those of `shares`, weights for some only, a weight for a component smaller than one sample,
    /// values out of range, epochs under which the components do not give `samples` samples, or a component with a share and without a
    /// scored target.
    pub fn new(
        set: &ShardSet,
        seq_len: usize,
        shares: &[Share],
        temperature: f64,
        samples: u64,
    ) -> Result<Mixture, LoadError> {
        Mixture::after(set, seq_len, shares, temperature, samples, &[])
    }

    /// As [`Mixture::new`], for the next `samples` samples of a run to which the components, in the order of the shards, have given
    /// `given` samples already: these count towards their epochs.
    ///
    /// # Errors
    /// As [`Mixture::new`].
    pub fn after(
        set: &ShardSet,
        seq_len: usize,
        shares: &[Share],
        temperature: f64,
        samples: u64,
        given: &[u64],
    ) -> Result<Mixture, LoadError> {
        crate::training::check_sequence_length(seq_len)?;
        let (components, place) = (set.components(), set.path().display());
        if components.len() > MOST_COMPONENTS {
            return Err(wrong(format!(
                "a mixture of {} components: expected at most {MOST_COMPONENTS}",
                components.len()
            )));
        }
        let found: Vec<&str> = components.iter().map(|component| component.name.as_str()).collect();
        if shares.len() != found.len() || shares.iter().any(|share| !found.contains(&share.name.as_str())) {
            let asked: Vec<&str> = shares.iter().map(|share| share.name.as_str()).collect();
            return Err(wrong(format!(
                "{place} holds the components {}, the mixture names {}; rebuild corpus and shards with \
                 `bessemer run`",
                found.join(", "),
                asked.join(", ")
            )));
        }
        let asked = |name: &str| shares.iter().find(|share| share.name == name);
        let (mut parts, mut weights, mut epochs) = (Vec::new(), Vec::new(), Vec::new());
        for component in components {
            let tokens = component.tokens.end - component.tokens.start;
            let stream = Stream::over(component.tokens.clone(), seq_len, 0);
            let share = asked(&component.name);
            weights.push(share.and_then(|share| share.weight));
            epochs.push(share.and_then(|share| share.epochs).unwrap_or(f64::INFINITY));
            parts.push(Part { name: component.name.clone(), tokens, slots: 0, stream });
        }
        let sizes: Vec<u64> = parts.iter().map(|part| part.stream.samples).collect();
        let weights = asked_weights(&parts, &weights, temperature, seq_len)?;
        for ((epochs, size), given) in epochs.iter_mut().zip(&sizes).zip(given) {
            if *given > 0 && *size > 0 {
                *epochs = (*epochs - *given as f64 / *size as f64).max(0.0);
            }
        }
        let weights = capped_weights(&weights, &sizes, &epochs, samples)?;
        let slots = slots(&weights);
        let (order, ranks) = period(&slots);
        for ((part, slots), component) in parts.iter_mut().zip(slots).zip(components) {
            part.slots = slots;
            if slots > 0 && !any_scored(set, component.tokens.start + 1..component.tokens.end)? {
                return Err(wrong(format!(
                    "component {:?} has {} tokens and none of its targets is scored; give it a weight of 0, or documents with answers",
                    part.name, part.tokens
                )));
            }
        }
        Ok(Mixture { parts, order, ranks, seq_len })
    }

    /// The component that gives sample `counter` of the run, and the number of that sample among its own.
    pub fn at(&self, counter: u64) -> (usize, u64) {
        let period = self.order.len() as u64;
        let (round, place) = (counter / period, (counter % period) as usize);
        let component = usize::from(self.order[place]);
        (component, round * self.parts[component].slots + u64::from(self.ranks[place]))
    }

    /// Samples that each component gives to the first `samples` of the run.
    fn given(&self, samples: u64) -> Vec<u64> {
        let slots: Vec<u64> = self.parts.iter().map(|part| part.slots).collect();
        count(&slots, &self.order, samples)
    }

    /// What a run of `samples` samples takes of each component.
    pub fn taken(&self, samples: u64) -> Vec<Taken> {
        self.taken_after(samples, &[])
    }

    /// As [`Mixture::taken`], with the samples that each component has given before.
    pub(crate) fn taken_after(&self, samples: u64, before: &[u64]) -> Vec<Taken> {
        let take = |(part, samples): (&Part, u64)| Taken {
            name: part.name.clone(),
            tokens: part.tokens,
            samples_per_epoch: part.stream.samples,
            weight: part.slots as f64 / self.order.len() as f64,
            samples,
            epochs: if samples == 0 { 0.0 } else { samples as f64 / part.stream.samples as f64 },
        };
        let before = before.iter().copied().chain(std::iter::repeat(0));
        let given = self.given(samples).into_iter().zip(before).map(|(given, before)| given + before);
        self.parts.iter().zip(given).map(take).collect()
    }

    /// Identity of the mixture in a checkpoint.
    pub(crate) fn identity(&self) -> Vec<MixtureShare> {
        let share = |part: &Part| MixtureShare {
            name: part.name.clone(),
            tokens: part.tokens,
            slots: part.slots,
            period: self.order.len() as u64,
        };
        self.parts.iter().map(share).collect()
    }

    /// Inputs of a sample.
    pub(crate) fn seq_len(&self) -> usize {
        self.seq_len
    }

    /// The samples of each component, in orders that differ between components: each follows from the seed and the name,
    /// so it stays the same when other components come and go.
    pub(crate) fn streams(&self, seed: u64) -> Vec<Stream> {
        self.parts.iter().map(|part| Stream { seed: fold(seed, &part.name), ..part.stream }).collect()
    }
}

/// The weights that are asked for, or those of the temperature.
fn asked_weights(
    parts: &[Part],
    asked: &[Option<f64>],
    temperature: f64,
    seq_len: usize,
) -> Result<Vec<f64>, LoadError> {
    if asked.iter().all(Option::is_none) {
        let sizes: Vec<u64> = parts.iter().map(|part| part.stream.samples).collect();
        return temperature_weights(&sizes, temperature);
    }
    let mut weights = Vec::with_capacity(parts.len());
    for (part, weight) in parts.iter().zip(asked) {
        let weight = weight.ok_or_else(|| {
            wrong(format!("component {:?} has no weight and others have one: give it one too", part.name))
        })?;
        if weight > 0.0 && part.stream.samples == 0 {
            return Err(wrong(format!(
                "component {:?} has a weight of {weight} and {} tokens for training, one sample needs {} (sequence length \
                 {seq_len}); give it more text or a weight of 0",
                part.name,
                part.tokens,
                seq_len + 1
            )));
        }
        weights.push(weight);
    }
    normalised(&weights)
}

/// Multiples of 2^-20 for weights that sum to 1: rounded down, what is left to the largest remainders, but at least one
/// for each weight above 0. Divided by what all have in common.
fn slots(weights: &[f64]) -> Vec<u64> {
    let exact: Vec<f64> = weights.iter().map(|weight| weight * SLOTS as f64).collect();
    let mut slots: Vec<u64> =
        exact.iter().map(|&exact| if exact > 0.0 { (exact as u64).max(1) } else { 0 }).collect();
    let remainder = |d: usize| exact[d] - exact[d].floor();
    let mut order: Vec<usize> = (0..slots.len()).filter(|&d| slots[d] > 0).collect();
    order.sort_by(|&a, &b| remainder(b).total_cmp(&remainder(a)).then(a.cmp(&b)));
    let sum: u64 = slots.iter().sum();
    for &d in order.iter().cycle().take(SLOTS.saturating_sub(sum) as usize) {
        slots[d] += 1;
    }
    // Tiny weights that were rounded up take theirs from the largest.
    for _ in 0..sum.saturating_sub(SLOTS) {
        if let Some(largest) = slots.iter_mut().max() {
            *largest -= 1;
        }
    }
    let shared = slots.iter().fold(0, |a, &b| divisor(a, b));
    slots.iter().map(|&own| own / shared.max(1)).collect()
}

/// Greatest common divisor (Euclid); of 0 and b it is b.
fn divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { divisor(b, a % b) }
}

/// Samples that each component gives to the first `samples`.
fn count(slots: &[u64], order: &[u16], samples: u64) -> Vec<u64> {
    let period = order.len().max(1) as u64;
    let mut given: Vec<u64> = slots.iter().map(|slots| samples / period * slots).collect();
    for &component in &order[..(samples % period) as usize] {
        given[usize::from(component)] += 1;
    }
    given
}

/// Samples that components with these places of a period give to the first `samples`.
///
/// # Errors
/// Places that no mixture has.
pub(crate) fn given_by(places: &[u64], samples: u64) -> Result<Vec<u64>, LoadError> {
    let sum = places.iter().try_fold(0u64, |sum, slots| sum.checked_add(*slots));
    if places.len() > MOST_COMPONENTS || !sum.is_some_and(|sum| (1..=SLOTS).contains(&sum)) {
        return Err(wrong(format!(
            "a saved mixture of {} components: expected 1 to {SLOTS} places of a period of at most {MOST_COMPONENTS} components",
            places.len()
        )));
    }
    Ok(count(places, &period(places).0, samples))
}

/// One period: the component at each place, and how often it stood before.
fn period(slots: &[u64]) -> (Vec<u16>, Vec<u32>) {
    let length: u64 = slots.iter().sum();
    let present: Vec<usize> = (0..slots.len()).filter(|&d| slots[d] > 0).collect();
    let mut taken = vec![0_u32; slots.len()];
    let (mut order, mut ranks) = (Vec::with_capacity(length as usize), Vec::with_capacity(length as usize));
    for place in 0..length {
        // At most 2^40 in size, so exact in 64 bits.
        let at = place.max(1) as i64;
        let behind = |d: usize| slots[d] as i64 * at - length as i64 * i64::from(taken[d]);
        let mut best: Option<(i64, usize)> = None;
        for &d in &present {
            let behind = behind(d);
            if best.is_none_or(|(most, _)| behind > most) {
                best = Some((behind, d));
            }
        }
        let Some((_, chosen)) = best else { break };
        order.push(chosen as u16);
        ranks.push(taken[chosen]);
        taken[chosen] += 1;
    }
    (order, ranks)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mixture::blend;

    fn order(weights: &[f64], places: usize) -> Vec<u16> {
        let (order, _) = period(&slots(weights));
        order.iter().copied().cycle().take(places).collect()
    }

    /// Values of Megatron-LM's `build_blending_indices`, and its blend for other weights.
    #[test]
    fn the_order_is_megatrons() {
        assert_eq!(order(&[0.5, 0.25, 0.25], 12), [0, 1, 2, 0, 0, 1, 2, 0, 0, 1, 2, 0]);
        assert_eq!(order(&[1.0 / 3.0; 3], 9), [0, 1, 2, 0, 1, 2, 0, 1, 2]);
        assert_eq!(order(&[0.6, 0.4], 10), [0, 1, 0, 1, 0, 0, 1, 0, 1, 0]);
        // Weights that are multiples of 2^-20, whose blend f64 gives exactly: the same at every place of the period.
        for slots in [vec![700_001, 200_000, 100_002, 48_573], vec![1, 1_048_575], vec![1_048_576]] {
            let weights: Vec<f64> = slots.iter().map(|&slots| slots as f64 / SLOTS as f64).collect();
            let length = if slots.len() == 1 { 1 } else { SLOTS as usize };
            assert!(order(&weights, length) == blend(&weights, length).unwrap().datasets, "{slots:?}");
        }
    }

    #[test]
    fn slots_sum_up_and_are_as_near_to_the_weights_as_they_can_be() {
        assert_eq!(slots(&[0.5, 0.25, 0.25]), [2, 1, 1]);
        assert_eq!(slots(&[1.0]), [1]);
        assert_eq!(slots(&[0.0, 1.0]), [0, 1]);
        for weights in
            [vec![0.7, 0.2, 0.1], vec![1.0 / 3.0; 3], vec![0.123_456, 0.876_544], vec![1e-9, 1.0 - 1e-9]]
        {
            let slots = slots(&weights);
            let sum: u64 = slots.iter().sum();
            assert!(sum.is_power_of_two() && sum <= SLOTS, "{slots:?}");
            for (slots, weight) in slots.iter().zip(&weights) {
                let off = (*slots as f64 / sum as f64 - weight).abs();
                assert!(off <= 1.0 / SLOTS as f64, "{weight}: {off}");
                assert!(*slots > 0);
            }
        }
    }

    /// Two components stay within 1 sample of their share at every place; more are never ahead by 1 and never behind by
    /// their number minus one.
    #[test]
    fn shares_follow_the_weights_at_every_place() {
        for weights in [
            vec![0.7, 0.3],
            vec![0.999, 0.001],
            vec![0.05, 0.61, 0.34],
            vec![0.2, 0.41, 0.3, 0.04, 0.03, 0.02],
        ] {
            let slots = slots(&weights);
            let (order, ranks) = period(&slots);
            let length = order.len() as f64;
            let behind = weights.len() as f64 - 1.0;
            let mut taken = vec![0_u32; weights.len()];
            for (place, (&d, &rank)) in order.iter().zip(&ranks).enumerate() {
                assert_eq!(rank, taken[usize::from(d)]);
                taken[usize::from(d)] += 1;
                for (slots, taken) in slots.iter().zip(&taken) {
                    let owed = *slots as f64 / length * (place + 1) as f64 - f64::from(*taken);
                    assert!(owed > -1.0 && owed < behind, "{weights:?} at place {place}: {owed}");
                }
            }
            // The period closes.
            assert!(slots.iter().zip(&taken).all(|(slots, taken)| *slots == u64::from(*taken)));
        }
    }
}
