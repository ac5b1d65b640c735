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
use bessemer_tensor::{Backend, BufferSpec, TensorError, View};
use bessemer_units::DType;
use std::ops::Range;

/// Class of the memory in which values wait for collectives.
pub(crate) const IN_FLIGHT: &str = "in-flight buffers";

/// Memory on the device for encoded parts, or the place of one in it.
#[derive(Debug, Clone, Copy)]
struct Encoded {
    codes: View,
    scales: View,
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

impl Encoded {
    fn alloc(backend: &mut dyn Backend, (codes, scales): (usize, usize)) -> Result<Encoded, TensorError> {
        let mut vector = |name, dtype, len| {
            Ok::<_, TensorError>(backend.alloc(BufferSpec { class: IN_FLIGHT, name, dtype, len })?.vector())
        };
        let codes = vector("codes of gradients", DType::U8, codes)?;
        Ok(Encoded { codes, scales: vector("scales of gradients", DType::F32, scales)? })
    }

    /// The position of a part of `len` elements after so many codes and scales of others.
    fn part(self, (codes, scales): (usize, usize), len: usize) -> Encoded {
        Encoded {
            codes: self.codes.columns(codes, len),
            scales: self.scales.columns(scales, len.div_ceil(GRADIENT_BLOCK)),
        }
    }

    fn views(self) -> [View; 2] {
        [self.codes, self.scales]
    }

    /// Operators that encode a part into this place.
    fn encode(self, values: View) -> impl Iterator<Item = Op> {
        matrices(values.len()).map(move |blocks| {
            let (codes, scales) = self.place(blocks);
            Quantise { src: matrix(values, blocks), codes, scales, keep_sign: false }.into()
        })
    }

    /// Operators that decode a part from this place.
    fn decode(self, dst: View, accumulate: bool) -> impl Iterator<Item = Op> {
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
}

/// A piece as the ranks of one axis share it out.
#[derive(Debug)]
pub(crate) struct QuantisedPiece {
    /// Indexed by rank.
    pub(crate) views: Vec<View>,
    /// Indexed by rank: bytes of its part.
    pub(crate) bytes: Parts,
    /// Indexed by rank: bytes that arrive from it, those of the own part.
    pub(crate) received: Parts,
    /// Indexed by rank: codes and scales of the previous parts, and of all parts at the end.
    starts: Vec<(usize, usize)>,
    me: usize,
}

impl QuantisedPiece {
    fn new(views: Vec<View>, me: usize) -> QuantisedPiece {
        let bytes = Parts::of(views.iter().map(|view| quantised_bytes(view.len())));
        let received = Parts::of(views.iter().map(|_| bytes.range(me).len()));
        let mut starts = vec![(0, 0)];
        let mut end = (0, 0);
        starts.extend(views.iter().map(|view| {
            end = (end.0 + view.len(), end.1 + view.len().div_ceil(GRADIENT_BLOCK));
            end
        }));
        QuantisedPiece { views, bytes, received, starts, me }
    }

    /// Codes and scales of the own part from every rank.
    fn received_len(&self) -> (usize, usize) {
        let (own, ranks) = (self.views[self.me].len(), self.views.len());
        (ranks * own, ranks * own.div_ceil(GRADIENT_BLOCK))
    }

    /// Most bytes that a rank sends: in an all-to-all all but its own part, in an all-gather all but the next one's.
    pub(crate) fn most_sent(&self) -> u64 {
        let least = (0..self.bytes.count()).map(|rank| self.bytes.range(rank).len()).min().unwrap_or(0);
        (self.bytes.len() - least) as u64
    }
}

/// Memory on the device for one piece in flight.
#[derive(Debug, Clone, Copy)]
struct Int8Slot {
    /// Parts of all ranks, as this rank encodes them, or as an all-gather returns them.
    parts: Encoded,
    /// The own part, as every rank encodes it.
    own: Encoded,
}

/// Pieces in 8 bits, and memory for those in flight.
#[derive(Debug)]
pub(crate) struct Int8 {
    slots: Vec<Int8Slot>,
    /// The sum, where gradients are not f32.
    sum: Option<View>,
    /// Indexed by unit and piece, if the unit is sharded over several ranks.
    shard: Vec<Vec<QuantisedPiece>>,
    /// Indexed by unit and piece, if the unit has several replicas.
    replicate: Vec<Vec<QuantisedPiece>>,
}

impl Int8 {
    /// `at` gives this rank's position in the group of a unit, `gradients` a unit's whole gradients, `summed` the view of a piece
    /// that replicas reduce. A frozen unit has no pieces here. `most` pieces are in flight at once.
    pub(crate) fn alloc(
        backend: &mut dyn Backend,
        most: usize,
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
        let all = || shard.iter().chain(&replicate).flatten();
        let largest = |of: &dyn Fn(&QuantisedPiece) -> (usize, usize)| {
            all().map(of).fold((0, 0), |(a, b), (codes, scales)| (a.max(codes), b.max(scales)))
        };
        let parts = largest(&|piece| piece.starts.last().copied().unwrap_or_default());
        let own = largest(&QuantisedPiece::received_len);
        let slot =
            |_| Ok(Int8Slot { parts: Encoded::alloc(backend, parts)?, own: Encoded::alloc(backend, own)? });
        let slots = (0..most).map(slot).collect::<Result<_, TensorError>>()?;
        let views = || all().flat_map(|piece| &piece.views);
        let len = views().map(View::len).max().unwrap_or(0);
        let sum = match views().next().map_or(DType::F32, View::dtype) {
            DType::F32 => None,
            _ => {
                let spec = BufferSpec { class: IN_FLIGHT, name: "sum of gradients", dtype: DType::F32, len };
                Some(backend.alloc(spec)?.vector())
            }
        };
        Ok(Int8 { slots, sum, shard, replicate })
    }

