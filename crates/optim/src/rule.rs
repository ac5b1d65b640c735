//! What one optimizer does to one parameter, as launches that are planned and run by the same code.

use crate::param::OptimParam;
use crate::peers::Peers;
use crate::state::StateView;
use bessemer_tensor::op::Op;
use bessemer_tensor::{Backend, BufferSpec, Stream, TensorError, View};
use bessemer_units::{Bytes, DType};

/// One walk through a step's operators: to run them, or to ask what workspace they need.
pub(crate) struct Pass<'a> {
    pub(crate) backend: &'a mut dyn Backend,
    peers: Option<&'a mut dyn Peers>,
    /// Largest workspace so far; `Some` while planning, when nothing is launched.
    planned: Option<Bytes>,
}

impl<'a> Pass<'a> {
    pub(crate) fn run(backend: &'a mut dyn Backend) -> Pass<'a> {
        Pass { backend, peers: None, planned: None }
    }

    pub(crate) fn run_with(backend: &'a mut dyn Backend, peers: &'a mut dyn Peers) -> Pass<'a> {
        Pass { backend, peers: Some(peers), planned: None }
    }

    pub(crate) fn plan(backend: &'a mut dyn Backend) -> Pass<'a> {
        Pass { backend, peers: None, planned: Some(Bytes(0)) }
    }

    /// Reserves what was planned.
    pub(crate) fn reserve(self) -> Result<(), TensorError> {
        self.planned.map_or(Ok(()), |most| self.backend.reserve_workspace(most))
    }

    pub(crate) fn is_planning(&self) -> bool {
        self.planned.is_some()
    }

    /// What the peers make of it, if there are any; while planning nobody is asked.
    pub(crate) fn ask<T>(
        &mut self,
        alone: T,
        question: impl FnOnce(&mut dyn Peers, &mut dyn Backend) -> Result<T, TensorError>,
    ) -> Result<T, TensorError> {
        match &mut self.peers {
            Some(peers) if self.planned.is_none() => question(&mut **peers, &mut *self.backend),
            _ => Ok(alone),
        }
    }

    pub(crate) fn launch(&mut self, op: impl Into<Op>) -> Result<(), TensorError> {
        let op = op.into();
        match &mut self.planned {
            None => self.backend.launch(Stream::Compute, &op),
            Some(most) => {
                op.check()?;
                *most = (*most).max(self.backend.workspace(&op)?);
                Ok(())
            }
        }
    }
}

/// Where a step stands. Only the host reads it: what operators need of it they read from the [`StepBlock`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct Now {
    /// Update, from 1; skipped steps do not count.
    pub(crate) t: u64,
    /// Learning rate of the schedule.
    pub(crate) lr: f64,
    /// Factor on the gradient (clipping).
    pub(crate) grad_scale: f64,
}

/// Numbers of a row of [`StepBlock`]: as many as the optimizer with most of them reads.
pub(crate) const STEP_NUMBERS: usize = 5;

/// Numbers that vary from step to step, in device memory: one row a parameter, which the operators of its update read. It is
/// written once a step, so the launches of a step are the same in every step.
#[derive(Debug)]
pub(crate) struct StepBlock {
    /// `[parameters, STEP_NUMBERS]`.
    view: View,
    host: Vec<f32>,
}

impl StepBlock {
    pub(crate) fn new(backend: &mut dyn Backend, params: usize) -> Result<StepBlock, TensorError> {
        let rows = params.max(1);
        let view = alloc(backend, "step numbers", rows, STEP_NUMBERS)?;
        Ok(StepBlock { view, host: vec![0.0; rows * STEP_NUMBERS] })
    }

    /// Sets the row of a parameter on the host.
    pub(crate) fn set(&mut self, param: usize, numbers: [f32; STEP_NUMBERS]) {
        self.host[param * STEP_NUMBERS..][..STEP_NUMBERS].copy_from_slice(&numbers);
    }

    /// Copies all rows to the device.
    pub(crate) fn write(&self, backend: &mut dyn Backend) -> Result<(), TensorError> {
        backend.write_f32(self.view, &self.host)
    }

    /// The row of a parameter.
    pub(crate) fn row(&self, param: usize) -> View {
        self.view.rows(param, 1)
    }
}

/// The parameter that is updated.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Updated<'a> {
    pub(crate) param: &'a OptimParam,
    /// Its number in the optimizer's list.
    pub(crate) number: usize,
    /// Its row of the [`StepBlock`].
    pub(crate) step: View,
}

/// An optimizer's state for one parameter.
pub(crate) trait Rule: std::fmt::Debug + Send {
    /// State tensors: kind (without a dot) and place.
    fn states(&self) -> Vec<(&'static str, StateView)>;

    /// What the operators of the update at `now` read from the parameter's row of the [`StepBlock`].
    fn step_numbers(&self, param: &OptimParam, now: &Now) -> [f32; STEP_NUMBERS];

    /// One update: the same launches in every step.
    fn update(&self, pass: &mut Pass<'_>, updated: &Updated<'_>) -> Result<(), TensorError>;

    /// Values were written from outside.
    fn adopt_values(&self, _pass: &mut Pass<'_>, _param: &OptimParam) -> Result<(), TensorError> {
        Ok(())
    }
}

/// A zeroed f32 matrix in class "optimizer".
pub(crate) fn alloc(
    backend: &mut dyn Backend,
    name: &str,
    rows: usize,
    cols: usize,
) -> Result<View, TensorError> {
    let spec = BufferSpec { class: "optimizer", name, dtype: DType::F32, len: rows * cols };
    Ok(backend.alloc(spec)?.matrix(rows, cols))
}

/// A zeroed f32 state "kind.name" of a parameter's shape.
pub(crate) fn alloc_like(
    backend: &mut dyn Backend,
    kind: &str,
    param: &OptimParam,
) -> Result<View, TensorError> {
    alloc(backend, &format!("{kind}.{}", param.name), param.value.rows, param.value.cols)
}

/// The first `rows * cols` elements of a scratch buffer as a matrix.
pub(crate) fn shaped(scratch: View, rows: usize, cols: usize) -> View {
    View { rows, cols, stride: cols, ..scratch }
}

/// Decoupled decay for an update at `lr * lr_scale` that decays by `lr * weight_decay`.
pub(crate) fn decay(param: &OptimParam, weight_decay: f64, lr_scale: f64) -> f32 {
    if param.decays { (weight_decay / lr_scale) as f32 } else { 0.0 }
}
