//! A step of any optimizer: global norm, clipping, one update a parameter.
//!
//! With g the gradient times `min(1, clip / (norm + 1e-6))`, each parameter is updated by the rule of the optimizer
//! that was chosen; under Muon and K-FAC that is AdamW's for everything that is no hidden matrix. A gradient that is not
//! finite changes nothing.

use crate::adafactor::{Adafactor, Scratch as AdafactorScratch};
use crate::adamw::AdamW;
use crate::config::{OptimConfig, OptimizerChoice};
use crate::error::OptimError;
use crate::kfac::{Kfac, KfacUnit, KfacWork};
use crate::lion::Lion;
use crate::muon::{Muon, Scratch};
use crate::param::OptimParam;
use crate::peers::{Alone, Peers, Ranks};
use crate::rule::{Now, Pass, Rule, StepBlock, Updated, alloc, alloc_like};
use crate::sgd::Sgd;
use crate::state::StateView;
use bessemer_tensor::op;
use bessemer_tensor::{Backend, TensorError, View};
use bessemer_units::DType;

/// Kind of state that holds the f32 values of a parameter of fewer bits.
const MASTER: &str = "master";

impl OptimizerChoice {
    /// Errors, naming both, if the optimizer cannot step parameters and gradients of these types.
    ///
    /// # Errors
    /// [`OptimError::Precision`].
    pub fn check_types(self, weights: DType, gradients: DType) -> Result<(), OptimError> {
        use OptimizerChoice::{Adafactor, Kfac, Muon};
        let optimizer = self.name();
        if self == Kfac && weights != DType::F32 {
            let reason = "it keeps no f32 masters of the matrices that it steps";
            return Err(OptimError::Precision { optimizer, what: "weights", found: weights, reason });
        }
        if matches!(self, Adafactor | Kfac | Muon) && gradients != DType::F32 {
            let reason = "it computes in the gradient's place";
            return Err(OptimError::Precision { optimizer, what: "gradients", found: gradients, reason });
        }
        Ok(())
    }
}

/// Result of a step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepStats {
    /// Global norm of the gradient before clipping.
    pub grad_norm: f64,
    /// Factor on the gradient, at most 1.
    pub clip_factor: f64,
    /// True if the norm was not finite: nothing was changed.
    pub skipped: bool,
}

/// Whether a tensor of this name in a checkpoint is an optimizer's state, of any optimizer, and no parameter.
pub fn is_state_name(name: &str) -> bool {
    let kind = name.split_once('.').map_or(name, |(kind, _)| kind);
    let kind = kind.strip_suffix("_inverse").unwrap_or(kind);
    let block =
        kind.strip_prefix('b').is_some_and(|n| !n.is_empty() && n.bytes().all(|c| c.is_ascii_digit()));
    block || ["m", "v", "master", "row", "col", "a", "kfac_counts"].contains(&kind)
}

/// Whether the state of this name has one value for each of its parameter's, so that it lies wherever they lie. Others
/// (means of rows and columns, factors, counts) stay whole.
pub fn is_moment_name(name: &str) -> bool {
    ["m", "v", "master"].contains(&name.split_once('.').map_or(name, |(kind, _)| kind))
}

/// An optimizer over a list of parameters.
#[derive(Debug)]
pub struct Optimizer {
    clip: f64,
    sums_size: bool,
    /// The gradients in memory are those of so many times the loss.
    loss_scale: f64,
    /// As the rules step them: the value of one of fewer bits than f32 is its master, unless the rule keeps that itself.
    params: Vec<OptimParam>,
    /// By parameter: where the master that a rule stepped is rounded to.
    rounded: Vec<Option<View>>,
    /// One a parameter; none for those that K-FAC steps.
    rules: Vec<Option<Box<dyn Rule>>>,
    kfac: Option<Kfac>,
    step: StepBlock,
    /// `[1, parameters]`: sum of squares of each gradient.
    squares: View,
    host_squares: Vec<f32>,
}

impl Optimizer {
    /// As [`Optimizer::of_rank`], of one rank.
    ///
    /// # Errors
    /// A configuration out of range, types that the optimizer cannot step, or what the backend answers.
    pub fn new(
        backend: &mut dyn Backend,
        params: &[OptimParam],
        config: &OptimConfig,
    ) -> Result<Optimizer, OptimError> {
        Optimizer::of_rank(backend, params, config, Ranks::ONE)
    }

