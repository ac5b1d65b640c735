//! A warm step of the trainer, with its records, allocates no memory. Alone in its file: another test's allocations would be counted too.
#![allow(clippy::unwrap_used, reason = "a failed unwrap here is a failed test")]

#[path = "integration/place/mod.rs"]
mod place;

use bessemer_counting_alloc::{CountingAllocator, allocations};
use bessemer_kernels_cpu::{CpuBackend, CpuConfig};
use bessemer_runlog::Record;
use bessemer_train::{Observer, Trainer, TrainerInput};
use bessemer_units::Bytes;
use std::sync::atomic::AtomicBool;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Steps that may allocate memory.
const WARM: usize = 6;

/// Allocations so far, at each step's record.
struct Watch {
    counts: Vec<u64>,
}

impl Observer for Watch {
    fn record(&mut self, record: &Record) {
        if let Record::Step(_) = record {
            self.counts.push(allocations());
        }
    }
    fn message(&mut self, _: &str) {}
    fn progress(&mut self, _: &str, _: u64, _: u64) {}
    fn resident_bytes(&mut self) -> Option<u64> {
        Some(1)
    }
}

/// A thread that the system starts late allocates its name in some step, and spike detection fills its window; but a step's own
/// allocations are in each step.
#[test]
fn a_warm_step_asks_for_no_memory() {
    for (optimizer, lengths) in
        [("adamw", "packed"), ("muon", "packed"), ("adamw", "padded"), ("adamw", "bucketed")]
    {
        let dir = tempfile::tempdir().unwrap();
        let (tokenizer, train) = place::data(&dir.path().join("shards"), "train", false);
        let optimizer = format!("optim.optimizer={optimizer}");
        let input = TrainerInput {
            recipe: place::recipe(&[
                &optimizer,
                &format!("train.lengths={lengths}"),
                "save.every_steps=0",
                "save.every_seconds=0",
            ]),
            recipe_text: String::new(),
            tokenizer,
            train,
            validation: None,
            former: None,
            tasks: Default::default(),
            directory: bessemer_durable::ConfinedDir::open(dir.path()).unwrap(),
            memory_available: Bytes(1 << 30),
            peak: None,
        };
        let backend = CpuBackend::new(CpuConfig { threads: 2, ..CpuConfig::default() }).unwrap();
        let mut trainer = Trainer::new(input, Box::new(backend)).unwrap();
        let mut watch = Watch { counts: Vec::with_capacity(place::STEPS as usize) };
        trainer.run(&mut watch, &AtomicBool::new(false)).unwrap();
        let asked: Vec<u64> = watch.counts.windows(2).map(|w| w[1] - w[0]).skip(WARM).collect();
        let quiet = asked.iter().filter(|n| **n == 0).count();
        assert!(asked.len() > 12 && 4 * quiet >= 3 * asked.len(), "{optimizer}, {lengths}: {asked:?}");
    }
}
