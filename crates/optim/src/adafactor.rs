//! Adafactor (Shazeer & Stern 2018): a second moment kept as row and column means, updates cut at a root mean square,
//! rates in proportion to the parameter's size.
//!
//! `b2 = 1 - t^-decay_power; R = b2 R + (1-b2) row means of g^2 + eps; C` likewise; `u = g / sqrt(R C^T / mean(R))`,
//! `u /= max(1, rms(u) / threshold)`, `alpha = max(eps2, rms(p)) lr`, `p = p (1 - alpha wd) - alpha u`. With momentum
//! the mean of past `alpha u` is subtracted instead. Relative steps take `lr = min(1e-2, t^-1/2)`. The form is that of
//! Hugging Face transformers. Vectors keep their whole second moment.
//!
//! State: 4 (rows + columns) bytes a matrix, 4 a value of a vector; with momentum 4 more a value. The step leaves the
//! direction in the gradient's place, so it needs no scratch.

use crate::config::{AdafactorConfig, OptimConfig};
use crate::param::OptimParam;
use crate::rule::{Now, Pass, Rule, alloc, alloc_like};
use bessemer_tensor::{Backend, TensorError, View, op};

/// Largest rate of relative steps.
const RELATIVE: f64 = 1e-2;

#[derive(Debug)]
enum Second {
    Factored { row: View, col: View },
    Whole(View),
}

#[derive(Debug)]
pub(crate) struct Adafactor {
    config: AdafactorConfig,
    weight_decay: f64,
    second: Second,
    m: Option<View>,
    /// `[1, 2]`, shared: sums of squares of direction and parameter.
    squares: View,
}

impl Adafactor {
    /// `squares`: two values of scratch that all parameters may share.
    pub(crate) fn new(
        backend: &mut dyn Backend,
        param: &OptimParam,
        config: &OptimConfig,
        squares: View,
    ) -> Result<Adafactor, TensorError> {
        let (rows, cols) = (param.value.rows, param.value.cols);
        let second = if rows > 1 && cols > 1 {
            Second::Factored {
                row: alloc(backend, &format!("row.{}", param.name), 1, rows)?,
                col: alloc(backend, &format!("col.{}", param.name), 1, cols)?,
            }
        } else {
            Second::Whole(alloc_like(backend, "v", param)?)
        };
        let momentum = config.adafactor.momentum > 0.0;
        Ok(Adafactor {
            config: config.adafactor.clone(),
            weight_decay: config.weight_decay,
            second,
            m: if momentum { Some(alloc_like(backend, "m", param)?) } else { None },
            squares,
        })
    }
}

impl Rule for Adafactor {
    fn states(&self) -> Vec<(&'static str, View)> {
        let mut list = match self.second {
            Second::Factored { row, col } => vec![("row", row), ("col", col)],
            Second::Whole(v) => vec![("v", v)],
        };
        list.extend(self.m.map(|m| ("m", m)));
        list
    }

    fn update(&self, pass: &mut Pass<'_>, param: &OptimParam, now: &Now) -> Result<(), TensorError> {
        let (c, grad, t) = (&self.config, param.grad, now.t as f64);
        let decay = (1.0 - t.powf(-c.decay_power)) as f32;
        let (grad_scale, eps) = (now.grad_scale as f32, c.eps as f32);
        match self.second {
            Second::Factored { row, col } => {
                pass.launch(op::FactoredMoments { grad, grad_scale, row, col, decay, eps })?;
                pass.launch(op::FactoredDirection { grad, grad_scale, row, col, out: grad })?;
            }
            Second::Whole(v) => {
                pass.launch(op::MomentDirection { grad, grad_scale, v, decay, eps, out: grad })?;
            }
        }
        let [direction_squares, param_squares] = [0, 1].map(|i| self.squares.columns(i, 1));
        pass.launch(op::SumSquares { x: grad, out: direction_squares, accumulate: false })?;
        if c.scale_parameter {
            pass.launch(op::SumSquares { x: param.value, out: param_squares, accumulate: false })?;
        }
        let lr = if c.relative_step { RELATIVE.min(t.powf(-0.5)) } else { now.lr * param.lr_scale };
        pass.launch(op::AdafactorUpdate {
            param: param.value,
            direction: grad,
            direction_squares,
            param_squares: c.scale_parameter.then_some(param_squares),
            m: self.m,
            beta: c.momentum as f32,
            lr: lr as f32,
            eps: c.eps_parameter as f32,
            threshold: c.clip_threshold as f32,
            weight_decay: if param.decays { self.weight_decay as f32 } else { 0.0 },
        })
    }
}
