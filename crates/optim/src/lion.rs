//! Lion (Chen et al. 2023): `p *= 1 - lr wd; p -= lr sign(b1 m + (1-b1) g); m = b2 m + (1-b2) g`. Every value moves by
//! exactly lr, so lr is 3 to 10 times smaller than AdamW's and the decay as much larger. State: 4 bytes a parameter.

use crate::config::OptimConfig;
use crate::param::OptimParam;
use crate::rule::{Now, Pass, Rule, STEP_NUMBERS, Updated, alloc_like, decay};
use crate::state::StateView;
use bessemer_tensor::{Backend, TensorError, View, op};

#[derive(Debug)]
pub(crate) struct Lion {
    beta1: f64,
    beta2: f64,
    weight_decay: f64,
    m: View,
}

impl Lion {
    pub(crate) fn new(
        backend: &mut dyn Backend,
        param: &OptimParam,
        config: &OptimConfig,
    ) -> Result<Lion, TensorError> {
        let m = alloc_like(backend, "m", param)?;
        Ok(Lion { beta1: config.beta1, beta2: config.beta2, weight_decay: config.weight_decay, m })
    }
}

impl Rule for Lion {
    fn states(&self) -> Vec<(&'static str, StateView)> {
        vec![("m", self.m.into())]
    }

    fn step_numbers(&self, param: &OptimParam, now: &Now) -> [f32; STEP_NUMBERS] {
        [1.0, now.grad_scale as f32, (now.lr * param.lr_scale) as f32, 0.0, 0.0]
    }

    fn update(&self, pass: &mut Pass<'_>, updated: &Updated<'_>) -> Result<(), TensorError> {
        let param = updated.param;
        pass.launch(op::Lion {
            param: param.value,
            grad: param.grad,
            m: self.m,
            step: updated.step.columns(0, 3),
            beta1: self.beta1 as f32,
            beta2: self.beta2 as f32,
            weight_decay: decay(param, self.weight_decay, param.lr_scale),
        })
    }
}
