//! AdamW: `p *= 1 - lr wd; m = b1 m + (1-b1) g; v = b2 v + (1-b2) g^2; p -= lr m/(1-b1^t) / (sqrt(v/(1-b2^t)) + eps)`
//! (Kingma & Ba 2015; Loshchilov & Hutter 2019), in PyTorch's order of operations. State: 8 bytes a parameter, 4 more if it
//! is stored in fewer bits than f32. With moments in 8 bits by blocks of B = 256 (Dettmers et al. 2022) 2 + 8 / B bytes instead of 8.

use crate::config::OptimConfig;
use crate::param::OptimParam;
use crate::rule::{Now, Pass, Rule, STEP_NUMBERS, Updated, alloc_like, decay};
use crate::state::{Int8View, Moment, StateView};
use bessemer_tensor::{Backend, TensorError, View, op};
use bessemer_units::DType;

#[derive(Debug)]
enum Moments {
    F32 { m: View, v: View },
    Int8 { m: Int8View, v: Int8View },
}

#[derive(Debug)]
pub(crate) struct AdamW {
    beta1: f64,
    beta2: f64,
    eps: f64,
    weight_decay: f64,
    moments: Moments,
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
        let moments = match config.has_int8_moments(param) {
            true => Moments::Int8 {
                m: Int8View::alloc(backend, "m", param, Moment::First)?,
                v: Int8View::alloc(backend, "v", param, Moment::Second)?,
            },
            false => {
                Moments::F32 { m: alloc_like(backend, "m", param)?, v: alloc_like(backend, "v", param)? }
            }
        };
        Ok(AdamW {
            beta1: config.beta1,
            beta2: config.beta2,
            eps: config.eps,
            weight_decay: config.weight_decay,
            moments,
            master: if narrow { Some(alloc_like(backend, "master", param)?) } else { None },
        })
    }
}

impl Rule for AdamW {
    fn states(&self) -> Vec<(&'static str, StateView)> {
        let (m, v) = match self.moments {
            Moments::F32 { m, v } => (m.into(), v.into()),
            Moments::Int8 { m, v } => (StateView::Int8(m), StateView::Int8(v)),
        };
        let mut list = vec![("m", m), ("v", v)];
        list.extend(self.master.map(|master| ("master", master.into())));
        list
    }

    fn step_numbers(&self, param: &OptimParam, now: &Now) -> [f32; STEP_NUMBERS] {
        // From the rounded beta that the device multiplies with: 1 - 0.999 differs by 1e-5 from its value in f32, which
        // would bias the first steps. In f64 and by powf, so that no t is too large.
        let correction = |beta: f64| (1.0 - f64::from(beta as f32).powf(now.t as f64)) as f32;
        let lr = (now.lr * param.lr_scale) as f32;
        [1.0, now.grad_scale as f32, lr, correction(self.beta1), correction(self.beta2)]
    }

    fn update(&self, pass: &mut Pass<'_>, updated: &Updated<'_>) -> Result<(), TensorError> {
        let &Updated { param: &OptimParam { value: param, grad, .. }, step, .. } = updated;
        let (master, beta1, beta2, eps) =
            (self.master, self.beta1 as f32, self.beta2 as f32, self.eps as f32);
        let weight_decay = decay(updated.param, self.weight_decay, updated.param.lr_scale);
        match self.moments {
            Moments::F32 { m, v } => {
                pass.launch(op::AdamW { param, master, grad, m, v, step, beta1, beta2, eps, weight_decay })
            }
            Moments::Int8 { m, v } => pass.launch(op::AdamWInt8 {
                param,
                master,
                grad,
                m: m.codes,
                m_scales: m.scales,
                v: v.codes,
                v_scales: v.scales,
                step,
                beta1,
                beta2,
                eps,
                weight_decay,
            }),
        }
    }

    fn adopt_values(&self, pass: &mut Pass<'_>, param: &OptimParam) -> Result<(), TensorError> {
        self.master.map_or(Ok(()), |dst| pass.launch(op::Copy { src: param.value, dst }))
    }
}
