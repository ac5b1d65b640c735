//! Measured times of a machine's operators and of collectives between ranks of one process, as `bessemer doctor --machine` writes
//! them. Where a machine has them they take the place of the model.

use bessemer_program::CollectiveKind;
use bessemer_sim::replay::LinearSeconds;
use bessemer_tensor::op::Op;
use serde::{Deserialize, Serialize};

/// One of the three products of a linear map.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ProductKind {
    /// Outputs from inputs: (M, K) by (N, K) transposed.
    Forward,
    /// The gradient of the inputs: (M, K) by (K, N).
    Input,
    /// The gradient of the weights: (K, M) transposed by (K, N).
    Weight,
}

/// Measured rates of matrix products over a grid of shapes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProductGrid {
    /// Product that the grid is of.
    pub kind: ProductKind,
    /// Bytes of an element of an activation.
    pub element_bytes: usize,
    /// Rows of the result, ascending.
    pub m: Vec<f64>,
    /// Columns of the result, ascending.
    pub n: Vec<f64>,
    /// Terms of a sum, ascending.
    pub k: Vec<f64>,
    /// FLOP/s of one rank, m slowest, k fastest.
    pub flops_per_second: Vec<f64>,
}

/// Measured time of the operators of one name: `fixed + per_flop flops + per_byte bytes`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MeasuredOperator {
    /// Name of the operator.
    pub name: String,
    /// Seconds of an empty one.
    pub fixed: f64,
    /// Seconds of a floating-point operation.
    pub per_flop: f64,
    /// Seconds of a byte of the operands.
    pub per_byte: f64,
}

/// Seconds that grow with bytes.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ByteSeconds {
    /// Seconds of an empty one.
    pub fixed: f64,
    /// Seconds of a byte.
    pub per_byte: f64,
}

impl ByteSeconds {
    pub(crate) fn of(&self, bytes: u64) -> f64 {
        LinearSeconds { fixed: self.fixed, per_byte: self.per_byte }.of(bytes)
    }
}

impl From<LinearSeconds> for ByteSeconds {
    fn from(line: LinearSeconds) -> Self {
        ByteSeconds { fixed: line.fixed, per_byte: line.per_byte }
    }
}

/// Measured time of a collective of ranks of one process: what processors take to move and sum the values.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MeasuredCollective {
    /// "all-reduce", "reduce-scatter", "all-gather" or "all-to-all".
    pub kind: String,
    /// Ranks of a group; all groups of so many ranks run at the same time.
    pub ranks: usize,
    /// Seconds of an empty one.
    pub fixed: f64,
    /// Seconds of a byte of the whole values.
    pub per_byte: f64,
}

/// Measured transport between ranks that are threads of one process. Their devices are processors, so a collective takes time of
/// the rank.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InProcess {
    /// Whether progress threads have cores of their own.
    pub spare_cores: bool,
    /// Seconds that a collective takes longer on a progress thread.
    pub handoff: f64,
    /// Copies between a rank's device and the memory that collectives work on.
    pub copy: ByteSeconds,
    /// Handing over a message.
    pub send: ByteSeconds,
    /// Taking a message that is there.
    pub receive: ByteSeconds,
    /// Collectives.
    pub collectives: Vec<MeasuredCollective>,
}

/// Measurements of a machine.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measurements {
    /// Matrix products of linear maps.
    #[serde(default)]
    pub products: Vec<ProductGrid>,
    /// Other operators.
    #[serde(default)]
    pub operators: Vec<MeasuredOperator>,
    /// Transport between ranks of one process; absent where devices run collectives of their own.
    #[serde(default)]
    pub in_process: Option<InProcess>,
}

/// The name of a kind in a machine's file.
pub fn kind_name(kind: CollectiveKind) -> &'static str {
    match kind {
        CollectiveKind::AllReduce => "all-reduce",
        CollectiveKind::ReduceScatter => "reduce-scatter",
        CollectiveKind::AllGather => "all-gather",
        CollectiveKind::AllToAll => "all-to-all",
        CollectiveKind::Permute => "permute",
    }
}