    /// Allocates the state (zero) in class "optimizer" and reserves the workspace of a step. Nothing is allocated after
    /// that. Bytes: 24 a parameter tensor, what the optimizer's own file says, and 4 a parameter of fewer bits than f32 for its
    /// master.
    ///
    /// # Errors
    /// A configuration out of range, types that the optimizer cannot step, or what the backend answers.
    pub fn of_rank(
        backend: &mut dyn Backend,
        params: &[OptimParam],
        config: &OptimConfig,
        ranks: Ranks,
    ) -> Result<Optimizer, OptimError> {
        config.check()?;
        for param in params {
            config.optimizer.check_types(param.value.dtype(), param.grad.dtype())?;
        }
        let hidden = params.iter().any(|p| !p.blocks.is_empty());
        let kfac = match config.optimizer {
            OptimizerChoice::Kfac if hidden => Some(Kfac::new(backend, params, config, ranks)?),
            _ => None,
        };
        let muon = match config.optimizer {
            OptimizerChoice::Muon if hidden => Some(Scratch::new(backend, params)?),
            _ => None,
        };
        let adafactor = match config.optimizer {
            OptimizerChoice::Adafactor => Some(AdafactorScratch::new(backend, params)?),
            _ => None,
        };
        let mut rules: Vec<Option<Box<dyn Rule>>> = Vec::with_capacity(params.len());
        let (mut stepped, mut rounded) = (Vec::with_capacity(params.len()), Vec::with_capacity(params.len()));
        for (i, param) in params.iter().enumerate() {
            let fused = match config.optimizer {
                OptimizerChoice::AdamW | OptimizerChoice::Kfac => true,
                OptimizerChoice::Muon => param.blocks.is_empty(),
                OptimizerChoice::Sgd | OptimizerChoice::Lion | OptimizerChoice::Adafactor => false,
            };
            let apart = !fused && !param.elsewhere && param.value.dtype() != DType::F32;
            rounded.push(apart.then_some(param.value));
            let value = if apart { alloc_like(backend, MASTER, param)? } else { param.value };
            let param = &OptimParam { value, ..param.clone() };
            stepped.push(param.clone());
            let of_kfac = kfac.as_ref().is_some_and(|k| k.is_mine(i));
            let rule: Box<dyn Rule> = match (config.optimizer, muon, adafactor) {
                _ if of_kfac || param.elsewhere => {
                    rules.push(None);
                    continue;
                }
                (OptimizerChoice::Sgd, ..) => Box::new(Sgd::new(backend, param, config)?),
                (OptimizerChoice::Lion, ..) => Box::new(Lion::new(backend, param, config)?),
                (_, _, Some(scratch)) => Box::new(Adafactor::new(backend, param, config, scratch)?),
                (_, Some(scratch), _) if !param.blocks.is_empty() => {
                    Box::new(Muon::new(backend, param, config, scratch)?)
                }
                _ => Box::new(AdamW::new(backend, param, config)?),
            };
            rules.push(Some(rule));
        }
        let squares = alloc(backend, "gradient_squares", 1, params.len().max(1))?;
        let mut optimizer = Optimizer {
            clip: config.clip,
            sums_size: config.optimizer == OptimizerChoice::Kfac && config.kfac.kl_clip > 0.0,
            loss_scale: 1.0,
            params: stepped,
            rounded,
            rules,
            kfac,
            step: StepBlock::new(backend, params.len())?,
            squares,
            host_squares: vec![0.0; params.len().max(1)],
        };
        let mut pass = Pass::plan(backend);
        optimizer.norm_launches(&mut pass)?;
        if let Some(kfac) = &mut optimizer.kfac {
            kfac.directions(&mut pass, &optimizer.params, 1)?;
        }
        optimizer.updates(&mut pass, &Now { t: 1, lr: 0.0, grad_scale: 1.0 }, 0.0)?;
        pass.reserve()?;
        Ok(optimizer)
    }

