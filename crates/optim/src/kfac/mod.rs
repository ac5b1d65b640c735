//! K-FAC (Martens & Grosse 2015) for the hidden matrices, with the empirical Fisher matrix.
//!
//! For a linear layer with inputs a and gradients g of its outputs, both per token, the curvature is taken as
//! `A (x) B` with `A = E[a a^T]`, `B = E[g g^T]` (running means). The gradient G `[outputs, inputs]` becomes
//! `P = (B + gB I)^-1 G (A + gA I)^-1` with `gA = sqrt(damping) pi`, `gB = sqrt(damping) / pi`,
//! `pi^2 = (tr A / inputs) / (tr B / outputs)`, each at least 1e-7. All P are scaled by
//! `nu = min(1, sqrt(kl_clip / (lr^2 sum of P.G)))` (Ba et al. 2017); then momentum and decoupled decay.
//!
//! Work comes in units that need not follow each other at once, so that a pipeline can put them into its bubbles
//! (Osawa et al. 2023, PipeFisher): [`KfacWork`]. A step is one caller of them, which makes all that are due at once. B of
//! a fused matrix has one block a matrix (queries, keys, values; gate, up), with nothing between them. Biases, norms,
//! tables and the head are left to AdamW.
//!
//! Of several ranks each captures what its own data add to every factor; the sum goes to the ranks that keep the
//! matrix's state, whose copies share the inversions out by cost and exchange the results. A matrix that is cut
//! over the tensor axis has the factors of the whole one on every rank, and its gradient is gathered for the
//! direction; momentum is cut like the matrix.
//!
//! State of a matrix `[O, I]` with blocks of O_b rows: `4 (2 I^2 + 2 sum O_b^2 + O I)` bytes (factors, inverses,
//! momentum) on the ranks that keep it; `4 (I^2 + sum O_b^2)` more for the batch at hand on every rank. Scratch, once: two
//! squares of the largest side and two matrices of the largest block; one whole matrix if any is cut.

mod work;

pub use work::{KfacUnit, KfacWork};

use crate::config::{KfacConfig, OptimConfig};
use crate::cost::inverse_flops;
use crate::error::OptimError;
use crate::param::OptimParam;
use crate::peers::Ranks;
use crate::rule::{Now, Pass, alloc, alloc_like, decay};
use bessemer_tensor::{Backend, Buffer, TensorError, View, op};
use bessemer_units::DType;
use std::ops::Range;

/// What is kept of a factor where its matrix is stepped.
#[derive(Debug, Clone, Copy)]
struct Kept {
    mean: View,
    inverse: View,
    /// The copy of this rank that inverts it.
    inverter: usize,
}

/// A factor of the curvature.
#[derive(Debug)]
struct Factor {
    layer: usize,
    /// First column of what it is made of: 0 for inputs, the block's first row for output gradients.
    first: usize,
    /// Side.
    n: usize,
    /// Made of output gradients, not of inputs.
    outputs: bool,
    /// Sum over the batch at hand.
    batch: View,
    /// Tokens captured for the batch at hand, on this rank.
    tokens: usize,
    /// The batch at hand has joined the mean; not that of all factors has.
    synced: bool,
    /// There is a new inverse; not of all factors that are kept here.
    inverted: bool,
    kept: Option<Kept>,
}

#[derive(Debug)]
struct Layer {
    /// Number in the list of parameters.
    param: usize,
    /// Its factors: of its inputs, then of each block of outputs.
    factors: Range<usize>,
    m: Option<View>,
    /// Kept and stepped here.
    mine: bool,
    /// The gradient holds the direction already.
    preconditioned: bool,
}

/// K-FAC over the hidden matrices of a list of parameters.
#[derive(Debug)]
pub(crate) struct Kfac {
    config: KfacConfig,
    lr_ratio: f64,
    weight_decay: f64,
    ranks: Ranks,
    layers: Vec<Layer>,
    factors: Vec<Factor>,
    square: [View; 2],
    matrix: [View; 2],
    /// A whole matrix that is cut over the tensor axis.
    whole: Option<View>,
    /// `[1, factors]`: sums of P.G of the blocks, by the factor of their outputs.
    dots: View,
    host_dots: Vec<f32>,
    /// `[1, 3]`: apply flag, factor on the gradient and learning rate of the step.
    step: View,
    /// Diagonals on the host.
    host: Vec<f32>,
    /// `[1, 2]`: batches in the means, inversions done.
    counts: View,
    batches: f32,
    inversions: f32,
    /// A caller refreshes the curvature unit by unit; a step does not.
    by_units: bool,
}

