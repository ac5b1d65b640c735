//! The fastest plan of given degrees, by dynamic programming.
//!
//! ```text
//! T = sum over stages of t_s + (m - 1) max t_s + max tail_s          t_s: both passes of a micro-batch on stage s
//! ```
//! A stage that begins with layer i has a front of (t, tail, memory) for every number of layers, built layer by layer. Stages are
//! joined by a second program over (stage, layers so far) whose points are (max t, sum of t, max tail). Both keep every point that may
//! still win, so the answer is exact while fronts are short; longer ones keep one point for each bucket of memory.

use super::front::{Fronts, Point, pareto};
use super::stage::{StageCost, Stages};
use super::{Degrees, LayerPlan, Prices, Setting, UnitPrice};

/// Fewest layers that a stage may have at most, however many stages there are.
const STAGE_LAYERS: usize = 8;
/// Points of a place with which a first plan is found.
const QUICK_POINTS: usize = 8;

/// A plan with its price.
#[derive(Debug, Clone, PartialEq)]
pub struct Solved {
    /// The plan.
    pub plan: LayerPlan,
    /// Seconds of a step, as sums over units.
    pub seconds: f64,
    /// Bytes of each stage.
    pub memory: Vec<f64>,
    /// Combinations that were looked at.
    pub evaluations: u64,
}

/// A stage of which the layers are chosen.
#[derive(Debug, Clone)]
struct StageChoice {
    cost: StageCost,
    choices: Vec<usize>,
}

/// Stages so far.
#[derive(Debug, Clone, Copy)]
struct Joined {
    slowest: f64,
    sum: f64,
    tail: f64,
    /// Number of layers before the last stage, of the point there, and of the stage's choice.
    from: (usize, usize, usize),
}

/// Points by number of stages and number of layers in them.
type JoinedPoints = Vec<Vec<Vec<Joined>>>;

/// The last point of a plan.
struct Best {
    last: Joined,
    seconds: f64,
}

/// The second dynamic program: stages, one behind the other.
struct Join<'a> {
    tables: &'a [StageTable],
    layers: usize,
    micro_batches: usize,
    /// By stage and first layer: the least sum of passes, and the least slowest pass, from there to the end.
    rest: Vec<Vec<(f64, f64)>>,
}

impl<'a> Join<'a> {
    fn new(tables: &'a [StageTable], layers: usize, micro_batches: usize) -> Join<'a> {
        let none = (f64::INFINITY, f64::INFINITY);
        let mut rest = vec![vec![none; layers + 1]; tables.len() + 1];
        rest[tables.len()][layers] = (0.0, 0.0);
        for (stage, table) in tables.iter().enumerate().rev() {
            for begin in 0..layers {
                let lengths = table.of(begin).iter().enumerate().take(layers + 1 - begin);
                for (length, options) in lengths {
                    let behind = rest[stage + 1][begin + length];
                    let pass = options.iter().map(|option| option.cost.pass).fold(f64::INFINITY, f64::min);
                    let here = &mut rest[stage][begin];
                    (here.0, here.1) = (here.0.min(pass + behind.0), here.1.min(pass.max(behind.1)));
                }
            }
        }
        Join { tables, layers, micro_batches, rest }
    }

    /// Least seconds of a plan that goes on from a point.
    fn least(&self, stages: usize, layers: usize, point: &Joined) -> f64 {
        let (sum, slowest) = self.rest[stages][layers];
        point.sum + sum + (self.micro_batches as f64 - 1.0) * point.slowest.max(slowest) + point.tail
    }

    /// Joins stages; leaves out points that lead to more than `bound` seconds, and all but the `most` best of a place.
    fn run(&self, most: Option<usize>, bound: f64, evaluations: &mut u64) -> JoinedPoints {
        let start = Joined { slowest: 0.0, sum: 0.0, tail: 0.0, from: (0, 0, 0) };
        let mut first = vec![Vec::new(); self.layers + 1];
        first[0] = vec![start];
        let mut joined = vec![first];
        for (stage, table) in self.tables.iter().enumerate() {
            let mut next: Vec<Vec<Joined>> = vec![Vec::new(); self.layers + 1];
            for (begin, points) in joined[stage].iter().enumerate().take(self.layers) {
                for (point, before) in points.iter().enumerate() {
                    let lengths = table.of(begin).iter().enumerate().take(self.layers + 1 - begin);
                    for (length, options) in lengths {
                        let end = begin + length;
                        *evaluations += options.len() as u64;
                        let points = options.iter().enumerate().map(|(option, stage)| Joined {
                            slowest: before.slowest.max(stage.cost.pass),
                            sum: before.sum + stage.cost.pass,
                            tail: before.tail.max(stage.cost.tail),
                            from: (begin, point, option),
                        });
                        next[end].extend(points.filter(|point| {
                            let least = self.least(stage + 1, end, point);
                            least.is_finite() && least <= bound
                        }));
                    }
                }
            }
            let as_cost = |one: &Joined| StageCost { pass: one.slowest, tail: one.tail, memory: one.sum };
            let kept = next.into_iter().enumerate().map(|(end, points)| {
                let mut kept = pareto(points, as_cost);
                if let Some(most) = most.filter(|most| kept.len() > *most) {
                    let least = |point: &Joined| self.least(stage + 1, end, point);
                    kept.sort_by(|a, b| least(a).total_cmp(&least(b)));
                    kept.truncate(most);
                }
                kept
            });
            joined.push(kept.collect());
        }
        joined
    }

    fn best(&self, joined: &JoinedPoints) -> Option<Best> {
        let seconds = |last: &Joined| self.least(self.tables.len(), self.layers, last);
        let all = joined.last()?.last()?.iter().map(|last| Best { last: *last, seconds: seconds(last) });
        all.min_by(|a, b| a.seconds.total_cmp(&b.seconds))
    }
}

/// Choices of one stage.
struct StageTable {
    /// By kind of beginning and number of layers.
    choices: Vec<Vec<Vec<StageChoice>>>,
    /// By first layer: the beginning, if the stage may begin there.
    first: Vec<Option<usize>>,
}

impl StageTable {
    fn new(stages: &Stages<'_>, stage: usize, longest: usize, evaluations: &mut u64) -> StageTable {
        let kinds = &stages.prices.layers;
        let mut table = StageTable { choices: Vec::new(), first: Vec::with_capacity(kinds.len()) };
        let from = |first: usize| &kinds[first..(first + longest).min(kinds.len())];
        for first in 0..kinds.len() {
            // The first stage begins with the first layer, the others leave one for each stage before.
            if (stage == 0 && first > 0) || first < stage {
                table.first.push(None);
                continue;
            }
            // Layers of the same kinds have the same choices.
            let mut others = table.first.iter().enumerate();
            let alike = others.find_map(|(other, at)| at.filter(|_| from(other).starts_with(from(first))));
            table.first.push(Some(alike.unwrap_or(table.choices.len())));
            if alike.is_none() {
                table.choices.push(stage_choices(stages, stage, from(first), evaluations));
            }
        }
        table
    }

