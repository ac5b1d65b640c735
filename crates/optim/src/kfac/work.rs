//! K-FAC's work in units: what each needs, costs and does.

use super::{Factor, Kept, Kfac};
use crate::cost::inverse_flops;
use crate::error::OptimError;
use crate::param::OptimParam;
use crate::rule::{Pass, shaped};
use bessemer_tensor::{TensorError, View, op};

/// Least damping of a factor.
const FLOOR: f64 = 1e-7;
/// Times that the damping of a factor that is not positive definite is raised tenfold.
const ATTEMPTS: i32 = 8;

/// A unit of K-FAC's work. Factors and layers go by their number, layers in the order of the parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KfacWork {
    /// A micro-batch is added to a factor. Needs the inputs of the linear map, which are there after its forward pass, or
    /// the gradients of its outputs.
    Curvature {
        /// Factor.
        factor: usize,
        /// Parameter, by its number.
        param: usize,
        /// Which: of the outputs' gradients, not of the inputs.
        outputs: bool,
        /// Micro-batch of this rank, from 0.
        micro: usize,
    },
    /// What the ranks have captured of a factor is summed and joins the running mean.
    Sync {
        /// Factor.
        factor: usize,
    },
    /// A new inverse of a factor.
    Invert {
        /// Factor.
        factor: usize,
    },
    /// The new inverse of a factor reaches the other copies of its state; all copies take part.
    Spread {
        /// Factor.
        factor: usize,
    },
    /// The gradient of a layer becomes the direction of its step, by the newest inverses. Needs the whole step's gradient.
    Precondition {
        /// Layer.
        layer: usize,
    },
}

/// A unit with its cost and what must come first.
#[derive(Debug, Clone, PartialEq)]
pub struct KfacUnit {
    /// Kind of work.
    pub work: KfacWork,
    /// Operations on this rank.
    pub flops: f64,
    /// Elements that travel, if there is anybody to send them to: those of the factor.
    pub elements: usize,
    /// Units of the same list, by number, that must be done before.
    pub after: Vec<usize>,
}

impl Kfac {
    /// The units of one refresh of everything that this rank has a part in, and of one step: an order in which they may
    /// be done, the same for all ranks that take part in one. Directions wait for no inverse: a step takes the newest
    /// there is.
    pub(crate) fn units(&self, params: &[OptimParam], micro_batches: usize, tokens: usize) -> Vec<KfacUnit> {
        let mut list: Vec<KfacUnit> = Vec::new();
        let mut captured = vec![None; self.factors.len()];
        for micro in 0..micro_batches {
            for (factor, f) in self.factors.iter().enumerate() {
                let (param, outputs) = (self.layers[f.layer].param, f.outputs);
                let work = KfacWork::Curvature { factor, param, outputs, micro };
                let flops = 2.0 * tokens as f64 * (f.n * f.n) as f64;
                let after = captured[factor].into_iter().collect();
                captured[factor] = Some(list.len());
                list.push(KfacUnit { work, flops, elements: 0, after });
            }
        }
        let first_sync = list.len();
        for (factor, f) in self.factors.iter().enumerate() {
            let elements = if self.ranks.data > 1 { f.n * f.n } else { 0 };
            let flops = if f.kept.is_some() { 3.0 * (f.n * f.n) as f64 } else { 0.0 };
            let after = captured[factor].into_iter().collect();
            list.push(KfacUnit { work: KfacWork::Sync { factor }, flops, elements, after });
        }
        let mut inverted = vec![None; self.factors.len()];
        for (factor, f) in self.factors.iter().enumerate().filter(|(factor, _)| self.inverts(*factor)) {
            // The damping of each factor depends on the size of all of the layer.
            let after = self.layers[f.layer].factors.clone().map(|other| first_sync + other).collect();
            inverted[factor] = Some(list.len());
            let flops = inverse_flops(f.n as f64);
            list.push(KfacUnit { work: KfacWork::Invert { factor }, flops, elements: 0, after });
        }
        if self.ranks.copies > 1 {
            for (factor, f) in self.factors.iter().enumerate().filter(|(_, f)| f.kept.is_some()) {
                let after = inverted[factor].into_iter().collect();
                let elements = f.n * f.n;
                list.push(KfacUnit { work: KfacWork::Spread { factor }, flops: 0.0, elements, after });
            }
        }
        for (layer, l) in self.layers.iter().enumerate().filter(|(_, l)| l.mine) {
            let (rows, cols) = params[l.param].whole_shape();
            let part = params[l.param].value.len();
            let flops = self.factors[l.factors.clone()].iter().filter(|f| f.outputs).map(|f| {
                // Two products, their sum with the gradient.
                let (o, i) = (f.n as f64, cols as f64);
                2.0 * o * i * (o + i) + 2.0 * o * i
            });
            let elements = if params[l.param].whole.is_some() { rows * cols - part } else { 0 };
            let work = KfacWork::Precondition { layer };
            list.push(KfacUnit { work, flops: flops.sum(), elements, after: Vec::new() });
        }
        list
    }

