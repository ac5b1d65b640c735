//! A parameter as optimizers see it.

use bessemer_arch::{Model, ParamClass, ParamSpec};
use bessemer_tensor::View;

/// A parameter as the optimizer sees it.
#[derive(Debug, Clone, PartialEq)]
pub struct OptimParam {
    /// Canonical name.
    pub name: String,
    /// Values, updated in place.
    pub value: View,
    /// Gradient of the same shape. A step may overwrite it.
    pub grad: View,
    /// Whether weight decay applies.
    pub decays: bool,
    /// Factor on the learning rate (muP); decay is not touched by it.
    pub lr_scale: f64,
    /// For a hidden matrix `[outputs, inputs]`: rows of the matrices that it consists of, one below the other. Empty for
    /// everything else (tables, output projections, biases, norms), which Muon and K-FAC leave to AdamW.
    pub blocks: Vec<usize>,
    /// The matrix that `value` is a part of, if other ranks of the tensor axis have other parts of it. Optimizers that need
    /// whole matrices gather it through [`crate::Peers`].
    pub whole: Option<WholeMatrix>,
    /// Class of the parameter, and its elements on this tensor-parallel rank, of which `value` may be a stretch: what moments in 8
    /// bits go by.
    pub class: ParamClass,
    /// See `class`.
    pub elements: usize,
    /// Another rank keeps the state of this parameter and steps it; what is seen of its curvature here goes there. Its
    /// views are not touched.
    pub elsewhere: bool,
}

/// A matrix that ranks of the tensor axis have parts of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WholeMatrix {
    /// Rows.
    pub rows: usize,
    /// Columns.
    pub cols: usize,
    /// As [`OptimParam::blocks`], of the whole. The part has some rows of each of them.
    pub blocks: Vec<usize>,
}

impl OptimParam {
    /// A parameter without blocks at the plain learning rate, of class "matrix".
    pub fn new(name: impl Into<String>, value: View, grad: View, decays: bool) -> OptimParam {
        OptimParam {
            name: name.into(),
            value,
            grad,
            decays,
            lr_scale: 1.0,
            blocks: Vec::new(),
            whole: None,
            class: ParamClass::Matrix,
            elements: value.len(),
            elsewhere: false,
        }
    }

    /// Parameter `spec` of `model`.
    ///
    /// Matrices that a model fuses for speed are separate blocks: queries, keys and values; gate and up. They act on
    /// different quantities, so orthogonalising them together would let the largest of them set the scale of all.
    pub fn of(model: &Model, spec: &ParamSpec, value: View, grad: View) -> OptimParam {
        let blocks = blocks(model, spec, value.rows);
        OptimParam {
            lr_scale: spec.lr_scale,
            blocks,
            class: spec.class(),
            ..OptimParam::new(&spec.name, value, grad, spec.decays())
        }
    }

    /// This parameter, of which `value` is a part: `model` and `spec` are those of the whole.
    pub fn part_of(self, model: &Model, spec: &ParamSpec) -> OptimParam {
        let (rows, cols) = spec.matrix();
        OptimParam { whole: Some(WholeMatrix { rows, cols, blocks: blocks(model, spec, rows) }), ..self }
    }

    /// (first row, rows) of the blocks.
    pub(crate) fn block_rows(&self) -> impl Iterator<Item = (usize, usize)> {
        stacked(&self.blocks)
    }

    /// Rows and columns of the whole matrix.
    pub(crate) fn whole_shape(&self) -> (usize, usize) {
        self.whole.as_ref().map_or((self.value.rows, self.value.cols), |w| (w.rows, w.cols))
    }

    /// Rows of the blocks of the whole matrix.
    pub(crate) fn whole_blocks(&self) -> &[usize] {
        self.whole.as_ref().map_or(&self.blocks, |w| &w.blocks)
    }

    /// (first row, rows) of the blocks of the whole matrix.
    pub(crate) fn whole_block_rows(&self) -> impl Iterator<Item = (usize, usize)> {
        stacked(self.whole_blocks())
    }
}

/// (first row, rows) of blocks of so many rows, one below the other.
fn stacked(blocks: &[usize]) -> impl Iterator<Item = (usize, usize)> {
    blocks.iter().scan(0, |next, &rows| {
        let first = *next;
        *next += rows;
        Some((first, rows))
    })
}

/// The matrices that parameter `spec` of `model`, with so many rows, consists of.
fn blocks(model: &Model, spec: &ParamSpec, rows: usize) -> Vec<usize> {
    match spec.id.stacked(model) {
        stacked if stacked.len() > 1 => stacked,
        stacked if stacked.is_empty() => stacked,
        _ => vec![rows],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bessemer_arch::ParamRole;
    use bessemer_tensor::Buffer;
    use bessemer_units::DType;

    #[test]
    fn fused_matrices_are_blocks_and_only_hidden_matrices_have_any() {
        for name in ["gpt2", "llama"] {
            let Some(model) = bessemer_arch::named(name) else { continue };
            for spec in model.params() {
                let (rows, cols) = spec.matrix();
                let view = Buffer { id: 0, len: rows * cols, dtype: DType::F32 }.matrix(rows, cols);
                let param = OptimParam::of(&model, &spec, view, view);
                assert_eq!(param.blocks.is_empty(), spec.class() != ParamClass::Matrix, "{}", spec.name);
                assert!(
                    param.blocks.is_empty() || param.blocks.iter().sum::<usize>() == rows,
                    "{}",
                    spec.name
                );
                let fused = if spec.id.role() == ParamRole::QkvWeight { 3 } else { 1 };
                assert!(param.blocks.len() >= fused || param.blocks.is_empty(), "{}", spec.name);
            }
        }
    }
}
