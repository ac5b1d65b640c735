//! The kernel ladder: GFLOP/s and share of the measured peak of the matrix products, on every rung.
//!
//! `cargo run --release -p bessemer-kernels-cpu --example op_bench -- [threads] [what] [rung or engine] [text in the name]`
//!
//! Figures of one thread are mean times on its core, which leave out what other programs took. Figures of more threads are
//! medians of launches that had a probe of multiply-adds right before and right after them run at full speed, so that
//! other programs spoil the bench's patience and not its figures; the last column says how many launches counted. The
//! best launch stands in brackets.
#![allow(clippy::print_stdout, clippy::unwrap_used)] // a program for a terminal

use bessemer_kernels_cpu::{CpuBackend, CpuConfig, Engine, Rung, peak};
use bessemer_tensor::op::*;
use bessemer_tensor::rng::RngKey;
use bessemer_tensor::{Backend, BufferSpec, Stream, View};
use bessemer_units::{DType, MatmulPrecision};
use std::time::Instant;

struct Bench {
    backend: CpuBackend,
    peak: f64,
    made: u64,
    only: String,
    probe: peak::Probe,
    clean: f64,
}

impl Bench {
    fn new(rung: Rung, engine: Engine, threads: usize, peak: f64, only: &str) -> Bench {
        let backend =
            CpuBackend::with_engine(CpuConfig { threads, ..CpuConfig::default() }, rung, engine).unwrap();
        let probe = peak::Probe::new(rung, threads).unwrap();
        // Cores are taken to scale: with all of them busy elsewhere, a measurement of all would set too low a bar.
        let alone = peak::flops_per_s(rung, 1).unwrap() * threads as f64;
        let clean = peak::flops_per_s(rung, threads).unwrap().max(0.98 * alone);
        Bench { backend, peak, made: 0, only: only.to_owned(), probe, clean }
    }

    fn mat(&mut self, rows: usize, cols: usize) -> View {
        let spec = BufferSpec { class: "bench", name: "x", dtype: DType::F32, len: rows * cols };
        let view = self.backend.alloc(spec).unwrap().matrix(rows, cols);
        // One row of noise, repeated: making millions of normal values would take longer than the products.
        let mut row = vec![0.0; cols];
        RngKey::new(self.made, 0, "bench").fill_normal(0, 0.3, &mut row);
        self.made += 1;
        for r in 0..rows {
            self.backend.write_f32(view.rows(r, 1), &row).unwrap();
        }
        view
    }

    fn time(&mut self, name: &str, op: impl Into<Op>) {
        if !name.contains(&self.only) {
            return;
        }
        let op = op.into();
        let bytes = self.backend.workspace(&op).unwrap();
        self.backend.reserve_workspace(bytes).unwrap();
        self.backend.launch(Stream(0), &op).unwrap();
        let Some((median, best, kept)) =
            (if self.backend.threads() == 1 { self.on_core(&op) } else { self.on_clock(&op) })
        else {
            println!("  {name:<40} the machine was disturbed during every launch");
            return;
        };
        let rate = |s: f64| op.flops().0 / s / 1e9;
        println!(
            "  {name:<40} {:>9.3} ms {:>7.1} GFLOP/s {:>3.0} % (best {:>3.0} %) {:>6.1} GB/s {:>9} {kept}",
            median * 1e3,
            rate(median),
            100.0 * op.flops().0 / median / self.peak,
            100.0 * op.flops().0 / best / self.peak,
            op.bytes().0 as f64 / median / 1e9,
            bytes.to_string(),
        );
    }

    /// Launches for some time; one thread's time on its core leaves out what other programs took.
    fn on_core(&mut self, op: &Op) -> Option<(f64, f64, String)> {
        let (mut count, mut best) = (0, f64::INFINITY);
        let (start, on_core) = (Instant::now(), core_seconds()?);
        while count < 5 || start.elapsed().as_secs_f64() < 0.6 {
            let t = Instant::now();
            self.backend.launch(Stream(0), op).unwrap();
            best = best.min(t.elapsed().as_secs_f64());
            count += 1;
        }
        let mean = (core_seconds()? - on_core) / f64::from(count);
        Some((mean, best.min(mean), count.to_string()))
    }

    /// Launches between two probes that found the machine undisturbed.
    fn on_clock(&mut self, op: &Op) -> Option<(f64, f64, String)> {
        let (mut seconds, mut tried) = (Vec::new(), 0);
        let start = Instant::now();
        let mut before = self.probe.trial();
        while seconds.len() < 5 || (start.elapsed().as_secs_f64() < 0.6 && seconds.len() < 100) {
            let t = Instant::now();
            self.backend.launch(Stream(0), op).unwrap();
            let took = t.elapsed().as_secs_f64();
            let after = self.probe.trial();
            self.clean = self.clean.max(after);
            if before.min(after) > 0.96 * self.clean {
                seconds.push(took);
            }
            before = after;
            tried += 1;
            if start.elapsed().as_secs_f64() > 8.0 {
                break;
            }
        }
        seconds.sort_by(f64::total_cmp);
        Some((*seconds.get(seconds.len() / 2)?, seconds[0], format!("{}/{tried}", seconds.len())))
    }

