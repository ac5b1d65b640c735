//! Runs one operator on fresh buffers filled with the same values for every backend.

use bessemer_kernels_cpu::{CpuBackend, CpuConfig, Rung};
use bessemer_tensor::op::Op;
use bessemer_tensor::rng::RngKey;
use bessemer_tensor::{Backend, Buffer, BufferSpec, Stream, TensorError, View};
use bessemer_units::DType;

/// A backend, and the buffers made for one operator.
pub(crate) struct Setup {
    pub(crate) backend: CpuBackend,
    /// Type of the matrices that [`Setup::act`] makes.
    storage: DType,
    buffers: Vec<Buffer>,
}

impl Setup {
    pub(crate) fn new(rung: Rung, threads: usize) -> Setup {
        let config = CpuConfig { threads, ..CpuConfig::default() };
        let backend = CpuBackend::with_rung(config, rung).unwrap();
        Setup { backend, storage: DType::F32, buffers: Vec::new() }
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

    /// A row of indices.
    pub(crate) fn indices(&mut self, values: &[u32]) -> View {
        let v = self.buffer(DType::U32, values.len()).vector();
        self.backend.write_u32(v, values).unwrap();
        v
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
    run_in(DType::F32, rung, threads, build).0
}

/// The same with activations of a type, and the types of the buffers.
fn run_in(
    storage: DType,
    rung: Rung,
    threads: usize,
    build: &dyn Fn(&mut Setup) -> Op,
) -> (Vec<Vec<f32>>, Vec<DType>) {
    let mut s = Setup { storage, ..Setup::new(rung, threads) };
    let op = build(&mut s);
    s.launch(&op).unwrap();
    let types = s.buffers.iter().map(|b| b.dtype).collect();
    (s.all(), types)
}

/// The rungs that compute faster than the reference and that this processor has.
pub(crate) fn fast_rungs() -> impl Iterator<Item = Rung> {
    Rung::ALL.into_iter().filter(|r| *r != Rung::Reference && r.available())
}

/// Holds every fast rung against the reference, and three thread counts against each other bit for bit. `tolerance` is
/// absolute for values below one and relative above; values stored in bf16 may differ by a unit in its last place more.
/// Operators on matrices made by [`Setup::act`] are run with both types.
pub(crate) fn check(what: &str, tolerance: f32, build: &dyn Fn(&mut Setup) -> Op) {
    check_in(DType::F32, what, tolerance, build);
    let mut s = Setup { storage: DType::Bf16, ..Setup::new(Rung::Reference, 1) };
    build(&mut s);
    if s.buffers.iter().any(|b| b.dtype == DType::Bf16) {
        check_in(DType::Bf16, &format!("{what} in bf16"), tolerance, build);
    }
}

fn check_in(storage: DType, what: &str, tolerance: f32, build: &dyn Fn(&mut Setup) -> Op) {
    let (reference, types) = run_in(storage, Rung::Reference, 1, build);
    for rung in fast_rungs() {
        let one = run_in(storage, rung, 1, build).0;
        for (b, (fast, truth)) in one.iter().zip(&reference).enumerate() {
            let rounding = if types[b] == DType::Bf16 { 1.0 / 128.0 } else { 0.0 };
            for (i, (f, t)) in fast.iter().zip(truth).enumerate() {
                let fine = (f - t).abs() <= tolerance * t.abs().max(1.0) + rounding * t.abs()
                    || (f.is_nan() && t.is_nan())
                    || f == t;
                assert!(fine, "{what} on {rung}: buffer {b} element {i} is {f}, the reference says {t}");
            }
        }
        for threads in [2, 3] {
            let more = run_in(storage, rung, threads, build).0;
            let bits = |all: &[Vec<f32>]| -> Vec<u32> { all.iter().flatten().map(|x| x.to_bits()).collect() };
            assert!(
                bits(&one) == bits(&more),
                "{what} on {rung}: {threads} threads give other bits than one"
            );
        }
    }
}
