//! Bytes per second of collectives between two in-process ranks: `cargo run --release -p bessemer-collectives --example bandwidth`.
//! A copy of the same bytes by both ranks at once stands beside them.

#![allow(clippy::print_stdout, reason = "prints what it measures")]
#![allow(clippy::expect_used, reason = "a measurement that fails has nothing to say")]

use bessemer_collectives::{Communicator, Parts, Reduce, ThreadCommunicator, ThreadSettings, Values};
use std::sync::Mutex;
use std::time::{Duration, Instant};

const RANKS: usize = 2;
const TRIES: usize = 15;

/// Median of the times of the slower rank.
fn time(
    piece_bytes: usize,
    len: usize,
    work: impl Fn(&mut ThreadCommunicator, &mut [f32]) + Sync,
) -> Duration {
    let settings = ThreadSettings { piece_bytes, ..ThreadSettings::default() };
    let times = Mutex::new(vec![Duration::ZERO; TRIES]);
    std::thread::scope(|scope| {
        for mut c in ThreadCommunicator::world("world", RANKS, &settings) {
            let (work, times) = (&work, &times);
            scope.spawn(move || {
                let mut v = vec![0.0f32; len];
                v.fill(0.5);
                work(&mut c, &mut v);
                for t in 0..TRIES {
                    c.barrier("start").expect("no rank leaves");
                    let start = Instant::now();
                    work(&mut c, &mut v);
                    let spent = start.elapsed();
                    let mut times = times.lock().expect("nobody panics");
                    times[t] = times[t].max(spent);
                }
            });
        }
    });
    let mut times = times.into_inner().expect("nobody panics");
    times.sort();
    times[TRIES / 2]
}

fn main() {
    let len = 16 << 20;
    let gigabytes = (4 * len) as f64 / 1e9;
    let copy = time(1 << 20, len, |_, v| {
        let (a, b) = v.split_at_mut(len / 2);
        a.copy_from_slice(b);
        std::hint::black_box(a);
    });
    let copied = gigabytes / copy.as_secs_f64();
    println!("{RANKS} ranks, {} MiB of f32 each, median of {TRIES}", len >> 18);
    println!("copy of half to half, read + written, each rank: {copied:.1} GB/s");
    for piece in [64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20, 2 << 20] {
        let reduce = time(piece, len, |c, v| {
            c.all_reduce("x", Values::F32(v), Reduce::Sum).expect("no rank leaves");
        });
        let parts = Parts::even(len, RANKS);
        let scatter = time(piece, len, |c, v| {
            c.reduce_scatter("x", Values::F32(v), &parts, Reduce::Sum).expect("no rank leaves");
        });
        let gather = time(piece, len, |c, v| {
            c.all_gather("x", Values::F32(v), &parts).expect("no rank leaves");
        });
        let rate = |t: Duration| gigabytes / t.as_secs_f64();
        println!(
            "pieces of {:>4} KiB: all-reduce {:.2} ms, {:.1} GB/s; reduce-scatter {:.1} GB/s; all-gather {:.1} GB/s",
            piece >> 10,
            reduce.as_secs_f64() * 1e3,
            rate(reduce),
            rate(scatter),
            rate(gather)
        );
    }
    let small = time(512 << 10, 1, |c, v| {
        for _ in 0..1000 {
            c.all_reduce("x", Values::F32(v), Reduce::Sum).expect("no rank leaves");
        }
    });
    println!("all-reduce of one value: {:.2} us", small.as_secs_f64() * 1e3);
}
