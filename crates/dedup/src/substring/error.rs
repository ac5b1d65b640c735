//! What can go wrong in the search for repeated substrings.

/// Result of the search.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of the search.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A spill file could not be written or read, or the search was stopped.
    #[error(transparent)]
    Sort(#[from] bessemer_external_sort::Error),
    /// A value is out of range.
    #[error("{0}")]
    Config(String),
    /// Different windows had equal 80-bit fingerprints under every seed.
    #[error(
        "fingerprints of different substrings agreed under {seeds} seeds; please report this with the input that caused it"
    )]
    Collision {
        /// Seeds that were tried.
        seeds: u64,
    },
}

impl From<Error> for bessemer_dataflow::Error {
    fn from(error: Error) -> bessemer_dataflow::Error {
        match error {
            Error::Sort(error) => error.into(),
            error => bessemer_dataflow::Error::other(error),
        }
    }
}
