//! Unit programs, and how the model records them.

use crate::node::{Launch, Node, Random};
use crate::value::{Class, Input, Value};
use bessemer_mesh::{Dim, Form, Layout};
use bessemer_tensor::View;
use bessemer_tensor::op::{Access, DropoutMask, Op};
use bessemer_units::DType;

/// Phase of a unit, for which it has a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Phase {
    /// Values, for a backward pass that follows.
    Forward,
    /// Values only: no random numbers, nothing is saved.
    Score,
    /// Gradients, and values that are computed again for them.
    Backward,
    /// The first part of a backward pass that is split: all but the gradients of the layers' matrices and their biases.
    BackwardInput,
    /// The second part: those gradients. It reads no parameter.
    BackwardWeight,
}

impl Phase {
    /// All, in the order of [`UnitProgram::lists`].
    pub const ALL: [Phase; 5] =
        [Phase::Forward, Phase::Score, Phase::Backward, Phase::BackwardInput, Phase::BackwardWeight];

    /// Place in [`Phase::ALL`].
    pub(crate) fn index(self) -> usize {
        self as usize
    }

    /// Name in printed programs.
    pub fn name(self) -> &'static str {
        match self {
            Phase::Forward => "forward",
            Phase::Score => "score",
            Phase::Backward => "backward",
            Phase::BackwardInput => "backward-input",
            Phase::BackwardWeight => "backward-weight",
        }
    }
}

/// Recomputation of a value from values that are kept.
#[derive(Debug, Clone, PartialEq)]
pub struct Again {
    /// Number of the value.
    pub value: usize,
    /// The operator that makes it.
    pub op: Op,
}

/// Program of the passes of one unit: its values, and a list of nodes for each phase.
#[derive(Debug, Clone, PartialEq)]
pub struct UnitProgram {
    /// Prefix of names within the unit elsewhere: "layers.3.", or nothing.
    pub name: String,
    /// Names of the unit's parameters, within the unit: [`Class::Parameter`] numbers them.
    pub parameters: Vec<String>,
    /// The virtual buffers, by number.
    pub values: Vec<Value>,
    /// Indexed by [`Phase`].
    pub lists: [Vec<Node>; 5],
    /// Values that a backward pass may compute again.
    pub again: Vec<Again>,
    /// Places at which random numbers are drawn: [`Class::Random`] numbers them.
    pub random: Vec<Random>,
    /// Losses of the unit besides those of the tokens: [`Class::AuxiliaryLoss`] numbers them.
    pub losses: Vec<AuxiliaryLoss>,
}

/// A loss besides those of the tokens, such as the z-loss: a term of the objective whose value is reported by name.
///
/// The objective has `weight x sum / targets`, where the sum is that of all its values (or their squares) over the step, and the
/// targets are those that are scored. Units of one name are summed. The lists compute the gradient, by the weight in step memory
/// ([`crate::Input::LossWeight`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AuxiliaryLoss {
    /// Name under which it is weighed and reported: "z_loss".
    pub name: &'static str,
    /// The squares of its values are summed, not the values.
    pub squared: bool,
    /// The backward pass makes its values, not the forward pass.
    pub backward: bool,
}

impl UnitProgram {
    /// Whether a pass of the phase computes the values of an auxiliary loss.
    pub fn makes_loss(&self, phase: Phase, number: usize) -> bool {
        match self.losses[number].backward {
            true => matches!(phase, Phase::Backward | Phase::BackwardInput),
            false => phase == Phase::Forward,
        }
    }

    /// The nodes of a phase, in order.
    pub fn list(&self, phase: Phase) -> &[Node] {
        &self.lists[phase.index()]
    }

    /// The number of the value of that name.
    pub fn find(&self, name: &str) -> Option<usize> {
        self.values.iter().position(|v| v.name == name)
    }

    /// Returns the same program of another unit: every name that begins with `from` begins with `to`.
    pub fn renamed(&self, from: &str, to: &str) -> UnitProgram {
        let rename = |name: &mut String| {
            if let Some(rest) = name.strip_prefix(from) {
                *name = format!("{to}{rest}");
            }
        };
        let mut unit = self.clone();
        rename(&mut unit.name);
        unit.random.iter_mut().for_each(|r| rename(&mut r.place));
        for node in unit.lists.iter_mut().flatten() {
            match node {
                Node::Collective(c) | Node::Start(c) => rename(&mut c.name),
                Node::Launch(_) | Node::Wait { .. } | Node::Offload(_) | Node::Reload(_) => {}
            }
        }
        unit
    }

    /// A new value, made by the unit's own nodes.
    pub(crate) fn add(&mut self, value: Value) -> View {
        self.values.push(value);
        let id = self.values.len() - 1;
        self.values[id].view(id)
    }

    /// Whether the first node of the phase that touches the value reads the contents left by another phase.
    pub(crate) fn reads_first(&self, phase: Phase, value: usize) -> bool {
        let mut touches = self.list(phase).iter().flat_map(Node::touches);
        touches.find(|t| t.value() == value).is_some_and(|t| t.access != Access::Write)
    }

    /// Whether a node of the phase writes the value.
    pub(crate) fn writes(&self, phase: Phase, value: usize) -> bool {
        let mut touches = self.list(phase).iter().flat_map(Node::touches);
        touches.any(|t| t.value() == value && t.access != Access::Read)
    }
}

/// Records the lists of one unit from the model's code for one device.
#[derive(Debug)]
pub struct Recorder {
    unit: UnitProgram,
    phase: Phase,
}

