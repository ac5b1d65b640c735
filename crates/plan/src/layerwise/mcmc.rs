//! Search by a Markov chain over operator groups: FlexFlow's (Jia et al. 2019, section 6.2).
//!
//! A state is a [`LayerPlan`]; its operator groups are the attention block, the feed-forward block and what is computed again of every
//! layer. A proposal gives a group of a random layer another configuration, hands the configuration of a group on along edges to the
//! layers behind or before it, moves a layer between neighbouring stages, or changes the degrees: all of them, or those that leave
//! ranks where they are. It is accepted if the simulated step
//! is no slower, else with probability `exp(-alpha d)` for a step that is d thousandths slower. What holds more than a device has costs a
//! millisecond for each megabyte. After every hundredth of the budget, at most after 1,000 proposals, the chain goes on from the best.
//!
//! The n-th proposal is a function of the seed, n and the state.

use super::{BlockLayout, Degrees, LayerChoice, LayerPlan, Prices, Setting, SimulatedStep, step};
use bessemer_sim::SimError;
use bessemer_tensor::rng::{RngKey, unit};
use serde::Serialize;

/// Weight of a step that is a thousandth slower (FlexFlow's default, which counts milliseconds).
const ALPHA: f64 = 1.2;
/// Seconds for each byte above the limit: a millisecond a megabyte.
const PENALTY: f64 = 1e-9;
/// Most proposals before the chain goes on from the best.
const MOST_AWAY: usize = 1000;
/// Chance that a configuration goes on to one more layer.
const GOES_ON: f64 = 0.8;

/// Proposals of one kind.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Accepted {
    /// All of them.
    pub proposed: usize,
    /// Of these, those that were accepted.
    pub accepted: usize,
}

/// Proposals by kind.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Proposals {
    /// A random configuration of a random group.
    pub random: Accepted,
    /// A configuration handed on along edges.
    pub propagated: Accepted,
    /// A layer moved to the next stage, or from it.
    pub stages: Accepted,
    /// Other degrees.
    pub degrees: Accepted,
}

/// Result of a search.
#[derive(Debug, Clone, PartialEq)]
pub struct Walk {
    /// The best plan; one that fits, if any was met.
    pub plan: LayerPlan,
    /// Its step.
    pub step: SimulatedStep,
    /// Whether it fits.
    pub fits: bool,
    /// Proposals by kind.
    pub proposals: Proposals,
    /// Proposals until each new best, with its cost: seconds of its step, and of the penalty while it holds too much. What fits is better
    /// than what does not.
    pub progress: Vec<(usize, f64)>,
}

/// A state with its cost.
#[derive(Debug, Clone)]
struct State {
    plan: LayerPlan,
    step: SimulatedStep,
    cost: f64,
    fits: bool,
}

/// A part of a layer that has a configuration of its own.
#[derive(Debug, Clone, Copy)]
enum Group {
    Attention,
    FeedForward,
    Recompute,
}

impl Group {
    /// Whether layers may differ in it.
    fn varies(self, prices: &Prices) -> bool {
        prices.choices.windows(2).any(|pair| match self {
            Group::Attention => pair[0].attention != pair[1].attention,
            Group::FeedForward => pair[0].feed_forward != pair[1].feed_forward,
            Group::Recompute => pair[0].recompute != pair[1].recompute,
        })
    }
}

/// Random numbers of one proposal.
struct Numbers {
    key: RngKey,
    next: u64,
}

impl Numbers {
    fn word(&mut self) -> u32 {
        let word = self.key.block(self.next / 4)[(self.next % 4) as usize];
        self.next += 1;
        word
    }

    fn below(&mut self, end: usize) -> usize {
        ((u64::from(self.word()) * end as u64) >> 32) as usize
    }

    fn chance(&mut self, probability: f64) -> bool {
        f64::from(unit(self.word())) < probability
    }
}

/// Searches `budget` proposals from `start` on. `spaces`: prices by degrees; those of `start` are among them.
///
/// # Errors
/// A schedule that does not fit degrees.
pub fn wander(
    setting: &Setting<'_>,
    spaces: &[(Degrees, &Prices)],
    start: LayerPlan,
    seed: u64,
    budget: usize,
) -> Result<Walk, SimError> {
    let mut current = state(setting, spaces, start)?;
    let mut best = current.clone();
    let (mut proposals, mut progress) = (Proposals::default(), vec![(0, best.cost)]);
    let away = (budget / 100).clamp(1, MOST_AWAY);
    let mut since = 0;
    for number in 0..budget {
        let mut numbers = Numbers { key: RngKey::new(seed, number as u64, "proposal"), next: 0 };
        let (plan, kind) = propose(spaces, &current.plan, &mut numbers);
        let counted = kind(&mut proposals);
        counted.proposed += 1;
        let next = state(setting, spaces, plan)?;
        let slower = 1000.0 * (next.cost / current.cost - 1.0);
        if slower <= 0.0 || numbers.chance((-ALPHA * slower).exp()) {
            counted.accepted += 1;
            current = next;
        }
        since += 1;
        if (current.fits && !best.fits) || (current.fits == best.fits && current.cost < best.cost) {
            best = current.clone();
            progress.push((number + 1, best.cost));
            since = 0;
        } else if since >= away {
            current = best.clone();
            since = 0;
        }
    }
    Ok(Walk { plan: best.plan, step: best.step, fits: best.fits, proposals, progress })
}

