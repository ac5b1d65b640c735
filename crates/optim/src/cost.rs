//! What the update of one parameter costs, and whether it needs the parameter whole.

use crate::config::{OptimConfig, OptimizerChoice};
use crate::param::OptimParam;

/// One parameter's part of a step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct UpdateCost {
    /// The update of an element depends on all others of its tensor: a rank that has only some of them cannot make it.
    pub whole: bool,
    /// Operations of a step; what is done every so many steps counts in proportion.
    pub flops: f64,
}

/// Operations an element of an update that looks at each element alone (AdamW's).
const ELEMENT: f64 = 12.0;

impl OptimConfig {
    /// What the update of `param` costs. Products count two operations for a multiply-add:
    /// - Muon, a block of r x c with short side s and long side l: `steps (4 s^2 l + 2 s^3)`;
    /// - K-FAC, a block of r x c: `2 r c (r + c)` for the direction, `8 n^3 / 3` for the inverse of each factor of side n every
    ///   `inverse_every` steps;
    /// - everything else in proportion to its elements.
    pub fn update_cost(&self, param: &OptimParam) -> UpdateCost {
        let (rows, cols) = param.whole_shape();
        let (rows, cols) = (rows as f64, cols as f64);
        let elements = ELEMENT * rows * cols;
        let hidden = !param.blocks.is_empty();
        let blocks = param.whole_blocks().iter().map(|&b| b as f64);
        match self.optimizer {
            OptimizerChoice::Muon if hidden => {
                let products = blocks.map(|b| {
                    let (short, long) = (b.min(cols), b.max(cols));
                    4.0 * short * short * long + 2.0 * short.powi(3)
                });
                let flops = elements + self.muon.steps as f64 * products.sum::<f64>();
                UpdateCost { whole: true, flops }
            }
            OptimizerChoice::Kfac if hidden => {
                let directions = blocks.clone().map(|b| 2.0 * b * cols * (b + cols)).sum::<f64>();
                let inverses = inverse_flops(cols) + blocks.map(inverse_flops).sum::<f64>();
                let flops = elements + directions + inverses / self.kfac.inverse_every as f64;
                UpdateCost { whole: true, flops }
            }
            OptimizerChoice::Adafactor => UpdateCost { whole: true, flops: elements },
            _ => UpdateCost { whole: false, flops: elements },
        }
    }
}

/// Operations of the inverse of an n x n factor: its Cholesky factor and that one's inverse, n^3 / 3 each, and the
/// product of the latter with itself, 2 n^3.
pub(crate) fn inverse_flops(n: f64) -> f64 {
    (2.0 / 3.0 + 2.0) * n.powi(3)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{KfacConfig, MuonConfig};
    use bessemer_tensor::Buffer;
    use bessemer_units::DType;

    fn param(rows: usize, cols: usize, blocks: &[usize]) -> OptimParam {
        let view = Buffer { id: 0, len: rows * cols, dtype: DType::F32 }.matrix(rows, cols);
        OptimParam { blocks: blocks.to_vec(), ..OptimParam::new("w", view, view, true) }
    }

    #[test]
    fn only_hidden_matrices_of_muon_and_kfac_and_all_of_adafactor_must_be_whole() {
        for (optimizer, hidden, other) in [
            (OptimizerChoice::AdamW, false, false),
            (OptimizerChoice::Sgd, false, false),
            (OptimizerChoice::Lion, false, false),
            (OptimizerChoice::Adafactor, true, true),
            (OptimizerChoice::Muon, true, false),
            (OptimizerChoice::Kfac, true, false),
        ] {
            let config = OptimConfig { optimizer, ..OptimConfig::default() };
            assert_eq!(config.update_cost(&param(4, 6, &[4])).whole, hidden);
            assert_eq!(config.update_cost(&param(4, 6, &[])).whole, other);
        }
    }

    #[test]
    fn costs_are_those_of_the_products() {
        let muon = MuonConfig { steps: 5, ..MuonConfig::default() };
        let config = OptimConfig { optimizer: OptimizerChoice::Muon, muon, ..OptimConfig::default() };
        let wide = config.update_cost(&param(2, 10, &[2])).flops - 12.0 * 20.0;
        // X X^T and the square times X are 2 x 2 x 10 each, the square 2 x 2 x 2.
        assert_eq!(wide, 5.0 * (2.0 * 40.0 + 2.0 * 40.0 + 16.0));
        let kfac = KfacConfig { inverse_every: 4, ..KfacConfig::default() };
        let config = OptimConfig { optimizer: OptimizerChoice::Kfac, kfac, ..OptimConfig::default() };
        let found = config.update_cost(&param(6, 3, &[3, 3])).flops - 12.0 * 18.0;
        assert!((found - (2.0 * 108.0 + 3.0 * 72.0 / 4.0)).abs() < 1e-9, "{found}");
    }
}
