//! Pareto fronts of cost graphs: all prices of which no other is as fast and as small, by the same elimination with a front in each
//! entry of a table.
//!
//! Exact as long as no front has more than [`MOST_POINTS`] points. A larger one is thinned: a point goes if one before it, which is smaller, is at
//! most a factor slower. So what is left is real, and the least seconds are at most that factor above the true ones; the factors of a
//! front and of all that it was made from multiply to [`Front::factor`].

use super::eliminate::{Factor, Walk, take};
use super::graph::{CostGraph, Entangled, Price};

/// Points of a front that is not thinned.
pub const MOST_POINTS: usize = 256;

/// A price, and how it came about.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    /// The price.
    pub price: Price,
    trace: u32,
}

/// Prices in the order of memory, each smaller and slower than the next.
#[derive(Debug, Clone, PartialEq)]
pub struct Front {
    /// The prices.
    pub points: Vec<Point>,
    /// The least seconds under any limit of memory are at most this factor above the true ones.
    pub factor: f64,
}

/// How points came about: options of decisions, joined.
#[derive(Debug, Default)]
pub struct Traces(Vec<Trace>);

#[derive(Debug, Clone, Copy)]
enum Trace {
    Option { node: u32, option: u32 },
    Join(u32, u32),
    Link { before: u32, unit: u32 },
}

/// The trace of a point for which nothing was decided.
const NOTHING: u32 = u32::MAX;

impl Traces {
    fn push(&mut self, trace: Trace) -> u32 {
        self.0.push(trace);
        self.0.len() as u32 - 1
    }

    fn join(&mut self, a: u32, b: u32) -> u32 {
        match (a, b) {
            (NOTHING, other) | (other, NOTHING) => other,
            (a, b) => self.push(Trace::Join(a, b)),
        }
    }

    /// Options by unit, from the first to the last, of a point that [`link`] or [`fronts`] has made: (decision, option).
    pub fn units(&self, point: &Point) -> Vec<Vec<(usize, usize)>> {
        let (mut at, mut units) = (point.trace, Vec::new());
        while let Some(Trace::Link { before, unit }) = self.0.get(at as usize).copied() {
            units.push(self.options(unit));
            at = before;
        }
        if at != NOTHING {
            units.push(self.options(at));
        }
        units.reverse();
        units
    }

    fn options(&self, trace: u32) -> Vec<(usize, usize)> {
        let (mut open, mut options) = (vec![trace], Vec::new());
        while let Some(trace) = open.pop() {
            match self.0.get(trace as usize) {
                Some(Trace::Option { node, option }) => options.push((*node as usize, *option as usize)),
                Some(Trace::Join(a, b) | Trace::Link { before: a, unit: b }) => open.extend([*a, *b]),
                None => {}
            }
        }
        options.sort_unstable();
        options
    }
}

/// A point that may be on a front, made of two.
#[derive(Clone, Copy)]
struct Candidate {
    price: Price,
    parts: [u32; 2],
}

impl Front {
    fn of(point: Point) -> Front {
        let points = if point.price.seconds.is_finite() { vec![point] } else { Vec::new() };
        Front { points, factor: 1.0 }
    }

    /// The fastest point.
    pub fn fastest(&self) -> Option<&Point> {
        self.points.last()
    }

    /// The fastest point that takes at most so many bytes.
    pub fn within(&self, bytes: f64) -> Option<&Point> {
        self.points[..self.points.partition_point(|point| point.price.memory <= bytes)].last()
    }

    /// The candidates that nothing surpasses.
    fn pruned(mut candidates: Vec<Candidate>, factor: f64, traces: &mut Traces, trace: Made) -> Front {
        candidates.sort_by(|a, b| {
            a.price.memory.total_cmp(&b.price.memory).then(a.price.seconds.total_cmp(&b.price.seconds))
        });
        let mut least = f64::INFINITY;
        candidates.retain(|c| c.price.seconds < least && (least = c.price.seconds, true).1);
        let (mut slack, fastest) = (1.0, candidates.last().copied());
        let mut step = 1e-6;
        while candidates.len() > MOST_POINTS {
            slack *= 1.0 + step;
            let mut kept = f64::INFINITY;
            candidates.retain(|c| c.price.seconds * (1.0 + step) < kept && (kept = c.price.seconds, true).1);
            step *= 2.0;
        }
        if let (Some(fastest), Some(last)) = (fastest, candidates.last())
            && fastest.price.seconds < last.price.seconds
        {
            candidates.push(fastest);
        }
        let point = |c: Candidate| {
            let [a, b] = c.parts;
            let trace = match trace {
                Made::Joined => traces.join(a, b),
                Made::Linked => traces.push(Trace::Link { before: a, unit: b }),
            };
            Point { price: c.price, trace }
        };
        Front { points: candidates.into_iter().map(point).collect(), factor: factor * slack }
    }
}

/// How the two parts of a candidate belong together.
#[derive(Clone, Copy)]
enum Made {
    /// Parts of one unit.
    Joined,
    /// All that came before a unit, and the unit.
    Linked,
}

