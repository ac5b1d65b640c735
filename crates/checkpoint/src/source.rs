//! Where the values of a save come from: one tensor at a time, or a part of one, so that memory holds no more.

use crate::error::SourceError;
use bessemer_tensor::host::HostTensor;
use bessemer_units::DType;
use std::marker::PhantomData;

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

    /// Fills `values` with as many elements of tensor `index`, from element `first` on, in its row-major order. `None` if it has only whole tensors to
    /// give, as long as it is used.
    fn fill_part(
        &mut self,
        _index: usize,
        _first: usize,
        _values: &mut [f32],
    ) -> Option<Result<(), SourceError>> {
        None
    }

    /// Lends the values of tensor `index` where they lie in host memory already, so that nobody copies them.
    fn lend(&self, _index: usize) -> Option<&[f32]> {
        None
    }
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
                "shape {:?} needs {} values, found {}",
                t.shape,
                values.len(),
                t.values.len()
            )
            .into());
        }
        values.copy_from_slice(&t.values);
        Ok(())
    }

    fn lend(&self, index: usize) -> Option<&[f32]> {
        Some(&self.tensors[index].values)
    }
}

/// Tensors of which a closure lends the values, from a copy of a device's state for example.
pub struct LentTensors<'v, F> {
    specs: Vec<TensorSpec>,
    lend: F,
    values: PhantomData<&'v [f32]>,
}

impl<'v, F: Fn(usize) -> &'v [f32]> LentTensors<'v, F> {
    /// Builds a source from tensor descriptions and a function: `lend(i)` returns the values of `specs[i]`.
    pub fn new(specs: Vec<TensorSpec>, lend: F) -> Self {
        LentTensors { specs, lend, values: PhantomData }
    }
}

impl<'v, F: Fn(usize) -> &'v [f32]> TensorSource for LentTensors<'v, F> {
    fn specs(&self) -> &[TensorSpec] {
        &self.specs
    }

    fn fill(&mut self, index: usize, values: &mut [f32]) -> Result<(), SourceError> {
        let lent = (self.lend)(index);
        if lent.len() != values.len() {
            return Err(format!("{} values, wanted {}", lent.len(), values.len()).into());
        }
        values.copy_from_slice(lent);
        Ok(())
    }

    fn lend(&self, index: usize) -> Option<&[f32]> {
        Some((self.lend)(index))
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

/// Tensors of which a closure fetches parts, from a device for example: no memory holds a whole one.
pub struct TensorParts<F> {
    specs: Vec<TensorSpec>,
    fill: F,
}

impl<F: FnMut(usize, usize, &mut [f32]) -> Result<(), SourceError>> TensorParts<F> {
    /// `fill(index, first, values)` fetches elements of a tensor of `specs`, from its element `first` on. It is called for each part once.
    pub fn new(specs: Vec<TensorSpec>, fill: F) -> Self {
        TensorParts { specs, fill }
    }
}

impl<F: FnMut(usize, usize, &mut [f32]) -> Result<(), SourceError>> TensorSource for TensorParts<F> {
    fn specs(&self) -> &[TensorSpec] {
        &self.specs
    }

    fn fill(&mut self, index: usize, values: &mut [f32]) -> Result<(), SourceError> {
        (self.fill)(index, 0, values)
    }

    fn fill_part(
        &mut self,
        index: usize,
        first: usize,
        values: &mut [f32],
    ) -> Option<Result<(), SourceError>> {
        Some((self.fill)(index, first, values))
    }
}
