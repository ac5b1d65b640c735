//! What can be wrong with a network, a job or a route.

use bessemer_units::did_you_mean;

/// Why a network cannot be built, or a job cannot run on it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ClusterError {
    /// The text of a description is not TOML, or has a key or value that does not exist.
    #[error("{file}: {problem}")]
    Description {
        /// File or name.
        file: String,
        /// Line, what was found and what was expected.
        problem: String,
    },
    /// A value that no network, job or placement can have.
    #[error("{place}: wanted {wanted}, found {found}{}; {hint}", near(wanted, found))]
    Value {
        /// Key or part of the network.
        place: String,
        /// Values that are possible.
        wanted: String,
        /// The value.
        found: String,
        /// Advice for the user.
        hint: String,
    },
    /// Two devices between which nothing that is alive leads.
    #[error(
        "no path from device {from} to device {to} is left: wanted a path between the devices of one group, found them cut off \
         from each other; repair a link or switch, or place the group elsewhere"
    )]
    CutOff {
        /// The device that sends.
        from: u32,
        /// The device that should receive.
        to: u32,
    },
}

/// The nearest of the names that `wanted` lists, as a question in brackets.
fn near(wanted: &str, found: &str) -> String {
    wanted.strip_prefix("one of ").map_or_else(String::new, |names| did_you_mean(found, names.split(", ")))
}

impl ClusterError {
    /// A [`ClusterError::Value`].
    pub(crate) fn value(
        place: impl Into<String>,
        wanted: impl Into<String>,
        found: impl ToString,
        hint: impl Into<String>,
    ) -> ClusterError {
        ClusterError::Value {
            place: place.into(),
            wanted: wanted.into(),
            found: found.to_string(),
            hint: hint.into(),
        }
    }
}
