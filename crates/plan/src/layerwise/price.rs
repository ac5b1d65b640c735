//! Price of a unit: what the nodes of its program cost a rank.
//!
//! Operators run one after the other on one stream, collectives one after the other on another. Operators go on beside a
//! collective that is started, until a node waits for it; any other collective is complete before the next operator begins.

use crate::{Efficiency, Machine, Spread, collective_seconds, op_seconds};
use bessemer_program::{Class, Collective, Home, Node, Phase, UnitMemory, UnitProgram};
use bessemer_tensor::op::{Access, Op};
use serde::Serialize;

/// Seconds of the nodes of a program.
pub trait NodeSeconds {
    /// An operator.
    fn op(&self, op: &Op) -> f64;
    /// A collective of this rank.
    fn collective(&self, collective: &Collective) -> f64;
    /// Time between two launches of the host. A device that is done earlier waits.
    fn host(&self) -> f64;
}

/// Seconds on a machine.
#[derive(Debug, Clone, Copy)]
pub struct MachineSeconds<'a> {
    /// Devices.
    pub machine: &'a Machine,
    /// The software that runs on them.
    pub efficiency: &'a Efficiency,
    /// How tensor-parallel ranks lie on the nodes.
    pub tensor: Spread,
    /// Seconds between two launches.
    pub host: f64,
}

impl MachineSeconds<'_> {
    /// Seconds between two launches of a host that takes [`Efficiency::forward_seconds`] and [`Efficiency::backward_seconds`] for this
    /// layer.
    pub fn host_of(layer: &UnitProgram, efficiency: &Efficiency) -> f64 {
        let lists = [Phase::Forward, Phase::Backward].map(|phase| layer.list(phase));
        let launches = lists.iter().flat_map(|list| list.iter()).filter(|node| node.op().is_some()).count();
        (efficiency.forward_seconds + efficiency.backward_seconds) / launches.max(1) as f64
    }
}

impl NodeSeconds for MachineSeconds<'_> {
    fn op(&self, op: &Op) -> f64 {
        op_seconds(op, self.machine, self.efficiency)
    }

    fn collective(&self, collective: &Collective) -> f64 {
        let Collective { kind, axis, src, dst, .. } = collective;
        let bytes = src.bytes().max(dst.bytes()) as f64;
        collective_seconds(*kind, bytes, *axis, self.tensor, self.machine, self.efficiency)
    }

    fn host(&self) -> f64 {
        self.host
    }
}

/// Seconds and bytes of a unit on a rank.
#[derive(Debug, Default, Clone, Copy, PartialEq, Serialize)]
pub struct UnitPrice {
    /// Seconds of the forward pass of a micro-batch.
    pub forward: f64,
    /// Seconds of its backward pass.
    pub backward: f64,
    /// Of both, seconds in which no operator runs: the rank waits for other tensor-parallel ranks, or for its host.
    pub waiting: f64,
    /// Bytes kept for each micro-batch from its forward to its backward pass.
    pub saved: f64,
    /// Bytes that live within a pass, in memory that all units share.
    pub scratch: f64,
    /// Parameters of the rank.
    pub parameters: f64,
}

/// Seconds of a list, and of these those in which no operator runs: the rank waits for other ranks, or for its host.
struct ListSeconds {
    all: f64,
    waiting: f64,
}

impl UnitPrice {
    /// The price of a partitioned unit. Copies to a second memory are not priced.
    pub fn of(program: &UnitProgram, memory: &UnitMemory, seconds: &dyn NodeSeconds) -> UnitPrice {
        let forward = list(program.list(Phase::Forward), seconds);
        let backward = list(program.list(Phase::Backward), seconds);
        let saved = program.values.iter().zip(&memory.homes).filter(|(_, home)| **home == Home::Saved);
        let saved: usize = saved.map(|(value, _)| value.len() * value.dtype.size()).sum();
        let scratch: usize = memory.scratch.iter().map(|(dtype, len)| dtype.size() * len).sum();
        let parameter = |class: Class| matches!(class, Class::Parameter(_));
        let parameters = program.values.iter().filter(|v| parameter(v.class)).map(|v| v.len());
        UnitPrice {
            forward: forward.all,
            backward: backward.all,
            waiting: forward.waiting + backward.waiting,
            saved: (saved + entering(program)) as f64,
            scratch: scratch as f64,
            parameters: parameters.sum::<usize>() as f64,
        }
    }
}

/// Bytes of the residual stream that enters the unit, if its backward pass reads it again.
fn entering(program: &UnitProgram) -> usize {
    let mut touches = program.list(Phase::Backward).iter().flat_map(Node::touches);
    let again = touches
        .find(|touch| program.values[touch.value()].class == Class::StreamIn && touch.access == Access::Read);
    again.map_or(0, |touch| {
        let value = &program.values[touch.value()];
        value.len() * value.dtype.size()
    })
}

/// Runs a list on two streams.
fn list(nodes: &[Node], seconds: &dyn NodeSeconds) -> ListSeconds {
    let (mut now, mut free, mut busy, mut issued) = (0.0_f64, 0.0_f64, 0.0, 0.0);
    let mut under_way: Vec<(usize, f64)> = Vec::new();
    for node in nodes {
        match node {
            // What begins the gradients of an update runs in one of many passes.
            Node::Launch(launch) if launch.first_only => {}
            Node::Launch(launch) => {
                issued += seconds.host();
                let seconds = seconds.op(&launch.op);
                now = now.max(issued) + seconds;
                busy += seconds;
            }
            Node::Collective(collective) => {
                now = now.max(free) + seconds.collective(collective);
                free = now;
            }
            Node::Start(collective) => {
                free = now.max(free) + seconds.collective(collective);
                under_way.push((collective.id, free));
            }
            Node::Wait { id, .. } => {
                if let Some((_, end)) = under_way.iter().find(|(started, _)| started == id) {
                    now = now.max(*end);
                }
            }
            Node::Offload(_) | Node::Reload(_) => {}
        }
    }
    let all = now.max(free);
    ListSeconds { all, waiting: all - busy }
}