    /// By number of layers: choices of a stage that begins with this layer.
    fn of(&self, first: usize) -> &[Vec<StageChoice>] {
        self.first[first].map_or(&[], |at| &self.choices[at])
    }
}

/// Returns the fastest plan of these degrees that fits; none if nothing does.
pub fn solve(setting: &Setting<'_>, prices: &Prices, degrees: Degrees) -> Option<Solved> {
    let stages = Stages::new(setting, prices, degrees);
    let (count, layers) = (degrees.pipeline, prices.layers.len());
    if count > layers || stages.micro_batches() == 0 {
        return None;
    }
    let longest = (2 * layers.div_ceil(count)).max(STAGE_LAYERS).min(layers + 1 - count);
    let mut evaluations = 0;
    let tables: Vec<StageTable> =
        (0..count).map(|stage| StageTable::new(&stages, stage, longest, &mut evaluations)).collect();
    let join = Join::new(&tables, layers, stages.micro_batches());
    // A few of the best points of each place give a plan, beside which points that cannot be faster are left out.
    let quick = join.run(Some(QUICK_POINTS), f64::INFINITY, &mut evaluations);
    let bound = join.best(&quick)?.seconds;
    let joined = join.run(None, bound * (1.0 + 1e-12), &mut evaluations);
    let best = join.best(&joined)?;
    let (mut lengths, mut choices, mut memory) = (vec![0; count], vec![Vec::new(); count], vec![0.0; count]);
    let (mut at, mut end) = (best.last, layers);
    for stage in (0..count).rev() {
        let (begin, point, option) = at.from;
        let chosen = &tables[stage].of(begin)[end - begin][option];
        (lengths[stage], memory[stage]) = (end - begin, chosen.cost.memory);
        choices[stage] = in_order(&prices.layers[begin..end], &chosen.choices);
        (at, end) = (joined[stage][begin][point], begin);
    }
    let plan = LayerPlan { degrees, stages: lengths, choices: choices.concat() };
    let seconds = best.seconds + setting.efficiency.step_seconds;
    Some(Solved { plan, seconds, memory, evaluations })
}

/// The same choices for layers of the same kinds, the last of them first: a stage's sums do not depend on their order.
fn in_order(kinds: &[usize], choices: &[usize]) -> Vec<usize> {
    let mut ordered = choices.to_vec();
    let mut all: Vec<usize> = kinds.to_vec();
    all.sort_unstable();
    all.dedup();
    for kind in all {
        let places = || (0..kinds.len()).filter(|place| kinds[*place] == kind);
        let mut of_kind: Vec<usize> = places().map(|place| choices[place]).collect();
        of_kind.sort_unstable_by_key(|choice| std::cmp::Reverse(*choice));
        places().zip(of_kind).for_each(|(place, choice)| ordered[place] = choice);
    }
    ordered
}

/// The choices of a stage of some of these layers, from the first on, by their number.
fn stage_choices(
    stages: &Stages<'_>,
    stage: usize,
    layers: &[usize],
    evaluations: &mut u64,
) -> Vec<Vec<StageChoice>> {
    let prices = stages.prices;
    let besides = stages.besides(stage);
    let shared = |price: &UnitPrice| stages.shared(stage, price.scratch, price.parameters);
    // Choices that share a buffer of a size, for each size that there is.
    let kinds = prices.kinds.iter().enumerate().filter(|(kind, _)| layers.contains(kind));
    let all = kinds.flat_map(|(_, of)| of).filter(|price| price.forward.is_finite());
    let mut buffers: Vec<f64> = all.map(shared).collect();
    buffers.sort_by(f64::total_cmp);
    buffers.dedup();
    let fronts = buffers.into_iter().map(|buffer| {
        let costs = prices.kinds.iter().map(|of_kind| {
            let fits = of_kind.iter().enumerate();
            let fits = fits.filter(|(_, price)| price.forward.is_finite() && shared(price) <= buffer);
            pareto(fits.map(|(choice, price)| (choice, stages.unit(price, stage))).collect(), |item| item.1)
        });
        let costs: Vec<Vec<(usize, StageCost)>> = costs.collect();
        let room = stages.setting.memory - besides.memory - buffer;
        let costs = layers.iter().map(|kind| costs[*kind].as_slice());
        (buffer, Fronts::of(costs, room, stages.micro_batches()))
    });
    let fronts: Vec<(f64, Fronts)> = fronts.collect();
    *evaluations += fronts.iter().map(|(_, fronts)| fronts.evaluations).sum::<u64>();
    let of_length = |length: usize| {
        let mut points = Vec::new();
        for (buffer, fronts) in &fronts {
            for point in fronts.of_length.get(length).into_iter().flatten() {
                let buffer = StageCost { memory: *buffer, ..StageCost::default() };
                points.push((point.cost + besides + buffer, fronts, point));
            }
        }
        // All of these fit: memory no longer matters.
        let kept = pareto(points, |point| StageCost { memory: 0.0, ..point.0 });
        let choice = |(cost, fronts, point): (StageCost, &Fronts, &Point)| StageChoice {
            cost,
            choices: fronts.choices(point),
        };
        kept.into_iter().map(choice).collect()
    };
    (0..=layers.len()).map(|length| if length == 0 { Vec::new() } else { of_length(length) }).collect()
}

/// Returns the price of a plan as [`solve`] counts it; none if it does not fit, or if a layer cannot have its choice.
pub fn priced(setting: &Setting<'_>, prices: &Prices, plan: &LayerPlan) -> Option<Solved> {
    let stages = Stages::new(setting, prices, plan.degrees);
    let (mut slowest, mut sum, mut tail, mut memory) = (0.0_f64, 0.0, 0.0_f64, Vec::new());
    let mut first = 0;
    for (stage, length) in plan.stages.iter().enumerate() {
        let of = || (first..first + length).map(|layer| prices.layer(layer, plan.choices[layer]));
        if of().any(|price| !price.forward.is_finite()) {
            return None;
        }
        let most =
            |part: &dyn Fn(f64, f64) -> f64| of().map(|p| part(p.scratch, p.parameters)).fold(0.0, f64::max);
        let shared = most(&|scratch, parameters| stages.shared(stage, scratch, parameters));
        let cost = of().map(|price| stages.unit(price, stage)).fold(StageCost::default(), |a, b| a + b);
        let cost = cost + stages.besides(stage) + StageCost { memory: shared, ..StageCost::default() };
        if cost.memory > setting.memory {
            return None;
        }
        (slowest, sum, tail) = (slowest.max(cost.pass), sum + cost.pass, tail.max(cost.tail));
        memory.push(cost.memory);
        first += length;
    }
    let micro_batches = stages.micro_batches() as f64;
    let seconds = sum + (micro_batches - 1.0) * slowest + tail + setting.efficiency.step_seconds;
    Some(Solved { plan: plan.clone(), seconds, memory, evaluations: 1 })
}

/// Returns the fastest plan of these degrees whose layers all have one choice and whose stages have equally many layers, up to one.
pub fn uniform(setting: &Setting<'_>, prices: &Prices, degrees: Degrees) -> Option<Solved> {
    let (count, layers) = (degrees.pipeline, prices.layers.len());
    if count > layers || setting.micro_batches(&degrees) == 0 {
        return None;
    }
    let length = |stage: usize| layers / count + usize::from(stage < layers % count);
    let plan = |choice: usize| LayerPlan {
        degrees,
        stages: (0..count).map(length).collect(),
        choices: vec![choice; layers],
    };
    let all = (0..prices.choices.len()).filter_map(|choice| priced(setting, prices, &plan(choice)));
    let best = all.min_by(|a, b| a.seconds.total_cmp(&b.seconds))?;
    Some(Solved { evaluations: prices.choices.len() as u64, ..best })
}
