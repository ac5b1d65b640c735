//! Measurements of the first steps of a planned run, by item, to be compared with the plan.
//!
//! The time of every step counts, and the median is taken; the last few steps are watched: each rank records when the instructions of its
//! program and its collectives ran. The duration of a collective that runs concurrently with the computation is not part of the step time; the
//! time that the computation waits for it is. One of these steps is counted: the bytes that the first rank sends, by axis.

use crate::TrainError;
use crate::memory::COPIES;
use bessemer_collectives::{CallSpan, Communicator, Ledger};
use bessemer_parallel::{Notes, OrderSpan, Worker};
use bessemer_runlog::{CostItem, Measured, StepCosts};
use bessemer_tensor::Backend;
use bessemer_units::stats::upper_median;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Instant;

/// Steps of a session that are measured.
const STEPS: u64 = 20;
/// First steps of a session, which warm up.
const WARM: u64 = 2;
/// Last steps, which are watched.
const WATCHED: u64 = 5;
/// Class of host memory in which values wait for collectives, as the plan of memory names it.
const IN_FLIGHT: &str = "in-flight buffers";

/// Items of time, in the order of [`Measuring::time`].
const ITEMS: [&str; 7] = [
    StepCosts::COMPUTE,
    StepCosts::TENSOR,
    StepCosts::CONTEXT,
    StepCosts::PIPELINE,
    StepCosts::DATA,
    StepCosts::OPTIMIZER,
    StepCosts::OTHER,
];
const COMPUTE: usize = 0;
const PIPELINE: usize = 3;
const DATA: usize = 4;
const OPTIMIZER: usize = 5;
const OTHER: usize = 6;

/// One rank's measurements of a session.
#[derive(Debug)]
pub(super) struct Measuring {
    ledger: Ledger,
    /// Steps of the session so far.
    steps: u64,
    /// Steps after which the session is measured.
    last: u64,
    /// Begin of the current step, if it is watched.
    begun: Option<Instant>,
    /// Seconds of each warm step.
    seconds: Vec<f64>,
    /// Seconds by item, of all watched steps together.
    time: [f64; ITEMS.len()],
    watched: u64,
}

/// Measurements of one rank, for the first one.
#[derive(Debug, Default, Serialize, Deserialize)]
struct RankCosts {
    time: Vec<f64>,
    memory: BTreeMap<String, u64>,
    traffic: BTreeMap<String, u64>,
}

impl Measuring {
    /// Measures a session of at most `steps` steps.
    pub(super) fn new(steps: u64) -> Measuring {
        Measuring {
            ledger: Ledger::new(),
            steps: 0,
            last: steps.min(STEPS),
            begun: None,
            seconds: Vec::with_capacity(STEPS as usize),
            time: [0.0; ITEMS.len()],
            watched: 0,
        }
    }

    /// Counts the bytes sent through a communicator.
    pub(super) fn wrap(&self, world: Box<dyn Communicator>) -> Box<dyn Communicator> {
        self.ledger.wrap(world)
    }

    /// Called when a step begins; `noted`: the trace already takes the notes.
    pub(super) fn turn(&mut self, worker: &mut Worker, noted: bool) {
        let step = self.steps;
        self.steps += 1;
        if self.steps == self.last {
            // Counts one step only.
            self.ledger.clear();
        }
        if step < WARM || step >= self.last || step + WATCHED < self.last || noted {
            return;
        }
        worker.keep_notes(true);
        self.begun = Some(Instant::now());
    }

    /// The session has so many steps to go.
    pub(super) fn expect(&mut self, steps: u64) {
        self.last = steps.min(STEPS);
    }

    /// The step is over; `seconds` is its time if it was kept.
    pub(super) fn end_turn(&mut self, worker: &mut Worker, seconds: Option<f64>) {
        if let Some(begun) = self.begun.take() {
            let whole = begun.elapsed().as_secs_f64();
            let notes = worker.take_notes();
            worker.keep_notes(false);
            if seconds.is_some() {
                self.add(&notes, whole);
            }
        }
        if self.steps > WARM && self.steps <= self.last {
            self.seconds.extend(seconds);
        }
    }

