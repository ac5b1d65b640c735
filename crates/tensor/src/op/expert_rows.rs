//! Rows that experts read and write: one for each choice of each token. Row r belongs to one choice of one token; rows of an expert are consecutive.
//!
//! Legend: N tokens, K choices of a token, R = N K rows, E experts.
//!
//! A device that has some of the tokens numbers the rows of these ([`Rule::TOKENS`]).

use super::rule::{Linear, TermReduction};
use super::{Describe, Rule, Visit, expect_shape, read, result, write};
use crate::{TensorError, View};

/// A row for every choice, sorted by expert, then by token, then by choice: `rows[t, s]` is the row of choice s of token t,
/// `sources[r] = t K + s` its inverse, and rows `offsets[e] .. offsets[e + 1]` are those of expert e (Gale et al. 2022, MegaBlocks). A
/// choice that is not kept has no row: its row is [`NO_ROW`], as is the source of each row behind those of all experts. Rows of experts that
/// the device computes for itself ([`ShadowRows`]) come before all others.
///
/// Sharding: experts, kept, rows (n, k), sources (n k), offsets (e), slots, shadow offsets (s); n summed, each device with its own term, k,
/// e, s whole.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AssignRows {
    /// u32 `[N, K]`, each below E.
    pub experts: View,
    /// u32 `[N, K]`, if choices may be dropped: 0 of those that are.
    pub kept: Option<View>,
    /// Experts whose rows come first, if there may be some.
    pub shadows: Option<ShadowRows>,
    /// u32 `[N, K]`.
    pub rows: View,
    /// u32 `[1, R]`, R = N K.
    pub sources: View,
    /// u32 `[1, E + 1]`. The first is the number of rows for shadows, which have no rows between the others.
    pub offsets: View,
}

/// Rows for experts that a device computes for its own tokens ([`super::ChooseShadows`]).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ShadowRows {
    /// u32 `[1, S]`: different experts, and [`super::NO_EXPERT`] in slots that are free.
    pub slots: View,
    /// u32 `[1, S + 1]`: rows `offsets[j] .. offsets[j + 1]` are those of the expert in slot j.
    pub offsets: View,
}

impl Describe for AssignRows {
    const NAME: &'static str = "assign_rows";
    fn visit(&mut self, see: &mut Visit<'_>) {
        read(see, "experts", &mut self.experts);
        if let Some(kept) = &mut self.kept {
            read(see, "kept", kept);
        }
        if let Some(shadows) = &mut self.shadows {
            read(see, "slots", &mut shadows.slots);
        }
        write(see, "rows", &mut self.rows);
        write(see, "sources", &mut self.sources);
        write(see, "offsets", &mut self.offsets);
        if let Some(shadows) = &mut self.shadows {
            write(see, "shadow_offsets", &mut shadows.offsets);
        }
    }
    fn rule(&self) -> Rule {
        let mut rule = Rule::new(&self.operands());
        let (n, k) = (rule.sum(Rule::TOKENS, self.experts.rows), rule.whole("k", self.experts.cols));
        let e = rule.whole("e", self.offsets.cols);
        if let Some(shadows) = &self.shadows {
            let (s, ends) = (rule.whole("s", shadows.slots.cols), rule.whole("ends", shadows.offsets.cols));
            rule.dims("slots", &[], &[s]);
            rule.dims("shadow_offsets", &[], &[ends]);
            rule.own("slots", n);
            rule.own("shadow_offsets", n);
        }
        for name in ["experts", "kept", "rows"] {
            rule.dims(name, &[n], &[k]);
        }
        rule.dims("sources", &[], &[n, k]);
        rule.dims("offsets", &[], &[e]);
        rule.own("offsets", n);
        rule
    }
    fn flops(&self) -> f64 {
        0.0
    }
    fn shapes(&self) -> Result<(), TensorError> {
        for (name, view) in [("rows", Some(self.rows)), ("kept", self.kept)] {
            let (n, k) = (self.experts.rows, self.experts.cols);
            view.map_or(Ok(()), |view| expect_shape(Self::NAME, name, &view, n, k))?;
        }
        if let Some(ShadowRows { slots, offsets }) = &self.shadows {
            expect_shape(Self::NAME, "slots", slots, 1, slots.cols.max(1))?;
            expect_shape(Self::NAME, "shadow_offsets", offsets, 1, slots.cols + 1)?;
        }
        expect_shape(Self::NAME, "sources", &self.sources, 1, self.experts.len())?;
        expect_shape(Self::NAME, "offsets", &self.offsets, 1, self.offsets.cols.max(2))
    }
}

/// Groups of the rows that G devices send to L experts of E, the rows of one device behind those of the one before: group `g L + e` are
/// the rows of device g for expert `first + e`, from `groups[g L + e]` to `groups[g L + e + 1]`.
///
/// Sharding: whole; linear in the offsets.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ReceivedGroups {
    /// u32 `[G, E + 1]`: of each device the offsets that [`AssignRows`] has given its rows.
    pub offsets: View,
    /// First of the experts.
    pub first: usize,
    /// u32 `[1, G L + 1]`.
    pub groups: View,
}

