//! What a training job exchanges on each axis of its mesh, and how long that takes on a network.

use crate::collective::{CollectiveAlgorithm, TrafficKind, expand};
use crate::topology::Topology;
use crate::{
    AxisDemand, AxisExchange, ClusterError, Failures, Network, PICOSECONDS, Router, Routing, TransferJob,
    simulate,
};
use bessemer_mesh::{Axis, Mesh, MeshConfig};
use bessemer_units::{Bytes, with_suggestion};
use serde::Deserialize;

/// Axes of a mesh, the fastest first, with what each exchanges in a step. Rank r is on device r.
#[derive(Debug, Clone, PartialEq)]
pub struct TrafficJob {
    mesh: Mesh,
    /// Axes of the mesh with their ranks, the fastest first.
    degrees: Vec<(Axis, usize)>,
    /// What is exchanged, in the order of the description.
    pub traffic: Vec<AxisTraffic>,
    /// Seconds that software adds to each message.
    pub overhead: f64,
}

/// A collective of the groups along an axis.
#[derive(Debug, Clone, PartialEq)]
pub struct AxisTraffic {
    /// The axis.
    pub axis: Axis,
    /// Ranks of a group.
    pub ranks: usize,
    /// Collective.
    pub kind: TrafficKind,
    /// Full buffer of a rank.
    pub bytes: Bytes,
    /// How often in a step.
    pub count: u32,
    /// The fastest that is possible if left out.
    pub algorithm: Option<CollectiveAlgorithm>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    overhead_us: f64,
    axis: Vec<AxisSection>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AxisSection {
    axis: String,
    ranks: usize,
    collective: Option<String>,
    bytes: Option<String>,
    count: Option<u32>,
    algorithm: Option<String>,
}

/// Most ranks of a job.
const MOST_RANKS: usize = 1 << 20;

impl TrafficJob {
    /// Reads a job from TOML. `file` is its name in errors.
    ///
    /// # Errors
    /// Text that is not TOML, unknown keys, axes that make no mesh.
    pub fn parse(file: &str, text: &str) -> Result<TrafficJob, ClusterError> {
        let parsed: File = toml::from_str(text).map_err(|e| ClusterError::Description {
            file: file.into(),
            problem: with_suggestion(e.to_string().trim_end()),
        })?;
        if !(0.0..=1e6).contains(&parsed.overhead_us) {
            let place = format!("{file}: overhead_us");
            return Err(ClusterError::value(place, "0 to 1e6", parsed.overhead_us, "it is 0 if left out"));
        }
        TrafficJob::new(file, parsed.axis, parsed.overhead_us * 1e-6)
    }

    /// Reads axes as `AXIS=RANKS:COLLECTIVE:BYTES[:ALGORITHM]`, the fastest first; `AXIS=RANKS` exchanges nothing.
    ///
    /// # Errors
    /// As [`TrafficJob::parse`].
    pub fn from_specs(specs: &[String]) -> Result<TrafficJob, ClusterError> {
        let mut sections = Vec::new();
        for spec in specs {
            let form = "AXIS=RANKS or AXIS=RANKS:COLLECTIVE:BYTES[:ALGORITHM]";
            let refuse =
                || ClusterError::value("axis", form, format!("{spec:?}"), "e.g. tensor=8:all-reduce:64MiB");
            let (axis, rest) = spec.split_once('=').ok_or_else(refuse)?;
            let mut parts = rest.split(':').map(str::to_string);
            let ranks = parts.next().and_then(|r| r.trim().parse().ok()).ok_or_else(refuse)?;
            let [collective, bytes, algorithm] = [parts.next(), parts.next(), parts.next()];
            if parts.next().is_some() || collective.is_some() != bytes.is_some() {
                return Err(refuse());
            }
            sections.push(AxisSection {
                axis: axis.trim().into(),
                ranks,
                collective,
                bytes,
                count: None,
                algorithm,
            });
        }
        TrafficJob::new("axis", sections, 0.0)
    }

    /// All devices of a network on one axis: an all-reduce and, among at most 256, an all-to-all.
    ///
    /// # Errors
    /// More devices than a job can have ranks.
    pub fn all_devices(network: &Network, bytes: Bytes) -> Result<TrafficJob, ClusterError> {
        let devices = network.devices();
        let mut specs = vec![format!("data={devices}:all-reduce:{}", bytes.0)];
        if devices <= 256 {
            specs.push(format!("data={devices}:all-to-all:{}", bytes.0));
        }
        TrafficJob::from_specs(&specs)
    }

