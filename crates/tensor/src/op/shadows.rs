//! Shadows of experts: which experts of a layer every device of a group computes for its own tokens (He et al. 2022, FasterMoE).
//!
//! Without a shadow the device with most rows bounds the products, and the one with most arriving or leaving rows the exchanges. A shadow
//! costs a broadcast of the expert and the way of its gradient back. With n\[r, e\] rows of device r for expert e, X the shadowed experts, X_w
//! those of device w, F FLOPs of a row in a forward pass, V bytes of an expert, b bytes of a row, P FLOP/s, W bytes a second of each of R
//! devices:
//!
//! ```text
//! t(X) = 3 F max_w C_w / P + 4 b max_w max(in_w, out_w) / W + max_w |X_w| 2 V (R-1) / W
//! C_w  = rows of all devices for the experts of w that are not in X, and of w for those in X
//! ```
//! The owner of a shadow sends its matrices to each of the others, and receives a gradient from each. Where a reduction over all devices
//! and a broadcast share this work, as He et al. assume, the last term is |X| 2 V (R-1) / (R W) ([`ShadowCosts::shared`]).
//! All costs are whole picoseconds, so that every device and every run chooses alike.
//!
//! Legend: G devices, E experts, L = E / G of each device, the first device the first ones; S slots for shadows.

use super::rule::Linear;
use super::{Describe, Rule, Visit, expect_shape, read, update, write};
use crate::{TensorError, View};

/// Mark of a slot that has no expert.
pub const NO_EXPERT: u32 = u32::MAX;

/// Rows of each device of a group for each expert. `shadows` are the experts that every device computes for its own tokens.
pub trait RowCounts {
    /// Devices of the group.
    fn ranks(&self) -> usize;
    /// Experts of the layer, a multiple of the devices.
    fn experts(&self) -> usize;
    /// Rows of a device's tokens for an expert.
    fn rows(&self, rank: usize, expert: usize) -> u64;

    /// The device that has an expert.
    fn owner(&self, expert: usize) -> usize {
        expert / (self.experts() / self.ranks()).max(1)
    }

    /// Rows of all devices for an expert.
    fn load(&self, expert: usize) -> u64 {
        (0..self.ranks()).map(|rank| self.rows(rank, expert)).sum()
    }

    /// Rows of a device's tokens that are brought to an exchange, those for its own experts included. Rows for shadows stay.
    fn brought(&self, rank: usize, shadows: &[u32]) -> u64 {
        let exchanged = (0..self.experts()).filter(|expert| !shadows.contains(&(*expert as u32)));
        exchanged.map(|expert| self.rows(rank, expert)).sum()
    }

    /// Rows of all devices' tokens for the experts of a device, without shadows.
    fn arriving(&self, rank: usize, shadows: &[u32]) -> u64 {
        self.own(rank, shadows, &|expert| self.load(expert))
    }

    /// Rows that a device sends to others, on the way to the experts.
    fn sent(&self, rank: usize, shadows: &[u32]) -> u64 {
        self.brought(rank, shadows) - self.own(rank, shadows, &|expert| self.rows(rank, expert))
    }

    /// Rows that a device receives from others, on the way to the experts.
    fn received(&self, rank: usize, shadows: &[u32]) -> u64 {
        self.arriving(rank, shadows) - self.own(rank, shadows, &|expert| self.rows(rank, expert))
    }

    /// Rows that a device computes: all that arrive, and those of its tokens for shadows.
    fn computed(&self, rank: usize, shadows: &[u32]) -> u64 {
        let own = shadows.iter().map(|expert| self.rows(rank, *expert as usize));
        self.arriving(rank, shadows) + own.sum::<u64>()
    }

    /// Sum over the experts of a device that are exchanged.
    #[doc(hidden)]
    fn own(&self, rank: usize, shadows: &[u32], of: &dyn Fn(usize) -> u64) -> u64 {
        let here = self.experts() / self.ranks();
        let experts = rank * here..(rank + 1) * here;
        experts.filter(|expert| !shadows.contains(&(*expert as u32))).map(of).sum()
    }
}

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

/// Rates of the devices: numbers of a recipe or of a machine's file, never measured in the run. A rate that is not positive gives the
/// longest time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ShadowRates {
    /// P, FLOPs a second.
    pub flops: f64,
    /// W, bytes a second that a device sends, and receives.
    pub bandwidth: f64,
}

