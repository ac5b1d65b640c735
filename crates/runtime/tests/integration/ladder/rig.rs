//! A backend with parameters that start as PyTorch's do, and their optimizer.

use bessemer_kernels_cpu::CpuBackend;
use bessemer_optim::{OptimConfig, OptimParam, Optimizer};
use bessemer_tensor::op::Op;
use bessemer_tensor::rng::RngKey;
use bessemer_tensor::{Backend, BufferSpec, Stream, View};
use bessemer_units::DType;

/// Initial values.
pub(crate) enum Init {
    /// N(0, 1): `nn.Embedding`.
    Normal,
    /// Uniform in +-x: `nn.Linear` with x = 1/sqrt(inputs), weight and bias alike.
    Uniform(f32),
    /// `nn.LayerNorm`.
    Constant(f32),
}

/// A parameter and its gradient.
#[derive(Clone, Copy)]
pub(crate) struct Param {
    pub(crate) value: View,
    pub(crate) grad: View,
}

/// One thread of the CPU backend, and the parameters made on it.
pub(crate) struct Rig {
    pub(crate) backend: CpuBackend,
    seed: u64,
    params: Vec<OptimParam>,
}

impl Rig {
    pub(crate) fn new(seed: u64) -> Rig {
        let backend = crate::instruction_set::cpu(1);
        Rig { backend, seed, params: Vec::new() }
    }

    pub(crate) fn key(&self, step: u64, name: &str) -> RngKey {
        RngKey::new(self.seed, step, name)
    }

    pub(crate) fn matrix(&mut self, rows: usize, cols: usize) -> View {
        let spec = BufferSpec { class: "ladder", name: "matrix", dtype: DType::F32, len: rows * cols };
        self.backend.alloc(spec).unwrap().matrix(rows, cols)
    }

    pub(crate) fn indices(&mut self, len: usize) -> View {
        let spec = BufferSpec { class: "ladder", name: "indices", dtype: DType::U32, len };
        self.backend.alloc(spec).unwrap().vector()
    }

    pub(crate) fn param(&mut self, rows: usize, cols: usize, init: Init) -> Param {
        let name = format!("param.{}", self.params.len());
        let (value, grad) = (self.matrix(rows, cols), self.matrix(rows, cols));
        let key = self.key(0, &name);
        let mut values = vec![0.0; rows * cols];
        match init {
            Init::Normal => key.fill_normal(0, 1.0, &mut values),
            Init::Uniform(x) => {
                (0..).zip(&mut values).for_each(|(e, v)| *v = x * (2.0 * key.uniform(e) - 1.0));
            }
            Init::Constant(c) => values.fill(c),
        }
        self.backend.write_f32(value, &values).unwrap();
        // PyTorch's AdamW decays every parameter that it is given.
        self.params.push(OptimParam::new(name, value, grad, true));
        Param { value, grad }
    }

    /// `nn.Linear(inputs, outputs)`.
    pub(crate) fn linear(&mut self, inputs: usize, outputs: usize) -> (Param, Param) {
        let bound = 1.0 / (inputs as f32).sqrt();
        let weight = self.param(outputs, inputs, Init::Uniform(bound));
        (weight, self.param(1, outputs, Init::Uniform(bound)))
    }

    pub(crate) fn launch(&mut self, op: impl Into<Op>) {
        let op = op.into();
        let scratch = self.backend.workspace(&op).unwrap();
        self.backend.reserve_workspace(scratch).unwrap();
        self.backend.launch(Stream::Compute, &op).unwrap();
    }

    /// `torch.optim.AdamW` with its defaults.
    pub(crate) fn adamw(&mut self) -> Optimizer {
        let config =
            OptimConfig { beta1: 0.9, beta2: 0.999, weight_decay: 0.01, clip: 0.0, ..OptimConfig::default() };
        Optimizer::new(&mut self.backend, &self.params, &config).unwrap()
    }
}
