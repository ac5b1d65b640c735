//! Memory of a stage: the values that each micro-batch keeps, and the scratch that all passes share.
//!
//! | memory | once for | holds |
//! |---|---|---|
//! | slot | a micro-batch between forward and backward | inputs, the residual stream and its gradient, saved values |
//! | kept set | a micro-batch between forward and the weight part of its backward pass | saved values that the weight part reads |
//! | pending set | a micro-batch between the parts of its backward pass | values of the input part for the weight part |
//! | scratch | the rank | values that live within one list |
//!
//! A decoder made to score keeps the residual stream in one matrix, if every unit allows it.

use crate::config::LOGIT_ROWS;
use crate::decoder::{Decoder, Purpose};
use crate::error::ModelError;
use crate::gradient_memory::GradientMemory;
use crate::lengths::{Arena, LengthUnits};
use crate::units::{Plan, StageUnit};
use bessemer_arch::{PositionChoice, Unit};
use bessemer_program::{Class, Home, Input, Phase, Scratch, UnitMemory, UnitProgram, Value};
use bessemer_tensor::op::{Access, DropoutMask};
use bessemer_tensor::{Backend, Buffer, BufferSpec, View};
use bessemer_units::DType;

/// Views of the values of one home, by unit and value.
pub(crate) type Values = Vec<Vec<Option<View>>>;

/// One micro-batch.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) ids: View,
    pub(crate) targets: View,
    pub(crate) positions: View,
    /// Factors on the tokens' gradients, if a unit reads them.
    pub(crate) factors: Option<View>,
    /// First positions of documents, if attention stays within documents.
    pub(crate) documents: Option<View>,
    /// The residual stream before and after each layer of the span.
    pub(crate) stream: Vec<View>,
    /// Its gradient.
    pub(crate) gradient: View,
    pub(crate) saved: Values,
}

/// All memory of a stage besides parameters.
#[derive(Debug)]
pub(crate) struct StageBuffers {
    pub(crate) slots: Vec<Slot>,
    pub(crate) kept: Vec<Values>,
    pub(crate) pending: Vec<Values>,
    /// Token losses, if the head is here.
    pub(crate) losses: Option<View>,
    /// Indexed by unit: memory of its auxiliary losses.
    pub(crate) auxiliary: Vec<Vec<View>>,
    /// Indexed by unit: memory of its counts.
    pub(crate) counts: Vec<Option<View>>,
    /// `[losses, 2]`: weights of the auxiliary losses, unit after unit, if there are any.
    pub(crate) loss_weights: Option<View>,
    /// u32 `[places, 6]`: counters of the random numbers, unit after unit, if any are drawn.
    pub(crate) counters: Option<View>,
    /// A fixed table of positions, if the model has one and the embedding is here.
    pub(crate) constant: Option<View>,
    /// `[LOGIT_ROWS, v]` at most; of a whole model.
    pub(crate) logits: Option<View>,
    pub(crate) scratch: ScratchBuffers,
}

/// Scratch, by element type.
#[derive(Debug, Clone, Default)]
pub(crate) struct ScratchBuffers(Vec<(DType, View)>);

impl ScratchBuffers {
    /// Memory for `wanted`; buffers of `beside` are reused where it has them.
    pub(crate) fn alloc(
        backend: &mut dyn Backend,
        class: &'static str,
        wanted: &Scratch,
        beside: &ScratchBuffers,
    ) -> Result<ScratchBuffers, ModelError> {
        ScratchBuffers::alloc_named(backend, (class, "scratch"), wanted, beside)
    }