fn prices<'a>(spaces: &[(Degrees, &'a Prices)], degrees: &Degrees) -> Option<&'a Prices> {
    spaces.iter().find(|(of, _)| of == degrees).map(|(_, prices)| *prices)
}

fn state(setting: &Setting<'_>, spaces: &[(Degrees, &Prices)], plan: LayerPlan) -> Result<State, SimError> {
    let of = prices(spaces, &plan.degrees)
        .ok_or_else(|| SimError::Cost("a plan whose degrees have no prices".into()))?;
    let step = step(setting, of, &plan)?;
    let over: f64 = step.memory.iter().map(|bytes| (bytes - setting.memory).max(0.0)).sum();
    Ok(State { cost: step.seconds + PENALTY * over, fits: over == 0.0, plan, step })
}

type Kind = fn(&mut Proposals) -> &mut Accepted;

fn propose(spaces: &[(Degrees, &Prices)], plan: &LayerPlan, numbers: &mut Numbers) -> (LayerPlan, Kind) {
    let roll = numbers.below(20);
    let mut next = plan.clone();
    if roll < 4 && spaces.len() > 1 {
        let ranks = |of: &Degrees| [of.tensor, of.data, of.pipeline];
        let near = |of: &&(Degrees, &Prices)| ranks(&of.0) == ranks(&plan.degrees);
        let count = spaces.iter().filter(near).count();
        let (degrees, of) = match numbers.chance(0.5) {
            true => spaces[numbers.below(spaces.len())],
            false => *spaces.iter().filter(near).nth(numbers.below(count)).unwrap_or(&spaces[0]),
        };
        if let Some(old) = prices(spaces, &plan.degrees) {
            next = moved(plan, old, degrees, of);
        }
        return (next, |proposals| &mut proposals.degrees);
    }
    if roll < 7 && plan.stages.len() > 1 {
        let at = numbers.below(plan.stages.len() - 1);
        let (from, to) = if numbers.chance(0.5) { (at, at + 1) } else { (at + 1, at) };
        if next.stages[from] > 1 {
            next.stages[from] -= 1;
            next.stages[to] += 1;
        }
        return (next, |proposals| &mut proposals.stages);
    }
    let Some(of) = prices(spaces, &plan.degrees) else { return (next, |proposals| &mut proposals.random) };
    let layer = numbers.below(plan.choices.len());
    let groups = [Group::Attention, Group::FeedForward, Group::Recompute];
    // Groups that have several configurations.
    let several: Vec<Group> = groups.into_iter().filter(|group| group.varies(of)).collect();
    if several.is_empty() {
        return (next, |proposals| &mut proposals.random);
    }
    let group = several[numbers.below(several.len())];
    if roll < 13 {
        let as_configured = of.choices[numbers.below(of.choices.len())];
        next.choices[layer] = with(of, plan.choices[layer], as_configured, group);
        return (next, |proposals| &mut proposals.random);
    }
    // A configuration follows the edges of its group in one direction.
    let (as_configured, forward) = (of.choices[plan.choices[layer]], numbers.chance(0.5));
    let mut at = layer;
    while let Some(neighbour) = if forward { at.checked_add(1) } else { at.checked_sub(1) } {
        if neighbour >= next.choices.len() {
            break;
        }
        next.choices[neighbour] = with(of, next.choices[neighbour], as_configured, group);
        at = neighbour;
        if !numbers.chance(GOES_ON) {
            break;
        }
    }
    (next, |proposals| &mut proposals.propagated)
}

/// The choice in which a group has the configuration of another choice; the same choice where there is none.
fn with(prices: &Prices, choice: usize, as_configured: LayerChoice, group: Group) -> usize {
    let mut wanted = prices.choices[choice];
    match group {
        Group::Attention => wanted.attention = as_configured.attention,
        Group::FeedForward => wanted.feed_forward = as_configured.feed_forward,
        Group::Recompute => wanted.recompute = as_configured.recompute,
    }
    prices.choices.iter().position(|choice| *choice == wanted).unwrap_or(choice)
}

/// The plan in other degrees: the same choices as far as they are there, stages of equal length where their number differs.
fn moved(plan: &LayerPlan, old: &Prices, degrees: Degrees, new: &Prices) -> LayerPlan {
    let choice = |choice: &usize| {
        let wanted = old.choices[*choice];
        let sharded = LayerChoice {
            attention: BlockLayout::Sharded,
            feed_forward: BlockLayout::Sharded,
            recompute: wanted.recompute,
        };
        let find = |wanted: LayerChoice| new.choices.iter().position(|choice| *choice == wanted);
        find(wanted).or_else(|| find(sharded)).unwrap_or(0)
    };
    let (count, layers) = (degrees.pipeline, plan.choices.len());
    let stages = match count == plan.stages.len() {
        true => plan.stages.clone(),
        false => (0..count).map(|stage| layers / count + usize::from(stage < layers % count)).collect(),
    };
    LayerPlan { degrees, stages, choices: plan.choices.iter().map(choice).collect() }
}
