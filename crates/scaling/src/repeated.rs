//! Text that is read several times (Muennighoff et al. 2023, "Scaling data-constrained language models").
//!
//! ```text
//! D' = U + U R* (1 - exp(-R / R*)),  R = D/U - 1,  U different tokens, D tokens that are read
//! N' likewise, with U_N = min(N, parameters that are best for U tokens) and R*_N
//! L  = law(N', D')
//! ```

use crate::compute::FLOPS_PER_PARAMETER_AND_TOKEN;
use crate::{Allocation, ParametricLaw};

/// How fast repeated text and surplus parameters lose their worth.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RepetitionLaw {
    /// The law of text that is not repeated.
    pub fresh: ParametricLaw,
    /// R* of tokens: repetitions after which another one is worth 1/e of a first reading.
    pub token_decay: f64,
    /// R* of parameters.
    pub parameter_decay: f64,
}

/// A quantity of which `unique` are worth their number, and the rest less and less.
fn worth(total: f64, unique: f64, decay: f64) -> f64 {
    let repeated = (total / unique - 1.0).max(0.0);
    unique.min(total) * (1.0 - decay * (-repeated / decay).exp_m1())
}

impl RepetitionLaw {
    /// The constants of the paper, to the digits that it prints (section 5).
    pub const MUENNIGHOFF: RepetitionLaw =
        RepetitionLaw { fresh: ParametricLaw::MUENNIGHOFF, token_decay: 15.4, parameter_decay: 5.3 };

    /// Fresh tokens that are worth as much as reading `tokens` of a text of `unique` tokens.
    pub fn worth_of_tokens(&self, tokens: f64, unique: f64) -> f64 {
        worth(tokens, unique, self.token_decay)
    }

    /// Loss in nats for each token, of a training on `unique` different tokens.
    pub fn loss(&self, at: Allocation, unique: f64) -> f64 {
        let enough = self.fresh.best_for_tokens(unique.min(at.tokens)).parameters;
        self.fresh.loss(Allocation {
            parameters: worth(at.parameters, enough.min(at.parameters), self.parameter_decay),
            tokens: self.worth_of_tokens(at.tokens, unique),
        })
    }

    /// The allocation of `flops` with the least loss when there are `unique` different tokens: the minimum along `6 N D = flops`.
    pub fn best(&self, flops: f64, unique: f64) -> Allocation {
        let fresh = self.fresh.best(flops);
        if fresh.tokens <= unique {
            return fresh;
        }
        // Between one reading of the text and what is left for tokens with the parameters that are best for one reading; parameters lose
        // their worth faster than repetitions do, so the minimum may have more tokens than fresh text would want.
        let most = flops / (FLOPS_PER_PARAMETER_AND_TOKEN * self.fresh.best_for_tokens(unique).parameters);
        let at = |ln_tokens: f64| {
            let tokens = ln_tokens.exp();
            Allocation { parameters: flops / (FLOPS_PER_PARAMETER_AND_TOKEN * tokens), tokens }
        };
        crate::search::minimum(unique.ln(), most.ln(), |x| self.loss(at(x), unique)).map_or(fresh, at)
    }
}
