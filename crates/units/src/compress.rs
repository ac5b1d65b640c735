//! Compression of what a forward pass stores for the backward pass.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Form in which the activations that a layer stores between its forward and its backward pass are kept.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Compression {
    /// As they are.
    #[default]
    None,
    /// bf16, of activations in f32: half of the bytes, 8 bits of each value.
    Bf16,
    /// Integers of 8 bits with a scale for each block of at most 256 columns of a row: a quarter of f32, half of bf16.
    Int8,
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Compression::None => "none",
            Compression::Bf16 => "bf16",
            Compression::Int8 => "int8",
        })
    }
}

/// Which activations of a layer are compressed, and how.
#[derive(Debug, Default, Clone, PartialEq, Eq, Hash)]
pub struct CompressionPlan {
    /// The form.
    pub form: Compression,
    /// Values of the layer as `bessemer program show` names them ("mlp.pre"), or the beginnings of such names ("mlp"); none for all.
    pub values: Vec<String>,
}

impl From<Compression> for CompressionPlan {
    fn from(form: Compression) -> Self {
        CompressionPlan { form, values: Vec::new() }
    }
}

impl fmt::Display for CompressionPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.form.fmt(f)?;
        if self.values.is_empty() { Ok(()) } else { write!(f, " of [{}]", self.values.join(", ")) }
    }
}
