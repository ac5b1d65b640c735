//! What one optimizer does to one parameter, as launches that are planned and run by the same code.

use crate::param::OptimParam;
use crate::peers::Peers;
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
            None => self.backend.launch(Stream(0), &op),
            Some(most) => {
                op.check()?;
                *most = (*most).max(self.backend.workspace(&op)?);
                Ok(())
            }
        }
    }
}

/// Where a step stands.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Now {
    /// Update, from 1; skipped steps do not count.
    pub(crate) t: u64,
    /// Learning rate of the schedule.
    pub(crate) lr: f64,
    /// Factor on the gradient (clipping).
    pub(crate) grad_scale: f64,
    /// Number of the parameter that is updated.
    pub(crate) number: usize,
}

/// An optimizer's state for one parameter.
pub(crate) trait Rule: std::fmt::Debug + Send {
    /// State tensors: kind (without a dot) and place.
    fn states(&self) -> Vec<(&'static str, View)>;

    /// One update.
    fn update(&self, pass: &mut Pass<'_>, param: &OptimParam, now: &Now) -> Result<(), TensorError>;

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
