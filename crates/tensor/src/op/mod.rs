//! Operators: what a training step is made of.
//!
//! Each descriptor is a plain value that names its operands; forward and backward of one operator stand in one file.
//! Each says what sharding its loops means ([`Rule`]; "Sharding:" in its documentation).
//!
//! `[r, c]` is the shape of a [`View`]. Legend: N tokens of the micro-batch, D width, V vocabulary, I/O inputs and
//! outputs of a linear map, H query heads, G key/value heads, E head width, B sequences, T positions.

mod adafactor;
mod adamw_int8;
mod attention;
mod attention_merge;
mod attention_slots;
mod capacity;
mod dtype;
mod elementwise;
mod embedding;
mod expert_rows;
mod gated_rows;
mod grouped;
mod linear;
mod log_sums;
mod loss;
mod loss_shard;
mod magnitude;
mod matrix;
mod nodes;
mod norm;
mod norm_sums;
mod optimizer;
mod quantise;
mod rope;
mod route;
pub mod rule;
mod shadows;

pub use adafactor::{AdafactorUpdate, FactoredDirection, FactoredMoments, MomentDirection};
pub use adamw_int8::AdamWInt8;
pub use attention::{
    Alibi, Attention, AttentionBackward, AttentionCached, AttentionDropout, AttentionMask, AttentionShape,
    Positions, SomeKeys,
};
pub use attention_merge::AttentionMerge;
pub use attention_slots::AttentionSlots;
pub use capacity::{DropRule, KeepChoices, RandomNumbers, RandomSecond, TokenRows};
pub use elementwise::{
    Activation, ActivationBackward, ActivationKind, Add, Copy, Dropout, DropoutMask, Fill, Gated,
    GatedBackward, Noise, Scale,
};
pub use embedding::{Embedding, EmbeddingBackward, PositionTable, VocabularyShard};
pub use expert_rows::{
    AssignRows, CombineRows, CombineRowsBackward, Dispatch, DispatchBackward, NO_ROW, ReceivedGroups,
    ShadowRows,
};
pub use gated_rows::{AddGatedRows, AddGatedRowsBackward, MixedRows};
pub use grouped::{GroupedLinear, GroupedLinearBackwardInput, GroupedLinearBackwardWeight};
pub use linear::{Linear, LinearBackwardInput, LinearBackwardWeight};
pub use log_sums::CombineLogSums;
pub use loss::{IGNORED, LinearCrossEntropy, LossBackward, Teacher};
pub use loss_shard::{LinearCrossEntropyShard, LogitSums};
pub use magnitude::{AdaptedSquares, Magnitudes, MagnitudesBackward};
pub use matrix::{Cholesky, Combine, DivideByNorm, Dot, TriangularInverse};
pub use nodes::KeepInNode;
pub use norm::{Norm, NormBackward, NormKind};
pub use norm_sums::{NormBackwardOfSums, NormGradientSums, NormOfSums, RowSums, RowTerm};
pub use optimizer::{AdamW, Lion, Sgd, SumSquares};
pub use quantise::{Dequantise, GRADIENT_BLOCK, Quantise, quantised_bytes};
pub use rope::{Rope, RopeScaling};
pub use route::{BalanceLoss, BalanceTerm, CountChoices, Gate, Route, RouteBackward, Score, TokenSpan};
pub use rule::{Factor, FactorKind, OperandRule, Rule, TermReduction};
pub use shadows::{
    AddShadowGradients, ChooseShadows, ExpertSize, NO_EXPERT, RowCounts, ShadowCosts, ShadowRates,
    choose_shadows,
};

use crate::{TensorError, View};
use bessemer_units::{Bytes, Flops};

/// How an operator touches an operand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Only read.
    Read,
    /// Only written; what was there is gone.
    Write,
    /// Read and written (accumulated into, or in place).
    Update,
}

/// One operand of an operator.
#[derive(Debug, Clone, Copy)]
pub struct Operand {
    /// Name within the operator.
    pub name: &'static str,
    /// Memory of the operand.
    pub view: View,
    /// How it is touched.
    pub access: Access,
}

