//! Applying clocks.

/// Why a clock was not set.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the clock of rank {rank} was not set: {reason}")]
pub struct ClockError {
    /// Rank.
    pub rank: usize,
    /// What the device's driver says (setting clocks often needs the rights of an administrator).
    pub reason: String,
}

/// Sets clocks of devices.
pub trait ClockControl {
    /// Lets the rank's device run at `mhz` from now on.
    ///
    /// # Errors
    /// If the device cannot, or its owner may not.
    fn set(&mut self, rank: usize, mhz: f64) -> Result<(), ClockError>;

    /// Gives the choice of the clock back to the device.
    ///
    /// # Errors
    /// As of [`ClockControl::set`].
    fn release(&mut self, rank: usize) -> Result<(), ClockError>;
}

/// Sets nothing and remembers what was asked for.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Recorder {
    /// (rank, clock in MHz), in their order; no clock where it was given back.
    pub settings: Vec<(usize, Option<f64>)>,
}

impl ClockControl for Recorder {
    fn set(&mut self, rank: usize, mhz: f64) -> Result<(), ClockError> {
        self.settings.push((rank, Some(mhz)));
        Ok(())
    }

    fn release(&mut self, rank: usize) -> Result<(), ClockError> {
        self.settings.push((rank, None));
        Ok(())
    }
}
