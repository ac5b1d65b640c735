//! Loss scaling (Micikevicius et al. 2018, "Mixed Precision Training"): gradients in fp16 lose what is below 6e-8, so the
//! loss is multiplied by S before the backward pass and the gradients by 1/S within the update.
//!
//! The dynamic scale finds the largest S without overflow: a step whose gradient is not finite is left out; the `hysteresis`-th
//! of these since S last grew, and every one after it, halves S; `growth_interval` finite steps in a row double it. That is the rule
//! of DeepSpeed and Megatron-LM. S stays a power of two times where it began, so scaling rounds nothing.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How the loss is scaled.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LossScaleMode {
    /// "dynamic" with gradients in f16, else "off".
    #[default]
    Auto,
    /// Not at all.
    Off,
    /// By `value`, always.
    Constant,
    /// From `value` on: halved when gradients overflow, doubled when they have not for long.
    Dynamic,
}

/// `[train.loss_scale]`: a factor on the loss while gradients are computed, which the update takes back.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LossScaleConfig {
    /// "auto" ("dynamic" with gradients in f16, else "off"), "off", "constant" or "dynamic".
    pub mode: LossScaleMode,
    /// The constant factor, or where a dynamic one starts.
    pub value: f64,
    /// Which overflow since the factor last grew halves it; every further one does too.
    pub hysteresis: u64,
    /// Steps in a row without an overflow after which the factor is doubled.
    pub growth_interval: u64,
    /// A dynamic factor never goes below.
    pub floor: f64,
}

impl Default for LossScaleConfig {
    fn default() -> Self {
        LossScaleConfig {
            mode: LossScaleMode::Auto,
            value: 65_536.0,
            hysteresis: 2,
            growth_interval: 1000,
            floor: 1.0,
        }
    }
}

/// The largest factor: above, sums of squares of scaled gradients would leave f32.
const MOST: f64 = 4_294_967_296.0;

impl LossScaleConfig {
    /// Checks every key.
    ///
    /// # Errors
    /// A sentence that names the key, the value and what is allowed.
    pub fn check(&self) -> Result<(), String> {
        for (key, value) in [("value", self.value), ("floor", self.floor)] {
            if !(1e-6..=MOST).contains(&value) {
                return Err(format!("train.loss_scale.{key} = {value}: expected 1e-6 to {MOST}"));
            }
        }
        if self.value < self.floor {
            return Err(format!(
                "train.loss_scale.value = {} is below train.loss_scale.floor = {}: expected at least the floor",
                self.value, self.floor
            ));
        }
        for (key, value) in [("hysteresis", self.hysteresis), ("growth_interval", self.growth_interval)] {
            if !(1..=1_000_000_000).contains(&value) {
                return Err(format!("train.loss_scale.{key} = {value}: expected 1 to 1000000000"));
            }
        }
        Ok(())
    }

    /// Whether the factor moves, given whether gradients are in f16.
    pub fn is_dynamic(&self, f16_gradients: bool) -> bool {
        match self.mode {
            LossScaleMode::Auto => f16_gradients,
            LossScaleMode::Dynamic => true,
            LossScaleMode::Off | LossScaleMode::Constant => false,
        }
    }

    /// Whether there is a factor at all.
    pub fn is_on(&self, f16_gradients: bool) -> bool {
        self.mode == LossScaleMode::Constant || self.is_dynamic(f16_gradients)
    }
}

/// The factor, and what decides when it moves next. All of it is part of a run's state.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LossScale {
    /// The factor.
    pub scale: f64,
    /// Overflows since it last grew.
    pub overflows: u64,
    /// Steps without an overflow since the last one, or since it last grew.
    pub clean: u64,
}

impl Default for LossScale {
    fn default() -> Self {
        LossScale { scale: 1.0, overflows: 0, clean: 0 }
    }
}

impl LossScale {
    /// The start of a run: the factor that the configuration begins with, 1 if there is none.
    pub fn start(config: &LossScaleConfig, f16_gradients: bool) -> LossScale {
        let scale = if config.is_on(f16_gradients) { config.value } else { 1.0 };
        LossScale { scale, ..LossScale::default() }
    }