/// Every pair of points, with `seconds` more, that is within `limit` bytes.
fn pairs(a: &[Point], b: &[Point], seconds: f64, limit: f64, into: &mut Vec<Candidate>) {
    for x in a {
        for y in b {
            let price = Price {
                seconds: x.price.seconds + y.price.seconds + seconds,
                memory: x.price.memory + y.price.memory,
            };
            if price.memory > limit {
                break;
            }
            into.push(Candidate { price, parts: [x.trace, y.trace] });
        }
    }
}

/// Returns for each option of the decision `kept` the front of all others together with it, within `limit` bytes.
///
/// # Errors
/// [`Entangled`].
///
/// # Panics
/// If there is no decision `kept`.
pub fn fronts(
    graph: &CostGraph,
    kept: usize,
    limit: f64,
    traces: &mut Traces,
) -> Result<Vec<Front>, Entangled> {
    let mut factors: Vec<Factor<Front>> = Vec::new();
    for (node, options) in graph.nodes.iter().enumerate() {
        let point = |(option, price): (usize, &Price)| {
            let trace = traces.push(Trace::Option { node: node as u32, option: option as u32 });
            let within =
                Price { seconds: if price.memory > limit { f64::INFINITY } else { price.seconds }, ..*price };
            Front::of(Point { price: within, trace })
        };
        factors.push(Factor { scope: vec![node], table: options.iter().enumerate().map(point).collect() });
    }
    for edge in graph.edges() {
        let constant = |seconds: &f64| {
            Front::of(Point { price: Price { seconds: *seconds, memory: 0.0 }, trace: NOTHING })
        };
        factors
            .push(Factor { scope: edge.nodes.to_vec(), table: edge.seconds.iter().map(constant).collect() });
    }
    for node in graph.order(Some(kept)) {
        let about = take(&mut factors, node);
        let mut walk = Walk::new(graph, &about, Some(node))?;
        let mut table = Vec::with_capacity(walk.entries());
        for _ in 0..walk.entries() {
            let (mut candidates, mut factor) = (Vec::new(), 1.0f64);
            for option in 0..graph.nodes[node].len() {
                let of = |(factor, (base, inner)): (usize, (&usize, &usize))| {
                    &about[factor].table[base + option * inner]
                };
                let parts = walk.base.iter().zip(&walk.inner).enumerate().map(of);
                factor = factor.max(sum(parts, limit, traces, &mut candidates));
            }
            table.push(Front::pruned(candidates, factor, traces, Made::Joined));
            walk.advance();
        }
        factors.push(Factor { scope: walk.scope, table });
    }
    // What is left is about the kept decision, or about nothing.
    let mut walk = Walk::new(graph, &factors, None)?;
    debug_assert_eq!(walk.scope, [kept]);
    let mut of_options = Vec::with_capacity(walk.entries());
    for _ in 0..walk.entries() {
        let mut candidates = Vec::new();
        let parts = factors.iter().zip(&walk.base).map(|(factor, base)| &factor.table[*base]);
        let factor = sum(parts, limit, traces, &mut candidates);
        of_options.push(Front::pruned(candidates, factor, traces, Made::Joined));
        walk.advance();
    }
    Ok(of_options)
}

/// Adds the sums of one point of each front to the candidates; returns the factor of the fronts. Fronts of one point are constants.
fn sum<'a>(
    parts: impl Iterator<Item = &'a Front>,
    limit: f64,
    traces: &mut Traces,
    into: &mut Vec<Candidate>,
) -> f64 {
    let mut constant = Point { price: Price::default(), trace: NOTHING };
    let (mut several, mut factor): (Vec<&Front>, f64) = (Vec::new(), 1.0);
    for part in parts {
        factor = factor.max(part.factor);
        match part.points[..] {
            [] => return 1.0,
            [point] => {
                constant.price.seconds += point.price.seconds;
                constant.price.memory += point.price.memory;
                constant.trace = traces.join(constant.trace, point.trace);
            }
            _ => several.push(part),
        }
    }
    let Some((last, others)) = several.split_last() else {
        if constant.price.memory <= limit {
            into.push(Candidate { price: constant.price, parts: [constant.trace, NOTHING] });
        }
        return factor;
    };
    let mut before = Front { points: vec![constant], factor };
    for other in others {
        let mut candidates = Vec::new();
        pairs(&before.points, &other.points, 0.0, limit, &mut candidates);
        before = Front::pruned(candidates, before.factor, traces, Made::Joined);
    }
    pairs(&before.points, &last.points, 0.0, limit, into);
    before.factor
}

/// Appends a unit to what came before it: fronts by the option at the boundary, `seconds` by both options, the one before first. Prices beyond
/// `limit` bytes, and those that are not to be kept with their option, are left out.
pub fn link(
    before: &[Front],
    unit: &[Front],
    seconds: &[f64],
    limit: f64,
    keep: impl Fn(usize, &Price) -> bool,
    traces: &mut Traces,
) -> Vec<Front> {
    let of = |(option, front): (usize, &Front)| {
        let (mut candidates, mut factor) = (Vec::new(), front.factor);
        for (other, ahead) in before.iter().enumerate() {
            let between = seconds[other * unit.len() + option];
            if between.is_finite() {
                factor = factor.max(ahead.factor);
                pairs(&ahead.points, &front.points, between, limit, &mut candidates);
            }
        }
        candidates.retain(|candidate| keep(option, &candidate.price));
        Front::pruned(candidates, factor, traces, Made::Linked)
    };
    unit.iter().enumerate().map(of).collect()
}
