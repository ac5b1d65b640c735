//! Errors of the planner.

/// Why a prediction was not made.
#[derive(Debug, thiserror::Error, Clone, PartialEq)]
pub enum PlanError {
    /// Numbers of a layout that do not divide.
    #[error("{what} {number} is not divided by {by} {divisor}")]
    NotDivided {
        /// What should be divided.
        what: &'static str,
        /// Its number.
        number: usize,
        /// What should divide it.
        by: &'static str,
        /// Its number.
        divisor: usize,
    },
    /// A description of a machine that is wrong.
    #[error("machine: {problem}")]
    Machine {
        /// What is wrong.
        problem: String,
    },
    /// A machine that is not in the catalogue.
    #[error("there is no machine {name:?}; known are {known}")]
    UnknownMachine {
        /// The name asked for.
        name: String,
        /// Those of the catalogue.
        known: String,
    },
    /// A table that is wrong.
    #[error("line {line}: {problem}")]
    Table {
        /// Line of the file, from 1.
        line: usize,
        /// What is wrong.
        problem: String,
    },
    /// A table without what is needed.
    #[error("{problem}")]
    Rows {
        /// What is missing.
        problem: String,
    },
}
