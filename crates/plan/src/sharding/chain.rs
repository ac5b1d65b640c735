//! A whole model on one mesh: embedding, equal layers and head, joined where the residual stream passes from one to the next.

use super::bound::lower_bound;
use super::exchange::{Devices, Place};
use super::graph::{Entangled, Price, Weights};
use super::pareto::{Front, Traces, fronts, link};
use super::training::{BoundBy, Prices};
use super::unit::UnitGraph;
use std::convert::Infallible;

/// The best layouts of a model.
#[derive(Debug, Clone, PartialEq)]
pub struct ChainSolution {
    /// Seconds of a micro-batch, and bytes.
    pub price: Price,
    /// By unit, from the embedding to the head: the option of each decision.
    pub options: Vec<Vec<usize>>,
    /// Seconds that no options take less than, by Lagrangian relaxation.
    pub bound: f64,
    /// The seconds are at most this factor above the least ones: 1 if no front was thinned.
    pub factor: f64,
}

/// Units of a model, for one mesh.
#[derive(Debug, Clone, Copy)]
pub struct Chain<'a> {
    /// The embedding.
    pub embedding: &'a UnitGraph,
    /// Any layer.
    pub layer: &'a UnitGraph,
    /// Layers.
    pub layers: usize,
    /// The head.
    pub head: &'a UnitGraph,
    /// Axes and machine.
    pub devices: Devices<'a>,
}

/// Fronts of a chain, for the bound.
struct Fronts {
    /// By place in the chain: which of the three units it is.
    order: Vec<usize>,
    units: [Vec<Front>; 3],
    /// By unit and the one after it: seconds by both options.
    between: [[Vec<f64>; 3]; 3],
}

impl Chain<'_> {
    /// Decisions of the model, options of all of them, and pairs of options that have a price: the variables of Alpa's integer programme.
    pub fn size(&self) -> [usize; 3] {
        let count = |unit: &UnitGraph| {
            let options = unit.decisions.iter().map(|decision| decision.options.len()).sum();
            let pairs = unit.passages.iter().map(|passage| passage.traffic.len()).sum();
            [unit.decisions.len(), options, pairs]
        };
        let (ends, layer) = ([self.embedding, self.head].map(count), count(self.layer));
        let streams = self.layer.stream().count().pow(2) * (self.layers + 1);
        std::array::from_fn(|what| {
            let own = ends[0][what] + ends[1][what] + self.layers * layer[what];
            own + if what == 2 { streams } else { 0 }
        })
    }

    /// Seconds that the residual stream and its gradient take from one layout to another.
    fn between(&self, from: &UnitGraph, to: &UnitGraph) -> Vec<f64> {
        let targets: Vec<Vec<Place>> = to.stream().collect();
        let change =
            |from: &[Place], to: &[Place]| self.devices.exchange(self.layer.stream_bytes, from, to).seconds;
        let of = |from: Vec<Place>| {
            targets.iter().map(|to| change(&from, to) + change(to, &from)).collect::<Vec<_>>()
        };
        from.stream().flat_map(of).collect()
    }

    /// Returns the fastest layouts within `limit` bytes, or none where nothing fits.
    ///
    /// # Errors
    /// [`Entangled`].
    pub fn solve(
        &self,
        prices: &Prices<'_>,
        by: BoundBy,
        limit: f64,
    ) -> Result<Option<ChainSolution>, Entangled> {
        let graphs = [self.embedding, self.layer, self.head];
        let mut traces = Traces::default();
        let mut units: [Vec<Front>; 3] = std::array::from_fn(|_| Vec::new());
        for (unit, graph) in units.iter_mut().zip(graphs) {
            *unit = fronts(&prices.graph(graph, by), 0, limit, &mut traces)?;
        }
        let between = graphs.map(|from| graphs.map(|to| self.between(from, to)));
        let order: Vec<usize> = (0..self.layers + 2)
            .map(|at| if at == 0 { 0 } else { 1 + usize::from(at > self.layers) })
            .collect();
        let all = Fronts { order, units, between };
        let bound = match lower_bound(limit, |weights| Ok::<_, Infallible>(all.cheapest(weights))) {
            Ok(Some(bound)) => bound,
            Ok(None) => return Ok(None),
            Err(never) => match never {},
        };
        // What the rest of the chain costs at the bound's price of a byte leaves out all that cannot end below a solution at hand.
        let weights = Weights { seconds: 1.0, memory: bound.rate };
        let rest = all.rest(weights);
        let free = if bound.rate > 0.0 { bound.rate * limit } else { 0.0 };
        let most = (bound.feasible + free) * (1.0 + 1e-9);
        let mut chain = all.units[0].clone();
        for (at, pair) in all.order.windows(2).enumerate() {
            let [from, to] = [pair[0], pair[1]];
            let keep = |option: usize, price: &Price| price.weighted(weights) + rest[at + 1][option] <= most;
            chain = link(&chain, &all.units[to], &all.between[from][to], limit, keep, &mut traces);
        }
        let factor = chain.iter().map(|front| front.factor).fold(1.0, f64::max);
        let points = chain.iter().filter_map(Front::fastest);
        let Some(best) = points.min_by(|a, b| a.price.seconds.total_cmp(&b.price.seconds)) else {
            return Ok(None);
        };
        let options = traces.units(best).into_iter().map(|unit| unit.into_iter().map(|o| o.1).collect());
        let own = all.units.iter().flatten().map(|front| front.factor).fold(1.0, f64::max);
        let (price, options) = (best.price, options.collect());
        Ok(Some(ChainSolution { price, options, bound: bound.seconds / own, factor }))
    }
}

