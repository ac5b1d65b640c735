//! One rank of a test.

use crate::work;
use bessemer_collectives::launch::resolve;
use bessemer_collectives::{
    CollectiveError, Communicator, Message, MessageCommunicator, MessageSettings, Parts, Reduce,
};
use bessemer_collectives_mpi::{Settings, start};
use std::fs::OpenOptions;
use std::io::Write;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Of all tests.
pub(crate) const SILENCE: Duration = Duration::from_secs(3);
const PATIENCE: Duration = Duration::from_secs(60);

/// Milliseconds, on the clock that all ranks of a machine share.
fn now() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |t| t.as_millis())
}

pub(crate) fn run(arguments: &[&str]) -> ExitCode {
    // As the program does it: a launcher that ends the job lets a rank say first why.
    let asked = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(signal_hook::consts::SIGTERM, asked).expect("a handler can be set");
    let witness = match arguments {
        ["fault", _, witness] => Some(*witness),
        _ => None,
    };
    match work(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            tell(witness, &format!("failed: {problem}"));
            ExitCode::from(42)
        }
    }
}

/// Says it with the time: into the file of a test that must not lose it, or to the launcher.
fn tell(witness: Option<&str>, what: &str) {
    let line = format!("t={} {what}\n", now());
    let file = witness.and_then(|path| OpenOptions::new().append(true).open(path).ok());
    // In one piece: other ranks write too.
    if file.is_none_or(|mut file| file.write_all(line.as_bytes()).is_err()) {
        print!("{line}");
    }
}

fn work(arguments: &[&str]) -> Result<(), String> {
    let launch = resolve(&|name| std::env::var(name).ok()).map_err(|e| e.to_string())?;
    let settings = Settings { silence: SILENCE, join: PATIENCE, launch: Some(launch.clone()) };
    let world = start(&settings).map_err(|e| e.to_string())?;
    println!("rank {} is pid {}; {launch}", world.rank(), std::process::id());
    if world.rank() == 0 {
        println!("library {}", world.library());
    }
    let settings = MessageSettings { patience: PATIENCE, ..MessageSettings::default() };
    let mut communicator = MessageCommunicator::world("world", world.transport(), &settings);
    let done = match arguments {
        ["parity"] => parity(&mut communicator),
        ["warm"] => warm(&mut communicator),
        ["fault", fault, witness] => faulty(&mut communicator, fault, witness),
        ["bench", bytes] => bench(&mut communicator, bytes.parse().map_err(|_| "a number of bytes")?),
        other => Err(format!("unknown work {other:?}")),
    };
    let rank = world.rank();
    match done {
        Ok(()) => {
            world.finish(PATIENCE).map_err(|e| format!("rank {rank}: {e}"))?;
            println!("rank {rank} finished");
            Ok(())
        }
        Err(problem) => {
            world.abandon(&problem);
            Err(format!("rank {rank}: {problem}"))
        }
    }
}

fn parity(c: &mut dyn Communicator) -> Result<(), String> {
    let digest = work::every_collective(c).map_err(|e| e.to_string())?;
    println!("rank {} digest {digest:016x}", c.rank());
    Ok(())
}

/// Steps of [`warm`].
const LEAST_STEPS: usize = 40;
const MOST_STEPS: usize = 400;

/// Steps like those of training with a pipeline, until they ask for no memory.
fn warm(c: &mut dyn Communicator) -> Result<(), String> {
    let (rank, size) = (c.rank(), c.size());
    let (next, previous) = ((rank + 1) % size, (rank + size - 1) % size);
    let mut x = vec![0.5f32; 700_000];
    let mut y = vec![0.0f32; 40_000];
    let parts = Parts::even(x.len(), size);
    let mut counts = Vec::with_capacity(MOST_STEPS);
    let failed = |e: CollectiveError| e.to_string();
    // Looks at other processes, five a second, are not a step's, and how many buffers are needed at once depends on timing: on a
    // busy machine it takes longer until every rank has seen a step that asks for nothing. What asks in each step never ends.
    let mut most_of_least = [f32::INFINITY];
    while counts.len() < MOST_STEPS && (counts.len() < LEAST_STEPS || most_of_least[0] > 0.0) {
        c.barrier("start").map_err(failed)?;
        let before = bessemer_counting_alloc::allocations();
        for tag in 0..6 {
            c.send(Message::new("activation", tag, next), &y).map_err(failed)?;
        }
        for tag in [3, 1, 5, 0, 2, 4] {
            c.receive(Message::new("activation", tag, previous), &mut y).map_err(failed)?;
        }
        c.reduce_scatter("gradients", &mut x, &parts, Reduce::Max).map_err(failed)?;
        c.all_gather("weights", &mut x, &parts).map_err(failed)?;
        c.all_reduce("norm", &mut x[..1], Reduce::Max).map_err(failed)?;
        c.barrier("end").map_err(failed)?;
        counts.push(bessemer_counting_alloc::allocations() - before);
        let warm = counts.iter().skip(LEAST_STEPS / 2);
        most_of_least = [warm.min().map_or(f32::INFINITY, |least| *least as f32)];
        c.all_reduce("asked", &mut most_of_least, Reduce::Max).map_err(failed)?;
    }
    let least = counts.iter().skip(LEAST_STEPS / 2).min().copied().unwrap_or(u64::MAX);
    println!("rank {rank} asked for {least} at least; {counts:?}");
    Ok(())
}

