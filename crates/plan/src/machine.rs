//! Machines: devices, nodes and networks as figures, each with its source.

use crate::{InProcess, Measurements, PlanError, SummingSwitches};
use bessemer_cluster::collective::formulas::ring_all_reduce;
use bessemer_units::{Link, did_you_mean, with_suggestion};
use serde::{Deserialize, Serialize};

/// A kind of device, and how devices are joined.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// Name under which it is chosen.
    pub name: String,
    /// Matrix products in bf16 without sparsity, FLOP/s.
    pub matrix_flops: f64,
    /// Bytes a second between the device and its memory.
    pub memory_bandwidth: f64,
    /// Bytes of memory of a device.
    pub memory: f64,
    /// Multiprocessors: tiles of a product that are computed at once.
    pub multiprocessors: usize,
    /// Devices of a node, which reach each other without the network.
    pub node: usize,
    /// Bytes a second that a node sends into the network, all its interfaces together.
    pub network_bandwidth: f64,
    /// Bytes a second that each device writes to its second memory (`train.offload`) and, beside that, reads from it, while all of its node do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offload_bandwidth: Option<f64>,
    /// Source of each figure.
    pub sources: Vec<String>,
    /// All-reduces inside a node, between devices.
    pub all_reduce: AllReduce,
    /// Switches that sum.
    #[serde(default, skip_serializing_if = "no_switches")]
    pub switches: SummingSwitches,
    /// Measured times of operators, and of collectives between ranks of one process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured: Option<Measurements>,
    /// Cost of a device while it trains.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<DeviceCost>,
}

fn no_switches(switches: &SummingSwitches) -> bool {
    *switches == SummingSwitches::default()
}

/// What a device costs while it trains, its part of host, network and cooling included. Whoever fills it in names the source among those of
/// the machine; the catalogue has none.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceCost {
    /// Watts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub watts: Option<f64>,
    /// Price of an hour, in `currency`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub price_per_hour: Option<f64>,
    /// Currency of the price.
    #[serde(default)]
    pub currency: String,
}

/// Times of an all-reduce inside a node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged, deny_unknown_fields)]
pub enum AllReduce {
    /// Measured.
    Measured {
        /// Bytes that were summed, ascending.
        bytes: Vec<f64>,
        /// Times by the number of ranks, ascending.
        microseconds: Vec<Measured>,
    },
    /// A ring: base + 2 (n - 1) hop + 2 (n - 1)/n bytes / bandwidth.
    Ring {
        /// Bytes a second that a rank sends.
        bus_bandwidth: f64,
        /// Microseconds before the first message.
        base_microseconds: f64,
        /// Microseconds of a message from a rank to the next.
        hop_microseconds: f64,
    },
}

/// Measured times of a group of ranks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measured {
    /// Ranks of the group.
    pub ranks: usize,
    /// Microseconds, for each size.
    pub times: Vec<f64>,
}

impl AllReduce {
    /// Seconds of an all-reduce of `bytes` bytes over `ranks` ranks of one node. Measured times are interpolated in the logarithms of
    /// both, beyond the largest message by its bandwidth, before the smallest by its time. A group that was not measured takes the
    /// next larger one, a group above all the largest.
    pub fn seconds(&self, ranks: usize, bytes: f64) -> f64 {
        if ranks <= 1 || bytes <= 0.0 {
            return 0.0;
        }
        let microseconds = match self {
            AllReduce::Ring { bus_bandwidth, base_microseconds, hop_microseconds } => {
                let link = Link { latency: hop_microseconds * 1e-6, bandwidth: *bus_bandwidth };
                base_microseconds + ring_all_reduce(ranks as u32, bytes, link) * 1e6
            }
            AllReduce::Measured { bytes: sizes, microseconds } => {
                let group = microseconds.iter().find(|group| group.ranks >= ranks);
                group.or(microseconds.last()).map_or(0.0, |group| group.interpolate(sizes, bytes))
            }
        };
        microseconds * 1e-6
    }

