//! Limits of the process: a command that meets one names it, and calls no file damaged.

use crate::workplace::{Finished, GPT2, Workplace, finished};

/// A run within a limit that the shell sets.
fn limited(place: &Workplace, limit: &str) -> Finished {
    let mut command = std::process::Command::new("sh");
    let script = format!("ulimit {limit} && exec \"$0\" run recipe.toml");
    command.args(["-c", &script, env!("CARGO_BIN_EXE_bessemer")]).current_dir(place.path(""));
    finished(command)
}

#[test]
fn a_limit_of_the_process_is_named_and_nothing_is_called_damaged() {
    let place = Workplace::new(GPT2);
    // Blocks of 512 bytes: less than the texts take.
    let done = limited(&place, "-f 4");
    done.failed(1, &["RLIMIT_FSIZE", "runs/t/"]);
    assert!(!done.err.contains("damaged"), "{}", done.err);
    for files in [6, 8, 10, 12, 16] {
        let done = limited(&place, &format!("-n {files}"));
        assert!(!done.err.contains("damaged") && !done.err.contains("panicked"), "{files}: {}", done.err);
        if done.code != Some(0) {
            done.failed(1, &["RLIMIT_NOFILE"]);
        }
    }
    // What the limits stopped can be done without them.
    place.train(&[]);
}
