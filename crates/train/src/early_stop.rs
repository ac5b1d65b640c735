//! Whether the validation loss still falls (Prechelt 1998, "Early stopping - but when?", criterion UP).

use bessemer_recipe::EarlyStopConfig;
use serde::{Deserialize, Serialize};

/// Lowest validation loss so far, and the evaluations since.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EarlyStopState {
    /// Step of the lowest loss.
    pub step: u64,
    /// That loss, nats a token.
    pub loss: f64,
    /// Evaluations in a row that were not lower.
    pub evaluations: u64,
}

impl EarlyStopState {
    /// The state after an evaluation. A loss that is not finite is none that is lower.
    pub(crate) fn after(
        state: Option<EarlyStopState>,
        config: &EarlyStopConfig,
        (step, loss): (u64, f64),
    ) -> Option<EarlyStopState> {
        let least = state.map_or(f64::INFINITY, |state| state.loss - config.min_delta);
        if loss.is_finite() && loss < least {
            return Some(EarlyStopState { step, loss, evaluations: 0 });
        }
        state.map(|state| EarlyStopState { evaluations: state.evaluations + 1, ..state })
    }

    /// Whether the run ends.
    pub(crate) fn ends(&self, config: &EarlyStopConfig) -> bool {
        config.patience > 0 && self.evaluations >= config.patience
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn evaluations_without_a_lower_loss_are_counted() {
        let config = EarlyStopConfig { patience: 2, min_delta: 0.1 };
        let mut state = None;
        // (loss, evaluations since the lowest, whether the run ends)
        let cases = [
            (f64::NAN, None, false),
            (3.0, Some(0), false),
            (2.95, Some(1), false),
            (2.8, Some(0), false),
            (f64::NAN, Some(1), false),
            (2.75, Some(2), true),
            (f64::INFINITY, Some(3), true),
        ];
        for (step, (loss, evaluations, ends)) in (1..).zip(cases) {
            state = EarlyStopState::after(state, &config, (step, loss));
            assert_eq!(state.map(|state| state.evaluations), evaluations, "{loss}");
            assert_eq!(state.is_some_and(|state| state.ends(&config)), ends, "{loss}");
        }
        assert_eq!(state.map(|state| (state.step, state.loss)), Some((4, 2.8)));
        let never = EarlyStopConfig { patience: 0, ..config };
        assert!(state.is_some_and(|state| !state.ends(&never)));
    }
}
