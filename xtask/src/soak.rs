//! All that takes too long for every commit: whole sets of cases, tests of minutes, other instruction sets, fuzzing.

use std::fs::File;
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

/// A command of the soak, run in the root of the repository.
struct Part {
    name: &'static str,
    shows: &'static str,
    /// Words of the command, separated by blanks.
    command: &'static str,
}

const PARTS: [Part; 9] = [
    Part {
        name: "sets",
        shows: "the tests of every commit with their whole sets of cases",
        command: "env BESSEMER_SOAK=1 cargo test --workspace --locked --no-fail-fast",
    },
    Part {
        name: "long",
        shows: "ignored tests that need nothing but minutes",
        command: "cargo test --workspace --locked --no-fail-fast -- --ignored hostile_input_of_full_size rung_ \
                  survive_any_number_of_kills every_path_replaced_by_every_foreign_object \
                  ten_thousand_requests_leave_nothing_behind every_magnitude_has_the_code_of_the_reference \
                  every_layout_goes_into_every_other_one kills_at_random_moments soak_of_random_flips \
                  every_layout_holds_what_is_planned bytes_of_64_ranks_and_7_billion_parameters",
    },
    Part {
        name: "kernels",
        shows: "kernels with debug assertions and overflow checks",
        command: "cargo test -p bessemer-kernels-cpu --locked \
                  --config profile.dev.package.bessemer-kernels-cpu.debug-assertions=true \
                  --config profile.dev.package.bessemer-kernels-cpu.overflow-checks=true",
    },
    Part {
        name: "instruction-sets",
        shows: "numerical tests with every instruction set of this processor",
        command: "bash .ci/instruction-sets",
    },
    Part {
        name: "cluster",
        shows: "corpora on a Ballista cluster, object stores",
        command: "bash .ci/cluster",
    },
    Part {
        name: "aarch64",
        shows: "NEON kernels and a small training in an emulator",
        command: "bash .ci/aarch64",
    },
    Part {
        name: "reproducible",
        shows: "two builds give packages of the same bytes",
        command: "bash .ci/reproducible",
    },
    Part { name: "fuzz", shows: "a minute of libFuzzer for every parser", command: "bash fuzz/run.sh 60" },
    Part { name: "faults", shows: "every fault of xtask/faults is caught", command: "cargo xtask faults" },
];

fn run_part(root: &Path, part: &Part, log: &Path) -> io::Result<bool> {
    let mut words = part.command.split_whitespace();
    let output = File::create(log)?;
    let status = Command::new(words.next().unwrap_or_default())
        .args(words)
        .current_dir(root)
        .stdin(Stdio::null())
        .stdout(output.try_clone()?)
        .stderr(output)
        .status()?;
    Ok(status.success())
}

/// Runs the parts with these names, or all of them; each to its end, whatever the others found.
pub(crate) fn run(root: &Path, names: &[String]) -> Result<(), String> {
    if let Some(name) = names.iter().find(|name| PARTS.iter().all(|p| p.name != **name)) {
        let known: String = PARTS.iter().map(|p| format!("\n  {:18}{}", p.name, p.shows)).collect();
        return Err(format!("the soak has no part `{name}`; its parts are:{known}"));
    }
    let logs = root.join("target/soak");
    std::fs::create_dir_all(&logs).map_err(|e| format!("{}: {e}", logs.display()))?;
    let mut failed = Vec::new();
    for part in PARTS.iter().filter(|p| names.is_empty() || names.iter().any(|name| name == p.name)) {
        let (log, started) = (logs.join(format!("{}.log", part.name)), Instant::now());
        let passed = run_part(root, part, &log).map_err(|e| format!("{}: {e}", part.name))?;
        let verdict = if passed { "passed" } else { "FAILED" };
        println!("{:18}{verdict} {:6.0} s  {}", part.name, started.elapsed().as_secs_f64(), log.display());
        if !passed {
            failed.push(part.name);
        }
    }
    if failed.is_empty() { Ok(()) } else { Err(format!("failed: {}", failed.join(", "))) }
}
