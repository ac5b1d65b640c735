//! Networks written as TOML.

use crate::collective::SlotSwitch;
use crate::topology::{Clos, Dragonfly, RailOnly, RailOptimised, Topology, Torus};
use crate::{CableKind, ClusterError, LinkClass, Network, NodeShape, catalogue};
use bessemer_units::{Link, with_suggestion};
use serde::Deserialize;

/// A described network and the figures of its parts.
#[derive(Debug, Clone, PartialEq)]
pub struct Description {
    /// The network.
    pub network: Network,
    /// Prices and powers, if the description has any.
    pub parts: Option<Parts>,
    /// The switch as one that sums in slots, if the description gives it any.
    pub slots: Option<SlotSwitch>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    name: Option<String>,
    nodes: Option<u32>,
    #[serde(default)]
    node: NodeSection,
    network: Option<NetworkSection>,
    parts: Option<Parts>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct NodeSection {
    devices: Option<u32>,
    nics: Option<u32>,
    link: Option<String>,
    bandwidth_gbs: Option<f64>,
    latency_us: Option<f64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct NetworkSection {
    topology: String,
    link: Option<String>,
    bandwidth_gbs: Option<f64>,
    latency_us: Option<f64>,
    reduction_trees: Option<u32>,
    slots: Option<u32>,
    slot_bytes: Option<u32>,
    ports: Option<u32>,
    levels: Option<u32>,
    oversubscription: Option<u32>,
    p: Option<u32>,
    a: Option<u32>,
    h: Option<u32>,
    dims: Option<Vec<u32>>,
}

/// Prices in US dollars and powers in watts, of one part each. What is left out does not count.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parts {
    /// Origin of the figures: an offer, a data sheet.
    pub source: String,
    /// Price of a switch of the network.
    pub switch_usd: Option<f64>,
    /// Power of a switch.
    pub switch_watts: Option<f64>,
    /// Price of a cable of the network without its transceivers.
    pub cable_usd: Option<f64>,
    /// Price of a transceiver, of which each cable of the network has two.
    pub transceiver_usd: Option<f64>,
    /// Power of a transceiver.
    pub transceiver_watts: Option<f64>,
    /// Price of a port of a node onto the network.
    pub nic_usd: Option<f64>,
    /// Power of such a port.
    pub nic_watts: Option<f64>,
}

impl Parts {
    fn check(&self, file: &str) -> Result<(), ClusterError> {
        let numbers = [
            ("switch_usd", self.switch_usd),
            ("switch_watts", self.switch_watts),
            ("cable_usd", self.cable_usd),
            ("transceiver_usd", self.transceiver_usd),
            ("transceiver_watts", self.transceiver_watts),
            ("nic_usd", self.nic_usd),
            ("nic_watts", self.nic_watts),
        ];
        for (key, value) in numbers {
            if let Some(value) = value.filter(|v| !(0.0..=1e12).contains(v)) {
                let place = format!("{file}: parts.{key}");
                return Err(ClusterError::value(
                    place,
                    "a number from 0 to 1e12",
                    value,
                    "leave it out if it is unknown",
                ));
            }
        }
        Ok(())
    }
}

/// Keys that only some topologies have.
const OWN_KEYS: [(&str, &[&str]); 6] = [
    ("slots, slot_bytes", &["switch"]),
    ("ports", &["fat-tree", "rail-only", "rail-optimised"]),
    ("levels", &["fat-tree", "rail-only", "rail-optimised"]),
    ("oversubscription", &["fat-tree", "rail-only", "rail-optimised"]),
    ("p, a, h", &["dragonfly"]),
    ("dims", &["torus"]),
];

/// Values of `network.topology`.
const TOPOLOGIES: [&str; 6] = ["switch", "fat-tree", "dragonfly", "torus", "rail-only", "rail-optimised"];

impl Description {
    /// Reads a description. `file` is its name in errors, and the name of the network if it has none.
    ///
    /// # Errors
    /// Text that is not TOML, unknown keys, values that no network can have.
    pub fn parse(file: &str, text: &str) -> Result<Description, ClusterError> {
        let parsed: File = toml::from_str(text).map_err(|e| ClusterError::Description {
            file: file.into(),
            problem: with_suggestion(e.to_string().trim_end()),
        })?;
        let in_file = |e: ClusterError| match e {
            ClusterError::Value { place, wanted, found, hint } => {
                ClusterError::Value { place: format!("{file}: {place}"), wanted, found, hint }
            }
            other => other,
        };
        if let Some(parts) = &parsed.parts {
            parts.check(file)?;
        }
        let network = build(file, &parsed).map_err(in_file)?;
        let slots = match parsed.network.as_ref().map(|n| (n.slots, n.slot_bytes)) {
            Some((Some(slots), Some(packet))) => {
                let link = network.class(CableKind::Host).link;
                let switch = SlotSwitch { slots, packet, link };
                switch.all_reduce(1.0).map_err(in_file)?;
                Some(switch)
            }
            Some((None, None)) | None => None,
            Some(_) => {
                let hint = "give both";
                let place = format!("{file}: network.slots and slot_bytes");
                return Err(ClusterError::value(place, "both or neither", "one of them", hint));
            }
        };
        Ok(Description { network, parts: parsed.parts, slots })
    }
}

fn build(file: &str, parsed: &File) -> Result<Network, ClusterError> {
    let section = &parsed.node;
    let devices = section.devices.unwrap_or(1);
    let node_link = match devices > 1 || section.link.is_some() || section.bandwidth_gbs.is_some() {
        true => Some(class("node", section.link.as_deref(), section.bandwidth_gbs, section.latency_us)?),
        false => None,
    };
    let node = NodeShape { devices, nics: section.nics.unwrap_or(devices), link: node_link };
    for (key, found) in [("node.devices", node.devices), ("node.nics", node.nics)] {
        if found == 0 {
            return Err(ClusterError::value(key, "1 or more", found, "leave it out for one device a node"));
        }
    }
    let name = parsed.name.as_deref().unwrap_or(file);
    let Some(network) = &parsed.network else {
        let Some(link) = node.link.clone() else {
            return Err(ClusterError::value(
                "network",
                "a [network], or a [node] of several devices",
                "neither",
                "see docs/network.md for a description of each topology",
            ));
        };
        return Network::new(name, node, parsed.nodes.unwrap_or(1), Topology::None, [link.clone(), link]);
    };
    own_keys_only(network)?;
    let link = class("network", network.link.as_deref(), network.bandwidth_gbs, network.latency_us)?;
    let (topology, nodes) = topology(parsed, network, &node)?;
    let built = Network::new(name, node, nodes, topology, [link.clone(), link])?;
    match network.reduction_trees {
        Some(0) => Err(ClusterError::value(
            "network.reduction_trees",
            "1 or more",
            0,
            "leave it out for switches that do not sum",
        )),
        Some(trees) => Ok(built.with_reduction_trees(trees)),
        None => Ok(built),
    }
}

/// Builds the topology and says how many nodes it has.
fn topology(
    parsed: &File,
    network: &NetworkSection,
    node: &NodeShape,
) -> Result<(Topology, u32), ClusterError> {
    let needs = |key: &str, value: Option<u32>| {
        let place = if key == "nodes" { "nodes".to_string() } else { format!("network.{key}") };
        let wanted = format!("a number, because the topology is {}", network.topology);
        value.ok_or_else(|| ClusterError::value(place, wanted, "none", format!("add {key} = NUMBER")))
    };
    let ports_of = |nodes: u32| {
        nodes.checked_mul(node.nics).ok_or_else(|| {
            ClusterError::value("nodes", "at most 4294967295 ports of all nodes", nodes, "take fewer nodes")
        })
    };
    let clos = |hosts: u32| {
        Clos::new(
            hosts,
            needs("ports", network.ports)?,
            network.levels,
            network.oversubscription.unwrap_or(1),
        )
    };
    let fixed = |hosts: u32| {
        let wanted = hosts / node.nics;
        if !hosts.is_multiple_of(node.nics) {
            return Err(ClusterError::value(
                "node.nics",
                format!("a divisor of the {hosts} hosts of the network"),
                node.nics,
                "take another number",
            ));
        }
        match parsed.nodes {
            Some(found) if found != wanted => Err(ClusterError::value(
                "nodes",
                format!("{wanted}, which the topology has"),
                found,
                "leave nodes out",
            )),
            _ => Ok(wanted),
        }
    };
    Ok(match network.topology.as_str() {
        "switch" => {
            let nodes = needs("nodes", parsed.nodes)?;
            (Topology::Clos(Clos::single_switch(ports_of(nodes)?)?), nodes)
        }
        "fat-tree" => {
            let nodes = needs("nodes", parsed.nodes)?;
            (Topology::Clos(clos(ports_of(nodes)?)?), nodes)
        }
        "rail-only" => {
            let nodes = needs("nodes", parsed.nodes)?;
            ports_of(nodes)?;
            (Topology::RailOnly(RailOnly::new(node.devices, clos(nodes)?)), nodes)
        }
        "rail-optimised" => {
            let nodes = needs("nodes", parsed.nodes)?;
            (Topology::RailOptimised(RailOptimised::new(clos(ports_of(nodes)?)?, nodes, node.nics)?), nodes)
        }
        "dragonfly" => {
            let [p, a, h] =
                [("p", network.p), ("a", network.a), ("h", network.h)].map(|(key, value)| needs(key, value));
            let dragonfly = Dragonfly::new(p?, a?, h?)?;
            let nodes = fixed(dragonfly.hosts())?;
            (Topology::Dragonfly(dragonfly), nodes)
        }
        "torus" => {
            let torus = Torus::new(network.dims.as_deref().unwrap_or_default())?;
            let nodes = fixed(torus.hosts())?;
            (Topology::Torus(torus), nodes)
        }
        other => {
            return Err(ClusterError::value(
                "network.topology",
                format!("one of {}", TOPOLOGIES.join(", ")),
                other,
                "a machine of one node has no [network]",
            ));
        }
    })
}

/// Refuses keys of another topology.
fn own_keys_only(network: &NetworkSection) -> Result<(), ClusterError> {
    let given = [
        network.slots.or(network.slot_bytes).is_some(),
        network.ports.is_some(),
        network.levels.is_some(),
        network.oversubscription.is_some(),
        network.p.or(network.a).or(network.h).is_some(),
        network.dims.is_some(),
    ];
    for ((key, topologies), given) in OWN_KEYS.iter().zip(given) {
        if given
            && TOPOLOGIES.contains(&network.topology.as_str())
            && !topologies.contains(&network.topology.as_str())
        {
            return Err(ClusterError::value(
                format!("network.{key}"),
                format!("no such key for the topology {}", network.topology),
                "one",
                format!("leave it out; {key} belongs to {}", topologies.join(", ")),
            ));
        }
    }
    Ok(())
}

/// The link class of a section: by name or by bandwidth, with a latency.
fn class(
    section: &str,
    name: Option<&str>,
    bandwidth_gbs: Option<f64>,
    latency_us: Option<f64>,
) -> Result<LinkClass, ClusterError> {
    let bandwidth = match (name, bandwidth_gbs) {
        (_, Some(own)) => own,
        (Some(name), None) => match catalogue().get(name) {
            Some(link) => link.bandwidth_gbs,
            None => {
                let known: Vec<String> = catalogue().into_keys().collect();
                return Err(ClusterError::value(
                    format!("{section}.link"),
                    format!("one of {}", known.join(", ")),
                    name,
                    "or give bandwidth_gbs, 1e9 bytes a second of one direction",
                ));
            }
        },
        (None, None) => {
            return Err(ClusterError::value(
                format!("{section}.link"),
                "a name of the catalogue, or bandwidth_gbs",
                "neither",
                "e.g. link = \"ndr\"",
            ));
        }
    };
    if !(1e-6..=1e9).contains(&bandwidth) {
        return Err(ClusterError::value(
            format!("{section}.bandwidth_gbs"),
            "a number from 1e-6 to 1e9",
            bandwidth,
            "1e9 bytes a second of one direction",
        ));
    }
    match latency_us {
        Some(latency) if (0.0..=1e6).contains(&latency) => Ok(LinkClass {
            name: name.map_or_else(|| format!("{bandwidth} GB/s"), str::to_string),
            link: Link { latency: latency * 1e-6, bandwidth: bandwidth * 1e9 },
        }),
        found => Err(ClusterError::value(
            format!("{section}.latency_us"),
            "microseconds of one link, 0 to 1e6",
            found.map_or("none".to_string(), |latency| latency.to_string()),
            "measure it on the machine; the examples assume 1",
        )),
    }
}