/// The operands of one operator: a list of fixed capacity, so that checking a launch allocates nothing.
#[derive(Debug, Clone, Copy)]
pub struct Operands {
    items: [Option<Operand>; Operands::CAPACITY],
    len: usize,
}

impl Operands {
    /// More than any operator has.
    const CAPACITY: usize = 13;

    fn of(op: &mut impl Describe) -> Operands {
        let mut all = Operands { items: [None; Operands::CAPACITY], len: 0 };
        op.visit(&mut |name, access, view| {
            all.items[all.len] = Some(Operand { name, view: *view, access });
            all.len += 1;
        });
        all
    }

    /// In the order of the descriptor.
    pub fn iter(&self) -> impl Iterator<Item = &Operand> {
        self.items.iter().flatten()
    }
}

/// Is shown the name, access and view of each operand in turn, and may replace the view.
type Visit<'a> = dyn FnMut(&'static str, Access, &mut View) + 'a;

/// Properties that every descriptor states about itself.
trait Describe: std::marker::Copy {
    /// Name for messages, traces and counts.
    const NAME: &'static str;
    /// True if an output may be exactly the same view as an input.
    const IN_PLACE: bool = false;
    /// Shows every operand, in the order of [`Op::operands`].
    fn visit(&mut self, see: &mut Visit<'_>);
    /// All operands.
    fn operands(&self) -> Operands {
        let mut op = *self;
        Operands::of(&mut op)
    }
    /// Effect of sharding each loop of the operator.
    fn rule(&self) -> Rule;
    /// Floating-point operations (a multiply-add counts two); only products are counted for the large operators.
    fn flops(&self) -> f64;
    /// Shapes that must agree.
    fn shapes(&self) -> Result<(), TensorError>;
}

macro_rules! ops {
    ($($name:ident),* $(,)?) => {
        /// An operator with its operands.
        #[derive(Debug, Clone, PartialEq)]
        #[allow(missing_docs)] // every variant is the descriptor of the same name, documented there
        pub enum Op { $($name($name)),* }

        impl Op {
            /// Names of all operators.
            pub const NAMES: &[&str] = &[$(<$name as Describe>::NAME),*];

            /// Name for messages, traces and counts.
            pub fn name(&self) -> &'static str {
                match self { $(Op::$name(_) => <$name as Describe>::NAME),* }
            }
            /// All operands, with how they are touched.
            pub fn operands(&self) -> Operands {
                match self { $(Op::$name(o) => o.operands()),* }
            }
            /// Calls `f` once with each operand's view, in the order of [`Op::operands`]: how a program that was recorded on
            /// virtual buffers is bound to memory.
            pub fn for_each_view(&mut self, f: &mut dyn FnMut(&mut View)) {
                let see: &mut Visit<'_> = &mut |_, _, view| f(view);
                match self { $(Op::$name(o) => o.visit(see)),* }
            }
            /// The sharding rule: which loops run over which dims of the operands, and what sharding each means.
            pub fn rule(&self) -> Rule {
                match self { $(Op::$name(o) => o.rule()),* }
            }
            /// Floating-point operations (a multiply-add counts two).
            pub fn flops(&self) -> Flops {
                Flops(match self { $(Op::$name(o) => o.flops()),* })
            }
            /// True if an output may be exactly the same view as an input.
            pub fn may_be_in_place(&self) -> bool {
                match self { $(Op::$name(_) => <$name as Describe>::IN_PLACE),* }
            }
            /// Errors if shapes or element types disagree, a view reaches past its buffer, or a written operand overlaps
            /// another.
            pub fn check(&self) -> Result<(), TensorError> {
                match self { $(Op::$name(o) => check(o)),* }?;
                self.check_dtypes()
            }
        }
        $(impl From<$name> for Op { fn from(o: $name) -> Op { Op::$name(o) } })*
    };
}

