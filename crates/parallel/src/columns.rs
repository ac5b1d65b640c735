//! Inputs and output gradients of a linear map whose matrix is cut over the tensor axis, brought together for curvature.
//!
//! A matrix that is cut by rows has whole inputs and parts of the outputs' gradients on every rank; one that is cut by
//! columns the other way round. The factors of the whole matrix need the products of all columns with all others, so the
//! columns are gathered: n w (t-1)/t elements for n tokens and a cut side of w, per micro-batch that curvature sees. Columns
//! that several ranks hold (key/value heads) are each rank's term of a sum.

use crate::exchange::ExchangeError;
use crate::tensor::TensorGroup;
use bessemer_arch::{ParamClass, PortionParam};
use bessemer_collectives::Parts;
use bessemer_mesh::{DimRange, total};
use bessemer_tensor::{Backend, BufferSpec, TensorError, View};
use bessemer_units::DType;

/// How one matrix is cut.
#[derive(Debug)]
struct Cut {
    /// By columns: its inputs are cut, not its outputs.
    inputs: bool,
    /// Width of the whole side.
    width: usize,
    /// By tensor rank: which columns of inputs or outputs.
    spans: Vec<Vec<DimRange>>,
}

/// The matrices of a rank that are cut, and room for what they take or give.
#[derive(Debug)]
pub(crate) struct Columns {
    /// By parameter.
    cuts: Vec<Option<Cut>>,
    /// `[tokens, widest side]`.
    whole: View,
    values: Vec<f32>,
    host: Vec<f32>,
    parts: Parts,
}

impl Columns {
    /// `portions`: by parameter, the portions of all tensor ranks.
    pub(crate) fn new(
        backend: &mut dyn Backend,
        portions: &[Vec<PortionParam>],
        tokens: usize,
    ) -> Result<Columns, TensorError> {
        let cut = |portions: &Vec<PortionParam>| {
            let sharding = &portions.first()?.sharding;
            let dim = sharding.dim().filter(|_| sharding.spec.class() == ParamClass::Matrix)?;
            let spans = portions.iter().map(|p| p.ranges[dim].clone()).collect();
            Some(Cut { inputs: dim == 1, width: sharding.spec.shape[dim], spans })
        };
        let cuts: Vec<_> = portions.iter().map(cut).collect();
        let widest = cuts.iter().flatten().map(|c| c.width).max().unwrap_or(0);
        let held = |c: &Cut| c.spans.iter().map(|s| total(s)).sum::<usize>();
        let most = cuts.iter().flatten().map(held).max().unwrap_or(0);
        let spec = BufferSpec {
            class: "optimizer",
            name: "columns for curvature",
            dtype: DType::F32,
            len: tokens * widest,
        };
        let whole = backend.alloc(spec)?.vector();
        let (values, host) = (Vec::with_capacity(tokens * most), Vec::with_capacity(tokens * widest));
        Ok(Columns { cuts, whole, values, host, parts: Parts::default() })
    }

    /// Bytes on the host.
    pub(crate) fn bytes(&self) -> u64 {
        4 * (self.values.capacity() + self.host.capacity()) as u64
    }

    /// Inputs x and output gradients dy of parameter number `param`, both of the whole matrix.
    pub(crate) fn gather(
        &mut self,
        backend: &mut dyn Backend,
        tensor: &mut TensorGroup,
        param: usize,
        (x, dy): (View, View),
    ) -> Result<(View, View), ExchangeError> {
        let Columns { cuts, parts, values, host, .. } = self;
        let Some(Cut { inputs, width, spans }) = &cuts[param] else { return Ok((x, dy)) };
        let cut = if *inputs { x } else { dy };
        let rows = cut.rows;
        parts.set(spans.iter().map(|s| rows * total(s)));
        values.resize(parts.len(), 0.0);
        backend.read_f32(cut, &mut values[parts.range(tensor.rank())])?;
        tensor.idle()?.all_gather("columns", &mut *values, parts)?;
        host.clear();
        host.resize(rows * width, 0.0);
        for (rank, spans) in spans.iter().enumerate() {
            let part = &values[parts.range(rank)];
            let across = total(spans);
            let mut at = 0;
            for span in spans {
                for row in 0..rows {
                    let from = &part[row * across + at..row * across + at + span.len];
                    let to = &mut host[row * width + span.start..row * width + span.start + span.len];
                    to.iter_mut().zip(from).for_each(|(to, from)| *to += from);
                }
                at += span.len;
            }
        }
        let whole = View { rows, cols: *width, stride: *width, ..self.whole };
        backend.write_f32(whole, host)?;
        Ok(if *inputs { (whole, dy) } else { (x, whole) })
    }
}