    fn new(file: &str, sections: Vec<AxisSection>, overhead: f64) -> Result<TrafficJob, ClusterError> {
        let mut degrees: Vec<(Axis, usize)> = Vec::new();
        let mut traffic = Vec::new();
        for section in sections {
            let place = |key: &str| format!("{file}: {key} of axis {}", section.axis);
            let axis = axis(file, &section.axis)?;
            if !(1..=MOST_RANKS).contains(&section.ranks) {
                return Err(ClusterError::value(
                    place("ranks"),
                    format!("1 to {MOST_RANKS}"),
                    section.ranks,
                    "take another number",
                ));
            }
            match degrees.iter().find(|d| d.0 == axis) {
                Some((_, ranks)) if *ranks != section.ranks => {
                    return Err(ClusterError::value(
                        place("ranks"),
                        format!("{ranks}, as before"),
                        section.ranks,
                        "an axis that is listed again has as many ranks",
                    ));
                }
                Some(_) => {}
                None => degrees.push((axis, section.ranks)),
            }
            let Some(kind) = &section.collective else { continue };
            let bytes: Bytes = match section.bytes.as_deref().unwrap_or("none").parse() {
                Ok(bytes) => bytes,
                Err(problem) => {
                    return Err(ClusterError::value(
                        place("bytes"),
                        "a size",
                        problem,
                        "write bytes = \"64 MiB\"",
                    ));
                }
            };
            let named = |key: &str, name: &str, all: Vec<&str>| {
                ClusterError::value(
                    place(key),
                    format!("one of {}", all.join(", ")),
                    name,
                    "leave the algorithm out for the fastest",
                )
            };
            let kinds = TrafficKind::ALL.map(TrafficKind::name);
            let at = kinds.iter().position(|k| k == kind);
            let kind =
                at.map(|i| TrafficKind::ALL[i]).ok_or_else(|| named("collective", kind, kinds.to_vec()))?;
            let algorithm = match &section.algorithm {
                None => None,
                Some(name) => {
                    let found =
                        CollectiveAlgorithm::ALL.into_iter().find(|a| a.name() == name && a.serves(kind));
                    let able = CollectiveAlgorithm::ALL.iter().filter(|a| a.serves(kind)).map(|a| a.name());
                    Some(found.ok_or_else(|| named("algorithm", name, able.collect()))?)
                }
            };
            let count = section.count.unwrap_or(1);
            traffic.push(AxisTraffic { axis, ranks: section.ranks, kind, bytes, count, algorithm });
        }
        let grid: Vec<(Axis, usize)> = degrees.iter().copied().filter(|d| d.0 != Axis::Expert).collect();
        let world = grid.iter().try_fold(1usize, |n, d| n.checked_mul(d.1).filter(|n| *n <= MOST_RANKS));
        let Some(world) = world else {
            return Err(ClusterError::value(
                format!("{file}: ranks"),
                format!("at most {MOST_RANKS} in all"),
                "more",
                "take smaller axes",
            ));
        };
        let order: Vec<Axis> = grid.iter().map(|d| d.0).collect();
        let config = grid.iter().fold(MeshConfig::new(), |config, d| config.with(d.0, d.1)).order(&order);
        let mesh = Mesh::new(&config, world)
            .map_err(|e| ClusterError::Description { file: file.into(), problem: e.to_string() })?;
        Ok(TrafficJob { mesh, degrees: grid, traffic, overhead })
    }

    /// Number of ranks.
    pub fn ranks(&self) -> usize {
        self.mesh.world()
    }

    /// The mesh.
    pub fn mesh(&self) -> &Mesh {
        &self.mesh
    }

    /// Groups of devices that exchange something along an axis. Experts are spread over neighbouring ranks of the other axes,
    /// pipeline stages excepted.
    ///
    /// # Errors
    /// A number of experts that does not divide these ranks.
    pub fn groups(&self, axis: Axis, ranks: usize) -> Result<Vec<Vec<u32>>, ClusterError> {
        let devices = |group: Vec<usize>| group.into_iter().map(|r| r as u32).collect();
        if axis != Axis::Expert {
            return Ok(self.mesh.groups(&[axis]).into_iter().map(devices).collect());
        }
        let others: Vec<Axis> = Axis::ALL.into_iter().filter(|a| *a != Axis::Pipeline).collect();
        let mut groups = Vec::new();
        for group in self.mesh.groups(&others) {
            if !group.len().is_multiple_of(ranks) {
                let wanted = format!("a divisor of the {} ranks of a pipeline stage", group.len());
                return Err(ClusterError::value(
                    "ranks of axis expert",
                    wanted,
                    ranks,
                    "take another number",
                ));
            }
            groups.extend(group.chunks(ranks).map(|chunk| devices(chunk.to_vec())));
        }
        Ok(groups)
    }