    /// Whether this rank inverts a factor.
    pub(super) fn inverts(&self, factor: usize) -> bool {
        self.factors[factor].kept.is_some_and(|k| k.inverter == self.ranks.copy)
    }

    /// Whether there is such a unit here.
    pub(crate) fn has(&self, work: KfacWork) -> bool {
        let kept = |factor: usize| self.factors.get(factor).is_some_and(|f| f.kept.is_some());
        match work {
            KfacWork::Curvature { factor, .. } | KfacWork::Sync { factor } => factor < self.factors.len(),
            KfacWork::Invert { factor } => kept(factor) && self.inverts(factor),
            KfacWork::Spread { factor } => kept(factor),
            KfacWork::Precondition { layer } => self.layers.get(layer).is_some_and(|l| l.mine),
        }
    }

    /// Does a unit that needs nothing from a pass of the model.
    pub(crate) fn work(
        &mut self,
        pass: &mut Pass<'_>,
        work: KfacWork,
        params: &[OptimParam],
    ) -> Result<(), OptimError> {
        match work {
            KfacWork::Curvature { .. } => Err(OptimError::NoOperand),
            KfacWork::Sync { factor } => Ok(self.sync(pass, factor)?),
            KfacWork::Invert { factor } => self.invert(pass, factor, params),
            KfacWork::Spread { factor } => Ok(self.spread(pass, factor)?),
            KfacWork::Precondition { .. } if self.inversions == 0.0 => Err(OptimError::NoCurvature),
            KfacWork::Precondition { layer } => Ok(self.precondition(pass, layer, params)?),
        }
    }

    /// Adds a micro-batch to a factor: x is the layer's inputs or the gradients of all its outputs. Without `accumulate`
    /// a new batch begins.
    pub(crate) fn curvature(
        &mut self,
        pass: &mut Pass<'_>,
        factor: usize,
        x: View,
        accumulate: bool,
    ) -> Result<(), TensorError> {
        let f = &mut self.factors[factor];
        f.tokens = x.rows + if accumulate { f.tokens } else { 0 };
        let (x, dweight) = (x.columns(f.first, f.n), f.batch);
        pass.launch(op::LinearBackwardWeight { x, dy: x, dweight, dbias: None, accumulate })
    }

    /// Adds the batch at hand up over the ranks and moves it into the running mean: a plain mean at first, then with the
    /// configured decay.
    pub(super) fn sync(&mut self, pass: &mut Pass<'_>, factor: usize) -> Result<(), TensorError> {
        let (param, batch) = (self.layers[self.factors[factor].layer].param, self.factors[factor].batch);
        pass.ask((), |peers, backend| peers.sum_curvature(backend, param, batch))?;
        let f = &mut self.factors[factor];
        let tokens = (f.tokens.max(1) * self.ranks.data) as f64;
        f.tokens = 0;
        if let Some(Kept { mean, .. }) = f.kept {
            let keep = self.config.decay.min(f64::from(self.batches) / (f64::from(self.batches) + 1.0));
            // dy is the token's gradient over the tokens of the step: E[g g^T] = tokens * sum of dy dy^T.
            let scale = if f.outputs { tokens } else { 1.0 / tokens };
            let (alpha, beta) = (keep as f32, ((1.0 - keep) * scale) as f32);
            pass.launch(op::Combine { a: mean, alpha, b: batch, beta, step: None, out: mean })?;
        }
        if pass.is_planning() {
            return Ok(());
        }
        self.factors[factor].synced = true;
        if self.factors.iter().all(|f| f.synced) {
            self.factors.iter_mut().for_each(|f| f.synced = false);
            self.batches += 1.0;
            self.write_counts(pass)?;
        }
        Ok(())
    }

