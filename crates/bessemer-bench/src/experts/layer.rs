//! The operators of a layer of experts, and those of a dense gated MLP, forward and backward, as training passes record them.

use super::Shape;
use bessemer::Failure;
use bessemer_kernels_cpu::CpuBackend;
use bessemer_tensor::op::*;
use bessemer_tensor::rng::RngKey;
use bessemer_tensor::{Backend, BufferSpec, Stream, TensorError, View};
use bessemer_units::DType;
use std::time::Instant;

/// Seconds of a pass forward and backward.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Seconds {
    pub(super) all: f64,
    /// Of the router, its losses, and of copies and sums of rows.
    pub(super) routing: f64,
}

/// Operators in order, each with whether it is part of routing.
pub(super) struct Layer(Vec<(bool, Op)>);

struct Maker<'a> {
    backend: &'a mut CpuBackend,
    dtype: DType,
    made: u64,
}

impl Maker<'_> {
    fn empty(&mut self, dtype: DType, rows: usize, cols: usize) -> Result<View, TensorError> {
        let spec = BufferSpec { class: "bench", name: "operand", dtype, len: rows * cols };
        Ok(self.backend.alloc(spec)?.matrix(rows, cols))
    }

    /// Normal values, of which each row has others: what a router chooses by.
    fn noise(&mut self, dtype: DType, rows: usize, cols: usize, deviation: f32) -> Result<View, TensorError> {
        let view = self.empty(dtype, rows, cols)?;
        self.made += 1;
        let mut row = vec![0.0; cols];
        for r in 0..rows {
            RngKey::new(self.made, r as u64, "bench").fill_normal(0, deviation, &mut row);
            self.backend.write_f32(view.rows(r, 1), &row)?;
        }
        Ok(view)
    }

    fn act(&mut self, rows: usize, cols: usize) -> Result<View, TensorError> {
        self.empty(self.dtype, rows, cols)
    }

    fn index(&mut self, rows: usize, cols: usize) -> Result<View, TensorError> {
        self.empty(DType::U32, rows, cols)
    }

    fn f32(&mut self, rows: usize, cols: usize) -> Result<View, TensorError> {
        self.empty(DType::F32, rows, cols)
    }

    /// A weight and its gradient.
    fn weight(&mut self, rows: usize, cols: usize) -> Result<(View, View), TensorError> {
        Ok((self.noise(self.dtype, rows, cols, 0.05)?, self.act(rows, cols)?))
    }
}

fn halves(pre: View) -> (View, View) {
    let f = pre.cols / 2;
    (pre.columns(0, f), pre.columns(f, f))
}

fn linear(x: View, weight: View, out: View, rowwise: bool) -> Linear {
    Linear { x, weight, bias: None, activation: None, residual: None, rowwise, out }
}

fn weight_gradient(x: View, dy: View, dweight: View) -> LinearBackwardWeight {
    LinearBackwardWeight { x, dy, dweight, dbias: None, accumulate: false }
}

fn input_gradient(dy: View, weight: View, dx: View, accumulate: bool) -> LinearBackwardInput {
    LinearBackwardInput { dy, weight, activation: None, dx, accumulate }
}

impl Layer {
    /// A gated MLP on `rows` rows.
    pub(super) fn dense(
        backend: &mut CpuBackend,
        (rows, width, hidden): (usize, usize, usize),
        dtype: DType,
    ) -> Result<Layer, Failure> {
        let m = &mut Maker { backend, dtype, made: 0 };
        let (x, dy) = (m.noise(dtype, rows, width, 1.0)?, m.noise(dtype, rows, width, 1.0)?);
        let ((gate_up, dgate_up), (down, ddown)) = (m.weight(2 * hidden, width)?, m.weight(width, hidden)?);
        let (pre, dpre) = (m.act(rows, 2 * hidden)?, m.act(rows, 2 * hidden)?);
        let (inner, dinner) = (m.act(rows, hidden)?, m.act(rows, hidden)?);
        let (out, dx) = (m.act(rows, width)?, m.act(rows, width)?);
        let ((gate, up), (dgate, dup)) = (halves(pre), halves(dpre));
        let kind = ActivationKind::Silu;
        let ops: Vec<Op> = vec![
            linear(x, gate_up, pre, false).into(),
            Gated { kind, live: None, gate, up, out: inner }.into(),
            linear(inner, down, out, false).into(),
            weight_gradient(inner, dy, ddown).into(),
            input_gradient(dy, down, dinner, false).into(),
            GatedBackward { kind, live: None, gate, up, dout: dinner, dgate, dup }.into(),
            weight_gradient(x, dpre, dgate_up).into(),
            input_gradient(dpre, gate_up, dx, false).into(),
        ];
        Layer::ready(backend, ops.into_iter().map(|op| (false, op)).collect())
    }