/// Costs in picoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShadowCosts {
    /// Products of a row, forward and backward: 3 F / P.
    pub row_products: u64,
    /// Four exchanges of a row: 4 b / W.
    pub row_exchanges: u64,
    /// Of each shadow, if all devices share its work: 2 V (R-1) / (R W).
    pub shadow: u64,
    /// Of each shadow of the device that has most, if its owner does the work: 2 V (R-1) / W.
    pub owned: u64,
}

impl ShadowCosts {
    /// The costs of experts of this size over `ranks` devices, where all share the work of a shadow; each at most a million seconds.
    pub fn shared(size: ExpertSize, rates: ShadowRates, ranks: usize) -> ShadowCosts {
        let picoseconds = |seconds: f64| {
            let most = 1e6;
            (if (0.0..most).contains(&seconds) { seconds } else { most } * 1e12).round() as u64
        };
        let others = ranks.saturating_sub(1) as f64 / ranks.max(1) as f64;
        ShadowCosts {
            row_products: picoseconds(3.0 * size.row_flops / rates.flops),
            row_exchanges: picoseconds(4.0 * size.row_bytes / rates.bandwidth),
            shadow: picoseconds(2.0 * size.bytes * others / rates.bandwidth),
            owned: 0,
        }
    }

    /// The same where the owner of a shadow does its work.
    pub fn new(size: ExpertSize, rates: ShadowRates, ranks: usize) -> ShadowCosts {
        let shared = ShadowCosts::shared(size, rates, ranks);
        ShadowCosts { shadow: 0, owned: shared.shadow.saturating_mul(ranks as u64), ..shared }
    }

    /// t(X): picoseconds of a layer with these experts shadowed.
    pub fn time(&self, rows: &dyn RowCounts, shadows: &[u32]) -> u128 {
        let most = |of: &dyn Fn(usize) -> u64| (0..rows.ranks()).map(of).max().unwrap_or(0);
        let products = most(&|rank| rows.computed(rank, shadows));
        let exchanged = most(&|rank| rows.sent(rank, shadows).max(rows.received(rank, shadows)));
        let sum = |count: u64, cost: u64| u128::from(count) * u128::from(cost);
        let owned =
            |rank: usize| shadows.iter().filter(|expert| rows.owner(**expert as usize) == rank).count();
        sum(products, self.row_products)
            + sum(exchanged, self.row_exchanges)
            + sum(shadows.len() as u64, self.shadow)
            + sum(most(&|rank| owned(rank) as u64), self.owned)
    }
}

/// Chooses shadows, at most as many as there are slots: the first of these get them, ascending, the others get [`NO_EXPERT`]. Returns t
/// without any and with those.
///
/// One after the other, the device with most rows gets a shadow of its expert with most rows; of the choices on this way the first of the
/// fastest is taken, so two equally hot devices get two shadows where one alone does not help. With one expert on each device and tokens of
/// all devices alike, these choices are the published ones: experts in the order of their rows.
pub fn choose_shadows(rows: &dyn RowCounts, costs: &ShadowCosts, slots: &mut [u32]) -> [u128; 2] {
    let without = costs.time(rows, &[]);
    let (mut best, mut least) = (0, without);
    for taken in 0..slots.len().min(rows.experts()) {
        let shadows = &slots[..taken];
        let open = (0..rows.experts()).filter(|expert| !shadows.contains(&(*expert as u32)));
        let heat = |expert: usize| (rows.computed(rows.owner(expert), shadows), rows.load(expert));
        // Equal ones: the lowest device and expert.
        let Some(hottest) = open.max_by_key(|expert| (heat(*expert), std::cmp::Reverse(*expert))) else {
            break;
        };
        slots[taken] = hottest as u32;
        let time = costs.time(rows, &slots[..=taken]);
        if time < least {
            (best, least) = (taken + 1, time);
        }
    }
    slots[best..].fill(NO_EXPERT);
    slots[..best].sort_unstable();
    [without, least]
}

/// Chooses shadows ([`choose_shadows`]) by the rows that all devices have for each expert, and numbers the rows anew: of each device those
/// for shadows come first, in the order of the slots.
///
/// Sharding: whole. Devices along another axis choose by rows of their own.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ChooseShadows {
    /// u32 `[G, E + 1]`: of each device the offsets that [`super::AssignRows`] has given its rows without shadows.
    pub offsets: View,
    /// Costs by which they are chosen.
    pub costs: ShadowCosts,
    /// u32 `[1, S]`: experts, ascending, and [`NO_EXPERT`] behind them.
    pub slots: View,
    /// u32 `[G, E + 1]`: of each device the offsets with these shadows, which have no rows here. The first is the number of its rows for
    /// shadows.
    pub routed: View,
}

