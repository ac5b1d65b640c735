//! Shows the optimizer what the gradients of the linear layers are made from.

use bessemer_model::Seams;
use bessemer_optim::Optimizer;
use bessemer_tensor::{Backend, TensorError, View};

/// The seams of one micro-batch whose curvature is wanted ([`Optimizer::captures`]).
#[derive(Debug)]
pub struct Capturing<'a> {
    /// Of the decoder's parameters that have gradients, in their order.
    pub optimizer: &'a mut Optimizer,
    /// False in the first micro-batch of a step.
    pub accumulate: bool,
}

impl Seams for Capturing<'_> {
    fn linear_backward(
        &mut self,
        backend: &mut dyn Backend,
        param: usize,
        x: View,
        dy: View,
    ) -> Result<(), TensorError> {
        self.optimizer.capture(backend, param, (x, dy), self.accumulate)
    }
}
