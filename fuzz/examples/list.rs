//! Prints each target with the folders of its golden files, for `run.sh`.

#![allow(clippy::print_stdout, reason = "its output is what it is for")]

fn main() {
    for target in bessemer_fuzz::TARGETS {
        println!("{} {}", target.name, target.golden.join(" "));
    }
}
