//! Layouts of single parameters: a step sends the bytes that its programs contain.

use bessemer_arch::{Annotations, Model, ModelConfig, ParamLayout};
use bessemer_collectives::{Ledger, NullCommunicator};
use bessemer_fixture::Repeated;
use bessemer_optim::{OptimConfig, OptimizerChoice};
use bessemer_parallel::{Job, ParallelConfig, Plan, Worker};
use bessemer_program::Node;
use bessemer_runtime::{ActivationConfig, Phase, Purpose, Shape};
use bessemer_tensor::null::NullBackend;
use bessemer_units::ParamStorage;

const MICRO_BATCHES: usize = 3;
const SHAPE: Shape = Shape { sequences: 2, seq: 16, purpose: Purpose::Train };

fn model() -> Model {
    ModelConfig {
        architecture: "gpt2".into(),
        vocab_size: 65,
        layers: Some(3),
        width: Some(32),
        heads: Some(4),
        context: Some(16),
        ..ModelConfig::default()
    }
    .resolve(None)
    .unwrap()
}

fn config(sequence: bool, annotate: &[(&str, ParamLayout)]) -> ParallelConfig {
    let annotate = Annotations(annotate.iter().map(|(name, layout)| ((*name).to_owned(), *layout)).collect());
    ParallelConfig { tensor: 2.into(), sequence, annotate, ..ParallelConfig::default() }
}

/// Bytes that both ranks send over the tensor axis in one step.
#[derive(Debug, PartialEq)]
struct Sent {
    /// Bytes counted by the ledger.
    ledger: u64,
    /// Bytes of the collectives of the programs of all passes.
    programs: u64,
}

fn sent(model: &Model, config: &ParallelConfig) -> Sent {
    let (optim, ledger) = (OptimConfig::default(), Ledger::new());
    let plan = &Plan::new(config, 2, model, optim.optimizer).unwrap();
    let program = &plan.program(MICRO_BATCHES, 1, None).unwrap();
    let (activations, types) = (ActivationConfig::default(), ParamStorage::default());
    let job = Job { model, shape: SHAPE, activations, types, optim: &optim, losses: &[], plan, program };
    let mut programs = 0;
    for rank in 0..2 {
        let mut null = NullBackend::new();
        let world = ledger.wrap(Box::new(NullCommunicator::new("world", rank, 2)));
        let mut worker = Worker::new(&mut null, &job, world).unwrap();
        for (_, unit, _) in worker.decoder().programs() {
            for node in [Phase::Forward, Phase::Backward].into_iter().flat_map(|phase| unit.list(phase)) {
                if let Node::Collective(c) | Node::Start(c) = node {
                    programs += MICRO_BATCHES as u64 * c.bytes_sent(2, rank);
                }
            }
        }
        let sum = worker.gradients(&mut null, &mut Repeated::zeros(32)).unwrap();
        worker.sum_over_data(sum).unwrap();
        worker.grad_norm(&mut null).unwrap();
        worker.apply(&mut null, 1, 1e-3, 1.0).unwrap();
    }
    let rows = ledger.rows();
    let ledger = rows.iter().filter(|row| row.0 == "tensor").map(|row| row.2.volume.sent).sum();
    Sent { ledger, programs }
}

/// The ledger counts the bytes of the programs, the all-reduce of gradients that are terms of sums, and a number for the norm.
#[test]
fn the_ledger_holds_the_bytes_of_the_programs() {
    let model = model();
    let (d, f) = (model.width as u64, model.ffn_width as u64);
    // Elements whose gradients are partial where each rank has some rows.
    let (norms, positions) = (2 * 2 * d * model.layers as u64 + 2 * d, model.context as u64 * d);
    let mlp = (2 * f * d + f + d) * model.layers as u64;
    let norm = 2 * 8;
    let all_reduce = |elements: u64| 2 * elements * 4;
    let replicate = ParamLayout::Replicate;
    for (sequence, annotate, partial) in [
        (false, &[][..], 0),
        (false, &[("*.mlp.*", replicate)], 0),
        (false, &[("embed.tokens", replicate), ("*.attention.*", replicate)], 0),
        (false, &[("*", replicate)], 0),
        (true, &[], norms + positions),
        (true, &[("*.mlp.up.weight", replicate)], norms + positions + mlp),
        (true, &[("layers.1.mlp.down.weight", ParamLayout::Columns)], norms + positions),
    ] {
        let Sent { ledger, programs } = sent(&model, &config(sequence, annotate));
        assert_eq!(ledger, programs + all_reduce(partial) + norm, "{sequence} {annotate:?}");
        if annotate == [("*", replicate)] {
            assert_eq!(programs, 0, "every rank computes everything");
        }
    }
    // Two of the four sums of a layer, those of the feed-forward block, are gone.
    let rows = 4 * SHAPE.tokens() as u64 * d;
    let of = |sequence, annotate: &[_]| sent(&model, &config(sequence, annotate)).programs;
    let gone = of(false, &[]) - of(false, &[("layers.1.mlp.*", replicate)]);
    assert_eq!(gone, MICRO_BATCHES as u64 * 2 * 2 * rows);
}

#[test]
fn annotations_that_cannot_be_are_refused_before_anything_is_made() {
    let plan = |config: &ParallelConfig, optimizer| {
        Plan::new(config, 2, &model(), optimizer).map(drop).unwrap_err().to_string()
    };
    let adam = OptimizerChoice::AdamW;
    let heads = config(true, &[("layers.0.attention.qkv.weight", ParamLayout::Replicate)]);
    assert!(plan(&heads, adam).contains("read by attention, which needs all rows"), "{}", plan(&heads, adam));
    let mlp = config(false, &[("*.mlp.*", ParamLayout::Replicate)]);
    assert!(plan(&mlp, OptimizerChoice::Kfac).contains("parallel.annotate with optim.optimizer = \"kfac\""));
}
