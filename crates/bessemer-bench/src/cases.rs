//! What there is to measure: operators at the shapes of a training step, and the steps of the optimizers.

use crate::operands::{Maker, operator};
use crate::updates::{self, Part, Update};
use bessemer::Failure;
use bessemer_kernels_cpu::CpuBackend;
use bessemer_optim::OptimizerChoice;
use bessemer_tensor::op::{ActivationKind, AttentionShape, NormKind, Op};
use bessemer_tensor::{Backend, Stream};
use bessemer_units::DType;
use std::time::Instant;

/// Something to measure: its name, its shape, and how to make it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) shape: String,
    make: Make,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Make {
    Operator(Kind),
    Update(OptimizerChoice, Part),
}

/// An operator. N, I, O of linear maps; N, D, V of the loss; N, D of the rest.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Kind {
    Forward(usize, usize, usize),
    InputGradient(usize, usize, usize),
    WeightGradient(usize, usize, usize),
    Loss(usize, usize, usize),
    LossWithGradients(usize, usize, usize),
    Attention(AttentionShape),
    AttentionBackward(AttentionShape),
    AttentionDropout(AttentionShape),
    Rope(AttentionShape),
    Norm(NormKind, usize, usize),
    NormBackward(NormKind, usize, usize),
    Gated(ActivationKind, usize, usize),
    GatedBackward(ActivationKind, usize, usize),
    Add(usize, usize),
    Dropout(usize, usize),
    Embedding(usize, usize),
    EmbeddingBackward(usize, usize),
    Copy(usize),
    Fill(usize),
    SumSquares(usize),
    AdamW(usize),
    AdamWInt8(usize),
    Quantise(usize, usize),
    Dequantise(usize, usize),
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
pub(crate) fn all() -> Vec<Case> {
    let mut list = Vec::new();
    LINEAR.iter().for_each(|s| list.extend(linear(s)));
    LOSS.iter().for_each(|s| list.extend(loss(s)));
    ATTENTION.iter().for_each(|s| list.extend(attention(s)));
    for [n, d] in ROWS {
        let shape = format!("{n}x{d}");
        let wide = format!("{n}x{}", 4 * d);
        let mut add = |name, shape: &str, kind| list.push(Case::operator(name, shape, kind));
        add("layer norm", &shape, Kind::Norm(NormKind::Layer, n, d));
        add("layer norm backward", &shape, Kind::NormBackward(NormKind::Layer, n, d));
        add("rms norm", &shape, Kind::Norm(NormKind::Rms, n, d));
        add("rms norm backward", &shape, Kind::NormBackward(NormKind::Rms, n, d));
        add("gated silu", &wide, Kind::Gated(ActivationKind::Silu, n, 4 * d));
        add("gated silu backward", &wide, Kind::GatedBackward(ActivationKind::Silu, n, 4 * d));
        add("gated gelu tanh", &wide, Kind::Gated(ActivationKind::GeluTanh, n, 4 * d));
        add("gated gelu erf", &wide, Kind::Gated(ActivationKind::GeluErf, n, 4 * d));
        add("add", &shape, Kind::Add(n, d));
        add("dropout", &shape, Kind::Dropout(n, d));
        add("quantise", &shape, Kind::Quantise(n, d));
        add("dequantise", &shape, Kind::Dequantise(n, d));
        add("embedding", &shape, Kind::Embedding(n, d));
        add("embedding backward", &shape, Kind::EmbeddingBackward(n, d));
    }
    let large = LARGE.to_string();
    for (name, kind) in [
        ("copy", Kind::Copy(LARGE)),
        ("fill", Kind::Fill(LARGE)),
        ("sum of squares", Kind::SumSquares(LARGE)),
        ("adamw", Kind::AdamW(LARGE)),
        ("adamw in 8 bits", Kind::AdamWInt8(LARGE)),
    ] {
        list.push(Case::operator(name, &large, kind));
    }
    list.extend(optimizers());
    list
}

/// A step of every optimizer. One of K-FAC comes in three parts.
fn optimizers() -> [Case; 8] {
    let case = |name, choice, part| Case {
        name,
        shape: match part {
            Part::Curvature => format!("{}, {} rows", updates::MODEL, updates::TOKENS),
            Part::Step | Part::Inverting => updates::MODEL.into(),
        },
        make: Make::Update(choice, part),
    };
    [
        case("optimizer adamw", OptimizerChoice::AdamW, Part::Step),
        case("optimizer sgd", OptimizerChoice::Sgd, Part::Step),
        case("optimizer adafactor", OptimizerChoice::Adafactor, Part::Step),
        case("optimizer lion", OptimizerChoice::Lion, Part::Step),
        case("optimizer muon", OptimizerChoice::Muon, Part::Step),
        case("optimizer kfac curvature", OptimizerChoice::Kfac, Part::Curvature),
        case("optimizer kfac", OptimizerChoice::Kfac, Part::Step),
        case("optimizer kfac inverting", OptimizerChoice::Kfac, Part::Inverting),
    ]
}

/// A few cases that stand for the rest.
pub(crate) fn few() -> Vec<Case> {
    let mut list = Vec::new();
    list.extend(linear(&[1024, 768, 768]));
    list.push(loss(&[1024, 768, 8192])[1].clone());
    list.extend_from_slice(&attention(&[4, 256, 12, 12, 64])[..2]);
    list.push(Case::operator("layer norm", "4096x768", Kind::Norm(NormKind::Layer, 4096, 768)));
    list.push(Case::operator("adamw", &LARGE.to_string(), Kind::AdamW(LARGE)));
    list
}

