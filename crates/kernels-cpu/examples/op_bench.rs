//! The kernel ladder: GFLOP/s and share of the measured peak of the matrix products, on every rung.
//!
//! `cargo run --release -p bessemer-kernels-cpu --example op_bench -- [threads] [what] [rung]`
//!
//! Figures are medians of repeated launches, with the best in brackets.
#![allow(clippy::print_stdout, clippy::unwrap_used)] // a program for a terminal

use bessemer_kernels_cpu::{CpuBackend, CpuConfig, Rung, peak};
use bessemer_tensor::op::*;
use bessemer_tensor::rng::RngKey;
use bessemer_tensor::{Backend, BufferSpec, Stream, View};
use bessemer_units::DType;
use std::time::Instant;

struct Bench {
    backend: CpuBackend,
    peak: f64,
    made: u64,
}

impl Bench {
    fn new(rung: Rung, threads: usize, peak: f64) -> Bench {
        let backend = CpuBackend::with_rung(CpuConfig { threads, pin: false }, rung).unwrap();
        Bench { backend, peak, made: 0 }
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
        let op = op.into();
        let bytes = self.backend.workspace(&op).unwrap();
        self.backend.reserve_workspace(bytes).unwrap();
        self.backend.launch(Stream(0), &op).unwrap();
        let mut seconds = Vec::new();
        let start = Instant::now();
        while seconds.len() < 5 || (start.elapsed().as_secs_f64() < 0.6 && seconds.len() < 200) {
            let t = Instant::now();
            self.backend.launch(Stream(0), &op).unwrap();
            seconds.push(t.elapsed().as_secs_f64());
            if start.elapsed().as_secs_f64() > 5.0 {
                break;
            }
        }
        seconds.sort_by(f64::total_cmp);
        let (median, best) = (seconds[seconds.len() / 2], seconds[0]);
        let rate = |s: f64| op.flops().0 / s / 1e9;
        println!(
            "  {name:<44} {:>9.3} ms  {:>7.1} GFLOP/s  {:>4.0} %  (best {:>7.1}, {:>3.0} %)  {:>6.1} GB/s  {:>9}",
            median * 1e3,
            rate(median),
            100.0 * op.flops().0 / median / self.peak,
            rate(best),
            100.0 * op.flops().0 / best / self.peak,
            op.bytes().0 as f64 / median / 1e9,
            bytes.to_string(),
        );
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
    for rung in Rung::ALL.into_iter().filter(|r| r.available()) {
        let wanted = args.get(2).map_or(rung == Rung::detect(), |a| a == rung.name() || a == "all");
        if !wanted {
            continue;
        }
        let alone = peak::flops_per_s(rung, threads).unwrap();
        println!("{rung}: multiply-adds alone {:.1} GFLOP/s", alone / 1e9);
        let mut b = Bench::new(rung, threads, m.flops_per_s);
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
            other => println!("no bench called {other}"),
        }
    }
}
