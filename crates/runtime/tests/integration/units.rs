//! Units: parameters that are on the device only while their unit runs, in pools that layers share.

use crate::tiny;

use bessemer_arch::{Model, ParamSpec};
use bessemer_runtime::{
    ActivationConfig, Collective, Decoder, ModelError, Param, Phase, Purpose, Ranks, Shape, StageRanks,
    TokenBatch, Unit,
};
use bessemer_tensor::{Backend, BufferSpec, TensorError, View};
use bessemer_units::DType;
use std::collections::BTreeMap;
use tiny::{SEQ, all_kinds, context, cpu, decoder, gradients, models, scored, tokens};

/// Holds every value on the host. A unit's parameters are written when it begins and spoilt when it ends.
struct Gathered {
    specs: Vec<ParamSpec>,
    tied: bool,
    values: Vec<Vec<f32>>,
    places: Vec<View>,
    grads: Vec<Option<View>>,
    /// Units as they began and ended.
    order: Vec<(Unit, Phase)>,
    inside: Option<(Unit, Phase)>,
    gradients: Vec<Option<Vec<f32>>>,
}

impl Gathered {
    fn used(&self, unit: Unit) -> Vec<usize> {
        (0..self.specs.len()).filter(|&i| unit.uses(self.specs[i].id, self.tied)).collect()
    }
}

impl Ranks for Gathered {
    fn collective(
        &mut self,
        _: &mut dyn Backend,
        c: &Collective,
        _: View,
        _: View,
    ) -> Result<(), TensorError> {
        panic!("a whole model talks to nobody: {}", c.name)
    }
}

impl StageRanks for Gathered {
    fn unit_begins(&mut self, b: &mut dyn Backend, unit: Unit, phase: Phase) -> Result<(), TensorError> {
        assert_eq!(self.inside.replace((unit, phase)), None);
        self.order.push((unit, phase));
        for i in self.used(unit) {
            b.write_f32(self.places[i], &self.values[i])?;
        }
        Ok(())
    }
    fn unit_ends(&mut self, b: &mut dyn Backend, unit: Unit, phase: Phase) -> Result<(), TensorError> {
        assert_eq!(self.inside.take(), Some((unit, phase)));
        for i in self.used(unit) {
            b.write_f32(self.places[i], &vec![f32::NAN; self.values[i].len()])?;
        }
        // A tied table is completed by the embedding.
        let own =
            (0..self.specs.len()).filter(|&i| self.specs[i].id.unit() == unit && phase == Phase::Backward);
        for i in own.collect::<Vec<_>>() {
            let mut values = vec![0.0; self.specs[i].len()];
            if let Some(grad) = self.grads[i] {
                b.read_f32(grad, &mut values)?;
            }
            assert!(self.gradients[i].replace(values).is_none(), "twice: {}", self.specs[i].name);
        }
        Ok(())
    }
}

fn buffer(b: &mut dyn Backend, len: usize) -> View {
    b.alloc(BufferSpec { class: "pool", name: "pool", dtype: DType::F32, len }).unwrap().vector()
}

/// Parameters of a unit one after the other; all layers in the same place. Values, then gradients.
fn pooled(b: &mut dyn Backend, specs: Vec<ParamSpec>) -> Vec<Param> {
    let kind = |unit: Unit| match unit {
        Unit::Layer(_) => Unit::Layer(0),
        other => other,
    };
    let mut lengths: BTreeMap<Unit, usize> = BTreeMap::new();
    for s in &specs {
        *lengths.entry(s.id.unit()).or_default() += s.len();
    }
    // Allocates for the longest of each kind.
    let mut longest: BTreeMap<Unit, usize> = BTreeMap::new();
    for (unit, len) in lengths {
        let most = longest.entry(kind(unit)).or_default();
        *most = len.max(*most);
    }
    let pools: BTreeMap<Unit, [View; 2]> =
        longest.into_iter().map(|(unit, len)| (unit, [buffer(b, len), buffer(b, len)])).collect();
    let mut used: BTreeMap<Unit, usize> = BTreeMap::new();
    let place = |spec: ParamSpec| {
        let at = used.entry(spec.id.unit()).or_default();
        let (rows, cols) = spec.matrix();
        let view = |pool: View| View { rows, cols, stride: cols, ..pool.columns(*at, rows * cols) };
        let [value, grad] = pools[&kind(spec.id.unit())].map(view);
        *at += rows * cols;
        let grad = (!spec.id.role().is_routing_state()).then_some(grad);
        Param { spec, value, grad }
    };
    specs.into_iter().map(place).collect()
}

