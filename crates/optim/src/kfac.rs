//! K-FAC (Martens & Grosse 2015) for the hidden matrices, with the empirical Fisher matrix.
//!
//! For a linear layer with inputs a and gradients g of its outputs, both per token, the curvature is taken as
//! `A (x) B` with `A = E[a a^T]`, `B = E[g g^T]` (running means). The gradient G `[outputs, inputs]` becomes
//! `P = (B + gB I)^-1 G (A + gA I)^-1` with `gA = sqrt(damping) pi`, `gB = sqrt(damping) / pi`,
//! `pi^2 = (tr A / inputs) / (tr B / outputs)`, each at least 1e-7. All P are scaled by
//! `nu = min(1, sqrt(kl_clip / (lr^2 sum of P.G)))` (Ba et al. 2017); then momentum and decoupled decay.
//!
//! Work comes in pieces that need not follow each other at once, so that a pipeline can put them into its bubbles
//! (Osawa et al. 2023, PipeFisher): [`Kfac::capture`] during the backward pass, [`Kfac::commit`] after it,
//! [`Kfac::invert`] layer by layer, [`Kfac::precondition`] layer by layer. B of a fused matrix has one block a matrix
//! (queries, keys, values; gate, up), with nothing between them. Biases, norms, tables and the head are left to AdamW.
//!
//! State of a matrix `[O, I]` with blocks of O_b rows: `4 (2 I^2 + 2 sum O_b^2 + O I)` bytes (factors, inverses,
//! momentum); `4 (I^2 + sum O_b^2)` more for the batch at hand. Scratch, once: two squares of the largest side and two
//! matrices of the largest block.

use crate::config::{KfacConfig, OptimConfig};
use crate::error::OptimError;
use crate::param::OptimParam;
use crate::rule::{Now, Pass, alloc, alloc_like, decay, shaped};
use bessemer_tensor::{Backend, Buffer, TensorError, View, op};
use bessemer_units::DType;

/// Least damping of a factor.
const FLOOR: f64 = 1e-7;
/// Times that the damping of a factor that is not positive definite is raised tenfold.
const ATTEMPTS: i32 = 8;

/// A factor of the curvature.
#[derive(Debug, Clone, Copy)]
struct Factor {
    mean: View,
    inverse: View,
    /// Sum over the batch at hand.
    batch: View,
}

impl Factor {
    fn new(
        backend: &mut dyn Backend,
        kind: &str,
        param: &OptimParam,
        n: usize,
    ) -> Result<Factor, TensorError> {
        let mut square = |what: &str| alloc(backend, &format!("{kind}{what}.{}", param.name), n, n);
        Ok(Factor { mean: square("")?, inverse: square("_inverse")?, batch: square("_batch")? })
    }
}

#[derive(Debug)]
struct Layer {
    /// Number in the list of parameters.
    param: usize,
    a: Factor,
    /// One factor a block, with its first row.
    b: Vec<(usize, Factor)>,
    m: Option<View>,
    /// Tokens captured for the batch at hand.
    tokens: usize,
}

/// K-FAC over the hidden matrices of a list of parameters.
#[derive(Debug)]
pub(crate) struct Kfac {
    config: KfacConfig,
    lr_ratio: f64,
    weight_decay: f64,
    layers: Vec<Layer>,
    square: [View; 2],
    matrix: [View; 2],
    /// `[1, blocks]`: sums of P.G.
    dots: View,
    host_dots: Vec<f32>,
    /// Diagonals on the host.
    host: Vec<f32>,
    /// `[1, 2]`: batches in the means, inversions done.
    counts: View,
    batches: f32,
    inversions: f32,
}

