//! The seams: called where and when they say, and enough to cut a model over two devices as Megatron-LM does.

use crate::tiny;

use bessemer_arch::{MlpKind, Model, NormChoice, Placement, PositionChoice};
use bessemer_model::{
    Decoder, OneDevice, Product, Purpose, SeamAt, SeamPlace, Seams, Shape, StepContext, TokenBatch, Unit,
};
use bessemer_tensor::{Backend, TensorError, View};
use std::sync::{Barrier, Mutex};
use tiny::{SEQ, all_kinds, context, cpu, decoder, gradients, relative, scored, tokens};

/// Notes every call; the products are partial sums of one term.
struct Recording {
    product: Product,
    forward: Vec<SeamAt>,
    backward: Vec<SeamAt>,
    gradients: Vec<(usize, Vec<f32>)>,
}

impl Recording {
    fn new(product: Product) -> Recording {
        Recording { product, forward: Vec::new(), backward: Vec::new(), gradients: Vec::new() }
    }
}

impl Seams for Recording {
    fn product(&self) -> Product {
        self.product
    }
    fn forward(&mut self, _: &mut dyn Backend, at: SeamAt, value: View) -> Result<(), TensorError> {
        assert_eq!((value.rows, value.cols), (2 * SEQ, 32));
        self.forward.push(at);
        Ok(())
    }
    fn backward(&mut self, _: &mut dyn Backend, at: SeamAt, gradient: View) -> Result<(), TensorError> {
        assert_eq!((gradient.rows, gradient.cols), (2 * SEQ, 32));
        self.backward.push(at);
        Ok(())
    }
    fn gradient_ready(
        &mut self,
        backend: &mut dyn Backend,
        param: usize,
        gradient: View,
    ) -> Result<(), TensorError> {
        let mut values = vec![0.0; gradient.len()];
        backend.read_f32(gradient, &mut values)?;
        self.gradients.push((param, values));
        Ok(())
    }
}

#[test]
fn seams_are_called_in_order_and_gradients_are_ready_when_they_say_so() {
    for (label, plain) in all_kinds() {
        for dropout in [0.0, 0.2] {
            let model = Model { dropout, ..plain.clone() };
            let mut b = cpu(1);
            let mut d = decoder(&mut b, &model, 2, Purpose::Train);
            let (ids, targets) = tokens(5, 2);
            let batch = TokenBatch { ids: &ids, targets: &targets, positions: None };
            let ctx = context(3, scored(&targets));
            let whole = d.forward_backward(&mut b, &batch, &ctx).unwrap();
            let expected = gradients(&mut b, &d);

            let all = [SeamPlace::AttentionIn, SeamPlace::AttentionOut, SeamPlace::MlpIn, SeamPlace::MlpOut];
            let order: Vec<_> = (0..model.layers)
                .flat_map(|i| all.map(|place| SeamAt { unit: Unit::Layer(i), place }))
                .collect();
            for product in [Product::Partial { adds_bias: true }, Product::Whole] {
                let mut seams = Recording::new(product);
                let sum = d.forward_backward_through(&mut b, &mut seams, &batch, &ctx).unwrap();
                assert!((sum.nats / whole.nats - 1.0).abs() < 1e-6, "{label} {product:?}");
                let entered = |at: &&SeamAt| matches!(at.place, SeamPlace::AttentionIn | SeamPlace::MlpIn);
                let wanted: Vec<_> = match product {
                    Product::Partial { .. } => order.clone(),
                    Product::Whole => order.iter().filter(entered).copied().collect(),
                };
                // The backward pass makes normalised rows again, and passes them through the same seam.
                let normed = model.placement == Placement::Pre && model.norm != NormChoice::None;
                let again = order.iter().rev().filter(|at| normed && entered(at)).copied();
                let wanted: Vec<_> = wanted.into_iter().chain(again).collect();
                assert_eq!(seams.forward, wanted, "{label} {product:?}");
                assert!(seams.backward.iter().eq(order.iter().rev()), "{label} {product:?}");

                let found = gradients(&mut b, &d);
                let mut seen: Vec<_> = seams.gradients.iter().map(|g| g.0).collect();
                for (param, values) in &seams.gradients {
                    assert!(*values == found[*param], "{label}: {} changed", d.params()[*param].spec.name);
                    assert!(relative(values, &expected[*param]) < 1e-5);
                }
                seen.sort_unstable();
                assert!(seen.into_iter().eq(0..d.params().len()), "{label}: each gradient once");
            }
        }
    }
}

/// Sums over two devices that are threads here.
struct Meeting {
    terms: Mutex<[Vec<f32>; 2]>,
    barrier: Barrier,
}

/// One of two devices that share every layer.
struct Half<'a> {
    which: usize,
    meeting: &'a Meeting,
}

impl Half<'_> {
    fn all_reduce(&self, backend: &mut dyn Backend, value: View) -> Result<(), TensorError> {
        let mut mine = vec![0.0; value.len()];
        backend.read_f32(value, &mut mine)?;
        self.meeting.terms.lock().unwrap()[self.which] = mine;
        self.meeting.barrier.wait();
        let sum: Vec<f32> = {
            let terms = self.meeting.terms.lock().unwrap();
            terms[0].iter().zip(&terms[1]).map(|(a, b)| a + b).collect()
        };
        self.meeting.barrier.wait();
        backend.write_f32(value, &sum)
    }
}