    fn check(&self) -> Result<(), String> {
        let (bytes, groups) = match self {
            AllReduce::Measured { bytes, microseconds } => (bytes, microseconds),
            AllReduce::Ring { bus_bandwidth, base_microseconds, hop_microseconds } => {
                let right =
                    [*bus_bandwidth, *base_microseconds, *hop_microseconds].iter().all(|&value| value > 0.0);
                return if right { Ok(()) } else { Err("all_reduce: wanted figures above 0".into()) };
            }
        };
        if bytes.len() < 2 || bytes[0] <= 0.0 || bytes.windows(2).any(|pair| pair[0] >= pair[1]) {
            return Err("all_reduce.bytes: wanted at least two sizes above 0, ascending".into());
        }
        if groups.is_empty() || groups.windows(2).any(|pair| pair[0].ranks >= pair[1].ranks) {
            return Err("all_reduce.microseconds: wanted at least one group, ascending ranks".into());
        }
        match groups
            .iter()
            .find(|group| group.times.len() != bytes.len() || group.times.iter().any(|&time| time <= 0.0))
        {
            None => Ok(()),
            Some(group) => Err(format!(
                "all_reduce.microseconds of {} ranks has {} times; wanted {}, each above 0",
                group.ranks,
                group.times.len(),
                bytes.len()
            )),
        }
    }
}

impl Measured {
    fn interpolate(&self, sizes: &[f64], bytes: f64) -> f64 {
        let last = sizes.len() - 1;
        if bytes <= sizes[0] {
            self.times[0]
        } else if bytes >= sizes[last] {
            self.times[last] * bytes / sizes[last]
        } else {
            let next = sizes.partition_point(|&size| size < bytes);
            let share = (bytes / sizes[next - 1]).ln() / (sizes[next] / sizes[next - 1]).ln();
            self.times[next - 1] * (self.times[next] / self.times[next - 1]).powf(share)
        }
    }
}

/// The machines that come with the program.
const CATALOGUE: [&str; 5] = [
    include_str!("../machines/a100-80gb.toml"),
    include_str!("../machines/a100-80gb-hdr4.toml"),
    include_str!("../machines/a100-40gb.toml"),
    include_str!("../machines/h100-80gb.toml"),
    include_str!("../machines/b200-180gb.toml"),
];

/// Ports of a node onto the network.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct NetworkPorts {
    /// Name of their link.
    link: String,
    /// Number of ports.
    ports: usize,
}

/// Bytes a second of one direction of a link of the catalogue.
fn link_bandwidth(key: &str, name: &str) -> Result<f64, String> {
    let links = bessemer_cluster::catalogue();
    let link = links.get(name).ok_or_else(|| {
        let near = did_you_mean(name, links.keys().map(String::as_str));
        let known = links.keys().cloned().collect::<Vec<_>>().join(", ");
        format!("{key} is {name:?}{near}; wanted one of {known}")
    })?;
    Ok(link.bandwidth_gbs * 1e9)
}

