//! Inputs and output gradients of a linear map whose matrix is sharded over the tensor axis, gathered for K-FAC's curvature.
//!
//! A matrix that is cut by rows has whole inputs and parts of the outputs' gradients on every rank; one that is cut by
//! columns the other way round. The factors of the whole matrix need the products of all columns with all others, so the
//! columns are gathered: n w (t-1)/t elements for n tokens and a cut side of w, per micro-batch that curvature sees. Columns
//! that several ranks hold (key/value heads) are each rank's term of a sum.

use crate::exchange::ExchangeError;
use crate::tensor::TensorGroup;
use bessemer_arch::{ParamClass, TensorShardParam};
use bessemer_collectives::{Collective, HostStaging, Parts, Pattern};
use bessemer_mesh::{DimRange, total};
use bessemer_tensor::op::{Add, Copy, Op};
use bessemer_tensor::{Backend, BufferSpec, Stream, TensorError, View};
use bessemer_units::DType;

/// Sharding of one matrix.
#[derive(Debug)]
struct Cut {
    /// The matrix is cut by columns: its inputs are cut, not its outputs.
    inputs: bool,
    /// Width of the whole side.
    width: usize,
    /// Indexed by tensor rank: columns of inputs or outputs.
    spans: Vec<Vec<DimRange>>,
    /// Indexed by tensor rank: `spans`, cut where those of the previous ranks begin and end.
    segments: Vec<Vec<Segment>>,
}

/// The matrices of a rank that are cut, and memory for their gathered columns.
#[derive(Debug)]
pub(crate) struct Columns {
    /// Indexed by parameter.
    cuts: Vec<Option<Cut>>,
    /// Columns of all ranks, one rank after the other, in the type of activations.
    gathered: View,
    /// `[tokens, widest side]`.
    whole: View,
    /// One term of a sum: columns that several ranks hold.
    term: View,
    parts: Parts,
}

impl Columns {
    /// Allocates memory for `tokens` rows of activations of type `activations`. `tensor_shards`: by parameter, the tensor shards of
    /// all tensor ranks.
    pub(crate) fn new(
        backend: &mut dyn Backend,
        tensor_shards: &[Vec<TensorShardParam>],
        tokens: usize,
        activations: DType,
        staging: &HostStaging,
    ) -> Result<Columns, TensorError> {
        let cut = |tensor_shards: &Vec<TensorShardParam>| {
            let sharding = &tensor_shards.first()?.sharding;
            let dim = sharding.dim().filter(|_| sharding.spec.class() == ParamClass::Matrix)?;
            let spans: Vec<Vec<DimRange>> = tensor_shards.iter().map(|p| p.ranges[dim].clone()).collect();
            let of_rank = |rank: usize| -> Vec<Segment> {
                spans[rank].iter().flat_map(|span| segments(*span, &spans[..rank])).collect()
            };
            let segments = (0..spans.len()).map(of_rank).collect();
            Some(Cut { inputs: dim == 1, width: sharding.spec.shape[dim], segments, spans })
        };
        let cuts: Vec<_> = tensor_shards.iter().map(cut).collect();
        let largest = |of: fn(&Cut) -> usize| tokens * cuts.iter().flatten().map(of).max().unwrap_or(0);
        let held = |c: &Cut| c.spans.iter().map(|s| total(s)).sum::<usize>();
        let repeated = |c: &Cut| {
            let widest = c.spans.iter().flatten().map(|s| s.len).max().unwrap_or(0);
            if c.spans.iter().map(|s| total(s)).sum::<usize>() > c.width { widest } else { 0 }
        };
        let mut alloc = |name: &str, dtype: DType, len: usize| {
            Ok::<_, TensorError>(backend.alloc(BufferSpec { class: "optimizer", name, dtype, len })?.vector())
        };
        let gathered = alloc("gathered columns for curvature", activations, largest(held))?;
        let whole = alloc("columns for curvature", DType::F32, largest(|c| c.width))?;
        let term = alloc("term of columns for curvature", DType::F32, largest(repeated))?;
        staging.plan(1, activations, gathered.len());
        Ok(Columns { cuts, gathered, whole, term, parts: Parts::default() })
    }