/// The cases that the command line asks for: those whose name contains `name`, at `shapes` if there are any. Steps of
/// optimizers take gigabytes and seconds, so they want to be named.
pub(crate) fn chosen(all: Vec<Case>, name: &str, shapes: &[String]) -> Result<Vec<Case>, Failure> {
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
    list.retain(|c| c.name.contains(name) && !(name.is_empty() && matches!(c.make, Make::Update(..))));
    if list.is_empty() {
        let known = known.into_iter().collect::<Vec<_>>().join(", ");
        return Err(Failure::usage(format!("no operator has the name {name:?}; known: {known}")));
    }
    Ok(list)
}

fn linear(&[n, i, o]: &[usize; 3]) -> [Case; 3] {
    let case = |name, kind| Case::operator(name, &format!("{n}x{i}x{o}"), kind);
    [
        case("linear", Kind::Forward(n, i, o)),
        case("linear input gradient", Kind::InputGradient(n, i, o)),
        case("linear weight gradient", Kind::WeightGradient(n, i, o)),
    ]
}

fn loss(&[n, d, v]: &[usize; 3]) -> [Case; 2] {
    let case = |name, kind| Case::operator(name, &format!("{n}x{d}x{v}"), kind);
    [case("loss", Kind::Loss(n, d, v)), case("loss with gradients", Kind::LossWithGradients(n, d, v))]
}

fn attention(&[batch, seq, heads, kv_heads, head_dim]: &[usize; 5]) -> [Case; 4] {
    let scale = 1.0 / (head_dim as f32).sqrt();
    let shape = AttentionShape { batch, seq, heads, kv_heads, head_dim, scale };
    let case =
        |name, kind| Case::operator(name, &format!("{batch}x{seq}x{heads}x{kv_heads}x{head_dim}"), kind);
    [
        case("attention", Kind::Attention(shape)),
        case("attention backward", Kind::AttentionBackward(shape)),
        case("attention dropout", Kind::AttentionDropout(shape)),
        case("rope", Kind::Rope(shape)),
    ]
}

impl Case {
    fn operator(name: &'static str, shape: &str, kind: Kind) -> Case {
        Case { name, shape: shape.into(), make: Make::Operator(kind) }
    }

    /// The work, its operands made on `backend`, and the workspace reserved that it needs.
    ///
    /// # Errors
    /// If there is not enough memory.
    pub(crate) fn on(&self, backend: &mut CpuBackend, dtype: DType) -> Result<Work, Failure> {
        Ok(match self.make {
            Make::Operator(kind) => {
                let op = operator(kind, &mut Maker::new(backend, dtype))?;
                let bytes = backend.workspace(&op)?;
                backend.reserve_workspace(bytes)?;
                Work::Operator(Box::new(op))
            }
            Make::Update(choice, part) => Work::Update(Box::new(updates::on(backend, choice, part, dtype)?)),
        })
    }
}

/// Timed operator.
#[derive(Debug)]
pub(crate) enum Work {
    Operator(Box<Op>),
    Update(Box<Update>),
}

impl Work {
    /// Seconds of doing it once.
    pub(crate) fn seconds(&mut self, backend: &mut CpuBackend) -> Result<f64, Failure> {
        if let Work::Update(update) = self {
            update.prepare(backend)?;
        }
        let begun = Instant::now();
        match self {
            Work::Operator(op) => backend.launch(Stream::Compute, op)?,
            Work::Update(update) => update.run(backend)?,
        }
        Ok(begun.elapsed().as_secs_f64())
    }

    /// Floating-point operations.
    pub(crate) fn flops(&self) -> f64 {
        match self {
            Work::Operator(op) => op.flops().0,
            Work::Update(update) => update.flops,
        }
    }

    /// Bytes of all operands, those that are read and written twice.
    pub(crate) fn bytes(&self) -> f64 {
        match self {
            Work::Operator(op) => op.bytes().0 as f64,
            Work::Update(update) => update.bytes,
        }
    }

    /// Whether the precision of matrix products is about this.
    pub(crate) fn has_products(&self) -> bool {
        match self {
            Work::Update(update) => update.has_products(),
            Work::Operator(op) => matches!(
                **op,
                Op::Linear(_)
                    | Op::LinearBackwardInput(_)
                    | Op::LinearBackwardWeight(_)
                    | Op::LinearCrossEntropy(_)
                    | Op::Attention(_)
                    | Op::AttentionBackward(_)
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bessemer_kernels_cpu::CpuConfig;

    #[test]
    fn every_case_that_fits_a_test_launches() {
        for case in all().into_iter().chain(few()) {
            if case.shape.contains("50257") || matches!(case.make, Make::Update(..)) {
                continue;
            }
            let mut backend = CpuBackend::new(CpuConfig { threads: 1, ..CpuConfig::default() }).unwrap();
            let work =
                case.on(&mut backend, DType::F32).unwrap_or_else(|e| panic!("{case:?}: {}", e.message));
            let Work::Operator(op) = work else { unreachable!("{case:?}") };
            op.check().unwrap_or_else(|e| panic!("{case:?}: {e}"));
            if case.name == "fill" {
                backend.launch(Stream::Compute, &op).unwrap();
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
        let attention = ["attention", "attention backward", "attention dropout", "rope"];
        assert_eq!(names("", &["1x8x2x1x4"]).unwrap(), attention);
        assert_eq!(names("muon", &[]).unwrap(), ["optimizer muon"]);
        assert!(!names("", &[]).unwrap().contains(&"optimizer muon"));
        for bad in ["8", "8x0x3", "1x8x3x2x4", "axbxc"] {
            assert!(names("", &[bad]).unwrap_err().message.contains(bad));
        }
        assert!(names("conv", &[]).unwrap_err().message.contains("attention backward"));
    }
}
