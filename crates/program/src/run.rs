//! The interpreter: a list, bound to memory, on a backend.
//!
//! Two passes of the same list differ in the memory that values are bound to (the slot of a micro-batch), in the form of the
//! operators that write gradients (they replace or add), and, while decoding, in the positions of a key/value cache
//! ([`StepValues`]). No operator is changed between the passes of a step, and a step launches the same operators each time.

use crate::node::{AddingForm, Collective, GradientPart, Node};
use crate::unit::{Phase, UnitProgram};
use crate::value::{Class, Value};
use bessemer_tensor::op::{Access, Op};
use bessemer_tensor::{Backend, Stream, TensorError, View};

/// Numbers that vary from pass to pass.
#[derive(Debug, Default, Clone, Copy, PartialEq)]
pub struct StepValues {
    /// Add to the gradients of the layers' matrices and their biases, instead of replacing them.
    pub add_matrices: bool,
    /// Add to all other gradients.
    pub add_others: bool,
    /// Positions in a key/value cache before the new ones, of those that are seen.
    pub past: usize,
    /// Capacity of the cache in positions, from the first visible one on; 0 in a pass without a cache.
    pub capacity: usize,
    /// First byte that the unit has in the second memory for the micro-batch.
    pub second_memory: u64,
}

impl StepValues {
    /// Whether a pass adds to the gradients of a part.
    fn adds(&self, part: GradientPart) -> bool {
        match part {
            GradientPart::Matrices => self.add_matrices,
            GradientPart::Others => self.add_others,
        }
    }

    /// An operator that reads a key/value cache, with the positions of this pass: to query its workspace.
    pub fn filled(&self, op: &Op) -> Op {
        let mut op = op.clone();
        fill_cache(&mut op, self);
        op
    }
}

/// Interface of a pass to other ranks and to observers.
pub trait Ranks {
    /// Runs a collective; `src` and `dst` are its views in memory.
    ///
    /// # Errors
    /// Errors of other ranks or of the backend; by default, that there are no other ranks.
    fn collective(
        &mut self,
        _backend: &mut dyn Backend,
        collective: &Collective,
        _src: View,
        _dst: View,
    ) -> Result<(), TensorError> {
        let (kind, name) = (collective.kind.name(), &collective.name);
        Err(TensorError::Outside(format!("{kind} of {name}: there are no other ranks").into()))
    }

    /// Exchanges rows by counts; `offsets`, `src` and `dst` are views in memory.
    ///
    /// # Errors
    /// Same errors as [`Ranks::collective`].
    fn exchange(
        &mut self,
        _backend: &mut dyn Backend,
        collective: &Collective,
        _offsets: View,
        _sides: (View, View),
    ) -> Result<(), TensorError> {
        let name = &collective.name;
        Err(TensorError::Outside(format!("exchange of {name}: there are no other ranks").into()))
    }

    /// Begins an exchange of rows by counts that may continue while later nodes run.
    ///
    /// # Errors
    /// Same errors as [`Ranks::collective`].
    fn start_exchange(
        &mut self,
        backend: &mut dyn Backend,
        collective: &Collective,
        offsets: View,
        sides: (View, View),
    ) -> Result<(), TensorError> {
        self.exchange(backend, collective, offsets, sides)
    }

    /// Begins a collective that may continue while later nodes run.
    ///
    /// # Errors
    /// Same errors as [`Ranks::collective`].
    fn start(
        &mut self,
        backend: &mut dyn Backend,
        collective: &Collective,
        src: View,
        dst: View,
    ) -> Result<(), TensorError> {
        self.collective(backend, collective, src, dst)
    }

    /// Completes the collective with this number.
    ///
    /// # Errors
    /// Same errors as [`Ranks::collective`].
    fn wait(&mut self, _backend: &mut dyn Backend, _id: usize, _dst: View) -> Result<(), TensorError> {
        Ok(())
    }

    /// Copies a value to the second memory, from byte `at` on. `src` may be written when this returns; a reload returns its
    /// present contents.
    ///
    /// # Errors
    /// Errors of the second memory or of the backend; by default, that there is no second memory.
    fn offload(&mut self, _backend: &mut dyn Backend, _at: u64, _src: View) -> Result<(), TensorError> {
        Err(TensorError::Outside("a value is offloaded, and there is no second memory".into()))
    }

    /// Copies a value back from byte `at` of the second memory on.
    ///
    /// # Errors
    /// Same errors as [`Ranks::offload`].
    fn reload(&mut self, _backend: &mut dyn Backend, _at: u64, _dst: View) -> Result<(), TensorError> {
        Err(TensorError::Outside("an offloaded value is read back, and there is no second memory".into()))
    }

    /// The gradient of matrix number `parameter` is about to be made from its inputs `x` and the gradients `dy` of its
    /// outputs.
    ///
    /// # Errors
    /// An error of the watcher.
    fn weight_gradient(
        &mut self,
        _backend: &mut dyn Backend,
        _parameter: usize,
        _x: View,
        _dy: View,
    ) -> Result<(), TensorError> {
        Ok(())
    }

    /// A value of that name has been written by the node that ran last.
    ///
    /// # Errors
    /// An error of the watcher.
    fn written(&mut self, _backend: &mut dyn Backend, _name: &str, _view: View) -> Result<(), TensorError> {
        Ok(())
    }

    /// Whether [`Ranks::written`] is to be called.
    fn watches(&self) -> bool {
        false
    }
}

