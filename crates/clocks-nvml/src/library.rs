//! libnvidia-ml, opened while the program runs. Names, signatures and numbers are those of nvml.h (NVML API reference).
#![allow(unsafe_code)] // calls of foreign functions

use crate::calls::Calls;
use crate::error::FUNCTION_NOT_FOUND;
use crate::{Fault, NvmlError};
use std::error::Error;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr;

/// File names, the driver's first.
pub(crate) const NAMES: &[&str] = &["libnvidia-ml.so.1", "libnvidia-ml.so"];
/// `nvmlReturn_t`: done.
const SUCCESS: c_int = 0;
/// NVML_DEVICE_NAME_V2_BUFFER_SIZE
const NAME: usize = 96;
/// Clocks of a list; no device has a tenth of it.
const MOST: usize = 4096;

/// `nvmlDevice_t`
type Handle = *mut c_void;

/// The library, for as long as it lives.
pub(crate) struct Library {
    library: libloading::Library,
    started: bool,
}

/// Calls a function of the library by its name and signature.
macro_rules! call {
    ($self:ident, $name:literal, ($($kind:ty),*), ($($value:expr),*)) => {{
        // SAFETY: the signature is that of nvml.h; pointers lead to locals that outlive the call, with their sizes.
        let status = unsafe {
            $self.library
                .get::<unsafe extern "C" fn($($kind),*) -> c_int>($name)
                .map(|function| function($($value),*))
        };
        $self.check($name, status)
    }};
}

impl Library {
    /// Opens the first that is there, and starts it.
    pub(crate) fn open(names: &[&'static str]) -> Result<Library, NvmlError> {
        let mut reason = String::new();
        for name in names {
            // SAFETY: what runs on loading is the driver's own, as in every program that uses the device.
            match unsafe { libloading::Library::new(*name) } {
                Ok(library) => return Library::start(library),
                // The loader's own words are the cause.
                Err(e) => reason = e.source().map_or_else(|| e.to_string(), ToString::to_string),
            }
        }
        Err(NvmlError::Library { tried: names.to_vec(), reason })
    }

    fn start(library: libloading::Library) -> Result<Library, NvmlError> {
        let mut library = Library { library, started: false };
        call!(library, "nvmlInit_v2", (), ()).map_err(NvmlError::Start)?;
        library.started = true;
        Ok(library)
    }

    fn check(&self, call: &'static str, status: Result<c_int, libloading::Error>) -> Result<(), Fault> {
        match status {
            Ok(SUCCESS) => Ok(()),
            Ok(status) => Err(Fault { call, status: status.cast_unsigned(), text: self.text(status) }),
            Err(e) => Err(Fault { call, status: FUNCTION_NOT_FOUND, text: e.to_string() }),
        }
    }

    /// NVML's words for a status.
    fn text(&self, status: c_int) -> String {
        // SAFETY: nvmlErrorString takes any number and returns a text of static lifetime, or null.
        unsafe {
            match self.library.get::<unsafe extern "C" fn(c_int) -> *const c_char>("nvmlErrorString") {
                Ok(function) => match function(status) {
                    text if text.is_null() => "no text".into(),
                    text => CStr::from_ptr(text).to_string_lossy().into_owned(),
                },
                Err(_) => "no text".into(),
            }
        }
    }

    fn handle(&self, device: u32) -> Result<Handle, Fault> {
        let mut handle: Handle = ptr::null_mut();
        call!(self, "nvmlDeviceGetHandleByIndex_v2", (c_uint, *mut Handle), (device, &raw mut handle))?;
        Ok(handle)
    }
}

/// A list whose length NVML states.
fn list(ask: impl FnOnce(*mut c_uint, *mut c_uint) -> Result<(), Fault>) -> Result<Vec<u32>, Fault> {
    let mut clocks = vec![0; MOST];
    let mut count = MOST as c_uint;
    ask(&raw mut count, clocks.as_mut_ptr())?;
    clocks.truncate(count as usize);
    Ok(clocks)
}

impl Calls for Library {
    fn count(&self) -> Result<u32, Fault> {
        let mut count = 0;
        call!(self, "nvmlDeviceGetCount_v2", (*mut c_uint), (&raw mut count))?;
        Ok(count)
    }

    fn name(&self, device: u32) -> Result<String, Fault> {
        let handle = self.handle(device)?;
        let mut name = [0_u8; NAME];
        let (start, length) = (name.as_mut_ptr().cast::<c_char>(), NAME as c_uint);
        call!(self, "nvmlDeviceGetName", (Handle, *mut c_char, c_uint), (handle, start, length))?;
        let end = name.iter().position(|byte| *byte == 0).unwrap_or(NAME);
        Ok(String::from_utf8_lossy(&name[..end]).into_owned())
    }

    fn memory_clocks(&self, device: u32) -> Result<Vec<u32>, Fault> {
        let handle = self.handle(device)?;
        list(|count, clocks| {
            call!(
                self,
                "nvmlDeviceGetSupportedMemoryClocks",
                (Handle, *mut c_uint, *mut c_uint),
                (handle, count, clocks)
            )
        })
    }

    fn graphics_clocks(&self, device: u32, memory: u32) -> Result<Vec<u32>, Fault> {
        let handle = self.handle(device)?;
        list(|count, clocks| {
            call!(
                self,
                "nvmlDeviceGetSupportedGraphicsClocks",
                (Handle, c_uint, *mut c_uint, *mut c_uint),
                (handle, memory, count, clocks)
            )
        })
    }

    fn lock(&self, device: u32, low: u32, high: u32) -> Result<(), Fault> {
        let handle = self.handle(device)?;
        call!(self, "nvmlDeviceSetGpuLockedClocks", (Handle, c_uint, c_uint), (handle, low, high))
    }

    fn unlock(&self, device: u32) -> Result<(), Fault> {
        let handle = self.handle(device)?;
        call!(self, "nvmlDeviceResetGpuLockedClocks", (Handle), (handle))
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        if self.started {
            // Nothing is left to be done where this fails.
            let _ = call!(self, "nvmlShutdown", (), ());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_not_there_is_named() {
        let error = Library::open(&["libno-such-driver.so.1", "libno-such-driver.so"]).err().unwrap();
        let text = error.to_string();
        assert!(text.contains("libno-such-driver.so.1, libno-such-driver.so"), "{text}");
        assert!(text.contains("Install the driver"), "{text}");
    }

    #[test]
    fn a_library_that_is_another_does_not_start() {
        // The C library is there and has none of these functions.
        let error = Library::open(&["libc.so.6"]).err().unwrap();
        assert!(matches!(&error, NvmlError::Start(fault) if fault.status == FUNCTION_NOT_FOUND), "{error}");
    }
}