impl Kfac {
    pub(crate) fn new(
        backend: &mut dyn Backend,
        params: &[OptimParam],
        config: &OptimConfig,
        ranks: Ranks,
    ) -> Result<Kfac, TensorError> {
        let (mut layers, mut factors) = (Vec::new(), Vec::<Factor>::new());
        let (mut side, mut size, mut whole) = (1, 1, 0);
        for (param, p) in params.iter().enumerate().filter(|(_, p)| !p.blocks.is_empty()) {
            let inputs = p.whole_shape().1;
            let (layer, start) = (layers.len(), factors.len());
            let mut add = |kind: String, (first, n): (usize, usize), outputs| {
                let mut square = |what: &str| alloc(backend, &format!("{kind}{what}.{}", p.name), n, n);
                let batch = square("_batch")?;
                let kept = match p.elsewhere {
                    true => None,
                    false => Some(Kept { mean: square("")?, inverse: square("_inverse")?, inverter: 0 }),
                };
                side = side.max(n);
                let (synced, inverted) = (false, false);
                factors.push(Factor { layer, first, n, outputs, batch, tokens: 0, synced, inverted, kept });
                Ok::<_, TensorError>(())
            };
            add("a".into(), (0, inputs), false)?;
            for (number, (first, rows)) in p.whole_block_rows().enumerate() {
                add(format!("b{number}"), (first, rows), true)?;
                size = size.max(if p.elsewhere { 0 } else { rows * inputs });
            }
            if p.whole.is_some() && !p.elsewhere {
                whole = whole.max(p.whole_shape().0 * inputs);
            }
            let momentum = config.kfac.momentum > 0.0 && !p.elsewhere;
            let m = if momentum { Some(alloc_like(backend, "m", p)?) } else { None };
            let factors = start..factors.len();
            layers.push(Layer { param, factors, m, mine: !p.elsewhere, preconditioned: false });
        }
        share_out(&mut factors, ranks.copies);
        let mut scratch = |name, len| alloc(backend, name, 1, len);
        Ok(Kfac {
            config: config.kfac.clone(),
            lr_ratio: config.lr_ratio(config.kfac.lr),
            weight_decay: config.weight_decay,
            ranks,
            square: [scratch("kfac factor", side * side)?, scratch("kfac inverse", side * side)?],
            matrix: [scratch("kfac product", size)?, scratch("kfac direction", size)?],
            whole: if whole > 0 { Some(scratch("kfac whole", whole)?) } else { None },
            dots: scratch("kfac dots", factors.len().max(1))?,
            host_dots: vec![0.0; factors.len().max(1)],
            step: scratch("kfac step", 3)?,
            host: vec![0.0; side],
            counts: scratch("kfac_counts", 2)?,
            layers,
            factors,
            batches: 0.0,
            inversions: 0.0,
            by_units: false,
        })
    }

    /// Whether step `t`, from 1, needs the layers' inputs and output gradients.
    pub(crate) fn captures(&self, t: u64) -> bool {
        !self.by_units && (self.batches == 0.0 || (t - 1).is_multiple_of(self.config.curvature_every))
    }

    /// Adds a micro-batch to the batch at hand: parameter `param` has inputs x `[n, inputs]` and gradients dy
    /// `[n, outputs]` (of the whole matrix), which carry the factor 1 / (tokens of the step). Without `accumulate` a new
    /// batch begins.
    pub(crate) fn capture(
        &mut self,
        pass: &mut Pass<'_>,
        param: usize,
        x: View,
        dy: View,
        accumulate: bool,
    ) -> Result<(), TensorError> {
        let Some(layer) = self.layers.iter().find(|l| l.param == param) else { return Ok(()) };
        for factor in layer.factors.clone() {
            let of = if self.factors[factor].outputs { dy } else { x };
            self.curvature(pass, factor, of, accumulate)?;
        }
        Ok(())
    }

