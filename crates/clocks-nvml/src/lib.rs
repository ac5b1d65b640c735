//! Clocks of NVIDIA devices through NVML, the driver's management library: a
//! [`ClockControl`](bessemer_sim::energy::ClockControl) that sets them.
//!
//! [`open`] only asks; the first [`set`](bessemer_sim::energy::ClockControl::set) changes something, and what was locked is
//! unlocked when [`Clocks`] is closed or dropped. NVML tells nobody which lock it holds, so the former state is taken to be
//! none: a lock that somebody else put on a device does not come back.
//!
//! The driver's library is loaded by [`open`]: the crate builds and starts without it.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod calls;
mod clocks;
mod error;
mod library;

pub use clocks::{Clocks, Device};
pub use error::{Fault, NvmlError};

/// Opens NVML for these devices, by their index in NVML's order: rank r has `devices[r]`. Nothing is changed yet.
///
/// # Errors
/// No library, driver or device; a device given twice; a device that does not say which clocks it
/// has. Whether clocks may be set shows at the first setting.
pub fn open(devices: &[u32]) -> Result<Clocks, NvmlError> {
    Clocks::new(Box::new(library::Library::open(library::NAMES)?), devices)
}