/// A single device: there are no other ranks.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct OneDevice;

impl Ranks for OneDevice {}

/// The view of memory that a view of a value is, with `bound` the memory of the whole value.
fn bind(view: &View, bound: &View) -> View {
    let cols = bound.cols.max(1);
    let (row, col) = (view.offset / cols, view.offset % cols);
    let stride = if view.rows > 1 { view.stride / cols * bound.stride } else { view.cols };
    View { buffer: bound.buffer, offset: bound.offset + row * bound.stride + col, stride, ..*view }
}

/// Calls `visit` with every operator that the phase may launch, bound to memory: to query their workspace.
///
/// # Errors
/// An error of `visit`.
pub fn each_op(
    unit: &UnitProgram,
    phase: Phase,
    memory: &[View],
    visit: &mut dyn FnMut(&Op) -> Result<(), TensorError>,
) -> Result<(), TensorError> {
    for node in unit.list(phase) {
        if let Node::Launch(launch) = node {
            let mut op = launch.op.clone();
            op.for_each_view(&mut |view| *view = bind(view, &memory[view.buffer.id as usize]));
            visit(&op)?;
        }
    }
    Ok(())
}

/// Runs the nodes of a phase in order. `memory` has the memory of each value by its number, `parameters` the number of each of the
/// unit's parameters in calls of `ranks`.
///
/// # Errors
/// Errors of the backend or of `ranks`; nodes after the one that failed do not run.
pub fn run(
    unit: &UnitProgram,
    phase: Phase,
    (memory, parameters): (&[View], &[usize]),
    values: &StepValues,
    backend: &mut dyn Backend,
    ranks: &mut dyn Ranks,
) -> Result<(), TensorError> {
    let at = |view: &View| bind(view, &memory[view.buffer.id as usize]);
    let watches = ranks.watches();
    for node in unit.list(phase) {
        match node {
            Node::Launch(launch) => {
                if launch.first_only && values.add_others {
                    continue;
                }
                if let Op::LinearBackwardWeight(op) = &launch.op
                    && let Class::Gradient(parameter) = unit.values[op.dweight.buffer.id as usize].class
                {
                    ranks.weight_gradient(backend, parameters[parameter], at(&op.x), at(&op.dy))?;
                }
                let mut op = match &launch.adding {
                    Some(adding) if values.adds(adding.part) => (*adding.op).clone(),
                    _ => launch.op.clone(),
                };
                op.for_each_view(&mut |view| *view = at(view));
                fill_cache(&mut op, values);
                backend.launch(Stream::Compute, &op)?;
            }
            Node::Collective(c) => match &c.by_counts {
                Some(by) => ranks.exchange(backend, c, at(&by.view()), (at(&c.src), at(&c.dst)))?,
                None => ranks.collective(backend, c, at(&c.src), at(&c.dst))?,
            },
            Node::Start(c) => match &c.by_counts {
                Some(by) => ranks.start_exchange(backend, c, at(&by.view()), (at(&c.src), at(&c.dst)))?,
                None => ranks.start(backend, c, at(&c.src), at(&c.dst))?,
            },
            Node::Wait { id, dst, .. } => ranks.wait(backend, *id, at(dst))?,
            Node::Offload(moved) => {
                ranks.offload(backend, values.second_memory + moved.offset, at(&moved.view))?;
            }
            Node::Reload(moved) => {
                ranks.reload(backend, values.second_memory + moved.offset, at(&moved.view))?;
            }
        }
        if watches {
            for touch in node.touches() {
                if touch.access != Access::Read {
                    ranks.written(backend, &unit.values[touch.value()].name, at(&touch.view))?;
                }
            }
        }
    }
    Ok(())
}

/// The form of an operator that adds to the gradient which the operator replaces; `None` for an operator that writes no gradient,
/// or only a term of one, which is reduced and then added.
pub(crate) fn adding_form(values: &[Value], op: &Op) -> Option<AddingForm> {
    let makes_term = op.operands().iter().filter(|o| o.access != Access::Read).any(|o| {
        let value = &values[o.view.buffer.id as usize];
        value.class == Class::Local && value.parameter.is_some()
    });
    if makes_term {
        return None;
    }
    let mut op = op.clone();
    let (part, accumulate) = match &mut op {
        Op::LinearCrossEntropy(o) => (GradientPart::Others, &mut o.backward.as_mut()?.accumulate),
        Op::LinearCrossEntropyShard(o) => (GradientPart::Others, &mut o.backward.as_mut()?.accumulate),
        Op::LinearBackwardWeight(o) => (GradientPart::Matrices, &mut o.accumulate),
        Op::GroupedLinearBackwardWeight(o) => (GradientPart::Matrices, &mut o.accumulate),
        Op::NormBackward(o) => (GradientPart::Others, &mut o.accumulate),
        Op::NormBackwardOfSums(o) => (GradientPart::Others, &mut o.accumulate),
        Op::MagnitudesBackward(o) => (GradientPart::Others, &mut o.accumulate),
        _ => return None,
    };
    *accumulate = true;
    Some(AddingForm { part, op: Box::new(op) })
}

/// Puts the positions of this pass into an operator that reads a key/value cache.
fn fill_cache(op: &mut Op, values: &StepValues) {
    if let Op::AttentionCached(o) = op {
        (o.past, o.capacity) = (values.past, values.capacity);
        o.k_cache.rows = o.shape.batch * values.capacity;
        o.v_cache.rows = o.shape.batch * values.capacity;
    }
}
