//! What a simulated step is charged for, by kind of node: where two sets of costs differ, this says in which operators, copies or
//! collectives.

use bessemer_sim::SimError;
use bessemer_sim::replay::{
    CollectiveSeconds, Medium, MessageSeconds, NodeCosts, ReplayGroup, Traffic, op_key,
};
use bessemer_tensor::op::Op;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Charges of one kind of node over all ranks that are simulated.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Charges {
    /// Nodes.
    pub(super) count: u64,
    /// Seconds of all of them, before anything overlaps.
    pub(super) seconds: f64,
}

impl Charges {
    /// Number and seconds of each kind.
    pub(super) fn value(charges: &BTreeMap<String, Charges>) -> Value {
        let pairs = charges.iter().map(|(kind, Charges { count, seconds })| {
            (kind.clone(), json!({ "count": count, "seconds": seconds }))
        });
        Value::Object(pairs.collect())
    }
}

/// Wrapper of costs that sums the charges.
pub(super) struct Tally<C> {
    costs: C,
    charges: BTreeMap<String, Charges>,
}

impl<C: NodeCosts> Tally<C> {
    pub(super) fn new(costs: C) -> Tally<C> {
        Tally { costs, charges: BTreeMap::new() }
    }

    /// Charges by operator and shapes, copy, collective and message.
    pub(super) fn into_charges(self) -> BTreeMap<String, Charges> {
        self.charges
    }

    fn add(&mut self, key: String, seconds: f64) {
        let of_key = self.charges.entry(key).or_default();
        of_key.count += 1;
        of_key.seconds += seconds;
    }
}

impl<C: NodeCosts> NodeCosts for Tally<C> {
    fn op(&mut self, op: &Op) -> Result<f64, SimError> {
        let seconds = self.costs.op(op)?;
        self.add(op_key(op), seconds);
        Ok(seconds)
    }

    fn copy(&mut self, bytes: u64) -> f64 {
        let seconds = self.costs.copy(bytes);
        self.add("copy".into(), seconds);
        seconds
    }

    fn collective(&mut self, group: &ReplayGroup, traffic: Traffic) -> CollectiveSeconds {
        let seconds = self.costs.collective(group, traffic);
        self.add(format!("{:?} over {}", traffic.kind, group.label), seconds.processor + seconds.link);
        seconds
    }

    fn message(&mut self, ranks: [usize; 2], bytes: u64) -> MessageSeconds {
        let seconds = self.costs.message(ranks, bytes);
        self.add("message".into(), seconds.send + seconds.receive + seconds.busy + seconds.latency);
        seconds
    }

    fn medium(&mut self, ranks: &[usize]) -> Medium {
        self.costs.medium(ranks)
    }

    fn counts(&self) -> bool {
        true
    }
}
