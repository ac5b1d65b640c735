//! Stochastic gradient descent: `p *= 1 - lr wd; m = mu m + g; p -= lr m`, with Nesterov's look-ahead
//! `p -= lr (g + mu m)` (Sutskever et al. 2013), in PyTorch's form without dampening; decay is decoupled. State: 4 bytes
//! a parameter, none without momentum.

use crate::config::OptimConfig;
use crate::param::OptimParam;
use crate::rule::{Now, Pass, Rule, alloc_like, decay};
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
    fn states(&self) -> Vec<(&'static str, View)> {
        self.m.iter().map(|m| ("m", *m)).collect()
    }

    fn update(&self, pass: &mut Pass<'_>, param: &OptimParam, now: &Now) -> Result<(), TensorError> {
        pass.launch(op::Sgd {
            param: param.value,
            grad: param.grad,
            m: self.m,
            momentum: self.momentum as f32,
            nesterov: self.nesterov,
            lr: (now.lr * param.lr_scale) as f32,
            weight_decay: decay(param, self.weight_decay, param.lr_scale),
            grad_scale: now.grad_scale as f32,
        })
    }
}
