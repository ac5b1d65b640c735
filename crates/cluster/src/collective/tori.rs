//! Collectives along several dims of a torus, or of a part of it, over both directions of each ring.

use super::{TrafficKind, phase};
use crate::topology::Torus;
use crate::{Route, Transfer, TransferPhase};

/// Part of a torus in which each device has one of a set of coordinates in each dim, whichever it has in the others.
struct TorusBlock {
    /// Dims in which the block has several coordinates, the shortest first.
    rings: Vec<BlockRing>,
}

/// The coordinates of a block in one dim, joined to a ring in their order.
#[derive(Debug, Clone, PartialEq)]
struct BlockRing {
    dim: usize,
    /// Ascending; two or more.
    coordinates: Vec<u32>,
}

impl TorusBlock {
    /// The block of a group's devices; `None` where they make no block.
    fn of(torus: &Torus, group: &[u32]) -> Option<TorusBlock> {
        let mut rings: Vec<BlockRing> = (0..torus.dims().len())
            .map(|dim| {
                let mut coordinates: Vec<u32> =
                    group.iter().map(|device| torus.coordinate(*device, dim)).collect();
                coordinates.sort_unstable();
                coordinates.dedup();
                BlockRing { dim, coordinates }
            })
            .collect();
        let devices: usize = rings.iter().map(|ring| ring.coordinates.len()).product();
        rings.retain(|ring| ring.coordinates.len() > 1);
        rings.sort_by_key(|ring| (ring.coordinates.len(), ring.dim));
        (devices == group.len()).then_some(TorusBlock { rings })
    }
}

impl BlockRing {
    fn len(&self) -> usize {
        self.coordinates.len()
    }

    /// Directions in which slices travel: both, but one between two devices, which are each other's neighbours in both.
    fn directions(&self) -> usize {
        if self.len() > 2 { 2 } else { 1 }
    }

    /// The device after `device` in the ring, or before it.
    fn neighbour(&self, torus: &Torus, device: u32, direction: usize) -> u32 {
        let (at, stride) = (torus.coordinate(device, self.dim), torus.stride(self.dim));
        let index = self.coordinates.iter().position(|coordinate| *coordinate == at).unwrap_or(0);
        let next = match direction {
            0 => (index + 1) % self.len(),
            _ => (index + self.len() - 1) % self.len(),
        };
        device - at * stride + self.coordinates[next] * stride
    }
}

/// Most messages on a link of a dim, where every device sends one to each of its neighbours in its group's ring. It is 1 in rings of
/// whole dims, 2 in a part of a dim, whose closing message takes the way back, and k where k groups alternate along the dim.
fn load(torus: &Torus, groups: &[Vec<u32>], rings: &[&BlockRing]) -> f64 {
    let Some(BlockRing { dim, .. }) = rings.first() else { return 1.0 };
    let (k, stride) = (torus.dims()[*dim], torus.stride(*dim));
    let mut loads = vec![[0u32; 2]; torus.hosts() as usize];
    for (group, ring) in groups.iter().zip(rings) {
        for device in group {
            for direction in 0..ring.directions() {
                let to = torus.coordinate(ring.neighbour(torus, *device, direction), *dim);
                let at = torus.coordinate(*device, *dim);
                let ahead = (to + k - at) % k;
                let backwards = usize::from(2 * ahead > k);
                let hops = if backwards == 1 { k - ahead } else { ahead };
                let origin = device - at * stride;
                for hop in 0..hops {
                    let coordinate = if backwards == 1 { (at + k - hop) % k } else { (at + hop) % k };
                    loads[(origin + coordinate * stride) as usize][backwards] += 1;
                }
            }
        }
    }
    f64::from(loads.iter().flatten().copied().max().unwrap_or(1).max(1))
}

/// Slices of the buffer of which each is reduced along all dims in turn, beginning with another dim, and gathered in the opposite order;
/// in each dim half of a slice travels in either direction. So each slice has a dim of its own at any time and all links are in use.
///
/// Slices are such that the first dim of each takes equally long: their sizes are inverse to `(k - 1)/k load/directions` of a dim of k
/// devices. `None` unless every group is a block of the torus and all blocks have the same sides.
pub(super) fn torus(
    torus: &Torus,
    groups: &[Vec<u32>],
    bytes: f64,
    kind: TrafficKind,
) -> Option<Vec<TransferPhase>> {
    let blocks: Vec<TorusBlock> =
        groups.iter().map(|group| TorusBlock::of(torus, group)).collect::<Option<_>>()?;
    let sides = |block: &TorusBlock| -> Vec<(usize, usize)> {
        block.rings.iter().map(|ring| (ring.dim, ring.len())).collect()
    };
    let rings = sides(blocks.first()?);
    if rings.is_empty() || blocks.iter().any(|block| sides(block) != rings) {
        return None;
    }
    let seconds: Vec<f64> = (0..rings.len())
        .map(|index| {
            let rings: Vec<&BlockRing> = blocks.iter().map(|block| &block.rings[index]).collect();
            let k = rings[0].len() as f64;
            (k - 1.0) / k * load(torus, groups, &rings) / rings[0].directions() as f64
        })
        .collect();
    let slices = super::formulas::torus_slices(&seconds);
    let stage = |stage: usize| {
        let mut flows = Vec::new();
        for (first, slice) in slices.iter().enumerate() {
            let index = (first + stage) % rings.len();
            let before: f64 =
                (0..stage).map(|earlier| rings[(first + earlier) % rings.len()].1 as f64).product();
            for (group, block) in groups.iter().zip(&blocks) {
                let ring = &block.rings[index];
                let k = ring.len() as f64;
                let sent = bytes * slice / before * (k - 1.0) / k / ring.directions() as f64;
                for (device, direction) in
                    group.iter().flat_map(|device| (0..ring.directions()).map(move |d| (*device, d)))
                {
                    let to = ring.neighbour(torus, device, direction);
                    let route = Route::Between { from: device, to };
                    flows.push(Transfer { route, bytes: sent, messages: ring.len() as u32 - 1 });
                }
            }
        }
        phase(flows, 1)
    };
    let reduce = (0..rings.len()).map(stage);
    let gather = (0..rings.len()).rev().map(stage);
    Some(match kind {
        TrafficKind::ReduceScatter => reduce.collect(),
        TrafficKind::AllGather => gather.collect(),
        _ => reduce.chain(gather).collect(),
    })
}