    /// Axes with what they exchange, in the order of the description, to be placed on a network.
    ///
    /// # Errors
    /// An expert axis, whose ranks are those of other axes; a fixed algorithm, because a placement takes the fastest.
    pub fn demands(&self) -> Result<Vec<AxisDemand>, ClusterError> {
        let mut demands: Vec<AxisDemand> = Vec::new();
        for (axis, ranks) in &self.degrees {
            demands.push(AxisDemand {
                name: axis_name(*axis).into(),
                ranks: *ranks as u32,
                exchanges: Vec::new(),
            });
        }
        for traffic in &self.traffic {
            let name = axis_name(traffic.axis);
            if traffic.axis == Axis::Expert {
                let hint = "state its all-to-all as one of the axis whose ranks it shares";
                return Err(ClusterError::value("axis to be placed", "an axis of the mesh", "expert", hint));
            }
            if let Some(algorithm) = traffic.algorithm {
                let place = format!("algorithm of axis {name}");
                let hint = "leave it out: the fastest of each placement is taken";
                return Err(ClusterError::value(place, "none", algorithm.name(), hint));
            }
            let exchange = AxisExchange {
                kind: traffic.kind,
                bytes: traffic.bytes.0 as f64,
                count: f64::from(traffic.count),
            };
            demands.iter_mut().filter(|d| d.name == name).for_each(|d| d.exchanges.push(exchange));
        }
        Ok(demands)
    }

    /// Whether the job keeps the rule of rail-only networks (Wang et al. 2023): each group is inside one fast domain, or has
    /// equal local ranks in different ones. Returns one sentence for each axis that does not.
    ///
    /// # Errors
    /// As [`TrafficJob::groups`].
    pub fn broken_rail_rules(&self, network: &Network) -> Result<Vec<String>, ClusterError> {
        let mut broken = Vec::new();
        if !matches!(network.topology(), Topology::RailOnly(_)) {
            return Ok(broken);
        }
        let g = network.node().devices;
        for traffic in &self.traffic {
            let inside = |group: &[u32]| group.iter().all(|d| d / g == group[0] / g);
            let equal = |group: &[u32]| group.iter().all(|d| d % g == group[0] % g);
            let groups = self.groups(traffic.axis, traffic.ranks)?;
            if let Some(group) = groups.iter().find(|group| !inside(group) && !equal(group)) {
                let [first, other] = [
                    group[0],
                    *group
                        .iter()
                        .find(|d| *d / g != group[0] / g && *d % g != group[0] % g)
                        .unwrap_or(&group[1]),
                ];
                broken.push(format!(
                    "axis {}: wanted groups inside a fast domain of {g} devices, or of equal local ranks; found devices {first} \
                     (domain {}, local rank {}) and {other} (domain {}, local rank {}) in one group; no rail joins them, so their \
                     messages pass through fast domains. Put tensor and expert axes first, with a product that divides {g}",
                    axis_name(traffic.axis),
                    first / g, first % g, other / g, other % g,
                ));
            }
        }
        Ok(broken)
    }
}

/// Name of an axis in jobs: "data" for the one that replicates.
pub fn axis_name(axis: Axis) -> &'static str {
    if axis == Axis::Replicate { "data" } else { axis.name() }
}

/// The axis of a name; "data" is the axis that replicates.
fn axis(file: &str, name: &str) -> Result<Axis, ClusterError> {
    let found =
        if name == "data" { Some(Axis::Replicate) } else { Axis::ALL.into_iter().find(|a| a.name() == name) };
    found.ok_or_else(|| {
        let names: Vec<&str> = ["data"].into_iter().chain(Axis::ALL.map(Axis::name)).collect();
        ClusterError::value(
            format!("{file}: axis"),
            format!("one of {}", names.join(", ")),
            name,
            "the fastest axis comes first",
        )
    })
}

/// Time of the collectives of an axis.
#[derive(Debug, Clone, PartialEq)]
pub struct TrafficTime {
    /// The collective and its axis.
    pub traffic: AxisTraffic,
    /// Groups that exchange it at once.
    pub groups: usize,
    /// The algorithm that was taken.
    pub algorithm: CollectiveAlgorithm,
    /// Seconds of one collective of all groups at once.
    pub seconds: f64,
    /// Other algorithms with their times; those that this group or network does not allow are not listed.
    pub others: Vec<(CollectiveAlgorithm, f64)>,
    /// Most flows of a phase on one cable between switches, in one direction.
    pub most_flows: u32,
    /// Directions of cables between switches that several flows of a phase share.
    pub shared_links: u32,
}

impl TrafficTime {
    /// Fastest algorithm between devices, if switches sum: what it would be if they only forwarded.
    pub fn between_devices(&self) -> Option<(CollectiveAlgorithm, f64)> {
        let fastest = self.others.first().filter(|_| self.algorithm == CollectiveAlgorithm::SwitchTree);
        fastest.copied()
    }
}

