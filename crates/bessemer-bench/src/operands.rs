//! Operators with operands full of noise.

use crate::cases::Kind;
use bessemer_tensor::op::*;
use bessemer_tensor::quantise::{ACTIVATION_BLOCK, MOMENT_BLOCK};
use bessemer_tensor::rng::RngKey;
use bessemer_tensor::{Backend, BufferSpec, TensorError, View};
use bessemer_units::DType;

/// Makes operands on a backend.
pub(crate) struct Maker<'a> {
    backend: &'a mut dyn Backend,
    /// Type of activations.
    dtype: DType,
    made: u64,
}

impl<'a> Maker<'a> {
    pub(crate) fn new(backend: &'a mut dyn Backend, dtype: DType) -> Maker<'a> {
        Maker { backend, dtype, made: 0 }
    }

    fn noise(&mut self, dtype: DType, rows: usize, cols: usize) -> Result<View, TensorError> {
        let spec = BufferSpec { class: "bench", name: "operand", dtype, len: rows * cols };
        let view = self.backend.alloc(spec)?.matrix(rows, cols);
        // One row of noise, repeated: making millions of normal values would take longer than the products.
        let mut row = vec![0.0; cols.min(4096)];
        RngKey::new(self.made, 0, "bench").fill_normal(0, 0.3, &mut row);
        self.made += 1;
        for r in 0..rows {
            for from in (0..cols).step_by(row.len()) {
                let len = row.len().min(cols - from);
                self.backend.write_f32(view.rows(r, 1).columns(from, len), &row[..len])?;
            }
        }
        Ok(view)
    }

    /// An activation `[rows, cols]`.
    fn act(&mut self, rows: usize, cols: usize) -> Result<View, TensorError> {
        self.noise(self.dtype, rows, cols)
    }

    /// A weight, a statistic, a gradient of a weight: always f32.
    fn f32(&mut self, rows: usize, cols: usize) -> Result<View, TensorError> {
        self.noise(DType::F32, rows, cols)
    }

    /// A mask that drops one in ten.
    fn dropout(&mut self) -> Result<DropoutMask, TensorError> {
        let spec =
            BufferSpec { class: "bench", name: "counters", dtype: DType::U32, len: DropoutMask::WORDS };
        let counters = self.backend.alloc(spec)?.vector();
        self.backend.write_u32(counters, &DropoutMask::words(RngKey::new(1, 2, "bench"), 0))?;
        Ok(DropoutMask { p: 0.1, counters, first: 0 })
    }

    /// `[1, n]` given numbers.
    fn numbers(&mut self, numbers: &[f32]) -> Result<View, TensorError> {
        let view = self.f32(1, numbers.len())?;
        self.backend.write_f32(view, numbers)?;
        Ok(view)
    }

    /// Codes of 8 bits `[rows, cols]`, all of them.
    fn codes(&mut self, rows: usize, cols: usize) -> Result<View, TensorError> {
        let spec = BufferSpec { class: "bench", name: "codes", dtype: DType::U8, len: rows * cols };
        let view = self.backend.alloc(spec)?.matrix(rows, cols);
        let codes: Vec<f32> = (0..rows * cols).map(|i| (i * 7919 % 256) as f32).collect();
        self.backend.write_f32(view, &codes)?;
        Ok(view)
    }

    /// `[1, n]` indices below `below`, scattered.
    fn ids(&mut self, n: usize, below: usize) -> Result<View, TensorError> {
        let spec = BufferSpec { class: "bench", name: "ids", dtype: DType::U32, len: n };
        let view = self.backend.alloc(spec)?.vector();
        let ids: Vec<u32> = (0..n).map(|i| (i * 7919 % below) as u32).collect();
        self.backend.write_u32(view, &ids)?;
        Ok(view)
    }
}

/// The operator, its operands made.
pub(crate) fn operator(kind: Kind, m: &mut Maker<'_>) -> Result<Op, TensorError> {
    Ok(match kind {
        Kind::Forward(n, i, o) => Linear {
            x: m.act(n, i)?,
            weight: m.f32(o, i)?,
            bias: Some(m.f32(1, o)?),
            activation: None,
            residual: None,
            rowwise: false,
            out: m.act(n, o)?,
        }
        .into(),
        Kind::InputGradient(n, i, o) => LinearBackwardInput {
            dy: m.act(n, o)?,
            weight: m.f32(o, i)?,
            activation: None,
            dx: m.act(n, i)?,
            accumulate: false,
        }
        .into(),
        Kind::WeightGradient(n, i, o) => LinearBackwardWeight {
            x: m.act(n, i)?,
            dy: m.act(n, o)?,
            dweight: m.f32(o, i)?,
            dbias: Some(m.f32(1, o)?),
            accumulate: false,
        }
        .into(),
        Kind::Loss(n, d, v) => cross_entropy(m, n, d, v)?.into(),
        Kind::LossWithGradients(n, d, v) => {
            let backward = LossBackward {
                factors: m.numbers(&vec![1.0 / n as f32; n])?,
                z_loss: None,
                dx: m.act(n, d)?,
                dweight: m.f32(v, d)?,
                accumulate: false,
            };
            LinearCrossEntropy { backward: Some(backward), ..cross_entropy(m, n, d, v)? }.into()
        }
        Kind::Attention(shape) => forward(m, shape)?.into(),
        Kind::AttentionBackward(shape) => backward(m, shape)?.into(),
        Kind::AttentionDropout(shape) => {
            Attention { dropout: Some(AttentionDropout::of(shape.heads, m.dropout()?)), ..forward(m, shape)? }
                .into()
        }
        Kind::Rope(shape) => Rope {
            x: m.act(shape.batch * shape.seq, shape.heads * shape.head_dim)?,
            positions: m.ids(shape.batch * shape.seq, shape.seq)?,
            heads: shape.heads,
            theta: 1e4,
            scaling: RopeScaling::None,
            inverse: false,
        }
        .into(),
        Kind::Norm(kind, n, d) => norm(m, kind, n, d)?.into(),
        Kind::NormBackward(kind, n, d) => {
            let forward = norm(m, kind, n, d)?;
            NormBackward {
                kind,
                x: forward.x,
                weight: forward.weight,
                mean: forward.mean,
                rstd: forward.rstd,
                dout: m.act(n, d)?,
                dx: m.act(n, d)?,
                accumulate_dx: true,
                dweight: m.f32(1, d)?,
                dbias: forward.bias.map(|_| m.f32(1, d)).transpose()?,
                accumulate: false,
            }
            .into()
        }
        _ => elementwise(kind, m)?,
    })
}

/// What reads and writes each element about once.
fn elementwise(kind: Kind, m: &mut Maker<'_>) -> Result<Op, TensorError> {
    Ok(match kind {
        Kind::Gated(kind, n, f) => {
            Gated { live: None, kind, gate: m.act(n, f)?, up: m.act(n, f)?, out: m.act(n, f)? }.into()
        }
        Kind::GatedBackward(kind, n, f) => GatedBackward {
            live: None,
            kind,
            gate: m.act(n, f)?,
            up: m.act(n, f)?,
            dout: m.act(n, f)?,
            dgate: m.act(n, f)?,
            dup: m.act(n, f)?,
        }
        .into(),
        Kind::Add(n, d) => Add { a: m.act(n, d)?, b: m.act(n, d)?, out: m.act(n, d)? }.into(),
        Kind::Dropout(n, d) => Dropout {
            x: m.act(n, d)?,
            out: m.act(n, d)?,
            mask: m.dropout()?,
            noise: Noise::Bernoulli,
            global_cols: d,
        }
        .into(),
        Kind::Embedding(n, d) => Embedding {
            table: m.f32(8192, d)?,
            tensor_shard: None,
            ids: m.ids(n, 8192)?,
            positions: None,
            out: m.act(n, d)?,
        }
        .into(),
        Kind::EmbeddingBackward(n, d) => EmbeddingBackward {
            ids: m.ids(n, 8192)?,
            dout: m.act(n, d)?,
            dtable: m.f32(8192, d)?,
            tensor_shard: None,
            positions: None,
        }
        .into(),
        Kind::Fill(len) => Fill { dst: m.f32(1, len)?, value: 0.0 }.into(),
        Kind::SumSquares(len) => {
            SumSquares { x: m.f32(1, len)?, out: m.f32(1, 1)?, accumulate: false }.into()
        }
        Kind::AdamW(len) => AdamW {
            param: m.f32(1, len)?,
            master: None,
            grad: m.f32(1, len)?,
            m: m.f32(1, len)?,
            v: m.f32(1, len)?,
            step: m.numbers(&[1.0, 1.0, 1e-3, 0.1, 0.05])?,
            beta1: 0.9,
            beta2: 0.95,
            eps: 1e-8,
            weight_decay: 0.1,
        }
        .into(),
        Kind::AdamWInt8(len) => AdamWInt8 {
            param: m.f32(1, len)?,
            master: None,
            grad: m.f32(1, len)?,
            m: m.codes(1, len)?,
            m_scales: m.numbers(&vec![0.1; len.div_ceil(MOMENT_BLOCK)])?,
            v: m.codes(1, len)?,
            v_scales: m.numbers(&vec![0.1; len.div_ceil(MOMENT_BLOCK)])?,
            step: m.numbers(&[1.0, 1.0, 1e-3, 0.1, 0.05])?,
            beta1: 0.9,
            beta2: 0.95,
            eps: 1e-8,
            weight_decay: 0.1,
        }
        .into(),
        Kind::Quantise(n, d) => {
            let (src, codes, scales) = (m.act(n, d)?, m.codes(n, d)?, m.f32(n, blocks(d))?);
            Quantise { src, codes, scales, keep_sign: true }.into()
        }
        Kind::Dequantise(n, d) => {
            let (codes, scales, dst) = (m.codes(n, d)?, m.f32(n, blocks(d))?, m.act(n, d)?);
            Dequantise { codes, scales, dst, accumulate: false }.into()
        }
        Kind::Copy(len) => Copy { src: m.f32(1, len)?, dst: m.f32(1, len)? }.into(),
        other => unreachable!("{other:?} is made above"),
    })
}

/// Blocks of a row of so many columns that activations in 8 bits have.
fn blocks(cols: usize) -> usize {
    cols.div_ceil(ACTIVATION_BLOCK)
}

fn cross_entropy(m: &mut Maker<'_>, n: usize, d: usize, v: usize) -> Result<LinearCrossEntropy, TensorError> {
    Ok(LinearCrossEntropy {
        x: m.act(n, d)?,
        weight: m.f32(v, d)?,
        targets: m.ids(n, v)?,
        loss: m.f32(1, n)?,
        scored_lse: None,
        backward: None,
        teacher: None,
    })
}

fn forward(m: &mut Maker<'_>, shape: AttentionShape) -> Result<Attention, TensorError> {
    let (n, hq, hk) = sizes(&shape);
    Ok(Attention {
        shape,
        q: m.act(n, hq)?,
        k: m.act(n, hk)?,
        v: m.act(n, hk)?,
        out: m.act(n, hq)?,
        lse: m.f32(shape.batch * shape.heads, shape.seq)?,
        mask: AttentionMask::default(),
        dropout: None,
    })
}

fn backward(m: &mut Maker<'_>, shape: AttentionShape) -> Result<AttentionBackward, TensorError> {
    let (n, hq, hk) = sizes(&shape);
    let f = forward(m, shape)?;
    Ok(AttentionBackward {
        shape,
        q: f.q,
        k: f.k,
        v: f.v,
        out: f.out,
        lse: f.lse,
        dout: m.act(n, hq)?,
        dq: m.act(n, hq)?,
        dk: m.act(n, hk)?,
        dv: m.act(n, hk)?,
        mask: f.mask,
        dropout: None,
    })
}

/// B T, H E, G E.
fn sizes(s: &AttentionShape) -> (usize, usize, usize) {
    (s.batch * s.seq, s.heads * s.head_dim, s.kv_heads * s.head_dim)
}

fn norm(m: &mut Maker<'_>, kind: NormKind, n: usize, d: usize) -> Result<Norm, TensorError> {
    let layer = kind == NormKind::Layer;
    Ok(Norm {
        kind,
        x: m.act(n, d)?,
        weight: m.f32(1, d)?,
        bias: layer.then(|| m.f32(1, d)).transpose()?,
        out: m.act(n, d)?,
        mean: layer.then(|| m.f32(1, n)).transpose()?,
        rstd: m.f32(1, n)?,
        eps: 1e-5,
    })
}
