//! Operands of linear maps, read where gradients of weights are made from them.
//!
//! The road of a pass knows an [`OperandReader`] and no optimizer: K-FAC takes its curvature from operands during the pass, or
//! keeps them for work that bubbles do later.

use crate::chunk::Chunk;
use crate::columns::Columns;
use crate::error::ParallelError;
use crate::exchange::ExchangeError;
use crate::tensor::TensorGroup;
use crate::worker::Job;
use bessemer_optim::Optimizer;
use bessemer_tensor::op::{Copy, Op};
use bessemer_tensor::{Backend, BufferSpec, Stream, TensorError, View};
use bessemer_units::DType;

/// Reader of the operands of a backward pass.
pub(crate) trait OperandReader {
    /// Reads inputs and output gradients of the linear map of parameter `param`, from which its gradient is made.
    fn read(
        &mut self,
        backend: &mut dyn Backend,
        tensor: &mut TensorGroup,
        param: usize,
        operands: LinearOperands,
    ) -> Result<(), ExchangeError>;
}

/// Operands of a linear map.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LinearOperands {
    /// Inputs `[tokens, inputs]`.
    pub(crate) x: View,
    /// Gradients of the outputs `[tokens, outputs]`.
    pub(crate) dy: View,
}

/// A pass that makes gradients of weights.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GradientPass {
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
    /// By parameter of the decoder: its number in the optimizer's list.
    numbers: Vec<Option<usize>>,
    /// Gathers of operands, where matrices are sharded over the tensor axis.
    columns: Option<Columns>,
    kept: Option<KeptOperands>,
}

/// Copies of operands for work that is done later.
#[derive(Debug)]
struct KeptOperands {
    /// By the optimizer's number of the parameter: position among the layers.
    layers: Vec<Option<usize>>,
    /// By micro-batch and layer; none for those that do not pass the chunk.
    copies: Vec<Vec<LinearOperands>>,
    /// The step at hand keeps its operands.
    on: bool,
}

impl Operands {
    pub(crate) fn new(numbers: Vec<Option<usize>>, columns: Option<Columns>) -> Operands {
        Operands { numbers, columns, kept: None }
    }

    /// Bytes on the host.
    pub(crate) fn bytes(&self) -> u64 {
        self.columns.as_ref().map_or(0, Columns::bytes)
    }

    /// Returns the reader of a pass, if anybody reads its operands.
    pub(crate) fn reader<'a>(
        &'a mut self,
        optimizer: &'a mut Optimizer,
        pass: GradientPass,
    ) -> Option<PassOperands<'a>> {
        let wanted = self.kept.as_ref().is_some_and(|kept| kept.on) || optimizer.captures(pass.update);
        wanted.then_some(PassOperands { operands: self, optimizer, pass })
    }

    /// Whether operands are copied from now on.
    pub(crate) fn keep(&mut self, on: bool) {
        if let Some(kept) = &mut self.kept {
            kept.on = on;
        }
    }

    /// Returns the copies of a micro-batch's operands in a layer.
    pub(crate) fn kept(&self, micro: usize, layer: usize) -> Option<LinearOperands> {
        self.kept.as_ref()?.copies.get(micro)?.get(layer).copied()
    }
}

impl Chunk {
    /// Allocates memory for the operands of layers `params` (by the optimizer's numbers), of the micro-batches that `visits`.
    pub(crate) fn keep_operands(
        &mut self,
        backend: &mut dyn Backend,
        job: &Job<'_>,
        params: &[usize],
        visits: &dyn Fn(usize) -> bool,
    ) -> Result<(), ParallelError> {
        let Operands { numbers, columns, .. } = &self.operands;
        let mut layers = vec![None; numbers.iter().flatten().max().map_or(0, |n| n + 1)];
        for (layer, number) in params.iter().enumerate() {
            layers[*number] = Some(layer);
        }
        let tokens = job.shape.tokens();
        let mut copies = Vec::with_capacity(job.program.micro_batches());
        for micro in 0..job.program.micro_batches() {
            let mut of_micro = Vec::new();
            for number in params.iter().filter(|_| visits(micro)) {
                let Some(param) = numbers.iter().position(|n| n == &Some(*number)) else {
                    return Err(ParallelError::Layout(format!(
                        "parameter {number} of the optimizer is not here"
                    )));
                };
                let spec = &self.tensor_shard[param].sharding.spec;
                let gathered = columns.as_ref().and_then(|c| c.gathered_side(param));
                let (outputs, inputs) = spec.matrix();
                let mut matrix = |what: &str, cols: usize, whole: bool| {
                    // Gathered columns are sums of what ranks hold, in f32.
                    let dtype = if whole { DType::F32 } else { job.activations.storage.dtype() };
                    let name = format!("{what} {micro} {}", spec.name);
                    let spec =
                        BufferSpec { class: "kept for curvature", name: &name, dtype, len: tokens * cols };
                    Ok::<View, TensorError>(backend.alloc(spec)?.matrix(tokens, cols))
                };
                of_micro.push(LinearOperands {
                    x: matrix("inputs", inputs, gathered == Some(true))?,
                    dy: matrix("gradients", outputs, gathered == Some(false))?,
                });
            }
            copies.push(of_micro);
        }
        self.operands.kept = Some(KeptOperands { layers, copies, on: false });
        Ok(())
    }
}

/// Operands of one pass on their way to the optimizer or into copies.
pub(crate) struct PassOperands<'a> {
    operands: &'a mut Operands,
    optimizer: &'a mut Optimizer,
    pass: GradientPass,
}

impl OperandReader for PassOperands<'_> {
    fn read(
        &mut self,
        backend: &mut dyn Backend,
        tensor: &mut TensorGroup,
        param: usize,
        LinearOperands { x, dy }: LinearOperands,
    ) -> Result<(), ExchangeError> {
        let Operands { numbers, columns, kept } = &mut *self.operands;
        let Some(number) = numbers[param] else { return Ok(()) };
        let (x, dy) = match columns {
            None => (x, dy),
            Some(columns) => columns.gather(backend, tensor, param, (x, dy))?,
        };
        let GradientPass { micro, add, .. } = self.pass;
        let Some(KeptOperands { layers, copies, .. }) = kept.as_ref().filter(|kept| kept.on) else {
            return Ok(self.optimizer.capture(backend, number, (x, dy), add)?);
        };
        let Some(layer) = layers.get(number).copied().flatten() else { return Ok(()) };
        let Some(copy) = copies[micro].get(layer) else {
            let problem = format!("micro-batch {micro} does not pass here, and its operands are kept");
            return Err(TensorError::Outside(problem.into()).into());
        };
        for (src, dst) in [(x, copy.x), (dy, copy.dy)] {
            backend.launch(Stream(0), &Op::from(Copy { src, dst }))?;
        }
        Ok(())
    }
}
