//! What can be wrong with a profile or a predicate.

use bessemer_units::did_you_mean;
use std::fmt;

/// A profile, rule or predicate that cannot be used. The message says where, what was found and what was wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error(pub(crate) String);

/// Shorthand.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub(crate) fn new(message: impl Into<String>) -> Error {
        Error(message.into())
    }

    /// Returns the same error with its location in front.
    pub(crate) fn at(self, place: impl fmt::Display) -> Error {
        Error(format!("{place}: {}", self.0))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Error {}

/// The one of `all` that has the name `wanted`, which the key `key` gives.
pub(crate) fn named<T: Copy>(key: &str, wanted: &str, all: &[T], name: fn(T) -> &'static str) -> Result<T> {
    all.iter().copied().find(|&one| name(one) == wanted).ok_or_else(|| {
        let names: Vec<&str> = all.iter().copied().map(name).collect();
        let near = did_you_mean(wanted, names.iter().copied());
        Error::new(format!("{key} = {wanted:?}{near}: wanted one of {}", names.join(", ")))
    })
}
