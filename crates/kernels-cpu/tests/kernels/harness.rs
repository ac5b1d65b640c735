//! Runs one operator on fresh buffers filled with the same values for every backend.

use crate::instruction_set;
use bessemer_kernels_cpu::{CpuBackend, CpuConfig, Rung};
use bessemer_tensor::op::{DropoutMask, Op};
use bessemer_tensor::rng::RngKey;
use bessemer_tensor::{Backend, Buffer, BufferSpec, Stream, TensorError, View};
use bessemer_units::DType;

/// A backend, and the buffers made for one operator.
pub(crate) struct Setup {
    pub(crate) backend: CpuBackend,
    /// Type of the matrices that [`Setup::act`] makes.
    storage: DType,
    /// Types of those that [`Setup::param`] and [`Setup::gradient`] make.
    params: (DType, DType),
    buffers: Vec<Buffer>,
}

impl Setup {
    pub(crate) fn new(rung: Rung, threads: usize) -> Setup {
        let config = CpuConfig { threads, ..CpuConfig::default() };
        let backend = instruction_set::with_rung(config, rung);
        Setup { backend, storage: DType::F32, params: (DType::F32, DType::F32), buffers: Vec::new() }
    }

    fn buffer(&mut self, dtype: DType, len: usize) -> Buffer {
        let spec = BufferSpec { class: "test", name: "x", dtype, len };
        self.backend.alloc(spec).unwrap()
    }

    /// A matrix with `gap` elements between rows and `gap` in front, all of them normal values.
    pub(crate) fn strided(&mut self, rows: usize, cols: usize, gap: usize) -> View {
        self.typed(DType::F32, rows, cols, gap)
    }

    /// As [`Setup::strided`], for activations: [`check`] runs them in f32 and in bf16.
    pub(crate) fn act(&mut self, rows: usize, cols: usize, gap: usize) -> View {
        self.typed(self.storage, rows, cols, gap)
    }

    /// As [`Setup::strided`], for parameters: [`check`] runs them in f32, bf16 and f16.
    pub(crate) fn param(&mut self, rows: usize, cols: usize, gap: usize) -> View {
        self.typed(self.params.0, rows, cols, gap)
    }

    /// As [`Setup::param`], for their gradients.
    pub(crate) fn gradient(&mut self, rows: usize, cols: usize, gap: usize) -> View {
        self.typed(self.params.1, rows, cols, gap)
    }

    fn typed(&mut self, dtype: DType, rows: usize, cols: usize, gap: usize) -> View {
        let len = gap + rows * (cols + gap);
        let b = self.buffer(dtype, len);
        let mut values = vec![0.0; len];
        RngKey::new(1, 0, "test").fill_normal(1_000_000 * self.buffers.len() as u64, 1.0, &mut values);
        self.backend.write_f32(b.vector(), &values).unwrap();
        self.buffers.push(b);
        View { buffer: b, offset: gap, rows, cols, stride: cols + gap }
    }

    /// A matrix of normal values without gaps.
    pub(crate) fn mat(&mut self, rows: usize, cols: usize) -> View {
        self.strided(rows, cols, 0)
    }

    /// A matrix of given values.
    pub(crate) fn values(&mut self, rows: usize, cols: usize, values: &[f32]) -> View {
        let v = self.mat(rows, cols);
        self.backend.write_f32(v, values).unwrap();
        v
    }

    /// Codes of 8 bits, as floats.
    pub(crate) fn codes(&mut self, rows: usize, cols: usize, values: &[f32]) -> View {
        let b = self.buffer(DType::U8, rows * cols);
        self.backend.write_f32(b.vector(), values).unwrap();
        self.buffers.push(b);
        b.matrix(rows, cols)
    }

    /// A row of indices.
    pub(crate) fn indices(&mut self, values: &[u32]) -> View {
        let v = self.buffer(DType::U32, values.len()).vector();
        self.backend.write_u32(v, values).unwrap();
        v
    }

    /// A mask of dropout that draws from `key`.
    pub(crate) fn dropout(&mut self, p: f32, key: RngKey, first: u64) -> DropoutMask {
        // Part of the number of the element in either place.
        DropoutMask {
            p,
            counters: self.indices(&DropoutMask::words(key, first - first / 2)),
            first: first / 2,
        }
    }

    /// Reserves what the operator asks for, and not a byte more, and launches it.
    pub(crate) fn launch(&mut self, op: &Op) -> Result<(), TensorError> {
        let bytes = self.backend.workspace(op)?;
        self.backend.reserve_workspace(bytes)?;
        self.backend.launch(Stream(0), op)
    }