    /// Most bytes of a staging buffer: the bytes that an all-to-all sends and receives.
    pub(crate) fn most_staged(&self) -> usize {
        let all = self.shard.iter().chain(&self.replicate).flatten();
        all.map(|parts| parts.bytes.len() + parts.received.len()).max().unwrap_or(0)
    }

    /// A piece of which `own` is this rank's part, in the memory of a slot.
    pub(crate) fn within<'p>(&self, slot: usize, piece: &'p QuantisedPiece, own: View) -> PieceInSlot<'p> {
        PieceInSlot {
            slot: self.slots[slot],
            piece,
            own,
            rounded: self.sum.map(|sum| sum.columns(0, own.len())),
        }
    }

    /// A piece on an axis.
    pub(crate) fn piece(&self, axis: Axis, unit: usize, piece: usize) -> &QuantisedPiece {
        let of = if axis == Axis::Replicate { &self.replicate } else { &self.shard };
        &of[unit][piece]
    }
}

/// A piece in memory for pieces in flight.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PieceInSlot<'p> {
    slot: Int8Slot,
    piece: &'p QuantisedPiece,
    own: View,
    /// Memory of the sum that is rounded to `own`, if it is.
    rounded: Option<View>,
}

impl<'p> PieceInSlot<'p> {
    /// Place of a rank's part, as this rank encodes it.
    fn part(self, rank: usize) -> Encoded {
        self.slot.parts.part(self.piece.starts[rank], self.piece.views[rank].len())
    }

    /// Place of the own part, as another rank encodes it.
    fn received(self, rank: usize) -> Encoded {
        let len = self.own.len();
        self.slot.own.part((rank * len, rank * len.div_ceil(GRADIENT_BLOCK)), len)
    }

    fn each<T, I: IntoIterator<Item = T>>(self, of: impl Fn(usize) -> I) -> impl Iterator<Item = T> {
        (0..self.piece.views.len()).flat_map(of)
    }

    /// Operators that encode every rank's part.
    pub(crate) fn encode_parts(self) -> impl Iterator<Item = Op> {
        self.each(move |rank| self.part(rank).encode(self.piece.views[rank]))
    }

    /// Operators that decode every rank's part.
    pub(crate) fn decode_parts(self) -> impl Iterator<Item = Op> {
        self.each(move |rank| self.part(rank).decode(self.piece.views[rank], false))
    }

    /// Operators that decode the received parts of the own part, and sum them.
    pub(crate) fn decode_sum(self) -> impl Iterator<Item = Op> {
        self.each(move |rank| self.received(rank).decode(self.rounded.unwrap_or(self.own), rank > 0))
    }

    /// Operators that encode that sum as the own part.
    pub(crate) fn encode_sum(self) -> impl Iterator<Item = Op> {
        self.part(self.piece.me).encode(self.rounded.unwrap_or(self.own))
    }

    /// The operator that rounds that sum to the type of gradients, if that is another.
    pub(crate) fn round(self) -> Option<Op> {
        self.rounded.map(|src| Copy { src, dst: self.own }.into())
    }

    /// Views of every rank's part.
    pub(crate) fn parts(self) -> impl Iterator<Item = View> {
        self.each(move |rank| self.part(rank).views())
    }

    /// Views of this rank's part.
    pub(crate) fn mine(self) -> [View; 2] {
        self.part(self.piece.me).views()
    }

    /// Views of the own part's data from every rank.
    pub(crate) fn incoming(self) -> impl Iterator<Item = View> {
        self.each(move |rank| self.received(rank).views())
    }
}

#[cfg(test)]
#[path = "int8_tests.rs"]
#[allow(clippy::unwrap_used, reason = "a failed unwrap here is a failed test")]
mod tests;
