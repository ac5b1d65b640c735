//! Costs of nodes as a table of measured times.

use super::{
    CollectiveSeconds, Medium, MessageSeconds, NodeCosts, ReplayGroup, Traffic, counted_rows, on_rows,
};
use crate::{Link, SimError};
use bessemer_program::CollectiveKind;
use bessemer_tensor::op::Op;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Seconds that grow with bytes: `fixed + per_byte * bytes`.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct LinearSeconds {
    /// Seconds of an empty one.
    pub fixed: f64,
    /// Seconds of a byte.
    pub per_byte: f64,
}

impl LinearSeconds {
    /// The line through two measured times of `bytes[0] < bytes[1]` bytes; nothing is negative.
    pub fn through(bytes: [u64; 2], seconds: [f64; 2]) -> LinearSeconds {
        let per_byte = ((seconds[1] - seconds[0]) / (bytes[1] - bytes[0]) as f64).max(0.0);
        LinearSeconds { fixed: (seconds[0] - per_byte * bytes[0] as f64).max(0.0), per_byte }
    }

    /// Seconds of so many bytes.
    pub fn of(&self, bytes: u64) -> f64 {
        self.fixed + self.per_byte * bytes as f64
    }
}

/// Seconds of an operator by the rows that it touches ([`counted_rows`]): a line through those of few and of many rows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RowSeconds {
    /// Few and many.
    pub rows: [usize; 2],
    /// Seconds of each.
    pub seconds: [f64; 2],
}

impl RowSeconds {
    /// Seconds of so many rows, at least 0.
    pub fn of(&self, rows: usize) -> f64 {
        let ([few, many], [first, last]) = (self.rows.map(|rows| rows as f64), self.seconds);
        let slope = if many > few { (last - first) / (many - few) } else { 0.0 };
        (first + slope * (rows as f64 - few)).max(0.0)
    }
}

/// Measured costs of the ranks of a job.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct CostTable {
    /// Seconds of operators, by [`op_key`].
    pub ops: BTreeMap<String, f64>,
    /// Those of operators whose rows are counted, by [`op_key`] without rows.
    pub counted: BTreeMap<String, RowSeconds>,
    /// Copies between the device and host memory.
    pub copy: LinearSeconds,
    /// Processor time of collectives, by kind and bytes of the whole values.
    pub collectives: BTreeMap<CollectiveKind, LinearSeconds>,
    /// Time that a collective takes longer if a progress thread runs it.
    pub handoff: f64,
    /// Processor time of handing over a message.
    pub send: LinearSeconds,
    /// Processor time of taking a message that is there.
    pub receive: LinearSeconds,
    /// Progress threads have cores of their own, so that their work takes no time of the ranks.
    pub spare_cores: bool,
    /// Links between ranks; none: processors move all bytes.
    pub link: Option<Link>,
}

/// What tells operators of different cost apart within a job: name, and shape and type of every operand.
pub fn op_key(op: &Op) -> String {
    let mut key = op.name().to_owned();
    for operand in op.operands().iter() {
        let view = operand.view;
        // Writing to a string succeeds.
        let _ = write!(key, ", {} {}x{} {:?}", operand.name, view.rows, view.cols, view.dtype());
    }
    key
}

impl NodeCosts for CostTable {
    fn op(&mut self, op: &Op) -> Result<f64, SimError> {
        let key = op_key(op);
        let measured = match (counted_rows(op), on_rows(op, 0)) {
            (Some(rows), Some(without)) => self.counted.get(&op_key(&without)).map(|line| line.of(rows)),
            _ => self.ops.get(&key).copied(),
        };
        measured.ok_or(SimError::Cost(key))
    }

    fn copy(&mut self, bytes: u64) -> f64 {
        if bytes == 0 { 0.0 } else { self.copy.of(bytes) }
    }

    fn collective(&mut self, _: &ReplayGroup, traffic: Traffic) -> CollectiveSeconds {
        let processor = self.collectives.get(&traffic.kind).map_or(0.0, |line| line.of(traffic.bytes));
        let link = self.link.map_or(0.0, |link| {
            link.latency * traffic.rounds() as f64 + traffic.sent as f64 / link.bandwidth
        });
        let (processor, link) = match self.spare_cores {
            true => (0.0, link.max(processor)),
            false => (processor, link),
        };
        CollectiveSeconds { processor, link, handoff: self.handoff }
    }

    fn message(&mut self, _: [usize; 2], bytes: u64) -> MessageSeconds {
        let link = self.link.unwrap_or_default();
        MessageSeconds {
            send: self.send.of(bytes),
            receive: self.receive.of(bytes),
            busy: bytes as f64 / link.bandwidth,
            latency: link.latency,
        }
    }

    fn medium(&mut self, _: &[usize]) -> Medium {
        Medium::Own
    }
}