    pub(crate) fn read(&mut self, view: View) -> Vec<f32> {
        let mut values = vec![0.0; view.len()];
        self.backend.read_f32(view, &mut values).unwrap();
        values
    }

    /// Every float buffer, gaps included.
    pub(crate) fn all(&mut self) -> Vec<Vec<f32>> {
        self.buffers.clone().into_iter().map(|b| self.read(b.vector())).collect()
    }
}

/// Every float buffer after the operator.
pub(crate) fn run(rung: Rung, threads: usize, build: &dyn Fn(&mut Setup) -> Op) -> Vec<Vec<f32>> {
    run_in(TYPES[0], rung, threads, build).0
}

/// Types of activations, parameters and gradients that [`check`] runs.
pub(crate) const TYPES: [[DType; 3]; 6] = [
    [DType::F32; 3],
    [DType::Bf16, DType::F32, DType::F32],
    [DType::F32, DType::Bf16, DType::F32],
    [DType::Bf16; 3],
    [DType::F32, DType::F16, DType::F16],
    [DType::F32, DType::Bf16, DType::Bf16],
];

/// The same with matrices of some types, and the types of the buffers.
pub(crate) fn run_in(
    [storage, param, gradient]: [DType; 3],
    rung: Rung,
    threads: usize,
    build: &dyn Fn(&mut Setup) -> Op,
) -> (Vec<Vec<f32>>, Vec<DType>) {
    let mut s = Setup { storage, params: (param, gradient), ..Setup::new(rung, threads) };
    let op = build(&mut s);
    s.launch(&op).unwrap();
    let types = s.buffers.iter().map(|b| b.dtype).collect();
    (s.all(), types)
}

/// The kernels that compute faster than the reference loops: the forced ones, else all that this processor has.
pub(crate) fn fast_rungs() -> impl Iterator<Item = Rung> {
    instruction_set::rungs().filter(|r| *r != Rung::Reference)
}

/// Holds every fast rung against the reference, and three thread counts against each other bit for bit. `tolerance` is
/// absolute for values below one and relative above; values stored in fewer bits may differ by a unit in their last place
/// more. Operators on matrices made by [`Setup::act`], [`Setup::param`] and [`Setup::gradient`] are run with all types.
pub(crate) fn check(what: &str, tolerance: f32, build: &dyn Fn(&mut Setup) -> Op) {
    let mut seen: Vec<Vec<DType>> = Vec::new();
    for types in TYPES {
        let [storage, param, gradient] = types;
        let mut s = Setup { storage, params: (param, gradient), ..Setup::new(Rung::Reference, 1) };
        build(&mut s);
        let made: Vec<DType> = s.buffers.iter().map(|b| b.dtype).collect();
        if !seen.contains(&made) {
            check_in(types, &format!("{what} in {storage}, {param}, {gradient}"), tolerance, build);
            seen.push(made);
        }
    }
}

fn check_in(chosen: [DType; 3], what: &str, tolerance: f32, build: &dyn Fn(&mut Setup) -> Op) {
    let (reference, types) = run_in(chosen, Rung::Reference, 1, build);
    for rung in fast_rungs() {
        let one = run_in(chosen, rung, 1, build).0;
        for (b, (fast, truth)) in one.iter().zip(&reference).enumerate() {
            // A unit in the last place, and of the subnormal numbers.
            let (rounding, least) = match types[b] {
                DType::Bf16 => (1.0 / 128.0, 0.0),
                DType::F16 => (1.0 / 1024.0, 6e-8),
                _ => (0.0, 0.0),
            };
            for (i, (f, t)) in fast.iter().zip(truth).enumerate() {
                let fine = (f - t).abs() <= tolerance * t.abs().max(1.0) + rounding * t.abs() + least
                    || (f.is_nan() && t.is_nan())
                    || f == t;
                assert!(fine, "{what} on {rung}: buffer {b} element {i} is {f}, the reference says {t}");
            }
        }
        for threads in [2, 3] {
            let more = run_in(chosen, rung, threads, build).0;
            let bits = |all: &[Vec<f32>]| -> Vec<u32> { all.iter().flatten().map(|x| x.to_bits()).collect() };
            assert!(
                bits(&one) == bits(&more),
                "{what} on {rung}: {threads} threads give other bits than one"
            );
        }
    }
}
