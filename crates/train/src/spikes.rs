//! Spike detection: a step whose loss or gradient norm is far above those of earlier steps is skipped.
//!
//! Far is more than `median + k sigma` of the last steps that were applied, with sigma = 1.4826 times the median distance
//! from the median (which is the standard deviation of a normal distribution and robust to outliers), at least
//! 1 % of the median. A spike that was left out does not enter the window; after [`PERSISTENT`] in a row the level has
//! changed permanently and the window is cleared. The window is part of the run's state, so a run that is resumed
//! decides like one that never stopped.

use bessemer_recipe::{SpikeAction, TrainConfig};
use serde::{Deserialize, Serialize};

/// Spikes in a row after which the window is forgotten.
const PERSISTENT: u32 = 20;
/// Steps that are seen before any is checked, unless the window is shorter.
const ENOUGH: usize = 32;
/// Times that a run goes back to the same checkpoint.
const REWINDS: u32 = 3;

/// Window of the preceding steps. Values are f32, which text keeps exactly.
#[derive(Debug, Default, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SpikeState {
    /// Losses of the last steps taken, oldest first.
    pub losses: Vec<f32>,
    /// Gradient norms of the same steps.
    pub norms: Vec<f32>,
    /// Spikes since the last step taken.
    pub in_a_row: u32,
    /// Step of the newest checkpoint that was planned by steps.
    pub rewind_to: Option<u64>,
    /// Times that the run went back to it.
    pub rewinds: u32,
    /// Samples that the run has passed over by going back; checkpoints from before this was counted have none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub passed_over: Option<u64>,
    /// The newest rollback after a divergence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rollback: Option<Rollback>,
}

/// A rollback after a divergence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rollback {
    /// Step at which the run had diverged.
    pub from: u64,
    /// Step of the checkpoint that it went back to.
    pub to: u64,
    /// Rollbacks without getting past `from` for long, this one included.
    pub times: u32,
}

impl SpikeState {
    /// The checkpoint of `step` is about to be written and may be gone back to.
    pub(crate) fn rewind_point(&mut self, step: u64) {
        self.rewind_to = Some(step);
        self.rewinds = 0;
    }

    /// The step to go back to, if there is one and it has not been gone back to too often.
    pub(crate) fn may_rewind(&self) -> Option<u64> {
        self.rewind_to.filter(|_| self.rewinds < REWINDS)
    }
}

/// Why a step is a spike.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Spike {
    what: &'static str,
    value: f32,
    median: f32,
    limit: f32,
    seen: usize,
}

impl std::fmt::Display for Spike {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Spike { what, value, median, limit, seen } = self;
        write!(
            f,
            "{what} {value:.4} is above {limit:.4}, far from the median {median:.4} of the last {seen} steps"
        )
    }
}

/// Detects spikes among the steps of a run.
#[derive(Debug)]
pub(crate) struct SpikeDetector {
    pub(crate) action: SpikeAction,
    sigma: f32,
    window: usize,
    sorted: Vec<f32>,
}

impl SpikeDetector {
    pub(crate) fn new(config: &TrainConfig) -> SpikeDetector {
        let window = config.spike_window as usize;
        SpikeDetector {
            action: config.spike_action,
            sigma: config.spike_sigma as f32,
            window,
            sorted: Vec::with_capacity(window),
        }
    }

    /// Checks the loss and gradient norm of a step: the spike if it is one, else the step enters the window.
    pub(crate) fn check(&mut self, state: &mut SpikeState, loss: f64, norm: f64) -> Option<Spike> {
        if !self.looks_at(loss, norm) {
            return None;
        }
        let found = self.find(state, loss, norm);
        if found.is_some() {
            state.in_a_row += 1;
            if state.in_a_row >= PERSISTENT {
                (state.losses, state.norms, state.in_a_row) = (Vec::new(), Vec::new(), 0);
            }
            return found;
        }
        state.in_a_row = 0;
        for (past, value) in [(&mut state.losses, loss as f32), (&mut state.norms, norm as f32)] {
            past.reserve((self.window + 1).saturating_sub(past.len()));
            past.push(value);
            // A window that was made shorter since the last session loses its oldest steps.
            past.drain(..past.len().saturating_sub(self.window));
        }
        None
    }