    /// Forgets the batch at hand.
    pub(crate) fn discard(&mut self) {
        for factor in &mut self.factors {
            (factor.tokens, factor.synced) = (0, false);
        }
        self.layers.iter_mut().for_each(|l| l.preconditioned = false);
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

    /// Whether a batch has joined the means.
    pub(crate) fn has_batches(&self) -> bool {
        self.batches > 0.0
    }

    /// Leaves the refreshing of the curvature to a caller of the units.
    pub(crate) fn refresh_by_units(&mut self) {
        self.by_units = true;
    }

    /// The units of a refresh that are due: the batch at hand into the means, new inverses.
    fn refresh(&mut self, pass: &mut Pass<'_>, params: &[OptimParam], t: u64) -> Result<(), OptimError> {
        let planning = pass.is_planning();
        if planning || self.factors.iter().any(|f| f.tokens > 0) {
            (0..self.factors.len()).try_for_each(|factor| self.sync(pass, factor))?;
        }
        if !planning && self.batches == 0.0 {
            return Err(OptimError::NoCurvature);
        }
        if planning || self.inversions == 0.0 || (t - 1).is_multiple_of(self.config.inverse_every) {
            // All that is made here first, so that the copies work at the same time.
            for factor in 0..self.factors.len() {
                if self.inverts(factor) {
                    self.invert(pass, factor, params)?;
                }
            }
            (0..self.factors.len()).try_for_each(|factor| self.spread(pass, factor))?;
        }
        Ok(())
    }

    /// First part of a step: refreshes what is due and puts the directions P of all layers in the places of their gradients.
    /// Returns the sum of P.G over the layers of the ranks that share these parameters.
    pub(crate) fn directions(
        &mut self,
        pass: &mut Pass<'_>,
        params: &[OptimParam],
        t: u64,
    ) -> Result<f64, OptimError> {
        let planning = pass.is_planning();
        if !self.by_units && !self.layers.is_empty() {
            self.refresh(pass, params, t)?;
        } else if self.inversions == 0.0 && !planning && self.layers.iter().any(|l| l.mine) {
            return Err(OptimError::NoCurvature);
        }
        for number in 0..self.layers.len() {
            if self.layers[number].mine && !self.layers[number].preconditioned {
                self.precondition(pass, number, params)?;
            }
            self.layers[number].preconditioned = false;
        }
        if self.config.kl_clip == 0.0 || planning {
            return Ok(0.0);
        }
        pass.backend.read_f32(self.dots, &mut self.host_dots)?;
        let sum: f64 = self.host_dots.iter().map(|&d| f64::from(d)).sum();
        Ok(pass.ask(sum, |peers, _| peers.sum_over_owners(sum))?)
    }

    /// Second part of a step, after [`Kfac::directions`]; `sum`: P.G of all layers of the model.
    pub(crate) fn step(
        &mut self,
        pass: &mut Pass<'_>,
        params: &[OptimParam],
        now: &Now,
        sum: f64,
    ) -> Result<(), OptimError> {
        let planning = pass.is_planning();
        let lr = now.lr * self.lr_ratio;
        let square = (lr * now.grad_scale).powi(2) * sum;
        let limited = self.config.kl_clip > 0.0 && square > 0.0;
        let nu = if limited { (self.config.kl_clip / square).sqrt().min(1.0) } else { 1.0 };
        if !planning {
            pass.backend.write_f32(self.step, &[1.0, (now.grad_scale * nu) as f32, lr as f32])?;
        }
        for layer in self.layers.iter().filter(|l| l.mine) {
            let param = &params[layer.param];
            pass.launch(op::Sgd {
                step: self.step,
                param: param.value,
                grad: param.grad,
                m: layer.m,
                momentum: self.config.momentum as f32,
                nesterov: false,
                weight_decay: decay(param, self.weight_decay, 1.0),
                scale: 1.0,
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
            let (rows, cols) = params[param].whole_shape();
            // Views that are never launched: workspace depends on shapes alone.
            let of = |id, cols| Buffer { id, len: tokens * cols, dtype }.matrix(tokens, cols);
            self.capture(pass, param, of(u32::MAX, cols), of(u32::MAX - 1, rows), false)?;
        }
        self.discard();
        Ok(())
    }

    /// Parameters that this steps, by number.
    pub(crate) fn is_mine(&self, param: usize) -> bool {
        self.layers.iter().any(|l| l.param == param && l.mine)
    }

    pub(crate) fn states(&self, params: &[OptimParam]) -> Vec<(String, View)> {
        let mut list = vec![("kfac_counts".to_owned(), self.counts)];
        for layer in &self.layers {
            let name = &params[layer.param].name;
            for (number, factor) in self.factors[layer.factors.clone()].iter().enumerate() {
                let Some(kept) = factor.kept else { continue };
                let kind = number.checked_sub(1).map_or("a".to_owned(), |block| format!("b{block}"));
                list.push((format!("{kind}.{name}"), kept.mean));
                list.push((format!("{kind}_inverse.{name}"), kept.inverse));
            }
            list.extend(layer.m.map(|m| (format!("m.{name}"), m)));
        }
        list
    }
}

/// Shares the inversions of what is kept here out among the copies: the largest first, each to the one with least to do.
fn share_out(factors: &mut [Factor], copies: usize) {
    let mut order: Vec<usize> = (0..factors.len()).filter(|f| factors[*f].kept.is_some()).collect();
    // Stable: what is equally large stays in order.
    order.sort_by_key(|f| std::cmp::Reverse(factors[*f].n));
    let mut load = vec![0.0f64; copies];
    for factor in order {
        let least = (0..copies).min_by(|a, b| load[*a].total_cmp(&load[*b])).unwrap_or(0);
        load[least] += inverse_flops(factors[factor].n as f64);
        if let Some(kept) = &mut factors[factor].kept {
            kept.inverter = least;
        }
    }
}
