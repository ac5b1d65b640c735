//! Runs the target that the variable `BESSEMER_FUZZ_TARGET` names under libFuzzer.
#![no_main]

use bessemer_fuzz::{TARGETS, Target};
use libfuzzer_sys::fuzz_target;
use std::sync::LazyLock;

static TARGET: LazyLock<&Target> = LazyLock::new(|| {
    let name = std::env::var("BESSEMER_FUZZ_TARGET").unwrap_or_default();
    let found = TARGETS.iter().find(|target| target.name == name);
    found.unwrap_or_else(|| panic!("BESSEMER_FUZZ_TARGET = {name:?} is no target of fuzz/src/targets"))
});

/// Outside decoders panic behind `catch_unwind`; libFuzzer's hook would end the process there. Panics that nobody catches are
/// still found.
fn caught_panics_are_errors() {
    LazyLock::force(&TARGET);
    std::panic::set_hook(Box::new(|_| {}));
}

fuzz_target!(init: caught_panics_are_errors(), |data: &[u8]| (TARGET.run)(data));
