//! Experts over ranks where one rank has all tokens, to score and to decode: the others compute the rows of their experts.
//!
//! ```text
//! rank with tokens      embedding ─► attention ─► router ─► rows ──┐      ┌─► weighed sum ─► next layer
//! ranks without tokens                                             └──►───┘
//!                                                           products of their experts
//! ```
//! All ranks run the list that the pass `experts` makes; those without tokens the part of it that rows of experts go through
//! ([`bessemer_program::without_tokens`]). A row is computed by itself, so its bits are those of one rank with all experts.

use crate::error::ModelError;
use crate::memory::{Binding, ScratchBuffers, scratch_of};
use crate::params::{self, Param};
use crate::tensor_shard::expert_rank;
use crate::units::{StageUnit, layer_prefix};
use bessemer_arch::{Span, TensorShard, Unit};
use bessemer_model::Recording;
use bessemer_program::{
    ExchangedTokens, Node, Phase, Rank, Ranks, StepValues, UnitProgram, each_op, experts, fuse, plan_memory,
    run, verify_experts, without_tokens,
};
use bessemer_tensor::{Backend, BufferSpec, TensorError, View};
use bessemer_units::{Bytes, DType};

/// Shards the experts of a unit whose tokens, at most `tokens` of them, are all on one rank. Its collectives have names without the layer: the
/// ranks of an exchange may run lists that were recorded for other layers of the same kind.
pub(crate) fn experts_of_one(unit: &mut UnitProgram, rank: Rank, tokens: usize) {
    experts(unit, rank, &[], ExchangedTokens::OneRank(tokens));
    for node in unit.lists.iter_mut().flatten() {
        if let Node::Collective(c) = node
            && let Some(name) = c.name.strip_prefix(&unit.name)
        {
            c.name = name.to_owned();
        }
    }
}

/// Experts of a rank that has no tokens: part of every layer's experts, and the programs that compute rows of another rank's tokens.
#[derive(Debug)]
pub struct ExpertRows {
    /// Layers with experts, in order.
    units: Vec<StageUnit>,
    params: Vec<Param>,
    /// Values of the parameters.
    values: Vec<View>,
    /// Indexed by layer: offsets of no rows.
    offsets: Vec<View>,
    scratch: ScratchBuffers,
    table: Vec<View>,
}

impl ExpertRows {
    /// Allocates the experts of `part` (zero until the caller writes [`ExpertRows::params`]) and memory for the rows of at most `tokens` tokens in a pass.
    ///
    /// # Errors
    /// A part that does not consist of experts alone, or an error of the backend.
    pub fn new(
        backend: &mut dyn Backend,
        part: &TensorShard,
        tokens: usize,
    ) -> Result<ExpertRows, ModelError> {
        let Some(rank) = expert_rank(part).filter(|_| part.is_whole_beside_experts()) else {
            return Err(ModelError::TensorShard(format!(
                "rows of experts are computed by ranks that share experts alone, found tensor shard {} of {}",
                part.index, part.degree
            )));
        };
        let stacks: Vec<bool> = part.params().iter().map(|param| param.stacks_experts()).collect();
        let specs = part.specs(&Span::whole(&part.model)).into_iter().zip(stacks);
        let specs = specs.filter(|(_, stacked)| *stacked).map(|(spec, _)| spec).collect();
        let params = params::alloc(backend, specs, false)?;
        let recording = Recording::new(&part.whole, &part.shardings, [1, 1], DType::F32);
        let (mut units, mut offsets) = (Vec::new(), Vec::new());
        for layer in 0..part.whole.layers {
            let Some(of) = part.whole.experts_of(layer) else { continue };
            let mut program = recording.layer(layer);
            experts_of_one(&mut program, rank, tokens);
            verify_experts(&program, &[Phase::Score], rank)?;
            without_tokens(&mut program);
            fuse(&mut program);
            let memory = plan_memory(&program, &[Phase::Score]);
            let find = |name: &String| {
                let full = format!("{}{name}", layer_prefix(layer));
                params.iter().position(|p| p.spec.name == full).unwrap_or(usize::MAX)
            };
            let parameters = program.parameters.iter().map(find).collect();
            units.push(StageUnit { unit: Unit::Layer(layer), program, memory, distinct: true, parameters });
            let name = format!("layers.{layer}.no rows");
            let spec = BufferSpec { class: "activations", name: &name, dtype: DType::U32, len: of.count + 1 };
            offsets.push(backend.alloc(spec)?.matrix(1, of.count + 1));
        }
        let wanted = scratch_of(units.iter().map(|unit| &unit.memory));
        let scratch = ScratchBuffers::alloc(backend, "activations", &wanted, &ScratchBuffers::default())?;
        for view in &offsets {
            backend.write_u32(*view, &vec![0; view.cols])?;
        }
        let values = params.iter().map(|param| param.value).collect();
        let rows = ExpertRows { units, params, values, offsets, scratch, table: Vec::new() };
        rows.reserve(backend)?;
        Ok(rows)
    }

    /// Checks every operator and reserves the largest workspace.
    fn reserve(&self, backend: &mut dyn Backend) -> Result<(), ModelError> {
        let (mut most, mut table) = (Bytes(0), Vec::new());
        for at in 0..self.units.len() {
            self.binding(at, &[self.offsets[at]]).fill(&mut table);
            each_op(&self.units[at].program, Phase::Score, &table, &mut |op| {
                op.check()?;
                most = most.max(backend.workspace(op)?);
                Ok(())
            })?;
        }
        Ok(backend.reserve_workspace(most)?)
    }

    /// The list of every layer with experts.
    pub fn programs(&self) -> impl Iterator<Item = &UnitProgram> {
        self.units.iter().map(|unit| &unit.program)
    }

    /// The experts' parameters.
    pub fn params(&self) -> &[Param] {
        &self.params
    }

    /// Computes the rows that arrive at this rank in one pass through all layers.
    ///
    /// # Errors
    /// Errors of the backend and of other ranks.
    pub fn run(&mut self, backend: &mut dyn Backend, ranks: &mut dyn Ranks) -> Result<(), TensorError> {
        let mut table = std::mem::take(&mut self.table);
        let result = (0..self.units.len()).try_for_each(|at| {
            self.binding(at, &[self.offsets[at]]).fill(&mut table);
            let StageUnit { program, parameters, .. } = &self.units[at];
            run(program, Phase::Score, (&table, parameters), &StepValues::default(), backend, &mut *ranks)
        });
        self.table = table;
        result
    }

    fn binding<'a>(&'a self, at: usize, external: &'a [View]) -> Binding<'a> {
        Binding {
            unit: &self.units[at],
            at: 0,
            phase: Phase::Score,
            values: &self.values,
            gradients: &[],
            slot: None,
            stream: (crate::memory::UNTOUCHED, crate::memory::UNTOUCHED),
            kept: None,
            pending: None,
            losses: None,
            auxiliary: &[],
            counts: None,
            loss_weights: None,
            counters: None,
            constant: None,
            external,
            scratch: &self.scratch,
            indices: None,
        }
    }
}
