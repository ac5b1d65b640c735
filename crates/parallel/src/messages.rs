//! Activations and their gradients between pipeline ranks.
//!
//! A rank's send copies and returns, so communication overlaps with the rank's next computation; a receive waits. With
//! tensor parallelism each rank of the line sends to the one of the same position in the next stage: tensors that are whole on both
//! lines are sent once per rank of a line, tensors that are cut by rows (sequence parallelism) once.

use crate::exchange::{ExchangeError, stream};
use bessemer_collectives::{Collective, DeviceCommunicator, Message};
use bessemer_mesh::Axis;
use bessemer_program::{Message as StreamMessage, Stream};
use bessemer_tensor::{Backend, View};

fn tagged(message: &StreamMessage) -> Message<'static> {
    let name = match message.stream {
        Stream::Values => "activation",
        Stream::Gradient => "gradient",
    };
    Message::new(name, message.tag, message.peer)
}

/// Sends a copy of `view`, in the type in which it is stored.
pub(crate) fn send(
    backend: &mut dyn Backend,
    pipeline: &mut dyn DeviceCommunicator,
    message: &StreamMessage,
    view: View,
) -> Result<(), ExchangeError> {
    pipeline.run(backend, stream(Axis::Pipeline), &Collective::send(tagged(message)), &[view], &[])
}

/// Waits for a message and writes it to `view`.
pub(crate) fn receive(
    backend: &mut dyn Backend,
    pipeline: &mut dyn DeviceCommunicator,
    message: &StreamMessage,
    view: View,
) -> Result<(), ExchangeError> {
    pipeline.run(backend, stream(Axis::Pipeline), &Collective::receive(tagged(message)), &[], &[view])
}
