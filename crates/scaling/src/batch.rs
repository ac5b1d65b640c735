//! Sizes of batches and learning rates that published studies found, and the gradient noise scale of a run.

/// Peak learning rate and tokens of a batch at a compute, by the fit of DeepSeek-AI 2024 ("DeepSeek LLM", section 3.1): `0.3118 C^-0.1250` and
/// `0.2920 C^0.3271`, for AdamW with beta 0.9 and 0.95, over 1e17 to 2e19 operations without embeddings.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BatchAndRate {
    /// Tokens of a batch.
    pub batch: f64,
    /// Peak learning rate.
    pub rate: f64,
}

/// Compute of the runs behind [`deepseek`].
pub const DEEPSEEK_FLOPS: [f64; 2] = [1e17, 2e19];

/// Batch and rate at `flops`.
pub fn deepseek(flops: f64) -> BatchAndRate {
    BatchAndRate { batch: 0.2920 * flops.powf(0.3271), rate: 0.3118 * flops.powf(-0.1250) }
}

/// The simple gradient noise scale of McCandlish et al. 2018 (appendix A): `B_simple = S / |G|^2`, from the squared norms of gradients over two
/// sizes of batches, each averaged over steps.
///
/// ```text
/// |G|^2 = (B_big |G_big|^2 - B_small |G_small|^2) / (B_big - B_small)
/// S     = (|G_small|^2 - |G_big|^2) / (1/B_small - 1/B_big)
/// ```
///
/// In the unit of the sizes. None where the averages are too noisy for an estimate above zero.
pub fn noise_scale(small: [f64; 2], big: [f64; 2]) -> Option<f64> {
    let ([b_small, g_small], [b_big, g_big]) = (small, big);
    let squared = (b_big * g_big - b_small * g_small) / (b_big - b_small);
    let noise = (g_small - g_big) / (1.0 / b_small - 1.0 / b_big);
    (squared > 0.0 && noise > 0.0).then(|| noise / squared)
}
