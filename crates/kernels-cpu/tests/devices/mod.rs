//! The CPU as a device of the operator suite.

#[path = "../instruction_set/mod.rs"]
pub(crate) mod instruction_set;

use bessemer_kernels_cpu::{CpuBackend, CpuConfig, Engine, Rung};
use bessemer_operator_suite::{Devices, ProductEngine};
use bessemer_tensor::Backend;

/// Instruction sets as variants, threads as workers, and every engine of matrix products on every instruction set.
pub(crate) struct Cpu;

fn variants() -> Vec<Rung> {
    instruction_set::rungs().filter(|rung| *rung != Rung::Reference).collect()
}

fn engines() -> Vec<(Rung, Engine)> {
    let of =
        |rung| Engine::ALL.into_iter().filter(move |engine| engine.available(rung)).map(move |e| (rung, e));
    variants().into_iter().flat_map(of).collect()
}

fn with_rung(rung: Rung, threads: usize) -> Box<dyn Backend> {
    Box::new(instruction_set::with_rung(CpuConfig { threads, ..CpuConfig::default() }, rung))
}

impl Devices for Cpu {
    fn reference(&self) -> Box<dyn Backend> {
        with_rung(Rung::Reference, 1)
    }

    fn variants(&self) -> Vec<&'static str> {
        variants().into_iter().map(Rung::name).collect()
    }

    fn backend(&self, variant: usize, workers: usize) -> Box<dyn Backend> {
        with_rung(variants()[variant], workers)
    }

    fn engines(&self) -> Vec<ProductEngine> {
        let engine = |(rung, engine): (Rung, Engine)| ProductEngine {
            name: format!("{engine} on {rung}"),
            reduced_parameters: match engine {
                Engine::Fma | Engine::Fp16 | Engine::Amx => [0.0; 2],
                // The tile unit takes fewer parts of a narrow operand, and k in longer stretches.
                Engine::Amx3 | Engine::Amx6 => [2e-5; 2],
            },
        };
        engines().into_iter().map(engine).collect()
    }

    fn engine_backend(&self, engine: usize, threads: usize) -> Box<dyn Backend> {
        let (rung, engine) = engines()[engine];
        let config = CpuConfig { threads, ..CpuConfig::default() };
        Box::new(CpuBackend::with_engine(config, rung, engine).expect("the engine is available"))
    }
}