    /// The state to go on with from a saved one: that itself if the factor moves, else the start.
    pub fn go_on(saved: Option<LossScale>, config: &LossScaleConfig, f16_gradients: bool) -> LossScale {
        let sensible = |s: &LossScale| s.scale.is_finite() && s.scale > 0.0;
        match saved.filter(sensible) {
            Some(saved) if config.is_dynamic(f16_gradients) => saved,
            _ => LossScale::start(config, f16_gradients),
        }
    }

    /// After a step of a dynamic scale, whose gradient was finite or not. True if the factor could give way: an overflow then
    /// says nothing about the run.
    pub fn update(&mut self, config: &LossScaleConfig, finite: bool) -> bool {
        if finite {
            self.clean += 1;
            if self.clean >= config.growth_interval {
                *self = LossScale { scale: (2.0 * self.scale).min(MOST), ..LossScale::default() };
            }
            return true;
        }
        (self.clean, self.overflows) = (0, self.overflows + 1);
        if self.overflows < config.hysteresis {
            return true;
        }
        let could = self.scale > config.floor;
        self.scale = (0.5 * self.scale).max(config.floor);
        could
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scales(config: &LossScaleConfig, finite: impl IntoIterator<Item = bool>) -> Vec<f64> {
        let mut s = LossScale::start(config, true);
        finite
            .into_iter()
            .map(|f| {
                s.update(config, f);
                s.scale
            })
            .collect()
    }

    #[test]
    fn it_starts_high_halves_from_the_second_overflow_on_and_doubles_after_a_thousand_clean_steps() {
        let c = LossScaleConfig::default();
        assert_eq!(LossScale::start(&c, true).scale, 65_536.0);
        assert_eq!(LossScale::start(&c, false).scale, 1.0, "auto without f16");
        assert_eq!(scales(&c, [false, false, false]), [65_536.0, 32_768.0, 16_384.0]);
        let long = scales(&c, [false, true, false].into_iter().chain([true; 1000]).chain([false, false]));
        assert_eq!((long[1], long[2]), (65_536.0, 32_768.0), "a clean step does not restore the patience");
        assert_eq!((long[1001], long[1002]), (32_768.0, 65_536.0));
        assert_eq!(long[1003..], [65_536.0, 32_768.0], "growth does");
    }

    #[test]
    fn it_stays_above_the_floor_and_says_when_it_cannot_give_way() {
        let c = LossScaleConfig { value: 4.0, hysteresis: 1, ..LossScaleConfig::default() };
        let mut s = LossScale::start(&c, true);
        let could: Vec<bool> = (0..4).map(|_| s.update(&c, false)).collect();
        assert_eq!((could, s.scale), (vec![true, true, false, false], 1.0));
    }

    #[test]
    fn a_saved_state_is_taken_up_only_where_the_factor_moves() {
        let c = LossScaleConfig::default();
        let saved = LossScale { scale: 8.0, overflows: 1, clean: 77 };
        assert_eq!(LossScale::go_on(Some(saved), &c, true), saved);
        assert_eq!(LossScale::go_on(Some(saved), &c, false), LossScale::default());
        let constant = LossScaleConfig { mode: LossScaleMode::Constant, value: 128.0, ..c.clone() };
        assert_eq!(LossScale::go_on(Some(saved), &constant, false).scale, 128.0);
        let bad = Some(LossScale { scale: f64::NAN, ..LossScale::default() });
        assert_eq!(LossScale::go_on(bad, &c, true).scale, 65_536.0);
    }

    #[test]
    fn what_makes_no_sense_names_its_key() {
        let c = LossScaleConfig::default();
        c.check().unwrap();
        for (bad, key) in [
            (LossScaleConfig { value: 0.0, ..c.clone() }, "value"),
            (LossScaleConfig { value: f64::NAN, ..c.clone() }, "value"),
            (LossScaleConfig { floor: f64::INFINITY, ..c.clone() }, "floor"),
            (LossScaleConfig { value: 2.0, floor: 4.0, ..c.clone() }, "floor"),
            (LossScaleConfig { hysteresis: 0, ..c.clone() }, "hysteresis"),
            (LossScaleConfig { growth_interval: 0, ..c.clone() }, "growth_interval"),
        ] {
            let e = bad.check().unwrap_err();
            assert!(e.contains(&format!("train.loss_scale.{key}")), "{e}");
        }
    }
}
