//! Warm launches allocate nothing: every operator is launched once, then again under a counting allocator.

use crate::{Devices, sharding};
use bessemer_tensor::op::*;
use bessemer_tensor::{Backend, BufferSpec, Stream, View};
use bessemer_units::{Bytes, DType};

fn mat(b: &mut dyn Backend, rows: usize, cols: usize) -> View {
    b.alloc(BufferSpec { class: "test", name: "x", dtype: DType::F32, len: rows * cols })
        .unwrap()
        .matrix(rows, cols)
}

fn indices(b: &mut dyn Backend, len: usize) -> View {
    b.alloc(BufferSpec { class: "test", name: "i", dtype: DType::U32, len }).unwrap().vector()
}

/// One of every operator, with every option that has code of its own.
fn all(b: &mut dyn Backend) -> Vec<Op> {
    let (n, d, f, v) = (32, 48, 64, 100);
    let mut m = |r, c| mat(b, r, c);
    let (x, y, z, w) = (m(n, d), m(n, d), m(n, d), m(n, d));
    let (weight, dweight, bias, pre) = (m(f, d), m(f, d), m(1, f), m(n, f));
    let (wide, out, up) = (m(n, f), m(n, f), m(n, f));
    let (gain, dgain, mean, rstd) = (m(1, d), m(1, d), m(1, n), m(1, n));
    let (table, dtable, losses, one) = (m(v, d), m(v, d), m(1, n), m(1, 1));
    let (lse, row, row_out, sums) = (m(6, 16), m(1, d), m(1, f), m(4, n));
    let other_lse = m(6, 16);
    let (q1, o1, numbers) = (m(2, d), m(2, d), m(1, 5));
    b.write_f32(numbers, &[1.0; 5]).unwrap();
    let (ids, positions) = (indices(b, n), indices(b, n));
    let shape = AttentionShape { batch: 2, seq: 16, heads: 3, kv_heads: 3, head_dim: 16, scale: 0.25 };
    let new = AttentionShape { seq: 1, ..shape };
    let kind = ActivationKind::GeluTanh;
    let mask = DropoutMask { p: 0.1, counters: indices(b, DropoutMask::WORDS), first: 0 };
    let layer = NormKind::Layer;
    let tensor_shard = VocabularyShard::whole(&table);
    vec![
        Fill { dst: x, value: 0.5 }.into(),
        Copy { src: x, dst: y }.into(),
        Add { a: x, b: y, out: z }.into(),
        Dropout { x, out: z, mask, noise: Noise::Bernoulli, global_cols: x.cols }.into(),
        Activation { kind, x, out: z }.into(),
        ActivationBackward { kind, x, dout: y, dx: z }.into(),
        Gated { live: None, kind, gate: wide, up, out }.into(),
        GatedBackward { live: None, kind, gate: wide, up, dout: out, dgate: wide, dup: up }.into(),
        Linear {
            x,
            weight,
            bias: Some(bias),
            activation: Some((kind, pre)),
            residual: None,
            rowwise: false,
            out,
        }
        .into(),
        Linear { x: row, weight, bias: None, activation: None, residual: None, rowwise: false, out: row_out }
            .into(),
        LinearBackwardInput { dy: out, weight, activation: None, dx: z, accumulate: true }.into(),
        LinearBackwardWeight { x, dy: out, dweight, dbias: Some(bias), accumulate: true }.into(),
        Norm { kind: layer, x, weight: gain, bias: None, out: y, mean: Some(mean), rstd, eps: 1e-5 }.into(),
        NormBackward {
            kind: layer,
            x,
            weight: gain,
            mean: Some(mean),
            rstd,
            dout: y,
            dx: z,
            accumulate_dx: true,
            dweight: dgain,
            dbias: None,
            accumulate: true,
        }
        .into(),
        Rope { x, positions, heads: 3, theta: 1e4, scaling: RopeScaling::None, inverse: false }.into(),
        Attention {
            shape,
            q: x,
            k: y,
            v: z,
            out: w,
            lse,
            mask: AttentionMask::default(),
            dropout: Some(AttentionDropout::of(shape.heads, mask)),
        }
        .into(),
        AttentionMerge { shape, out: x, lse, part: w, part_lse: other_lse }.into(),
        AttentionCached {
            shape: new,
            past: 3,
            capacity: 16,
            window: None,
            alibi: None,
            q: q1,
            k_cache: y,
            v_cache: z,
            out: o1,
        }
        .into(),
        Embedding {
            table,
            tensor_shard: None,
            ids,
            positions: Some(PositionTable { table: dtable, positions }),
            out: x,
        }
        .into(),
        EmbeddingBackward { ids, dout: x, dtable, tensor_shard: None, positions: None }.into(),
        LinearCrossEntropy {
            x,
            weight: table,
            targets: ids,
            loss: losses,
            scored_lse: None,
            backward: Some(LossBackward {
                factors: rstd,
                z_loss: Some(numbers.columns(0, 1)),
                dx: y,
                dweight: dtable,
                accumulate: false,
            }),
            teacher: None,
        }
        .into(),
        LogitSums { x, weight: table, tensor_shard, targets: ids, lse: mean, target_logit: rstd }.into(),
        CombineLogSums { parts: sums, lse: mean, target_logit: rstd }.into(),
        LinearCrossEntropyShard {
            x,
            weight: table,
            tensor_shard,
            targets: ids,
            lse: mean,
            target_logit: rstd,
            loss: losses,
            scored_lse: None,
            backward: Some(LossBackward {
                factors: mean,
                z_loss: Some(numbers.columns(0, 1)),
                dx: y,
                dweight: dtable,
                accumulate: false,
            }),
        }
        .into(),
        SumSquares { x, out: one, accumulate: false }.into(),
        AdamW {
            param: weight,
            master: None,
            grad: dweight,
            m: pre.rows(0, 0),
            v: pre.rows(0, 0),
            step: numbers,
            beta1: 0.9,
            beta2: 0.99,
            eps: 1e-8,
            weight_decay: 0.0,
        }
        .into(),
    ]
}

