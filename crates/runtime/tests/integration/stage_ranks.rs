//! Calls of [`StageRanks`] in a split backward pass: which calls come in which part, and with what.

use crate::tiny;

use bessemer_arch::{Model, ParamClass, Span};
use bessemer_runtime::{
    ActivationConfig, Collective, Decoder, OneDevice, Param, Phase, Purpose, Ranks, Shape, StageConfig,
    StageRanks, Stream, TokenBatch, Unit,
};
use bessemer_tensor::{Backend, TensorError, View};
use bessemer_units::Recompute;
use tiny::{SEQ, all_kinds, context, cpu, gradients, scored, tokens, values};

/// Notes every call and where it was made.
#[derive(Default)]
struct Notes {
    inside: Option<(Unit, Phase)>,
    units: Vec<(Unit, Phase)>,
    /// Number, x and dy.
    linear: Vec<(usize, Vec<f32>, Vec<f32>)>,
}

fn read(b: &mut dyn Backend, view: View) -> Result<Vec<f32>, TensorError> {
    let mut values = vec![0.0; view.len()];
    b.read_f32(view, &mut values)?;
    Ok(values)
}

impl Ranks for Notes {
    fn collective(
        &mut self,
        _: &mut dyn Backend,
        c: &Collective,
        _: View,
        _: View,
    ) -> Result<(), TensorError> {
        panic!("a whole model talks to nobody: {}", c.name)
    }
    fn weight_gradient(
        &mut self,
        b: &mut dyn Backend,
        param: usize,
        x: View,
        dy: View,
    ) -> Result<(), TensorError> {
        self.linear.push((param, read(b, x)?, read(b, dy)?));
        Ok(())
    }
}

impl StageRanks for Notes {
    fn unit_begins(&mut self, _: &mut dyn Backend, unit: Unit, phase: Phase) -> Result<(), TensorError> {
        assert_eq!(self.inside.replace((unit, phase)), None);
        self.units.push((unit, phase));
        Ok(())
    }
    fn unit_ends(&mut self, _: &mut dyn Backend, unit: Unit, phase: Phase) -> Result<(), TensorError> {
        assert_eq!(self.inside.take(), Some((unit, phase)));
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
    let tensor_shard = model.tensor_shard(1, 0).unwrap();
    let config = ActivationConfig { recompute: recompute.into(), ..ActivationConfig::default() };
    let (ids, targets) = tokens(5, 2);
    let batch = TokenBatch { ids: &ids, targets: &targets, positions: None };
    let ctx = context(3, scored(&targets));
    for span in spans(model) {
        let stage = StageConfig { span: span.clone(), slots: 1, pending: 1, overlap: false, shadowing: None };
        let mut d =
            Decoder::of_stage(&mut b, &tensor_shard, Stream::WHOLE, SHAPE, config.clone(), &stage, None)
                .unwrap();
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
        assert!(split.linear.is_empty(), "{label}: gradients of matrices are made later");
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
        // Inputs and gradients of the matrices, in the same order, with the same bits.
        assert!(split.linear == together.linear, "{label} {span:?}");
        // Stacks of experts are no linear maps of all rows.
        let is_map = |p: &&Param| p.spec.class() == ParamClass::Matrix && !p.spec.name.contains(".experts.");
        let matrices = d.params().iter().filter(is_map).count();
        assert_eq!(split.linear.len(), matrices, "{label}");
        // Every gradient has the same bits.
        let found = gradients(&mut b, &d);
        filled(&mut b, &mut d);
        d.stage_backward(&mut b, &mut OneDevice, 0, false).unwrap();
        assert!(found == gradients(&mut b, &d), "{label}");
    }
}

#[test]
fn the_two_parts_do_what_the_whole_pass_does() {
    for (label, plain) in all_kinds() {
        for dropout in [0.0, 0.2] {
            let model = Model { layers: 4, dropout, ..plain.clone() };
            hold(label, &model, Recompute::Selective);
            hold(label, &model, Recompute::None);
            hold(label, &model, Recompute::Full);
        }
    }
}
