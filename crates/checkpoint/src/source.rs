//! Where the values of a save come from: one tensor at a time, so that memory holds one tensor at a time.

use crate::error::SourceError;
use bessemer_tensor::host::HostTensor;
use bessemer_units::DType;

/// Name, shape and stored type of a tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorSpec {
    /// Name, at most 1,024 bytes; never used as a path.
    pub name: String,
    /// Shape, outermost dim first, at most 8 dims.
    pub shape: Vec<usize>,
    /// Type in files.
    pub dtype: DType,
}

impl TensorSpec {
    /// Number of elements, `None` if the product overflows.
    pub fn checked_len(&self) -> Option<usize> {
        self.shape.iter().try_fold(1usize, |n, d| n.checked_mul(*d))
    }
}

/// A list of tensors whose values can be fetched by position, in any order, any number of times.
pub trait TensorSource {
    /// What there is. The same list at every call.
    fn specs(&self) -> &[TensorSpec];

    /// Fills `values` (row-major, exactly the tensor's elements) with tensor `index` of [`TensorSource::specs`].
    fn fill(&mut self, index: usize, values: &mut [f32]) -> Result<(), SourceError>;
}

/// Tensors that are in host memory already.
#[derive(Debug)]
pub struct HostTensors<'a> {
    tensors: &'a [HostTensor],
    specs: Vec<TensorSpec>,
}

impl<'a> HostTensors<'a> {
    /// Presents `tensors` as a source, in their order.
    pub fn new(tensors: &'a [HostTensor]) -> Self {
        let specs = tensors
            .iter()
            .map(|t| TensorSpec { name: t.name.clone(), shape: t.shape.clone(), dtype: t.dtype })
            .collect();
        HostTensors { tensors, specs }
    }
}

impl TensorSource for HostTensors<'_> {
    fn specs(&self) -> &[TensorSpec] {
        &self.specs
    }

    fn fill(&mut self, index: usize, values: &mut [f32]) -> Result<(), SourceError> {
        let t = &self.tensors[index];
        if t.values.len() != values.len() {
            return Err(format!(
                "shape {:?} wants {} values, found {}",
                t.shape,
                values.len(),
                t.values.len()
            )
            .into());
        }
        values.copy_from_slice(&t.values);
        Ok(())
    }
}

/// Tensors that a closure fetches, from a device for example.
pub struct TensorsFrom<F> {
    specs: Vec<TensorSpec>,
    fill: F,
}

impl<F: FnMut(usize, &mut [f32]) -> Result<(), SourceError>> TensorsFrom<F> {
    /// `fill(index, values)` is called once for each tensor of `specs`.
    pub fn new(specs: Vec<TensorSpec>, fill: F) -> Self {
        TensorsFrom { specs, fill }
    }
}

impl<F: FnMut(usize, &mut [f32]) -> Result<(), SourceError>> TensorSource for TensorsFrom<F> {
    fn specs(&self) -> &[TensorSpec] {
        &self.specs
    }

    fn fill(&mut self, index: usize, values: &mut [f32]) -> Result<(), SourceError> {
        (self.fill)(index, values)
    }
}
