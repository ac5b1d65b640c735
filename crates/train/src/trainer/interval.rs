//! Number of steps between two saves (`save.every = "auto"`): an overhead budget, as in CheckFreq (Mohan et al. 2021, section 4.2),
//! and Young's optimum against the work that failures cost, in both directions.
//!
//! ```text
//! s = seconds that training waited for a save     i = seconds by which the steps beside it were longer     P = seconds until durable
//! T = seconds of a step without a save beside it  p = save.overhead                                        M = mean time between failures
//! budget   = ceil((s + i) / (p T))                saves cost at most p of the training time
//! writing  = ceil(P / T)                          one save is written at a time
//! failures = round(sqrt(2 (s + i) M) / T)         least expected loss (Young 1974)
//! recovery = floor(save.every_seconds / T)        the most work that a failure may cost
//! every    = max(budget, writing, min(failures, recovery))
//! ```
//! s, i and P are smoothed over saves. M follows from the expected failures and those that the run has seen: with a gamma prior of
//! one failure in `save.mtbf_hours` and n failures in t seconds, 1/M = (1 + n) / (prior + t).

use bessemer_checkpoint::SaveConfig;
use bessemer_runlog as runlog;
use bessemer_units::young_interval;

/// Steps before the first save, which is measured.
const FIRST: u64 = 10;
/// Saves in a row below half the budget before the interval shrinks.
const CHEAP_SAVES: u32 = 3;
/// Weight of the newest cost of a save in the smoothed one, and of the newest step in the seconds of a step.
const WEIGHT_OF_SAVE: f64 = 0.3;
const WEIGHT_OF_STEP: f64 = 0.05;

/// Exponentially weighted mean; nothing before the first value.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Smoothed(Option<f64>);

impl Smoothed {
    fn note(&mut self, value: f64, weight: f64) -> f64 {
        let mean = self.0.map_or(value, |mean| mean + weight * (value - mean));
        self.0 = Some(mean);
        mean
    }
}

/// Seconds of steps, separately for those during a save.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct StepTimes {
    clean: Smoothed,
    warm: bool,
    beside: f64,
    steps: u64,
}

/// Cost of a save to the steps during it.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Interference {
    /// Steps during the save.
    pub(super) steps: u64,
    /// Relative slowdown against steps without a save, if both are known.
    pub(super) slowdown: Option<f64>,
    /// Seconds of slowdown in total; at least 0.
    pub(super) seconds: f64,
}

impl StepTimes {
    /// Records a step; `beside`: a save was being written when it began. The first step of a session is ignored.
    pub(super) fn note(&mut self, seconds: f64, beside: bool) {
        if beside {
            self.beside += seconds;
            self.steps += 1;
        } else if std::mem::replace(&mut self.warm, true) {
            self.clean.note(seconds, WEIGHT_OF_STEP);
        }
    }

    /// Called when the save during the last steps is done.
    pub(super) fn take(&mut self) -> Interference {
        let (beside, steps) = (std::mem::take(&mut self.beside), std::mem::take(&mut self.steps));
        let clean = self.clean.0.filter(|clean| *clean > 0.0 && steps > 0);
        Interference {
            steps,
            slowdown: clean.map(|clean| beside / (steps as f64 * clean) - 1.0),
            seconds: clean.map_or(0.0, |clean| (beside - steps as f64 * clean).max(0.0)),
        }
    }

    /// Seconds of a step without a concurrent save.
    pub(super) fn clean(&self) -> Option<f64> {
        self.clean.0
    }
}

/// Seconds of one save.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct SaveSeconds {
    pub(super) stalled: f64,
    pub(super) interference: f64,
    pub(super) writing: f64,
}

/// Steps that each criterion requires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Terms {
    budget: u64,
    writing: u64,
    failures: u64,
    recovery: Option<u64>,
}

impl Terms {
    /// `step`: seconds of a step; `mtbf`: mean seconds between failures; `recovery`: the most seconds of work that a failure may cost.
    fn new(save: SaveSeconds, step: f64, overhead: f64, mtbf: f64, recovery: Option<f64>) -> Terms {
        let cost = save.stalled + save.interference;
        // A quotient that is whole but for rounding is not rounded up.
        let up = |steps: f64| (steps - 1e-9).ceil().max(0.0) as u64;
        Terms {
            budget: up(cost / (overhead * step)),
            writing: up(save.writing / step),
            failures: (young_interval(cost, mtbf) / step).round() as u64,
            recovery: recovery.map(|seconds| (seconds / step + 1e-9).floor() as u64),
        }
    }

    fn every(&self) -> u64 {
        let wanted = self.recovery.map_or(self.failures, |recovery| self.failures.min(recovery));
        self.budget.max(self.writing).max(wanted).max(1)
    }

    /// Whether a failure can cost more work than `save.every_seconds`.
    fn is_late(&self, every: u64) -> bool {
        self.recovery.is_some_and(|recovery| every > recovery.max(1))
    }
}

