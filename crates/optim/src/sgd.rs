//! Stochastic gradient descent: `p *= 1 - lr wd; m = mu m + g; p -= lr m`, with Nesterov's look-ahead
//! `p -= lr (g + mu m)` (Sutskever et al. 2013), in PyTorch's form without dampening; decay is decoupled. State: 4 bytes
//! a parameter, none without momentum.

use crate::config::OptimConfig;
use crate::param::OptimParam;
use crate::rule::{Now, Pass, Rule, STEP_NUMBERS, Updated, alloc_like, decay};
use crate::state::StateView;
use bessemer_tensor::{Backend, TensorError, View, op};

#[derive(Debug)]
pub(crate) struct Sgd {
    momentum: f64,
    nesterov: bool,
    weight_decay: f64,
    m: Option<View>,
}

impl Sgd {
    pub(crate) fn new(
        backend: &mut dyn Backend,
        param: &OptimParam,
        config: &OptimConfig,
    ) -> Result<Sgd, TensorError> {
        let momentum = config.sgd.momentum;
        Ok(Sgd {
            momentum,
            nesterov: config.sgd.nesterov,
            weight_decay: config.weight_decay,
            m: if momentum > 0.0 { Some(alloc_like(backend, "m", param)?) } else { None },
        })
    }
}

impl Rule for Sgd {
    fn states(&self) -> Vec<(&'static str, StateView)> {
        self.m.iter().map(|m| ("m", (*m).into())).collect()
    }

    fn step_numbers(&self, param: &OptimParam, now: &Now) -> [f32; STEP_NUMBERS] {
        [1.0, now.grad_scale as f32, (now.lr * param.lr_scale) as f32, 0.0, 0.0]
    }

    fn update(&self, pass: &mut Pass<'_>, updated: &Updated<'_>) -> Result<(), TensorError> {
        let param = updated.param;
        pass.launch(op::Sgd {
            param: param.value,
            grad: param.grad,
            m: self.m,
            momentum: self.momentum as f32,
            nesterov: self.nesterov,
            step: updated.step.columns(0, 3),
            weight_decay: decay(param, self.weight_decay, param.lr_scale),
            scale: 1.0,
        })
    }
}
