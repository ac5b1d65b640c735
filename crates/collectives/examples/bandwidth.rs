//! Bytes per second of collectives between in-process ranks, over lengths of values, pieces and spinning:
//!
//! ```text
//! cargo run --release -p bessemer-collectives --example bandwidth -- [key=value,value...]...
//!     ranks=2           ranks
//!     kib=4,256,65536   KiB of f32 on every rank
//!     piece=512         KiB that a rank shows the others at a time (threads), or in a frame (messages)
//!     spin=20           microseconds that a waiting thread looks before it sleeps (threads)
//!     engine=threads    threads, messages
//!     tries=15          of which the median is told
//! ```
//! Every combination of the values is measured, one line of CSV each: the collective, its setting, microseconds of the slowest
//! rank, and gigabytes of values per second on each rank. The row "copy" of each rank count and length is what the memory
//! can do: every rank copies half of its values to the other half, read and written bytes counted.
//! For `ThreadSettings::default()`: `piece=64,128,256,512,1024,2048 spin=0,5,20,100,500 ranks=2,4,8`, on a machine that
//! does nothing else and has that many cores.

#![allow(clippy::print_stdout, reason = "prints what it measures")]
#![allow(clippy::expect_used, reason = "a measurement that fails has nothing to say")]

use bessemer_collectives::{
    ChannelTransport, Communicator, MessageCommunicator, MessageSettings, Parts, Reduce, ThreadCommunicator,
    ThreadSettings,
};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// What is swept, each with its default.
const KEYS: [(&str, &str); 6] = [
    ("ranks", "2"),
    ("kib", "4,256,65536"),
    ("piece", "512"),
    ("spin", "20"),
    ("engine", "threads"),
    ("tries", "15"),
];

/// One combination.
#[derive(Debug, Clone, Copy)]
struct Setting<'a> {
    engine: &'a str,
    ranks: usize,
    len: usize,
    piece_bytes: usize,
    spin: Duration,
    tries: usize,
}

impl Setting<'_> {
    fn world(&self) -> Vec<Box<dyn Communicator>> {
        if self.engine == "messages" {
            let settings = MessageSettings { piece_bytes: self.piece_bytes, ..MessageSettings::default() };
            let over = |t| MessageCommunicator::world("world", Arc::new(t), &settings);
            let boxed = |t| Box::new(over(t)) as Box<dyn Communicator>;
            return ChannelTransport::world(self.ranks).into_iter().map(boxed).collect();
        }
        let settings =
            ThreadSettings { piece_bytes: self.piece_bytes, spin: self.spin, ..ThreadSettings::default() };
        let boxed = |c| Box::new(c) as Box<dyn Communicator>;
        ThreadCommunicator::world("world", self.ranks, &settings).into_iter().map(boxed).collect()
    }

    /// Median of the times of the slowest rank.
    fn time(&self, work: impl Fn(&mut dyn Communicator, &mut [f32]) + Sync) -> Duration {
        let times = Mutex::new(vec![Duration::ZERO; self.tries]);
        std::thread::scope(|scope| {
            for mut c in self.world() {
                let (work, times) = (&work, &times);
                scope.spawn(move || {
                    let mut v = vec![0.5f32; self.len];
                    work(c.as_mut(), &mut v);
                    for t in 0..self.tries {
                        c.barrier("start").expect("no rank leaves");
                        let start = Instant::now();
                        work(c.as_mut(), &mut v);
                        let spent = start.elapsed();
                        let mut times = times.lock().expect("nobody panics");
                        times[t] = times[t].max(spent);
                    }
                });
            }
        });
        let mut times = times.into_inner().expect("nobody panics");
        times.sort();
        times[self.tries / 2]
    }

    fn tell(&self, collective: &str, time: Duration) {
        let Setting { engine, ranks, len, piece_bytes, spin, .. } = *self;
        let (kib, piece, us) = (len >> 8, piece_bytes >> 10, time.as_secs_f64() * 1e6);
        let rate = match collective {
            "barrier" => String::new(),
            _ => format!("{:.3}", (4 * len) as f64 / 1e9 / time.as_secs_f64()),
        };
        println!("{collective},{engine},{ranks},{kib},{piece},{},{us:.2},{rate}", spin.as_micros());
    }

    fn copy(&self) {
        let time = self.time(|_, v| {
            let (a, b) = v.split_at_mut(v.len() / 2);
            a.copy_from_slice(b);
            std::hint::black_box(a);
        });
        self.tell("copy", time);
    }

    fn collectives(&self) {
        let parts = Parts::even(self.len, self.ranks);
        self.tell("all-reduce", self.time(|c, v| c.all_reduce("x", v, Reduce::Sum).expect("no rank leaves")));
        self.tell(
            "reduce-scatter",
            self.time(|c, v| {
                c.reduce_scatter("x", v, &parts, Reduce::Sum).expect("no rank leaves");
            }),
        );
        self.tell("all-gather", self.time(|c, v| c.all_gather("x", v, &parts).expect("no rank leaves")));
        self.tell("barrier", self.time(|c, _| c.barrier("x").expect("no rank leaves")));
    }
}

/// The values of each key, from `key=value,value` words.
fn swept(words: &[String]) -> Result<Vec<Vec<String>>, String> {
    let known = || KEYS.map(|k| k.0).join(", ");
    for word in words {
        let key = word.split_once('=').map_or(word.as_str(), |w| w.0);
        if !word.contains('=') || KEYS.iter().all(|k| k.0 != key) {
            return Err(format!("found {word:?}, wanted KEY=VALUE,VALUE with a key of {}", known()));
        }
    }
    let of = |(key, default): (&str, &str)| {
        let given = words.iter().rev().find_map(|w| w.strip_prefix(key)?.strip_prefix('='));
        given.unwrap_or(default).split(',').map(str::to_owned).collect()
    };
    Ok(KEYS.map(of).to_vec())
}

fn numbers(key: &str, values: &[String]) -> Result<Vec<usize>, String> {
    let number = |v: &String| v.parse().map_err(|_| format!("{key}: found {v:?}, wanted a number"));
    values.iter().map(number).collect()
}

fn run(words: &[String]) -> Result<(), String> {
    let keys = swept(words)?;
    let number = |at: usize| numbers(KEYS[at].0, &keys[at]);
    let (ranks, kib, pieces, spins) = (number(0)?, number(1)?, number(2)?, number(3)?);
    let tries = *number(5)?.first().unwrap_or(&1);
    if let Some(engine) = keys[4].iter().find(|e| !["threads", "messages"].contains(&e.as_str())) {
        return Err(format!("engine: found {engine:?}, wanted threads or messages"));
    }
    if ranks.iter().chain(&pieces).chain(&kib).chain([&tries]).any(|n| *n == 0) {
        return Err("ranks, kib, piece and tries are at least 1".into());
    }
    println!("collective,engine,ranks,kib,piece_kib,spin_us,us,gb_per_s");
    for engine in &keys[4] {
        for (ranks, kib) in ranks.iter().flat_map(|r| kib.iter().map(move |k| (*r, *k))) {
            for (i, (piece, spin)) in
                pieces.iter().flat_map(|p| spins.iter().map(move |s| (p, s))).enumerate()
            {
                let (len, piece_bytes) = (kib << 8, piece << 10);
                let spin = Duration::from_micros(*spin as u64);
                let setting = Setting { engine, ranks, len, piece_bytes, spin, tries };
                if i == 0 {
                    setting.copy();
                }
                setting.collectives();
            }
        }
    }
    Ok(())
}

fn main() -> Result<(), String> {
    run(&std::env::args().skip(1).collect::<Vec<_>>())
}