    fn norm_launches(&self, pass: &mut Pass<'_>) -> Result<(), TensorError> {
        for (i, param) in self.params.iter().enumerate().filter(|(_, p)| !p.elsewhere) {
            let out = self.squares.columns(i, 1);
            pass.launch(op::SumSquares { x: param.grad, out, accumulate: false })?;
        }
        Ok(())
    }

    fn updates(&mut self, pass: &mut Pass<'_>, now: &Now, size: f64) -> Result<(), OptimError> {
        if !pass.is_planning() {
            for (number, (rule, param)) in self.rules.iter().zip(&self.params).enumerate() {
                if let Some(rule) = rule {
                    self.step.set(number, rule.step_numbers(param, now));
                }
            }
            self.step.write(pass.backend)?;
        }
        if let Some(kfac) = &mut self.kfac {
            kfac.step(pass, &self.params, now, size)?;
        }
        let all = self.rules.iter().zip(&self.params).zip(&self.rounded);
        for (number, ((rule, param), rounded)) in all.enumerate() {
            if let Some(rule) = rule {
                rule.update(pass, &Updated { param, number, step: self.step.row(number) })?;
            }
            if let Some(dst) = *rounded {
                pass.launch(op::Copy { src: param.value, dst })?;
            }
        }
        Ok(())
    }

    /// States that the gradients in memory are `scale` times those of which the norms are given.
    pub fn set_loss_scale(&mut self, scale: f64) {
        self.loss_scale = scale;
    }

    /// Tells the optimizer that values were written from outside (initialisation, a checkpoint without optimizer
    /// state): parameters stored in fewer bits than f32 have f32 masters.
    ///
    /// # Errors
    /// Errors of the backend.
    pub fn adopt_values(&mut self, backend: &mut dyn Backend) -> Result<(), OptimError> {
        let mut pass = Pass::run(backend);
        for ((rule, param), rounded) in self.rules.iter().zip(&self.params).zip(&self.rounded) {
            if let Some(rule) = rule {
                rule.adopt_values(&mut pass, param)?;
            }
            if let Some(src) = *rounded {
                pass.launch(op::Copy { src, dst: param.value })?;
            }
        }
        Ok(())
    }

    /// Tells the optimizer that its state tensors were written from outside, all of them.
    ///
    /// # Errors
    /// Errors of the backend.
    pub fn adopt_state(&mut self, backend: &mut dyn Backend) -> Result<(), OptimError> {
        self.kfac.as_mut().map_or(Ok(()), |k| Ok(k.adopt_state(backend)?))
    }

    /// Global norm of the gradient: squares added on the device per parameter in a fixed order, over parameters in f64.
    ///
    /// # Errors
    /// Errors of the backend.
    pub fn grad_norm(&mut self, backend: &mut dyn Backend) -> Result<f64, OptimError> {
        self.norm_launches(&mut Pass::run(backend))?;
        backend.read_f32(self.squares, &mut self.host_squares)?;
        Ok(self.host_squares[..self.params.len()].iter().map(|&s| f64::from(s)).sum::<f64>().sqrt())
    }

    /// Update `t`, counted from 1, at learning rate `lr`. A gradient that is not finite changes nothing and is reported as
    /// skipped; the caller then makes the next update with the same `t`. Bias corrections, Adafactor's decay and relative
    /// steps, and K-FAC's refresh depend on `t`.
    ///
    /// # Errors
    /// Step 0, what the backend answers, or K-FAC's.
    pub fn step(&mut self, backend: &mut dyn Backend, t: u64, lr: f64) -> Result<StepStats, OptimError> {
        let grad_norm = self.grad_norm(backend)?;
        self.apply(backend, t, lr, grad_norm)
    }

    /// The second half of [`Optimizer::step`], with the norm that [`Optimizer::grad_norm`] returned.
    ///
    /// # Errors
    /// As [`Optimizer::step`].
    pub fn apply(
        &mut self,
        backend: &mut dyn Backend,
        t: u64,
        lr: f64,
        grad_norm: f64,
    ) -> Result<StepStats, OptimError> {
        let size = if grad_norm.is_finite() { self.prepare(backend, &mut Alone, t)? } else { 0.0 };
        self.apply_with(backend, &mut Alone, (t, lr), grad_norm, size)
    }

