//! The few calls of NVML that are needed.

use crate::Fault;

/// Calls by a device's index, each as NVML answers it. Tests put a table in the library's place.
pub(crate) trait Calls {
    /// Devices that there are.
    fn count(&self) -> Result<u32, Fault>;
    /// Product name.
    fn name(&self, device: u32) -> Result<String, Fault>;
    /// Memory clocks in MHz, in any order.
    fn memory_clocks(&self, device: u32) -> Result<Vec<u32>, Fault>;
    /// SM clocks in MHz at a memory clock, in any order.
    fn graphics_clocks(&self, device: u32, memory: u32) -> Result<Vec<u32>, Fault>;
    /// Holds the SM clock between two frequencies in MHz.
    fn lock(&self, device: u32, low: u32, high: u32) -> Result<(), Fault>;
    /// Gives the SM clock back.
    fn unlock(&self, device: u32) -> Result<(), Fault>;
}