/// Chooses when to save, on the first rank.
#[derive(Debug)]
pub(super) struct SaveInterval {
    overhead: f64,
    recovery: Option<f64>,
    prior: f64,
    /// Sessions of the run that failed.
    failures: u64,
    stalled: Smoothed,
    interference: Smoothed,
    writing: Smoothed,
    /// Steps between saves; nothing before the first save was measured.
    every: Option<u64>,
    /// Whether the first save of the session, which is measured, has begun.
    begun: bool,
    /// Step after which the last save began, or the session.
    last: u64,
    cheap: u32,
    late: bool,
}

/// Change of the interval after a save.
#[derive(Debug, Default, PartialEq)]
pub(super) struct IntervalUpdate {
    /// The record, if the interval has changed.
    pub(super) changed: Option<runlog::SaveInterval>,
    /// A failure can now cost more work than is wanted.
    pub(super) warning: Option<String>,
}

impl SaveInterval {
    /// `failures`: sessions of the run that failed; `step`: the step from which this session resumes.
    pub(super) fn new(config: &SaveConfig, failures: u64, step: u64) -> SaveInterval {
        SaveInterval {
            overhead: config.overhead,
            recovery: (config.every_seconds > 0).then_some(config.every_seconds as f64),
            prior: 3600.0 * config.mtbf_hours,
            failures,
            stalled: Smoothed::default(),
            interference: Smoothed::default(),
            writing: Smoothed::default(),
            every: None,
            begun: false,
            last: step,
            cheap: 0,
            late: false,
        }
    }

    /// Whether a save is due after `step`.
    pub(super) fn due(&mut self, step: u64) -> bool {
        // The run may have gone back.
        self.last = self.last.min(step);
        match self.every {
            Some(every) => step - self.last >= every,
            None => !self.begun && step - self.last >= FIRST,
        }
    }

    /// A save begins after `step`.
    pub(super) fn begin(&mut self, step: u64) {
        (self.last, self.begun) = (step, true);
    }

    /// Called when a save is done. `step_seconds`: of a step without a concurrent save; `run_seconds`: for how long the run has trained.
    pub(super) fn measured(
        &mut self,
        step: u64,
        save: SaveSeconds,
        step_seconds: f64,
        run_seconds: f64,
    ) -> IntervalUpdate {
        let mut update = IntervalUpdate::default();
        if step_seconds.is_nan() || step_seconds <= 0.0 {
            return update;
        }
        let smoothed = SaveSeconds {
            stalled: self.stalled.note(save.stalled, WEIGHT_OF_SAVE),
            interference: self.interference.note(save.interference, WEIGHT_OF_SAVE),
            writing: self.writing.note(save.writing, WEIGHT_OF_SAVE),
        };
        let mtbf = (self.prior + run_seconds) / (1 + self.failures) as f64;
        let terms = Terms::new(smoothed, step_seconds, self.overhead, mtbf, self.recovery);
        let every = self.next(&terms, (save.stalled + save.interference) / step_seconds);
        let late = terms.is_late(every);
        if late && !std::mem::replace(&mut self.late, late) {
            update.warning = Some(format!(
                "save.every = \"auto\": checkpoints are {every} steps apart, {:.0} s, because saves cost {:.3} s and take {:.1} s to \
                 write; a failure may cost more than save.every_seconds = {:.0} s of work (allow more save.overhead, or a faster disk)",
                every as f64 * step_seconds,
                smoothed.stalled + smoothed.interference,
                smoothed.writing,
                self.recovery.unwrap_or_default()
            ));
        }
        self.late = late;
        if self.every != Some(every) {
            update.changed = Some(runlog::SaveInterval {
                step,
                every_steps: every,
                before: self.every,
                budget_steps: terms.budget,
                writing_steps: terms.writing,
                failures_steps: terms.failures,
                recovery_steps: terms.recovery,
                save_seconds: smoothed.stalled + smoothed.interference,
                step_seconds,
                mtbf_seconds: mtbf,
            });
            self.every = Some(every);
        }
        update
    }