fn backward_of_attention(b: &mut dyn Backend) -> Op {
    let shape = AttentionShape { batch: 2, seq: 16, heads: 3, kv_heads: 1, head_dim: 16, scale: 0.25 };
    let mut m = |r, c| mat(b, r, c);
    let (q, out, dout, dq) = (m(32, 48), m(32, 48), m(32, 48), m(32, 48));
    let (k, v, dk, dv) = (m(32, 16), m(32, 16), m(32, 16), m(32, 16));
    let lse = m(6, 16);
    let mask = AttentionMask::default();
    AttentionBackward { shape, q, k, v, out, lse, dout, dq, dk, dv, mask, dropout: None }.into()
}

fn of_optimizers(b: &mut dyn Backend) -> Vec<Op> {
    let mut m = |r, c| mat(b, r, c);
    let (param, grad, moment) = (m(64, 48), m(64, 48), m(64, 48));
    let (row, col, one, two) = (m(1, 64), m(1, 48), m(1, 1), m(1, 1));
    let (square, l, inverse) = (m(48, 48), m(48, 48), m(48, 48));
    let (weight_decay, eps) = (0.1, 1e-30);
    let step = m(1, 3);
    b.write_f32(step, &[1.0; 3]).unwrap();
    let first = step.columns(0, 2);
    vec![
        Sgd { param, grad, m: Some(moment), momentum: 0.9, nesterov: true, step, weight_decay, scale: 1.0 }
            .into(),
        Lion { param, grad, m: moment, step, beta1: 0.9, beta2: 0.99, weight_decay }.into(),
        Combine { a: param, alpha: 0.5, b: grad, beta: 0.5, step: Some(first), out: moment }.into(),
        Dot { a: param, b: grad, out: one }.into(),
        DivideByNorm { x: moment, squares: one, slack: 1.0, eps: 1e-7, out: moment }.into(),
        Cholesky { a: square, shift: 1.0, l }.into(),
        TriangularInverse { l, out: inverse }.into(),
        FactoredMoments { grad, row, col, step, eps }.into(),
        FactoredDirection { grad, row, col, step: first, out: grad }.into(),
        MomentDirection { grad, v: moment, step, eps, out: grad }.into(),
        AdafactorUpdate {
            param,
            direction: grad,
            direction_squares: one,
            param_squares: Some(two),
            values: param.len(),
            m: Some(moment),
            beta: 0.9,
            step: first,
            eps: 1e-3,
            threshold: 1.0,
            weight_decay,
        }
        .into(),
    ]
}

/// Launches one of every operator until it is warm. `allocations` is the number of allocations of the process: a test program
/// with a counting allocator calls this from its only test.
///
/// The least of several warm launches counts: a thread of the system allocates now and then, an operator in each of its
/// launches.
///
/// # Panics
/// If a warm launch allocates.
pub fn warm_launches_allocate_nothing(devices: &dyn Devices, allocations: &dyn Fn() -> u64) {
    let fastest = devices.variants().len() - 1;
    for workers in [1, 2] {
        let mut b = devices.backend(fastest, workers);
        let mut ops = all(&mut *b);
        // AdamW's moments have the shape of its parameter.
        let (m, v) = (mat(&mut *b, 64, 48), mat(&mut *b, 64, 48));
        for op in &mut ops {
            if let Op::AdamW(o) = op {
                (o.m, o.v) = (m, v);
            }
        }
        ops.push(backward_of_attention(&mut *b));
        ops.extend(of_optimizers(&mut *b));
        // Operators of every name, in small.
        ops.extend(sharding::bound_cases(&mut *b));
        let bytes = ops.iter().map(|o| b.workspace(o).unwrap().0).max().unwrap();
        b.reserve_workspace(Bytes(bytes)).unwrap();
        let mut least = vec![u64::MAX; ops.len()];
        for round in 0..6 {
            for (op, least) in ops.iter().zip(&mut least) {
                let before = allocations();
                b.launch(Stream::Compute, op).unwrap();
                let made = allocations() - before;
                *least = if round == 0 { u64::MAX } else { made.min(*least) };
            }
        }
        for (op, made) in ops.iter().zip(least) {
            assert!(made == 0, "{} made {made} allocations with {workers} workers", op.name());
        }
    }
}
