//! The arena: zeroed, aligned memory for buffers and the workspace, with a bound that is checked before the system is
//! requested, so that a plan that does not fit fails with an error and is not ended by the kernel in the middle of a run.
#![allow(unsafe_code)] // memory mapping and typed access to raw blocks

use crate::element::Element;
use crate::operand::{AnyMat, Codes, IndexMat, Indices, Mat};
use bessemer_tensor::{Buffer, BufferSpec, MemoryUse, TensorError, View};
use bessemer_units::{Bytes, DType};
use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::ffi::c_void;
use std::ptr::NonNull;

/// Blocks of at least this size are aligned to it and advised to use huge pages.
const HUGE_PAGE: usize = 2 << 20;

/// A private anonymous mapping: zeroed, page-aligned, given back on drop.
pub(crate) struct Block {
    base: NonNull<u8>,
    mapped_at: *mut c_void,
    mapped: usize,
    len: usize,
}

// SAFETY: a Block owns its mapping; nothing in it is bound to a thread.
unsafe impl Send for Block {}
// SAFETY: shared use is only through raw pointers whose users keep the rules of `Mat`.
unsafe impl Sync for Block {}

impl Block {
    /// Maps `len` bytes (at least one page).
    pub(crate) fn new(len: usize) -> std::io::Result<Block> {
        let huge = len >= HUGE_PAGE;
        // Room to move the start to a huge-page boundary: those pages are never touched, so they cost no memory.
        let slack = if huge { HUGE_PAGE } else { 0 };
        let mapped = len
            .max(1)
            .checked_add(slack)
            .ok_or_else(|| std::io::Error::other("more bytes than an address can name"))?;
        // SAFETY: a fresh anonymous mapping at an address the system chooses touches no memory of ours.
        let at = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                mapped,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )?
        };
        let offset = if huge { at.cast::<u8>().align_offset(HUGE_PAGE) } else { 0 };
        // SAFETY: offset < HUGE_PAGE <= slack, so the result is inside the mapping.
        let base = unsafe { at.cast::<u8>().add(offset) };
        if huge {
            // SAFETY: the range is part of the mapping made above; the advice changes page sizes, not contents.
            // A system without transparent huge pages refuses it, which only costs speed.
            let _ = unsafe { rustix::mm::madvise(base.cast(), len, Advice::LinuxHugepage) };
        }
        let base = NonNull::new(base).expect("mmap never returns the null page");
        Ok(Block { base, mapped_at: at, mapped, len })
    }

    /// First byte.
    pub(crate) fn ptr(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping made in `new`; no pointer into it outlives the arena that owns the block.
        // Unmapping a whole mapping cannot fail; a destructor could not report an error.
        let _ = unsafe { rustix::mm::munmap(self.mapped_at, self.mapped) };
    }
}

struct Slot {
    block: Block,
    class: &'static str,
    name: String,
}

/// All buffers of a backend and its workspace.
pub(crate) struct Arena {
    slots: Vec<Slot>,
    workspace: Option<Block>,
    used: u64,
    limit: u64,
}

impl Arena {
    /// An empty arena, bounded by the memory that the system has available now.
    pub(crate) fn new() -> Arena {
        Arena { slots: Vec::new(), workspace: None, used: 0, limit: crate::memory::available().bytes }
    }

    #[cfg(test)]
    pub(crate) fn set_limit(&mut self, bytes: u64) {
        self.limit = bytes;
    }

    pub(crate) fn alloc(&mut self, spec: BufferSpec<'_>) -> Result<Buffer, TensorError> {
        let label = || format!("{} {}", spec.class, spec.name);
        let bytes = spec.len.checked_mul(spec.dtype.size());
        let block = self.map(bytes, &label)?;
        let id = self.slots.len() as u32;
        self.slots.push(Slot { block, class: spec.class, name: spec.name.to_owned() });
        Ok(Buffer { id, len: spec.len, dtype: spec.dtype })
    }

    pub(crate) fn reserve_workspace(&mut self, bytes: u64) -> Result<(), TensorError> {
        if bytes <= self.workspace_len() {
            return Ok(());
        }
        // The old one is given back first: its contents mean nothing between operators.
        self.used -= self.workspace_len();
        self.workspace = None;
        let block = self.map(usize::try_from(bytes).ok(), &|| "workspace".to_owned())?;
        self.workspace = Some(block);
        Ok(())
    }