    /// Raises the interval at once, as far as the terms or the cost of the last save (`cost`, in steps) require; lowers it by a tenth after
    /// several cheap saves in a row.
    fn next(&mut self, terms: &Terms, cost: f64) -> u64 {
        let wanted = terms.every();
        let Some(now) = self.every else { return wanted };
        let overhead = cost / now as f64;
        self.cheap = if overhead < 0.5 * self.overhead { self.cheap + 1 } else { 0 };
        if overhead > self.overhead {
            let most = (cost / self.overhead).ceil() as u64;
            return (now + now.div_ceil(2)).min(most).max(wanted).max(now);
        }
        // A change by less than a tenth is noise.
        if wanted > now + now / 10 {
            return wanted;
        }
        if wanted < now && self.cheap >= CHEAP_SAVES {
            self.cheap = 0;
            return (now - now.div_ceil(10)).max(wanted);
        }
        now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn save(stalled: f64, interference: f64, writing: f64) -> SaveSeconds {
        SaveSeconds { stalled, interference, writing }
    }

    fn config(every_seconds: u64) -> SaveConfig {
        SaveConfig { every_seconds, mtbf_hours: 9.4, ..SaveConfig::default() }
    }

    /// Worked by hand for steps of 2 s.
    #[test]
    fn the_terms_of_two_runs() {
        let terms = Terms::new(save(0.3, 0.7, 45.0), 2.0, 0.01, 33_840.0, Some(600.0));
        assert_eq!(terms, Terms { budget: 50, writing: 23, failures: 130, recovery: Some(300) });
        assert_eq!((terms.every(), terms.is_late(130)), (130, false));
        let terms = Terms::new(save(6.0, 2.0, 900.0), 2.0, 0.01, 270_000.0, Some(600.0));
        assert_eq!(terms, Terms { budget: 400, writing: 450, failures: 1039, recovery: Some(300) });
        assert_eq!((terms.every(), terms.is_late(450)), (450, true));
        let free = Terms::new(save(0.0, 0.0, 0.0), 2.0, 0.01, 270_000.0, Some(600.0));
        assert_eq!(free.every(), 1);
        let unlimited = Terms::new(save(6.0, 2.0, 900.0), 2.0, 0.01, 270_000.0, None);
        assert_eq!((unlimited.every(), unlimited.is_late(1039)), (1039, false));
    }

    #[test]
    fn the_interval_rises_at_once_and_falls_slowly() {
        let mut interval = SaveInterval::new(&config(600), 0, 100);
        assert!(!interval.due(109) && interval.due(110));
        let mut after = |cost: SaveSeconds| {
            let update = interval.measured(0, cost, 2.0, 0.0);
            (interval.every.unwrap(), update)
        };
        let (every, update) = after(save(0.3, 0.7, 45.0));
        assert_eq!(every, 130);
        let changed = update.changed.unwrap();
        let steps =
            (changed.budget_steps, changed.writing_steps, changed.failures_steps, changed.recovery_steps);
        assert_eq!((changed.before, steps), (None, (50, 23, 130, Some(300))));
        assert_eq!(changed.mtbf_seconds, 33_840.0);
        assert_eq!(after(save(0.3, 0.7, 45.0)), (130, IntervalUpdate::default()));
        // 4 s in 130 steps of 2 s are 1.5 % instead of 1: up by half, as this save alone requires more.
        let (every, update) = after(save(3.0, 1.0, 45.0));
        assert_eq!((every, update.changed.unwrap().before), (195, Some(130)));
        // 2.1 s require 105 steps by the budget, 188 by failures. Cheap ones lower it, by a tenth after three.
        let cheap: Vec<u64> = (0..12).map(|_| after(save(0.1, 0.1, 1.0)).0).collect();
        assert_eq!(cheap, [195, 195, 175, 175, 175, 157, 157, 157, 141, 141, 141, 126]);
        // A save that takes long to write waits for nothing else.
        let (every, update) = after(save(0.1, 0.1, 9000.0));
        assert!(every > 1000, "{every}");
        let warning = update.warning.unwrap();
        assert!(warning.contains("save.every_seconds = 600 s"), "{warning}");
        assert!(after(save(0.1, 0.1, 9000.0)).1.warning.is_none(), "said once");
    }

    #[test]
    fn failures_that_were_seen_shorten_the_interval() {
        let every = |failures, seconds| {
            let mut interval = SaveInterval::new(&config(0), failures, 0);
            interval.measured(0, save(0.3, 0.7, 1.0), 2.0, seconds);
            interval.every.unwrap()
        };
        assert_eq!(every(0, 0.0), 130);
        // Four times the rate.
        assert_eq!(every(3, 0.0), 65);
        // No failure in three times the expected time.
        assert_eq!(every(0, 3.0 * 33_840.0), 260);
    }

    #[test]
    fn a_run_that_went_back_counts_from_there() {
        let mut interval = SaveInterval::new(&config(600), 0, 0);
        interval.begin(50);
        assert!(!interval.due(41) && !interval.due(61), "the first save is not measured yet");
        interval.measured(0, save(0.0, 0.0, 9.0), 1.0, 0.0);
        assert_eq!(interval.every, Some(9));
        assert!(!interval.due(49) && interval.due(50));
    }

    #[test]
    fn interference_is_the_time_beyond_clean_steps() {
        let mut times = StepTimes::default();
        times.note(9.0, false);
        assert_eq!(times.take(), Interference::default());
        times.note(2.0, false);
        times.note(2.5, true);
        times.note(2.5, true);
        let found = times.take();
        assert_eq!((found.steps, found.slowdown, found.seconds), (2, Some(0.25), 1.0));
        times.note(1.0, true);
        assert_eq!(times.take(), Interference { steps: 1, slowdown: Some(-0.5), seconds: 0.0 });
        assert_eq!(times.clean(), Some(2.0));
    }
}