impl Fronts {
    /// By place in the chain and option there: the least weighted price of all that comes after.
    fn rest(&self, weights: Weights) -> Vec<Vec<f64>> {
        let least = |front: &Front| {
            front.points.iter().map(|point| point.price.weighted(weights)).fold(f64::INFINITY, f64::min)
        };
        let own: Vec<Vec<f64>> = self.units.iter().map(|unit| unit.iter().map(least).collect()).collect();
        let last = self.order[self.order.len() - 1];
        let mut rest = vec![vec![0.0; own[last].len()]];
        for pair in self.order.windows(2).rev() {
            let (after, next) = (&rest[rest.len() - 1], &own[pair[1]]);
            let of = |option: usize| {
                let table = &self.between[pair[0]][pair[1]][option * next.len()..];
                let costs = next.iter().zip(after).zip(table);
                costs.map(|((own, after), seconds)| own + after + seconds).fold(f64::INFINITY, f64::min)
            };
            rest.push((0..own[pair[0]].len()).map(of).collect());
        }
        rest.reverse();
        rest
    }

    /// The chain of the least weighted price.
    fn cheapest(&self, weights: Weights) -> Option<Price> {
        let cost = |price: &Price| price.weighted(weights);
        let less = |a: &Price, b: &Price| cost(a).total_cmp(&cost(b));
        let add = |a: Price, b: Price, seconds: f64| Price {
            seconds: a.seconds + b.seconds + seconds,
            memory: a.memory + b.memory,
        };
        let of_unit = |unit: usize| -> Vec<Option<Price>> {
            let least = |front: &Front| front.points.iter().map(|point| point.price).min_by(less);
            self.units[unit].iter().map(least).collect()
        };
        let units = [of_unit(0), of_unit(1), of_unit(2)];
        let mut chain = units[self.order[0]].clone();
        for pair in self.order.windows(2) {
            let (unit, table) = (&units[pair[1]], &self.between[pair[0]][pair[1]]);
            let of = |(option, own): (usize, &Option<Price>)| {
                let own = (*own)?;
                let ahead = chain.iter().enumerate().filter_map(|(other, price)| Some((other, (*price)?)));
                let all = ahead.map(|(other, price)| add(price, own, table[other * unit.len() + option]));
                all.filter(|price| price.seconds.is_finite()).min_by(less)
            };
            chain = unit.iter().enumerate().map(of).collect();
        }
        chain.into_iter().flatten().min_by(less)
    }
}
