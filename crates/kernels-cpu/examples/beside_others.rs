//! Measures how much two programs that share the processors slow down the products of a training step, and prints a line.
//!
//! ```text
//! beside_others [HOGS] [SECONDS] [THREADS]      2, 5 and all processors if left out
//! ```
//!
//! HOGS processes spin while the products are computed. The line has launches a second, processor seconds a second, and
//! launches a processor second: a thread that waits by spinning lowers the last figure.
#![allow(clippy::print_stdout, reason = "a program whose output is its purpose")]

use bessemer_kernels_cpu::{CpuBackend, CpuConfig};
use bessemer_tensor::op::{Linear, Op};
use bessemer_tensor::{Backend, BufferSpec, Stream, View};
use bessemer_units::DType;
use std::error::Error;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Rows, inputs and outputs of the product: about a millisecond on two threads.
const PRODUCT: [usize; 3] = [512, 384, 1152];
/// Argument with which the program starts itself as a hog.
const HOG: &str = "hog";

/// Processes that spin until this is dropped.
struct Hogs(Vec<Child>);

impl Drop for Hogs {
    fn drop(&mut self) {
        for hog in &mut self.0 {
            // Ignores an error: the process has no work to lose, and may have ended already.
            let _ = hog.kill();
            let _ = hog.wait();
        }
    }
}

fn main() -> Outcome<()> {
    let mut arguments = std::env::args().skip(1);
    let first = arguments.next().unwrap_or_else(|| "2".into());
    let seconds = arguments.next().map_or(Ok(5.0), |text| text.parse::<f64>())?;
    let length = Duration::from_secs_f64(seconds);
    if first == HOG {
        // Longer than any measurement, so that a hog ends even if its parent was killed.
        let begun = Instant::now();
        while begun.elapsed() < length {
            std::hint::spin_loop();
        }
        return Ok(());
    }
    let hogs: usize = first.parse()?;
    let threads = arguments.next().map_or(Ok(0), |text| text.parse())?;
    let mut backend = CpuBackend::new(CpuConfig { threads, ..CpuConfig::default() })?;
    let [n, i, o] = PRODUCT;
    let mut matrix = |rows, cols| -> Outcome<View> {
        let spec = BufferSpec { class: "bench", name: "operand", dtype: DType::F32, len: rows * cols };
        Ok(backend.alloc(spec)?.matrix(rows, cols))
    };
    let (x, weight, out) = (matrix(n, i)?, matrix(o, i)?, matrix(n, o)?);
    let op: Op =
        Linear { x, weight, bias: None, activation: None, residual: None, rowwise: false, out }.into();
    let bytes = backend.workspace(&op)?;
    backend.reserve_workspace(bytes)?;
    let program = std::env::current_exe()?;
    let start = |_| Command::new(&program).args([HOG, &(2.0 * seconds + 10.0).to_string()]).spawn();
    let _hogs = Hogs((0..hogs).map(start).collect::<Result<_, _>>()?);
    let (begun, before, mut launches) = (Instant::now(), processor_seconds()?, 0.0);
    while begun.elapsed() < length {
        backend.launch(Stream::Compute, &op)?;
        launches += 1.0;
    }
    let (wall, processor) = (begun.elapsed().as_secs_f64(), processor_seconds()? - before);
    println!(
        "{hogs} hogs: {:.0} launches a second, {:.2} processors, {:.0} launches a processor second",
        launches / wall,
        processor / wall,
        launches / processor
    );
    Ok(())
}

/// Seconds that all threads of this process have spent on processors.
fn processor_seconds() -> Outcome<f64> {
    let mut sum = 0.0;
    for task in std::fs::read_dir("/proc/self/task")? {
        let figures = std::fs::read_to_string(task?.path().join("schedstat"))?;
        sum += figures.split_whitespace().next().ok_or("an empty schedstat")?.parse::<f64>()? / 1e9;
    }
    Ok(sum)
}
