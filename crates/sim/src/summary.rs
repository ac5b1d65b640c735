//! A timeline in numbers.

use crate::{Costs, Timeline, lower_bound, peak_live, weight_copies, weight_versions};
use bessemer_schedule::Program;

/// What is said about a simulated program. Vectors are by rank.
#[derive(Debug, Clone, PartialEq)]
pub struct Summary {
    /// Last end minus first start over all ranks.
    pub makespan: f64,
    /// Last end minus first start on each rank.
    pub span: Vec<f64>,
    /// Time in which each rank works.
    pub work: Vec<f64>,
    /// Makespan minus work.
    pub bubble: Vec<f64>,
    /// Span minus work: the measure of schedules whose next step begins on each rank as soon as this one ends there
    /// (zero-bubble ones).
    pub bubble_in_span: Vec<f64>,
    /// Share of all ranks' time in which nobody works.
    pub bubble_rate: f64,
    /// Share of all ranks' time in which they work.
    pub utilisation: f64,
    /// The utilisation that no order of the same passes on the same ranks can beat.
    pub attainable_utilisation: f64,
    /// Most live activations, in units of what one micro-batch leaves on the rank.
    pub peak_live: Vec<f64>,
    /// Most versions of weights.
    pub weight_versions: Vec<usize>,
    /// Stages held, in units of S/P.
    pub weight_copies: Vec<f64>,
}

impl Summary {
    /// Reads a timeline. `pending_share` is what of a micro-batch's activations stays from the input part of its
    /// backward pass to the weight part.
    pub fn new(program: &Program, costs: &Costs, timeline: &Timeline, pending_share: f64) -> Summary {
        let ranks = program.ranks();
        let makespan = timeline.makespan(program);
        let span: Vec<f64> = (0..ranks).map(|r| timeline.span(program, r)).collect();
        let work: Vec<f64> = (0..ranks).map(|r| timeline.busy(program, r)).collect();
        let sum: f64 = work.iter().sum();
        let share = |length: f64| if length > 0.0 { sum / (ranks as f64 * length) } else { 1.0 };
        let utilisation = share(makespan);
        Summary {
            makespan,
            bubble: work.iter().map(|w| makespan - w).collect(),
            bubble_in_span: span.iter().zip(&work).map(|(s, w)| s - w).collect(),
            span,
            work,
            bubble_rate: 1.0 - utilisation,
            utilisation,
            attainable_utilisation: share(lower_bound(program, costs, timeline)).min(1.0),
            peak_live: peak_live(program, pending_share),
            weight_versions: weight_versions(program),
            weight_copies: weight_copies(program),
        }
    }
}