    /// A layer of experts with renormalised weights, a balance loss of one sequence and a z-loss.
    pub(super) fn experts(backend: &mut CpuBackend, shape: &Shape, dtype: DType) -> Result<Layer, Failure> {
        let &Shape { experts: e, choices: k, width: d, hidden: f, .. } = shape;
        let (n, r) = (shape.tokens(), shape.tokens() * k);
        let m = &mut Maker { backend, dtype, made: 0 };
        let (x, dy) = (m.noise(dtype, n, d, 1.0)?, m.noise(dtype, n, d, 1.0)?);
        let (router, drouter) = (m.noise(DType::F32, e, d, 0.05)?, m.f32(e, d)?);
        let ((gate_up, dgate_up), (down, ddown)) = (m.weight(e * 2 * f, d)?, m.weight(e * d, f)?);
        let (logits, probabilities, dlogits) = (m.f32(n, e)?, m.f32(n, e)?, m.f32(n, e)?);
        let (weights, dweights, lse) = (m.f32(n, k)?, m.f32(n, k)?, m.f32(1, n)?);
        let (experts, rows, sources) = (m.index(n, k)?, m.index(n, k)?, m.index(1, r)?);
        let (offsets, counts, value) = (m.index(1, e + 1)?, m.index(1, e)?, m.f32(1, 1)?);
        let (dispatched, dback) = (m.act(r, d)?, m.act(r, d)?);
        let (pre, dpre) = (m.act(r, 2 * f)?, m.act(r, 2 * f)?);
        let (inner, dinner) = (m.act(r, f)?, m.act(r, f)?);
        let (out, dout, y, dx) = (m.act(r, d)?, m.act(r, d)?, m.act(n, d)?, m.act(n, d)?);
        let factor = m.f32(1, 2)?;
        m.backend.write_f32(factor, &[0.01, 0.01 / n as f32])?;
        let ((gate, up), (dgate, dup)) = (halves(pre), halves(dpre));
        let (kind, chosen_by, accumulate) = (ActivationKind::Silu, Gate::softmax(true), false);
        let mut ops = Vec::new();
        let mut routing = |op: Op| ops.push((true, op));
        // The router reads and writes f32.
        let (read, dread, rounded) = match dtype {
            DType::F32 => (x, dx, None),
            _ => (m.f32(n, d)?, m.f32(n, d)?, Some(m.act(n, d)?)),
        };
        if rounded.is_some() {
            routing(Copy { src: x, dst: read }.into());
        }
        routing(linear(read, router, logits, true).into());
        routing(
            Route {
                logits,
                bias: None,
                probabilities,
                experts,
                preferred: None,
                weights,
                lse: Some(lse),
                gate: chosen_by,
            }
            .into(),
        );
        routing(CountChoices { experts, span: TokenSpan::whole(n), counts }.into());
        routing(
            BalanceLoss {
                probabilities,
                counts,
                choices: k,
                normalise: false,
                span: TokenSpan::whole(n),
                value,
            }
            .into(),
        );
        routing(AssignRows { experts, kept: None, shadows: None, rows, sources, offsets }.into());
        routing(Dispatch { x, sources, choices: k, out: dispatched }.into());
        ops.extend(
            [
                Op::from(GroupedLinear { x: dispatched, weight: gate_up, offsets, out: pre }),
                Gated { kind, live: None, gate, up, out: inner }.into(),
                GroupedLinear { x: inner, weight: down, offsets, out }.into(),
            ]
            .map(|op| (false, op)),
        );
        let mut routing = |op: Op| ops.push((true, op));
        routing(CombineRows { x: out, rows, weights, out: y }.into());
        routing(CombineRowsBackward { dout: dy, x: out, rows, sources, weights, dx: dout, dweights }.into());
        ops.extend(
            [
                Op::from(GroupedLinearBackwardWeight {
                    x: inner,
                    dy: dout,
                    offsets,
                    dweight: ddown,
                    accumulate,
                }),
                GroupedLinearBackwardInput { dy: dout, weight: down, offsets, dx: dinner }.into(),
                GatedBackward { kind, live: None, gate, up, dout: dinner, dgate, dup }.into(),
                GroupedLinearBackwardWeight {
                    x: dispatched,
                    dy: dpre,
                    offsets,
                    dweight: dgate_up,
                    accumulate,
                }
                .into(),
                GroupedLinearBackwardInput { dy: dpre, weight: gate_up, offsets, dx: dback }.into(),
            ]
            .map(|op| (false, op)),
        );
        let mut routing = |op: Op| ops.push((true, op));
        routing(DispatchBackward { dout: dback, rows, dx, accumulate }.into());
        let weight = factor;
        let (balance, z_loss) = (Some(BalanceTerm { counts, weight }), Some((lse, weight)));
        let route = RouteBackward {
            probabilities,
            experts,
            weights,
            dweights,
            balance,
            z_loss,
            gate: chosen_by,
            span: TokenSpan::whole(n),
            dlogits,
        };
        routing(route.into());
        routing(weight_gradient(read, dlogits, drouter).into());
        routing(input_gradient(dlogits, router, dread, rounded.is_none()).into());
        if let Some(rounded) = rounded {
            routing(Copy { src: dread, dst: rounded }.into());
            routing(Add { a: dx, b: rounded, out: dx }.into());
        }
        Layer::ready(backend, ops)
    }

    /// Reserves the workspace.
    fn ready(backend: &mut CpuBackend, ops: Vec<(bool, Op)>) -> Result<Layer, Failure> {
        for (_, op) in &ops {
            let bytes = backend.workspace(op)?;
            backend.reserve_workspace(bytes)?;
        }
        Ok(Layer(ops))
    }

    /// Runs forward and backward; `each` gets the seconds of every operator.
    pub(super) fn run(
        &self,
        backend: &mut CpuBackend,
        each: &mut dyn FnMut(&Op, f64),
    ) -> Result<Seconds, Failure> {
        let mut seconds = Seconds::default();
        for (routing, op) in &self.0 {
            let begun = Instant::now();
            backend.launch(Stream::Compute, op)?;
            let took = begun.elapsed().as_secs_f64();
            each(op, took);
            seconds.all += took;
            seconds.routing += if *routing { took } else { 0.0 };
        }
        Ok(seconds)
    }
}
