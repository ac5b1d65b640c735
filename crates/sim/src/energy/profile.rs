//! Time and power of work by clock.

use bessemer_schedule::Instruction;

/// Effect of a clock on a kind of work.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Effect {
    /// Time over that at the highest clock.
    pub time: f64,
    /// Power while it runs.
    pub watts: f64,
}

/// A clock and what it does to each kind of work.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Clock {
    /// Frequency.
    pub mhz: f64,
    /// Forward passes.
    pub forward: Effect,
    /// Backward passes, whole.
    pub backward: Effect,
    /// Input parts.
    pub backward_input: Effect,
    /// Weight parts.
    pub backward_weight: Effect,
    /// Overlapped pairs.
    pub together: Effect,
}

impl Clock {
    /// The same effect on all work.
    pub fn even(mhz: f64, time: f64, watts: f64) -> Clock {
        let e = Effect { time, watts };
        Clock { mhz, forward: e, backward: e, backward_input: e, backward_weight: e, together: e }
    }

    fn effects(&self) -> [Effect; 5] {
        [self.forward, self.backward, self.backward_input, self.backward_weight, self.together]
    }
}

/// What clocks cost on a device: measured, or [`Profile::model`].
#[derive(Debug, Clone, PartialEq)]
pub struct Profile {
    /// Power of a device that waits.
    pub idle_watts: f64,
    /// From the highest to the lowest.
    pub clocks: Vec<Clock>,
}

/// Why a profile is none.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("profile: {0}")]
pub struct ProfileError(String);

impl Profile {
    /// Checks and keeps a profile.
    ///
    /// # Errors
    /// [`ProfileError`] if there is no clock, clocks do not fall, the highest has time factors other than 1, a lower clock is
    /// faster, or a power is negative or no number.
    pub fn new(idle_watts: f64, clocks: Vec<Clock>) -> Result<Profile, ProfileError> {
        let wrong = |what: String| Err(ProfileError(what));
        let power = |w: f64| w.is_finite() && w >= 0.0;
        let Some(first) = clocks.first() else {
            return wrong("wanted at least one clock, found none".into());
        };
        if !power(idle_watts) {
            return wrong(format!("idle power: wanted watts of at least 0, found {idle_watts}"));
        }
        if first.effects().iter().any(|e| e.time != 1.0) {
            return wrong(format!(
                "times are relative to the first clock ({} MHz): wanted 1 there",
                first.mhz
            ));
        }
        for clock in &clocks {
            if !(clock.mhz.is_finite() && clock.mhz > 0.0) {
                return wrong(format!("wanted a clock above 0 MHz, found {}", clock.mhz));
            }
            if let Some(e) = clock.effects().iter().find(|e| !power(e.watts)) {
                return wrong(format!("{} MHz: wanted watts of at least 0, found {}", clock.mhz, e.watts));
            }
        }
        for pair in clocks.windows(2) {
            if pair[1].mhz >= pair[0].mhz {
                return wrong(format!(
                    "wanted clocks from the highest to the lowest, found {} MHz after {} MHz",
                    pair[1].mhz, pair[0].mhz
                ));
            }
            let both = pair[0].effects().into_iter().zip(pair[1].effects());
            if let Some((a, b)) = both.into_iter().find(|(a, b)| !(b.time.is_finite() && b.time >= a.time)) {
                return wrong(format!(
                    "wanted a lower clock to take at least as long, found {} at {} MHz and {} at {} MHz",
                    a.time, pair[0].mhz, b.time, pair[1].mhz
                ));
            }
        }
        Ok(Profile { idle_watts, clocks })
    }

    /// A model, where nothing was measured: 1,410 MHz down to 660; a share of `fixed` of the time does not depend on the
    /// clock (memory), the rest is inverse to it; of 300 watts at the highest clock 90 are drawn always, and 210 fall with
    /// the cube of the clock (voltage falls with frequency, power is their product times voltage).
    pub fn model(fixed: f64) -> Profile {
        let highest = 1410.0;
        let clock = |step: u32| {
            let mhz = highest - 75.0 * f64::from(step);
            let share: f64 = mhz / highest;
            Clock::even(mhz, fixed + (1.0 - fixed) / share, 90.0 + 210.0 * share.powi(3))
        };
        let mut clocks: Vec<Clock> = (0..=10).map(clock).collect();
        clocks[0] = Clock::even(highest, 1.0, 300.0);
        Profile { idle_watts: 90.0, clocks }
    }

    /// What a clock does to an instruction. Updates and fillers always run at the highest clock; their power counts as a
    /// forward's.
    pub fn effect(&self, clock: usize, instruction: &Instruction) -> Effect {
        let clock = &self.clocks[clock];
        match instruction {
            Instruction::Forward(_) => clock.forward,
            Instruction::Backward(_) => clock.backward,
            Instruction::BackwardInput(_) => clock.backward_input,
            Instruction::BackwardWeight(_) => clock.backward_weight,
            Instruction::Together { .. } => clock.together,
            _ => Effect { time: 1.0, watts: self.clocks[0].forward.watts },
        }
    }

    /// Whether an instruction's clock may change.
    pub(crate) fn adjustable(instruction: &Instruction) -> bool {
        use Instruction::{Backward, BackwardInput, BackwardWeight, Forward, Together};
        matches!(
            instruction,
            Forward(_) | Backward(_) | BackwardInput(_) | BackwardWeight(_) | Together { .. }
        )
    }
}