impl Describe for ReceivedGroups {
    const NAME: &'static str = "received_groups";
    fn visit(&mut self, see: &mut Visit<'_>) {
        read(see, "offsets", &mut self.offsets);
        write(see, "groups", &mut self.groups);
    }
    fn rule(&self) -> Rule {
        let mut rule = Rule::new(&self.operands());
        let (g, e) = (rule.whole("g", self.offsets.rows), rule.whole("e", self.offsets.cols));
        let l = rule.whole("l", self.groups.cols);
        rule.dims("offsets", &[g], &[e]);
        rule.dims("groups", &[], &[l]);
        rule.linear("offsets", Linear::Alone);
        rule
    }
    fn flops(&self) -> f64 {
        0.0
    }
    fn shapes(&self) -> Result<(), TensorError> {
        let (devices, all) = (self.offsets.rows.max(1), self.offsets.cols.max(2));
        let experts = (self.groups.cols.max(1) - 1) / devices;
        expect_shape(Self::NAME, "offsets", &self.offsets, devices, all.max(self.first + experts + 1))?;
        expect_shape(Self::NAME, "groups", &self.groups, 1, devices * experts.max(1) + 1)
    }
}

/// `out[r] = x[sources[r] / choices]`.
///
/// Sharding: x (n, d), sources (n k), out (n k, d); n, d free, k whole; linear in x.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Dispatch {
    /// `[N, D]`.
    pub x: View,
    /// u32 `[1, R]`, each below N K.
    pub sources: View,
    /// K.
    pub choices: usize,
    /// `[R, D]`.
    pub out: View,
}

impl Describe for Dispatch {
    const NAME: &'static str = "dispatch";
    fn visit(&mut self, see: &mut Visit<'_>) {
        read(see, "x", &mut self.x);
        read(see, "sources", &mut self.sources);
        write(see, "out", &mut self.out);
    }
    fn rule(&self) -> Rule {
        let mut rule = Rule::new(&self.operands());
        let (n, d) = (rule.free(Rule::TOKENS, self.x.rows), rule.free("d", self.x.cols));
        let k = rule.whole("k", self.choices);
        rule.dims("x", &[n], &[d]);
        rule.dims("sources", &[], &[n, k]);
        rule.dims("out", &[n, k], &[d]);
        rule.linear("x", Linear::Alone);
        rule
    }
    fn flops(&self) -> f64 {
        0.0
    }
    fn shapes(&self) -> Result<(), TensorError> {
        let rows = self.x.rows * self.choices;
        expect_shape(Self::NAME, "sources", &self.sources, 1, rows)?;
        expect_shape(Self::NAME, "out", &self.out, rows, self.x.cols)
    }
}

/// `dx[t] (+)= sum_s dout[rows[t, s]]`, in f32 and in the order of s; a choice without a row ([`NO_ROW`]) adds nothing.
///
/// Sharding: dout (n k, d), rows (n, k), dx (n, d); n, d free, k whole; linear in dout.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DispatchBackward {
    /// `[R, D]`.
    pub dout: View,
    /// u32 `[N, K]`, each below R or [`NO_ROW`].
    pub rows: View,
    /// `[N, D]`.
    pub dx: View,
    /// Add to what `dx` holds instead of replacing it.
    pub accumulate: bool,
}

impl Describe for DispatchBackward {
    const NAME: &'static str = "dispatch_backward";
    fn visit(&mut self, see: &mut Visit<'_>) {
        read(see, "dout", &mut self.dout);
        read(see, "rows", &mut self.rows);
        result(see, "dx", &mut self.dx, self.accumulate);
    }
    fn rule(&self) -> Rule {
        let mut rule = Rule::new(&self.operands());
        let (n, d) = (rule.free(Rule::TOKENS, self.dx.rows), rule.free("d", self.dx.cols));
        let k = rule.whole("k", self.rows.cols);
        rule.dims("dout", &[n, k], &[d]);
        rule.dims("rows", &[n], &[k]);
        rule.dims("dx", &[n], &[d]);
        rule.linear("dout", Linear::Alone);
        rule.accumulated("dx");
        rule
    }
    fn flops(&self) -> f64 {
        (self.rows.len() * self.dx.cols) as f64
    }
    fn shapes(&self) -> Result<(), TensorError> {
        expect_shape(Self::NAME, "rows", &self.rows, self.dx.rows, self.rows.cols)?;
        expect_shape(Self::NAME, "dout", &self.dout, self.rows.len(), self.dout.cols)?;
        expect_shape(Self::NAME, "dx", &self.dx, self.dx.rows, self.dout.cols)
    }
}