    /// First part of update `t` of a gradient that is finite: what must be known of all parameters of the model before one of
    /// them is stepped. Returns this optimizer's term of that sum over the parameters, 0 for optimizers that need none. Holders
    /// of the same parameters call this in the same order.
    ///
    /// # Errors
    /// As [`Optimizer::step`].
    pub fn prepare(
        &mut self,
        backend: &mut dyn Backend,
        peers: &mut dyn Peers,
        t: u64,
    ) -> Result<f64, OptimError> {
        if t == 0 {
            return Err(OptimError::StepZero);
        }
        let Some(kfac) = &mut self.kfac else { return Ok(0.0) };
        kfac.directions(&mut Pass::run_with(backend, peers), &self.params, t)
    }

    /// Whether an update needs the sum of what [`Optimizer::prepare`] returns for all parameters of the model.
    pub fn sums_size(&self) -> bool {
        self.sums_size
    }

    /// Second part of update `t` at rate `lr`, where other ranks have their parts in it. `size` is the sum of what
    /// [`Optimizer::prepare`] returned for all parameters of the model.
    ///
    /// # Errors
    /// As [`Optimizer::step`].
    pub fn apply_with(
        &mut self,
        backend: &mut dyn Backend,
        peers: &mut dyn Peers,
        (t, lr): (u64, f64),
        grad_norm: f64,
        size: f64,
    ) -> Result<StepStats, OptimError> {
        if t == 0 {
            return Err(OptimError::StepZero);
        }
        if !grad_norm.is_finite() {
            return Ok(self.skip(grad_norm));
        }
        let clip_factor = if self.clip > 0.0 { (self.clip / (grad_norm + 1e-6)).min(1.0) } else { 1.0 };
        let grad_scale = clip_factor / self.loss_scale;
        self.updates(&mut Pass::run_with(backend, peers), &Now { t, lr, grad_scale }, size)?;
        Ok(StepStats { grad_norm, clip_factor, skipped: false })
    }

    /// Leaves a step out: parameters and state stay as they are, and so does the curvature.
    pub fn skip(&mut self, grad_norm: f64) -> StepStats {
        self.discard();
        StepStats { grad_norm, clip_factor: 0.0, skipped: true }
    }

    /// Forgets the curvature of the batch at hand.
    pub fn discard(&mut self) {
        if let Some(kfac) = &mut self.kfac {
            kfac.discard();
        }
    }

    /// Whether step `t` wants to see the linear layers' inputs and output gradients ([`Optimizer::capture`]).
    pub fn captures(&self, t: u64) -> bool {
        self.kfac.as_ref().is_some_and(|k| k.captures(t))
    }

    /// Shows the optimizer what the gradient of parameter number `param` (of the list that it was made with) is made
    /// from: inputs x `[n, inputs]` and output gradients dy `[n, outputs]`, which carry the factor 1 / (tokens of the
    /// step), both of the whole matrix if only a part of it is here. `accumulate` is false in the first micro-batch of a step. Nothing happens for parameters that no
    /// curvature is kept of.
    ///
    /// # Errors
    /// Errors of the backend.
    pub fn capture(
        &mut self,
        backend: &mut dyn Backend,
        param: usize,
        (x, dy): (View, View),
        accumulate: bool,
    ) -> Result<(), TensorError> {
        match &mut self.kfac {
            Some(kfac) => kfac.capture(&mut Pass::run(backend), param, x, dy, accumulate),
            None => Ok(()),
        }
    }

    /// K-FAC's work of one refresh of the curvature and one step in units, with costs and dependencies, for `micro_batches`
    /// of `tokens` tokens; nothing for other optimizers. See [`Optimizer::refresh_by_units`].
    pub fn kfac_units(&self, micro_batches: usize, tokens: usize) -> Vec<KfacUnit> {
        self.kfac.as_ref().map_or_else(Vec::new, |k| k.units(&self.params, micro_batches, tokens))
    }

    /// From now on a step does not refresh K-FAC's curvature: whoever calls this does the units of
    /// [`Optimizer::kfac_units`] ([`Optimizer::kfac_curvature`], [`Optimizer::kfac_work`]) when there is time for them, over
    /// as many steps as they need. Steps take the newest inverses there are, each complete; the first step needs one of
    /// every factor. Directions that were not asked for are made by the step.
    pub fn refresh_by_units(&mut self) {
        if let Some(kfac) = &mut self.kfac {
            kfac.refresh_by_units();
        }
    }

