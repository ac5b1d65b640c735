//! [`CpuBackend`]: launches are checked, then computed at once by the calling thread and the pool.
#![allow(unsafe_code)] // host copies to and from the arena

use crate::arena::Arena;
use crate::background::BackgroundReads;
use crate::ctx::{Ctx, Machine, Scratch, Workers};
use crate::op;
use crate::pool::Pool;
use crate::{CpuConfig, CpuError, Engine, Rung};
use bessemer_tensor::op::{Access, Op};
use bessemer_tensor::{
    Backend, Buffer, BufferSpec, Event, MemoryUse, PendingRead, Stream, TensorError, View,
};
use bessemer_units::{Bytes, DType};
use std::ops::Range;

/// The CPU as a device. All streams are one, in the order of the calls, so waits are always satisfied.
pub struct CpuBackend {
    /// First: its threads read the arena, and end before it is freed.
    reads: BackgroundReads,
    arena: Arena,
    pool: Pool,
    rung: Rung,
    engine: Engine,
    events: u64,
}

impl CpuBackend {
    /// A backend with the fastest kernels that the processor can run.
    pub fn new(config: CpuConfig) -> Result<CpuBackend, CpuError> {
        CpuBackend::with_rung(config, Rung::detect())
    }

    /// A backend with the kernels of one instruction set: for tests and benchmarks.
    pub fn with_rung(config: CpuConfig, rung: Rung) -> Result<CpuBackend, CpuError> {
        let engine = Engine::fastest(rung, config.matmul);
        CpuBackend::with_engine(config, rung, engine)
    }

    /// A backend with the kernels of one instruction set and one engine for matrix products, whatever precision the
    /// configuration requests: for tests and benchmarks.
    pub fn with_engine(config: CpuConfig, rung: Rung, engine: Engine) -> Result<CpuBackend, CpuError> {
        config.check().map_err(CpuError::Config)?;
        if !rung.available() {
            return Err(CpuError::Rung { wanted: rung, best: Rung::detect() });
        }
        if !engine.available(rung) {
            return Err(CpuError::Engine { wanted: engine, rung });
        }
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = if config.threads == 0 { cores } else { config.threads };
        let pool = Pool::new(threads, config.pin)?;
        Ok(CpuBackend {
            reads: BackgroundReads::default(),
            arena: Arena::new(),
            pool,
            rung,
            engine,
            events: 0,
        })
    }

    /// The kernels in use.
    pub fn rung(&self) -> Rung {
        self.rung
    }

    /// The engine of matrix products in use.
    pub fn engine(&self) -> Engine {
        self.engine
    }

    /// Threads that compute, the calling one included.
    pub fn threads(&self) -> usize {
        self.pool.threads()
    }

    /// Calls `copy(address, places)` for disjoint pieces of the rows of a view that is inside its buffer: the address where a piece
    /// begins, and the indices of its elements among the view's. All threads take pieces, so that pages which are written for the first
    /// time are on the nodes of the threads that use them.
    fn in_pieces(&self, view: &View, copy: &(dyn Fn(*mut u8, Range<usize>) + Sync)) {
        const PIECE: usize = 64 << 10;
        let (cols, len, size) = (view.cols, view.rows * view.cols, view.dtype().size());
        self.pool.run(len.div_ceil(PIECE), &|piece, _| {
            let base = self.arena.address(view);
            let (mut at, end) = (piece * PIECE, ((piece + 1) * PIECE).min(len));
            while at < end {
                let next = end.min((at / cols + 1) * cols);
                copy(base.wrapping_add((at / cols * view.stride + at % cols) * size), at..next);
                at = next;
            }
        });
    }

    /// Address of a view whose elements take `bytes` bytes.
    fn checked_address(&self, what: &'static str, view: &View, bytes: usize) -> Result<*mut u8, TensorError> {
        self.arena.contains(view)?;
        let wanted = (view.rows, view.cols, view.dtype().size());
        if wanted.0.checked_mul(wanted.1).and_then(|len| len.checked_mul(wanted.2)) != Some(bytes) {
            return Err(TensorError::Shape {
                op: what,
                operand: "bytes",
                wanted: format!("{} x {} values of {} bytes", wanted.0, wanted.1, wanted.2),
                found: bytes.to_string(),
            });
        }
        Ok(self.arena.address(view))
    }
}

fn check_count(what: &'static str, view: &View, found: usize) -> Result<(), TensorError> {
    if view.rows.checked_mul(view.cols) == Some(found) {
        return Ok(());
    }
    Err(TensorError::Shape {
        op: what,
        operand: "values",
        wanted: format!("{} x {} values", view.rows, view.cols),
        found: found.to_string(),
    })
}

impl Backend for CpuBackend {
    fn name(&self) -> &str {
        "cpu"
    }

    fn alloc(&mut self, spec: BufferSpec<'_>) -> Result<Buffer, TensorError> {
        self.arena.alloc(spec)
    }

