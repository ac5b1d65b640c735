//! Clocks of the devices of ranks.

use crate::calls::Calls;
use crate::error::NOT_SUPPORTED;
use crate::{Fault, NvmlError};
use bessemer_sim::energy::{ClockControl, ClockError};
use std::fmt;

/// A device and the clocks it has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// Index in NVML's order.
    pub index: u32,
    /// Product name.
    pub name: String,
    /// SM clocks in MHz at the highest memory clock, from the highest to the lowest, at least one: frequencies for a
    /// [`Profile`](bessemer_sim::energy::Profile).
    pub clocks: Vec<u32>,
    /// Whether its clock is locked from here.
    locked: bool,
}

impl Device {
    fn ask(calls: &dyn Calls, index: u32) -> Result<Device, Fault> {
        // Lists depend on the memory clock; work runs at the highest.
        let missing = |call, text: &str| Fault { call, status: NOT_SUPPORTED, text: text.into() };
        let memory = calls.memory_clocks(index)?.into_iter().max();
        let memory =
            memory.ok_or_else(|| missing("nvmlDeviceGetSupportedMemoryClocks", "no memory clocks"))?;
        let mut clocks = calls.graphics_clocks(index, memory)?;
        clocks.sort_unstable_by(|a, b| b.cmp(a));
        clocks.dedup();
        if clocks.is_empty() {
            return Err(missing("nvmlDeviceGetSupportedGraphicsClocks", "no SM clocks"));
        }
        Ok(Device { index, name: calls.name(index)?, clocks, locked: false })
    }

    /// The lowest clock that is not below `mhz`: what is planned for a clock may be done sooner, never later.
    fn at_least(&self, mhz: f64) -> Result<u32, String> {
        let (highest, lowest) = (self.clocks[0], self.clocks[self.clocks.len() - 1]);
        let found = self.clocks.iter().rev().find(|c| f64::from(**c) >= mhz);
        match found {
            Some(clock) if mhz >= f64::from(lowest) => Ok(*clock),
            _ => Err(format!(
                "wanted {mhz} MHz, found a device ({}) with {lowest} to {highest} MHz; take a profile of this device",
                self.name
            )),
        }
    }
}

/// Sets the SM clocks of the devices of ranks; gives them back when it is closed or dropped.
pub struct Clocks {
    calls: Box<dyn Calls>,
    devices: Vec<Device>,
}

impl fmt::Debug for Clocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Clocks").field("devices", &self.devices).finish_non_exhaustive()
    }
}

impl Clocks {
    pub(crate) fn new(calls: Box<dyn Calls>, wanted: &[u32]) -> Result<Clocks, NvmlError> {
        let found = calls.count().map_err(NvmlError::Start)?;
        let mut devices: Vec<Device> = Vec::new();
        for &index in wanted {
            if index >= found {
                return Err(NvmlError::NoDevice { wanted: index, found });
            }
            if devices.iter().any(|d| d.index == index) {
                return Err(NvmlError::Twice(index));
            }
            let device = Device::ask(&*calls, index);
            devices.push(device.map_err(|fault| NvmlError::Device { device: index, fault })?);
        }
        Ok(Clocks { calls, devices })
    }

    /// Devices by rank.
    pub fn devices(&self) -> &[Device] {
        &self.devices
    }

    /// Gives all clocks back and says whether that succeeded.
    ///
    /// # Errors
    /// The first device that does not take its clock back; the others have theirs.
    pub fn close(mut self) -> Result<(), NvmlError> {
        self.give_back()
    }

    /// Unlocks what is locked from here, every device once.
    fn give_back(&mut self) -> Result<(), NvmlError> {
        let mut all = Ok(());
        for device in self.devices.iter_mut().filter(|d| d.locked) {
            device.locked = false;
            if let Err(fault) = self.calls.unlock(device.index) {
                all = all.and(Err(NvmlError::Device { device: device.index, fault }));
            }
        }
        all
    }