    /// Whether K-FAC has seen curvature and inverted it: what a step without a refresh needs.
    pub fn has_curvature(&self) -> bool {
        self.kfac.as_ref().is_some_and(Kfac::has_batches)
    }

    /// Does the unit [`KfacWork::Curvature`] of `factor`: x is the inputs `[n, inputs]` of its linear map or, if the factor
    /// is of outputs, the gradients of them `[n, outputs]`, which carry the factor 1 / (tokens of the step). Without
    /// `accumulate` a new batch begins.
    ///
    /// # Errors
    /// A factor that is not there, or what the backend answers.
    pub fn kfac_curvature(
        &mut self,
        backend: &mut dyn Backend,
        factor: usize,
        x: View,
        accumulate: bool,
    ) -> Result<(), OptimError> {
        let kfac = self.kfac.as_mut().filter(|k| k.has(KfacWork::Sync { factor }));
        let kfac = kfac.ok_or_else(|| OptimError::NotKept { name: format!("factor {factor}") })?;
        Ok(kfac.curvature(&mut Pass::run(backend), factor, x, accumulate)?)
    }

    /// Does any other unit of K-FAC's work.
    ///
    /// # Errors
    /// A unit that is not there or has no state here, what the backend or another rank answers, or K-FAC's own.
    pub fn kfac_work(
        &mut self,
        backend: &mut dyn Backend,
        peers: &mut dyn Peers,
        work: KfacWork,
    ) -> Result<(), OptimError> {
        let kfac = self.kfac.as_mut().filter(|k| k.has(work));
        let kfac = kfac.ok_or_else(|| OptimError::NotKept { name: format!("{work:?}") })?;
        kfac.work(&mut Pass::run_with(backend, peers), work, &self.params)
    }

    /// Reserves the workspace of captures of micro-batches of `tokens` tokens, whose activations are kept as `dtype`.
    ///
    /// # Errors
    /// Errors of the backend.
    pub fn plan_capture(
        &mut self,
        backend: &mut dyn Backend,
        tokens: usize,
        dtype: DType,
    ) -> Result<(), OptimError> {
        if let Some(kfac) = &mut self.kfac {
            let mut pass = Pass::plan(backend);
            kfac.plan_capture(&mut pass, &self.params, tokens, dtype)?;
            pass.reserve()?;
        }
        Ok(())
    }

    /// Every state tensor with its name, a kind such as "m" or "v" and a dot before the parameter's name: all that a
    /// checkpoint must keep besides the values and t.
    pub fn states(&self) -> Vec<(String, StateView)> {
        let mut list = Vec::new();
        for ((rule, param), rounded) in self.rules.iter().zip(&self.params).zip(&self.rounded) {
            let master = rounded.map(|_| (MASTER, StateView::Plain(param.value)));
            let states = rule.iter().flat_map(|r| r.states()).chain(master);
            list.extend(states.map(|(kind, view)| (format!("{kind}.{}", param.name), view)));
        }
        let of_kfac = self.kfac.iter().flat_map(|k| k.states(&self.params));
        list.extend(of_kfac.map(|(name, view)| (name, StateView::Plain(view))));
        list
    }

    /// Overwrites one state tensor with row-major values, which one in 8 bits rounds. After the last of them call [`Optimizer::adopt_state`].
    ///
    /// # Errors
    /// A name that [`Optimizer::states`] does not list, or values of another number.
    pub fn restore(
        &mut self,
        backend: &mut dyn Backend,
        name: &str,
        values: &[f32],
    ) -> Result<(), OptimError> {
        let states = self.states();
        let Some((_, view)) = states.iter().find(|s| s.0 == name) else {
            let example = states.into_iter().next().map_or(String::new(), |s| s.0);
            return Err(OptimError::UnknownState { name: name.into(), example });
        };
        if view.len() != values.len() {
            return Err(OptimError::StateSize { name: name.into(), wanted: view.len(), found: values.len() });
        }
        Ok(view.write(backend, 0, values)?)
    }
}