const SHAPE: Shape = Shape { sequences: 2, seq: SEQ, purpose: Purpose::Train };

fn order(model: &Model, backward: bool) -> Vec<(Unit, Phase)> {
    let phase = if backward { Phase::Forward } else { Phase::Score };
    let there = Unit::all(model).filter(|u| !backward || *u != Unit::Head).map(|u| (u, phase));
    let back = Unit::all(model).rev().filter(|_| backward).map(|u| (u, Phase::Backward));
    there.chain(back).collect()
}

#[test]
fn layers_may_share_their_parameters_memory() {
    for (label, model) in all_kinds() {
        let (ids, targets) = tokens(5, 2);
        let batch = TokenBatch { ids: &ids, targets: &targets, positions: None };
        let ctx = context(3, scored(&targets));
        let mut b = cpu(1);
        let mut plain = decoder(&mut b, &model, 2, Purpose::Train);
        let wanted = plain.forward_backward(&mut b, &batch, &ctx).unwrap();
        let wanted_gradients = gradients(&mut b, &plain);
        let mut wanted_logits = Vec::new();
        plain.logits(&mut b, &batch, |_, row| wanted_logits.extend_from_slice(row)).unwrap();

        let mut b = cpu(1);
        let params = pooled(&mut b, model.params());
        let mut ranks = Gathered {
            specs: model.params(),
            tied: model.tied_embeddings,
            values: model.params().iter().enumerate().map(|(i, s)| tiny::values(i, s)).collect(),
            places: params.iter().map(|p| p.value).collect(),
            grads: params.iter().map(|p| p.grad).collect(),
            order: Vec::new(),
            inside: None,
            gradients: vec![None; params.len()],
        };
        let config = ActivationConfig::default();
        let mut d = Decoder::with_params(&mut b, &model, SHAPE, config, params).unwrap();
        assert!(ranks.order.is_empty());
        let found = d.forward_backward_through(&mut b, &mut ranks, &batch, &ctx).unwrap();
        assert_eq!(found, wanted, "{label}");
        assert_eq!(ranks.order, order(&model, true), "{label}");
        let found: Vec<_> = ranks.gradients.iter_mut().map(|g| g.take().unwrap()).collect();
        assert!(found == wanted_gradients, "{label}");

        ranks.order.clear();
        let loss = d.loss_through(&mut b, &mut ranks, &batch, None).unwrap();
        assert!(loss == wanted || tiny::has_capacity(&model), "{label}");
        assert_eq!(ranks.order, order(&model, false), "{label}");
        ranks.order.clear();
        let mut logits = Vec::new();
        d.logits_through(&mut b, &mut ranks, &batch, |_, row| logits.extend_from_slice(row)).unwrap();
        assert!(logits == wanted_logits, "{label}");
        assert_eq!(ranks.order, order(&model, false), "{label}");
    }
}

#[test]
fn parameters_in_the_wrong_place_are_named() {
    let (_, model) = models().swap_remove(0);
    let refused = |purpose: Purpose, change: &dyn Fn(&mut Vec<Param>)| {
        let mut b = cpu(1);
        let mut params = pooled(&mut b, model.params());
        change(&mut params);
        let shape = Shape { purpose, ..SHAPE };
        match Decoder::with_params(&mut b, &model, shape, ActivationConfig::default(), params) {
            Err(e @ ModelError::ParameterPlace { .. }) => e.to_string(),
            other => panic!("{other:?}"),
        }
    };
    let train = |change: &dyn Fn(&mut Vec<Param>)| refused(Purpose::Train, change);
    assert_eq!(
        train(&|p| p.swap(0, 1)),
        "parameter embed.tokens: wanted shape [97, 32] as number 0, found embed.positions of shape [16, 32]"
    );
    assert_eq!(
        train(&|p| p[3].grad = p[3].grad.map(|grad| grad.columns(0, 31))),
        "parameter layers.0.attention_norm.bias: wanted an f32, bf16 or f16 matrix [1, 32], found gradients [1, 31] of f32"
    );
    assert_eq!(
        train(&|p| p[4].value = p[4].value.rows(0, 7)),
        "parameter layers.0.attention.qkv.weight: wanted an f32, bf16 or f16 matrix [96, 32], found values [7, 32] of f32"
    );
    assert_eq!(
        refused(Purpose::Score, &|p| drop(p.pop())),
        "parameter final_norm.bias: wanted it as number 27, found 27 parameters in all"
    );
    let e = refused(Purpose::Score, &|p| p.push(p[0].clone()));
    assert_eq!(e, "parameter embed.tokens: wanted 28 parameters in all, found one more");
}