ops!(
    Activation,
    ActivationBackward,
    AdafactorUpdate,
    AdamW,
    AdamWInt8,
    AdaptedSquares,
    Add,
    AddGatedRows,
    AddGatedRowsBackward,
    AddShadowGradients,
    AssignRows,
    Attention,
    AttentionBackward,
    AttentionCached,
    AttentionMerge,
    AttentionSlots,
    BalanceLoss,
    Cholesky,
    ChooseShadows,
    Combine,
    CombineLogSums,
    CombineRows,
    CombineRowsBackward,
    Copy,
    CountChoices,
    Dequantise,
    Dispatch,
    DispatchBackward,
    DivideByNorm,
    Dot,
    Dropout,
    Embedding,
    EmbeddingBackward,
    FactoredDirection,
    FactoredMoments,
    Fill,
    Gated,
    GatedBackward,
    GroupedLinear,
    GroupedLinearBackwardInput,
    GroupedLinearBackwardWeight,
    KeepChoices,
    KeepInNode,
    Linear,
    LinearBackwardInput,
    LinearBackwardWeight,
    LinearCrossEntropy,
    LinearCrossEntropyShard,
    Lion,
    LogitSums,
    Magnitudes,
    MagnitudesBackward,
    MomentDirection,
    Norm,
    NormBackward,
    NormBackwardOfSums,
    NormGradientSums,
    NormOfSums,
    Quantise,
    RandomNumbers,
    ReceivedGroups,
    Rope,
    Route,
    RouteBackward,
    RowSums,
    Scale,
    Sgd,
    SumSquares,
    TriangularInverse,
);

impl Op {
    /// Bytes read and written, each operand once for each direction.
    pub fn bytes(&self) -> Bytes {
        let sum = self
            .operands()
            .iter()
            .map(|o| o.view.bytes() * if o.access == Access::Update { 2 } else { 1 })
            .sum();
        Bytes(sum)
    }
}

fn check<O: Describe>(op: &O) -> Result<(), TensorError> {
    let operands = op.operands();
    for o in operands.iter() {
        o.view.check()?;
    }
    op.shapes()?;
    for (i, w) in operands.iter().enumerate() {
        if w.access == Access::Read {
            continue;
        }
        for (j, other) in operands.iter().enumerate() {
            let same = O::IN_PLACE && w.view == other.view;
            if i != j && !same && w.view.overlaps(&other.view) {
                return Err(TensorError::Overlap { op: O::NAME, written: w.name, other: other.name });
            }
        }
    }
    Ok(())
}

fn read(see: &mut Visit<'_>, name: &'static str, view: &mut View) {
    see(name, Access::Read, view);
}

fn write(see: &mut Visit<'_>, name: &'static str, view: &mut View) {
    see(name, Access::Write, view);
}

fn update(see: &mut Visit<'_>, name: &'static str, view: &mut View) {
    see(name, Access::Update, view);
}

/// Written if `accumulate` is false, updated otherwise.
fn result(see: &mut Visit<'_>, name: &'static str, view: &mut View, accumulate: bool) {
    see(name, if accumulate { Access::Update } else { Access::Write }, view);
}

/// Errors unless `view` is `[rows, cols]`.
fn expect_shape(
    op: &'static str,
    operand: &'static str,
    view: &View,
    rows: usize,
    cols: usize,
) -> Result<(), TensorError> {
    if (view.rows, view.cols) == (rows, cols) {
        return Ok(());
    }
    Err(TensorError::Shape {
        op,
        operand,
        wanted: format!("[{rows}, {cols}]"),
        found: format!("[{}, {}]", view.rows, view.cols),
    })
}

/// Errors unless `view` holds indices, one row of `count`.
fn expect_indices(
    op: &'static str,
    operand: &'static str,
    view: &View,
    count: usize,
) -> Result<(), TensorError> {
    expect_shape(op, operand, view, 1, count)?;
    if view.dtype() == bessemer_units::DType::U32 {
        return Ok(());
    }
    Err(TensorError::Shape { op, operand, wanted: "u32 indices".into(), found: view.dtype().to_string() })
}

#[cfg(test)]
mod tests;
