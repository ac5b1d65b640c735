//! What a rank does inside a pass besides computing: it walks the pass's list and runs the collectives of its programs.

use crate::exchange::{Exchange, ExchangeError};
use crate::lists::unit_number;
use crate::offload::PassOffload;
use crate::operands::{LinearOperands, PassOperands};
use crate::tensor::TensorGroup;
use bessemer_arch::Span;
use bessemer_arch::Unit;
use bessemer_collectives::CollectiveError;
use bessemer_model::StageRanks;
use bessemer_program::{Collective, PassNode, Phase, Ranks};
use bessemer_tensor::{Backend, Stream, TensorError, View};

/// The ranks of one pass.
pub(crate) struct PassRanks<'a> {
    pub(crate) exchange: &'a mut Exchange,
    pub(crate) tensor: &'a mut TensorGroup,
    /// Reader of operands, if there is one.
    pub(crate) reader: Option<PassOperands<'a>>,
    /// The second memory, if the rank has one.
    pub(crate) offload: Option<PassOffload<'a>>,
    /// Entries of the pass's list that have not run.
    pub(crate) list: &'a [PassNode],
    /// The error of another rank, of which the model only has the text.
    pub(crate) failed: Option<CollectiveError>,
    /// The part of the model that the chunk holds.
    pub(crate) span: &'a Span,
}

impl PassRanks<'_> {
    /// Keeps the error for the caller of the pass.
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

    /// Runs the entries of the pass's list up to `unit`, which runs next; all that are left without one.
    fn advance(&mut self, backend: &mut dyn Backend, unit: Option<Unit>) -> Result<(), ExchangeError> {
        let wanted = unit.map(|unit| unit_number(self.span, unit));
        while let Some((node, rest)) = self.list.split_first() {
            self.list = rest;
            match node {
                PassNode::Unit(number) if Some(*number) == wanted => return Ok(()),
                PassNode::Unit(number) => {
                    let runs = unit.map_or("the pass ends".to_owned(), |unit| format!("{unit:?} runs"));
                    return Err(outside(format!(
                        "the list continues with unit {number} of the stage, but {runs}"
                    )));
                }
                node => transfer(backend, self.tensor, self.exchange, node)?,
            }
        }
        match unit {
            Some(unit) => Err(outside(format!("{unit:?} runs, which the pass's list does not have"))),
            None => Ok(()),
        }
    }

    /// The entries behind the last unit of a pass that has not failed.
    pub(crate) fn finish(&mut self, backend: &mut dyn Backend) -> Result<(), ExchangeError> {
        self.advance(backend, None)
    }
}

fn no_second_memory() -> TensorError {
    let problem = "the rank offloads activations (train.offload) and was given no second memory (Worker::set_second_memory)";
    TensorError::Outside(problem.into())
}

fn outside(problem: String) -> ExchangeError {
    TensorError::Outside(problem.into()).into()
}

/// Runs an entry between units.
pub(crate) fn transfer(
    backend: &mut dyn Backend,
    tensor: &mut TensorGroup,
    exchange: &mut Exchange,
    node: &PassNode,
) -> Result<(), ExchangeError> {
    match node {
        PassNode::Unit(number) => Err(outside(format!("unit {number} is in a list without units"))),
        PassNode::Complete(flats) => tensor.complete(backend, flats),
        PassNode::Start(transfer) => exchange.start(backend, *transfer),
        PassNode::Wait(transfer) => exchange.wait(backend, *transfer),
        PassNode::Add(flat) => Ok(backend.launch(Stream(0), &exchange.addition(*flat)?)?),
    }
}

impl Ranks for PassRanks<'_> {
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

    fn wait(&mut self, backend: &mut dyn Backend, id: usize, dst: View) -> Result<(), TensorError> {
        let done = self.tensor.wait(backend, id, dst);
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

impl StageRanks for PassRanks<'_> {
    fn unit_begins(&mut self, backend: &mut dyn Backend, unit: Unit, _: Phase) -> Result<(), TensorError> {
        let advanced = self.advance(backend, Some(unit));
        self.note(advanced)
    }
}