    /// A new inverse of a factor.
    pub(super) fn invert(
        &mut self,
        pass: &mut Pass<'_>,
        factor: usize,
        params: &[OptimParam],
    ) -> Result<(), OptimError> {
        let layer = self.factors[factor].layer;
        let name = &params[self.layers[layer].param].name;
        let (mut traces, mut sides) = ([0.0f64; 2], [0usize; 2]);
        for other in self.layers[layer].factors.clone() {
            let Factor { kept: Some(Kept { mean, .. }), n, outputs, .. } = self.factors[other] else {
                return Err(OptimError::NotKept { name: name.clone() });
            };
            traces[usize::from(outputs)] += self.trace(pass, mean)?;
            sides[usize::from(outputs)] += n;
        }
        let pi = ((traces[0] / sides[0] as f64) / (traces[1] / sides[1] as f64)).sqrt();
        let pi = if pi.is_finite() && pi > 0.0 { pi } else { 1.0 };
        let root = self.config.damping.sqrt();
        let shift = if self.factors[factor].outputs { root / pi } else { root * pi };
        if let Some(kept) = self.factors[factor].kept {
            self.invert_factor(pass, kept, shift.max(FLOOR), name)?;
        }
        if self.ranks.copies == 1 { Ok(self.inverted(pass, factor)?) } else { Ok(()) }
    }

    /// Brings a factor's inverse from the copy that made it to the others.
    pub(super) fn spread(&mut self, pass: &mut Pass<'_>, factor: usize) -> Result<(), TensorError> {
        let Some(Kept { inverse, inverter, .. }) = self.factors[factor].kept else { return Ok(()) };
        if self.ranks.copies == 1 {
            return Ok(());
        }
        let param = self.layers[self.factors[factor].layer].param;
        pass.ask((), |peers, backend| peers.spread_inverse(backend, param, inverter, inverse))?;
        self.inverted(pass, factor)
    }

    /// One more factor has its new inverse here.
    fn inverted(&mut self, pass: &mut Pass<'_>, factor: usize) -> Result<(), TensorError> {
        if pass.is_planning() {
            return Ok(());
        }
        self.factors[factor].inverted = true;
        if self.factors.iter().all(|f| f.inverted || f.kept.is_none()) {
            self.factors.iter_mut().for_each(|f| f.inverted = false);
            self.inversions += 1.0;
            self.write_counts(pass)?;
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
        factor: Kept,
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
    pub(super) fn precondition(
        &mut self,
        pass: &mut Pass<'_>,
        number: usize,
        params: &[OptimParam],
    ) -> Result<(), TensorError> {
        let layer = &self.layers[number];
        let param = &params[layer.param];
        let (rows, cols) = param.whole_shape();
        let cut = param.whole.is_some();
        let grad = match self.whole.filter(|_| cut) {
            Some(scratch) => shaped(scratch, rows, cols),
            None => param.grad,
        };
        if cut {
            pass.ask((), |peers, backend| peers.gather(backend, layer.param, param.grad, grad))?;
        }
        let Some(a) = self.factors[layer.factors.start].kept else { return Ok(()) };
        for factor in layer.factors.clone().skip(1) {
            let Factor { first, n, kept: Some(kept), .. } = self.factors[factor] else { continue };
            let g = grad.rows(first, n);
            let [half, p] = self.matrix.map(|m| shaped(m, g.rows, g.cols));
            let mut product = |dy, weight, dx| {
                pass.launch(op::LinearBackwardInput { dy, weight, activation: None, dx, accumulate: false })
            };
            product(g, a.inverse, half)?;
            product(kept.inverse, half, p)?;
            pass.launch(op::Dot { a: p, b: g, out: self.dots.columns(factor, 1) })?;
            pass.launch(op::Copy { src: p, dst: g })?;
        }
        if cut {
            pass.ask((), |peers, backend| peers.keep(backend, layer.param, grad, param.grad))?;
        }
        self.layers[number].preconditioned = !pass.is_planning();
        Ok(())
    }
}
