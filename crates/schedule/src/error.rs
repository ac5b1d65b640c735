//! Errors of schedules.

use crate::Place;
use bessemer_units::did_you_mean;

/// Why there is no such program, or why a program is not sound.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ScheduleError {
    /// No schedule of this name.
    #[error("no schedule is named {found:?}{}; there are {known}", did_you_mean(found, known.split(", ")))]
    UnknownKind {
        /// The name that was asked for.
        found: String,
        /// Every name.
        known: String,
    },
    /// The sizes do not fit the schedule.
    #[error("{schedule}: {wanted}, found {found}; {advice}")]
    Shape {
        /// Name of the schedule.
        schedule: String,
        /// The rule.
        wanted: String,
        /// The sizes that break it.
        found: String,
        /// Sizes or a schedule that would do.
        advice: String,
    },
    /// Routes, numbers of micro-batches and lists of a program contradict each other.
    #[error("program: {what}")]
    Malformed {
        /// The part that is wrong, and why.
        what: String,
    },
    /// An instruction is wrong where it stands.
    #[error("rank {rank}, instruction {position} ({instruction}): {what}")]
    Instruction {
        /// Pipeline rank.
        rank: usize,
        /// Position in its list, from 0.
        position: usize,
        /// The instruction, as in a schedule file.
        instruction: String,
        /// Why.
        what: String,
    },
    /// A pass that has to be there is not.
    #[error("micro-batch {micro} has no {pass} in stage {stage} (rank {}, chunk {})", place.rank, place.chunk)]
    Missing {
        /// Micro-batch.
        micro: usize,
        /// Name of the pass.
        pass: &'static str,
        /// Stage.
        stage: usize,
        /// Rank and chunk of the stage.
        place: Place,
    },
    /// Some ranks wait for each other for ever.
    #[error("deadlock: {waits}")]
    Deadlock {
        /// For each rank that does not come to its end, where it stands and what it waits for.
        waits: String,
    },
    /// More live activations than allowed.
    #[error(
        "rank {rank} holds {peak} micro-batches' activations at instruction {position}; the limit is {limit}: \
         take fewer forwards before the first backward, or another schedule"
    )]
    Memory {
        /// Pipeline rank.
        rank: usize,
        /// Position of the instruction that exceeds the limit.
        position: usize,
        /// Units of one micro-batch's activations of all chunks of the rank.
        peak: f64,
        /// The limit.
        limit: f64,
    },
    /// A schedule's text is not one.
    #[error("line {line}, column {column}: {what}")]
    Text {
        /// From 1.
        line: usize,
        /// From 1, in characters.
        column: usize,
        /// The wanted and the found words.
        what: String,
    },
}

impl ScheduleError {
    pub(crate) fn shape(
        schedule: impl ToString,
        wanted: impl Into<String>,
        found: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        Self::Shape {
            schedule: schedule.to_string(),
            wanted: wanted.into(),
            found: found.into(),
            advice: advice.into(),
        }
    }
}
