//! Collectives, offloading and readers of operands of a unit while it runs.

use crate::exchange::ExchangeError;
use crate::offload::PassOffload;
use crate::operands::{LinearOperands, PassOperands};
use crate::tensor::TensorGroup;
use bessemer_collectives::CollectiveError;
use bessemer_program::{Collective, Ranks};
use bessemer_tensor::{Backend, TensorError, View};

/// The ranks of one unit's list.
pub(crate) struct UnitRanks<'a> {
    pub(crate) tensor: &'a mut TensorGroup,
    /// Reader of operands, if there is one.
    pub(crate) reader: Option<PassOperands<'a>>,
    /// The second memory, if the rank has one.
    pub(crate) offload: Option<PassOffload<'a>>,
    /// The error of another rank, of which the model only has the text.
    pub(crate) failed: Option<CollectiveError>,
}

impl<'a> UnitRanks<'a> {
    /// The ranks of a list without readers and without a second memory.
    pub(crate) fn of(tensor: &'a mut TensorGroup) -> UnitRanks<'a> {
        UnitRanks { tensor, reader: None, offload: None, failed: None }
    }
}

impl UnitRanks<'_> {
    /// Keeps the error of a collective for the caller of the pass.
    fn note(&mut self, result: Result<(), ExchangeError>) -> Result<(), TensorError> {
        match result {
            Ok(()) => Ok(()),
            Err(ExchangeError::Tensor(e)) => Err(e),
            Err(ExchangeError::Collective(e)) => {
                let text = e.to_string().into();
                self.failed = Some(e);
                Err(TensorError::Outside(text))
            }
        }
    }
}

fn no_second_memory() -> TensorError {
    let problem = "the rank offloads activations (train.offload) and was given no second memory (Worker::set_second_memory)";
    TensorError::Outside(problem.into())
}

impl Ranks for UnitRanks<'_> {
    fn collective(
        &mut self,
        backend: &mut dyn Backend,
        collective: &Collective,
        src: View,
        dst: View,
    ) -> Result<(), TensorError> {
        let done = self.tensor.collective(backend, collective, (src, dst));
        self.note(done)
    }

    fn exchange(
        &mut self,
        backend: &mut dyn Backend,
        collective: &Collective,
        offsets: View,
        sides: (View, View),
    ) -> Result<(), TensorError> {
        let done = self.tensor.exchange(backend, collective, offsets, sides);
        self.note(done)
    }

    fn start_exchange(
        &mut self,
        backend: &mut dyn Backend,
        collective: &Collective,
        offsets: View,
        sides: (View, View),
    ) -> Result<(), TensorError> {
        let started = self.tensor.start_exchange(backend, collective, offsets, sides);
        self.note(started)
    }

    fn start(
        &mut self,
        backend: &mut dyn Backend,
        collective: &Collective,
        src: View,
        dst: View,
    ) -> Result<(), TensorError> {
        let started = self.tensor.start(backend, collective, (src, dst));
        self.note(started)
    }

    fn wait(&mut self, backend: &mut dyn Backend, id: usize, _dst: View) -> Result<(), TensorError> {
        let done = self.tensor.wait(backend, id);
        self.note(done)
    }

    fn offload(&mut self, backend: &mut dyn Backend, at: u64, src: View) -> Result<(), TensorError> {
        match &mut self.offload {
            Some(offload) => offload.offload(backend, at, src),
            None => Err(no_second_memory()),
        }
    }

    fn reload(&mut self, backend: &mut dyn Backend, at: u64, dst: View) -> Result<(), TensorError> {
        match &mut self.offload {
            Some(offload) => offload.reload(backend, at, dst),
            None => Err(no_second_memory()),
        }
    }

    fn weight_gradient(
        &mut self,
        backend: &mut dyn Backend,
        param: usize,
        x: View,
        dy: View,
    ) -> Result<(), TensorError> {
        let Some(reader) = &mut self.reader else { return Ok(()) };
        let read = reader.read(backend, self.tensor, param, LinearOperands { x, dy });
        self.note(read)
    }
}
