//! Degrees that a job may have, and the search over them.

use super::{Degrees, Prices, Setting, Solved};
use crate::Transformer;
use std::rc::Rc;

/// Sequences of the largest micro-batch.
const MOST_MICRO_BATCH: usize = 64;
/// Plans that are this much slower than the fastest by sums may still be it in the simulation.
const SLACK: f64 = 1.05;

/// Returns all degrees of a job: tensor-parallel ranks that divide heads and feed-forward block, at most as many stages as layers, each
/// stage of ZeRO, micro-batches up to 64 sequences.
pub fn degrees(model: &Transformer, seq: usize, global_batch: usize, devices: usize) -> Vec<Degrees> {
    let divisors = |number: usize| (1..=number).filter(move |divisor| number.is_multiple_of(*divisor));
    let splits = |ranks: &usize| {
        [model.heads, model.kv_heads, model.ffn_width].iter().all(|number| number.is_multiple_of(*ranks))
    };
    let mut all = Vec::new();
    for tensor in divisors(devices).filter(splits) {
        for pipeline in divisors(devices / tensor).filter(|stages| *stages <= model.layers) {
            let data = devices / tensor / pipeline;
            if !global_batch.is_multiple_of(data) {
                continue;
            }
            let micro_batches = divisors(global_batch / data).take_while(|of| *of <= MOST_MICRO_BATCH);
            for micro_batch in micro_batches {
                for sequence in [false, true] {
                    if sequence && (tensor == 1 || !(micro_batch * seq).is_multiple_of(tensor)) {
                        continue;
                    }
                    let zeros = if data > 1 { 0..4 } else { 0..1 };
                    all.extend(zeros.map(|zero| Degrees {
                        tensor,
                        sequence,
                        data,
                        pipeline,
                        micro_batch,
                        zero,
                    }));
                }
            }
        }
    }
    all
}

/// Answer of a search over degrees.
#[derive(Debug, Clone, PartialEq)]
pub struct Searched {
    /// The best plan of each of some degrees, the fastest first.
    pub plans: Vec<Solved>,
    /// Degrees that were looked at.
    pub degrees: usize,
    /// Of these, degrees that cannot be faster than the best plan.
    pub pruned: usize,
    /// Of these, degrees of which nothing fits.
    pub too_large: usize,
    /// Of these, degrees without prices.
    pub refused: usize,
    /// Why the first of them has none.
    pub reason: Option<String>,
    /// Combinations that were looked at.
    pub evaluations: u64,
}

/// Finds the best plan of every degrees that may be the fastest: those whose least time, as if every layer did what takes least and
/// stages were equal, is not far above the best plan's. `method` is [`super::solve`] or [`super::uniform`].
pub fn search(
    setting: &Setting<'_>,
    degrees: &[Degrees],
    prices: &mut dyn FnMut(&Degrees) -> Result<Rc<Prices>, String>,
    method: fn(&Setting<'_>, &Prices, Degrees) -> Option<Solved>,
) -> Searched {
    let mut searched = Searched {
        plans: Vec::new(),
        degrees: degrees.len(),
        pruned: 0,
        too_large: 0,
        refused: 0,
        reason: None,
        evaluations: 0,
    };
    let mut bounded = Vec::with_capacity(degrees.len());
    for of in degrees {
        match prices(of) {
            Ok(prices) => bounded.push((least_seconds(setting, &prices, of), *of, prices)),
            Err(reason) => {
                searched.refused += 1;
                searched.reason.get_or_insert(reason);
            }
        }
    }
    bounded.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    let mut best = f64::INFINITY;
    for (at, (least, of, prices)) in bounded.iter().enumerate() {
        if *least > best * SLACK {
            searched.pruned = bounded.len() - at;
            break;
        }
        match method(setting, prices, *of) {
            None => searched.too_large += 1,
            Some(solved) => {
                best = best.min(solved.seconds);
                searched.evaluations += solved.evaluations;
                searched.plans.push(solved);
            }
        }
    }
    searched.plans.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    searched
}

/// Seconds that no plan of these degrees is faster than: the passes of the fastest choices, shared equally by the stages.
fn least_seconds(setting: &Setting<'_>, prices: &Prices, degrees: &Degrees) -> f64 {
    let kinds = prices
        .kinds
        .iter()
        .map(|of| of.iter().map(|price| price.forward + price.backward).fold(f64::INFINITY, f64::min));
    let kinds: Vec<f64> = kinds.collect();
    let ends = [&prices.embedding, &prices.head].map(|price| price.forward + price.backward);
    let all: f64 = prices.layers.iter().map(|kind| kinds[*kind]).sum::<f64>() + ends.iter().sum::<f64>();
    let micro_batches = setting.micro_batches(degrees) as f64;
    let stages = degrees.pipeline as f64;
    (micro_batches + stages - 1.0) * all / stages + setting.efficiency.step_seconds
}
