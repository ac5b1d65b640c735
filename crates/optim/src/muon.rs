//! Muon (Jordan et al. 2024): the momentum of a hidden matrix, made nearly orthogonal by an odd matrix polynomial.
//!
//! `m = mu m + (1-mu) g; u = mu m + (1-mu) g` (Nesterov) or m; `X = u / |u|_F`; repeat `X = a X + (b G + c G^2) X` with
//! `G = X X^T` (or on the right with `X^T X` if the matrix is tall), which drives every singular value towards 1;
//! `p = p (1 - lr wd) - lr s X`. Scale s: sqrt(max(1, rows/cols)) (Jordan), or 0.2 sqrt(max(rows, cols)), which gives
//! the updates the root mean square of AdamW's, so that both share one rate (Liu et al. 2025, Moonlight). Coefficients:
//! Jordan's Newton-Schulz, or those of the Polar Express (Amsel et al. 2025).
//!
//! A fused matrix is treated block by block (see [`OptimParam::of`]). State: 4 bytes a parameter. Scratch, once: two
//! matrices of the size of the largest block and two squares of the largest short side.
//!
//! Of a matrix that is cut over the tensor axis each rank keeps the momentum of its part only: it is formed element by
//! element, so this takes 1/t of the memory and moves nothing. u is gathered before it is orthogonalised, on every
//! rank, which keeps its part of X: elements of the matrix times (t-1)/t from each rank, against twice that if ranks shared
//! the products out and sent the results back. Scratch then: the largest whole matrix and the largest part as well.

use crate::config::{MuonConfig, MuonMethod, MuonScale, OptimConfig};
use crate::param::OptimParam;
use crate::rule::{Now, Pass, Rule, STEP_NUMBERS, Updated, alloc, alloc_like, decay, shaped};
use crate::state::StateView;
use bessemer_tensor::{Backend, TensorError, View, op};

type Polynomial = (f64, f64, f64);

/// a, b, c of every step (Jordan et al. 2024).
const NEWTON_SCHULZ: Polynomial = (3.4445, -4.7750, 2.0315);

/// a, b, c of successive steps (Amsel et al. 2025, as used by nanochat: least singular value 1e-3, cushion 2e-2);
/// the last is repeated.
const POLAR_EXPRESS: [Polynomial; 5] = [
    (8.156554524902461, -22.48329292557795, 15.878769915207462),
    (4.042929935166739, -2.808917465908714, 0.5000178451051316),
    (3.8916678022926607, -2.772484153217685, 0.5060648178503393),
    (3.285753657755655, -2.3681294933425376, 0.46449024233003106),
    (2.3465413258596377, -1.7097828382687081, 0.42323551169305323),
];

/// Scratch that all matrices share.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scratch {
    x: [View; 2],
    gram: [View; 2],
    squares: View,
    /// A whole matrix and a part of one, where matrices are cut over the tensor axis.
    whole: Option<(View, View)>,
}

impl Scratch {
    /// Space for the largest block.
    pub(crate) fn new(backend: &mut dyn Backend, params: &[OptimParam]) -> Result<Scratch, TensorError> {
        let (mut size, mut side, mut whole, mut part) = (0, 0, 0, 0);
        for param in params.iter().filter(|p| !p.blocks.is_empty()) {
            let (rows, cols) = param.whole_shape();
            for &rows in param.whole_blocks() {
                size = size.max(rows * cols);
                side = side.max(rows.min(cols));
            }
            if param.whole.is_some() {
                (whole, part) = (whole.max(rows * cols), part.max(param.value.len()));
            }
        }
        let mut scratch = |name, len| alloc(backend, name, 1, len);
        Ok(Scratch {
            x: [scratch("muon x", size)?, scratch("muon next", size)?],
            gram: [scratch("muon gram", side * side)?, scratch("muon gram squared", side * side)?],
            squares: scratch("muon norm", 1)?,
            whole: match whole {
                0 => None,
                _ => Some((scratch("muon whole", whole)?, scratch("muon part", part)?)),
            },
        })
    }
}

#[derive(Debug)]
pub(crate) struct Muon {
    config: MuonConfig,
    /// Muon's rate over the schedule's.
    lr_ratio: f64,
    weight_decay: f64,
    m: View,
    scratch: Scratch,
}

impl Muon {
    pub(crate) fn new(
        backend: &mut dyn Backend,
        param: &OptimParam,
        config: &OptimConfig,
        scratch: Scratch,
    ) -> Result<Muon, TensorError> {
        Ok(Muon {
            config: config.muon.clone(),
            lr_ratio: config.lr_ratio(config.muon.lr),
            weight_decay: config.weight_decay,
            m: alloc_like(backend, "m", param)?,
            scratch,
        })
    }

