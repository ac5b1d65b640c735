//! FLOPs of a training step, by convention.

use crate::choices::PositionChoice;
use crate::model::Model;
use bessemer_units::Flops;

impl Model {
    /// Parameters that take part in the matrix products of a token: all but the tables that are only looked up, and of experts
    /// those that a token chooses. The output projection counts, whether tied or not.
    pub fn product_parameters(&self) -> usize {
        let positions = if self.positions == PositionChoice::Learned { self.context * self.width } else { 0 };
        let lookup = if self.tied_embeddings { 0 } else { self.vocab_size * self.width };
        let small = self.sum_params(|p| if p.shape.len() == 1 { p.len() } else { 0 });
        self.active_parameters() - positions - lookup - small
    }

    /// Model FLOPs of one token, forward and backward: `6 P + 12 L H E T` (Chowdhery et al. 2022, PaLM, appendix B),
    /// P = [`Model::product_parameters`], full-square attention at sequence length `seq` (a sliding window of fewer
    /// positions takes the place of T). Recomputation never counts, nor do the gradients of matrices that adapters leave frozen (2 of the 6).
    pub fn train_flops_per_token(&self, seq: usize) -> Flops {
        let seen = self.window.map_or(seq, |w| w.min(seq));
        let attention = 12.0 * self.layers as f64 * self.attention_width() as f64 * seen as f64;
        let products = self.product_parameters();
        let of_products = |spec: &crate::ParamSpec| spec.id.role().is_adapter() && spec.shape.len() > 1;
        let trained = self.sum_params(|spec| if of_products(spec) { spec.len() } else { 0 });
        let frozen = if self.adapters.is_some() { products - trained } else { 0 };
        Flops(6.0 * products as f64 - 2.0 * frozen as f64 + attention)
    }
}

#[cfg(test)]
mod tests {
    use crate::named;

    /// The reference job of the performance pages: GPT-2 124M, 4 x 256 tokens, 788 GFLOP a step.
    #[test]
    fn gpt2_reference_job() {
        let m = named("gpt2-124m").unwrap();
        let per_token = m.train_flops_per_token(256).0;
        let formula = 6.0 * (12.0 * 12.0 * 768.0 * 768.0 + 50257.0 * 768.0) + 12.0 * 12.0 * 256.0 * 768.0;
        assert!((per_token / formula - 1.0).abs() < 1e-12);
        assert_eq!((per_token * 1024.0 / 1e9).round(), 788.0);
    }
}
