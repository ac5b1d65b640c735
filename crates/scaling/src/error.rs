//! What can be wrong with the runs that a law is fitted to.

/// Why no law can be fitted.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ScalingError {
    /// Fewer runs than constants.
    #[error(
        "wanted at least {wanted} runs, as many as the law has constants, found {found}; train more sizes, or fit one exponent for both terms"
    )]
    TooFewRuns {
        /// Constants of the law.
        wanted: usize,
        /// Runs.
        found: usize,
    },
    /// A run whose numbers cannot be.
    #[error("run {}: wanted {quantity} above 0, found {found}", row + 1)]
    Run {
        /// From 0.
        row: usize,
        /// Name of the number.
        quantity: &'static str,
        /// Its value.
        found: f64,
    },
    /// Runs that say nothing about one of the two sizes.
    #[error(
        "wanted runs with 3 or more different numbers of {quantity}, found {found}; the exponent of {quantity} does not follow from these runs"
    )]
    TooFewSizes {
        /// Parameters or tokens.
        quantity: &'static str,
        /// Different ones.
        found: usize,
    },
    /// Losses from which no start could be found.
    #[error("no law fits the {runs} runs; look at their losses")]
    NoFit {
        /// Runs.
        runs: usize,
    },
    /// Budgets with a minimum, of which two make a line.
    #[error("wanted 2 or more budgets of compute whose best size is among the runs, found {found}; {hint}")]
    TooFewBudgets {
        /// Budgets.
        found: usize,
        /// Advice for the user.
        hint: &'static str,
    },
}
