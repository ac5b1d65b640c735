//! The instruction set that a test program computes with: the one that `BESSEMER_TEST_ISA` names, else the best one of this
//! processor.
//!
//! The test programs of several crates include this file; libraries do not read the environment.
//! `.ci/instruction-sets` runs the numerical tests once for each set that the processor has.
#![allow(dead_code, reason = "every test program uses another part")]
#![allow(clippy::unwrap_used, reason = "a failed unwrap here is a failed test")]

use bessemer_kernels_cpu::{CpuBackend, CpuConfig, Engine, Rung};

/// Environment variable that names an instruction set.
const VARIABLE: &str = "BESSEMER_TEST_ISA";

/// Kernels and engines of matrix products that belong together.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct InstructionSet {
    /// Value of the variable.
    pub(crate) name: &'static str,
    /// Kernels.
    pub(crate) rung: Rung,
    /// Engines of matrix products, the most exact one first.
    pub(crate) engines: &'static [Engine],
}

impl InstructionSet {
    /// All sets, slowest first.
    pub(crate) const ALL: [InstructionSet; 6] = [
        InstructionSet { name: "portable", rung: Rung::Portable, engines: &[Engine::Fma] },
        InstructionSet { name: "neon", rung: Rung::Neon, engines: &[Engine::Fma] },
        InstructionSet { name: "avx2", rung: Rung::Avx2, engines: &[Engine::Fma] },
        InstructionSet { name: "avx512", rung: Rung::Avx512, engines: &[Engine::Fma] },
        InstructionSet { name: "avx512-fp16", rung: Rung::Avx512, engines: &[Engine::Fp16] },
        InstructionSet {
            name: "amx",
            rung: Rung::Avx512,
            engines: &[Engine::Amx6, Engine::Amx3, Engine::Amx],
        },
    ];

    /// Whether this processor has the instruction set.
    pub(crate) fn available(&self) -> bool {
        self.rung.available() && self.engines.iter().all(|e| e.available(self.rung))
    }
}

/// The set that the variable names.
pub(crate) fn forced() -> Option<&'static InstructionSet> {
    let name = std::env::var(VARIABLE).ok()?;
    let known = InstructionSet::ALL.map(|s| s.name);
    let found = InstructionSet::ALL.iter().find(|s| s.name == name);
    let set = found.unwrap_or_else(|| panic!("{VARIABLE}={name}: wanted one of {known:?}"));
    assert!(set.available(), "{VARIABLE}={name}: this processor does not have it");
    Some(set)
}

/// The forced kernels, else the fastest ones.
pub(crate) fn rung() -> Rung {
    forced().map_or_else(Rung::detect, |s| s.rung)
}

/// The reference loops and the forced kernels, else every kind of kernels that the processor can run.
pub(crate) fn rungs() -> impl Iterator<Item = Rung> {
    let forced = forced().map(|s| s.rung);
    Rung::ALL.into_iter().filter(move |r| match forced {
        Some(rung) => *r == Rung::Reference || *r == rung,
        None => r.available(),
    })
}

/// The forced engines, else every one that the processor can run with its fastest kernels.
pub(crate) fn engines() -> impl Iterator<Item = Engine> {
    let forced = forced();
    Engine::ALL.into_iter().filter(move |e| match forced {
        Some(set) => set.engines.contains(e),
        None => e.available(Rung::detect()),
    })
}

/// A backend with these kernels, and with the engine of the forced set where they are its kernels.
pub(crate) fn with_rung(config: CpuConfig, rung: Rung) -> CpuBackend {
    match forced().filter(|s| s.rung == rung) {
        Some(set) => CpuBackend::with_engine(config, rung, set.engines[0]).unwrap(),
        None => CpuBackend::with_rung(config, rung).unwrap(),
    }
}

/// A backend of the forced set, else the fastest one, with so many threads.
pub(crate) fn cpu(threads: usize) -> CpuBackend {
    with_rung(CpuConfig { threads, ..CpuConfig::default() }, rung())
}