    /// Whether the session is measured.
    pub(super) fn is_over(&self) -> bool {
        self.steps >= self.last && !self.seconds.is_empty()
    }

    fn add(&mut self, notes: &Notes, whole: f64) {
        let here = std::thread::current().id();
        let mut time = [0.0; ITEMS.len()];
        for order in &notes.orders {
            time[item_of_order(order)] += length(order.start, order.end);
        }
        for call in notes.calls.iter().filter(|call| call.thread == here) {
            let seconds = length(call.start, call.end);
            if let Some(order) = enclosing(&notes.orders, call) {
                time[item_of_order(order)] -= seconds;
            }
            time[item_of_call(call)] += seconds;
        }
        time[OTHER] += whole - time.iter().sum::<f64>();
        self.time.iter_mut().zip(time).for_each(|(sum, seconds)| *sum += seconds);
        self.watched += 1;
    }

    /// Gathers the measurements of the ranks, with the bytes of `copies` for checkpoints; the record is the same on all of them. All ranks call this.
    pub(super) fn gather(
        &mut self,
        worker: &mut Worker,
        backend: &dyn Backend,
        copies: u64,
        step: u64,
    ) -> Result<Measured, TrainError> {
        let traffic =
            self.ledger.rows().into_iter().fold(BTreeMap::new(), |mut sums, (label, _, traffic)| {
                *sums.entry(label).or_insert(0) += traffic.volume.sent;
                sums
            });
        let held = backend.memory();
        let mut memory: BTreeMap<String, u64> = BTreeMap::new();
        let staged = (IN_FLIGHT, worker.staging_bytes());
        let classes = held.classes.iter().map(|(class, bytes)| (*class, bytes.0));
        for (class, bytes) in classes.chain([("workspace", held.workspace.0), staged, (COPIES, copies)]) {
            *memory.entry(class.to_owned()).or_insert(0) += bytes;
        }
        let mine = RankCosts { time: self.time.to_vec(), memory, traffic };
        let state =
            |e: serde_json::Error| TrainError::State { place: "measured".into(), problem: e.to_string() };
        let all = worker.gather_bytes("measured", &serde_json::to_vec(&mine).map_err(state)?)?;
        let ranks: Vec<RankCosts> =
            all.iter().map(|bytes| serde_json::from_slice(bytes)).collect::<Result<_, _>>().map_err(state)?;
        Ok(self.record(&ranks, step))
    }

    fn record(&mut self, ranks: &[RankCosts], step: u64) -> Measured {
        let items = |of: &BTreeMap<String, u64>| {
            let counted = of.iter().filter(|(_, bytes)| **bytes > 0);
            let mut items: Vec<CostItem> =
                counted.map(|(name, bytes)| CostItem::new(name, *bytes as f64)).collect();
            items.sort_by(|a, b| b.value.total_cmp(&a.value));
            items
        };
        let most = ranks.iter().max_by_key(|rank| rank.memory.values().sum::<u64>());
        let watched = (self.watched.max(1) as usize * ranks.len()) as f64;
        let mean = |item: usize| ranks.iter().map(|rank| rank.time[item]).sum::<f64>() / watched;
        let time = ITEMS.iter().enumerate().map(|(item, name)| CostItem::new(name, mean(item)));
        let costs = StepCosts {
            seconds: upper_median(&mut self.seconds),
            time: time.filter(|item| self.watched > 0 && item.value != 0.0).collect(),
            memory: most.map(|rank| items(&rank.memory)).unwrap_or_default(),
            traffic: ranks.first().map(|rank| items(&rank.traffic)).unwrap_or_default(),
        };
        Measured { step, steps: self.seconds.len() as u64, watched: self.watched, costs }
    }
}

fn length(start: Instant, end: Instant) -> f64 {
    (end - start).as_secs_f64()
}

