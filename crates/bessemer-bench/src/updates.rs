//! A step of an optimizer over all parameters of a model, without the model around it.

use bessemer::Failure;
use bessemer_arch::Model;
use bessemer_measure::machine;
use bessemer_optim::{OptimConfig, OptimParam, Optimizer, OptimizerChoice};
use bessemer_tensor::null::NullBackend;
use bessemer_tensor::op::Copy;
use bessemer_tensor::rng::RngKey;
use bessemer_tensor::{Backend, BufferSpec, Stream, TensorError, View};
use bessemer_units::{Bytes, DType};

/// Owner of the parameters that are stepped.
pub(crate) const MODEL: &str = "gpt2-124m";
/// Rows of inputs and output gradients that curvature is taken of: those of the reference job.
pub(crate) const TOKENS: usize = 1024;
/// Learning rate, that of the reference job.
const LR: f64 = 3e-4;
/// Values of noise before it repeats: no divisor of a parameter's width.
const PERIOD: usize = (1 << 20) + 7;

/// Part of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// The norm of the gradient and the update; K-FAC's means and preconditioning, with the inverses that it has.
    Step,
    /// K-FAC's sums over inputs and output gradients, which belong to the backward pass.
    Curvature,
    /// As [`Part::Step`], with new inverses.
    Inverting,
}

/// Parameters with gradients, and an optimizer over them.
#[derive(Debug)]
pub(crate) struct Update {
    optimizer: Optimizer,
    params: Vec<OptimParam>,
    part: Part,
    /// Steps done.
    done: u64,
    inverse_every: u64,
    choice: OptimizerChoice,
    /// `[1, elements of the largest gradient]`: what every gradient begins with. Optimizers overwrite them.
    noise: View,
    /// As many rows of inputs and output gradients as there are tokens, as wide as the widest matrix.
    rows: [View; 2],
    /// Floating-point operations of the part.
    pub(crate) flops: f64,
    /// Bytes of its operands.
    pub(crate) bytes: f64,
}

/// The part of the reference model's step on `backend`.
///
/// # Errors
/// If there is not enough memory for the parameters and the optimizer's state.
pub(crate) fn on(
    backend: &mut dyn Backend,
    choice: OptimizerChoice,
    part: Part,
    dtype: DType,
) -> Result<Update, Failure> {
    let model = bessemer_arch::named(MODEL)
        .ok_or_else(|| Failure::new(format!("no architecture has the name {MODEL}")))?;
    Update::counted(backend, &model, TOKENS, choice, part, dtype)
}

impl Update {
    /// Makes it, with its operations counted in a dry run.
    fn counted(
        backend: &mut dyn Backend,
        model: &Model,
        tokens: usize,
        choice: OptimizerChoice,
        part: Part,
        dtype: DType,
    ) -> Result<Update, Failure> {
        let mut null = NullBackend::new();
        let mut dry = Update::new(&mut null, model, tokens, choice, part, dtype)?;
        let (needed, available) = (null.memory().total(), machine::available_memory());
        if needed > available {
            return Err(Failure::new(format!(
                "a step of {choice:?} over {} parameters needs {needed}, and {available} are free",
                model.parameters()
            )));
        }
        dry.prepare(&mut null)?;
        null.reset_counts();
        dry.run(&mut null)?;
        let bytes: Bytes = null.counts().values().map(|c| c.bytes).sum();
        let update = Update::new(backend, model, tokens, choice, part, dtype)?;
        Ok(Update { flops: null.flops().0, bytes: bytes.0 as f64, ..update })
    }

