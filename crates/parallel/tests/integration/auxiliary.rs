//! A loss in a middle layer, added by a pass of the test's own, in every kind of layout.

use crate::pipelines::{Layout, check, model, pipelined, single, train};
use bessemer_arch::Unit;
use bessemer_mesh::Dim;
use bessemer_parallel::{ParallelConfig, Stage};
use bessemer_program::{Phase, Recorder, UnitProgram};
use bessemer_runtime::{ActivationConfig, UnitPass};
use bessemer_schedule::Kind;
use bessemer_tensor::op::{Combine, Dot};
use bessemer_units::Recompute;

pub(crate) const NAME: &str = "stream_squares";

/// The sum of the squares of the input of layer 3.
const SQUARES: UnitPass = UnitPass { name: NAME, apply: squares };

fn squares(of: Unit, unit: UnitProgram) -> UnitProgram {
    if of != Unit::Layer(3) {
        return unit;
    }
    let mut recorder = Recorder::of(unit);
    let (x, dx) = (recorder.find("x").unwrap(), recorder.find("x.gradient").unwrap());
    recorder.begin(Phase::Forward);
    let (out, weight) = recorder.auxiliary_loss(NAME, false, [Dim::plain(1), Dim::plain(1)]);
    recorder.launch(Dot { a: x, b: x, out });
    recorder.begin(Phase::Backward);
    recorder.launch(Combine { a: dx, alpha: 1.0, b: x, beta: 2.0, step: Some(weight), out: dx });
    recorder.finish()
}

fn with_squares(layout: Layout) -> Layout {
    let activations = ActivationConfig { passes: vec![SQUARES], ..layout.activations };
    Layout { activations, ..layout }
}

fn ranks(ranks: usize, config: ParallelConfig) -> Layout {
    with_squares(Layout { config, ranks, micro_batches: 2, ..single() })
}

#[test]
fn a_loss_of_a_middle_layer_is_trained_and_reported_alike_in_every_layout() {
    let base = ParallelConfig::default;
    for tied in [true, false] {
        let model = model(tied);
        let shards = |stage, shard| ParallelConfig { stage, shard, ..base() };
        check(&model, &ranks(4, shards(Stage::Ddp, 0)), 8);
        check(&model, &ranks(4, shards(Stage::Zero3, 2)), 8);
        for sequence in [false, true] {
            check(&model, &ranks(4, ParallelConfig { tensor: 2.into(), sequence, ..base() }), 8);
        }
        if !tied {
            let context = ranks(4, ParallelConfig { context: 2, ..base() });
            check(&model, &Layout { micro_batches: 4, ..context }, 8);
        }
        for kind in [Kind::OneFOneB, Kind::Interleaved, Kind::ZbH1, Kind::DualPipe] {
            check(&model, &with_squares(pipelined(kind, 2, 4)), 8);
        }
        let all = pipelined(Kind::OneFOneB, 2, 4).with_tensor(true).with_data(2, Stage::Zero2, 0);
        check(&model, &with_squares(all), 8);
        let mut recomputed = ranks(2, shards(Stage::Ddp, 0));
        recomputed.activations.recompute = Recompute::Full.into();
        check(&model, &recomputed, 8);
    }
}

#[test]
fn the_loss_changes_what_is_trained_and_no_layer_without_it() {
    let model = model(false);
    let plain = &train(&model, &single(), 4)[0];
    let with = &train(&model, &with_squares(single()), 4)[0];
    assert_eq!(plain.losses[0], with.losses[0]);
    assert_eq!(plain.auxiliary[0][0], with.auxiliary[0][0]);
    assert!(plain.auxiliary.iter().all(|losses| losses[1] == 0.0));
    assert!(with.auxiliary.iter().all(|losses| losses[1] > 0.0));
    assert_ne!(plain.losses[1], with.losses[1]);
}
