//! Jobs on a network, flow by flow: what shares a link shares its bandwidth.
//!
//! A phase is a set of messages that begin together; the next begins when the last of them has arrived. Rates are max-min fair
//! and change when a flow begins or ends. Time is in whole picoseconds. Packets, queues and their buffers are not modelled.

use crate::fair_share::FairShares;
use crate::{CableKind, ClusterError, Router};

/// Way of a message.
#[derive(Debug, Clone, PartialEq)]
pub enum Route {
    /// From a device to another, on the path that the router gives.
    Between {
        /// The device that sends.
        from: u32,
        /// The device that receives.
        to: u32,
    },
    /// Over these links, each beginning where the one before it ends.
    Links(Vec<u32>),
}

/// A message.
#[derive(Debug, Clone, PartialEq)]
pub struct Transfer {
    /// Its way.
    pub route: Route,
    /// Bytes that it has.
    pub bytes: f64,
    /// Messages that it stands for, each sent when the one before has arrived: the rounds of a ring. `bytes` are those of all of them, and
    /// each pays the latency.
    pub messages: u32,
}

/// Messages that begin together.
#[derive(Debug, Clone, PartialEq)]
pub struct TransferPhase {
    /// The messages.
    pub flows: Vec<Transfer>,
    /// How often the phase is repeated.
    pub rounds: u64,
    /// Latencies that a pipelined phase pays one after another: its depth.
    pub depth: u32,
}

/// Phases that follow each other.
#[derive(Debug, Clone, PartialEq)]
pub struct TransferJob {
    /// Name in messages.
    pub name: String,
    /// Its phases.
    pub phases: Vec<TransferPhase>,
}

/// When jobs ended, and what the links carried.
#[derive(Debug, Clone, PartialEq)]
pub struct FlowOutcome {
    /// End of each job in picoseconds; all begin at 0.
    pub ends: Vec<u64>,
    /// Bytes that each link carried.
    pub link_bytes: Vec<f64>,
    /// Most flows of one phase on one link between switches or between devices of a torus.
    pub most_flows: u32,
    /// Such links with two or more flows of one phase, in the phase with most of them.
    pub shared_links: u32,
}

/// Picoseconds of a second.
pub const PICOSECONDS: f64 = 1e12;

/// Most updates of flows in one simulation, about a minute of work.
const MOST_UPDATES: u64 = 400_000_000;

/// A phase whose paths are known.
struct RoutedPhase {
    /// Where the path of each flow begins in `links`; one more at the end.
    first: Vec<u32>,
    links: Vec<u32>,
    bytes: Vec<f64>,
    /// Picoseconds from the last byte sent to its arrival.
    latency: Vec<u64>,
    rounds: u64,
    /// Picoseconds of a round with nothing else on the network, where no two messages share a link.
    apart: Option<u64>,
}

impl RoutedPhase {
    fn path(&self, flow: usize) -> &[u32] {
        &self.links[self.first[flow] as usize..self.first[flow + 1] as usize]
    }
}

/// Runs jobs that begin together. `overhead` is what software adds to each message, in seconds.
///
/// # Errors
/// Devices that are cut off; so many flows and rounds that the simulation would take minutes.
pub fn simulate(
    router: &mut Router<'_>,
    jobs: &[TransferJob],
    overhead: f64,
) -> Result<FlowOutcome, ClusterError> {
    let links = 2 * router.network().graph().cables();
    let mut outcome =
        FlowOutcome { ends: Vec::new(), link_bytes: vec![0.0; links], most_flows: 0, shared_links: 0 };
    let mut counts = vec![0u32; links];
    let mut routed = Vec::new();
    for job in jobs {
        let mut phases = Vec::new();
        for phase in &job.phases {
            phases.push(route(router, phase, overhead, &mut counts, &mut outcome)?);
        }
        routed.push(phases);
    }
    let mut shares = FairShares::new(links);
    outcome.ends = vec![0; jobs.len()];
    for group in sharing(&routed, links) {
        let phases: Vec<&[RoutedPhase]> = group.iter().map(|job| routed[*job].as_slice()).collect();
        let ends = Run::new(&phases).finish(router, &mut shares)?;
        for (job, end) in group.iter().zip(ends) {
            outcome.ends[*job] = end;
        }
    }
    Ok(outcome)
}

