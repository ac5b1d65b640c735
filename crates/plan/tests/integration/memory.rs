//! Memory in closed form.

use crate::job;
use bessemer_plan::{Job, Layout, Recompute, Transformer, ZeroStage, expected_memory};

/// Bytes of one layer's values for a token, from the difference between two depths.
fn layer(layout: Layout, fused_attention: bool) -> f64 {
    // 22B of Korthikanti et al. 2022, table 3.
    let with = |layers| {
        let model = Transformer::gpt(6144, 64, layers, 51_200);
        let job = Job { model, seq: 2048, global_batch: 4, fused_attention, layout };
        let parameters =
            (model.layer_parameters() * layers as f64 + model.table_parameters()) / layout.tensor as f64;
        expected_memory(&job) - 18.0 * parameters
    };
    (with(3) - with(2)) / (4.0 * 2048.0)
}

#[test]
fn values_of_a_layer_are_those_of_the_paper() {
    let (h, a, s, t) = (6144.0, 64.0, 2048.0, 8.0);
    let layout = Layout { tensor: 8, micro_batch: 4, ..Layout::default() };
    let near = |is: f64, formula: f64| assert!((is / formula - 1.0).abs() < 1e-9, "{is} {formula}");
    near(layer(layout, false), 10.0 * h + 24.0 * h / t + 5.0 * a * s / t);
    let sequence = Layout { sequence: true, ..layout };
    near(layer(sequence, false), (34.0 * h + 5.0 * a * s) / t);
    let selective = Layout { recompute: Recompute::Attention, ..sequence };
    near(layer(selective, false), 34.0 * h / t);
    near(layer(Layout { recompute: Recompute::Full, ..layout }, false), 2.0 * h);
    // Attention that stores no scores has no masks either.
    near(layer(sequence, true), 32.0 * h / t);
}

#[test]
fn the_first_stage_keeps_a_micro_batch_for_each_stage_and_chunks_cost_more() {
    let at = |chunks, micro_batches| {
        let layout = Layout { pipeline: 8, chunks, data: 1, micro_batch: 1, ..job().layout };
        let model = Transformer::gpt(6144, 48, 48, 51_200);
        Job { model, global_batch: micro_batches, layout, ..job() }
    };
    let bytes = |job: Job| expected_memory(&job);
    let input = 2048.0 * 6144.0 * 2.0;
    // Six layers a stage, 8 micro-batches instead of 4.
    assert!((bytes(at(1, 8)) - bytes(at(1, 4)) - 4.0 * 6.0 * input).abs() < 1.0);
    assert_eq!(bytes(at(1, 64)), bytes(at(1, 8)));
    // 1 + (p - 1)/(p v) times as many.
    let more = bytes(at(2, 64)) - bytes(at(1, 64));
    assert!((more - 8.0 * 6.0 * input * 7.0 / 16.0).abs() < 1.0, "{more}");
}

#[test]
fn states_are_spread_by_the_stage_of_zero_and_over_context_ranks() {
    let with = |zero, context| {
        let layout = Layout { tensor: 1, pipeline: 1, data: 64, zero, context, ..job().layout };
        expected_memory(&Job { layout, ..job() })
    };
    let parameters = 40.0 * job().model.layer_parameters() + job().model.table_parameters();
    let saved = with(ZeroStage::Ddp, 1) - with(ZeroStage::Zero1, 1);
    assert!((saved / (12.0 * parameters * 63.0 / 64.0) - 1.0).abs() < 1e-9);
    let more = with(ZeroStage::Zero1, 1) - with(ZeroStage::Zero1, 2);
    assert!(more > 12.0 * parameters / 128.0, "sequences are shorter too: {more}");
}