impl Recorder {
    /// An empty program, whose names begin with `name`.
    pub fn new(name: &str) -> Recorder {
        let unit = UnitProgram {
            name: name.into(),
            parameters: Vec::new(),
            values: Vec::new(),
            lists: std::array::from_fn(|_| Vec::new()),
            again: Vec::new(),
            random: Vec::new(),
            losses: Vec::new(),
        };
        Recorder { unit, phase: Phase::Forward }
    }

    /// Continues a program: a pass that adds operators at the end of lists.
    pub fn of(unit: UnitProgram) -> Recorder {
        Recorder { unit, phase: Phase::Forward }
    }

    /// The value of that name, if there is one.
    pub fn find(&self, name: &str) -> Option<View> {
        let id = self.unit.find(name)?;
        Some(self.unit.values[id].view(id))
    }

    /// Begins a phase: later calls record into its list.
    pub fn begin(&mut self, phase: Phase) {
        self.phase = phase;
    }

    /// The phase that is recorded.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// The value of that name as a matrix; made if it is not there yet.
    ///
    /// # Panics
    /// If it is there with another shape.
    pub fn value(&mut self, name: &str, class: Class, dtype: DType, dims: [Dim; 2]) -> View {
        let (rows, cols) = (dims[0].len(), dims[1].len());
        if let Some(id) = self.unit.find(name) {
            let value = &self.unit.values[id];
            assert_eq!((value.rows, value.cols, value.class), (rows, cols, class), "{name} has two shapes");
            return value.view(id);
        }
        let residual = matches!(class, Class::StreamIn | Class::StreamOut | Class::StreamGradient);
        let parameter = match class {
            Class::Parameter(number) | Class::Gradient(number) => Some(number),
            _ => None,
        };
        self.unit.add(Value {
            name: name.into(),
            class,
            dtype,
            form: Form { dims: dims.to_vec() },
            layout: Layout::replicated(),
            rows,
            cols,
            residual,
            parameter,
        })
    }

    /// The value of a parameter of the unit; `[rows, cols]`, a vector one row.
    pub fn parameter(&mut self, name: &str, dtype: DType, dims: [Dim; 2]) -> View {
        let number = self.number(name);
        self.value(name, Class::Parameter(number), dtype, dims)
    }

    /// The gradient of a parameter of the unit.
    pub fn gradient(&mut self, name: &str, dtype: DType, dims: [Dim; 2]) -> View {
        let number = self.number(name);
        self.value(&format!("{name}.gradient"), Class::Gradient(number), dtype, dims)
    }

    /// The counters of the random numbers of a place of the unit.
    pub fn random(&mut self, name: &str, random: Random) -> View {
        let places = &mut self.unit.random;
        let number = places.iter().position(|r| *r == random).unwrap_or_else(|| {
            places.push(random);
            places.len() - 1
        });
        let dims = [Dim::plain(1), Dim::plain(DropoutMask::WORDS)];
        self.value(&format!("{name}.counters"), Class::Random(number), DType::U32, dims)
    }

    /// An auxiliary loss, made by the phase that is recorded: its values `[rows, cols]`, or their squares, are summed. Returns the
    /// values, and its weight in step memory ([`crate::Input::LossWeight`]).
    ///
    /// # Panics
    /// If the unit has one of that name already.
    pub fn auxiliary_loss(&mut self, name: &'static str, squared: bool, dims: [Dim; 2]) -> (View, View) {
        assert!(self.unit.losses.iter().all(|loss| loss.name != name), "{name} is recorded twice");
        let (number, backward) = (self.unit.losses.len(), self.phase == Phase::Backward);
        self.unit.losses.push(AuxiliaryLoss { name, squared, backward });
        let values = self.value(name, Class::AuxiliaryLoss(number), DType::F32, dims);
        let weight = Class::Input(Input::LossWeight(number));
        let weight =
            self.value(&format!("{name}.weight"), weight, DType::F32, [Dim::plain(1), Dim::plain(2)]);
        (values, weight)
    }

    fn number(&mut self, name: &str) -> usize {
        let names = &mut self.unit.parameters;
        names.iter().position(|n| n == name).unwrap_or_else(|| {
            names.push(name.into());
            names.len() - 1
        })
    }

    /// Declares the layout of the value of a view, whatever layout its operators produce.
    pub fn declare(&mut self, view: View, layout: Layout) {
        self.unit.values[view.buffer.id as usize].layout = layout;
    }

    /// Rows of `view` are rows of the residual stream.
    pub fn residual(&mut self, view: View) -> View {
        self.unit.values[view.buffer.id as usize].residual = true;
        view
    }

    /// Appends an operator.
    pub fn launch(&mut self, op: impl Into<Op>) {
        self.push(Launch::new(op));
    }

    /// Appends an operator that runs only in the pass that begins the gradients of an update.
    pub fn launch_first(&mut self, op: impl Into<Op>) {
        self.push(Launch { first_only: true, ..Launch::new(op) });
    }

    fn push(&mut self, launch: Launch) {
        self.unit.lists[self.phase.index()].push(Node::Launch(launch));
    }

    /// A backward pass may make the value again by this operator, from values that are kept.
    pub fn again(&mut self, value: View, op: impl Into<Op>) {
        let (value, op) = (value.buffer.id as usize, op.into());
        if !self.unit.again.iter().any(|a| a.value == value) {
            self.unit.again.push(Again { value, op });
        }
    }

    /// The program.
    pub fn finish(self) -> UnitProgram {
        self.unit
    }
}
