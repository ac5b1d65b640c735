//! The seams of a backward pass that is split: which calls come in which part, and with what.

use crate::tiny;

use bessemer_arch::{Model, ParamClass, Span};
use bessemer_model::{
    ActivationConfig, Decoder, OneDevice, Phase, Purpose, SeamAt, Seams, Shape, StageConfig, Stream,
    TokenBatch, Unit,
};
use bessemer_tensor::{Backend, TensorError, View};
use bessemer_units::Recompute;
use tiny::{SEQ, all_kinds, context, cpu, scored, tokens, values};

/// Notes every call and where it was made.
#[derive(Default)]
struct Notes {
    inside: Option<(Unit, Phase)>,
    units: Vec<(Unit, Phase)>,
    /// Gradients at f and g, and the phase.
    exchanged: Vec<(Phase, SeamAt)>,
    /// Number, values as they were then.
    ready: Vec<(usize, (Unit, Phase), Vec<f32>)>,
    /// Number, x and dy.
    linear: Vec<(usize, Vec<f32>, Vec<f32>)>,
}

fn read(b: &mut dyn Backend, view: View) -> Result<Vec<f32>, TensorError> {
    let mut values = vec![0.0; view.len()];
    b.read_f32(view, &mut values)?;
    Ok(values)
}

impl Seams for Notes {
    fn unit_begins(&mut self, _: &mut dyn Backend, unit: Unit, phase: Phase) -> Result<(), TensorError> {
        assert_eq!(self.inside.replace((unit, phase)), None);
        self.units.push((unit, phase));
        Ok(())
    }
    fn unit_ends(&mut self, _: &mut dyn Backend, unit: Unit, phase: Phase) -> Result<(), TensorError> {
        assert_eq!(self.inside.take(), Some((unit, phase)));
        Ok(())
    }
    fn backward(&mut self, _: &mut dyn Backend, at: SeamAt, _: View) -> Result<(), TensorError> {
        let (unit, phase) = self.inside.unwrap();
        assert_eq!(unit, at.unit);
        self.exchanged.push((phase, at));
        Ok(())
    }
    fn linear_backward(
        &mut self,
        b: &mut dyn Backend,
        param: usize,
        x: View,
        dy: View,
    ) -> Result<(), TensorError> {
        self.linear.push((param, read(b, x)?, read(b, dy)?));
        Ok(())
    }
    fn gradient_ready(&mut self, b: &mut dyn Backend, param: usize, g: View) -> Result<(), TensorError> {
        let values = read(b, g)?;
        self.ready.push((param, self.inside.unwrap(), values));
        Ok(())
    }
}

const SHAPE: Shape = Shape { sequences: 2, seq: SEQ, purpose: Purpose::Train };

/// A middle stage and one with the head, so that both kinds of ends are seen.
fn spans(model: &Model) -> Vec<Span> {
    let mut spans = model.split_layers(&[1, 2, 1]).unwrap();
    spans.push(Span::whole(model));
    spans
}

fn hold(label: &str, model: &Model, recompute: Recompute) {
    let mut b = cpu(1);
    let portion = model.portion(1, 0).unwrap();
    let config = ActivationConfig { recompute, ..ActivationConfig::default() };
    let (ids, targets) = tokens(5, 2);
    let batch = TokenBatch { ids: &ids, targets: &targets, positions: None };
    let ctx = context(3, scored(&targets));
    for span in spans(model) {
        let stage = StageConfig { span: span.clone(), slots: 1, pending: 1 };
        let mut d = Decoder::of_stage(&mut b, &portion, Stream::Whole, SHAPE, config, &stage, None).unwrap();
        for (i, p) in model.params().iter().enumerate().filter(|(_, p)| span.uses(model, p.id)) {
            d.write_param(&mut b, &p.name, &values(i, p)).unwrap();
        }
        let stream: Vec<f32> = (0..SHAPE.tokens() * model.width).map(|e| (e as f32 * 0.37).sin()).collect();
        let filled = |b: &mut dyn Backend, d: &mut Decoder| {
            if !span.embedding {
                b.write_f32(d.stage_input(0).unwrap(), &stream).unwrap();
            }
            d.stage_forward(b, &mut OneDevice, 0, &batch, Some(&ctx)).unwrap();
            if !span.head {
                b.write_f32(d.stage_output_gradient(0).unwrap(), &stream).unwrap();
            }
        };
        filled(&mut b, &mut d);
        let mut together = Notes::default();
        d.stage_backward(&mut b, &mut together, 0, false).unwrap();
        filled(&mut b, &mut d);
        let mut split = Notes::default();
        let (_, pending) = d.stage_backward_input(&mut b, &mut split, 0, false).unwrap();
        assert!(split.ready.is_empty() && split.linear.is_empty(), "{label}: gradients are announced later");
        d.stage_backward_weight(&mut b, &mut split, pending, false).unwrap();

        let units: Vec<Unit> = Unit::all(model)
            .filter(|u| match u {
                Unit::Embedding => span.embedding,
                Unit::Layer(i) => span.layers.contains(i),
                Unit::Head => span.head,
            })
            .collect();
        let back = |phase| units.iter().rev().map(move |u| (*u, phase));
        let parts: Vec<_> = back(Phase::BackwardInput).chain(back(Phase::BackwardWeight)).collect();
        assert_eq!(split.units, parts, "{label}");
        assert!(together.units.iter().copied().eq(back(Phase::Backward)), "{label}");
        // Exchanges of values belong to the input part.
        let places = |n: &Notes| n.exchanged.iter().map(|e| e.1).collect::<Vec<_>>();
        assert!(split.exchanged.iter().all(|e| e.0 == Phase::BackwardInput), "{label}");
        assert_eq!(places(&split), places(&together), "{label}");
        assert_eq!(places(&split).len(), 4 * span.layers.len());
        // Inputs and gradients of the matrices, in the same order, with the same bits.
        assert!(split.linear == together.linear, "{label} {span:?}");
        let matrices = d.params().iter().filter(|p| p.spec.class() == ParamClass::Matrix).count();
        assert_eq!(split.linear.len(), matrices, "{label}");
        // Each gradient once, in the unit that it belongs to, with the same bits.
        let sorted = |n: &Notes, phase| {
            let mut ready = n.ready.clone();
            ready.sort_by_key(|r| r.0);
            for (param, inside, _) in &ready {
                let spec = &d.params()[*param].spec;
                let (id, name) = (spec.id, &spec.name);
                let unit = if span.owns(id) { id.unit() } else { Unit::Head };
                assert_eq!(*inside, (unit, phase), "{label}: {name}");
            }
            ready.into_iter().map(|r| (r.0, r.2)).collect::<Vec<_>>()
        };
        let found = sorted(&split, Phase::BackwardWeight);
        assert!(found == sorted(&together, Phase::Backward), "{label}");
        assert!(found.iter().map(|r| r.0).eq(0..d.params().len()), "{label}");
    }
}

#[test]
fn the_weight_part_announces_what_the_whole_pass_does() {
    for (label, plain) in all_kinds() {
        for dropout in [0.0, 0.2] {
            let model = Model { layers: 4, dropout, ..plain.clone() };
            hold(label, &model, Recompute::Selective);
            hold(label, &model, Recompute::None);
        }
    }
}