    fn linear(&mut self, n: usize, inputs: usize, outputs: usize) {
        let (x, weight) = (self.mat(n, inputs), self.mat(outputs, inputs));
        let (y, dx, dweight) = (self.mat(n, outputs), self.mat(n, inputs), self.mat(outputs, inputs));
        let shape = format!("{n} x {inputs} -> {outputs}");
        let forward = Linear { x, weight, bias: None, activation: None, residual: None, out: y };
        self.time(&format!("forward {shape}"), forward);
        self.time(
            &format!("dgrad   {shape}"),
            LinearBackwardInput { dy: y, weight, activation: None, dx, accumulate: false },
        );
        self.time(
            &format!("wgrad   {shape}"),
            LinearBackwardWeight { x, dy: y, dweight, dbias: None, accumulate: true },
        );
    }
}

impl Bench {
    fn attention(&mut self, batch: usize, seq: usize, heads: usize, kv_heads: usize, head_dim: usize) {
        let shape =
            AttentionShape { batch, seq, heads, kv_heads, head_dim, scale: 1.0 / (head_dim as f32).sqrt() };
        let (n, hq, hk) = (batch * seq, heads * head_dim, kv_heads * head_dim);
        let (q, k, v, out) = (self.mat(n, hq), self.mat(n, hk), self.mat(n, hk), self.mat(n, hq));
        let lse = self.mat(batch * heads, seq);
        let mask = AttentionMask::default();
        let what = format!("{batch} x {seq}, {heads}/{kv_heads} x {head_dim}");
        self.time(&format!("attention {what}"), Attention { shape, q, k, v, out, lse, mask, dropout: None });
        let (dout, dq, dk, dv) = (self.mat(n, hq), self.mat(n, hq), self.mat(n, hk), self.mat(n, hk));
        let back = AttentionBackward { shape, q, k, v, out, lse, dout, dq, dk, dv, mask, dropout: None };
        self.time(&format!("backward  {what}"), back);
        let weights = DropoutMask { p: 0.1, key: RngKey::new(1, 2, "bench"), first: 0 };
        let dropped = Attention { shape, q, k, v, out, lse, mask, dropout: Some(weights) };
        self.time(&format!("dropout   {what}"), dropped);
        let positions: Vec<u32> = (0..n as u32).map(|i| i % seq as u32).collect();
        let spec = BufferSpec { class: "bench", name: "positions", dtype: DType::U32, len: n };
        let at = self.backend.alloc(spec).unwrap().vector();
        self.backend.write_u32(at, &positions).unwrap();
        self.time(
            &format!("rope      {what}"),
            Rope { x: q, positions: at, heads, theta: 1e4, scaling: RopeScaling::None, inverse: false },
        );
    }

    fn loss(&mut self, n: usize, d: usize, v: usize) {
        let (x, weight, loss) = (self.mat(n, d), self.mat(v, d), self.mat(1, n));
        let (dx, dweight) = (self.mat(n, d), self.mat(v, d));
        let ids: Vec<u32> = (0..n).map(|i| (i * 7919 % v) as u32).collect();
        let spec = BufferSpec { class: "bench", name: "targets", dtype: DType::U32, len: n };
        let targets = self.backend.alloc(spec).unwrap().vector();
        self.backend.write_u32(targets, &ids).unwrap();
        let forward = LinearCrossEntropy { x, weight, targets, loss, backward: None };
        self.time(&format!("loss {n} x {d} -> {v}"), forward);
        let backward =
            Some(LossBackward { scale: 1.0 / n as f32, z_loss: 0.0, dx, dweight, accumulate: true });
        self.time(&format!("with gradients {n} x {d} -> {v}"), LinearCrossEntropy { backward, ..forward });
    }

