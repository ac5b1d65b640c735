//! Operators with operands, at the shapes of a training step.

use crate::failure::Failure;
use bessemer_kernels_cpu::CpuBackend;
use bessemer_tensor::op::*;
use bessemer_tensor::rng::RngKey;
use bessemer_tensor::{Backend, BufferSpec, TensorError, View};
use bessemer_units::DType;

/// An operator to measure: its name, its shape, and how to make it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Case {
    pub(super) name: &'static str,
    pub(super) shape: String,
    make: Kind,
}

/// N, I, O of linear maps; N, D, V of the loss; N, D of the rest.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    Forward(usize, usize, usize),
    InputGradient(usize, usize, usize),
    WeightGradient(usize, usize, usize),
    Loss(usize, usize, usize),
    LossWithGradients(usize, usize, usize),
    Attention(AttentionShape),
    AttentionBackward(AttentionShape),
    Norm(NormKind, usize, usize),
    NormBackward(NormKind, usize, usize),
    Gated(usize, usize),
    GatedBackward(usize, usize),
    Add(usize, usize),
    Dropout(usize, usize),
    Embedding(usize, usize),
    EmbeddingBackward(usize, usize),
    Copy(usize),
    Fill(usize),
    SumSquares(usize),
    AdamW(usize),
}

/// Rows, inputs and outputs of the linear maps of the two reference jobs.
const LINEAR: [[usize; 3]; 8] = [
    [1024, 768, 768],
    [1024, 768, 2304],
    [1024, 768, 3072],
    [1024, 3072, 768],
    [4096, 384, 384],
    [4096, 384, 1152],
    [4096, 384, 1536],
    [4096, 1536, 384],
];
const LOSS: [[usize; 3]; 2] = [[1024, 768, 50257], [4096, 384, 8192]];
/// Sequences, length, heads, key/value heads, head width.
const ATTENTION: [[usize; 5]; 4] =
    [[4, 256, 12, 12, 64], [16, 256, 6, 6, 64], [4, 1024, 12, 12, 64], [2, 2048, 8, 2, 128]];
/// Rows and width of what is done for each element.
const ROWS: [[usize; 2]; 2] = [[1024, 768], [4096, 384]];
/// Elements of a large parameter.
const LARGE: usize = 16 << 20;

/// Every case at its usual shapes.
pub(super) fn all() -> Vec<Case> {
    let mut list = Vec::new();
    LINEAR.iter().for_each(|s| list.extend(linear(s)));
    LOSS.iter().for_each(|s| list.extend(loss(s)));
    ATTENTION.iter().for_each(|s| list.extend(attention(s)));
    for [n, d] in ROWS {
        let shape = format!("{n}x{d}");
        let wide = format!("{n}x{}", 4 * d);
        let mut add = |name, shape: &String, make| list.push(Case { name, shape: shape.clone(), make });
        add("layer norm", &shape, Kind::Norm(NormKind::Layer, n, d));
        add("layer norm backward", &shape, Kind::NormBackward(NormKind::Layer, n, d));
        add("rms norm", &shape, Kind::Norm(NormKind::Rms, n, d));
        add("rms norm backward", &shape, Kind::NormBackward(NormKind::Rms, n, d));
        add("gated silu", &wide, Kind::Gated(n, 4 * d));
        add("gated silu backward", &wide, Kind::GatedBackward(n, 4 * d));
        add("add", &shape, Kind::Add(n, d));
        add("dropout", &shape, Kind::Dropout(n, d));
        add("embedding", &shape, Kind::Embedding(n, d));
        add("embedding backward", &shape, Kind::EmbeddingBackward(n, d));
    }
    let large = format!("{LARGE}");
    for (name, make) in [
        ("copy", Kind::Copy(LARGE)),
        ("fill", Kind::Fill(LARGE)),
        ("sum of squares", Kind::SumSquares(LARGE)),
        ("adamw", Kind::AdamW(LARGE)),
    ] {
        list.push(Case { name, shape: large.clone(), make });
    }
    list
}

/// A few cases that stand for the rest.
pub(super) fn few() -> Vec<Case> {
    let mut list = Vec::new();
    list.extend(linear(&[1024, 768, 768]));
    list.push(loss(&[1024, 768, 8192])[1].clone());
    list.extend(attention(&[4, 256, 12, 12, 64]));
    list.push(Case {
        name: "layer norm",
        shape: "4096x768".into(),
        make: Kind::Norm(NormKind::Layer, 4096, 768),
    });
    list.push(Case { name: "adamw", shape: LARGE.to_string(), make: Kind::AdamW(LARGE) });
    list
}

