//! Output projection and softmax cross-entropy in one: `loss[n] = lse_v(z[n,v]) - z[n, target]`, `z = x W^T`, and with
//! p = softmax(z): `dz = scale (p - onehot(target))`, `dx = dz W`, `dW (+)= dz^T x`.
//!
//! Rows whose target is [`IGNORED`] have loss 0 and gradient 0. Logits live only for a chunk of rows at a time. The idea
//! of making both gradients from the chunk while it is at hand is that of Hsu et al., "Liger Kernel", 2024.
//! Cost: 2 N D V operations forward, 6 N D V with gradients.

use crate::arena::Arena;
use bessemer_tensor::TensorError;
use bessemer_tensor::op::{IGNORED, LinearCrossEntropy};

pub(crate) fn reference(arena: &Arena, op: &LinearCrossEntropy) -> Result<(), TensorError> {
    let (x, w, loss) = (arena.f32(&op.x), arena.f32(&op.weight), arena.f32(&op.loss));
    let targets = arena.u32(&op.targets);
    targets.check("linear_cross_entropy", "targets", w.rows, Some(IGNORED))?;
    let grads = op.backward.map(|b| (arena.f32(&b.dx), arena.f32(&b.dweight), b.scale));
    if let Some(b) = op.backward.filter(|b| !b.accumulate) {
        super::fill::reference(arena, &bessemer_tensor::op::Fill { dst: b.dweight, value: 0.0 });
    }
    let mut z = vec![0.0f64; w.rows];
    for (n, &target) in targets.0.iter().enumerate() {
        if target == IGNORED {
            loss.set(0, n, 0.0);
            if let Some((dx, ..)) = grads {
                (0..x.cols).for_each(|d| dx.set(n, d, 0.0));
            }
            continue;
        }
        for (v, z) in z.iter_mut().enumerate() {
            *z = (0..x.cols).map(|d| f64::from(x.get(n, d)) * f64::from(w.get(v, d))).sum();
        }
        let max = z.iter().fold(f64::NEG_INFINITY, |a, &b| a.max(b));
        let lse = max + z.iter().map(|z| (z - max).exp()).sum::<f64>().ln();
        loss.set(0, n, (lse - z[target as usize]) as f32);
        let Some((dx, dw, scale)) = grads else { continue };
        for (v, z) in z.iter_mut().enumerate() {
            let hit = if v == target as usize { 1.0 } else { 0.0 };
            *z = f64::from(scale) * ((*z - lse).exp() - hit);
        }
        for d in 0..x.cols {
            let sum: f64 = z.iter().enumerate().map(|(v, dz)| dz * f64::from(w.get(v, d))).sum();
            dx.set(n, d, sum as f32);
        }
        for (v, dz) in z.iter().enumerate() {
            for d in 0..x.cols {
                dw.add(v, d, (dz * f64::from(x.get(n, d))) as f32);
            }
        }
    }
    Ok(())
}