    fn device(&mut self, rank: usize) -> Result<&mut Device, ClockError> {
        let ranks = self.devices.len();
        let reason = || format!("wanted a rank below {ranks}, as many as devices were opened");
        self.devices.get_mut(rank).ok_or_else(|| ClockError { rank, reason: reason() })
    }
}

impl ClockControl for Clocks {
    fn set(&mut self, rank: usize, mhz: f64) -> Result<(), ClockError> {
        let device = self.device(rank)?;
        let named = |reason: String| ClockError { rank, reason };
        let clock = device.at_least(mhz).map_err(named)?;
        let index = device.index;
        self.calls
            .lock(index, clock, clock)
            .map_err(|e| named(format!("device {index}, {clock} MHz: {e}")))?;
        self.device(rank)?.locked = true;
        Ok(())
    }

    fn release(&mut self, rank: usize) -> Result<(), ClockError> {
        let device = self.device(rank)?;
        if !device.locked {
            return Ok(());
        }
        let index = device.index;
        let unlocked = self.calls.unlock(index);
        unlocked.map_err(|e| ClockError { rank, reason: format!("device {index}: {e}") })?;
        self.device(rank)?.locked = false;
        Ok(())
    }
}

impl Drop for Clocks {
    fn drop(&mut self) {
        // Nobody is left who could be told; `close` tells.
        let _ = self.give_back();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::NO_PERMISSION;
    use std::cell::RefCell;
    use std::rc::Rc;

    /// Two devices; what was changed, and which call fails how.
    #[derive(Default, Clone)]
    struct Table {
        changes: Rc<RefCell<Vec<String>>>,
        fails: Rc<RefCell<Option<(&'static str, u32)>>>,
        clocks: Option<Vec<u32>>,
    }

    impl Table {
        fn answer<T>(&self, call: &'static str, value: T) -> Result<T, Fault> {
            match *self.fails.borrow() {
                Some((name, status)) if name == call => Err(Fault { call, status, text: "no".into() }),
                _ => Ok(value),
            }
        }

        fn change(&self, call: &'static str, what: String) -> Result<(), Fault> {
            self.answer(call, ())?;
            self.changes.borrow_mut().push(what);
            Ok(())
        }

        fn fail(&self, call: &'static str, status: u32) {
            *self.fails.borrow_mut() = Some((call, status));
        }

        fn open(&self, devices: &[u32]) -> Result<Clocks, NvmlError> {
            Clocks::new(Box::new(self.clone()), devices)
        }

        fn changes(&self) -> Vec<String> {
            self.changes.borrow().clone()
        }
    }

    impl Calls for Table {
        fn count(&self) -> Result<u32, Fault> {
            self.answer("count", 2)
        }
        fn name(&self, device: u32) -> Result<String, Fault> {
            self.answer("name", format!("card {device}"))
        }
        fn memory_clocks(&self, _: u32) -> Result<Vec<u32>, Fault> {
            self.answer("memory", vec![405, 2619])
        }
        fn graphics_clocks(&self, _: u32, memory: u32) -> Result<Vec<u32>, Fault> {
            let at_highest = || self.clocks.clone().unwrap_or(vec![1965, 345, 1980, 1980, 1410]);
            self.answer("graphics", if memory == 2619 { at_highest() } else { vec![345] })
        }
        fn lock(&self, device: u32, low: u32, high: u32) -> Result<(), Fault> {
            self.change("lock", format!("{device}: {low}-{high}"))
        }
        fn unlock(&self, device: u32) -> Result<(), Fault> {
            self.change("unlock", format!("{device}: free"))
        }
    }

    #[test]
    fn opening_lists_clocks_and_changes_nothing() {
        let table = Table::default();
        let clocks = table.open(&[1, 0]).unwrap();
        assert_eq!(clocks.devices()[0].name, "card 1");
        assert_eq!(clocks.devices()[1].clocks, [1980, 1965, 1410, 345]);
        drop(clocks);
        assert_eq!(table.changes(), [""; 0]);
    }

    #[test]
    fn clocks_are_locked_by_rank_and_given_back_once() {
        let table = Table::default();
        let mut clocks = table.open(&[1, 0]).unwrap();
        clocks.set(0, 1410.0).unwrap();
        // Between two clocks the higher one.
        clocks.set(0, 1411.5).unwrap();
        clocks.set(1, 345.0).unwrap();
        clocks.release(1).unwrap();
        clocks.release(1).unwrap();
        drop(clocks);
        assert_eq!(table.changes(), ["1: 1410-1410", "1: 1965-1965", "0: 345-345", "0: free", "1: free"]);
    }

    #[test]
    fn what_a_device_has_not_is_refused() {
        let table = Table::default();
        let mut clocks = table.open(&[0]).unwrap();
        for mhz in [1981.0, 344.0, 0.0, -1.0, f64::NAN, f64::INFINITY] {
            let error = clocks.set(0, mhz).unwrap_err().to_string();
            assert!(error.contains("345 to 1980 MHz") && error.contains("card 0"), "{mhz}: {error}");
        }
        assert!(clocks.set(1, 1410.0).unwrap_err().to_string().contains("rank below 1"));
        assert!(clocks.release(7).is_err());
        assert_eq!(table.open(&[2]).unwrap_err(), NvmlError::NoDevice { wanted: 2, found: 2 });
        assert_eq!(table.open(&[1, 1]).unwrap_err(), NvmlError::Twice(1));
        let none = Table { clocks: Some(vec![]), ..Table::default() };
        assert!(none.open(&[0]).unwrap_err().to_string().contains("no SM clocks"));
        drop(clocks);
        assert_eq!(table.changes(), [""; 0]);
    }

    #[test]
    fn calls_that_fail_are_named_with_what_to_try() {
        for call in ["count", "name", "memory", "graphics"] {
            let table = Table::default();
            table.fail(call, 999);
            let error = table.open(&[0]).unwrap_err().to_string();
            assert!(error.contains(&format!("{call} returned 999")), "{error}");
        }
        let table = Table::default();
        let mut clocks = table.open(&[0, 1]).unwrap();
        table.fail("lock", NO_PERMISSION);
        let error = clocks.set(0, 1410.0).unwrap_err().to_string();
        assert!(error.contains("rank 0") && error.contains("needs root"), "{error}");
        // Not locked, so not unlocked either.
        clocks.close().unwrap();
        assert_eq!(table.changes(), [""; 0]);
    }

    #[test]
    fn a_clock_that_does_not_come_back_is_told() {
        let table = Table::default();
        let mut clocks = table.open(&[0, 1]).unwrap();
        clocks.set(0, 1410.0).unwrap();
        table.fail("unlock", 15);
        assert!(clocks.release(0).unwrap_err().to_string().contains("restart"));
        let error = clocks.close().unwrap_err();
        assert!(matches!(error, NvmlError::Device { device: 0, .. }), "{error}");
    }

    #[test]
    fn opening_without_a_driver_is_an_error() {
        // Where there is a driver, it has fewer devices than that.
        assert!(!crate::open(&[u32::MAX]).unwrap_err().to_string().is_empty());
    }

    /// Reads and changes nothing.
    #[test]
    #[ignore = "needs an NVIDIA device and its driver"]
    fn clocks_of_a_device_that_is_there() {
        let clocks = crate::open(&[0]).unwrap();
        let device = &clocks.devices()[0];
        println!("{}: {} clocks, {:?}", device.name, device.clocks.len(), device.clocks);
        assert!(!device.name.is_empty() && device.clocks.is_sorted_by(|a, b| a > b));
        assert!(device.clocks.iter().all(|mhz| (100..5000).contains(mhz)));
        assert_eq!(device.at_least(f64::from(device.clocks[0])), Ok(device.clocks[0]));
    }
}
