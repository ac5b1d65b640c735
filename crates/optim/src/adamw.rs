//! AdamW with clipping by the global norm of the gradient.
//!
//! With g the gradient times `min(1, clip / (norm + 1e-6))`, at step t from 1:
//! `p *= 1 - lr wd; m = b1 m + (1-b1) g; v = b2 v + (1-b2) g^2; p -= lr m/(1-b1^t) / (sqrt(v/(1-b2^t)) + eps)`
//! (Kingma & Ba 2015; Loshchilov & Hutter 2019). State: 8 bytes a parameter, 12 if it is stored in fewer bits than
//! f32. Decay only where the parameter says so.

use crate::config::{OptimConfig, OptimConfigError};
use bessemer_tensor::op;
use bessemer_tensor::{Backend, BufferSpec, Stream, TensorError, View};
use bessemer_units::{Bytes, DType};

/// A parameter as the optimizer sees it.
#[derive(Debug, Clone, PartialEq)]
pub struct OptimParam {
    /// Canonical name.
    pub name: String,
    /// Values, updated in place.
    pub value: View,
    /// Gradient of the same shape, read.
    pub grad: View,
    /// Whether weight decay applies.
    pub decays: bool,
}

/// What a step did.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepStats {
    /// Global norm of the gradient before clipping.
    pub grad_norm: f64,
    /// Factor on the gradient, at most 1.
    pub clip_factor: f64,
    /// True if the norm was not finite: nothing was changed.
    pub skipped: bool,
}

/// What can go wrong in an optimizer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OptimError {
    /// The configuration makes no sense.
    #[error(transparent)]
    Config(#[from] OptimConfigError),
    /// The device refused.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// A step number that has no bias correction.
    #[error("optimizer steps count from 1, found 0")]
    StepZero,
    /// No state tensor has this name.
    #[error(
        "the optimizer has no state {name:?}; wanted m., v. or master. and a parameter's name, such as {example:?}"
    )]
    UnknownState {
        /// The name that was asked for.
        name: String,
        /// A name that exists.
        example: String,
    },
    /// Values of another number than the state tensor has.
    #[error("optimizer state {name}: wanted {wanted} values, found {found}")]
    StateSize {
        /// The state tensor.
        name: String,
        /// Its number of values.
        wanted: usize,
        /// How many were given.
        found: usize,
    },
}

/// A parameter with its state.
#[derive(Debug)]
struct Slot {
    param: OptimParam,
    m: View,
    v: View,
    /// f32 values of a parameter that is stored in fewer bits.
    master: Option<View>,
}

/// AdamW over a list of parameters.
#[derive(Debug)]
pub struct AdamW {
    beta1: f64,
    beta2: f64,
    eps: f64,
    weight_decay: f64,
    clip: f64,
    slots: Vec<Slot>,
    /// `[1, parameters]`: sum of squares of each gradient.
    squares: View,
    host_squares: Vec<f32>,
}

impl AdamW {
    /// Allocates the state (zero) in class "optimizer", `4 (2 P + parameters)` bytes for P values in f32, and reserves
    /// the workspace of a step. Nothing is allocated after that.
    ///
    /// # Errors
    /// A configuration out of range, or what the backend answers.
    pub fn new(
        backend: &mut dyn Backend,
        params: &[OptimParam],
        config: &OptimConfig,
    ) -> Result<AdamW, OptimError> {
        config.check()?;
        let mut slots = Vec::with_capacity(params.len());
        for p in params {
            let mut state = |prefix: &str| {
                let name = format!("{prefix}.{}", p.name);
                let spec =
                    BufferSpec { class: "optimizer", name: &name, dtype: DType::F32, len: p.value.len() };
                backend.alloc(spec).map(|b| b.matrix(p.value.rows, p.value.cols))
            };
            let (m, v) = (state("m")?, state("v")?);
            let master = if p.value.dtype() == DType::F32 { None } else { Some(state("master")?) };
            slots.push(Slot { param: p.clone(), m, v, master });
        }
        let squares =
            BufferSpec { class: "optimizer", name: "gradient_squares", dtype: DType::F32, len: params.len() };
        let mut adamw = AdamW {
            beta1: config.beta1,
            beta2: config.beta2,
            eps: config.eps,
            weight_decay: config.weight_decay,
            clip: config.clip,
            slots,
            squares: backend.alloc(squares)?.vector(),
            host_squares: vec![0.0; params.len()],
        };
        adamw.plan(backend)?;
        Ok(adamw)
    }

    /// Checks a step's operators and reserves their workspace.
    fn plan(&mut self, backend: &mut dyn Backend) -> Result<(), TensorError> {
        let mut most = Bytes(0);
        for (i, slot) in self.slots.iter().enumerate() {
            for op in [self.squares_op(i, slot), self.update_op(slot, 1, 0.0, 1.0)] {
                op.check()?;
                most = most.max(backend.workspace(&op)?);
            }
        }
        backend.reserve_workspace(most)
    }