    /// Which side of parameter number `param` is gathered: its inputs, or else its output gradients; none of one that is not
    /// sharded.
    pub(crate) fn gathered_side(&self, param: usize) -> Option<bool> {
        self.cuts[param].as_ref().map(|cut| cut.inputs)
    }

    /// Returns inputs x and output gradients dy of parameter number `param`, both of the whole matrix.
    pub(crate) fn gather(
        &mut self,
        backend: &mut dyn Backend,
        tensor: &mut TensorGroup,
        param: usize,
        (x, dy): (View, View),
    ) -> Result<(View, View), ExchangeError> {
        let Some(Cut { inputs, width, spans, segments }) = &self.cuts[param] else { return Ok((x, dy)) };
        let cut = if *inputs { x } else { dy };
        let rows = cut.rows;
        self.parts.set(spans.iter().map(|s| rows * total(s)));
        let gather = Collective::new("columns", Pattern::AllGather(&self.parts));
        let gathered = self.gathered.columns(0, self.parts.len());
        let (line, stream) = tensor.line();
        line.run(backend, stream, &gather, &[cut], &[gathered])?;
        let whole = View { rows, cols: *width, stride: *width, ..self.whole };
        for (rank, own) in spans.iter().enumerate() {
            let across = total(own);
            let part = View { rows, cols: across, stride: across, ..self.gathered };
            let mut columns = View { offset: part.offset + self.parts.range(rank).start, ..part };
            for segment in &segments[rank] {
                let to = whole.columns(segment.start, segment.len);
                columns.cols = segment.len;
                // The first rank with these columns sets them, the others add their terms.
                let ops: [Option<Op>; 2] = if segment.first {
                    [Some(Copy { src: columns, dst: to }.into()), None]
                } else {
                    let term = View { rows, cols: segment.len, stride: segment.len, ..self.term };
                    let add = Add { a: to, b: term, out: to };
                    [Some(Copy { src: columns, dst: term }.into()), Some(add.into())]
                };
                ops.iter().flatten().try_for_each(|op| backend.launch(Stream::Compute, op))?;
                columns.offset += segment.len;
            }
        }
        Ok(if *inputs { (whole, dy) } else { (x, whole) })
    }
}

/// Columns of one rank that no rank before it has, or that some have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Segment {
    start: usize,
    len: usize,
    /// No rank before has them.
    first: bool,
}

/// The columns of `span`, cut where those of the previous ranks begin and end. Adjacent columns are one
/// span, so a span may contain some that others have (keys and values) next to some that they do not have (queries).
fn segments(span: DimRange, before: &[Vec<DimRange>]) -> impl Iterator<Item = Segment> {
    let others: Vec<DimRange> = before.iter().flatten().copied().collect();
    let mut cuts: Vec<usize> = others.iter().flat_map(|o| [o.start, o.end()]).collect();
    cuts.extend([span.start, span.end()]);
    cuts.retain(|cut| (span.start..=span.end()).contains(cut));
    cuts.sort_unstable();
    cuts.dedup();
    let ends: Vec<usize> = cuts.iter().skip(1).copied().collect();
    cuts.into_iter().zip(ends).map(move |(start, end)| {
        let first = !others.iter().any(|o| o.start <= start && end <= o.end());
        Segment { start, len: end - start, first }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two ranks that hold one key/value head: queries 0..16 and 16..32, keys and values 32..48 on both.
    #[test]
    fn columns_that_touch_are_told_apart_by_who_else_has_them() {
        let range = |start, len| DimRange { start, len };
        let first = vec![vec![range(0, 16), range(32, 16)]];
        let found: Vec<Segment> = segments(range(16, 32), &first).collect();
        let segment = |start, len, first| Segment { start, len, first };
        assert_eq!(found, [segment(16, 16, true), segment(32, 16, false)]);
        assert_eq!(segments(range(0, 16), &[]).collect::<Vec<_>>(), [segment(0, 16, true)]);
    }
}
