//! Activations and their gradients between pipeline ranks.
//!
//! A rank's send copies and returns, so communication overlaps with what the rank computes next; a receive waits. With
//! tensor parallelism each rank of the line talks to the one of the same position in the next stage: what both lines
//! hold whole travels as often as there are ranks in a line, what is cut by rows (sequence parallelism) once.

use crate::exchange::ExchangeError;
use bessemer_collectives::{Collective, Communicator, Message, ViewStaging};
use bessemer_program::{Message as StreamMessage, Stream};
use bessemer_tensor::{Backend, View};
use bessemer_units::DType;

/// Host memory for messages.
#[derive(Debug, Default)]
pub(crate) struct StreamMessages {
    staging: ViewStaging,
}

fn tagged(message: &StreamMessage) -> Message<'static> {
    let name = match message.stream {
        Stream::Values => "activation",
        Stream::Gradient => "gradient",
    };
    Message::new(name, message.tag, message.peer)
}

impl StreamMessages {
    /// Sends a copy of `view`, in the type in which it is stored.
    pub(crate) fn send(
        &mut self,
        backend: &mut dyn Backend,
        pipeline: &mut dyn Communicator,
        message: &StreamMessage,
        view: View,
    ) -> Result<(), ExchangeError> {
        self.staging.run(backend, pipeline, &Collective::send(tagged(message)), &[view], &[])
    }

    /// Waits for a message and writes it to `view`.
    pub(crate) fn receive(
        &mut self,
        backend: &mut dyn Backend,
        pipeline: &mut dyn Communicator,
        message: &StreamMessage,
        view: View,
    ) -> Result<(), ExchangeError> {
        self.staging.run(backend, pipeline, &Collective::receive(tagged(message)), &[], &[view])
    }

    /// Allocates the host memory that is planned.
    pub(crate) fn allocate(&mut self) {
        self.staging.allocate();
    }

    /// Bytes of host memory.
    pub(crate) fn bytes(&self) -> u64 {
        self.staging.capacity_bytes()
    }

    /// Plans host memory for views of so many elements.
    pub(crate) fn plan(&mut self, elements: usize, dtype: DType) {
        self.staging.plan(1, dtype, elements);
    }
}
