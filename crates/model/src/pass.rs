//! One walk through the model's operators: to run them, or to ask what workspace they need.

use crate::params::Weight;
use crate::seams::{OneDevice, Phase, Product, SeamAt, Seams};
use bessemer_arch::Unit;
use bessemer_tensor::op::Op;
use bessemer_tensor::{Backend, Stream, TensorError, View};
use bessemer_units::Bytes;
use std::ops::Range;

/// Pieces that the rows of a product are made in where they travel before or after it.
const PIECES: usize = 4;
/// Least rows of a piece. Kernels choose how to make a product by its rows only below this, so that the bits of a row do not
/// depend on the pieces.
const LEAST_ROWS: usize = 32;

/// The pieces of so many rows.
fn pieces(rows: usize) -> impl Iterator<Item = Range<usize>> {
    (0..PIECES).map(move |i| rows * i / PIECES..rows * (i + 1) / PIECES)
}

/// The rows of a view.
pub(crate) fn rows_of(view: View, rows: &Range<usize>) -> View {
    view.rows(rows.start, rows.len())
}

/// Runs the launches of a layer, or only asks for their workspace: the same layer code does both. While planning, seams stay
/// silent, so memory that a seam needs is counted by whoever acts there.
pub(crate) struct Pass<'a> {
    backend: &'a mut dyn Backend,
    seams: &'a mut dyn Seams,
    /// Largest workspace so far; `Some` while planning, when nothing is launched and seams stay silent.
    planned: Option<Bytes>,
    /// In the input part of a split backward pass: gradients of matrices are made, and all gradients announced, later.
    deferred: bool,
}

impl<'a> Pass<'a> {
    pub(crate) fn run(backend: &'a mut dyn Backend, seams: &'a mut dyn Seams) -> Pass<'a> {
        Pass { backend, seams, planned: None, deferred: false }
    }

    /// Walks through `program` without launching and reserves the largest workspace that it needs.
    pub(crate) fn plan(
        backend: &mut dyn Backend,
        program: impl FnOnce(&mut Pass<'_>) -> Result<(), TensorError>,
    ) -> Result<(), TensorError> {
        let mut pass = Pass { backend, seams: &mut OneDevice, planned: Some(Bytes(0)), deferred: false };
        program(&mut pass)?;
        let most = pass.planned.unwrap_or_default();
        backend.reserve_workspace(most)
    }

    /// From here on the pass is the input part of a split backward pass, or is it no longer.
    pub(crate) fn defer(&mut self, deferred: bool) {
        self.deferred = deferred;
    }

    pub(crate) fn defers(&self) -> bool {
        self.deferred
    }

    pub(crate) fn launch(&mut self, op: impl Into<Op>) -> Result<(), TensorError> {
        let op = op.into();
        match &mut self.planned {
            None => self.backend.launch(Stream(0), &op),
            Some(most) => {
                op.check()?;
                *most = (*most).max(self.backend.workspace(&op)?);
                Ok(())
            }
        }
    }

    /// Whether a product of so many rows is made in pieces.
    pub(crate) fn in_pieces(&self, rows: usize) -> bool {
        rows >= PIECES * LEAST_ROWS && (self.planned.is_some() || self.seams.takes_rows())
    }

    /// A product of so many rows. What it reads arrives at a place (and a view) meanwhile, what it makes leaves at another.
    /// `op` is the operator for some of the rows.
    pub(crate) fn rows<O: Into<Op>>(
        &mut self,
        rows: usize,
        arriving: Option<(SeamAt, View)>,
        leaving: Option<(SeamAt, View)>,
        op: impl Fn(&Range<usize>) -> O,
    ) -> Result<(), TensorError> {
        let cut = self.in_pieces(rows) && (arriving.is_some() || leaving.is_some());
        if !cut || self.planned.is_some() {
            self.launch(op(&(0..rows)))?;
        }
        if !cut {
            return Ok(());
        }
        for piece in pieces(rows) {
            if let (Some((at, whole)), None) = (arriving, self.planned) {
                self.seams.rows_arrive(self.backend, at, whole, piece.clone())?;
            }
            self.launch(op(&piece))?;
            if let (Some((at, value)), None) = (leaving, self.planned) {
                self.seams.rows_ready(self.backend, at, value, piece)?;
            }
        }
        Ok(())
    }

    /// As [`Pass::gather`], for a product by [`Pass::rows`] that follows.
    pub(crate) fn gather_ahead(&mut self, at: SeamAt, local: View, whole: View) -> Result<(), TensorError> {
        if self.planned.is_some() {
            return Ok(());
        }
        if !self.in_pieces(whole.rows) {
            return self.seams.gather(self.backend, at, local, whole);
        }
        pieces(whole.rows).try_for_each(|rows| self.seams.rows_wanted(self.backend, at, local, whole, rows))
    }

    /// `launches` of one unit, announced before and after.
    pub(crate) fn unit(
        &mut self,
        unit: Unit,
        phase: Phase,
        launches: impl FnOnce(&mut Pass<'_>) -> Result<(), TensorError>,
    ) -> Result<(), TensorError> {
        if self.planned.is_some() {
            return launches(self);
        }
        self.seams.unit_begins(self.backend, unit, phase)?;
        launches(self)?;
        self.seams.unit_ends(self.backend, unit, phase)
    }

    /// Copies values to the host. Not while planning.
    pub(crate) fn read(&mut self, from: View, to: &mut [f32]) -> Result<(), TensorError> {
        self.backend.read_f32(from, to)
    }

    pub(crate) fn product(&self) -> Product {
        self.seams.product()
    }

    pub(crate) fn seam_forward(&mut self, at: SeamAt, value: View) -> Result<(), TensorError> {
        match self.planned {
            None => self.seams.forward(self.backend, at, value),
            Some(_) => Ok(()),
        }
    }

    pub(crate) fn seam_backward(&mut self, at: SeamAt, gradient: View) -> Result<(), TensorError> {
        match self.planned {
            None => self.seams.backward(self.backend, at, gradient),
            Some(_) => Ok(()),
        }
    }

    /// All rows of a value or gradient of which the `local` ones are here.
    pub(crate) fn gather(&mut self, at: SeamAt, local: View, whole: View) -> Result<(), TensorError> {
        match self.planned {
            None => self.seams.gather(self.backend, at, local, whole),
            Some(_) => Ok(()),
        }
    }

    /// The rows that belong here of a sum of which `whole` is a term.
    pub(crate) fn reduce_scatter(&mut self, at: SeamAt, whole: View, local: View) -> Result<(), TensorError> {
        match self.planned {
            None => self.seams.reduce_scatter(self.backend, at, whole, local),
            Some(_) => Ok(()),
        }
    }

    pub(crate) fn loss_sums(&mut self, lse: View, target_logit: View) -> Result<(), TensorError> {
        match self.planned {
            None => self.seams.loss_sums(self.backend, lse, target_logit),
            Some(_) => Ok(()),
        }
    }

    pub(crate) fn linear_backward(&mut self, weight: &Weight, x: View, dy: View) -> Result<(), TensorError> {
        match self.planned {
            None => self.seams.linear_backward(self.backend, weight.index, x, dy),
            Some(_) => Ok(()),
        }
    }

    pub(crate) fn gradient_ready(&mut self, weight: &Weight) -> Result<(), TensorError> {
        if self.deferred || self.planned.is_some() {
            return Ok(());
        }
        self.seams.gradient_ready(self.backend, weight.index, weight.grad())
    }
}
