//! Clocks of NVIDIA devices through NVML, the driver's management library: a
//! [`ClockControl`](bessemer_sim::energy::ClockControl) that sets them.
//!
//! [`open`] only asks; the first [`set`](bessemer_sim::energy::ClockControl::set) changes something, and what was locked is
//! unlocked when [`Clocks`] is closed or dropped. NVML tells nobody which lock it holds, so the former state is taken to be
//! none: a lock that somebody else put on a device does not come back.
//!
//! Without the feature `nvml` the crate builds anywhere, and [`open`] says what is missing.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]
#![cfg_attr(not(feature = "nvml"), allow(dead_code, reason = "only the library's edge makes clocks"))]

mod calls;
mod clocks;
mod error;
#[cfg(feature = "nvml")]
mod library;

pub use clocks::{Clocks, Device};
pub use error::{Fault, NvmlError};

/// True if this program was built with NVML.
pub const fn available() -> bool {
    cfg!(feature = "nvml")
}

/// Opens NVML for these devices, by their index in NVML's order: rank r has `devices[r]`. Nothing is changed yet.
///
/// # Errors
/// No NVML in this build; no library, driver or device; a device given twice; a device that does not say which clocks it
/// has. Whether clocks may be set shows at the first setting.
#[cfg(feature = "nvml")]
pub fn open(devices: &[u32]) -> Result<Clocks, NvmlError> {
    Clocks::new(Box::new(library::Library::open(library::NAMES)?), devices)
}

/// Says that this program was built without NVML.
///
/// # Errors
/// [`NvmlError::NotBuilt`].
#[cfg(not(feature = "nvml"))]
pub fn open(_: &[u32]) -> Result<Clocks, NvmlError> {
    Err(NvmlError::NotBuilt)
}
