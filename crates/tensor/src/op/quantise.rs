//! Values in 8 bits by blocks of a row: activations that a forward pass stores for the backward pass, and gradients on their way
//! between ranks.

use super::{Describe, FactorKind, Rule, Visit, read, result, write};
use crate::quantise::ACTIVATION_BLOCK;
use crate::{TensorError, View};

/// Values of a gradient that share a scale on their way between ranks.
pub const GRADIENT_BLOCK: usize = ACTIVATION_BLOCK;

/// Bytes of `len` values as codes, and f32 scales of blocks of [`GRADIENT_BLOCK`] of them, the last of which may be shorter.
pub const fn quantised_bytes(len: usize) -> usize {
    len + 4 * len.div_ceil(GRADIENT_BLOCK)
}

/// Values as integers from -127 to 127 times a scale for each block of a row: with `s = max |x| / 127` over the block, the code is
/// `round(x / s) + 128`. All blocks have `src.cols / scales.cols` columns, at most
/// [`ACTIVATION_BLOCK`]. A block whose largest magnitude is below 2^-100 is zero;
/// one with a value that is not finite has a scale that is not a number.
///
/// With `keep_sign` a value that is not 0 and would be rounded to it becomes s or -s instead: what depends on a sign, such as the
/// derivative of a ReLU, reads the right one.
///
/// `|x - (code - 128) s|` is at most `max |x| / 254`, and with `keep_sign` for values below that at most twice as much; rounding
/// besides, 2^-13 of it.
///
/// Sharding: rows free; columns free in whole blocks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Quantise {
    /// `[r, c]`.
    pub src: View,
    /// `[r, c]` u8.
    pub codes: View,
    /// `[r, b]` f32, with b blocks of c / b columns.
    pub scales: View,
    /// Never round a value that is not 0 to 0.
    pub keep_sign: bool,
}

impl Describe for Quantise {
    const NAME: &'static str = "quantise";
    fn visit(&mut self, see: &mut Visit<'_>) {
        read(see, "src", &mut self.src);
        write(see, "codes", &mut self.codes);
        write(see, "scales", &mut self.scales);
    }
    fn rule(&self) -> Rule {
        blocked(Rule::new(&self.operands()), "src", &self.scales, &self.src, FactorKind::Whole)
    }
    fn flops(&self) -> f64 {
        4.0 * self.src.len() as f64
    }
    fn shapes(&self) -> Result<(), TensorError> {
        shapes(Self::NAME, "src", &self.src, &self.codes, &self.scales)
    }
}

/// The inverse of [`Quantise`], up to its rounding: `dst (+)= (code - 128) s`. Sums are formed in f32.
///
/// Sharding: everything free.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Dequantise {
    /// `[r, c]` u8.
    pub codes: View,
    /// `[r, b]` f32.
    pub scales: View,
    /// `[r, c]`.
    pub dst: View,
    /// Add to what `dst` holds instead of replacing it.
    pub accumulate: bool,
}

impl Describe for Dequantise {
    const NAME: &'static str = "dequantise";
    fn visit(&mut self, see: &mut Visit<'_>) {
        read(see, "codes", &mut self.codes);
        read(see, "scales", &mut self.scales);
        result(see, "dst", &mut self.dst, self.accumulate);
    }
    fn rule(&self) -> Rule {
        blocked(Rule::new(&self.operands()), "dst", &self.scales, &self.dst, FactorKind::Free)
    }
    fn flops(&self) -> f64 {
        self.dst.len() as f64 * if self.accumulate { 2.0 } else { 1.0 }
    }
    fn shapes(&self) -> Result<(), TensorError> {
        shapes(Self::NAME, "dst", &self.dst, &self.codes, &self.scales)
    }
}

/// The rule of both: `values` names the operand of values; `within`: what sharding the columns of a block means.
fn blocked(mut rule: Rule, values: &str, scales: &View, of: &View, within: FactorKind) -> Rule {
    let blocks = scales.cols;
    let (r, b) = (rule.free("r", of.rows), rule.free(Rule::BLOCK, blocks));
    let c = rule.factor("c", of.cols / blocks.max(1), within);
    rule.dims(values, &[r], &[b, c]);
    rule.dims("codes", &[r], &[b, c]);
    rule.dims("scales", &[r], &[b]);
    rule
}

fn shapes(
    op: &'static str,
    name: &'static str,
    values: &View,
    codes: &View,
    scales: &View,
) -> Result<(), TensorError> {
    super::expect_shape(op, "codes", codes, values.rows, values.cols)?;
    let divides = scales.cols > 0 && values.cols.is_multiple_of(scales.cols);
    if scales.rows == values.rows && divides && values.cols / scales.cols <= ACTIVATION_BLOCK {
        return Ok(());
    }
    Err(TensorError::Shape {
        op,
        operand: "scales",
        wanted: format!(
            "[{}, blocks], with blocks of at most {ACTIVATION_BLOCK} of the {} columns of {name}",
            values.rows, values.cols
        ),
        found: format!("[{}, {}]", scales.rows, scales.cols),
    })
}