/// All-reduces whose every element is looked at; the last rank goes wrong in the middle.
#[allow(clippy::exit, reason = "one of the faults")]
fn faulty(c: &mut dyn Communicator, fault: &str, witness: &str) -> Result<(), String> {
    const LEN: usize = 300_001;
    let (rank, size) = (c.rank(), c.size());
    for step in 0..40 {
        if step == 20 && rank + 1 == size {
            tell(Some(witness), &format!("fault {fault} on rank {rank}"));
            let pid = std::process::id().to_string();
            match fault {
                "kill" => signal("-KILL", &pid)?,
                "stop" => signal("-STOP", &pid)?,
                "exit" => std::process::exit(0),
                "give-up" => return Err("the disk is full".to_owned()),
                "panic" => panic!("on purpose"),
                // Longer than the silence that ranks bear: the communication thread goes on.
                "busy" => std::thread::sleep(2 * SILENCE),
                "cut" => {
                    // What was said travels over the same link.
                    std::thread::sleep(Duration::from_millis(200));
                    let status = Command::new("ip").args(["link", "set", "eth0", "down"]).status();
                    if !status.is_ok_and(|s| s.success()) {
                        return Err("the link does not go down".to_owned());
                    }
                }
                other => return Err(format!("unknown fault {other}")),
            }
        }
        let mut x = vec![(step + rank) as f32; LEN];
        c.all_reduce("gradients", &mut x, Reduce::Sum).map_err(|e| e.to_string())?;
        let wanted = (0..size).map(|r| (step + r) as f32).sum::<f32>();
        let wrong = x.iter().filter(|v| **v != wanted).count();
        if wrong > 0 {
            return Err(format!("WRONG: {wrong} of {LEN} elements in step {step}"));
        }
    }
    Ok(())
}

fn signal(signal: &str, pid: &str) -> Result<(), String> {
    Command::new("kill").args([signal, pid]).status().map_err(|e| e.to_string())?;
    std::thread::sleep(Duration::from_millis(500)); // it acts before the next call
    Ok(())
}

fn bench(c: &mut dyn Communicator, bytes: usize) -> Result<(), String> {
    // Several calls in a row: in one alone a rank whose peer came first waits for nothing.
    let mut time = |name: &str, len: usize, calls: usize| -> Result<f64, String> {
        let mut x = vec![1.0f32; len];
        let mut took = Vec::new();
        for _ in 0..9 {
            x.fill(1.0);
            c.barrier("start").map_err(|e| e.to_string())?;
            let began = Instant::now();
            for _ in 0..calls {
                c.all_reduce(name, &mut x, Reduce::Sum).map_err(|e| e.to_string())?;
            }
            took.push(began.elapsed().as_secs_f64() / calls as f64);
        }
        took.sort_by(f64::total_cmp);
        Ok(took[took.len() / 2])
    };
    let small = time("one", 1, 200)?;
    let large = time("many", bytes / 4, 3)?;
    let size = c.size() as f64;
    if c.rank() == 0 {
        let moved = 2.0 * (size - 1.0) / size * bytes as f64;
        println!(
            "bench all-reduce, {size} ranks: 4 bytes {:.1} us; {} MB {:.1} ms, {:.2} GB/s reduced, {:.2} GB/s sent by each rank (medians)",
            small * 1e6,
            bytes / 1_000_000,
            large * 1e3,
            bytes as f64 / large / 1e9,
            moved / large / 1e9
        );
    }
    Ok(())
}
