//! What a rank does inside a pass: brings parameters, takes gradients away, completes tensor-parallel products.

use crate::columns::Columns;
use crate::exchange::{Exchange, ExchangeError};
use crate::tensor::TensorGroup;
use bessemer_collectives::CollectiveError;
use bessemer_model::{Phase, Product, SeamAt, SeamPlace, Seams, Unit};
use bessemer_optim::Optimizer;
use bessemer_tensor::{Backend, TensorError, View};

/// A micro-batch's place in the step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Micro {
    /// The first of the step: gradients are replaced.
    pub first: bool,
    /// The last of the step: gradients are complete after it.
    pub last: bool,
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
}

/// The seams of one pass.
pub(crate) struct RankSeams<'a> {
    pub(crate) exchange: &'a mut Exchange,
    pub(crate) tensor: &'a mut TensorGroup,
    /// Sees what gradients are made of, if it wants to.
    pub(crate) watching: Option<Watching<'a>>,
    /// None: a pass without gradients.
    pub(crate) micro: Option<Micro>,
    /// Why a seam failed, which the model only hears as text.
    pub(crate) failed: Option<CollectiveError>,
    /// Layers of the model.
    pub(crate) layers: usize,
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
        let flat = |unit| match unit {
            Unit::Embedding | Unit::Head => 0,
            Unit::Layer(i) => i + 1,
        };
        // The embedding's backward pass and the weight part of a split one read no parameter.
        let reads_none =
            phase == Phase::BackwardWeight || (unit == Unit::Embedding && phase != Phase::Forward);
        if !self.exchange.gathers() || reads_none {
            return Ok(());
        }
        self.exchange.fetch(backend, flat(unit))?;
        let next = match (unit, phase) {
            (Unit::Embedding, _) if self.layers == 0 => Some(Unit::Head),
            (Unit::Embedding, _) => Some(Unit::Layer(0)),
            (Unit::Layer(i), Phase::Forward) if i + 1 == self.layers => Some(Unit::Head),
            (Unit::Layer(i), Phase::Forward) => Some(Unit::Layer(i + 1)),
            (Unit::Layer(i), _) => i.checked_sub(1).map(Unit::Layer),
            (Unit::Head, Phase::Forward) => None,
            (Unit::Head, _) => self.layers.checked_sub(1).map(Unit::Layer),
        };
        next.map_or(Ok(()), |unit| self.exchange.ask(backend, flat(unit)))
    }

    fn reduce(&mut self, backend: &mut dyn Backend, unit: Unit) -> Result<(), ExchangeError> {
        let Some(micro) = self.micro else { return Ok(()) };
        if !micro.last && !self.exchange.reduces_every_time() {
            return Ok(());
        }
        // With tied tables the embedding completes what the head began.
        if unit != Unit::Head {
            self.tensor.complete(backend, unit)?;
        }
        match unit {
            Unit::Layer(i) => self.exchange.reduce(backend, i + 1, !micro.first),
            Unit::Embedding => self.exchange.reduce(backend, 0, !micro.first),
            Unit::Head => Ok(()),
        }
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
        let accumulate = self.micro.is_some_and(|m| !m.first);
        let Some(Watching { optimizer, how }) = &mut self.watching else { return Ok(()) };
        let Some(number) = how.numbers[param] else { return Ok(()) };
        let seen = match &mut how.columns {
            None => Ok((x, dy)),
            Some(columns) => columns.gather(backend, self.tensor, param, (x, dy)),
        };
        match seen {
            Ok(seen) => optimizer.capture(backend, number, seen, accumulate),
            Err(e) => self.note(Err(e)),
        }
    }
}