impl Machine {
    /// Reads a machine from TOML. Instead of `network_bandwidth` it may have `network = { link = "ndr", ports = 8 }`, ports of a node by
    /// the name of a link in the catalogue of networks; `node_link` names the link inside a node, which an all-reduce cannot exceed.
    ///
    /// # Errors
    /// Text that is no TOML, a missing or unknown key, a figure that is not above 0, a table whose rows differ in length, a link
    /// that is not in the catalogue.
    pub fn parse(text: &str) -> Result<Machine, PlanError> {
        let wrong = |problem: String| PlanError::Machine { problem };
        let unread = |cause: toml::de::Error| wrong(with_suggestion(cause.message()));
        let mut table: toml::Table = toml::from_str(text).map_err(unread)?;
        if let Some(ports) = table.remove("network") {
            let ports: NetworkPorts = ports.try_into().map_err(unread)?;
            if table.contains_key("network_bandwidth") {
                return Err(wrong(
                    "network and network_bandwidth exclude each other; wanted one of them".into(),
                ));
            }
            let bandwidth = link_bandwidth("network.link", &ports.link).map_err(wrong)? * ports.ports as f64;
            table.insert("network_bandwidth".into(), toml::Value::Float(bandwidth));
        }
        let node_link: Option<String> =
            table.remove("node_link").map(toml::Value::try_into).transpose().map_err(unread)?;
        let machine: Machine = table.try_into().map_err(unread)?;
        machine.check()?;
        if let Some(name) = node_link {
            let most = link_bandwidth("node_link", &name).map_err(wrong)?;
            match machine.all_reduce {
                AllReduce::Ring { bus_bandwidth, .. } if bus_bandwidth > most => {
                    return Err(wrong(format!(
                        "all_reduce.bus_bandwidth is {bus_bandwidth:e}; wanted at most {most:e}, the rate of {name}"
                    )));
                }
                _ => {}
            }
        }
        Ok(machine)
    }

    /// The text that [`Machine::parse`] reads.
    ///
    /// # Errors
    /// Figures that cannot be, as in [`Machine::parse`].
    pub fn to_toml(&self) -> Result<String, PlanError> {
        self.check()?;
        toml::to_string(self).map_err(|cause| PlanError::Machine { problem: cause.to_string() })
    }

    /// How ranks of one process exchange values, on a machine whose devices they are.
    pub(crate) fn in_process(&self) -> Option<&InProcess> {
        self.measured.as_ref()?.in_process.as_ref()
    }

    /// Machines of the catalogue.
    ///
    /// # Errors
    /// None in a released program: its tests read each file.
    pub fn catalogue() -> Result<Vec<Machine>, PlanError> {
        CATALOGUE.iter().map(|text| Machine::parse(text)).collect()
    }

    /// A machine of the catalogue.
    ///
    /// # Errors
    /// A name that is not in it, with those that are.
    pub fn named(name: &str) -> Result<Machine, PlanError> {
        let machines = Machine::catalogue()?;
        let known = machines.iter().map(|machine| machine.name.clone()).collect::<Vec<_>>().join(", ");
        machines
            .into_iter()
            .find(|machine| machine.name == name)
            .ok_or_else(|| PlanError::UnknownMachine { name: name.to_string(), known })
    }

    fn check(&self) -> Result<(), PlanError> {
        let wrong = |problem: String| Err(PlanError::Machine { problem });
        let figures = [
            ("matrix_flops", self.matrix_flops),
            ("memory_bandwidth", self.memory_bandwidth),
            ("memory", self.memory),
            ("multiprocessors", self.multiprocessors as f64),
            ("node", self.node as f64),
            ("network_bandwidth", self.network_bandwidth),
        ];
        for (key, value) in figures {
            if !(value > 0.0 && value.is_finite()) {
                return wrong(format!("{key} is {value}; wanted a number above 0"));
            }
        }
        if let Some(value) = self.offload_bandwidth.filter(|value| !(*value > 0.0 && value.is_finite())) {
            return wrong(format!("offload_bandwidth is {value}; wanted a number above 0, or no such key"));
        }
        let cost = self.cost.iter();
        let costs =
            cost.flat_map(|cost| [("cost.watts", cost.watts), ("cost.price_per_hour", cost.price_per_hour)]);
        for (key, value) in costs.filter_map(|(key, value)| Some((key, value?))) {
            if !(value > 0.0 && value.is_finite()) {
                return wrong(format!("{key} is {value}; wanted a number above 0, or no such key"));
            }
        }
        if self.sources.is_empty() {
            return wrong("sources is empty; wanted where each figure is from".into());
        }
        self.all_reduce.check().or_else(wrong)?;
        self.switches.check().or_else(wrong)?;
        self.measured.as_ref().map_or(Ok(()), Measurements::check).or_else(wrong)
    }
}
