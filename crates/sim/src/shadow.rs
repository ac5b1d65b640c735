//! Shadows of experts: which experts of a layer every rank computes for its own tokens (He et al. 2022, FasterMoE).
//!
//! Without a shadow the rank with most rows bounds the products, and the rank with most arriving or leaving rows the exchanges. A shadow
//! costs a broadcast of the expert and a reduction of its gradient. With n\[r, e\] rows of rank r for expert e, X the shadowed experts, F FLOPs
//! of a row in a forward pass, V bytes of an expert, b bytes of a row, P FLOP/s, W bytes a second of each of R ranks:
//!
//! ```text
//! t(X) = 3 F max_w C_w / P + 4 b max_w max(in_w, out_w) / W + |X| 2 V (R-1) / (R W)
//! C_w  = rows of all ranks for the experts of w that are not in X, and of w for those in X
//! ```
//! All costs are whole picoseconds, so that every rank and every run chooses alike.

use crate::SimError;
use crate::error::time;
use crate::replay::RoutedRows;

/// Experts of a layer, as far as the cost of a shadow depends on them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ExpertSize {
    /// F, FLOPs of a row in a forward pass.
    pub row_flops: f64,
    /// b, bytes of a row that is exchanged.
    pub row_bytes: f64,
    /// V, bytes of an expert's matrices.
    pub bytes: f64,
}

/// Rates of the ranks: numbers of a recipe or of a machine's file, never measured in the run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ShadowRates {
    /// P, FLOPs a second.
    pub flops: f64,
    /// W, bytes a second that a rank sends, and receives.
    pub bandwidth: f64,
}

/// Costs in picoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShadowCosts {
    /// Products of a row, forward and backward: 3 F / P.
    pub row_products: u64,
    /// Four exchanges of a row: 4 b / W.
    pub row_exchanges: u64,
    /// Broadcast and reduction of an expert: 2 V (R-1) / (R W).
    pub shadow: u64,
}

impl ShadowCosts {
    /// The costs of experts of this size over `ranks` ranks.
    ///
    /// # Errors
    /// [`SimError::Value`] for rates or sizes that give no time.
    pub fn new(size: ExpertSize, rates: ShadowRates, ranks: usize) -> Result<ShadowCosts, SimError> {
        let picoseconds = |what: &str, seconds: f64| {
            let most = 1e6;
            let seconds = time(|| format!("{what} of an expert's cost, in seconds,"), seconds)?;
            Ok((seconds.min(most) * 1e12).round() as u64)
        };
        let others = ranks.saturating_sub(1) as f64 / ranks.max(1) as f64;
        Ok(ShadowCosts {
            row_products: picoseconds("a row's products", 3.0 * size.row_flops / rates.flops)?,
            row_exchanges: picoseconds("a row's exchanges", 4.0 * size.row_bytes / rates.bandwidth)?,
            shadow: picoseconds("a shadow", 2.0 * size.bytes * others / rates.bandwidth)?,
        })
    }

    /// t(X): picoseconds of a layer with these experts shadowed.
    pub fn time(&self, rows: &RoutedRows, shadows: &[usize]) -> u128 {
        let most = |of: &dyn Fn(usize) -> u64| (0..rows.ranks()).map(of).max().unwrap_or(0);
        let products = most(&|rank| rows.computed(rank, shadows));
        let exchanged = most(&|rank| rows.sent(rank, shadows).max(rows.received(rank, shadows)));
        let sum = |count: u64, cost: u64| u128::from(count) * u128::from(cost);
        sum(products, self.row_products)
            + sum(exchanged, self.row_exchanges)
            + sum(shadows.len() as u64, self.shadow)
    }
}

/// Chosen shadows of a layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShadowChoice {
    /// Shadowed experts, ascending.
    pub experts: Vec<usize>,
    /// Picoseconds of the layer with them.
    pub time: u128,
    /// Picoseconds without any.
    pub without: u128,
}

/// Chooses at most `slots` shadows. One after the other, the rank with most rows gets a shadow of its expert with most rows; of the choices on
/// this way the first of the fastest is taken, so two equally hot ranks get two shadows where one alone does not help.
///
/// With one expert on each rank and tokens of all ranks alike, these choices are the published ones: experts in the order of their rows.
pub fn choose(rows: &RoutedRows, costs: &ShadowCosts, slots: usize) -> ShadowChoice {
    let without = costs.time(rows, &[]);
    let mut choice = ShadowChoice { experts: Vec::new(), time: without, without };
    let mut shadows = Vec::new();
    while shadows.len() < slots.min(rows.experts()) {
        let open = (0..rows.experts()).filter(|expert| !shadows.contains(expert));
        let heat = |expert: usize| (rows.computed(rows.owner(expert), &shadows), rows.load(expert));
        // Equal ones: the lowest rank and expert.
        let Some(hottest) = open.max_by_key(|expert| (heat(*expert), std::cmp::Reverse(*expert))) else {
            break;
        };
        shadows.push(hottest);
        let time = costs.time(rows, &shadows);
        if time < choice.time {
            (choice.experts, choice.time) = (shadows.clone(), time);
        }
    }
    choice.experts.sort_unstable();
    choice
}
