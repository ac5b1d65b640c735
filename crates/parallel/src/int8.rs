//! Gradients in 8 bits between data-parallel ranks: the quantised reductions of ZeRO++ (Wang et al. 2023, section 3.3), in one hop over
//! all ranks of the axis.
//!
//! A piece of a flat unit has one part for each of n ranks, and a part has blocks of [`GRADIENT_BLOCK`] elements, the last of which may
//! be shorter. `E` encodes a part as codes and scales ([`Quantise`]), `D` decodes it ([`Dequantise`]):
//!
//! ```text
//! reduce-scatter  all-to-all of E(x_r), part by part;  y = ((D E(x_0) + D E(x_1)) + ...) + D E(x_{n-1}) on the part's rank, in f32
//! all-reduce      the same; all-gather of E(y);  z = D E(y) on every rank
//! ```
//! All ranks decode the same bytes, so replicas stay equal. Over a block, with m(v) the largest magnitude of v, both up to rounding (each
//! code 2^-13 of its bound, each sum 2^-24 of the sum):
//!
//! ```text
//! |y - sum x_r| <= sum m(x_r) / 254          |z - sum x_r| <= sum m(x_r) / 254 + m(y) / 254
//! ```
//! A block whose largest magnitude is below 2^-100 is zero. One value that is not finite makes its block not a number on every rank that
//! decodes it, so the norm of the gradient shows it. A part of L elements travels as [`quantised_bytes`] of L.

use crate::piece::Piece;
use bessemer_collectives::Parts;
use bessemer_mesh::{Axis, even};
use bessemer_program::DataRank;
use bessemer_tensor::op::{Copy, Dequantise, GRADIENT_BLOCK, Op, Quantise, quantised_bytes};
use bessemer_tensor::{Backend, BufferSpec, Stream, TensorError, View};
use bessemer_units::DType;
use std::ops::Range;

/// Class of the memory in which values wait for collectives.
pub(crate) const IN_FLIGHT: &str = "in-flight buffers";

/// Memory on the device for one part.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Int8Scratch {
    codes: View,
    scales: View,
    /// The sum, where gradients are not f32.
    sum: Option<View>,
}

/// Blocks of a vector that [`Quantise`] takes as one matrix, a block in each row.
#[derive(Debug, Clone, Copy)]
struct BlockMatrix {
    /// First element.
    start: usize,
    rows: usize,
    cols: usize,
}

/// The whole blocks of a vector, and a shorter one.
fn matrices(len: usize) -> impl Iterator<Item = BlockMatrix> {
    let rows = len / GRADIENT_BLOCK;
    let whole = BlockMatrix { start: 0, rows, cols: GRADIENT_BLOCK };
    let rest = BlockMatrix { start: rows * GRADIENT_BLOCK, rows: 1, cols: len % GRADIENT_BLOCK };
    [whole, rest].into_iter().filter(|blocks| blocks.rows * blocks.cols > 0)
}

fn matrix(vector: View, BlockMatrix { start, rows, cols }: BlockMatrix) -> View {
    View { offset: vector.offset + start, rows, cols, stride: cols, ..vector }
}

impl Int8Scratch {
    /// Allocates for parts of at most `longest` elements of gradients of type `dtype`.
    fn alloc(backend: &mut dyn Backend, longest: usize, dtype: DType) -> Result<Int8Scratch, TensorError> {
        let mut vector = |name, dtype, len| {
            Ok::<_, TensorError>(backend.alloc(BufferSpec { class: IN_FLIGHT, name, dtype, len })?.vector())
        };
        let codes = vector("codes of gradients", DType::U8, longest)?;
        let scales = vector("scales of gradients", DType::F32, longest.div_ceil(GRADIENT_BLOCK))?;
        let sum = match dtype {
            DType::F32 => None,
            _ => Some(vector("sum of gradients", DType::F32, longest)?),
        };
        Ok(Int8Scratch { codes, scales, sum })
    }

    /// Operators that encode a part into this memory.
    pub(crate) fn encode(self, values: View) -> impl Iterator<Item = Op> {
        matrices(values.len()).map(move |blocks| {
            let (codes, scales) = self.place(blocks);
            Quantise { src: matrix(values, blocks), codes, scales, keep_sign: false }.into()
        })
    }

    /// Operators that decode a part from this memory.
    pub(crate) fn decode(self, dst: View, accumulate: bool) -> impl Iterator<Item = Op> {
        matrices(dst.len()).map(move |blocks| {
            let (codes, scales) = self.place(blocks);
            Dequantise { codes, scales, dst: matrix(dst, blocks), accumulate }.into()
        })
    }

    /// Places of codes and scales of some blocks.
    fn place(&self, blocks: BlockMatrix) -> (View, View) {
        let BlockMatrix { start, rows, .. } = blocks;
        let scales = BlockMatrix { start: start / GRADIENT_BLOCK, rows, cols: 1 };
        (matrix(self.codes, blocks), matrix(self.scales, scales))
    }

    /// Where the sum of a part is formed that belongs to `own`.
    pub(crate) fn sum_of(&self, own: View) -> View {
        self.sum.map_or(own, |sum| sum.columns(0, own.len()))
    }

    /// The operator that rounds such a sum to the type of gradients, if that is another.
    pub(crate) fn round(&self, own: View) -> Option<Op> {
        self.sum.map(|_| Copy { src: self.sum_of(own), dst: own }.into())
    }