/// The order within which a call ran.
fn enclosing<'a>(orders: &'a [OrderSpan], call: &CallSpan) -> Option<&'a OrderSpan> {
    let after = orders.partition_point(|order| order.start <= call.start);
    orders[..after].last().filter(|order| call.end <= order.end)
}

fn item_of_order(order: &OrderSpan) -> usize {
    match order.name.split(' ').next() {
        Some("F" | "B" | "I" | "W") => COMPUTE,
        Some("R" | "S") => PIPELINE,
        Some("reduce" | "gather") => DATA,
        Some("step") => OPTIMIZER,
        _ => OTHER,
    }
}

fn item_of_call(call: &CallSpan) -> usize {
    let name = item_of_group(&call.group);
    ITEMS.iter().position(|item| *item == name).unwrap_or(OTHER)
}

/// The item that time in a group counts for, by the group's label.
pub(crate) fn item_of_group(label: &str) -> &'static str {
    let of = |axis: &str| label.contains(axis);
    if of("replicate") || of("shard") || of("tied") {
        StepCosts::DATA
    } else if of("tensor") {
        StepCosts::TENSOR
    } else if of("context") {
        StepCosts::CONTEXT
    } else if of("pipeline") || of("messages") {
        StepCosts::PIPELINE
    } else {
        StepCosts::OTHER
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bessemer_collectives::CollectiveKind;
    use std::time::Duration;

    #[test]
    fn collectives_within_an_order_are_not_counted_twice() {
        let begun = Instant::now();
        let at = |ms: u64| begun + Duration::from_millis(ms);
        let here = std::thread::current().id();
        let elsewhere = std::thread::spawn(|| std::thread::current().id()).join().expect("a thread");
        let order = |name: &str, start, end| OrderSpan { name: name.into(), start: at(start), end: at(end) };
        let call = |group: &str, thread, start, end| CallSpan {
            group: group.into(),
            kind: CollectiveKind::AllReduce,
            name: "x".into(),
            bytes: 4,
            thread,
            start: at(start),
            end: at(end),
        };
        let notes = Notes {
            orders: vec![
                order("F 0.0", 0, 40),
                order("R 0.0", 40, 50),
                order("B 0.0", 50, 90),
                order("reduce 0", 90, 100),
                order("step 0", 102, 110),
            ],
            calls: vec![
                call("tensor", here, 10, 15),
                call("replicate", elsewhere, 60, 95),
                call("shard", here, 52, 54),
                call("world", here, 100, 102),
            ],
        };
        let mut measuring = Measuring::new(20);
        measuring.add(&notes, 0.120);
        let milliseconds = measuring.time.map(|seconds| (1e3 * seconds).round());
        // Compute, tensor, context, pipeline, data, optimizer, other.
        assert_eq!(milliseconds, [73.0, 5.0, 0.0, 10.0, 12.0, 8.0, 12.0]);
    }

    #[test]
    fn the_record_has_the_median_step_the_mean_rank_and_the_fullest_one() {
        let rank = |compute: f64, bytes: u64| RankCosts {
            time: vec![compute, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0],
            memory: [("weights".to_owned(), bytes), ("workspace".to_owned(), 0)].into(),
            traffic: [("shard".to_owned(), bytes + 1)].into(),
        };
        let mut measuring = Measuring::new(20);
        (measuring.seconds, measuring.watched) = (vec![3.0, 1.0, 2.0], 2);
        let record = measuring.record(&[rank(4.0, 10), rank(8.0, 30)], 20);
        assert_eq!((record.step, record.steps, record.watched), (20, 3, 2));
        assert_eq!(record.costs.seconds, 2.0);
        let item = CostItem::new;
        assert_eq!(record.costs.time, [item(StepCosts::COMPUTE, 3.0), item(StepCosts::OTHER, 0.5)]);
        assert_eq!(record.costs.memory, [item("weights", 30.0)]);
        assert_eq!(record.costs.traffic, [item("shard", 11.0)]);
    }
}