    /// Allocates like [`ScratchBuffers::alloc`], under a name in its class.
    pub(crate) fn alloc_named(
        backend: &mut dyn Backend,
        (class, name): (&'static str, &str),
        wanted: &Scratch,
        beside: &ScratchBuffers,
    ) -> Result<ScratchBuffers, ModelError> {
        let mut buffers = beside.clone();
        for (dtype, len) in wanted {
            let there = buffers.0.iter().position(|(d, view)| d == dtype && view.len() >= *len);
            if there.is_none() && *len > 0 {
                let spec = BufferSpec { class, name, dtype: *dtype, len: *len };
                let view = backend.alloc(spec)?.vector();
                buffers.0.retain(|(d, _)| d != dtype);
                buffers.0.push((*dtype, view));
            }
        }
        Ok(buffers)
    }

    /// `rows` x `cols` elements from `offset` on.
    pub(crate) fn matrix(&self, dtype: DType, offset: usize, rows: usize, cols: usize) -> Option<View> {
        let (_, whole) = self.0.iter().find(|(d, _)| *d == dtype)?;
        Some(View { offset: whole.offset + offset, rows, cols, stride: cols, ..*whole })
    }
}

/// The larger of two demands, type by type.
pub(crate) fn larger(into: &mut Scratch, other: &Scratch) {
    for (dtype, len) in other {
        let most = into.entry(*dtype).or_default();
        *most = (*most).max(*len);
    }
}

/// Memory of a value that a phase does not touch.
pub(crate) const UNTOUCHED: View = View {
    buffer: Buffer { id: u32::MAX, len: 0, dtype: DType::F32 },
    offset: 0,
    rows: 0,
    cols: 0,
    stride: 0,
};

/// Whether the residual stream may leave a unit in the memory in which it has entered: no node reads it after the first write.
pub(crate) fn stream_in_place(program: &UnitProgram, phase: Phase) -> bool {
    let mut written = false;
    for node in program.list(phase) {
        let touches = node.touches();
        let of = |class: Class| touches.iter().filter(move |t| program.values[t.value()].class == class);
        if written && of(Class::StreamIn).next().is_some() {
            return false;
        }
        if of(Class::StreamOut).any(|t| t.access != Access::Read) {
            let same = |t: &&bessemer_program::Touch| {
                node.op().is_some_and(|op| op.may_be_in_place()) && t.view.offset == 0
            };
            if of(Class::StreamIn).any(|t| !same(&t)) {
                return false;
            }
            written = true;
        }
    }
    true
}

/// Allocation of a stage's memory.
pub(crate) struct Allocating<'a> {
    pub(crate) backend: &'a mut dyn Backend,
    pub(crate) plan: &'a Plan<'a>,
    pub(crate) units: &'a [StageUnit],
    /// Units of the first slots, if they differ.
    pub(crate) stored: &'a [StageUnit],
    /// Another stage, whose slots are this one's too.
    pub(crate) shared: Option<&'a Decoder>,
    /// Shorter lengths, the longest first.
    pub(crate) shorter: &'a [LengthUnits<'a>],
    /// Scratch of the logits, if it is part of this allocation.
    pub(crate) logits: Option<&'a Scratch>,
    /// Arena in which matrices are laid out; without one each is a buffer of its own.
    pub(crate) arena: Option<Arena>,
    /// Gradients in whose memory a slot may be stored.
    pub(crate) gradients: GradientMemory,
}

