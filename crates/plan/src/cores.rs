//! How long a step takes on the cores of one machine: sockets, memory nodes, and the pool of threads that works on them.
//!
//! An operator's arithmetic is shared by the cores. Its bytes come through the memory of the nodes whose cores work, and
//! the larger of the two times counts (the roofline of Williams, Waterman & Patterson, 2009, doi:10.1145/1498765.1498785). Every
//! launch is handed to the threads and taken back. What is outside operators stays with one core (Amdahl, 1967).
//!
//! Not in the model: caches that grow with the cores, clocks that sink with them, operators with fewer tiles than cores.

use crate::PlanError;
use std::fmt;
use std::str::FromStr;

/// Most cores of a described machine.
const MOST_CORES: usize = 1 << 16;

/// Sockets, memory nodes and cores. Written `2x4x16`: sockets, nodes of a socket, cores of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cores {
    /// Sockets.
    pub sockets: usize,
    /// Memory nodes of a socket.
    pub nodes: usize,
    /// Cores of a node.
    pub cores: usize,
}

impl Cores {
    /// All memory nodes.
    pub fn all_nodes(&self) -> usize {
        self.sockets * self.nodes
    }

    /// All cores.
    pub fn all(&self) -> usize {
        self.all_nodes() * self.cores
    }
}

impl fmt::Display for Cores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}x{}", self.sockets, self.nodes, self.cores)
    }
}

impl FromStr for Cores {
    type Err = PlanError;

    fn from_str(text: &str) -> Result<Cores, PlanError> {
        let wrong = || PlanError::Machine {
            problem: format!(
                "cores {text:?}: wanted SOCKETSxNODESxCORES, memory nodes of a socket and cores of a node, as in 2x4x16, \
                 with at most {MOST_CORES} cores in all"
            ),
        };
        let counts: Result<Vec<usize>, _> = text.split('x').map(str::parse).collect();
        let [sockets, nodes, cores] = counts.map_err(|_| wrong())?[..] else { return Err(wrong()) };
        let all = [sockets, nodes, cores].iter().try_fold(1usize, |all, n| all.checked_mul(*n));
        match all {
            Some(1..=MOST_CORES) => Ok(Cores { sockets, nodes, cores }),
            _ => Err(wrong()),
        }
    }
}

/// Where the pages lie that an operator reads and writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placement {
    /// On the node of the core that uses them.
    Local,
    /// Evenly on the nodes whose cores work, whoever uses them.
    Spread,
    /// On one node.
    OneNode,
}

impl Placement {
    /// All of them, the fastest first.
    pub const ALL: [Placement; 3] = [Placement::Local, Placement::Spread, Placement::OneNode];

    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Placement::Local => "local",
            Placement::Spread => "spread",
            Placement::OneNode => "one node",
        }
    }
}

/// Rates of a machine of many cores.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ManyCores {
    /// How many there are.
    pub cores: Cores,
    /// Bytes/s that one core moves.
    pub core_bandwidth: f64,
    /// Bytes/s of a node's memory.
    pub node_bandwidth: f64,
    /// Bytes/s that a node moves from and to the memory of the other nodes.
    pub link_bandwidth: f64,
    /// Seconds in which a job without work is handed to two awake threads and taken back.
    pub handoff: f64,
    /// Threads of a group, and groups of a larger one, that are notified and counted one after the other.
    pub fan_in: usize,
}

impl ManyCores {
    /// Bytes/s that the first `cores` cores move, nodes being filled one after the other.
    pub fn bandwidth(&self, cores: usize, placement: Placement) -> f64 {
        let nodes = cores.div_ceil(self.cores.cores).max(1) as f64;
        let own = (cores as f64 * self.core_bandwidth).min(nodes * self.node_bandwidth);
        // Part of the bytes that goes from node to node.
        let remote = (nodes - 1.0) / nodes;
        match placement {
            Placement::Local => own,
            _ if nodes == 1.0 => own,
            // Every node's link carries its part.
            Placement::Spread => own.min(nodes * self.link_bandwidth / remote),
            // All of it goes over the link of the node that has the pages.
            Placement::OneNode => own.min(self.node_bandwidth).min(self.link_bandwidth / remote),
        }
    }

    /// Seconds of a launch in which its job is handed to `cores` threads and taken back. Threads are notified and counted in a tree
    /// of groups, each of which takes a turn for every member after the first: the logarithm, above the size of a group.
    pub fn handoff(&self, cores: usize) -> f64 {
        let (mut turns, mut members) = (0, cores);
        while members > 1 {
            let groups = members.div_ceil(self.fan_in.max(2));
            turns += members.div_ceil(groups) - 1;
            members = groups;
        }
        turns as f64 * self.handoff
    }
}

/// All launches of a kind of operator in a step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OperatorWork {
    /// Seconds on one core.
    pub seconds: f64,
    /// Bytes of the operands.
    pub bytes: f64,
    /// Launches.
    pub launches: f64,
}

/// A step as it was measured on one core.
#[derive(Debug, Clone, PartialEq)]
pub struct StepWork {
    /// Operators.
    pub operators: Vec<OperatorWork>,
    /// Seconds outside of operators, which stay with one core.
    pub serial: f64,
}

/// Seconds of the parts of a step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CoresTime {
    /// In operators: the larger of arithmetic and memory of each.
    pub operators: f64,
    /// Of that, what arithmetic alone does not take.
    pub waiting_for_memory: f64,
    /// In handing launches to threads and taking them back.
    pub handoffs: f64,
    /// Outside of operators.
    pub serial: f64,
}