/// `out[t] = sum_s weights[t, s] x[rows[t, s]]`, in f32 and in the order of s; a choice without a row adds nothing.
///
/// Sharding: x (n k, d), rows, weights (n, k), out (n, d); n, d free, k whole; linear in x, in weights.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CombineRows {
    /// `[R, D]`.
    pub x: View,
    /// u32 `[N, K]`, each below R or [`NO_ROW`].
    pub rows: View,
    /// `[N, K]`.
    pub weights: View,
    /// `[N, D]`.
    pub out: View,
}

impl Describe for CombineRows {
    const NAME: &'static str = "combine_rows";
    fn visit(&mut self, see: &mut Visit<'_>) {
        read(see, "x", &mut self.x);
        read(see, "rows", &mut self.rows);
        read(see, "weights", &mut self.weights);
        write(see, "out", &mut self.out);
    }
    fn rule(&self) -> Rule {
        let mut rule = Rule::new(&self.operands());
        let (n, d) = (rule.free(Rule::TOKENS, self.out.rows), rule.free("d", self.out.cols));
        let k = rule.whole("k", self.rows.cols);
        rule.dims("x", &[n, k], &[d]);
        for name in ["rows", "weights"] {
            rule.dims(name, &[n], &[k]);
        }
        rule.dims("out", &[n], &[d]);
        rule.linear("x", Linear::Alone);
        rule.linear("weights", Linear::Alone);
        rule
    }
    fn flops(&self) -> f64 {
        2.0 * (self.rows.len() * self.out.cols) as f64
    }
    fn shapes(&self) -> Result<(), TensorError> {
        let (n, k) = (self.rows.rows, self.rows.cols);
        expect_shape(Self::NAME, "x", &self.x, n * k, self.x.cols)?;
        expect_shape(Self::NAME, "weights", &self.weights, n, k)?;
        expect_shape(Self::NAME, "out", &self.out, n, self.x.cols)
    }
}

/// Gradients of [`CombineRows`]: `dx[rows[t, s]] = weights[t, s] dout[t]`, zeros in rows of no choice, and
/// `dweights[t, s] = <dout[t], x[rows[t, s]]>`, 0 of a choice without a row.
///
/// Sharding: x, dx (n k, d), sources (n k), rows, weights, dweights (n, k), dout (n, d); n free, d summed for dweights, k whole; dweights
/// linear in x, on which dx does not depend.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CombineRowsBackward {
    /// `[N, D]`.
    pub dout: View,
    /// `[R, D]`.
    pub x: View,
    /// u32 `[N, K]`, each below R or [`NO_ROW`].
    pub rows: View,
    /// u32 `[1, R]`: `t K + s`, or [`NO_ROW`] where a row is that of no choice.
    pub sources: View,
    /// `[N, K]`.
    pub weights: View,
    /// `[R, D]`.
    pub dx: View,
    /// `[N, K]`.
    pub dweights: View,
}

impl Describe for CombineRowsBackward {
    const NAME: &'static str = "combine_rows_backward";
    fn visit(&mut self, see: &mut Visit<'_>) {
        read(see, "dout", &mut self.dout);
        read(see, "x", &mut self.x);
        read(see, "rows", &mut self.rows);
        read(see, "sources", &mut self.sources);
        read(see, "weights", &mut self.weights);
        write(see, "dx", &mut self.dx);
        write(see, "dweights", &mut self.dweights);
    }
    fn rule(&self) -> Rule {
        let mut rule = Rule::new(&self.operands());
        let (n, d) = (rule.free(Rule::TOKENS, self.dout.rows), rule.sum("d", self.dout.cols));
        let k = rule.whole("k", self.rows.cols);
        for name in ["x", "dx"] {
            rule.dims(name, &[n, k], &[d]);
        }
        rule.dims("dout", &[n], &[d]);
        rule.dims("sources", &[], &[n, k]);
        for name in ["rows", "weights", "dweights"] {
            rule.dims(name, &[n], &[k]);
        }
        rule.linear("x", Linear::Alone);
        rule.reduce("dx", TermReduction::Equal);
        rule
    }
    fn flops(&self) -> f64 {
        3.0 * (self.rows.len() * self.dout.cols) as f64
    }
    fn shapes(&self) -> Result<(), TensorError> {
        let (n, k, d) = (self.rows.rows, self.rows.cols, self.dout.cols);
        expect_shape(Self::NAME, "dout", &self.dout, n, d)?;
        expect_shape(Self::NAME, "x", &self.x, n * k, d)?;
        expect_shape(Self::NAME, "sources", &self.sources, 1, self.x.rows)?;
        expect_shape(Self::NAME, "weights", &self.weights, n, k)?;
        expect_shape(Self::NAME, "dx", &self.dx, self.x.rows, d)?;
        expect_shape(Self::NAME, "dweights", &self.dweights, n, k)
    }
}

/// Mark in `rows` of a choice without a row, and in `sources` of a row of no choice.
pub const NO_ROW: u32 = u32::MAX;
