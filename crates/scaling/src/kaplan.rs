//! The laws of Kaplan et al. 2020 ("Scaling laws for neural language models"), with their constants for WebText2.
//!
//! N are parameters **without embeddings**, D tokens of WebText2 in its vocabulary of 50,257, C petaflop/s-days, L nats for each token.
//! The laws of one quantity and the law of two have constants of their own in the paper; both are as printed there.

/// Loss of a model of `parameters` trained to convergence on text without end (equation 1.1).
pub fn loss_of_parameters(parameters: f64) -> f64 {
    (8.8e13 / parameters).powf(0.076)
}

/// Loss of a large model stopped early on `tokens` of text (equation 1.2).
pub fn loss_of_tokens(tokens: f64) -> f64 {
    (5.4e13 / tokens).powf(0.095)
}

/// Loss at `days` petaflop/s-days that are spent as well as possible (equation 1.3).
pub fn loss_of_compute(days: f64) -> f64 {
    (3.1e8 / days).powf(0.050)
}

/// Loss at both sizes (equation 1.5), with the constants of its own fit (table 2).
pub fn loss(parameters: f64, tokens: f64) -> f64 {
    const ALPHA_N: f64 = 0.076;
    const ALPHA_D: f64 = 0.103;
    ((6.4e13 / parameters).powf(ALPHA_N / ALPHA_D) + 1.8e13 / tokens).powf(ALPHA_D)
}

/// Loss after `steps` steps of batches far above the critical size (equation 1.6).
pub fn loss_of_steps(parameters: f64, steps: f64) -> f64 {
    (6.5e13 / parameters).powf(0.077) + (2.1e3 / steps).powf(0.76)
}

/// Critical batch in tokens at a loss: with it training takes twice the least steps and twice the least tokens (equation 1.4).
pub fn critical_batch(loss: f64) -> f64 {
    2e8 * loss.powf(-1.0 / 0.21)
}

/// How `days` petaflop/s-days are spent best: parameters without embeddings, tokens of a batch, steps, tokens (table 6 and section 6.1).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct KaplanAllocation {
    /// Parameters without embeddings.
    pub parameters: f64,
    /// Tokens of a batch.
    pub batch: f64,
    /// Steps.
    pub steps: f64,
    /// Tokens of the whole training.
    pub tokens: f64,
}

/// The best allocation of `days` petaflop/s-days. Later work found more tokens and fewer parameters to be better (Hoffmann et al. 2022).
pub fn best(days: f64) -> KaplanAllocation {
    KaplanAllocation {
        parameters: 1.3e9 * days.powf(0.73),
        batch: 2.0e6 * days.powf(0.24),
        steps: 5.4e3 * days.powf(0.03),
        tokens: 2e10 * days.powf(0.27),
    }
}

/// Least steps and least compute of a training of `steps` steps in batches of `batch` tokens, at a critical batch of `critical`
/// (section 5.1): `S / (1 + critical/batch)` and `C / (1 + batch/critical)`.
pub fn least_steps_and_flops(steps: f64, flops: f64, batch: f64, critical: f64) -> (f64, f64) {
    (steps / (1.0 + critical / batch), flops / (1.0 + batch / critical))
}

/// Tokens from which a model of so many parameters without embeddings is not limited by its text (section 4.2).
pub fn tokens_without_overfitting(parameters: f64) -> f64 {
    5e3 * parameters.powf(0.74)
}