    fn other(&mut self) {
        let (n, d, f) = (4096, 384, 1536);
        let (x, out, dout, dx) = (self.mat(n, d), self.mat(n, d), self.mat(n, d), self.mat(n, d));
        let (weight, rstd, dweight) = (self.mat(1, d), self.mat(1, n), self.mat(1, d));
        let kind = NormKind::Rms;
        self.time("rms norm", Norm { kind, x, weight, bias: None, out, mean: None, rstd, eps: 1e-5 });
        let back = NormBackward {
            kind,
            x,
            weight,
            mean: None,
            rstd,
            dout,
            dx,
            accumulate_dx: true,
            dweight,
            dbias: None,
            accumulate: true,
        };
        self.time("rms norm backward", back);
        self.time("add", Add { a: x, b: out, out });
        let mask = DropoutMask { p: 0.1, key: RngKey::new(1, 2, "bench"), first: 0 };
        self.time("dropout", Dropout { x, out, mask });
        let (gate, up, y) = (self.mat(n, f), self.mat(n, f), self.mat(n, f));
        for kind in [ActivationKind::Silu, ActivationKind::GeluTanh, ActivationKind::GeluErf] {
            self.time(&format!("gated {kind:?}"), Gated { kind, gate, up, out: y });
        }
        let kind = ActivationKind::Silu;
        self.time("gated backward Silu", GatedBackward { kind, gate, up, dout: y, dgate: gate, dup: up });
        let (param, grad, m, v) =
            (self.mat(4096, 4096), self.mat(4096, 4096), self.mat(4096, 4096), self.mat(4096, 4096));
        self.time("copy 64 MiB", Copy { src: param, dst: grad });
        self.time("fill 64 MiB", Fill { dst: v, value: 0.0 });
        let adamw = AdamW {
            param,
            master: None,
            grad,
            m,
            v,
            lr: 1e-3,
            beta1: 0.9,
            beta2: 0.95,
            eps: 1e-8,
            weight_decay: 0.1,
            grad_scale: 1.0,
            correction1: 0.1,
            correction2: 0.05,
        };
        self.time("adamw 16.8 M", adamw);
        let one = self.mat(1, 1);
        self.time("sum of squares 16.8 M", SumSquares { x: grad, out: one, accumulate: false });
        let ids: Vec<u32> = (0..n).map(|i| (i * 7919 % 4096) as u32).collect();
        let spec = BufferSpec { class: "bench", name: "ids", dtype: DType::U32, len: n };
        let at = self.backend.alloc(spec).unwrap().vector();
        self.backend.write_u32(at, &ids).unwrap();
        let table = self.mat(4096, d);
        self.time("embedding", Embedding { table, ids: at, positions: None, out });
        self.time("embedding backward", EmbeddingBackward { ids: at, dout, dtable: table, positions: None });
    }
}

/// Seconds that the calling thread has spent on a core, as Linux counts them.
fn core_seconds() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    Some(text.split(' ').next()?.parse::<f64>().ok()? / 1e9)
}

/// Rungs with their multiply-adds, then the engines that the best rung has besides.
fn ladder() -> Vec<(Rung, Engine)> {
    let best = Rung::detect();
    let rungs = Rung::ALL.into_iter().filter(|r| r.available()).map(|r| (r, Engine::Fma));
    let engines = Engine::ALL.into_iter().filter(|&e| e != Engine::Fma && e.available(best));
    rungs.chain(engines.map(|e| (best, e))).collect()
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let threads = args.first().and_then(|a| a.parse().ok()).unwrap_or(1);
    let what = args.get(1).map_or("linear", String::as_str);
    let m = peak::measure(threads).unwrap();
    println!(
        "{threads} threads: peak {:.1} GFLOP/s, read {:.1} GB/s, copy {:.1} GB/s",
        m.flops_per_s / 1e9,
        m.read_bytes_per_s / 1e9,
        m.copy_bytes_per_s / 1e9
    );
    let wanted = args.get(2).map_or("best", String::as_str);
    let fastest = Engine::fastest(Rung::detect(), MatmulPrecision::default());
    for (rung, engine) in ladder() {
        let best = rung == Rung::detect() && engine == fastest;
        let named = if engine == Engine::Fma { wanted == rung.name() } else { wanted == engine.name() };
        if !(named || wanted == "all" || (wanted == "best" && best)) {
            continue;
        }
        let alone = peak::flops_per_s(rung, threads).unwrap();
        println!("{rung}, products by {engine}: multiply-adds alone {:.1} GFLOP/s", alone / 1e9);
        let mut b = Bench::new(rung, engine, threads, m.flops_per_s, args.get(3).map_or("", String::as_str));
        match what {
            "linear" => {
                let shapes = [
                    (1024, 768, 768),
                    (1024, 768, 2304),
                    (1024, 768, 3072),
                    (1024, 3072, 768),
                    (4096, 768, 768),
                    (4096, 384, 1536),
                    (4096, 1536, 384),
                    (4096, 384, 384),
                    (1024, 192, 192),
                    (4096, 192, 576),
                    (4096, 256, 256),
                    (8192, 512, 512),
                    (2048, 512, 4096),
                ];
                let count = if rung == Rung::Reference { 1 } else { shapes.len() };
                shapes[..count].iter().for_each(|s| b.linear(s.0, s.1, s.2));
            }
            "attention" => {
                for (batch, seq, heads, kv, e) in
                    [(16, 256, 6, 6, 64), (4, 1024, 12, 12, 64), (16, 256, 8, 4, 32), (2, 2048, 8, 2, 128)]
                {
                    b.attention(batch, seq, heads, kv, e);
                }
            }
            "loss" => {
                for (n, d, v) in [(4096, 384, 4096), (1024, 192, 4096), (4096, 384, 8192), (1024, 768, 50304)]
                {
                    b.loss(n, d, v);
                }
            }
            "other" => b.other(),
            other => println!("no bench called {other}"),
        }
    }
}
