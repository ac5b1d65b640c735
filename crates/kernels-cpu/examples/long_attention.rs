//! Measures attention over long sequences on one thread, alternating with a matrix product by the same engine, and prints a table.
//!
//! ```text
//! long_attention [HEAD_WIDTH] [LENGTH,...] [MASK] [ENGINE]      64, 8192 to 65536, all masks and all engines if left out
//! ```
//!
//! Rows: causal attention, with a sliding window, and with packed documents. Rates count the multiplications and additions of
//! the pairs of queries and keys that see each other, so that work on other pairs shows as a lower rate. Times are those that the
//! thread spent on a processor (Linux): other programs make them longer through shared caches and clocks only. The product and attention
//! alternate twelve times, and upper quartiles are shown, so that a host that halves the rate for a second does not decide;
//! "share" is the rate over that of the product.
#![allow(clippy::print_stdout, reason = "a program whose output is its purpose")]

use bessemer_kernels_cpu::{CpuBackend, CpuConfig, Engine, Rung};
use bessemer_tensor::op::{Attention, AttentionBackward, AttentionMask, AttentionShape, Linear, Op};
use bessemer_tensor::rng::RngKey;
use bessemer_tensor::{Backend, BufferSpec, Stream, View};
use bessemer_units::DType;
use std::error::Error;

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Rows, inputs and outputs of the product.
const PRODUCT: [usize; 3] = [1024, 768, 768];
const ROUNDS: usize = 12;

fn main() -> Outcome<()> {
    let mut arguments = std::env::args().skip(1);
    let head_dim = arguments.next().map_or(Ok(64), |text| text.parse())?;
    let lengths = arguments.next().unwrap_or_else(|| "8192,16384,32768,65536".into());
    let wanted = arguments.next().unwrap_or_default();
    let engine = arguments.next();
    println!("| engine | T | mask | forward GFLOP/s | backward | product | share forward | backward |");
    println!("|---|---|---|---|---|---|---|---|");
    let rung = Rung::detect();
    let engines = Engine::ALL.into_iter().filter(|e| e.available(rung));
    for engine in engines.filter(|e| engine.as_ref().is_none_or(|name| name == e.name())) {
        for seq in lengths.split(',') {
            for mask in [Mask::Causal, Mask::Window(1024), Mask::Window(128), Mask::Documents(512)] {
                if mask.name().contains(&wanted) {
                    measure(engine, seq.parse()?, head_dim, mask)?;
                }
            }
        }
    }
    Ok(())
}

#[derive(Debug, Clone, Copy)]
enum Mask {
    Causal,
    /// Keys that a query sees at most.
    Window(usize),
    /// Length of each document.
    Documents(usize),
}

impl Mask {
    /// First key that query `t` sees.
    fn first(self, t: usize) -> usize {
        match self {
            Mask::Causal => 0,
            Mask::Window(width) => (t + 1).saturating_sub(width),
            Mask::Documents(len) => t / len * len,
        }
    }

    fn name(self) -> String {
        match self {
            Mask::Causal => "causal".into(),
            Mask::Window(width) => format!("window {width}"),
            Mask::Documents(len) => format!("documents of {len}"),
        }
    }
}