impl Seams for Half<'_> {
    fn product(&self) -> Product {
        Product::Partial { adds_bias: self.which == 0 }
    }
    fn forward(&mut self, backend: &mut dyn Backend, at: SeamAt, value: View) -> Result<(), TensorError> {
        match at.place {
            SeamPlace::AttentionOut | SeamPlace::MlpOut => self.all_reduce(backend, value),
            _ => Ok(()),
        }
    }
    fn backward(&mut self, backend: &mut dyn Backend, at: SeamAt, gradient: View) -> Result<(), TensorError> {
        match at.place {
            SeamPlace::AttentionIn | SeamPlace::MlpIn => self.all_reduce(backend, gradient),
            _ => Ok(()),
        }
    }
}

/// Rows (or columns) of a parameter that device `which` of two holds; everything if it is not cut.
fn part(model: &Model, name: &str, shape: &[usize], values: &[f32], which: usize) -> Vec<f32> {
    let half = |from: usize, len: usize| from + which * len / 2..from + (which + 1) * len / 2;
    let (q, kv) = (model.attention_width(), model.kv_heads * model.head_dim);
    let cols = if shape.len() == 2 { shape[1] } else { 1 };
    let outputs = if name.contains("attention.qkv") {
        [half(0, q), half(q, kv), half(q + kv, kv)].to_vec()
    } else if name.contains("mlp.gate_up") || name.contains("mlp.up") {
        let f = model.ffn_width;
        if model.mlp() == MlpKind::Gated { vec![half(0, f), half(f, f)] } else { vec![half(0, f)] }
    } else if name.ends_with("out.weight") || name.ends_with("down.weight") {
        return values.chunks(cols).flat_map(|row| &row[half(0, cols)]).copied().collect();
    } else {
        return values.to_vec();
    };
    outputs.into_iter().flat_map(|r| &values[r.start * cols..r.end * cols]).copied().collect()
}

/// Loss and gradients on one of the two devices.
fn on_half(model: &Model, seams: &mut Half<'_>, ctx: &StepContext) -> (f64, f64, Vec<Vec<f32>>) {
    let local = Model {
        heads: model.heads / 2,
        kv_heads: model.kv_heads / 2,
        ffn_width: model.ffn_width / 2,
        ..model.clone()
    };
    let mut b = cpu(1);
    let mut d =
        Decoder::new(&mut b, &local, Shape { sequences: 2, seq: SEQ, purpose: Purpose::Train }).unwrap();
    for (i, spec) in model.params().iter().enumerate() {
        let mine = part(model, &spec.name, &spec.shape, &tiny::values(i, spec), seams.which);
        d.write_param(&mut b, &spec.name, &mine).unwrap();
    }
    let (ids, targets) = tokens(5, 2);
    let batch = TokenBatch { ids: &ids, targets: &targets, positions: None };
    let loss = d.loss_through(&mut b, seams, &batch, None).unwrap().nats;
    let trained = d.forward_backward_through(&mut b, seams, &batch, ctx).unwrap().nats;
    (loss, trained, gradients(&mut b, &d))
}

/// Each device needs whole groups of heads. The weights of QK-norm serve heads on both devices, whose gradients a run on
/// two devices must add in `gradient_ready`; ALiBi's slopes are those of all heads, which a decoder with half of them
/// does not know.
fn can_be_halved(model: &Model) -> bool {
    model.kv_heads.is_multiple_of(2) && !model.qk_norm && model.positions != PositionChoice::Alibi
}

#[test]
fn a_model_cut_over_two_devices_has_the_gradients_of_one() {
    for (label, model) in all_kinds().into_iter().filter(|m| can_be_halved(&m.1)) {
        let (ids, targets) = tokens(5, 2);
        let ctx = context(0, scored(&targets));
        let mut b = cpu(1);
        let mut d = decoder(&mut b, &model, 2, Purpose::Train);
        let batch = TokenBatch { ids: &ids, targets: &targets, positions: None };
        let whole = d.forward_backward_through(&mut b, &mut OneDevice, &batch, &ctx).unwrap().nats;
        let expected = gradients(&mut b, &d);

        let meeting = Meeting { terms: Mutex::default(), barrier: Barrier::new(2) };
        let halves = std::thread::scope(|s| {
            let (meeting, model, ctx) = (&meeting, &model, &ctx);
            let run = move |which| s.spawn(move || on_half(model, &mut Half { which, meeting }, ctx));
            [run(0), run(1)].map(|t| t.join().unwrap())
        });
        for (which, (loss, trained, found)) in halves.iter().enumerate() {
            assert!(
                (loss / whole - 1.0).abs() < 1e-6 && loss == trained,
                "{label}: {loss} {trained} {whole}"
            );
            for ((p, whole), mine) in d.params().iter().zip(&expected).zip(found) {
                let wanted = part(&model, &p.spec.name, &p.spec.shape, whole, which);
                let difference = relative(mine, &wanted);
                assert!(difference < 1e-5, "{label} device {which} {}: {difference}", p.spec.name);
            }
        }
    }
}