    /// Codes and scales of a part of so many elements.
    fn halves(&self, len: usize) -> (View, View) {
        (self.codes.columns(0, len), self.scales.columns(0, len.div_ceil(GRADIENT_BLOCK)))
    }

    /// Copies an encoded part of `len` elements to the host.
    pub(crate) fn read(
        &self,
        backend: &mut dyn Backend,
        len: usize,
        bytes: &mut [u8],
    ) -> Result<(), TensorError> {
        let (codes, scales) = self.halves(len);
        let (of_codes, of_scales) = bytes.split_at_mut(len);
        backend.read_bytes(Stream::Compute, codes, of_codes)?;
        backend.read_bytes(Stream::Compute, scales, of_scales)
    }

    /// Copies an encoded part of `len` elements from the host.
    pub(crate) fn write(
        &self,
        backend: &mut dyn Backend,
        len: usize,
        bytes: &[u8],
    ) -> Result<(), TensorError> {
        let (codes, scales) = self.halves(len);
        let (of_codes, of_scales) = bytes.split_at(len);
        backend.write_bytes(Stream::Compute, codes, of_codes)?;
        backend.write_bytes(Stream::Compute, scales, of_scales)
    }
}

/// A piece as the ranks of one axis share it out.
#[derive(Debug)]
pub(crate) struct QuantisedPiece {
    /// By rank.
    pub(crate) views: Vec<View>,
    /// By rank: bytes of its part.
    pub(crate) bytes: Parts,
    /// By rank: bytes that come from it, those of the own part.
    pub(crate) received: Parts,
}

impl QuantisedPiece {
    fn new(views: Vec<View>, me: usize) -> QuantisedPiece {
        let bytes = Parts::of(views.iter().map(|view| quantised_bytes(view.len())));
        let received = Parts::of(views.iter().map(|_| bytes.range(me).len()));
        QuantisedPiece { views, bytes, received }
    }

    /// Most bytes that a rank sends: in an all-to-all all but its own part, in an all-gather all but the next one's.
    pub(crate) fn most_sent(&self) -> u64 {
        let least = (0..self.bytes.count()).map(|rank| self.bytes.range(rank).len()).min().unwrap_or(0);
        (self.bytes.len() - least) as u64
    }
}

/// What transfers in 8 bits need beside staging buffers.
#[derive(Debug)]
pub(crate) struct Int8 {
    pub(crate) scratch: Int8Scratch,
    /// By unit and piece, if the unit is sharded over several ranks.
    shard: Vec<Vec<QuantisedPiece>>,
    /// By unit and piece, if the unit has several replicas.
    replicate: Vec<Vec<QuantisedPiece>>,
}

impl Int8 {
    /// `at` gives this rank's position in the group of a unit, `gradients` a unit's whole gradients, `summed` the view of a piece
    /// that replicas reduce. A frozen unit has no pieces here.
    pub(crate) fn alloc(
        backend: &mut dyn Backend,
        pieces: &[Vec<Piece>],
        at: &dyn Fn(usize) -> DataRank,
        gradients: &dyn Fn(usize) -> Option<View>,
        summed: &dyn Fn(usize, &Piece) -> Option<View>,
    ) -> Result<Int8, TensorError> {
        let each = |parts: &dyn Fn(usize, &Piece) -> Option<QuantisedPiece>| -> Vec<Vec<QuantisedPiece>> {
            let unit =
                |(unit, pieces): (usize, &Vec<Piece>)| pieces.iter().filter_map(|p| parts(unit, p)).collect();
            pieces.iter().enumerate().map(unit).collect()
        };
        let columns = |of: View, range: &Range<usize>| of.columns(range.start, range.len());
        let by_shard = |unit: usize, piece: &Piece| {
            let (whole, (ranks, me)) = (gradients(unit)?, at(unit).shard);
            let parts = || piece.ranges.iter().map(|range| columns(whole, range)).collect();
            (ranks > 1).then(|| QuantisedPiece::new(parts(), me))
        };
        let by_replica = |unit: usize, piece: &Piece| {
            let (summed, (ranks, me)) = (summed(unit, piece)?, at(unit).replicate);
            let part = |rank| even(summed.len(), ranks, rank);
            let parts = || (0..ranks).map(part).map(|part| summed.columns(part.start, part.len)).collect();
            (ranks > 1).then(|| QuantisedPiece::new(parts(), me))
        };
        let (shard, replicate) = (each(&by_shard), each(&by_replica));
        let all = || shard.iter().chain(&replicate).flatten().flat_map(|parts| &parts.views);
        let longest = all().map(View::len).max().unwrap_or(0);
        let dtype = all().next().map_or(DType::F32, View::dtype);
        Ok(Int8 { scratch: Int8Scratch::alloc(backend, longest, dtype)?, shard, replicate })
    }

    /// Most bytes of a staging buffer: what an all-to-all sends and receives.
    pub(crate) fn most_staged(&self) -> usize {
        let all = self.shard.iter().chain(&self.replicate).flatten();
        all.map(|parts| parts.bytes.len() + parts.received.len()).max().unwrap_or(0)
    }

    /// A piece on an axis.
    pub(crate) fn piece(&self, axis: Axis, unit: usize, piece: usize) -> &QuantisedPiece {
        let of = if axis == Axis::Replicate { &self.replicate } else { &self.shard };
        &of[unit][piece]
    }
}

#[cfg(test)]
#[path = "int8_tests.rs"]
#[allow(clippy::unwrap_used, reason = "a failed unwrap here is a failed test")]
mod tests;