    fn new(
        backend: &mut dyn Backend,
        model: &Model,
        tokens: usize,
        choice: OptimizerChoice,
        part: Part,
        dtype: DType,
    ) -> Result<Update, Failure> {
        let (mut params, mut longest, mut widest) = (Vec::new(), 1, [1, 1]);
        for spec in model.params() {
            let (rows, cols) = spec.matrix();
            let mut alloc = |class| {
                let spec = BufferSpec { class, name: &spec.name, dtype: DType::F32, len: rows * cols };
                Ok::<View, TensorError>(backend.alloc(spec)?.matrix(rows, cols))
            };
            let (value, grad) = (alloc("parameters")?, alloc("gradients")?);
            let param = OptimParam::of(model, &spec, value, grad);
            longest = longest.max(rows * cols);
            if !param.blocks.is_empty() {
                widest = [widest[0].max(cols), widest[1].max(rows)];
            }
            params.push(param);
        }
        let config = OptimConfig { optimizer: choice, lr: LR, clip: 0.0, ..OptimConfig::default() };
        let mut optimizer = Optimizer::new(backend, &params, &config)?;
        optimizer.plan_capture(backend, tokens, dtype)?;
        let noise = noisy(backend, DType::F32, (1, longest), 0.3)?;
        let captured = if choice == OptimizerChoice::Kfac { tokens } else { 1 };
        let rows = [
            noisy(backend, dtype, (captured, widest[0]), 0.3)?,
            // Output gradients carry the factor 1 / tokens.
            noisy(backend, dtype, (captured, widest[1]), 0.3 / tokens as f32)?,
        ];
        for param in &params {
            copy_noise(backend, noise, param.value)?;
        }
        let inverse_every = config.kfac.inverse_every;
        let (flops, bytes, done) = (0.0, 0.0, 0);
        Ok(Update { optimizer, params, part, done, inverse_every, choice, noise, rows, flops, bytes })
    }

    /// Whether the precision of matrix products is about this.
    pub(crate) fn has_products(&self) -> bool {
        matches!(self.choice, OptimizerChoice::Muon | OptimizerChoice::Kfac)
    }

    /// What comes before the part in a run and is no part of it.
    pub(crate) fn prepare(&mut self, backend: &mut dyn Backend) -> Result<(), Failure> {
        if self.choice == OptimizerChoice::Kfac && self.part == Part::Step && self.done == 0 {
            // The first inverses.
            self.fresh(backend)?;
            self.step(backend, 1)?;
        }
        if self.part != Part::Curvature {
            self.fresh(backend)?;
        }
        Ok(())
    }

    /// The part.
    pub(crate) fn run(&mut self, backend: &mut dyn Backend) -> Result<(), Failure> {
        match self.part {
            Part::Curvature => {
                self.capture(backend)?;
                self.optimizer.discard();
                Ok(())
            }
            // A step in which inverses are due, and one between two of them.
            Part::Inverting => self.step(backend, 1 + self.inverse_every),
            Part::Step => self.step(backend, 2 + self.inverse_every),
        }
    }

    fn step(&mut self, backend: &mut dyn Backend, t: u64) -> Result<(), Failure> {
        self.done += 1;
        let stats = self.optimizer.step(backend, t, LR)?;
        if stats.skipped {
            return Err(Failure::new(format!("step {} of {:?}: the gradient is not finite", t, self.choice)));
        }
        Ok(())
    }

    /// New gradients, and the curvature of a batch.
    fn fresh(&mut self, backend: &mut dyn Backend) -> Result<(), Failure> {
        for param in &self.params {
            copy_noise(backend, self.noise, param.grad)?;
        }
        self.capture(backend)
    }

    fn capture(&mut self, backend: &mut dyn Backend) -> Result<(), Failure> {
        if self.choice != OptimizerChoice::Kfac {
            return Ok(());
        }
        for (number, param) in self.params.iter().enumerate().filter(|(_, p)| !p.blocks.is_empty()) {
            let of = |view: View, cols| View { cols, stride: cols, ..view };
            let pair = (of(self.rows[0], param.value.cols), of(self.rows[1], param.value.rows));
            self.optimizer.capture(backend, number, pair, false)?;
        }
        Ok(())
    }
}