/// Times of a job on a network.
#[derive(Debug, Clone, PartialEq)]
pub struct TrafficReport {
    /// Each axis alone.
    pub times: Vec<TrafficTime>,
    /// Sum over the axes of count times seconds: the communication of a step that overlaps with nothing.
    pub total: f64,
    /// Seconds until one collective of every axis has ended if all begin together; `None` with a single axis, or where that
    /// would take minutes to simulate.
    pub together: Option<f64>,
    /// Bytes of each link in a step.
    pub link_bytes: Vec<f64>,
}

impl TrafficReport {
    /// Communication of a step if switches only forwarded, one axis after another; nothing where no axis takes sums in switches, or one
    /// was ordered to.
    pub fn between_devices(&self) -> Option<f64> {
        let summed = |time: &TrafficTime| time.algorithm == CollectiveAlgorithm::SwitchTree;
        if !self.times.iter().any(summed) {
            return None;
        }
        let seconds = |time: &TrafficTime| {
            let each = if summed(time) { time.between_devices()?.1 } else { time.seconds };
            Some(each * f64::from(time.traffic.count))
        };
        self.times.iter().map(seconds).sum()
    }
}

/// Runs a job on a network.
///
/// # Errors
/// More ranks than devices, an algorithm that is not possible, devices that are cut off.
pub fn run_job(
    network: &Network,
    job: &TrafficJob,
    routing: Routing,
    failures: &Failures,
) -> Result<TrafficReport, ClusterError> {
    let mut router = Router::new(network, routing, failures);
    let (mut report, jobs) = one_after_another(&mut router, job)?;
    if jobs.len() > 1 {
        report.together = match simulate(&mut router, &jobs, job.overhead) {
            Ok(outcome) => outcome.ends.iter().max().map(|end| *end as f64 / PICOSECONDS),
            Err(ClusterError::Value { .. }) => None,
            Err(e) => return Err(e),
        };
    }
    Ok(report)
}

/// Runs each axis alone; returns the transfers of the algorithms that were taken too.
pub(crate) fn one_after_another(
    router: &mut Router<'_>,
    job: &TrafficJob,
) -> Result<(TrafficReport, Vec<TransferJob>), ClusterError> {
    let network = router.network();
    if job.ranks() > network.devices() as usize {
        return Err(ClusterError::value(
            format!("job on {}", network.name()),
            format!("at most {} ranks, one a device", network.devices()),
            job.ranks(),
            "take smaller axes or a larger network",
        ));
    }
    let mut report = TrafficReport {
        times: Vec::new(),
        total: 0.0,
        together: None,
        link_bytes: vec![0.0; 2 * network.graph().cables()],
    };
    let mut jobs = Vec::new();
    for traffic in &job.traffic {
        let groups = job.groups(traffic.axis, traffic.ranks)?;
        let candidates: Vec<CollectiveAlgorithm> = match traffic.algorithm {
            Some(algorithm) => vec![algorithm],
            None => CollectiveAlgorithm::ALL.into_iter().filter(|a| a.serves(traffic.kind)).collect(),
        };
        let mut tried = Vec::new();
        for algorithm in candidates {
            let phases = match expand(network, traffic.kind, algorithm, &groups, traffic.bytes.0 as f64) {
                Ok(phases) => phases,
                // Without a choice of the user, what is not possible is left out.
                Err(ClusterError::Value { .. })
                    if traffic.algorithm.is_none() && algorithm != CollectiveAlgorithm::Ring =>
                {
                    continue;
                }
                Err(e) => return Err(e),
            };
            let one = TransferJob { name: algorithm.name().into(), phases };
            let outcome = simulate(router, std::slice::from_ref(&one), job.overhead)?;
            tried.push((algorithm, outcome, one));
        }
        tried.sort_by_key(|(algorithm, outcome, _)| (outcome.ends[0], *algorithm));
        let seconds = |ends: &[u64]| ends[0] as f64 / PICOSECONDS;
        let others = tried.iter().skip(1).map(|(a, o, _)| (*a, seconds(&o.ends))).collect();
        let Some((algorithm, outcome, one)) = tried.into_iter().next() else {
            return Err(ClusterError::value(
                format!("{} among {} ranks", traffic.kind.name(), traffic.ranks),
                "an algorithm that can be simulated",
                "none",
                "take fewer ranks: an all-to-all has n (n-1) messages",
            ));
        };
        for (sum, bytes) in report.link_bytes.iter_mut().zip(&outcome.link_bytes) {
            *sum += bytes * f64::from(traffic.count);
        }
        report.total += seconds(&outcome.ends) * f64::from(traffic.count);
        report.times.push(TrafficTime {
            traffic: traffic.clone(),
            groups: groups.len(),
            algorithm,
            seconds: seconds(&outcome.ends),
            others,
            most_flows: outcome.most_flows,
            shared_links: outcome.shared_links,
        });
        jobs.push(one);
    }
    Ok((report, jobs))
}
