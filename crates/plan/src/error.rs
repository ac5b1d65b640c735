//! Errors of the planner.

use bessemer_units::did_you_mean;

/// Why a prediction was not made.
#[derive(Debug, thiserror::Error, Clone, PartialEq)]
pub enum PlanError {
    /// Numbers of a layout that do not divide.
    #[error("{what} {number} is not divided by {by} {divisor}")]
    NotDivided {
        /// Quantity to divide.
        what: &'static str,
        /// Its number.
        number: usize,
        /// Divisor.
        by: &'static str,
        /// Its number.
        divisor: usize,
    },
    /// A description of a machine that is wrong.
    #[error("machine: {problem}")]
    Machine {
        /// Fault.
        problem: String,
    },
    /// A machine that is not in the catalogue.
    #[error("no machine has the name {name:?}{}; known: {known}", did_you_mean(name, known.split(", ")))]
    UnknownMachine {
        /// The name asked for.
        name: String,
        /// Names in the catalogue.
        known: String,
    },
    /// A table that is wrong.
    #[error("line {line}: {problem}")]
    Table {
        /// Line of the file, from 1.
        line: usize,
        /// Fault.
        problem: String,
    },
    /// A table without what is needed.
    #[error("{problem}")]
    Rows {
        /// Missing key.
        problem: String,
    },
}