/// Seconds until each message of a phase has been sent, with nothing else on the network, and its latency after that.
pub(crate) fn message_times(
    router: &mut Router<'_>,
    phase: &TransferPhase,
    overhead: f64,
) -> Result<Vec<[f64; 2]>, ClusterError> {
    let links = 2 * router.network().graph().cables();
    let mut outcome =
        FlowOutcome { ends: Vec::new(), link_bytes: vec![0.0; links], most_flows: 0, shared_links: 0 };
    let routed = route(router, phase, overhead, &mut vec![0; links], &mut outcome)?;
    let mut shares = FairShares::new(links);
    let mut times: Vec<[f64; 2]> = routed.latency.iter().map(|l| [0.0, *l as f64 / PICOSECONDS]).collect();
    let mut left = routed.bytes.clone();
    let mut active: Vec<usize> = (0..left.len()).filter(|flow| left[*flow] > 0.0).collect();
    let mut now = 0.0;
    while !active.is_empty() {
        let paths: Vec<&[u32]> = active.iter().map(|flow| routed.path(*flow)).collect();
        let rates = shares.rates(&paths, |link| router.network().link(link).bandwidth);
        let step =
            active.iter().zip(&rates).map(|(flow, rate)| left[*flow] / rate).fold(f64::INFINITY, f64::min);
        now += step;
        for (flow, rate) in active.iter().zip(&rates) {
            left[*flow] -= if rate.is_finite() { rate * step } else { left[*flow] };
            // What differs by rounding alone ends together.
            if left[*flow] <= 1e-9 * routed.bytes[*flow] {
                left[*flow] = 0.0;
                times[*flow][0] = now;
            }
        }
        active.retain(|flow| left[*flow] > 0.0);
    }
    Ok(times)
}

/// Finds the paths of a phase and counts what they use.
fn route(
    router: &mut Router<'_>,
    phase: &TransferPhase,
    overhead: f64,
    counts: &mut [u32],
    outcome: &mut FlowOutcome,
) -> Result<RoutedPhase, ClusterError> {
    router.reset();
    let network = router.network();
    let mut routed = RoutedPhase {
        first: vec![0],
        links: Vec::new(),
        bytes: phase.flows.iter().map(|f| f.bytes).collect(),
        latency: Vec::new(),
        rounds: phase.rounds,
        apart: None,
    };
    for flow in &phase.flows {
        let begin = routed.links.len();
        match &flow.route {
            Route::Between { from, to } => router.route(*from, *to, &mut routed.links)?,
            Route::Links(links) => routed.links.extend(links),
        }
        routed.first.push(routed.links.len() as u32);
        let path = &routed.links[begin..];
        let seconds: f64 = path.iter().map(|l| network.link(*l).latency).sum::<f64>() + overhead;
        routed
            .latency
            .push((seconds * f64::from(phase.depth) * f64::from(flow.messages) * PICOSECONDS).round() as u64);
        for link in path {
            outcome.link_bytes[*link as usize] += flow.bytes * phase.rounds as f64;
            counts[*link as usize] += 1;
        }
    }
    let (mut shared, mut apart) = (0, true);
    for link in &routed.links {
        let count = std::mem::take(&mut counts[*link as usize]);
        apart &= count <= 1;
        if network.graph().kind(*link / 2) == CableKind::Fabric {
            outcome.most_flows = outcome.most_flows.max(count);
            shared += u32::from(count > 1);
        }
    }
    outcome.shared_links = outcome.shared_links.max(shared);
    if apart {
        let alone = |flow: usize| {
            let slowest = |rate: f64, link: &u32| rate.min(network.link(*link).bandwidth);
            let rate = routed.path(flow).iter().fold(f64::INFINITY, slowest);
            let sent = (routed.bytes[flow] / rate * PICOSECONDS).ceil() as u64;
            sent.saturating_add(routed.latency[flow])
        };
        routed.apart = Some((0..routed.bytes.len()).map(alone).max().unwrap_or(0));
    }
    Ok(routed)
}

/// Groups of jobs that share links, directly or through others.
fn sharing(jobs: &[Vec<RoutedPhase>], links: usize) -> Vec<Vec<usize>> {
    let mut group: Vec<usize> = (0..jobs.len()).collect();
    let mut owner = vec![usize::MAX; if jobs.len() > 1 { links } else { 0 }];
    for (job, phases) in jobs.iter().enumerate().filter(|_| jobs.len() > 1) {
        for link in phases.iter().flat_map(|p| &p.links) {
            let other = std::mem::replace(&mut owner[*link as usize], job);
            if other != usize::MAX && group[other] != group[job] {
                let (keep, drop) = (group[other].min(group[job]), group[other].max(group[job]));
                group.iter_mut().filter(|g| **g == drop).for_each(|g| *g = keep);
            }
        }
    }
    let names: std::collections::BTreeSet<usize> = group.iter().copied().collect();
    names.iter().map(|name| (0..jobs.len()).filter(|job| group[*job] == *name).collect()).collect()
}

fn too_long() -> ClusterError {
    let wanted = "at most 213 days, which 64 bits of picoseconds hold";
    ClusterError::value("simulation", wanted, "more", "take fewer bytes, or more bandwidth")
}

/// One job on its way.
struct Progress {
    phase: usize,
    rounds_left: u64,
    /// Bytes that each flow has yet to send; 0 when it has ended.
    remaining: Vec<f64>,
    active: Vec<u32>,
    /// When the last message of the round arrives, of those that have been sent.
    arrival: u64,
    /// When the round began, if no other job ran then.
    alone_since: Option<u64>,
    end: Option<u64>,
}

struct Run<'a> {
    jobs: &'a [&'a [RoutedPhase]],
    progress: Vec<Progress>,
    now: u64,
    updates: u64,
}