    pub(crate) fn workspace_len(&self) -> u64 {
        self.workspace.as_ref().map_or(0, |b| b.len() as u64)
    }

    /// Start of the workspace, aligned to a page; dangling if nothing was reserved.
    pub(crate) fn workspace_ptr(&self) -> *mut u8 {
        self.workspace.as_ref().map_or(std::ptr::NonNull::<u64>::dangling().as_ptr().cast(), Block::ptr)
    }

    fn map(&mut self, bytes: Option<usize>, label: &dyn Fn() -> String) -> Result<Block, TensorError> {
        let wanted = bytes.map_or(u64::MAX, |b| b as u64);
        let error = |reason: String| TensorError::OutOfMemory {
            label: label(),
            wanted: Bytes(wanted),
            reason,
            largest: self.largest(),
        };
        if self.used.checked_add(wanted).is_none_or(|total| total > self.limit) {
            return Err(error(format!(
                "{} are held and {} were available to this process at start",
                Bytes(self.used),
                Bytes(self.limit)
            )));
        }
        let block = Block::new(wanted as usize).map_err(|e| error(e.to_string()))?;
        self.used += wanted;
        Ok(block)
    }

    fn largest(&self) -> String {
        let mut slots: Vec<&Slot> = self.slots.iter().collect();
        slots.sort_by_key(|s| std::cmp::Reverse(s.block.len()));
        let mut all: Vec<String> = slots
            .iter()
            .take(4)
            .map(|s| format!("{} {} {}", s.class, s.name, Bytes(s.block.len() as u64)))
            .collect();
        if self.workspace_len() > 0 {
            all.push(format!("workspace {}", Bytes(self.workspace_len())));
        }
        if all.is_empty() { "none yet".to_owned() } else { all.join(", ") }
    }