impl Kfac {
    pub(crate) fn new(
        backend: &mut dyn Backend,
        params: &[OptimParam],
        config: &OptimConfig,
    ) -> Result<Kfac, TensorError> {
        let mut layers = Vec::new();
        let (mut side, mut size, mut blocks) = (1, 1, 0);
        for (param, p) in params.iter().enumerate().filter(|(_, p)| !p.blocks.is_empty()) {
            let inputs = p.value.cols;
            let mut b = Vec::with_capacity(p.blocks.len());
            for (number, (first, rows)) in p.block_rows().enumerate() {
                b.push((first, Factor::new(backend, &format!("b{number}"), p, rows)?));
                (side, size) = (side.max(rows), size.max(rows * inputs));
            }
            side = side.max(inputs);
            blocks += b.len();
            let momentum = config.kfac.momentum > 0.0;
            let m = if momentum { Some(alloc_like(backend, "m", p)?) } else { None };
            layers.push(Layer { param, a: Factor::new(backend, "a", p, inputs)?, b, m, tokens: 0 });
        }
        let mut scratch = |name, len| alloc(backend, name, 1, len);
        Ok(Kfac {
            config: config.kfac.clone(),
            lr_ratio: config.lr_ratio(config.kfac.lr),
            weight_decay: config.weight_decay,
            layers,
            square: [scratch("kfac factor", side * side)?, scratch("kfac inverse", side * side)?],
            matrix: [scratch("kfac product", size)?, scratch("kfac direction", size)?],
            dots: scratch("kfac dots", blocks.max(1))?,
            host_dots: vec![0.0; blocks.max(1)],
            host: vec![0.0; side],
            counts: scratch("kfac_counts", 2)?,
            batches: 0.0,
            inversions: 0.0,
        })
    }

    /// Whether step `t`, from 1, needs the layers' inputs and output gradients.
    pub(crate) fn captures(&self, t: u64) -> bool {
        self.batches == 0.0 || (t - 1).is_multiple_of(self.config.curvature_every)
    }

    /// Adds a micro-batch to the batch at hand: parameter `param` has inputs x `[n, inputs]` and gradients dy
    /// `[n, outputs]`, which carry the factor 1 / (tokens of the step). Without `accumulate` a new batch begins.
    pub(crate) fn capture(
        &mut self,
        pass: &mut Pass<'_>,
        param: usize,
        x: View,
        dy: View,
        accumulate: bool,
    ) -> Result<(), TensorError> {
        let Some(layer) = self.layers.iter_mut().find(|l| l.param == param) else { return Ok(()) };
        layer.tokens = x.rows + if accumulate { layer.tokens } else { 0 };
        let mut square = |x: View, sum: View| {
            pass.launch(op::LinearBackwardWeight { x, dy: x, dweight: sum, dbias: None, accumulate })
        };
        square(x, layer.a.batch)?;
        for (first, factor) in &layer.b {
            square(dy.columns(*first, factor.mean.rows), factor.batch)?;
        }
        Ok(())
    }

    /// Forgets the batch at hand.
    pub(crate) fn discard(&mut self) {
        self.layers.iter_mut().for_each(|l| l.tokens = 0);
    }

    /// Moves the batch at hand into the running means: plain means at first, then with the configured decay.
    pub(crate) fn commit(&mut self, pass: &mut Pass<'_>) -> Result<(), TensorError> {
        let planning = pass.is_planning();
        if !planning && self.layers.iter().all(|l| l.tokens == 0) {
            return Ok(());
        }
        let keep = self.config.decay.min(f64::from(self.batches) / (f64::from(self.batches) + 1.0));
        for layer in &mut self.layers {
            let tokens = layer.tokens.max(1) as f64;
            let mut mix = |f: &Factor, factor: f64| {
                let (alpha, beta) = (keep as f32, ((1.0 - keep) * factor) as f32);
                pass.launch(op::Combine { a: f.mean, alpha, b: f.batch, beta, out: f.mean })
            };
            mix(&layer.a, 1.0 / tokens)?;
            for (_, factor) in &layer.b {
                // dy is the token's gradient over the tokens of the step: E[g g^T] = tokens * sum of dy dy^T.
                mix(factor, tokens)?;
            }
            layer.tokens = 0;
        }
        if !planning {
            self.batches += 1.0;
            self.write_counts(pass)?;
        }
        Ok(())
    }

