//! The step on a device whose streams run late: it has the bits of a device that computes at once, and needs its events.

use crate::offload::{Done, pipeline, train_on};
use crate::pipelines::model;
use bessemer_collectives::CollectiveError;
use bessemer_kernels_cpu::CpuBackend;
use bessemer_mesh::ContextMethod;
use bessemer_operator_suite::{LateStreams, Lateness};
use bessemer_optim::{OptimConfig, OptimizerChoice};
use bessemer_parallel::{ParallelConfig, ParallelError, Stage};
use bessemer_runtime::ActivationConfig;
use bessemer_tensor::Backend;
use bessemer_test_tier::either;
use bessemer_units::{Offload, OffloadPlan, ReduceDType};

#[derive(Debug)]
struct Case {
    ranks: usize,
    config: ParallelConfig,
    optimizer: OptimizerChoice,
    offload: bool,
}

fn cases() -> Vec<Case> {
    let alone = ParallelConfig { overlap: true, ..ParallelConfig::default() };
    let case = |ranks, config| Case { ranks, config, optimizer: OptimizerChoice::AdamW, offload: false };
    let data = |stage, shard| ParallelConfig { stage, shard, ..alone.clone() };
    let context = |context_method| ParallelConfig { context: 2, context_method, ..alone.clone() };
    let tensor = |sequence| ParallelConfig { tensor: 2.into(), sequence, ..alone.clone() };
    vec![
        Case { offload: true, ..case(1, alone.clone()) },
        case(2, data(Stage::Ddp, 0)),
        case(4, data(Stage::Zero2, 2)),
        case(4, data(Stage::Zero3, 2)),
        case(2, ParallelConfig { reduce_dtype: ReduceDType::Int8, ..data(Stage::Ddp, 0) }),
        case(2, tensor(false)),
        Case { optimizer: OptimizerChoice::Muon, ..case(4, tensor(false)) },
        Case { optimizer: OptimizerChoice::Kfac, ..case(4, tensor(false)) },
        case(2, tensor(true)),
        case(2, context(ContextMethod::Ulysses)),
        case(2, context(ContextMethod::Ring)),
        // A tied token table.
        case(2, pipeline(2, "1f1b")),
        case(2, pipeline(2, "zb-h1")),
        case(2, ParallelConfig { experts: 2, ..alone.clone() }),
        case(4, ParallelConfig { experts: 2, ..data(Stage::Zero3, 4) }),
        case(4, ParallelConfig { experts: 2, ..tensor(true) }),
        case(4, crate::experts::folded_over_tensor(4)),
    ]
}

impl Case {
    fn train<B: Backend>(&self, devices: &mut [B]) -> Result<Vec<Done>, ParallelError> {
        let to = if self.offload { Offload::Disk } else { Offload::None };
        let offload = OffloadPlan { to, layers: 0 };
        let activations = ActivationConfig { offload, ..ActivationConfig::default() };
        let optim = OptimConfig { lr: 1e-2, optimizer: self.optimizer, ..OptimConfig::default() };
        let model = if self.config.experts > 1 { crate::experts::mixture(true) } else { model(true) };
        train_on(devices, &model, &self.config, (&activations, &optim), None).into_iter().collect()
    }

    fn cpus(&self) -> Vec<CpuBackend> {
        (0..self.ranks).map(|_| crate::instruction_set::cpu(1)).collect()
    }

    fn late(&self, make: impl Fn(Box<dyn Backend>) -> LateStreams) -> Vec<LateStreams> {
        self.cpus().into_iter().map(|cpu| make(Box::new(cpu))).collect()
    }
}

/// Without an event of rank 0 the step is refused where memory is used too early, or nothing depends on the event. Where values
/// change, it is refused.
#[test]
fn late_streams_give_the_same_bits_and_missing_events_are_found() {
    let (mut refused, mut changed, mut free) = (0, 0, 0);
    for case in cases() {
        let wanted = case.train(&mut case.cpus()).unwrap_or_else(|e| panic!("{case:?}: {e}"));
        let mut waits = 0;
        for lateness in Lateness::EACH {
            let mut devices = case.late(|cpu| LateStreams::new(cpu, lateness).checked());
            let found = case.train(&mut devices).unwrap_or_else(|e| panic!("{case:?}, {lateness:?}: {e}"));
            assert!(found == wanted, "{case:?}, {lateness:?}");
            waits = devices[0].waits();
        }
        assert!(waits > 20, "{case:?}: {waits} events order streams");
        let tries = either(5, 100).min(waits);
        for number in (0..tries).map(|i| ((i as f64 * 0.618_033_988_75).fract() * waits as f64) as usize) {
            let without = |make: &dyn Fn(Box<dyn Backend>) -> LateStreams| {
                let mut devices = case.late(make);
                let first = devices.remove(0).without_wait(number);
                devices.insert(0, first);
                case.train(&mut devices)
            };
            let found = match without(&|cpu| LateStreams::new(cpu, Lateness::All).checked()) {
                Ok(found) => {
                    assert!(found == wanted, "{case:?} without event {number} of {waits}");
                    false
                }
                Err(e) => {
                    let other_rank = matches!(e, ParallelError::Collective(CollectiveError::PeerLost { .. }));
                    assert!(other_rank || e.to_string().contains("has not waited for it"), "{e}");
                    true
                }
            };
            let values = Lateness::EACH.into_iter().any(|lateness| {
                !without(&|cpu| LateStreams::new(cpu, lateness)).is_ok_and(|found| found == wanted)
            });
            assert!(found || !values, "{case:?} without event {number} of {waits}");
            refused += usize::from(found);
            changed += usize::from(values);
            free += usize::from(!found);
        }
    }
    let found = format!("{refused} events are missed, {changed} of them change values; {free} order nothing");
    println!("{found}");
    assert!(refused > 2 * free && 2 * changed > refused, "{found}");
}
