//! The sums of a loss over a vocabulary that several devices hold parts of, from what each of them has found
//! ([`LogitSums`](super::LogitSums)).

use super::{Describe, Rule, Visit, expect_shape, read, write};
use crate::{TensorError, View};

/// `lse[n] = log sum_r exp(lse_r[n])` and `target_logit[n] = sum_r target_logit_r[n]` over devices r, in f64 and in their order:
/// `lse = m + log sum_r exp(lse_r - m)` with m the largest `lse_r`, so that nothing overflows. Where the target is
/// [`IGNORED`](super::IGNORED), neither means anything.
///
/// Sharding: parts (2 r, n), lse, target_logit (n); n free, r whole.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CombineLogSums {
    /// `[2 R, N]`: rows 2 r and 2 r + 1 are `lse` and `target_logit` of device r, as an all-gather leaves them.
    pub parts: View,
    /// `[1, N]`.
    pub lse: View,
    /// `[1, N]`.
    pub target_logit: View,
}

impl Describe for CombineLogSums {
    const NAME: &'static str = "combine_log_sums";
    fn visit(&mut self, see: &mut Visit<'_>) {
        read(see, "parts", &mut self.parts);
        write(see, "lse", &mut self.lse);
        write(see, "target_logit", &mut self.target_logit);
    }
    fn rule(&self) -> Rule {
        let mut rule = Rule::new(&self.operands());
        let (r, n) = (rule.whole("r", self.parts.rows), rule.free("n", self.parts.cols));
        rule.dims("parts", &[r], &[n]);
        for name in ["lse", "target_logit"] {
            rule.dims(name, &[], &[n]);
        }
        rule
    }
    fn flops(&self) -> f64 {
        // Of each device: a difference, an exponential, two sums.
        2.0 * self.parts.len() as f64
    }
    fn shapes(&self) -> Result<(), TensorError> {
        let (rows, n) = (self.parts.rows, self.parts.cols);
        expect_shape(Self::NAME, "parts", &self.parts, rows.max(2).next_multiple_of(2), n)?;
        expect_shape(Self::NAME, "lse", &self.lse, 1, n)?;
        expect_shape(Self::NAME, "target_logit", &self.target_logit, 1, n)
    }
}
