//! A device that computes nothing and takes the time: for more ranks than this machine has cores.

use crate::observed::{Observed, Observer};
use bessemer_tensor::TensorError;
use bessemer_tensor::null::NullBackend;
use bessemer_tensor::op::Op;
use std::time::{Duration, Instant};

/// Operations in the time of a byte to or from the device's memory.
const FLOPS_PER_BYTE: f64 = 10.0;

/// Launches sleep as long as a device of this rate computes, or reads and writes the operands.
pub(crate) struct Pace {
    /// Floating-point operations a second.
    rate: f64,
    /// End of the last launch, if nothing but launches came after it. A sleep that was too long shortens the next one.
    until: Option<Instant>,
}

/// A null device with the pace of one of this rate.
pub(crate) fn paced(rate: f64) -> Observed<Pace> {
    Observed::around(Box::new(NullBackend::new()), Pace { rate, until: None })
}

impl Observer for Pace {
    fn launch(
        &mut self,
        op: &Op,
        launch: &mut dyn FnMut() -> Result<(), TensorError>,
    ) -> Result<(), TensorError> {
        let begun = self.until.unwrap_or_else(Instant::now);
        launch()?;
        let work = op.flops().0.max(FLOPS_PER_BYTE * op.bytes().0 as f64);
        let until = begun + Duration::from_secs_f64(work / self.rate);
        std::thread::sleep(until.saturating_duration_since(Instant::now()));
        self.until = Some(until);
        Ok(())
    }

    fn host(&mut self) {
        self.until = None;
    }
}
