//! Bessemer: raw text in, trained and evaluated language model out. Everything is in the library of this name.

use std::process::ExitCode;

fn main() -> ExitCode {
    bessemer::main()
}