impl Describe for ChooseShadows {
    const NAME: &'static str = "choose_shadows";
    fn visit(&mut self, see: &mut Visit<'_>) {
        read(see, "offsets", &mut self.offsets);
        write(see, "slots", &mut self.slots);
        write(see, "routed", &mut self.routed);
    }
    fn rule(&self) -> Rule {
        let mut rule = Rule::new(&self.operands());
        let (g, e) = (rule.whole("g", self.offsets.rows), rule.whole("e", self.offsets.cols));
        let s = rule.whole("s", self.slots.cols);
        for name in ["offsets", "routed"] {
            rule.dims(name, &[g], &[e]);
        }
        rule.dims("slots", &[], &[s]);
        rule.linear("offsets", Linear::Own);
        rule
    }
    fn flops(&self) -> f64 {
        0.0
    }
    fn shapes(&self) -> Result<(), TensorError> {
        let (devices, experts) = (self.offsets.rows.max(1), self.offsets.cols.max(2) - 1);
        expect_shape(Self::NAME, "offsets", &self.offsets, devices, experts.next_multiple_of(devices) + 1)?;
        expect_shape(Self::NAME, "slots", &self.slots, 1, self.slots.cols.clamp(1, experts))?;
        expect_shape(Self::NAME, "routed", &self.routed, devices, experts + 1)
    }
}

/// Adds to the gradients of a device's shadowed experts what all devices have made of them: `dW_e += sum_g terms_g`, in f32 and in the
/// order of the devices. A gradient in fewer bits is rounded after each: the bits of [`super::GroupedLinearBackwardWeight`] on rows that
/// came from the devices.
///
/// Rows of `terms` are those of device 0 for the first shadow of this device, for its second, ..., of device 1 for the first, ...; O rows each.
///
/// Sharding: terms (t o, i), slots (s), dweight (l o, i); o, i free, the others whole; linear in terms.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AddShadowGradients {
    /// f32 `[G S O, I]`.
    pub terms: View,
    /// u32 `[1, S]`, as of [`ChooseShadows`].
    pub slots: View,
    /// First expert of the device.
    pub first: usize,
    /// L, experts of the device.
    pub experts: usize,
    /// `[L O, I]`.
    pub dweight: View,
}

impl AddShadowGradients {
    /// O, rows of a matrix.
    pub fn outputs(&self) -> usize {
        self.dweight.rows / self.experts.max(1)
    }

    /// G.
    pub fn devices(&self) -> usize {
        self.terms.rows / (self.slots.cols * self.outputs()).max(1)
    }
}

impl Describe for AddShadowGradients {
    const NAME: &'static str = "add_shadow_gradients";
    fn visit(&mut self, see: &mut Visit<'_>) {
        read(see, "terms", &mut self.terms);
        read(see, "slots", &mut self.slots);
        update(see, "dweight", &mut self.dweight);
    }
    fn rule(&self) -> Rule {
        let mut rule = Rule::new(&self.operands());
        let outputs = self.outputs();
        let o = rule.free(Rule::OUTPUTS, outputs);
        let i = rule.free("i", self.dweight.cols);
        let (l, t) = (rule.whole("l", self.experts), rule.whole("t", self.terms.rows / outputs.max(1)));
        let s = rule.whole("s", self.slots.cols);
        rule.dims("terms", &[t, o], &[i]);
        rule.dims("slots", &[], &[s]);
        rule.dims("dweight", &[l, o], &[i]);
        rule.linear("terms", Linear::Alone);
        rule.linear("slots", Linear::Own);
        rule.accumulated("dweight");
        rule
    }
    fn flops(&self) -> f64 {
        self.terms.len() as f64
    }
    fn shapes(&self) -> Result<(), TensorError> {
        let (outputs, slots) = (self.outputs(), self.slots.cols.max(1));
        expect_shape(Self::NAME, "dweight", &self.dweight, self.experts.max(1) * outputs, self.dweight.cols)?;
        expect_shape(Self::NAME, "slots", &self.slots, 1, slots)?;
        let rows = self.devices().max(1) * slots * outputs;
        expect_shape(Self::NAME, "terms", &self.terms, rows, self.dweight.cols)
    }
}