    fn write_counts(&self, pass: &mut Pass<'_>) -> Result<(), TensorError> {
        pass.backend.write_f32(self.counts, &[self.batches, self.inversions])
    }

    /// Reads back how far the state is.
    pub(crate) fn adopt_state(&mut self, backend: &mut dyn Backend) -> Result<(), TensorError> {
        let mut counts = [0.0; 2];
        backend.read_f32(self.counts, &mut counts)?;
        [self.batches, self.inversions] = counts;
        Ok(())
    }

    /// New inverses of one layer's factors.
    pub(crate) fn invert(
        &mut self,
        pass: &mut Pass<'_>,
        number: usize,
        params: &[OptimParam],
    ) -> Result<(), OptimError> {
        let (a, inputs, outputs) = {
            let layer = &self.layers[number];
            (layer.a, layer.a.mean.rows, params[layer.param].value.rows)
        };
        let trace_a = self.trace(pass, a.mean)?;
        let mut trace_b = 0.0;
        for i in 0..self.layers[number].b.len() {
            let mean = self.layers[number].b[i].1.mean;
            trace_b += self.trace(pass, mean)?;
        }
        let pi = ((trace_a / inputs as f64) / (trace_b / outputs as f64)).sqrt();
        let pi = if pi.is_finite() && pi > 0.0 { pi } else { 1.0 };
        let root = self.config.damping.sqrt();
        let name = &params[self.layers[number].param].name;
        self.invert_factor(pass, a, (root * pi).max(FLOOR), name)?;
        for i in 0..self.layers[number].b.len() {
            let factor = self.layers[number].b[i].1;
            self.invert_factor(pass, factor, (root / pi).max(FLOOR), name)?;
        }
        Ok(())
    }

    /// Sum of the diagonal.
    fn trace(&mut self, pass: &mut Pass<'_>, square: View) -> Result<f64, TensorError> {
        let host = self.read_diagonal(pass, square)?;
        Ok(host.iter().map(|&x| f64::from(x)).sum())
    }

    fn read_diagonal(&mut self, pass: &mut Pass<'_>, square: View) -> Result<&[f32], TensorError> {
        let n = square.rows;
        let host = &mut self.host[..n];
        if pass.is_planning() {
            host.fill(1.0);
        } else {
            pass.backend.read_f32(View { cols: 1, stride: square.stride + 1, ..square }, host)?;
        }
        Ok(host)
    }

    /// `(mean + shift I)^-1` by Cholesky factors, with a larger shift if rounding left the mean indefinite.
    fn invert_factor(
        &mut self,
        pass: &mut Pass<'_>,
        factor: Factor,
        shift: f64,
        name: &str,
    ) -> Result<(), OptimError> {
        let n = factor.mean.rows;
        let [l, inverse] = self.square.map(|s| shaped(s, n, n));
        for attempt in 0..=ATTEMPTS {
            let shift = shift * 10f64.powi(attempt);
            pass.launch(op::Cholesky { a: factor.mean, shift: shift as f32, l })?;
            if self.read_diagonal(pass, l)?.iter().all(|d| d.is_finite()) {
                pass.launch(op::TriangularInverse { l, out: inverse })?;
                let (x, dweight) = (inverse, factor.inverse);
                pass.launch(op::LinearBackwardWeight { x, dy: x, dweight, dbias: None, accumulate: false })?;
                return Ok(());
            }
        }
        Err(OptimError::Singular { name: name.into(), shift: shift * 10f64.powi(ATTEMPTS) })
    }