/// The cases that the command line asks for: those whose name contains `name`, at `shapes` if there are any.
pub(super) fn chosen(all: Vec<Case>, name: &str, shapes: &[String]) -> Result<Vec<Case>, Failure> {
    let mut list = if shapes.is_empty() { all } else { Vec::new() };
    for text in shapes {
        let numbers: Option<Vec<usize>> =
            text.split('x').map(|n| n.parse().ok().filter(|n| (1..=1 << 24).contains(n))).collect();
        match numbers.as_deref() {
            // Three numbers may be meant for the loss: its name then says so.
            Some(&[n, d, v]) => {
                list.extend(linear(&[n, d, v]));
                list.extend(loss(&[n, d, v]));
            }
            Some(&[b, t, h, g, e]) if h % g == 0 => list.extend(attention(&[b, t, h, g, e])),
            _ => {
                return Err(Failure::usage(format!(
                    "--shape {text}: wanted 3 numbers from 1 to {} for linear maps and the loss, such as 1024x768x3072, or 5 for \
                     attention, such as 4x256x12x12x64, where the third divides by the fourth",
                    1 << 24
                )));
            }
        }
    }
    if !shapes.is_empty() && name.is_empty() {
        list.retain(|c| !c.name.starts_with("loss"));
    }
    let known: std::collections::BTreeSet<_> = list.iter().map(|c| c.name).collect();
    list.retain(|c| c.name.contains(name));
    if list.is_empty() {
        let known = known.into_iter().collect::<Vec<_>>().join(", ");
        return Err(Failure::usage(format!("no operator is called {name:?}; here are: {known}")));
    }
    Ok(list)
}

fn linear(&[n, i, o]: &[usize; 3]) -> [Case; 3] {
    let case = |name, make| Case { name, shape: format!("{n}x{i}x{o}"), make };
    [
        case("linear", Kind::Forward(n, i, o)),
        case("linear input gradient", Kind::InputGradient(n, i, o)),
        case("linear weight gradient", Kind::WeightGradient(n, i, o)),
    ]
}

fn loss(&[n, d, v]: &[usize; 3]) -> [Case; 2] {
    let case = |name, make| Case { name, shape: format!("{n}x{d}x{v}"), make };
    [case("loss", Kind::Loss(n, d, v)), case("loss with gradients", Kind::LossWithGradients(n, d, v))]
}

fn attention(&[batch, seq, heads, kv_heads, head_dim]: &[usize; 5]) -> [Case; 2] {
    let scale = 1.0 / (head_dim as f32).sqrt();
    let shape = AttentionShape { batch, seq, heads, kv_heads, head_dim, scale };
    let case =
        |name, make| Case { name, shape: format!("{batch}x{seq}x{heads}x{kv_heads}x{head_dim}"), make };
    [case("attention", Kind::Attention(shape)), case("attention backward", Kind::AttentionBackward(shape))]
}

/// Makes operands on a backend.
struct Maker<'a> {
    backend: &'a mut CpuBackend,
    /// Type of activations.
    dtype: DType,
    made: u64,
}

impl Maker<'_> {
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

    /// `[1, n]` indices below `below`, scattered.
    fn ids(&mut self, n: usize, below: usize) -> Result<View, TensorError> {
        let spec = BufferSpec { class: "bench", name: "ids", dtype: DType::U32, len: n };
        let view = self.backend.alloc(spec)?.vector();
        let ids: Vec<u32> = (0..n).map(|i| (i * 7919 % below) as u32).collect();
        self.backend.write_u32(view, &ids)?;
        Ok(view)
    }
}

impl Case {
    /// The operator, its operands made on `backend`, and the workspace reserved that it needs.
    pub(super) fn on(&self, backend: &mut CpuBackend, dtype: DType) -> Result<Op, TensorError> {
        let op = operator(self.make, &mut Maker { backend, dtype, made: 0 })?;
        let bytes = backend.workspace(&op)?;
        backend.reserve_workspace(bytes)?;
        Ok(op)
    }
}

