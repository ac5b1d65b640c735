//! Costs from measured times.

use crate::{Costs, PassTimes, SimError};
use bessemer_schedule::{Filler, Place, Program};
use bessemer_units::stats::median;
use std::collections::BTreeMap;

/// Kind of measured work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// Forward pass.
    Forward,
    /// Full backward pass.
    Backward,
    /// Its input part.
    BackwardInput,
    /// Its weight part.
    BackwardWeight,
    /// A forward through the sample's chunk and a full backward through this one, together.
    Together {
        /// Chunk that goes backward.
        backward: usize,
    },
    /// Gradients summed.
    Reduce,
    /// The optimizer's step.
    Step,
    /// All-gather of weights.
    Gather,
    /// Filler work.
    Fill(Filler),
}

/// One measured instruction.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sample {
    /// Rank that did it.
    pub rank: usize,
    /// Its chunk.
    pub chunk: usize,
    /// Kind of work.
    pub kind: Kind,
    /// How long it took.
    pub time: f64,
}

/// What the name of an interval in a run's trace says: what was done, the micro-batch (of updates: the update, of fillers: the
/// unit) and the chunk.
///
/// Names are `F 3.1` (forward of micro-batch 3 through chunk 1), `B` whole backward, `I` its input part, `W` its weight
/// part, `F 5.0&B 3.1` together; `reduce 1`, `step 1`, `gather 1` with the chunk; `Curvature 2.1` and other fillers with unit and
/// chunk. Also as schedule files write them: `F3.1`, `step0.1`; a chunk of 0 may be missing, a version behind `@` is passed over.
/// `None` for anything else, such as messages.
pub fn parse_name(name: &str) -> Option<(Kind, usize, usize)> {
    if let Some((forward, backward)) = name.split_once('&') {
        let (Kind::Forward, micro, chunk) = parse_name(forward)? else { return None };
        let (Kind::Backward, _, other) = parse_name(backward)? else { return None };
        return Some((Kind::Together { backward: other }, micro, chunk));
    }
    let name = name.trim();
    let letters = name.find(|c: char| !c.is_ascii_alphabetic() && c != '-')?;
    let (word, numbers) = name.split_at(letters);
    let kind = match word {
        "F" => Kind::Forward,
        "B" => Kind::Backward,
        "I" => Kind::BackwardInput,
        "W" => Kind::BackwardWeight,
        "reduce" => Kind::Reduce,
        "step" => Kind::Step,
        "gather" => Kind::Gather,
        other => {
            let same = |f: &Filler| other.replace('-', "").eq_ignore_ascii_case(&f.name().replace('-', ""));
            Kind::Fill(Filler::ALL.into_iter().find(same)?)
        }
    };
    let plain = numbers.trim_start();
    let plain = plain.split_once('@').map_or(plain, |(n, _)| n);
    let (first, second) = match plain.split_once('.') {
        Some((first, second)) => (first, second),
        // A trace names the chunk of an update, a schedule file the update.
        None if matches!(kind, Kind::Reduce | Kind::Step | Kind::Gather) && numbers != plain => ("0", plain),
        None => (plain, "0"),
    };
    Some((kind, first.parse().ok()?, second.parse().ok()?))
}

/// Measured times, collected until costs are made of them.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Samples {
    times: BTreeMap<(usize, usize, Kind), Vec<f64>>,
}

impl Samples {
    /// Adds one.
    pub fn add(&mut self, sample: &Sample) {
        self.times.entry((sample.rank, sample.chunk, sample.kind)).or_default().push(sample.time);
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.times.is_empty()
    }

    /// Median of what was measured.
    pub fn median(&self, rank: usize, chunk: usize, kind: Kind) -> Option<f64> {
        Some(median(&mut self.times.get(&(rank, chunk, kind))?.clone()))
    }

    /// Time of what all holders of a place's stage do together: the shortest of their medians, since who comes early
    /// measures its waiting, too.
    fn shared(&self, program: &Program, place: Place, kind: Kind) -> f64 {
        let holders = program.stage_at(place).map(|stage| program.holders(stage)).unwrap_or_default();
        let medians = holders.into_iter().filter_map(|p| self.median(p.rank, p.chunk, kind));
        medians.reduce(f64::min).unwrap_or(0.0)
    }