    /// Puts the preconditioned gradient of one layer in its gradient's place and leaves P.G of its blocks in `dots`.
    fn precondition(
        &self,
        pass: &mut Pass<'_>,
        number: usize,
        first_dot: usize,
        grad: View,
    ) -> Result<(), TensorError> {
        let layer = &self.layers[number];
        for (i, (first, factor)) in layer.b.iter().enumerate() {
            let g = grad.rows(*first, factor.mean.rows);
            let [half, p] = self.matrix.map(|m| shaped(m, g.rows, g.cols));
            let mut product = |dy, weight, dx| {
                pass.launch(op::LinearBackwardInput { dy, weight, activation: None, dx, accumulate: false })
            };
            product(g, layer.a.inverse, half)?;
            product(factor.inverse, half, p)?;
            pass.launch(op::Dot { a: p, b: g, out: self.dots.columns(first_dot + i, 1) })?;
            pass.launch(op::Copy { src: p, dst: g })?;
        }
        Ok(())
    }

    /// The whole step of all layers. Gradients hold the preconditioned ones afterwards.
    pub(crate) fn step(
        &mut self,
        pass: &mut Pass<'_>,
        params: &[OptimParam],
        now: &Now,
    ) -> Result<(), OptimError> {
        let planning = pass.is_planning();
        self.commit(pass)?;
        if self.batches == 0.0 && !planning {
            return Err(OptimError::NoCurvature);
        }
        if planning || self.inversions == 0.0 || (now.t - 1).is_multiple_of(self.config.inverse_every) {
            for number in 0..self.layers.len() {
                self.invert(pass, number, params)?;
            }
            if !planning {
                self.inversions += 1.0;
                self.write_counts(pass)?;
            }
        }
        let mut dot = 0;
        for (number, layer) in self.layers.iter().enumerate() {
            self.precondition(pass, number, dot, params[layer.param].grad)?;
            dot += layer.b.len();
        }
        let lr = now.lr * self.lr_ratio;
        let mut nu = 1.0;
        if self.config.kl_clip > 0.0 && !planning {
            pass.backend.read_f32(self.dots, &mut self.host_dots)?;
            let sum: f64 = self.host_dots.iter().map(|&d| f64::from(d)).sum();
            let square = (lr * now.grad_scale).powi(2) * sum;
            nu = if square > 0.0 { (self.config.kl_clip / square).sqrt().min(1.0) } else { 1.0 };
        }
        for layer in &self.layers {
            let param = &params[layer.param];
            pass.launch(op::Sgd {
                param: param.value,
                grad: param.grad,
                m: layer.m,
                momentum: self.config.momentum as f32,
                nesterov: false,
                lr: lr as f32,
                weight_decay: decay(param, self.weight_decay, 1.0),
                grad_scale: (now.grad_scale * nu) as f32,
            })?;
        }
        Ok(())
    }

    /// Plans the capture of micro-batches of `tokens` tokens kept as `dtype`.
    pub(crate) fn plan_capture(
        &mut self,
        pass: &mut Pass<'_>,
        params: &[OptimParam],
        tokens: usize,
        dtype: DType,
    ) -> Result<(), TensorError> {
        for number in 0..self.layers.len() {
            let param = self.layers[number].param;
            let value = params[param].value;
            // Views that are never launched: workspace depends on shapes alone.
            let of = |id, cols| Buffer { id, len: tokens * cols, dtype }.matrix(tokens, cols);
            self.capture(pass, param, of(u32::MAX, value.cols), of(u32::MAX - 1, value.rows), false)?;
        }
        self.discard();
        Ok(())
    }

    /// Parameters that this steps, by number.
    pub(crate) fn is_mine(&self, param: usize) -> bool {
        self.layers.iter().any(|l| l.param == param)
    }

    pub(crate) fn states(&self, params: &[OptimParam]) -> Vec<(String, View)> {
        let mut list = vec![("kfac_counts".to_owned(), self.counts)];
        for layer in &self.layers {
            let name = &params[layer.param].name;
            let mut factor = |kind: String, f: &Factor| {
                list.push((format!("{kind}.{name}"), f.mean));
                list.push((format!("{kind}_inverse.{name}"), f.inverse));
            };
            factor("a".into(), &layer.a);
            for (i, (_, b)) in layer.b.iter().enumerate() {
                factor(format!("b{i}"), b);
            }
            list.extend(layer.m.map(|m| (format!("m.{name}"), m)));
        }
        list
    }
}
