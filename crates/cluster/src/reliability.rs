//! What failures of machines cost a long run: how often to save, the share of time that trains, the expected end.
//!
//! Nodes fail independently at a constant rate, so that the times between failures of all of them are exponential with mean M. Every tau
//! seconds of work are followed by a save that blocks for delta seconds; a failure loses the work since the last save and costs R
//! seconds of restart, which may fail too. The expected time of T seconds of work is then exactly (Daly 2006)
//!
//! ```text
//! M e^(R/M) (e^((tau + delta)/M) - 1) T/tau
//! ```
//! It is least where `ln(1 - u) + u + delta/M = 0` for u = tau/M. Young's and Daly's intervals are expansions of that for small delta/M.

use crate::ClusterError;
use bessemer_units::best_interval;

const DAY: f64 = 86_400.0;

/// A published rate of failures.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PublishedRate {
    /// System or run.
    pub name: &'static str,
    /// Failures per 1,000 days of a node with eight devices.
    pub per_thousand_node_days: f64,
    /// Origin of the figure.
    pub source: &'static str,
}

/// Rates to plan with, which differ by a factor of ten.
pub const PUBLISHED_RATES: [PublishedRate; 5] = [
    PublishedRate {
        name: "Meta RSC-2",
        per_thousand_node_days: 2.34,
        source: "Kokolis et al. 2024, arXiv 2410.21680",
    },
    PublishedRate {
        name: "Llama 3 405B",
        per_thousand_node_days: 3.8,
        source: "Llama team 2024, arXiv 2407.21783: 419 interruptions in 54 days on 2,048 nodes",
    },
    PublishedRate {
        name: "Meta RSC-1",
        per_thousand_node_days: 6.5,
        source: "Kokolis et al. 2024, arXiv 2410.21680",
    },
    PublishedRate {
        name: "OPT-175B",
        per_thousand_node_days: 15.0,
        source: "Zhang et al. 2022, arXiv 2205.01068, and its logbook",
    },
    PublishedRate {
        name: "Meta RSC-1, jobs of 1,024 GPUs",
        per_thousand_node_days: 23.7,
        source: "Kokolis et al. 2024, arXiv 2410.21680: mean time to failure 7.9 h as measured",
    },
];

/// A run on machines that fail.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FailingRun {
    /// Nodes, each of which stops the run when it fails.
    pub nodes: f64,
    /// Failures of one node in a day.
    pub failures_per_node_day: f64,
    /// Seconds for which a save blocks training.
    pub save: f64,
    /// Seconds from a failure to the first step of the restarted run.
    pub restart: f64,
    /// Seconds of work if nothing fails and nothing is saved.
    pub work: f64,
}

/// What a run can expect. All times are in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Expectation {
    /// Mean time between failures of the whole run.
    pub mean_time_to_failure: f64,
    /// Work between two saves.
    pub interval: f64,
    /// Expected time of the whole run.
    pub total: f64,
    /// Part of it that saves take.
    pub saving: f64,
    /// Part of it that is computed again, or was lost during a save.
    pub redone: f64,
    /// Part of it that restarts take, those that failed included.
    pub restarting: f64,
    /// Expected number of failures.
    pub failures: f64,
}

impl Expectation {
    /// Effective training time ratio: work over expected time.
    pub fn ettr(&self) -> f64 {
        1.0 - (self.saving + self.redone + self.restarting) / self.total
    }

    /// Expected days.
    pub fn days(&self) -> f64 {
        self.total / DAY
    }
}

/// Effective training time ratio to first order (Kokolis et al. 2024, arXiv 2410.21680): (1 - (u0 + dt/2)/M) / (1 + w/dt) with u0 the
/// restart, w the save and dt the interval.
pub fn first_order_ettr(run: &FailingRun, interval: f64) -> f64 {
    let lost = run.failure_rate() * (run.restart + interval / 2.0);
    (1.0 - lost) / (1.0 + run.save / interval)
}

impl FailingRun {
    /// Failures a second of the whole run.
    pub fn failure_rate(&self) -> f64 {
        self.nodes * self.failures_per_node_day / DAY
    }

    /// The run with the best interval.
    ///
    /// # Errors
    /// Figures that no run can have; a rate of failures at which it would hardly ever end.
    pub fn expect(&self) -> Result<Expectation, ClusterError> {
        self.check()?;
        let rate = self.failure_rate();
        // Without failures a run saves nothing; without a cost of saves it would save all the time.
        let interval = match (rate > 0.0, self.save > 0.0) {
            (false, _) => self.work,
            (true, false) => 0.0,
            (true, true) => best_interval(self.save, 1.0 / rate).min(self.work),
        };
        self.expect_with(interval)
    }

    /// The run with a save after every `interval` seconds of work; 0 means all the time.
    ///
    /// # Errors
    /// The errors of [`FailingRun::expect`].
    pub fn expect_with(&self, interval: f64) -> Result<Expectation, ClusterError> {
        self.check()?;
        if !(interval >= 0.0 && interval.is_finite()) || (interval == 0.0 && self.save > 0.0) {
            let hint = "0 is possible only for saves that cost nothing";
            return Err(ClusterError::value("interval of saves", "seconds above 0", interval, hint));
        }
        let rate = self.failure_rate();
        if rate == 0.0 {
            let saving =
                if interval > 0.0 && interval < self.work { self.work / interval * self.save } else { 0.0 };
            return Ok(Expectation {
                mean_time_to_failure: f64::INFINITY,
                interval,
                total: self.work + saving,
                saving,
                redone: 0.0,
                restarting: 0.0,
                failures: 0.0,
            });
        }
        let segment = interval + self.save;
        // Failures of a segment before it succeeds, and what it takes, both for each second of work.
        let (failures, saving, redone) = if segment == 0.0 {
            (rate, 0.0, 0.0)
        } else {
            let failures = (segment * rate).exp_m1();
            (failures / interval, self.save / interval, (failures / rate - segment) / interval)
        };
        let (saving, redone) = (saving * self.work, redone.max(0.0) * self.work);
        let restarting = failures * self.work * (self.restart * rate).exp_m1() / rate;
        let total = self.work + saving + redone + restarting;
        if total.is_nan() || total >= 1e6 * self.work.max(1.0) {
            let nodes = self.nodes;
            return Err(ClusterError::value(
                "failures",
                "a run that ends within a million times its work",
                format!(
                    "{nodes} nodes with a failure every {:.3} s and {segment:.3} s between saves",
                    1.0 / rate
                ),
                "save faster, restart faster, or use fewer nodes",
            ));
        }
        Ok(Expectation {
            mean_time_to_failure: 1.0 / rate,
            interval,
            total,
            saving,
            redone,
            restarting,
            failures: total * rate,
        })
    }

    fn check(&self) -> Result<(), ClusterError> {
        let figures = [
            ("nodes", self.nodes),
            ("failures of a node in a day", self.failures_per_node_day),
            ("seconds of a save", self.save),
            ("seconds of a restart", self.restart),
            ("seconds of work", self.work),
        ];
        for (name, value) in figures {
            if !(0.0..=1e15).contains(&value) {
                return Err(ClusterError::value(
                    name,
                    "a number from 0 to 1e15",
                    value,
                    "give it without a sign",
                ));
            }
        }
        Ok(())
    }
}