fn measure(engine: Engine, seq: usize, head_dim: usize, mask: Mask) -> Outcome<()> {
    let config = CpuConfig { threads: 1, ..CpuConfig::default() };
    let mut backend = CpuBackend::with_engine(config, Rung::detect(), engine)?;
    let [n, i, o] = PRODUCT;
    let product: Op = Linear {
        x: noise(&mut backend, n, i)?,
        weight: noise(&mut backend, o, i)?,
        bias: None,
        activation: None,
        residual: None,
        rowwise: false,
        out: noise(&mut backend, n, o)?,
    }
    .into();
    let (forward, gradient) = attention(&mut backend, seq, head_dim, mask)?;
    for op in [&product, &forward, &gradient] {
        let bytes = backend.workspace(op)?;
        backend.reserve_workspace(bytes)?;
    }
    let pairs: usize = (0..seq).map(|t| t + 1 - mask.first(t)).sum();
    let one = 2.0 * (pairs * head_dim) as f64;
    let mut rates = [Vec::new(), Vec::new(), Vec::new()];
    for _ in 0..ROUNDS {
        let work = [(&forward, 2.0 * one), (&gradient, 5.0 * one), (&product, product.flops().0)];
        for (rates, (op, flops)) in rates.iter_mut().zip(work) {
            rates.push(rate(&mut backend, op, flops)?);
        }
    }
    let [forward, backward, product] = rates.map(|mut rates| {
        rates.sort_by(f64::total_cmp);
        rates[ROUNDS * 3 / 4]
    });
    let (mask, shares) = (mask.name(), [forward / product, backward / product]);
    println!(
        "| {engine} | {seq} | {mask} | {forward:.0} | {backward:.0} | {product:.0} | {:.2} | {:.2} |",
        shares[0], shares[1]
    );
    Ok(())
}

/// GFLOP/s of an operator, run for at least a quarter of a second: the system counts its time in steps of some milliseconds.
fn rate(backend: &mut CpuBackend, op: &Op, flops: f64) -> Outcome<f64> {
    backend.launch(Stream::Compute, op)?;
    let (begun, mut launches) = (thread_seconds()?, 0.0);
    loop {
        backend.launch(Stream::Compute, op)?;
        launches += 1.0;
        let seconds = thread_seconds()? - begun;
        if seconds > 0.25 {
            return Ok(launches * flops / seconds / 1e9);
        }
    }
}

/// Seconds that the first thread, which computes everything here, has spent on a processor.
fn thread_seconds() -> Outcome<f64> {
    let figures = std::fs::read_to_string("/proc/self/schedstat")?;
    let first = figures.split_whitespace().next().ok_or("an empty /proc/self/schedstat")?;
    Ok(first.parse::<f64>()? / 1e9)
}

fn noise(backend: &mut CpuBackend, rows: usize, cols: usize) -> Outcome<View> {
    let spec = BufferSpec { class: "bench", name: "operand", dtype: DType::F32, len: rows * cols };
    let view = backend.alloc(spec)?.matrix(rows, cols);
    let mut values = vec![0.0; rows * cols];
    RngKey::new(rows as u64, cols as u64, "bench").fill_normal(0, 0.3, &mut values);
    backend.write_f32(view, &values)?;
    Ok(view)
}

fn attention(backend: &mut CpuBackend, seq: usize, head_dim: usize, mask: Mask) -> Outcome<(Op, Op)> {
    let scale = (head_dim as f32).sqrt().recip();
    let shape = AttentionShape { batch: 1, seq, heads: 1, kv_heads: 1, head_dim, scale };
    let mut act = || noise(backend, seq, head_dim);
    let (q, k, v, out) = (act()?, act()?, act()?, act()?);
    let (dout, dq, dk, dv) = (act()?, act()?, act()?, act()?);
    let lse = noise(backend, 1, seq)?;
    let window = if let Mask::Window(width) = mask { Some(width) } else { None };
    let documents = if let Mask::Documents(_) = mask {
        let spec = BufferSpec { class: "bench", name: "documents", dtype: DType::U32, len: seq };
        let view = backend.alloc(spec)?.vector();
        let starts: Vec<u32> = (0..seq).map(|t| mask.first(t) as u32).collect();
        backend.write_u32(view, &starts)?;
        Some(view)
    } else {
        None
    };
    let mask = AttentionMask { window, documents, ..AttentionMask::default() };
    let forward = Attention { shape, q, k, v, out, lse, mask, dropout: None };
    let backward = AttentionBackward { shape, q, k, v, out, lse, dout, dq, dk, dv, mask, dropout: None };
    Ok((forward.into(), backward.into()))
}
