//! Lower bounds of a program's time, for any order of its passes.

use crate::{Costs, Timeline};
use bessemer_schedule::{Instruction, Program};

/// Times of one micro-batch in one stage.
#[derive(Debug, Clone, Copy, Default)]
struct Needs {
    forward: f64,
    /// The part that the stage before waits for: the whole backward pass, or its input part.
    backward: f64,
    /// Whether nothing of the stage is left after it.
    whole: bool,
    /// The weight part, where it is separate.
    weight: f64,
}

/// A makespan that no order of the same work on the same ranks is shorter than: the longest way of a micro-batch through
/// the model and back, and for each rank the earliest moment at which anything can reach it, plus all of its work, plus
/// the shortest way from its last work to the end. Messages count with transfer and latency, queues do not.
pub fn lower_bound(program: &Program, costs: &Costs, timeline: &Timeline) -> f64 {
    let (stages, ranks) = (program.stages, program.ranks());
    let needs = needs(program, timeline);
    let message = |micro: usize, from: usize, to: usize| {
        let (a, b) = (program.place(micro, from).rank, program.place(micro, to).rank);
        let link = costs.messages.link(a, b);
        if a == b { 0.0 } else { costs.messages.transfer(link) + link.latency }
    };
    let mut longest = 0.0f64;
    let mut head = vec![f64::INFINITY; ranks];
    let mut tail = vec![f64::INFINITY; ranks];
    for micro in 0..program.micro_batches() {
        let needs = &needs[micro * stages..(micro + 1) * stages];
        let mut reached = 0.0f64;
        for (stage, need) in needs.iter().enumerate() {
            let rank = program.place(micro, stage).rank;
            if stage > 0 {
                reached += message(micro, stage - 1, stage);
            }
            head[rank] = head[rank].min(reached);
            reached += need.forward;
        }
        // What is left when the backward pass of a stage is done, stage by stage from the first.
        let mut left = 0.0f64;
        for (stage, need) in needs.iter().enumerate() {
            let rank = program.place(micro, stage).rank;
            if stage > 0 {
                left += message(micro, stage, stage - 1);
            }
            let own = if need.whole { left } else { left.max(need.weight) };
            tail[rank] = tail[rank].min(if need.whole { left } else { 0.0 });
            left = own + need.backward;
        }
        longest = longest.max(reached + left);
    }
    // What is not a pass (the optimizer's step, fillers) may come last.
    for (rank, list) in program.lists.iter().enumerate() {
        let rest = |i: &Instruction| {
            use Instruction::{Fill, Gather, Reduce, Step};
            matches!(i, Step { .. } | Reduce { .. } | Gather { .. } | Fill(_))
        };
        if timeline.work(program, rank).any(|(_, i, _)| rest(i)) {
            tail[rank] = 0.0;
        }
        if list.iter().any(|i| matches!(i, Instruction::Fill(_))) {
            head[rank] = 0.0;
        }
    }
    let first =
        (0..ranks).filter_map(|r| timeline.extent(program, r)).map(|t| t.start).fold(f64::INFINITY, f64::min);
    let first = if first.is_finite() { first } else { 0.0 };
    let with_work = (0..ranks).filter(|r| head[*r].is_finite());
    let ranks = with_work.map(|r| head[r] - first + timeline.busy(program, r) + tail[r]);
    ranks.fold(longest - first, f64::max).max(0.0)
}

/// What each micro-batch needs in each stage, as the program has it and with its times.
fn needs(program: &Program, timeline: &Timeline) -> Vec<Needs> {
    let mut needs = vec![Needs::default(); program.micro_batches() * program.stages];
    let stage_of = stages_of(program);
    for (rank, list) in program.lists.iter().enumerate() {
        for (instruction, interval) in list.iter().zip(&timeline.intervals[rank]) {
            let time = interval.length();
            let mut at = |pass: &bessemer_schedule::Pass, set: &dyn Fn(&mut Needs)| {
                if let Some(stage) = stage_of[rank][pass.chunk] {
                    set(&mut needs[pass.micro * program.stages + stage]);
                }
            };
            match instruction {
                Instruction::Forward(p) => at(p, &|n| n.forward = time),
                Instruction::Backward(p) => at(p, &|n| (n.backward, n.whole) = (time, true)),
                Instruction::BackwardInput(p) => at(p, &|n| n.backward = time),
                Instruction::BackwardWeight(p) => at(p, &|n| n.weight = time),
                Instruction::Together { forward, backward } => {
                    at(forward, &|n| n.forward = time);
                    at(backward, &|n| (n.backward, n.whole) = (time, true));
                }
                _ => {}
            }
        }
    }
    needs
}

/// Stage by rank and chunk.
fn stages_of(program: &Program) -> Vec<Vec<Option<usize>>> {
    let mut stages: Vec<Vec<Option<usize>>> =
        (0..program.ranks()).map(|r| vec![None; program.chunks(r)]).collect();
    for route in &program.routes {
        for (stage, place) in route.iter().enumerate() {
            stages[place.rank][place.chunk] = Some(stage);
        }
    }
    stages
}
