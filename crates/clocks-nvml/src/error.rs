//! Errors of asking NVML for clocks.

/// A call of NVML that failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{call} returned {status} ({text}){}", advice(*status))]
pub struct Fault {
    /// The function.
    pub call: &'static str,
    /// Its `nvmlReturn_t`.
    pub status: u32,
    /// NVML's message.
    pub text: String,
}

/// `nvmlReturn_t`: not on this device.
pub(crate) const NOT_SUPPORTED: u32 = 3;
/// `nvmlReturn_t`: not for this user.
pub(crate) const NO_PERMISSION: u32 = 4;
/// `nvmlReturn_t`: no kernel driver.
pub(crate) const DRIVER_NOT_LOADED: u32 = 9;
/// `nvmlReturn_t`: the library is older than what is asked of it.
pub(crate) const FUNCTION_NOT_FOUND: u32 = 13;
/// `nvmlReturn_t`: the device answers no more.
pub(crate) const GPU_IS_LOST: u32 = 15;
/// `nvmlReturn_t`: library and kernel driver are of different releases.
pub(crate) const VERSION_MISMATCH: u32 = 18;

/// Advice.
fn advice(status: u32) -> &'static str {
    match status {
        NOT_SUPPORTED => {
            "; the device has no such setting: clocks are locked on whole devices, Volta or newer"
        }
        NO_PERMISSION => {
            "; locking clocks needs root, in a container that of the host: ask the machine's owner"
        }
        DRIVER_NOT_LOADED => "; load the NVIDIA kernel driver, nvidia-smi shows whether it answers",
        FUNCTION_NOT_FOUND => "; install a newer NVIDIA driver",
        GPU_IS_LOST => "; the device needs a restart of the machine",
        VERSION_MISMATCH => "; the driver was updated: restart the machine, or reload the kernel driver",
        _ => "",
    }
}

/// Errors of opening and giving back.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NvmlError {
    /// The driver's library is not there.
    #[error(
        "wanted NVML, the NVIDIA driver's library, found none under {} ({reason}). Install the driver, or give the \
         container its utility libraries (NVIDIA_DRIVER_CAPABILITIES=utility)",
        tried.join(", ")
    )]
    Library {
        /// Names that were looked for.
        tried: Vec<&'static str>,
        /// The loader's message about the last library.
        reason: String,
    },
    /// NVML is there and does not start.
    #[error("cannot start NVML: {0}")]
    Start(Fault),
    /// No such device.
    #[error("wanted device {wanted}, found {found} devices, counted from 0; nvidia-smi -L lists them")]
    NoDevice {
        /// Index.
        wanted: u32,
        /// How many there are.
        found: u32,
    },
    /// Two ranks on a device.
    #[error("device {0} is assigned to two ranks, and it has one clock: give each rank its own device")]
    Twice(u32),
    /// A question that a device does not answer.
    #[error("device {device}: {fault}")]
    Device {
        /// Index.
        device: u32,
        /// Call that failed.
        fault: Fault,
    },
}