    fn squares_op(&self, i: usize, slot: &Slot) -> op::Op {
        op::SumSquares { x: slot.param.grad, out: self.squares.columns(i, 1), accumulate: false }.into()
    }

    fn update_op(&self, slot: &Slot, t: u64, lr: f64, grad_scale: f64) -> op::Op {
        // From the rounded beta that the device multiplies with: 1 - 0.999 differs by 1e-5 from its value in f32, which
        // would bias the first steps. In f64 and by powf, so that no t is too large.
        let correction = |beta: f64| (1.0 - f64::from(beta as f32).powf(t as f64)) as f32;
        op::AdamW {
            param: slot.param.value,
            master: slot.master,
            grad: slot.param.grad,
            m: slot.m,
            v: slot.v,
            lr: lr as f32,
            beta1: self.beta1 as f32,
            beta2: self.beta2 as f32,
            eps: self.eps as f32,
            weight_decay: if slot.param.decays { self.weight_decay as f32 } else { 0.0 },
            grad_scale: grad_scale as f32,
            correction1: correction(self.beta1),
            correction2: correction(self.beta2),
        }
        .into()
    }

    /// Copies the values of parameters stored in fewer bits into their f32 masters. Call it whenever values were
    /// written from outside (initialisation, a checkpoint without optimizer state). Nothing to do for f32.
    pub fn adopt_values(&mut self, backend: &mut dyn Backend) -> Result<(), OptimError> {
        for slot in &self.slots {
            if let Some(dst) = slot.master {
                backend.launch(Stream(0), &op::Copy { src: slot.param.value, dst }.into())?;
            }
        }
        Ok(())
    }

    /// Global norm of the gradient: squares added on the device per parameter in a fixed order, over parameters in f64.
    pub fn grad_norm(&mut self, backend: &mut dyn Backend) -> Result<f64, OptimError> {
        for (i, slot) in self.slots.iter().enumerate() {
            backend.launch(Stream(0), &self.squares_op(i, slot))?;
        }
        backend.read_f32(self.squares, &mut self.host_squares)?;
        Ok(self.host_squares.iter().map(|&s| f64::from(s)).sum::<f64>().sqrt())
    }

    /// Step `t`, counted from 1, at learning rate `lr`. A gradient that is not finite changes nothing and is reported
    /// as skipped; whether t advances then is the caller's affair.
    pub fn step(&mut self, backend: &mut dyn Backend, t: u64, lr: f64) -> Result<StepStats, OptimError> {
        if t == 0 {
            return Err(OptimError::StepZero);
        }
        let grad_norm = self.grad_norm(backend)?;
        if !grad_norm.is_finite() {
            return Ok(StepStats { grad_norm, clip_factor: 0.0, skipped: true });
        }
        let clip_factor = if self.clip > 0.0 { (self.clip / (grad_norm + 1e-6)).min(1.0) } else { 1.0 };
        for slot in &self.slots {
            backend.launch(Stream(0), &self.update_op(slot, t, lr, clip_factor))?;
        }
        Ok(StepStats { grad_norm, clip_factor, skipped: false })
    }

    /// Every state tensor with its name, "m.", "v." or "master." before the parameter's name: all that a checkpoint
    /// must keep besides the values and t.
    pub fn states(&self) -> Vec<(String, View)> {
        let mut list = Vec::with_capacity(3 * self.slots.len());
        for s in &self.slots {
            let parts = [("m", Some(s.m)), ("v", Some(s.v)), ("master", s.master)];
            list.extend(parts.iter().filter_map(|(k, v)| v.map(|v| (format!("{k}.{}", s.param.name), v))));
        }
        list
    }

    /// Overwrites one state tensor with row-major values.
    ///
    /// # Errors
    /// A name that [`AdamW::states`] does not list, or values of another number.
    pub fn restore(
        &mut self,
        backend: &mut dyn Backend,
        name: &str,
        values: &[f32],
    ) -> Result<(), OptimError> {
        let view = name.split_once('.').and_then(|(kind, param)| {
            let slot = self.slots.iter().find(|s| s.param.name == param)?;
            match kind {
                "m" => Some(slot.m),
                "v" => Some(slot.v),
                "master" => slot.master,
                _ => None,
            }
        });
        let Some(view) = view else {
            let example = self.slots.first().map_or(String::new(), |s| format!("m.{}", s.param.name));
            return Err(OptimError::UnknownState { name: name.into(), example });
        };
        if view.len() != values.len() {
            return Err(OptimError::StateSize { name: name.into(), wanted: view.len(), found: values.len() });
        }
        Ok(backend.write_f32(view, values)?)
    }
}
