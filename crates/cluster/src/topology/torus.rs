//! Tori: devices in a grid that is closed in every dim, each joined to its two neighbours in each.
//!
//! k^d devices with k > 2 have d k^d cables, a bisection of 2 k^(d-1) and a diameter of d floor(k/2). A dim of 2 has one
//! cable between its two devices, not two. The first dim varies fastest.

use super::{End, MOST_HOSTS};
use crate::ClusterError;

/// A torus.
#[derive(Debug, Clone, PartialEq)]
pub struct Torus {
    dims: Vec<u32>,
}

impl Torus {
    /// A torus with these dims.
    ///
    /// # Errors
    /// No dim or more than 6, a dim below 2, more than 2^20 devices.
    pub fn new(dims: &[u32]) -> Result<Torus, ClusterError> {
        let devices =
            dims.iter().try_fold(1u32, |n, k| n.checked_mul(*k).filter(|n| u64::from(*n) <= MOST_HOSTS));
        if dims.is_empty() || dims.len() > 6 || dims.iter().any(|k| *k < 2) || devices.is_none() {
            return Err(ClusterError::value(
                "network.dims",
                "1 to 6 numbers, each 2 or more, of at most 1048576 devices",
                format!("{dims:?}"),
                "[8, 8, 8] is a torus of 512 devices",
            ));
        }
        Ok(Torus { dims: dims.to_vec() })
    }

    /// Devices along each dim.
    pub fn dims(&self) -> &[u32] {
        &self.dims
    }

    /// Number of devices.
    pub fn hosts(&self) -> u32 {
        self.dims.iter().product()
    }

    /// Cables of a device.
    pub fn radix(&self) -> u32 {
        self.dims.iter().map(|k| (*k).min(3) - 1).sum()
    }

    /// Number of cables.
    pub fn cables(&self) -> u64 {
        let per_dim = |k: &u32| if *k > 2 { u64::from(self.hosts()) } else { u64::from(self.hosts()) / 2 };
        self.dims.iter().map(per_dim).sum()
    }

    /// Links of the longest minimal path: half of each dim.
    pub fn diameter(&self) -> u32 {
        self.dims.iter().map(|k| k / 2).sum()
    }

    /// The dim that is cut into two halves.
    fn longest(&self) -> usize {
        (0..self.dims.len()).max_by_key(|d| (self.dims[*d], std::cmp::Reverse(*d))).unwrap_or(0)
    }

    /// Cables between the halves of the longest dim, which is cut in two places if it is longer than 2.
    pub fn bisection(&self) -> u64 {
        let k = self.dims[self.longest()];
        u64::from(self.hosts() / k) * if k > 2 { 2 } else { 1 }
    }

    /// Coordinate of a device in a dim.
    pub fn coordinate(&self, device: u32, dim: usize) -> u32 {
        device / self.stride(dim) % self.dims[dim]
    }

    /// Distance in numbering between neighbours in a dim.
    pub(crate) fn stride(&self, dim: usize) -> u32 {
        self.dims[..dim].iter().product()
    }

    /// Links of a minimal path between devices: the shorter way round in each dim.
    pub fn distance(&self, from: u32, to: u32) -> u32 {
        let along = |dim: usize| {
            let apart = self.coordinate(from, dim).abs_diff(self.coordinate(to, dim));
            apart.min(self.dims[dim] - apart)
        };
        (0..self.dims.len()).map(along).sum()
    }

    pub(crate) fn in_first_half(&self, end: End) -> bool {
        match end {
            End::Host(host) => self.coordinate(host, self.longest()) < self.dims[self.longest()] / 2,
            End::Switch(_) => false,
        }
    }

    pub(crate) fn emit_cables(&self, emit: &mut dyn FnMut(End, End)) {
        for device in 0..self.hosts() {
            for (dim, k) in self.dims.iter().enumerate() {
                let (at, stride) = (self.coordinate(device, dim), self.stride(dim));
                if at + 1 < *k {
                    emit(End::Host(device), End::Host(device + stride));
                } else if *k > 2 {
                    emit(End::Host(device), End::Host(device - at * stride));
                }
            }
        }
    }
}
