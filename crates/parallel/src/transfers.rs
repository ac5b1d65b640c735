//! Transfers between the units of a chunk's passes: gathers of values, sums over the tensor axis, reductions of gradients. The pass
//! [`bessemer_program::DataProgram`] makes the lists from the reads and writes of the unit programs; [`crate::steps`] joins them to the list that runs.

use crate::flat::{FlatUnit, Units};
use crate::memory::{ParamMemory, Stretch};
use crate::tensor::TensorGroup;
use bessemer_mesh::{Axis, Layout, Placement};
use bessemer_program::{
    DataProgram, DataRank, FlatParameter, GradientTraffic, PassNode, Phase, Residence, UnitUse,
};
use bessemer_runtime::Decoder;
use bessemer_units::ReduceDType;

/// The transfers of a chunk's passes on one rank, made on request when a step is expanded.
#[derive(Debug)]
pub(crate) struct PassTransfers {
    pub(crate) data: DataProgram,
    /// Indexed by [`Phase`]: the uses of each unit's list, in the order of the pass.
    uses: [Vec<UnitUse>; 5],
    /// Flat parameter that the backward pass reads first, where it follows its forward pass directly.
    first: Option<usize>,
}

impl PassTransfers {
    /// The transfers of a decoder whose parameters are in `memory`.
    pub(crate) fn new(
        decoder: &Decoder,
        memory: &ParamMemory,
        units: &Units,
        tensor: &TensorGroup,
        groups: Vec<DataRank>,
        reduce_dtype: ReduceDType,
    ) -> PassTransfers {
        let data = DataProgram { flats: flats(memory, units, tensor), groups, reduce_dtype };
        let span = &decoder.stage().span;
        let uses = Phase::ALL.map(|phase| {
            // The gradients of both parts leave in the weight part, which reads no values.
            let of = if phase == Phase::BackwardWeight { Phase::Backward } else { phase };
            let mut all = decoder.uses(of, &|param| units.place(param).unit);
            match phase {
                // The head's forward pass is that of its loss.
                Phase::Forward => all.truncate(all.len() - usize::from(span.head)),
                Phase::Score => {}
                Phase::Backward | Phase::BackwardInput => all.reverse(),
                Phase::BackwardWeight => {
                    all.reverse();
                    all.iter_mut().for_each(|unit| unit.reads.clear());
                }
            }
            all
        });
        // A stage that is the whole model goes backward right after it has gone forward.
        let direct = span.embedding && span.head;
        let first = uses[Phase::Backward as usize].first().and_then(|unit| unit.reads.first().copied());
        PassTransfers { first: first.filter(|_| direct), data, uses }
    }

    /// The entries of a pass.
    pub(crate) fn pass(&self, phase: Phase, traffic: GradientTraffic) -> Vec<PassNode> {
        let uses = &self.uses[phase as usize];
        let gathered = self.first.is_some_and(|flat| self.data.gathered(flat));
        match phase {
            Phase::Forward => self.data.pass(uses, traffic, false, self.first),
            Phase::Backward | Phase::BackwardInput => self.data.pass(uses, traffic, gathered, None),
            Phase::Score | Phase::BackwardWeight => self.data.pass(uses, traffic, false, None),
        }
    }

    /// Gradients of all units are reduced, outside of a pass.
    pub(crate) fn reduce(&self) -> Vec<PassNode> {
        self.data.reduce(&self.uses[Phase::Backward as usize])
    }

    /// The reductions that have begun are complete.
    pub(crate) fn finish(&self) -> Vec<PassNode> {
        self.data.finish(&self.uses[Phase::Backward as usize])
    }

    /// Values are whole again after an update of this rank's parts.
    pub(crate) fn spread(&self) -> Vec<PassNode> {
        self.data.spread()
    }

    /// The sets of flat units whose partial gradients are summed in one go.
    pub(crate) fn completed(&self) -> Vec<Vec<usize>> {
        let passes = [Phase::Backward, Phase::BackwardWeight]
            .into_iter()
            .flat_map(|phase| GradientTraffic::ALL.map(|traffic| self.pass(phase, traffic)));
        let nodes = passes.chain([self.reduce(), self.finish()]).flatten();
        let flats = nodes.filter_map(|node| match node {
            PassNode::Complete(flats) => Some(flats),
            _ => None,
        });
        flats.collect()
    }
}

/// The flat units of a chunk, as programs see them.
fn flats(memory: &ParamMemory, units: &Units, tensor: &TensorGroup) -> Vec<FlatParameter> {
    let layout = |sharded: bool| match sharded {
        true => Layout::replicated().with(Axis::Shard, Placement::Shard { dim: 0 }),
        false => Layout::replicated(),
    };
    let mut buffers = Vec::new();
    let mut residence = |stretch: &Stretch| {
        let buffer = stretch.whole.buffer;
        let place = buffers.iter().position(|b| *b == buffer).unwrap_or_else(|| {
            buffers.push(buffer);
            buffers.len() - 1
        });
        Residence { dtype: stretch.whole.dtype(), layout: layout(stretch.apart()), place }
    };
    let flat = |(number, unit): (usize, &FlatUnit)| {
        let parts = &memory.parts[number];
        FlatParameter {
            name: unit.name.clone(),
            group: unit.group,
            parts: (0..parts.count()).map(|rank| parts.range(rank).len()).collect(),
            values: residence(&memory.values[number]),
            gradients: memory.gradients[number].as_ref().map(&mut residence),
            updated: layout(parts.count() > 1),
            partial: tensor.partial_elements(number),
        }
    };
    units.list.iter().enumerate().map(flat).collect()
}
