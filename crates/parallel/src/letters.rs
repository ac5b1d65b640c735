//! Activations and their gradients between pipeline ranks.
//!
//! A rank's send copies and returns, so communication overlaps with what the rank computes next; a receive waits. With
//! tensor parallelism each rank of the line talks to the one of the same position in the next stage: what both lines
//! hold whole travels as often as there are ranks in a line, what is cut by rows (sequence parallelism) once.

use crate::prepare::Letter;
use bessemer_collectives::{Communicator, Message};
use bessemer_schedule::Flow;
use bessemer_tensor::{Backend, View};
use bessemer_units::DType;
use half::bf16;

use crate::exchange::ExchangeError;

/// Scratch on the host for messages.
#[derive(Debug, Default)]
pub(crate) struct Letters {
    values: Vec<f32>,
    short: Vec<bf16>,
}

fn message(letter: &Letter) -> Message<'static> {
    let name = match letter.flow {
        Flow::Activation => "activation",
        Flow::Gradient => "gradient",
    };
    Message::new(name, letter.tag, letter.peer)
}

impl Letters {
    /// Hands a copy of `view` over, in the type in which it is stored.
    pub(crate) fn send(
        &mut self,
        backend: &mut dyn Backend,
        pipeline: &mut dyn Communicator,
        letter: &Letter,
        view: View,
    ) -> Result<(), ExchangeError> {
        self.values.resize(view.len(), 0.0);
        backend.read_f32(view, &mut self.values)?;
        if view.dtype() != DType::Bf16 {
            return Ok(pipeline.send(message(letter), &self.values)?);
        }
        self.short.clear();
        self.short.extend(self.values.iter().map(|v| bf16::from_f32(*v)));
        Ok(pipeline.send(message(letter), &self.short)?)
    }

    /// Waits for a message and puts it in place.
    pub(crate) fn receive(
        &mut self,
        backend: &mut dyn Backend,
        pipeline: &mut dyn Communicator,
        letter: &Letter,
        view: View,
    ) -> Result<(), ExchangeError> {
        self.values.resize(view.len(), 0.0);
        if view.dtype() == DType::Bf16 {
            self.short.resize(view.len(), bf16::ZERO);
            pipeline.receive(message(letter), &mut self.short)?;
            self.values.iter_mut().zip(&self.short).for_each(|(to, from)| *to = from.to_f32());
        } else {
            pipeline.receive(message(letter), &mut self.values)?;
        }
        Ok(backend.write_f32(view, &self.values)?)
    }

    /// Bytes of scratch.
    pub(crate) fn bytes(&self) -> u64 {
        4 * self.values.capacity() as u64 + 2 * self.short.capacity() as u64
    }

    /// Asks for memory for views of so many elements.
    pub(crate) fn reserve(&mut self, elements: usize, dtype: DType) {
        self.values.reserve(elements);
        if dtype == DType::Bf16 {
            self.short.reserve(elements);
        }
    }
}
