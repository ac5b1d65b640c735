//! Cost of sending bytes from one end to another.

/// A direction between two ends. Times have one unit of the caller's choice, seconds where nothing else is said.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Link {
    /// From the end of a message's transfer to its arrival.
    pub latency: f64,
    /// Bytes per unit of time; infinite for a link that is never busy.
    pub bandwidth: f64,
}

impl Default for Link {
    /// Costs nothing.
    fn default() -> Link {
        Link { latency: 0.0, bandwidth: f64::INFINITY }
    }
}