impl Measurements {
    /// Seconds of an operator, if it or its like was measured.
    pub fn op_seconds(&self, op: &Op) -> Option<f64> {
        let (kind, [m, n, k], element) = match op {
            Op::Linear(l) => (ProductKind::Forward, [l.x.rows, l.weight.rows, l.x.cols], l.x.dtype().size()),
            Op::LinearBackwardInput(l) => {
                (ProductKind::Input, [l.dy.rows, l.weight.cols, l.weight.rows], l.dy.dtype().size())
            }
            Op::LinearBackwardWeight(l) => {
                (ProductKind::Weight, [l.dy.cols, l.x.cols, l.dy.rows], l.dy.dtype().size())
            }
            other => {
                let found = self.operators.iter().find(|measured| measured.name == other.name())?;
                let MeasuredOperator { fixed, per_flop, per_byte, .. } = found;
                return Some(fixed + per_flop * other.flops().0 + per_byte * other.bytes().0 as f64);
            }
        };
        let grid = self.products.iter().find(|grid| grid.kind == kind && grid.element_bytes == element)?;
        Some(grid.seconds([m as f64, n as f64, k as f64]))
    }

    /// Seconds of matrix products of a shape, if such were measured: the rate of a forward pass.
    pub(crate) fn product_seconds(&self, [m, n, k]: [f64; 3], element_bytes: f64) -> Option<f64> {
        let is = |grid: &&ProductGrid| {
            grid.kind == ProductKind::Forward && grid.element_bytes as f64 == element_bytes
        };
        Some(self.products.iter().find(is)?.seconds([m, n, k]))
    }

    /// Refuses figures that cannot be.
    pub(crate) fn check(&self) -> Result<(), String> {
        let ascending = |axis: &[f64]| {
            axis.first().is_some_and(|first| *first > 0.0) && axis.windows(2).all(|pair| pair[0] < pair[1])
        };
        for grid in &self.products {
            let axes = [&grid.m, &grid.n, &grid.k];
            if !axes.iter().all(|axis| ascending(axis)) {
                return Err("measured.products: wanted m, n and k above 0, ascending".into());
            }
            let wanted: usize = axes.iter().map(|axis| axis.len()).product();
            if grid.flops_per_second.len() != wanted
                || !grid.flops_per_second.iter().all(|rate| rate.is_finite() && *rate > 0.0)
            {
                return Err(format!(
                    "measured.products: {} rates; wanted {wanted}, one for each m, n and k, each above 0",
                    grid.flops_per_second.len()
                ));
            }
        }
        let right = |values: &[f64]| values.iter().all(|value| value.is_finite() && *value >= 0.0);
        for MeasuredOperator { name, fixed, per_flop, per_byte } in &self.operators {
            if !right(&[*fixed, *per_flop, *per_byte]) {
                return Err(format!("measured.operators: {name} needs times of at least 0"));
            }
        }
        let Some(process) = &self.in_process else { return Ok(()) };
        let lines = [process.copy, process.send, process.receive];
        let times = lines.iter().flat_map(|line| [line.fixed, line.per_byte]);
        let collectives = process.collectives.iter().flat_map(|line| [line.fixed, line.per_byte]);
        match right(&times.chain(collectives).chain([process.handoff]).collect::<Vec<f64>>()) {
            true => Ok(()),
            false => Err("measured.in_process needs times of at least 0".into()),
        }
    }
}

impl InProcess {
    /// Seconds of a collective among `ranks` ranks. A group that was not measured takes the next larger one, a group above all the
    /// largest.
    pub(crate) fn collective_seconds(&self, kind: CollectiveKind, ranks: usize, bytes: u64) -> f64 {
        let name = kind_name(kind);
        let of_kind = || self.collectives.iter().filter(|measured| measured.kind == name);
        let larger = of_kind().filter(|measured| measured.ranks >= ranks).min_by_key(|one| one.ranks);
        let found = larger.or_else(|| of_kind().max_by_key(|one| one.ranks));
        found.map_or(0.0, |one| ByteSeconds { fixed: one.fixed, per_byte: one.per_byte }.of(bytes))
    }
}

