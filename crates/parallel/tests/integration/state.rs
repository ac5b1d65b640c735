//! Reading the state of a job: how many collectives it takes, on one rank of a job whose other ranks do not exist.

use bessemer_arch::Model;
use bessemer_collectives::{Ledger, NullCommunicator};
use bessemer_optim::{OptimConfig, OptimizerChoice};
use bessemer_parallel::{Job, ParallelConfig, Plan, Stage, StateTensor, Worker, batches};
use bessemer_runtime::{ActivationConfig, Purpose, Shape};
use bessemer_tensor::null::NullBackend;
use bessemer_units::ParamStorage;

fn model(layers: u64) -> Model {
    bessemer_fixture::model(true, layers, 16)
}

/// Collectives with which rank 0 reads the whole state, and tensors of it.
fn collectives(model: &Model, config: &ParallelConfig, ranks: usize, optim: &OptimConfig) -> (u64, usize) {
    let plan = Plan::new(config, ranks, model, optim.optimizer).unwrap();
    let mut null = NullBackend::new();
    let ledger = Ledger::new();
    let world = ledger.wrap(Box::new(NullCommunicator::new("world", 0, ranks)));
    let job = Job {
        model,
        shape: Shape { sequences: 1, seq: 8, purpose: Purpose::Train },
        activations: ActivationConfig::default(),
        types: ParamStorage::default(),
        optim,
        losses: &[],
        plan: &plan,
        program: &plan.program(2, 1, None).unwrap(),
    };
    let mut worker = Worker::new(&mut null, &job, world).unwrap();
    let tensors = worker.tensors(optim).unwrap();
    ledger.clear();
    let mut next = 0;
    for batch in batches(&tensors) {
        assert_eq!(batch.start, next);
        next = batch.end;
        let mut values = vec![0.0; tensors[batch.clone()].iter().map(StateTensor::len).sum()];
        worker.read_batch(&mut null, &tensors[batch], &mut values).unwrap();
    }
    assert_eq!(next, tensors.len());
    (ledger.rows().iter().map(|row| row.2.calls).sum(), tensors.len())
}

/// One gather on the shard axis, one on the tensor axis and one broadcast between stages for each run of tensors of one
/// stage: values, then states, each of two stages, whatever the number of layers.
#[test]
fn the_state_is_read_in_as_many_collectives_for_many_layers_as_for_few() {
    for (optimizer, states) in [(OptimizerChoice::AdamW, 1), (OptimizerChoice::Muon, 1)] {
        let optim = OptimConfig { optimizer, ..OptimConfig::default() };
        let read = |layers, pipeline, stage, ranks| {
            let config =
                ParallelConfig { stage, shard: 2, tensor: 2.into(), pipeline, ..ParallelConfig::default() };
            collectives(&model(layers), &config, ranks, &optim)
        };
        for stage in [Stage::Zero1, Stage::Zero3] {
            let ((few, _), (many, tensors)) = (read(2, 1, stage, 4), read(12, 1, stage, 4));
            assert_eq!((few, many), (2, 2), "{optimizer:?} {stage:?}");
            assert!(tensors > 200, "{tensors}");
            // With stages the parameters stay whole.
            if stage == Stage::Zero3 {
                continue;
            }
            let ((few, _), (many, _)) = (read(4, 2, stage, 8), read(12, 2, stage, 8));
            assert_eq!(few, many, "{optimizer:?} {stage:?}");
            // Rank 0 is of the first stage: its two gathers, and the broadcasts of both stages.
            assert!(many <= (1 + states) * (2 + 2), "{optimizer:?} {stage:?}: {many}");
        }
    }
}
