//! Counts of a server as Prometheus text (exposition format 0.0.4).

use crate::scheduler::Step;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Mutex, PoisonError};

/// Upper bounds of the buckets of times, seconds: 1 ms to about a minute, by factors of about 2.
const BOUNDS: [f64; 16] =
    [0.001, 0.002, 0.004, 0.008, 0.015, 0.03, 0.06, 0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 64.0];

/// The outcome of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// Answered.
    Answered,
    /// Invalid (status 4xx).
    Refused,
    /// The queue was full (status 429).
    Busy,
    /// Its client left.
    Abandoned,
    /// The model or the server failed, or the server was leaving (status 5xx).
    Failed,
}

impl Outcome {
    const ALL: [Outcome; 5] =
        [Outcome::Answered, Outcome::Refused, Outcome::Busy, Outcome::Abandoned, Outcome::Failed];

    fn name(self) -> &'static str {
        match self {
            Outcome::Answered => "answered",
            Outcome::Refused => "refused",
            Outcome::Busy => "busy",
            Outcome::Abandoned => "abandoned",
            Outcome::Failed => "failed",
        }
    }
}

/// A histogram of times.
#[derive(Debug, Default, Clone)]
struct Histogram {
    counts: [u64; BOUNDS.len()],
    count: u64,
    sum: f64,
}

impl Histogram {
    fn add(&mut self, seconds: f64) {
        for (count, bound) in self.counts.iter_mut().zip(BOUNDS) {
            *count += u64::from(seconds <= bound);
        }
        self.count += 1;
        self.sum += seconds;
    }
}

#[derive(Debug, Default)]
struct Counts {
    requests: BTreeMap<Outcome, u64>,
    prompt_tokens: u64,
    cached_tokens: u64,
    tokens: u64,
    first: Histogram,
    further: Histogram,
}

/// Counts since the start.
#[derive(Debug, Default)]
pub struct Metrics(Mutex<Counts>);

/// Current use of a server.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Load {
    /// Requests that wait for a slot.
    pub waiting: usize,
    /// Slots in use.
    pub active: usize,
    /// Slots.
    pub slots: usize,
    /// Memory of keys, values and activations.
    pub cache_bytes: u64,
}

impl Metrics {
    fn with(&self, change: impl FnOnce(&mut Counts)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Counts a request that is over.
    pub fn request(&self, outcome: Outcome) {
        self.with(|c| *c.requests.entry(outcome).or_default() += 1);
    }

    /// Counts the tokens of a step of the scheduler.
    pub fn tokens(&self, step: Step) {
        self.with(|c| {
            c.prompt_tokens += step.prompt_tokens as u64;
            c.cached_tokens += step.cached_tokens as u64;
            c.tokens += step.tokens as u64;
        });
    }

    /// Notes the time from a request's arrival to the first token of its first text, seconds.
    pub fn first_token(&self, seconds: f64) {
        self.with(|c| c.first.add(seconds));
    }

    /// Notes the time from one token of a text to the next, seconds.
    pub fn further_token(&self, seconds: f64) {
        self.with(|c| c.further.add(seconds));
    }

    /// The text.
    pub fn text(&self, load: Load) -> String {
        let c = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut out = String::new();
        // Writing into a string cannot fail.
        let head = |out: &mut String, name: &str, kind: &str, help: &str| {
            let _ = writeln!(out, "# HELP bessemer_serve_{name} {help}\n# TYPE bessemer_serve_{name} {kind}");
        };
        head(&mut out, "requests_total", "counter", "Requests for texts that are over, by outcome.");
        for outcome in Outcome::ALL {
            let count = c.requests.get(&outcome).copied().unwrap_or(0);
            let name = outcome.name();
            let _ = writeln!(out, "bessemer_serve_requests_total{{outcome=\"{name}\"}} {count}");
        }
        let plain: [(&str, &str, &str, u64); 7] = [
            (
                "prompt_tokens_total",
                "counter",
                "Tokens of prompts that went through the model.",
                c.prompt_tokens,
            ),
            (
                "cached_prompt_tokens_total",
                "counter",
                "Tokens of prompts that a slot held already.",
                c.cached_tokens,
            ),
            ("tokens_total", "counter", "Tokens that were chosen.", c.tokens),
            ("waiting_requests", "gauge", "Requests that wait for a slot.", load.waiting as u64),
            ("slots_in_use", "gauge", "Sequences that are being decoded.", load.active as u64),
            ("slots", "gauge", "Sequences that can be decoded at a time.", load.slots as u64),
            ("cache_bytes", "gauge", "Memory of keys, values and activations.", load.cache_bytes),
        ];
        for (name, kind, help, value) in plain {
            head(&mut out, name, kind, help);
            let _ = writeln!(out, "bessemer_serve_{name} {value}");
        }
        for (name, help, histogram) in [
            ("first_token_seconds", "Time from a request's arrival to its first token.", &c.first),
            ("further_token_seconds", "Time from one token of a text to the next.", &c.further),
        ] {
            head(&mut out, name, "histogram", help);
            for (bound, count) in BOUNDS.iter().zip(histogram.counts) {
                let _ = writeln!(out, "bessemer_serve_{name}_bucket{{le=\"{bound}\"}} {count}");
            }
            let Histogram { count, sum, .. } = histogram;
            let _ = writeln!(out, "bessemer_serve_{name}_bucket{{le=\"+Inf\"}} {count}");
            let _ = writeln!(out, "bessemer_serve_{name}_sum {sum}\nbessemer_serve_{name}_count {count}");
        }
        out
    }
}