impl ProductGrid {
    /// Seconds of a product: the rate is interpolated in the logarithms of all, and is that of the nearest shape outside of the grid.
    pub fn seconds(&self, [m, n, k]: [f64; 3]) -> f64 {
        let places = [place(&self.m, m), place(&self.n, n), place(&self.k, k)];
        let mut rate = 0.0;
        for corner in 0..8usize {
            let (mut index, mut weight) = (0, 1.0);
            for (axis, (place, len)) in
                places.iter().zip([self.m.len(), self.n.len(), self.k.len()]).enumerate()
            {
                let upper = corner >> axis & 1 == 1;
                index = index * len + if upper { place.upper } else { place.lower };
                weight *= if upper { place.share } else { 1.0 - place.share };
            }
            if weight > 0.0 {
                rate += weight * self.flops_per_second[index].ln();
            }
        }
        2.0 * m * n * k / rate.exp()
    }
}

/// A number between two of an axis.
struct AxisPlace {
    lower: usize,
    upper: usize,
    /// Of the way from the lower to the upper one, in logarithms.
    share: f64,
}

fn place(axis: &[f64], value: f64) -> AxisPlace {
    let last = axis.len() - 1;
    let value = value.clamp(axis[0], axis[last]);
    let upper = axis.partition_point(|one| *one < value).min(last);
    let lower = upper.saturating_sub(1);
    let share =
        if upper == lower { 0.0 } else { (value / axis[lower]).ln() / (axis[upper] / axis[lower]).ln() };
    AxisPlace { lower, upper, share }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grid(rate: impl Fn(f64, f64, f64) -> f64) -> ProductGrid {
        let axis = [16.0, 64.0, 256.0];
        let mut flops_per_second = Vec::new();
        for m in axis {
            for n in axis {
                flops_per_second.extend(axis.map(|k| rate(m, n, k)));
            }
        }
        let (kind, axis) = (ProductKind::Forward, axis.to_vec());
        ProductGrid { kind, element_bytes: 4, m: axis.clone(), n: axis.clone(), k: axis, flops_per_second }
    }

    /// Rates that are powers of the sizes are lines in logarithms.
    #[test]
    fn rates_are_interpolated_in_logarithms_and_kept_beyond_the_grid() {
        let rate = |m: f64, n: f64, k: f64| 1e9 * m.powf(0.5) * n.powf(0.25) * k.powf(0.125);
        let grid = grid(rate);
        for [m, n, k] in [[16.0, 64.0, 256.0], [32.0, 100.0, 17.0], [255.0, 16.0, 128.0]] {
            let expected = 2.0 * m * n * k / rate(m, n, k);
            assert!((grid.seconds([m, n, k]) / expected - 1.0).abs() < 1e-12, "{m} {n} {k}");
        }
        let beyond = 2.0 * 1024.0 * 64.0 * 64.0 / rate(256.0, 64.0, 64.0);
        assert!((grid.seconds([1024.0, 64.0, 64.0]) / beyond - 1.0).abs() < 1e-12);
    }

    #[test]
    fn grids_that_cannot_be_are_refused() {
        let right = grid(|_, _, _| 1e9);
        let check = |grid: ProductGrid| {
            Measurements { products: vec![grid], ..Measurements::default() }.check().err().unwrap_or_default()
        };
        assert_eq!(check(right.clone()), "");
        assert!(check(ProductGrid { m: vec![1.0], ..right.clone() }).contains("27 rates; wanted 9"));
        assert!(check(ProductGrid { n: vec![4.0, 4.0, 5.0], ..right.clone() }).contains("ascending"));
        let rates = vec![0.0; 27];
        assert!(check(ProductGrid { flops_per_second: rates, ..right }).contains("above 0"));
    }

    #[test]
    fn groups_that_were_not_measured_take_the_next_larger_one() {
        let line = |ranks: usize, fixed: f64| MeasuredCollective {
            kind: "all-gather".into(),
            ranks,
            fixed,
            per_byte: 1.0,
        };
        let process = InProcess {
            spare_cores: false,
            handoff: 0.0,
            copy: ByteSeconds::default(),
            send: ByteSeconds::default(),
            receive: ByteSeconds::default(),
            collectives: vec![line(2, 10.0), line(8, 80.0)],
        };
        let seconds = |ranks| process.collective_seconds(CollectiveKind::AllGather, ranks, 3);
        assert_eq!([2, 3, 8, 16].map(seconds), [13.0, 83.0, 83.0, 83.0]);
        assert_eq!(process.collective_seconds(CollectiveKind::AllToAll, 2, 3), 0.0);
    }
}