impl<'a> Allocating<'a> {
    /// Memory of its own for micro-batches of one length.
    pub(crate) fn new(
        backend: &'a mut dyn Backend,
        plan: &'a Plan<'a>,
        units: &'a [StageUnit],
    ) -> Allocating<'a> {
        Allocating {
            backend,
            plan,
            units,
            stored: &[],
            shared: None,
            shorter: &[],
            logits: None,
            arena: None,
            gradients: GradientMemory::default(),
        }
    }

    /// A matrix that the backward pass of unit number `last` is the last to read.
    fn matrix_until(
        &mut self,
        last: usize,
        name: &str,
        dtype: DType,
        [rows, cols]: [usize; 2],
    ) -> Result<View, ModelError> {
        match self.gradients.take(last, dtype, rows, cols) {
            Some(view) => Ok(view),
            None => self.matrix(name, dtype, rows, cols),
        }
    }

    fn matrix(&mut self, name: &str, dtype: DType, rows: usize, cols: usize) -> Result<View, ModelError> {
        if let Some(arena) = &mut self.arena {
            return Ok(arena.matrix(dtype, rows, cols));
        }
        let spec = BufferSpec { class: "activations", name, dtype, len: rows * cols };
        Ok(self.backend.alloc(spec)?.matrix(rows, cols))
    }

    /// The values of one home.
    fn values(&mut self, units: &[StageUnit], home: Home, suffix: &str) -> Result<Values, ModelError> {
        units.iter().enumerate().map(|(at, unit)| self.values_of(at, unit, home, suffix)).collect()
    }

    fn values_of(
        &mut self,
        at: usize,
        unit: &StageUnit,
        home: Home,
        suffix: &str,
    ) -> Result<Vec<Option<View>>, ModelError> {
        let values = &unit.program.values;
        let mut views = vec![None; values.len()];
        let mut ids: Vec<usize> = (0..values.len()).filter(|id| unit.memory.homes[*id] == home).collect();
        // The largest first leave fewer gaps.
        ids.sort_by_key(|id| std::cmp::Reverse(values[*id].rows * values[*id].cols));
        for id in ids {
            let (value, shape) = (&values[id], [values[id].rows, values[id].cols]);
            let name = format!("{}{}{suffix}", unit.program.name, value.name);
            views[id] = Some(match home {
                Home::Saved => self.matrix_until(at, &name, value.dtype, shape)?,
                _ => self.matrix(&name, value.dtype, value.rows, value.cols)?,
            });
        }
        Ok(views)
    }

    /// Slot number `at` of another stage as one of this stage: what layers keep is in the same memory, what only embedding and
    /// head have is this stage's own.
    pub(crate) fn shared_slot(&mut self, of: &Decoder, length: usize, at: usize) -> Result<Slot, ModelError> {
        let refused = || {
            ModelError::Stage(format!(
                "slot {at} was to be shared with a stage that has {} slots or keeps other values in them; give the stage slots of \
                 its own",
                of.buffers.slots.len()
            ))
        };
        if at >= of.buffers.slots.len() || length > of.shorter.len() {
            return Err(refused());
        }
        let slot = of.slot_of_length(length.checked_sub(1), at);
        let layers = |units: &'a [StageUnit]| units.iter().filter(|u| matches!(u.unit, Unit::Layer(_)));
        let first = usize::from(of.stage.span.embedding);
        let mut theirs = first..first + of.stage.span.layers.len();
        let units = self.units_of(at);
        if layers(units).count() != of.stage.span.layers.len() {
            return Err(refused());
        }
        let mut saved = Vec::with_capacity(units.len());
        for (at, unit) in units.iter().enumerate() {
            let layer = matches!(unit.unit, Unit::Layer(_));
            saved.push(match if layer { theirs.next() } else { None } {
                Some(number) => {
                    let views = &slot.saved[number];
                    let fits = |(id, value): (usize, &Value)| {
                        let wanted = (unit.memory.homes[id] == Home::Saved).then_some((
                            value.rows,
                            value.cols,
                            value.dtype,
                        ));
                        views.get(id).copied().flatten().map(|v| (v.rows, v.cols, v.dtype())) == wanted
                    };
                    if !unit.program.values.iter().enumerate().all(fits) {
                        return Err(refused());
                    }
                    views.clone()
                }
                None => self.values_of(at, unit, Home::Saved, "")?,
            });
        }
        let last = slot.stream[slot.stream.len() - 1];
        let gradient = match self.plan.stage.span.head {
            true => self.matrix("stream gradient", last.dtype(), last.rows, last.cols)?,
            false => last,
        };
        let factors = self.factors(slot.factors)?;
        Ok(Slot { gradient, saved, factors, stream: slot.stream.clone(), ..*slot })
    }

    /// Memory for the residual stream between layers whose backward passes do not read it. Layers alternate in it, and all
    /// slots use it.
    pub(crate) fn turns(&mut self) -> Result<Vec<View>, ModelError> {
        let ([rows, width], dtype) = (self.plan.stream(), self.plan.storage());
        let layers = 0..self.plan.stage.span.layers.len();
        let needed = layers.filter(|layer| self.in_turn(self.units, *layer)).count();
        let view = |_| self.matrix("residual stream, in turn", dtype, rows, width);
        (0..needed.min(2)).map(view).collect()
    }

    /// Whether the residual stream that enters a layer lasts only until the layer's forward pass has read it. The message of another stage
    /// has memory of its own.
    fn in_turn(&self, units: &[StageUnit], layer: usize) -> bool {
        let span = &self.plan.stage.span;
        let unit = units.get(layer + usize::from(span.embedding));
        self.plan.shape.purpose == Purpose::Train
            && (layer > 0 || span.embedding)
            && layer < span.layers.len()
            && unit.is_some_and(|unit| !unit.reads_stream_again())
    }

    /// The units of a slot's passes.
    fn units_of(&self, slot: usize) -> &'a [StageUnit] {
        if slot < self.plan.stored_slots() && !self.stored.is_empty() { self.stored } else { self.units }
    }

    /// Memory of the residual stream before layer number `layer` of the stage, or after the last one.
    fn stream(&mut self, layer: usize) -> Result<View, ModelError> {
        let (shape, dtype, span) = (self.plan.stream(), self.plan.storage(), &self.plan.stage.span);
        let name = "residual stream";
        let reader = layer + usize::from(span.embedding);
        if layer == span.layers.len() && !span.head {
            // It becomes the gradient that the backward pass begins with.
            return self.matrix(name, dtype, shape[0], shape[1]);
        }
        // No backward pass reads the stream that has left its own unit.
        self.matrix_until(reader, name, dtype, shape)
    }

    pub(crate) fn slot(&mut self, units: &[StageUnit], turns: &[View]) -> Result<Slot, ModelError> {
        let (plan, n) = (self.plan, self.plan.shape.tokens());
        let mut indices = |name: &str| self.matrix(name, DType::U32, 1, n);
        let (ids, targets, positions) = (indices("ids")?, indices("targets")?, indices("positions")?);
        let documents = match plan.model.document_end {
            Some(_) => Some(self.matrix("documents", DType::U32, 1, n)?),
            None => None,
        };
        // Allocated before the residual stream, whose matrices are the smallest and fit into the remaining memory.
        let saved = self.values(units, Home::Saved, "")?;
        let ([rows, width], dtype) = (plan.stream(), plan.storage());
        let layers = plan.stage.span.layers.len();
        let first = match self.in_turn(units, 0) {
            true => turns[0],
            false => self.stream(0)?,
        };
        let mut stream = vec![first];
        let in_place = plan.shape.purpose == Purpose::Score
            && units.iter().all(|u| stream_in_place(&u.program, Phase::Score));
        for _ in 0..layers {
            let last = stream[stream.len() - 1];
            let next = match in_place {
                true => last,
                false if self.in_turn(units, stream.len()) => turns[stream.len() % turns.len()],
                false if plan.shape.purpose == Purpose::Score && stream.len() > 1 => stream[stream.len() - 2],
                false => self.stream(stream.len())?,
            };
            stream.push(next);
        }
        // Without the head the gradient uses the memory of the stream's end, which only the next stage reads.
        let gradient = match plan.shape.purpose {
            Purpose::Train if plan.stage.span.head => self.matrix("stream gradient", dtype, rows, width)?,
            _ => stream[layers],
        };
        let factors = self.factors(None)?;
        Ok(Slot { ids, targets, positions, factors, documents, stream, gradient, saved })
    }

    /// Memory of the factors on the tokens' gradients, if a unit reads them: `there`, or its own.
    fn factors(&mut self, there: Option<View>) -> Result<Option<View>, ModelError> {
        let reads = |unit: &StageUnit| {
            unit.program.values.iter().any(|v| v.class == Class::Input(Input::LossFactors))
        };
        match there {
            None if self.units.iter().any(reads) => {
                Ok(Some(self.matrix("loss factors", DType::F32, 1, self.plan.shape.tokens())?))
            }
            _ => Ok(there),
        }
    }

    /// Memory of the auxiliary losses of unit number `at`.
    fn auxiliary_losses(&mut self, at: usize) -> Result<Vec<View>, ModelError> {
        let program = &self.units[at].program;
        let value = |number| program.values.iter().find(|v| v.class == Class::AuxiliaryLoss(number));
        let losses =
            program.losses.iter().enumerate().filter_map(|(number, loss)| Some((loss, value(number)?)));
        losses
            .map(|(loss, value)| {
                let name = format!("{}{}", program.name, loss.name);
                self.matrix(&name, DType::F32, value.rows, value.cols)
            })
            .collect()
    }

    /// Memory of the counts of unit number `at`.
    fn counts(&mut self, at: usize) -> Result<Option<View>, ModelError> {
        let program = &self.units[at].program;
        let value = program.values.iter().find(|value| value.class == Class::Counts);
        let Some(value) = value else { return Ok(None) };
        let name = format!("{}{}", program.name, value.name);
        self.matrix(&name, value.dtype, value.rows, value.cols).map(Some)
    }

    /// Allocates all memory, and the slots of each shorter length. `beside`: another stage of the rank, whose passes alternate with this one's.
    pub(crate) fn all(
        &mut self,
        beside: &ScratchBuffers,
    ) -> Result<(StageBuffers, Vec<Vec<Slot>>), ModelError> {
        let (plan, n) = (self.plan, self.plan.shape.tokens());
        let (stage, train) = (plan.stage, plan.shape.purpose == Purpose::Train);
        let shorter = self.shorter.iter().flat_map(|length| &length.units);
        let mut wanted = scratch_of(self.units.iter().chain(self.stored).chain(shorter).map(|u| &u.memory));
        if let Some(logits) = self.logits {
            larger(&mut wanted, logits);
        }
        let scratch = ScratchBuffers::alloc(self.backend, "activations", &wanted, beside)?;
        let losses = match stage.span.head {
            true => Some(self.matrix("losses", DType::F32, 1, n)?),
            false => None,
        };
        let auxiliary =
            (0..self.units.len()).map(|at| self.auxiliary_losses(at)).collect::<Result<Vec<_>, _>>()?;
        let counts = (0..self.units.len()).map(|at| self.counts(at)).collect::<Result<Vec<_>, _>>()?;
        let loss_weights = match auxiliary.iter().map(Vec::len).sum() {
            0 => None,
            count => Some(self.matrix("weights of losses", DType::F32, count, 2)?),
        };
        let places: usize = self.units.iter().map(|u| u.program.random.len()).sum();
        let counters = match train && places > 0 {
            true => Some(self.matrix("counters", DType::U32, places, DropoutMask::WORDS)?),
            false => None,
        };
        let whole = stage.span.is_whole(plan.model) && plan.ranks.iter().all(|rank| rank.degree == 1);
        let logits = match whole {
            true => {
                let dtype = plan.storage();
                Some(self.matrix("logits", dtype, n.min(LOGIT_ROWS), plan.model.vocab_size)?)
            }
            false => None,
        };
        let constant = match plan.model.positions {
            PositionChoice::Sinusoidal if stage.span.embedding => Some(self.sinusoids()?),
            _ => None,
        };
        let (slots, shorter) = match plan.has_arenas() {
            true => {
                let mut of_lengths = self.slots_in_arenas()?;
                (of_lengths.remove(0), of_lengths)
            }
            false => (self.slots()?, Vec::new()),
        };
        let sets = |home, count: usize, allocating: &mut Self, suffix| -> Result<Vec<Values>, ModelError> {
            (0..count).map(|_| allocating.values(allocating.units, home, suffix)).collect()
        };
        let split = if stage.pending > 0 { stage.slots + stage.pending } else { 0 };
        let kept = sets(Home::Kept, split, self, "")?;
        let pending = sets(Home::Pending, stage.pending, self, ".pending")?;
        let buffers = StageBuffers {
            slots,
            kept,
            pending,
            losses,
            auxiliary,
            counts,
            loss_weights,
            counters,
            constant,
            logits,
            scratch,
        };
        Ok((buffers, shorter))
    }

    /// The slots of micro-batches of one length.
    fn slots(&mut self) -> Result<Vec<Slot>, ModelError> {
        let turns = if self.shared.is_none() { self.turns()? } else { Vec::new() };
        let slots = 0..self.plan.stage.slots;
        let slot = |slot| match self.shared {
            Some(other) => self.shared_slot(other, 0, slot),
            None => self.slot(self.units_of(slot), &turns),
        };
        slots.map(slot).collect()
    }

    fn sinusoids(&mut self) -> Result<View, ModelError> {
        let (context, width) = (self.plan.model.context, self.plan.model.width);
        let values = bessemer_model::sinusoids(context, width);
        let spec =
            BufferSpec { class: "constants", name: "embed.sinusoids", dtype: DType::F32, len: values.len() };
        let view = self.backend.alloc(spec)?.matrix(context, width);
        self.backend.write_f32(view, &values)?;
        Ok(view)
    }
}

