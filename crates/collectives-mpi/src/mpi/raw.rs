//! The shim's functions (shim.c) as the linker sees them. Nothing here is checked.
#![allow(unsafe_code)] // foreign functions

use std::ffi::{c_char, c_int, c_void};

// SAFETY: these are the signatures of shim.c: `int` is c_int, a slot is a 64-bit integer.
unsafe extern "C" {
    pub(super) fn bessemer_mpi_init(rank: *mut c_int, size: *mut c_int) -> c_int;
    pub(super) fn bessemer_mpi_finalize() -> c_int;
    pub(super) fn bessemer_mpi_isend(
        bytes: *const c_void,
        count: c_int,
        to: c_int,
        tag: c_int,
        slot: *mut u64,
    ) -> c_int;
    pub(super) fn bessemer_mpi_irecv(
        bytes: *mut c_void,
        count: c_int,
        from: c_int,
        tag: c_int,
        slot: *mut u64,
    ) -> c_int;
    pub(super) fn bessemer_mpi_test(slot: *mut u64, done: *mut c_int, count: *mut c_int) -> c_int;
    pub(super) fn bessemer_mpi_iprobe(
        tag: c_int,
        found: *mut c_int,
        from: *mut c_int,
        count: *mut c_int,
    ) -> c_int;
    pub(super) fn bessemer_mpi_error_text(code: c_int, text: *mut c_char, capacity: c_int) -> c_int;
    pub(super) fn bessemer_mpi_library(text: *mut c_char, capacity: c_int) -> c_int;
    pub(super) fn bessemer_mpi_host(text: *mut c_char, capacity: c_int) -> c_int;
}
