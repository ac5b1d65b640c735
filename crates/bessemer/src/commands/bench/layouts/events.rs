//! The events of a step, from the programs of every rank. No value is computed: the ranks have null devices.

use super::Setup;
use super::costs::{self, StepLaunches};
use crate::commands::bench::timed::{Launched, Timed};
use crate::failure::Failure;
use bessemer_collectives::NullCommunicator;
use bessemer_parallel::UpdateOps;
use bessemer_sim::replay::{CostTable, RankWriter, StepEvents};
use bessemer_tensor::null::NullBackend;
use bessemer_tensor::op::Op;

/// The events of all ranks, with these costs.
pub(super) fn of(setup: &Setup<'_>, table: &mut CostTable) -> Result<StepEvents, Failure> {
    let ranks = setup.plan.ranks();
    let mut step = StepEvents::new(ranks);
    for rank in 0..ranks {
        let mut backend = Timed::new(Box::new(NullBackend::new()), false);
        let world = Box::new(NullCommunicator::new("world", rank, ranks));
        let (mut runner, mut text) = setup.rank(&mut backend, world)?;
        let StepLaunches { norm, update, .. } = costs::step(&mut runner, &mut text, &mut backend)?;
        let ops = |launches: Vec<Launched>| launches.into_iter().map(|l| l.op).collect::<Vec<Op>>();
        let (norm, update) = (ops(norm), ops(update));
        let mut writer = RankWriter::new(&mut step, table, rank);
        let update = UpdateOps { norm: &norm, step: &update };
        runner.worker.write_events(&mut writer, update).map_err(Failure::new)?;
        writer.finish();
    }
    Ok(step)
}
