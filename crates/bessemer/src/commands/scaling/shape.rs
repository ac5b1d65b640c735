//! A shape for a number of parameters.

use bessemer_arch::{Model, named};

/// Width over layers that is aimed at. Over a range of 40 times the loss changes by about 3 % (Kaplan et al. 2020, figure 5); the models
/// of Llama 2 and 3 have 102 to 128.
const WIDTH_BY_LAYERS: f64 = 100.0;
/// Widths from which heads are 128 wide, and steps of the width larger.
const WIDE: usize = 2048;
/// Widths and layers of the smallest and largest model.
const WIDTHS: std::ops::RangeInclusive<usize> = 64..=65_536;
const LAYERS: std::ops::RangeInclusive<usize> = 2..=512;

/// The model in the style of Llama whose parameters come nearest: of those within 2 %, the one whose width over layers is nearest to
/// the aim. None where the vocabulary alone is larger.
pub(super) fn nearest(parameters: f64, vocabulary: usize) -> Option<Model> {
    let style = named("llama")?;
    let mut best: Option<(f64, Model)> = None;
    let mut width = *WIDTHS.start();
    while WIDTHS.contains(&width) {
        let head_dim = if width < WIDE { 64 } else { 128 };
        let heads = width / head_dim;
        // Two thirds of four times the width, in whole multiples of 64.
        let ffn_width = (8 * width / 3).next_multiple_of(64);
        let shape = |layers: usize| Model {
            vocab_size: vocabulary,
            layers,
            width,
            heads,
            kv_heads: heads,
            head_dim,
            ffn_width,
            tied_embeddings: parameters < 1e9,
            ..style.clone()
        };
        let [none, one] = [1, 2].map(|layers| shape(layers).parameters() as f64);
        let layers = ((parameters - none) / (one - none) + 1.0).round().max(0.0) as usize;
        if LAYERS.contains(&layers) {
            let model = shape(layers);
            let off = (model.parameters() as f64 / parameters).ln().abs();
            let aspect = (width as f64 / layers as f64 / WIDTH_BY_LAYERS).ln().abs();
            // Within 2 % only the aspect counts.
            let badness = aspect + 100.0 * (off - 0.02).max(0.0);
            if best.as_ref().is_none_or(|(before, _)| badness < *before) {
                best = Some((badness, model));
            }
        }
        width += if width < WIDE { 64 } else { 256 };
    }
    best.map(|(_, model)| model)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_have_about_the_parameters_and_the_aspect() {
        for parameters in [2e7, 1.2e8, 7e8, 7e9, 7e10, 4e11] {
            let model = nearest(parameters, 32_000).unwrap();
            let off = model.parameters() as f64 / parameters - 1.0;
            let aspect = model.width as f64 / model.layers as f64;
            assert!(off.abs() < 0.05, "{parameters}: {off}");
            assert!((30.0..200.0).contains(&aspect), "{parameters}: {} x {}", model.layers, model.width);
        }
        assert!(nearest(1e6, 128_256).is_none());
    }
}
