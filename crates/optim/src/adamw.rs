//! AdamW: `p *= 1 - lr wd; m = b1 m + (1-b1) g; v = b2 v + (1-b2) g^2; p -= lr m/(1-b1^t) / (sqrt(v/(1-b2^t)) + eps)`
//! (Kingma & Ba 2015; Loshchilov & Hutter 2019), in PyTorch's order of operations. State: 8 bytes a parameter, 12 if it
//! is stored in fewer bits than f32.

use crate::config::OptimConfig;
use crate::param::OptimParam;
use crate::rule::{Now, Pass, Rule, STEP_NUMBERS, Updated, alloc_like, decay};
use bessemer_tensor::{Backend, TensorError, View, op};
use bessemer_units::DType;

#[derive(Debug)]
pub(crate) struct AdamW {
    beta1: f64,
    beta2: f64,
    eps: f64,
    weight_decay: f64,
    m: View,
    v: View,
    /// f32 values of a parameter that is stored in fewer bits.
    master: Option<View>,
}

impl AdamW {
    pub(crate) fn new(
        backend: &mut dyn Backend,
        param: &OptimParam,
        config: &OptimConfig,
    ) -> Result<AdamW, TensorError> {
        let narrow = param.value.dtype() != DType::F32;
        Ok(AdamW {
            beta1: config.beta1,
            beta2: config.beta2,
            eps: config.eps,
            weight_decay: config.weight_decay,
            m: alloc_like(backend, "m", param)?,
            v: alloc_like(backend, "v", param)?,
            master: if narrow { Some(alloc_like(backend, "master", param)?) } else { None },
        })
    }
}

impl Rule for AdamW {
    fn states(&self) -> Vec<(&'static str, View)> {
        [("m", Some(self.m)), ("v", Some(self.v)), ("master", self.master)]
            .into_iter()
            .filter_map(|(kind, view)| view.map(|v| (kind, v)))
            .collect()
    }

    fn step_numbers(&self, param: &OptimParam, now: &Now) -> [f32; STEP_NUMBERS] {
        // From the rounded beta that the device multiplies with: 1 - 0.999 differs by 1e-5 from its value in f32, which
        // would bias the first steps. In f64 and by powf, so that no t is too large.
        let correction = |beta: f64| (1.0 - f64::from(beta as f32).powf(now.t as f64)) as f32;
        let lr = (now.lr * param.lr_scale) as f32;
        [1.0, now.grad_scale as f32, lr, correction(self.beta1), correction(self.beta2)]
    }

    fn update(&self, pass: &mut Pass<'_>, updated: &Updated<'_>) -> Result<(), TensorError> {
        let param = updated.param;
        pass.launch(op::AdamW {
            param: param.value,
            master: self.master,
            grad: param.grad,
            m: self.m,
            v: self.v,
            step: updated.step,
            beta1: self.beta1 as f32,
            beta2: self.beta2 as f32,
            eps: self.eps as f32,
            weight_decay: decay(param, self.weight_decay, param.lr_scale),
        })
    }

    fn adopt_values(&self, pass: &mut Pass<'_>, param: &OptimParam) -> Result<(), TensorError> {
        self.master.map_or(Ok(()), |dst| pass.launch(op::Copy { src: param.value, dst }))
    }
}
