//! Parameters cut into the tensors of another program's files, one at a time.

use crate::compare::MatchReport;
use crate::error::{CheckpointError, Result, SourceError};
use crate::hf::layout::{Mapped, Order, take_rows};
use crate::source::{TensorSource, TensorSpec};
use bessemer_arch::Model;
use bessemer_units::DType;
use std::collections::HashMap;
use std::path::Path;

/// Pieces of which one tensor of the files is made.
enum Origin {
    /// Rows of a parameter: index into `parameters`, first row, rows, how they lie.
    Rows { parameter: usize, first: usize, rows: usize, order: Order },
    /// A bias that the model does not have.
    Zeros,
}

/// A parameter of the source.
struct Parameter {
    position: usize,
    columns: usize,
}

/// The tensors of the files, made one at a time out of the model's parameters.
pub(crate) struct Parts<'a> {
    source: &'a mut dyn TensorSource,
    parameters: Vec<Parameter>,
    specs: Vec<TensorSpec>,
    origins: Vec<Origin>,
    /// The parameter read last: a fused one gives several tensors in a row.
    cached: Option<(usize, Vec<f32>)>,
}

impl<'a> Parts<'a> {
    /// The parts that `mapped` names of the parameters of `model` in `source`. A parameter that the model does not have is
    /// written as zeros. `place` is for messages.
    ///
    /// # Errors
    /// [`CheckpointError::TensorsDiffer`] if `source` lacks a parameter or has it in another shape.
    pub(crate) fn new(
        place: &Path,
        model: &Model,
        mapped: Vec<Mapped>,
        dtype: DType,
        source: &'a mut dyn TensorSource,
    ) -> Result<Parts<'a>> {
        let params = model.params();
        let report = MatchReport::compare(
            params.iter().map(|p| (p.name.as_str(), &p.shape[..])),
            source.specs().iter().map(|s| (s.name.as_str(), &s.shape[..])),
        );
        if !report.missing.is_empty() || !report.shape_mismatch.is_empty() {
            return Err(CheckpointError::TensorsDiffer { path: place.into(), report });
        }
        let found: HashMap<&str, usize> =
            source.specs().iter().enumerate().map(|(i, s)| (s.name.as_str(), i)).collect();
        let (mut parameters, mut specs, mut origins) = (Vec::new(), Vec::new(), Vec::new());
        for m in &mapped {
            let position = found.get(m.name.as_str());
            let mut first = 0;
            for p in &m.parts {
                specs.push(TensorSpec { name: p.name.clone(), shape: m.part_shape(p), dtype });
                origins.push(match position {
                    Some(_) => {
                        Origin::Rows { parameter: parameters.len(), first, rows: p.rows, order: p.order }
                    }
                    None => Origin::Zeros,
                });
                first += p.rows;
            }
            if let Some(position) = position {
                parameters.push(Parameter { position: *position, columns: m.columns() });
            }
        }
        Ok(Parts { source, parameters, specs, origins, cached: None })
    }
}

impl TensorSource for Parts<'_> {
    fn specs(&self) -> &[TensorSpec] {
        &self.specs
    }

    fn fill(&mut self, index: usize, values: &mut [f32]) -> std::result::Result<(), SourceError> {
        let Origin::Rows { parameter, first, rows, order } = self.origins[index] else {
            values.fill(0.0);
            return Ok(());
        };
        let Parameter { position, columns } = self.parameters[parameter];
        if self.cached.as_ref().is_none_or(|c| c.0 != parameter) {
            let len =
                self.source.specs()[position].checked_len().ok_or("the size of the tensor overflows")?;
            let mut whole = self.cached.take().map(|c| c.1).unwrap_or_default();
            whole.clear();
            whole.resize(len, 0.0);
            self.source.fill(position, &mut whole)?;
            self.cached = Some((parameter, whole));
        }
        if let Some((_, whole)) = &self.cached {
            take_rows(whole, first, rows, columns, order, values);
        }
        Ok(())
    }
}
