//! Sharding rules: what it means to split a loop of an operator over several devices.
//!
//! A rule names the operator's loops ("factors", as in Shardy; labels of an einsum) and says for every dim of every
//! operand which of them it runs over. A dim packed from several loops lists them from major to minor: the rows of an
//! attention are `(b t)`, its columns `(g r e)` for key/value heads g and the r query heads that share each.
//!
//! Devices that hold equal parts of a factor in every operand that has it compute, together, what one device would:
//! - outputs that have the factor are sharded like it;
//! - outputs without a [`FactorKind::Free`] factor are complete on every device;
//! - outputs without a [`FactorKind::Sum`] factor are *partial*: the terms of all devices are to be reduced
//!   ([`OperandRule::reduce`]) before anything but a linear operand ([`Linear`]) reads them.

use super::{Access, Operands};

/// Effect of sharding a loop of an operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FactorKind {
    /// The loop is part of the result: no output becomes partial.
    Free,
    /// The loop is contracted: outputs without it become partial.
    Sum,
    /// The loop must not be sharded.
    Whole,
}

/// How the terms of a partial output are reduced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TermReduction {
    /// `sum of x_i`.
    Sum,
    /// `log sum of exp x_i`.
    LogSumExp,
    /// Nothing to reduce: the output does not depend on contracted factors, and every device computes all of it.
    Equal,
}

/// A loop of an operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Factor {
    /// Label, as in the operator's documentation.
    pub name: &'static str,
    /// Iterations.
    pub size: usize,
    /// Effect of sharding it.
    pub kind: FactorKind,
    /// Whether a shard of the operator must state the global index at which its part of the factor starts.
    pub offset: bool,
}

/// In which partial values an operand may be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Linear {
    /// In none: the operand is complete.
    No,
    /// A partial operand gives partial outputs, if no other operand is partial over the same axis.
    Alone,
    /// Each device takes its term for itself, and its outputs are its own as well: numbers that nobody sums.
    Own,
    /// The operand is a term of a sum: it is partial over exactly the axes over which the other terms are. Operands that
    /// are accumulated into are such terms.
    Jointly,
}

/// One operand in a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OperandRule {
    /// Name, as in [`super::Op::operands`].
    pub name: &'static str,
    /// How the operand is touched.
    pub access: Access,
    /// Factors of the rows, major to minor: indices of [`Rule::factors`].
    pub rows: Vec<usize>,
    /// Factors of the columns, major to minor.
    pub cols: Vec<usize>,
    /// In which partial values it may be read. A written operand may be [`Linear::Alone`] only if its value is zero,
    /// which is a term of every sum.
    pub linear: Linear,
    /// Where the outputs are partial, the operand is read on the first device of the axis only and left out on the others
    /// (bias, residual).
    pub once: bool,
    /// Of an output: how its terms are reduced.
    pub reduce: TermReduction,
    /// Where this factor is sharded, the operand is the device's own term of a sum over devices, which nobody forms: offsets of the
    /// rows that the device has. Elsewhere it is complete.
    pub own: Option<usize>,
}

impl OperandRule {
    /// Whether a partial operand gives partial outputs, if no other operand is partial.
    pub fn passes_terms(&self) -> bool {
        matches!(self.linear, Linear::Alone | Linear::Own) && self.own.is_none()
    }
}

/// The sharding rule of an operator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// The loops.
    pub factors: Vec<Factor>,
    /// The operands, in the order of [`super::Op::operands`]. The product of the sizes of a dim's factors is the dim.
    pub operands: Vec<OperandRule>,
}

