//! Transfers between the units of a chunk's passes: gathers of values, sums over the tensor axis, reductions of gradients. The pass
//! [`bessemer_program::DataProgram`] makes the lists from what the unit programs read and write; [`crate::steps`] joins them to the list that runs.

use crate::flat::{FlatUnit, Units};
use crate::memory::{ParamMemory, Stretch};
use crate::tensor::TensorGroup;
use bessemer_mesh::{Axis, Layout, Placement};
use bessemer_model::Decoder;
use bessemer_program::{
    DataProgram, DataRank, FlatParameter, GradientTraffic, PassNode, Phase, Residence, UnitUse,
};
use bessemer_units::ReduceDType;

/// The lists of one chunk on one rank.
#[derive(Debug)]
pub(crate) struct PassLists {
    pub(crate) data: DataProgram,
    /// In training.
    forward: Vec<PassNode>,
    /// Values only, with the head's loss.
    score: Vec<PassNode>,
    /// By [`GradientTraffic`].
    backward: [Vec<PassNode>; 4],
    input: Vec<PassNode>,
    /// By [`GradientTraffic`].
    weight: [Vec<PassNode>; 4],
    /// Gradients of all units leave, outside of a pass.
    pub(crate) reduce: Vec<PassNode>,
    /// All gradients that have left are complete.
    pub(crate) finish: Vec<PassNode>,
    /// Values are whole again after an update of this rank's parts.
    pub(crate) spread: Vec<PassNode>,
}

impl PassLists {
    /// The sets of flat units whose partial gradients are summed in one go.
    pub(crate) fn completed(&self) -> Vec<&[usize]> {
        let lists = self.backward.iter().chain(&self.weight).chain([&self.reduce, &self.finish]);
        let flats = lists.flatten().filter_map(|node| match node {
            PassNode::Complete(flats) => Some(flats.as_slice()),
            _ => None,
        });
        flats.collect()
    }

    /// The lists of a decoder whose parameters lie in `memory`.
    pub(crate) fn new(
        decoder: &Decoder,
        memory: &ParamMemory,
        units: &Units,
        tensor: &TensorGroup,
        (groups, reduce_dtype): (Vec<DataRank>, ReduceDType),
    ) -> PassLists {
        let data = DataProgram { flats: flats(memory, units, tensor), groups, reduce_dtype };
        let uses = |phase: Phase| -> Vec<UnitUse> {
            decoder.uses(phase, &|param| units.place(param).unit).into_iter().collect()
        };
        let backwards = |phase: Phase| -> Vec<UnitUse> { uses(phase).into_iter().rev().collect() };
        let head = usize::from(decoder.stage().span.head);
        let forward: Vec<UnitUse> = {
            let all = uses(Phase::Forward);
            let units = all.len() - head;
            all.into_iter().take(units).collect()
        };
        let whole = backwards(Phase::Backward);
        // The gradients of both parts leave in the weight part, which reads no values.
        let weight: Vec<UnitUse> =
            whole.iter().cloned().map(|of| UnitUse { reads: Vec::new(), ..of }).collect();
        // A stage that is the whole model goes backward right after it has gone forward.
        let direct = decoder.stage().span.embedding && head == 1;
        let first = whole.first().and_then(|unit| unit.reads.first().copied()).filter(|_| direct);
        let asked = first.is_some_and(|flat| data.gathered(flat));
        PassLists {
            forward: data.pass(&forward, GradientTraffic::Stay, false, first),
            score: data.pass(&uses(Phase::Score), GradientTraffic::Stay, false, None),
            backward: GradientTraffic::ALL.map(|traffic| data.pass(&whole, traffic, asked, None)),
            input: data.pass(&backwards(Phase::BackwardInput), GradientTraffic::Stay, asked, None),
            weight: GradientTraffic::ALL.map(|traffic| data.pass(&weight, traffic, false, None)),
            reduce: data.reduce(&whole),
            finish: data.finish(&whole),
            spread: data.spread(),
            data,
        }
    }

    /// The list of a pass.
    pub(crate) fn pass(&self, phase: Phase, traffic: GradientTraffic) -> &[PassNode] {
        match phase {
            Phase::Forward => &self.forward,
            Phase::Score => &self.score,
            Phase::Backward => &self.backward[traffic as usize],
            Phase::BackwardInput => &self.input,
            Phase::BackwardWeight => &self.weight[traffic as usize],
        }
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