    fn workspace(&self, op: &Op) -> Result<Bytes, TensorError> {
        op.check()?;
        let machine = Machine { rung: self.rung, engine: self.engine, threads: self.pool.threads() };
        Ok(Bytes(4 * op::workspace(machine, op) as u64))
    }

    fn reserve_workspace(&mut self, bytes: Bytes) -> Result<(), TensorError> {
        self.arena.reserve_workspace(bytes.0)
    }

    fn launch(&mut self, _stream: Stream, op: &Op) -> Result<(), TensorError> {
        for o in op.operands().iter() {
            self.arena.contains(&o.view)?;
            if o.access != Access::Read {
                self.reads.before_write(o.view.buffer.id);
            }
        }
        op.check()?;
        let ctx = Ctx {
            arena: &self.arena,
            pool: Workers::Pool(&self.pool),
            rung: self.rung,
            engine: self.engine,
            scratch: Scratch::of(&self.arena),
        };
        let wanted = 4 * op::workspace(ctx.machine(), op) as u64;
        let reserved = self.arena.workspace_len();
        if wanted > reserved {
            let (wanted, reserved) = (Bytes(wanted), Bytes(reserved));
            return Err(TensorError::Workspace { op: op.name(), wanted, reserved });
        }
        op::run(&ctx, op)
    }

    fn record(&mut self, _stream: Stream) -> Result<Event, TensorError> {
        self.events += 1;
        Ok(Event(self.events))
    }

    fn wait(&mut self, _stream: Stream, _event: Event) -> Result<(), TensorError> {
        Ok(())
    }

    fn sync(&mut self) -> Result<(), TensorError> {
        Ok(())
    }

    fn write_f32(&mut self, dst: View, values: &[f32]) -> Result<(), TensorError> {
        self.arena.contains(&dst)?;
        check_count("write_f32", &dst, values.len())?;
        if dst.dtype() == DType::U32 {
            return Err(TensorError::DType {
                op: "write_f32",
                operand: "dst",
                wanted: "f32, bf16, f16 or u8",
                found: dst.dtype(),
            });
        }
        self.reads.before_write(dst.buffer.id);
        self.in_pieces(&dst, &|at, places| {
            // SAFETY: part of a row of a view that is inside its buffer; `&mut self` means that no kernel is running, and
            // pieces are disjoint.
            unsafe { op::copy::store_row(dst.dtype(), at, 0, &values[places]) };
        });
        Ok(())
    }

    fn write_u32(&mut self, dst: View, values: &[u32]) -> Result<(), TensorError> {
        self.arena.contains(&dst)?;
        check_count("write_u32", &dst, values.len())?;
        if dst.dtype() != DType::U32 {
            return Err(TensorError::DType {
                op: "write_u32",
                operand: "dst",
                wanted: "u32",
                found: dst.dtype(),
            });
        }
        self.reads.before_write(dst.buffer.id);
        self.in_pieces(&dst, &|at, places| {
            let from = &values[places];
            // SAFETY: as above, of a u32 buffer; `values` is host memory and cannot overlap it.
            unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), at.cast::<u32>(), from.len()) };
        });
        Ok(())
    }

    fn read_f32(&mut self, src: View, values: &mut [f32]) -> Result<(), TensorError> {
        self.arena.contains(&src)?;
        check_count("read_f32", &src, values.len())?;
        let base = self.arena.address(&src);
        for (r, row) in values.chunks_exact_mut(src.cols.max(1)).enumerate() {
            // SAFETY: row r of a view that is inside its buffer.
            unsafe { op::copy::load_row(src.dtype(), base, r * src.stride, row) };
        }
        Ok(())
    }

    fn read_bytes(&mut self, _stream: Stream, src: View, bytes: &mut [u8]) -> Result<(), TensorError> {
        let base = self.checked_address("read_bytes", &src, bytes.len())?;
        let size = src.dtype().size();
        for (r, row) in bytes.chunks_exact_mut((src.cols * size).max(1)).enumerate() {
            // SAFETY: row r of a view that is inside its buffer; host memory cannot overlap it.
            unsafe {
                std::ptr::copy_nonoverlapping(base.add(r * src.stride * size), row.as_mut_ptr(), row.len())
            };
        }
        Ok(())
    }

    fn begin_read(
        &mut self,
        sources: Vec<(View, usize)>,
        values: Vec<f32>,
    ) -> Result<PendingRead, TensorError> {
        self.reads.begin(&self.arena, sources, values)
    }

    fn write_bytes(&mut self, _stream: Stream, dst: View, bytes: &[u8]) -> Result<(), TensorError> {
        self.checked_address("write_bytes", &dst, bytes.len())?;
        self.reads.before_write(dst.buffer.id);
        let size = dst.dtype().size();
        self.in_pieces(&dst, &|at, places| {
            let from = &bytes[places.start * size..places.end * size];
            // SAFETY: as above; every pattern of bits is a value of every element type.
            unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), at, from.len()) };
        });
        Ok(())
    }

    fn memory(&self) -> MemoryUse {
        self.arena.memory()
    }
}
