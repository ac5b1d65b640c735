//! Shadows of experts in a simulated step: the choice that the ranks of a step make.

pub use bessemer_tensor::op::{ExpertSize, RowCounts, ShadowCosts, ShadowRates};
use bessemer_tensor::op::{NO_EXPERT, choose_shadows};

/// Chosen shadows of a layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShadowChoice {
    /// Shadowed experts, ascending.
    pub experts: Vec<u32>,
    /// Picoseconds of the layer with them.
    pub time: u128,
    /// Picoseconds without any.
    pub without: u128,
}

/// Chooses at most `slots` shadows ([`choose_shadows`]).
pub fn choose(rows: &dyn RowCounts, costs: &ShadowCosts, slots: usize) -> ShadowChoice {
    let mut experts = vec![NO_EXPERT; slots];
    let [without, time] = choose_shadows(rows, costs, &mut experts);
    experts.retain(|expert| *expert != NO_EXPERT);
    ShadowChoice { experts, time, without }
}
