//! Operands of linear maps, read where gradients of weights are made from them.
//!
//! An optimizer may read operands during the pass (K-FAC takes its curvature from them); work in bubbles may keep them for
//! later.

use crate::chunk::Chunk;
use crate::columns::Columns;
use crate::exchange::ExchangeError;
use crate::fill::FillerWork;
use crate::tensor::TensorGroup;
use bessemer_optim::Optimizer;
use bessemer_tensor::{Backend, View};
use bessemer_units::DType;

/// Operands of a linear map.
#[derive(Debug, Clone, Copy)]
pub struct LinearOperands {
    /// Inputs `[tokens, inputs]`.
    pub x: View,
    /// Gradients of the outputs `[tokens, outputs]`.
    pub dy: View,
}

/// A linear map in a backward pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinearMap {
    /// Chunk of the rank.
    pub chunk: usize,
    /// Micro-batch.
    pub micro: usize,
    /// Number of its matrix in the optimizer's list.
    pub param: usize,
}

/// Width and type of an operand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OperandSpec {
    /// Columns: inputs or outputs of the whole matrix.
    pub cols: usize,
    /// Type of the elements.
    pub dtype: DType,
}

/// Operands of a linear map as a reader is given them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinearSpec {
    /// Name of its matrix.
    pub name: String,
    /// Inputs.
    pub x: OperandSpec,
    /// Gradients of the outputs.
    pub dy: OperandSpec,
}

/// A pass that makes gradients of weights.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GradientPass {
    /// Its chunk.
    pub(crate) chunk: usize,
    /// Its micro-batch.
    pub(crate) micro: usize,
    /// The update that its gradients are for, from 1.
    pub(crate) update: u64,
    /// Earlier passes have left gradients of the update.
    pub(crate) add: bool,
}

/// Use of a chunk's operands.
#[derive(Debug)]
pub(crate) struct Operands {
    /// Indexed by parameter of the decoder: its number in the optimizer's list.
    numbers: Vec<Option<usize>>,
    /// Gathers of operands, where matrices are sharded over the tensor axis.
    columns: Option<Columns>,
}

impl Operands {
    pub(crate) fn new(numbers: Vec<Option<usize>>, columns: Option<Columns>) -> Operands {
        Operands { numbers, columns }
    }

    /// Returns the reader of a pass, if anybody reads its operands: work in bubbles, else the optimizer.
    pub(crate) fn reader<'a>(
        &'a mut self,
        optimizer: &'a mut Optimizer,
        fill: &'a mut Option<Box<dyn FillerWork>>,
        pass: GradientPass,
    ) -> Option<PassOperands<'a>> {
        let fill = fill.as_mut().filter(|work| work.reads_operands());
        let wanted = fill.is_some() || optimizer.captures(pass.update);
        wanted.then_some(PassOperands { operands: self, optimizer, fill, pass })
    }
}

impl Chunk {
    /// Operands of the linear map whose matrix has `number` in the optimizer's list, where activations have type
    /// `activations`; none if it is not here.
    pub fn linear_spec(&self, number: usize, activations: DType) -> Option<LinearSpec> {
        let Operands { numbers, columns } = &self.operands;
        let param = numbers.iter().position(|n| *n == Some(number))?;
        let spec = &self.tensor_shard[param].sharding.spec;
        let gathered = columns.as_ref().and_then(|columns| columns.gathered_side(param));
        // Gathered columns are sums of the ranks' values, in f32.
        let operand = |cols, inputs: bool| {
            let dtype = if gathered == Some(inputs) { DType::F32 } else { activations };
            OperandSpec { cols, dtype }
        };
        let (outputs, inputs) = spec.matrix();
        Some(LinearSpec { name: spec.name.clone(), x: operand(inputs, true), dy: operand(outputs, false) })
    }
}

/// Operands of one pass, passed to work in bubbles or to the optimizer.
pub(crate) struct PassOperands<'a> {
    operands: &'a mut Operands,
    optimizer: &'a mut Optimizer,
    fill: Option<&'a mut Box<dyn FillerWork>>,
    pass: GradientPass,
}

impl PassOperands<'_> {
    /// Reads inputs and output gradients of the linear map of parameter `param`, from which its gradient is made.
    pub(crate) fn read(
        &mut self,
        backend: &mut dyn Backend,
        tensor: &mut TensorGroup,
        param: usize,
        LinearOperands { x, dy }: LinearOperands,
    ) -> Result<(), ExchangeError> {
        let Operands { numbers, columns } = &mut *self.operands;
        let Some(number) = numbers[param] else { return Ok(()) };
        let (x, dy) = match columns {
            None => (x, dy),
            Some(columns) => columns.gather(backend, tensor, param, (x, dy))?,
        };
        let GradientPass { chunk, micro, add, .. } = self.pass;
        match &mut self.fill {
            Some(work) => {
                let map = LinearMap { chunk, micro, param: number };
                work.read_operands(backend, map, LinearOperands { x, dy })?;
            }
            None => self.optimizer.capture(backend, number, (x, dy), add)?,
        }
        Ok(())
    }
}