impl<'a> Run<'a> {
    fn new(jobs: &'a [&'a [RoutedPhase]]) -> Run<'a> {
        let begun = |_| Progress {
            phase: 0,
            rounds_left: 0,
            remaining: Vec::new(),
            active: Vec::new(),
            arrival: 0,
            alone_since: None,
            end: None,
        };
        let mut run = Run { jobs, progress: jobs.iter().map(begun).collect(), now: 0, updates: 0 };
        for job in 0..jobs.len() {
            run.begin_phase(job, 0);
        }
        run
    }

    /// Starts a phase of a job, or ends the job if there is none.
    fn begin_phase(&mut self, job: usize, phase: usize) {
        self.progress[job].phase = phase;
        match self.jobs[job].get(phase) {
            Some(routed) => {
                self.progress[job].rounds_left = routed.rounds;
                self.begin_round(job);
            }
            None => self.progress[job].end = Some(self.now),
        }
    }

    fn begin_round(&mut self, job: usize) {
        let alone = self.progress.iter().filter(|p| p.end.is_none()).count() == 1;
        let p = &mut self.progress[job];
        if p.rounds_left == 0 {
            let next = p.phase + 1;
            return self.begin_phase(job, next);
        }
        let routed = &self.jobs[job][p.phase];
        p.alone_since = alone.then_some(self.now);
        if let (true, Some(apart)) = (alone, routed.apart) {
            p.active.clear();
            p.arrival = self.now.saturating_add(apart);
            return;
        }
        p.remaining.clone_from(&routed.bytes);
        p.active = (0..routed.bytes.len() as u32).collect();
        p.arrival = self.now;
    }

    /// Ends a round; the rounds that follow it alone take as long, and are not simulated.
    fn end_round(&mut self, job: usize) {
        let p = &mut self.progress[job];
        p.rounds_left -= 1;
        if let Some(since) = p.alone_since {
            self.now = self.now.saturating_add((self.now - since).saturating_mul(p.rounds_left));
            p.rounds_left = 0;
        }
        self.begin_round(job);
    }

    /// Runs to the end of every job.
    fn finish(mut self, router: &Router<'_>, shares: &mut FairShares) -> Result<Vec<u64>, ClusterError> {
        while self.progress.iter().any(|p| p.end.is_none()) {
            let running: Vec<(usize, u32)> = (self.progress.iter().enumerate())
                .flat_map(|(job, p)| p.active.iter().map(move |flow| (job, *flow)))
                .collect();
            self.updates += running.len() as u64 + 1;
            if self.updates > MOST_UPDATES {
                return Err(ClusterError::value(
                    "simulation",
                    format!("at most {MOST_UPDATES} changes of flows"),
                    "more",
                    "simulate fewer devices, fewer jobs at once, or an algorithm with fewer rounds",
                ));
            }
            let paths: Vec<&[u32]> = running
                .iter()
                .map(|(job, flow)| self.jobs[*job][self.progress[*job].phase].path(*flow as usize))
                .collect();
            let rates = shares.rates(&paths, |link| router.network().link(link).bandwidth);
            let next = self.next_event(&running, &rates);
            if next == u64::MAX {
                return Err(too_long());
            }
            self.advance(next, &running, &rates);
        }
        let ends: Vec<u64> = self.progress.iter().map(|p| p.end.unwrap_or(self.now)).collect();
        if ends.contains(&u64::MAX) { Err(too_long()) } else { Ok(ends) }
    }

    /// When the next flow ends or the last message of a round arrives.
    fn next_event(&self, running: &[(usize, u32)], rates: &[f64]) -> u64 {
        let ends = running.iter().zip(rates).map(|((job, flow), rate)| {
            let left = self.progress[*job].remaining[*flow as usize];
            self.now.saturating_add((left / rate * PICOSECONDS).ceil() as u64)
        });
        let waiting = self.progress.iter().filter(|p| p.end.is_none() && p.active.is_empty());
        ends.chain(waiting.map(|p| p.arrival)).min().unwrap_or(self.now).max(self.now)
    }

    fn advance(&mut self, next: u64, running: &[(usize, u32)], rates: &[f64]) {
        let seconds = (next - self.now) as f64 / PICOSECONDS;
        self.now = next;
        for ((job, flow), rate) in running.iter().zip(rates) {
            let p = &mut self.progress[*job];
            let left = &mut p.remaining[*flow as usize];
            *left -= if rate.is_finite() { rate * seconds } else { *left };
            // What would end within the same picosecond ends now.
            if *left <= rate / PICOSECONDS || rate.is_infinite() {
                *left = -1.0;
                let latency = self.jobs[*job][p.phase].latency[*flow as usize];
                p.arrival = p.arrival.max(self.now.saturating_add(latency));
            }
        }
        for job in 0..self.jobs.len() {
            let p = &mut self.progress[job];
            if p.end.is_some() {
                continue;
            }
            let Progress { active, remaining, .. } = p;
            active.retain(|flow| remaining[*flow as usize] >= 0.0);
            if p.active.is_empty() && p.arrival <= self.now {
                self.end_round(job);
            }
        }
    }
}