    /// Launches that leave the orthogonalised `x` in the view that is returned.
    fn orthogonalise(&self, pass: &mut Pass<'_>, x: View) -> Result<View, TensorError> {
        let squares = self.scratch.squares;
        pass.launch(op::SumSquares { x, out: squares, accumulate: false })?;
        let (slack, eps) = match self.config.method {
            MuonMethod::NewtonSchulz => (1.0, 1e-7),
            MuonMethod::PolarExpress => (1.01, 1e-6),
        };
        pass.launch(op::DivideByNorm { x, squares, slack, eps, out: x })?;
        let side = x.rows.min(x.cols);
        let [gram, square] = self.scratch.gram.map(|g| shaped(g, side, side));
        let mut from = x;
        let mut to = shaped(self.scratch.x[1], x.rows, x.cols);
        for step in 0..self.config.steps as usize {
            let (a, b, c) = match self.config.method {
                MuonMethod::NewtonSchulz => NEWTON_SCHULZ,
                MuonMethod::PolarExpress => POLAR_EXPRESS[step.min(POLAR_EXPRESS.len() - 1)],
            };
            let wide = x.rows <= x.cols;
            if wide {
                pass.launch(product_transposed(from, from, gram))?;
            } else {
                let (dweight, dbias, accumulate) = (gram, None, false);
                pass.launch(op::LinearBackwardWeight { x: from, dy: from, dweight, dbias, accumulate })?;
            }
            // A symmetric matrix times its transpose is its square.
            pass.launch(product_transposed(gram, gram, square))?;
            pass.launch(op::Combine {
                a: gram,
                alpha: b as f32,
                b: square,
                beta: c as f32,
                step: None,
                out: square,
            })?;
            let (dy, weight) = if wide { (square, from) } else { (from, square) };
            pass.launch(op::LinearBackwardInput { dy, weight, activation: None, dx: to, accumulate: false })?;
            pass.launch(op::Combine { a: from, alpha: a as f32, b: to, beta: 1.0, step: None, out: to })?;
            std::mem::swap(&mut from, &mut to);
        }
        Ok(from)
    }
}

/// `out = a b^T`.
fn product_transposed(a: View, b: View, out: View) -> op::Linear {
    op::Linear { x: a, weight: b, bias: None, activation: None, residual: None, rowwise: false, out }
}

impl Rule for Muon {
    fn states(&self) -> Vec<(&'static str, StateView)> {
        vec![("m", self.m.into())]
    }

    fn step_numbers(&self, param: &OptimParam, now: &Now) -> [f32; STEP_NUMBERS] {
        let fresh = ((1.0 - self.config.momentum) * now.grad_scale) as f32;
        let lr = (now.lr * self.lr_ratio * self.lr_scale(param)) as f32;
        [1.0, 1.0, lr, 1.0, fresh]
    }

    fn update(&self, pass: &mut Pass<'_>, updated: &Updated<'_>) -> Result<(), TensorError> {
        let &Updated { param, number, step } = updated;
        let Some((whole, part)) = self.scratch.whole.filter(|_| param.whole.is_some()) else {
            for (first, rows) in param.block_rows() {
                let x = shaped(self.scratch.x[0], rows, param.value.cols);
                self.accumulate(pass, param.grad.rows(first, rows), self.m.rows(first, rows), x, step)?;
                let x = self.orthogonalise(pass, x)?;
                let block = (rows, param.value.cols);
                self.subtract(pass, param, param.value.rows(first, rows), (x, block), step)?;
            }
            return Ok(());
        };
        let (rows, cols) = param.whole_shape();
        let whole = shaped(whole, rows, cols);
        let part = shaped(part, param.value.rows, param.value.cols);
        self.accumulate(pass, param.grad, self.m, part, step)?;
        pass.ask((), |peers, backend| peers.gather(backend, number, part, whole))?;
        for (first, rows) in param.whole_block_rows() {
            let x = whole.rows(first, rows);
            let found = self.orthogonalise(pass, x)?;
            if found != x {
                pass.launch(op::Copy { src: found, dst: x })?;
            }
        }
        pass.ask((), |peers, backend| peers.keep(backend, number, whole, part))?;
        // A part has some rows, or some columns, of every block.
        for ((first, rows), &block) in param.block_rows().zip(param.whole_blocks()) {
            let x = part.rows(first, rows);
            self.subtract(pass, param, param.value.rows(first, rows), (x, (block, cols)), step)?;
        }
        Ok(())
    }
}

impl Muon {
    /// Factor on the learning rate. Jordan's scale is in terms of the spectral norm, which muP wants constant over widths.
    fn lr_scale(&self, param: &OptimParam) -> f64 {
        match self.config.scale {
            MuonScale::Jordan => 1.0,
            MuonScale::Moonlight => param.lr_scale,
        }
    }

    /// The momentum with the gradient, and u in `x`.
    fn accumulate(
        &self,
        pass: &mut Pass<'_>,
        g: View,
        m: View,
        x: View,
        step: View,
    ) -> Result<(), TensorError> {
        let (alpha, step) = (self.config.momentum as f32, Some(step.columns(3, 2)));
        pass.launch(op::Combine { a: m, alpha, b: g, beta: 1.0, step, out: m })?;
        if self.config.nesterov {
            pass.launch(op::Combine { a: m, alpha, b: g, beta: 1.0, step, out: x })
        } else {
            pass.launch(op::Copy { src: m, dst: x })
        }
    }

