//! Pareto fronts of stages: for a number of layers, what no other choices beat in time and memory at once.

use super::stage::StageCost;

/// Most points of a front. Beyond them points of one bucket of memory become the fastest of them.
pub(super) const MOST_POINTS: usize = 96;

/// Choices of some layers in a row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Point {
    pub(super) cost: StageCost,
    /// Number of the last step in [`Fronts`] that has led here.
    pub(super) from: usize,
}

/// A choice of one layer behind those of the layers before.
#[derive(Debug, Clone, Copy)]
struct Step {
    choice: usize,
    before: usize,
}

/// Fronts by the number of layers, and how their points were reached.
#[derive(Debug, Default)]
pub(super) struct Fronts {
    pub(super) of_length: Vec<Vec<Point>>,
    steps: Vec<Step>,
    /// Candidates that were looked at.
    pub(super) evaluations: u64,
}

/// No layer.
const START: usize = usize::MAX;

impl Fronts {
    /// Fronts of the layers whose costs by choice are given, one after the other, within `limit` bytes.
    pub(super) fn of<'a>(
        layers: impl Iterator<Item = &'a [(usize, StageCost)]>,
        limit: f64,
        micro_batches: usize,
    ) -> Fronts {
        let start = Point { cost: StageCost::default(), from: START };
        let mut fronts = Fronts { of_length: vec![vec![start]], ..Fronts::default() };
        for costs in layers {
            let last = fronts.of_length.last().map_or(&[][..], Vec::as_slice);
            let mut next: Vec<(StageCost, Step)> = Vec::with_capacity(last.len() * costs.len());
            for point in last {
                for (choice, cost) in costs {
                    let cost = point.cost + *cost;
                    if cost.memory <= limit {
                        next.push((cost, Step { choice: *choice, before: point.from }));
                    }
                }
            }
            fronts.evaluations += (last.len() * costs.len()) as u64;
            let kept = pareto(next, |item| item.0);
            let kept = within(kept, limit, micro_batches);
            let mut front = Vec::with_capacity(kept.len());
            for (cost, step) in kept {
                front.push(Point { cost, from: fronts.steps.len() });
                fronts.steps.push(step);
            }
            let done = front.is_empty();
            fronts.of_length.push(front);
            if done {
                break;
            }
        }
        fronts
    }

    /// The choices that led to a point, from the first layer on.
    pub(super) fn choices(&self, point: &Point) -> Vec<usize> {
        let mut choices = Vec::new();
        let mut at = point.from;
        while at != START {
            choices.push(self.steps[at].choice);
            at = self.steps[at].before;
        }
        choices.reverse();
        choices
    }
}

/// What no other item is at least as good as in every respect; of equal ones the first.
pub(super) fn pareto<T: Copy>(mut items: Vec<T>, cost: impl Fn(&T) -> StageCost) -> Vec<T> {
    let key = |item: &T| {
        let StageCost { pass, tail, memory } = cost(item);
        [memory, pass, tail]
    };
    items.sort_by(|a, b| {
        let (a, b) = (key(a), key(b));
        a.iter()
            .zip(&b)
            .map(|(a, b)| a.total_cmp(b))
            .find(|order| order.is_ne())
            .unwrap_or(std::cmp::Ordering::Equal)
    });
    // (pass, tail) of those before, which hold no more: ascending passes, descending tails.
    let mut stairs: Vec<(f64, f64)> = Vec::new();
    let mut beaten = |item: &T| {
        let StageCost { pass, tail, .. } = cost(item);
        let slower = stairs.partition_point(|stair| stair.0 <= pass);
        if slower > 0 && stairs[slower - 1].1 <= tail {
            return true;
        }
        let from = stairs.partition_point(|stair| stair.0 < pass);
        let until = from + stairs[from..].iter().take_while(|stair| stair.1 >= tail).count();
        stairs.splice(from..until, [(pass, tail)]);
        false
    };
    items.retain(|item| !beaten(item));
    items
}

/// At most [`MOST_POINTS`]: of each bucket of memory the fastest. What is left out holds at most a bucket less than what stays.
fn within<T: Copy>(points: Vec<(StageCost, T)>, limit: f64, micro_batches: usize) -> Vec<(StageCost, T)> {
    if points.len() <= MOST_POINTS {
        return points;
    }
    let least = points.first().map_or(0.0, |point| point.0.memory);
    let bucket = ((limit - least) / MOST_POINTS as f64).max(f64::MIN_POSITIVE);
    let seconds = |cost: StageCost| cost.pass * micro_batches as f64 + cost.tail;
    let mut kept: Vec<(StageCost, T)> = Vec::with_capacity(MOST_POINTS + 1);
    let mut of = usize::MAX;
    for point in points {
        let number = ((point.0.memory - least) / bucket) as usize;
        match kept.last_mut().filter(|_| number == of) {
            Some(last) if seconds(point.0) < seconds(last.0) => *last = point,
            Some(_) => {}
            None => kept.push(point),
        }
        of = number;
    }
    kept
}
