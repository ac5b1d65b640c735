//! Checks of the workspace that no compiler makes. `cargo run -p xtask` prints what is wrong; `cargo test` runs the same.
//!
//! - **arrows**: the layer table in ARCHITECTURE.md and the manifests name the same crates and the same dependencies,
//!   and every arrow points down;
//! - **words**: what a crate may not say (files, clocks and threads on the lower layers, the environment in libraries,
//!   `unsafe` outside the crates that own it);
//! - **dependencies**: every outside crate has its line in docs/dependencies.md.

mod arrows;
mod words;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Root of the repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("xtask lives one folder below the root")
        .to_path_buf()
}

#[allow(clippy::print_stdout)] // a command-line tool: this is its output
fn main() -> ExitCode {
    let problems: Vec<String> = [arrows::check(&root()), words::check(&root())].concat();
    for p in &problems {
        println!("{p}");
    }
    println!("{} problems", problems.len());
    if problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrows_point_down_and_match_the_table() {
        assert_eq!(arrows::check(&root()), Vec::<String>::new());
    }

    #[test]
    fn crates_say_only_what_they_may() {
        assert_eq!(words::check(&root()), Vec::<String>::new());
    }
}
