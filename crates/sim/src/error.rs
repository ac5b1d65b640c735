//! What can be wrong with a program or its costs.

/// Why a program cannot be timed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SimError {
    /// Times, links or shares that cannot be.
    #[error("{what} is {value}: wanted a finite number that is not negative")]
    Value {
        /// Name of the number.
        what: String,
        /// Its value.
        value: f64,
    },
    /// The costs are those of another program.
    #[error("rank {rank} has no times for chunk {chunk}: the costs are for {have} chunks there")]
    Missing {
        /// Rank of the program.
        rank: usize,
        /// Chunk without times.
        chunk: usize,
        /// Chunks with times.
        have: usize,
    },
    /// An instruction names a rank, chunk or micro-batch that the program has not.
    #[error("rank {rank}, instruction {index} ({instruction}): {what}")]
    Instruction {
        /// Rank.
        rank: usize,
        /// Position in its list, from 0.
        index: usize,
        /// The instruction.
        instruction: String,
        /// The defect.
        what: String,
    },
    /// An event of a replay that names what is not there, or differs from that of another rank.
    #[error("rank {rank}, event {index}: {what}")]
    Event {
        /// Rank.
        rank: usize,
        /// Position in its list, from 0.
        index: usize,
        /// The defect.
        what: String,
    },
    /// A group of a replay that cannot be.
    #[error("group {label}: {what}")]
    Group {
        /// Label of the group.
        label: String,
        /// The defect.
        what: String,
    },
    /// An operator of a program whose cost is not known.
    #[error("no cost is known of {0}: measure the operators of the programs that are replayed")]
    Cost(String),
    /// Loads that are not those of the model's experts.
    #[error("loads of experts: {0}")]
    Routing(String),
    /// A filled program that differs from the one that it was made from.
    #[error("filled program of step {step}, rank {rank}: {what}")]
    Filled {
        /// Step of the interval, from 0.
        step: usize,
        /// Rank.
        rank: usize,
        /// The defect.
        what: String,
    },
    /// A unit of filler work that cannot be planned.
    #[error("filler work, unit {unit}: {what}")]
    Unit {
        /// Its number in the list.
        unit: usize,
        /// The defect.
        what: String,
    },
    /// Ranks that wait for each other, or for what nobody sends.
    #[error("the program stops: {0}")]
    Stuck(String),
}

/// `value` if it can be a time.
pub(crate) fn time(what: impl FnOnce() -> String, value: f64) -> Result<f64, SimError> {
    if value.is_finite() && value >= 0.0 {
        return Ok(value);
    }
    Err(SimError::Value { what: what(), value })
}