/// The first elements of a view in the shape of a value.
pub(crate) fn shaped(view: View, value: &Value) -> View {
    View { rows: value.rows, cols: value.cols, stride: value.cols, ..view }
}

/// Scratch that passes of all these units need, one at a time.
pub(crate) fn scratch_of<'a>(memories: impl Iterator<Item = &'a UnitMemory>) -> Scratch {
    let mut all = Scratch::new();
    memories.for_each(|memory| larger(&mut all, &memory.scratch));
    all
}

/// Memory of the values of a unit in one pass.
#[derive(Clone, Copy)]
pub(crate) struct Binding<'a> {
    pub(crate) unit: &'a StageUnit,
    /// Place of the unit in the stage.
    pub(crate) at: usize,
    pub(crate) phase: Phase,
    /// Values and gradients of the decoder's parameters.
    pub(crate) values: &'a [View],
    pub(crate) gradients: &'a [Option<View>],
    pub(crate) slot: Option<&'a Slot>,
    /// The stream that enters and leaves the unit.
    pub(crate) stream: (View, View),
    pub(crate) kept: Option<&'a Values>,
    pub(crate) pending: Option<&'a Values>,
    pub(crate) losses: Option<View>,
    /// Memory of the unit's auxiliary losses, and their rows of the weights.
    pub(crate) auxiliary: &'a [View],
    /// Memory of the unit's counts.
    pub(crate) counts: Option<View>,
    pub(crate) loss_weights: Option<View>,
    /// The unit's rows of the counters.
    pub(crate) counters: Option<View>,
    pub(crate) constant: Option<View>,
    pub(crate) external: &'a [View],
    pub(crate) scratch: &'a ScratchBuffers,
    /// Ids and positions, of a pass without a slot.
    pub(crate) indices: Option<(View, View)>,
}