impl CoresTime {
    /// The step.
    pub fn total(&self) -> f64 {
        self.operators + self.handoffs + self.serial
    }
}

impl StepWork {
    /// The time of the step on the first `cores` cores of a machine whose cores are as fast as the one that was measured.
    pub fn on(&self, machine: &ManyCores, cores: usize, placement: Placement) -> CoresTime {
        let bandwidth = machine.bandwidth(cores, placement);
        let handoff = machine.handoff(cores);
        let mut time =
            CoresTime { operators: 0.0, waiting_for_memory: 0.0, handoffs: 0.0, serial: self.serial };
        for op in &self.operators {
            let arithmetic = op.seconds / cores as f64;
            // On one core memory is in what was measured: bytes that stayed in a cache cost nothing.
            let alone = machine.core_bandwidth * op.seconds;
            let memory = op.bytes.min(alone) / bandwidth;
            time.operators += arithmetic.max(memory);
            time.waiting_for_memory += (memory - arithmetic).max(0.0);
            time.handoffs += op.launches * handoff;
        }
        time
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(cores: &str) -> ManyCores {
        ManyCores {
            cores: cores.parse().unwrap(),
            core_bandwidth: 10e9,
            node_bandwidth: 40e9,
            link_bandwidth: 20e9,
            handoff: 1e-6,
            fan_in: 8,
        }
    }

    #[test]
    fn descriptions_are_read_and_wrong_ones_refused() {
        let cores: Cores = "2x4x16".parse().unwrap();
        assert_eq!((cores.all_nodes(), cores.all(), cores.to_string().as_str()), (8, 128, "2x4x16"));
        for wrong in
            ["", "2", "2x4", "2x4x16x1", "0x1x1", "1x-1x2", "x1x1", "9999999999x9999999999x1", "1x1x65537"]
        {
            let told = wrong.parse::<Cores>().unwrap_err().to_string();
            assert!(told.contains("as in 2x4x16"), "{wrong}: {told}");
        }
    }

    /// Values by hand: 4 nodes of 8 cores, 10 GB/s a core, 40 GB/s a node, 20 GB/s a link.
    #[test]
    fn bandwidth_is_that_of_cores_then_nodes_then_links() {
        let m = machine("2x2x8");
        let gb = |cores, placement| m.bandwidth(cores, placement) / 1e9;
        for placement in Placement::ALL {
            assert_eq!(
                [1, 3, 4, 8].map(|cores| gb(cores, placement)),
                [10.0, 30.0, 40.0, 40.0],
                "{placement:?}"
            );
        }
        // Nine cores are on two nodes, whose memory could give 80.
        assert_eq!(gb(9, Placement::Local), 80.0);
        assert_eq!(gb(32, Placement::Local), 160.0);
        // Three quarters of the bytes cross 4 links of 20: 80 / 0.75.
        assert!((gb(32, Placement::Spread) - 80.0 / 0.75).abs() < 1e-9);
        // They cross one link: 20 / 0.75, below the node's 40.
        assert!((gb(32, Placement::OneNode) - 20.0 / 0.75).abs() < 1e-9);
    }

    /// By hand: 128 threads are 16 groups of 8, 2 of 8 of those, and one of 2.
    #[test]
    fn a_handoff_grows_with_the_threads_of_a_group_and_then_with_the_logarithm() {
        let m = machine("1x1x64");
        for (cores, turns) in [
            (1, 0),
            (2, 1),
            (8, 7),
            (9, 4 + 1),
            (16, 7 + 1),
            (64, 7 + 7),
            (128, 7 + 7 + 1),
            (1024, 7 + 7 + 7 + 1),
        ] {
            assert!((m.handoff(cores) / 1e-6 - f64::from(turns)).abs() < 1e-9, "{cores}");
        }
        // Groups of one would never end.
        assert!((ManyCores { fan_in: 0, ..m }.handoff(4) / 1e-6 - 2.0).abs() < 1e-9);
    }

    /// One operator of arithmetic, one of memory, a serial part: one core takes what was measured, and the limits are Amdahl's
    /// and the memory's.
    #[test]
    fn a_step_is_what_was_measured_on_one_core_and_stops_at_its_limits() {
        let products = OperatorWork { seconds: 1.0, bytes: 1e8, launches: 10.0 };
        // 1 GB in 0.1 s: all that one core moves.
        let update = OperatorWork { seconds: 0.1, bytes: 1e9, launches: 1.0 };
        let work = StepWork { operators: vec![products, update], serial: 0.01 };
        let m = machine("1x1x64");
        let on = |cores| work.on(&m, cores, Placement::Local);
        assert!((on(1).total() - 1.11).abs() < 1e-12 && on(1).waiting_for_memory == 0.0);
        // Four cores saturate the node: the update takes 25 ms from there on.
        assert!((on(4).operators - (0.25 + 0.025)).abs() < 1e-12);
        assert!((on(64).operators - (1.0 / 64.0 + 0.025)).abs() < 1e-12);
        assert!((on(64).waiting_for_memory - (0.025 - 0.1 / 64.0)).abs() < 1e-12);
        assert!((on(64).handoffs - 11.0 * 14e-6).abs() < 1e-15);
        assert_eq!(on(64).serial, 0.01);
        // An operator whose operands stay in a cache is not charged for more bytes than it could have moved.
        let cached = StepWork {
            operators: vec![OperatorWork { seconds: 0.01, bytes: 1e9, launches: 1.0 }],
            serial: 0.0,
        };
        assert!((cached.on(&m, 1, Placement::Local).total() - 0.01).abs() < 1e-12);
    }
}
