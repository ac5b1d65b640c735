//! Loads of experts: their part of a step's record, and a warning about a router that prefers one expert.

use super::Trainer;
use crate::TrainError;
use crate::observer::Observer;
use bessemer_arch::Experts;
use bessemer_parallel::ExpertLoads;
use std::collections::BTreeMap;

/// Share of the tokens of a layer that an expert has only if its router has collapsed; at least twice a balanced one.
const SHARE: f64 = 0.5;

/// Steps in a row with such a share after which it is a warning.
const STEPS: u32 = 50;

/// Loads of a layer's experts.
#[derive(Debug, Clone, Copy)]
struct LayerLoads<'a> {
    layer: usize,
    /// Experts of a token.
    choices: usize,
    /// Choices of each expert.
    loads: &'a [u32],
}

/// Experts with most of the tokens of their layers.
#[derive(Debug, Default)]
pub(super) struct LoadWatch {
    /// Indexed by expert of all layers: steps in a row with more than its share.
    in_a_row: Vec<u32>,
}

impl LoadWatch {
    /// Takes the loads of a step by the layers with experts; warnings about experts that have had most tokens for long.
    fn warnings(&mut self, layers: &[LayerLoads<'_>]) -> Vec<String> {
        self.in_a_row.resize(layers.iter().map(|of| of.loads.len()).sum(), 0);
        let mut in_a_row = self.in_a_row.iter_mut();
        let mut warnings = Vec::new();
        for LayerLoads { layer, choices, loads } in layers {
            let balanced = *choices as f64 / loads.len() as f64;
            let most = SHARE.max(2.0 * balanced);
            let tokens = loads.iter().map(|load| f64::from(*load)).sum::<f64>() / *choices as f64;
            for (expert, (load, steps)) in loads.iter().zip(&mut in_a_row).enumerate() {
                *steps = if f64::from(*load) > most * tokens { steps.saturating_add(1) } else { 0 };
                if *steps == STEPS {
                    warnings.push(format!(
                        "layer {layer}: expert {expert} has had more than {:.0} % of the tokens for {STEPS} steps, {:.0} % of them now and {:.1} % in \
                         balance: its router has collapsed; raise model.experts.balance, or set model.experts.gate = \"deepseek\" or a jitter",
                        100.0 * most,
                        100.0 * f64::from(*load) / tokens,
                        100.0 * balanced
                    ));
                }
            }
        }
        warnings
    }
}

impl Trainer {
    /// Loads of the experts by the tokens of the passes that were just made, as [`Step::experts`].
    pub(super) fn loads(&mut self, observer: &mut dyn Observer) -> Result<BTreeMap<String, f64>, TrainError> {
        let model = self.runner.worker.model();
        let Some(Experts { count: most_experts, .. }) = model.experts else { return Ok(BTreeMap::new()) };
        let experts: Vec<Option<Experts>> = (0..model.layers).map(|layer| model.experts_of(layer)).collect();
        let ranks = self.runner.worker.plan().experts();
        let ExpertLoads { choices: loads, dropped_and_kept, shadows } = self.runner.worker.sum_loads()?;
        if let Some(records) = &mut self.records {
            records.note_loads(loads);
        }
        let mut layers: Vec<LayerLoads<'_>> = Vec::new();
        for (layer, (loads, of)) in loads.chunks(most_experts).zip(experts).enumerate() {
            layers.extend(of.map(|of| LayerLoads {
                layer,
                choices: of.candidates(),
                loads: &loads[..of.count],
            }));
        }
        let warnings = self.load_watch.warnings(&layers);
        layers.retain(|of| of.loads.iter().any(|load| *load > 0));
        if layers.is_empty() {
            return Ok(BTreeMap::new());
        }
        let of_layers = layers.len() as f64;
        let (mut most, mut worst, mut entropy) = (0.0, 0f64, 0.0);
        for LayerLoads { loads: layer, .. } in &layers {
            let count = layer.len() as f64;
            let all: f64 = layer.iter().map(|load| f64::from(*load)).sum();
            let share = |load: &u32| f64::from(*load) / all;
            let largest = layer.iter().map(share).fold(0.0, f64::max) * count;
            (most, worst) = (most + largest, worst.max(largest));
            let terms = layer.iter().map(share).filter(|share| *share > 0.0).map(|share| -share * share.ln());
            entropy += if layer.len() > 1 { terms.sum::<f64>() / count.ln() } else { 1.0 };
        }
        let sum = |of: usize| dropped_and_kept.iter().map(|layer| u64::from(layer[of])).sum::<u64>();
        let (dropped, kept) = (sum(0), sum(1));
        let idle = layers.iter().flat_map(|of| of.loads).filter(|load| **load == 0).count();
        let named = [
            ("load_max", most / of_layers),
            ("load_worst", worst),
            ("load_entropy", entropy / of_layers),
            ("idle", idle as f64),
        ];
        let share = (dropped + kept > 0).then(|| ("dropped", dropped as f64 / (dropped + kept) as f64));
        let shadows = shadows.map(|[all, choices]| {
            // An owner counts a shadow, and every rank that shares experts counts a gather.
            ("shadows", f64::from(all) * ranks as f64 / f64::from(choices).max(1.0))
        });
        warnings.into_iter().try_for_each(|text| self.warn(text, observer))?;
        Ok(named
            .into_iter()
            .chain(share)
            .chain(shadows)
            .map(|(name, value)| (name.to_owned(), value))
            .collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expert_with_most_tokens_for_long_is_a_warning_once() {
        let mut watch = LoadWatch::default();
        // Layers of 4 and 8 experts and 2 choices: expert 3 of layer 2 has 60 of 100 tokens.
        let even = [[50u32; 4].as_slice(), &[25; 8]];
        let uneven = [[50u32; 4].as_slice(), &[20, 20, 20, 60, 20, 20, 20, 20]];
        let of = |loads: [&'static [u32]; 2]| {
            [(0, loads[0]), (2, loads[1])].map(|(layer, loads)| LayerLoads { layer, choices: 2, loads })
        };
        let mut warnings = Vec::new();
        for _ in 0..2 * STEPS {
            warnings.extend(watch.warnings(&of(uneven)));
        }
        assert_eq!(warnings.len(), 1);
        let start = "layer 2: expert 3 has had more than 50 % of the tokens for 50 steps, 60 % of them now and 25.0 % in balance";
        assert!(warnings[0].starts_with(start), "{warnings:?}");
        // A step below the share begins anew.
        assert!(watch.warnings(&of(even)).is_empty());
        assert!((0..STEPS - 1).all(|_| watch.warnings(&of(uneven)).is_empty()));
        assert_eq!(watch.warnings(&of(uneven)).len(), 1);
        // Half of the experts for every token: none can have twice a balanced share.
        let two = [LayerLoads { layer: 0, choices: 2, loads: &[100, 100, 0, 0] }];
        let mut watch = LoadWatch::default();
        assert!((0..=STEPS).all(|_| watch.warnings(&two).is_empty()));
    }
}
