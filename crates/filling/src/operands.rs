//! Copies of the operands of linear maps, for curvature that bubbles take later.

use bessemer_parallel::{Chunk, Job, LinearMap, LinearOperands, OperandSpec, ParallelError};
use bessemer_tensor::op::{Copy, Op};
use bessemer_tensor::{Backend, BufferSpec, Stream, TensorError, View};

/// Copies of a chunk's operands, of all micro-batches of a step.
#[derive(Debug)]
pub(crate) struct KeptOperands {
    /// By the optimizer's number of the parameter: position among the layers.
    layers: Vec<Option<usize>>,
    /// By micro-batch and layer; none for those that do not pass the chunk.
    copies: Vec<Vec<LinearOperands>>,
}

impl KeptOperands {
    /// Allocates memory for the operands of layers `params` (by the optimizer's numbers), of the micro-batches that `visits`.
    pub(crate) fn new(
        backend: &mut dyn Backend,
        job: &Job<'_>,
        chunk: &Chunk,
        params: &[usize],
        visits: impl Fn(usize) -> bool,
    ) -> Result<KeptOperands, ParallelError> {
        let mut layers = vec![None; params.iter().max().map_or(0, |n| n + 1)];
        for (layer, number) in params.iter().enumerate() {
            layers[*number] = Some(layer);
        }
        let tokens = job.shape.tokens();
        let mut copies = Vec::with_capacity(job.program.micro_batches());
        for micro in 0..job.program.micro_batches() {
            let mut of_micro = Vec::new();
            for number in params.iter().filter(|_| visits(micro)) {
                let Some(map) = chunk.linear_spec(*number, job.activations.storage.dtype()) else {
                    return Err(ParallelError::Layout(format!(
                        "parameter {number} of the optimizer is not here"
                    )));
                };
                let mut matrix = |what: &str, OperandSpec { cols, dtype }: OperandSpec| {
                    let name = format!("{what} {micro} {}", map.name);
                    let spec =
                        BufferSpec { class: "kept for curvature", name: &name, dtype, len: tokens * cols };
                    Ok::<View, TensorError>(backend.alloc(spec)?.matrix(tokens, cols))
                };
                of_micro
                    .push(LinearOperands { x: matrix("inputs", map.x)?, dy: matrix("gradients", map.dy)? });
            }
            copies.push(of_micro);
        }
        Ok(KeptOperands { layers, copies })
    }

    /// Returns the copies of a micro-batch's operands in a layer.
    pub(crate) fn of(&self, micro: usize, layer: usize) -> Option<LinearOperands> {
        self.copies.get(micro)?.get(layer).copied()
    }

    /// Copies the operands of a linear map, if it is that of a layer.
    pub(crate) fn keep(
        &self,
        backend: &mut dyn Backend,
        LinearMap { micro, param, .. }: LinearMap,
        LinearOperands { x, dy }: LinearOperands,
    ) -> Result<(), TensorError> {
        let Some(layer) = self.layers.get(param).copied().flatten() else { return Ok(()) };
        let Some(copy) = self.of(micro, layer) else {
            let problem = format!("micro-batch {micro} does not pass here, and its operands are kept");
            return Err(TensorError::Outside(problem.into()));
        };
        for (src, dst) in [(x, copy.x), (dy, copy.dy)] {
            backend.launch(Stream::Compute, &Op::from(Copy { src, dst }))?;
        }
        Ok(())
    }
}