    /// Decay and the step along `x`, which is (a part of) the orthogonalised block of so many rows and columns.
    fn subtract(
        &self,
        pass: &mut Pass<'_>,
        param: &OptimParam,
        value: View,
        (x, (rows, cols)): (View, (usize, usize)),
        step: View,
    ) -> Result<(), TensorError> {
        let scale = match self.config.scale {
            MuonScale::Jordan => (rows as f64 / cols as f64).max(1.0).sqrt(),
            MuonScale::Moonlight => 0.2 * (rows.max(cols) as f64).sqrt(),
        };
        pass.launch(op::Sgd {
            param: value,
            grad: x,
            m: None,
            momentum: 0.0,
            nesterov: false,
            step: step.columns(0, 3),
            weight_decay: decay(param, self.weight_decay, self.lr_scale(param)),
            scale: scale as f32,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bessemer_kernels_cpu::{CpuBackend, CpuConfig};

    /// The polynomial applied to a matrix.
    fn orthogonal(method: MuonMethod, steps: u64, (rows, cols): (usize, usize), values: &[f32]) -> Vec<f32> {
        let mut b = CpuBackend::new(CpuConfig { threads: 1, ..CpuConfig::default() }).expect("a CPU");
        let value = alloc(&mut b, "w", rows, cols).expect("memory");
        let param = OptimParam { blocks: vec![rows], ..OptimParam::new("w", value, value, true) };
        let config = OptimConfig {
            muon: MuonConfig { method, steps, ..MuonConfig::default() },
            ..OptimConfig::default()
        };
        let scratch = Scratch::new(&mut b, std::slice::from_ref(&param)).expect("memory");
        let muon = Muon::new(&mut b, &param, &config, scratch).expect("memory");
        let x = shaped(scratch.x[0], rows, cols);
        let mut plan = Pass::plan(&mut b);
        muon.orthogonalise(&mut plan, x).expect("a plan");
        plan.reserve().expect("memory");
        b.write_f32(x, values).expect("a copy");
        let out = muon.orthogonalise(&mut Pass::run(&mut b), x).expect("a result");
        let mut found = vec![0.0; rows * cols];
        b.read_f32(out, &mut found).expect("a copy");
        found
    }

    /// Values of the published iteration in f64. A scalar is what a singular value becomes: it is divided by its own norm
    /// first, so it stands beside a second one that makes the norm 1.
    #[test]
    fn five_steps_have_the_published_values() {
        let newton = |shape, values: &[f32]| orthogonal(MuonMethod::NewtonSchulz, 5, shape, values);
        let cases: [(_, &[f32], &[f64]); 2] = [
            ((2, 2), &[1.0, 0.5, 0.5, 1.0], &[0.943_369_83, -0.190_336_38, -0.190_336_38, 0.943_369_83]),
            (
                (3, 2),
                &[2.0, 0.0, 1.0, 1.0, 0.0, 3.0],
                &[0.625_719_11, 0.015_901_19, 0.320_810_15, 0.360_563_12, 0.023_851_79, 1.057_837_58],
            ),
        ];
        for (shape, values, gold) in cases {
            for (found, wanted) in newton(shape, values).iter().zip(gold) {
                assert!((f64::from(*found) - wanted).abs() < 2e-5, "{found}, wanted {wanted}");
            }
        }
        for (value, wanted) in [(1e-2f32, 0.698_917), (0.1, 0.712_120)] {
            let other = (1.0 - value * value).sqrt();
            let found = newton((2, 2), &[value, 0.0, 0.0, other]);
            assert!((found[0] - wanted).abs() < 2e-4, "{value}: {found:?}, wanted {wanted}");
        }
        assert!((newton((1, 1), &[3.0])[0] - 0.696_436).abs() < 2e-5);
    }

    /// The Polar Express sends 0.2 to 0.872253; here the norm is divided by 1.01 as well, so 0.202 stands for 0.2.
    #[test]
    fn the_polar_express_has_the_published_value_and_brings_all_singular_values_near_one() {
        let of = |values: &[f32]| orthogonal(MuonMethod::PolarExpress, 5, (2, 2), values);
        let value = 0.202f32;
        let found = of(&[value, 0.0, 0.0, (1.0 - value * value).sqrt()]);
        assert!((found[0] - 0.872_253).abs() < 1e-3, "{found:?}");
        for value in [0.01f32, 0.05, 0.3, 0.7] {
            let found = of(&[value, 0.0, 0.0, (1.0 - value * value).sqrt()]);
            assert!((0.8..1.2).contains(&found[0]) && (0.8..1.2).contains(&found[3]), "{value}: {found:?}");
        }
    }
}
