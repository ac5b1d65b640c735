//! The shim with every return code looked at, and bounds that MPI does not check.
#![allow(unsafe_code)] // calls of foreign functions

use super::raw;
use crate::engine::{Fault, Lane};
use std::collections::VecDeque;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::marker::PhantomData;

/// A request in flight. MPI may read or write its memory until [`Mpi::test`] says that it is over.
#[derive(Debug)]
pub(super) struct Slot(u64);

/// MPI of this process, on the thread that initialised it: it is neither `Send` nor `Sync`.
#[derive(Debug)]
pub(crate) struct Mpi {
    pub(super) rank: usize,
    pub(super) size: usize,
    /// Memory of requests that are over.
    pub(super) spare: Vec<VecDeque<(Slot, usize)>>,
    thread: PhantomData<*const ()>,
}

fn tag(lane: Lane) -> c_int {
    match lane {
        Lane::Control => 1,
        Lane::Payload => 2,
    }
}

fn text(fill: impl FnOnce(*mut c_char, c_int) -> c_int) -> String {
    let mut buffer = [0u8; 2048];
    fill(buffer.as_mut_ptr().cast(), buffer.len() as c_int);
    CStr::from_bytes_until_nul(&buffer).map(|t| t.to_string_lossy().trim().to_owned()).unwrap_or_default()
}

fn checked(call: &'static str, code: c_int) -> Result<(), Fault> {
    if code == 0 {
        return Ok(());
    }
    // SAFETY: the shim writes at most `capacity` bytes and ends them with a zero.
    let said = text(|buffer, capacity| unsafe { raw::bessemer_mpi_error_text(code, buffer, capacity) });
    Err(Fault { call, text: if said.is_empty() { format!("code {code}") } else { said } })
}

fn int(call: &'static str, what: &str, number: usize) -> Result<c_int, Fault> {
    c_int::try_from(number)
        .map_err(|_| Fault { call, text: format!("{what} of {number} does not fit MPI's integer") })
}

impl Mpi {
    /// Initialises MPI for this thread; once in a process.
    pub(crate) fn init() -> Result<Mpi, Fault> {
        let (mut rank, mut size) = (-1, -1);
        // SAFETY: both pointers are to live integers. A second initialisation is refused by the shim.
        checked("MPI_Init_thread", unsafe { raw::bessemer_mpi_init(&mut rank, &mut size) })?;
        match (usize::try_from(rank), usize::try_from(size)) {
            (Ok(rank), Ok(size)) if rank < size => {
                Ok(Mpi { rank, size, spare: Vec::new(), thread: PhantomData })
            }
            _ => Err(Fault { call: "MPI_Comm_rank", text: format!("rank {rank} of {size}") }),
        }
    }

    /// Ends MPI. No request may be in flight.
    pub(super) fn finalize(self) -> Result<(), Fault> {
        // SAFETY: this thread initialised MPI, and `self` is gone afterwards, so nothing is called after it.
        checked("MPI_Finalize", unsafe { raw::bessemer_mpi_finalize() })
    }

    pub(super) fn library(&self) -> String {
        // SAFETY: the shim writes at most `capacity` bytes and ends them with a zero.
        let all = text(|buffer, capacity| unsafe { raw::bessemer_mpi_library(buffer, capacity) });
        all.lines()
            .next()
            .unwrap_or_default()
            .split(", package")
            .next()
            .unwrap_or_default()
            .replace('\t', " ")
    }

    pub(super) fn host(&self) -> String {
        // SAFETY: the shim writes at most `capacity` bytes and ends them with a zero.
        text(|buffer, capacity| unsafe { raw::bessemer_mpi_host(buffer, capacity) })
    }

    /// Starts sending `bytes`.
    ///
    /// # Safety
    /// `bytes` stay where they are, unchanged, until [`Mpi::test`] says that the request is over.
    pub(super) unsafe fn isend(&mut self, bytes: &[u8], to: usize, lane: Lane) -> Result<Slot, Fault> {
        const CALL: &str = "MPI_Isend";
        let count = int(CALL, "a length", bytes.len())?;
        let to = int(CALL, "a rank", to)?;
        let mut slot = 0;
        // SAFETY: pointer and count are of one slice, which the caller keeps alive.
        let code = unsafe {
            raw::bessemer_mpi_isend(bytes.as_ptr().cast::<c_void>(), count, to, tag(lane), &mut slot)
        };
        checked(CALL, code)?;
        Ok(Slot(slot))
    }

    /// Starts receiving `length` bytes.
    ///
    /// # Safety
    /// From `bytes` on, `length` bytes are writable, and nobody else reads or writes them until [`Mpi::test`] says that
    /// the request is over.
    pub(super) unsafe fn irecv(
        &mut self,
        bytes: *mut u8,
        length: usize,
        from: usize,
        lane: Lane,
    ) -> Result<Slot, Fault> {
        const CALL: &str = "MPI_Irecv";
        let count = int(CALL, "a length", length)?;
        let from = int(CALL, "a rank", from)?;
        let mut slot = 0;
        // SAFETY: the caller keeps these bytes alive and leaves them alone.
        let code =
            unsafe { raw::bessemer_mpi_irecv(bytes.cast::<c_void>(), count, from, tag(lane), &mut slot) };
        checked(CALL, code)?;
        Ok(Slot(slot))
    }

    /// The bytes received (0 for a send) if the request is over. Once it is, or after an error, the slot is empty.
    pub(super) fn test(&mut self, slot: &mut Slot) -> Result<Option<usize>, Fault> {
        let (mut done, mut count) = (0, 0);
        // SAFETY: all pointers are to live integers; the slot came from isend or irecv of this thread, or is empty,
        // which MPI calls over.
        checked("MPI_Test", unsafe { raw::bessemer_mpi_test(&mut slot.0, &mut done, &mut count) })?;
        Ok((done != 0).then(|| usize::try_from(count).unwrap_or(0)))
    }

    /// The next message of the lane that nobody has received yet: (sender, bytes).
    pub(super) fn iprobe(&mut self, lane: Lane) -> Result<Option<(usize, usize)>, Fault> {
        const CALL: &str = "MPI_Iprobe";
        let (mut found, mut from, mut count) = (0, -1, -1);
        // SAFETY: all pointers are to live integers.
        checked(CALL, unsafe { raw::bessemer_mpi_iprobe(tag(lane), &mut found, &mut from, &mut count) })?;
        if found == 0 {
            return Ok(None);
        }
        match (usize::try_from(from), usize::try_from(count)) {
            (Ok(from), Ok(count)) if from < self.size => Ok(Some((from, count))),
            _ => Err(Fault { call: CALL, text: format!("{count} bytes from rank {from}") }),
        }
    }
}