impl Rule {
    /// Name of the operand in which an operator reads numbers that vary from step to step.
    pub(super) const STEP: &'static str = "step";
    /// Name of a loop over blocks of consecutive elements that share a scale.
    pub const BLOCK: &'static str = "blocks";
    /// Name of a loop over tokens whose rows are assigned by expert. A device that has some tokens numbers their rows by themselves: its
    /// part of an operator is that of its tokens, and only operators that all have the same tokens fit together.
    pub const TOKENS: &'static str = "tokens";
    /// Name of a loop over the outputs of each matrix of a stack.
    pub const OUTPUTS: &'static str = "outputs";
    /// Name of the operand in which an operator reads the counters of its random numbers.
    pub(super) const COUNTERS: &'static str = "counters";
    /// Name of the operand that counts the rows that an operator touches.
    pub const LIVE: &'static str = "live";
    /// Operands of which every device reads all.
    const WHOLE_NUMBERS: [&'static str; 3] = [Rule::STEP, Rule::COUNTERS, Rule::LIVE];

    /// A rule without factors: every dim of every operand has size 1.
    pub(super) fn new(operands: &Operands) -> Rule {
        let operand = |o: &super::Operand| OperandRule {
            name: o.name,
            access: o.access,
            rows: Vec::new(),
            cols: Vec::new(),
            linear: Linear::No,
            once: false,
            reduce: TermReduction::Sum,
            own: None,
        };
        Rule { factors: Vec::new(), operands: operands.iter().map(operand).collect() }
    }

    /// The rule of an operator all of whose operands but the numbers of the host are `[r, c]` and which treats every element
    /// alike.
    pub(super) fn elementwise(operands: &Operands, rows: usize, cols: usize) -> Rule {
        let mut rule = Rule::new(operands);
        let (r, c) = (rule.free("r", rows), rule.free("c", cols));
        for o in rule.operands.iter_mut().filter(|o| !Rule::WHOLE_NUMBERS.contains(&o.name)) {
            (o.rows, o.cols) = (vec![r], vec![c]);
        }
        rule.with_host_numbers(operands)
    }

    /// This rule, in which numbers that the host writes, and counts of rows, if there are any, are not sharded.
    pub(super) fn with_host_numbers(mut self, operands: &Operands) -> Rule {
        for o in operands.iter().filter(|o| Rule::WHOLE_NUMBERS.contains(&o.name)) {
            let all = self.whole(o.name, o.view.cols);
            self.dims(o.name, &[], &[all]);
        }
        self
    }

    pub(super) fn factor(&mut self, name: &'static str, size: usize, kind: FactorKind) -> usize {
        self.factors.push(Factor { name, size, kind, offset: false });
        self.factors.len() - 1
    }

    /// Adds a factor of the result and returns its index.
    pub(super) fn free(&mut self, name: &'static str, size: usize) -> usize {
        self.factor(name, size, FactorKind::Free)
    }

    /// Adds a contracted factor and returns its index.
    pub(super) fn sum(&mut self, name: &'static str, size: usize) -> usize {
        self.factor(name, size, FactorKind::Sum)
    }

    /// Adds a factor that must not be sharded and returns its index.
    pub(super) fn whole(&mut self, name: &'static str, size: usize) -> usize {
        self.factor(name, size, FactorKind::Whole)
    }

    /// A shard must state where its part of the factor starts.
    pub(super) fn needs_offset(&mut self, factor: usize) {
        self.factors[factor].offset = true;
    }

    /// Sets the factors of an operand's dims. Like the setters below, skips an optional operand that is absent.
    pub(super) fn dims(&mut self, operand: &str, rows: &[usize], cols: &[usize]) {
        if let Some(o) = self.operand_mut(operand) {
            (o.rows, o.cols) = (rows.to_vec(), cols.to_vec());
        }
    }

    pub(super) fn linear(&mut self, operand: &str, linear: Linear) {
        if let Some(o) = self.operand_mut(operand) {
            o.linear = linear;
        }
    }

    /// If the operand is accumulated into, its old value is a term of the sum.
    pub(super) fn accumulated(&mut self, operand: &str) {
        if let Some(o) = self.operand_mut(operand).filter(|o| o.access == Access::Update) {
            o.linear = Linear::Jointly;
        }
    }

    pub(super) fn once(&mut self, operand: &str) {
        if let Some(o) = self.operand_mut(operand) {
            o.once = true;
        }
    }

    pub(super) fn reduce(&mut self, operand: &str, reduce: TermReduction) {
        if let Some(o) = self.operand_mut(operand) {
            o.reduce = reduce;
        }
    }

    pub(super) fn own(&mut self, operand: &str, factor: usize) {
        if let Some(o) = self.operand_mut(operand) {
            o.own = Some(factor);
        }
    }

    fn operand_mut(&mut self, name: &str) -> Option<&mut OperandRule> {
        self.operands.iter_mut().find(|o| o.name == name)
    }

    /// The operand of this name, if the operator has it.
    pub fn operand(&self, name: &str) -> Option<&OperandRule> {
        self.operands.iter().find(|o| o.name == name)
    }
}
