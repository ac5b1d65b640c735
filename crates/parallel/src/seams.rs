//! What a rank does inside a pass: brings parameters, takes gradients away, completes tensor-parallel products.

use crate::chunk::reduce_unit;
use crate::columns::Columns;
use crate::exchange::{Exchange, ExchangeError};
use crate::fill::ChunkFill;
use crate::flat::Units;
use crate::tensor::TensorGroup;
use bessemer_arch::Span;
use bessemer_collectives::CollectiveError;
use bessemer_model::{Phase, Product, SeamAt, SeamPlace, Seams, Unit};
use bessemer_optim::Optimizer;
use bessemer_tensor::{Backend, TensorError, View};
use std::ops::Range;

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

/// The seams of one pass.
pub(crate) struct RankSeams<'a> {
    pub(crate) exchange: &'a mut Exchange,
    pub(crate) tensor: &'a mut TensorGroup,
    /// Sees what gradients are made of, if it wants to.
    pub(crate) watching: Option<Watching<'a>>,
    /// None: a pass without gradients of weights.
    pub(crate) gradients: Option<Gradients>,
    /// Why a seam failed, which the model only hears as text.
    pub(crate) failed: Option<CollectiveError>,
    /// What of the model passes here.
    pub(crate) units: &'a Units,
    pub(crate) span: &'a Span,
}

impl RankSeams<'_> {
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
        // The embedding's backward pass and the weight part of a split one read no parameter.
        let reads_none =
            phase == Phase::BackwardWeight || (unit == Unit::Embedding && phase != Phase::Forward);
        if !self.exchange.gathers() || reads_none {
            return Ok(());
        }
        self.exchange.fetch(backend, flat(unit))?;
        let next = match (unit, phase) {
            (Unit::Embedding, _) if layers == 0 => Some(Unit::Head),
            (Unit::Embedding, _) => Some(Unit::Layer(0)),
            (Unit::Layer(i), Phase::Forward) if i + 1 == layers => Some(Unit::Head),
            (Unit::Layer(i), Phase::Forward) => Some(Unit::Layer(i + 1)),
            (Unit::Layer(i), _) => i.checked_sub(1).map(Unit::Layer),
            (Unit::Head, Phase::Forward) => None,
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

/// Whether something partial leaves the cut part here.
pub(crate) fn is_out(place: SeamPlace) -> bool {
    matches!(place, SeamPlace::EmbeddingOut | SeamPlace::AttentionOut | SeamPlace::MlpOut)
}

impl Seams for RankSeams<'_> {
    fn product(&self) -> Product {
        match self.tensor.size() {
            1 => Product::Whole,
            _ => Product::Partial { adds_bias: self.tensor.rank() == 0 },
        }
    }

    fn forward(&mut self, backend: &mut dyn Backend, at: SeamAt, value: View) -> Result<(), TensorError> {
        if !is_out(at.place) {
            return Ok(());
        }
        let summed = self.tensor.all_reduce(backend, at, "sum", value);
        self.note(summed)
    }

    fn backward(&mut self, backend: &mut dyn Backend, at: SeamAt, gradient: View) -> Result<(), TensorError> {
        if is_out(at.place) {
            return Ok(());
        }
        let summed = self.tensor.all_reduce(backend, at, "sum of gradients", gradient);
        self.note(summed)
    }

    fn gather(
        &mut self,
        backend: &mut dyn Backend,
        at: SeamAt,
        local: View,
        whole: View,
    ) -> Result<(), TensorError> {
        let gathered = self.tensor.gather(backend, at, local, whole);
        self.note(gathered)
    }

    fn reduce_scatter(
        &mut self,
        backend: &mut dyn Backend,
        at: SeamAt,
        whole: View,
        local: View,
    ) -> Result<(), TensorError> {
        let summed = self.tensor.reduce_scatter(backend, at, whole, local);
        self.note(summed)
    }

    fn takes_rows(&self) -> bool {
        self.tensor.takes_rows()
    }

    fn rows_wanted(
        &mut self,
        backend: &mut dyn Backend,
        at: SeamAt,
        local: View,
        whole: View,
        rows: Range<usize>,
    ) -> Result<(), TensorError> {
        let asked = self.tensor.rows_wanted(backend, at, (local, whole), rows);
        self.note(asked)
    }

    fn rows_arrive(
        &mut self,
        backend: &mut dyn Backend,
        _: SeamAt,
        whole: View,
        rows: Range<usize>,
    ) -> Result<(), TensorError> {
        let arrived = self.tensor.rows_arrive(backend, whole, &rows);
        self.note(arrived)
    }

    fn rows_ready(
        &mut self,
        backend: &mut dyn Backend,
        at: SeamAt,
        value: View,
        rows: Range<usize>,
    ) -> Result<(), TensorError> {
        let started = self.tensor.rows_ready(backend, at, value, rows);
        self.note(started)
    }

    fn loss_sums(
        &mut self,
        backend: &mut dyn Backend,
        lse: View,
        target_logit: View,
    ) -> Result<(), TensorError> {
        let combined = self.tensor.loss_sums(backend, lse, target_logit);
        self.note(combined)
    }

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
        if matches!(phase, Phase::Forward | Phase::BackwardInput) {
            return Ok(());
        }
        let reduced = self.reduce(backend, unit);
        self.note(reduced)
    }

    fn linear_backward(
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
