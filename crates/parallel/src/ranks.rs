//! What a rank does inside a pass: brings parameters, takes gradients away, runs the collectives of its programs.

use crate::chunk::reduce_unit;
use crate::columns::Columns;
use crate::exchange::{Exchange, ExchangeError};
use crate::fill::ChunkFill;
use crate::flat::Units;
use crate::tensor::TensorGroup;
use bessemer_arch::Span;
use bessemer_arch::Unit;
use bessemer_collectives::CollectiveError;
use bessemer_model::StageRanks;
use bessemer_optim::Optimizer;
use bessemer_program::{Collective, Phase, Ranks};
use bessemer_tensor::{Backend, TensorError, View};

/// What a pass does about gradients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Gradients {
    /// Nothing of the update is there yet.
    pub(crate) first: bool,
    /// Units leave as soon as their gradients are made.
    pub(crate) leave: bool,
}

/// How an optimizer sees what gradients are made of.
#[derive(Debug)]
pub(crate) struct Curvature {
    /// By parameter of the decoder: its number in the optimizer's list.
    pub(crate) numbers: Vec<Option<usize>>,
    /// Where matrices are cut over the tensor axis.
    pub(crate) columns: Option<Columns>,
}

impl Curvature {
    /// Bytes on the host.
    pub(crate) fn bytes(&self) -> u64 {
        self.columns.as_ref().map_or(0, Columns::bytes)
    }
}

/// An optimizer that wants to see it.
pub(crate) struct Watching<'a> {
    pub(crate) optimizer: &'a mut Optimizer,
    pub(crate) how: &'a mut Curvature,
    /// Keeps it for later instead, as that of a micro-batch.
    pub(crate) later: Option<(&'a mut ChunkFill, usize)>,
}

/// The ranks of one pass.
pub(crate) struct PassRanks<'a> {
    pub(crate) exchange: &'a mut Exchange,
    pub(crate) tensor: &'a mut TensorGroup,
    /// Sees what gradients are made of, if it wants to.
    pub(crate) watching: Option<Watching<'a>>,
    /// None: a pass without gradients of weights.
    pub(crate) gradients: Option<Gradients>,
    /// Why another rank failed, which the model only hears as text.
    pub(crate) failed: Option<CollectiveError>,
    /// What of the model passes here.
    pub(crate) units: &'a Units,
    pub(crate) span: &'a Span,
}

impl PassRanks<'_> {
    /// Keeps the error for whoever ran the pass.
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

    fn fetch(&mut self, backend: &mut dyn Backend, unit: Unit, phase: Phase) -> Result<(), ExchangeError> {
        let (units, layers) = (self.units, self.span.layers.end);
        let flat = |unit| match unit {
            Unit::Embedding | Unit::Head => units.root.unwrap_or(0),
            Unit::Layer(i) => units.layer(i),
        };
        let forward = matches!(phase, Phase::Forward | Phase::Score);
        // The embedding's backward pass and the weight part of a split one read no parameter.
        let reads_none = phase == Phase::BackwardWeight || (unit == Unit::Embedding && !forward);
        if !self.exchange.gathers() || reads_none {
            return Ok(());
        }
        self.exchange.fetch(backend, flat(unit))?;
        let next = match (unit, phase) {
            (Unit::Embedding, _) if layers == 0 => Some(Unit::Head),
            (Unit::Embedding, _) => Some(Unit::Layer(0)),
            (Unit::Layer(i), _) if forward && i + 1 == layers => Some(Unit::Head),
            (Unit::Layer(i), _) if forward => Some(Unit::Layer(i + 1)),
            (Unit::Layer(i), _) => i.checked_sub(1).map(Unit::Layer),
            (Unit::Head, _) if forward => None,
            (Unit::Head, _) => layers.checked_sub(1).map(Unit::Layer),
        };
        next.map_or(Ok(()), |unit| self.exchange.ask(backend, flat(unit)))
    }

    fn reduce(&mut self, backend: &mut dyn Backend, unit: Unit) -> Result<(), ExchangeError> {
        let Some(gradients) = self.gradients.filter(|g| g.leave) else { return Ok(()) };
        let ranks = (&mut *self.tensor, &mut *self.exchange);
        reduce_unit(backend, ranks, (self.units, self.span), unit, !gradients.first)
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
        _: View,
    ) -> Result<(), TensorError> {
        let started = self.tensor.start(backend, collective, src);
        self.note(started)
    }

    fn wait(&mut self, backend: &mut dyn Backend, id: usize, dst: View) -> Result<(), TensorError> {
        let done = self.tensor.wait(backend, id, dst);
        self.note(done)
    }

    fn weight_gradient(
        &mut self,
        backend: &mut dyn Backend,
        param: usize,
        x: View,
        dy: View,
    ) -> Result<(), TensorError> {
        let accumulate = self.gradients.is_some_and(|g| !g.first);
        let Some(Watching { optimizer, how, later }) = &mut self.watching else { return Ok(()) };
        let Some(number) = how.numbers[param] else { return Ok(()) };
        let seen = match &mut how.columns {
            None => Ok((x, dy)),
            Some(columns) => columns.gather(backend, self.tensor, param, (x, dy)),
        };
        match (seen, later) {
            (Ok(seen), Some((fill, micro))) => fill.keep(backend, *micro, number, seen),
            (Ok(seen), None) => optimizer.capture(backend, number, seen, accumulate),
            (Err(e), _) => self.note(Err(e)),
        }
    }
}

impl StageRanks for PassRanks<'_> {
    fn unit_begins(
        &mut self,
        backend: &mut dyn Backend,
        unit: Unit,
        phase: Phase,
    ) -> Result<(), TensorError> {
        let fetched = self.fetch(backend, unit, phase);
        self.note(fetched)
    }

    fn unit_ends(&mut self, backend: &mut dyn Backend, unit: Unit, phase: Phase) -> Result<(), TensorError> {
        if matches!(phase, Phase::Forward | Phase::Score | Phase::BackwardInput) {
            return Ok(());
        }
        let reduced = self.reduce(backend, unit);
        self.note(reduced)
    }
}
