//! Execution context of a kernel: operands, threads, scratch memory and the instruction set.

use crate::arena::Arena;
use crate::element::Element;
use crate::operand::{AnyMat, Indices, Mat};
use crate::pool::Pool;
use crate::{Engine, Rung};
use bessemer_tensor::View;

/// Settings that determine how much scratch memory an operator needs, besides its shape.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Machine {
    pub(crate) rung: Rung,
    /// Engine of matrix products.
    pub(crate) engine: Engine,
    pub(crate) threads: usize,
}

/// Threads that share the tiles of a job.
#[derive(Clone, Copy)]
pub(crate) enum Workers<'a> {
    /// All threads of the backend.
    Pool(&'a Pool),
    /// The calling thread alone, which may itself be working at a tile of the pool.
    Caller,
}

impl Workers<'_> {
    pub(crate) fn threads(&self) -> usize {
        match self {
            Workers::Pool(pool) => pool.threads(),
            Workers::Caller => 1,
        }
    }

    /// True if one thread computes everything, in the order of the tiles.
    pub(crate) fn is_alone(&self) -> bool {
        matches!(self, Workers::Caller)
    }

    /// Runs tiles on the pool, as [`Pool::run`] does.
    pub(crate) fn run(&self, tiles: usize, work: &(dyn Fn(usize, usize) + Sync)) {
        match self {
            Workers::Pool(pool) => pool.run(tiles, work),
            Workers::Caller => (0..tiles).for_each(|tile| work(tile, 0)),
        }
    }
}

/// The surroundings of one launch, or of a part of it that one thread computes.
#[derive(Clone, Copy)]
pub(crate) struct Ctx<'a> {
    pub(crate) arena: &'a Arena,
    pub(crate) pool: Workers<'a>,
    pub(crate) rung: Rung,
    pub(crate) engine: Engine,
    /// The workspace, to be cut up from its start.
    pub(crate) scratch: Scratch,
}

impl<'a> Ctx<'a> {
    pub(crate) fn machine(&self) -> Machine {
        Machine { rung: self.rung, engine: self.engine, threads: self.pool.threads() }
    }

    pub(crate) fn f32(&self, view: &View) -> Mat {
        self.arena.f32(view)
    }

    /// A matrix of activations.
    pub(crate) fn mat<T: Element>(&self, view: &View) -> Mat<T> {
        self.arena.mat(view)
    }

    /// A matrix of parameters or of their gradients.
    pub(crate) fn any(&self, view: &View) -> AnyMat {
        self.arena.any(view)
    }

    pub(crate) fn u32(&self, view: &View) -> Indices<'a> {
        self.arena.u32(view)
    }

    /// The workspace, to be cut up from its start.
    pub(crate) fn scratch(&self) -> Scratch {
        self.scratch
    }

    /// The surroundings of a part that the calling thread computes alone, with `scratch` as its workspace.
    pub(crate) fn alone(&self, scratch: Span) -> Ctx<'a> {
        Ctx { pool: Workers::Caller, scratch: Scratch { at: scratch.at, left: scratch.len }, ..*self }
    }
}

/// Floats that [`Scratch::take`] uses up for `len` floats: whole cache lines.
pub(crate) const fn padded(len: usize) -> usize {
    len.next_multiple_of(16)
}

/// The rest of the workspace.
#[derive(Clone, Copy)]
pub(crate) struct Scratch {
    at: *mut f32,
    left: usize,
}

impl Scratch {
    /// The whole workspace of an arena.
    pub(crate) fn of(arena: &Arena) -> Scratch {
        Scratch { at: arena.workspace_ptr().cast(), left: arena.workspace_len() as usize / 4 }
    }

    /// `len` floats, aligned to a cache line, contents undefined.
    ///
    /// # Panics
    /// If the operator stated less to `Backend::workspace` than it takes: launches compare that with the reserved size.
    pub(crate) fn take(&mut self, len: usize) -> Span {
        let all = padded(len);
        assert!(all <= self.left, "an operator took more workspace than it had asked for");
        let span = Span { at: self.at, len };
        self.at = self.at.wrapping_add(all);
        self.left -= all;
        span
    }
}

/// Part of the workspace.
#[derive(Clone, Copy)]
pub(crate) struct Span {
    at: *mut f32,
    len: usize,
}

#[allow(unsafe_code)] // shared by the threads of one launch
// SAFETY: an address and a length; kernels give each thread parts of its own.
unsafe impl Send for Span {}
#[allow(unsafe_code)] // as above
// SAFETY: as above.
unsafe impl Sync for Span {}

#[allow(unsafe_code)] // as above
// SAFETY: as above.
unsafe impl Send for Scratch {}
#[allow(unsafe_code)] // as above
// SAFETY: as above.
unsafe impl Sync for Scratch {}

impl Span {
    /// Floats `first .. first + count`.
    pub(crate) fn part(&self, first: usize, count: usize) -> Span {
        Span { at: self.at(first, count), len: count }
    }

    /// Address of float `first`, where at least `count` follow.
    pub(crate) fn at(&self, first: usize, count: usize) -> *mut f32 {
        assert!(first + count <= self.len, "scratch {first}..{} of {}", first + count, self.len);
        self.at.wrapping_add(first)
    }
}