    pub(crate) fn memory(&self) -> MemoryUse {
        let mut classes: Vec<(&'static str, Bytes)> = Vec::new();
        for s in &self.slots {
            let bytes = Bytes(s.block.len() as u64);
            match classes.iter_mut().find(|c| c.0 == s.class) {
                Some(c) => c.1 += bytes,
                None => classes.push((s.class, bytes)),
            }
        }
        classes.sort_by_key(|c| std::cmp::Reverse(c.1));
        MemoryUse { classes, workspace: Bytes(self.workspace_len()) }
    }

    /// Errors unless the view is inside a buffer of this arena and its rows do not overlap.
    pub(crate) fn contains(&self, view: &View) -> Result<(), TensorError> {
        let end = if view.rows == 0 || view.cols == 0 {
            Some(view.offset)
        } else {
            (view.rows - 1)
                .checked_mul(view.stride)
                .and_then(|x| x.checked_add(view.cols))
                .and_then(|x| x.checked_add(view.offset))
        };
        let slot = self.slots.get(view.buffer.id as usize);
        let known = slot.filter(|s| s.block.len() as u64 == view.buffer.bytes());
        let len = known.map_or(0, |_| view.buffer.len);
        let overlapping = view.rows > 1 && view.stride < view.cols;
        if known.is_some() && end.is_some_and(|e| e <= len) && !overlapping {
            return Ok(());
        }
        Err(TensorError::OutOfBounds { buffer: view.buffer.id, end: end.unwrap_or(usize::MAX), len })
    }

    /// Address of the view's first element.
    ///
    /// # Panics
    /// If the view was not checked by [`Arena::contains`].
    pub(crate) fn address(&self, view: &View) -> *mut u8 {
        let slot = &self.slots[view.buffer.id as usize];
        let offset = view.offset * view.dtype().size();
        assert!(offset <= slot.block.len());
        // SAFETY: the offset is at most the length of the block.
        unsafe { slot.block.ptr().add(offset) }
    }

    /// The view as an f32 matrix.
    ///
    /// # Panics
    /// If the view is not inside an f32 buffer: launches check that first.
    pub(crate) fn f32(&self, view: &View) -> Mat {
        self.mat(view)
    }

    /// The view as a matrix of activations.
    ///
    /// # Panics
    /// If the view is not inside a buffer of that type: launches check that first.
    pub(crate) fn mat<T: Element>(&self, view: &View) -> Mat<T> {
        assert!(view.dtype() == T::DTYPE && self.contains(view).is_ok());
        // SAFETY: the view is inside a mapped block that lives as long as the arena.
        unsafe { Mat::new(self.address(view).cast(), view.rows, view.cols, view.stride) }
    }

    /// The view as a matrix of parameters or of their gradients.
    ///
    /// # Panics
    /// If the view is not inside a float buffer: launches check that first.
    pub(crate) fn any(&self, view: &View) -> AnyMat {
        assert!(view.dtype().is_float() && self.contains(view).is_ok());
        // SAFETY: the view is inside a mapped block that lives as long as the arena.
        unsafe { AnyMat::new(self.address(view), view.dtype(), view.rows, view.cols, view.stride) }
    }

    /// The view as codes.
    ///
    /// # Panics
    /// If the view is not inside a u8 buffer: launches check that first.
    pub(crate) fn codes(&self, view: &View) -> Codes {
        assert!(view.dtype() == DType::U8 && self.contains(view).is_ok());
        // SAFETY: the view is inside a mapped block that lives as long as the arena.
        unsafe { Codes::new(self.address(view), view.rows, view.cols, view.stride) }
    }

    /// The view as a matrix of indices or counts.
    ///
    /// # Panics
    /// If the view is not inside a u32 buffer: launches check that first.
    pub(crate) fn index_mat(&self, view: &View) -> IndexMat {
        assert!(view.dtype() == DType::U32 && self.contains(view).is_ok());
        // SAFETY: the view is inside a mapped block that lives as long as the arena.
        unsafe { IndexMat::new(self.address(view).cast(), view.rows, view.cols, view.stride) }
    }

    /// The view as indices.
    ///
    /// # Panics
    /// If the view is not one row inside a u32 buffer: launches check that first.
    pub(crate) fn u32(&self, view: &View) -> Indices<'_> {
        assert!(view.dtype() == DType::U32 && view.rows == 1 && self.contains(view).is_ok());
        // SAFETY: the view is inside a mapped block; no operator writes to u32 buffers while it reads them.
        Indices(unsafe { std::slice::from_raw_parts(self.address(view).cast(), view.cols) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(name: &'static str, len: usize) -> BufferSpec<'static> {
        BufferSpec { class: "weights", name, dtype: DType::F32, len }
    }

    #[test]
    fn blocks_are_zeroed_and_aligned() {
        for len in [1, 4096, HUGE_PAGE, HUGE_PAGE + 1] {
            let b = Block::new(len).unwrap();
            assert_eq!(b.ptr().align_offset(64), 0);
            // SAFETY: the block holds `len` bytes.
            let bytes = unsafe { std::slice::from_raw_parts(b.ptr(), len) };
            assert!(bytes.iter().all(|&x| x == 0));
        }
    }

    #[test]
    fn memory_that_is_not_there_is_an_error_that_names_the_largest() {
        let mut a = Arena::new();
        a.set_limit(1 << 20);
        a.alloc(spec("small", 10)).unwrap();
        a.alloc(spec("embedding", 200_000)).unwrap();
        let e = a.alloc(spec("more", 200_000)).unwrap_err().to_string();
        assert!(e.contains("weights more") && e.contains("Largest consumers: weights embedding"), "{e}");
        assert!(a.alloc(spec("absurd", usize::MAX)).is_err());
        assert!(a.reserve_workspace(u64::MAX).is_err());
        a.reserve_workspace(1000).unwrap();
        a.reserve_workspace(2000).unwrap();
        assert_eq!(a.memory().total(), Bytes(40 + 800_000 + 2000));
    }

    #[test]
    fn views_that_wrap_around_or_name_other_buffers_are_refused() {
        let mut a = Arena::new();
        let b = a.alloc(spec("x", 100)).unwrap();
        assert!(a.contains(&b.matrix(10, 10)).is_ok());
        let wrap = View { buffer: b, offset: 1, rows: 2, cols: 3, stride: usize::MAX };
        assert!(a.contains(&wrap).is_err());
        assert!(a.contains(&View { buffer: Buffer { id: 7, ..b }, ..b.vector() }).is_err());
        assert!(a.contains(&View { buffer: Buffer { len: 200, ..b }, ..b.vector() }).is_err());
        let halves = b.of_type(DType::Bf16).unwrap().vector();
        assert!(a.contains(&halves).is_ok() && a.contains(&View { cols: 201, ..halves }).is_err());
        assert!(a.contains(&View { buffer: Buffer { len: usize::MAX, ..b }, ..b.vector() }).is_err());
    }
}