/// `[rows, cols]` normal values of standard deviation `std`.
fn noisy(
    backend: &mut dyn Backend,
    dtype: DType,
    (rows, cols): (usize, usize),
    std: f32,
) -> Result<View, TensorError> {
    let spec = BufferSpec { class: "bench", name: "noise", dtype, len: rows * cols };
    let buffer = backend.alloc(spec)?;
    let mut values = vec![0.0; PERIOD.min(rows * cols)];
    RngKey::new(0, 0, "bench.noise").fill_normal(0, std, &mut values);
    for from in (0..rows * cols).step_by(values.len()) {
        let len = values.len().min(rows * cols - from);
        backend.write_f32(buffer.vector().columns(from, len), &values[..len])?;
    }
    Ok(buffer.matrix(rows, cols))
}

/// The first values of `noise` into `to`, which has no gaps.
fn copy_noise(backend: &mut dyn Backend, noise: View, to: View) -> Result<(), TensorError> {
    let dst = View { rows: 1, cols: to.len(), stride: to.len(), ..to };
    backend.launch(Stream::Compute, &Copy { src: noise.columns(0, to.len()), dst }.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use bessemer_arch::ModelConfig;
    use bessemer_kernels_cpu::{CpuBackend, CpuConfig};

    fn small() -> Model {
        let sizes =
            ModelConfig { layers: Some(1), width: Some(16), heads: Some(2), ..ModelConfig::default() };
        sizes.resolve(Some(32)).unwrap()
    }

    fn cpu() -> CpuBackend {
        CpuBackend::new(CpuConfig { threads: 1, ..CpuConfig::default() }).unwrap()
    }

    #[test]
    fn every_optimizer_steps_again_and_again_and_moves_every_parameter() {
        use OptimizerChoice::{Adafactor, AdamW, Kfac, Lion, Muon, Sgd};
        for choice in [AdamW, Sgd, Adafactor, Lion, Muon, Kfac] {
            for part in [Part::Step, Part::Inverting] {
                let mut backend = cpu();
                let mut u = Update::counted(&mut backend, &small(), 24, choice, part, DType::F32).unwrap();
                for _ in 0..3 {
                    u.prepare(&mut backend).unwrap();
                    u.run(&mut backend).unwrap();
                }
                for param in &u.params {
                    let (mut value, mut before) =
                        (vec![0.0; param.value.len()], vec![0.0; param.value.len()]);
                    backend.read_f32(param.value, &mut value).unwrap();
                    backend.read_f32(u.noise.columns(0, before.len()), &mut before).unwrap();
                    assert!(value.iter().all(|v| v.is_finite()), "{choice:?} {}", param.name);
                    assert_ne!(value, before, "{choice:?} {}", param.name);
                }
            }
        }
    }

    #[test]
    fn what_a_step_counts_is_what_it_touches() {
        let model = small();
        let of = |choice, part| Update::counted(&mut cpu(), &model, 24, choice, part, DType::F32).unwrap();
        let parameters = model.parameters() as f64;
        // Norm: one reading. AdamW: value and two moments read and written, gradient read. Lion: one moment less.
        for (choice, bytes) in [(OptimizerChoice::AdamW, 32.0), (OptimizerChoice::Lion, 24.0)] {
            let found = of(choice, Part::Step).bytes / parameters;
            assert!((bytes..bytes + 0.5).contains(&found), "{choice:?}: {found} bytes a parameter");
        }
        let kfac = |part| of(OptimizerChoice::Kfac, part);
        assert!(kfac(Part::Inverting).flops > kfac(Part::Step).flops);
        // Every hidden matrix [O, I]: 2 n (I^2 + sum of squares of its blocks of rows).
        let capture: f64 = kfac(Part::Step)
            .params
            .iter()
            .filter(|p| !p.blocks.is_empty())
            .map(|p| p.value.cols.pow(2) + p.blocks.iter().map(|b| b.pow(2)).sum::<usize>())
            .map(|squares| (2 * 24 * squares) as f64)
            .sum();
        assert_eq!(kfac(Part::Curvature).flops, capture);
    }
}