    fn looks_at(&self, loss: f64, norm: f64) -> bool {
        self.action != SpikeAction::Off && loss.is_finite() && norm.is_finite()
    }

    /// The spike that a step is, if it is one. The window stays as it is.
    pub(crate) fn find(&mut self, state: &SpikeState, loss: f64, norm: f64) -> Option<Spike> {
        if !self.looks_at(loss, norm) {
            return None;
        }
        [("loss", loss as f32, &state.losses), ("gradient norm", norm as f32, &state.norms)]
            .into_iter()
            .find_map(|(what, value, past)| self.above(what, value, past))
    }

    fn above(&mut self, what: &'static str, value: f32, past: &[f32]) -> Option<Spike> {
        if past.len() < self.window.min(ENOUGH) {
            return None;
        }
        let median = self.median(past.iter().copied());
        let distance = self.median(past.iter().map(|x| (x - median).abs()));
        let limit = median + self.sigma * (1.4826 * distance).max(0.01 * median.abs());
        (value > limit).then_some(Spike { what, value, median, limit, seen: past.len() })
    }

    /// The lower median.
    fn median(&mut self, values: impl Iterator<Item = f32>) -> f32 {
        self.sorted.clear();
        self.sorted.extend(values);
        let middle = (self.sorted.len() - 1) / 2;
        *self.sorted.select_nth_unstable_by(middle, f32::total_cmp).1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guard(sigma: f64, window: u64) -> SpikeDetector {
        let (spike_sigma, spike_window) = (sigma, window);
        SpikeDetector::new(&TrainConfig {
            spike_action: SpikeAction::Skip,
            spike_sigma,
            spike_window,
            ..TrainConfig::default()
        })
    }

    /// Losses near 3 with a spread of about 0.05.
    fn usual(i: u32) -> f64 {
        3.0 + 0.1 * (f64::from(i * 37 % 101) / 101.0 - 0.5)
    }

    #[test]
    fn a_loss_or_a_norm_far_above_the_others_is_a_spike_and_leaves_the_window_alone() {
        let (mut g, mut state) = (guard(6.0, 64), SpikeState::default());
        assert_eq!(g.check(&mut state, 1e6, 1.0), None, "nothing is known yet");
        for i in 0..100 {
            assert_eq!(g.check(&mut state, usual(i), 1.0), None, "{i}");
        }
        assert_eq!((state.losses.len(), state.norms.len()), (64, 64));
        let before = state.clone();
        let text = g.check(&mut state, 4.0, 1.0).unwrap().to_string();
        assert!(text.contains("loss 4.0000") && text.contains("last 64 steps"), "{text}");
        assert!(g.check(&mut state, 3.0, 1.2).unwrap().to_string().contains("gradient norm"));
        assert_eq!((state.in_a_row, &state.losses), (2, &before.losses));
        // Below is never a spike, and the next usual step is taken.
        assert_eq!(g.check(&mut state, 0.1, 0.01), None);
        assert_eq!(state.in_a_row, 0);
    }

    #[test]
    fn a_level_that_stays_is_accepted_after_a_while() {
        let (mut g, mut state) = (guard(6.0, 32), SpikeState::default());
        for i in 0..40 {
            g.check(&mut state, usual(i), 1.0);
        }
        let spikes = (0..40).filter(|_| g.check(&mut state, 5.0, 1.0).is_some()).count();
        assert_eq!(spikes as u32, PERSISTENT);
    }

    #[test]
    fn state_that_went_through_a_checkpoint_decides_alike() {
        let (mut g, mut state) = (guard(1.5, 16), SpikeState::default());
        let mut copy = state.clone();
        for i in 0..200 {
            let text = serde_json::to_string(&copy).unwrap();
            copy = serde_json::from_str(&text).unwrap();
            let mut fresh = guard(1.5, 16);
            let (loss, norm) = (usual(i), 1.0 + usual(i * 7) / 7.0);
            assert_eq!(g.check(&mut state, loss, norm), fresh.check(&mut copy, loss, norm));
            assert_eq!(state, copy);
        }
        assert!(serde_json::from_str::<SpikeState>("{}").unwrap() == SpikeState::default());
    }
}