    /// The medians as costs of a program whose messages take no time of their own. A backward pass that was only
    /// measured in parts is their sum; parts that were only measured together are half of it each.
    ///
    /// # Errors
    /// [`SimError::Missing`] for a chunk without a forward or backward time, [`SimError::Value`] for a time that is none.
    pub fn costs(&self, program: &Program) -> Result<Costs, SimError> {
        let mut costs = Costs::per_rank(program, &PassTimes::new(0.0, 0.0, 0.0));
        for rank in 0..program.ranks() {
            for chunk in 0..program.chunks(rank) {
                let median = |kind| self.median(rank, chunk, kind);
                let missing = SimError::Missing { rank, chunk, have: chunk };
                let parts = median(Kind::BackwardInput).zip(median(Kind::BackwardWeight));
                let whole = median(Kind::Backward);
                let (input, weight) = parts
                    .or_else(|| whole.map(|b| (b / 2.0, b / 2.0)))
                    .or_else(|| median(Kind::Together { backward: chunk }).map(|t| (t / 3.0, t / 3.0)))
                    .ok_or(missing.clone())?;
                let t = &mut costs.chunks[rank][chunk];
                // Where a chunk only ever goes forward together with a backward, the pair's own time is what counts.
                t.forward = median(Kind::Forward)
                    .or_else(|| median(Kind::Together { backward: chunk }).map(|t| t / 3.0))
                    .ok_or(missing)?;
                (t.backward_input, t.backward_weight) = (input, weight);
                t.backward = whole.unwrap_or(input + weight);
                t.step = median(Kind::Step).unwrap_or(0.0);
                t.reduce = self.shared(program, Place { rank, chunk }, Kind::Reduce);
                t.gather = self.shared(program, Place { rank, chunk }, Kind::Gather);
                for (time, filler) in t.fill.iter_mut().zip(Filler::ALL) {
                    *time = median(Kind::Fill(filler)).unwrap_or(0.0);
                }
            }
        }
        for (rank, chunk, kind) in self.times.keys().copied() {
            if let (Kind::Together { backward }, Some(time)) = (kind, self.median(rank, chunk, kind)) {
                costs.together.insert((rank, chunk, backward), time);
            }
        }
        costs.check(program)?;
        Ok(costs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_traces_and_of_schedule_files_are_read() {
        assert_eq!(parse_name("F 3.1"), Some((Kind::Forward, 3, 1)));
        assert_eq!(parse_name("F3"), Some((Kind::Forward, 3, 0)));
        assert_eq!(parse_name("B 12.0"), Some((Kind::Backward, 12, 0)));
        assert_eq!(parse_name("I3.1@2"), Some((Kind::BackwardInput, 3, 1)));
        assert_eq!(parse_name("W 3"), Some((Kind::BackwardWeight, 3, 0)));
        assert_eq!(parse_name("F5&B3.1"), Some((Kind::Together { backward: 1 }, 5, 0)));
        assert_eq!(parse_name("F 5.1 & B 3.0"), Some((Kind::Together { backward: 0 }, 5, 1)));
        assert_eq!(parse_name("reduce0.1"), Some((Kind::Reduce, 0, 1)));
        assert_eq!(parse_name("step 1"), Some((Kind::Step, 0, 1)));
        assert_eq!(parse_name("step1"), Some((Kind::Step, 1, 0)));
        assert_eq!(parse_name("SyncCurvature 2.1"), Some((Kind::Fill(Filler::SyncCurvature), 2, 1)));
        assert_eq!(parse_name("sync-curvature2.1"), Some((Kind::Fill(Filler::SyncCurvature), 2, 1)));
        for other in [
            "",
            "F",
            "forward",
            "F x",
            "F 3.",
            "F -1.0",
            "Q 1.0",
            "R 1.0",
            "S 1.0",
            "-",
            "all_reduce",
            "B1&F2",
            "é 1",
        ] {
            assert_eq!(parse_name(other), None, "{other}");
        }
    }
}