impl Binding<'_> {
    /// Fills `table` with the memory of every value.
    pub(crate) fn fill(&self, table: &mut Vec<View>) {
        table.clear();
        for id in 0..self.unit.program.values.len() {
            table.push(self.view(id).unwrap_or(UNTOUCHED));
        }
    }

    fn view(&self, id: usize) -> Option<View> {
        let (program, memory) = (&self.unit.program, &self.unit.memory);
        let value = &program.values[id];
        let of = |values: Option<&Values>| values.and_then(|v| v[self.at][id]);
        match memory.homes[id] {
            home if home.is_scratch(self.phase) => {
                let at = self.phase as usize;
                match (memory.takes[at][id], memory.offsets[at][id]) {
                    (Some(saved), _) => {
                        let place = self.slot.and_then(|s| s.saved[self.at][saved])?;
                        Some(shaped(place, value))
                    }
                    (None, Some(offset)) => self.scratch.matrix(value.dtype, offset, value.rows, value.cols),
                    (None, None) => None,
                }
            }
            Home::Saved => of(self.slot.map(|s| &s.saved)),
            Home::Kept => of(self.kept),
            Home::Pending | Home::Scratch => of(self.pending),
            Home::Bound => match value.class {
                Class::Parameter(p) => self.values.get(self.unit.parameters[p]).copied(),
                Class::Gradient(p) => self.gradients.get(self.unit.parameters[p]).copied().flatten(),
                Class::Input(Input::Ids) => self.slot.map(|s| s.ids).or(self.indices.map(|i| i.0)),
                Class::Input(Input::Targets) => self.slot.map(|s| s.targets),
                Class::Input(Input::Positions) => {
                    self.slot.map(|s| s.positions).or(self.indices.map(|i| i.1))
                }
                Class::Input(Input::Documents) => self.slot.and_then(|s| s.documents),
                Class::Input(Input::LossFactors) => self.slot.and_then(|s| s.factors),
                Class::Input(Input::LossWeight(number)) => self.loss_weights.map(|w| w.rows(number, 1)),
                Class::Random(place) => self.counters.map(|c| c.rows(place, 1)),
                Class::StreamIn => Some(self.stream.0),
                Class::StreamOut => Some(self.stream.1),
                Class::StreamGradient => self.slot.map(|s| s.gradient),
                Class::Losses => self.losses,
                Class::AuxiliaryLoss(number) => self.auxiliary.get(number).map(|view| shaped(*view, value)),
                Class::Counts => self.counts,
                Class::Constant => self.constant,
                Class::External(number) => self.external.get(number).copied(),
                Class::Local => None,
            },
        }
    }
}
