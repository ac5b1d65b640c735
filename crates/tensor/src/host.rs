//! Tensors in host memory, as checkpoints and initialisation see them.

use bessemer_units::DType;

/// A named tensor in host memory: row-major f32 values. The interchange form between model, optimizer and checkpoint.
#[derive(Debug, Clone, PartialEq)]
pub struct HostTensor {
    /// Canonical name, e.g. "layers.3.attention.qkv.weight".
    pub name: String,
    /// Shape, outermost dim first.
    pub shape: Vec<usize>,
    /// Type in which it is stored on the device and should be stored in files.
    pub dtype: DType,
    /// Values, `shape` product of them.
    pub values: Vec<f32>,
}
