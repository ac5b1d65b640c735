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
//!
//! Of a matrix that is cut over the tensor axis every rank keeps the means of the whole one (they are small), and what has
//! one value an element is cut like the matrix. Gradient and value are gathered for the means and the sums of
//! squares, on every rank. Scratch then: two of the largest whole parameter.

use crate::config::{AdafactorConfig, OptimConfig};
use crate::param::OptimParam;
use crate::rule::{Now, Pass, Rule, STEP_NUMBERS, Updated, alloc, alloc_like, shaped};
use crate::state::StateView;
use bessemer_tensor::{Backend, TensorError, View, op};

/// Largest rate of relative steps.
const RELATIVE: f64 = 1e-2;

/// Scratch that all parameters share.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scratch {
    /// `[1, 2]`: sums of squares of direction and parameter.
    squares: View,
    /// Gradient and value of a whole parameter, where parameters are cut over the tensor axis.
    whole: Option<[View; 2]>,
}

impl Scratch {
    /// Space for the largest parameter of which there is a part.
    pub(crate) fn new(backend: &mut dyn Backend, params: &[OptimParam]) -> Result<Scratch, TensorError> {
        let whole = params.iter().filter_map(|p| p.whole.as_ref()).map(|w| w.rows * w.cols).max();
        let mut scratch = |name, len| alloc(backend, name, 1, len);
        let squares = scratch("adafactor squares", 2)?;
        let whole = match whole {
            None => None,
            Some(len) => Some([scratch("adafactor gradient", len)?, scratch("adafactor value", len)?]),
        };
        Ok(Scratch { squares, whole })
    }
}

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
    scratch: Scratch,
}

impl Adafactor {
    pub(crate) fn new(
        backend: &mut dyn Backend,
        param: &OptimParam,
        config: &OptimConfig,
        scratch: Scratch,
    ) -> Result<Adafactor, TensorError> {
        let (rows, cols) = param.whole_shape();
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
            scratch,
        })
    }
}

impl Rule for Adafactor {
    fn states(&self) -> Vec<(&'static str, StateView)> {
        let mut list = match self.second {
            Second::Factored { row, col } => vec![("row", row.into()), ("col", col.into())],
            Second::Whole(v) => vec![("v", v.into())],
        };
        list.extend(self.m.map(|m| ("m", m.into())));
        list
    }

    fn step_numbers(&self, param: &OptimParam, now: &Now) -> [f32; STEP_NUMBERS] {
        let (c, t) = (&self.config, now.t as f64);
        let decay = (1.0 - t.powf(-c.decay_power)) as f32;
        let lr = if c.relative_step { RELATIVE.min(t.powf(-0.5)) } else { now.lr * param.lr_scale };
        [1.0, now.grad_scale as f32, decay, 1.0, lr as f32]
    }

    fn update(&self, pass: &mut Pass<'_>, updated: &Updated<'_>) -> Result<(), TensorError> {
        let &Updated { param, number, step } = updated;
        let (c, grad, eps) = (&self.config, param.grad, self.config.eps as f32);
        let [factor, decay, rate] = [(0, 2), (0, 3), (3, 2)].map(|(first, n)| step.columns(first, n));
        let (rows, cols) = param.whole_shape();
        let whole =
            self.scratch.whole.filter(|_| param.whole.is_some()).map(|w| w.map(|w| shaped(w, rows, cols)));
        // Where the whole gradient is, and becomes the whole direction.
        let [all, values] = whole.unwrap_or([grad, param.value]);
        match self.second {
            Second::Factored { row, col } => {
                if whole.is_some() {
                    pass.ask((), |peers, backend| peers.gather(backend, number, grad, all))?;
                }
                pass.launch(op::FactoredMoments { grad: all, row, col, step: decay, eps })?;
                pass.launch(op::FactoredDirection { grad: all, row, col, step: factor, out: all })?;
                if whole.is_some() {
                    pass.ask((), |peers, backend| peers.keep(backend, number, all, grad))?;
                }
            }
            Second::Whole(v) => {
                pass.launch(op::MomentDirection { grad, v, step: decay, eps, out: grad })?;
                if whole.is_some() {
                    pass.ask((), |peers, backend| peers.gather(backend, number, grad, all))?;
                }
            }
        }
        let squares = self.scratch.squares;
        let [direction_squares, param_squares] = [0, 1].map(|i| squares.columns(i, 1));
        pass.launch(op::SumSquares { x: all, out: direction_squares, accumulate: false })?;
        if c.scale_parameter {
            if whole.is_some() {
                pass.ask((), |peers, backend| peers.gather(backend, number, param.value, values))?;
            }
            pass.launch(op::SumSquares { x: values, out: param_squares, accumulate: false })?;
        }
        pass.launch(op::AdafactorUpdate {
            param: param.value,
            direction: grad,
            direction_squares,
            param_squares: c.scale_parameter.then_some(param_squares),
            values: rows * cols,
            m: self.m,
            beta: c.momentum as f32,
            step: rate,
            eps: c.eps_parameter as f32,
            threshold: c.clip_threshold as f32,
            weight_decay: if param.decays { self.weight_decay as f32 } else { 0.0 },
        })
    }
}
