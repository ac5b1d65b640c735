//! What the ranks of a job exchange inside an optimizer's step.

use bessemer_tensor::{Backend, TensorError, View};

/// The other ranks, as an optimizer sees them. Parameters go by their number in the list that the optimizer was made
/// with. Every default is that of one rank: nothing. All ranks that share something make the same calls in the same
/// order.
pub trait Peers {
    /// `factor` `[n, n]` is what this rank's data add to a factor of the curvature of `param`. It becomes the sum over
    /// the ranks that see other data, on every rank that keeps the state of `param`; elsewhere it may become anything.
    ///
    /// # Errors
    /// Errors of the device or of another rank.
    fn sum_curvature(
        &mut self,
        _backend: &mut dyn Backend,
        _param: usize,
        _factor: View,
    ) -> Result<(), TensorError> {
        Ok(())
    }

    /// `inverse` `[n, n]`, which copy number `from` of the ranks that keep the state of `param` has made, is brought to
    /// the other copies.
    ///
    /// # Errors
    /// Errors of the device or of another rank.
    fn spread_inverse(
        &mut self,
        _backend: &mut dyn Backend,
        _param: usize,
        _from: usize,
        _inverse: View,
    ) -> Result<(), TensorError> {
        Ok(())
    }

    /// The sum of `value` over the owners of the other parameters that this optimizer was made with.
    ///
    /// # Errors
    /// Errors of another rank.
    fn sum_over_owners(&mut self, value: f64) -> Result<f64, TensorError> {
        Ok(value)
    }

    /// `whole` becomes the matrix of which each rank of the tensor axis has a `part` of the shape of its part of `param`.
    ///
    /// # Errors
    /// Errors of the device or of another rank.
    fn gather(
        &mut self,
        _backend: &mut dyn Backend,
        _param: usize,
        _part: View,
        _whole: View,
    ) -> Result<(), TensorError> {
        Err(TensorError::Outside("one rank has no part of a matrix that others complete".into()))
    }

    /// `part` becomes this rank's part of `whole`, the other way round than [`Peers::gather`]. Nothing travels.
    ///
    /// # Errors
    /// Errors of the device.
    fn keep(
        &mut self,
        _backend: &mut dyn Backend,
        _param: usize,
        _whole: View,
        _part: View,
    ) -> Result<(), TensorError> {
        Err(TensorError::Outside("one rank has no part of a matrix that others complete".into()))
    }
}

/// One rank: there is nobody else.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Alone;

impl Peers for Alone {}

/// This rank among those of its job, as far as an optimizer has to know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ranks {
    /// Ranks that see different data.
    pub data: usize,
    /// Ranks that keep the same state, which share its inversions out.
    pub copies: usize,
    /// Number of this copy.
    pub copy: usize,
}

impl Ranks {
    /// One rank.
    pub const ONE: Ranks = Ranks { data: 1, copies: 1, copy: 0 };
}