fn operator(kind: Kind, m: &mut Maker<'_>) -> Result<Op, TensorError> {
    Ok(match kind {
        Kind::Forward(n, i, o) => Linear {
            x: m.act(n, i)?,
            weight: m.f32(o, i)?,
            bias: Some(m.f32(1, o)?),
            activation: None,
            residual: None,
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
                scale: 1.0 / n as f32,
                z_loss: 0.0,
                dx: m.act(n, d)?,
                dweight: m.f32(v, d)?,
                accumulate: false,
            };
            LinearCrossEntropy { backward: Some(backward), ..cross_entropy(m, n, d, v)? }.into()
        }
        Kind::Attention(shape) => forward(m, shape)?.into(),
        Kind::AttentionBackward(shape) => backward(m, shape)?.into(),
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
    let silu = ActivationKind::Silu;
    Ok(match kind {
        Kind::Gated(n, f) => {
            Gated { kind: silu, gate: m.act(n, f)?, up: m.act(n, f)?, out: m.act(n, f)? }.into()
        }
        Kind::GatedBackward(n, f) => GatedBackward {
            kind: silu,
            gate: m.act(n, f)?,
            up: m.act(n, f)?,
            dout: m.act(n, f)?,
            dgate: m.act(n, f)?,
            dup: m.act(n, f)?,
        }
        .into(),
        Kind::Add(n, d) => Add { a: m.act(n, d)?, b: m.act(n, d)?, out: m.act(n, d)? }.into(),
        Kind::Dropout(n, d) => {
            let mask = DropoutMask { p: 0.1, key: RngKey::new(1, 2, "bench"), first: 0 };
            Dropout { x: m.act(n, d)?, out: m.act(n, d)?, mask }.into()
        }
        Kind::Embedding(n, d) => {
            Embedding { table: m.f32(8192, d)?, ids: m.ids(n, 8192)?, positions: None, out: m.act(n, d)? }
                .into()
        }
        Kind::EmbeddingBackward(n, d) => EmbeddingBackward {
            ids: m.ids(n, 8192)?,
            dout: m.act(n, d)?,
            dtable: m.f32(8192, d)?,
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
            lr: 1e-3,
            beta1: 0.9,
            beta2: 0.95,
            eps: 1e-8,
            weight_decay: 0.1,
            grad_scale: 1.0,
            correction1: 0.1,
            correction2: 0.05,
        }
        .into(),
        Kind::Copy(len) => Copy { src: m.f32(1, len)?, dst: m.f32(1, len)? }.into(),
        other => unreachable!("{other:?} is made above"),
    })
}

fn cross_entropy(m: &mut Maker<'_>, n: usize, d: usize, v: usize) -> Result<LinearCrossEntropy, TensorError> {
    Ok(LinearCrossEntropy {
        x: m.act(n, d)?,
        weight: m.f32(v, d)?,
        targets: m.ids(n, v)?,
        loss: m.f32(1, n)?,
        backward: None,
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

#[cfg(test)]
mod tests {
    use super::*;
    use bessemer_kernels_cpu::CpuConfig;
    use bessemer_tensor::Stream;

    #[test]
    fn every_case_that_fits_a_test_launches() {
        for case in all().into_iter().chain(few()) {
            if case.shape.contains("50257") {
                continue;
            }
            let mut backend = CpuBackend::new(CpuConfig { threads: 1, ..CpuConfig::default() }).unwrap();
            let op = case.on(&mut backend, DType::F32).unwrap_or_else(|e| panic!("{case:?}: {e}"));
            op.check().unwrap_or_else(|e| panic!("{case:?}: {e}"));
            if case.name == "fill" {
                backend.launch(Stream(0), &op).unwrap();
            }
        }
    }

    #[test]
    fn shapes_and_names_choose_cases_and_mistakes_are_named() {
        let names = |name: &str, shapes: &[&str]| {
            let shapes: Vec<_> = shapes.iter().map(|s| (*s).to_owned()).collect();
            chosen(all(), name, &shapes).map(|l| l.iter().map(|c| c.name).collect::<Vec<_>>())
        };
        assert_eq!(
            names("", &["8x16x32"]).unwrap(),
            ["linear", "linear input gradient", "linear weight gradient"]
        );
        assert_eq!(names("loss", &["8x16x32"]).unwrap(), ["loss", "loss with gradients"]);
        assert_eq!(names("", &["1x8x2x1x4"]).unwrap(), ["attention", "attention backward"]);
        for bad in ["8", "8x0x3", "1x8x3x2x4", "axbxc"] {
            assert!(names("", &[bad]).unwrap_err().message.contains(bad));
        }
        assert!(names("conv", &[]).unwrap_err().message.contains("attention backward"));
    }
}
